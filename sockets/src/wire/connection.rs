//! Private data of a connection's request and reply (§1).

use super::Sge;
use super::order::ByteOrder;
use dgiwarp_codec::{Truncated, split_header};
use std::fmt;

const VERSION: u8 = 1;
/// Flag: the host's byte order is the network's.
const BIG_ENDIAN: u8 = 1;
/// Flag: the host has I/O maps.
const IO_MAPS: u8 = 2;

/// One end of a connection, as it introduces itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ConnectionData {
    /// Byte order of the host.
    pub order: ByteOrder,
    /// Messages of data that it takes before it gives credits.
    pub credits: u16,
    /// I/O maps that it has room for, behind its list of targets; `None` where it has no such maps.
    pub io_maps: Option<u16>,
    /// Its list of targets: address, key, and number of elements.
    pub targets: Sge,
    /// The first target for data to it.
    pub buffer: Sge,
}

/// Private data that begins no stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MalformedConnection {
    /// They end early.
    #[error(transparent)]
    Truncated(#[from] Truncated),
    /// A version that is not this one.
    #[error("version {0} of rsockets")]
    Version(u8),
}

/// The octet for a number of slots (§1.2): numbers above 128 lose their lower eight bits.
#[must_use]
pub const fn scale_of(slots: u16) -> u8 {
    match slots {
        0..=128 => slots.to_be_bytes()[1],
        _ => 0x80 | slots.to_be_bytes()[0] & 0x7f,
    }
}

/// The number of slots that an octet stands for (§1.2).
#[must_use]
pub const fn slots_of(scale: u8) -> u16 {
    match scale {
        0..=128 => u16::from_be_bytes([0, scale]),
        _ => u16::from_be_bytes([scale & 0x7f, 0]),
    }
}

impl ConnectionData {
    /// Length on the wire.
    pub const LEN: usize = 40;

    /// Reads private data. Octets behind are ignored: carriers pad them.
    ///
    /// # Errors
    /// [`MalformedConnection`].
    pub fn parse(octets: &[u8]) -> Result<Self, MalformedConnection> {
        let (header, _) = split_header::<{ Self::LEN }>(octets)?;
        let (fixed, rest) = split_header::<8>(header)?;
        let (targets, rest) = split_header::<{ Sge::LEN }>(rest)?;
        let (buffer, _) = split_header::<{ Sge::LEN }>(rest)?;
        let [version, flags, high, low, _, _, _, slots] = *fixed;
        if version != VERSION {
            return Err(MalformedConnection::Version(version));
        }
        Ok(Self {
            order: if flags & BIG_ENDIAN != 0 {
                ByteOrder::Big
            } else {
                ByteOrder::Little
            },
            credits: u16::from_be_bytes([high, low]),
            io_maps: (flags & IO_MAPS != 0).then_some(slots_of(slots)),
            targets: Sge::parse(targets, ByteOrder::Big),
            buffer: Sge::parse(buffer, ByteOrder::Big),
        })
    }

    /// Writes private data.
    #[must_use]
    pub fn emit(&self) -> [u8; Self::LEN] {
        let order = match self.order {
            ByteOrder::Big => BIG_ENDIAN,
            ByteOrder::Little => 0,
        };
        let maps = if self.io_maps.is_some() { IO_MAPS } else { 0 };
        let [high, low] = self.credits.to_be_bytes();
        let slots = self.io_maps.map_or(0, scale_of);
        let mut octets = [0; Self::LEN];
        octets[..8].copy_from_slice(&[VERSION, order | maps, high, low, 0, 0, 0, slots]);
        octets[8..24].copy_from_slice(&self.targets.emit(ByteOrder::Big));
        octets[24..].copy_from_slice(&self.buffer.emit(ByteOrder::Big));
        octets
    }
}

impl fmt::Display for ConnectionData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "credits {}, {} octets at {:#x}",
            self.credits, self.buffer.length, self.buffer.addr
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn slots_up_to_128_are_exact_and_others_multiples_of_256() {
        for slots in 0..=128 {
            assert_eq!(slots_of(scale_of(slots)), slots);
        }
        assert_eq!(slots_of(scale_of(129)), 128);
        assert_eq!(slots_of(scale_of(0x1ff)), 0x100);
        assert_eq!(slots_of(scale_of(0x7fff)), 0x7f00);
    }

    proptest! {
        #[test]
        fn octets_that_parse_are_emitted_but_for_reserved_ones(octets: [u8; ConnectionData::LEN]) {
            let mut octets = octets;
            octets[0] = VERSION;
            octets[1] &= BIG_ENDIAN | IO_MAPS;
            octets[4..7].fill(0);
            let data = ConnectionData::parse(&octets).unwrap();
            octets[7] = data.io_maps.map_or(0, scale_of);
            prop_assert_eq!(data.emit(), octets);
            prop_assert_eq!(ConnectionData::parse(&data.emit()), Ok(data));
        }

        #[test]
        fn other_versions_and_short_data_are_named(version: u8, len in 0..ConnectionData::LEN) {
            prop_assume!(version != VERSION);
            let octets = [version; ConnectionData::LEN];
            prop_assert_eq!(ConnectionData::parse(&octets), Err(MalformedConnection::Version(version)));
            let truncated = Truncated { needed: ConnectionData::LEN, available: len };
            prop_assert_eq!(ConnectionData::parse(&octets[..len]), Err(truncated.into()));
        }
    }
}
