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
use crate::system::rsockets;
use crate::table::{self, Face};
use libc::{POLLIN, POLLOUT, c_int};

/// Library that a call on data goes to.
enum Way {
    Kernel,
    Rsocket(c_int),
    /// It fails with this errno.
    Fails(c_int),
}

/// Waits as long as `SO_RCVTIMEO` and `SO_SNDTIMEO` say.
fn wait(rsocket: c_int, flags: c_int, event: i16) -> Way {
    let timeout = timeout_of(rsocket, event == POLLIN);
    if timeout == 0 || flags & libc::MSG_DONTWAIT != 0 {
        return Way::Rsocket(rsocket);
    }
    match rsockets::poll_one(rsocket, event, timeout) {
        Some(0) => Way::Fails(libc::EAGAIN),
        Some(_) => Way::Rsocket(rsocket),
        None => Way::Fails(libc::EINTR),
    }
}

#[inline]
fn way(fd: c_int, flags: c_int, event: i16) -> Way {
    match table::get(fd) {
        Some(Face::Connection {
            rsocket,
            timed: false,
        }) => Way::Rsocket(rsocket),
        Some(Face::Connection { rsocket, .. }) => wait(rsocket, flags, event),
        Some(Face::Parents) => Way::Fails(process::refuse()),
        Some(Face::Socket | Face::Listener(_) | Face::PollSet { .. }) | None => Way::Kernel,
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
