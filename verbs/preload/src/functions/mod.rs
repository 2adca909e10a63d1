//! The functions of the C library that take a socket.

mod copy;
mod data;
mod epoll;
mod messages;
mod options;
mod poll;
mod setup;

use crate::process;
use crate::records::Connection;
use crate::table::{self, Face, Slot};
use libc::c_int;

/// Library that a call on data goes to.
enum Way {
    /// With the record that counts its octets, if it has one.
    Kernel(Slot),
    Rsocket(Connection),
    /// It fails with this errno.
    Fails(c_int),
}

/// The way of a call on data.
#[inline]
fn way(fd: c_int) -> Way {
    match table::get(fd) {
        Some(Face::Connection { rsocket, slot }) => Way::Rsocket(Connection { rsocket, slot }),
        Some(Face::Parents) => Way::Fails(process::refuse()),
        Some(Face::Plain(slot)) => Way::Kernel(slot),
        Some(Face::Socket | Face::Listener(_) | Face::PollSet { .. }) | None => {
            Way::Kernel(Slot::default())
        }
    }
}
