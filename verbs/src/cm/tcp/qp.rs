//! The queue pair of a connection.

use crate::abi::ibv_qp;
use crate::cm::conn_param::ConnParam;
use crate::cm::device::Device;
use crate::cm::tcp::depths::Depths;
use crate::device::persona::{self, Persona};
use crate::ffi::errno;
use crate::qp::cm_qp::CmQp;
use crate::qp::qp_table::{self, QpRef};
use crate::qp::state::{Attributes, QpState};
use dgiwarp::{QpAttr, RcQp, RcQpAttr, RnrLimits};
use nix::errno::Errno;

/// The queue pair of a connection.
#[derive(Default)]
pub(super) enum ConnectionQp {
    #[default]
    None,
    /// Of the identifier; rdma_cm changes its state.
    OfId(QpRef),
    /// Created by the program without rdma_cm and given by number; the program changes its state.
    ByNumber(QpRef),
    /// A queue pair of ours: the program has given none and uses events and private data only.
    StandIn(RcQp),
}

impl ConnectionQp {
    /// The identifier's queue pair `own`, else the program's queue pair `qp_num`, else a stand-in.
    ///
    /// # Safety
    /// `own` is NULL or a live queue pair.
    pub(super) unsafe fn choose(
        own: *mut ibv_qp,
        device: &Device,
        qp_num: u32,
    ) -> Result<Self, Errno> {
        if !own.is_null() {
            // SAFETY: the caller's contract.
            let qpn = unsafe { (*own).qp_num };
            return qp_table::find(qpn).map(Self::OfId).ok_or(Errno::EINVAL);
        }
        if let Some(qp) = qp_table::find(qp_num) {
            return Ok(Self::ByNumber(qp));
        }
        let rnic = &device.context()?.rnic;
        // The program's own queue pairs carry its messages.
        let stand_in = rnic.create_cq(4).and_then(|cq| {
            let attr = RcQpAttr::from(QpAttr {
                max_send_wr: 1,
                max_recv_wr: 1,
                max_sge: 1,
                ..QpAttr::new(&cq, &cq)
            });
            let qp = rnic.alloc_pd().create_rc_qp(&attr)?;
            qp.disconnect_behind_paired();
            Ok(qp)
        });
        stand_in.map(Self::StandIn).map_err(errno::of)
    }

    /// Limits the RNR retries of the peer's messages (`rnr_retry_count` of `rdma_connect(3)`), with the timer of the kernel's connection manager. Zero is no
    /// limit: most programs leave it there without a thought.
    pub(super) fn limit_rnr(&self, param: &ConnParam) {
        let count = param.c.map_or(0, |c| c.rnr_retry_count);
        if let Self::OfId(_) = self
            && count > 0
            && persona::present() != Persona::Iwarp
        {
            let limits = RnrLimits {
                retries: None,
                timer: Some(Attributes::RESET.reliable.rnr_timer()),
                peer_retries: Some(count),
            };
            self.with_rc(|rc| rc.limit_rnr(limits));
        }
    }

    /// Whether the program changes the state of the queue pair itself.
    pub(super) fn is_the_programs(&self) -> bool {
        matches!(self, Self::ByNumber(_) | Self::StandIn(_))
    }

    /// Runs `with` on the queue pair, unless it was destroyed.
    pub(super) fn with_rc<T>(&self, with: impl FnOnce(CmQp<'_>) -> T) -> Option<T> {
        match self {
            Self::None => None,
            Self::OfId(qp) | Self::ByNumber(qp) => qp.with(|found| with(found.rc)),
            Self::StandIn(qp) => Some(with(CmQp::Tcp(qp))),
        }
    }

    /// Changes the state of the identifier's queue pair with that of the connection. Only in calls of the program.
    pub(super) fn change_state(&self, state: QpState, depths: Depths, timeout: u8) {
        let Self::OfId(qp) = self else {
            return;
        };
        let _ = qp.with(|found| {
            let change = |attributes: &mut Attributes| {
                attributes.state = state;
                attributes.reliable.max_dest_rd_atomic = depths.responder_resources;
                attributes.reliable.max_rd_atomic = depths.initiator_depth;
                attributes.reliable.timeout = timeout;
            };
            // SAFETY: the program's own pointer, in a call of the program.
            unsafe { found.qp.change_by_cm(found.c, change) };
        });
    }
}
