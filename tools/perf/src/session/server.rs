//! The server: one session after the other, each under the control of its client.

use std::io::Write;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;

use crate::cli::ServerArgs;
use crate::endpoint::Endpoint;
use crate::error::{IoContext, PerfError, Result};
use crate::machine::host::{Pin, Placement, Side, allowed_cpus};
use crate::machine::interrupt::Interrupt;
use crate::session::control::{Control, PROTOCOL, Reply, Request};

/// A client that sends nothing for this long between rounds loses its session.
const SESSION_TIMEOUT: Duration = Duration::from_secs(5);
/// The parent of a child may measure other things between two rounds.
const PARENT_TIMEOUT: Duration = Duration::from_secs(60);
/// A connection that sends nothing at its start is not a client.
const HELLO_TIMEOUT: Duration = Duration::from_secs(2);
/// Endpoints of one session; a run opens as many as a comparison has members.
const MAX_ENDPOINTS: usize = 16;

/// A child that no client reaches ends after this long.
const CHILD_TIMEOUT: Duration = Duration::from_secs(10);

/// Ends this process when its parent does, which started it for one run.
pub(crate) fn follow_parent() -> Result<()> {
    set_pdeathsig(Signal::SIGKILL).during("follow the parent process")
}

/// Serves clients until the process is stopped, or with `once` a single one.
///
/// Prints the address it listens on as the first line of standard output, and the token that clients have to give as the second one if it was not
/// chosen by the user. Only who can start a program on this machine needs none.
pub(crate) fn serve(bind: IpAddr, args: &ServerArgs) -> Result<()> {
    let once = args.child;
    let terms = Terms {
        allowed: allowed_cpus()?,
        token: match &args.token {
            Some(token) => token.clone(),
            None if once || bind.to_canonical().is_loopback() => String::new(),
            None => random_token()?,
        },
        patience: if once {
            PARENT_TIMEOUT
        } else {
            SESSION_TIMEOUT
        },
    };
    let listener =
        TcpListener::bind(SocketAddr::new(bind, args.port)).during("listen on the control port")?;
    let address = listener.local_addr().during("read the control port")?;
    let mut stdout = std::io::stdout();
    writeln!(stdout, "listening on {address}")
        .and_then(|()| match &args.token {
            None if !terms.token.is_empty() => {
                writeln!(stdout, "clients need --token {}", terms.token)
            }
            _ => Ok(()),
        })
        .and_then(|()| stdout.flush())
        .during("write to standard output")?;
    if once {
        let mut fds = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
        let timeout = PollTimeout::try_from(CHILD_TIMEOUT).unwrap_or(PollTimeout::ZERO);
        if poll(&mut fds, timeout).during("wait for the client")? == 0 {
            return Err(PerfError::PeerSilent(CHILD_TIMEOUT));
        }
    }
    loop {
        let (stream, peer) = match listener.accept() {
            Ok(accepted) => accepted,
            Err(error) if is_transient(&error) => continue,
            Err(error) => return Err(error).during("accept a control connection"),
        };
        let outcome = session(stream, &terms);
        if once {
            return outcome;
        }
        match outcome {
            Ok(()) => {}
            Err(error) => eprintln!("dgiwarp-perf: session with {peer}: {error}"),
        }
    }
}

fn random_token() -> Result<String> {
    let mut random = [0; 8];
    getrandom::fill(&mut random)
        .map_err(std::io::Error::other)
        .during("make a token")?;
    Ok(format!("{:016x}", u64::from_ne_bytes(random)))
}

fn is_transient(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        std::io::ErrorKind::Interrupted | std::io::ErrorKind::ConnectionAborted
    )
}

/// Conditions of all sessions.
struct Terms {
    /// CPUs of the process at its start.
    allowed: Vec<usize>,
    /// Empty where none is asked for.
    token: String,
    /// A client that is silent for longer loses its session.
    patience: Duration,
}

/// One client from its first to its last message.
fn session(stream: TcpStream, terms: &Terms) -> Result<()> {
    let mut session = Session {
        control: Control::new(stream)?,
        interrupt: Interrupt::none(),
        endpoints: Vec::new(),
        patience: terms.patience,
    };
    let outcome = session.hello(terms).and_then(|()| session.serve_requests());
    match outcome {
        Ok(()) | Err(PerfError::PeerGone) => Ok(()),
        Err(error) => {
            // The client may be gone; then the report is lost.
            let _ = session.control.send(&Reply::Failed(error.to_string()));
            Err(error)
        }
    }
}

struct Session {
    control: Control,
    interrupt: Interrupt,
    endpoints: Vec<Endpoint>,
    patience: Duration,
}

impl Session {
    fn hello(&mut self, terms: &Terms) -> Result<()> {
        match self.control.receive(HELLO_TIMEOUT, &self.interrupt)? {
            Request::Hello {
                protocol: PROTOCOL,
                pin,
                token,
            } => {
                if token != terms.token {
                    return Err(PerfError::Usage(
                        "the token is not this server's (client --token)".to_owned(),
                    ));
                }
                if let Pin::Cpu(cpu) = pin
                    && !terms.allowed.contains(&cpu)
                {
                    return Err(PerfError::Usage(format!(
                        "CPU {cpu} is not one of this server's"
                    )));
                }
                let placement = Placement::pin(&terms.allowed, pin, Side::Server)?;
                self.control.send(&Reply::Hello {
                    protocol: PROTOCOL,
                    placement,
                })
            }
            Request::Hello { protocol, .. } => Err(PerfError::Protocol(format!(
                "the client speaks version {protocol}, this server {PROTOCOL}"
            ))),
            other => Err(PerfError::Protocol(format!("{other:?} before hello"))),
        }
    }

    fn serve_requests(&mut self) -> Result<()> {
        loop {
            let request = self.control.receive(self.patience, &self.interrupt)?;
            let reply = self.answer(request)?;
            self.control.send(&reply)?;
        }
    }

    fn answer(&mut self, request: Request) -> Result<Reply> {
        match request {
            Request::Open(spec) => {
                if self.endpoints.len() == MAX_ENDPOINTS {
                    return Err(PerfError::Protocol("too many endpoints".to_owned()));
                }
                let local = self.control.local_ip()?;
                let (endpoint, offer) = Endpoint::open(&spec, local, Side::Server)?;
                self.endpoints.push(endpoint);
                Ok(Reply::Opened(offer))
            }
            Request::Connect { offer, geometry } => {
                let peer = self.control.peer_ip()?;
                let endpoint = self.endpoints.last_mut().ok_or_else(no_endpoint)?;
                endpoint.connect(peer, &offer)?;
                endpoint.configure(&geometry)?;
                Ok(Reply::Ready)
            }
            Request::Round { endpoint, messages } => self.round(endpoint, messages),
            Request::CloseAll => {
                self.endpoints.clear();
                Ok(Reply::Ready)
            }
            Request::Hello { .. } | Request::Stop => {
                Err(PerfError::Protocol(format!("{request:?} out of turn")))
            }
        }
    }

    /// Says ready, plays its part, and answers the client's stop.
    fn round(&mut self, endpoint: usize, messages: u64) -> Result<Reply> {
        let endpoint = self.endpoints.get_mut(endpoint).ok_or_else(no_endpoint)?;
        endpoint.start_round()?;
        self.control.send(&Reply::Ready)?;
        let mut report = endpoint.round(messages, &mut self.control, &self.interrupt)?;
        match self.control.receive(self.patience, &self.interrupt)? {
            Request::Stop => {
                endpoint.finish(&mut report)?;
                Ok(Reply::Report(report))
            }
            other => Err(PerfError::Protocol(format!("{other:?} instead of stop"))),
        }
    }
}

fn no_endpoint() -> PerfError {
    PerfError::Protocol("no such endpoint".to_owned())
}
