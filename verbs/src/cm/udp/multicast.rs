//! Multicast groups of an identifier.
//!
//! Groups have no manager. A join succeeds when its event is fetched and the identifier's queue pair, if it has one, is
//! attached: in the program's thread, as with librdmacm.

use crate::abi::{ibv_ah_attr, ibv_qp, rdma_ud_param};
use crate::cm::device;
use crate::cm::event::types::{CmEvent, EventType, Joined, Param, Raised};
use crate::cm::id::identifier::{Id, State};
use crate::cm::udp::param::{QKEY, ah_attr, no_datagram, source};
use crate::cm::udp::state::Group;
use crate::ffi::{CPointer, errno};
use crate::mem::mr;
use crate::qp::{ah, queue_pair};
use dgiwarp::{GroupInterface, UdQp};
use nix::errno::Errno;
use std::ffi::{c_int, c_void};
use std::net::SocketAddr;
use std::sync::Arc;

/// QPN of every multicast group.
const GROUP_QPN: u32 = 0xff_ffff;
/// Hop limit of messages to a group: the sender's network, as for address handles.
const HOP_LIMIT: u8 = 1;

/// Joins a group.
pub(super) fn join(
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
    // An identifier bound to the unspecified address has no device.
    let local = inner.local.filter(|local| !local.ip().is_unspecified());
    let Some(local) = local.filter(|_| may_join && address.is_multicast()) else {
        return Err(Errno::EINVAL);
    };
    let (sgid_index, own_interface) = source(local, address).ok_or(Errno::ENODEV)?;
    let interface = match named {
        SocketAddr::V6(v6) if v6.scope_id() != 0 => v6.scope_id(),
        SocketAddr::V4(_) | SocketAddr::V6(_) => own_interface,
    };
    let groups = &mut inner.udp()?.groups;
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
    id.raise(Raised::Joined(Joined { number, context }));
    Ok(())
}

/// The program's event for a join; none if it has left the group. Only in calls of the program.
pub(crate) fn translate(id: &Arc<Id>, joined: &Joined) -> Option<CmEvent> {
    let mut inner = id.lock();
    let groups = &mut inner.udp().ok()?.groups;
    let group = groups.joined.iter_mut();
    let group = group.into_iter().find(|it| it.number == joined.number)?;
    let qp = id.qp();
    let ah_attr = ah_attr(group.address, group.sgid_index, HOP_LIMIT);
    let outcome = expect_route(&ah_attr).and_then(|()| {
        group.attached = !qp.is_null() && !group.send_only;
        if group.attached {
            // SAFETY: the queue pair of a live identifier is live.
            unsafe { change(qp, group, attach) }?;
        }
        Ok(())
    });
    let (event_type, status) = match outcome {
        Ok(()) => (EventType::MulticastJoin, 0),
        Err(errno) => (EventType::MulticastError, -(errno as c_int)),
    };
    let mut event = CmEvent::new(event_type, status);
    event.param = Param::Datagram(rdma_ud_param {
        private_data: joined.context.0,
        ah_attr,
        qp_num: GROUP_QPN,
        qkey: QKEY,
        ..no_datagram()
    });
    Some(event)
}

/// Checks that the interface has multicast.
fn expect_route(attr: &ibv_ah_attr) -> Result<(), Errno> {
    let device = device::device()?;
    // SAFETY: the device's protection domain is never deallocated.
    let domain = unsafe { mr::domain(device.pd.0) }?;
    ah::handle(device.context()?, &domain, attr).map(drop)
}

type Change = fn(&UdQp, &Group) -> Result<(), dgiwarp::Error>;

fn attach(qp: &UdQp, group: &Group) -> Result<(), dgiwarp::Error> {
    let interface = Some(GroupInterface::Index(group.interface));
    match qp.attach_group(group.address, interface) {
        // Joined twice, or attached by the program.
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
        queue_pair::Transport::Uc(_)
        | queue_pair::Transport::Rd(_)
        | queue_pair::Transport::Rc(_)
        | queue_pair::Transport::RcRd(_)
        | queue_pair::Transport::XrcTarget(_) => Err(Errno::EINVAL),
    }
}

/// Leaves the first group that was joined by this address.
///
/// # Safety
/// `qp` is NULL or the identifier's queue pair.
pub(super) unsafe fn leave(id: &Id, qp: *mut ibv_qp, named: SocketAddr) -> Result<(), Errno> {
    let mut inner = id.lock();
    let joined = &mut inner.udp()?.groups.joined;
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
