//! OFFER, WANT, END and DONE: the life of a file in a session.
//!
//! ```text
//! OFFER  file 4 | kind 1 | reserved 1 | mode 2 | seconds 8 | nanoseconds 4 | size 8 | identity 16 | length of the name 2 | name | target
//! WANT   file 4 | offset 8, length 8, repeated
//! END    file 4 | status 1 | root 1 | hash 32 | text
//! DONE   file 4 | status 1 | text
//! ```

use super::octets::{Reader, cut};
use super::{Attributes, Malformed, NAME_LIMIT};

/// Kind of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    /// Octets.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Link,
}

impl FileKind {
    pub(super) fn parse(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let kind = reader.u8()?;
        let known = match kind {
            1 => Some(Self::File),
            2 => Some(Self::Directory),
            3 => Some(Self::Link),
            _ => None,
        };
        reader.value("kind", kind, known)
    }

    pub(super) const fn number(self) -> u8 {
        match self {
            Self::File => 1,
            Self::Directory => 2,
            Self::Link => 3,
        }
    }
}

/// Description of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Kind.
    pub kind: FileKind,
    /// Permission bits, `0o7777` at most.
    pub mode: u16,
    /// Time of the last change: seconds since 1970, and nanoseconds.
    pub modified: (i64, u32),
    /// Octets of a file; else 0.
    pub size: u64,
    /// Changes when the source's file is another one.
    pub identity: [u8; 16],
    /// Path below the session's target, components separated by `/`; empty: the target itself.
    pub name: Vec<u8>,
    /// Target of a link; else empty.
    pub target: Vec<u8>,
    /// Extended attributes, which go before the entry in frames of their own; `None` where not both ends keep them.
    pub attributes: Option<Attributes>,
}

/// A file that the source has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offer {
    /// Number of the file in the session: one more than that of the offer before, from 0.
    pub file: u32,
    /// Description.
    pub entry: Entry,
}

impl Offer {
    pub(super) fn parse(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let file = reader.u32()?;
        let kind = FileKind::parse(reader)?;
        reader.u8()?;
        let mode = reader.u16()? & 0o7777;
        let seconds = i64::from_be_bytes(reader.array()?);
        let nanoseconds = reader.u32()?.min(999_999_999);
        let size = reader.u64()?;
        let identity = reader.array()?;
        let length = usize::from(reader.u16()?);
        let name = reader.octets(length)?.to_vec();
        let target = reader.rest().to_vec();
        for octets in [&name, &target] {
            if octets.len() > NAME_LIMIT {
                let octets = octets.len();
                return Err(Malformed::Long { kind: 4, octets });
            }
        }
        let modified = (seconds, nanoseconds);
        let entry = Entry {
            kind,
            mode,
            modified,
            size,
            identity,
            name,
            target,
            attributes: None,
        };
        Ok(Self { file, entry })
    }

    pub(super) fn emit(&self, out: &mut Vec<u8>) {
        let entry = &self.entry;
        out.extend(self.file.to_be_bytes());
        out.extend([entry.kind.number(), 0]);
        out.extend(entry.mode.to_be_bytes());
        out.extend(entry.modified.0.to_be_bytes());
        out.extend(entry.modified.1.to_be_bytes());
        out.extend(entry.size.to_be_bytes());
        out.extend(entry.identity);
        let length = u16::try_from(entry.name.len()).unwrap_or(u16::MAX);
        out.extend(length.to_be_bytes());
        out.extend(&entry.name);
        out.extend(&entry.target);
    }
}

/// Ranges of a file that the sink lacks, whole blocks, in ascending order. None: nothing is missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Want {
    /// Number of the file.
    pub file: u32,
    /// Offset and length.
    pub ranges: Vec<(u64, u64)>,
}

impl Want {
    pub(super) fn parse(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let file = reader.u32()?;
        let octets = reader.rest();
        if !octets.len().is_multiple_of(16) {
            return Err(Malformed::Short { kind: 5 });
        }
        let (ranges, _) = octets.as_chunks::<16>();
        let range = |octets: &[u8; 16]| {
            let [o0, o1, o2, o3, o4, o5, o6, o7, length @ ..] = *octets;
            let offset = u64::from_be_bytes([o0, o1, o2, o3, o4, o5, o6, o7]);
            (offset, u64::from_be_bytes(length))
        };
        let ranges = ranges.iter().map(range).collect();
        Ok(Self { file, ranges })
    }

    pub(super) fn emit(&self, out: &mut Vec<u8>) {
        out.extend(self.file.to_be_bytes());
        for (offset, length) in &self.ranges {
            out.extend(offset.to_be_bytes());
            out.extend(length.to_be_bytes());
        }
    }
}

/// How a file ended at the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndStatus {
    /// All wanted blocks were sent.
    Complete,
    /// The file changed while it was read.
    Changed,
    /// It cannot be read.
    Unreadable,
}

impl EndStatus {
    pub(super) fn parse(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let status = reader.u8()?;
        let known = match status {
            0 => Some(Self::Complete),
            1 => Some(Self::Changed),
            2 => Some(Self::Unreadable),
            _ => None,
        };
        reader.value("status", status, known)
    }

    pub(super) const fn number(self) -> u8 {
        match self {
            Self::Complete => 0,
            Self::Changed => 1,
            Self::Unreadable => 2,
        }
    }
}

/// A file has no further blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct End {
    /// Number of the file.
    pub file: u32,
    /// How it ended.
    pub status: EndStatus,
    /// BLAKE3 of the whole file, where the source read all of it in this session.
    pub root: Option<[u8; 32]>,
    /// The failure for people.
    pub text: String,
}

impl End {
    pub(super) fn parse(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let file = reader.u32()?;
        let status = EndStatus::parse(reader)?;
        let with_root = reader.u8()?;
        let root = reader.array()?;
        let root = match with_root {
            0 => None,
            1 => Some(root),
            other => return reader.value("root", other, None),
        };
        Ok(Self {
            file,
            status,
            root,
            text: reader.text(),
        })
    }

    pub(super) fn emit(&self, out: &mut Vec<u8>) {
        out.extend(self.file.to_be_bytes());
        out.push(self.status.number());
        out.push(u8::from(self.root.is_some()));
        out.extend(self.root.unwrap_or_default());
        out.extend(cut(&self.text));
    }
}

/// Result of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Status {
    /// It is whole under its name.
    Stored,
    /// A file of this size and time was there already.
    Present,
    /// No space, or over a quota or a file size limit.
    NoSpace,
    /// Not permitted.
    Permission,
    /// The name leaves the root, or cannot be one.
    Name,
    /// Another transfer writes it.
    Busy,
    /// The source's file changed while it was read.
    Changed,
    /// The source cannot read it.
    Unreadable,
    /// Its hash is not that of the source's file.
    Corrupt,
    /// Another failure of the sink's file system.
    Failed,
}

const STATUSES: [Status; 10] = [
    Status::Stored,
    Status::Present,
    Status::NoSpace,
    Status::Permission,
    Status::Name,
    Status::Busy,
    Status::Changed,
    Status::Unreadable,
    Status::Corrupt,
    Status::Failed,
];

impl Status {
    pub(super) fn parse(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let status = reader.u8()?;
        let known = STATUSES.get(usize::from(status)).copied();
        reader.value("status", status, known)
    }

    pub(super) const fn number(self) -> u8 {
        self as u8
    }

    /// Whether the file is there.
    #[must_use]
    pub const fn is_good(self) -> bool {
        matches!(self, Self::Stored | Self::Present)
    }
}

/// A file is finished at the sink.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Done {
    /// Number of the file.
    pub file: u32,
    /// Result.
    pub status: Status,
    /// The failure for people.
    pub text: String,
}

impl Done {
    pub(super) fn parse(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let file = reader.u32()?;
        let status = Status::parse(reader)?;
        let text = reader.text();
        Ok(Self { file, status, text })
    }

    pub(super) fn emit(&self, out: &mut Vec<u8>) {
        out.extend(self.file.to_be_bytes());
        out.push(self.status as u8);
        out.extend(cut(&self.text));
    }
}
