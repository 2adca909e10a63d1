//! The functions of the C library that take a socket.

mod copy;
mod data;
mod epoll;
mod messages;
mod options;
mod poll;
mod setup;

use crate::process;
use crate::table::{self, Face};
use libc::c_int;

/// Library that a call on data goes to.
enum Way {
    Kernel,
    Rsocket(c_int),
    /// It fails with this errno.
    Fails(c_int),
}

/// The way of a call on data.
#[inline]
fn way(fd: c_int) -> Way {
    match table::get(fd) {
        Some(Face::Connection { rsocket }) => Way::Rsocket(rsocket),
        Some(Face::Parents) => Way::Fails(process::refuse()),
        Some(Face::Socket | Face::Listener(_) | Face::PollSet(_)) | None => Way::Kernel,
    }
}
