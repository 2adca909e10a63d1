//! REQUEST, UNREADABLE, PRUNE and REMOVED: the order of an end that dials, and a target that becomes as the source.
//!
//! ```text
//! REQUEST  flags 1 | reserved 3 | wishes: kind 1 | reserved 1 | length 2 | octets
//! UNREADABLE  length of the name 2 | name | text
//! REMOVED  flags 1 | reserved 3 | entries: status 1 | reserved 1 | length of the name 2 | length of the text 2 | name | text
//! ```

use super::octets::{Reader, cut};
use super::{Malformed, NAME_LIMIT, Status};

/// The sink removes what the source has not.
const PRUNE: u8 = 1;
/// Nothing is changed.
const DRY_RUN: u8 = 2;
/// Another frame of this kind follows.
const MORE: u8 = 4;
/// Names are beneath the path, not beneath the directory that it is in.
const CONTENTS: u8 = 8;

/// A part of an order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wish {
    /// A path beneath the directory that is served.
    Path(Vec<u8>),
    /// Pattern of names that are left out.
    Exclude(Vec<u8>),
    /// Pattern of names that are not left out all the same.
    Include(Vec<u8>),
}

impl Wish {
    /// Octets of the wish in a frame.
    #[must_use]
    pub fn octets(&self) -> usize {
        let (_, octets) = self.parts();
        4 + octets.len()
    }

    fn parts(&self) -> (u8, &[u8]) {
        match self {
            Self::Path(octets) => (1, octets),
            Self::Exclude(octets) => (2, octets),
            Self::Include(octets) => (3, octets),
        }
    }
}

/// Order of the end that dialled, behind its HELLO.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Request {
    /// The sink removes what the source has not.
    pub prune: bool,
    /// Nothing is changed.
    pub dry_run: bool,
    /// Another frame of this kind follows.
    pub more: bool,
    /// Names are beneath the path, not beneath the directory that it is in.
    pub contents: bool,
    /// Paths and patterns.
    pub wishes: Vec<Wish>,
}

impl Request {
    pub(super) fn parse(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let flags = reader.u8()?;
        reader.array::<3>()?;
        let mut wishes = Vec::new();
        while !reader.is_empty() {
            let kind = reader.u8()?;
            reader.u8()?;
            let length = usize::from(reader.u16()?);
            if length > NAME_LIMIT {
                let octets = length;
                return Err(Malformed::Long { kind: 17, octets });
            }
            let octets = reader.octets(length)?.to_vec();
            let known = match kind {
                1 => Some(Wish::Path(octets)),
                2 => Some(Wish::Exclude(octets)),
                3 => Some(Wish::Include(octets)),
                _ => None,
            };
            wishes.push(reader.value("wish", kind, known)?);
        }
        Ok(Self {
            prune: flags & PRUNE != 0,
            dry_run: flags & DRY_RUN != 0,
            more: flags & MORE != 0,
            contents: flags & CONTENTS != 0,
            wishes,
        })
    }

    pub(super) fn emit(&self, out: &mut Vec<u8>) {
        let flag = |is: bool, flag| if is { flag } else { 0 };
        let changes = flag(self.prune, PRUNE) | flag(self.dry_run, DRY_RUN);
        let flags = changes | flag(self.more, MORE) | flag(self.contents, CONTENTS);
        out.extend([flags, 0, 0, 0]);
        for wish in &self.wishes {
            let (kind, octets) = wish.parts();
            out.extend([kind, 0]);
            out.extend(
                u16::try_from(octets.len())
                    .unwrap_or(u16::MAX)
                    .to_be_bytes(),
            );
            out.extend(octets);
        }
    }
}

/// An entry that the source cannot read and that is left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unreadable {
    /// Its name at the source.
    pub name: String,
    /// The failure for people.
    pub text: String,
}

impl Unreadable {
    pub(super) fn parse(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let length = usize::from(reader.u16()?);
        let name = Reader::new(20, reader.octets(length)?).text();
        let text = reader.text();
        Ok(Self { name, text })
    }

    pub(super) fn emit(&self, out: &mut Vec<u8>) {
        let name = cut(&self.name);
        out.extend(u16::try_from(name.len()).unwrap_or(u16::MAX).to_be_bytes());
        out.extend(name);
        out.extend(cut(&self.text));
    }
}

/// An entry that the source has not: status *stored* if it is gone, else the failure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Removal {
    /// Name beneath the target.
    pub name: Vec<u8>,
    /// Result.
    pub status: Status,
    /// The failure for people.
    pub text: String,
}

impl Removal {
    /// Octets of the entry in a frame.
    #[must_use]
    pub fn octets(&self) -> usize {
        6 + self.name.len() + cut(&self.text).len()
    }
}

/// Entries that the sink has removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Removed {
    /// All are removed.
    pub last: bool,
    /// The entries.
    pub entries: Vec<Removal>,
}

impl Removed {
    pub(super) fn parse(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let last = reader.u8()? & 1 != 0;
        reader.array::<3>()?;
        let mut entries = Vec::new();
        while !reader.is_empty() {
            let status = Status::parse(reader)?;
            reader.u8()?;
            let name = usize::from(reader.u16()?);
            let text = usize::from(reader.u16()?);
            if name > NAME_LIMIT {
                let octets = name;
                return Err(Malformed::Long { kind: 19, octets });
            }
            entries.push(Removal {
                name: reader.octets(name)?.to_vec(),
                status,
                text: Reader::new(19, reader.octets(text)?).text(),
            });
        }
        Ok(Self { last, entries })
    }

    pub(super) fn emit(&self, out: &mut Vec<u8>) {
        out.extend([u8::from(self.last), 0, 0, 0]);
        for Removal { name, status, text } in &self.entries {
            out.extend([status.number(), 0]);
            let text = cut(text);
            for octets in [name, text] {
                let length = u16::try_from(octets.len()).unwrap_or(u16::MAX);
                out.extend(length.to_be_bytes());
            }
            out.extend(name);
            out.extend(text);
        }
    }
}
