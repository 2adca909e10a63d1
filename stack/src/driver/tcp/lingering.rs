//! Connections whose QPs are gone: octets that they accepted still leave, our half of TCP is closed behind it, and the peer's is read to its end.
//!
//! Closing a socket with unread octets resets the connection, and octets that the peer has not read yet would be lost. The destruction of a QP does not
//! wait for this; the background thread does the work.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use nix::poll::PollFlags;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use parking_lot::Mutex;
use slab::Slab;

use crate::Error;
use crate::driver::device::clock;
use crate::driver::reactor::waker::Task;
use crate::driver::tcp::pipe::Pipe;
use crate::driver::tcp::socket as tcp;
use dgiwarp_engine::connected::Taken;
use dgiwarp_engine::connected::TcpClose;

/// Sockets found by one call of epoll.
const EVENTS: usize = 64;
/// Reads of one socket before the others get their turn.
const READS: usize = 16;
/// Poll interval of [`wait`](LingeringSockets::wait) while another thread drains the last connection.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// A connection whose QP is gone and whose close is not complete.
#[derive(Debug)]
pub(crate) struct LingeringSocket {
    pub(crate) pipe: Pipe,
    /// FPDUs that TCP has not taken; the first may be a part of one.
    pub(crate) octets: Vec<u8>,
    pub(crate) tcp_close: TcpClose,
}

/// All lingering sockets of a device.
#[derive(Debug)]
pub(crate) struct LingeringSockets {
    epoll: Epoll,
    count: AtomicUsize,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    entries: Slab<Entry>,
    deadlines: BTreeSet<(Instant, usize)>,
}

#[derive(Debug)]
struct Entry {
    socket: LingeringSocket,
    /// Octets that TCP has taken.
    taken: usize,
    deadline: Instant,
    watched: EpollFlags,
}

impl LingeringSockets {
    pub(crate) fn new() -> Result<Arc<Self>, Error> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)
            .map_err(|errno| Error::system("cannot make an epoll set")(errno.into()))?;
        Ok(Arc::new(Self {
            epoll,
            count: AtomicUsize::new(0),
            table: Mutex::default(),
        }))
    }

    /// Takes a connection over and does what can be done at once. Returns when more is to be done at the latest, if it is not closed yet.
    pub(crate) fn add(&self, socket: LingeringSocket) -> Option<Instant> {
        let now = clock::now();
        let mut entry = Entry {
            socket,
            taken: 0,
            deadline: now,
            watched: EpollFlags::empty(),
        };
        let deadline = entry.step(now)?;
        entry.deadline = deadline;
        entry.watched = entry.wants();
        let mut table = self.table.lock();
        let vacant = table.entries.vacant_entry();
        let key = vacant.key();
        let event = EpollEvent::new(entry.watched, token(key));
        // Should this fail, the deadline closes the socket.
        let _ = self.epoll.add(&entry.socket.pipe, event);
        vacant.insert(entry);
        table.deadlines.insert((deadline, key));
        self.count.store(table.entries.len(), Ordering::Release);
        Some(deadline)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// Waits until all are closed, or until `deadline`. Returns whether they are.
    pub(crate) fn wait(&self, deadline: Instant) -> bool {
        loop {
            self.progress();
            let now = clock::now();
            if self.is_empty() || deadline <= now {
                return self.is_empty();
            }
            tcp::wait(
                self.work_fd(),
                PollFlags::POLLIN,
                Some(deadline.min(now + POLL_INTERVAL)),
            );
        }
    }

    /// Makes progress on one socket; removes it when it is closed.
    fn drive(&self, table: &mut Table, key: usize, now: Instant) {
        let Some(entry) = table.entries.get_mut(key) else {
            return;
        };
        let before = entry.deadline;
        let next = entry.step(now);
        if next != Some(before) {
            table.deadlines.remove(&(before, key));
        }
        match next {
            Some(deadline) => {
                if deadline != before {
                    entry.deadline = deadline;
                    table.deadlines.insert((deadline, key));
                }
                let wants = entry.wants();
                if wants != entry.watched {
                    entry.watched = wants;
                    let mut event = EpollEvent::new(wants, token(key));
                    let _ = self.epoll.modify(&entry.socket.pipe, &mut event);
                }
            }
            None => {
                let gone = table.entries.remove(key);
                let _ = self.epoll.delete(&gone.socket.pipe);
            }
        }
    }
}

impl Task for LingeringSockets {
    fn work_fd(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }

    fn poll_timeout(&self) -> Option<Instant> {
        if self.is_empty() {
            return None;
        }
        let table = self.table.lock();
        table.deadlines.first().map(|(deadline, _)| *deadline)
    }

    fn progress(&self) {
        if self.is_empty() {
            return;
        }
        let mut events = [EpollEvent::empty(); EVENTS];
        let ready = self.epoll.wait(&mut events, EpollTimeout::ZERO);
        let mut table = self.table.lock();
        let now = clock::now();
        for event in &events[..ready.unwrap_or(0)] {
            if let Ok(key) = usize::try_from(event.data()) {
                self.drive(&mut table, key, now);
            }
        }
        while let Some((deadline, key)) = table.deadlines.first().copied()
            && deadline <= now
        {
            self.drive(&mut table, key, now);
        }
        self.count.store(table.entries.len(), Ordering::Release);
    }
}

fn token(key: usize) -> u64 {
    u64::try_from(key).expect("a key is an index into memory")
}

impl Entry {
    /// Does what can be done now. Returns the time that it has for the next step; `None` when all is done.
    fn step(&mut self, now: Instant) -> Option<Instant> {
        self.transmit();
        self.drain();
        let flushed = self.taken == self.socket.octets.len();
        let tcp_close = &mut self.socket.tcp_close;
        if tcp_close.advance(now, flushed).shut_down {
            self.socket.pipe.shut_down();
        }
        // Shut down is what goes to TCP last, and its own time begins then.
        tcp_close.deadline().filter(|deadline| *deadline > now)
    }

    fn transmit(&mut self) {
        let LingeringSocket {
            pipe,
            octets,
            tcp_close,
        } = &mut self.socket;
        while self.taken < octets.len() && tcp_close.may_send() {
            match pipe.send(&octets[self.taken..]) {
                Taken::Octets(len) => self.taken += len,
                Taken::WouldBlock => return,
                Taken::Lost => tcp_close.lost(),
            }
        }
    }

    /// Reads what the peer still sends: nobody's any more.
    fn drain(&mut self) {
        let LingeringSocket {
            pipe, tcp_close, ..
        } = &mut self.socket;
        let mut scratch = [0; 4096];
        for _ in 0..READS {
            if tcp_close.peer_is_done() {
                return;
            }
            match pipe.receive(&mut scratch) {
                Ok(0) => tcp_close.peer_closed(),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => tcp_close.lost(),
            }
        }
    }

    /// Events to poll for.
    fn wants(&self) -> EpollFlags {
        let mut wants = EpollFlags::empty();
        if !self.socket.tcp_close.peer_is_done() {
            wants |= EpollFlags::EPOLLIN;
        }
        if self.taken < self.socket.octets.len() {
            wants |= EpollFlags::EPOLLOUT;
        }
        wants
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    const SOON: Duration = Duration::from_secs(10);

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        ours.set_nonblocking(true).unwrap();
        (ours, listener.accept().unwrap().0)
    }

    fn socket(stream: TcpStream, octets: Vec<u8>) -> LingeringSocket {
        LingeringSocket {
            pipe: stream.into(),
            octets,
            tcp_close: TcpClose::default(),
        }
    }

    #[test]
    fn all_octets_leave_and_the_peers_are_read_before_the_end() {
        let lingering = LingeringSockets::new().unwrap();
        let (ours, mut peer) = pair();
        // More than TCP takes, and something unread that would reset the connection.
        let octets: Vec<u8> = (0..8u32 << 20).map(|at| at.to_be_bytes()[3]).collect();
        peer.write_all(b"unread").unwrap();
        assert!(lingering.add(socket(ours, octets.clone())).is_some());
        assert!(!lingering.is_empty());
        let reader = std::thread::spawn(move || {
            let mut got = Vec::new();
            peer.read_to_end(&mut got).map(|_| got)
        });
        assert!(lingering.wait(clock::now() + SOON));
        assert!(reader.join().unwrap().unwrap() == octets);
        assert_eq!(lingering.poll_timeout(), None);
    }

    #[test]
    fn a_peer_that_neither_reads_nor_closes_has_its_time() {
        let lingering = LingeringSockets::new().unwrap();
        let (ours, peer) = pair();
        let began = clock::now();
        assert!(lingering.add(socket(ours, Vec::new())).is_some());
        assert!(!lingering.wait(began + Duration::from_millis(20)));
        let until = lingering.poll_timeout().unwrap();
        assert!(until > began && until <= clock::now() + dgiwarp_engine::connected::LINGER_FOR);
        drop(peer);
        assert!(lingering.wait(clock::now() + SOON));
    }

    #[test]
    fn one_that_is_closed_already_is_not_kept() {
        let lingering = LingeringSockets::new().unwrap();
        let (ours, peer) = pair();
        drop(peer);
        tcp::wait(ours.as_fd(), PollFlags::POLLIN, Some(clock::now() + SOON));
        assert_eq!(lingering.add(socket(ours, Vec::new())), None);
        assert!(lingering.is_empty());
    }
}
