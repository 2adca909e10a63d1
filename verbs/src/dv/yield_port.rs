//! `dgiwarpdv_yield_port`: a TCP port for the program's own socket.

use crate::cm::tcp::state::yield_port;
use crate::ffi::entry;
use crate::rsocket;
use nix::sys::stat::fstat;
use std::ffi::c_int;
use std::os::fd::BorrowedFd;

pub(super) extern "C" fn dgiwarpdv_yield_port(fd: c_int, port: u16) -> c_int {
    entry(0, || {
        // `dgiwarp-run` calls this for every socket that finds its port taken, also under locks of this library.
        if port == 0 || is_ours(fd) {
            return 0;
        }
        c_int::try_from(yield_port(port) + rsocket::yield_port(port)).unwrap_or(c_int::MAX)
    })
}

/// Whether a descriptor is a socket of the device.
fn is_ours(fd: c_int) -> bool {
    if fd < 0 {
        return false;
    }
    // SAFETY: the program's descriptor, which is only asked for its status; a closed one has none.
    let open = unsafe { BorrowedFd::borrow_raw(fd) };
    let Ok(status) = fstat(open) else {
        return false;
    };
    dgiwarp::own_sockets().any(|own| own == (fd, status.st_ino))
}
