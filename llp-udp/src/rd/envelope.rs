//! The envelope (§2): 24 octets at the head of each reliable datagram, and a CRC32c at its end.

use std::fmt;

use dgiwarp_codec::{Payload, PayloadSlice, crc};

use super::malformed::Malformed;
use super::octets::{Fixed, Reader};

/// Octets before the frames.
pub const LEN: usize = 24;
/// Octets behind the frames.
pub const TRAILER: usize = crc::LEN;
/// Octets before and behind the frames.
pub const OVERHEAD: usize = LEN + TRAILER;
/// First octet: T 0, L 1, format 4, DV 01b.
pub const FIRST: u8 = 0x51;

const EAGER: u8 = 0x01;
const HELLO: u8 = 0x02;

/// An envelope.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Envelope {
    /// The receiver acknowledges at once.
    pub eager: bool,
    /// The first frame is a hello.
    pub hello: bool,
    /// Identifier that the receiver drew; 0 while the sender has none.
    pub association: u32,
    /// Packet number of the sender in this association; never used twice.
    pub number: u64,
    /// The sender's clock in microseconds, modulo 2^32.
    pub time: u32,
    /// The sender's epoch.
    pub epoch: u32,
}

impl Envelope {
    /// Checks the CRC of a datagram and returns its envelope with the frames behind.
    ///
    /// # Errors
    /// [`Malformed`]: the datagram is to be dropped.
    pub fn open<P: Payload + ?Sized>(
        datagram: PayloadSlice<'_, P>,
    ) -> Result<(Self, PayloadSlice<'_, P>), Malformed> {
        let short = Malformed::TooShort(datagram.len());
        let (covered, trailer) = datagram.split_last::<{ crc::LEN }>().ok_or(short)?;
        let found = crc::from_wire(trailer);
        let computed = covered.crc32c();
        if computed != found {
            return Err(Malformed::Crc { found, computed });
        }
        let frames = covered.after(LEN).ok_or(short)?;
        Ok((Self::parse(covered.head(&mut [0; LEN]))?, frames))
    }

    /// The envelope of 24 octets.
    ///
    /// # Errors
    /// [`Malformed::TooShort`], [`Malformed::FirstOctet`].
    pub fn parse(octets: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(octets);
        let parsed = (|| {
            let (first, flags) = (reader.u8()?, reader.u8()?);
            let _reserved = reader.u16()?;
            Some((
                first,
                Self {
                    eager: flags & EAGER != 0,
                    hello: flags & HELLO != 0,
                    association: reader.u32()?,
                    number: reader.u64()?,
                    time: reader.u32()?,
                    epoch: reader.u32()?,
                },
            ))
        })();
        match parsed {
            Some((FIRST, envelope)) => Ok(envelope),
            Some((first, _)) => Err(Malformed::FirstOctet(first)),
            None => Err(Malformed::TooShort(octets.len())),
        }
    }

    /// Appends the octets.
    pub fn emit(&self, out: &mut Vec<u8>) {
        let eager = if self.eager { EAGER } else { 0 };
        let hello = if self.hello { HELLO } else { 0 };
        Fixed::<LEN>::new()
            .put([FIRST, eager + hello, 0, 0])
            .put(self.association.to_be_bytes())
            .put(self.number.to_be_bytes())
            .put(self.time.to_be_bytes())
            .put(self.epoch.to_be_bytes())
            .emit(out);
    }
}

/// Appends the CRC32c of the datagram that begins at octet `start`.
pub fn seal(out: &mut Vec<u8>, start: usize) {
    let crc = crc::crc32c(out.get(start..).unwrap_or_default());
    out.extend(crc::to_wire(crc));
}

impl fmt::Display for Envelope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "RD association {:#010x} number {} epoch {:#010x}",
            self.association, self.number, self.epoch
        )?;
        if self.hello {
            f.write_str(" hello")?;
        }
        if self.eager {
            f.write_str(" eager")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const EXAMPLE: Envelope = Envelope {
        eager: true,
        hello: false,
        association: 0x0102_0304,
        number: 0x1122_3344_5566_7788,
        time: 0xa1a2_a3a4,
        epoch: 0xb1b2_b3b4,
    };

    fn emitted(envelope: Envelope) -> Vec<u8> {
        let mut out = Vec::new();
        envelope.emit(&mut out);
        out
    }

    #[test]
    fn fields_stand_where_the_specification_has_them() {
        assert_eq!(
            emitted(EXAMPLE),
            [
                0x51, 1, 0, 0, 1, 2, 3, 4, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0xa1,
                0xa2, 0xa3, 0xa4, 0xb1, 0xb2, 0xb3, 0xb4
            ]
        );
        let hello = Envelope {
            eager: false,
            hello: true,
            ..EXAMPLE
        };
        assert_eq!(emitted(hello)[1], 2);
        assert_eq!(
            EXAMPLE.to_string(),
            "RD association 0x01020304 number 1234605616436508552 epoch 0xb1b2b3b4 eager"
        );
        assert!(hello.to_string().ends_with("epoch 0xb1b2b3b4 hello"));
    }

    #[test]
    fn a_datagram_is_opened_only_intact_and_whole() {
        let mut datagram = b"before".to_vec();
        EXAMPLE.emit(&mut datagram);
        datagram.extend(b"frames");
        seal(&mut datagram, 6);
        let datagram = datagram.split_off(6);
        assert_eq!(datagram.len(), OVERHEAD + 6);
        let (envelope, frames) = Envelope::open::<[u8]>(datagram[..].into()).unwrap();
        assert_eq!((envelope, frames.octets()), (EXAMPLE, &b"frames"[..]));
        let mut bent = datagram.clone();
        bent[20] ^= 1;
        assert!(matches!(
            Envelope::open::<[u8]>(bent[..].into()),
            Err(Malformed::Crc { found, computed }) if found != computed
        ));
        assert_eq!(
            Envelope::open::<[u8]>(datagram[..3].into()),
            Err(Malformed::TooShort(3))
        );
        for length in [4, 27] {
            let mut short = datagram[..length - 4].to_vec();
            seal(&mut short, 0);
            assert_eq!(
                Envelope::open::<[u8]>(short[..].into()),
                Err(Malformed::TooShort(length))
            );
        }
        let mut other = datagram[..24].to_vec();
        other[0] = 0x41;
        seal(&mut other, 0);
        assert_eq!(
            Envelope::open::<[u8]>(other[..].into()),
            Err(Malformed::FirstOctet(0x41))
        );
    }

    proptest! {
        #[test]
        fn any_envelope_survives(eager: bool, hello: bool, association: u32, number: u64, time: u32, epoch: u32) {
            let envelope = Envelope { eager, hello, association, number, time, epoch };
            let mut octets = emitted(envelope);
            prop_assert_eq!(octets.len(), LEN);
            prop_assert_eq!(Envelope::parse(&octets), Ok(envelope));
            // Reserved bits are ignored.
            octets[1] |= 0xfc;
            octets[2] = 7;
            octets[3] = 9;
            prop_assert_eq!(Envelope::parse(&octets), Ok(envelope));
            prop_assert_eq!(Envelope::parse(&octets[..23]), Err(Malformed::TooShort(23)));
        }
    }
}
