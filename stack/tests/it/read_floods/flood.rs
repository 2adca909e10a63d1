//! The attacker, in a process of its own: off the path, without any number of the target's, at a low rate.

use std::io::IoSlice;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::os::fd::AsRawFd as _;
use std::time::Duration;

use nix::libc::{in_addr, in_pktinfo};
use nix::sys::socket::{ControlMessage, MsgFlags, SockaddrIn, sendmsg};

use crate::common::{given, now, sleep};
use crate::hostility::control;
use crate::hostility::wire::{Request, cookie_request, plain_send, read_request, seal};

/// Kinds of forged datagrams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flood {
    /// Read Requests of zero octets.
    EmptyReads,
    /// Read Requests of 132 octets, the most that is answered without a cookie. The STag is right.
    ShortReads,
    /// Read Requests of 4096 octets with a cookie that is wrong.
    WrongCookies,
    /// Cookie requests.
    CookieRequests,
    /// Octets at random under a right CRC.
    Noise,
    /// Cookie answers.
    CookieAnswers,
    /// Read Responses.
    Responses,
    /// Terminates about Reads and about messages in turn.
    Terminates,
    /// Write-Records with a wrong STag and a wrong cookie.
    Writes,
    /// No flood: Sends to another queue pair.
    WellBehaved,
}

/// Senders of a flood.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sources {
    /// One socket, which never receives.
    One,
    /// Each datagram has another source address.
    Many,
    /// Each datagram has another source address, where no socket is: answers cause ICMP errors.
    Closed,
}

impl Flood {
    pub(crate) const HOSTILE: [Self; 9] = [
        Self::EmptyReads,
        Self::ShortReads,
        Self::WrongCookies,
        Self::CookieRequests,
        Self::Noise,
        Self::CookieAnswers,
        Self::Responses,
        Self::Terminates,
        Self::Writes,
    ];

    fn number(self) -> u64 {
        let position = Self::HOSTILE.iter().position(|it| *it == self);
        u64::try_from(position.unwrap_or(Self::HOSTILE.len())).unwrap()
    }

    fn from_number(number: u64) -> Self {
        let position = usize::try_from(number).unwrap();
        let flood = Self::HOSTILE.get(position).copied();
        flood.unwrap_or(Self::WellBehaved)
    }
}

impl Sources {
    pub(crate) const ALL: [Self; 3] = [Self::One, Self::Many, Self::Closed];
}

/// The words of an order.
pub(crate) fn order(
    flood: Flood,
    sources: Sources,
    port: u16,
    time: Duration,
    rate: u64,
) -> [u64; 5] {
    let sources = Sources::ALL.iter().position(|it| *it == sources);
    [
        flood.number(),
        u64::try_from(sources.unwrap()).unwrap(),
        port.into(),
        u64::try_from(time.as_millis()).unwrap(),
        rate,
    ]
}

/// Epoch of the forged segments.
const EPOCH: u32 = 0xf100d;

/// xorshift: fast, and the same in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn word(&mut self) -> u32 {
        let [a, b, c, d, ..] = self.next().to_le_bytes();
        u32::from_le_bytes([a, b, c, d])
    }

    /// An address of this host.
    fn address(&mut self) -> Ipv4Addr {
        let [a, b, c, ..] = self.next().to_le_bytes();
        Ipv4Addr::new(127, a, b, c.clamp(1, 254))
    }
}

/// The region that is read with the right STag.
#[derive(Debug, Clone, Copy)]
struct Known {
    rkey: u32,
    addr: u64,
}

/// Makes the next datagram of a flood.
fn make(flood: Flood, known: Known, random: &mut Random, out: &mut Vec<u8>) {
    let request = |sink, size, cookie| Request {
        epoch: EPOCH,
        cookie,
        sink,
        size,
        rkey: if size == 0 { 0 } else { known.rkey },
        remote_addr: if size == 0 { 0 } else { known.addr },
    };
    match flood {
        Flood::EmptyReads => read_request(out, request(random.word(), 0, None)),
        Flood::ShortReads => read_request(out, request(random.word(), 132, None)),
        Flood::WrongCookies => {
            let cookie = random.next();
            read_request(out, request(random.word(), 4096, Some(cookie)));
        }
        Flood::CookieRequests => cookie_request(out, EPOCH, random.next()),
        Flood::Noise => {
            out.clear();
            for _ in 0..6 {
                out.extend(random.next().to_le_bytes());
            }
            seal(out);
        }
        Flood::CookieAnswers => {
            out.clear();
            out.extend([0x49, 2, 0, 0]);
            out.extend(EPOCH.to_be_bytes());
            out.extend(random.next().to_be_bytes());
            out.extend(random.next().to_be_bytes());
            out.extend([0; 8]);
            seal(out);
        }
        Flood::Responses => {
            out.clear();
            out.extend([0xc1, 0x42]);
            out.extend(random.word().to_be_bytes());
            out.extend([0; 8]);
            out.extend([0xf1; 64]);
            seal(out);
        }
        Flood::Terminates => {
            let about_request = random.next().is_multiple_of(2);
            out.clear();
            out.extend([0x41, 0x47]);
            for word in [EPOCH, 2, 1, 0] {
                out.extend(word.to_be_bytes());
            }
            out.extend([0x01, 0x00, if about_request { 0x20 } else { 0x40 }, 0]);
            let header = if about_request { 28 } else { 24 };
            for _ in 0..header / 4 {
                // A length of more than 2^30 would be malformed.
                out.extend((random.word() >> 4).to_be_bytes());
            }
            seal(out);
        }
        Flood::Writes => {
            out.clear();
            out.extend([0xc5, 0x4c]);
            out.extend(random.word().to_be_bytes());
            out.extend([0; 8]);
            out.extend([0; 4]);
            for word in [EPOCH, random.word(), 64, 0, 0] {
                out.extend(word.to_be_bytes());
            }
            out.extend(random.next().to_be_bytes());
            out.extend([0xf1; 64]);
            seal(out);
        }
        Flood::WellBehaved => plain_send(out, 0, &[8; 40]),
    }
}

/// Sends a datagram from another address of this host than that of the socket.
fn send_from(socket: &UdpSocket, from: Ipv4Addr, to: SocketAddrV4, octets: &[u8]) -> bool {
    let info = in_pktinfo {
        ipi_ifindex: 0,
        ipi_spec_dst: in_addr {
            s_addr: u32::from_ne_bytes(from.octets()),
        },
        ipi_addr: in_addr { s_addr: 0 },
    };
    let control = [ControlMessage::Ipv4PacketInfo(&info)];
    let (fd, octets) = (socket.as_raw_fd(), [IoSlice::new(octets)]);
    let to = SockaddrIn::from(to);
    sendmsg(fd, &octets, &control, MsgFlags::empty(), Some(&to)).is_ok()
}

/// Pause between batches: a trickle leaves the processor to the others.
const PAUSE: Duration = Duration::from_micros(500);

/// Floods ports as ordered, until its process is ended. Reports the datagrams sent.
pub(crate) fn run() {
    let words: Vec<u64> = given("TARGET")
        .split(' ')
        .map(|word| word.parse().unwrap())
        .collect();
    let known = Known {
        rkey: u32::try_from(words[2]).unwrap(),
        addr: words[3],
    };
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut out = Vec::new();
    control::serve("attacker", |order| {
        let [flood, sources, port, millis, rate] = order else {
            panic!("{order:?}");
        };
        let flood = Flood::from_number(*flood);
        let sources = Sources::ALL[usize::try_from(*sources).unwrap()];
        let to = SocketAddrV4::new(Ipv4Addr::LOCALHOST, u16::try_from(*port).unwrap());
        let time = Duration::from_millis(*millis);
        let (began, mut sent) = (now(), 0);
        while began.elapsed() < time {
            let due = began.elapsed().as_micros() * u128::from(*rate) / 1_000_000;
            while u128::from(sent) < due {
                make(flood, known, &mut random, &mut out);
                sent += 1;
                match sources {
                    Sources::One => {
                        let _ = socket.send_to(&out, to);
                    }
                    Sources::Many => {
                        let _ = send_from(&socket, random.address(), to, &out);
                    }
                    Sources::Closed => {
                        let socket = UdpSocket::bind((random.address(), 0)).unwrap();
                        let _ = socket.send_to(&out, SocketAddr::V4(to));
                    }
                }
            }
            sleep(PAUSE);
        }
        vec![sent]
    });
}
