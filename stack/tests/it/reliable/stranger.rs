//! A peer that makes its datagrams itself, from `rfc-notes/reliable-datagrams.md` and nothing of the stack.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use crate::common::{crc32c, now};

/// Types of frames.
pub(super) const SEGMENT: u8 = 1;
pub(super) const ACK: u8 = 2;
pub(super) const PLACED: u8 = 3;
pub(super) const CREDIT: u8 = 4;
pub(super) const ERROR: u8 = 6;
pub(super) const HELLO: u8 = 7;
pub(super) const CLOSE: u8 = 10;

/// A frame: type, flags, length, body.
pub(super) fn frame(kind: u8, flags: u8, body: &[u8]) -> Vec<u8> {
    let length = u16::try_from(body.len()).unwrap();
    let mut frame = vec![kind, flags];
    frame.extend(length.to_be_bytes());
    frame.extend(body);
    frame
}

/// Words in network byte order.
pub(super) fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

/// ACK of the numbers from `largest` - `first` on.
pub(super) fn ack(largest: u64, first: u32) -> Vec<u8> {
    let [high, low] = [largest >> 32, largest & 0xffff_ffff].map(|it| u32::try_from(it).unwrap());
    frame(ACK, 0, &words(&[high, low, 0, 0, first]))
}

/// PLACED without a map.
pub(super) fn placed(next: u32) -> Vec<u8> {
    frame(PLACED, 0, &words(&[next, 0, 0]))
}

/// HELLO with an identifier and unlimited credit, or as much as `receives` and `window` are.
pub(super) fn hello(association: u32, receives: u32, window: u32) -> Vec<u8> {
    frame(
        HELLO,
        0,
        &words(&[1 << 24, association, receives, window, 0, 0, 0, 0]),
    )
}

/// A Send of one segment, with these numbers.
pub(super) fn send(number: u32, message: u32, after: u16, octets: &[u8]) -> Vec<u8> {
    let mut body = words(&[number, message, 0]);
    body.extend(0u16.to_be_bytes());
    body.extend(after.to_be_bytes());
    // DDP control with L, RDMAP control of a Send; Q_Key, queue, MSN, MO.
    body.extend([0x41, 0x43]);
    body.extend(words(&[0, 0, message.wrapping_add(1), 0]));
    body.extend(octets);
    frame(SEGMENT, 3, &body)
}

/// A datagram with these frames; the first one is a HELLO if `is_hello`.
pub(super) fn datagram(
    (association, number, epoch): (u32, u64, u32),
    is_hello: bool,
    frames: &[Vec<u8>],
) -> Vec<u8> {
    let mut datagram = vec![0x51, 1 | u8::from(is_hello) << 1, 0, 0];
    datagram.extend(association.to_be_bytes());
    datagram.extend(number.to_be_bytes());
    datagram.extend(0u32.to_be_bytes());
    datagram.extend(epoch.to_be_bytes());
    frames.iter().for_each(|frame| datagram.extend(frame));
    datagram.extend(crc32c(&datagram).to_le_bytes());
    datagram
}

/// A datagram that arrived.
#[derive(Debug, Clone)]
pub(super) struct Got {
    pub(super) association: u32,
    pub(super) number: u64,
    /// Type, flags and body of each frame.
    pub(super) frames: Vec<(u8, u8, Vec<u8>)>,
    pub(super) octets: usize,
}

impl Got {
    fn parse(datagram: &[u8]) -> Self {
        let word = |at: usize| u32::from_be_bytes(datagram[at..at + 4].try_into().unwrap());
        let end = datagram.len() - 4;
        assert_eq!(datagram[0], 0x51);
        assert_eq!(datagram[end..], crc32c(&datagram[..end]).to_le_bytes());
        let mut frames = Vec::new();
        let mut at = 24;
        while at < end {
            let length = usize::from(u16::from_be_bytes([datagram[at + 2], datagram[at + 3]]));
            let body = datagram[at + 4..at + 4 + length].to_vec();
            frames.push((datagram[at], datagram[at + 1], body));
            at += 4 + length;
        }
        Self {
            association: word(4),
            number: u64::from(word(8)) << 32 | u64::from(word(12)),
            frames,
            octets: datagram.len(),
        }
    }

    /// Bodies of the frames of a type.
    pub(super) fn of(&self, kind: u8) -> impl Iterator<Item = &[u8]> {
        let is_its = move |it: &&(u8, u8, Vec<u8>)| it.0 == kind;
        self.frames.iter().filter(is_its).map(|it| &it.2[..])
    }

    /// Reason of a CLOSE.
    pub(super) fn close_reason(&self) -> Option<u32> {
        let body = self.of(CLOSE).next()?;
        Some(u32::from_be_bytes(body[..4].try_into().unwrap()))
    }

    /// The identifier that a HELLO names.
    pub(super) fn hello(&self) -> Option<u32> {
        let body = self.of(HELLO).next()?;
        Some(u32::from_be_bytes(body[4..8].try_into().unwrap()))
    }
}

/// A socket with an epoch and an identifier of its own.
pub(super) struct Stranger {
    pub(super) socket: UdpSocket,
    pub(super) epoch: u32,
    pub(super) id: u32,
    next: u64,
}

impl Stranger {
    pub(super) fn new(epoch: u32) -> Self {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let tick = Duration::from_millis(5);
        socket.set_read_timeout(Some(tick)).unwrap();
        Self {
            socket,
            epoch,
            id: 0x0bad_0000 | epoch & 0xffff,
            next: 0,
        }
    }

    pub(super) fn port(&self) -> u16 {
        self.socket.local_addr().unwrap().port()
    }

    /// Sends frames to the association that the peer drew the identifier of. Returns the octets.
    pub(super) fn send(
        &mut self,
        to: u16,
        association: u32,
        is_hello: bool,
        frames: &[Vec<u8>],
    ) -> usize {
        let head = (association, self.next, self.epoch);
        self.next += 1;
        let datagram = datagram(head, is_hello, frames);
        let to = SocketAddr::from((Ipv4Addr::LOCALHOST, to));
        self.socket.send_to(&datagram, to).unwrap()
    }

    /// The next datagram of the stack at `from`, within some milliseconds.
    pub(super) fn receive(&self, from: u16) -> Option<Got> {
        let mut octets = [0; 65_536];
        match self.socket.recv_from(&mut octets) {
            // An invitation to share memory.
            Ok((36, _)) if &octets[4..8] == b"DGiH" => None,
            Ok((length, sender)) if sender.port() == from => Some(Got::parse(&octets[..length])),
            Ok(_) => None,
            Err(error) if error.kind() == ErrorKind::WouldBlock => None,
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => None,
            Err(error) => panic!("{error}"),
        }
    }

    /// All datagrams that come within a time.
    pub(super) fn gather(&self, from: u16, time: Duration) -> Vec<Got> {
        let until = now() + time;
        let mut got = Vec::new();
        while now() < until {
            got.extend(self.receive(from));
        }
        got
    }
}
