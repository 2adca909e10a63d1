//! Connection establishment: TCP's handshake and the MPA startup, any number at a time.
//!
//! Nothing here waits. A waiting program or the background thread calls [`MpaStartups::progress`] when [`MpaStartups::fd`] is readable or
//! [`MpaStartups::poll_timeout`] is reached, and takes results with [`MpaStartups::take`].

mod steps;

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use dgiwarp_llp_tcp_mpa::{ConfigError, Connection, Error, Event};
use nix::sys::epoll::EpollFlags;
use parking_lot::Mutex;
use socket2::Socket;

pub(crate) use self::steps::AfterTcp;
use self::steps::{Stage, Startup, Step, TCP_HAS, lingering, refuse, timed_out};
use crate::MpaConfig;
use crate::driver::device::clock;
use crate::driver::reactor::io_set::{Cause, IoId, IoSet, Locked};
use crate::driver::tcp::socket as tcp;
use dgiwarp_engine::cm::connect::{AttemptFailure, startup_config};
use dgiwarp_engine::cm::half_open::{HalfOpen, Room};
use dgiwarp_engine::cm::ports::patience;

/// Connections that a listener takes before others get their turn.
const ACCEPTS: usize = 64;
/// How long a listener rests when there is no descriptor for another connection.
const REST: Duration = Duration::from_millis(100);

/// Result of a startup.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// MPA came to an event.
    Mpa {
        /// Request, establishment or rejection.
        event: Event,
        /// MPA state of the connection.
        connection: Box<Connection>,
        /// Its TCP connection.
        stream: TcpStream,
        /// Octets that arrived behind the last startup frame.
        rest: Vec<u8>,
    },
    /// TCP or MPA failed.
    Failed(Failure),
}

impl Outcome {
    /// The failure, if it is one that another attempt may follow.
    pub(crate) fn attempt_failure(&self) -> Option<AttemptFailure> {
        match self {
            Self::Failed(Failure::Mpa(Error::ClosedInStartup | Error::TcpLost)) => {
                Some(AttemptFailure::Closed)
            }
            Self::Failed(Failure::Tcp(error))
                if error.kind() == io::ErrorKind::ConnectionRefused =>
            {
                Some(AttemptFailure::Refused)
            }
            Self::Failed(_) | Self::Mpa { .. } => None,
        }
    }
}

/// Why a startup failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// TCP could not connect, or was lost.
    Tcp(io::Error),
    /// MPA failed.
    Mpa(Error),
    /// Our own request cannot be encoded.
    Config(ConfigError),
}

/// End of an MPA startup: a connection, a rejection or an error.
#[derive(Debug)]
pub(crate) struct StartupResult {
    /// Number that the caller of `connect` or `listen` gave.
    pub(crate) context: u64,
    /// Remote address.
    pub(crate) peer: SocketAddr,
    /// Whether it came through a listener.
    pub(crate) inbound: bool,
    pub(crate) outcome: Outcome,
}

/// Startups in progress, and the listeners that some come from.
#[derive(Debug)]
pub(crate) struct MpaStartups {
    sockets: IoSet<Entry>,
    /// Descriptor in reserve while there is a listener, to accept and reject connections with. Locked after `sockets`.
    spare: Mutex<Option<Socket>>,
    results: Mutex<VecDeque<StartupResult>>,
}

type Sockets<'a> = Locked<'a, Entry>;

#[derive(Debug)]
enum Entry {
    Listener(Listener),
    Startup(Startup),
}

impl AsFd for Entry {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Listener(it) => it.listener.as_fd(),
            Self::Startup(it) => it.stream.as_fd(),
        }
    }
}

/// It is not polled, and so accepts no connection, while there is no room for a startup, or no descriptor.
#[derive(Debug)]
struct Listener {
    listener: TcpListener,
    mpa: MpaConfig,
    context: u64,
    half_open: HalfOpen<IoId>,
}

/// Names a listener among [`MpaStartups`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ListenerId(IoId);

impl MpaStartups {
    pub(crate) fn new() -> Result<Self, crate::Error> {
        Ok(Self {
            sockets: IoSet::new()?,
            spare: Mutex::default(),
            results: Mutex::default(),
        })
    }

    /// Makes [`fd`](Self::fd) readable while `other` is, too. Its owner has work then.
    pub(crate) fn poll_with(&self, other: BorrowedFd<'_>) -> io::Result<()> {
        self.sockets.poll_with(other)
    }

    /// Readable while [`progress`](Self::progress) has work.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.sockets.as_fd()
    }

    /// Time of the next call of [`progress`](Self::progress) although nothing arrives.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.sockets.poll_timeout()
    }

    /// Begins to connect, from a bound socket if there is one. The outcome carries `context`.
    pub(crate) fn connect(
        &self,
        from: Option<Socket>,
        to: SocketAddr,
        (mpa, after): (MpaConfig, AfterTcp),
        private_data: &[u8],
        context: u64,
    ) -> io::Result<()> {
        let stream = match from {
            Some(socket) => tcp::connect_on(socket, to)?,
            None => tcp::begin_connect(None, to)?,
        };
        self.exchange_over(stream, to, (mpa, after), private_data, context)
    }

    /// Lets the MPA Request of a startup leave that was to be held.
    pub(crate) fn release(&self, context: u64) {
        let mut sockets = self.sockets.lock();
        let Some(id) = find(&sockets, |it| it.is_of(context)).next() else {
            return;
        };
        let Some(Entry::Startup(startup)) = sockets.get_mut(id) else {
            return;
        };
        match &mut startup.stage {
            Stage::Connecting(.., after) => *after = AfterTcp::Request,
            Stage::Held(..) => self.drive(&mut sockets, id),
            Stage::Exchanging(_) | Stage::Confirming(..) | Stage::Lingering => {}
        }
    }

    /// Begins to connect from a certain address of ours.
    pub(crate) fn connect_from(
        &self,
        from: Option<IpAddr>,
        to: SocketAddr,
        mpa: MpaConfig,
        private_data: &[u8],
        context: u64,
    ) -> io::Result<()> {
        let stream = tcp::begin_connect(from, to)?;
        self.exchange_over(stream, to, (mpa, AfterTcp::Request), private_data, context)
    }

    fn exchange_over(
        &self,
        stream: TcpStream,
        to: SocketAddr,
        (mpa, after): (MpaConfig, AfterTcp),
        private_data: &[u8],
        context: u64,
    ) -> io::Result<()> {
        let now = clock::now();
        let deadline = now + mpa.startup_timeout.min(TCP_HAS);
        let startup = Startup {
            stream,
            peer: to,
            context,
            until: now + mpa.startup_timeout,
            stage: Stage::Connecting(mpa, private_data.to_vec(), after),
            listener: None,
        };
        add(&mut self.sockets.lock(), startup, deadline).map(drop)
    }

    /// Ends a startup that is not over, without a result.
    pub(crate) fn abandon(&self, context: u64) {
        let mut sockets = self.sockets.lock();
        let theirs = find(&sockets, |it| it.is_of(context)).next();
        theirs.map(|id| remove(&mut sockets, id));
    }

    /// Waits until the peer of a connection that was accepted, with `event`, has sent something: in peer-to-peer mode it does so as soon as it has
    /// got the Reply (RFC 6581 §5). The outcome carries `event` and `context`.
    pub(crate) fn confirm(
        &self,
        stream: TcpStream,
        connection: Box<Connection>,
        event: Event,
        within: Duration,
        context: u64,
    ) -> io::Result<()> {
        let peer = stream.peer_addr()?;
        let until = clock::now() + within;
        let startup = Startup {
            stream,
            peer,
            context,
            until,
            stage: Stage::Confirming(connection, Box::new(event)),
            listener: None,
        };
        add(&mut self.sockets.lock(), startup, until).map(drop)
    }

    /// Half-closes a connection and reads it to its end, so that closing does not reset it before the peer has read the last frame.
    pub(crate) fn linger(&self, stream: TcpStream) -> io::Result<()> {
        let peer = stream.peer_addr()?;
        linger(&mut self.sockets.lock(), stream, peer)
    }

    /// Takes connections from a listening socket from now on. Outcomes carry `context`.
    pub(crate) fn listen(
        &self,
        listener: TcpListener,
        mpa: MpaConfig,
        context: u64,
    ) -> io::Result<ListenerId> {
        let mut sockets = self.sockets.lock();
        let mut spare = self.spare.lock();
        // A listener without a spare descriptor could reject nobody: its clients would wait in vain.
        if spare.is_none() {
            *spare = Some(tcp::spare()?);
        }
        let listener = Entry::Listener(Listener {
            listener,
            mpa,
            context,
            half_open: HalfOpen::default(),
        });
        let id = sockets.insert_watched(listener, EpollFlags::EPOLLIN)?;
        Ok(ListenerId(id))
    }

    /// Closes a listening socket, and the startups that came through it.
    pub(crate) fn unlisten(&self, id: ListenerId) {
        let mut sockets = self.sockets.lock();
        let theirs: Vec<IoId> = find(&sockets, |it| it.listener == Some(id.0)).collect();
        for id in theirs {
            remove(&mut sockets, id);
        }
        sockets.remove(id.0);
    }

    /// Takes connections from another listening socket from now on. The old one is closed, after the connections that wait at it are taken.
    pub(crate) fn replace(&self, id: ListenerId, by: TcpListener) -> io::Result<()> {
        let mut sockets = self.sockets.lock();
        self.accept(&mut sockets, id.0);
        let is_polled = sockets.unwatch(id.0);
        let Some(Entry::Listener(listener)) = sockets.get_mut(id.0) else {
            return Err(io::ErrorKind::NotFound.into());
        };
        let old = std::mem::replace(&mut listener.listener, by);
        if !is_polled {
            return Ok(());
        }
        let watched = sockets.watch(id.0, EpollFlags::EPOLLIN);
        if watched.is_err()
            && let Some(Entry::Listener(listener)) = sockets.get_mut(id.0)
        {
            listener.listener = old;
            let _ = sockets.watch(id.0, EpollFlags::EPOLLIN);
        }
        watched
    }

    /// The oldest startup that is over.
    pub(crate) fn take(&self) -> Option<StartupResult> {
        self.results.lock().pop_front()
    }

    /// Does the work that is possible now.
    pub(crate) fn progress(&self) {
        self.sockets.progress(|sockets, id, cause| {
            match (sockets.get_mut(id), cause) {
                (Some(Entry::Listener(_)), Cause::Ready) => self.accept(sockets, id),
                (Some(Entry::Listener(_)), Cause::Deadline) => go_on(sockets, id),
                (Some(Entry::Startup(_)), Cause::Ready) => self.drive(sockets, id),
                (Some(Entry::Startup(_)), Cause::Deadline) => self.expire(sockets, id),
                // Gone since epoll returned.
                (None, _) => {}
            }
        });
    }

    /// Takes the connections that wait at a listener, as far as there is room or a startup that makes room.
    fn accept(&self, sockets: &mut Sockets<'_>, id: IoId) {
        for _ in 0..ACCEPTS {
            let now = clock::now();
            let Some(Entry::Listener(listener)) = sockets.get_mut(id) else {
                return;
            };
            match listener.half_open.room(now) {
                Room::Free => {}
                Room::At(until) => return rest(sockets, id, until),
                Room::Evict(victim) => drop(remove(sockets, victim)),
            }
            let Some(Entry::Listener(listener)) = sockets.get_mut(id) else {
                return;
            };
            match tcp::try_accept(&listener.listener) {
                Ok(Some((stream, peer))) => begin_exchange(sockets, id, stream, peer, now),
                Ok(None) => return,
                Err(_) => match listener.half_open.victim(now) {
                    Room::Evict(victim) => drop(remove(sockets, victim)),
                    Room::Free | Room::At(_) => return self.refuse_next(sockets, id, now),
                },
            }
        }
    }

    /// No descriptor is left, or no memory. The listener would stay readable: it rests instead.
    fn refuse_next(&self, sockets: &mut Sockets<'_>, id: IoId, now: Instant) {
        rest(sockets, id, now + REST);
        let mut spare = self.spare.lock();
        if spare.take().is_some()
            && let Some(Entry::Listener(listener)) = sockets.get_mut(id)
        {
            // A connection that was not taken is rejected, so that its client does not wait in vain.
            drop(tcp::try_accept(&listener.listener));
            *spare = tcp::spare().ok();
        }
    }

    /// A startup's socket is ready.
    fn drive(&self, sockets: &mut Sockets<'_>, id: IoId) {
        let Some(Entry::Startup(startup)) = sockets.get_mut(id) else {
            return;
        };
        match startup.step() {
            Step::Wait => {}
            Step::Held => {
                let until = clock::now() + patience(tcp::is_local(&startup.stream));
                let until = until.min(startup.until);
                next_stage(sockets, id, EpollFlags::empty(), until);
            }
            Step::Connected => {
                let until = startup.until;
                next_stage(sockets, id, EpollFlags::EPOLLIN, until);
            }
            Step::Left => drop(remove(sockets, id)),
            Step::Event(event, rest) => self.end(sockets, id, Ok((event, rest))),
            Step::Failed(failure) => self.end(sockets, id, Err(failure)),
        }
    }

    /// The time of a startup's stage is over.
    fn expire(&self, sockets: &mut Sockets<'_>, id: IoId) {
        let Some(Entry::Startup(startup)) = sockets.get_mut(id) else {
            return;
        };
        let failure = match &mut startup.stage {
            Stage::Lingering => return drop(remove(sockets, id)),
            Stage::Held(..) => return self.drive(sockets, id),
            Stage::Connecting(..) | Stage::Confirming(..) => timed_out(),
            Stage::Exchanging(connection) => {
                // `until` has passed; MPA's own time limit began later, with TCP's connection.
                let now = clock::now();
                let until = connection.poll_timeout().map_or(now, |own| own.max(now));
                connection.handle_timeout(until);
                match connection.poll_event() {
                    Some(Event::Failed(error)) => Failure::Mpa(error),
                    Some(_) | None => timed_out(),
                }
            }
        };
        self.end(sockets, id, Err(failure));
    }

    fn end(&self, sockets: &mut Sockets<'_>, id: IoId, end: Result<(Event, Vec<u8>), Failure>) {
        let Some(startup) = remove(sockets, id) else {
            return;
        };
        let (context, peer) = (startup.context, startup.peer);
        let inbound = startup.listener.is_some();
        if let Some(from) = startup.listener
            && let Ok((Event::Request(_), _)) = &end
            && let Some(Entry::Listener(listener)) = sockets.get_mut(from)
        {
            listener.half_open.prove(peer.ip());
        }
        let outcome = match (end, startup.stage) {
            (Ok((Event::Failed(error), _)), Stage::Exchanging(mut connection)) => {
                if refuse(&startup.stream, &mut connection, error).is_ok() {
                    // A socket that cannot be polled is closed.
                    let _ = linger(sockets, startup.stream, peer);
                }
                Outcome::Failed(Failure::Mpa(error))
            }
            (Ok((Event::Failed(error), _)), _) => Outcome::Failed(Failure::Mpa(error)),
            (Ok((event, rest)), Stage::Exchanging(connection)) => Outcome::Mpa {
                event,
                connection,
                stream: startup.stream,
                rest,
            },
            (Ok((_, rest)), Stage::Confirming(connection, event)) => Outcome::Mpa {
                event: *event,
                connection,
                stream: startup.stream,
                rest,
            },
            (Ok(_), Stage::Connecting(..) | Stage::Held(..) | Stage::Lingering) => {
                unreachable!("events come from the exchange")
            }
            (Err(failure), _) => Outcome::Failed(failure),
        };
        self.results.lock().push_back(StartupResult {
            context,
            peer,
            inbound,
            outcome,
        });
    }
}

/// Startups for which a condition holds.
fn find(sockets: &Sockets<'_>, condition: impl Fn(&Startup) -> bool) -> impl Iterator<Item = IoId> {
    let entries = sockets.entries();
    let theirs = entries
        .filter(move |(_, entry)| matches!(entry, Entry::Startup(startup) if condition(startup)));
    theirs.map(|(id, _)| id)
}

/// Keeps a startup whose first stage has until `deadline`.
fn add(sockets: &mut Sockets<'_>, startup: Startup, deadline: Instant) -> io::Result<IoId> {
    let events = match startup.stage {
        Stage::Connecting(..) => EpollFlags::EPOLLOUT,
        Stage::Held(..) => EpollFlags::empty(),
        Stage::Exchanging(_) | Stage::Confirming(..) | Stage::Lingering => EpollFlags::EPOLLIN,
    };
    let id = sockets.insert_watched(Entry::Startup(startup), events)?;
    sockets.set_deadline(id, Some(deadline));
    Ok(id)
}

fn linger(sockets: &mut Sockets<'_>, stream: TcpStream, peer: SocketAddr) -> io::Result<()> {
    let startup = lingering(stream, peer);
    let until = startup.until;
    add(sockets, startup, until).map(drop)
}

/// A startup is in a stage that waits for these events until then.
fn next_stage(sockets: &mut Sockets<'_>, id: IoId, events: EpollFlags, until: Instant) {
    let _ = sockets.watch(id, events);
    sockets.set_deadline(id, Some(until));
}

/// Removes a startup, and lets its listener accept again if it was full.
fn remove(sockets: &mut Sockets<'_>, id: IoId) -> Option<Startup> {
    let Entry::Startup(startup) = sockets.remove(id)? else {
        unreachable!("listeners are not removed here");
    };
    if let Some(from) = startup.listener
        && let Some(Entry::Listener(listener)) = sockets.get_mut(from)
    {
        listener.half_open.end(id);
        go_on(sockets, from);
    }
    Some(startup)
}

/// Polls a listener that may rest.
fn go_on(sockets: &mut Sockets<'_>, id: IoId) {
    let _ = sockets.watch(id, EpollFlags::EPOLLIN);
    sockets.set_deadline(id, None);
}

/// Stops polling a listener, until this time or until a startup ends.
fn rest(sockets: &mut Sockets<'_>, id: IoId, until: Instant) {
    sockets.unwatch(id);
    sockets.set_deadline(id, Some(until));
}

/// A listener took a connection: its Request comes next.
fn begin_exchange(
    sockets: &mut Sockets<'_>,
    from: IoId,
    stream: TcpStream,
    peer: SocketAddr,
    now: Instant,
) {
    let Some(Entry::Listener(listener)) = sockets.get_mut(from) else {
        return;
    };
    let Ok(emss) = tcp::emss(&stream) else {
        return;
    };
    let is_local = tcp::is_local(&stream);
    let config = startup_config(&listener.mpa, emss, is_local);
    let until = now + config.startup_timeout;
    let startup = Startup {
        stream,
        peer,
        context: listener.context,
        until,
        stage: Stage::Exchanging(Box::new(Connection::responder(now, config))),
        listener: Some(from),
    };
    if let Ok(id) = add(sockets, startup, until)
        && let Some(Entry::Listener(listener)) = sockets.get_mut(from)
    {
        listener.half_open.begin(now, id, peer.ip(), is_local);
    }
}
