//! One listener or lookup with its socket, counters and capture file.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Instant;

use dgiwarp_llp_udp::Peer;
use dgiwarp_memory::Piece;
use dgiwarp_rdmap::datagram::DropReason;
use parking_lot::Mutex;

use crate::driver::cm::port_queries::DevicePorts;
use crate::driver::debug::instruments::Instruments;
use crate::driver::debug::tap::{Fate, Tap};
use crate::driver::device::clock;
use crate::driver::udp::socket::UdpSocket;
use crate::{LookupError, QpCounters};
use dgiwarp_engine::cm::sidr::listener::{Asked, Listener};
use dgiwarp_engine::cm::sidr::lookup::{Lookup, Outcome};
use dgiwarp_engine::datagram::Arrival;

/// A listener or lookup.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) socket: UdpSocket,
    pub(crate) context: u64,
    pub(crate) role: Role,
    /// Faults made on purpose; `None` unless settings ask for them.
    pub(crate) instruments: Option<Box<Instruments>>,
    /// Error that ends a lookup, and its time.
    pub(crate) failure: Option<(Instant, LookupError)>,
}

#[derive(Debug)]
pub(crate) enum Role {
    Listener(Box<Listener>),
    Lookup(Box<Lookup>, SocketAddr),
}

/// News of an entry for its program.
#[derive(Debug)]
pub(crate) enum News {
    /// A question, asked at this port of ours.
    Asked(Box<Asked>, u16),
    /// A lookup is over; the address that it asked.
    Over(Box<Result<Outcome, LookupError>>, SocketAddr),
}

/// Observers of an entry's datagrams: capture file and counters.
#[derive(Debug)]
pub(crate) struct Watch {
    pub(crate) counters: QpCounters,
    pub(crate) tap: Option<Box<Tap>>,
    /// Listeners of connections that have moved, for which services answer.
    pub(crate) ports: Arc<Mutex<DevicePorts>>,
}

impl AsFd for Entry {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Entry {
    /// Counters with only the faults made on purpose.
    pub(crate) fn faults(&self) -> QpCounters {
        let mut counters = QpCounters::default();
        Instruments::count(self.instruments.as_deref(), &mut counters);
        counters
    }

    pub(crate) fn transmit(&mut self, watch: &mut Watch) {
        let sent = self.role.transmit(&self.socket, watch);
        if let Err(error) = sent {
            self.fail(error);
        }
    }

    /// An ICMP error ends a lookup. A listener has no single peer that the error could be about, and a peer that gets no answer asks again.
    pub(crate) fn fail(&mut self, error: io::Error) {
        let transient = matches!(
            error.kind(),
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
        );
        if transient || self.failure.is_some() {
            return;
        }
        let now = clock::now();
        match &mut self.role {
            Role::Lookup(lookup, _) if error.kind() == io::ErrorKind::ConnectionRefused => {
                lookup.handle_refused(now);
                // Unread, the error queue would keep the socket readable.
                self.socket.forget_errors();
            }
            Role::Lookup(..) => self.failure = Some((now, LookupError::Unreachable(error))),
            Role::Listener(_) => {}
        }
    }

    pub(crate) fn poll_events(&mut self, mut push: impl FnMut(News)) {
        match &mut self.role {
            Role::Listener(listener) => {
                while let Some(asked) = listener.poll_event() {
                    push(News::Asked(Box::new(asked), listener.port()));
                }
            }
            Role::Lookup(lookup, peer) => {
                // An answer that came before takes precedence over an ICMP error.
                let over = lookup.poll_event().map(Ok);
                let over = over.or_else(|| self.failure.take().map(|(_, error)| Err(error)));
                if let Some(over) = over {
                    push(News::Over(Box::new(over), *peer));
                }
            }
        }
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let of_role = match &self.role {
            Role::Listener(listener) => listener.poll_timeout(),
            Role::Lookup(lookup, _) => lookup.poll_timeout(),
        };
        let of_instruments = self.instruments.as_ref().and_then(|it| it.poll_timeout());
        // A failure is due at once, for the next thread that makes progress.
        let of_failure = self.failure.as_ref().map(|(when, _)| *when);
        [of_role, of_instruments, of_failure]
            .into_iter()
            .flatten()
            .min()
    }
}

impl Role {
    /// Handles one datagram, and sends what a listener answers. Counts and returns the drop reason.
    pub(crate) fn handle_input(
        &mut self,
        now: Instant,
        arrival: Arrival<'_>,
        socket: &UdpSocket,
        watch: &mut Watch,
    ) -> Option<DropReason> {
        let from = arrival.from.socket_addr()?;
        if let Self::Listener(_) = self
            && let Some(answered) = watch.answer_port_query(now, from, arrival, socket)
        {
            return watch.received(socket, arrival, answered.err());
        }
        let handled = match self {
            Self::Listener(listener) => {
                listener.handle_input(now, from, arrival.to, arrival.octets)
            }
            // Datagrams that others sent before the socket was connected.
            Self::Lookup(_, peer) if !is_same(*peer, from) => Err(DropReason::WrongPeer),
            Self::Lookup(lookup, _) => lookup.handle_input(now, arrival.octets),
        };
        let dropped = watch.received(socket, arrival, handled.err());
        if let Self::Listener(_) = self {
            // An asker that does not get the answer asks again.
            let _ = self.transmit(socket, watch);
        }
        dropped
    }

    pub(crate) fn transmit(&mut self, socket: &UdpSocket, watch: &mut Watch) -> io::Result<()> {
        match self {
            Self::Listener(listener) => {
                while let Some(reply) = listener.poll_transmit() {
                    let pieces = [Piece::Bytes(&reply.datagram)];
                    socket.send(Some(reply.to), reply.from, &pieces, None)?;
                    watch.sent(socket, reply.from, reply.to, &reply.datagram);
                }
            }
            Self::Lookup(lookup, peer) => {
                while let Some(octets) = lookup.poll_transmit() {
                    socket.send(None, None, &[Piece::Bytes(octets)], None)?;
                    watch.sent(socket, None, *peer, octets);
                }
            }
        }
        Ok(())
    }
}

impl Watch {
    /// The port of a service is no longer the device's.
    pub(crate) fn forget_service(&mut self, entry: &Entry) {
        if let (Role::Listener(_), Ok(local)) = (&entry.role, entry.socket.local_addr()) {
            let services = &mut self.ports.lock().services;
            if let Some(at) = services.iter().position(|port| *port == local.port()) {
                services.swap_remove(at);
            }
        }
    }

    /// Answers a port query; `None` if the datagram is none.
    fn answer_port_query(
        &mut self,
        now: Instant,
        from: SocketAddr,
        arrival: Arrival<'_>,
        socket: &UdpSocket,
    ) -> Option<Result<(), DropReason>> {
        let port = socket.local_addr().ok()?.port();
        let mut ports = self.ports.lock();
        let answer = ports.moved.answer(now, arrival.to, port, arrival.octets)?;
        drop(ports);
        Some(answer.map(|answer| {
            // An Initiator that does not get the answer queries again.
            let pieces = [Piece::Bytes(&answer)];
            if socket.send(Some(from), arrival.to, &pieces, None).is_ok() {
                self.sent(socket, arrival.to, from, &answer);
            }
        }))
    }

    /// Records the fate of a datagram, and returns the drop reason.
    pub(crate) fn received(
        &mut self,
        socket: &UdpSocket,
        arrival: Arrival<'_>,
        dropped: Option<DropReason>,
    ) -> Option<DropReason> {
        match dropped {
            None => self.counters.count_received(arrival.octets.len()),
            Some(reason) => self.counters.count_drop(reason),
        }
        if let Some(tap) = &mut self.tap
            && let Ok(local) = socket.local_addr()
        {
            let fate = Fate::from(dropped);
            tap.received_at(local.port(), arrival, fate);
            tap.warn_of_failure();
        }
        dropped
    }

    pub(crate) fn sent(
        &mut self,
        socket: &UdpSocket,
        from: Option<IpAddr>,
        to: SocketAddr,
        octets: &[u8],
    ) {
        self.counters.count_sent(1, octets.len() as u64);
        if let Some(tap) = &mut self.tap
            && let Ok(local) = socket.local_addr()
        {
            let from = from.unwrap_or_else(|| local.ip()).to_canonical();
            tap.sent_one(SocketAddr::new(from, local.port()), to, octets);
            tap.warn_of_failure();
        }
    }
}

/// Whether two addresses, of which one may have a scope ID, are of one peer.
fn is_same(one: SocketAddr, other: SocketAddr) -> bool {
    let name = |address| Peer::ip(address).ip_addr();
    name(one) == name(other) && one.port() == other.port()
}
