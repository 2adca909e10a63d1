//! State behind `struct rdma_cm_id`, and the table that finds it for events of the stack.

use crate::abi::{
    IBV_QPT_RC, IBV_QPT_UD, RDMA_PS_IB, RDMA_PS_IPOIB, RDMA_PS_TCP, RDMA_PS_UDP, ibv_gid, ibv_qp,
    ibv_qp_init_attr, ibv_sa_path_rec, rdma_addr, rdma_cm_id, rdma_event_channel, rdma_ib_addr,
};
use crate::cm::addr::address;
use crate::cm::device::{self, Device};
use crate::cm::event::queue::EventQueue;
use crate::cm::event::types::{EventType, Raised};
use crate::cm::id::options::Options;
use crate::cm::id::request_gate::RequestGate;
use crate::cm::tcp::state::Tcp;
use crate::cm::udp::state::Udp;
use crate::device::gid::to_gid;
use crate::ffi::fork::ProcessTable;
use crate::ffi::unacked::Unacked;
use crate::ffi::{CPointer, Facade, Object, thread_order};
use dgiwarp::ConnectionEvent;
use nix::errno::Errno;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint, c_void};
use std::net::SocketAddr;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Connection requests of one listener that are queued at most; further ones are dropped.
const MAX_PENDING_REQUESTS: usize = 4096;

/// State of an identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Created.
    Idle,
    /// With a local address.
    Bound,
    /// With a peer's address and the device.
    AddressResolved,
    RouteResolved,
    Listening,
    /// With an outstanding request.
    Connecting,
    /// Created for a peer's request that the program has not answered.
    Requested,
    /// The program has accepted the request.
    Accepted,
    Connected,
    /// Disconnected or failed.
    Over,
}

/// State of the port space.
pub(crate) enum Transport {
    /// Port spaces TCP and IB: iWARP connections.
    Tcp(Box<Tcp>),
    /// Port spaces UDP and IPOIB: service ID resolution and multicast groups.
    Udp(Box<Udp>),
    /// The identifier is being destroyed.
    Closed,
}

/// Attributes of the queue pairs that a listening endpoint creates (`rdma_create_ep(3)`).
#[derive(Clone, Copy)]
pub(crate) struct Template(pub(crate) ibv_qp_init_attr);

// SAFETY: the pointers are numbers to this crate until a call of the program uses them.
unsafe impl Send for Template {}

/// Mutable state of an identifier.
pub(crate) struct Inner {
    pub(crate) state: State,
    pub(crate) transport: Transport,
    pub(crate) options: Options,
    /// Addresses with the port numbers of the program.
    pub(crate) local: Option<SocketAddr>,
    pub(crate) peer: Option<SocketAddr>,
    /// Synchronous (`rdma_create_id(3)`): calls wait for their event, and the channel is the identifier's own.
    pub(crate) synchronous: bool,
    pub(crate) template: Option<Template>,
    /// Listener whose gate opens at the first call on this identifier.
    pub(crate) listener: Option<Arc<Id>>,
    /// `route.path_rec`, a Box.
    pub(super) path: Option<CPointer<ibv_sa_path_rec>>,
}

impl Inner {
    /// Checks the state of the identifier: another one is `EINVAL`.
    pub(crate) fn expect(&self, state: State) -> Result<(), Errno> {
        (self.state == state).then_some(()).ok_or(Errno::EINVAL)
    }

    /// The state of port space TCP.
    pub(crate) fn tcp(&mut self) -> Result<&mut Tcp, Errno> {
        match &mut self.transport {
            Transport::Tcp(tcp) => Ok(tcp),
            Transport::Udp(_) | Transport::Closed => Err(Errno::EINVAL),
        }
    }

    /// The state of port spaces UDP and IPOIB.
    pub(crate) fn udp(&mut self) -> Result<&mut Udp, Errno> {
        match &mut self.transport {
            Transport::Udp(udp) => Ok(udp),
            Transport::Tcp(_) | Transport::Closed => Err(Errno::EINVAL),
        }
    }
}

/// An event and the identifier that it was raised for.
pub(crate) struct Queued {
    pub(crate) id: Arc<Id>,
    pub(crate) event: Raised,
}

/// Queue of an event channel.
pub(crate) type Queue = EventQueue<Queued>;

/// An identifier.
pub(crate) struct Id {
    /// Number that the stack's events carry.
    pub(crate) key: u64,
    c: OnceLock<CPointer<rdma_cm_id>>,
    queue: Mutex<Arc<Queue>>,
    pub(crate) unacked: Unacked,
    inner: Mutex<Inner>,
    /// Of a listener.
    pub(crate) gate: RequestGate,
    /// Set once the identifier listens. Read without the lock, under locks of the stack.
    pub(crate) listens: AtomicBool,
}

impl Facade for Arc<Id> {
    type C = rdma_cm_id;
    const TAG: u32 = 0x6463_6964;
}

/// Every identifier by its key.
static IDS: ProcessTable<BTreeMap<u64, Arc<Id>>> = ProcessTable::new(BTreeMap::new());

/// Queues an event of the stack. Events of destroyed identifiers are dropped.
fn raise(key: u64, event: Raised) {
    let Some(id) = IDS.lock().get(&key).cloned() else {
        return;
    };
    // A peer connected to a listener and sent no valid request: not an event of rdma_cm, and the descriptor is readable for those only.
    let failed = matches!(event, Raised::Connection(ConnectionEvent::Failed { .. }));
    if failed && id.listens.load(Ordering::Acquire) {
        return;
    }
    // The calls of a synchronous identifier take the next event for their own. The stack raises this event without locks of its own.
    let timewait = matches!(
        event,
        Raised::Connection(ConnectionEvent::TimewaitExit { .. })
    );
    if timewait && id.lock().synchronous {
        return;
    }
    // Peers may request connections faster than the program answers.
    if !is_request(&event) || id.pending_requests() < MAX_PENDING_REQUESTS {
        id.raise(event);
    }
}

/// Every identifier of the process.
pub(crate) fn all() -> Vec<Arc<Id>> {
    IDS.lock().values().cloned().collect()
}

/// Raises the removal of the device at all identifiers that are bound to it: those with an address that is no wildcard. Returns their number.
pub(crate) fn raise_removal() -> usize {
    let is_bound = |id: &&Arc<Id>| {
        let local = id.lock().local;
        local.is_some_and(|local| !local.ip().is_unspecified())
    };
    let ids = all();
    let bound = ids.iter().filter(is_bound);
    bound
        .inspect(|id| id.raise_plain(EventType::DeviceRemoval, 0))
        .count()
}

fn is_request(event: &Raised) -> bool {
    matches!(event, Raised::Connection(ConnectionEvent::Request { .. }))
}

/// The identifier behind a pointer. For race detectors, the call comes before events that the program fetches afterwards.
///
/// # Safety
/// `id` is NULL or a live identifier.
pub(crate) unsafe fn id<'a>(id: *mut rdma_cm_id) -> Result<&'a Arc<Id>, Errno> {
    // SAFETY: the caller's contract is the same.
    let state = unsafe { Object::<Arc<Id>>::state(id) }?;
    // SAFETY: a live identifier; its channel changes only in a call for it.
    thread_order::before(unsafe { (*id).channel });
    Ok(state)
}

/// The identifier behind a pointer, for functions that destroy it or parts of it.
///
/// # Safety
/// No other thread destroys the identifier in `'a`.
pub(crate) unsafe fn live_id<'a>(id: *mut rdma_cm_id) -> Result<&'a Arc<Id>, Errno> {
    // SAFETY: the caller's contract is the same.
    unsafe { Object::<Arc<Id>>::live(id) }
}

/// The queue of a channel.
///
/// # Safety
/// `channel` is NULL or a live channel.
pub(crate) unsafe fn queue(channel: *mut rdma_event_channel) -> Result<Arc<Queue>, Errno> {
    // SAFETY: the caller's contract is the same.
    unsafe { Object::<Arc<Queue>>::state(channel) }.cloned()
}

impl Id {
    /// The program's pointer.
    pub(crate) fn pointer(&self) -> *mut rdma_cm_id {
        self.c.get().map_or(ptr::null_mut(), |c| c.0)
    }

    /// `id->qp`: a live queue pair or NULL. Only in calls of the program.
    pub(crate) fn qp(&self) -> *mut ibv_qp {
        // SAFETY: a live identifier; only calls of the program write this field.
        unsafe { (*self.pointer()).qp }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The queue of the identifier's channel, locked.
    pub(super) fn queue(&self) -> MutexGuard<'_, Arc<Queue>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The queue of the identifier's channel.
    pub(crate) fn events(&self) -> Arc<Queue> {
        Arc::clone(&self.queue())
    }

    /// Opens the gate of the listener that the identifier came from: the program handles its request.
    pub(crate) fn open_gate(&self) {
        let listener = self.lock().listener.take();
        if let Some(listener) = listener {
            listener.gate.open();
        }
    }

    /// Queues an event with the identifier's channel.
    pub(crate) fn raise(self: &Arc<Self>, event: Raised) {
        let id = Arc::clone(self);
        self.queue().push(Queued { id, event });
    }

    /// Queues an event of a type and a status.
    pub(crate) fn raise_plain(self: &Arc<Self>, event_type: EventType, status: c_int) {
        self.raise(Raised::Plain(event_type, status));
    }

    fn pending_requests(self: &Arc<Self>) -> usize {
        self.queue()
            .count(|queued| Arc::ptr_eq(&queued.id, self) && is_request(&queued.event))
    }

    /// Binds the identifier to the device: the program may create queue pairs. Only in calls of the program.
    pub(crate) fn bind_device(&self) -> Result<Arc<Device>, Errno> {
        let device = device::device()?;
        // SAFETY: a live identifier; only calls of the program write these fields.
        let c = unsafe { &mut *self.pointer() };
        c.verbs = device.context.0;
        if c.pd.is_null() {
            c.pd = device.pd.0;
        }
        c.port_num = 1;
        Ok(device)
    }

    /// Writes the addresses to `route.addr`. Only in calls of the program.
    pub(crate) fn write_addresses(&self, inner: &Inner) {
        let c = |address: Option<SocketAddr>| {
            address.map_or_else(address::none, |it| address::write(it).0)
        };
        let addr = rdma_addr {
            src_addr: c(inner.local),
            dst_addr: c(inner.peer),
            addr: rdma_ib_addr {
                sgid: gid(inner.local),
                dgid: gid(inner.peer),
                pkey: u16::MAX,
            },
        };
        // SAFETY: a live identifier; only calls of the program write this field.
        unsafe { (*self.pointer()).route.addr = addr };
    }

    /// Writes a path record to `route`. Only in calls of the program.
    pub(crate) fn write_path(&self, inner: &mut Inner, mtu: u8) {
        /// `IB_SA_EQ` of the selectors: exactly this.
        const EQUAL: u8 = 2;
        let record = ibv_sa_path_rec {
            sgid: gid(inner.local),
            dgid: gid(inner.peer),
            hop_limit: 64,
            traffic_class: inner.options.tos.unwrap_or(0),
            reversible: 1,
            numb_path: 1,
            pkey: u16::MAX,
            mtu_selector: EQUAL,
            mtu,
            rate_selector: EQUAL,
            // IBV_RATE_10_GBPS.
            rate: 3,
            packet_life_time_selector: EQUAL,
            ..ibv_sa_path_rec::default()
        };
        let path = match inner.path {
            Some(path) => {
                // SAFETY: made below, and freed with the identifier only.
                unsafe { path.0.write(record) };
                path
            }
            None => CPointer(Box::into_raw(Box::new(record))),
        };
        inner.path = Some(path);
        // SAFETY: a live identifier; only calls of the program write these fields.
        let route = unsafe { &mut (*self.pointer()).route };
        (route.path_rec, route.num_paths) = (path.0, 1);
    }

    /// Removes the identifier from the table: the stack raises no more events for it.
    pub(super) fn unlist(&self) {
        IDS.lock().remove(&self.key);
    }
}

fn gid(address: Option<SocketAddr>) -> ibv_gid {
    address.map_or_else(Default::default, |it| to_gid(it.ip()))
}

/// Attributes of a new identifier.
pub(crate) struct IdAttr {
    /// `None` creates a synchronous identifier with a channel of its own.
    pub(crate) channel: Option<CPointer<rdma_event_channel>>,
    pub(crate) context: *mut c_void,
    pub(crate) port_space: c_uint,
}

/// # Safety
/// The channel is live.
pub(crate) unsafe fn create(attr: &IdAttr) -> Result<*mut rdma_cm_id, Errno> {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    device::on_event(raise);
    let (transport, qp_type) = match attr.port_space {
        RDMA_PS_TCP | RDMA_PS_IB => (Transport::Tcp(Box::default()), IBV_QPT_RC),
        RDMA_PS_UDP | RDMA_PS_IPOIB => (Transport::Udp(Box::default()), IBV_QPT_UD),
        _ => return Err(Errno::EINVAL),
    };
    let (queue, channel) = match attr.channel {
        // SAFETY: the caller's contract.
        Some(channel) => (unsafe { queue(channel.0) }?, channel.0),
        None => own_channel()?,
    };
    let id = Arc::new(Id {
        key: NEXT.fetch_add(1, Ordering::Relaxed),
        c: OnceLock::new(),
        queue: Mutex::new(queue),
        unacked: Unacked::default(),
        inner: Mutex::new(Inner {
            state: State::Idle,
            transport,
            options: Options::default(),
            local: None,
            peer: None,
            synchronous: attr.channel.is_none(),
            template: None,
            listener: None,
            path: None,
        }),
        gate: RequestGate::default(),
        listens: AtomicBool::new(false),
    });
    // SAFETY: pointers and integers, for which zero is a valid value.
    let blank: rdma_cm_id = unsafe { std::mem::zeroed() };
    let c = rdma_cm_id {
        channel,
        context: attr.context,
        ps: attr.port_space,
        qp_type,
        ..blank
    };
    let pointer = Object::create(c, Arc::clone(&id));
    let _ = id.c.set(CPointer(pointer));
    IDS.lock().insert(id.key, id);
    Ok(pointer)
}

/// A channel of a synchronous identifier.
pub(super) fn own_channel() -> Result<(Arc<Queue>, *mut rdma_event_channel), Errno> {
    let queue = Queue::new()?;
    Ok((Arc::clone(&queue), queue.into_c()))
}
