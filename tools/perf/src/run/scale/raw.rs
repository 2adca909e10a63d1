//! The exchange over plain sockets: the cost of many peers in the kernel itself.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use crate::catalog::Transport;
use crate::endpoint::pattern::{narrow, widen};
use crate::error::{IoContext, PerfError, Result};
use crate::machine::clock;
use crate::run::scale::side::{BATCH, Calls};
use crate::run::scale::{HERE, SIZE};

/// Octets read in one call: more than can be under way on one socket.
const READ: usize = 16 * SIZE;

/// The sockets of one side.
#[derive(Debug)]
pub(super) enum Sockets {
    /// One for each peer.
    Tcp(Watched<TcpStream>),
    /// The peers', each with one for whoever sends.
    UdpPeers(Watched<UdpSocket>),
    /// One for all peers, whose ports these are.
    Udp { socket: UdpSocket, ports: Vec<u16> },
}

/// Sockets in one epoll set.
#[derive(Debug)]
pub(super) struct Watched<S> {
    sockets: Vec<S>,
    epoll: Epoll,
}

impl<S: AsFd> Watched<S> {
    fn new(sockets: Vec<S>) -> Result<Self> {
        let during = "make an epoll set";
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC);
        let epoll = epoll.map_err(std::io::Error::from).during(during)?;
        for (place, socket) in sockets.iter().enumerate() {
            let event = EpollEvent::new(EpollFlags::EPOLLIN, widen(place));
            let added = epoll.add(socket, event).map_err(std::io::Error::from);
            added.during(during)?;
        }
        Ok(Self { sockets, epoll })
    }

    /// Calls `each` with those that have something.
    fn look(&self, mut each: impl FnMut(&S) -> Result<u64>) -> Result<u64> {
        let mut events = [EpollEvent::empty(); BATCH];
        let ready = self
            .epoll
            .wait(&mut events, EpollTimeout::ZERO)
            .unwrap_or(0);
        let mut found = 0;
        for event in events.iter().take(ready) {
            if let Some(socket) = self.sockets.get(narrow(event.data())) {
                found += each(socket)?;
            }
        }
        Ok(found)
    }
}

impl Sockets {
    /// The side that speaks with all peers, connected.
    pub(super) fn one(transport: Transport, peers: u32, ports: &[u16]) -> Result<Self> {
        match transport.uses_datagrams() {
            true => Ok(Self::Udp {
                socket: bound()?,
                ports: ports.to_vec(),
            }),
            false => {
                let &[port] = ports else {
                    return Err(PerfError::Protocol("a listener has one port".to_owned()));
                };
                let connect = |_| ready(TcpStream::connect((HERE, port)));
                let streams = (0..peers).map(connect).collect::<Result<_>>()?;
                Ok(Self::Tcp(Watched::new(streams)?))
            }
        }
    }

    /// All peers. Tells their ports, or the port where they listen, before anybody connects.
    pub(super) fn peers(
        transport: Transport,
        peers: u32,
        tell: impl FnOnce(&[u16]) -> Result<()>,
    ) -> Result<Self> {
        let port =
            |address: std::io::Result<SocketAddr>| Ok(address.during("read a local port")?.port());
        match transport.uses_datagrams() {
            true => {
                let sockets: Vec<_> = (0..peers).map(|_| bound()).collect::<Result<_>>()?;
                let ports = sockets.iter().map(|socket| port(socket.local_addr()));
                tell(&ports.collect::<Result<Vec<_>>>()?)?;
                Ok(Self::UdpPeers(Watched::new(sockets)?))
            }
            false => {
                let listener = TcpListener::bind((HERE, 0)).during("listen on a TCP port")?;
                tell(&[port(listener.local_addr())?])?;
                let accept = |_| ready(listener.accept().map(|(stream, _)| stream));
                let streams = (0..peers).map(accept).collect::<Result<_>>()?;
                Ok(Self::Tcp(Watched::new(streams)?))
            }
        }
    }

    /// Sends one message to a peer.
    pub(super) fn send(&self, peer: u64, calls: &mut Calls) -> Result<()> {
        let message = [0; SIZE];
        let start = clock::now();
        let sent = match self {
            Self::Tcp(watched) => {
                let stream = watched.sockets.get(narrow(peer));
                let mut stream = stream.ok_or(PerfError::PeerGone)?;
                stream.write(&message)
            }
            Self::Udp { socket, ports } => {
                let port = ports.get(narrow(peer)).copied().unwrap_or(0);
                socket.send_to(&message, (HERE, port))
            }
            Self::UdpPeers(_) => return Err(PerfError::PeerGone),
        };
        sent.during("send to one of many peers")?;
        calls.posted(clock::nanoseconds(start, clock::now()));
        Ok(())
    }

    /// Takes what has arrived; how much it was.
    pub(super) fn poll(&self, calls: &mut Calls) -> Result<u64> {
        let start = clock::now();
        let found = match self {
            Self::Tcp(watched) => watched.look(|mut stream| {
                let mut octets = [0; READ];
                Ok(widen(received(stream.read(&mut octets))? / SIZE))
            }),
            Self::Udp { socket, .. } => {
                let mut octets = [0; SIZE];
                let came = received(socket.recv_from(&mut octets).map(|(length, _)| length))?;
                Ok(u64::from(came > 0))
            }
            Self::UdpPeers(_) => Err(PerfError::PeerGone),
        }?;
        if found > 0 {
            calls.found(clock::nanoseconds(start, clock::now()), found);
        }
        Ok(found)
    }

    /// Sends back what has arrived; how much it was.
    pub(super) fn answer(&self) -> Result<u64> {
        match self {
            Self::Tcp(watched) => watched.look(|mut stream| {
                let mut octets = [0; READ];
                let length = received(stream.read(&mut octets))?;
                let (answer, _) = octets.split_at(length);
                let written = stream.write(answer).during("answer over TCP")?;
                Ok(widen(written / SIZE))
            }),
            Self::UdpPeers(watched) => watched.look(|socket| {
                let mut octets = [0; SIZE];
                match socket.recv_from(&mut octets) {
                    Ok((length, from)) => {
                        let (answer, _) = octets.split_at(length);
                        socket.send_to(answer, from).during("answer over UDP")?;
                        Ok(1)
                    }
                    Err(error) => received(Err(error)).map(widen),
                }
            }),
            Self::Udp { .. } => Err(PerfError::PeerGone),
        }
    }
}

fn bound() -> Result<UdpSocket> {
    let during = "bind a UDP socket";
    let socket = UdpSocket::bind((HERE, 0)).during(during)?;
    socket.set_nonblocking(true).during(during)?;
    Ok(socket)
}

fn ready(stream: std::io::Result<TcpStream>) -> Result<TcpStream> {
    let during = "connect one of many peers";
    let stream = stream.during(during)?;
    stream.set_nodelay(true).during(during)?;
    stream.set_nonblocking(true).during(during)?;
    Ok(stream)
}

/// Nothing may be there.
fn received(length: std::io::Result<usize>) -> Result<usize> {
    match length {
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(0),
        length => length.during("receive from one of many peers"),
    }
}
