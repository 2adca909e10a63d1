//! epoll(7).

use crate::datagrams;
use crate::functions::poll::{masked, millis};
use crate::listener;
use crate::sets;
use crate::system::{errno, kernel, next, rsockets};
use crate::table::{self, Face};
use libc::{EPOLL_CTL_DEL, c_int, epoll_event, sigset_t, timespec};
use std::ptr;
use std::time::{Duration, Instant};

/// A number that a closed set may have had has no members.
fn made(set: c_int) -> c_int {
    if set >= 0 {
        sets::close(set, None);
    }
    set
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn epoll_create(size: c_int) -> c_int {
    // SAFETY: the caller's arguments.
    made(unsafe { next::epoll_create(size) })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn epoll_create1(flags: c_int) -> c_int {
    // SAFETY: the caller's arguments.
    made(unsafe { next::epoll_create1(flags) })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn epoll_ctl(
    set: c_int,
    operation: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    let face = table::get(fd);
    let id = match face {
        // Also for a child of vfork(2), which may do nothing of the kind: programs change their sets too often for a look at the process's number.
        Some(Face::Connection { rsocket, .. }) => {
            // SAFETY: the caller's event.
            return unsafe { sets::control_rsocket(set, operation, rsocket, event) };
        }
        Some(Face::Udp(_) | Face::Datagram { .. } | Face::ParentsDatagram) => {
            let companion = datagrams::companion(fd);
            // SAFETY: the caller's arguments.
            let result = unsafe { next::epoll_ctl(set, operation, fd, event) };
            if result == 0
                && let Some(companion) = companion
            {
                // SAFETY: NULL, or the caller's event.
                let event = unsafe { event.as_ref() }.copied();
                sets::accompany(set, operation, companion.rsocket, event);
            }
            return result;
        }
        Some(Face::Listener(id)) => Some(id),
        Some(Face::Socket) => None,
        _ => {
            // SAFETY: the caller's arguments.
            return unsafe { next::epoll_ctl(set, operation, fd, event) };
        }
    };
    // SAFETY: the caller's arguments.
    let result = unsafe { next::epoll_ctl(set, operation, fd, event) };
    if result != 0 {
        return result;
    }
    let bell = id.and_then(|id| {
        if operation == EPOLL_CTL_DEL {
            listener::present(id)
        } else {
            listener::queue(fd, id)
        }
    });
    // SAFETY: NULL, or the caller's event.
    let event = unsafe { event.as_ref() }.copied();
    sets::record(set, operation, fd, event, bell.map(|it| it.bell));
    result
}

#[expect(clippy::disallowed_methods, reason = "waits have deadlines")]
fn now() -> Instant {
    Instant::now()
}

/// Times in a row that a wait finds nothing at a set that was ready, after which it pauses between them.
const VAIN: u32 = 1000;

/// Waits for events of a set with rsockets: those of the kernel's set stand for its one entry.
///
/// # Safety
/// There is room for `most` events.
unsafe fn wait(
    set: c_int,
    poll_set: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout: c_int,
) -> c_int {
    let deadline = u64::try_from(timeout).map(|it| now() + Duration::from_millis(it));
    let mut left = timeout;
    let mut vain = 0;
    loop {
        // SAFETY: the caller's room.
        let count = unsafe { rsockets::repoll_wait(poll_set, events, most, left) };
        let Ok(found) = usize::try_from(count) else {
            return count;
        };
        // SAFETY: the call has written as many events.
        let all = unsafe { std::slice::from_raw_parts_mut(events, found) };
        let Some(at) = all.iter().position(|it| it.u64 == sets::kernels()) else {
            return count;
        };
        all.swap(at, found - 1);
        // SAFETY: room behind the events of rsockets.
        let rest = unsafe { events.add(found - 1) };
        // SAFETY: as above.
        let fetched = unsafe { sets::fetch(set, rest, most - count + 1) };
        let total = count - 1 + fetched.max(0);
        if total > 0 || timeout == 0 {
            return total;
        }
        // A thread that was cancelled at the kernel's set, or left it by a jump, never turns to the poll set.
        vain += 1;
        if vain > VAIN {
            kernel::poll(&mut [], 1);
        }
        if let Ok(deadline) = deadline {
            let time = deadline.saturating_duration_since(now());
            if time.is_zero() {
                return 0;
            }
            left = c_int::try_from(time.as_micros().div_ceil(1000)).unwrap_or(c_int::MAX);
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn epoll_wait(
    set: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout: c_int,
) -> c_int {
    // SAFETY: the caller's arguments.
    unsafe { epoll_pwait(set, events, most, timeout, ptr::null()) }
}

/// Time that is left of a timeout; negative is for ever.
fn left(timeout: c_int, begun: Instant) -> c_int {
    let time = match u64::try_from(timeout) {
        Ok(time) if time > 0 => Duration::from_millis(time),
        _ => return timeout,
    };
    let deadline = begun + time;
    let left = deadline.saturating_duration_since(now());
    c_int::try_from(left.as_micros().div_ceil(1000)).unwrap_or(c_int::MAX)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn epoll_pwait(
    set: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout: c_int,
    mask: *const sigset_t,
) -> c_int {
    let begun = now();
    loop {
        let left = left(timeout, begun);
        if let Some(poll_set) = sets::active(set) {
            // SAFETY: the caller's room.
            let wait = || unsafe { wait(set, poll_set, events, most, left) };
            // SAFETY: the caller's mask.
            return unsafe { masked(mask, wait) };
        }
        // SAFETY: the caller's arguments.
        let wait = || unsafe { next::epoll_pwait(set, events, most, left, mask) };
        // SAFETY: the call writes as many events as it returns.
        if let Some(count) = unsafe { sets::wait_plain(set, events, wait) } {
            return count;
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn epoll_pwait2(
    set: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    if sets::active(set).is_none() {
        // SAFETY: the caller's arguments.
        let wait = || unsafe { next::epoll_pwait2(set, events, most, timeout, mask) };
        // SAFETY: the call writes as many events as it returns.
        if let Some(count) = unsafe { sets::wait_plain(set, events, wait) } {
            return count;
        }
    }
    // SAFETY: the caller's time.
    match unsafe { millis(timeout) } {
        // SAFETY: the caller's arguments.
        Ok(timeout) => unsafe { epoll_pwait(set, events, most, timeout, mask) },
        Err(error) => errno::fail(error),
    }
}
