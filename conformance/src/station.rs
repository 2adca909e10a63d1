//! A peer of datagrams without a stack: one UDP socket, and what the tester remembers as a sender has to (Datagram §3).

use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use core::fmt;

use socket2::SockRef;

use crate::clock;
use crate::peer::Patience;
use crate::recording::{Recorder, Tape, Way};
use crate::wire::datagram::{Datagram, Dropped, Extension, Segment};
use crate::wire::hex;

/// The longest payload of a UDP datagram, and the longest that the tester makes room for.
const LONGEST: usize = 65_535;

/// The receive buffer that the tester asks for, so that what the device sends waits there.
const BUFFER: usize = 4 << 20;

/// Input of a station.
#[derive(Clone, Debug)]
pub enum Heard {
    /// A datagram of the device.
    Datagram(Datagram),
    /// One that every receiver has to drop.
    Bad(Dropped, Vec<u8>),
    /// Nothing within the time.
    Nothing,
    /// The device's host says that nobody has the port.
    Unreachable,
}

impl fmt::Display for Heard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Datagram(datagram) => datagram.fmt(f),
            Self::Bad(why, octets) => write!(f, "{why} in {}", hex(octets, 64)),
            Self::Nothing => f.write_str("nothing"),
            Self::Unreachable => f.write_str("port unreachable"),
        }
    }
}

impl Heard {
    /// The segment that came.
    #[must_use]
    pub fn segment(&self) -> Option<&Segment> {
        match self {
            Self::Datagram(datagram) => datagram.segment(),
            Self::Bad(..) | Self::Nothing | Self::Unreachable => None,
        }
    }
}

/// One socket of the tester, and the queue pair that it talks to.
#[derive(Debug)]
pub struct Station {
    socket: UdpSocket,
    /// Where its datagrams go.
    pub to: SocketAddr,
    tape: Tape,
    patience: Patience,
    /// The epoch of what it sends.
    pub epoch: u32,
    /// The number of its next message with an extension.
    pub number: u32,
    /// The MSN of its next plain Send.
    pub msn: u32,
}

impl Station {
    /// A station at the first of these addresses of ours that is free.
    ///
    /// # Errors
    /// The operating system's.
    pub fn new(
        at: &[SocketAddr],
        to: SocketAddr,
        recorder: &Recorder,
        patience: Patience,
    ) -> io::Result<Self> {
        let socket = UdpSocket::bind(at)?;
        socket.set_broadcast(true)?;
        // The system gives what it may.
        let _ = SockRef::from(&socket).set_recv_buffer_size(BUFFER);
        if let IpAddr::V4(at) = socket.local_addr()?.ip() {
            // Groups leave through the interface of the address; a system without multicast has none.
            let _ = SockRef::from(&socket).set_multicast_if_v4(&at);
        }
        let tape = recorder.begin_datagrams(socket.local_addr()?, to);
        let port = u32::from(socket.local_addr()?.port());
        Ok(Self {
            socket,
            to,
            tape,
            patience,
            // Some number of its own; that the device cannot predict it is nobody's concern here.
            epoch: 0x5a00_0000 | port,
            number: port << 8,
            msn: port << 4,
        })
    }

    /// Its address and port.
    ///
    /// # Errors
    /// The operating system's.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Recording of its traffic.
    #[must_use]
    pub fn tape(&self) -> Tape {
        self.tape.clone()
    }

    /// Sends octets as one datagram.
    pub fn octets(&mut self, octets: &[u8]) {
        let to = self.to;
        self.octets_to(octets, to);
    }

    /// Sends octets to another address.
    pub fn octets_to(&mut self, octets: &[u8], to: SocketAddr) {
        self.tape.keep(Way::Sent, octets);
        // An earlier datagram's ICMP message is told here once; then it leaves. A loss shows by the missing answer.
        if self.socket.send_to(octets, to).is_err() {
            let _ = self.socket.send_to(octets, to);
        }
    }

    /// Sends a datagram.
    pub fn send(&mut self, datagram: impl Into<Datagram>) {
        self.octets(&datagram.into().to_bytes());
    }

    /// A plain Send, numbered.
    pub fn plain_send(&mut self, qkey: u32, payload: &[u8]) -> Segment {
        let segment = Segment::send(qkey, self.msn, payload);
        self.msn = self.msn.wrapping_add(1);
        segment
    }

    /// The extension of a new message of so many octets.
    pub fn message(&mut self, length: usize) -> Extension {
        let number = self.number;
        self.number = number.wrapping_add(1);
        Extension {
            epoch: self.epoch,
            number,
            length: u32::try_from(length).unwrap_or(u32::MAX),
            ..Extension::default()
        }
    }

    /// The next datagram within a time; with none, what waits already.
    pub fn next_within(&mut self, time: Duration) -> Heard {
        let until = clock::now() + time;
        let mut octets = vec![0; LONGEST];
        loop {
            let left = until.saturating_duration_since(clock::now());
            // A timeout of zero would mean none.
            let wait = left.max(Duration::from_millis(1));
            let read = match self.socket.set_read_timeout(Some(wait)) {
                Ok(()) => self.socket.recv_from(&mut octets),
                Err(error) => Err(error),
            };
            match read {
                // A queue pair's datagrams leave from its port (Datagram §8), messages of its own from any address of its host; a stranger's are nothing
                // that the device did.
                Ok((_, from)) if from.port() != self.to.port() => {}
                Ok((count, _)) => {
                    let octets = &octets[..count];
                    self.tape.keep(Way::Received, octets);
                    return match Datagram::parse(octets) {
                        // The tester shares no memory.
                        Ok(Datagram::Exchange(it)) if it.is_invitation() => continue,
                        Ok(datagram) => Heard::Datagram(datagram),
                        Err(why) => Heard::Bad(why, octets.to_vec()),
                    };
                }
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                    return Heard::Unreachable;
                }
                Err(_) if left > Duration::ZERO => {}
                Err(_) => return Heard::Nothing,
            }
        }
    }

    /// The next datagram, as long as an answer may take.
    pub fn answer(&mut self) -> Heard {
        self.next_within(self.patience.answer)
    }

    /// Input that waits already.
    pub fn at_once(&mut self) -> Heard {
        self.next_within(Duration::ZERO)
    }
}
