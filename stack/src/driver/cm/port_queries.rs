//! Port queries and their answers: sockets and time for [`dgiwarp_engine::cm::ports`].
//!
//! Each query has a UDP socket that is connected, so that it takes answers only from the address that was queried, and ICMP errors of that host. Each
//! listener that has moved has one at the port that it is known by, unless a service of the device ([`super::sidr`]) has it.

use std::io;
use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Instant;

use nix::sys::epoll::EpollFlags;
use parking_lot::Mutex;
use socket2::{Domain, Protocol, Socket, Type};

use crate::driver::device::{clock, fds as own_sockets};
use crate::driver::reactor::io_set::{Cause, IoId, IoSet};
use crate::driver::tcp::port::Moved;
use crate::driver::udp::socket::{ReceiveBuffer, UdpSocket};
use crate::{Error, Rnic, WeakRnic};
use dgiwarp_engine::cm::ports::{Found, MovedPorts, PortQuery};
use dgiwarp_engine::cm::sidr::wire::PORT_QUERY;
use dgiwarp_memory::Piece;

/// Datagrams that one socket receives before the others get their turn.
const RECEIVES: usize = 64;

/// Ports of a device that connection management has at UDP.
#[derive(Debug, Default)]
pub(crate) struct DevicePorts {
    pub(crate) moved: MovedPorts,
    /// UDP ports of the device's services.
    pub(crate) services: Vec<u16>,
}

/// Queries that are out, and sockets that answer them.
#[derive(Debug)]
pub(crate) struct PortQueries {
    sockets: IoSet<Entry>,
    /// Locked after `sockets`.
    ports: Arc<Mutex<DevicePorts>>,
    /// Locked after `sockets`.
    buffer: Mutex<ReceiveBuffer>,
    rnic: WeakRnic,
    /// Attempts to connect query ports.
    asks: bool,
}

#[derive(Debug)]
enum Entry {
    Query {
        socket: Socket,
        query: Box<PortQuery>,
        /// The attempt to connect that it is for.
        attempt: u64,
    },
    Responder {
        socket: UdpSocket,
        port: u16,
    },
}

impl AsFd for Entry {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Query { socket, .. } => socket.as_fd(),
            Self::Responder { socket, .. } => socket.as_fd(),
        }
    }
}

/// A query that was begun.
#[derive(Debug)]
pub(crate) enum Asked {
    /// It is over: on one host ICMP's error comes at once.
    Over(Found),
    /// Its result comes later.
    Pending(IoId),
}

/// A listener that has moved.
#[derive(Debug)]
pub(crate) struct MovedListener {
    named: SocketAddr,
    port: NonZeroU16,
    responder: Option<IoId>,
}

impl PortQueries {
    pub(crate) fn new(rnic: &Rnic) -> Result<Self, Error> {
        Ok(Self {
            sockets: IoSet::new()?,
            ports: Arc::clone(&rnic.shared.ports),
            buffer: Mutex::new(ReceiveBuffer::new()),
            rnic: rnic.downgrade(),
            asks: rnic.config().port_queries,
        })
    }

    /// Readable while [`progress`](Self::progress) has work.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.sockets.as_fd()
    }

    /// Time of the next call of [`progress`](Self::progress) although nothing arrives.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.sockets.poll_timeout()
    }

    /// Whether attempts to connect query ports.
    pub(crate) fn asks(&self) -> bool {
        self.asks
    }

    /// Queries the port `to` for an attempt to connect from an address of ours.
    pub(crate) fn ask(
        &self,
        from: Option<SocketAddr>,
        to: SocketAddr,
        attempt: u64,
    ) -> io::Result<Asked> {
        let rnic = self.rnic.upgrade().ok_or(io::ErrorKind::NotConnected)?;
        let [high, low] = rnic.shared.draw();
        let transaction = u64::from(high) << 32 | u64::from(low);
        let socket = open(from, to)?;
        let mut query = Box::new(PortQuery::new(clock::now(), transaction, to.port()));
        transmit(&socket, &mut query);
        receive(&socket, &mut query);
        if let Some(found) = query.poll_event() {
            return Ok(Asked::Over(found));
        }
        let deadline = query.poll_timeout();
        let mut sockets = self.sockets.lock();
        let entry = Entry::Query {
            socket,
            query,
            attempt,
        };
        let id = sockets.insert_watched(entry, EpollFlags::EPOLLIN)?;
        sockets.set_deadline(id, deadline);
        Ok(Asked::Pending(id))
    }

    /// Lets another attempt have the result of a query. Returns whether it is still out.
    pub(crate) fn hand_over(&self, id: IoId, to: u64) -> bool {
        let mut sockets = self.sockets.lock();
        match sockets.get_mut(id) {
            Some(Entry::Query { attempt, .. }) => {
                *attempt = to;
                true
            }
            Some(Entry::Responder { .. }) | None => false,
        }
    }

    /// Ends a query.
    pub(crate) fn end(&self, id: IoId) {
        self.sockets.lock().remove(id);
    }

    /// Answers queries for a listener that has moved.
    ///
    /// # Errors
    /// `EADDRINUSE` where the UDP port is neither the listener's nor that of a service of the device.
    pub(crate) fn answer_for(&self, named: SocketAddr, moved: Moved) -> io::Result<MovedListener> {
        let Moved { port, queries } = moved;
        let mut sockets = self.sockets.lock();
        let responder = match queries {
            Some(socket) => {
                let port = named.port();
                let entry = Entry::Responder { socket, port };
                Some(sockets.insert_watched(entry, EpollFlags::EPOLLIN)?)
            }
            None if self.ports.lock().services.contains(&named.port()) => None,
            None => return Err(io::ErrorKind::AddrInUse.into()),
        };
        self.ports.lock().moved.add(named, port);
        Ok(MovedListener {
            named,
            port,
            responder,
        })
    }

    /// A listener that has moved is closed.
    pub(crate) fn forget(&self, listener: &MovedListener) {
        let mut sockets = self.sockets.lock();
        if let Some(id) = listener.responder {
            sockets.remove(id);
        }
        let mut ports = self.ports.lock();
        ports.moved.remove(listener.named, listener.port);
    }

    /// Gives a UDP port up for a service, which answers queries from then on. Returns whether it was taken for them.
    pub(crate) fn give_up(&self, port: u16) -> bool {
        let mut sockets = self.sockets.lock();
        let entries = sockets.entries();
        let theirs: Vec<IoId> = entries
            .filter(|(_, entry)| matches!(entry, Entry::Responder { port: it, .. } if *it == port))
            .map(|(id, _)| id)
            .collect();
        for id in &theirs {
            sockets.remove(*id);
        }
        !theirs.is_empty()
    }

    /// Does the work that is possible now. Returns the results of queries, with their attempts.
    pub(crate) fn progress(&self) -> Vec<(u64, Found)> {
        let mut results = Vec::new();
        self.sockets.progress(|sockets, id, cause| {
            let (result, deadline) = match sockets.get_mut(id) {
                Some(Entry::Responder { socket, port }) => {
                    self.answer(socket, *port);
                    return;
                }
                Some(Entry::Query {
                    socket,
                    query,
                    attempt,
                }) => {
                    match cause {
                        Cause::Ready => receive(socket, query),
                        Cause::Deadline => query.handle_timeout(clock::now()),
                    }
                    transmit(socket, query);
                    let result = query.poll_event().map(|found| (*attempt, found));
                    (result, query.poll_timeout())
                }
                None => return,
            };
            match result {
                Some(result) => {
                    sockets.remove(id);
                    results.push(result);
                }
                None => sockets.set_deadline(id, deadline),
            }
        });
        results
    }

    /// Answers the queries that arrived at a port.
    fn answer(&self, socket: &mut UdpSocket, port: u16) {
        let mut buffer = self.buffer.lock();
        for _ in 0..RECEIVES {
            let Ok(received) = socket.receive(&mut buffer) else {
                return;
            };
            let Some(from) = received.from.socket_addr() else {
                continue;
            };
            let octets = buffer.octets(received.len);
            for datagram in octets.chunks(received.stride.max(1)) {
                let mut ports = self.ports.lock();
                let answer = ports
                    .moved
                    .answer(clock::now(), received.to, port, datagram);
                drop(ports);
                if let Some(Ok(answer)) = answer {
                    // An Initiator that does not get the answer queries again.
                    let _ = socket.send(Some(from), received.to, &[Piece::Bytes(&answer)], None);
                }
            }
        }
    }
}

/// A socket for queries to one port, from an address of ours if it matters.
fn open(from: Option<SocketAddr>, to: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(
        Domain::for_address(to),
        Type::DGRAM.nonblocking().cloexec(),
        Some(Protocol::UDP),
    )?;
    let socket = own_sockets::adopt(socket);
    if let Some(mut from) = from.filter(|from| !from.ip().is_unspecified()) {
        from.set_port(0);
        socket.bind(&from.into())?;
    }
    socket.connect(&to.into())?;
    Ok(socket)
}

fn transmit(socket: &Socket, query: &mut PortQuery) {
    while let Some(octets) = query.poll_transmit() {
        if let Err(error) = socket.send(octets)
            && error.kind() == io::ErrorKind::ConnectionRefused
        {
            query.handle_refused();
        }
    }
}

fn receive(socket: &Socket, query: &mut PortQuery) {
    // One octet more than an answer has, so that a longer datagram is none.
    let mut octets = [0; PORT_QUERY + 1];
    for _ in 0..RECEIVES {
        match io::Read::read(&mut &*socket, &mut octets) {
            // A datagram that is no answer is dropped.
            Ok(len) => drop(query.handle_input(&octets[..len])),
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                query.handle_refused();
            }
            Err(_) => return,
        }
    }
}
