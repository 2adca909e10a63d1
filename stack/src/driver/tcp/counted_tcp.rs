//! A TCP connection that counts its octets, and the buffers it fills.

use std::io::{self, IoSliceMut, Read};
use std::net::TcpStream;
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::Arc;

use dgiwarp_engine::connected::Taken;
use dgiwarp_memory::Piece;
use dgiwarp_memory::socket::{self, SendOptions};

/// Two buffers for input, the first filled before the second.
#[derive(Debug)]
pub(crate) struct InputRoom<'a> {
    first: &'a mut [u8],
    second: &'a mut [u8],
}

impl<'a> InputRoom<'a> {
    #[inline]
    pub(crate) const fn new(first: &'a mut [u8], second: &'a mut [u8]) -> Self {
        Self { first, second }
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.first.is_empty() && self.second.is_empty()
    }

    /// Both buffers.
    #[inline]
    pub(crate) fn parts(&mut self) -> [&mut [u8]; 2] {
        [self.first, self.second]
    }

    /// Octets of both buffers.
    pub(crate) fn get(&self, range: Range<usize>) -> Vec<u8> {
        let octets = self.first.iter().chain(self.second.iter());
        octets
            .skip(range.start)
            .take(range.len())
            .copied()
            .collect()
    }

    /// Copies as many octets as there is room for. Returns their number.
    pub(crate) fn put(&mut self, octets: &[u8]) -> usize {
        let mut taken = 0;
        for part in self.parts() {
            let len = part.len().min(octets.len() - taken);
            part[..len].copy_from_slice(&octets[taken..taken + len]);
            taken += len;
        }
        taken
    }
}

/// A TCP connection, with the octets it carried since the startup. Nothing blocks.
#[derive(Debug, Clone)]
pub(crate) struct CountedTcp {
    stream: Arc<TcpStream>,
    sent: u64,
    received: u64,
}

impl From<TcpStream> for CountedTcp {
    fn from(stream: TcpStream) -> Self {
        Self {
            stream: Arc::new(stream),
            sent: 0,
            received: 0,
        }
    }
}

impl CountedTcp {
    #[inline]
    pub(crate) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Octets sent.
    pub(crate) const fn sent(&self) -> u64 {
        self.sent
    }

    /// Octets received.
    pub(crate) const fn received(&self) -> u64 {
        self.received
    }

    /// Octets of the startup's last frame came with it.
    pub(crate) const fn note_received(&mut self, len: usize) {
        self.received += len as u64;
    }

    /// Receives; 0 is the end.
    #[inline(always)]
    pub(crate) fn receive(&mut self, room: &mut InputRoom<'_>) -> io::Result<usize> {
        let mut stream = &*self.stream;
        let len = if room.first.is_empty() {
            stream.read(room.second)?
        } else {
            let mut parts = room.parts().map(IoSliceMut::new);
            stream.read_vectored(&mut parts)?
        };
        self.received += len as u64;
        Ok(len)
    }

    /// Sends octets that lie in one piece.
    #[inline(always)]
    pub(crate) fn send(&mut self, octets: &[u8]) -> Taken {
        let pieces = [Piece::Bytes(octets)];
        let result = socket::send(self.stream.as_fd(), &pieces, SendOptions::default());
        self.note_sent(result)
    }

    /// Sends octets that lie in several pieces.
    #[inline(always)]
    pub(crate) fn send_pieces(&mut self, pieces: &[Piece<'_>]) -> Taken {
        let result = socket::send(self.stream.as_fd(), pieces, SendOptions::default());
        self.note_sent(result)
    }

    #[inline(always)]
    fn note_sent(&mut self, result: io::Result<usize>) -> Taken {
        let taken = taken(result);
        if let Taken::Octets(octets) = taken {
            self.sent += octets as u64;
        }
        taken
    }
}

/// Result of a call that sends.
pub(crate) fn taken(result: io::Result<usize>) -> Taken {
    match result {
        Ok(octets) => Taken::Octets(octets),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Taken::WouldBlock,
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Taken::Octets(0),
        Err(_) => Taken::Lost,
    }
}
