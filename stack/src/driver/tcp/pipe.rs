//! The byte stream of a connected queue pair.

use std::io::{self, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use dgiwarp_engine::connected::{StreamSink, Taken};
use dgiwarp_llp_tcp_mpa::TcpEnd;
use dgiwarp_memory::Piece;
use dgiwarp_memory::socket::{self, SendOptions};
use dgiwarp_memory::{TcpProgress, tcp_progress};

use crate::driver::tcp::lanes::{Lanes, TcpOctets, read};
use crate::driver::tcp::{liveness, socket as tcp};

/// A reliable byte stream with a descriptor for readiness. Nothing blocks.
#[derive(Debug)]
pub(crate) enum Pipe {
    /// A TCP connection.
    Tcp(TcpPipe),
    /// Octets in memory, for tests.
    #[cfg(test)]
    Memory(super::memory_pipe::MemoryPipe),
}

/// A TCP connection, and the lanes that carry its stream where both ends are on one host.
#[derive(Debug)]
pub(crate) struct TcpPipe {
    stream: TcpStream,
    octets: TcpOctets,
    lanes: Option<Box<Lanes>>,
}

impl From<TcpStream> for Pipe {
    fn from(stream: TcpStream) -> Self {
        Self::Tcp(TcpPipe {
            stream,
            octets: TcpOctets::default(),
            lanes: None,
        })
    }
}

impl TcpPipe {
    #[inline(always)]
    fn receive(&mut self, first: &mut [u8], second: &mut [u8]) -> io::Result<usize> {
        let Self {
            stream,
            octets,
            lanes,
        } = self;
        if let Some(lanes) = lanes {
            return lanes.receive(stream, octets, first, second);
        }
        let len = read(stream, first, second)?;
        octets.received += len as u64;
        Ok(len)
    }

    #[inline(always)]
    fn sent(&mut self, result: io::Result<usize>) -> Taken {
        let taken = taken(result);
        if let Taken::Octets(octets) = taken {
            self.octets.sent += octets as u64;
        }
        taken
    }

    /// The lanes, if they carry what is sent.
    #[inline(always)]
    fn send_by_lane(&mut self, pieces: &[Piece<'_>]) -> Option<Taken> {
        if self.lanes.is_some() {
            self.send_by_open_lane(pieces)
        } else {
            None
        }
    }

    fn send_by_open_lane(&mut self, pieces: &[Piece<'_>]) -> Option<Taken> {
        let lanes = self.lanes.as_mut()?;
        lanes
            .carry_output()
            .then(|| lanes.send(&self.stream, &mut self.octets, pieces))
    }
}

impl AsFd for Pipe {
    #[inline]
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(tcp) => tcp.stream.as_fd(),
            #[cfg(test)]
            Self::Memory(memory) => memory.as_fd(),
        }
    }
}

impl Pipe {
    /// Receives into two buffers, the first before the second. 0 is the end of the stream.
    #[inline(always)]
    pub(crate) fn receive(&mut self, first: &mut [u8], second: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(tcp) => tcp.receive(first, second),
            #[cfg(test)]
            Self::Memory(memory) => memory.receive(if first.is_empty() { second } else { first }),
        }
    }

    /// Receives what lies in memory, without a system call. As [`receive`](Self::receive) where the stream does not arrive in memory.
    #[inline(always)]
    pub(crate) fn poll(&mut self, first: &mut [u8], second: &mut [u8]) -> io::Result<usize> {
        if let Self::Tcp(TcpPipe {
            stream,
            octets,
            lanes: Some(lanes),
        }) = self
            && lanes.carry_input()
        {
            return lanes.poll(stream, octets, first, second);
        }
        self.receive(first, second)
    }

    /// Sends octets that lie in one piece.
    #[inline(always)]
    pub(crate) fn send(&mut self, octets: &[u8]) -> Taken {
        match self {
            Self::Tcp(tcp) => {
                if let Some(taken) = tcp.send_by_lane(&[Piece::Bytes(octets)]) {
                    return taken;
                }
                let result = (&tcp.stream).write(octets);
                tcp.sent(result)
            }
            #[cfg(test)]
            Self::Memory(memory) => taken(memory.send(octets)),
        }
    }

    // Lanes.

    /// Moves the stream to lanes: at once where this end `starts`, else when the peer has.
    pub(crate) fn attach(&mut self, lanes: Lanes, starts: bool) {
        match self {
            Self::Tcp(tcp) => {
                let lanes = tcp.lanes.insert(Box::new(lanes));
                if starts {
                    lanes.start(&tcp.stream, &mut tcp.octets);
                }
            }
            #[cfg(test)]
            Self::Memory(_) => {}
        }
    }

    /// Gives up lanes that the peer has not.
    pub(crate) fn detach(&mut self) {
        match self {
            Self::Tcp(tcp) => tcp.lanes = None,
            #[cfg(test)]
            Self::Memory(_) => {}
        }
    }

    /// Octets that are sent from now on go by TCP.
    pub(crate) fn leave_lane(&mut self) {
        if let Self::Tcp(TcpPipe {
            octets,
            lanes: Some(lanes),
            ..
        }) = self
        {
            lanes.finish(octets);
        }
    }

    #[inline]
    fn lanes(&self) -> Option<&Lanes> {
        match self {
            Self::Tcp(tcp) => tcp.lanes.as_deref(),
            #[cfg(test)]
            Self::Memory(_) => None,
        }
    }

    #[inline]
    fn lanes_mut(&mut self) -> Option<&mut Lanes> {
        match self {
            Self::Tcp(tcp) => tcp.lanes.as_deref_mut(),
            #[cfg(test)]
            Self::Memory(_) => None,
        }
    }

    /// Whether what is sent leaves by a lane.
    #[inline]
    pub(crate) fn sends_by_lane(&self) -> bool {
        self.lanes().is_some_and(Lanes::carry_output)
    }

    /// Whether the stream arrives by a lane.
    #[inline]
    pub(crate) fn receives_by_lane(&self) -> bool {
        self.lanes().is_some_and(Lanes::carry_input)
    }

    /// Octets sent and received by lanes.
    pub(crate) fn lane_octets(&self) -> (u64, u64) {
        self.lanes().map_or((0, 0), Lanes::octets)
    }

    /// Octets that TCP carried, either way.
    #[inline]
    pub(crate) fn tcp_octets(&self) -> u64 {
        match self {
            Self::Tcp(tcp) => tcp.octets.sent + tcp.octets.received,
            #[cfg(test)]
            Self::Memory(_) => 0,
        }
    }

    /// Octets of the startup's last frame came with it.
    pub(crate) fn note_received(&mut self, len: usize) {
        match self {
            Self::Tcp(tcp) => tcp.octets.received += len as u64,
            #[cfg(test)]
            Self::Memory(_) => {}
        }
    }

    /// Wants the descriptor readable when something arrives in a lane, or not while a thread polls.
    pub(crate) fn want_bells(&mut self, wanted: bool) {
        if let Some(lanes) = self.lanes_mut() {
            lanes.want_bells(wanted);
        }
    }

    /// Nothing is received for now: bells must not keep the descriptor readable.
    pub(crate) fn silence(&mut self) {
        if let Self::Tcp(TcpPipe {
            stream,
            octets,
            lanes: Some(lanes),
        }) = self
        {
            lanes.silence(stream, octets);
        }
    }

    /// Whether octets are in a lane of which the descriptor does not tell, to be asked once.
    #[inline]
    pub(crate) fn take_unannounced(&mut self) -> bool {
        self.lanes_mut().is_some_and(Lanes::take_unannounced)
    }

    /// Whether both ends are on this host, as far as their addresses show.
    pub(crate) fn is_local(&self) -> bool {
        match self {
            Self::Tcp(tcp) => tcp::is_local(&tcp.stream) && !tcp::is_own_end(&tcp.stream),
            #[cfg(test)]
            Self::Memory(_) => false,
        }
    }

    /// Half-closes: the peer sees the end of the stream behind what was sent. Without effect where both halves are closed.
    pub(crate) fn shut_down(&self) {
        match self {
            Self::Tcp(tcp) => {
                let _ = tcp.stream.shutdown(Shutdown::Write);
            }
            #[cfg(test)]
            Self::Memory(memory) => memory.shut_down(),
        }
    }

    /// The end of the stream, if it has come, without receiving what is before it.
    pub(crate) fn end(&self) -> Option<TcpEnd> {
        match self {
            Self::Tcp(tcp) => tcp::hung_up(&tcp.stream),
            #[cfg(test)]
            Self::Memory(memory) => memory.end(),
        }
    }

    /// The effective maximum segment size, in octets: what leaves as one segment.
    pub(crate) fn emss(&self) -> io::Result<u16> {
        match self {
            Self::Tcp(tcp) => tcp::emss(&tcp.stream),
            #[cfg(test)]
            Self::Memory(_) => Ok(u16::MAX),
        }
    }

    /// Has the stream itself find out that an idle peer is gone, after `patience`.
    pub(crate) fn keep_alive(&self, patience: Duration) -> io::Result<()> {
        match self {
            Self::Tcp(tcp) => liveness::keep_alive(&tcp.stream, patience),
            #[cfg(test)]
            Self::Memory(_) => Ok(()),
        }
    }

    /// Progress with the octets that were sent.
    pub(crate) fn progress(&self) -> io::Result<TcpProgress> {
        match self {
            Self::Tcp(tcp) => tcp_progress(tcp.stream.as_fd()),
            #[cfg(test)]
            Self::Memory(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Address and port of our end.
    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        match self {
            Self::Tcp(tcp) => tcp.stream.local_addr(),
            #[cfg(test)]
            Self::Memory(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}

impl StreamSink for Pipe {
    fn send(&mut self, pieces: &[Piece<'_>]) -> Taken {
        match self {
            Self::Tcp(tcp) => {
                if let Some(taken) = tcp.send_by_lane(pieces) {
                    return taken;
                }
                let result = socket::send(tcp.stream.as_fd(), pieces, SendOptions::default());
                tcp.sent(result)
            }
            #[cfg(test)]
            Self::Memory(memory) => taken(memory.send(&super::memory_pipe::gather(pieces))),
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
