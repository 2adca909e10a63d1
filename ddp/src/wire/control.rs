//! The first octet of every DDP segment (RFC 5041 §4.1).
//!
//! ```text
//!  bit  7   6   5  4  3  2   1  0
//!     +---+---+------------+------+
//!     | T | L |  reserved  |  DV  |
//!     +---+---+------------+------+
//! ```
//!
//! The four reserved bits are carried in [`Control::format`]: over TCP they are zero when sent and
//! ignored when received; the datagram mapping defines values for them and drops unknown ones.

/// The DDP version that RFC 5041 §4.1 defines.
pub const DV: u8 = 0b01;

const TAGGED: u8 = 0x80;
const LAST: u8 = 0x40;
const FORMAT_SHIFT: u32 = 2;
const FORMAT_MASK: u8 = 0x0f;
const DV_MASK: u8 = 0x03;

/// Fields of the first octet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Control {
    /// T: tagged buffer model.
    pub tagged: bool,
    /// L: last segment of its message.
    pub last: bool,
    /// Four bits that RFC 5041 §4.1 reserves.
    pub format: u8,
    /// DV: DDP version.
    pub version: u8,
}

impl Control {
    /// Fields of a segment of version [`DV`], reserved bits zero.
    #[must_use]
    #[inline]
    pub const fn new(tagged: bool, last: bool) -> Self {
        Self {
            tagged,
            last,
            format: 0,
            version: DV,
        }
    }

    /// Fields of an octet; every value is valid.
    #[must_use]
    #[inline]
    pub const fn parse(octet: u8) -> Self {
        Self {
            tagged: octet & TAGGED != 0,
            last: octet & LAST != 0,
            format: (octet >> FORMAT_SHIFT) & FORMAT_MASK,
            version: octet & DV_MASK,
        }
    }

    /// Octet with these fields: the low four bits of `format`, the low two of `version`.
    #[must_use]
    #[inline]
    pub const fn emit(self) -> u8 {
        let tagged = if self.tagged { TAGGED } else { 0 };
        let last = if self.last { LAST } else { 0 };
        tagged | last | (self.format & FORMAT_MASK) << FORMAT_SHIFT | self.version & DV_MASK
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_octet_survives() {
        for octet in 0..=u8::MAX {
            assert_eq!(Control::parse(octet).emit(), octet);
        }
    }

    #[test]
    fn the_bits_are_where_the_figure_has_them() {
        let control = Control::parse(0b1100_0001);
        assert!(control.tagged && control.last);
        assert_eq!((control.format, control.version), (0, DV));
        assert_eq!(Control::parse(0b0011_1101).format, 0xf);
        // RFC 5041 §4.1: reserved bits are zero.
        let made = [(false, false), (false, true), (true, false), (true, true)]
            .map(|(tagged, last)| Control::new(tagged, last).emit());
        assert_eq!(made, [0x01, 0x41, 0x81, 0xc1]);
    }
}
