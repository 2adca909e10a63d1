//! ATTRIBUTES and REMARK: extended attributes of entries, and what a sink says about them.
//!
//! ```text
//! ATTRIBUTES  file 4 | octets in further frames 4 | octets of the sequence
//! sequence    length of the name 1 | reserved 3 | length of the value 4 | name | value, repeated
//! REMARK      text
//! ```

use std::sync::Arc;

use super::octets::{Reader, cut};
use super::{FRAME_LIMIT, HEADER, Malformed};

/// First octets of the name of each attribute: other namespaces change rights.
pub const NAMESPACE: &[u8] = b"user.";
/// Most octets of a name.
pub const ATTRIBUTE_NAME_LIMIT: usize = 255;
/// Most octets of a value.
pub const VALUE_LIMIT: usize = 64 << 10;
/// Most octets of the attributes of an entry on the wire.
pub const ATTRIBUTES_LIMIT: usize = 1 << 20;

/// Octets of an attribute before its name.
const HEAD: usize = 8;
/// Octets of a sequence in one frame.
const PART: usize = FRAME_LIMIT - HEADER - 8;

/// An extended attribute (`xattr(7)`).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Attribute {
    /// Name with its namespace, at most [`ATTRIBUTE_NAME_LIMIT`] octets, none of them zero.
    pub name: Vec<u8>,
    /// Value, at most [`VALUE_LIMIT`] octets.
    pub value: Vec<u8>,
}

impl Attribute {
    fn octets(&self) -> usize {
        HEAD + self.name.len() + self.value.len()
    }

    fn is_valid(&self) -> bool {
        let own = self.name.strip_prefix(NAMESPACE);
        own.is_some_and(|own| !own.is_empty() && !own.contains(&0))
            && self.name.len() <= ATTRIBUTE_NAME_LIMIT
            && self.value.len() <= VALUE_LIMIT
    }
}

/// The extended attributes of an entry, within the limits of the protocol and in the order of their names. Cloning shares them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Attributes(Arc<[Attribute]>);

impl Attributes {
    /// Attributes in any order; `None` where they are over a limit, of another namespace than `user.`, or two have one name.
    #[must_use]
    pub fn new(mut all: Vec<Attribute>) -> Option<Self> {
        all.sort();
        Self::of(all)
    }

    fn of(all: Vec<Attribute>) -> Option<Self> {
        let is_ascending = all.array_windows().all(|[one, next]| one.name < next.name);
        let attributes = Self(all.into());
        let fits = attributes.octets() <= ATTRIBUTES_LIMIT;
        let is_good = is_ascending && fits && attributes.iter().all(Attribute::is_valid);
        is_good.then_some(attributes)
    }

    /// The attributes in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = &Attribute> {
        self.0.iter()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Octets on the wire, without those of frames.
    #[must_use]
    pub fn octets(&self) -> usize {
        self.0.iter().map(Attribute::octets).sum()
    }

    /// Value of an attribute.
    #[must_use]
    pub fn get(&self, name: &[u8]) -> Option<&[u8]> {
        let at = self.0.binary_search_by(|it| it.name.as_slice().cmp(name));
        at.ok().map(|at| self.0[at].value.as_slice())
    }

    /// Parses the sequence of an entry.
    ///
    /// # Errors
    /// [`Malformed`] for one that is cut, out of order or over a limit.
    pub fn parse(sequence: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(25, sequence);
        let mut all = Vec::new();
        while !reader.is_empty() {
            let name = usize::from(reader.u8()?);
            reader.array::<3>()?;
            let value = reader.u32()? as usize;
            all.push(Attribute {
                name: reader.octets(name)?.to_vec(),
                value: reader.octets(value)?.to_vec(),
            });
        }
        Self::of(all).ok_or(Malformed::Attributes)
    }

    /// Octets of the sequence.
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.octets());
        for Attribute { name, value } in self.iter() {
            out.extend([u8::try_from(name.len()).unwrap_or(u8::MAX), 0, 0, 0]);
            let length = u32::try_from(value.len()).unwrap_or(u32::MAX);
            out.extend(length.to_be_bytes());
            out.extend(name);
            out.extend(value);
        }
        out
    }

    /// Frames for the entry of this number; none without attributes.
    #[must_use]
    pub fn parts(&self, file: u32) -> Vec<AttributesPart> {
        let sequence = self.emit();
        let mut following = sequence.len();
        let part = |octets: &[u8]| {
            following -= octets.len();
            AttributesPart {
                file,
                following: u32::try_from(following).unwrap_or(u32::MAX),
                octets: octets.to_vec(),
            }
        };
        sequence.chunks(PART).map(part).collect()
    }
}

/// A part of the attributes of an entry that follows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttributesPart {
    /// Number that the entry will have.
    pub file: u32,
    /// Octets of the sequence in further frames.
    pub following: u32,
    /// Octets of the sequence, at least one.
    pub octets: Vec<u8>,
}

impl AttributesPart {
    pub(super) fn parse(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let file = reader.u32()?;
        let following = reader.u32()?;
        let octets = reader.rest().to_vec();
        if octets.is_empty() {
            return Err(Malformed::Short { kind: 25 });
        }
        Ok(Self {
            file,
            following,
            octets,
        })
    }

    pub(super) fn emit(&self, out: &mut Vec<u8>) {
        out.extend(self.file.to_be_bytes());
        out.extend(self.following.to_be_bytes());
        out.extend(&self.octets);
    }
}

/// A text for people of both ends that is no failure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remark {
    /// The text.
    pub text: String,
}

impl Remark {
    pub(super) fn parse(reader: &mut Reader<'_>) -> Self {
        let text = reader.text();
        Self { text }
    }

    pub(super) fn emit(&self, out: &mut Vec<u8>) {
        out.extend(cut(&self.text));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn attribute(name: &[u8], value: &[u8]) -> Attribute {
        let (name, value) = (name.to_vec(), value.to_vec());
        Attribute { name, value }
    }

    #[test]
    fn only_attributes_within_the_limits_are_taken() {
        let one = |name: &[u8], octets| Attributes::new(vec![attribute(name, &vec![7; octets])]);
        let long = [NAMESPACE, &[b'n'; 251]].concat();
        assert!(one(&long[..255], VALUE_LIMIT).is_some());
        for (name, octets) in [
            (&long[..], 0),
            (b"user.a", VALUE_LIMIT + 1),
            (b"user.", 1),
            (b"user.a\0b", 1),
            (b"user", 1),
            (b"security.capability", 1),
            (b"trusted.x", 1),
            (b"system.posix_acl_access", 1),
            (b"User.x", 1),
            (b"", 1),
        ] {
            assert_eq!(one(name, octets), None, "{name:?}");
            // The limits hold for octets of a peer, too.
            let forged = Attributes([attribute(name, &vec![7; octets])].into());
            assert!(Attributes::parse(&forged.emit()).is_err(), "{name:?}");
        }
        let many = |count| (0..count).map(|at: u32| format!("user.{at:02}").into_bytes());
        let many = |count| many(count).map(|name| attribute(&name, &[0; VALUE_LIMIT]));
        assert!(Attributes::new(many(15).collect()).is_some());
        assert_eq!(Attributes::new(many(16).collect()), None);
    }

    #[test]
    fn attributes_are_in_one_order_and_each_is_there_once() {
        let (a, b) = (attribute(b"user.a", b"1"), attribute(b"user.b", b""));
        let both = Attributes::new(vec![b.clone(), a.clone()]).unwrap();
        assert_eq!(both.get(b"user.b"), Some(&b""[..]));
        assert_eq!(both.get(b"user.c"), None);
        assert!(both.iter().eq([&a, &b]));
        for forged in [vec![b.clone(), a.clone()], vec![a.clone(), a.clone()]] {
            assert!(Attributes::parse(&Attributes(forged.into()).emit()).is_err());
        }
        assert_eq!(Attributes::new(vec![a.clone(), a]), None);
    }

    proptest! {
        #[test]
        fn any_sequence_is_attributes_or_an_error(sequence in proptest::collection::vec(prop_oneof![Just(0_u8), Just(6), any::<u8>()], 0..200)) {
            if let Ok(attributes) = Attributes::parse(&sequence) {
                prop_assert_eq!(attributes.octets(), sequence.len());
            }
        }

        #[test]
        fn parts_are_the_sequence(sizes in proptest::collection::vec(0_usize..30_000, 0..8)) {
            let all = sizes.iter().enumerate();
            let all = all.map(|(at, size)| attribute(format!("user.{at}").as_bytes(), &vec![7; *size]));
            let attributes = Attributes::new(all.collect()).unwrap();
            let parts = attributes.parts(5);
            let mut left = attributes.octets();
            let mut sequence = Vec::new();
            for part in &parts {
                left -= part.octets.len();
                prop_assert_eq!((part.file, part.following as usize), (5, left));
                sequence.extend(&part.octets);
            }
            prop_assert_eq!(left, 0);
            prop_assert_eq!(Attributes::parse(&sequence), Ok(attributes));
        }
    }
}
