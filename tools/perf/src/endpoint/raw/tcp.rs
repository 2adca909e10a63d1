//! Raw TCP: one connection with NODELAY, whose buffers the kernel sizes. Bytes carry nothing but the pattern.
//!
//! A stream in one direction is answered with credits, 8-byte positions in the other direction, as those of queue pairs are. In both
//! directions at once flow control is TCP's own.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use socket2::{Domain, Protocol, Socket, Type};

use crate::catalog::Mode;
use crate::endpoint::pattern::{self, narrow, widen};
use crate::endpoint::raw::incoming::Incoming;
use crate::error::{IoContext, PerfError, Result};
use crate::machine::host::{Side, Wait};
use crate::measure::{Arrival, BLOCK_SLICE, Flow, Geometry, Idle, PingPong, Want, Watch};
use crate::session::control::{EndpointSpec, Offer};

/// Bytes per write of a stream, at most; shorter messages have a write each.
const MAX_WRITE: u64 = 4 << 20;
/// Bytes per read of a stream.
const MAX_READ: usize = 256 * 1024;
/// Bytes of a credit.
const CREDIT: usize = 8;
/// How long the two sides have to connect.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// One side of a raw TCP endpoint.
#[derive(Debug)]
pub(crate) struct Tcp {
    listener: Option<Socket>,
    stream: Option<TcpStream>,
    side: Side,
    mode: Mode,
    blocking: bool,
    write_blocked: bool,
    check: bool,
    size: usize,
    pattern: Vec<u8>,
    incoming: Incoming,
    /// Bytes received of the present message, or of the present round.
    received: u64,
    /// The beginning of a credit.
    credit: Vec<u8>,
    sequence: u64,
}

impl Tcp {
    /// Opens this side; the server's half listens on `local`.
    pub(crate) fn open(spec: &EndpointSpec, local: IpAddr, side: Side) -> Result<(Self, Offer)> {
        let mut tcp = Self {
            listener: None,
            stream: None,
            side,
            mode: spec.mode,
            blocking: spec.wait == Wait::Block,
            write_blocked: false,
            check: spec.check,
            size: narrow(spec.size),
            pattern: Vec::new(),
            incoming: Incoming::zeroed(0),
            received: 0,
            credit: Vec::new(),
            sequence: 0,
        };
        let mut offer = Offer::default();
        if side == Side::Server {
            let listener = socket(local)?;
            let any_port = SocketAddr::new(local, 0);
            listener
                .bind(&any_port.into())
                .and_then(|()| listener.listen(1))
                .during("listen on a TCP port")?;
            let bound = listener.local_addr().during("read a local port")?;
            offer.ports = bound.as_socket().iter().map(SocketAddr::port).collect();
            tcp.listener = Some(listener);
        }
        Ok((tcp, offer))
    }

    /// Connects (client) to the peer's listener.
    pub(crate) fn connect(&mut self, peer: IpAddr, offer: &Offer) -> Result<()> {
        if self.side == Side::Server {
            return Ok(());
        }
        let &[port] = offer.ports.as_slice() else {
            return Err(PerfError::Protocol("raw TCP needs one port".to_owned()));
        };
        let socket = socket(peer)?;
        socket
            .connect_timeout(&SocketAddr::new(peer, port).into(), CONNECT_TIMEOUT)
            .during("connect the TCP data connection")?;
        self.stream = Some(socket.into());
        Ok(())
    }

    /// A message is a write, unless it is very large.
    pub(crate) fn geometry(&self, window: Option<u64>) -> Geometry {
        let size = widen(self.size);
        let geometry = Geometry::connected(size, size.min(MAX_WRITE), window);
        match self.mode {
            Mode::Bw | Mode::Rate => geometry,
            Mode::Lat | Mode::Bibw | Mode::Loss | Mode::Fanout | Mode::Idle => Geometry {
                window: u64::MAX,
                credit_every: u64::MAX,
                ..geometry
            },
        }
    }

    /// Accepts (server), and prepares buffers and options.
    pub(crate) fn configure(&mut self, geometry: &Geometry) -> Result<()> {
        if let Some(listener) = self.listener.take() {
            self.stream = Some(accept(&listener)?);
        }
        self.pattern = pattern::fill(narrow(geometry.chunk));
        self.incoming = Incoming::zeroed(MAX_READ);
        let both_ways = self.mode == Mode::Bibw;
        let stream = self.stream()?;
        stream
            .set_nodelay(true)
            .and_then(|()| stream.set_nonblocking(!self.blocking || both_ways))
            .and_then(|()| stream.set_read_timeout(Some(BLOCK_SLICE)))
            .and_then(|()| stream.set_write_timeout(Some(BLOCK_SLICE)))
            .during("set TCP options")
    }

    fn stream(&self) -> Result<&TcpStream> {
        self.stream.as_ref().ok_or(PerfError::PeerGone)
    }

    /// Reads up to `limit` bytes of payload; none if nothing is there.
    fn read(&mut self, limit: usize) -> Result<Option<usize>> {
        let limit = limit.min(self.incoming.len());
        let buffer = self.incoming.get_mut(..limit).unwrap_or(&mut []);
        let length = read(self.stream.as_ref(), buffer)?;
        if let Some(length) = length {
            if self.check {
                let run = self.incoming.get(..length).unwrap_or(&[]);
                pattern::verify_stream(run, self.received, &self.pattern)?;
            }
            self.received += widen(length);
        }
        Ok(length)
    }

    /// Reads credits: positions, the last complete one of which counts.
    fn read_credit(&mut self) -> Result<Arrival> {
        let Some(length) = read(self.stream.as_ref(), &mut self.incoming)? else {
            return Ok(Arrival::Nothing);
        };
        self.credit.extend(self.incoming.iter().take(length));
        let complete = self.credit.len() / CREDIT * CREDIT;
        let rest = self.credit.split_off(complete);
        let credits = std::mem::replace(&mut self.credit, rest);
        Ok(credits.last_chunk().map_or(Arrival::Other, |last| {
            Arrival::Credit(u64::from_le_bytes(*last))
        }))
    }

    /// Writes the pattern from `position` on; how much was taken.
    fn write(&mut self, position: u64, length: u64) -> Result<u64> {
        let start = narrow(position % widen(self.pattern.len()));
        let end = self.pattern.len().min(start + narrow(length));
        let piece = self.pattern.get(start..end).unwrap_or(&[]);
        let mut stream = self.stream.as_ref().ok_or(PerfError::PeerGone)?;
        match stream.write(piece) {
            Ok(taken) => {
                self.write_blocked = false;
                Ok(widen(taken))
            }
            Err(error) if would_block(&error) => {
                self.write_blocked = true;
                Ok(0)
            }
            Err(error) => Err(error).during("write to the TCP data connection"),
        }
    }
}

impl PingPong for Tcp {
    const LOSES: bool = false;

    fn send(&mut self, sequence: u64, watch: &mut Watch<'_>) -> Result<()> {
        self.sequence = sequence;
        let size = widen(self.size);
        let mut offset = 0;
        while offset < size {
            let taken = self.write(offset, size - offset)?;
            offset += taken;
            if taken == 0 && watch.idle(self.blocking)? == Idle::Stop {
                break;
            }
        }
        Ok(())
    }

    fn try_receive(&mut self) -> Result<Option<u64>> {
        let rest = self.size - narrow(self.received);
        if self.read(rest)?.is_none() || narrow(self.received) < self.size {
            return Ok(None);
        }
        self.received = 0;
        Ok(Some(self.sequence))
    }
}

impl Flow for Tcp {
    const LOSES: bool = false;

    fn start_round(&mut self, _round: u16) -> Result<()> {
        self.received = 0;
        Ok(())
    }

    fn transmit(&mut self, position: u64, length: u64) -> Result<u64> {
        self.write(position, length)
    }

    fn poll(&mut self, want: Want, may_wait: bool) -> Result<Arrival> {
        match want {
            Want::Credit => return self.read_credit(),
            Want::Data => {}
            Want::Both if self.blocking && may_wait => {
                let mut flags = PollFlags::POLLIN;
                flags.set(PollFlags::POLLOUT, self.write_blocked);
                wait_for(self.stream()?, flags)?;
            }
            Want::Both => {}
        }
        let limit = self.incoming.len();
        Ok(self
            .read(limit)?
            .map_or(Arrival::Nothing, |length| Arrival::Data {
                bytes: widen(length),
                end: None,
                record: None,
            }))
    }

    fn credit(&mut self, position: u64) -> Result<()> {
        let mut stream = self.stream()?;
        // Few bytes go this way: there is room for them.
        stream
            .write_all(&position.to_le_bytes())
            .during("write to the TCP data connection")
    }
}

/// A socket whose buffers grow as the kernel sees fit, as those of queue pairs do.
pub(super) fn socket(address: IpAddr) -> Result<Socket> {
    let domain = if address.is_ipv4() {
        Domain::IPV4
    } else {
        Domain::IPV6
    };
    Socket::new(domain, Type::STREAM, Some(Protocol::TCP)).during("open a TCP socket")
}

/// The length of a read; none without input.
fn read(stream: Option<&TcpStream>, buffer: &mut [u8]) -> Result<Option<usize>> {
    let mut stream = stream.ok_or(PerfError::PeerGone)?;
    match stream.read(buffer) {
        Ok(0) => Err(PerfError::PeerGone),
        Ok(length) => Ok(Some(length)),
        Err(error) if would_block(&error) => Ok(None),
        Err(error) => Err(error).during("read from the TCP data connection"),
    }
}

fn would_block(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted
    )
}

/// The next connection.
pub(super) fn accept(listener: &Socket) -> Result<TcpStream> {
    let mut fds = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
    let timeout = PollTimeout::try_from(CONNECT_TIMEOUT).unwrap_or(PollTimeout::ZERO);
    if poll(&mut fds, timeout).during("wait for the TCP data connection")? == 0 {
        return Err(PerfError::NoData {
            transport: "tcp",
            waited: CONNECT_TIMEOUT,
        });
    }
    let (socket, _) = listener.accept().during("accept the TCP data connection")?;
    Ok(socket.into())
}

fn wait_for(stream: &TcpStream, flags: PollFlags) -> Result<()> {
    let mut fds = [PollFd::new(stream.as_fd(), flags)];
    let timeout = PollTimeout::try_from(BLOCK_SLICE).unwrap_or(PollTimeout::ZERO);
    match poll(&mut fds, timeout) {
        Ok(_) | Err(Errno::EINTR) => Ok(()),
        Err(errno) => Err(errno).during("wait for the TCP data connection"),
    }
}
