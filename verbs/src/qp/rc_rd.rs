//! Reliable connected queue pairs on reliable datagrams: transitions of `ibv_modify_qp(3)` that concern their peer.

use crate::abi::{
    IBV_QP_ACCESS_FLAGS, IBV_QP_DEST_QPN, IBV_QP_MIN_RNR_TIMER, IBV_QP_RNR_RETRY, IBV_QP_SQ_PSN,
};
use crate::device::context::Context;
use crate::device::persona::{self, Persona};
use crate::mem::mr::{Pd, remote_access};
use crate::qp::ah;
use crate::qp::queue_pair::CM_PEER;
use crate::qp::rc_transport::RcTransport;
use crate::qp::state::{Attributes, QpState};
use dgiwarp::{RcRdQp, RnrLimits};
use nix::errno::Errno;
use std::ffi::c_int;
use std::ops::RangeInclusive;

/// QPNs of datagram queue pairs: UDP ports that programs without privileges have.
const DATAGRAM_QPNS: RangeInclusive<u32> = 1024..=0xffff;

/// Refuses the number of a queue pair of the other transport, to which no connection would come up.
pub(super) fn check_peer(qpn: u32, own: RcTransport) -> Result<(), Errno> {
    let peer = if DATAGRAM_QPNS.contains(&qpn) {
        RcTransport::Rd
    } else {
        RcTransport::Tcp
    };
    if peer == own {
        return Ok(());
    }
    tracing::warn!(
        "refused: queue pair {qpn} of the peer is one of DGIWARP_RC={peer}, and this end has DGIWARP_RC={own}"
    );
    Err(Errno::EINVAL)
}

/// Follows the new attributes.
pub(super) fn connect(
    context: &Context,
    (qp, domain): (&RcRdQp, &Pd),
    after: &Attributes,
    mask: c_int,
) -> Result<(), Errno> {
    if after.dest_qpn == CM_PEER {
        if mask & IBV_QP_SQ_PSN != 0 {
            qp.open();
        }
        if mask & IBV_QP_ACCESS_FLAGS != 0 {
            qp.allow(remote_access(after.access_flags));
        }
        return Ok(());
    }
    if mask & IBV_QP_DEST_QPN != 0 {
        check_peer(after.dest_qpn, RcTransport::Rd)?;
        let ah = ah::handle(context, domain, &after.av)?;
        let qpn = u16::try_from(after.dest_qpn).map_err(|_| Errno::EINVAL)?;
        let connected = qp.connect(&ah, qpn, after.rq_psn);
        connected.map_err(|_| Errno::EINVAL)?;
    }
    if mask & IBV_QP_ACCESS_FLAGS != 0 {
        qp.allow(remote_access(after.access_flags));
    }
    // An RNIC has no RNR retries.
    if mask & (IBV_QP_RNR_RETRY | IBV_QP_MIN_RNR_TIMER) != 0 && persona::present() != Persona::Iwarp
    {
        // `rnr_retry` comes with RTS.
        let has_retries = after.state != QpState::ReadyToReceive;
        qp.limit_rnr(RnrLimits {
            retries: after.reliable.rnr_retries().filter(|_| has_retries),
            timer: Some(after.reliable.rnr_timer()),
            peer_retries: None,
        });
    }
    if mask & IBV_QP_SQ_PSN != 0 {
        let ord = after.reliable.max_rd_atomic.into();
        qp.start(after.sq_psn, ord, after.reliable.retry_time());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_shows_its_transport() {
        use RcTransport::{Rd, Tcp};
        assert_eq!(check_peer(40_000, Rd), Ok(()));
        assert_eq!(check_peer(40_000 << 8 | 7, Tcp), Ok(()));
        assert_eq!(check_peer(40_000, Tcp), Err(Errno::EINVAL));
        assert_eq!(check_peer(40_000 << 8 | 7, Rd), Err(Errno::EINVAL));
    }
}
