//! `bind` and `listen` of TCP sockets whose port listeners of rdma_cm have.

use crate::next::Next;
use libc::{sockaddr, sockaddr_in, sockaddr_storage, socklen_t};
use std::ffi::{c_int, c_void};
use std::ptr;

type Bind = unsafe extern "C" fn(c_int, *const sockaddr, socklen_t) -> c_int;
type Listen = unsafe extern "C" fn(c_int, c_int) -> c_int;
type YieldPort = unsafe extern "C" fn(c_int, u16) -> c_int;

#[unsafe(no_mangle)]
unsafe extern "C" fn bind(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int {
    static NEXT: Next = Next::new(c"bind");
    // SAFETY: the function of this name in the C library has this type, and every C library has it.
    let next: Bind = unsafe { std::mem::transmute::<*mut c_void, Bind>(NEXT.address()) };
    // SAFETY: the caller's arguments, which fulfil this very function's contract.
    let result = unsafe { next(fd, address, length) };
    // SAFETY: the kernel has read the address.
    if result == 0 || !is_taken() || !yielded(fd, unsafe { port(address, length) }) {
        return result;
    }
    // SAFETY: as before.
    unsafe { next(fd, address, length) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn listen(fd: c_int, backlog: c_int) -> c_int {
    static NEXT: Next = Next::new(c"listen");
    // SAFETY: the function of this name in the C library has this type, and every C library has it.
    let next: Listen = unsafe { std::mem::transmute::<*mut c_void, Listen>(NEXT.address()) };
    // SAFETY: the caller's arguments.
    let result = unsafe { next(fd, backlog) };
    if result == 0 || !is_taken() || !yielded(fd, bound_port(fd)) {
        return result;
    }
    // SAFETY: as before.
    unsafe { next(fd, backlog) }
}

fn errno() -> *mut c_int {
    // SAFETY: the address of the calling thread's own errno.
    unsafe { libc::__errno_location() }
}

/// Whether the call that just failed found its port taken.
fn is_taken() -> bool {
    // SAFETY: valid for reading while the thread lives.
    unsafe { errno().read() == libc::EADDRINUSE }
}

/// Makes listeners give a port up for a TCP socket. Returns whether any did; otherwise errno is still that of the call.
fn yielded(fd: c_int, port: u16) -> bool {
    if port == 0 || !is_stream(fd) {
        // SAFETY: valid for writing while the thread lives.
        unsafe { errno().write(libc::EADDRINUSE) };
        return false;
    }
    // SAFETY: a C string. The library is in the process only where `dgiwarp-run` has preloaded it.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"dgiwarpdv_yield_port".as_ptr()) };
    let yields = !found.is_null() && {
        // SAFETY: the function of this name has this type.
        let yield_port: YieldPort = unsafe { std::mem::transmute::<*mut c_void, YieldPort>(found) };
        // SAFETY: sound whenever called.
        unsafe { yield_port(fd, port) > 0 }
    };
    // SAFETY: valid for writing while the thread lives.
    unsafe { errno().write(libc::EADDRINUSE) };
    yields
}

fn is_stream(fd: c_int) -> bool {
    let mut kind: c_int = 0;
    let mut length = socklen_t::try_from(size_of::<c_int>()).unwrap_or(0);
    // SAFETY: room for an int, and its length.
    let result = unsafe {
        libc::getsockopt(
            fd,
            libc::SOL_SOCKET,
            libc::SO_TYPE,
            (&raw mut kind).cast(),
            &raw mut length,
        )
    };
    result == 0 && kind == libc::SOCK_STREAM
}

/// Port of an IP address, in the host's order; 0 for other families. The structures of IPv4 and IPv6 begin alike.
///
/// # Safety
/// `address` points to `length` octets.
unsafe fn port(address: *const sockaddr, length: socklen_t) -> u16 {
    if usize::try_from(length).is_ok_and(|length| length < size_of::<sockaddr_in>()) {
        return 0;
    }
    // SAFETY: as long as an IPv4 address, of any alignment.
    let start = unsafe { address.cast::<sockaddr_in>().read_unaligned() };
    match c_int::from(start.sin_family) {
        libc::AF_INET | libc::AF_INET6 => u16::from_be(start.sin_port),
        _ => 0,
    }
}

/// Port that a socket is bound to.
fn bound_port(fd: c_int) -> u16 {
    // SAFETY: plain data for which zero is a valid value.
    let mut storage: sockaddr_storage = unsafe { std::mem::zeroed() };
    let mut length = socklen_t::try_from(size_of::<sockaddr_storage>()).unwrap_or(0);
    let address = ptr::from_mut(&mut storage).cast::<sockaddr>();
    // SAFETY: room for any address, and its length.
    if unsafe { libc::getsockname(fd, address, &raw mut length) } != 0 {
        return 0;
    }
    // SAFETY: the kernel has written that many octets, at most the room.
    unsafe { port(address, length.min(128)) }
}
