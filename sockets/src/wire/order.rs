//! Byte order of a host.

/// Order of the octets of a host's numbers. Messages of four octets are in that of their sender, scatter/gather elements in that of the host whose memory
/// they are written to (§2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ByteOrder {
    /// Least significant octet first.
    Little,
    /// Most significant octet first.
    Big,
}

impl ByteOrder {
    /// Byte order of this host.
    pub const NATIVE: Self = if cfg!(target_endian = "big") {
        Self::Big
    } else {
        Self::Little
    };

    pub(crate) fn word(self, octets: [u8; 4]) -> u32 {
        match self {
            Self::Little => u32::from_le_bytes(octets),
            Self::Big => u32::from_be_bytes(octets),
        }
    }

    pub(crate) fn octets(self, word: u32) -> [u8; 4] {
        match self {
            Self::Little => word.to_le_bytes(),
            Self::Big => word.to_be_bytes(),
        }
    }

    pub(crate) fn long(self, octets: [u8; 8]) -> u64 {
        match self {
            Self::Little => u64::from_le_bytes(octets),
            Self::Big => u64::from_be_bytes(octets),
        }
    }

    pub(crate) fn long_octets(self, long: u64) -> [u8; 8] {
        match self {
            Self::Little => long.to_le_bytes(),
            Self::Big => long.to_be_bytes(),
        }
    }
}
