//! Datagram queue pairs.

use std::ops::Deref;

use super::datagram::{DatagramQp, bind_any};
use crate::driver::udp::ports::Ports;
use crate::{
    Error, Operation, Pd, PostError, PostFailure, ReadMap, SendWr, ShortData, ShortSendWr, UdQpAttr,
};
use dgiwarp_engine::datagram::{SendWqe, ShortSend};
use dgiwarp_engine::recv_queue::copy_sges;

/// A datagram queue pair. Its QPN is the UDP port of its socket. Dropping it destroys it: sends that the network
/// has not taken yet get up to a second, Reads end with `Flushed`, and posted receives end without a completion.
#[derive(Debug)]
pub struct UdQp {
    qp: DatagramQp,
}

impl Deref for UdQp {
    type Target = DatagramQp;

    #[inline]
    fn deref(&self) -> &DatagramQp {
        &self.qp
    }
}

impl UdQp {
    pub(crate) fn create_on(
        pd: &Pd,
        attr: &UdQpAttr<'_>,
        ports: impl FnOnce() -> Result<Ports, Error>,
    ) -> Result<Self, Error> {
        let qp = DatagramQp::create_on(pd, attr, false, ports)?;
        Ok(Self { qp })
    }

    /// Posts sends, in order, and hands as much of them to the network as it takes now (`ibv_post_send(3)`). Messages of one
    /// length to one peer, posted together, travel as trains. Never blocks.
    ///
    /// # Errors
    /// [`PostFailure`] has the number of accepted work requests, and the error of the next one.
    pub fn post_send(&self, wrs: &[SendWr<'_>]) -> Result<(), PostFailure> {
        if let [wr] = wrs
            && let Some(short) = short(wr)
            && self.post_short(&short)
        {
            return Ok(());
        }
        self.shared.post(wrs.iter().map(|wr| self.wqe(wr)))
    }

    /// Posts a Send whose peer shares memory with this QP, and puts it there at once. Returns `false`, and does nothing, where that cannot be:
    /// [`post_send`](Self::post_send) posts it, or tells why not.
    #[inline]
    pub fn post_short(&self, wr: &ShortSendWr<'_>) -> bool {
        let is_inline = matches!(wr.data, ShortData::Inline(_));
        if wr.ah.is_group() || !(is_inline || self.takes_element()) {
            return false;
        }
        self.peer(wr.ah, wr.qpn).is_ok_and(|peer| {
            self.shared.post_short(&ShortSend {
                wr_id: wr.wr_id,
                peer,
                route: wr.ah.route(),
                qkey: wr.qkey,
                data: wr.data,
                signaled: wr.signaled,
                solicited: wr.solicited,
            })
        })
    }

    /// Posts all of the sends, in order, or none of them (`ibv_wr_complete(3)`). One that its maker could not make refuses all. Where there are several,
    /// each is made twice.
    ///
    /// # Errors
    /// [`PostError`] of the first that cannot be accepted.
    pub fn post_send_all<'a>(
        &self,
        wrs: impl ExactSizeIterator<Item = Result<SendWr<'a>, PostError>> + Clone,
    ) -> Result<(), PostError> {
        self.shared.post_all(wrs.map(|wr| self.wqe(&wr?)))
    }

    #[inline]
    fn wqe(&self, wr: &SendWr<'_>) -> Result<SendWqe, PostError> {
        let length = self.check(wr.operation, wr.sges)?;
        if matches!(wr.operation, Operation::Read { .. }) && wr.destination.ah.is_group() {
            return Err(PostError::Group);
        }
        Ok(SendWqe {
            wr_id: wr.wr_id,
            operation: wr.operation,
            route: wr.destination.ah.route().clone(),
            peer: self.peer(&wr.destination.ah, wr.destination.qpn)?,
            qkey: wr.destination.qkey,
            sges: copy_sges(wr.sges),
            length,
            signaled: wr.signaled,
            solicited: wr.solicited,
            unrecorded: false,
        })
    }

    /// Valid octets of a posted Read that failed, once; of several with this number the latest. The latest 256 failures are kept.
    #[must_use]
    pub fn take_read_map(&self, wr_id: u64) -> Option<ReadMap> {
        let failed = self
            .shared
            .run(|inner| inner.engine.take_failed_read(wr_id))?;
        Some(ReadMap {
            length: failed.length,
            ranges: failed.map.ranges().to_vec(),
        })
    }

    /// Resets the queue pair (`ibv_modify_qp(3)` to reset): posted work requests are discarded without completions, but for receives
    /// that queue pairs share, completions that were not polled are gone, and so are records. It keeps its QPN, attributes, groups and
    /// counters. Peers see another source of messages.
    pub fn reset(&self) {
        self.qp.reset();
    }

    /// The Q_Key that received Sends must carry.
    #[must_use]
    pub fn qkey(&self) -> u32 {
        self.shared.run(|inner| inner.engine.qkey())
    }

    /// Changes the Q_Key for datagrams that arrive from now on.
    pub fn set_qkey(&self, qkey: u32) {
        self.shared.run(|inner| inner.engine.set_qkey(qkey));
    }
}

/// A work request that may be one for a short message.
#[inline]
fn short<'a>(wr: &'a SendWr<'_>) -> Option<ShortSendWr<'a>> {
    let (Operation::Send { immediate: None }, [sge]) = (wr.operation, wr.sges) else {
        return None;
    };
    Some(ShortSendWr {
        wr_id: wr.wr_id,
        ah: &wr.destination.ah,
        qpn: wr.destination.qpn,
        qkey: wr.destination.qkey,
        data: ShortData::Sge(*sge),
        signaled: wr.signaled,
        solicited: wr.solicited,
    })
}

/// Datagram queue pairs of a protection domain.
impl Pd {
    /// Makes a datagram queue pair.
    ///
    /// # Errors
    /// [`Error::Bind`] where the port is taken or the address is not ours, [`Error::Limit`] for sizes
    /// outside the device's limits, [`Error::System`] where descriptors are exhausted.
    pub fn create_ud_qp(&self, attr: &UdQpAttr<'_>) -> Result<UdQp, Error> {
        UdQp::create_on(self, attr, || bind_any(attr.bind, self))
    }
}
