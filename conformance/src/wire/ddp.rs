//! DDP segments with RDMAP's octet in them (RFC 5041 §4, RFC 5040 §4), and the headers that Messages carry.

use core::fmt;

/// Octets of the header of a tagged segment.
pub const TAGGED_HEADER: usize = 14;
/// Octets of the header of an untagged segment.
pub const UNTAGGED_HEADER: usize = 18;

/// DDP's control octet of an untagged segment that is the last of its Message.
pub const UNTAGGED_LAST: u8 = 0x41;
/// First octet of an untagged segment that is not the last.
pub const UNTAGGED: u8 = 0x01;
/// DDP's control octet of a tagged segment that is the last of its Message.
pub const TAGGED_LAST: u8 = 0xc1;
/// First octet of a tagged segment that is not the last.
pub const TAGGED: u8 = 0x81;

/// RDMAP's version in its place.
pub const RV: u8 = 0x40;
/// Opcodes (RFC 5040 §4.3 and, from 8, RFC 7306).
pub mod opcode {
    /// RDMA Write.
    pub const WRITE: u8 = 0;
    /// RDMA Read Request.
    pub const READ_REQUEST: u8 = 1;
    /// RDMA Read Response.
    pub const READ_RESPONSE: u8 = 2;
    /// Send.
    pub const SEND: u8 = 3;
    /// Send with Invalidate.
    pub const SEND_INVALIDATE: u8 = 4;
    /// Send with Solicited Event.
    pub const SEND_SE: u8 = 5;
    /// Send with Solicited Event and Invalidate.
    pub const SEND_SE_INVALIDATE: u8 = 6;
    /// Terminate.
    pub const TERMINATE: u8 = 7;
    /// Immediate Data.
    pub const IMMEDIATE: u8 = 8;
    /// Immediate Data with Solicited Event.
    pub const IMMEDIATE_SE: u8 = 9;
    /// Atomic Request.
    pub const ATOMIC_REQUEST: u8 = 10;
    /// Atomic Response.
    pub const ATOMIC_RESPONSE: u8 = 11;
}

/// A segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// DDP's control octet: T, L, four reserved bits, version.
    pub ddp: u8,
    /// RDMAP's control octet: version, two reserved bits, opcode.
    pub rdmap: u8,
    /// Where it belongs.
    pub place: Place,
    /// Payload.
    pub payload: Vec<u8>,
}

/// Where a segment belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// A tagged buffer.
    Tagged {
        /// Its STag.
        stag: u32,
        /// The tagged offset.
        to: u64,
    },
    /// An untagged buffer.
    Untagged {
        /// Invalidate STag, or reserved.
        rsvd: u32,
        /// The queue.
        qn: u32,
        /// The message's number.
        msn: u32,
        /// The message offset.
        mo: u32,
    },
}

impl Segment {
    /// A tagged segment, the last of its Message.
    #[must_use]
    pub fn tagged(opcode: u8, stag: u32, to: u64, payload: &[u8]) -> Self {
        Self {
            ddp: TAGGED_LAST,
            rdmap: RV | opcode,
            place: Place::Tagged { stag, to },
            payload: payload.to_vec(),
        }
    }

    /// An untagged segment with message offset 0, the last of its Message.
    #[must_use]
    pub fn untagged(opcode: u8, qn: u32, msn: u32, payload: &[u8]) -> Self {
        Self {
            ddp: UNTAGGED_LAST,
            rdmap: RV | opcode,
            place: Place::Untagged {
                rsvd: 0,
                qn,
                msn,
                mo: 0,
            },
            payload: payload.to_vec(),
        }
    }

    /// The segment as one that is not the last of its Message.
    #[must_use]
    pub fn more(mut self) -> Self {
        self.ddp &= !0x40;
        self
    }

    /// The segment with this message offset; a tagged segment stays as it is.
    #[must_use]
    pub fn at(mut self, offset: u32) -> Self {
        if let Place::Untagged { mo, .. } = &mut self.place {
            *mo = offset;
        }
        self
    }

    /// The segment with this Invalidate STag; a tagged segment stays as it is.
    #[must_use]
    pub fn invalidating(mut self, stag: u32) -> Self {
        if let Place::Untagged { rsvd, .. } = &mut self.place {
            *rsvd = stag;
        }
        self
    }

    /// The ULPDU.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut octets = vec![self.ddp, self.rdmap];
        match self.place {
            Place::Tagged { stag, to } => {
                octets.extend(stag.to_be_bytes());
                octets.extend(to.to_be_bytes());
            }
            Place::Untagged { rsvd, qn, msn, mo } => {
                for word in [rsvd, qn, msn, mo] {
                    octets.extend(word.to_be_bytes());
                }
            }
        }
        octets.extend(&self.payload);
        octets
    }

    /// Reads a ULPDU; `None` if it is shorter than its header.
    #[must_use]
    pub fn parse(ulpdu: &[u8]) -> Option<Self> {
        let tagged = ulpdu.first()? & 0x80 != 0;
        let (place, header) = if tagged {
            let stag = word(ulpdu, 2)?;
            let to = u64::from(word(ulpdu, 6)?) << 32 | u64::from(word(ulpdu, 10)?);
            (Place::Tagged { stag, to }, TAGGED_HEADER)
        } else {
            let place = Place::Untagged {
                rsvd: word(ulpdu, 2)?,
                qn: word(ulpdu, 6)?,
                msn: word(ulpdu, 10)?,
                mo: word(ulpdu, 14)?,
            };
            (place, UNTAGGED_HEADER)
        };
        Some(Self {
            ddp: ulpdu[0],
            rdmap: ulpdu[1],
            place,
            payload: ulpdu[header..].to_vec(),
        })
    }

    /// RDMAP's opcode.
    #[must_use]
    pub fn opcode(&self) -> u8 {
        self.rdmap & 0x0f
    }

    /// Whether it is the last of its Message.
    #[must_use]
    pub fn is_last(&self) -> bool {
        self.ddp & 0x40 != 0
    }

    /// Whether it is an RDMA Write of nothing, which every peer must ignore and some send for their own ends.
    #[must_use]
    pub fn is_empty_write(&self) -> bool {
        self.opcode() == opcode::WRITE && self.payload.is_empty()
    }
}

impl fmt::Display for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.opcode() == opcode::TERMINATE
            && let Some(terminate) = Terminate::parse(&self.payload)
        {
            return terminate.fmt(f);
        }
        let name = match self.opcode() {
            opcode::WRITE => "RDMA Write",
            opcode::READ_REQUEST => "RDMA Read Request",
            opcode::READ_RESPONSE => "RDMA Read Response",
            opcode::SEND => "Send",
            opcode::SEND_INVALIDATE => "Send with Invalidate",
            opcode::SEND_SE => "Send with SE",
            opcode::SEND_SE_INVALIDATE => "Send with SE and Invalidate",
            opcode::TERMINATE => "Terminate",
            opcode::IMMEDIATE => "Immediate Data",
            opcode::IMMEDIATE_SE => "Immediate Data with SE",
            opcode::ATOMIC_REQUEST => "Atomic Request",
            opcode::ATOMIC_RESPONSE => "Atomic Response",
            _ => "reserved opcode",
        };
        write!(f, "{name}, {} octets", self.payload.len())?;
        match self.place {
            Place::Tagged { stag, to } => write!(f, ", STag {stag:#x}, TO {to:#x}")?,
            Place::Untagged { qn, msn, mo, .. } => write!(f, ", QN {qn}, MSN {msn}, MO {mo}")?,
        }
        if !self.is_last() {
            f.write_str(", not the last")?;
        }
        Ok(())
    }
}

/// The big-endian word at an octet.
#[must_use]
pub fn word(octets: &[u8], at: usize) -> Option<u32> {
    octets
        .get(at..)?
        .first_chunk()
        .map(|four| u32::from_be_bytes(*four))
}

/// Contents of an RDMA Read Request (RFC 5040 §4.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadRequest {
    /// Where the data goes.
    pub sink_stag: u32,
    /// Where the data goes.
    pub sink_to: u64,
    /// Octets.
    pub size: u32,
    /// Where the data is.
    pub source_stag: u32,
    /// Where the data is.
    pub source_to: u64,
}

impl ReadRequest {
    /// The Message's octets.
    #[must_use]
    pub fn to_bytes(self) -> Vec<u8> {
        let mut octets = self.sink_stag.to_be_bytes().to_vec();
        octets.extend(self.sink_to.to_be_bytes());
        octets.extend(self.size.to_be_bytes());
        octets.extend(self.source_stag.to_be_bytes());
        octets.extend(self.source_to.to_be_bytes());
        octets
    }

    /// Reads a Message's octets.
    #[must_use]
    pub fn parse(octets: &[u8]) -> Option<Self> {
        let long = |at| Some(u64::from(word(octets, at)?) << 32 | u64::from(word(octets, at + 4)?));
        Some(Self {
            sink_stag: word(octets, 0)?,
            sink_to: long(4)?,
            size: word(octets, 12)?,
            source_stag: word(octets, 16)?,
            source_to: long(20)?,
        })
    }
}

/// An Atomic Request (RFC 7306 §5.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AtomicRequest {
    /// 0 is FetchAdd, 2 is CmpSwap.
    pub operation: u32,
    /// Returned in the Response.
    pub identifier: u32,
    /// Where the octets are.
    pub stag: u32,
    /// Where the octets are.
    pub to: u64,
    /// Operand that is added or stored.
    pub data: u64,
    /// Where carries stop, or which bits are stored.
    pub mask: u64,
    /// Operand that is compared.
    pub compare: u64,
    /// Which bits are compared.
    pub compare_mask: u64,
}

impl AtomicRequest {
    /// The Message's octets.
    #[must_use]
    pub fn to_bytes(self) -> Vec<u8> {
        let mut octets = Vec::with_capacity(52);
        for word in [self.operation, self.identifier, self.stag] {
            octets.extend(word.to_be_bytes());
        }
        for long in [
            self.to,
            self.data,
            self.mask,
            self.compare,
            self.compare_mask,
        ] {
            octets.extend(long.to_be_bytes());
        }
        octets
    }
}

/// A Terminate (RFC 5040 §4.8).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terminate {
    /// 0 RDMA, 1 DDP, 2 LLP.
    pub layer: u8,
    /// Error type.
    pub etype: u8,
    /// Error code.
    pub code: u8,
    /// Bits M, D, R: 4, 2, 1.
    pub header_control: u8,
    /// The 13 reserved bits.
    pub reserved: u16,
    /// Octets behind the first word.
    pub rest: Vec<u8>,
}

impl Terminate {
    /// The payload of a Terminate.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut octets = vec![self.layer << 4 | self.etype & 0xf, self.code];
        let last = u16::from(self.header_control) << 13 | self.reserved & 0x1fff;
        octets.extend(last.to_be_bytes());
        octets.extend(&self.rest);
        octets
    }

    /// Reads a payload; `None` if there is no whole first word.
    #[must_use]
    pub fn parse(payload: &[u8]) -> Option<Self> {
        let [first, code, high, low]: [u8; 4] = *payload.first_chunk()?;
        let last = u16::from_be_bytes([high, low]);
        Some(Self {
            layer: first >> 4,
            etype: first & 0xf,
            code,
            header_control: high >> 5,
            reserved: last & 0x1fff,
            rest: payload[4..].to_vec(),
        })
    }
}

impl fmt::Display for Terminate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Terminate {}/{}/{:02x}, header control {:03b}, {} octets of headers",
            self.layer,
            self.etype,
            self.code,
            self.header_control,
            self.rest.len()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_read_as_they_were_built() {
        let write = Segment::tagged(opcode::WRITE, 0x0102_0304, 0x0506_0708_090a_0b0c, &[1, 2]);
        let octets = write.to_bytes();
        assert_eq!(
            octets,
            [0xc1, 0x40, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 1, 2]
        );
        assert_eq!(Segment::parse(&octets).unwrap(), write);
        assert_eq!(Segment::parse(&octets[..13]), None);
        let send = Segment::untagged(opcode::SEND, 0, 7, b"x").at(3).more();
        let octets = send.to_bytes();
        assert_eq!(octets[..2], [0x01, 0x43]);
        assert_eq!(octets[10..18], [0, 0, 0, 7, 0, 0, 0, 3]);
        assert_eq!(Segment::parse(&octets).unwrap(), send);
    }

    #[test]
    fn a_terminate_has_the_figures_bits() {
        let terminate = Terminate {
            layer: 1,
            etype: 2,
            code: 5,
            header_control: 0b110,
            reserved: 0,
            rest: vec![0, 20],
        };
        assert_eq!(terminate.to_bytes(), [0x12, 5, 0xc0, 0, 0, 20]);
        assert_eq!(Terminate::parse(&terminate.to_bytes()), Some(terminate));
    }
}
