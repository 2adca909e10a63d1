//! UD and UC queue pairs, to which most functions of `dgiwarpdv.h` apply.

use crate::abi::{ibv_gid, ibv_qp};
use crate::device::gid::to_gid;
use crate::qp::queue_pair::{self, Transport};
use dgiwarp::DatagramQp;
use nix::errno::Errno;
use std::ffi::c_int;
use std::net::SocketAddr;

/// The UD or UC queue pair behind a pointer. Others are `EOPNOTSUPP`.
///
/// # Safety
/// `qp` is NULL or a live queue pair that stays alive for `'a`.
pub(super) unsafe fn datagram<'a>(qp: *mut ibv_qp) -> Result<&'a DatagramQp, Errno> {
    // SAFETY: the caller's contract is the same.
    match unsafe { &queue_pair::state(qp)?.qp } {
        Transport::Ud(ud) => Ok(ud),
        Transport::Uc(uc) => Ok(uc),
        Transport::Rd(_) | Transport::Rc(_) | Transport::RcRd(_) | Transport::XrcTarget(_) => {
            Err(Errno::EOPNOTSUPP)
        }
    }
}

/// GID, QPN and scope of a peer: the interface index of a link-local address, else 0.
pub(super) fn address_of(peer: SocketAddr) -> (ibv_gid, u32, u32) {
    let scope = match peer {
        SocketAddr::V4(_) => 0,
        SocketAddr::V6(v6) => v6.scope_id(),
    };
    (to_gid(peer.ip()), peer.port().into(), scope)
}

/// A count as functions of C return it.
pub(super) fn to_int(count: usize) -> Result<c_int, Errno> {
    c_int::try_from(count).map_err(|_| Errno::EOVERFLOW)
}
