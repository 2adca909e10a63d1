//! The functions of rsockets, from the `librdmacm.so.1` that `dgiwarp-run` preloads.

use crate::system::address::{self, length_of};
use libc::{
    c_int, c_long, c_void, epoll_event, iovec, msghdr, nfds_t, pollfd, size_t, sockaddr, socklen_t,
    ssize_t,
};
use std::ffi::CStr;
use std::net::SocketAddr;
use std::sync::OnceLock;

/// A loaded function.
#[derive(Clone, Copy)]
struct Address(*mut c_void);
// SAFETY: the address of a function, which never changes.
unsafe impl Send for Address {}
// SAFETY: as above.
unsafe impl Sync for Address {}

fn find(name: &CStr) -> Address {
    // SAFETY: a C string. `dgiwarp-run` preloads the library; after a change of the user it may not be found by name, and another one be found.
    Address(unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) })
}

macro_rules! rsockets {
    ($( $name:ident($($argument:ident: $type:ty),*) -> $result:ty; )*) => {
        /// Whether the library has every function.
        pub(crate) fn are_there() -> bool {
            static ALL: OnceLock<bool> = OnceLock::new();
            *ALL.get_or_init(|| {
                // rdma-core's library has no such function.
                let is_ours = !find(c"dgiwarpdv_yield_port").0.is_null();
                is_ours && [$( concat!(stringify!($name), "\0") ),*]
                    .into_iter()
                    .filter_map(|name| CStr::from_bytes_with_nul(name.as_bytes()).ok())
                    .all(|name| !find(name).0.is_null())
            })
        }
        $(
        /// The function of this name.
        ///
        /// # Safety
        /// The contract of that function, and [`are_there`].
        pub(crate) unsafe fn $name($($argument: $type),*) -> $result {
            // Threads may be cancelled in those that wait.
            type Function = unsafe extern "C-unwind" fn($($type),*) -> $result;
            static FOUND: OnceLock<Address> = OnceLock::new();
            let found = FOUND.get_or_init(|| find(
                // SAFETY: the literal ends in its only zero.
                unsafe { CStr::from_bytes_with_nul_unchecked(concat!(stringify!($name), "\0").as_bytes()) }
            ));
            // SAFETY: the function of this name has this type.
            let function = unsafe { std::mem::transmute::<*mut c_void, Function>(found.0) };
            // SAFETY: the caller's contract.
            unsafe { function($($argument),*) }
        }
    )* };
}

rsockets! {
    rsocket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    rbind(fd: c_int, to: *const sockaddr, length: socklen_t) -> c_int;
    rlisten(fd: c_int, backlog: c_int) -> c_int;
    raccept(fd: c_int, from: *mut sockaddr, length: *mut socklen_t) -> c_int;
    rconnect(fd: c_int, to: *const sockaddr, length: socklen_t) -> c_int;
    rshutdown(fd: c_int, how: c_int) -> c_int;
    rclose(fd: c_int) -> c_int;
    rrecv(fd: c_int, to: *mut c_void, size: size_t, flags: c_int) -> ssize_t;
    rreadv(fd: c_int, to: *const iovec, count: c_int) -> ssize_t;
    rrecvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t;
    rsend(fd: c_int, from: *const c_void, size: size_t, flags: c_int) -> ssize_t;
    rwritev(fd: c_int, from: *const iovec, count: c_int) -> ssize_t;
    rsendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t;
    rpoll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int;
    rgetsockname(fd: c_int, to: *mut sockaddr, length: *mut socklen_t) -> c_int;
    rgetpeername(fd: c_int, to: *mut sockaddr, length: *mut socklen_t) -> c_int;
    rgetsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, length: *mut socklen_t) -> c_int;
    rsetsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, length: socklen_t) -> c_int;
    rfcntl(fd: c_int, command: c_int, argument: c_long) -> c_int;
    repoll_create(flags: c_int) -> c_int;
    repoll_ctl(set: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int;
    repoll_wait(set: c_int, events: *mut epoll_event, most: c_int, timeout: c_int) -> c_int;
}

/// The address of an rsocket.
pub(crate) fn local(rsocket: c_int) -> Option<SocketAddr> {
    // SAFETY: the room of the caller.
    address::from(|to, length| unsafe { rgetsockname(rsocket, to, length) })
}

/// Level of the options of rsockets, and two that rdma-core does not have: whether octets have gone by shared memory, and ends and errors of TCP.
const SOL_RDMA: c_int = 0x10000;
const DGIWARP_LANE: c_int = 0x6477_0001;
const DGIWARP_TCP: c_int = 0x6477_0002;
/// Companions of UDP sockets: their kind, with the socket's descriptor for the protocol, and what is done with them.
const DGIWARP_COMPANION: c_int = 0x6477_0003;
const DGIWARP_OFFER: c_int = 0x6477_0004;
const DGIWARP_ASK: c_int = 0x6477_0005;
const DGIWARP_CONNECTED: c_int = 0x6477_0006;
const DGIWARP_RETIRE: c_int = 0x6477_0007;
const DGIWARP_BELL: c_int = 0x6477_0008;

/// Whether a connection goes by shared memory.
pub(crate) fn is_lane(rsocket: c_int) -> bool {
    let mut lane: c_int = 0;
    let mut length = length_of::<c_int>();
    let to = (&raw mut lane).cast();
    // SAFETY: room for a number, and its length.
    let result = unsafe { rgetsockopt(rsocket, SOL_RDMA, DGIWARP_LANE, to, &raw mut length) };
    result == 0 && lane != 0
}

/// Sets whether calls on a connection wait.
pub(crate) fn set_nonblocking(rsocket: c_int, nonblocking: bool) {
    let flags = if nonblocking { libc::O_NONBLOCK } else { 0 };
    // SAFETY: numbers only.
    unsafe { rfcntl(rsocket, libc::F_SETFL, flags.into()) };
}

/// Makes a connection end and fail as one of TCP does.
pub(crate) fn be_tcp(rsocket: c_int) {
    let on: c_int = 1;
    let value = (&raw const on).cast();
    // SAFETY: a number, and its length.
    unsafe { rsetsockopt(rsocket, SOL_RDMA, DGIWARP_TCP, value, length_of::<c_int>()) };
}

/// A companion of a UDP socket.
pub(crate) fn companion(fd: c_int) -> Option<c_int> {
    // SAFETY: numbers only.
    let rsocket = unsafe { rsocket(libc::AF_INET, DGIWARP_COMPANION, fd) };
    (rsocket >= 0).then_some(rsocket)
}

/// # Safety
/// `value` has `length` octets.
unsafe fn change(companion: c_int, name: c_int, value: *const c_void, length: socklen_t) -> bool {
    // SAFETY: the caller's value.
    unsafe { rsetsockopt(companion, SOL_RDMA, name, value, length) == 0 }
}

fn change_by(companion: c_int, name: c_int, number: c_int) -> bool {
    let value = (&raw const number).cast();
    // SAFETY: a number, and its length.
    unsafe { change(companion, name, value, length_of::<c_int>()) }
}

/// Marks a companion.
pub(crate) fn offer(companion: c_int) -> bool {
    change_by(companion, DGIWARP_OFFER, 0)
}

/// Sets the descriptor that ends all companions of the process when it becomes readable.
pub(crate) fn set_bell(companion: c_int, bell: c_int) {
    change_by(companion, DGIWARP_BELL, bell);
}

/// Looks for the companion of a destination; NULL is the peer of a connected socket.
///
/// # Safety
/// `to` is NULL or has `length` octets.
pub(crate) unsafe fn ask(companion: c_int, to: *const sockaddr, length: socklen_t) -> bool {
    if to.is_null() {
        return change_by(companion, DGIWARP_ASK, 0);
    }
    // SAFETY: the caller's address.
    unsafe { change(companion, DGIWARP_ASK, to.cast(), length) }
}

/// The socket of a companion was connected, or is no more.
pub(crate) fn connected(companion: c_int) {
    change_by(companion, DGIWARP_CONNECTED, 0);
}

/// The socket of a companion is the kernel's from now on.
pub(crate) fn retire(companion: c_int) {
    change_by(companion, DGIWARP_RETIRE, 0);
}

/// Takes the error that no call has reported (`SO_ERROR`); 0 is none.
pub(crate) fn take_error(rsocket: c_int) -> c_int {
    let mut error: c_int = 0;
    let mut length = length_of::<c_int>();
    let value = (&raw mut error).cast();
    // SAFETY: room for a number, and its length.
    unsafe {
        rgetsockopt(
            rsocket,
            libc::SOL_SOCKET,
            libc::SO_ERROR,
            value,
            &raw mut length,
        )
    };
    error
}

/// Polls one rsocket. Returns its events, none at the end of the time in milliseconds, or `None` with errno.
pub(crate) fn poll_one(rsocket: c_int, events: i16, timeout: c_int) -> Option<i16> {
    let mut fd = pollfd {
        fd: rsocket,
        events,
        revents: 0,
    };
    // SAFETY: one descriptor.
    let result = unsafe { rpoll(&raw mut fd, 1, timeout) };
    (result >= 0).then_some(fd.revents)
}
