//! Identifiers: what stands behind `struct rdma_cm_id`, from its making to its end.

use super::addr::address;
use super::channel::{EventQueue, Happening, queue};
use super::device;
use super::device::Device;
use super::endpoint::Template;
use super::event::{self, EventType, What};
use super::request::Turns;
use super::tcp::{self, Tcp};
use super::udp::Udp;
use crate::abi::{
    IBV_QPT_RC, IBV_QPT_UD, RDMA_PS_IB, RDMA_PS_IPOIB, RDMA_PS_TCP, RDMA_PS_UDP, ibv_sa_path_rec,
    rdma_addr, rdma_cm_event, rdma_cm_id, rdma_event_channel, rdma_ib_addr, rdma_route,
};
use crate::device::gid::to_gid;
use crate::ffi::fork::ProcessTable;
use crate::ffi::{CPointer, Facade, Object, entry, minus_one, store};
use dgiwarp::ConnectionEvent;
use nix::errno::Errno;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint, c_void};
use std::net::SocketAddr;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

/// How far an identifier has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// It was made.
    Idle,
    /// It has a local address.
    Bound,
    /// It has a peer's address and the device.
    AddressResolved,
    /// And a way there.
    RouteResolved,
    /// It takes requests.
    Listening,
    /// It asks for a connection.
    Connecting,
    /// It is the answer to a request, which the program has not given yet.
    Requested,
    /// The program has answered.
    Accepted,
    /// It has a connection.
    Connected,
    /// It had one, or an attempt.
    Over,
}

/// How an identifier connects.
pub(crate) enum Transport {
    /// Port space TCP: plain iWARP.
    Tcp(Box<Tcp>),
    /// Port spaces UDP and IPOIB: services of datagram queue pairs, and groups.
    Udp(Box<Udp>),
    /// The identifier is being destroyed.
    Closed,
}

/// `rdma_set_option(3)`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Options {
    pub(crate) tos: Option<u8>,
    pub(crate) af_only: bool,
    /// What queue pairs report; TCP has timers of its own.
    pub(crate) ack_timeout: Option<u8>,
}

impl Options {
    /// The time-out of the queue pair: 4.096 us doubled so many times, about 67 ms unless the program says otherwise.
    pub(crate) fn timeout(&self) -> u8 {
        self.ack_timeout.unwrap_or(14)
    }
}

/// What changes of an identifier.
pub(crate) struct Inner {
    pub(crate) state: State,
    pub(crate) transport: Transport,
    pub(crate) options: Options,
    /// As programs name them.
    pub(crate) local: Option<SocketAddr>,
    pub(crate) peer: Option<SocketAddr>,
    /// Calls wait for their event. The channel is the identifier's own.
    pub(crate) waits: bool,
    /// What is made for each request of an endpoint that listens.
    pub(crate) template: Option<Template>,
    /// What it came from, until the program does something with it.
    pub(crate) listener: Option<Arc<Id>>,
    path: Option<CPointer<ibv_sa_path_rec>>,
}

/// An identifier.
pub(crate) struct Id {
    key: u64,
    c: OnceLock<CPointer<rdma_cm_id>>,
    queue: Mutex<Arc<EventQueue>>,
    /// Events fetched and not acknowledged yet: destroying waits for zero.
    unacknowledged: Mutex<u64>,
    acknowledged: Condvar,
    inner: Mutex<Inner>,
    /// Of requests, if it listens.
    pub(crate) turns: Turns,
}

impl Facade for Arc<Id> {
    type C = rdma_cm_id;
    const TAG: u32 = 0x6463_6964;
}

/// Every identifier by its number, which the stack knows.
static IDS: ProcessTable<BTreeMap<u64, Arc<Id>>> = ProcessTable::new(BTreeMap::new());

/// Queues what the stack tells of an identifier; what it tells of one that is gone is forgotten.
pub(crate) fn tell(key: u64, what: What) {
    let Some(id) = IDS.lock().get(&key).cloned() else {
        return;
    };
    // Strangers may ask faster than the program answers.
    let is_request = matches!(what, What::Connection(ConnectionEvent::Request { .. }));
    if !is_request || tcp::has_room(&id) {
        id.push(what);
    }
}

/// The identifier behind a pointer.
///
/// # Safety
/// `id` is NULL or a live identifier.
pub(crate) unsafe fn id<'a>(id: *mut rdma_cm_id) -> Result<&'a Arc<Id>, Errno> {
    // SAFETY: the caller's contract is the same.
    unsafe { Object::<Arc<Id>>::state(id) }
}

impl Id {
    /// The number that the stack knows it by.
    pub(crate) fn key(&self) -> u64 {
        self.key
    }

    /// The program's pointer.
    pub(crate) fn c(&self) -> *mut rdma_cm_id {
        self.c.get().map_or(ptr::null_mut(), |c| c.0)
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn queue(&self) -> MutexGuard<'_, Arc<EventQueue>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The program does something with it.
    pub(crate) fn take_turn(&self) {
        let listener = self.lock().listener.take();
        if let Some(listener) = listener {
            listener.turns.end();
        }
    }

    /// The queue of the channel that it belongs to.
    pub(crate) fn events(&self) -> Arc<EventQueue> {
        Arc::clone(&self.queue())
    }

    /// Queues what happened with the channel that it belongs to.
    pub(crate) fn push(self: &Arc<Self>, what: What) {
        let id = Arc::clone(self);
        self.queue().push(Happening { id, what });
    }

    /// Queues an event that says nothing more.
    pub(crate) fn push_plain(self: &Arc<Self>, event: EventType, status: c_int) {
        self.push(What::Plain(event, status));
    }

    /// How many of its events wait to be fetched that `which` says.
    pub(crate) fn count(self: &Arc<Self>, which: impl Fn(&What) -> bool) -> usize {
        self.queue().count(self, which)
    }

    fn unacknowledged(&self) -> MutexGuard<'_, u64> {
        self.unacknowledged
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn note_fetched(&self) {
        *self.unacknowledged() += 1;
    }

    pub(crate) fn note_acknowledged(&self) {
        let mut unacknowledged = self.unacknowledged();
        *unacknowledged = unacknowledged.saturating_sub(1);
        if *unacknowledged == 0 {
            self.acknowledged.notify_all();
        }
    }

    /// Waits until every event that was fetched has been acknowledged.
    fn await_acknowledgements(&self) {
        let mut unacknowledged = self.unacknowledged();
        while *unacknowledged > 0 {
            unacknowledged = self
                .acknowledged
                .wait(unacknowledged)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Has it belong to the device: the program may make queue pairs from here on. Called in calls of the program only.
    pub(crate) fn attach(&self) -> Result<Arc<Device>, Errno> {
        let device = device::device()?;
        let c = self.c();
        // SAFETY: alive as long as the program calls with it, and only such calls write these fields.
        unsafe { (*c).verbs = device.context.0 };
        // SAFETY: as above.
        if unsafe { (*c).pd }.is_null() {
            // SAFETY: as above.
            unsafe { (*c).pd = device.pd.0 };
        }
        // SAFETY: as above.
        unsafe { (*c).port_num = 1 };
        Ok(device)
    }

    /// Shows the program the addresses. Called in calls of the program only.
    pub(crate) fn show(&self, inner: &Inner) {
        let gid = |address: Option<SocketAddr>| {
            address.map_or_else(Default::default, |it| to_gid(it.ip()))
        };
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
        // SAFETY: alive as long as the program calls with it, and only such calls write this field.
        unsafe { (*self.c()).route.addr = addr };
    }

    /// Shows the program a path, which has nothing that it would not know. Called in calls of the program only.
    pub(crate) fn show_path(&self, inner: &mut Inner, mtu: u8) {
        /// `IB_SA_EQ` of the selectors: exactly this.
        const EQUAL: u8 = 2;
        let gid = |address: Option<SocketAddr>| {
            address.map_or_else(Default::default, |it| to_gid(it.ip()))
        };
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
        // SAFETY: alive as long as the program calls with it, and only such calls write these fields.
        unsafe { (*self.c()).route.path_rec = path.0 };
        // SAFETY: as above.
        unsafe { (*self.c()).route.num_paths = 1 };
    }
}

/// What an identifier is made of.
pub(crate) struct Making {
    /// `None` makes one whose calls wait, with a channel of its own.
    pub(crate) channel: Option<CPointer<rdma_event_channel>>,
    pub(crate) context: *mut c_void,
    pub(crate) port_space: c_uint,
}

/// # Safety
/// The channel is a live one.
pub(crate) unsafe fn create(making: &Making) -> Result<*mut rdma_cm_id, Errno> {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let (transport, qp_type) = match making.port_space {
        RDMA_PS_TCP | RDMA_PS_IB => (Transport::Tcp(Box::default()), IBV_QPT_RC),
        RDMA_PS_UDP | RDMA_PS_IPOIB => (Transport::Udp(Box::default()), IBV_QPT_UD),
        _ => return Err(Errno::EINVAL),
    };
    let (queue, channel) = match making.channel {
        // SAFETY: the caller's contract.
        Some(channel) => (unsafe { queue(channel.0) }?, channel.0),
        None => {
            let queue = EventQueue::new()?;
            (Arc::clone(&queue), queue.into_c())
        }
    };
    let id = Arc::new(Id {
        key: NEXT.fetch_add(1, Ordering::Relaxed),
        c: OnceLock::new(),
        queue: Mutex::new(queue),
        unacknowledged: Mutex::new(0),
        acknowledged: Condvar::new(),
        inner: Mutex::new(Inner {
            state: State::Idle,
            transport,
            options: Options::default(),
            local: None,
            peer: None,
            waits: making.channel.is_none(),
            template: None,
            listener: None,
            path: None,
        }),
        turns: Turns::default(),
    });
    let c = rdma_cm_id {
        channel,
        context: making.context,
        ps: making.port_space,
        qp_type,
        ..blank()
    };
    let pointer = Object::create(c, Arc::clone(&id));
    let _ = id.c.set(CPointer(pointer));
    IDS.lock().insert(id.key, id);
    Ok(pointer)
}

fn blank() -> rdma_cm_id {
    rdma_cm_id {
        verbs: ptr::null_mut(),
        channel: ptr::null_mut(),
        context: ptr::null_mut(),
        qp: ptr::null_mut(),
        route: rdma_route {
            addr: rdma_addr {
                src_addr: address::none(),
                dst_addr: address::none(),
                addr: rdma_ib_addr {
                    sgid: Default::default(),
                    dgid: Default::default(),
                    pkey: 0,
                },
            },
            path_rec: ptr::null_mut(),
            num_paths: 0,
        },
        ps: 0,
        port_num: 0,
        event: ptr::null_mut(),
        send_cq_channel: ptr::null_mut(),
        send_cq: ptr::null_mut(),
        recv_cq_channel: ptr::null_mut(),
        recv_cq: ptr::null_mut(),
        srq: ptr::null_mut(),
        pd: ptr::null_mut(),
        qp_type: 0,
    }
}

/// Waits for the event that ends a call, if the identifier's calls do that, and keeps it in `id->event`. An event that
/// says that it failed is the call's error.
///
/// # Safety
/// `pointer` is a live identifier, used by no other call.
pub(crate) unsafe fn complete(pointer: *mut rdma_cm_id) -> Result<(), Errno> {
    // SAFETY: the caller's contract.
    let id = unsafe { id(pointer) }?;
    if !id.lock().waits {
        return Ok(());
    }
    // SAFETY: the caller's contract.
    unsafe { forget_event(pointer) }?;
    let found = event::fetch(&id.events())?;
    // SAFETY: the caller's contract: nobody else uses the identifier.
    unsafe { (*pointer).event = found };
    // SAFETY: just fetched.
    let c = unsafe { &*found };
    outcome(c.event, c.status)
}

/// What a call has to say of an event.
fn outcome(event: c_uint, status: c_int) -> Result<(), Errno> {
    const REJECTED: c_uint = 8;
    match (event, status) {
        (_, 0) => Ok(()),
        (REJECTED, _) => Err(Errno::ECONNREFUSED),
        (_, status) => Err(Errno::from_raw(status.saturating_abs())),
    }
}

/// Acknowledges the event that the last call left.
///
/// # Safety
/// As for [`complete`].
pub(crate) unsafe fn forget_event(pointer: *mut rdma_cm_id) -> Result<(), Errno> {
    // SAFETY: the caller's contract: nobody else uses the identifier.
    let event: *mut rdma_cm_event = unsafe { (*pointer).event };
    // SAFETY: as above.
    unsafe { (*pointer).event = ptr::null_mut() };
    if event.is_null() {
        return Ok(());
    }
    // SAFETY: it was fetched, and not acknowledged since it is still here.
    unsafe { event::acknowledge(event) }
}

/// # Safety
/// `pointer` is NULL or a live identifier that nobody uses any more.
pub(crate) unsafe fn destroy(pointer: *mut rdma_cm_id) -> Result<(), Errno> {
    // SAFETY: the caller's contract.
    let id = Arc::clone(unsafe { id(pointer) }?);
    IDS.lock().remove(&id.key);
    id.take_turn();
    let (transport, path, template, waits) = {
        let mut inner = id.lock();
        inner.state = State::Over;
        let transport = std::mem::replace(&mut inner.transport, Transport::Closed);
        let (path, template) = (inner.path.take(), inner.template.take());
        (transport, path, template, inner.waits)
    };
    // It may take the lock of the identifier.
    match transport {
        Transport::Tcp(tcp) => tcp.close(id.key),
        Transport::Udp(udp) => drop(udp),
        Transport::Closed => {}
    }
    for happening in id.events().remove_all(&id) {
        if let What::Connection(ConnectionEvent::Request { request, .. }) = happening.what {
            tcp::refuse(&*device::device()?, request);
        }
    }
    // SAFETY: the caller's contract.
    unsafe { forget_event(pointer) }?;
    id.await_acknowledgements();
    if waits {
        // SAFETY: the channel is the identifier's own.
        let own = unsafe { (*pointer).channel };
        // SAFETY: as above.
        drop(unsafe { Object::<Arc<EventQueue>>::release(own) });
    }
    if let Some(path) = path {
        // SAFETY: made by `show_path` as a Box, and not used any more.
        drop(unsafe { Box::from_raw(path.0) });
    }
    if let Some(template) = template {
        // SAFETY: nobody makes anything for its requests any more.
        unsafe { template.free() };
    }
    // SAFETY: the caller's contract.
    drop(unsafe { Object::<Arc<Id>>::release(pointer) }?);
    Ok(())
}

/// # Safety
/// `pointer` is a live identifier, and `channel` NULL or a live channel.
unsafe fn migrate(pointer: *mut rdma_cm_id, channel: *mut rdma_event_channel) -> Result<(), Errno> {
    // SAFETY: the caller's contract.
    let id = unsafe { id(pointer) }?;
    let waits = channel.is_null();
    let (new, new_c) = if waits {
        let queue = EventQueue::new()?;
        (Arc::clone(&queue), queue.into_c())
    } else {
        // SAFETY: the caller's contract.
        (unsafe { queue(channel) }?, channel)
    };
    {
        let mut current = id.queue();
        if !Arc::ptr_eq(&current, &new) {
            for happening in current.remove_all(id) {
                new.push(happening);
            }
            *current = new;
        }
    }
    // SAFETY: the caller's contract. rdma_migrate_id(3): the call waits until all events of the old channel are acknowledged;
    // one that a waiting call left in the identifier is moved with it in effect by being acknowledged.
    unsafe { forget_event(pointer) }?;
    id.await_acknowledgements();
    let waited = std::mem::replace(&mut id.lock().waits, waits);
    // SAFETY: the caller's contract.
    let old_c = unsafe { (*pointer).channel };
    // SAFETY: as above.
    unsafe { (*pointer).channel = new_c };
    if waited {
        // SAFETY: the channel was the identifier's own.
        drop(unsafe { Object::<Arc<EventQueue>>::release(old_c) });
    }
    Ok(())
}

pub(crate) unsafe extern "C" fn rdma_create_id(
    channel: *mut rdma_event_channel,
    pointer: *mut *mut rdma_cm_id,
    context: *mut c_void,
    port_space: c_uint,
) -> c_int {
    minus_one(|| {
        if pointer.is_null() {
            return Err(Errno::EINVAL);
        }
        let making = Making {
            channel: (!channel.is_null()).then_some(CPointer(channel)),
            context,
            port_space,
        };
        // SAFETY: the program passes a live channel or NULL.
        let made = unsafe { create(&making) }?;
        // SAFETY: and room for the pointer.
        unsafe { store(pointer, made) }.map(|()| 0)
    })
}

pub(crate) unsafe extern "C" fn rdma_destroy_id(pointer: *mut rdma_cm_id) -> c_int {
    // SAFETY: the program passes a live identifier and does not use it any more.
    minus_one(|| unsafe { destroy(pointer) }.map(|()| 0))
}

pub(crate) unsafe extern "C" fn rdma_migrate_id(
    pointer: *mut rdma_cm_id,
    channel: *mut rdma_event_channel,
) -> c_int {
    // SAFETY: the program passes a live identifier and channel.
    minus_one(|| unsafe { migrate(pointer, channel) }.map(|()| 0))
}

/// The port of an address that an identifier shows, in network order.
///
/// # Safety
/// `pointer` is NULL or a live identifier.
unsafe fn port(pointer: *mut rdma_cm_id, which: impl Fn(&Inner) -> Option<SocketAddr>) -> u16 {
    entry(0, || {
        // SAFETY: the caller's contract.
        let found = unsafe { id(pointer) }.ok();
        let address = found.and_then(|id| which(&id.lock()));
        address.map_or(0, |address| address.port().to_be())
    })
}

pub(crate) unsafe extern "C" fn rdma_get_src_port(pointer: *mut rdma_cm_id) -> u16 {
    // SAFETY: the program passes a live identifier.
    unsafe { port(pointer, |inner| inner.local) }
}

pub(crate) unsafe extern "C" fn rdma_get_dst_port(pointer: *mut rdma_cm_id) -> u16 {
    // SAFETY: the program passes a live identifier.
    unsafe { port(pointer, |inner| inner.peer) }
}
