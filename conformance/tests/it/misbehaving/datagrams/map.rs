//! Validity maps of messages, and the closed numbers of a source.

use std::collections::BTreeSet;
use std::ops::Range;

/// Ranges of a validity map (Datagram §5 step 9).
const RANGES: usize = 64;
/// Numbers of a source of which it is remembered whether they are closed (Datagram §4).
const CLOSED: u32 = 1024;

/// A validity map: ranges in order that do not touch.
#[derive(Clone, Default)]
pub(super) struct Map(Vec<Range<u64>>);

impl Map {
    /// Whether all of these octets are there.
    pub(super) fn has(&self, range: &Range<u64>) -> bool {
        let mut all = self.0.iter();
        all.any(|there| there.start <= range.start && range.end <= there.end)
    }

    /// The parts of a range that are not there.
    pub(super) fn missing(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let mut parts = Vec::new();
        let mut at = range.start;
        for there in &self.0 {
            if there.end <= at || there.start >= range.end {
                continue;
            }
            if there.start > at {
                parts.push(at..there.start);
            }
            at = there.end;
        }
        if at < range.end {
            parts.push(at..range.end);
        }
        parts
    }

    /// The map with these octets too; `None` if it would need too many ranges.
    pub(super) fn with(&self, range: Range<u64>, limited: bool) -> Option<Self> {
        let mut all = self.0.clone();
        if !range.is_empty() {
            all.push(range);
        }
        all.sort_by_key(|range| range.start);
        let mut joined: Vec<Range<u64>> = Vec::new();
        for range in all {
            match joined.last_mut() {
                Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
                _ => joined.push(range),
            }
        }
        (joined.len() <= RANGES || !limited).then_some(Self(joined))
    }

    /// Number of octets.
    pub(super) fn octets(&self) -> u64 {
        self.0.iter().map(|range| range.end - range.start).sum()
    }

    /// As the agent says it.
    pub(super) fn text(&self) -> String {
        let ranges: Vec<_> = self
            .0
            .iter()
            .map(|range| format!("{}-{}", range.start, range.end))
            .collect();
        ranges.join(" ")
    }
}

/// Numbers of a source's messages (Datagram §4).
pub(super) struct Source {
    newest: u32,
    closed: BTreeSet<u32>,
}

impl Source {
    /// A source whose first message has this number.
    pub(super) fn new(number: u32) -> Self {
        Self {
            newest: number,
            closed: BTreeSet::new(),
        }
    }

    /// How far behind the newest a number is; `None` if it is newer.
    pub(super) fn behind(&self, number: u32, wraps: bool) -> Option<u32> {
        let newer = if wraps {
            // Half of the numbers are ahead.
            self.newest.wrapping_sub(number) > u32::MAX / 2
        } else {
            number > self.newest
        };
        (!newer).then(|| self.newest.wrapping_sub(number))
    }

    /// Whether a segment of this message is late; Write-Records have a window.
    pub(super) fn is_late(&self, number: u32, window: Option<u32>, wraps: bool) -> bool {
        self.behind(number, wraps).is_some_and(|behind| {
            behind >= CLOSED
                || self.closed.contains(&number)
                || window.is_some_and(|window| behind > window)
        })
    }

    /// Takes note of a message.
    pub(super) fn saw(&mut self, number: u32, wraps: bool) {
        if self.behind(number, wraps).is_none() {
            self.newest = number;
            let newest = self.newest;
            self.closed
                .retain(|closed| newest.wrapping_sub(*closed) < CLOSED);
        }
    }

    /// A message is closed.
    pub(super) fn close(&mut self, number: u32) {
        self.closed.insert(number);
    }
}
