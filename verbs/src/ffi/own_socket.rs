//! `socket(2)` of this library, which a library that was preloaded does not replace.
//!
//! Rdma-core's `librspreload.so` makes rsockets of the sockets that a process creates, and calls `rsocket(3)` for each: sockets of the device below would
//! be made of themselves. Within the shared library the name is this function's; outside of it the symbol is not visible.

use std::ffi::c_int;

extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    // SAFETY: socket(2), numbers only. The function that makes system calls sets errno.
    let fd = unsafe { libc::syscall(libc::SYS_socket, domain, kind, protocol) };
    c_int::try_from(fd).unwrap_or(-1)
}

/// The symbol, hidden.
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
        sym socket,
    )
}
