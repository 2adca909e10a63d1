//! Headers of datagrams: in plain UDP, and before the octets of a Send (§6).

use dgiwarp_codec::{Truncated, split_header};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// First octets of a datagram in plain UDP.
const TAG: u32 = 0x5555_5555;
/// Upper 24 bits of the queue pair number's field are zero (§6.1).
const QPN_MASK: u32 = 0x00ff_ffff;

/// Octets that are no datagram of rsockets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MalformedDatagram {
    /// They end early.
    #[error(transparent)]
    Truncated(#[from] Truncated),
    /// They do not begin with the tag.
    #[error("tag {0:#010x}")]
    Tag(u32),
    /// Version and length of the header do not belong together.
    #[error("version {version} with a header of {length} octets")]
    Header {
        /// IP version.
        version: u8,
        /// Length field.
        length: u8,
    },
    /// An operation that the protocol does not have.
    #[error("operation {0}")]
    Operation(u8),
}

/// Reason for a datagram in plain UDP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operation {
    /// It carries the program's octets, and is to be answered.
    Data,
    /// It is the answer and carries none.
    Control,
}

impl Operation {
    const fn code(self) -> u8 {
        match self {
            Self::Data => 0,
            Self::Control => 7,
        }
    }
}

/// Header of a datagram in plain UDP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct UdpHeader {
    /// Reason.
    pub operation: Operation,
    /// Number of the sender's queue pair, 24 bits.
    pub qpn: u32,
    /// Address of the sender's queue pair.
    pub address: IpAddr,
}

impl UdpHeader {
    /// Longest header.
    pub const MAX_LEN: usize = 28;

    /// Length on the wire.
    #[must_use]
    pub const fn encoded_len(&self) -> usize {
        match self.address {
            IpAddr::V4(_) => 16,
            IpAddr::V6(_) => 28,
        }
    }

    /// Reads a header. Returns it with the octets behind.
    ///
    /// # Errors
    /// [`MalformedDatagram`].
    pub fn parse(octets: &[u8]) -> Result<(Self, &[u8]), MalformedDatagram> {
        let (fixed, rest) = split_header::<12>(octets)?;
        let [t0, t1, t2, t3, version, op, length, _, q0, q1, q2, q3] = *fixed;
        let tag = u32::from_be_bytes([t0, t1, t2, t3]);
        if tag != TAG {
            return Err(MalformedDatagram::Tag(tag));
        }
        let (address, rest) = match (version, length) {
            (4, 16) => {
                let (octets, rest) = split_header::<4>(rest)?;
                (Ipv4Addr::from(*octets).into(), rest)
            }
            (6, 28) => {
                let (octets, rest) = split_header::<16>(rest)?;
                (Ipv6Addr::from(*octets).into(), rest)
            }
            _ => return Err(MalformedDatagram::Header { version, length }),
        };
        let operation = match op {
            0 => Operation::Data,
            7 => Operation::Control,
            other => return Err(MalformedDatagram::Operation(other)),
        };
        let header = Self {
            operation,
            qpn: u32::from_be_bytes([q0, q1, q2, q3]) & QPN_MASK,
            address,
        };
        Ok((header, rest))
    }

    /// Writes the header and returns its length.
    pub fn emit(&self, octets: &mut [u8; Self::MAX_LEN]) -> usize {
        let (version, length) = match self.address {
            IpAddr::V4(v4) => {
                octets[12..16].copy_from_slice(&v4.octets());
                (4, 16)
            }
            IpAddr::V6(v6) => {
                octets[12..28].copy_from_slice(&v6.octets());
                (6, 28)
            }
        };
        octets[..4].copy_from_slice(&TAG.to_be_bytes());
        octets[4..8].copy_from_slice(&[version, self.operation.code(), length, 0]);
        octets[8..12].copy_from_slice(&(self.qpn & QPN_MASK).to_be_bytes());
        length.into()
    }
}

impl fmt::Display for UdpHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} of QP {} at {}",
            self.operation, self.qpn, self.address
        )
    }
}

/// Header before the octets of a datagram in a Send: the address of the sender's socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DatagramHeader {
    /// Address and port of the sending socket.
    pub source: SocketAddr,
}

impl DatagramHeader {
    /// Longest header.
    pub const MAX_LEN: usize = 24;

    /// Length on the wire.
    #[must_use]
    pub const fn encoded_len(&self) -> usize {
        match self.source {
            SocketAddr::V4(_) => 8,
            SocketAddr::V6(_) => 24,
        }
    }

    /// Reads a header. Returns it with the octets behind.
    ///
    /// # Errors
    /// [`MalformedDatagram`].
    pub fn parse(octets: &[u8]) -> Result<(Self, &[u8]), MalformedDatagram> {
        let (fixed, rest) = split_header::<8>(octets)?;
        let [version, length, p0, p1, a0, a1, a2, a3] = *fixed;
        let port = u16::from_be_bytes([p0, p1]);
        match (version, length) {
            (4, 8) => {
                let source = (Ipv4Addr::new(a0, a1, a2, a3), port).into();
                Ok((Self { source }, rest))
            }
            (6, 24) => {
                let (octets, rest) = split_header::<16>(rest)?;
                // As in `sockaddr_in6`, the number is the octets.
                let flow = u32::from_ne_bytes([a0, a1, a2, a3]);
                let source = SocketAddrV6::new(Ipv6Addr::from(*octets), port, flow, 0).into();
                Ok((Self { source }, rest))
            }
            _ => Err(MalformedDatagram::Header { version, length }),
        }
    }

    /// Writes the header and returns its length.
    pub fn emit(&self, octets: &mut [u8; Self::MAX_LEN]) -> usize {
        octets[2..4].copy_from_slice(&self.source.port().to_be_bytes());
        let (version, length) = match self.source {
            SocketAddr::V4(v4) => {
                octets[4..8].copy_from_slice(&v4.ip().octets());
                (4, 8)
            }
            SocketAddr::V6(v6) => {
                octets[4..8].copy_from_slice(&v6.flowinfo().to_ne_bytes());
                octets[8..24].copy_from_slice(&v6.ip().octets());
                (6, 24)
            }
        };
        octets[..2].copy_from_slice(&[version, length]);
        length.into()
    }
}

impl fmt::Display for DatagramHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "datagram of {}", self.source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_parses_is_emitted(octets: Vec<u8>, v6: bool, op in 0..8_u8) {
            let mut octets = octets;
            octets.resize(octets.len().max(40), 0);
            let (version, udp, ud) = if v6 { (6, 28, 24) } else { (4, 16, 8) };
            octets[..2].copy_from_slice(&[version, ud]);
            let (header, rest) = DatagramHeader::parse(&octets).unwrap();
            let mut again = [0; DatagramHeader::MAX_LEN];
            let len = header.emit(&mut again);
            prop_assert_eq!(len, header.encoded_len());
            prop_assert_eq!(&again[..len], &octets[..len]);
            prop_assert_eq!(rest, &octets[len..]);

            octets[..4].fill(0x55);
            octets[4..9].copy_from_slice(&[version, op, udp, 0, 0]);
            match UdpHeader::parse(&octets) {
                Ok((header, rest)) => {
                    let mut again = [0; UdpHeader::MAX_LEN];
                    let len = header.emit(&mut again);
                    prop_assert_eq!(len, header.encoded_len());
                    prop_assert_eq!(&again[..len], &octets[..len]);
                    prop_assert_eq!(rest, &octets[len..]);
                }
                Err(error) => prop_assert_eq!(error, MalformedDatagram::Operation(op)),
            }
        }

        #[test]
        fn any_octets_parse_or_are_named(octets: Vec<u8>) {
            if let Err(error) = DatagramHeader::parse(&octets) {
                prop_assert!(!error.to_string().is_empty());
            }
            if let Err(error) = UdpHeader::parse(&octets) {
                prop_assert!(!error.to_string().is_empty());
            }
        }
    }
}
