//! A TCP connection, plain or under TLS (RFC 4217).

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};

use rustls::{ClientConnection, ServerConnection, StreamOwned};

/// Octets that are read behind the own end at most: tickets and the peer's notice of its end.
const REST: u64 = 1 << 20;

/// A connection.
#[derive(Debug)]
pub(crate) enum Stream {
    Plain(TcpStream),
    /// TLS, this end being the client.
    Client(Box<StreamOwned<ClientConnection, TcpStream>>),
    /// TLS, this end being the server.
    Server(Box<StreamOwned<ServerConnection, TcpStream>>),
}

impl Stream {
    /// The connection below.
    pub(crate) fn tcp(&self) -> &TcpStream {
        match self {
            Self::Plain(tcp) => tcp,
            Self::Client(tls) => &tls.sock,
            Self::Server(tls) => &tls.sock,
        }
    }

    pub(crate) fn is_secure(&self) -> bool {
        !matches!(self, Self::Plain(_))
    }

    /// TLS of the client's end. A handshake that fails has its reason.
    pub(crate) fn client(mut tls: ClientConnection, mut tcp: TcpStream) -> io::Result<Self> {
        while tls.is_handshaking() {
            tls.complete_io(&mut tcp)?;
        }
        Ok(Self::Client(Box::new(StreamOwned::new(tls, tcp))))
    }

    /// TLS of the server's end.
    pub(crate) fn server(mut tls: ServerConnection, mut tcp: TcpStream) -> io::Result<Self> {
        while tls.is_handshaking() {
            tls.complete_io(&mut tcp)?;
        }
        Ok(Self::Server(Box::new(StreamOwned::new(tls, tcp))))
    }

    /// Ends what this end sends; under TLS with a notice, without which the peer takes the data for cut off.
    pub(crate) fn end(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(_) => return Ok(()),
            Self::Client(tls) => tls.conn.send_close_notify(),
            Self::Server(tls) => tls.conn.send_close_notify(),
        }
        self.flush()?;
        self.tcp().shutdown(Shutdown::Write)
    }

    /// Reads what the peer sent last, of a connection whose own end has been sent. Left unread, it would have the kernel reset the connection, and octets on
    /// their way be lost.
    pub(crate) fn drain(&mut self) {
        if self.is_secure() {
            // All of use has been said.
            let _ = io::copy(&mut self.take(REST), &mut io::sink());
        }
    }
}

impl Read for Stream {
    fn read(&mut self, octets: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(tcp) => tcp.read(octets),
            Self::Client(tls) => tls.read(octets),
            Self::Server(tls) => tls.read(octets),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, octets: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(tcp) => tcp.write(octets),
            Self::Client(tls) => tls.write(octets),
            Self::Server(tls) => tls.write(octets),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(tcp) => tcp.flush(),
            Self::Client(tls) => tls.flush(),
            Self::Server(tls) => tls.flush(),
        }
    }
}
