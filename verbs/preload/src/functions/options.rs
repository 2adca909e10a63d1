//! Options, names and flags of sockets.

use crate::connect::take_timeouts;
use crate::datagrams;
use crate::functions::setup::duplicated;
use crate::process;
use crate::system::address::{self, length_of};
use crate::system::{errno, next, rsockets};
use crate::table::{self, Face};
use dgiwarp_memory::socket::NoCancellation;
use libc::{
    F_DUPFD, F_DUPFD_CLOEXEC, F_SETFL, IPPROTO_TCP, O_NONBLOCK, SO_ERROR, SO_KEEPALIVE,
    SO_RCVTIMEO, SO_SNDTIMEO, SOL_SOCKET, TCP_KEEPIDLE, c_int, c_long, c_ulong, c_void, sockaddr,
    sockaddr_storage, socklen_t,
};

/// Octets that `FIONREAD` counts at most.
const PEEK: usize = 256 << 10;

fn rsocket(fd: c_int) -> Option<c_int> {
    match table::get(fd)? {
        Face::Connection { rsocket, .. } => Some(rsocket),
        Face::Socket
        | Face::Listener(_)
        | Face::PollSet { .. }
        | Face::Parents
        | Face::Plain(_)
        | Face::Udp(_)
        | Face::Datagram { .. }
        | Face::ParentsDatagram => None,
    }
}

/// The kernel's socket keeps the options of the program; the rsocket has its own errors.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: *mut socklen_t,
) -> c_int {
    match rsocket(fd) {
        Some(rsocket) if level == SOL_SOCKET && name == SO_ERROR => {
            // SAFETY: the caller's arguments.
            unsafe { rsockets::rgetsockopt(rsocket, level, name, value, length) }
        }
        // SAFETY: the caller's arguments.
        _ => unsafe { next::getsockopt(fd, level, name, value, length) },
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: socklen_t,
) -> c_int {
    // SAFETY: the caller's arguments.
    let result = unsafe { next::setsockopt(fd, level, name, value, length) };
    if result == 0 && matches!(table::get(fd), Some(Face::Udp(_) | Face::Datagram { .. })) {
        // SAFETY: the caller's value, which the kernel has taken.
        datagrams::option_set(fd, level, name, unsafe { is_on(value, length) });
    }
    let Some(rsocket) = rsocket(fd).filter(|_| result == 0) else {
        return result;
    };
    match (level, name) {
        (SOL_SOCKET, SO_RCVTIMEO | SO_SNDTIMEO) => take_timeouts(fd, rsocket),
        (SOL_SOCKET, SO_KEEPALIVE) | (IPPROTO_TCP, TCP_KEEPIDLE) => {
            // SAFETY: the caller's value, which the kernel has taken.
            unsafe { rsockets::rsetsockopt(rsocket, level, name, value, length) };
        }
        _ => {}
    }
    result
}

/// Whether a value of an option is more than a number of zero.
///
/// # Safety
/// `value` is NULL or has `length` octets.
unsafe fn is_on(value: *const c_void, length: socklen_t) -> bool {
    if value.is_null() || length != length_of::<c_int>() {
        return length > 0;
    }
    // SAFETY: as many octets as a number has, of any alignment.
    unsafe { value.cast::<c_int>().read_unaligned() != 0 }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn getsockname(
    fd: c_int,
    to: *mut sockaddr,
    length: *mut socklen_t,
) -> c_int {
    match rsocket(fd) {
        // SAFETY: the caller's arguments.
        Some(rsocket) => unsafe { rsockets::rgetsockname(rsocket, to, length) },
        // SAFETY: the caller's arguments.
        None => unsafe { next::getsockname(fd, to, length) },
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn getpeername(
    fd: c_int,
    to: *mut sockaddr,
    length: *mut socklen_t,
) -> c_int {
    let Some(rsocket) = rsocket(fd) else {
        // SAFETY: the caller's arguments.
        return unsafe { next::getpeername(fd, to, length) };
    };
    let mut room = length_of::<sockaddr_storage>();
    // SAFETY: plain data for which zero is a valid value.
    let mut peer: sockaddr_storage = unsafe { std::mem::zeroed() };
    // SAFETY: room for any address.
    if unsafe { rsockets::rgetpeername(rsocket, (&raw mut peer).cast(), &raw mut room) } != 0 {
        return -1;
    }
    let named = table::shared().get(&rsocket).and_then(|it| it.named);
    // SAFETY: the caller's room.
    if unsafe { address::write(named.unwrap_or((peer, room)), to, length) } {
        0
    } else {
        errno::fail(libc::EFAULT)
    }
}

/// Takes over the effect of a successful fcntl(2).
fn controlled(fd: c_int, command: c_int, argument: c_long, result: c_int) -> c_int {
    if result < 0 {
        return result;
    }
    match command {
        F_DUPFD | F_DUPFD_CLOEXEC => duplicated(fd, result),
        F_SETFL => {
            if let Some(rsocket) = rsocket(fd) {
                let nonblocking = argument & c_long::from(O_NONBLOCK) != 0;
                rsockets::set_nonblocking(rsocket, nonblocking);
            }
        }
        _ => {}
    }
    result
}

/// The variable argument is passed as any other; where it is missing, the C library ignores the register.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fcntl(fd: c_int, command: c_int, argument: c_long) -> c_int {
    // SAFETY: the caller's arguments.
    let result = unsafe { next::fcntl(fd, command, argument) };
    controlled(fd, command, argument, result)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fcntl64(fd: c_int, command: c_int, argument: c_long) -> c_int {
    // SAFETY: the caller's arguments.
    let result = unsafe { next::fcntl64(fd, command, argument) };
    controlled(fd, command, argument, result)
}

/// Octets that can be read from a connection.
fn unread(rsocket: c_int) -> c_int {
    let _guard = NoCancellation::begin();
    let mut room = vec![0_u8; PEEK];
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    // SAFETY: room for as many octets.
    let count = unsafe { rsockets::rrecv(rsocket, room.as_mut_ptr().cast(), PEEK, flags) };
    c_int::try_from(count.max(0)).unwrap_or(0)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    let on = match table::get(fd) {
        Some(Face::Connection { rsocket, .. }) => rsocket,
        Some(Face::Parents) => return errno::fail(process::refuse()),
        Some(Face::Datagram { rsocket, .. })
            if request == libc::FIONREAD && !argument.is_null() =>
        {
            if let Some(octets) = datagrams::first(rsocket) {
                // SAFETY: the program's number.
                unsafe { argument.cast::<c_int>().write(octets) };
                return 0;
            }
            // SAFETY: the caller's arguments.
            return unsafe { next::ioctl(fd, request, argument) };
        }
        // SAFETY: the caller's arguments.
        _ => return unsafe { next::ioctl(fd, request, argument) },
    };
    if request == libc::FIONREAD && !argument.is_null() {
        // SAFETY: the program's number.
        unsafe { argument.cast::<c_int>().write(unread(on)) };
        return 0;
    }
    // SAFETY: the caller's arguments.
    let result = unsafe { next::ioctl(fd, request, argument) };
    if result == 0 && request == libc::FIONBIO {
        // SAFETY: the program's number, which the kernel has read.
        let nonblocking = unsafe { argument.cast::<c_int>().read() } != 0;
        rsockets::set_nonblocking(on, nonblocking);
    }
    result
}
