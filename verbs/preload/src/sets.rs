//! Epoll sets with rsockets.
//!
//! A set of the program stays the kernel's, with all other members. The first rsocket among them gives it a poll set of rsockets, of which the kernel's set is
//! a member too: its events are fetched when it has any.

use crate::system::errno;
use crate::system::next;
use crate::system::rsockets;
use crate::table::{self, Face};
use libc::{EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLIN, c_int, epoll_event};
use std::collections::BTreeMap;
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Members of the program's epoll sets that are TCP sockets or listeners, by set and descriptor.
type Sets = BTreeMap<c_int, BTreeMap<c_int, Member>>;

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
    let members = sets.entry(set).or_default();
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
    sets().values().any(|members| members.contains_key(&fd))
}

fn members_of(fd: c_int) -> Vec<(c_int, Member)> {
    let sets = sets();
    let all = sets.iter();
    all.filter_map(|(set, members)| Some((*set, *members.get(&fd)?)))
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
        if let Some(poll_set) = poll_set(set) {
            let mut event = epoll_event { events, u64: data };
            // SAFETY: an event.
            unsafe {
                rsockets::repoll_ctl(poll_set, EPOLL_CTL_ADD, rsocket, &raw mut event);
            }
        }
    }
    forget(fd);
}

/// The descriptor is closed, or is of no interest any more.
pub(crate) fn forget(fd: c_int) {
    let mut bells = Vec::new();
    for (set, members) in sets().iter_mut() {
        if let Some(Member {
            bell: Some(bell), ..
        }) = members.remove(&fd)
        {
            bells.push((*set, bell));
        }
    }
    for (set, bell) in bells {
        control(set, EPOLL_CTL_DEL, bell, 0, 0);
    }
}

/// The poll set of a set, made for its first rsocket.
pub(crate) fn poll_set(set: c_int) -> Option<c_int> {
    if let Some(Face::PollSet(poll_set)) = table::get(set) {
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
    table::replace(set, Some(Face::PollSet(poll_set)));
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
    unsafe { next::epoll_pwait(set, events, most, 0, ptr::null()) }
}
