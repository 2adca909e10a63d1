//! The reader's side. Nothing of the octets is trusted: any process may have a memfd of the name.

use crate::layout::{
    CAPACITY, MAGIC, MAGIC_AT, PID_AT, REASON_WORDS, REASONS, REASONS_AT, RECORD_WORDS, RECORDS_AT,
    START_AT, UNRECORDED_AT, UPGRADED_AT, USED_AT, VERSION, VERSION_AT, record_at,
};
use crate::record::{Record, is_stable};
use thiserror::Error;

/// Octets that are no table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Malformed {
    /// Too few for a header.
    #[error("{octets} octets are too few for a table of sockets")]
    TooShort {
        /// Their number.
        octets: usize,
    },
    /// They begin otherwise.
    #[error("it is no table of sockets")]
    NoMagic,
    /// A layout that this version does not have.
    #[error("its table of sockets has version {version}, and not {VERSION}")]
    Version {
        /// Its number.
        version: u64,
    },
}

/// Why connections stayed plain.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reason {
    /// Text of printable ASCII.
    pub text: String,
    /// Connections that have it.
    pub count: u64,
}

/// Contents of a table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Number of the process, as that has it.
    pub pid: u64,
    /// When the table began, in seconds since 1970.
    pub start: u64,
    /// Connections that became rsockets.
    pub upgraded: u64,
    /// Sockets that the table had no room for.
    pub unrecorded: u64,
    /// Reasons by their numbers, from 1 on.
    pub reasons: Vec<Reason>,
    /// Sockets.
    pub records: Vec<Record>,
    /// Records that changed while they were copied.
    pub changing: usize,
}

/// A text without what a terminal might take for a command: other characters than printable ASCII are question marks.
#[must_use]
pub fn printable(octets: &[u8]) -> String {
    let printed = |octet: &u8| match *octet {
        octet @ b' '..=b'~' => char::from(octet),
        _ => '?',
    };
    octets.iter().map(printed).collect()
}

fn word(octets: &[u8], at: usize) -> u64 {
    let found = octets.get(at * 8..).and_then(<[u8]>::first_chunk);
    found.map_or(0, |word| u64::from_ne_bytes(*word))
}

fn record(octets: &[u8], index: u32) -> [u64; RECORD_WORDS] {
    let at = record_at(index);
    std::array::from_fn(|n| word(octets, at + n))
}

fn reason(octets: &[u8], at: usize) -> Reason {
    let at = REASONS_AT + at * REASON_WORDS;
    let text = octets.get((at + 1) * 8..(at + REASON_WORDS) * 8);
    let text = text.unwrap_or_default();
    let end = text.iter().position(|it| *it == 0).unwrap_or(text.len());
    Reason {
        text: printable(&text[..end]),
        count: word(octets, at),
    }
}

impl Snapshot {
    /// Contents of the octets, which were copied after those of `before` and before those of `after`. Records of equal sequence numbers in these are whole.
    ///
    /// # Errors
    /// The octets are no table of this version.
    pub fn parse(before: &[u8], octets: &[u8], after: &[u8]) -> Result<Self, Malformed> {
        if octets.len() < RECORDS_AT * 8 {
            return Err(Malformed::TooShort {
                octets: octets.len(),
            });
        }
        if word(octets, MAGIC_AT) != MAGIC {
            return Err(Malformed::NoMagic);
        }
        let version = word(octets, VERSION_AT);
        if version != VERSION {
            return Err(Malformed::Version { version });
        }
        let there = (octets.len() / 8 - RECORDS_AT) / RECORD_WORDS;
        let used = word(octets, USED_AT).min(CAPACITY.into());
        let used = u32::try_from(used.min(there as u64)).unwrap_or(0);
        let mut snapshot = Self {
            pid: word(octets, PID_AT),
            start: word(octets, START_AT),
            upgraded: word(octets, UPGRADED_AT),
            unrecorded: word(octets, UNRECORDED_AT),
            reasons: (0..REASONS).map(|at| reason(octets, at)).collect(),
            ..Self::default()
        };
        for index in 0..used {
            if is_stable(&record(before, index), &record(after, index)) {
                snapshot
                    .records
                    .extend(Record::parse(&record(octets, index)));
            } else {
                snapshot.changing += 1;
            }
        }
        Ok(snapshot)
    }

    /// Text of a record's reason.
    #[must_use]
    pub fn reason_of(&self, record: &Record) -> Option<&str> {
        let at = usize::from(record.reason).checked_sub(1)?;
        self.reasons.get(at).map(|it| it.text.as_str())
    }

    /// Connections that stayed plain.
    #[must_use]
    pub fn plain(&self) -> u64 {
        let counts = self.reasons.iter().map(|it| it.count);
        counts.fold(0, u64::saturating_add)
    }
}
