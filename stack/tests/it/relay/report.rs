//! The relay's log and the receiver's findings, read back.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::plan::union;

/// A message as the relay saw it.
#[derive(Debug, Default)]
pub(crate) struct Relayed {
    pub(crate) length: u32,
    /// Octet ranges of forwarded segments, as often as they were.
    pub(crate) forwarded: Vec<(u32, u32)>,
    pub(crate) lost: Vec<(u32, u32)>,
}

impl Relayed {
    /// Share of the octets that were forwarded.
    pub(crate) fn kept(&self) -> f64 {
        let octets: u32 = union(self.forwarded.clone())
            .iter()
            .map(|(start, end)| end - start)
            .sum();
        f64::from(octets) / f64::from(self.length)
    }
}

/// The relay's log, by the immediates of messages, which count them.
#[derive(Debug, Default)]
pub(crate) struct Log {
    pub(crate) messages: BTreeMap<u32, Relayed>,
    /// Segments forwarded after one that was sent later.
    pub(crate) overtaken: u64,
}

fn numbers(line: &str) -> Vec<u32> {
    let words = line.split_ascii_whitespace();
    words.map(|word| word.parse().expect("a number")).collect()
}

impl Log {
    pub(crate) fn read(path: &Path) -> Self {
        let mut log = Self::default();
        let mut first_number = None;
        let mut latest = (0, 0);
        for line in fs::read_to_string(path).unwrap().lines() {
            let (what, rest) = line.split_at(1);
            let [number, length, offset, payload, immediate] = numbers(rest)[..] else {
                panic!("{line}");
            };
            // Message numbers count like the messages, from wherever the sender began.
            let began = number.wrapping_sub(immediate);
            assert_eq!(*first_number.get_or_insert(began), began, "{line}");
            let message = log.messages.entry(immediate).or_default();
            assert!(message.length == 0 || message.length == length, "{line}");
            message.length = length;
            let range = (offset, offset + payload);
            log.overtaken += u64::from(what == "+" && (immediate, offset) < latest);
            latest = latest.max((immediate, offset));
            match what {
                "+" => message.forwarded.push(range),
                "-" => message.lost.push(range),
                _ => panic!("{line}"),
            }
        }
        log
    }

    /// Segments that the sender sent.
    pub(crate) fn segments(&self) -> u64 {
        let count = |message: &Relayed| message.forwarded.len() + message.lost.len();
        let all: usize = self.messages.values().map(count).sum();
        all as u64 - self.doubled()
    }

    pub(crate) fn lost(&self) -> u64 {
        self.messages
            .values()
            .map(|message| message.lost.len() as u64)
            .sum()
    }

    /// Segments forwarded a second time.
    pub(crate) fn doubled(&self) -> u64 {
        let doubled = |message: &Relayed| {
            let mut ranges = message.forwarded.clone();
            ranges.sort_unstable();
            let all = ranges.len();
            ranges.dedup();
            (all - ranges.len()) as u64
        };
        self.messages.values().map(doubled).sum()
    }
}

/// A record, or the memory of a message.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) place: u32,
    pub(crate) length: u32,
    pub(crate) valid: u32,
    pub(crate) ranges: Vec<(u32, u32)>,
}

/// The receiver's findings.
#[derive(Debug, Default)]
pub(crate) struct Results {
    pub(crate) records: BTreeMap<u32, Found>,
    pub(crate) memory: BTreeMap<u32, Found>,
    pub(crate) batches: Vec<(u32, u32)>,
    pub(crate) dropped: BTreeMap<String, u64>,
    /// Records with holes that were closed before the receiver demanded it.
    pub(crate) early_partial: usize,
}

impl Results {
    pub(crate) fn read(path: &Path) -> Self {
        let mut results = Self::default();
        let mut early = 0;
        for line in fs::read_to_string(path).unwrap().lines() {
            let (what, rest) = line.split_once(' ').unwrap();
            if what == "dropped" {
                let (reason, count) = rest.split_once(' ').unwrap();
                results
                    .dropped
                    .insert(reason.to_owned(), count.parse().unwrap());
                continue;
            }
            if what == "batch" {
                let batch = numbers(rest);
                early = batch[0];
                results.batches.push((batch[0], batch[1]));
                continue;
            }
            let (index, found) = Found::parse(rest);
            let map = match what {
                "record" => {
                    let partial = found.ranges != [(0, found.length)];
                    results.early_partial += usize::from(early > 0 && partial);
                    early = early.saturating_sub(1);
                    &mut results.records
                }
                "memory" => &mut results.memory,
                _ => panic!("{line}"),
            };
            let twice = map.insert(index, found);
            assert!(twice.is_none(), "two of message {index}: {line}");
        }
        results
    }
}

impl Found {
    fn parse(text: &str) -> (u32, Self) {
        let (numbers_of, ranges) = {
            let at = text
                .match_indices(' ')
                .nth(3)
                .map_or(text.len(), |(at, _)| at);
            text.split_at(at)
        };
        let [index, place, length, valid] = numbers(numbers_of)[..] else {
            panic!("{text}");
        };
        let ranges = ranges.split_ascii_whitespace().map(|range| {
            let (start, end) = range.split_once('-').expect("a range");
            (start.parse().unwrap(), end.parse().unwrap())
        });
        let ranges = ranges.collect();
        let found = Self {
            place,
            length,
            valid,
            ranges,
        };
        (index, found)
    }
}
