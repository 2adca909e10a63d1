//! Multicast groups of an identifier: `rdma_join_multicast(3)`, `rdma_join_multicast_ex(3)`, `rdma_leave_multicast(3)`.
//!
//! Nobody has to be asked before a group can be sent to or received from, so a join has succeeded when its event is fetched and the
//! identifier's queue pair, if it has one, is attached: that happens in the program's thread, as with librdmacm.

use super::addr::address;
use super::device;
use super::event::{EventType, Param, Told, What};
use super::id::{self, Id, Inner, State, Transport};
use super::udp::{self, QKEY};
use crate::abi::{ibv_ah_attr, ibv_qp, rdma_cm_id, rdma_cm_join_mc_attr_ex, rdma_ud_param};
use crate::device::context;
use crate::ffi::errno;
use crate::ffi::{CPointer, load, minus_one};
use crate::mem::mr;
use crate::qp::{ah, queue_pair};
use dgiwarp::{GroupInterface, UdQp};
use libc::sockaddr;
use nix::errno::Errno;
use std::ffi::{c_int, c_void};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// What programs give as the QPN of a group.
const GROUP_QPN: u32 = 0xff_ffff;
/// Hops of messages to a group: the sender's network alone, as address handles have it.
const HOP_LIMIT: u8 = 1;

/// `enum rdma_cm_join_mc_attr_mask`.
const MASK_ADDRESS: u32 = 1;
const MASK_FLAGS: u32 = 1 << 1;
/// `enum rdma_cm_mc_join_flags`.
const FULL_MEMBER: u32 = 0;
const SEND_ONLY: u32 = 1;

/// The groups of an identifier.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    next: u64,
    joined: Vec<Group>,
}

/// A group that was joined.
#[derive(Clone, Copy, Debug)]
struct Group {
    number: u64,
    /// As the program names it, for leaving.
    named: SocketAddr,
    address: IpAddr,
    sgid_index: u8,
    interface: u32,
    send_only: bool,
    /// The identifier's queue pair was attached.
    attached: bool,
}

/// A join that the program is to be told of: the number of the group, and the program's own pointer.
pub(crate) struct Joined {
    number: u64,
    context: CPointer<c_void>,
}

fn groups(inner: &mut Inner) -> Result<&mut Groups, Errno> {
    match &mut inner.transport {
        Transport::Udp(udp) => Ok(&mut udp.groups),
        Transport::Tcp(_) | Transport::Closed => Err(Errno::EINVAL),
    }
}

fn join(
    id: &Arc<Id>,
    named: SocketAddr,
    send_only: bool,
    context: CPointer<c_void>,
) -> Result<(), Errno> {
    let mut inner = id.lock();
    let may_join = matches!(
        inner.state,
        State::Bound | State::AddressResolved | State::RouteResolved
    );
    let address = named.ip().to_canonical();
    // Bound to no address, it has no device yet.
    let local = inner.local.filter(|local| !local.ip().is_unspecified());
    let Some(local) = local.filter(|_| may_join && address.is_multicast()) else {
        return Err(Errno::EINVAL);
    };
    let (sgid_index, own_interface) = udp::source(local, address).ok_or(Errno::ENODEV)?;
    let interface = match named {
        SocketAddr::V6(v6) if v6.scope_id() != 0 => v6.scope_id(),
        SocketAddr::V4(_) | SocketAddr::V6(_) => own_interface,
    };
    let groups = groups(&mut inner)?;
    let number = groups.next;
    groups.next += 1;
    groups.joined.push(Group {
        number,
        named,
        address,
        sgid_index,
        interface,
        send_only,
        attached: false,
    });
    drop(inner);
    id.push(What::Joined(Joined { number, context }));
    Ok(())
}

/// What the program is told of a join; nothing if it left the group meanwhile. Called in calls of the program only.
pub(crate) fn tell(id: &Arc<Id>, joined: &Joined) -> Option<Told> {
    let mut inner = id.lock();
    let groups = groups(&mut inner).ok()?;
    let group = groups.joined.iter_mut();
    let group = group.into_iter().find(|it| it.number == joined.number)?;
    // SAFETY: an identifier that events are fetched for is alive, and this field changes in calls of the program only, of which this is one.
    let qp = unsafe { (*id.c()).qp };
    let ah_attr = udp::attributes(group.address, group.sgid_index, HOP_LIMIT);
    let outcome = expect_way(&ah_attr).and_then(|()| {
        group.attached = !qp.is_null() && !group.send_only;
        if group.attached {
            // SAFETY: the identifier's queue pair is alive as long as it is there.
            unsafe { change(qp, group, attach) }?;
        }
        Ok(())
    });
    let (event, status) = match outcome {
        Ok(()) => (EventType::MulticastJoin, 0),
        Err(errno) => (EventType::MulticastError, -(errno as c_int)),
    };
    let mut told = Told::new(event, status);
    told.param = Param::Datagram(rdma_ud_param {
        private_data: joined.context.0,
        ah_attr,
        qp_num: GROUP_QPN,
        qkey: QKEY,
        ..udp::nothing()
    });
    Some(told)
}

/// Whether messages to the group can leave: there are interfaces without multicast.
fn expect_way(attr: &ibv_ah_attr) -> Result<(), Errno> {
    let device = device::device()?;
    // SAFETY: the device's context is never closed.
    let context = unsafe { context::state(device.context.0) }?;
    // SAFETY: nor is its protection domain ever deallocated.
    let domain = unsafe { mr::domain(device.pd.0) }?;
    ah::handle(context, &domain, attr).map(drop)
}

type Change = fn(&UdQp, &Group) -> Result<(), dgiwarp::Error>;

fn attach(qp: &UdQp, group: &Group) -> Result<(), dgiwarp::Error> {
    let interface = Some(GroupInterface::Index(group.interface));
    match qp.attach_group(group.address, interface) {
        // Joined twice, or attached by the program itself.
        Err(dgiwarp::Error::Attached { .. }) => Ok(()),
        attached => attached,
    }
}

fn detach(qp: &UdQp, group: &Group) -> Result<(), dgiwarp::Error> {
    qp.detach_group(group.address, Some(GroupInterface::Index(group.interface)))
}

/// # Safety
/// `qp` is a live queue pair.
unsafe fn change(qp: *mut ibv_qp, group: &Group, change: Change) -> Result<(), Errno> {
    // SAFETY: the caller's contract.
    match &unsafe { queue_pair::state(qp) }?.qp {
        queue_pair::Transport::Ud(qp) => change(qp, group).map_err(errno::of),
        queue_pair::Transport::Uc(_) | queue_pair::Transport::Rc(_) => Err(Errno::EINVAL),
    }
}

/// Leaves the group that was joined first by this name.
///
/// # Safety
/// `qp` is NULL or the identifier's queue pair.
unsafe fn leave(id: &Id, qp: *mut ibv_qp, named: SocketAddr) -> Result<(), Errno> {
    let mut inner = id.lock();
    let joined = &mut groups(&mut inner)?.joined;
    let position = joined.iter().position(|group| group.named == named);
    // rdma_leave_multicast(3) of a group that was not joined.
    let group = joined.remove(position.ok_or(Errno::EADDRNOTAVAIL)?);
    drop(inner);
    if group.attached && !qp.is_null() {
        // SAFETY: the caller's contract. The program may have detached it itself.
        let _ = unsafe { change(qp, &group, detach) };
    }
    Ok(())
}

/// # Safety
/// `pointer` is NULL or a live identifier, used by no other call; `to` NULL or an address.
unsafe fn join_call(
    pointer: *mut rdma_cm_id,
    to: *const sockaddr,
    send_only: bool,
    context: *mut c_void,
) -> Result<c_int, Errno> {
    // SAFETY: the caller's contract.
    let id = unsafe { id::id(pointer) }?;
    // SAFETY: the caller's contract.
    let to = unsafe { address::read_any(to) }?;
    join(id, to, send_only, CPointer(context))?;
    // SAFETY: the caller's contract.
    unsafe { id::complete(pointer) }.map(|()| 0)
}

pub(crate) unsafe extern "C" fn rdma_join_multicast(
    pointer: *mut rdma_cm_id,
    to: *mut sockaddr,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the program passes a live identifier and an address.
    minus_one(|| unsafe { join_call(pointer, to, false, context) })
}

pub(crate) unsafe extern "C" fn rdma_join_multicast_ex(
    pointer: *mut rdma_cm_id,
    attr: *mut rdma_cm_join_mc_attr_ex,
    context: *mut c_void,
) -> c_int {
    minus_one(|| {
        // SAFETY: the program passes attributes.
        let attr = unsafe { load(attr) }?;
        let known = MASK_ADDRESS | MASK_FLAGS;
        let send_only = match attr.join_flags {
            FULL_MEMBER => false,
            SEND_ONLY => true,
            _ => return Err(Errno::EINVAL),
        };
        // Both are needed, and nothing else is known.
        if attr.comp_mask != known {
            return Err(Errno::EINVAL);
        }
        // SAFETY: the program passes a live identifier, and the mask says that there is an address.
        unsafe { join_call(pointer, attr.addr, send_only, context) }
    })
}

pub(crate) unsafe extern "C" fn rdma_leave_multicast(
    pointer: *mut rdma_cm_id,
    to: *mut sockaddr,
) -> c_int {
    minus_one(|| {
        // SAFETY: the program passes a live identifier.
        let id = unsafe { id::id(pointer) }?;
        // SAFETY: and an address.
        let to = unsafe { address::read_any(to) }?;
        // SAFETY: a live identifier, and this field changes in calls of the program only, of which this is one.
        let qp = unsafe { (*pointer).qp };
        // SAFETY: the identifier's queue pair is alive as long as it is there.
        unsafe { leave(id, qp, to) }.map(|()| 0)
    })
}
