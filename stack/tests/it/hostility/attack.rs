//! The attacker, in a process of its own: it has STag, Q_Key and address, and sends as fast as it can.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use super::control;
use super::wire::{
    Place, Request, cookie_of, cookie_request, plain_send, read_request, seal, segmented_send,
    write_record,
};
use crate::common::node::SOON;
use crate::common::{given, now, sleep};

/// Kind of the attack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Attack {
    /// Octets at random.
    Noise,
    /// Octets at random under a right CRC, half of them behind the start of a real header.
    SealedNoise,
    /// Valid segments, repeated again and again.
    Replay,
    /// Segments of one message from all sockets: each is a source of its own.
    OtherSources,
    /// Records of 2^30 octets, one octet at a time.
    HugeRecords,
    /// Each datagram a record of its own.
    RecordEach,
    /// Records as above, each incomplete and from a sender that just restarted.
    IncompleteRecordEach,
    /// First segments of Sends whose rest never comes.
    PartialSends,
    /// Each datagram from a sender that just restarted.
    ManyEpochs,
    /// Read Requests and requests for cookies, from an address that proved nothing.
    Reads,
    /// Read Requests with the right cookie, each for much more than itself.
    ReadsWithCookie,
    /// Nothing bad: Sends to another queue pair. The cost of an attack is compared with this.
    WellBehaved,
}

impl Attack {
    pub(crate) const HOSTILE: [Self; 11] = [
        Self::Noise,
        Self::SealedNoise,
        Self::Replay,
        Self::OtherSources,
        Self::HugeRecords,
        Self::RecordEach,
        Self::Reads,
        Self::ReadsWithCookie,
        Self::PartialSends,
        Self::ManyEpochs,
        Self::IncompleteRecordEach,
    ];

    pub(crate) fn number(self) -> u64 {
        let position = Self::HOSTILE.iter().position(|it| *it == self);
        u64::try_from(position.unwrap_or(Self::HOSTILE.len())).unwrap()
    }

    fn from_number(number: u64) -> Self {
        let position = usize::try_from(number).unwrap();
        Self::HOSTILE
            .get(position)
            .copied()
            .unwrap_or(Self::WellBehaved)
    }
}

/// Sockets of the attacker. More would change which of them the target has a socket for, and the kernel forgets what a
/// socket lost when it is closed.
const SOCKETS: usize = 3;
/// Datagrams between two readings of the clock.
const BATCH: u64 = 32;
/// The longest record.
const HUGE: u32 = 1 << 30;
/// The epoch of the attacker's Read Requests.
const EPOCH: u32 = 0x4ead;
/// How long the answer to a request for a cookie is waited for.
const COOKIE_WITHIN: Duration = Duration::from_millis(100);

/// The target, as far as the attacker has it.
struct Knowledge {
    rkey: u32,
    base: u64,
    qkey: u32,
    /// Of each socket, if it asked for one.
    cookies: [Option<u64>; SOCKETS],
}

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

    fn below(&mut self, limit: u32) -> u32 {
        self.word() % limit
    }

    fn fill(&mut self, out: &mut Vec<u8>, length: u32) {
        for _ in 0..length.div_ceil(8) {
            out.extend(self.next().to_le_bytes());
        }
    }
}

/// Makes the next datagram of an attack.
fn make(attack: Attack, known: &Knowledge, count: u32, random: &mut Random, out: &mut Vec<u8>) {
    let write = |out: &mut Vec<u8>, place, payload: &[u8]| {
        write_record(out, known.rkey, known.base, place, payload);
    };
    let place = |epoch, number, length, offset| Place {
        epoch,
        number,
        length,
        offset,
    };
    match attack {
        Attack::Noise => {
            out.clear();
            let length = 8 + random.below(200);
            random.fill(out, length);
        }
        Attack::SealedNoise => {
            out.clear();
            if random.below(2) == 0 {
                let starts = [
                    [0x81, 0x4c],
                    [0xc1, 0x4c],
                    [0x41, 0x43],
                    [0x41, 0x4d],
                    [0x41, 0x41],
                    [0x49, 0x01],
                ];
                out.extend(starts[usize::try_from(random.below(6)).unwrap()]);
            }
            let length = 1 + random.below(200);
            random.fill(out, length);
            seal(out);
        }
        Attack::Replay => write(
            out,
            place(0x0e9a, 7 + count % 16, 2000, 64 * (count / 16 % 8)),
            &[1; 64],
        ),
        Attack::OtherSources => write(
            out,
            place(0x0075, count / 48, 4096, 64 * (count / 3 % 16)),
            &[2; 64],
        ),
        Attack::HugeRecords => write(
            out,
            place(0x4065, count / 240, HUGE, 2 * (count % 240)),
            &[3],
        ),
        Attack::RecordEach => write(out, place(0x5ec0, count, 16, 0), &[4; 16]),
        Attack::IncompleteRecordEach => write(out, place(random.word(), 1, 32, 0), &[5; 16]),
        Attack::PartialSends => {
            let place = place(0x9a00 + count % 64, count / 64, 1000, 0);
            segmented_send(out, known.qkey, place, &[6; 64]);
        }
        Attack::ManyEpochs => write(out, place(random.word(), 1, 16, 0), &[7; 16]),
        Attack::Reads if random.below(4) == 0 => cookie_request(out, EPOCH, random.next()),
        Attack::Reads => {
            let size = [100, 1 << 20][usize::try_from(random.below(2)).unwrap()];
            read_request(out, request(known, count, size, None));
        }
        Attack::ReadsWithCookie => {
            // The one of the socket whose turn it is.
            let cookie = known.cookies[usize::try_from(count).unwrap() % SOCKETS];
            read_request(out, request(known, count, 1 << 22, cookie));
        }
        Attack::WellBehaved => plain_send(out, known.qkey, &[8; 64]),
    }
}

fn request(known: &Knowledge, count: u32, size: u32, cookie: Option<u64>) -> Request {
    Request {
        epoch: EPOCH,
        cookie,
        sink: count,
        size,
        rkey: known.rkey,
        remote_addr: known.base,
    }
}

/// Asks for a cookie as a peer does. Answers to earlier requests are passed over.
fn ask_for_cookie(socket: &UdpSocket, to: SocketAddr) -> Option<u64> {
    let mut out = Vec::new();
    cookie_request(&mut out, EPOCH, 1);
    socket.send_to(&out, to).unwrap();
    let until = now() + COOKIE_WITHIN;
    let mut buffer = [0; 65_536];
    while now() < until {
        let cookie = socket
            .recv(&mut buffer)
            .ok()
            .and_then(|length| cookie_of(&buffer[..length]));
        if cookie.is_some() {
            return cookie;
        }
    }
    None
}

/// Carries out orders, until its process is ended: an attack on a port, for some time, at some rate.
pub(crate) fn run() {
    let words: Vec<u64> = given("TARGET")
        .split(' ')
        .map(|word| word.parse().unwrap())
        .collect();
    let mut known = Knowledge {
        rkey: u32::try_from(words[0]).unwrap(),
        base: words[1],
        qkey: u32::try_from(words[2]).unwrap(),
        cookies: [None; SOCKETS],
    };
    let sockets = [(); SOCKETS].map(|()| UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
    sockets
        .iter()
        .for_each(|socket| socket.set_nonblocking(true).unwrap());
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut out = Vec::new();
    let mut count = 0;
    control::serve("attacker", |order| {
        let [attack, port, millis, rate] = order else {
            panic!("{order:?}");
        };
        let attack = Attack::from_number(*attack);
        let to = SocketAddr::from((Ipv4Addr::LOCALHOST, u16::try_from(*port).unwrap()));
        let (mut sent, mut octets, mut answered) = (0, 0, 0);
        await_silence(&sockets);
        if attack == Attack::ReadsWithCookie {
            known.cookies = [0, 1, 2].map(|place| ask_for_cookie(&sockets[place], to));
            sent += u64::try_from(SOCKETS).unwrap();
        }
        let began = now();
        let until = began + Duration::from_millis(*millis);
        while now() < until {
            // No faster than ordered.
            let due = began.elapsed().as_micros() * u128::from(*rate) / 1_000_000;
            if *rate > 0 && u128::from(sent) > due {
                std::hint::spin_loop();
                continue;
            }
            for _ in 0..BATCH {
                let socket = &sockets[usize::try_from(count).unwrap() % SOCKETS];
                make(attack, &known, count, &mut random, &mut out);
                count = count.wrapping_add(1);
                if socket.send_to(&out, to).is_ok() {
                    sent += 1;
                    octets += u64::try_from(out.len()).unwrap();
                }
            }
            answered += answers(&sockets);
        }
        vec![
            sent,
            octets,
            answered,
            u64::try_from(began.elapsed().as_micros()).unwrap(),
        ]
    });
}

/// Lets the answers to earlier requests come, which count for the attack that made them. Requests with a cookie may ask for much.
fn await_silence(sockets: &[UdpSocket]) {
    const SILENCE: Duration = Duration::from_millis(50);
    let until = now() + SOON;
    let mut since = now();
    while since.elapsed() < SILENCE && now() < until {
        if answers(sockets) > 0 {
            since = now();
        }
        sleep(Duration::from_millis(1));
    }
}

/// Octets that came back.
fn answers(sockets: &[UdpSocket]) -> u64 {
    let mut octets = 0;
    let mut buffer = [0; 65_536];
    for socket in sockets {
        while let Ok(length) = socket.recv(&mut buffer) {
            octets += u64::try_from(length).unwrap();
        }
    }
    octets
}
