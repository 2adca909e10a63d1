//! Calls that copy from one descriptor to another within the kernel, done by copying through memory.

use crate::functions::data::sent;
use crate::functions::{Way, way};
use crate::records::{self, Connection};
use crate::system::{errno, kernel, next, rsockets};
use crate::table::{self, Face};
use dgiwarp_memory::socket::NoCancellation;
use libc::{MSG_DONTWAIT, POLLIN, POLLOUT, c_int, c_uint, c_void, off_t, size_t, ssize_t};
use std::ptr;

/// Octets that are copied at a time.
const CHUNK: usize = 64 << 10;

fn is_connection(fd: c_int) -> bool {
    matches!(
        table::get(fd),
        Some(Face::Connection { .. } | Face::Parents)
    )
}

/// Copies from a file at its position or an offset. Octets that could not be sent are not taken from it.
///
/// # Safety
/// `offset` is NULL or a position.
unsafe fn copy_file(to: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
    let _guard = NoCancellation::begin();
    let connection = match way(to) {
        Way::Rsocket(connection) => connection,
        Way::Fails(error) => return errno::fail(error),
        Way::Kernel(_) | Way::Datagram(_) => return errno::fail(libc::EINVAL),
    };
    let mut at = if offset.is_null() {
        // SAFETY: numbers only.
        unsafe { libc::lseek(from, 0, libc::SEEK_CUR) }
    } else {
        // SAFETY: the program's position.
        unsafe { offset.read() }
    };
    if at < 0 {
        return errno::fail(libc::EINVAL);
    }
    let mut room = vec![0_u8; CHUNK.min(count)];
    let mut done = 0;
    let mut failed = false;
    while done < count {
        let some = room.len().min(count - done);
        // SAFETY: room for as many octets.
        let read = unsafe { libc::pread(from, room.as_mut_ptr().cast(), some, at) };
        let Some(read) = usize::try_from(read).ok().filter(|it| *it > 0) else {
            failed = read < 0;
            break;
        };
        // SAFETY: as many octets as were read.
        let result = unsafe { rsockets::rsend(connection.rsocket, room.as_ptr().cast(), read, 0) };
        let Ok(moved) = usize::try_from(sent(connection, result, 0)) else {
            failed = true;
            break;
        };
        done += moved;
        at += off_t::try_from(moved).unwrap_or(0);
        if moved < read {
            break;
        }
    }
    let error = errno::get();
    if offset.is_null() {
        // SAFETY: numbers only.
        unsafe { libc::lseek(from, at, libc::SEEK_SET) };
    } else {
        // SAFETY: the program's position.
        unsafe { offset.write(at) };
    }
    if failed && done == 0 {
        return errno::fail(error);
    }
    ssize_t::try_from(done).unwrap_or(ssize_t::MAX)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sendfile(
    to: c_int,
    from: c_int,
    offset: *mut off_t,
    count: size_t,
) -> ssize_t {
    if is_connection(from) {
        return errno::fail(libc::EINVAL);
    }
    if is_connection(to) {
        // SAFETY: the caller's arguments.
        return unsafe { copy_file(to, from, offset, count) };
    }
    // SAFETY: the caller's arguments.
    let result = unsafe { next::sendfile(to, from, offset, count) };
    records::of_plain(to).sent(result)
}

/// Offsets have 64 bits in either function.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sendfile64(
    to: c_int,
    from: c_int,
    offset: *mut off_t,
    count: size_t,
) -> ssize_t {
    // SAFETY: the caller's arguments.
    unsafe { sendfile(to, from, offset, count) }
}

/// Moves octets of a pipe to a connection. All octets that the pipe gave are sent. A cancellation point where it waits for the pipe or for the first room.
fn from_pipe(pipe: c_int, connection: Connection, size: usize, waits: bool) -> ssize_t {
    let rsocket = connection.rsocket;
    match rsockets::poll_one(rsocket, POLLOUT, if waits { -1 } else { 0 }) {
        Some(0) => return errno::fail(libc::EAGAIN),
        Some(_) => {}
        None => return -1,
    }
    if waits && !kernel::is_nonblocking(pipe) {
        kernel::poll(&mut [kernel::readable(pipe)], -1);
    }
    let _guard = NoCancellation::begin();
    if !waits && kernel::poll(&mut [kernel::readable(pipe)], 0) <= 0 {
        return errno::fail(libc::EAGAIN);
    }
    // A connection that takes no more leaves the octets in the pipe.
    // SAFETY: no octets.
    let result = unsafe { rsockets::rsend(rsocket, ptr::null(), 0, 0) };
    if sent(connection, result, 0) < 0 {
        return -1;
    }
    let mut room = vec![0_u8; CHUNK.min(size)];
    // SAFETY: room for as many octets.
    let read = unsafe { next::read(pipe, room.as_mut_ptr().cast(), room.len()) };
    let Ok(read) = usize::try_from(read) else {
        return -1;
    };
    let mut done = 0;
    while done < read {
        let rest: *const c_void = room[done..].as_ptr().cast();
        // SAFETY: as many octets as are left.
        let result = unsafe { rsockets::rsend(rsocket, rest, read - done, 0) };
        match usize::try_from(sent(connection, result, 0)) {
            Ok(moved) => done += moved,
            Err(_) if errno::get() == libc::EAGAIN => {
                rsockets::poll_one(rsocket, POLLOUT, -1);
            }
            Err(_) => return -1,
        }
    }
    ssize_t::try_from(done).unwrap_or(ssize_t::MAX)
}

/// Moves octets of a connection to a pipe. Octets that the pipe has no room for stay. A cancellation point where it waits for octets.
fn to_pipe(connection: Connection, pipe: c_int, size: usize, waits: bool) -> ssize_t {
    let rsocket = connection.rsocket;
    if waits && rsockets::poll_one(rsocket, POLLIN, -1).is_none() {
        return -1;
    }
    let _guard = NoCancellation::begin();
    let flags = if waits { 0 } else { MSG_DONTWAIT };
    let mut room = vec![0_u8; CHUNK.min(size)];
    let peek = libc::MSG_PEEK | flags;
    // SAFETY: room for as many octets.
    let found = unsafe { rsockets::rrecv(rsocket, room.as_mut_ptr().cast(), room.len(), peek) };
    let Some(found) = usize::try_from(found).ok().filter(|it| *it > 0) else {
        return found;
    };
    // SAFETY: as many octets as were received.
    let written = unsafe { next::write(pipe, room.as_ptr().cast(), found) };
    if let Ok(written) = usize::try_from(written) {
        // SAFETY: room for as many octets, which have come.
        let taken = unsafe { rsockets::rrecv(rsocket, room.as_mut_ptr().cast(), written, flags) };
        connection.received(taken, 0);
    }
    written
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn splice(
    from: c_int,
    from_offset: *mut off_t,
    to: c_int,
    to_offset: *mut off_t,
    size: size_t,
    flags: c_uint,
) -> ssize_t {
    let waits = flags & libc::SPLICE_F_NONBLOCK == 0;
    match (is_connection(from), is_connection(to)) {
        (false, false) => {
            // SAFETY: the caller's arguments.
            let result = unsafe { next::splice(from, from_offset, to, to_offset, size, flags) };
            records::of_plain(to).sent(result);
            records::of_plain(from).received(result, 0)
        }
        (true, true) => errno::fail(libc::EINVAL),
        _ if size == 0 => 0,
        (true, false) => match way(from) {
            Way::Rsocket(it) => to_pipe(it, to, size, waits && !kernel::is_nonblocking(from)),
            Way::Fails(error) => errno::fail(error),
            Way::Kernel(_) | Way::Datagram(_) => errno::fail(libc::EINVAL),
        },
        (false, true) => match way(to) {
            Way::Rsocket(it) => from_pipe(from, it, size, waits && !kernel::is_nonblocking(to)),
            Way::Fails(error) => errno::fail(error),
            Way::Kernel(_) | Way::Datagram(_) => errno::fail(libc::EINVAL),
        },
    }
}
