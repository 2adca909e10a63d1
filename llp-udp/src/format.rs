//! Formats of a datagram (§1.1): the four bits of its first octet that RFC 5041 §4.1 reserves.

/// Position of the format in the first octet.
const SHIFT: u32 = 2;
/// The four bits, shifted down.
const MASK: u8 = 0xf;

/// Layout of a datagram behind its first octet. Other values are dropped and counted (§1.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Format {
    /// A DDP segment.
    Segment = 0,
    /// A DDP segment with a cookie between headers and payload (§6).
    Cookie = 1,
    /// A cookie exchange (§6).
    Exchange = 2,
    /// Service ID resolution (§10).
    Sidr = 3,
}

/// A format that is not implemented.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("format {0} is not implemented")]
pub struct UnknownFormat(pub u8);

impl Format {
    /// Whether a segment has a cookie.
    #[must_use]
    #[inline]
    pub const fn with_cookie(cookie: bool) -> Self {
        if cookie { Self::Cookie } else { Self::Segment }
    }

    /// The format that a datagram's first octet names.
    ///
    /// # Errors
    /// [`UnknownFormat`] with its number.
    #[inline]
    pub const fn parse(first: u8) -> Result<Self, UnknownFormat> {
        match (first >> SHIFT) & MASK {
            0 => Ok(Self::Segment),
            1 => Ok(Self::Cookie),
            2 => Ok(Self::Exchange),
            3 => Ok(Self::Sidr),
            other => Err(UnknownFormat(other)),
        }
    }

    /// A first octet of format 0 with this format.
    #[must_use]
    #[inline]
    pub const fn emit(self, first: u8) -> u8 {
        first | (self as u8) << SHIFT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every first octet, by the table of §1.1.
    #[test]
    fn the_four_reserved_bits_are_the_format() {
        for first in 0..=u8::MAX {
            let expected = match first & 0b0011_1100 {
                0b0000_0000 => Ok(Format::Segment),
                0b0000_0100 => Ok(Format::Cookie),
                0b0000_1000 => Ok(Format::Exchange),
                0b0000_1100 => Ok(Format::Sidr),
                other => Err(UnknownFormat(other / 4)),
            };
            assert_eq!(Format::parse(first), expected);
            if let Ok(format) = expected {
                assert_eq!(format.emit(first & 0b1100_0011), first);
            }
        }
    }

    #[test]
    fn a_cookie_makes_the_format() {
        assert_eq!(Format::with_cookie(false), Format::Segment);
        assert_eq!(Format::with_cookie(true), Format::Cookie);
        assert_eq!(UnknownFormat(7).to_string(), "format 7 is not implemented");
    }
}
