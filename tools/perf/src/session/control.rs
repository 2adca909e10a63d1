//! The control channel: a TCP connection with one JSON document per line, in strict turns of
//! request (client) and reply (server). It negotiates each measurement and carries no data;
//! the data sockets and queue pairs have ports of their own, exchanged here.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpStream};
use std::os::fd::AsRawFd;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::catalog::{Mode, Subject};
use crate::cli::DEFAULT_RECEIVE_BUFFER;
use crate::endpoint::loss::DEFAULT_MTU;
use crate::endpoint::pattern::narrow;
use crate::error::{IoContext, PerfError, Result};
use crate::machine::clock;
use crate::machine::footprint::Footprint;
use crate::machine::host::{Pin, Placement, Wait};
use crate::machine::interrupt::Interrupt;
use crate::measure::Geometry;

/// Version of this protocol; both sides must have the same.
pub(crate) const PROTOCOL: u32 = 9;

/// How long the peer may take to answer before it counts as failed.
pub(crate) const REPLY_TIMEOUT: Duration = Duration::from_secs(4);

/// A control line longer than this is not ours.
const MAX_LINE: usize = 64 * 1024;

/// Blocking reads return this often to check the interrupt flag.
const READ_SLICE: Duration = Duration::from_millis(100);

/// Requests of the client.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Request {
    /// The first message: versions, and where the server is to run.
    Hello {
        /// [`PROTOCOL`] of the client.
        protocol: u32,
        /// The CPU wanted for the server.
        pin: Pin,
        /// The server's token; empty where it has none.
        token: String,
    },
    /// Open the server's half of an endpoint.
    Open(EndpointSpec),
    /// Connect the half opened last to the client's half.
    Connect {
        /// Where the client's half is.
        offer: Offer,
        /// The sizes both sides use from now on.
        geometry: Geometry,
    },
    /// Take part in one round on the endpoint with this number.
    Round {
        /// The endpoint, numbered from 0 in the order of opening.
        endpoint: usize,
        /// Messages to expect (and to send, in both-direction mode).
        messages: u64,
    },
    /// The client is done with the round.
    Stop,
    /// Close all endpoints.
    CloseAll,
}

/// Replies of the server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Reply {
    /// Answer to [`Request::Hello`].
    Hello {
        /// [`PROTOCOL`] of the server.
        protocol: u32,
        /// Where it runs.
        placement: Placement,
    },
    /// Answer to [`Request::Open`].
    Opened(Offer),
    /// Answer to [`Request::Connect`], [`Request::CloseAll`], [`Request::Round`].
    Ready,
    /// Answer to [`Request::Stop`].
    Report(RoundReport),
    /// The request, or the round, failed; the session is over.
    Failed(String),
}

/// The description of an endpoint, needed by both sides before they open their halves.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct EndpointSpec {
    /// Transport and operation.
    pub(crate) subject: Subject,
    /// The measurement.
    pub(crate) mode: Mode,
    /// Payload bytes of a message; in idle mode, connections.
    pub(crate) size: u64,
    /// How both sides wait.
    pub(crate) wait: Wait,
    /// Receive buffer to ask the kernel for, in bytes.
    pub(crate) receive_buffer: usize,
    /// Whether contents are compared.
    pub(crate) check: bool,
    /// Largest MTU to assume of the path, in bytes; 0 takes the path's own.
    pub(crate) mtu: u32,
    /// The share of datagrams that the receiver of the data drops on purpose, 0 to 0.5.
    pub(crate) loss: f64,
    /// Seed of what is dropped.
    pub(crate) seed: u64,
    /// Messages that the sender hands over in one call, where there are no others than those of `size`.
    pub(crate) list: u32,
    /// Whether messages that queue pairs post back to back leave together.
    pub(crate) autocork: bool,
    /// Where the receivers are members, if there may be several.
    pub(crate) group: Option<GroupSpec>,
}

impl EndpointSpec {
    /// One with default settings, polled. Loss mode takes an MTU of Ethernet's size.
    pub(crate) fn new(subject: Subject, mode: Mode, size: u64) -> Self {
        Self {
            subject,
            mode,
            size,
            wait: Wait::Spin,
            receive_buffer: narrow(DEFAULT_RECEIVE_BUFFER),
            check: false,
            mtu: if mode == Mode::Loss { DEFAULT_MTU } else { 0 },
            loss: 0.0,
            seed: 1,
            list: 1,
            autocork: true,
            group: None,
        }
    }

    /// The share of datagrams dropped on purpose, in loss mode.
    pub(crate) fn loss_rate(&self) -> Option<f64> {
        (self.mode == Mode::Loss).then_some(self.loss)
    }
}

/// A group address with its port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct GroupSpec {
    /// The broadcast or multicast address.
    pub(crate) address: Ipv4Addr,
    /// The port of all members.
    pub(crate) port: u16,
}

/// One side's half of an endpoint, as the other needs it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Offer {
    /// Ports of the data sockets, or the UDP port of the queue pair (its number).
    pub(crate) ports: Vec<u16>,
    /// The receive buffer the kernel granted, in its own accounting.
    pub(crate) receive_buffer: u64,
    /// The target region of one-sided operations.
    pub(crate) region: Option<RemoteRegion>,
    /// Identifies the endpoint's incarnation where the transport has such a notion.
    pub(crate) qkey: Option<u32>,
    /// The server's memory, where both processes share it.
    pub(crate) memory: Option<SharedMemory>,
}

/// A file of a process on this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SharedMemory {
    /// The process.
    pub(crate) process: u32,
    /// Its descriptor of the file.
    pub(crate) descriptor: i32,
    /// First octets of the file.
    pub(crate) token: u64,
}

/// Registered memory that the peer may write to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RemoteRegion {
    /// The STag.
    pub(crate) stag: u32,
    /// The tagged offset of its first byte.
    pub(crate) base: u64,
    /// Its length in bytes.
    pub(crate) length: u64,
}

/// Receptions of one side in a round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct RoundReport {
    /// Payload bytes that arrived.
    pub(crate) received_bytes: u64,
    /// Of these, the bytes of the first arrival, which started the clock.
    pub(crate) first_bytes: u64,
    /// From first to last arrival, in nanoseconds.
    pub(crate) elapsed_ns: u64,
    /// Messages with at least one byte missing, where the transport reports it.
    pub(crate) records_with_holes: u64,
    /// Gaps in these messages.
    pub(crate) holes: u64,
    /// Messages the transport reported with a validity map.
    pub(crate) records: u64,
    /// Messages that arrived completely, where the transport reports it.
    pub(crate) complete: u64,
    /// Counts of datagrams, where some are dropped on purpose.
    pub(crate) datagrams: Datagrams,
    /// Memory of each end of this side's idle connections.
    pub(crate) footprint: Footprint,
    /// User and system CPU time of this side, in nanoseconds.
    pub(crate) cpu_ns: u64,
}

impl RoundReport {
    /// Adds the receptions of another receiver of the round.
    pub(crate) fn add(&mut self, other: &Self) {
        self.received_bytes += other.received_bytes;
        self.first_bytes += other.first_bytes;
        self.elapsed_ns = self.elapsed_ns.max(other.elapsed_ns);
        self.complete += other.complete;
        self.cpu_ns += other.cpu_ns;
    }
}

/// Datagrams of a round in which some are dropped on purpose, as one side counted them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Datagrams {
    /// Sent by this side, marks included.
    pub(crate) sent: u64,
    /// Of these, or of those received: marks, which carry the position of the sender.
    pub(crate) marks: u64,
    /// Dropped on purpose by this side, marks included.
    pub(crate) dropped: u64,
    /// Dropped by this side for another reason.
    pub(crate) refused: u64,
    /// Whose payload lies in a message of this side, marked valid where there are validity maps.
    pub(crate) valid: u64,
}

/// Input that waits on the control connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pending {
    /// Nothing.
    Nothing,
    /// At least the beginning of a message.
    Message,
    /// The peer closed the connection.
    Closed,
}

/// One side of the control connection.
#[derive(Debug)]
pub(crate) struct Control {
    stream: TcpStream,
    unread: Vec<u8>,
}

impl Control {
    /// Takes over a connected stream.
    pub(crate) fn new(stream: TcpStream) -> Result<Self> {
        stream
            .set_nodelay(true)
            .during("set NODELAY on the control connection")?;
        stream
            .set_read_timeout(Some(READ_SLICE))
            .during("set the control connection's timeout")?;
        stream
            .set_write_timeout(Some(REPLY_TIMEOUT))
            .during("set the control connection's timeout")?;
        Ok(Self {
            stream,
            unread: Vec::new(),
        })
    }

    /// The address on this machine; the data sockets bind to it.
    pub(crate) fn local_ip(&self) -> Result<IpAddr> {
        let address = self.stream.local_addr().during("read the local address")?;
        Ok(address.ip().to_canonical())
    }

    /// The address of the peer; the data sockets connect to it.
    pub(crate) fn peer_ip(&self) -> Result<IpAddr> {
        let address = self.stream.peer_addr().during("read the peer's address")?;
        Ok(address.ip().to_canonical())
    }

    /// Sends one message.
    pub(crate) fn send<T: Serialize>(&mut self, message: &T) -> Result<()> {
        let mut line =
            serde_json::to_vec(message).map_err(|error| PerfError::Protocol(error.to_string()))?;
        line.push(b'\n');
        self.stream.write_all(&line).map_err(gone_or_io)
    }

    /// Receives one message, waiting at most `timeout`.
    pub(crate) fn receive<T: DeserializeOwned>(
        &mut self,
        timeout: Duration,
        interrupt: &Interrupt,
    ) -> Result<T> {
        let deadline = clock::now() + timeout;
        loop {
            if let Some(end) = self.unread.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.unread.drain(..=end).collect();
                return serde_json::from_slice(&line)
                    .map_err(|error| PerfError::Protocol(error.to_string()));
            }
            interrupt.check()?;
            if self.unread.len() > MAX_LINE {
                return Err(PerfError::Protocol("an endless line".to_owned()));
            }
            if clock::now() > deadline {
                return Err(PerfError::PeerSilent(timeout));
            }
            let mut piece = [0; 4096];
            match self.stream.read(&mut piece) {
                Ok(0) => return Err(PerfError::PeerGone),
                Ok(length) => self.unread.extend(piece.iter().take(length)),
                Err(error) if is_transient(&error) => {}
                Err(error) => return Err(gone_or_io(error)),
            }
        }
    }

    /// Sends a request and waits for its reply; a [`Reply::Failed`] becomes an error.
    pub(crate) fn call(&mut self, request: &Request, interrupt: &Interrupt) -> Result<Reply> {
        self.send(request)?;
        match self.receive(REPLY_TIMEOUT, interrupt)? {
            Reply::Failed(reason) => Err(PerfError::PeerFailed(reason)),
            reply => Ok(reply),
        }
    }

    /// Checks, without waiting, whether the peer sent something or left.
    pub(crate) fn pending(&self) -> Result<Pending> {
        if !self.unread.is_empty() {
            return Ok(Pending::Message);
        }
        let mut byte = [0];
        let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
        match recv(self.stream.as_raw_fd(), &mut byte, flags) {
            Ok(0) | Err(Errno::ECONNRESET) => Ok(Pending::Closed),
            Ok(_) => Ok(Pending::Message),
            Err(Errno::EAGAIN | Errno::EINTR) => Ok(Pending::Nothing),
            Err(errno) => Err(errno).during("look at the control connection"),
        }
    }
}

/// A read that timed out or was interrupted by a signal may be tried again.
fn is_transient(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted
    )
}

fn gone_or_io(source: io::Error) -> PerfError {
    match source.kind() {
        io::ErrorKind::BrokenPipe
        | io::ErrorKind::ConnectionReset
        | io::ErrorKind::ConnectionAborted => PerfError::PeerGone,
        _ => PerfError::Io {
            what: "use the control connection",
            source,
        },
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn pair() -> (Control, Control) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (far, _) = listener.accept().unwrap();
        (Control::new(near).unwrap(), Control::new(far).unwrap())
    }

    #[test]
    fn messages_keep_their_boundaries_however_they_arrive() {
        let (mut near, mut far) = pair();
        let quiet = Interrupt::none();
        near.send(&Request::Stop).unwrap();
        near.send(&Request::CloseAll).unwrap();
        assert_eq!(
            far.receive::<Request>(REPLY_TIMEOUT, &quiet).unwrap(),
            Request::Stop
        );
        assert_eq!(far.pending().unwrap(), Pending::Message);
        assert_eq!(
            far.receive::<Request>(REPLY_TIMEOUT, &quiet).unwrap(),
            Request::CloseAll
        );
        assert_eq!(far.pending().unwrap(), Pending::Nothing);
        drop(near);
        assert!(matches!(
            far.receive::<Request>(REPLY_TIMEOUT, &quiet),
            Err(PerfError::PeerGone)
        ));
        assert_eq!(far.pending().unwrap(), Pending::Closed);
    }

    #[test]
    fn a_silent_peer_and_a_stranger_are_told_apart() {
        let (mut near, mut far) = pair();
        let quiet = Interrupt::none();
        assert!(matches!(
            far.receive::<Request>(Duration::from_millis(50), &quiet),
            Err(PerfError::PeerSilent(_))
        ));
        near.stream.write_all(b"GET / HTTP/1.0\r\n").unwrap();
        assert!(matches!(
            far.receive::<Request>(REPLY_TIMEOUT, &quiet),
            Err(PerfError::Protocol(_))
        ));
    }

    #[test]
    fn a_failed_reply_is_an_error_of_the_call() {
        let (mut near, mut far) = pair();
        far.send(&Reply::Failed("no such thing".to_owned()))
            .unwrap();
        assert!(matches!(
            near.call(&Request::Stop, &Interrupt::none()),
            Err(PerfError::PeerFailed(reason)) if reason == "no such thing"
        ));
    }
}
