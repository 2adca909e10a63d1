//! Connection establishment: TCP's handshake and the MPA startup, any number at a time.
//!
//! Nothing here waits. A waiting program or the background thread calls [`MpaStartups::progress`] when [`MpaStartups::fd`] is readable or
//! [`MpaStartups::poll_timeout`] is reached, and takes results with [`MpaStartups::take`].

mod steps;

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use dgiwarp_llp_tcp_mpa::{ConfigError, Connection, Error, Event};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use parking_lot::Mutex;
use slab::Slab;
use socket2::Socket;

pub(crate) use self::steps::AfterTcp;
use self::steps::{Stage, Startup, Step, TCP_HAS, lingering, refuse, timed_out};
use crate::MpaConfig;
use crate::driver::device::clock;
use crate::driver::tcp::socket as tcp;
use dgiwarp_engine::cm::connect::{AttemptFailure, startup_config};
use dgiwarp_engine::cm::half_open::{HalfOpen, Room};
use dgiwarp_engine::cm::ports::patience;

/// Connections that a listener takes before others get their turn.
const ACCEPTS: usize = 64;
/// Sockets found by one call of epoll.
const EVENTS: usize = 64;
/// How long a listener rests when there is no descriptor for another connection.
const REST: Duration = Duration::from_millis(100);

/// Token of a descriptor that is none of a startup.
const OTHER: u64 = u64::MAX;

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
    epoll: Epoll,
    table: Mutex<Table>,
    results: Mutex<VecDeque<StartupResult>>,
}

#[derive(Debug, Default)]
struct Table {
    entries: Slab<Entry>,
    deadlines: BTreeSet<(Instant, usize)>,
    /// Descriptor in reserve while there is a listener, to accept and reject connections with.
    spare: Option<Socket>,
}

#[derive(Debug)]
enum Entry {
    Listener(Listener),
    Startup(Startup),
}

#[derive(Debug)]
struct Listener {
    listener: TcpListener,
    mpa: MpaConfig,
    context: u64,
    half_open: HalfOpen,
    /// Set while there is no room for a startup, or no descriptor; the listener accepts none meanwhile.
    full: bool,
}

/// Names a listener among [`MpaStartups`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ListenerId(usize);

impl MpaStartups {
    pub(crate) fn new() -> Result<Self, crate::Error> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)
            .map_err(|errno| crate::Error::system("cannot make an epoll set")(errno.into()))?;
        Ok(Self {
            epoll,
            table: Mutex::default(),
            results: Mutex::default(),
        })
    }

    /// Makes [`fd`](Self::fd) readable while `other` is, too. Its owner has work then.
    pub(crate) fn poll_with(&self, other: BorrowedFd<'_>) -> io::Result<()> {
        let event = EpollEvent::new(EpollFlags::EPOLLIN, OTHER);
        Ok(self.epoll.add(other, event)?)
    }

    /// Readable while [`progress`](Self::progress) has work.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }

    /// Time of the next call of [`progress`](Self::progress) although nothing arrives.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let table = self.table.lock();
        table.deadlines.first().map(|(deadline, _)| *deadline)
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
        let mut table = self.table.lock();
        let mut startups = table.entries.iter_mut();
        let key = startups.find_map(|(key, entry)| match entry {
            Entry::Startup(it) if it.is_of(context) => match &mut it.stage {
                Stage::Connecting(.., after) => {
                    *after = AfterTcp::Request;
                    None
                }
                Stage::Held(..) => Some(key),
                Stage::Exchanging(_) | Stage::Confirming(..) | Stage::Lingering => None,
            },
            Entry::Startup(_) | Entry::Listener(_) => None,
        });
        if let Some(key) = key {
            self.drive(&mut table, key);
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
        self.add(Startup {
            stream,
            peer: to,
            context,
            deadline: now + mpa.startup_timeout.min(TCP_HAS),
            until: now + mpa.startup_timeout,
            stage: Stage::Connecting(mpa, private_data.to_vec(), after),
            listener: None,
        })
    }

    /// Ends a startup that is not over, without a result.
    pub(crate) fn abandon(&self, context: u64) {
        let mut table = self.table.lock();
        let theirs = table
            .entries
            .iter()
            .find(|(_, entry)| matches!(entry, Entry::Startup(it) if it.is_of(context)));
        if let Some(key) = theirs.map(|(key, _)| key) {
            self.remove(&mut table, key);
        }
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
        self.add(Startup {
            stream,
            peer,
            context,
            deadline: until,
            until,
            stage: Stage::Confirming(connection, Box::new(event)),
            listener: None,
        })
    }

    /// Half-closes a connection and reads it to its end, so that closing does not reset it before the peer has read the last frame.
    pub(crate) fn linger(&self, stream: TcpStream) -> io::Result<()> {
        let peer = stream.peer_addr()?;
        self.add(lingering(stream, peer))
    }

    /// [`linger`](Self::linger) with the table locked. A socket that cannot be watched is closed.
    fn linger_locked(&self, table: &mut Table, stream: TcpStream, peer: SocketAddr) {
        let _ = self.add_locked(table, lingering(stream, peer));
    }

    /// Takes connections from a listening socket from now on. Outcomes carry `context`.
    pub(crate) fn listen(
        &self,
        listener: TcpListener,
        mpa: MpaConfig,
        context: u64,
    ) -> io::Result<ListenerId> {
        let mut table = self.table.lock();
        // A listener without a spare descriptor could reject nobody: its clients would wait in vain.
        if table.spare.is_none() {
            table.spare = Some(tcp::spare()?);
        }
        let entry = table.entries.vacant_entry();
        let key = entry.key();
        let event = EpollEvent::new(EpollFlags::EPOLLIN, token(key));
        self.epoll.add(&listener, event)?;
        entry.insert(Entry::Listener(Listener {
            listener,
            mpa,
            context,
            half_open: HalfOpen::default(),
            full: false,
        }));
        Ok(ListenerId(key))
    }

    /// Closes a listening socket, and the startups that came through it.
    pub(crate) fn unlisten(&self, id: ListenerId) {
        let mut table = self.table.lock();
        let theirs: Vec<usize> = table
            .entries
            .iter()
            .filter(|(_, entry)| matches!(entry, Entry::Startup(it) if it.listener == Some(id.0)))
            .map(|(key, _)| key)
            .collect();
        for key in theirs {
            self.remove(&mut table, key);
        }
        table.deadlines.retain(|(_, key)| *key != id.0);
        if let Entry::Listener(gone) = table.entries.remove(id.0) {
            let _ = self.epoll.delete(&gone.listener);
        }
    }

    /// Takes connections from another listening socket from now on. The old one is closed, after the connections that wait at it are taken.
    pub(crate) fn replace(&self, id: ListenerId, by: TcpListener) -> io::Result<()> {
        let mut table = self.table.lock();
        self.accept(&mut table, id.0);
        let Some(Entry::Listener(listener)) = table.entries.get_mut(id.0) else {
            return Err(io::ErrorKind::NotFound.into());
        };
        if !listener.full {
            self.epoll
                .add(&by, EpollEvent::new(EpollFlags::EPOLLIN, token(id.0)))?;
            let _ = self.epoll.delete(&listener.listener);
        }
        listener.listener = by;
        Ok(())
    }

    /// The oldest startup that is over.
    pub(crate) fn take(&self) -> Option<StartupResult> {
        self.results.lock().pop_front()
    }

    /// Does the work that is possible now.
    pub(crate) fn progress(&self) {
        let mut events = [EpollEvent::empty(); EVENTS];
        let ready = self
            .epoll
            .wait(&mut events, EpollTimeout::ZERO)
            .unwrap_or(0);
        let mut table = self.table.lock();
        for event in &events[..ready] {
            let Ok(key) = usize::try_from(event.data()) else {
                continue;
            };
            match table.entries.get(key) {
                Some(Entry::Listener(_)) => self.accept(&mut table, key),
                Some(Entry::Startup(_)) => self.drive(&mut table, key),
                // Gone since epoll returned.
                None => {}
            }
        }
        let now = clock::now();
        while let Some((deadline, key)) = table.deadlines.first().copied()
            && deadline <= now
        {
            table.deadlines.remove(&(deadline, key));
            self.expire(&mut table, key, now);
        }
    }

    fn add(&self, startup: Startup) -> io::Result<()> {
        self.add_locked(&mut self.table.lock(), startup).map(drop)
    }

    /// [`add`](Self::add) with the table locked. Returns the key.
    fn add_locked(&self, table: &mut Table, startup: Startup) -> io::Result<usize> {
        let entry = table.entries.vacant_entry();
        let key = entry.key();
        let flags = match startup.stage {
            Stage::Connecting(..) => EpollFlags::EPOLLOUT,
            Stage::Held(..) => EpollFlags::empty(),
            Stage::Exchanging(_) | Stage::Confirming(..) | Stage::Lingering => EpollFlags::EPOLLIN,
        };
        self.epoll
            .add(&startup.stream, EpollEvent::new(flags, token(key)))?;
        let deadline = startup.deadline;
        entry.insert(Entry::Startup(startup));
        table.deadlines.insert((deadline, key));
        Ok(key)
    }

    /// Removes a startup, and lets its listener accept again if it was full.
    fn remove(&self, table: &mut Table, key: usize) -> Option<Startup> {
        let Entry::Startup(startup) = table.entries.try_remove(key)? else {
            unreachable!("listeners are not removed here");
        };
        table.deadlines.remove(&(startup.deadline, key));
        let _ = self.epoll.delete(&startup.stream);
        if let Some(from) = startup.listener
            && let Some(Entry::Listener(listener)) = table.entries.get_mut(from)
        {
            listener.half_open.end(key);
            self.go_on(listener, from);
        }
        Some(startup)
    }

    fn go_on(&self, listener: &mut Listener, key: usize) {
        if listener.full {
            listener.full = false;
            let event = EpollEvent::new(EpollFlags::EPOLLIN, token(key));
            let _ = self.epoll.add(&listener.listener, event);
        }
    }

    /// Stops polling a listener, until this time or until a startup ends.
    fn rest(&self, table: &mut Table, key: usize, until: Instant) {
        if let Some(Entry::Listener(listener)) = table.entries.get_mut(key) {
            listener.full = true;
            let _ = self.epoll.delete(&listener.listener);
            table.deadlines.insert((until, key));
        }
    }

    /// Takes the connections that wait at a listener, as far as there is room or a startup that makes room.
    fn accept(&self, table: &mut Table, key: usize) {
        for _ in 0..ACCEPTS {
            let now = clock::now();
            let Some(Entry::Listener(listener)) = table.entries.get_mut(key) else {
                return;
            };
            match listener.half_open.room(now) {
                Room::Free => {}
                Room::At(until) => return self.rest(table, key, until),
                Room::Evict(victim) => drop(self.remove(table, victim)),
            }
            let Some(Entry::Listener(listener)) = table.entries.get_mut(key) else {
                return;
            };
            match tcp::try_accept(&listener.listener) {
                Ok(Some((stream, peer))) => self.begin_exchange(table, key, stream, peer, now),
                Ok(None) => return,
                Err(_) => match listener.half_open.victim(now) {
                    Room::Evict(victim) => drop(self.remove(table, victim)),
                    Room::Free | Room::At(_) => return self.refuse_next(table, key, now),
                },
            }
        }
    }

    /// No descriptor is left, or no memory. The listener would stay readable: it rests instead.
    fn refuse_next(&self, table: &mut Table, key: usize, now: Instant) {
        self.rest(table, key, now + REST);
        if table.spare.take().is_some()
            && let Some(Entry::Listener(listener)) = table.entries.get(key)
        {
            // A connection that was not taken is rejected, so that its client does not wait in vain.
            drop(tcp::try_accept(&listener.listener));
            table.spare = tcp::spare().ok();
        }
    }

    /// A listener took a connection: its Request comes next.
    fn begin_exchange(
        &self,
        table: &mut Table,
        key: usize,
        stream: TcpStream,
        peer: SocketAddr,
        now: Instant,
    ) {
        let Some(Entry::Listener(listener)) = table.entries.get(key) else {
            return;
        };
        let Ok(emss) = tcp::emss(&stream) else {
            return;
        };
        let config = startup_config(&listener.mpa, emss);
        let is_local = stream.local_addr().is_ok_and(|ours| ours.ip() == peer.ip());
        let deadline = now + config.startup_timeout;
        let startup = Startup {
            stream,
            peer,
            context: listener.context,
            deadline,
            until: deadline,
            stage: Stage::Exchanging(Box::new(Connection::responder(now, config))),
            listener: Some(key),
        };
        if let Ok(startup) = self.add_locked(table, startup)
            && let Some(Entry::Listener(listener)) = table.entries.get_mut(key)
        {
            listener.half_open.begin(now, startup, peer.ip(), is_local);
        }
    }

    /// A startup's socket is ready.
    fn drive(&self, table: &mut Table, key: usize) {
        let Some(Entry::Startup(startup)) = table.entries.get_mut(key) else {
            return;
        };
        match startup.step() {
            Step::Wait => {}
            Step::Held => {
                let until = clock::now() + patience(tcp::is_local(&startup.stream));
                let until = until.min(startup.until);
                self.next_stage(table, key, EpollFlags::empty(), until);
            }
            Step::Connected => {
                let until = startup.until;
                self.next_stage(table, key, EpollFlags::EPOLLIN, until);
            }
            Step::Left => drop(self.remove(table, key)),
            Step::Event(event, rest) => self.end(table, key, Ok((event, rest))),
            Step::Failed(failure) => self.end(table, key, Err(failure)),
        }
    }

    /// A startup is in a stage that waits for these events until then.
    fn next_stage(&self, table: &mut Table, key: usize, events: EpollFlags, until: Instant) {
        if let Some(Entry::Startup(startup)) = table.entries.get_mut(key) {
            let mut event = EpollEvent::new(events, token(key));
            let _ = self.epoll.modify(&startup.stream, &mut event);
            let before = std::mem::replace(&mut startup.deadline, until);
            table.deadlines.remove(&(before, key));
            table.deadlines.insert((until, key));
        }
    }

    fn expire(&self, table: &mut Table, key: usize, now: Instant) {
        let startup = match table.entries.get_mut(key) {
            Some(Entry::Startup(startup)) => startup,
            Some(Entry::Listener(listener)) => return self.go_on(listener, key),
            None => return,
        };
        let failure = match &mut startup.stage {
            Stage::Lingering => return drop(self.remove(table, key)),
            Stage::Held(..) => return self.drive(table, key),
            Stage::Connecting(..) | Stage::Confirming(..) => timed_out(),
            Stage::Exchanging(connection) => {
                // `until` has passed; MPA's own time limit began later, with TCP's connection.
                let until = connection.poll_timeout().map_or(now, |own| own.max(now));
                connection.handle_timeout(until);
                match connection.poll_event() {
                    Some(Event::Failed(error)) => Failure::Mpa(error),
                    Some(_) | None => timed_out(),
                }
            }
        };
        self.end(table, key, Err(failure));
    }

    fn end(&self, table: &mut Table, key: usize, end: Result<(Event, Vec<u8>), Failure>) {
        let Some(startup) = self.remove(table, key) else {
            return;
        };
        let (context, peer) = (startup.context, startup.peer);
        let inbound = startup.listener.is_some();
        if let Some(from) = startup.listener
            && let Ok((Event::Request(_), _)) = &end
            && let Some(Entry::Listener(listener)) = table.entries.get_mut(from)
        {
            listener.half_open.prove(peer.ip());
        }
        let outcome = match (end, startup.stage) {
            (Ok((Event::Failed(error), _)), Stage::Exchanging(mut connection)) => {
                if refuse(&startup.stream, &mut connection, error).is_ok() {
                    self.linger_locked(table, startup.stream, peer);
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

fn token(key: usize) -> u64 {
    u64::try_from(key).expect("a key is an index into memory")
}
