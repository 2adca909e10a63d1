//! A socket in a poll set.

use crate::rsocket::edges::{Edges, Interest};
use crate::rsocket::table::Socket;
use libc::{EPOLLET, EPOLLIN, EPOLLONESHOT, EPOLLOUT, EPOLLPRI, EPOLLRDHUP, c_short, epoll_event};
use std::os::fd::RawFd;

/// A socket in a set.
pub(super) struct Member {
    pub(super) socket: Socket,
    /// Events to report, as those of poll(2), which have the numbers of epoll(7).
    events: c_short,
    /// Reported once for each change of a connection (`EPOLLET`).
    edge: bool,
    /// Changes until the last report of a member with `edge`.
    seen: Option<Edges>,
    /// Reported once, and then not before `EPOLL_CTL_MOD`.
    one_shot: bool,
    /// `false` after the report of a member with `one_shot`.
    pub(super) enabled: bool,
    /// The program's.
    data: u64,
}

/// Events of which a socket can report a change, of those that a program asked for.
fn asked(events: u32) -> c_short {
    let known = u32::try_from(EPOLLIN | EPOLLOUT | EPOLLPRI | EPOLLRDHUP).unwrap_or(0);
    c_short::try_from(events & known).unwrap_or(0)
}

impl Member {
    pub(super) fn new(socket: Socket, event: epoll_event) -> Self {
        let one_shot = u32::try_from(EPOLLONESHOT).unwrap_or(0);
        Self {
            socket,
            events: asked(event.events),
            edge: event.events & EPOLLET.cast_unsigned() != 0,
            seen: None,
            one_shot: event.events & one_shot != 0,
            enabled: true,
            data: event.u64,
        }
    }

    /// Events to wait for.
    pub(super) fn interest(&self) -> (Socket, Interest) {
        let interest = Interest {
            events: self.events,
            seen: self.seen,
        };
        (self.socket.clone(), interest)
    }

    /// Events that are asked for.
    pub(super) fn events(&self) -> c_short {
        self.events
    }

    /// Whether an event is reported again as long as it is there.
    pub(super) fn repeats(&self) -> bool {
        self.enabled && !self.edge
    }

    /// Receives what has arrived. Returns the event to report now, if there is one.
    pub(super) fn check(&mut self) -> Option<epoll_event> {
        if !self.enabled {
            return None;
        }
        self.socket.count_check();
        let (found, edges) = self.socket.check_edges(self.events);
        self.report(found, edges)
    }

    /// The event to report of those that were found at these changes, if there is one.
    pub(super) fn report(&mut self, found: c_short, edges: Option<Edges>) -> Option<epoll_event> {
        let interest = Interest {
            events: self.events,
            seen: self.seen,
        };
        if !self.enabled || !interest.is_met(found, edges) {
            return None;
        }
        self.seen = edges.filter(|_| self.edge);
        self.enabled = !self.one_shot;
        Some(epoll_event {
            events: u32::try_from(found).unwrap_or(0),
            u64: self.data,
        })
    }

    /// Whether a descriptor is the socket's.
    pub(super) fn is_at(&self, fd: RawFd) -> bool {
        Socket::find(fd).is_some_and(|it| it.is(&self.socket))
    }
}
