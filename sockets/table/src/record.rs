//! Records of sockets.

use crate::layout::{
    INODE, KIND, LANE, LOCAL, PEER, PORTS, RECEIVED, RECORD_WORDS, SCOPES, SENT, SEQUENCE,
};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// State of a socket.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// It listens.
    Listen,
    /// The program has not waited for the result of `connect(2)`, and has moved no octets since.
    Connecting,
    /// It is connected.
    #[default]
    Established,
    /// The program has closed it or ended its sending direction.
    Closing,
}

/// Transport of a socket.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Way {
    /// TCP of the kernel.
    #[default]
    Tcp,
    /// A listener that takes rsockets, beside plain connections.
    Rsocket,
    /// An rsocket, iWARP over TCP.
    Rc,
    /// An rsocket, or the queue pair beside a UDP socket, through shared memory of one host.
    Lane,
    /// UDP of the kernel.
    Udp,
    /// UDP of the kernel, and datagrams by the queue pair beside it.
    Ud,
}

/// A socket.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Record {
    /// Its state.
    pub state: State,
    /// Its transport.
    pub way: Way,
    /// Number of the reason why it is plain, counted from 1; 0 is none.
    pub reason: u8,
    /// Inode number of the kernel's socket, by which its descriptors are found; 0 if it is not known.
    pub inode: u64,
    /// Its address.
    pub local: Option<SocketAddr>,
    /// Its peer's address.
    pub peer: Option<SocketAddr>,
    /// Octets that the program has sent.
    pub sent: u64,
    /// Octets that the program has received.
    pub received: u64,
}

const STATES: [State; 4] = [
    State::Listen,
    State::Connecting,
    State::Established,
    State::Closing,
];
const WAYS: [Way; 6] = [
    Way::Tcp,
    Way::Rsocket,
    Way::Rc,
    Way::Lane,
    Way::Udp,
    Way::Ud,
];

const HAS_LOCAL: u64 = 1 << 24;
const HAS_PEER: u64 = 1 << 25;
const LOCAL_IS_V4: u64 = 1 << 26;
const PEER_IS_V4: u64 = 1 << 27;

/// Number of a state in records: 0 is that of a free record.
fn number_of<T: PartialEq>(all: &[T], value: &T) -> u64 {
    let at = all.iter().position(|it| it == value);
    at.map_or(0, |at| at as u64 + 1)
}

fn value_of<T: Copy>(all: &[T], number: u64) -> Option<T> {
    let at = usize::try_from(number & 0xff).ok()?.checked_sub(1)?;
    all.get(at).copied()
}

/// A kind with another state.
pub(crate) fn with_state(kind: u64, state: State) -> u64 {
    kind & !0xff | number_of(&STATES, &state)
}

/// A kind with another transport and reason.
pub(crate) fn with_way(kind: u64, way: Way, reason: u8) -> u64 {
    kind & !0xff_ff00 | number_of(&WAYS, &way) << 8 | u64::from(reason) << 16
}

fn words_of(address: IpAddr) -> [u64; 2] {
    let octets = match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    };
    let half = |at: usize| {
        let mut half = [0; 8];
        half.copy_from_slice(&octets[at..at + 8]);
        u64::from_ne_bytes(half)
    };
    [half(0), half(8)]
}

fn address_of(words: [u64; 2], is_v4: bool, port: u64, scope: u64) -> SocketAddr {
    let mut octets = [0; 16];
    octets[..8].copy_from_slice(&words[0].to_ne_bytes());
    octets[8..].copy_from_slice(&words[1].to_ne_bytes());
    let port = u16::try_from(port & 0xffff).unwrap_or(0);
    let scope = u32::try_from(scope & 0xffff_ffff).unwrap_or(0);
    let ip = Ipv6Addr::from(octets);
    match ip.to_ipv4_mapped() {
        Some(v4) if is_v4 => (v4, port).into(),
        _ => SocketAddrV6::new(ip, port, 0, scope).into(),
    }
}

fn scope(address: Option<SocketAddr>) -> u64 {
    match address {
        Some(SocketAddr::V6(v6)) => v6.scope_id().into(),
        Some(SocketAddr::V4(_)) | None => 0,
    }
}

impl Record {
    /// Words without a sequence number, and without those that change with each call.
    pub(crate) fn emit(&self) -> [u64; RECORD_WORDS] {
        let mut words = [0; RECORD_WORDS];
        let mut kind = with_way(number_of(&STATES, &self.state), self.way, self.reason);
        for (address, at, has, is_v4, shift) in [
            (self.local, LOCAL, HAS_LOCAL, LOCAL_IS_V4, 0),
            (self.peer, PEER, HAS_PEER, PEER_IS_V4, 16),
        ] {
            let Some(address) = address else { continue };
            kind |= has | if address.is_ipv4() { is_v4 } else { 0 };
            words[at..at + 2].copy_from_slice(&words_of(address.ip()));
            words[PORTS] |= u64::from(address.port()) << shift;
        }
        words[KIND] = kind;
        words[INODE] = self.inode;
        words[SCOPES] = scope(self.local) | scope(self.peer) << 32;
        words
    }

    /// `None` for a free record, and for words that are none.
    pub(crate) fn parse(words: &[u64; RECORD_WORDS]) -> Option<Self> {
        let kind = words[KIND];
        let way = value_of(&WAYS, kind >> 8)?;
        let address = |at: usize, has: u64, is_v4: u64, shift: u32| {
            let words_there = [words[at], words[at + 1]];
            let (port, scope) = (words[PORTS] >> shift, words[SCOPES] >> (2 * shift));
            (kind & has != 0).then(|| address_of(words_there, kind & is_v4 != 0, port, scope))
        };
        Some(Self {
            state: value_of(&STATES, kind)?,
            way: if matches!(way, Way::Rc | Way::Ud) && words[LANE] != 0 {
                Way::Lane
            } else {
                way
            },
            reason: u8::try_from(kind >> 16 & 0xff).unwrap_or(0),
            inode: words[INODE],
            local: address(LOCAL, HAS_LOCAL, LOCAL_IS_V4, 0),
            peer: address(PEER, HAS_PEER, PEER_IS_V4, 16),
            sent: words[SENT],
            received: words[RECEIVED],
        })
    }
}

/// Whether a record has one state all the time from one sequence number to another.
pub(crate) fn is_stable(before: &[u64; RECORD_WORDS], after: &[u64; RECORD_WORDS]) -> bool {
    before[SEQUENCE] == after[SEQUENCE] && before[SEQUENCE].is_multiple_of(2)
}
