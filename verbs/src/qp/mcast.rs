//! Multicast groups of a queue pair: `ibv_attach_mcast(3)`.

use crate::abi::{ibv_gid, ibv_qp};
use crate::device::context::Context;
use crate::device::gid::{GidTable, from_gid};
use crate::ffi::{errno, errno_value, load};
use crate::qp::queue_pair::{self, Transport};
use dgiwarp::{GroupInterface, UdQp};
use nix::errno::Errno;
use std::collections::BTreeSet;
use std::ffi::c_int;
use std::net::IpAddr;

/// Interfaces with an address of the group's family.
///
/// Verbs have ports and no interfaces. A queue pair attached on every interface receives a message whatever the
/// sender's interface is, and receives it once.
fn interfaces(gids: &GidTable, group: IpAddr) -> BTreeSet<u32> {
    gids.iter()
        .filter(|(_, gid)| gid.address.is_ipv4() == group.is_ipv4())
        .map(|(_, gid)| gid.ifindex)
        .collect()
}

/// Runs `change` for the group on every interface. Success on one of them is success.
fn on_each(
    context: &Context,
    group: IpAddr,
    mut change: impl FnMut(GroupInterface) -> Result<(), dgiwarp::Error>,
) -> Result<(), Errno> {
    if !group.is_multicast() {
        return Err(Errno::EINVAL);
    }
    let mut outcome = Err(Errno::ENODEV);
    for index in context.with_gids(|gids| interfaces(gids, group)) {
        match change(GroupInterface::Index(index)) {
            // A second attach has no effect, and is no error on InfiniBand.
            Ok(()) | Err(dgiwarp::Error::Attached { .. }) => outcome = Ok(()),
            Err(error) if outcome.is_err() => outcome = Err(errno::of(error)),
            Err(_) => {}
        }
    }
    outcome
}

/// # Safety
/// `qp` is NULL or a live queue pair, `gid` NULL or valid.
unsafe fn change(
    qp: *mut ibv_qp,
    gid: *const ibv_gid,
    change: fn(&UdQp, IpAddr, Option<GroupInterface>) -> Result<(), dgiwarp::Error>,
) -> c_int {
    errno_value(|| {
        // SAFETY: the caller's contract.
        let state = unsafe { queue_pair::state(qp) }?;
        // SAFETY: the caller's contract.
        let group = from_gid(unsafe { load(gid) }?);
        // SAFETY: a live queue pair.
        let context = unsafe { queue_pair::context_of(qp) }?;
        match &state.qp {
            Transport::Ud(ud) => on_each(context, group, |on| change(ud, group, Some(on))),
            // ibv_attach_mcast(3): only unreliable datagram queue pairs may be attached.
            Transport::Uc(_)
            | Transport::Rd(_)
            | Transport::Rc(_)
            | Transport::RcRd(_)
            | Transport::XrcTarget(_) => Err(Errno::EINVAL),
        }
    })
}

pub(crate) unsafe extern "C" fn ibv_attach_mcast(
    qp: *mut ibv_qp,
    gid: *const ibv_gid,
    _lid: u16,
) -> c_int {
    // SAFETY: the program passes a live queue pair and a GID.
    unsafe { change(qp, gid, UdQp::attach_group) }
}

pub(crate) unsafe extern "C" fn ibv_detach_mcast(
    qp: *mut ibv_qp,
    gid: *const ibv_gid,
    _lid: u16,
) -> c_int {
    // SAFETY: the program passes a live queue pair and a GID.
    unsafe { change(qp, gid, UdQp::detach_group) }
}
