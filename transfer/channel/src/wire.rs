//! Octets on the wire (`rfc-notes/channel.md`).

/// Octets of an announcement.
pub const ANNOUNCE_LEN: usize = 32;
/// Octets of a notice at most.
pub const NOTICE_LEN: usize = 64;
/// Released slots that one notice has at most.
pub const MOST_RELEASED: usize = (NOTICE_LEN - HEADER) / 2;

const HEADER: usize = 8;
const MAGIC: [u8; 4] = *b"DGCH";
const VERSION: u8 = 1;

/// A message that breaks the format, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Malformed(pub &'static str);

/// A ring that the sender of this offers: private data of the MPA Request and of the Reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Announce {
    /// Slots, at least one.
    pub slots: u16,
    /// Octets of each, at least one.
    pub slot_size: u32,
    /// STag of the ring.
    pub stag: u32,
    /// Tagged offset of its first octet.
    pub offset: u64,
}

impl Announce {
    /// Its octets.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; ANNOUNCE_LEN] {
        let mut bytes = [0; ANNOUNCE_LEN];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4] = VERSION;
        bytes[6..8].copy_from_slice(&self.slots.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.slot_size.to_be_bytes());
        bytes[12..16].copy_from_slice(&self.stag.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.offset.to_be_bytes());
        bytes
    }

    /// Reads an announcement. Octets behind it, and reserved ones, are ignored.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let bytes: &[u8; ANNOUNCE_LEN] = bytes
            .first_chunk()
            .ok_or(Malformed("no announcement of a channel"))?;
        if bytes[..4] != MAGIC {
            return Err(Malformed("no announcement of a channel"));
        }
        if bytes[4] != VERSION {
            return Err(Malformed("another version of channels than 1"));
        }
        let announce = Self {
            slots: u16::from_be_bytes([bytes[6], bytes[7]]),
            slot_size: word(bytes, 8),
            stag: word(bytes, 12),
            offset: u64::from(word(bytes, 16)) << 32 | u64::from(word(bytes, 20)),
        };
        if announce.slots == 0 || announce.slot_size == 0 {
            return Err(Malformed("a ring without room"));
        }
        Ok(announce)
    }

    /// Octets of the ring.
    #[must_use]
    pub fn octets(&self) -> u64 {
        u64::from(self.slots) * u64::from(self.slot_size)
    }
}

/// The part of a notice beside released slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Released slots alone, or none.
    Release,
    /// A block was written.
    Block {
        /// Slot of the receiver's ring.
        slot: u16,
        /// Octets of the block, from the beginning of the slot on.
        length: u32,
    },
    /// No more blocks follow, and the sender takes none any more.
    End,
}

/// A message behind the blocks that it is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice<'a> {
    /// Block or end.
    pub kind: Kind,
    /// Slots of the sender's ring whose blocks it no longer needs, as octets.
    released: &'a [u8],
}

impl<'a> Notice<'a> {
    /// Appends a notice with at most [`MOST_RELEASED`] of the slots to `out`.
    pub fn emit(kind: Kind, released: impl ExactSizeIterator<Item = u16>, out: &mut Vec<u8>) {
        let count = released.len().min(MOST_RELEASED);
        let (code, slot, length) = match kind {
            Kind::Release => (0, 0, 0),
            Kind::Block { slot, length } => (1, slot, length),
            Kind::End => (2, 0, 0),
        };
        out.push(code);
        out.push(u8::try_from(count).unwrap_or(u8::MAX));
        out.extend(slot.to_be_bytes());
        out.extend(length.to_be_bytes());
        for slot in released.take(count) {
            out.extend(slot.to_be_bytes());
        }
    }

    /// Reads a notice, which is all of `bytes`.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (header, released) = bytes
            .split_first_chunk::<HEADER>()
            .ok_or(Malformed("a notice without its header"))?;
        if released.len() != 2 * usize::from(header[1]) {
            return Err(Malformed("a notice of another length than its count's"));
        }
        let kind = match header[0] {
            0 => Kind::Release,
            1 => Kind::Block {
                slot: u16::from_be_bytes([header[2], header[3]]),
                length: word(header, 4),
            },
            2 => Kind::End,
            _ => return Err(Malformed("a notice of unknown kind")),
        };
        Ok(Self { kind, released })
    }

    /// The released slots.
    pub fn released(&self) -> impl Iterator<Item = u16> + 'a {
        let (slots, _) = self.released.as_chunks();
        slots.iter().map(|slot| u16::from_be_bytes(*slot))
    }
}

/// The word at an offset of octets that have it.
fn word(bytes: &[u8], at: usize) -> u32 {
    let word = bytes.get(at..).and_then(|rest| rest.first_chunk());
    word.map_or(0, |word| u32::from_be_bytes(*word))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples of the specification.
    #[test]
    fn octets_are_those_of_the_specification() {
        let text = include_str!("../../../rfc-notes/channel.md");
        let example = |name: &str| -> Vec<u8> {
            let begin = format!("```example {name}\n");
            let rest = text.split(&begin).nth(1).unwrap();
            let octets = rest.split("```").next().unwrap().split_whitespace();
            octets
                .map(|octet| u8::from_str_radix(octet, 16).unwrap())
                .collect()
        };
        let announce = Announce {
            slots: 16,
            slot_size: 1 << 20,
            stag: 0x0102_0304,
            offset: 0x7f00_1122_3344_5000,
        };
        assert_eq!(example("announcement"), announce.to_bytes());
        assert_eq!(Announce::parse(&example("announcement")), Ok(announce));
        let kind = Kind::Block {
            slot: 5,
            length: 1000,
        };
        let mut octets = Vec::new();
        Notice::emit(kind, [2, 0x0103].into_iter(), &mut octets);
        assert_eq!(example("block"), octets);
        let notice = Notice::parse(&octets).unwrap();
        assert_eq!(notice.kind, kind);
        assert_eq!(notice.released().collect::<Vec<_>>(), [2, 0x0103]);
        octets.clear();
        Notice::emit(Kind::End, [].into_iter(), &mut octets);
        assert_eq!(example("end"), octets);
        assert_eq!(Notice::parse(&octets).unwrap().kind, Kind::End);
    }

    #[test]
    fn a_notice_has_no_more_slots_than_it_has_room() {
        let mut octets = Vec::new();
        Notice::emit(Kind::Release, [7; 100].into_iter(), &mut octets);
        assert_eq!(octets.len(), NOTICE_LEN);
        let notice = Notice::parse(&octets).unwrap();
        assert_eq!(notice.released().count(), MOST_RELEASED);
    }

    #[test]
    fn others_are_malformed() {
        let good = Announce {
            slots: 1,
            slot_size: 1,
            stag: 0,
            offset: 0,
        };
        for (at, value, why) in [
            (0, 0, "no announcement of a channel"),
            (4, 2, "another version of channels than 1"),
            (7, 0, "a ring without room"),
            (11, 0, "a ring without room"),
        ] {
            let mut octets = good.to_bytes();
            octets[at] = value;
            assert_eq!(Announce::parse(&octets), Err(Malformed(why)));
        }
        assert!(Announce::parse(&good.to_bytes()[..31]).is_err());
        for octets in [
            &[0; 7][..],
            &[0, 1, 0, 0, 0, 0, 0, 0],
            &[0, 0, 0, 0, 0, 0, 0, 0, 1],
            &[3, 0, 0, 0, 0, 0, 0, 0],
        ] {
            assert!(Notice::parse(octets).is_err(), "{octets:?}");
        }
    }
}
