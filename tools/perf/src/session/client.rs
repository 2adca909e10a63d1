//! The client's side of a session: opening endpoints on both sides and running rounds.

use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::catalog::Mode;
use crate::endpoint::Endpoint;
use crate::error::{PerfError, Result};
use crate::machine::clock;
use crate::machine::host::{Pin, Placement, Side};
use crate::machine::interrupt::Interrupt;
use crate::session::control::{
    Control, EndpointSpec, Offer, PROTOCOL, Reply, Request, RoundReport,
};

/// How long resolving the name and connecting may take, each.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// A server, and what its clients have to give.
#[derive(Clone, Copy, Debug)]
pub(crate) struct At<'a> {
    /// Name or address.
    pub(crate) host: &'a str,
    /// Control port.
    pub(crate) port: u16,
    /// Empty where the server has none.
    pub(crate) token: &'a str,
}

impl<'a> At<'a> {
    /// A server that this process or its parent started.
    pub(crate) const fn own(host: &'a str, port: u16) -> Self {
        Self {
            host,
            port,
            token: "",
        }
    }
}

/// Connections to one server, or several for what is sent to a group, and the endpoints open on all sides.
#[derive(Debug)]
pub(crate) struct Session {
    servers: Vec<Server>,
    interrupt: Interrupt,
    members: Vec<Member>,
}

/// A connection to a server.
#[derive(Debug)]
struct Server {
    control: Control,
    /// Endpoints open there.
    opened: usize,
}

/// An endpoint that is open and connected on both sides.
#[derive(Debug)]
struct Member {
    endpoint: Endpoint,
    /// The number for it of each server that takes part.
    remotes: Vec<usize>,
}

/// The outcome of opening an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opened {
    /// Ready, as member of this number.
    Ready(usize),
    /// A ping of this size overruns a receive buffer of so many bytes.
    TooLargeToPing(u64),
}

/// One round of one member.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Round {
    /// Half round trips in nanoseconds (latency).
    pub(crate) samples: Vec<u64>,
    /// Messages sent by this side.
    pub(crate) messages: u64,
    /// Receptions of this side (both-direction streams).
    pub(crate) here: RoundReport,
    /// Receptions of the server (streams), or of all servers together.
    pub(crate) there: RoundReport,
    /// Bytes that each server received.
    pub(crate) received: Vec<u64>,
    /// From the first message to the last answer, seen from this side, in nanoseconds.
    pub(crate) wall_ns: u64,
}

impl Session {
    /// Without a server so far.
    pub(crate) const fn new(interrupt: Interrupt) -> Self {
        Self {
            servers: Vec::new(),
            interrupt,
            members: Vec::new(),
        }
    }

    /// Connects to one more server and agrees on versions.
    pub(crate) fn join(&mut self, at: At<'_>, pin: Pin) -> Result<Placement> {
        let mut control = Control::new(connect(at.host, at.port)?)?;
        let hello = Request::Hello {
            protocol: PROTOCOL,
            pin,
            token: at.token.to_owned(),
        };
        match control.call(&hello, &self.interrupt)? {
            Reply::Hello {
                protocol: PROTOCOL,
                placement,
            } => {
                self.servers.push(Server { control, opened: 0 });
                Ok(placement)
            }
            Reply::Hello { protocol, .. } => Err(PerfError::Protocol(format!(
                "the server speaks version {protocol}, this client {PROTOCOL}"
            ))),
            other => Err(unexpected(&other)),
        }
    }

    /// Servers connected to.
    pub(crate) const fn servers(&self) -> usize {
        self.servers.len()
    }

    /// Fails if the user asked to stop.
    pub(crate) fn check_interrupt(&self) -> Result<()> {
        self.interrupt.check()
    }

    /// Whether the user asked to stop.
    pub(crate) const fn interrupt(&self) -> &Interrupt {
        &self.interrupt
    }

    /// Closes the endpoints of the previous group on all sides.
    pub(crate) fn close_all(&mut self) -> Result<()> {
        self.members.clear();
        for server in &mut self.servers {
            server.opened = 0;
            server.expect_ready(&Request::CloseAll, &self.interrupt)?;
        }
        Ok(())
    }

    /// Opens and connects an endpoint here and on the first `receivers` servers.
    pub(crate) fn open(
        &mut self,
        spec: &EndpointSpec,
        receivers: usize,
        window: Option<u64>,
    ) -> Result<Opened> {
        let servers = self.servers.get_mut(..receivers).unwrap_or(&mut []);
        let mut remotes = Vec::new();
        let mut offers = Vec::new();
        for server in &mut *servers {
            offers.push(server.open(spec, &self.interrupt)?);
            remotes.push(server.opened - 1);
        }
        let Some(Server { control, .. }) = servers.first() else {
            return Err(PerfError::Protocol("no server".to_owned()));
        };
        let (mut endpoint, ours) = Endpoint::open(spec, control.local_ip()?, Side::Client)?;
        for (server, theirs) in servers.iter().zip(&offers) {
            endpoint.connect(server.control.peer_ip()?, theirs)?;
        }
        let geometry = endpoint.choose_geometry(window)?;
        if spec.mode == Mode::Lat && !endpoint.can_ping(&geometry) {
            return Ok(Opened::TooLargeToPing(endpoint.granted()));
        }
        let connect = Request::Connect {
            offer: ours,
            geometry,
        };
        for server in servers {
            server.expect_ready(&connect, &self.interrupt)?;
        }
        endpoint.configure(&geometry)?;
        self.members.push(Member { endpoint, remotes });
        Ok(Opened::Ready(self.members.len() - 1))
    }

    /// Runs one round of a member.
    pub(crate) fn round(&mut self, member: usize, mode: Mode, messages: u64) -> Result<Round> {
        let Some(Member { endpoint, remotes }) = self.members.get_mut(member) else {
            return Err(PerfError::Protocol("no such endpoint".to_owned()));
        };
        endpoint.start_round()?;
        for (server, &endpoint) in self.servers.iter_mut().zip(&*remotes) {
            let request = Request::Round { endpoint, messages };
            server.expect_ready(&request, &self.interrupt)?;
        }
        let control = match self.servers.first_mut() {
            Some(server) => &mut server.control,
            None => return Err(PerfError::Protocol("no server".to_owned())),
        };
        let mut round = Round {
            messages,
            ..Round::default()
        };
        let start = clock::now();
        if mode == Mode::Lat {
            let outcome = endpoint.ping(messages, control, &self.interrupt)?;
            round.samples = outcome.samples;
            round.messages = outcome.sent;
        } else {
            round.here = endpoint.round(messages, control, &self.interrupt)?;
        }
        round.wall_ns = clock::nanoseconds(start, clock::now());
        for server in self.servers.iter_mut().take(remotes.len()) {
            match server.control.call(&Request::Stop, &self.interrupt)? {
                Reply::Report(report) if round.received.is_empty() => {
                    round.received.push(report.received_bytes);
                    round.there = report;
                }
                Reply::Report(report) => {
                    round.received.push(report.received_bytes);
                    round.there.add(&report);
                }
                other => return Err(unexpected(&other)),
            }
        }
        Ok(round)
    }
}

impl Server {
    fn open(&mut self, spec: &EndpointSpec, interrupt: &Interrupt) -> Result<Offer> {
        let reply = self.control.call(&Request::Open(spec.clone()), interrupt)?;
        self.opened += 1;
        match reply {
            Reply::Opened(offer) => Ok(offer),
            other => Err(unexpected(&other)),
        }
    }

    fn expect_ready(&mut self, request: &Request, interrupt: &Interrupt) -> Result<()> {
        match self.control.call(request, interrupt)? {
            Reply::Ready => Ok(()),
            other => Err(unexpected(&other)),
        }
    }
}

fn unexpected(reply: &Reply) -> PerfError {
    PerfError::Protocol(format!("unexpected {reply:?}"))
}

/// Resolves and connects, each within [`CONNECT_TIMEOUT`].
fn connect(host: &str, port: u16) -> Result<TcpStream> {
    let mut last = std::io::ErrorKind::AddrNotAvailable.into();
    let deadline = clock::now() + CONNECT_TIMEOUT;
    for address in resolve(host, port)? {
        let left = deadline.saturating_duration_since(clock::now());
        if left.is_zero() {
            break;
        }
        match TcpStream::connect_timeout(&address, left) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(PerfError::Connect {
        host: host.to_owned(),
        port,
        source: last,
    })
}

/// The system's resolver has time-outs far beyond ours, so it runs in a thread that is left
/// behind if it takes too long.
fn resolve(host: &str, port: u16) -> Result<Vec<SocketAddr>> {
    let failed = |reason: String| PerfError::Resolve {
        host: host.to_owned(),
        reason,
    };
    let (sender, receiver) = mpsc::channel();
    let name = host.to_owned();
    thread::spawn(move || {
        let found = (name.as_str(), port)
            .to_socket_addrs()
            .map(Iterator::collect::<Vec<_>>);
        // Nobody listens any more if it took too long.
        let _ = sender.send(found);
    });
    match receiver.recv_timeout(CONNECT_TIMEOUT) {
        Ok(Ok(addresses)) => Ok(addresses),
        Ok(Err(error)) => Err(failed(error.to_string())),
        Err(_) => Err(failed(format!("no answer within {CONNECT_TIMEOUT:?}"))),
    }
}
