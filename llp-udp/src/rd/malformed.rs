//! Violations of the layout of a reliable datagram (§2, §3).

/// A datagram that does not keep to the layout. Nothing of it is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// Shorter than its envelope and CRC.
    #[error("a datagram of {0} octets is too short")]
    TooShort(usize),
    /// The CRC differs.
    #[error("the CRC is {found:#010x} where {computed:#010x} was computed")]
    Crc {
        /// The value in the datagram.
        found: u32,
        /// The value of its octets.
        computed: u32,
    },
    /// Not a reliable datagram.
    #[error("first octet {0:#04x}")]
    FirstOctet(u8),
    /// The frames end within a header, or within the body that a header names.
    #[error("{left} octets are left where a frame has {needed}")]
    FrameTooShort {
        /// Octets that the frame has.
        needed: usize,
        /// Octets that are left.
        left: usize,
    },
    /// A frame of a type that is not defined.
    #[error("frame type {0:#04x}")]
    FrameType(u8),
    /// A frame whose body has another length than its type has.
    #[error("a frame of type {kind:#04x} has {length} octets")]
    FrameLength {
        /// The type.
        kind: u8,
        /// Octets of its body.
        length: u16,
    },
    /// Ranges of an acknowledgement that reach below packet number 0.
    #[error("ranges reach below 0 from {0}")]
    Ranges(u64),
    /// A hello that is not the first frame.
    #[error("a hello that is not the first frame")]
    LateHello,
    /// A version of the hello that is not implemented.
    #[error("version {0} is not implemented")]
    Version(u8),
}
