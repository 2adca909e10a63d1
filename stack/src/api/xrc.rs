//! XRC domains, and the queue pairs and shared receive queues in them.

use std::sync::Arc;

use crate::driver::cq::completion_queue::CompletionQueue;
use crate::{Cq, Error, Pd, QpAttr, RcQp, RcQpAttr, Rnic, Srq, SrqAttr, Wc};
use dgiwarp_engine::recv_queue::ReceiveSink;
use dgiwarp_engine::xrc::{XrcDomain, XrcRole};

/// Places of a domain's own completion queue, which stays empty.
const NO_COMPLETIONS: usize = 1;

impl ReceiveSink for CompletionQueue {
    fn received(&self, wc: Wc) {
        self.push(wc);
    }
}

/// An XRC domain (`ibv_open_xrcd(3)`): shared receive queues, and queue pairs whose peers choose among these with each message. A host with
/// many programs so needs a connection for each peer, and not one for each pair of programs.
///
/// A *target* queue pair of the domain only receives. It is connected to an *initiator*, made with
/// [`RcQpAttr::xrc_initiator`], whose work requests have the number of a queue ([`RcSendWr::remote_srqn`](crate::RcSendWr::remote_srqn),
/// [`Srq::number`]). The queue has the receives, and its protection domain is that of all memory that the message names. The ends agree on this by
/// dgiwarp's hello, so both have to be dgiwarp, with [`RcOptions::hello`](crate::RcOptions::hello).
#[derive(Debug, Clone)]
pub struct Xrcd {
    pub(crate) domain: Arc<XrcDomain>,
    /// Its poll set has the domain's targets. Polls of the completion queues of the domain's shared receive queues poll it too.
    cq: Cq,
    pd: Pd,
}

impl Rnic {
    /// Opens an XRC domain.
    ///
    /// # Errors
    /// [`Error::System`] without descriptors.
    pub fn open_xrcd(&self) -> Result<Xrcd, Error> {
        let cq = self.create_cq(NO_COMPLETIONS)?;
        self.shared.add_xrcd(&cq.shared);
        Ok(Xrcd {
            domain: Arc::default(),
            cq,
            pd: self.alloc_pd(),
        })
    }
}

impl Xrcd {
    /// Makes a target queue pair. It has no completions: those of receives go to the completion queues of the domain's shared receive
    /// queues. With `paired` it may be connected with [`RcQp::pair`].
    ///
    /// # Errors
    /// As for [`Pd::create_rc_qp`].
    pub fn create_target(&self, paired: bool) -> Result<RcQp, Error> {
        let qp = QpAttr {
            max_send_wr: 1,
            ..QpAttr::new(&self.cq, &self.cq)
        };
        let attr = RcQpAttr {
            paired,
            ..qp.into()
        };
        let role = XrcRole::Target(Arc::clone(&self.domain));
        RcQp::create_as(&self.pd, &attr, role)
    }
}

/// Shared receive queues of XRC domains.
impl Pd {
    /// Makes a shared receive queue of an XRC domain, whose receives complete in `cq`.
    ///
    /// # Errors
    /// As for [`Pd::create_srq`]; [`Error::System`] without descriptors.
    pub fn create_xrc_srq(&self, attr: &SrqAttr, xrcd: &Xrcd, cq: &Cq) -> Result<Srq, Error> {
        cq.shared.link(&xrcd.cq.shared)?;
        let sink = Arc::clone(&cq.shared) as Arc<dyn ReceiveSink>;
        Srq::create(self, attr, Some((Arc::clone(&xrcd.domain), sink)))
    }
}
