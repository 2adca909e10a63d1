//! A peer without a stack: octets on a TCP socket, for what no stack of ours would do. CRCs are off.

use core::time::Duration;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

use super::LIMIT;
use super::ops::Siw;

/// Its flags and revision: S, revision 2.
const ENHANCED: [u8; 2] = [0x10, 2];

/// The control flags of the client-server model.
pub(crate) const CLIENT_SERVER: [u8; 2] = [0, 0];
/// The header of a Write, to nowhere.
const EMPTY_WRITE: [u8; 14] = [0xc1, 0x40, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
/// How long an answer takes at most if siw looks.
const PATIENCE: Duration = Duration::from_millis(500);

pub(crate) struct Raw {
    pub(crate) stream: TcpStream,
    msn: u8,
}

impl Raw {
    pub(crate) fn on(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream, msn: 0 }
    }

    /// TCP only.
    pub(crate) fn connect(siw: &Siw<'_>) -> Self {
        let to = siw.address();
        let stream = siw.vm.in_network(|| TcpStream::connect(to));
        Self::on(stream.unwrap().unwrap())
    }

    /// An enhanced Request: IRD and ORD 4, and the control flags of peer-to-peer mode.
    pub(crate) fn request(private_data: &[u8], flags: [u8; 2]) -> Vec<u8> {
        Self::frame(b"MPA ID Req Frame", private_data, flags)
    }

    pub(crate) fn reply(private_data: &[u8], flags: [u8; 2]) -> Vec<u8> {
        Self::frame(b"MPA ID Rep Frame", private_data, flags)
    }

    fn frame(key: &[u8; 16], private_data: &[u8], [a, b]: [u8; 2]) -> Vec<u8> {
        let mut octets = key.to_vec();
        octets.extend(ENHANCED);
        let len = u16::try_from(4 + private_data.len()).unwrap();
        octets.extend(len.to_be_bytes());
        octets.extend([a, 4, b, 4]);
        octets.extend(private_data);
        octets
    }

    pub(crate) fn write(&mut self, octets: &[u8]) {
        self.stream.write_all(octets).unwrap();
    }

    fn read<const N: usize>(&mut self) -> [u8; N] {
        let mut octets = [0; N];
        self.stream.read_exact(&mut octets).unwrap();
        octets
    }

    /// Reads a startup frame: flags, revision, and what follows.
    pub(crate) fn startup_frame(&mut self) -> ([u8; 2], Vec<u8>) {
        let head: [u8; 20] = self.read();
        assert_eq!(&head[..7], b"MPA ID ");
        let mut data = vec![0; usize::from(u16::from_be_bytes([head[18], head[19]]))];
        self.stream.read_exact(&mut data).unwrap();
        ([head[16], head[17]], data)
    }

    pub(crate) fn fpdu(&mut self, ulpdu: &[u8]) {
        let mut octets = u16::try_from(ulpdu.len()).unwrap().to_be_bytes().to_vec();
        octets.extend(ulpdu);
        octets.resize(octets.len().next_multiple_of(4) + 4, 0);
        self.write(&octets);
    }

    /// The next ULPDU; `None` at the end of the stream.
    pub(crate) fn ulpdu(&mut self) -> Option<Vec<u8>> {
        let mut length = [0; 2];
        // siw may have answered before it looks at what arrives; a Write of nothing wakes it, and is nothing to it.
        while self.is_silent() {
            self.fpdu(&EMPTY_WRITE);
        }
        self.stream.read_exact(&mut length).ok()?;
        let length = usize::from(u16::from_be_bytes(length));
        let mut rest = vec![0; (2 + length).next_multiple_of(4) + 4 - 2];
        self.stream.read_exact(&mut rest).unwrap();
        rest.truncate(length);
        Some(rest)
    }

    fn is_silent(&self) -> bool {
        self.stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let peeked = self.stream.peek(&mut [0]);
        self.stream.set_read_timeout(Some(LIMIT)).unwrap();
        peeked.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    }

    /// A Send of one segment.
    pub(crate) fn send(&mut self, payload: &[u8]) {
        self.msn += 1;
        let mut ulpdu = vec![0x41, 0x43, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, self.msn];
        ulpdu.extend([0; 4]);
        ulpdu.extend(payload);
        self.fpdu(&ulpdu);
    }

    /// A command for `siw-ops`, about octets at 0x1000 behind the key 0x01020304 here.
    pub(crate) fn command(&mut self, operation: u32, len: u32) {
        let mut octets = operation.to_le_bytes().to_vec();
        octets.extend([4, 3, 2, 1, 0, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        octets.extend(len.to_le_bytes());
        self.send(&octets);
    }

    /// Resets the connection.
    pub(crate) fn reset(self) {
        let socket = socket2::SockRef::from(&self.stream);
        socket.set_linger(Some(Duration::ZERO)).unwrap();
    }
}
