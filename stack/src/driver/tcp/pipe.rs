//! The byte stream of a connected queue pair.

use std::io;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use dgiwarp_engine::connected::{StreamSink, Taken};
use dgiwarp_llp_tcp_mpa::TcpEnd;
use dgiwarp_memory::{Framed, Piece};
use dgiwarp_memory::{TcpProgress, tcp_progress};

use crate::QpCounters;
use crate::driver::same_host::ends::LaneEnds;
#[cfg(test)]
use crate::driver::tcp::counted_tcp::taken;
use crate::driver::tcp::counted_tcp::{CountedTcp, InputRoom};
use crate::driver::tcp::lanes::Lanes;
use crate::driver::tcp::{liveness, socket as tcp};

/// A reliable byte stream with a descriptor for readiness. Nothing blocks.
#[derive(Debug)]
pub(crate) enum Pipe {
    /// A TCP connection.
    Tcp(CountedTcp),
    /// A TCP connection whose ends are on one host, with lanes that carry its stream.
    Lanes(Box<Lanes>),
    /// Octets in memory, for tests.
    #[cfg(test)]
    Memory(super::memory_pipe::MemoryPipe),
}

impl From<TcpStream> for Pipe {
    fn from(stream: TcpStream) -> Self {
        Self::Tcp(stream.into())
    }
}

/// Does something with the TCP connection, or with octets in memory in its place.
macro_rules! each {
    ($self:expr, $tcp:ident => $does:expr, $memory:pat => $instead:expr) => {
        match $self {
            Self::Tcp(tcp) => {
                let $tcp = tcp.stream();
                $does
            }
            Self::Lanes(lanes) => {
                let $tcp = lanes.tcp().stream();
                $does
            }
            #[cfg(test)]
            Self::Memory($memory) => $instead,
        }
    };
}

impl AsFd for Pipe {
    #[inline]
    fn as_fd(&self) -> BorrowedFd<'_> {
        each!(self, tcp => tcp.as_fd(), memory => memory.as_fd())
    }
}

impl Pipe {
    /// Receives into two buffers, the first before the second. 0 is the end of the stream.
    #[inline(always)]
    pub(crate) fn receive(&mut self, first: &mut [u8], second: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(tcp) => tcp.receive(&mut InputRoom::new(first, second)),
            Self::Lanes(lanes) => lanes.receive(InputRoom::new(first, second)),
            #[cfg(test)]
            Self::Memory(memory) => memory.receive(if first.is_empty() { second } else { first }),
        }
    }

    /// Receives what lies in memory, without a system call. As [`receive`](Self::receive) where the stream does not arrive in memory.
    #[inline(always)]
    pub(crate) fn poll(&mut self, first: &mut [u8], second: &mut [u8]) -> io::Result<usize> {
        if let Self::Lanes(lanes) = self
            && lanes.carry_input()
        {
            return lanes.poll(InputRoom::new(first, second));
        }
        self.receive(first, second)
    }

    /// Sends octets that lie in one piece.
    #[inline(always)]
    pub(crate) fn send(&mut self, octets: &[u8]) -> Taken {
        match self {
            Self::Tcp(tcp) => tcp.send(octets),
            Self::Lanes(lanes) => lanes.send(&[Piece::Bytes(octets)]),
            #[cfg(test)]
            Self::Memory(memory) => taken(memory.send(octets)),
        }
    }

    // Lanes.

    /// Moves the stream to lanes: at once where this end `starts`, else when the peer has.
    pub(crate) fn attach(&mut self, ends: LaneEnds, starts: bool) {
        if let Self::Tcp(tcp) = self {
            let mut lanes = Box::new(Lanes::new(tcp.clone(), ends));
            if starts {
                lanes.start();
            }
            *self = Self::Lanes(lanes);
        }
    }

    /// Gives up lanes that the peer has not.
    pub(crate) fn detach(&mut self) {
        if let Self::Lanes(lanes) = self {
            *self = Self::Tcp(lanes.tcp().clone());
        }
    }

    /// Octets that are sent from now on go by TCP.
    pub(crate) fn leave_lane(&mut self) {
        if let Some(lanes) = self.lanes_mut() {
            lanes.finish();
        }
    }

    /// The lanes, if there are any.
    #[inline]
    pub(crate) fn lanes(&self) -> Option<&Lanes> {
        match self {
            Self::Lanes(lanes) => Some(lanes),
            Self::Tcp(_) => None,
            #[cfg(test)]
            Self::Memory(_) => None,
        }
    }

    /// The lanes, if there are any.
    #[inline]
    pub(crate) fn lanes_mut(&mut self) -> Option<&mut Lanes> {
        match self {
            Self::Lanes(lanes) => Some(lanes),
            Self::Tcp(_) => None,
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

    /// Whether what is sent now finds no room, without trying.
    #[inline]
    pub(crate) fn is_blocked(&mut self) -> bool {
        self.lanes_mut().is_some_and(Lanes::is_blocked)
    }

    /// Adds octets that went by lanes.
    pub(crate) fn count_lanes(&self, counters: &mut QpCounters) {
        if let Some(lanes) = self.lanes() {
            lanes.count(counters);
        }
    }

    /// Octets that TCP carried, either way, while there are no lanes.
    #[inline]
    pub(crate) fn tcp_octets(&self) -> u64 {
        match self {
            Self::Tcp(tcp) => tcp.sent() + tcp.received(),
            Self::Lanes(_) => 0,
            #[cfg(test)]
            Self::Memory(_) => 0,
        }
    }

    /// Octets of the startup's last frame came with it.
    pub(crate) fn note_received(&mut self, len: usize) {
        if let Self::Tcp(tcp) = self {
            tcp.note_received(len);
        }
    }

    /// Wants the descriptor readable when something arrives in a lane, unless the end is `paused`, and when there is room in the other one; or
    /// not while a thread polls.
    pub(crate) fn want_bells(&mut self, wanted: bool, paused: bool) {
        if let Some(lanes) = self.lanes_mut() {
            lanes.want_bells(wanted, paused);
        }
    }

    /// Nothing is received for now: bells must not keep the descriptor readable.
    pub(crate) fn silence(&mut self) {
        if let Some(lanes) = self.lanes_mut() {
            lanes.silence();
        }
    }

    /// Whether octets are in a lane that the descriptor does not report, to be checked once.
    #[inline]
    pub(crate) fn take_unannounced(&mut self) -> bool {
        self.lanes_mut().is_some_and(Lanes::take_unannounced)
    }

    // TCP.

    /// Whether the peer is another socket whose address is one of this network namespace or not. `None` for one that has no peer but itself.
    pub(crate) fn has_local_peer(&self) -> Option<bool> {
        each!(self, tcp => (!tcp::is_own_end(tcp)).then(|| tcp::is_local(tcp)), _ => None)
    }

    /// Whether TCP has acknowledgements of all octets that it took.
    pub(crate) fn is_acknowledged(&self) -> bool {
        let progress = self.progress().ok();
        progress.is_none_or(|it| it.unacknowledged == 0 && it.unsent == 0)
    }

    /// Half-closes: the peer sees the end of the stream behind what was sent. Without effect where both halves are closed.
    pub(crate) fn shut_down(&self) {
        each!(self, tcp => drop(tcp.shutdown(Shutdown::Write)), memory => memory.shut_down());
    }

    /// The end of the stream, if it has come, without receiving what is before it.
    pub(crate) fn end(&self) -> Option<TcpEnd> {
        each!(self, tcp => tcp::hung_up(tcp), memory => memory.end())
    }

    /// The effective maximum segment size, in octets: what leaves as one segment.
    pub(crate) fn emss(&self) -> io::Result<u16> {
        each!(self, tcp => tcp::emss(tcp), _ => Ok(u16::MAX))
    }

    /// Has the stream itself find out that an idle peer is gone, after `patience`.
    pub(crate) fn keep_alive(&self, patience: Duration) -> io::Result<()> {
        each!(self, tcp => liveness::keep_alive(tcp, patience), _ => Ok(()))
    }

    /// Progress with the octets that were sent.
    pub(crate) fn progress(&self) -> io::Result<TcpProgress> {
        each!(self, tcp => tcp_progress(tcp.as_fd()), _ => Err(io::ErrorKind::Unsupported.into()))
    }

    /// Address and port of our end.
    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        each!(self, tcp => tcp.local_addr(), _ => Err(io::ErrorKind::Unsupported.into()))
    }
}

impl StreamSink for Pipe {
    fn send(&mut self, pieces: &[Piece<'_>]) -> Taken {
        match self {
            Self::Tcp(tcp) => tcp.send_pieces(pieces),
            Self::Lanes(lanes) => lanes.send(pieces),
            #[cfg(test)]
            Self::Memory(memory) => taken(memory.send(&super::memory_pipe::gather(pieces))),
        }
    }

    #[inline]
    fn send_whole(&mut self, pieces: &[Piece<'_>]) -> bool {
        self.lanes_mut()
            .is_some_and(|lanes| lanes.send_whole(pieces))
    }

    #[inline(always)]
    fn send_framed<const FRONT: usize>(&mut self, framed: &Framed<'_, FRONT>) -> bool {
        self.lanes_mut()
            .is_some_and(|lanes| lanes.send_framed(framed))
    }
}
