//! Places of the table, in words.

/// Name of the memfd.
pub const NAME: &str = "dgiwarp-sockets";
/// Version of the layout.
pub const VERSION: u64 = 1;
/// Records.
pub const CAPACITY: u32 = 4096;

/// First word.
pub(crate) const MAGIC: u64 = u64::from_ne_bytes(*b"dgiwSOCK");

pub(crate) const MAGIC_AT: usize = 0;
pub(crate) const VERSION_AT: usize = 1;
pub(crate) const PID_AT: usize = 2;
pub(crate) const START_AT: usize = 3;
/// Connections that became rsockets.
pub(crate) const UPGRADED_AT: usize = 4;
/// Sockets that found no free record.
pub(crate) const UNRECORDED_AT: usize = 5;
/// Records that were used so far: no later one is.
pub(crate) const USED_AT: usize = 6;

/// Reasons: a count, and a text that ends with its room or a zero.
pub(crate) const REASONS_AT: usize = 16;
pub(crate) const REASONS: usize = 24;
pub(crate) const REASON_WORDS: usize = 12;
pub(crate) const TEXT_WORDS: usize = REASON_WORDS - 1;

/// Records begin at a cache line.
pub(crate) const RECORDS_AT: usize = 320;
const _: () = assert!(REASONS_AT + REASONS * REASON_WORDS <= RECORDS_AT);

/// Words of a record. Words that change with each call have a cache line of their own.
pub(crate) const RECORD_WORDS: usize = 16;
pub(crate) const SEQUENCE: usize = 0;
pub(crate) const KIND: usize = 1;
pub(crate) const INODE: usize = 2;
pub(crate) const LOCAL: usize = 3;
pub(crate) const PEER: usize = 5;
pub(crate) const PORTS: usize = 7;
pub(crate) const SENT: usize = 8;
pub(crate) const RECEIVED: usize = 9;
pub(crate) const SCOPES: usize = 10;
pub(crate) const LANE: usize = 11;

/// Words of the table.
pub const WORDS: usize = RECORDS_AT + CAPACITY as usize * RECORD_WORDS;
/// Octets of the table.
pub const OCTETS: usize = WORDS * 8;

/// Place of a record.
pub(crate) fn record_at(index: u32) -> usize {
    RECORDS_AT + usize::try_from(index).unwrap_or(usize::MAX / 32) * RECORD_WORDS
}
