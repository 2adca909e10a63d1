//! The functions of the C library that take a socket.

mod copy;
mod data;
mod datagrams;
mod epoll;
mod messages;
mod options;
mod poll;
mod setup;

use crate::datagrams as udp;
use crate::process;
use crate::records::Connection;
use crate::table::{self, Face, Slot};
use libc::c_int;

/// Library that a call on data goes to.
enum Way {
    /// With the record that counts its octets, if it has one.
    Kernel(Slot),
    Rsocket(Connection),
    /// The kernel's socket, and the companion beside it.
    Datagram(Connection),
    /// It fails with this errno.
    Fails(c_int),
}

fn kernels() -> Way {
    Way::Kernel(Slot::default())
}

/// The way of a call that sends.
#[inline]
fn way(fd: c_int) -> Way {
    match table::get(fd) {
        Some(Face::Datagram { rsocket, slot }) => Way::Datagram(Connection { rsocket, slot }),
        Some(Face::Udp(udp)) => udp::sends(fd, udp).map_or_else(kernels, Way::Datagram),
        Some(Face::Connection { rsocket, slot }) => Way::Rsocket(Connection { rsocket, slot }),
        Some(Face::Parents) => Way::Fails(process::refuse()),
        Some(Face::Plain(slot)) => Way::Kernel(slot),
        Some(Face::Socket | Face::Listener(_) | Face::PollSet { .. } | Face::ParentsDatagram)
        | None => Way::Kernel(Slot::default()),
    }
}

/// The way of a call that receives: a UDP socket has a companion from now on.
#[inline]
fn way_in(fd: c_int) -> Way {
    match table::get(fd) {
        Some(Face::Udp(_) | Face::ParentsDatagram) => {
            udp::companion(fd).map_or_else(kernels, Way::Datagram)
        }
        _ => way(fd),
    }
}
