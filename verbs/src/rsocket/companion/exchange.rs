//! Where companions of one host meet: UNIX sockets with abstract names, and a thread that serves them (`rfc-notes/rsockets.md` §7).
//!
//! A mark is a listening UNIX socket. A companion that sends to a UDP socket with a mark connects to it, and both tell each other their queue pairs. The connection stays open for as long
//! as both have their UDP sockets, so its end, which the kernel reports of a process that is killed too, is the end of the route. Both processes are of one user.

use crate::ffi::errno;
use crate::ffi::fork::ProcessTable;
use crate::ffi::poll;
use crate::rsocket::companion::socket::Companion;
use crate::rsocket::wait::leave_low_numbers;
use dgiwarp_sockets::wire::{RouteAnswer, RouteRequest};
use libc::c_int;
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, accept4, bind, connect, getsockopt,
    listen, socket,
};
use nix::unistd::geteuid;
use std::collections::HashMap;
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Connections that wait to be accepted.
const BACKLOG: i32 = 64;
/// Connections and marks of the process.
const MAX_ENTRIES: usize = 1024;
/// Milliseconds for which the thread pauses where the process has no descriptors left.
const SCARCE: c_int = 10;
/// Key of the descriptor that asks for the end of all companions.
const OF_BELL: u64 = 0;

/// Octet behind which a peer takes datagrams of the other end.
const OPEN: u8 = 1;

/// A UNIX socket of a companion.
struct Entry {
    companion: Weak<Companion>,
    socket: Arc<File>,
    part: Part,
    /// Octets of a message that is not whole yet.
    octets: Vec<u8>,
}

#[derive(Debug, Clone, Copy)]
enum Part {
    Mark,
    /// Of the end with the mark; the peer is known from its request on.
    Server(Option<SocketAddr>),
    /// Of the end that has asked for a route to the peer, and whether it has been answered.
    Client(SocketAddr, bool),
}

/// The marks and connections of the process.
pub(super) struct Exchange {
    epoll: Epoll,
    entries: Mutex<Entries>,
}

#[derive(Default)]
struct Entries {
    next: u64,
    all: HashMap<u64, Entry>,
    /// All companions have ended for good.
    closed: bool,
}

static EXCHANGE: ProcessTable<Option<Arc<Exchange>>> = ProcessTable::new(None);

/// Descriptor of the preload library that becomes readable where the process's UDP sockets are to be the kernel's alone from now on; 0 is none.
static BELL: AtomicI32 = AtomicI32::new(0);

/// Sets the descriptor, before the first mark or route.
pub(in crate::rsocket) fn set_bell(bell: c_int) {
    BELL.store(bell, Ordering::Relaxed);
}

/// The exchange of the process, begun with the first mark or route.
pub(super) fn exchange() -> Result<Arc<Exchange>, Errno> {
    let mut exchange = EXCHANGE.lock();
    if let Some(begun) = &*exchange {
        return Ok(Arc::clone(begun));
    }
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    let begun = Arc::new(Exchange {
        epoll: Epoll(leave_low_numbers(epoll.0)),
        entries: Mutex::default(),
    });
    let bell = BELL.load(Ordering::Relaxed);
    if bell > 0 {
        // SAFETY: the preload library never closes it.
        let bell = unsafe { BorrowedFd::borrow_raw(bell) };
        let event = EpollEvent::new(EpollFlags::EPOLLIN, OF_BELL);
        begun.epoll.add(bell, event)?;
    }
    let theirs = Arc::clone(&begun);
    let started = dgiwarp::start_library_thread("dgiwarp-udp", move || theirs.run());
    started.map_err(|_| Errno::EAGAIN)?;
    *exchange = Some(Arc::clone(&begun));
    Ok(begun)
}

/// A stream socket of this library, which children have none of.
fn unix_socket() -> Result<OwnedFd, Errno> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let made = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    Ok(dgiwarp::adopt_socket(made))
}

/// Whether the peer of a connection has this process's user.
fn is_own_user(connection: impl AsFd) -> bool {
    let credentials = getsockopt(&connection, PeerCredentials);
    credentials.is_ok_and(|it| it.uid() == geteuid().as_raw())
}

impl Exchange {
    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters a socket. Returns its number.
    fn enter(&self, companion: Weak<Companion>, socket: OwnedFd, part: Part) -> Result<u64, Errno> {
        let mut entries = self.lock();
        if entries.closed || entries.all.len() >= MAX_ENTRIES {
            return Err(Errno::ENOBUFS);
        }
        entries.next += 1;
        let key = entries.next;
        let event = EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLRDHUP, key);
        self.epoll.add(&socket, event)?;
        let entry = Entry {
            companion,
            socket: Arc::new(socket.into()),
            part,
            octets: Vec::new(),
        };
        entries.all.insert(key, entry);
        Ok(key)
    }

    /// Ends a mark or a connection.
    pub(super) fn remove(&self, key: u64) {
        let entry = self.lock().all.remove(&key);
        drop(entry);
    }

    /// Places a mark. Returns its number.
    pub(super) fn mark(&self, name: &str, companion: Weak<Companion>) -> Result<u64, Errno> {
        let mark = unix_socket()?;
        let name = UnixAddr::new_abstract(name.as_bytes())?;
        bind(mark.as_raw_fd(), &name)?;
        listen(&mark, Backlog::new(BACKLOG)?)?;
        self.enter(companion, mark, Part::Mark)
    }

    /// Connects to the first mark of these names. `None` without one of this user's.
    pub(super) fn connect(names: &[String]) -> Result<Option<OwnedFd>, Errno> {
        let connection = unix_socket()?;
        for name in names {
            let name = UnixAddr::new_abstract(name.as_bytes())?;
            match connect(connection.as_raw_fd(), &name) {
                Ok(()) => return Ok(is_own_user(&connection).then_some(connection)),
                Err(Errno::ECONNREFUSED) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(None)
    }

    /// Asks for a route. Returns the number of the connection.
    pub(super) fn ask(
        &self,
        connection: OwnedFd,
        companion: Weak<Companion>,
        request: &RouteRequest,
    ) -> Result<u64, Errno> {
        let mut connection = File::from(connection);
        // The buffer of a new connection has room for it.
        let failed = |error| errno::of_io(&error);
        connection.write_all(&request.emit()).map_err(failed)?;
        self.enter(
            companion,
            connection.into(),
            Part::Client(request.to, false),
        )
    }

    fn run(&self) {
        let mut events = [EpollEvent::empty(); 16];
        loop {
            let count = match self.epoll.wait(&mut events, EpollTimeout::NONE) {
                Ok(count) => count,
                Err(Errno::EINTR) => continue,
                Err(_) => return,
            };
            for event in events.iter().take(count) {
                match event.data() {
                    OF_BELL => return self.close(),
                    key => self.handle(key),
                }
            }
        }
    }

    /// Ends all companions.
    fn close(&self) {
        let mut entries = self.lock();
        entries.closed = true;
        let all = std::mem::take(&mut entries.all);
        drop(entries);
        let companions = all.values().filter_map(|it| it.companion.upgrade());
        let companions: Vec<_> = companions.collect();
        drop(all);
        companions.iter().for_each(|it| it.retire());
    }

    fn handle(&self, key: u64) {
        let (part, socket, companion) = {
            let entries = self.lock();
            let Some(entry) = entries.all.get(&key) else {
                return;
            };
            let socket = Arc::clone(&entry.socket);
            (entry.part, socket, entry.companion.upgrade())
        };
        let Some(companion) = companion else {
            return self.remove(key);
        };
        if matches!(part, Part::Mark) {
            return self.accept(&socket, &companion);
        }
        if !self.receive(key, &socket, &companion) {
            self.remove(key);
            let part = part_of_peer(part);
            if let Some((peer, refused)) = part {
                companion.lose(peer, key, refused);
            }
        }
    }

    fn accept(&self, mark: &File, companion: &Arc<Companion>) {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let fd = match accept4(mark.as_raw_fd(), flags) {
            Ok(fd) => fd,
            Err(Errno::EAGAIN | Errno::EINTR | Errno::ECONNABORTED) => return,
            Err(_) => {
                poll(&mut [], SCARCE);
                return;
            }
        };
        // SAFETY: just made, and nobody else's.
        let connection = dgiwarp::adopt_socket(unsafe { OwnedFd::from_raw_fd(fd) });
        if is_own_user(&connection) {
            // One without a place is closed, and its peer stays with the kernel's UDP.
            let _ = self.enter(Arc::downgrade(companion), connection, Part::Server(None));
        }
    }

    /// Takes what a peer has sent. `false` is the end of the connection.
    fn receive(&self, key: u64, mut socket: &File, companion: &Arc<Companion>) -> bool {
        let mut room = [0; 64];
        let count = match socket.read(&mut room) {
            Ok(0) => return false,
            Ok(count) => count,
            Err(error) => return error.kind() == ErrorKind::WouldBlock,
        };
        let mut entries = self.lock();
        let Some(entry) = entries.all.get_mut(&key) else {
            return true;
        };
        entry.octets.extend_from_slice(&room[..count]);
        let needed = match entry.part {
            Part::Mark => return false,
            Part::Server(None) => RouteRequest::LEN,
            Part::Client(_, false) => RouteAnswer::LEN,
            Part::Server(Some(_)) => 1,
            Part::Client(_, true) => return false,
        };
        if entry.octets.len() < needed {
            return true;
        }
        let message = std::mem::take(&mut entry.octets);
        let part = entry.part;
        drop(entries);
        let done = match part {
            Part::Server(None) => self.answer(key, &message, socket, companion),
            Part::Client(peer, false) => self.take_answer(key, peer, &message, socket, companion),
            Part::Server(Some(peer)) => {
                (message == [OPEN]).then(|| companion.open(peer, key, None))
            }
            Part::Mark | Part::Client(_, true) => None,
        };
        done == Some(true)
    }

    fn set_part(&self, key: u64, part: Part) {
        if let Some(entry) = self.lock().all.get_mut(&key) {
            entry.part = part;
        }
    }

    fn answer(
        &self,
        key: u64,
        message: &[u8],
        mut socket: &File,
        companion: &Arc<Companion>,
    ) -> Option<bool> {
        let request = RouteRequest::parse(message).ok()?;
        let admitted = companion.admit(&request, key).ok();
        let (qpn, source) = admitted.unzip();
        let source = source.unwrap_or(request.to);
        self.set_part(key, Part::Server(Some(request.from)));
        socket.write_all(&RouteAnswer { qpn, source }.emit()).ok()?;
        Some(qpn.is_some())
    }

    fn take_answer(
        &self,
        key: u64,
        peer: SocketAddr,
        message: &[u8],
        mut socket: &File,
        companion: &Arc<Companion>,
    ) -> Option<bool> {
        let RouteAnswer { qpn, source } = RouteAnswer::parse(message).ok()?;
        let qpn = qpn?;
        self.set_part(key, Part::Client(peer, true));
        // The peer's datagrams are taken before it sends any.
        let opened = companion.open(peer, key, Some((qpn, source)));
        socket.write_all(&[OPEN]).ok()?;
        Some(opened)
    }
}

/// The peer of a connection, and whether it has given no route.
fn part_of_peer(part: Part) -> Option<(SocketAddr, bool)> {
    match part {
        Part::Client(peer, answered) => Some((peer, !answered)),
        Part::Server(peer) => Some((peer?, false)),
        Part::Mark => None,
    }
}
