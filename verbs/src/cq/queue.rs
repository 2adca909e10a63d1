//! Completion channels and completion queues.

use crate::abi::{efadv_cq, ibv_comp_channel, ibv_context, ibv_cq, ibv_cq_ex, ibv_wc};
use crate::cq::contention::Contention;
use crate::cq::cq_ex::Current;
use crate::cq::sgid::{ReadSgid, SgidReader};
use crate::cq::wc;
use crate::device::async_queue::{EventSource, Subject};
use crate::device::{context, limits};
use crate::ffi::unacked::Unacked;
use crate::ffi::wr_lock::WrLock;
use crate::ffi::{
    Attempt, CPointer, Facade, Object, entry, errno, errno_value, minus_one_on_data_path, pointer,
    store, thread_order, waiting,
};
use crate::mem::mr::Pd;
use dgiwarp::Rnic;
use dgiwarp_memory::socket::NoCancellation;
use nix::errno::Errno;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::{AsFd, AsRawFd};
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

/// Longest sleep in place of a yield.
const NAP: Duration = Duration::from_millis(1);
/// Consecutive empty polls after which the thread leaves the core.
///
/// Programs poll in a loop. Where the peer or the background thread runs on the same core, each would otherwise spin
/// for its whole time slice, milliseconds for each message.
const YIELD_EVERY: u32 = 64;

/// A completion channel, shared with its completion queues.
pub(crate) struct Channel {
    channel: dgiwarp::CompChannel,
    /// The program's pointer to each completion queue, by the stack's number.
    queues: Mutex<BTreeMap<u64, CPointer<ibv_cq>>>,
}

impl Facade for Arc<Channel> {
    type C = ibv_comp_channel;
    const TAG: u32 = 0x6470_6363;
}

impl Channel {
    fn queues(&self) -> std::sync::MutexGuard<'_, BTreeMap<u64, CPointer<ibv_cq>>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The completion queue of the next event.
    fn next(&self) -> Option<*mut ibv_cq> {
        loop {
            let id = self.channel.next_event(false)?;
            // Events of destroyed completion queues are dropped.
            if let Some(cq) = self.queues().get(&id) {
                return Some(cq.0);
            }
        }
    }
}

/// A completion queue, shared with its queue pairs.
pub(crate) struct Cq {
    pub(crate) cq: dgiwarp::Cq,
    channel: Option<Arc<Channel>>,
    pub(crate) rnic: Rnic,
    /// State of `ibv_start_poll` to `ibv_end_poll`.
    pub(crate) current: WrLock<Current>,
    empty_polls: AtomicU32,
    contention: Contention,
    /// Completion events.
    unacked: Unacked,
    /// In use as long as the queue exists.
    _parent: Option<Arc<Pd>>,
    /// Made when a program first requests it.
    sgid_reader: OnceLock<Box<SgidReader>>,
    pub(crate) event_source: EventSource,
}

impl Facade for Arc<Cq> {
    type C = ibv_cq_ex;
    const TAG: u32 = 0x6470_7163;
}

impl Cq {
    /// The C struct that reads GIDs of senders, valid as long as the completion queue, whose pointer is `cq`.
    pub(crate) fn sgid_reader(&self, cq: *mut ibv_cq_ex, read: ReadSgid) -> *mut efadv_cq {
        let reader = self
            .sgid_reader
            .get_or_init(|| Box::new(SgidReader::new(cq, read)));
        ptr::from_ref(reader.as_ref()).cast_mut().cast()
    }

    #[cold]
    fn leave_core(&self) {
        let _guard = NoCancellation::begin();
        let yield_now = || {
            let before = self.rnic.time();
            std::thread::yield_now();
            self.rnic.time().saturating_sub(before)
        };
        self.contention.leave_core(yield_now, || {
            self.cq.sleep(NAP);
        });
    }

    /// Counts empty polls, and leaves the core after [`YIELD_EVERY`]. A count lost to a concurrent poll does no harm.
    #[inline]
    pub(crate) fn count_poll(&self, found: usize) {
        let empty = if found > 0 {
            0
        } else {
            self.empty_polls.load(Ordering::Relaxed) + 1
        };
        if empty == YIELD_EVERY {
            self.leave_core();
        }
        self.empty_polls
            .store(empty % YIELD_EVERY, Ordering::Relaxed);
    }
}

/// The completion queue behind a pointer.
///
/// # Safety
/// `cq` is NULL or a live completion queue.
pub(crate) unsafe fn queue(cq: *mut ibv_cq) -> Result<Arc<Cq>, Errno> {
    // SAFETY: the caller's contract is the same.
    unsafe { Object::<Arc<Cq>>::state(cq.cast()) }.cloned()
}

pub(crate) unsafe extern "C" fn ibv_create_comp_channel(
    context: *mut ibv_context,
) -> *mut ibv_comp_channel {
    pointer(|| {
        // SAFETY: the program passes an open context.
        let state = unsafe { context::state(context) }?;
        let channel = state.rnic.create_comp_channel().map_err(errno::of)?;
        let fd = channel.as_fd().as_raw_fd();
        let channel = Channel {
            channel,
            queues: Mutex::default(),
        };
        Ok(Object::create(
            ibv_comp_channel {
                context,
                fd,
                refcnt: 0,
            },
            Arc::new(channel),
        ))
    })
}

pub(crate) unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    errno_value(|| {
        // SAFETY: the program passes a live channel.
        if Arc::strong_count(unsafe { Object::<Arc<Channel>>::live(channel) }?) > 1 {
            return Err(Errno::EBUSY);
        }
        // SAFETY: and does not use it any more.
        unsafe { Object::<Arc<Channel>>::release(channel) }.map(drop)
    })
}

/// Attributes of a new completion queue.
pub(crate) struct CqAttr {
    pub(crate) cqe: u32,
    pub(crate) cq_context: *mut c_void,
    pub(crate) channel: *mut ibv_comp_channel,
    pub(crate) comp_vector: u32,
    /// Keep timestamps of completions.
    pub(crate) timestamps: bool,
    /// Drop completions at an overrun; otherwise the queue fails.
    pub(crate) ignore_overrun: bool,
    /// Parent domain of the queue.
    pub(crate) parent: Option<Arc<Pd>>,
}

/// The C struct, without operations of the extended API. Programs cast between both structs, so it is the larger.
fn face(base: ibv_cq) -> ibv_cq_ex {
    // SAFETY: nullable function pointers, raw pointers and integers, for which zero is a valid value.
    let face: ibv_cq_ex = unsafe { std::mem::zeroed() };
    ibv_cq_ex { base, ..face }
}

/// Creates a completion queue. `fill` adds operations to the C struct.
///
/// # Safety
/// `context` is NULL or open, the channel NULL or live.
pub(crate) unsafe fn create(
    context: *mut ibv_context,
    attr: &CqAttr,
    fill: impl FnOnce(&mut ibv_cq_ex),
) -> Result<*mut ibv_cq_ex, Errno> {
    // SAFETY: the caller's contract.
    let state = unsafe { context::state(context) }?;
    if !(1..=limits::MAX_CQE.cast_unsigned()).contains(&attr.cqe) || attr.comp_vector != 0 {
        return Err(Errno::EINVAL);
    }
    let depth = usize::try_from(attr.cqe).map_err(|_| Errno::EINVAL)?;
    let shared = if attr.channel.is_null() {
        None
    } else {
        // SAFETY: not NULL, so a live channel.
        Some(Arc::clone(unsafe {
            Object::<Arc<Channel>>::state(attr.channel)
        }?))
    };
    let cq = match &shared {
        Some(shared) => state.rnic.create_cq_on(depth, &shared.channel),
        None => state.rnic.create_cq(depth),
    };
    let cq = cq.map_err(errno::of)?;
    if attr.timestamps {
        cq.keep_timestamps().map_err(errno::of)?;
    }
    if attr.ignore_overrun {
        cq.ignore_overrun();
    }
    let id = cq.id();
    let event_source = EventSource::new(&state.async_events, Subject::Cq(id));
    let mut face = face(ibv_cq {
        context,
        channel: attr.channel,
        cq_context: attr.cq_context,
        handle: 0,
        cqe: attr.cqe.cast_signed(),
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        cond: libc::PTHREAD_COND_INITIALIZER,
        comp_events_completed: 0,
        async_events_completed: 0,
    });
    fill(&mut face);
    let state = Cq {
        cq,
        channel: shared.clone(),
        rnic: state.rnic.clone(),
        current: WrLock::new(Current::default()),
        empty_polls: AtomicU32::new(0),
        contention: Contention::default(),
        unacked: Unacked::default(),
        _parent: attr.parent.clone(),
        sgid_reader: OnceLock::new(),
        event_source,
    };
    let state = Arc::new(state);
    let pointer = Object::create(face, Arc::clone(&state));
    state.event_source.enter(pointer);
    if let Some(shared) = shared {
        shared.queues().insert(id, CPointer(pointer.cast()));
    }
    Ok(pointer)
}

pub(crate) unsafe extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
) -> *mut ibv_cq {
    pointer(|| {
        let unsigned = |value: c_int| u32::try_from(value).map_err(|_| Errno::EINVAL);
        let attr = CqAttr {
            cqe: unsigned(cqe)?,
            cq_context,
            channel,
            comp_vector: unsigned(comp_vector)?,
            timestamps: false,
            ignore_overrun: false,
            parent: None,
        };
        // SAFETY: the program passes an open context, and a live channel or none.
        unsafe { create(context, &attr, |_| ()) }.map(<*mut ibv_cq_ex>::cast)
    })
}

pub(crate) unsafe extern "C" fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    errno_value(|| {
        // SAFETY: the program passes a live completion queue.
        let state = unsafe { queue(cq) }?;
        if !(1..=limits::MAX_CQE).contains(&cqe) {
            return Err(Errno::EINVAL);
        }
        let depth = usize::try_from(cqe).map_err(|_| Errno::EINVAL)?;
        let resized = state.cq.resize(depth);
        resized.map_err(errno::of)?;
        // SAFETY: a live completion queue; ibv_resize_cq(3) has the new size in this field.
        unsafe { (*cq).cqe = cqe };
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    errno_value(|| {
        // SAFETY: the program passes a live completion queue.
        let state = unsafe { Object::<Arc<Cq>>::live(cq.cast()) }?;
        if Arc::strong_count(state) > 1 {
            return Err(Errno::EBUSY);
        }
        if let Some(channel) = &state.channel {
            channel.queues().remove(&state.cq.id());
            channel.channel.forget(state.cq.id());
        }
        // ibv_get_cq_event(3): destroying waits until every event that was fetched has been acknowledged.
        state.unacked.wait();
        state.event_source.leave();
        // SAFETY: and does not use it any more.
        unsafe { Object::<Arc<Cq>>::release(cq.cast()) }.map(drop)
    })
}

pub(crate) unsafe extern "C-unwind" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    waiting(|| {
        // SAFETY: the program passes a live channel.
        let channel = unsafe { Object::<Arc<Channel>>::state(channel) }?;
        let Some(found) = channel.next() else {
            return Attempt::again_at(&channel.channel, || channel.channel.begin_wait());
        };
        // SAFETY: a completion queue of this channel; the program does not destroy it while it waits for its events.
        unsafe { Object::<Arc<Cq>>::state(found.cast()) }?
            .unacked
            .fetched();
        // SAFETY: the same queue; this field never changes.
        let program_context = unsafe { (*found).cq_context };
        thread_order::after(found);
        // SAFETY: the program passes room for the pointer.
        unsafe { store(cq, found) }?;
        // SAFETY: and for the context.
        unsafe { store(cq_context, program_context) }.map(|()| Attempt::Done)
    })
}

pub(crate) unsafe extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, events: c_uint) {
    entry((), || {
        // SAFETY: the program passes a live completion queue.
        if let Ok(state) = unsafe { Object::<Arc<Cq>>::state(cq.cast()) } {
            state.unacked.acknowledged(events);
        }
    });
}

/// `ibv_req_notify_cq`.
pub(crate) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    errno_value(|| {
        // SAFETY: the program passes a live completion queue.
        let state = unsafe { Object::<Arc<Cq>>::state(cq.cast()) }?;
        state.cq.request_notification(solicited_only != 0);
        Ok(())
    })
}

/// `ibv_poll_cq`: the number of completions written, or a negative number.
pub(crate) unsafe extern "C" fn poll_cq(
    cq: *mut ibv_cq,
    entries: c_int,
    out: *mut ibv_wc,
) -> c_int {
    minus_one_on_data_path(|| {
        // SAFETY: the program passes a live completion queue.
        let state = unsafe { Object::<Arc<Cq>>::state(cq.cast()) }?;
        let room = usize::try_from(entries).map_err(|_| Errno::EINVAL)?;
        let mut written = 0;
        while written < room {
            let wanted = room - written;
            let fetched = state.cq.poll_each(wanted, |wc| {
                if let Some(wc) = wc::to_c(wc) {
                    // SAFETY: `written` is below `entries`.
                    let slot = unsafe { out.add(written) };
                    // SAFETY: the program provides `entries` completions.
                    unsafe { ptr::write(slot, wc) };
                    written += 1;
                }
            });
            match fetched {
                Ok(count) if count == wanted => {}
                Ok(_) => break,
                Err(_) if written > 0 => break,
                Err(_) => return Err(Errno::EOVERFLOW),
            }
        }
        state.count_poll(written);
        c_int::try_from(written).map_err(|_| Errno::EOVERFLOW)
    })
}

/// `ibv_poll_cq` for race detectors: after the posts of what is complete, and all posts to shared receive queues of the device.
pub(crate) unsafe extern "C" fn ordered_poll_cq(
    cq: *mut ibv_cq,
    entries: c_int,
    out: *mut ibv_wc,
) -> c_int {
    // SAFETY: the contract is the same.
    let found = unsafe { poll_cq(cq, entries, out) };
    if found > 0 {
        // SAFETY: completions are those of a live completion queue.
        unsafe { completed(cq) };
    }
    found
}

/// Orders the thread, which has a completion, for race detectors.
///
/// # Safety
/// `cq` is a live completion queue.
pub(crate) unsafe fn completed(cq: *mut ibv_cq) {
    thread_order::after(cq);
    // SAFETY: the caller's contract; this field never changes.
    thread_order::after(unsafe { (*cq).context });
}

/// `ibv_req_notify_cq` for race detectors: before the event.
pub(crate) unsafe extern "C" fn ordered_req_notify_cq(
    cq: *mut ibv_cq,
    solicited_only: c_int,
) -> c_int {
    thread_order::before(cq);
    // SAFETY: the contract is the same.
    unsafe { req_notify_cq(cq, solicited_only) }
}
