//! Connections of sessions: dialled, or accepted at a port from the peer that has the token.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dgiwarp::Rnic;
use nix::poll::PollFlags;

use super::joins::Joins;
use super::{Control, Dial, Error, Join, Request};
use crate::carrier::{Arrival, Carrier, CarrierError, RcCarrier, RcPort, TcpCarrier};
use crate::engine::Outgoing;
use crate::protection::{Agreement, BlockProtection, Part, Secret};
use crate::wire::{self, Abort, Frame, Hello, KeyShare, Reason, Role};

/// Time for a connection to come up, and for the first frame on it.
const CONNECT: Duration = Duration::from_secs(4);

/// A connection for one session.
#[derive(Debug)]
pub struct Connection {
    pub(super) carrier: Carrier,
    /// The peer's HELLO, where it dialled.
    pub(super) hello: Option<Hello>,
    /// `taken` of the peer's frames so far.
    pub(super) taken: Vec<u32>,
    /// Frames that came behind those, and are not taken yet.
    pub(super) arrivals: Vec<Arrival>,
    /// Order for the peer, of an end that dials.
    pub(super) request: Vec<wire::Request>,
    pub(super) joins: Joins,
    /// Keys of blocks, where frames are protected.
    pub(super) blocks: Option<Arc<BlockProtection>>,
}

/// A port where one session is awaited.
#[derive(Debug)]
#[non_exhaustive]
pub enum Port {
    /// A queue pair is to be connected.
    Rc(RcPort),
    /// A TCP connection.
    Tcp(TcpListener),
}

impl Connection {
    /// Connects a queue pair.
    ///
    /// # Errors
    /// [`Error::Carrier`] within five seconds.
    pub fn rc(rnic: &Rnic, to: SocketAddr) -> Result<Self, Error> {
        let carrier = Carrier::Rc(Box::new(RcCarrier::connect(rnic, to)?));
        Ok(Self::of(carrier))
    }

    /// Connects by TCP.
    ///
    /// # Errors
    /// [`Error::Carrier`] within five seconds.
    pub fn tcp(to: SocketAddr) -> Result<Self, Error> {
        let carrier = Carrier::Tcp(Box::new(TcpCarrier::connect(to, CONNECT)?));
        Ok(Self::of(carrier))
    }

    fn of(carrier: Carrier) -> Self {
        Self {
            carrier,
            hello: None,
            taken: Vec::new(),
            arrivals: Vec::new(),
            request: Vec::new(),
            joins: Joins::None,
            blocks: None,
        }
    }

    /// Agrees with the peer on keys for a connection that was dialled: all that follows is encrypted and authenticated, but for the octets of blocks, which
    /// [`Options::encrypt`](super::Options::encrypt) is about and which are authenticated by their hashes. A peer with another secret shows in the session,
    /// whose connection is [lost](crate::CarrierError::Lost) before it begins.
    ///
    /// # Errors
    /// [`Error::Carrier`] if the peer has no part in it within four seconds, [`Error::System`] without random octets.
    pub fn protected(mut self, secret: &Secret, control: &Control) -> Result<Self, Error> {
        let agreement = Agreement::begin(secret, Part::Dialler)?;
        let refused = || CarrierError::Lost("it agreed on no keys".into());
        let share = Outgoing::Frame(Frame::KeyShare(agreement.share().clone()));
        self.carrier.send(0, &share)?;
        match self.next_frame(control) {
            Some((_, Frame::KeyShare(share))) if !self.has_early() => {
                let keys = agreement.finish(&share).ok_or_else(refused)?;
                self.carrier.protect(keys.frames);
                self.blocks = Some(Arc::new(keys.blocks));
                Ok(self)
            }
            _ if control.is_cancelled() => Err(Error::Cancelled),
            _ => Err(refused().into()),
        }
    }

    /// The other end of [`protected`](Self::protected), whose share came.
    fn answer(&mut self, share: &KeyShare, secrets: &[Secret]) -> Option<()> {
        if self.has_early() {
            return None;
        }
        let secret = secrets.iter().find(|it| it.is_of(share))?;
        let agreement = Agreement::begin(secret, Part::Listener).ok()?;
        let answer = Outgoing::Frame(Frame::KeyShare(agreement.share().clone()));
        let keys = agreement.finish(share)?;
        self.carrier.send(0, &answer).ok()?;
        self.carrier.protect(keys.frames);
        self.blocks = Some(Arc::new(keys.blocks));
        Some(())
    }

    /// Whether frames came behind the peer's share already, which are not protected: no proper peer sends any before it has this end's.
    fn has_early(&self) -> bool {
        !self.arrivals.is_empty() || self.carrier.has_found()
    }

    /// Whether frames are protected.
    #[must_use]
    pub fn is_protected(&self) -> bool {
        self.blocks.is_some()
    }

    /// Adds an order for the peer to a connection that was dialled.
    ///
    /// # Errors
    /// [`Error::Option`] for one that is too long.
    pub fn with_request(mut self, request: &Request) -> Result<Self, Error> {
        self.request = request.frames()?;
        Ok(self)
    }

    /// Whether the session began with an order.
    pub(super) fn is_ordered(&self) -> bool {
        !self.request.is_empty() || self.taken.len() > 1
    }

    /// Has the session dial further streams until it has `wanted`, in a thread of its own, where the peer takes them.
    #[must_use]
    pub fn with_streams(mut self, wanted: u16, dial: Dial) -> Self {
        self.joins = Joins::dialled(dial, Some(wanted));
        self
    }

    /// Has the session dial further streams, and use fewer again, by what they bring.
    #[must_use]
    pub fn with_tuned_streams(mut self, dial: Dial) -> Self {
        self.joins = Joins::dialled(dial, None);
        self
    }

    /// Lets further streams join the session of a connection that came. Connections that the listener gets for it go to [`Join::give`].
    ///
    /// # Errors
    /// The system's, where it has no random octets.
    pub fn joinable(&mut self, control: &Control) -> Result<Join, Error> {
        let mut key = [0; 16];
        getrandom::fill(&mut key).map_err(std::io::Error::other)?;
        let (joins, join) = Joins::taken(key, control);
        self.joins = joins;
        Ok(join)
    }

    /// Whether the peer wants to join a session as a further stream.
    #[must_use]
    pub fn is_joining(&self) -> bool {
        self.hello.is_some_and(|hello| hello.joins)
    }

    /// Part that the peer has, which dialled.
    #[must_use]
    pub fn peer_role(&self) -> Option<Role> {
        self.hello.map(|hello| hello.role)
    }

    /// Waits for the order of the peer, four seconds at most; `None` for a peer that sends something else.
    pub fn request(&mut self, control: &Control) -> Option<Request> {
        let mut request = Request::default();
        for _ in 0..Request::FRAMES {
            let (taken, frame) = self.next_frame(control)?;
            self.taken.push(taken);
            let Frame::Request(part) = frame else {
                return None;
            };
            let more = part.more;
            request.add(part);
            if !more {
                return Some(request);
            }
        }
        None
    }

    /// Ends a session before it began: the peer gets the reason.
    pub fn refuse(self, text: &str, control: &Control) {
        let mut carrier = self.carrier;
        let taken = u32::try_from(self.taken.len()).unwrap_or(0);
        let (reason, text) = (Reason::Failure, text.to_owned());
        let abort = Outgoing::Frame(Frame::Abort(Abort { reason, text }));
        if carrier.send(taken, &abort).is_ok() {
            linger(&mut carrier, control);
        }
    }

    /// Waits for the HELLO.
    fn hear(&mut self, control: &Control) -> Option<()> {
        let (taken, frame) = self.next_frame(control)?;
        let Frame::Hello(hello) = frame else {
            return None;
        };
        self.taken.push(taken);
        self.hello = Some(hello);
        Some(())
    }

    fn next_frame(&mut self, control: &Control) -> Option<(u32, Frame)> {
        if self.arrivals.is_empty() {
            await_frame(&mut self.carrier, &mut self.arrivals, control)?;
        }
        match self.arrivals.remove(0) {
            Arrival::Frame(taken, frame) => Some((taken, frame)),
            Arrival::Sent(_) | Arrival::Some => None,
        }
    }

    /// Whether the peer that dialled has this token. It is compared in a time that does not depend on where tokens differ.
    #[must_use]
    pub fn has_token(&self, token: &[u8; 16]) -> bool {
        let hello = self.hello.filter(|it| !it.joins);
        hello.is_some_and(|hello| is_equal(&hello.token, token))
    }
}

impl Port {
    /// Listens for a TCP connection.
    ///
    /// # Errors
    /// Errors of `bind(2)`.
    pub fn tcp(address: SocketAddr) -> Result<Self, Error> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(Self::Tcp(listener))
    }

    /// Listens for a queue pair.
    ///
    /// # Errors
    /// [`Error::Carrier`] if the port is taken.
    pub fn rc(rnic: &Rnic, address: SocketAddr) -> Result<Self, Error> {
        Ok(Self::Rc(RcPort::bind(rnic, address)?))
    }

    /// The address and port.
    ///
    /// # Errors
    /// Errors of `getsockname(2)`.
    pub fn local_addr(&self) -> Result<SocketAddr, Error> {
        match self {
            Self::Rc(port) => Ok(port.local_addr()),
            Self::Tcp(listener) => Ok(listener.local_addr()?),
        }
    }

    /// Waits for the peer that has the token; others, and those from another address than `from`, are passed over.
    ///
    /// # Errors
    /// [`Error::NoPeer`] if it does not come in time, [`Error::Cancelled`], [`Error::Carrier`] without memory.
    pub fn accept(
        &self,
        token: &[u8; 16],
        from: Option<IpAddr>,
        timeout: Duration,
        control: &Control,
    ) -> Result<Connection, Error> {
        let greet = |arriving: Arriving| arriving.greet(control);
        self.accept_by(greet, token, (from, timeout), control)
    }

    /// As [`accept`](Self::accept), with frames that are protected by keys of the token, which nobody else may know.
    ///
    /// # Errors
    /// [`Error`] as of `accept`.
    pub fn accept_protected(
        &self,
        token: &[u8; 16],
        from: Option<IpAddr>,
        timeout: Duration,
        control: &Control,
    ) -> Result<Connection, Error> {
        let secrets = [Secret::Preshared(*token)];
        let greet = |arriving: Arriving| arriving.greet_protected(&secrets, control).ok();
        self.accept_by(greet, token, (from, timeout), control)
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "an edge: the time to wait is a user's"
    )]
    fn accept_by(
        &self,
        greet: impl Fn(Arriving) -> Option<Connection>,
        token: &[u8; 16],
        (from, timeout): (Option<IpAddr>, Duration),
        control: &Control,
    ) -> Result<Connection, Error> {
        let end = Instant::now() + timeout;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if control.is_cancelled() {
                return Err(Error::Cancelled);
            }
            if left.is_zero() {
                return Err(Error::NoPeer);
            }
            let left = left.min(Duration::from_millis(500));
            let Some(arriving) = self.arrive(left, control)? else {
                continue;
            };
            let peer = arriving.peer().ip().to_canonical();
            if from.is_some_and(|from| from.to_canonical() != peer) {
                continue;
            }
            if let Some(connection) = greet(arriving)
                && connection.has_token(token)
            {
                return Ok(connection);
            }
        }
    }

    /// The next connection, whose peer is not known yet; `None` if there is none within the timeout.
    ///
    /// # Errors
    /// [`Error::Carrier`]: one connection that failed, or no memory or descriptors for one.
    pub fn arrive(&self, timeout: Duration, control: &Control) -> Result<Option<Arriving>, Error> {
        let arrived = self.next(timeout, control)?;
        Ok(arrived.map(|(carrier, peer)| Arriving { carrier, peer }))
    }

    fn next(
        &self,
        timeout: Duration,
        control: &Control,
    ) -> Result<Option<(Carrier, SocketAddr)>, Error> {
        match self {
            Self::Rc(port) => {
                let accepted = port.accept(timeout)?;
                Ok(accepted.map(|(carrier, peer)| (Carrier::Rc(Box::new(carrier)), peer)))
            }
            Self::Tcp(listener) => {
                let wait = control
                    .wake
                    .sleep(listener.as_fd(), PollFlags::POLLIN, timeout);
                wait?;
                match listener.accept() {
                    Ok((stream, peer)) => {
                        let carrier = TcpCarrier::new(stream)?;
                        Ok(Some((Carrier::Tcp(Box::new(carrier)), peer)))
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
                    // The peer has gone already.
                    Err(error) if error.kind() == ErrorKind::ConnectionAborted => Ok(None),
                    Err(error) => Err(error.into()),
                }
            }
        }
    }
}

/// A connection that came to a [`Port`] and has not sent its HELLO.
#[derive(Debug)]
pub struct Arriving {
    carrier: Carrier,
    peer: SocketAddr,
}

impl Arriving {
    /// Address of the peer.
    #[must_use]
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Waits for the HELLO, four seconds at most; `None` for a peer that sends none, or something else, such as one that wants protected frames.
    #[must_use]
    pub fn greet(self, control: &Control) -> Option<Connection> {
        let mut connection = Connection::of(self.carrier);
        connection.hear(control)?;
        Some(connection)
    }

    /// Agrees with the peer on keys by one of the secrets, then waits for its HELLO, four seconds at most each.
    ///
    /// # Errors
    /// [`Stranger`]: a peer that has none of them, or whose frames are not protected.
    pub fn greet_protected(
        self,
        secrets: &[Secret],
        control: &Control,
    ) -> Result<Connection, Stranger> {
        let mut connection = Connection::of(self.carrier);
        let Some((_, Frame::KeyShare(share))) = connection.next_frame(control) else {
            return Err(Stranger(Box::new(connection)));
        };
        if connection.answer(&share, secrets).is_none() || connection.hear(control).is_none() {
            return Err(Stranger(Box::new(connection)));
        }
        Ok(connection)
    }
}

/// A peer without the secret. Its connection ends with this, so that one that guesses can be held up.
#[derive(Debug)]
pub struct Stranger(#[expect(dead_code, reason = "it is held, not used")] Box<Connection>);

/// Waits for a frame, four seconds at most.
#[expect(
    clippy::disallowed_methods,
    reason = "an edge: the peer has so long for its first frames"
)]
fn await_frame(
    carrier: &mut Carrier,
    arrivals: &mut Vec<Arrival>,
    control: &Control,
) -> Option<()> {
    let until = Instant::now() + CONNECT;
    while arrivals.is_empty() && Instant::now() < until && !control.is_cancelled() {
        carrier.poll(arrivals).ok()?;
        arrivals.retain(|it| matches!(it, Arrival::Frame(..)));
        if arrivals.is_empty() {
            let left = until.saturating_duration_since(Instant::now());
            carrier.wait(&control.wake, left).ok()?;
        }
    }
    (!arrivals.is_empty()).then_some(())
}

/// Waits until the peer closes, four seconds at most.
fn linger(carrier: &mut Carrier, control: &Control) {
    while await_frame(carrier, &mut Vec::new(), control).is_some() {}
}

/// Compares in a time that does not depend on where they differ.
pub(super) fn is_equal(one: &[u8; 16], other: &[u8; 16]) -> bool {
    let differing = one.iter().zip(other).fold(0, |all, (a, b)| all | (a ^ b));
    differing == 0
}
