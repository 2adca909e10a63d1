//! Calls with message headers.

use crate::functions::data::{refused, sent};
use crate::functions::{Way, way};
use crate::system::{errno, next, rsockets};
use libc::{c_int, c_uint, mmsghdr, msghdr, ssize_t, timespec};
use std::ptr;

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
unsafe extern "C" fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    let rsocket = match way(fd) {
        // SAFETY: the caller's arguments.
        Way::Kernel => return unsafe { next::recvmsg(fd, message, flags) },
        Way::Fails(error) => return errno::fail(error),
        Way::Rsocket(rsocket) => rsocket,
    };
    if let Some(error) = refused(flags) {
        return errno::fail(error);
    }
    // SAFETY: the caller's header.
    let Some(mut copy) = (unsafe { plain(message) }) else {
        return errno::fail(libc::EFAULT);
    };
    // SAFETY: the caller's vectors.
    let result = unsafe { rsockets::rrecvmsg(rsocket, &raw mut copy, flags) };
    // SAFETY: not NULL, as checked.
    if let (0.., Some(message)) = (result, unsafe { message.as_mut() }) {
        message.msg_namelen = 0;
        message.msg_controllen = 0;
        message.msg_flags = 0;
    }
    result
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    let rsocket = match way(fd) {
        // SAFETY: the caller's arguments.
        Way::Kernel => return unsafe { next::sendmsg(fd, message, flags) },
        Way::Fails(error) => return errno::fail(error),
        Way::Rsocket(rsocket) => rsocket,
    };
    // SAFETY: the caller's header.
    let Some(copy) = (unsafe { plain(message) }) else {
        return errno::fail(libc::EFAULT);
    };
    // SAFETY: the caller's vectors.
    let result = unsafe { rsockets::rsendmsg(rsocket, &raw const copy, flags) };
    sent(result, flags)
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
unsafe extern "C" fn recvmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    let way = way(fd);
    if matches!(way, Way::Kernel) {
        // SAFETY: the caller's arguments.
        return unsafe { next::recvmmsg(fd, messages, count, flags, timeout) };
    }
    // An error comes before octets.
    if let Way::Rsocket(rsocket) = way
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
    // SAFETY: the caller's headers.
    unsafe { each(messages, count, receive) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sendmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
) -> c_int {
    if matches!(way(fd), Way::Kernel) {
        // SAFETY: the caller's arguments.
        return unsafe { next::sendmmsg(fd, messages, count, flags) };
    }
    // SAFETY: one of the caller's headers.
    let send = |message: *mut msghdr, _| unsafe { sendmsg(fd, message, flags) };
    // SAFETY: the caller's headers.
    unsafe { each(messages, count, send) }
}
