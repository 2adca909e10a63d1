//! The process's side.

use crate::layout::{
    CAPACITY, KIND, LANE, MAGIC, MAGIC_AT, PID_AT, REASON_WORDS, REASONS, REASONS_AT, RECEIVED,
    RECORD_WORDS, SENT, SEQUENCE, START_AT, TEXT_WORDS, UNRECORDED_AT, UPGRADED_AT, USED_AT,
    VERSION, VERSION_AT, WORDS, record_at,
};
use crate::record::{Record, State, Way, with_state, with_way};
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Octets from which on a connection may go by shared memory.
const FIRST: u64 = 4096;

/// Text of the last reason, where there are more than the table has room for.
const OTHERS: &str = "other reasons";

/// The table of this process. A record is changed by one thread at a time, and so are reasons; octets are added by any thread.
#[derive(Debug, Clone, Copy)]
pub struct Table<'a> {
    words: &'a [AtomicU64],
}

/// Octets of a direction before and after an addition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Count {
    before: u64,
    after: u64,
}

impl Count {
    /// Whether the transport is to be asked for: once for each quarter that the octets have grown by, so a few times for all that a connection ever carries.
    #[inline]
    #[must_use]
    pub fn is_milestone(self) -> bool {
        self.after >= FIRST && (self.before < FIRST || quarter(self.before) != quarter(self.after))
    }
}

/// Position of the highest bit, and the two below it.
#[inline]
fn quarter(octets: u64) -> u64 {
    let high = u64::from(octets.ilog2());
    high << 2 | octets >> (high - 2) & 3
}

fn text_words(text: &str) -> [u64; TEXT_WORDS] {
    let mut words = [0; TEXT_WORDS];
    for (word, octets) in words.iter_mut().zip(text.as_bytes().chunks(8)) {
        let mut whole = [0; 8];
        whole[..octets.len()].copy_from_slice(octets);
        *word = u64::from_ne_bytes(whole);
    }
    words
}

impl<'a> Table<'a> {
    /// Begins a table in words of zero; `None` if there are too few. `start` is in seconds.
    #[must_use]
    pub fn begin(words: &'a [AtomicU64], pid: u32, start: u64) -> Option<Self> {
        let table = Self::of(words)?;
        for (at, value) in [
            (VERSION_AT, VERSION),
            (PID_AT, pid.into()),
            (START_AT, start),
        ] {
            words[at].store(value, Ordering::Relaxed);
        }
        words[MAGIC_AT].store(MAGIC, Ordering::Release);
        Some(table)
    }

    /// The table that has begun in these words; `None` if there are too few.
    #[inline]
    #[must_use]
    pub fn of(words: &'a [AtomicU64]) -> Option<Self> {
        (words.len() >= WORDS).then_some(Self { words })
    }

    fn record(self, index: u32) -> &'a [AtomicU64] {
        let at = record_at(index.min(CAPACITY - 1));
        &self.words[at..at + RECORD_WORDS]
    }

    /// Changes a record. Readers that copy it meanwhile find an odd number, or another one behind it.
    fn change(self, index: u32, change: impl FnOnce(&[AtomicU64])) {
        let record = self.record(index);
        // Odd numbers do not stay, even after two threads that close one socket at a time.
        let changing = record[SEQUENCE].load(Ordering::Relaxed) | 1;
        record[SEQUENCE].store(changing, Ordering::Relaxed);
        fence(Ordering::Release);
        change(record);
        record[SEQUENCE].store(changing.wrapping_add(1), Ordering::Release);
    }

    /// Writes a record, of no octets.
    pub fn publish(self, index: u32, record: &Record) {
        let words = record.emit();
        self.change(index, |record| {
            for (to, word) in record.iter().zip(words).skip(SEQUENCE + 1) {
                to.store(word, Ordering::Relaxed);
            }
        });
        self.words[USED_AT].fetch_max(u64::from(index) + 1, Ordering::Relaxed);
    }

    /// Frees a record.
    pub fn free(self, index: u32) {
        self.change(index, |record| record[KIND].store(0, Ordering::Relaxed));
    }

    fn change_kind(self, index: u32, kind: impl FnOnce(u64) -> u64) {
        self.change(index, |record| {
            let before = record[KIND].load(Ordering::Relaxed);
            record[KIND].store(kind(before), Ordering::Relaxed);
        });
    }

    /// Changes the state of a record.
    pub fn set_state(self, index: u32, state: State) {
        self.change_kind(index, |kind| with_state(kind, state));
    }

    /// Changes the transport of a record, and the reason of it.
    pub fn set_way(self, index: u32, way: Way, reason: u8) {
        self.change_kind(index, |kind| with_way(kind, way, reason));
    }

    /// Counts octets that the program has sent.
    #[inline]
    pub fn add_sent(self, index: u32, octets: u64) -> Count {
        self.add(index, SENT, octets)
    }

    /// Counts octets that the program has received.
    #[inline]
    pub fn add_received(self, index: u32, octets: u64) -> Count {
        self.add(index, RECEIVED, octets)
    }

    #[inline]
    fn add(self, index: u32, word: usize, octets: u64) -> Count {
        let before = self.record(index)[word].fetch_add(octets, Ordering::Relaxed);
        let after = before.wrapping_add(octets);
        Count { before, after }
    }

    /// Whether the connection goes by shared memory, as far as is known.
    #[must_use]
    pub fn is_lane(self, index: u32) -> bool {
        self.record(index)[LANE].load(Ordering::Relaxed) != 0
    }

    /// The connection goes by shared memory.
    pub fn set_lane(self, index: u32) {
        self.record(index)[LANE].store(1, Ordering::Relaxed);
    }

    /// Counts a connection that became an rsocket.
    pub fn count_upgraded(self) {
        self.words[UPGRADED_AT].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a socket that there is no free record for.
    pub fn count_unrecorded(self) {
        self.words[UNRECORDED_AT].fetch_add(1, Ordering::Relaxed);
    }

    /// Number of a reason, counted from 1, with `count` connections more that have it.
    pub fn reason(self, text: &str, count: u64) -> u8 {
        let entry = |at: usize| {
            let at = REASONS_AT + at * REASON_WORDS;
            &self.words[at..at + REASON_WORDS]
        };
        let has = |at: usize, text: [u64; TEXT_WORDS]| {
            let words = entry(at)[1..].iter();
            words.map(|it| it.load(Ordering::Relaxed)).eq(text)
        };
        let wanted = text_words(text);
        let last = REASONS - 1;
        let at = (0..last).find(|at| has(*at, wanted) || has(*at, [0; TEXT_WORDS]));
        let (at, text) = at.map_or_else(|| (last, text_words(OTHERS)), |at| (at, wanted));
        for (to, word) in entry(at)[1..].iter().zip(text) {
            to.store(word, Ordering::Relaxed);
        }
        entry(at)[0].fetch_add(count, Ordering::Release);
        u8::try_from(at + 1).unwrap_or(0)
    }
}
