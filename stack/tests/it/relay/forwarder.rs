//! The relay: forwards datagrams, loses, doubles and reorders some, and logs what it did. It has the wire format
//! from the specification alone.

use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::AsFd as _;
use std::time::Instant;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{getsockopt, setsockopt, sockopt};

use super::control::{Control, Frame};
use super::plan::{Case, Kind, LONGEST, NTH_SEGMENTS, Random, WRITE_SEGMENT};
use crate::common::strangers::port_query;
use crate::common::{given, now};

/// Segments doubled of 100,000.
const DOUBLED: u32 = 1_000;
/// Segments held back of 100,000, and for how many others at most: far less than the reorder window.
const HELD: u32 = 3_000;
const HELD_FOR: u32 = 8;
/// Datagrams forwarded that the receiver has not seen yet, at most.
const WINDOW: u64 = 64;
/// Octets of receive buffer that the kernel counts for one datagram of MTU 1500, with room to spare.
const BUFFER_PER_DATAGRAM: usize = 2_560;
/// How long what is held waits for others to overtake it.
const IDLE_MILLIS: u8 = 2;
/// Arrivals between two reports to the sender.
const REPORT_EVERY: u64 = 16;

/// Fields of a segment that the relay reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) number: u32,
    pub(crate) length: u32,
    pub(crate) offset: u32,
    pub(crate) payload: u32,
    pub(crate) immediate: u32,
}

impl Segment {
    /// Reads the header and extension of a Write-Record or Segmented Send segment.
    fn parse(datagram: &[u8]) -> Self {
        let word = |at: usize| u32::from_be_bytes(datagram[at..at + 4].try_into().unwrap());
        // T, L, format and DV without L; then RV and opcode.
        let extension = match (datagram[0] & 0xbf, datagram[1]) {
            (0x81, 0x4c) => 14,
            (0x01, 0x4d) => 18,
            other => panic!("neither a Write-Record nor a Segmented Send: {other:02x?}"),
        };
        let header_and_crc = extension + 24 + 4;
        let segment = Self {
            number: word(extension + 8),
            length: word(extension + 12),
            offset: word(extension + 16),
            payload: u32::try_from(datagram.len() - header_and_crc).unwrap(),
            immediate: word(extension + 20),
        };
        let last = segment.offset + segment.payload == segment.length;
        assert_eq!(datagram[0] & 0x40 != 0, last, "L: {segment:?}");
        assert_eq!(datagram[extension] & 0x01, 1, "I: {segment:?}");
        segment
    }
}

struct Relay {
    case: Case,
    random: Random,
    sender: Control,
    receiver: Control,
    inbound: UdpSocket,
    /// The sender. Datagrams of others are dropped: connections query UDP ports with the numbers of TCP ports.
    source: SocketAddr,
    outbound: UdpSocket,
    target: SocketAddr,
    log: BufWriter<File>,
    held: Vec<(u64, Vec<u8>)>,
    arrived: u64,
    forwarded: u64,
    processed: u64,
    reported: u64,
    /// The message of the latest arrival, and how many segments of it came before.
    nth: (u32, u32),
    first: Option<Instant>,
}

/// The relay's process.
pub(crate) fn run(case: Case) {
    let loopback = (Ipv4Addr::LOCALHOST, 0);
    let inbound = UdpSocket::bind(loopback).unwrap();
    let granted = enlarge(&inbound);
    let outbound = UdpSocket::bind(loopback).unwrap();
    inbound.set_nonblocking(true).unwrap();
    let listener = TcpListener::bind(loopback).unwrap();
    println!("control {}", listener.local_addr().unwrap());
    let (mut sender, mut receiver) = (None, None);
    let (mut source, mut qpn, mut rkey, mut addr) = (0, 0, 0, 0);
    while sender.is_none() || receiver.is_none() {
        let mut control = Control::new(listener.accept().unwrap().0);
        match control.receive() {
            Frame::Sender { port } => {
                source = port;
                sender = Some(control);
            }
            Frame::Receiver {
                qpn: port,
                rkey: key,
                addr: base,
            } => {
                (qpn, rkey, addr) = (port, key, base);
                receiver = Some(control);
            }
            frame => panic!("{frame:?} is not a greeting"),
        }
    }
    let (mut sender, mut receiver) = (sender.unwrap(), receiver.unwrap());
    // A message comes at once; it must fit the buffer should this process not get a processor meanwhile.
    let fits = granted / BUFFER_PER_DATAGRAM;
    let longest = LONGEST.min(u32::try_from(fits).unwrap().saturating_mul(WRITE_SEGMENT));
    let welcome = Frame::Welcome {
        from: inbound.local_addr().unwrap().port().into(),
        longest: longest.into(),
        to: outbound.local_addr().unwrap().port().into(),
        rkey,
        addr,
    };
    // Strangers do so at any time: attempts to connect query the UDP port with the number of the listener's.
    let stranger = UdpSocket::bind(loopback).unwrap();
    let target = loopback_port(qpn);
    for port in [inbound.local_addr().unwrap(), target] {
        stranger.send_to(&port_query(port.port()), port).unwrap();
    }
    sender.send(welcome);
    receiver.send(welcome);
    let relay = Relay {
        case,
        random: Random(!case.seed),
        sender,
        receiver,
        inbound,
        source: loopback_port(source),
        outbound,
        target,
        log: BufWriter::new(File::create(given("RELAY_LOG")).unwrap()),
        held: Vec::new(),
        arrived: 0,
        forwarded: 0,
        processed: 0,
        reported: 0,
        nth: (0, 0),
        first: None,
    };
    relay.forward_all();
}

fn loopback_port(port: u64) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, u16::try_from(port).unwrap()).into()
}

/// Makes a receive buffer as large as it may be, and returns its size.
fn enlarge(socket: &UdpSocket) -> usize {
    let wanted = 4 << 20;
    if setsockopt(socket, sockopt::RcvBufForce, &wanted).is_err() {
        setsockopt(socket, sockopt::RcvBuf, &wanted).unwrap();
    }
    getsockopt(socket, sockopt::RcvBuf).unwrap()
}

impl Relay {
    fn forward_all(mut self) {
        let mut datagram = vec![0; 65_536];
        let mut batches = self.case.messages.div_ceil(self.case.batch);
        while batches > 0 {
            match self.inbound.recv_from(&mut datagram) {
                Ok((length, from)) if from == self.source => self.arrive(&datagram[..length]),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.report();
                    if self.idle() {
                        batches -= 1;
                    }
                }
                Err(error) => panic!("{error}"),
            }
        }
        self.log.flush().unwrap();
    }

    fn arrive(&mut self, datagram: &[u8]) {
        self.first.get_or_insert_with(now);
        let segment = Segment::parse(datagram);
        self.arrived += 1;
        if self.arrived - self.reported >= REPORT_EVERY {
            self.report();
        }
        let lost = match self.case.kind {
            Kind::Write | Kind::Send => self.random.below(100_000) < self.case.loss,
            Kind::Nth => {
                let (number, before) = self.nth;
                let nth = if number == segment.number { before } else { 0 };
                self.nth = (segment.number, nth + 1);
                nth == segment.immediate % NTH_SEGMENTS
            }
        };
        if lost {
            self.note('-', segment);
        } else if self.case.kind == Kind::Nth {
            self.forward(datagram);
        } else if self.random.below(100_000) < HELD {
            let until = self.arrived + 1 + u64::from(self.random.below(HELD_FOR));
            self.held.push((until, datagram.to_vec()));
        } else {
            self.forward(datagram);
            if self.random.below(100_000) < DOUBLED {
                self.forward(datagram);
            }
        }
        let arrived = self.arrived;
        let due = self.held.extract_if(.., |held| held.0 <= arrived);
        let due: Vec<_> = due.collect();
        for (_, datagram) in due {
            self.forward(&datagram);
        }
    }

    fn forward(&mut self, datagram: &[u8]) {
        while self.forwarded - self.processed >= WINDOW {
            self.hear_receiver();
        }
        self.note('+', Segment::parse(datagram));
        self.outbound.send_to(datagram, self.target).unwrap();
        self.forwarded += 1;
    }

    fn note(&mut self, what: char, segment: Segment) {
        let Segment {
            number,
            length,
            offset,
            payload,
            immediate,
        } = segment;
        let line = format!("{what} {number} {length} {offset} {payload} {immediate}\n");
        self.log.write_all(line.as_bytes()).unwrap();
    }

    fn hear_receiver(&mut self) {
        match self.receiver.receive() {
            Frame::Progress { arrived } => self.processed = arrived,
            frame => panic!("{frame:?} before the end of the batch"),
        }
    }

    fn report(&mut self) {
        if self.reported < self.arrived {
            self.reported = self.arrived;
            self.sender.send(Frame::Progress {
                arrived: self.arrived,
            });
        }
    }

    /// Nothing arrives at present. Returns whether a batch ended.
    fn idle(&mut self) -> bool {
        let mut fds = [
            PollFd::new(self.inbound.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.sender.0.as_fd(), PollFlags::POLLIN),
        ];
        let ready = poll(&mut fds, PollTimeout::from(IDLE_MILLIS)).unwrap();
        let [_, told] = fds.map(|fd| fd.any().unwrap());
        if ready == 0 {
            self.let_go();
        }
        if told {
            match self.sender.receive() {
                Frame::Sent { datagrams } => self.settle(datagrams),
                frame => panic!("{frame:?} of the sender"),
            }
        }
        told
    }

    fn let_go(&mut self) {
        for (_, datagram) in std::mem::take(&mut self.held) {
            self.forward(&datagram);
        }
    }

    fn settle(&mut self, sent: u64) {
        // The sender reports when everything has arrived.
        assert_eq!(self.arrived, sent, "datagrams lost on the way to the relay");
        self.let_go();
        while self.processed < self.forwarded {
            self.hear_receiver();
        }
        assert_eq!(self.processed, self.forwarded);
        let millis = self
            .first
            .take()
            .map_or(0, |first| now().duration_since(first).as_millis());
        self.receiver.send(Frame::Forwarded {
            millis: u64::try_from(millis).unwrap(),
        });
        assert_eq!(self.receiver.receive(), Frame::Settled);
        self.sender.send(Frame::Settled);
    }
}
