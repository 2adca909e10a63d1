//! Enhanced RDMA connection establishment data: the four octets that begin the private
//! data where the S bit is set (RFC 6581 §9).
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |A|B|           IRD             |C|D|           ORD             |
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! ```

use core::fmt;

/// Flag A in the first half, C in the second.
const HIGH_FLAG: u16 = 0x8000;
/// Flag B in the first half, D in the second.
const LOW_FLAG: u16 = 0x4000;
/// The fourteen bits of a depth.
const DEPTH_MASK: u16 = 0x3fff;

/// An inbound or outbound RDMA Read queue depth as it is on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadDepth {
    /// So many RDMA Reads at a time, 0 to 16,382.
    Limit(u16),
    /// All ones: no automatic negotiation, the ULPs agree by themselves
    /// (RFC 6581 §9.1).
    LeftToUlp,
}

impl ReadDepth {
    /// Largest depth on the wire.
    pub const MAX: u16 = DEPTH_MASK - 1;

    /// A limit; larger values than [`Self::MAX`] become that.
    pub const fn limit(depth: u16) -> Self {
        Self::Limit(if depth > Self::MAX { Self::MAX } else { depth })
    }

    const fn from_bits(bits: u16) -> Self {
        match bits & DEPTH_MASK {
            DEPTH_MASK => Self::LeftToUlp,
            depth => Self::Limit(depth),
        }
    }

    const fn bits(self) -> u16 {
        match self {
            Self::Limit(depth) => depth,
            Self::LeftToUlp => DEPTH_MASK,
        }
    }
}

/// One kind of RTR indication: the Initiator's first message in peer-to-peer mode
/// (RFC 6581 §9.2). All three are zero-length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rtr {
    /// A zero-length FULPDU, that is an RDMAP Send (flag B).
    Send,
    /// A zero-length RDMA Write (flag C).
    Write,
    /// A zero-length RDMA Read (flag D).
    Read,
}

/// A set of RTR indications.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RtrSet {
    /// Flag B.
    pub send: bool,
    /// Flag C.
    pub write: bool,
    /// Flag D.
    pub read: bool,
}

impl RtrSet {
    /// All three indications.
    pub const ALL: Self = Self {
        send: true,
        write: true,
        read: true,
    };

    /// None of them.
    pub const NONE: Self = Self {
        send: false,
        write: false,
        read: false,
    };

    /// Indications of both sets.
    pub const fn intersection(self, other: Self) -> Self {
        Self {
            send: self.send && other.send,
            write: self.write && other.write,
            read: self.read && other.read,
        }
    }

    /// Whether the set has no indication.
    pub const fn is_empty(self) -> bool {
        !(self.send || self.write || self.read)
    }

    /// The indication that costs its receiver least: a Write needs no answer, a Read one, a
    /// Send may be taken for a message.
    pub const fn preferred(self) -> Option<Rtr> {
        match self {
            Self { write: true, .. } => Some(Rtr::Write),
            Self { read: true, .. } => Some(Rtr::Read),
            Self { send: true, .. } => Some(Rtr::Send),
            Self {
                send: false,
                write: false,
                read: false,
            } => None,
        }
    }
}

/// The enhanced data of one frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Enhanced {
    /// Inbound RDMA Read queue depth of the sender.
    pub ird: ReadDepth,
    /// Outbound RDMA Read queue depth of the sender.
    pub ord: ReadDepth,
    /// Flag A, with the flags B, C and D: peer-to-peer mode and the RTR indications.
    /// `None` is the client-server model.
    pub peer_to_peer: Option<RtrSet>,
}

impl Enhanced {
    /// Octets on the wire.
    pub const LEN: usize = 4;

    /// Reads the four octets; every value has a meaning.
    pub const fn parse(bytes: [u8; Self::LEN]) -> Self {
        let [a, b, c, d] = bytes;
        let first = u16::from_be_bytes([a, b]);
        let second = u16::from_be_bytes([c, d]);
        // RFC 6581 §9.2: without flag A the flags B, C and D are ignored.
        let peer_to_peer = if first & HIGH_FLAG != 0 {
            Some(RtrSet {
                send: first & LOW_FLAG != 0,
                write: second & HIGH_FLAG != 0,
                read: second & LOW_FLAG != 0,
            })
        } else {
            None
        };
        Self {
            ird: ReadDepth::from_bits(first),
            ord: ReadDepth::from_bits(second),
            peer_to_peer,
        }
    }

    /// The four octets, in network byte order (RFC 6581 §9).
    pub const fn emit(self) -> [u8; Self::LEN] {
        let mut first = self.ird.bits();
        let mut second = self.ord.bits();
        if let Some(rtr) = self.peer_to_peer {
            first |= HIGH_FLAG;
            if rtr.send {
                first |= LOW_FLAG;
            }
            if rtr.write {
                second |= HIGH_FLAG;
            }
            if rtr.read {
                second |= LOW_FLAG;
            }
        }
        let [a, b] = first.to_be_bytes();
        let [c, d] = second.to_be_bytes();
        [a, b, c, d]
    }
}

impl fmt::Display for Enhanced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let depth = |d: ReadDepth| match d {
            ReadDepth::Limit(n) => i32::from(n),
            ReadDepth::LeftToUlp => -1,
        };
        write!(f, "ird={} ord={}", depth(self.ird), depth(self.ord))?;
        match self.peer_to_peer {
            Some(rtr) => write!(f, " rtr={rtr:?}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_where_the_figure_has_them() {
        let only = |send, write, read| Enhanced {
            ird: ReadDepth::Limit(1),
            ord: ReadDepth::Limit(1),
            peer_to_peer: Some(RtrSet { send, write, read }),
        };
        assert_eq!(only(false, true, true).emit(), [0x80, 1, 0xc0, 1]);
        assert_eq!(only(false, false, true).emit(), [0x80, 1, 0x40, 1]);
        assert_eq!(only(true, false, false).emit(), [0xc0, 1, 0x00, 1]);
        assert_eq!(only(false, true, false).emit(), [0x80, 1, 0x80, 1]);
    }

    #[test]
    fn without_flag_a_the_others_are_ignored() {
        let parsed = Enhanced::parse([0x40, 4, 0xc0, 8]);
        assert_eq!(parsed.peer_to_peer, None);
        assert_eq!(parsed.emit(), [0, 4, 0, 8]);
    }

    #[test]
    fn sets_of_indications() {
        let set = |bits: u8| RtrSet {
            send: bits & 1 != 0,
            write: bits & 2 != 0,
            read: bits & 4 != 0,
        };
        for a in 0..8 {
            assert_eq!(set(a).is_empty(), a == 0);
            let preferred = match a {
                _ if a & 2 != 0 => Some(Rtr::Write),
                _ if a & 4 != 0 => Some(Rtr::Read),
                0 => None,
                _ => Some(Rtr::Send),
            };
            assert_eq!(set(a).preferred(), preferred);
            for b in 0..8 {
                assert_eq!(set(a).intersection(set(b)), set(a & b));
            }
        }
    }

    #[test]
    fn depths_and_indications_are_printed() {
        let mut data = Enhanced {
            ird: ReadDepth::Limit(3),
            ord: ReadDepth::LeftToUlp,
            peer_to_peer: None,
        };
        assert_eq!(data.to_string(), "ird=3 ord=-1");
        data.peer_to_peer = Some(RtrSet::NONE);
        let rtr = "rtr=RtrSet { send: false, write: false, read: false }";
        assert_eq!(data.to_string(), format!("ird=3 ord=-1 {rtr}"));
    }

    #[test]
    fn all_ones_is_left_to_the_ulp() {
        let parsed = Enhanced::parse([0x3f, 0xff, 0x3f, 0xfe]);
        assert_eq!(parsed.ird, ReadDepth::LeftToUlp);
        assert_eq!(parsed.ord, ReadDepth::Limit(ReadDepth::MAX));
        assert_eq!(ReadDepth::limit(u16::MAX), ReadDepth::Limit(ReadDepth::MAX));
    }

    #[test]
    fn parse_of_emit_is_identity() {
        for bits in 0..=u16::MAX {
            let [a, b] = bits.to_be_bytes();
            for bytes in [[a, b, 0x12, 0x34], [0x80, 1, a, b]] {
                let parsed = Enhanced::parse(bytes);
                assert_eq!(Enhanced::parse(parsed.emit()), parsed);
            }
        }
    }
}
