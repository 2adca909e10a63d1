//! Connections whose QPs are gone: octets that they accepted still leave, our half of TCP is closed behind it, and the peer's is read to its end.
//!
//! Closing a socket with unread octets resets the connection, and octets that the peer has not read yet would be lost. The destruction of a QP does not
//! wait for this; the background thread does the work.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::poll::PollFlags;
use nix::sys::epoll::EpollFlags;

use crate::Error;
use crate::driver::device::clock;
use crate::driver::reactor::io_set::IoSet;
use crate::driver::reactor::waker::Task;
use crate::driver::tcp::pipe::Pipe;
use crate::driver::tcp::socket as tcp;
use dgiwarp_engine::connected::Taken;
use dgiwarp_engine::connected::TcpClose;

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
    sockets: IoSet<Entry>,
}

#[derive(Debug)]
struct Entry {
    socket: LingeringSocket,
    /// Octets that TCP has taken.
    taken: usize,
}

impl AsFd for Entry {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.pipe.as_fd()
    }
}

impl LingeringSockets {
    pub(crate) fn new() -> Result<Arc<Self>, Error> {
        let sockets = IoSet::new()?;
        Ok(Arc::new(Self { sockets }))
    }

    /// Takes a connection over and does what can be done at once. Returns when more is to be done at the latest, if it is not closed yet.
    pub(crate) fn add(&self, socket: LingeringSocket) -> Option<Instant> {
        let mut entry = Entry { socket, taken: 0 };
        let deadline = entry.step(clock::now())?;
        let wants = entry.wants();
        let mut sockets = self.sockets.lock();
        let id = sockets.insert(entry);
        sockets.set_deadline(id, Some(deadline));
        // Should this fail, the deadline closes the socket.
        let _ = sockets.watch(id, wants);
        Some(deadline)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.sockets.is_empty()
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
}

impl Task for LingeringSockets {
    fn work_fd(&self) -> BorrowedFd<'_> {
        self.sockets.as_fd()
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.sockets.poll_timeout()
    }

    fn progress(&self) {
        self.sockets.progress(|sockets, id, _| {
            let Some(entry) = sockets.get_mut(id) else {
                return;
            };
            let next = entry.step(clock::now());
            let wants = entry.wants();
            sockets.set_deadline(id, next);
            if next.is_some() {
                let _ = sockets.watch(id, wants);
            } else {
                sockets.remove(id);
            }
        });
    }
}

impl Entry {
    /// Does what can be done now. Returns the time that it has for the next step; `None` when all is done.
    fn step(&mut self, now: Instant) -> Option<Instant> {
        self.transmit();
        self.drain();
        let flushed = self.taken == self.socket.octets.len();
        let LingeringSocket {
            pipe, tcp_close, ..
        } = &mut self.socket;
        let step = tcp_close.advance(now, flushed, || pipe.is_acknowledged());
        if step.shut_down {
            pipe.shut_down();
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
            match pipe.receive(&mut [], &mut scratch) {
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

    #[test]
    fn the_fin_to_a_plain_peer_waits_for_acknowledgements() {
        let lingering = LingeringSockets::new().unwrap();
        let (mut ours, mut peer) = pair();
        let mut sent = 0;
        while let Ok(count) = ours.write(&[0; 65_536]) {
            sent += count;
        }
        let handle = ours.try_clone().unwrap();
        let is_shut = || {
            let sent = (&handle).write(&[0]);
            sent.is_err_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
        };
        let mut socket = socket(ours, Vec::new());
        socket.tcp_close.close_behind_acks();
        let look = lingering.add(socket).unwrap();
        assert!(!is_shut());
        assert!(look < clock::now() + Duration::from_secs(1));
        peer.read_exact(&mut vec![0; sent]).unwrap();
        while !is_shut() {
            lingering.progress();
        }
        let mut rest = Vec::new();
        peer.read_to_end(&mut rest).unwrap();
        assert!(rest.iter().all(|octet| *octet == 0));
    }
}
