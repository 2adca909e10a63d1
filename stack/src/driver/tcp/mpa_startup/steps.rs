//! One startup: its stages, and what each does when its socket is ready.

use std::io::{self, Read};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use dgiwarp_llp_tcp_mpa::{Connection, Error, Event, TcpEnd};

use super::Failure;
use crate::MpaConfig;
use crate::driver::device::clock;
use crate::driver::reactor::io_set::IoId;
use crate::driver::tcp::{liveness, socket as tcp};
use dgiwarp_engine::cm::connect::{refuse_reply, startup_config};
use dgiwarp_engine::connected::LINGER_FOR;

/// Longest startup frame.
const FRAME: usize = 532;
/// Reads in a row from a connection that is only read to its end.
const READS: usize = 64;
/// How long TCP has to reach a peer.
pub(super) const TCP_HAS: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct Startup {
    pub(super) stream: TcpStream,
    pub(super) peer: SocketAddr,
    pub(super) context: u64,
    /// Time limit of all stages.
    pub(super) until: Instant,
    pub(super) stage: Stage,
    /// The listener that it came from.
    pub(super) listener: Option<IoId>,
}

#[derive(Debug)]
pub(super) enum Stage {
    /// TCP connects; the MPA Request follows, or the answer to a port query before it.
    Connecting(MpaConfig, Vec<u8>, AfterTcp),
    /// TCP is connected, and the answer to a port query awaited.
    Held(MpaConfig, Vec<u8>),
    /// The frames are exchanged.
    Exchanging(Box<Connection>),
    /// This end has accepted, with this event; the first octet of the peer confirms.
    Confirming(Box<Connection>, Box<Event>),
    /// The request was rejected; the socket is only read to its end.
    Lingering,
}

/// Next step of a startup whose TCP connection is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AfterTcp {
    /// The MPA Request leaves.
    Request,
    /// The MPA Request leaves when [`MpaStartups::release`] is called, or after the time that a port query has for its answer.
    Hold,
}

/// A connection that is only read to its end.
pub(super) fn lingering(stream: TcpStream, peer: SocketAddr) -> Startup {
    let until = clock::now() + LINGER_FOR;
    Startup {
        stream,
        peer,
        context: 0,
        until,
        stage: Stage::Lingering,
        listener: None,
    }
}

/// Refuses the Reply of a Responder, and ends our half of the stream.
pub(super) fn refuse(stream: &TcpStream, mpa: &mut Connection, error: Error) -> io::Result<()> {
    if !refuse_reply(mpa, error) {
        return Err(io::ErrorKind::Unsupported.into());
    }
    tcp::transmit_all(stream, mpa)?;
    stream.shutdown(Shutdown::Write)
}

pub(super) fn timed_out() -> Failure {
    Failure::Tcp(io::Error::from_raw_os_error(nix::libc::ETIMEDOUT))
}

/// Result of one step of a startup.
pub(super) enum Step {
    /// The socket has no more for now.
    Wait,
    /// TCP is connected, and our Request waits.
    Held,
    /// TCP is connected and our Request on its way.
    Connected,
    /// The startup is over, with the octets that arrived behind its last frame.
    Event(Event, Vec<u8>),
    Failed(Failure),
    /// A rejected one is at its end.
    Left,
}

impl Startup {
    /// Whether this end connects, under this number.
    pub(super) fn is_of(&self, context: u64) -> bool {
        let connects = match self.stage {
            Stage::Connecting(..)
            | Stage::Held(..)
            | Stage::Exchanging(_)
            | Stage::Confirming(..) => self.listener.is_none(),
            Stage::Lingering => false,
        };
        connects && self.context == context
    }

    pub(super) fn step(&mut self) -> Step {
        match &mut self.stage {
            Stage::Connecting(mpa, private_data, AfterTcp::Hold) if tcp::is_open(&self.stream) => {
                let (mpa, private_data) = (mpa.clone(), std::mem::take(private_data));
                self.stage = Stage::Held(mpa, private_data);
                Step::Held
            }
            Stage::Connecting(mpa, private_data, _) | Stage::Held(mpa, private_data) => {
                match request(&self.stream, mpa, private_data) {
                    Ok(connection) => {
                        self.stage = Stage::Exchanging(Box::new(connection));
                        Step::Connected
                    }
                    Err(failure) => Step::Failed(failure),
                }
            }
            Stage::Exchanging(connection) => exchange(&self.stream, connection),
            Stage::Confirming(_, event) => confirm(&self.stream, event),
            Stage::Lingering => leave(&self.stream),
        }
    }
}

/// TCP has connected, or failed to: sends the Request.
fn request(
    stream: &TcpStream,
    mpa: &MpaConfig,
    private_data: &[u8],
) -> Result<Connection, Failure> {
    if let Some(error) = stream.take_error().map_err(Failure::Tcp)? {
        return Err(Failure::Tcp(error));
    }
    if tcp::is_own_end(stream) {
        let refused = io::Error::from_raw_os_error(nix::libc::ECONNREFUSED);
        return Err(Failure::Tcp(refused));
    }
    // The program's decision may take long, but keepalive finds a host that is gone.
    liveness::keep_alive(stream, TCP_HAS).map_err(Failure::Tcp)?;
    let emss = tcp::emss(stream).map_err(Failure::Tcp)?;
    let config = startup_config(mpa, emss, tcp::is_local(stream));
    let mut connection =
        Connection::initiator(clock::now(), config, private_data).map_err(Failure::Config)?;
    tcp::transmit_all(stream, &mut connection).map_err(Failure::Tcp)?;
    Ok(connection)
}

/// Reads frames of the peer.
fn exchange(mut stream: &TcpStream, mpa: &mut Connection) -> Step {
    let mut buffer = [0; FRAME];
    loop {
        let now = clock::now();
        let mut rest = match stream.read(&mut buffer) {
            Ok(0) => {
                mpa.handle_end(now, TcpEnd::Fin);
                &buffer[..0]
            }
            Ok(len) => &buffer[..len],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Step::Wait,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                mpa.handle_end(now, TcpEnd::Lost);
                &buffer[..0]
            }
            Err(error) => return Step::Failed(Failure::Tcp(error)),
        };
        loop {
            if let Some(event) = mpa.poll_event() {
                return behind(mpa, now, event, rest);
            }
            if rest.is_empty() {
                break;
            }
            // No ULPDU comes before the event that begins full operation.
            let _ = mpa.handle_input(now, &mut rest);
        }
    }
}

/// Whether the peer has sent something; the octets stay in the socket (`MSG_PEEK`).
fn confirm(stream: &TcpStream, event: &Event) -> Step {
    match stream.peek(&mut [0]) {
        Ok(0) => Step::Failed(Failure::Mpa(Error::ClosedInStartup)),
        Ok(_) => Step::Event(event.clone(), Vec::new()),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Step::Wait,
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Step::Wait,
        Err(error) => Step::Failed(Failure::Tcp(error)),
    }
}

/// Reads and discards octets of the peer.
fn leave(mut stream: &TcpStream) -> Step {
    let mut buffer = [0; FRAME];
    // Bounded: a peer that goes on sending is read again later, until its deadline.
    for _ in 0..READS {
        match stream.read(&mut buffer) {
            Ok(0) => return Step::Left,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Step::Wait,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return Step::Left,
        }
    }
    Step::Wait
}

/// The startup's event, and the octets that arrived behind its last frame.
fn behind(mpa: &mut Connection, now: Instant, event: Event, mut rest: &[u8]) -> Step {
    if matches!(event, Event::Request(_)) && !rest.is_empty() {
        // Nothing may follow a Request before its Reply; MPA reports the error.
        let _ = mpa.handle_input(now, &mut rest);
        let event = mpa.poll_event().unwrap_or(event);
        return Step::Event(event, Vec::new());
    }
    Step::Event(event, rest.to_vec())
}
