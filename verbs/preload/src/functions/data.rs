//! Calls that send and receive octets.

use crate::functions::datagrams;
use crate::functions::{Way, way, way_in};
use crate::records::Connection;
use crate::system::{errno, next, rsockets};
use libc::{c_int, c_void, iovec, size_t, sockaddr, socklen_t, ssize_t};

/// Result of a call that sent: `EPIPE` comes with `SIGPIPE`.
pub(super) fn sent(connection: Connection, result: ssize_t, flags: c_int) -> ssize_t {
    if result < 0 && errno::get() == libc::EPIPE && flags & libc::MSG_NOSIGNAL == 0 {
        // SAFETY: a signal to the calling thread.
        unsafe { libc::raise(libc::SIGPIPE) };
        errno::set(libc::EPIPE);
    }
    connection.sent(result)
}

/// Flags of receiving that rsockets do not have.
pub(super) fn refused(flags: c_int) -> Option<c_int> {
    if flags & libc::MSG_OOB != 0 {
        return Some(libc::EINVAL);
    }
    (flags & libc::MSG_ERRQUEUE != 0).then_some(libc::EAGAIN)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn read(fd: c_int, to: *mut c_void, size: size_t) -> ssize_t {
    match way_in(fd) {
        // SAFETY: the caller's arguments.
        Way::Kernel(slot) => slot.received(unsafe { next::read(fd, to, size) }, 0),
        Way::Rsocket(_) if size == 0 => 0,
        // SAFETY: the caller's arguments.
        Way::Rsocket(it) => it.received(unsafe { rsockets::rrecv(it.rsocket, to, size, 0) }, 0),
        Way::Datagram(_) if size == 0 => 0,
        // SAFETY: the caller's arguments.
        Way::Datagram(it) => unsafe { datagrams::receive_one(fd, it, to, size, 0) },
        Way::Fails(error) => errno::fail(error),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn readv(fd: c_int, to: *const iovec, count: c_int) -> ssize_t {
    match way_in(fd) {
        // SAFETY: the caller's arguments.
        Way::Kernel(slot) => slot.received(unsafe { next::readv(fd, to, count) }, 0),
        // SAFETY: the caller's arguments.
        Way::Rsocket(_) if unsafe { are_empty(to, count) } => 0,
        // SAFETY: the caller's arguments.
        Way::Rsocket(it) => it.received(unsafe { rsockets::rreadv(it.rsocket, to, count) }, 0),
        // SAFETY: the caller's arguments.
        Way::Datagram(_) if unsafe { are_empty(to, count) } => 0,
        // SAFETY: the caller's arguments.
        Way::Datagram(it) => unsafe { datagrams::receive_many(fd, it, to, count) },
        Way::Fails(error) => errno::fail(error),
    }
}

/// Whether vectors have no octets: readv(2) and writev(2) return at once.
///
/// # Safety
/// `vectors` is NULL or has `count` elements.
unsafe fn are_empty(vectors: *const iovec, count: c_int) -> bool {
    let Some(count) = usize::try_from(count).ok().filter(|_| !vectors.is_null()) else {
        return false;
    };
    // SAFETY: not NULL, so as many elements.
    let vectors = unsafe { std::slice::from_raw_parts(vectors, count) };
    vectors.iter().all(|it| it.iov_len == 0)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn recv(
    fd: c_int,
    to: *mut c_void,
    size: size_t,
    flags: c_int,
) -> ssize_t {
    match way_in(fd) {
        // SAFETY: the caller's arguments.
        Way::Kernel(slot) => slot.received(unsafe { next::recv(fd, to, size, flags) }, flags),
        Way::Rsocket(it) => match refused(flags) {
            Some(error) => errno::fail(error),
            // SAFETY: the caller's arguments.
            None => it.received(
                unsafe { rsockets::rrecv(it.rsocket, to, size, flags) },
                flags,
            ),
        },
        // SAFETY: the caller's arguments.
        Way::Datagram(it) => unsafe { datagrams::receive_one(fd, it, to, size, flags) },
        Way::Fails(error) => errno::fail(error),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn recvfrom(
    fd: c_int,
    to: *mut c_void,
    size: size_t,
    flags: c_int,
    from: *mut sockaddr,
    length: *mut socklen_t,
) -> ssize_t {
    match way_in(fd) {
        Way::Kernel(slot) => {
            // SAFETY: the caller's arguments.
            let result = unsafe { next::recvfrom(fd, to, size, flags, from, length) };
            return slot.received(result, flags);
        }
        Way::Datagram(it) => {
            // SAFETY: the caller's arguments.
            return unsafe { datagrams::receive_from(fd, it, (to, size), flags, (from, length)) };
        }
        Way::Rsocket(_) | Way::Fails(_) => {}
    }
    // SAFETY: the caller's arguments.
    let result = unsafe { recv(fd, to, size, flags) };
    if result >= 0 && !from.is_null() && !length.is_null() {
        // SAFETY: the caller's length. Connections of TCP give no address.
        unsafe { length.write(0) };
    }
    result
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn write(fd: c_int, from: *const c_void, size: size_t) -> ssize_t {
    match way(fd) {
        // SAFETY: the caller's arguments.
        Way::Kernel(slot) => slot.sent(unsafe { next::write(fd, from, size) }),
        Way::Rsocket(it) => {
            // SAFETY: the caller's arguments.
            let result = unsafe { rsockets::rsend(it.rsocket, from, size, 0) };
            sent(it, result, 0)
        }
        // SAFETY: the caller's arguments.
        Way::Datagram(it) => unsafe { datagrams::send_one(fd, it, from, size, 0) },
        Way::Fails(error) => errno::fail(error),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn writev(fd: c_int, from: *const iovec, count: c_int) -> ssize_t {
    match way(fd) {
        // SAFETY: the caller's arguments.
        Way::Kernel(slot) => slot.sent(unsafe { next::writev(fd, from, count) }),
        // SAFETY: the caller's arguments.
        Way::Rsocket(_) if unsafe { are_empty(from, count) } => 0,
        Way::Rsocket(it) => {
            // SAFETY: the caller's arguments.
            let result = unsafe { rsockets::rwritev(it.rsocket, from, count) };
            sent(it, result, 0)
        }
        // SAFETY: the caller's arguments.
        Way::Datagram(_) if unsafe { are_empty(from, count) } => unsafe {
            next::writev(fd, from, count)
        },
        // SAFETY: the caller's arguments.
        Way::Datagram(it) => unsafe { datagrams::send_many(fd, it, from, count) },
        Way::Fails(error) => errno::fail(error),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn send(
    fd: c_int,
    from: *const c_void,
    size: size_t,
    flags: c_int,
) -> ssize_t {
    match way(fd) {
        // SAFETY: the caller's arguments.
        Way::Kernel(slot) => slot.sent(unsafe { next::send(fd, from, size, flags) }),
        Way::Rsocket(_) if flags & libc::MSG_OOB != 0 => errno::fail(libc::EOPNOTSUPP),
        Way::Rsocket(it) => {
            // SAFETY: the caller's arguments.
            let result = unsafe { rsockets::rsend(it.rsocket, from, size, flags) };
            sent(it, result, flags)
        }
        // SAFETY: the caller's arguments.
        Way::Datagram(it) => unsafe { datagrams::send_one(fd, it, from, size, flags) },
        Way::Fails(error) => errno::fail(error),
    }
}

/// TCP ignores the address of a connection.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sendto(
    fd: c_int,
    from: *const c_void,
    size: size_t,
    flags: c_int,
    to: *const sockaddr,
    length: socklen_t,
) -> ssize_t {
    match way(fd) {
        Way::Kernel(slot) => {
            // SAFETY: the caller's arguments.
            return slot.sent(unsafe { next::sendto(fd, from, size, flags, to, length) });
        }
        Way::Datagram(it) => {
            // SAFETY: the caller's arguments.
            return unsafe { datagrams::send_to(fd, it, (from, size), flags, (to, length)) };
        }
        Way::Rsocket(_) | Way::Fails(_) => {}
    }
    // SAFETY: the caller's arguments.
    unsafe { send(fd, from, size, flags) }
}

/// Ends the process, as fortified functions do whose buffer is too small.
fn check(size: size_t, room: size_t) {
    if size > room {
        // SAFETY: ends the process.
        unsafe { libc::abort() };
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __read_chk(
    fd: c_int,
    to: *mut c_void,
    size: size_t,
    room: size_t,
) -> ssize_t {
    check(size, room);
    // SAFETY: the caller's arguments.
    unsafe { read(fd, to, size) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __recv_chk(
    fd: c_int,
    to: *mut c_void,
    size: size_t,
    room: size_t,
    flags: c_int,
) -> ssize_t {
    check(size, room);
    // SAFETY: the caller's arguments.
    unsafe { recv(fd, to, size, flags) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __recvfrom_chk(
    fd: c_int,
    to: *mut c_void,
    size: size_t,
    room: size_t,
    flags: c_int,
    from: *mut sockaddr,
    length: *mut socklen_t,
) -> ssize_t {
    check(size, room);
    // SAFETY: the caller's arguments.
    unsafe { recvfrom(fd, to, size, flags, from, length) }
}
