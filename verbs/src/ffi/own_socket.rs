//! `socket(2)` and `epoll(7)` of this library, which a library that was preloaded does not replace.
//!
//! Rdma-core's `librspreload.so` makes rsockets of the sockets that a process creates, and calls `rsocket(3)` for each: sockets of the device below would
//! be made of themselves. Since version 65 it makes poll sets of epoll sets too, and keeps those that the device closes. Within the shared library the
//! names are these functions'; outside of it the symbols are not visible.

use std::ffi::c_int;
use std::ptr;

extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    // SAFETY: socket(2), numbers only. The function that makes system calls sets errno.
    let fd = unsafe { libc::syscall(libc::SYS_socket, domain, kind, protocol) };
    c_int::try_from(fd).unwrap_or(-1)
}

extern "C" fn epoll_create1(flags: c_int) -> c_int {
    // SAFETY: as above.
    let fd = unsafe { libc::syscall(libc::SYS_epoll_create1, flags) };
    c_int::try_from(fd).unwrap_or(-1)
}

unsafe extern "C" fn epoll_ctl(
    set: c_int,
    operation: c_int,
    fd: c_int,
    event: *mut libc::epoll_event,
) -> c_int {
    // SAFETY: the caller's contract is that of epoll_ctl(2).
    let result = unsafe { libc::syscall(libc::SYS_epoll_ctl, set, operation, fd, event) };
    c_int::try_from(result).unwrap_or(-1)
}

unsafe extern "C" fn epoll_wait(
    set: c_int,
    events: *mut libc::epoll_event,
    most: c_int,
    timeout: c_int,
) -> c_int {
    let no_mask: *const libc::sigset_t = ptr::null();
    let call = libc::SYS_epoll_pwait;
    // SAFETY: the caller's contract is that of epoll_wait(2), which epoll_pwait(2) without a mask is.
    let count = unsafe { libc::syscall(call, set, events, most, timeout, no_mask, 0) };
    c_int::try_from(count).unwrap_or(-1)
}

/// The symbols, hidden.
#[allow(
    named_asm_labels,
    clippy::extra_unused_type_parameters,
    reason = "as in the other functions that hold symbols"
)]
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn bind<Library>() {
    std::arch::naked_asm!(
        ".p2align 4",
        ".globl socket",
        ".hidden socket",
        ".type socket,@function",
        "socket:",
        crate::export::jump!(),
        ".size socket, . - socket",
        ".p2align 4",
        ".globl epoll_create1",
        ".hidden epoll_create1",
        ".type epoll_create1,@function",
        "epoll_create1:",
        crate::export::jump!(),
        ".size epoll_create1, . - epoll_create1",
        ".p2align 4",
        ".globl epoll_ctl",
        ".hidden epoll_ctl",
        ".type epoll_ctl,@function",
        "epoll_ctl:",
        crate::export::jump!(),
        ".size epoll_ctl, . - epoll_ctl",
        ".p2align 4",
        ".globl epoll_wait",
        ".hidden epoll_wait",
        ".type epoll_wait,@function",
        "epoll_wait:",
        crate::export::jump!(),
        ".size epoll_wait, . - epoll_wait",
        sym socket,
        sym epoll_create1,
        sym epoll_ctl,
        sym epoll_wait,
    )
}
