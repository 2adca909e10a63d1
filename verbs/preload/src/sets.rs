//! Epoll sets with rsockets.
//!
//! A set of the program stays the kernel's, with all other members. The first rsocket among them gives it a poll set of rsockets, of which the kernel's set is
//! a member too: its events are fetched when it has any. While there are no rsockets in it, a set is the kernel's alone.
//!
//! Threads may wait at the kernel's set when the first rsocket comes: a descriptor that is always readable is a member of the set then, until all of them have
//! seen it and wait at the poll set.

use crate::system::{errno, kernel, next, rsockets};
use crate::table::{self, Face};
use libc::{EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLIN, c_int, epoll_event};
use std::collections::{BTreeMap, BTreeSet};
use std::ptr;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// Members of the program's epoll sets, by set.
type Sets = BTreeMap<c_int, Members>;

/// Members of a set.
#[derive(Debug, Default)]
pub(crate) struct Members {
    /// TCP sockets and listeners, by descriptor.
    sockets: BTreeMap<c_int, Member>,
    rsockets: BTreeSet<c_int>,
}

/// A TCP socket in a set.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Member {
    events: u32,
    data: u64,
    /// Descriptor of a listener's queue in the same set.
    bell: Option<c_int>,
}

static SETS: Mutex<Sets> = Mutex::new(BTreeMap::new());

pub(crate) fn sets() -> MutexGuard<'static, Sets> {
    SETS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Data of the kernel's set in its poll set: an address, which no data of the program is.
pub(crate) fn kernels() -> u64 {
    u64::try_from((&raw const SETS).addr()).unwrap_or(u64::MAX)
}

/// Changes the kernel's set.
fn control(set: c_int, operation: c_int, fd: c_int, events: u32, data: u64) -> c_int {
    let mut event = epoll_event { events, u64: data };
    // SAFETY: an event.
    unsafe { next::epoll_ctl(set, operation, fd, &raw mut event) }
}

/// A member of the kernel's set was added, changed or removed; `bell` is that of a listener.
pub(crate) fn record(
    set: c_int,
    operation: c_int,
    fd: c_int,
    event: Option<epoll_event>,
    bell: Option<c_int>,
) {
    let mut sets = sets();
    let members = &mut sets.entry(set).or_default().sockets;
    let before = if operation == EPOLL_CTL_DEL {
        members.remove(&fd)
    } else {
        let Some(epoll_event { events, u64: data }) = event else {
            return;
        };
        members.insert(fd, Member { events, data, bell })
    };
    drop(sets);
    if let Some(bell) = bell {
        let (events, data) = event.map_or((0, 0), |it| (it.events, it.u64));
        let has = before.is_some_and(|it| it.bell.is_some());
        let operation = match operation {
            EPOLL_CTL_ADD | EPOLL_CTL_MOD if has => EPOLL_CTL_MOD,
            EPOLL_CTL_ADD | EPOLL_CTL_MOD => EPOLL_CTL_ADD,
            other => other,
        };
        control(set, operation, bell, events, data);
    }
}

/// Whether the descriptor is in a set.
pub(crate) fn has(fd: c_int) -> bool {
    sets()
        .values()
        .any(|members| members.sockets.contains_key(&fd))
}

fn members_of(fd: c_int) -> Vec<(c_int, Member)> {
    let sets = sets();
    let all = sets.iter();
    all.filter_map(|(set, members)| Some((*set, *members.sockets.get(&fd)?)))
        .collect()
}

/// A listener that is in sets has got a queue.
pub(crate) fn add_bell(fd: c_int, bell: c_int) {
    for (set, member) in members_of(fd) {
        if member.bell.is_some() {
            continue;
        }
        let event = epoll_event {
            events: member.events,
            u64: member.data,
        };
        record(set, EPOLL_CTL_MOD, fd, Some(event), Some(bell));
    }
}

/// A socket in the kernel's sets has become an rsocket.
pub(crate) fn upgrade(fd: c_int, rsocket: c_int) {
    for (set, Member { events, data, .. }) in members_of(fd) {
        control(set, EPOLL_CTL_DEL, fd, 0, 0);
        let mut event = epoll_event { events, u64: data };
        // SAFETY: an event.
        unsafe { control_rsocket(set, EPOLL_CTL_ADD, rsocket, &raw mut event) };
    }
    forget(fd);
}

/// The descriptor is closed, or is of no interest any more.
pub(crate) fn forget(fd: c_int) {
    let mut bells = Vec::new();
    for (set, members) in sets().iter_mut() {
        if let Some(Member {
            bell: Some(bell), ..
        }) = members.sockets.remove(&fd)
        {
            bells.push((*set, bell));
        }
    }
    for (set, bell) in bells {
        control(set, EPOLL_CTL_DEL, bell, 0, 0);
    }
}

/// epoll_ctl(2) for an rsocket.
///
/// # Safety
/// The event is NULL or valid.
pub(crate) unsafe fn control_rsocket(
    set: c_int,
    operation: c_int,
    rsocket: c_int,
    event: *mut epoll_event,
) -> c_int {
    let mut sets = sets();
    let Some(poll_set) = poll_set(set) else {
        return -1;
    };
    // SAFETY: the caller's event.
    let result = unsafe { rsockets::repoll_ctl(poll_set, operation, rsocket, event) };
    if result == 0 {
        let rsockets = &mut sets.entry(set).or_default().rsockets;
        match operation {
            EPOLL_CTL_ADD => drop(rsockets.insert(rsocket)),
            EPOLL_CTL_DEL => drop(rsockets.remove(&rsocket)),
            _ => {}
        }
        let active = !rsockets.is_empty();
        activate(set, poll_set, active);
    }
    result
}

/// A UDP socket was added to the kernel's set, changed or removed: so is its companion, for datagrams that come.
pub(crate) fn accompany(set: c_int, operation: c_int, rsocket: c_int, event: Option<epoll_event>) {
    let error = errno::get();
    let kept = (EPOLLIN | libc::EPOLLONESHOT).cast_unsigned() | libc::EPOLLET.cast_unsigned();
    let mut event = event.unwrap_or(epoll_event { events: 0, u64: 0 });
    event.events &= kept;
    // SAFETY: an event.
    let result = unsafe { control_rsocket(set, operation, rsocket, &raw mut event) };
    if result != 0 && operation == EPOLL_CTL_ADD && errno::get() == libc::EEXIST {
        // By another descriptor of the socket.
        // SAFETY: as above.
        unsafe { control_rsocket(set, EPOLL_CTL_MOD, rsocket, &raw mut event) };
    }
    errno::set(error);
}

/// An rsocket is closed.
pub(crate) fn forget_rsocket(rsocket: c_int) {
    for (set, members) in sets().iter_mut() {
        if members.rsockets.remove(&rsocket)
            && members.rsockets.is_empty()
            && let Some(Face::PollSet { poll_set, .. }) = table::get(*set)
        {
            activate(*set, poll_set, false);
        }
    }
}

/// A set has rsockets or none, under the lock of all sets. Threads that wait at the kernel's set turn to the poll set with the first.
fn activate(set: c_int, poll_set: c_int, active: bool) {
    let before = table::replace(set, Some(Face::PollSet { poll_set, active }));
    let was = matches!(before, Some(Face::PollSet { active: true, .. }));
    if active
        && !was
        && table::waiters(set).is_some_and(|it| it.load(Ordering::SeqCst) > 0)
        && let Some(always) = always_readable()
    {
        let events = EPOLLIN.cast_unsigned();
        control(set, EPOLL_CTL_ADD, always, events, turn());
    }
}

/// A descriptor that is always readable.
fn always_readable() -> Option<c_int> {
    static ALWAYS: OnceLock<Option<c_int>> = OnceLock::new();
    *ALWAYS.get_or_init(|| {
        let fd = kernel::semaphore()?;
        kernel::release(fd);
        Some(fd)
    })
}

/// Data of [`always_readable`] in the kernel's set: an address, which no data of the program is.
fn turn() -> u64 {
    static TURN: u8 = 0;
    u64::try_from((&raw const TURN).addr()).unwrap_or(u64::MAX)
}

/// Waits at the kernel's set with `wait`, which has room for `most` events, and returns its result, or -1. `None` where the set has got rsockets, and nothing has been written.
///
/// # Safety
/// `wait` writes as many events as it returns to `events`.
pub(crate) unsafe fn wait_plain(
    set: c_int,
    events: *mut epoll_event,
    wait: impl FnOnce() -> c_int,
) -> Option<c_int> {
    let Some(waiters) = table::waiters(set) else {
        return Some(wait());
    };
    waiters.fetch_add(1, Ordering::SeqCst);
    if active(set).is_some() {
        waiters.fetch_sub(1, Ordering::SeqCst);
        return None;
    }
    let count = wait();
    waiters.fetch_sub(1, Ordering::SeqCst);
    // SAFETY: the caller's events.
    match unsafe { without_turn(set, events, count) } {
        0 if count > 0 => None,
        left => Some(left),
    }
}

/// Takes the event of [`always_readable`] out of events of the kernel's set, and the descriptor out of the set behind the last thread that waits there. Returns how many are left.
///
/// # Safety
/// There are `count` events, where it is not negative.
unsafe fn without_turn(set: c_int, events: *mut epoll_event, count: c_int) -> c_int {
    let Ok(found) = usize::try_from(count) else {
        return count;
    };
    if found == 0 {
        return 0;
    }
    // SAFETY: the caller's events.
    let all = unsafe { std::slice::from_raw_parts_mut(events, found) };
    let Some(at) = all.iter().position(|it| it.u64 == turn()) else {
        return count;
    };
    let error = errno::get();
    all.swap(at, found - 1);
    let _guard = sets();
    // Where the rsockets are gone again meanwhile, there is nothing to turn to.
    let is_last = table::waiters(set).is_some_and(|it| it.load(Ordering::SeqCst) == 0);
    if (is_last || active(set).is_none())
        && let Some(always) = always_readable()
    {
        control(set, EPOLL_CTL_DEL, always, 0, 0);
    }
    errno::set(error);
    count - 1
}

/// The poll set of a set that has rsockets.
pub(crate) fn active(set: c_int) -> Option<c_int> {
    match table::get(set) {
        Some(Face::PollSet {
            poll_set,
            active: true,
        }) => Some(poll_set),
        _ => None,
    }
}

/// The poll set of a set, made for its first rsocket.
fn poll_set(set: c_int) -> Option<c_int> {
    if let Some(Face::PollSet { poll_set, .. }) = table::get(set) {
        return Some(poll_set);
    }
    // SAFETY: numbers only.
    let poll_set = unsafe { rsockets::repoll_create(libc::EPOLL_CLOEXEC) };
    if poll_set < 0 {
        return None;
    }
    let mut event = epoll_event {
        events: EPOLLIN.cast_unsigned(),
        u64: kernels(),
    };
    // SAFETY: an event.
    if unsafe { rsockets::repoll_ctl(poll_set, EPOLL_CTL_ADD, set, &raw mut event) } != 0 {
        let error = errno::get();
        // SAFETY: a set that nothing else uses.
        unsafe { rsockets::rclose(poll_set) };
        errno::set(error);
        return None;
    }
    let active = false;
    table::replace(set, Some(Face::PollSet { poll_set, active }));
    Some(poll_set)
}

/// A set is closed.
pub(crate) fn close(set: c_int, poll_set: Option<c_int>) {
    sets().remove(&set);
    if let Some(poll_set) = poll_set {
        // SAFETY: a set of this module, which the program closes.
        unsafe { rsockets::rclose(poll_set) };
    }
}

/// Takes the events of the kernel's set that are there now.
///
/// # Safety
/// There is room for `most` events.
pub(crate) unsafe fn fetch(set: c_int, events: *mut epoll_event, most: c_int) -> c_int {
    if most <= 0 {
        return 0;
    }
    // SAFETY: the caller's room, and no mask.
    let count = unsafe { next::epoll_pwait(set, events, most, 0, ptr::null()) };
    // SAFETY: the events of that call.
    unsafe { without_turn(set, events, count) }
}
