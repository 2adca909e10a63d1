//! LIST, ANSWER and STORED, and the records of a packed block: many short files together.
//!
//! ```text
//! LIST    first file 4 | entries: kind 1 | reserved 1 | mode 2 | seconds 8 | nanoseconds 4 | size 4 | length of the name 2 | length of the target 2 | name | target
//! ANSWER  first file 4 | an octet for each entry
//! STORED  file 4, repeated
//! record  file 4 | status 1 | reserved 3 | length 4 | octets, or the failure's text
//! ```

use std::ops::Range;

use super::octets::Reader;
use super::{EndStatus, Entry, FileKind, Malformed, NAME_LIMIT};

/// Number of a file that stands for packed blocks in BLOCK and NACK; their offset is the number of the block.
pub const PACKED: u32 = u32::MAX;
/// Octets of a record before those of its file.
pub const RECORD: usize = 12;
/// Octets of an entry of LIST before its name.
const LISTED: usize = 24;

/// Entries that the source has: short files, directories and links.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct List {
    /// Number of the first entry; the others follow without gaps.
    pub first: u32,
    /// Descriptions, without identities.
    pub entries: Vec<Entry>,
}

impl List {
    /// Octets of an entry in a LIST.
    #[must_use]
    pub fn octets_of(entry: &Entry) -> usize {
        LISTED + entry.name.len() + entry.target.len()
    }

    pub(super) fn parse(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let first = reader.u32()?;
        let mut entries = Vec::new();
        while !reader.is_empty() {
            let kind = FileKind::parse(reader)?;
            reader.u8()?;
            let mode = reader.u16()? & 0o7777;
            let seconds = i64::from_be_bytes(reader.array()?);
            let nanoseconds = reader.u32()?.min(999_999_999);
            let size = u64::from(reader.u32()?);
            let name = usize::from(reader.u16()?);
            let target = usize::from(reader.u16()?);
            let octets = name.max(target);
            if octets > NAME_LIMIT {
                return Err(Malformed::Long { kind: 14, octets });
            }
            entries.push(Entry {
                kind,
                mode,
                modified: (seconds, nanoseconds),
                size,
                identity: [0; 16],
                name: reader.octets(name)?.to_vec(),
                target: reader.octets(target)?.to_vec(),
                attributes: None,
            });
        }
        Ok(Self { first, entries })
    }

    pub(super) fn emit(&self, out: &mut Vec<u8>) {
        out.extend(self.first.to_be_bytes());
        for entry in &self.entries {
            out.extend([entry.kind.number(), 0]);
            out.extend(entry.mode.to_be_bytes());
            out.extend(entry.modified.0.to_be_bytes());
            out.extend(entry.modified.1.to_be_bytes());
            out.extend(u32::try_from(entry.size).unwrap_or(u32::MAX).to_be_bytes());
            for octets in [&entry.name, &entry.target] {
                let length = u16::try_from(octets.len()).unwrap_or(u16::MAX);
                out.extend(length.to_be_bytes());
            }
            out.extend(&entry.name);
            out.extend(&entry.target);
        }
    }
}

/// Result of a listed entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// A directory or link is there now.
    Stored,
    /// A file or link like this was there.
    Present,
    /// The file is wanted.
    Wanted,
    /// It failed; DONE has the reason.
    Failed,
}

const ANSWERS: [Answer; 4] = [
    Answer::Stored,
    Answer::Present,
    Answer::Wanted,
    Answer::Failed,
];

/// The sink has checked listed entries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answers {
    /// Number of the first entry.
    pub first: u32,
    /// Results, in the order of the entries.
    pub answers: Vec<Answer>,
}

impl Answers {
    pub(super) fn parse(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let first = reader.u32()?;
        let octets = reader.rest();
        let parse = |octet: &u8| {
            let known = ANSWERS.get(usize::from(*octet)).copied();
            reader.value("answer", *octet, known)
        };
        let answers = octets.iter().map(parse).collect::<Result<_, _>>()?;
        Ok(Self { first, answers })
    }

    pub(super) fn emit(&self, out: &mut Vec<u8>) {
        out.extend(self.first.to_be_bytes());
        out.extend(self.answers.iter().map(|it| *it as u8));
    }
}

/// Packed files have their names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// Numbers of the files.
    pub files: Vec<u32>,
}

impl Stored {
    pub(super) fn parse(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let octets = reader.rest();
        let (files, rest) = octets.as_chunks::<4>();
        if !rest.is_empty() {
            return Err(Malformed::Short { kind: 16 });
        }
        let files = files.iter().map(|it| u32::from_be_bytes(*it)).collect();
        Ok(Self { files })
    }

    pub(super) fn emit(&self, out: &mut Vec<u8>) {
        for file in &self.files {
            out.extend(file.to_be_bytes());
        }
    }
}

/// A file in a packed block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Number of the file.
    pub file: u32,
    /// How it ended at the source.
    pub status: EndStatus,
    /// Place of its octets in the block, or of the failure's text.
    pub range: Range<usize>,
}

impl Record {
    /// Octets before those of a file.
    #[must_use]
    pub fn header(file: u32, status: EndStatus, length: u32) -> [u8; RECORD] {
        let [f0, f1, f2, f3] = file.to_be_bytes();
        let [l0, l1, l2, l3] = length.to_be_bytes();
        [f0, f1, f2, f3, status.number(), 0, 0, 0, l0, l1, l2, l3]
    }

    /// Finds the records of a block.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn parse_all(block: &[u8]) -> Result<Vec<Self>, Malformed> {
        let mut records = Vec::new();
        let mut reader = Reader::new(6, block);
        while !reader.is_empty() {
            let file = reader.u32()?;
            let status = EndStatus::parse(&mut reader)?;
            reader.array::<3>()?;
            let length = reader.u32()? as usize;
            let start = block.len() - reader.left();
            reader.octets(length)?;
            let range = start..start + length;
            records.push(Self {
                file,
                status,
                range,
            });
        }
        Ok(records)
    }
}
