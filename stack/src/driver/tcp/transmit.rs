//! The way of octets from a connected engine to its TCP socket.

use std::io::{self, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;

use dgiwarp_engine::connected::{StreamSink, Taken};
use dgiwarp_memory::socket::{self, Piece, SendOptions};

/// A TCP socket.
pub(crate) struct Tcp<'a>(pub(crate) &'a TcpStream);

impl Tcp<'_> {
    /// Sends octets that lie in one piece.
    #[inline]
    pub(crate) fn send_staged(&mut self, octets: &[u8]) -> Taken {
        taken(self.0.write(octets))
    }
}

impl StreamSink for Tcp<'_> {
    fn send(&mut self, pieces: &[Piece<'_>]) -> Taken {
        taken(socket::send(self.0.as_fd(), pieces, SendOptions::default()))
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
