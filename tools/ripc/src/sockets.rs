//! Exchanges over TCP sockets, to compare with: blocking, or with both ends spinning.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;

/// How an end waits for octets, or that the server sends many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Blocking,
    Spinning,
    Long,
}

impl Mode {
    fn octet(self) -> u8 {
        match self {
            Self::Blocking => b'B',
            Self::Spinning => b'S',
            Self::Long => b'L',
        }
    }
}

/// Answers each connection in a thread of its own; returns the address.
pub(crate) fn serve() -> io::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // A client that has gone ends its thread.
            thread::spawn(move || drop(echo(stream)));
        }
    });
    Ok(address)
}

fn echo(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut mode = [0; 9];
    stream.read_exact(&mut mode)?;
    let [mode, length @ ..] = mode;
    let length = usize::try_from(u64::from_be_bytes(length)).map_err(io::Error::other)?;
    let mut octets = vec![0; length];
    if mode == Mode::Long.octet() {
        let mut asked = [0];
        loop {
            stream.read_exact(&mut asked)?;
            stream.write_all(&octets)?;
        }
    }
    let spins = mode == Mode::Spinning.octet();
    stream.set_nonblocking(spins)?;
    loop {
        read(&mut stream, &mut octets, spins)?;
        stream.write_all(&octets)?;
    }
}

fn read(stream: &mut TcpStream, octets: &mut [u8], spins: bool) -> io::Result<()> {
    if !spins {
        return stream.read_exact(octets);
    }
    let mut at = 0;
    while at < octets.len() {
        match stream.read(&mut octets[at..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => at += count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::hint::spin_loop(),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// A connection for exchanges of one length.
#[derive(Debug)]
pub(crate) struct Exchange {
    stream: TcpStream,
    octets: Vec<u8>,
    mode: Mode,
}

impl Exchange {
    pub(crate) fn new(to: SocketAddr, mode: Mode, length: usize) -> io::Result<Self> {
        let mut stream = TcpStream::connect(to)?;
        stream.set_nodelay(true)?;
        let mut first = vec![mode.octet()];
        first.extend(u64::try_from(length).unwrap_or(u64::MAX).to_be_bytes());
        stream.write_all(&first)?;
        stream.set_nonblocking(mode == Mode::Spinning)?;
        let octets = vec![0; length];
        Ok(Self {
            stream,
            octets,
            mode,
        })
    }

    /// One round trip.
    pub(crate) fn round(&mut self) -> io::Result<()> {
        match self.mode {
            Mode::Blocking | Mode::Spinning => self.stream.write_all(&self.octets)?,
            Mode::Long => self.stream.write_all(&[1])?,
        }
        read(
            &mut self.stream,
            &mut self.octets,
            self.mode == Mode::Spinning,
        )
    }
}
