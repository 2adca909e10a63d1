//! A byte stream in memory: two queue pairs of one process are connected by it, without a network.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use dgiwarp_llp_tcp_mpa::TcpEnd;
use dgiwarp_memory::Piece;
use nix::sys::eventfd::{EfdFlags, EventFd};
use parking_lot::Mutex;

/// Octets that one direction holds.
const ROOM: usize = 64 << 10;

/// One direction.
#[derive(Debug)]
struct Lane {
    state: Mutex<State>,
    /// Readable while there is something to receive, or the end.
    readable: EventFd,
}

#[derive(Debug, Default)]
struct State {
    octets: VecDeque<u8>,
    closed: bool,
}

impl Lane {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::default(),
            readable: EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK).unwrap(),
        })
    }

    fn close(&self) {
        self.state.lock().closed = true;
        let _ = self.readable.write(1);
    }
}

/// One end of the stream.
#[derive(Debug)]
pub(crate) struct MemoryPipe {
    input: Arc<Lane>,
    output: Arc<Lane>,
}

impl MemoryPipe {
    /// The two ends of a stream.
    pub(crate) fn pair() -> [Self; 2] {
        let lanes = [Lane::new(), Lane::new()];
        [0, 1].map(|end| Self {
            input: Arc::clone(&lanes[end]),
            output: Arc::clone(&lanes[1 - end]),
        })
    }

    pub(super) fn receive(&self, into: &mut [u8]) -> io::Result<usize> {
        let mut state = self.input.state.lock();
        if state.octets.is_empty() && !state.closed {
            return Err(io::Error::from_raw_os_error(nix::libc::EAGAIN));
        }
        let len = into.len().min(state.octets.len());
        for (to, from) in into.iter_mut().zip(state.octets.drain(..len)) {
            *to = from;
        }
        if state.octets.is_empty() && !state.closed {
            let _ = self.input.readable.read();
        }
        Ok(len)
    }

    pub(super) fn send(&self, octets: &[u8]) -> io::Result<usize> {
        let mut state = self.output.state.lock();
        let len = octets.len().min(ROOM - state.octets.len());
        if len == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        state.octets.extend(&octets[..len]);
        let _ = self.output.readable.write(1);
        Ok(len)
    }

    pub(super) fn shut_down(&self) {
        self.output.close();
    }

    pub(super) fn end(&self) -> Option<TcpEnd> {
        self.input.state.lock().closed.then_some(TcpEnd::Fin)
    }
}

impl Drop for MemoryPipe {
    fn drop(&mut self) {
        self.output.close();
    }
}

impl AsFd for MemoryPipe {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.input.readable.as_fd()
    }
}

/// The octets of some pieces.
pub(crate) fn gather(pieces: &[Piece<'_>]) -> Vec<u8> {
    let mut octets = Vec::new();
    for piece in pieces {
        match piece {
            Piece::Bytes(bytes) => octets.extend_from_slice(bytes),
            Piece::Region(slice) => {
                let mut copy = vec![0; slice.len()];
                slice.copy_to(&mut copy);
                octets.extend(copy);
            }
        }
    }
    octets
}
