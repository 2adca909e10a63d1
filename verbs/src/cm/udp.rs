//! Identifiers of the port spaces UDP and IPOIB: services of datagram queue pairs.
//!
//! Connecting one asks which queue pair stands behind a service's port, and what it gets is an address to send to: there is no connection.
//! As on InfiniBand (SIDR), the asker's `ESTABLISHED` ends that, and whoever accepts hears no more of it.

use super::addr::address;
use super::device;
use super::event::{EventType, Param, Told, What};
use super::id::{self, Id, Inner, Making, Options, State, Transport};
use super::multicast::Groups;
use crate::abi::{
    IBV_QP_PKEY_INDEX, IBV_QP_PORT, IBV_QP_QKEY, IBV_QP_SQ_PSN, IBV_QP_STATE, ibv_ah_attr,
    ibv_global_route, ibv_qp, ibv_qp_attr, rdma_ud_param,
};
use crate::device::context;
use crate::device::gid::{Gid, to_gid};
use crate::ffi::CPointer;
use crate::ffi::errno;
use crate::qp::queue_pair;
use crate::qp::state::QpState;
use dgiwarp::{
    LookupError, RejectStatus, ServiceEvent, ServiceListener, ServiceLookup, ServicePort,
    ServiceQp, ServiceRequest,
};
use nix::errno::Errno;
use std::ffi::c_int;
use std::net::{IpAddr, SocketAddr};
use std::ptr;
use std::sync::Arc;

/// `RDMA_UDP_QKEY`: what queue pairs that rdma_cm makes have, and all messages between them carry.
pub(crate) const QKEY: u32 = 0x0123_4567;
/// Questions that wait for a program that names no backlog, or a longer one.
const BACKLOG: usize = 1024;
/// Hops of messages to a single host.
const HOP_LIMIT: u8 = 64;

/// What such an identifier has.
#[derive(Debug, Default)]
pub(crate) struct Udp {
    /// Bound, and not in use yet.
    port: Option<ServicePort>,
    role: Role,
    pub(crate) groups: Groups,
}

/// What it is for.
#[derive(Debug, Default)]
enum Role {
    #[default]
    None,
    /// Offers a service. Kept, because dropping it ends that.
    Listens { _service: ServiceListener },
    /// Asks for one. Kept for the same reason.
    Asks { _lookup: ServiceLookup },
    /// Is asked, and has not answered.
    Asked(Box<ServiceRequest>),
}

impl Udp {
    /// Takes a port. Returns the address as programs name it.
    pub(crate) fn bind(&mut self, to: SocketAddr, options: Options) -> Result<SocketAddr, Errno> {
        let offset = device::device()?.port_offset;
        let port = ServicePort::bind(address::to_socket(to, offset), options.af_only)
            .map_err(errno::of)?;
        let local = address::from_socket(port.local_addr(), offset);
        self.port = Some(port);
        Ok(local)
    }

    fn asked(request: ServiceRequest) -> Self {
        Self {
            role: Role::Asked(Box::new(request)),
            ..Self::default()
        }
    }

    fn take_request(&mut self) -> Result<ServiceRequest, Errno> {
        match std::mem::take(&mut self.role) {
            Role::Asked(request) => Ok(*request),
            other => {
                self.role = other;
                Err(Errno::EINVAL)
            }
        }
    }
}

fn udp(inner: &mut Inner) -> Result<&mut Udp, Errno> {
    match &mut inner.transport {
        Transport::Udp(udp) => Ok(udp),
        Transport::Tcp(_) | Transport::Closed => Err(Errno::EINVAL),
    }
}

/// Queue pairs of this device are known by 16 bits.
fn service_qp(qpn: u32) -> Option<ServiceQp> {
    (qpn != 0).then_some(ServiceQp { qpn, qkey: QKEY })
}

/// Offers the service at the port that the identifier is bound to (`rdma_listen(3)`).
pub(crate) fn listen(id: &Id, inner: &mut Inner, backlog: c_int) -> Result<(), Errno> {
    let device = device::device()?;
    let number = inner.local.ok_or(Errno::EINVAL)?.port();
    let backlog = usize::try_from(backlog).unwrap_or(0);
    let backlog = if backlog == 0 { BACKLOG } else { backlog };
    let udp = udp(inner)?;
    let port = udp.port.take().ok_or(Errno::EINVAL)?;
    let service = device
        .services()?
        .listen_as(port, number, backlog, id.key())
        .map_err(errno::of)?;
    udp.role = Role::Listens { _service: service };
    Ok(())
}

/// Asks for the service at the peer's port (`rdma_connect(3)`). `qpn` is that of the identifier's queue pair, or 0.
pub(crate) fn connect(
    id: &Id,
    inner: &mut Inner,
    qpn: u32,
    private_data: &[u8],
) -> Result<(), Errno> {
    let device = device::device()?;
    let (local, peer) = inner.local.zip(inner.peer).ok_or(Errno::EINVAL)?;
    let options = inner.options;
    let udp = udp(inner)?;
    if udp.port.is_none() {
        udp.bind(local, options)?;
    }
    let port = udp.port.take().ok_or(Errno::EINVAL)?;
    let local = address::from_socket(port.local_addr(), device.port_offset);
    let to = (address::to_socket(peer, device.port_offset), peer.port());
    let lookup = device
        .services()?
        .look_up_as(port, to, service_qp(qpn), private_data, id.key())
        .map_err(errno::of)?;
    udp.role = Role::Asks { _lookup: lookup };
    if let Some(shown) = &mut inner.local {
        shown.set_port(local.port());
    }
    id.show(inner);
    Ok(())
}

/// Gives the asker a queue pair (`rdma_accept(3)`).
pub(crate) fn accept(inner: &mut Inner, qpn: u32, private_data: &[u8]) -> Result<(), Errno> {
    let qp = service_qp(qpn).ok_or(Errno::EINVAL)?;
    let request = udp(inner)?.take_request()?;
    let accepted = request.accept(qp, private_data);
    accepted.map_err(errno::of)
}

/// Says no (`rdma_reject(3)`).
pub(crate) fn reject(inner: &mut Inner, private_data: &[u8]) -> Result<(), Errno> {
    let rejected = udp(inner)?.take_request()?.reject(private_data);
    rejected.map_err(errno::of)
}

/// What the program is told of a service or a lookup. Called in calls of the program only.
pub(crate) fn tell(id: &Arc<Id>, event: ServiceEvent) -> Option<Told> {
    match event {
        ServiceEvent::Request { request, .. } => asked(id, request).ok(),
        ServiceEvent::Found {
            qp, private_data, ..
        } => {
            let mut inner = id.lock();
            inner.state = State::Connected;
            let (local, peer) = inner.local.zip(inner.peer)?;
            let tos = inner.options.tos;
            drop(inner);
            let mut told = Told::new(EventType::Established, 0);
            let mut param = datagram(local, peer.ip(), qp);
            param.ah_attr.grh.traffic_class = tos.unwrap_or(0);
            told.param = Param::Datagram(param);
            told.private_data = private_data;
            Some(told)
        }
        ServiceEvent::Rejected {
            status,
            private_data,
            ..
        } => {
            let mut told = unreachable(id, status.0.into());
            told.private_data = private_data;
            Some(told)
        }
        ServiceEvent::Failed { error, .. } => Some(unreachable(id, status_of(&error))),
        // The stack may learn to tell more before this crate does.
        _ => None,
    }
}

/// What InfiniBand tells of a lookup that found nothing: `UNREACHABLE`, with the status of the SIDR answer or a negative errno value.
fn unreachable(id: &Id, status: c_int) -> Told {
    id.lock().state = State::Over;
    let mut told = Told::new(EventType::Unreachable, status);
    told.param = Param::Datagram(nothing());
    told
}

fn status_of(error: &LookupError) -> c_int {
    match error {
        // On InfiniBand the host itself answers that it has no such service.
        LookupError::NoService => RejectStatus::NO_SERVICE.0.into(),
        LookupError::Unreachable(error) => -error.raw_os_error().unwrap_or(libc::EHOSTUNREACH),
        LookupError::TimedOut => -libc::ETIMEDOUT,
        // The stack may learn new reasons before this table does.
        _ => -libc::EIO,
    }
}

/// Parameters that say nothing.
pub(crate) fn nothing() -> rdma_ud_param {
    rdma_ud_param {
        private_data: ptr::null(),
        private_data_len: 0,
        ah_attr: ibv_ah_attr::default(),
        qp_num: 0,
        qkey: 0,
    }
}

/// Where to send to: a queue pair, by an address handle's attributes.
fn datagram(local: SocketAddr, peer: IpAddr, qp: ServiceQp) -> rdma_ud_param {
    let sgid_index = source(local, peer).map_or(0, |(index, _)| index);
    rdma_ud_param {
        ah_attr: attributes(peer, sgid_index, HOP_LIMIT),
        qp_num: qp.qpn,
        qkey: qp.qkey,
        ..nothing()
    }
}

pub(crate) fn attributes(to: IpAddr, sgid_index: u8, hop_limit: u8) -> ibv_ah_attr {
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: to_gid(to),
            sgid_index,
            hop_limit,
            ..ibv_global_route::default()
        },
        is_global: 1,
        port_num: 1,
        ..ibv_ah_attr::default()
    }
}

/// The index of the GID to send from, and its interface: that of the identifier's address, or one that has the same interface and
/// the kind of the destination.
pub(crate) fn source(local: SocketAddr, to: IpAddr) -> Option<(u8, u32)> {
    let scope = match local {
        SocketAddr::V6(v6) => v6.scope_id(),
        SocketAddr::V4(_) => 0,
    };
    let is_own = |gid: &Gid| gid.address == local.ip() && (scope == 0 || scope == gid.ifindex);
    let device = device::device().ok()?;
    // SAFETY: the device's context is never closed.
    let context = unsafe { context::state(device.context.0) }.ok()?;
    context.with_gids(|gids| {
        let own = gids.iter().find(|(_, gid)| is_own(gid));
        // Any address of 127.0.0.0/8 is this host's, and only one is in the table.
        let own = own.or_else(|| {
            let loopback = local.ip().is_loopback();
            gids.iter().find(|(_, gid)| gid.loopback == loopback)
        });
        let (_, own_gid) = own?;
        let fits =
            |gid: &Gid| gid.ifindex == own_gid.ifindex && gid.address.is_ipv4() == to.is_ipv4();
        let fitting = own.filter(|(_, gid)| fits(gid));
        let fitting = fitting.or_else(|| gids.iter().find(|(_, gid)| fits(gid)));
        let (index, gid) = fitting.or(own)?;
        Some((u8::try_from(index).ok()?, gid.ifindex))
    })
}

/// Makes the identifier that is to answer a question.
fn asked(listener: &Arc<Id>, request: ServiceRequest) -> Result<Told, Errno> {
    let c = listener.c();
    let waits = listener.lock().waits;
    let making = Making {
        // SAFETY: a listener that events are fetched for is alive, and this field changes in calls of the program only, of which this is one.
        channel: (!waits).then_some(CPointer(unsafe { (*c).channel })),
        // SAFETY: as above.
        context: unsafe { (*c).context },
        // SAFETY: as above.
        port_space: unsafe { (*c).ps },
    };
    // SAFETY: the listener's channel is alive.
    let new = unsafe { id::create(&making) }?;
    // SAFETY: just made.
    let id = unsafe { id::id(new) }?;
    id.attach()?;
    let peer = address::canonical(request.peer());
    let local = request.local().map(address::canonical);
    let private_data = request.private_data().to_vec();
    let asker = request.asker();
    let mut inner = id.lock();
    inner.local = local.or(listener.lock().local);
    inner.peer = Some(peer);
    inner.state = State::Requested;
    inner.transport = Transport::Udp(Box::new(Udp::asked(request)));
    id.show(&inner);
    let mut told = Told::new(EventType::ConnectRequest, 0);
    told.new = Some(new);
    let param = inner.local.zip(asker);
    let param = param.map(|(local, qp)| datagram(local, peer.ip(), qp));
    told.param = Param::Datagram(param.unwrap_or_else(nothing));
    told.private_data = private_data;
    Ok(told)
}

/// The attributes that take a datagram queue pair into a state, and their mask (`rdma_init_qp_attr`). `None` for other states than
/// those on the way to ready-to-send.
pub(crate) fn queue_pair_attributes(to: QpState) -> Option<(ibv_qp_attr, c_int)> {
    let attr = ibv_qp_attr {
        qp_state: to.code(),
        port_num: 1,
        qkey: QKEY,
        ..ibv_qp_attr::default()
    };
    let mask = match to {
        QpState::Init => IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY,
        QpState::ReadyToReceive => 0,
        QpState::ReadyToSend => IBV_QP_SQ_PSN,
        QpState::Reset | QpState::Error => return None,
    };
    Some((attr, mask | IBV_QP_STATE))
}

/// Takes a new queue pair to ready-to-send, since it has nothing to wait for (`rdma_create_qp(3)`).
///
/// # Safety
/// `qp` is a live queue pair.
pub(crate) unsafe fn make_ready(qp: *mut ibv_qp) -> Result<(), Errno> {
    let way = [QpState::Init, QpState::ReadyToReceive, QpState::ReadyToSend];
    for (mut attr, mask) in way.into_iter().filter_map(queue_pair_attributes) {
        // SAFETY: the caller's contract, and attributes of ours.
        let status = unsafe { queue_pair::ibv_modify_qp(qp, &raw mut attr, mask) };
        if status != 0 {
            return Err(Errno::from_raw(status));
        }
    }
    Ok(())
}

/// Queues what the stack tells of an identifier's service or lookup.
pub(crate) fn happened(event: ServiceEvent) {
    let key = match &event {
        ServiceEvent::Request { context, .. }
        | ServiceEvent::Found { context, .. }
        | ServiceEvent::Rejected { context, .. }
        | ServiceEvent::Failed { context, .. } => *context,
        // The stack may learn to tell more before this crate does.
        _ => return,
    };
    id::tell(key, What::Service(event));
}
