//! The byte stream of a connected queue pair.

use std::io::{self, IoSliceMut, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use dgiwarp_engine::connected::{StreamSink, Taken};
use dgiwarp_llp_tcp_mpa::TcpEnd;
use dgiwarp_memory::Piece;
use dgiwarp_memory::socket::{self, SendOptions};
use dgiwarp_memory::{TcpProgress, tcp_progress};

use crate::driver::tcp::{liveness, socket as tcp};

/// A reliable byte stream with a descriptor for readiness. Nothing blocks.
#[derive(Debug)]
pub(crate) enum Pipe {
    /// A TCP connection.
    Tcp(TcpStream),
    /// Octets in memory, for tests.
    #[cfg(test)]
    Memory(super::memory_pipe::MemoryPipe),
}

impl From<TcpStream> for Pipe {
    fn from(stream: TcpStream) -> Self {
        Self::Tcp(stream)
    }
}

impl AsFd for Pipe {
    #[inline]
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(stream) => stream.as_fd(),
            #[cfg(test)]
            Self::Memory(memory) => memory.as_fd(),
        }
    }
}

impl Pipe {
    /// Receives into one buffer. 0 is the end of the stream.
    #[inline]
    pub(crate) fn receive(&self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => { stream }.read(into),
            #[cfg(test)]
            Self::Memory(memory) => memory.receive(into),
        }
    }

    /// Receives into several buffers, in this order.
    #[inline]
    pub(crate) fn receive_vectored(&self, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => { stream }.read_vectored(into),
            #[cfg(test)]
            Self::Memory(memory) => into
                .iter_mut()
                .find(|it| !it.is_empty())
                .map_or(Ok(0), |it| memory.receive(it)),
        }
    }

    /// Sends octets that lie in one piece.
    #[inline]
    pub(crate) fn send(&self, octets: &[u8]) -> Taken {
        match self {
            Self::Tcp(stream) => taken({ stream }.write(octets)),
            #[cfg(test)]
            Self::Memory(memory) => taken(memory.send(octets)),
        }
    }

    /// Half-closes: the peer sees the end of the stream behind what was sent. Without effect where both halves are closed.
    pub(crate) fn shut_down(&self) {
        match self {
            Self::Tcp(stream) => {
                let _ = stream.shutdown(Shutdown::Write);
            }
            #[cfg(test)]
            Self::Memory(memory) => memory.shut_down(),
        }
    }

    /// The end of the stream, if it has come, without receiving what is before it.
    pub(crate) fn end(&self) -> Option<TcpEnd> {
        match self {
            Self::Tcp(stream) => tcp::hung_up(stream),
            #[cfg(test)]
            Self::Memory(memory) => memory.end(),
        }
    }

    /// The effective maximum segment size, in octets: what leaves as one segment.
    pub(crate) fn emss(&self) -> io::Result<u16> {
        match self {
            Self::Tcp(stream) => tcp::emss(stream),
            #[cfg(test)]
            Self::Memory(_) => Ok(u16::MAX),
        }
    }

    /// Has the stream itself find out that an idle peer is gone, after `patience`.
    pub(crate) fn keep_alive(&self, patience: Duration) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => liveness::keep_alive(stream, patience),
            #[cfg(test)]
            Self::Memory(_) => Ok(()),
        }
    }

    /// Progress with the octets that were sent.
    pub(crate) fn progress(&self) -> io::Result<TcpProgress> {
        match self {
            Self::Tcp(stream) => tcp_progress(stream.as_fd()),
            #[cfg(test)]
            Self::Memory(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Address and port of our end.
    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        match self {
            Self::Tcp(stream) => stream.local_addr(),
            #[cfg(test)]
            Self::Memory(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}

impl StreamSink for &Pipe {
    fn send(&mut self, pieces: &[Piece<'_>]) -> Taken {
        match self {
            Pipe::Tcp(stream) => {
                taken(socket::send(stream.as_fd(), pieces, SendOptions::default()))
            }
            #[cfg(test)]
            Pipe::Memory(memory) => taken(memory.send(&super::memory_pipe::gather(pieces))),
        }
    }
}

fn taken(result: io::Result<usize>) -> Taken {
    match result {
        Ok(octets) => Taken::Octets(octets),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Taken::WouldBlock,
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Taken::Octets(0),
        Err(_) => Taken::Lost,
    }
}
