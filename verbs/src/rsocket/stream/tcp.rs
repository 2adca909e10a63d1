//! Ends, errors and readiness of a connection as TCP has them, for programs that take an rsocket for a TCP socket.
//!
//! A peer that closes disconnects, which rsockets report as a hang-up. With TCP the FIN of a peer that closes ends one direction alone, the first send is
//! lost and answered by a RST, and `POLLHUP` is reported once both directions have ended.

use crate::rsocket::stream::connection::{Connection, Data};
use dgiwarp_sockets::{Shutdown, Stream};
use libc::{POLLERR, POLLHUP, POLLIN, POLLOUT, POLLRDHUP, c_short};
use nix::errno::Errno;

/// State of a TCP socket beside that of the stream.
#[derive(Debug, Default)]
pub(in crate::rsocket) struct Tcp {
    /// The program has ended its sending direction.
    shut: bool,
    /// The connection was reset, by the peer or as an answer to a send.
    reset: bool,
    /// Error that no call has reported yet.
    error: Option<Errno>,
}

/// Outcome of a send before its octets.
pub(in crate::rsocket) enum Sending {
    /// Octets can be sent, now or later.
    Goes,
    /// The peer has closed: octets are lost.
    Lost,
    Fails(Errno),
}

impl Tcp {
    pub(in crate::rsocket) fn shut_down(&mut self, how: Shutdown) {
        self.shut |= how != Shutdown::Read;
    }

    pub(in crate::rsocket) fn fail(&mut self, errno: Errno) {
        self.reset = true;
        self.error = Some(errno);
    }
}

impl Connection {
    /// Whether a TCP socket would have no connection any more.
    pub(in crate::rsocket) fn is_closed(&self) -> bool {
        let mut data = self.lock();
        if data.tcp.is_none() {
            return false;
        }
        self.advance(&mut data);
        let is_done = data.stream.as_ref().is_some_and(Stream::is_peer_done);
        let tcp = data.tcp.as_ref();
        tcp.is_some_and(|tcp| tcp.reset || tcp.shut && is_done)
    }
}

impl Data {
    /// The error that no call has reported yet (`SO_ERROR`).
    pub(in crate::rsocket) fn take_error(&mut self) -> Option<Errno> {
        self.tcp.as_mut()?.error.take()
    }

    /// Outcome of a send before its next octets. An error stays unreported where octets of the call were sent.
    pub(in crate::rsocket) fn sending(&mut self, is_partial: bool) -> Sending {
        let stream = self.stream.as_ref();
        let (ended, gone) =
            stream.map_or((false, false), |it| (!it.is_writable(), !it.is_connected()));
        let Some(tcp) = &mut self.tcp else {
            let error = self.lost.or_else(|| ended.then_some(Errno::ECONNRESET));
            return error.map_or(Sending::Goes, Sending::Fails);
        };
        if let Some(errno) = tcp.error.take_if(|_| !is_partial) {
            return Sending::Fails(errno);
        }
        match tcp.error {
            Some(errno) => Sending::Fails(errno),
            None if tcp.shut || tcp.reset => Sending::Fails(Errno::EPIPE),
            None if gone => Sending::Lost,
            None => Sending::Goes,
        }
    }

    /// The peer has disconnected with octets unread: TCP sends a RST in place of the FIN then.
    pub(in crate::rsocket) fn note_reset(&mut self) {
        if let Some(tcp) = &mut self.tcp {
            tcp.fail(Errno::ECONNRESET);
        }
    }

    /// Octets were sent to a peer that has closed.
    pub(in crate::rsocket) fn lose_octets(&mut self) {
        if let Some(tcp) = &mut self.tcp {
            tcp.fail(Errno::EPIPE);
            self.edges.ended();
            self.waiters.wake();
        }
    }

    /// Result of a receive that finds no octets after the end, or the end itself.
    pub(in crate::rsocket) fn end_of_receive(&mut self) -> Option<Errno> {
        let is_done = self.stream.as_ref().is_some_and(Stream::is_peer_done);
        match &mut self.tcp {
            Some(_) if is_done => None,
            Some(tcp) => tcp.error.take(),
            None => self.lost,
        }
    }

    /// Events of poll(2).
    pub(in crate::rsocket) fn readiness(&self, events: c_short) -> c_short {
        match &self.tcp {
            Some(tcp) => self.readiness_of_tcp(tcp, events),
            None => self.readiness_of_rsockets(events),
        }
    }

    fn readiness_of_tcp(&self, tcp: &Tcp, events: c_short) -> c_short {
        let has_ended = !self.is_readable() || tcp.reset;
        let mut found = 0;
        if has_ended {
            found |= events & (POLLIN | POLLRDHUP);
        }
        if self.can_read() {
            found |= events & POLLIN;
        }
        if tcp.shut || tcp.reset || self.can_send() {
            found |= events & POLLOUT;
        }
        if tcp.error.is_some() {
            found |= POLLERR;
        }
        if tcp.reset || has_ended && tcp.shut {
            found |= POLLHUP;
        }
        found
    }

    fn readiness_of_rsockets(&self, events: c_short) -> c_short {
        let mut found = 0;
        if self.can_read() {
            found |= events & POLLIN;
        }
        if self.can_send() {
            found |= events & POLLOUT;
        }
        if !self.is_readable() {
            found |= events & POLLRDHUP;
        }
        // Octets that came before the end are read first: programs take POLLHUP for the end.
        if self.buffered() > 0 && events & POLLIN != 0 {
            return found;
        }
        if self.lost.is_some() {
            found |= POLLERR | POLLHUP;
        } else if !self.is_connected() {
            found |= POLLHUP;
        }
        found
    }
}
