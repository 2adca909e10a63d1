//! TCP sockets, and the MPA startup on them.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use dgiwarp_llp_tcp_mpa::{Connection, Event, TcpEnd};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{getsockopt, sockopt};
use socket2::{Domain, Protocol, Socket, Type};

use super::clock;

/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;
/// Longest startup frame.
const FRAME: usize = 532;

/// Opens a TCP connection.
pub(crate) fn connect(to: SocketAddr, timeout: Duration) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP))?;
    socket.connect_timeout(&to.into(), timeout)?;
    prepare(socket.into())
}

/// Opens a listening socket.
pub(crate) fn listen(on: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(on), Type::STREAM, Some(Protocol::TCP))?;
    // A server that is started again need not wait for old connections. TCP gives a second listener EADDRINUSE all the same.
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&on.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Accepts a connection, waiting until `deadline`.
pub(crate) fn accept(
    listener: &TcpListener,
    deadline: Instant,
) -> io::Result<Option<(TcpStream, SocketAddr)>> {
    loop {
        match listener.accept() {
            Ok((stream, peer)) => return Ok(Some((prepare(stream)?, peer))),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if !wait(listener.as_fd(), PollFlags::POLLIN, Some(deadline)) {
                    return Ok(None);
                }
            }
            // The connection that was there is gone already.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => return Err(error),
        }
    }
}

fn prepare(stream: TcpStream) -> io::Result<TcpStream> {
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

/// What the startup came to.
#[derive(Debug)]
pub(crate) struct Started {
    /// Request, establishment, rejection or failure.
    pub(crate) event: Event,
    /// What arrived behind the last startup frame.
    pub(crate) rest: Vec<u8>,
}

/// Drives an MPA startup until there is an event.
///
/// # Errors
/// What TCP says, but not its end: that is an event.
pub(crate) fn start(stream: &TcpStream, mpa: &mut Connection) -> io::Result<Started> {
    let mut stream = stream;
    let mut buffer = [0; FRAME];
    loop {
        if let Some(event) = mpa.poll_event() {
            return Ok(Started {
                event,
                rest: Vec::new(),
            });
        }
        transmit_all(stream, mpa)?;
        let mut rest = match stream.read(&mut buffer) {
            Ok(0) => {
                mpa.handle_end(clock::now(), TcpEnd::Fin);
                continue;
            }
            Ok(len) => &buffer[..len],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if !wait(stream.as_fd(), PollFlags::POLLIN, mpa.poll_timeout()) {
                    mpa.handle_timeout(clock::now());
                }
                continue;
            }
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                mpa.handle_end(clock::now(), TcpEnd::Lost);
                continue;
            }
            Err(error) => return Err(error),
        };
        while !rest.is_empty() {
            // No ULPDU comes before the event that begins full operation.
            let _ = mpa.handle_input(clock::now(), &mut rest);
            if let Some(event) = mpa.poll_event() {
                return Ok(Started {
                    event,
                    rest: rest.to_vec(),
                });
            }
        }
    }
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

/// Waits until a descriptor is ready or the time is over. Returns whether it is ready.
pub(crate) fn wait(fd: BorrowedFd<'_>, flags: PollFlags, deadline: Option<Instant>) -> bool {
    let timeout = deadline.map_or(PollTimeout::NONE, |deadline| {
        let left = deadline.saturating_duration_since(clock::now());
        PollTimeout::try_from(left.as_micros().div_ceil(1000)).unwrap_or(PollTimeout::MAX)
    });
    poll(&mut [PollFd::new(fd, flags)], timeout).is_ok_and(|ready| ready > 0)
}
