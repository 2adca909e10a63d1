//! Functions of the C library that stand behind ours.

use crate::system::errno;
use libc::{
    c_int, c_long, c_uint, c_ulong, c_void, epoll_event, fd_set, iovec, mmsghdr, msghdr, nfds_t,
    off_t, pollfd, sigset_t, size_t, sockaddr, socklen_t, ssize_t, timespec, timeval,
};
use std::ffi::CStr;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A function of the C library behind ours.
pub(crate) struct Next {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Next {
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Self {
            name,
            found: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// Its address; NULL if this C library has no such function.
    pub(crate) fn address(&self) -> *mut c_void {
        let found = self.found.load(Ordering::Relaxed);
        if !found.is_null() {
            return found;
        }
        // SAFETY: `name` is a C string. RTLD_NEXT searches behind this library.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        // Concurrent callers store the same value.
        self.found.store(found, Ordering::Relaxed);
        found
    }
}

/// Defines functions that call those of their names behind ours.
macro_rules! next {
    ($( $name:ident($($argument:ident: $type:ty),*) -> $result:ty; )*) => { $(
        /// The C library's function of this name.
        ///
        /// # Safety
        /// The contract of that function.
        pub(crate) unsafe fn $name($($argument: $type),*) -> $result {
            // Threads may be cancelled in it.
            type Function = unsafe extern "C-unwind" fn($($type),*) -> $result;
            static NEXT: Next = Next::new(
                // SAFETY: the literal ends in its only zero.
                unsafe { CStr::from_bytes_with_nul_unchecked(concat!(stringify!($name), "\0").as_bytes()) }
            );
            let next = NEXT.address();
            if next.is_null() {
                errno::set(libc::ENOSYS);
                return -1;
            }
            // SAFETY: the function of this name has this type; those with variable arguments take up to one more number or pointer in a register.
            let next = unsafe { std::mem::transmute::<*mut c_void, Function>(next) };
            // SAFETY: the caller's contract.
            unsafe { next($($argument),*) }
        }
    )* };
}

next! {
    socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    bind(fd: c_int, to: *const sockaddr, length: socklen_t) -> c_int;
    listen(fd: c_int, backlog: c_int) -> c_int;
    accept4(fd: c_int, from: *mut sockaddr, length: *mut socklen_t, flags: c_int) -> c_int;
    connect(fd: c_int, to: *const sockaddr, length: socklen_t) -> c_int;
    shutdown(fd: c_int, how: c_int) -> c_int;
    close(fd: c_int) -> c_int;
    close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int;
    dup(fd: c_int) -> c_int;
    dup2(fd: c_int, to: c_int) -> c_int;
    dup3(fd: c_int, to: c_int, flags: c_int) -> c_int;
    fcntl(fd: c_int, command: c_int, argument: c_long) -> c_int;
    fcntl64(fd: c_int, command: c_int, argument: c_long) -> c_int;
    ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int;
    getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, length: *mut socklen_t) -> c_int;
    setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, length: socklen_t) -> c_int;
    getsockname(fd: c_int, to: *mut sockaddr, length: *mut socklen_t) -> c_int;
    getpeername(fd: c_int, to: *mut sockaddr, length: *mut socklen_t) -> c_int;
    read(fd: c_int, to: *mut c_void, size: size_t) -> ssize_t;
    readv(fd: c_int, to: *const iovec, count: c_int) -> ssize_t;
    recv(fd: c_int, to: *mut c_void, size: size_t, flags: c_int) -> ssize_t;
    recvfrom(fd: c_int, to: *mut c_void, size: size_t, flags: c_int, from: *mut sockaddr, length: *mut socklen_t) -> ssize_t;
    recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t;
    recvmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut timespec) -> c_int;
    write(fd: c_int, from: *const c_void, size: size_t) -> ssize_t;
    writev(fd: c_int, from: *const iovec, count: c_int) -> ssize_t;
    send(fd: c_int, from: *const c_void, size: size_t, flags: c_int) -> ssize_t;
    sendto(fd: c_int, from: *const c_void, size: size_t, flags: c_int, to: *const sockaddr, length: socklen_t) -> ssize_t;
    sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t;
    sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int;
    sendfile(to: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t;
    splice(from: c_int, from_offset: *mut off_t, to: c_int, to_offset: *mut off_t, size: size_t, flags: c_uint) -> ssize_t;
    poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int;
    ppoll(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    select(count: c_int, reads: *mut fd_set, writes: *mut fd_set, exceptions: *mut fd_set, timeout: *mut timeval) -> c_int;
    pselect(count: c_int, reads: *mut fd_set, writes: *mut fd_set, exceptions: *mut fd_set, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    epoll_create(size: c_int) -> c_int;
    epoll_create1(flags: c_int) -> c_int;
    epoll_ctl(set: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int;
    epoll_pwait(set: c_int, events: *mut epoll_event, most: c_int, timeout: c_int, mask: *const sigset_t) -> c_int;
    epoll_pwait2(set: c_int, events: *mut epoll_event, most: c_int, timeout: *const timespec, mask: *const sigset_t) -> c_int;
}
