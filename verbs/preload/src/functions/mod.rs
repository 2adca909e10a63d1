//! The functions of the C library that take a socket.

mod copy;
mod data;
mod epoll;
mod messages;
mod options;
mod poll;
mod setup;

use crate::connect::timeout_of;
use crate::process;
use crate::records::Connection;
use crate::system::rsockets;
use crate::table::{self, Face, Slot};
use libc::{POLLIN, POLLOUT, c_int};

/// Library that a call on data goes to.
enum Way {
    /// With the record that counts its octets, if it has one.
    Kernel(Slot),
    Rsocket(Connection),
    /// It fails with this errno.
    Fails(c_int),
}

/// Waits as long as `SO_RCVTIMEO` and `SO_SNDTIMEO` say.
fn wait(connection: Connection, flags: c_int, event: i16) -> Way {
    let rsocket = connection.rsocket;
    let timeout = timeout_of(rsocket, event == POLLIN);
    if timeout == 0 || flags & libc::MSG_DONTWAIT != 0 {
        return Way::Rsocket(connection);
    }
    match rsockets::poll_one(rsocket, event, timeout) {
        Some(0) => Way::Fails(libc::EAGAIN),
        Some(_) => Way::Rsocket(connection),
        None => Way::Fails(libc::EINTR),
    }
}

#[inline]
fn way(fd: c_int, flags: c_int, event: i16) -> Way {
    match table::get(fd) {
        Some(Face::Connection {
            rsocket,
            timed: false,
            slot,
        }) => Way::Rsocket(Connection { rsocket, slot }),
        Some(Face::Connection { rsocket, slot, .. }) => {
            wait(Connection { rsocket, slot }, flags, event)
        }
        Some(Face::Parents) => Way::Fails(process::refuse()),
        Some(Face::Plain(slot)) => Way::Kernel(slot),
        Some(Face::Socket | Face::Listener(_) | Face::PollSet { .. }) | None => {
            Way::Kernel(Slot::default())
        }
    }
}

/// The way of a call that receives.
#[inline]
fn receiving(fd: c_int, flags: c_int) -> Way {
    way(fd, flags, POLLIN)
}

/// The way of a call that sends.
#[inline]
fn sending(fd: c_int, flags: c_int) -> Way {
    way(fd, flags, POLLOUT)
}
