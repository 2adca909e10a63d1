//! TCP sockets, and the MPA startup on them.

use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr, SocketAddrV6, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use dgiwarp_llp_tcp_mpa::{Connection, TcpEnd};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{getsockopt, setsockopt, sockopt};
use socket2::{Domain, Protocol, Socket, Type};

use crate::driver::device::{clock, fds as own_sockets};
use crate::driver::reactor::event_queue::timeout;
use crate::driver::udp::route;

/// How a [`ConnectionPort`](super::port::ConnectionPort) is bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PortOptions {
    /// An IPv6 port takes no IPv4 connections. Default no.
    pub only_v6: bool,
    /// Type of service, or traffic class, of what connections of this port send. Default the system's.
    pub tos: Option<u8>,
    /// Port 0 stays open until the port is connected from, so that connections to different peers can have the same one. Default no.
    pub port_when_connected: bool,
    /// Where a TCP socket that is none of rdma_cm's has the port, a listener takes another TCP port and answers port queries at the UDP port of the same number
    /// (`rfc-notes/datagram-mapping.md` §10.1). Default no: that is an error.
    pub may_move: bool,
}

/// Connections that wait to be accepted.
pub(crate) const BACKLOG: i32 = 1024;

/// Begins to open a TCP connection; the socket is writable once it is open or has failed. `from` is an address of ours, if it matters.
pub(crate) fn begin_connect(from: Option<IpAddr>, to: SocketAddr) -> io::Result<TcpStream> {
    let socket = match from {
        Some(from) => {
            let scope = match to {
                SocketAddr::V6(to) => to.scope_id(),
                SocketAddr::V4(_) => 0,
            };
            let options = PortOptions {
                port_when_connected: true,
                ..PortOptions::default()
            };
            bind(with_scope(from, scope), options)?
        }
        None => open(to)?,
    };
    connect_on(socket, to)
}

/// Begins to connect a socket that is bound.
pub(crate) fn connect_on(socket: Socket, to: SocketAddr) -> io::Result<TcpStream> {
    match socket.connect(&to.into()) {
        Ok(()) => {}
        Err(error) if error.raw_os_error() == Some(nix::libc::EINPROGRESS) => {}
        Err(error) => return Err(error),
    }
    prepare(socket.into())
}

fn open(family: SocketAddr) -> io::Result<Socket> {
    let socket = own_sockets::adopt(Socket::new(
        Domain::for_address(family),
        Type::STREAM,
        Some(Protocol::TCP),
    )?);
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Whether the peer has closed or reset a connection of which everything was read.
pub(crate) fn has_ended(stream: &TcpStream) -> bool {
    match stream.peek(&mut [0]) {
        Ok(len) => len == 0,
        Err(error) => error.kind() != io::ErrorKind::WouldBlock,
    }
}

/// Whether a connection is open: it has a peer, and no error.
pub(crate) fn is_open(stream: &TcpStream) -> bool {
    stream.peer_addr().is_ok()
}

/// Whether both addresses of a connection are this host's, or rather this network namespace's.
pub(crate) fn is_local(stream: &TcpStream) -> bool {
    let (Ok(ours), Ok(theirs)) = (stream.local_addr(), stream.peer_addr()) else {
        return false;
    };
    route::is_of_this_host(ours.ip(), theirs)
}

/// Whether a connection is one of a socket with itself: TCP makes it where nobody listens on a port that the system then chooses for
/// our end.
pub(crate) fn is_own_end(stream: &TcpStream) -> bool {
    matches!((stream.local_addr(), stream.peer_addr()), (Ok(ours), Ok(theirs)) if ours == theirs)
}

/// Opens a TCP connection whose two ends are one socket, at an address of ours: what is written comes back.
pub(crate) fn connect_to_itself(address: IpAddr, scope: u32) -> io::Result<TcpStream> {
    /// No network is between the ends.
    const MOMENT: Duration = Duration::from_millis(10);
    let socket = bind(with_scope(address, scope), PortOptions::default())?;
    let Some(own) = socket.local_addr()?.as_socket() else {
        return Err(io::ErrorKind::AddrNotAvailable.into());
    };
    let stream = connect_on(socket, own)?;
    let connected = wait(
        stream.as_fd(),
        PollFlags::POLLOUT,
        Some(clock::now() + MOMENT),
    );
    match stream.take_error()? {
        Some(error) => Err(error),
        None if connected => Ok(stream),
        None => Err(io::ErrorKind::TimedOut.into()),
    }
}

fn with_scope(address: IpAddr, scope: u32) -> SocketAddr {
    match address {
        IpAddr::V4(v4) => (v4, 0).into(),
        IpAddr::V6(v6) => SocketAddrV6::new(v6, 0, 0, scope).into(),
    }
}

/// Opens a listening socket.
pub(crate) fn listen(on: SocketAddr) -> io::Result<TcpListener> {
    listen_on(bind(on, PortOptions::default())?, BACKLOG)
}

/// Opens a socket on a port, for listening or for connecting from there.
pub(crate) fn bind(on: SocketAddr, options: PortOptions) -> io::Result<Socket> {
    let socket = open(on)?;
    // A server that is started again need not wait for old connections. TCP gives a second listener EADDRINUSE all the same.
    socket.set_reuse_address(true)?;
    if on.is_ipv6() {
        socket.set_only_v6(options.only_v6)?;
    }
    if options.port_when_connected {
        // So that it is not used up for all other peers. An old kernel chooses now.
        let _ = setsockopt(&socket, sockopt::IpBindAddressNoPort, &true);
    }
    mark(&socket, on, options)?;
    socket.bind(&on.into())?;
    Ok(socket)
}

/// Sets the type of service of what a socket sends.
fn mark(socket: &Socket, family: SocketAddr, options: PortOptions) -> io::Result<()> {
    let Some(tos) = options.tos else {
        return Ok(());
    };
    match family {
        SocketAddr::V4(_) => socket.set_tos_v4(tos.into()),
        SocketAddr::V6(_) => socket.set_tclass_v6(tos.into()),
    }
}

/// Lets a bound socket listen. Where a seccomp filter denies accept4(2), that is this call's error: connections would wait for ever.
pub(crate) fn listen_on(socket: Socket, backlog: i32) -> io::Result<TcpListener> {
    // accept(2): a socket that does not listen is EINVAL.
    if let Err(error) = socket.accept()
        && error.raw_os_error() != Some(nix::libc::EINVAL)
    {
        return Err(error);
    }
    socket.listen(backlog)?;
    Ok(socket.into())
}

/// A descriptor that is held back: given up, it is the one with which a connection can still be turned away when there is no other.
pub(crate) fn spare() -> io::Result<Socket> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM.cloexec(), None)?;
    Ok(own_sockets::adopt(socket))
}

/// Accepts a connection, if one waits.
pub(crate) fn try_accept(listener: &TcpListener) -> io::Result<Option<(TcpStream, SocketAddr)>> {
    loop {
        match listener.accept() {
            Ok((stream, peer)) => return Ok(Some((prepare(stream)?, peer))),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            // The connection that was there is gone already.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

fn prepare(stream: TcpStream) -> io::Result<TcpStream> {
    let stream = own_sockets::adopt(stream);
    // RFC 5044 §5.1: FPDUs leave when they are made, one to a TCP segment if they are that large.
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    Ok(stream)
}

/// The effective maximum segment size that TCP has now.
pub(crate) fn emss(stream: &TcpStream) -> io::Result<u16> {
    let emss = getsockopt(stream, sockopt::TcpMaxSeg)?;
    Ok(u16::try_from(emss).unwrap_or(u16::MAX))
}

/// Writes a startup frame. It is short, so TCP takes it at once; a peer that does not read does not hold us up.
pub(crate) fn transmit_all(mut stream: &TcpStream, mpa: &mut Connection) -> io::Result<()> {
    loop {
        let octets = mpa.poll_transmit(clock::now());
        if octets.is_empty() {
            return Ok(());
        }
        let len = stream.write(octets)?;
        mpa.transmitted(len);
    }
}

/// The end of the stream, if it has come, without reading what is before it.
pub(crate) fn hung_up(stream: &TcpStream) -> Option<TcpEnd> {
    let look = |flags| {
        let mut fds = [PollFd::new(stream.as_fd(), flags)];
        poll(&mut fds, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
    };
    // The wrapper has no name for this flag, but passes it on.
    if !look(PollFlags::from_bits_retain(nix::libc::POLLRDHUP)) {
        return None;
    }
    // poll(2) reports errors whatever is asked for; after one, and after the end of both halves, nothing reaches the peer either.
    Some(if look(PollFlags::empty()) {
        TcpEnd::Lost
    } else {
        TcpEnd::Fin
    })
}

/// Waits until a descriptor is ready or the time is over. Returns whether it is ready.
pub(crate) fn wait(fd: BorrowedFd<'_>, flags: PollFlags, deadline: Option<Instant>) -> bool {
    let timeout = timeout(clock::now(), deadline);
    poll(&mut [PollFd::new(fd, flags)], timeout).is_ok_and(|ready| ready > 0)
}
