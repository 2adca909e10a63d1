//! Calls on the kernel's sockets that other modules make.

use crate::system::address::{self, length_of};
use crate::system::next;
use libc::{c_int, c_long, pollfd, sockaddr_storage, socklen_t};
use std::net::SocketAddr;
use std::ptr;

/// An option that is a number.
pub(crate) fn option(fd: c_int, level: c_int, name: c_int) -> Option<c_int> {
    let mut value: c_int = 0;
    let mut length = length_of::<c_int>();
    // SAFETY: room for a number, and its length.
    let result =
        unsafe { next::getsockopt(fd, level, name, (&raw mut value).cast(), &raw mut length) };
    (result == 0).then_some(value)
}

/// Whether calls on a descriptor return instead of waiting.
pub(crate) fn is_nonblocking(fd: c_int) -> bool {
    // SAFETY: numbers only.
    let flags = unsafe { next::fcntl(fd, libc::F_GETFL, 0) };
    flags >= 0 && flags & libc::O_NONBLOCK != 0
}

/// The address that a socket is bound to.
pub(crate) fn local(fd: c_int) -> Option<SocketAddr> {
    // SAFETY: the room of the caller.
    address::from(|to, length| unsafe { next::getsockname(fd, to, length) })
}

/// The address that a socket is connected to.
pub(crate) fn peer(fd: c_int) -> Option<SocketAddr> {
    // SAFETY: the room of the caller.
    address::from(|to, length| unsafe { next::getpeername(fd, to, length) })
}

/// Inode number of an open file; 0 for none.
pub(crate) fn inode(fd: c_int) -> u64 {
    // SAFETY: plain data for which zero is a valid value.
    let mut status: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: room for the status.
    match unsafe { libc::fstat(fd, &raw mut status) } {
        0 => status.st_ino,
        _ => 0,
    }
}

/// Time of day in seconds since 1970.
pub(crate) fn seconds() -> u64 {
    // SAFETY: no room for a result.
    u64::try_from(unsafe { libc::time(ptr::null_mut()) }).unwrap_or(0)
}

/// As [`local`], as C has it.
pub(crate) fn raw_local(fd: c_int) -> Option<(sockaddr_storage, socklen_t)> {
    // SAFETY: the room of the caller.
    address::raw_from(|to, length| unsafe { next::getsockname(fd, to, length) })
}

/// poll(2) on descriptors of the kernel.
pub(crate) fn poll(fds: &mut [pollfd], timeout: c_int) -> c_int {
    let count = libc::nfds_t::try_from(fds.len()).unwrap_or(0);
    // SAFETY: as many as the slice has.
    unsafe { next::poll(fds.as_mut_ptr(), count, timeout) }
}

/// A descriptor to wait at until it is readable.
pub(crate) const fn readable(fd: c_int) -> pollfd {
    pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    }
}

/// Descriptors that an rsocket has at most.
const OF_RSOCKET: u64 = 16;

/// Whether there are descriptors for another rsocket, `lowest` being the first free one: a quarter of the limit is the program's. The limit is raised as far as the system allows.
pub(crate) fn has_descriptors(lowest: c_int) -> bool {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: room for a limit.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } != 0 {
        return false;
    }
    let used = u64::try_from(lowest).unwrap_or(0) + OF_RSOCKET;
    let fits = |limit: &libc::rlimit| used <= limit.rlim_cur / 4 * 3;
    if fits(&limit) {
        return true;
    }
    limit.rlim_cur = limit.rlim_cur.saturating_mul(4).min(limit.rlim_max);
    // SAFETY: a limit.
    fits(&limit) && unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) } == 0
}

/// The first free descriptor; negative where there is none.
pub(crate) fn lowest_free(any: c_int) -> c_int {
    // SAFETY: numbers only.
    let fd = unsafe { next::dup(any) };
    if fd >= 0 {
        close(fd);
    }
    fd
}

pub(crate) fn close(fd: c_int) {
    // SAFETY: a descriptor of the caller.
    unsafe { next::close(fd) };
}

/// A counter that is readable while it is not zero, and whose reads take one.
pub(crate) fn semaphore() -> Option<c_int> {
    let flags = libc::EFD_CLOEXEC | libc::EFD_NONBLOCK | libc::EFD_SEMAPHORE;
    // SAFETY: numbers only.
    let fd = unsafe { libc::eventfd(0, flags) };
    (fd >= 0).then(|| leave_low_numbers(fd))
}

/// Descriptors below are left to the program: `select(2)` takes no others, nor do the tables of some programs.
const LEAST: c_long = 1024;

/// Gives a descriptor that programs do not see a high number, where that is allowed.
pub(crate) fn leave_low_numbers(fd: c_int) -> c_int {
    // SAFETY: numbers only.
    let higher = unsafe { next::fcntl(fd, libc::F_DUPFD_CLOEXEC, LEAST) };
    if higher < 0 {
        return fd;
    }
    close(fd);
    higher
}

/// Adds one to a [`semaphore`].
pub(crate) fn release(fd: c_int) {
    let one = 1_u64.to_ne_bytes();
    // SAFETY: eight octets.
    unsafe { next::write(fd, one.as_ptr().cast(), one.len()) };
}

/// Takes one from a [`semaphore`], unless it is zero.
pub(crate) fn acquire(fd: c_int) -> bool {
    let mut count = [0_u8; 8];
    // SAFETY: room for eight octets.
    unsafe { next::read(fd, count.as_mut_ptr().cast(), count.len()) == 8 }
}

/// Runs a function while the calling thread handles no signals; threads that it starts inherit this.
pub(crate) fn without_signals<T>(body: impl FnOnce() -> T) -> T {
    // SAFETY: plain data for which zero is a valid value.
    let mut all: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    let mut before: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: room for a set.
    unsafe { libc::sigfillset(&raw mut all) };
    // SAFETY: two sets.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before) };
    let result = body();
    // SAFETY: the set of before.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, ptr::null_mut()) };
    result
}
