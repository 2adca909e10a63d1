//! Calls on UDP sockets with companions: datagrams by the queue pair first, and then the kernel's.

use crate::connect::accept_timeout;
use crate::datagrams;
use crate::records::Connection;
use crate::system::address::{self, length_of};
use crate::system::{errno, kernel, next, report, rsockets};
use libc::{
    MSG_CONFIRM, MSG_DONTROUTE, MSG_DONTWAIT, MSG_EOR, MSG_ERRQUEUE, MSG_NOSIGNAL, MSG_OOB,
    MSG_TRUNC, c_int, c_void, iovec, msghdr, size_t, sockaddr, sockaddr_storage, socklen_t,
    ssize_t,
};
use std::ptr;

/// Flags of sending with which a datagram may go by the queue pair.
const SEND_FLAGS: c_int = MSG_CONFIRM | MSG_DONTROUTE | MSG_DONTWAIT | MSG_EOR | MSG_NOSIGNAL;

/// A header of one vector or more.
fn header(vectors: *mut iovec, count: size_t, name: *mut c_void, length: socklen_t) -> msghdr {
    // SAFETY: plain data for which zero is a valid value.
    let mut message: msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = vectors;
    message.msg_iovlen = count;
    message.msg_name = name;
    message.msg_namelen = length;
    message
}

fn vector(base: *const c_void, size: size_t) -> iovec {
    iovec {
        iov_base: base.cast_mut(),
        iov_len: size,
    }
}

/// Notes that a datagram has gone by the queue pair.
fn by_ud(fd: c_int, companion: Connection) {
    if companion.slot.goes_by_ud() {
        report::datagrams_upgraded(kernel::local(fd));
    }
}

/// # Safety
/// The contract of sendmsg(2).
pub(super) unsafe fn send(
    fd: c_int,
    companion: Connection,
    message: *const msghdr,
    flags: c_int,
) -> ssize_t {
    // SAFETY: NULL, or the caller's header.
    let simple =
        unsafe { message.as_ref() }.filter(|it| it.msg_controllen == 0 && flags & !SEND_FLAGS == 0);
    if let Some(header) = simple {
        // SAFETY: the caller's header.
        let result = unsafe { rsockets::rsendmsg(companion.rsocket, message, flags) };
        if result >= 0 {
            by_ud(fd, companion);
            return companion.sent(result);
        }
        if errno::get() == libc::EINPROGRESS {
            let (to, length) = (header.msg_name.cast(), header.msg_namelen);
            // SAFETY: the caller's address.
            unsafe { datagrams::ask(fd, companion, to, length) };
        }
    }
    // SAFETY: the caller's arguments.
    companion.sent(unsafe { next::sendmsg(fd, message, flags) })
}

/// # Safety
/// The contract of send(2).
pub(super) unsafe fn send_one(
    fd: c_int,
    companion: Connection,
    from: *const c_void,
    size: size_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: the caller's arguments, and no address.
    unsafe { send_to(fd, companion, (from, size), flags, (ptr::null(), 0)) }
}

/// # Safety
/// The contract of writev(2).
pub(super) unsafe fn send_many(
    fd: c_int,
    companion: Connection,
    from: *const iovec,
    count: c_int,
) -> ssize_t {
    let Ok(count) = size_t::try_from(count) else {
        return errno::fail(libc::EINVAL);
    };
    let message = header(from.cast_mut(), count, ptr::null_mut(), 0);
    // SAFETY: the caller's vectors.
    unsafe { send(fd, companion, &raw const message, 0) }
}

/// # Safety
/// The contract of sendto(2).
pub(super) unsafe fn send_to(
    fd: c_int,
    companion: Connection,
    (from, size): (*const c_void, size_t),
    flags: c_int,
    (to, length): (*const sockaddr, socklen_t),
) -> ssize_t {
    let mut vector = vector(from, size);
    let message = header(&raw mut vector, 1, to.cast_mut().cast(), length);
    // SAFETY: the caller's buffer and address.
    unsafe { send(fd, companion, &raw const message, flags) }
}

/// Takes a datagram of the companion's; `None` where there is none.
///
/// # Safety
/// The contract of recvmsg(2), and the header is not NULL.
unsafe fn take(companion: Connection, message: *mut msghdr, flags: c_int) -> Option<ssize_t> {
    // SAFETY: the caller's header.
    let message = unsafe { &mut *message };
    // SAFETY: plain data for which zero is a valid value.
    let mut source: sockaddr_storage = unsafe { std::mem::zeroed() };
    let name = (&raw mut source).cast();
    let length = length_of::<sockaddr_storage>();
    let mut theirs = header(message.msg_iov, message.msg_iovlen, name, length);
    // SAFETY: the caller's vectors, and room for any address.
    let result = unsafe { rsockets::rrecvmsg(companion.rsocket, &raw mut theirs, flags) };
    let Ok(octets) = size_t::try_from(result) else {
        return (errno::get() != libc::ENOTCONN).then_some(result);
    };
    let mut room: size_t = 0;
    for n in 0..message.msg_iovlen {
        // SAFETY: one of the caller's vectors.
        let vector = unsafe { message.msg_iov.add(n) };
        // SAFETY: as above.
        room = room.saturating_add(unsafe { (*vector).iov_len });
    }
    let named = (source, theirs.msg_namelen);
    let to = message.msg_name.cast();
    // SAFETY: the caller's room.
    unsafe { address::write(named, to, &raw mut message.msg_namelen) };
    message.msg_controllen = 0;
    message.msg_flags = if octets > room { MSG_TRUNC } else { 0 };
    if flags & MSG_TRUNC != 0 {
        return Some(result);
    }
    ssize_t::try_from(octets.min(room)).ok()
}

/// Waits for a datagram, as long as the socket's option says.
fn wait(fd: c_int, companion: Connection) -> bool {
    let mut fds = [kernel::readable(fd), kernel::readable(companion.rsocket)];
    // SAFETY: two descriptors.
    match unsafe { rsockets::rpoll(fds.as_mut_ptr(), 2, accept_timeout(fd)) } {
        0 => {
            errno::set(libc::EAGAIN);
            false
        }
        count => count > 0,
    }
}

/// # Safety
/// The contract of recvmsg(2).
pub(super) unsafe fn receive(
    fd: c_int,
    companion: Connection,
    message: *mut msghdr,
    flags: c_int,
) -> ssize_t {
    if message.is_null() || flags & (MSG_ERRQUEUE | MSG_OOB) != 0 {
        // SAFETY: the caller's arguments.
        return unsafe { next::recvmsg(fd, message, flags) };
    }
    loop {
        // SAFETY: the caller's header.
        if let Some(result) = unsafe { take(companion, message, flags) } {
            by_ud(fd, companion);
            return companion.received(result, flags);
        }
        // SAFETY: the caller's arguments.
        let result = unsafe { next::recvmsg(fd, message, flags | MSG_DONTWAIT) };
        if result >= 0 || errno::get() != libc::EAGAIN {
            return companion.received(result, flags);
        }
        if flags & MSG_DONTWAIT != 0 || kernel::is_nonblocking(fd) {
            return errno::fail(libc::EAGAIN);
        }
        if !wait(fd, companion) {
            return -1;
        }
    }
}

/// # Safety
/// The contract of recv(2).
pub(super) unsafe fn receive_one(
    fd: c_int,
    companion: Connection,
    to: *mut c_void,
    size: size_t,
    flags: c_int,
) -> ssize_t {
    let none = (ptr::null_mut(), ptr::null_mut());
    // SAFETY: the caller's buffer.
    unsafe { receive_from(fd, companion, (to, size), flags, none) }
}

/// # Safety
/// The contract of readv(2).
pub(super) unsafe fn receive_many(
    fd: c_int,
    companion: Connection,
    to: *const iovec,
    count: c_int,
) -> ssize_t {
    let Ok(count) = size_t::try_from(count) else {
        return errno::fail(libc::EINVAL);
    };
    let mut message = header(to.cast_mut(), count, ptr::null_mut(), 0);
    // SAFETY: the caller's vectors.
    unsafe { receive(fd, companion, &raw mut message, 0) }
}

/// # Safety
/// The contract of recvfrom(2).
pub(super) unsafe fn receive_from(
    fd: c_int,
    companion: Connection,
    (to, size): (*mut c_void, size_t),
    flags: c_int,
    (from, length): (*mut sockaddr, *mut socklen_t),
) -> ssize_t {
    let mut vector = vector(to, size);
    // SAFETY: NULL, or the caller's length.
    let room = unsafe { length.as_ref() }
        .copied()
        .filter(|_| !from.is_null());
    let named = room.unwrap_or(0);
    let name = if room.is_some() {
        from
    } else {
        ptr::null_mut()
    };
    let mut message = header(&raw mut vector, 1, name.cast(), named);
    // SAFETY: the caller's buffer and room.
    let result = unsafe { receive(fd, companion, &raw mut message, flags) };
    if result >= 0 && room.is_some() {
        // SAFETY: the caller's length.
        unsafe { length.write(message.msg_namelen) };
    }
    result
}
