//! Calls with message headers.

use crate::functions::data::{refused, sent};
use crate::functions::datagrams;
use crate::functions::poll::millis;
use crate::functions::{Way, way, way_in};
use crate::records::Connection;
use crate::system::{errno, next, rsockets};
use libc::{c_int, c_uint, mmsghdr, msghdr, ssize_t, timespec};
use std::ptr;
use std::time::{Duration, Instant};

/// A header without addresses and ancillary data, of which connections have none.
///
/// # Safety
/// A header of the program, or NULL.
unsafe fn plain(message: *const msghdr) -> Option<msghdr> {
    if message.is_null() {
        return None;
    }
    // SAFETY: not NULL, so a header.
    let mut plain = unsafe { message.read() };
    plain.msg_name = ptr::null_mut();
    plain.msg_namelen = 0;
    plain.msg_control = ptr::null_mut();
    plain.msg_controllen = 0;
    Some(plain)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    let connection = match way_in(fd) {
        Way::Kernel(slot) => {
            // SAFETY: the caller's arguments.
            let result = unsafe { next::recvmsg(fd, message, flags) };
            return slot.received(result, flags);
        }
        // SAFETY: the caller's arguments.
        Way::Datagram(it) => return unsafe { datagrams::receive(fd, it, message, flags) },
        Way::Fails(error) => return errno::fail(error),
        Way::Rsocket(connection) => connection,
    };
    if let Some(error) = refused(flags) {
        return errno::fail(error);
    }
    // SAFETY: the caller's header.
    let Some(mut copy) = (unsafe { plain(message) }) else {
        return errno::fail(libc::EFAULT);
    };
    // SAFETY: the caller's vectors.
    let result = unsafe { rsockets::rrecvmsg(connection.rsocket, &raw mut copy, flags) };
    // SAFETY: not NULL, as checked.
    if let (0.., Some(message)) = (result, unsafe { message.as_mut() }) {
        message.msg_namelen = 0;
        message.msg_controllen = 0;
        message.msg_flags = 0;
    }
    connection.received(result, flags)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    let connection = match way(fd) {
        // SAFETY: the caller's arguments.
        Way::Kernel(slot) => return slot.sent(unsafe { next::sendmsg(fd, message, flags) }),
        // SAFETY: the caller's arguments.
        Way::Datagram(it) => return unsafe { datagrams::send(fd, it, message, flags) },
        Way::Fails(error) => return errno::fail(error),
        Way::Rsocket(connection) => connection,
    };
    // SAFETY: the caller's header.
    let Some(copy) = (unsafe { plain(message) }) else {
        return errno::fail(libc::EFAULT);
    };
    // SAFETY: the caller's vectors.
    let result = unsafe { rsockets::rsendmsg(connection.rsocket, &raw const copy, flags) };
    sent(connection, result, flags)
}

/// Octets of the messages that a call of the kernel has handled.
///
/// # Safety
/// `messages` has `done` headers, unless that is negative.
unsafe fn total(messages: *const mmsghdr, done: c_int) -> ssize_t {
    let mut total: ssize_t = 0;
    for n in 0..usize::try_from(done).unwrap_or(0) {
        // SAFETY: one of the headers.
        let message = unsafe { messages.add(n) };
        // SAFETY: as above.
        let octets = unsafe { (*message).msg_len };
        total = total.saturating_add(ssize_t::try_from(octets).unwrap_or(0));
    }
    total
}

/// Handles messages one by one until one fails. Returns how many were handled.
///
/// # Safety
/// `messages` has `count` headers.
unsafe fn each(
    messages: *mut mmsghdr,
    count: c_uint,
    mut call: impl FnMut(*mut msghdr, usize) -> ssize_t,
) -> c_int {
    let mut done = 0;
    for n in 0..usize::try_from(count.min(1024)).unwrap_or(0) {
        // SAFETY: one of the headers.
        let message = unsafe { messages.add(n) };
        // SAFETY: as above.
        let header = unsafe { &raw mut (*message).msg_hdr };
        let Ok(octets) = c_uint::try_from(call(header, n)) else {
            return if done > 0 { done } else { -1 };
        };
        // SAFETY: as above.
        unsafe { (*message).msg_len = octets };
        done += 1;
    }
    done
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn recvmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    let way = way_in(fd);
    if let Way::Kernel(slot) = way {
        // SAFETY: the caller's arguments.
        let done = unsafe { next::recvmmsg(fd, messages, count, flags, timeout) };
        // SAFETY: as many headers as the call has handled.
        slot.received(unsafe { total(messages, done) }, flags);
        return done;
    }
    // An error comes before octets.
    if let Way::Rsocket(Connection { rsocket, .. }) = way
        && let error @ 1.. = rsockets::take_error(rsocket)
    {
        return errno::fail(error);
    }
    let one = flags & libc::MSG_WAITFORONE != 0;
    let flags = flags & !libc::MSG_WAITFORONE;
    let receive = |message, n| {
        let more = if one && n > 0 { libc::MSG_DONTWAIT } else { 0 };
        // SAFETY: one of the caller's headers.
        unsafe { recvmsg(fd, message, flags | more) }
    };
    if !matches!(way, Way::Datagram(_)) {
        // SAFETY: the caller's headers.
        return unsafe { each(messages, count, receive) };
    }
    // SAFETY: the caller's time.
    let Ok(time) = (unsafe { millis(timeout) }) else {
        return errno::fail(libc::EINVAL);
    };
    let deadline = u64::try_from(time).map(|it| now() + Duration::from_millis(it));
    let mut ended = false;
    let until = |message, n| {
        // As the kernel does, behind each datagram alone.
        if ended {
            return errno::fail(libc::EAGAIN);
        }
        let result = receive(message, n);
        ended = deadline.is_ok_and(|it| now() >= it);
        result
    };
    // SAFETY: the caller's headers.
    unsafe { each(messages, count, until) }
}

#[expect(clippy::disallowed_methods, reason = "the call has a deadline")]
fn now() -> Instant {
    Instant::now()
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sendmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
) -> c_int {
    if let Way::Kernel(slot) = way(fd) {
        // SAFETY: the caller's arguments.
        let done = unsafe { next::sendmmsg(fd, messages, count, flags) };
        // SAFETY: as many headers as the call has handled.
        slot.sent(unsafe { total(messages, done) });
        return done;
    }
    // SAFETY: one of the caller's headers.
    let send = |message: *mut msghdr, _| unsafe { sendmsg(fd, message, flags) };
    // SAFETY: the caller's headers.
    unsafe { each(messages, count, send) }
}
