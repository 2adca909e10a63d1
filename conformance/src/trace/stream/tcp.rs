//! One direction of a TCP connection, put together from segments that may come twice, overlap, come out of order or not at all.

use std::collections::BTreeMap;

/// Octets that wait for what is missing before them.
const MOST_WAITING: usize = 4 << 20;
/// Segments that do.
const MOST_SEGMENTS: usize = 4096;
/// Packets of a connection that may come between an acknowledgement and what it acknowledges: a capture has several sources.
const PATIENCE: u32 = 64;

/// Continuation of the stream.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::trace) enum Next {
    /// Octets, and how many octets of the other direction their sender had when it sent them.
    Octets(Vec<u8>, u64),
    /// So many octets that the capture does not have.
    Gap(u64),
}

/// One direction.
#[derive(Debug, Default)]
pub(in crate::trace) struct Direction {
    /// The sequence number of the next octet.
    next: Option<u32>,
    /// Whether its SYN was seen, so that distances count from its first octet.
    synchronized: bool,
    /// Segments that were not given out, by the distance of their first octet from the stream's.
    waiting: BTreeMap<u64, (Vec<u8>, u64)>,
    waits: usize,
    /// Octets that the stream went on by so far.
    moved: u64,
    /// How many octets of it the receiver has, on the same scale.
    acknowledged: u64,
    patience: u32,
    /// Where the stream ends.
    end: Option<u64>,
}

impl Direction {
    /// Takes a SYN: the stream begins behind this sequence number, if nothing else was known of it.
    pub(in crate::trace) fn synchronize(&mut self, syn: u32) {
        self.next.get_or_insert_with(|| syn.wrapping_add(1));
        self.synchronized |= self.began_with(syn);
    }

    /// Whether distances count from the first octet of the stream.
    pub(in crate::trace) fn is_synchronized(&self) -> bool {
        self.synchronized
    }

    /// Whether it is known where the stream is.
    pub(in crate::trace) fn is_known(&self) -> bool {
        self.next.is_some()
    }

    /// Whether this SYN is the one that the stream began with.
    pub(in crate::trace) fn began_with(&self, syn: u32) -> bool {
        let moved = u32::try_from(self.moved & u64::from(u32::MAX)).unwrap_or(0);
        self.next.map(|next| next.wrapping_sub(moved)) == Some(syn.wrapping_add(1))
    }

    /// Whether all of the stream up to its end was given out.
    pub(in crate::trace) fn is_over(&self) -> bool {
        self.end.is_some_and(|end| end <= self.moved)
    }

    /// Whether the receiver has octets that were not given out: they may still come, or the capture lacks them.
    fn is_behind(&self) -> bool {
        // The end of a stream is acknowledged as if it were an octet.
        self.acknowledged.min(self.end.unwrap_or(u64::MAX)) > self.moved
    }

    /// Whether the stream went on beyond all of this.
    pub(in crate::trace) fn is_old(&self, sequence: u32, payload: &[u8]) -> bool {
        let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
        let behind = |next: u32| next.wrapping_sub(sequence.wrapping_add(length));
        self.next
            .is_some_and(|next| i32::from_ne_bytes(behind(next).to_ne_bytes()) >= 0)
    }

    /// Takes a segment, whose sender had so many octets of the other direction.
    pub(in crate::trace) fn take(&mut self, sequence: u32, payload: &[u8], fin: bool, had: u64) {
        let next = *self.next.get_or_insert(sequence);
        let ahead = i64::from(i32::from_ne_bytes(
            sequence.wrapping_sub(next).to_ne_bytes(),
        ));
        let length = u64::try_from(payload.len()).unwrap_or(0);
        // Octets before the beginning are a retransmission or a keep-alive probe.
        let (at, payload) = match u64::try_from(ahead) {
            Ok(ahead) => (self.moved + ahead, payload),
            Err(_) => {
                let known = usize::try_from(ahead.unsigned_abs()).unwrap_or(usize::MAX);
                (self.moved, payload.get(known..).unwrap_or(&[]))
            }
        };
        if fin {
            let end = i64::try_from(self.moved + length)
                .unwrap_or(i64::MAX)
                .saturating_add(ahead);
            self.end = u64::try_from(end).ok();
        }
        if payload.is_empty() {
            return;
        }
        let there = self.waiting.get(&at);
        if there.is_none_or(|(there, _)| there.len() < payload.len()) {
            self.waits += payload.len();
            if let Some((before, _)) = self.waiting.insert(at, (payload.to_vec(), had)) {
                self.waits -= before.len();
            }
        }
    }

    /// The receiver acknowledged all octets before this sequence number; gives how many of the stream these are.
    pub(in crate::trace) fn acknowledge(&mut self, sequence: u32) -> u64 {
        let next = *self.next.get_or_insert(sequence);
        let ahead = i64::from(i32::from_ne_bytes(
            sequence.wrapping_sub(next).to_ne_bytes(),
        ));
        let moved = i64::try_from(self.moved).unwrap_or(i64::MAX);
        let had = u64::try_from(moved.saturating_add(ahead)).unwrap_or(0);
        self.acknowledged = self.acknowledged.max(had);
        self.patience = self.patience.saturating_add(1);
        had
    }

    /// The next octets or gap, if they are there or will not come any more. `ended` says that no more packets come.
    pub(in crate::trace) fn next(&mut self, ended: bool) -> Option<Next> {
        loop {
            let Some((at, (payload, had))) = self.waiting.pop_first() else {
                let lost = self.is_behind() && (ended || self.patience > PATIENCE);
                return lost.then(|| self.skip(self.acknowledged));
            };
            self.waits -= payload.len();
            if at <= self.moved {
                let known = usize::try_from(self.moved - at).unwrap_or(usize::MAX);
                let Some(fresh) = payload.get(known..).filter(|fresh| !fresh.is_empty()) else {
                    continue;
                };
                let fresh = fresh.to_vec();
                self.advance(u64::try_from(fresh.len()).unwrap_or(0));
                return Some(Next::Octets(fresh, had));
            }
            let lost = ended
                || self.waits > MOST_WAITING
                || self.waiting.len() > MOST_SEGMENTS
                || self.acknowledged >= at && self.patience > PATIENCE;
            self.waits += payload.len();
            self.waiting.insert(at, (payload, had));
            return lost.then(|| self.skip(at));
        }
    }

    /// Leaves out what is before this distance.
    fn skip(&mut self, to: u64) -> Next {
        let gap = to - self.moved;
        self.advance(gap);
        Next::Gap(gap)
    }

    fn advance(&mut self, octets: u64) {
        self.moved += octets;
        let low = u32::try_from(octets & u64::from(u32::MAX)).unwrap_or(0);
        self.next = self.next.map(|next| next.wrapping_add(low));
        if self.acknowledged <= self.moved {
            self.patience = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn octets(direction: &mut Direction, ended: bool) -> Vec<Next> {
        std::iter::from_fn(|| direction.next(ended)).collect()
    }

    #[test]
    fn any_order_overlap_and_repetition_gives_the_same_stream_across_the_wrap() {
        let stream: Vec<u8> = (0..100).collect();
        let syn = u32::MAX - 40;
        let segment = |from: usize, to: usize| {
            let at = syn
                .wrapping_add(1)
                .wrapping_add(u32::try_from(from).unwrap());
            (at, &stream[from..to])
        };
        let mut direction = Direction::default();
        direction.synchronize(syn);
        let mut got = Vec::new();
        for (from, to) in [
            (0, 10),
            (30, 60),
            (5, 20),
            (20, 35),
            (0, 10),
            (90, 100),
            (55, 95),
            (99, 100),
        ] {
            let (at, payload) = segment(from, to);
            direction.take(at, payload, to == 100, 0);
            for next in octets(&mut direction, false) {
                let Next::Octets(more, _) = next else {
                    panic!("{next:?}")
                };
                got.extend(more);
            }
        }
        assert_eq!(got, stream);
        assert!(direction.is_over() && direction.began_with(syn));
        // A probe of TCP's keepalive repeats the last octet, or makes one up.
        let (at, _) = segment(99, 100);
        direction.take(at, &[0xff], false, 0);
        assert_eq!(direction.next(true), None);
    }

    #[test]
    fn what_never_comes_is_a_gap() {
        let mut direction = Direction::default();
        direction.synchronize(0);
        direction.take(11, b"behind", false, 0);
        assert_eq!(direction.next(false), None);
        assert_eq!(
            octets(&mut direction, true),
            [Next::Gap(10), Next::Octets(b"behind".to_vec(), 0)]
        );

        let mut direction = Direction::default();
        direction.synchronize(0);
        direction.take(11, b"behind", false, 0);
        for _ in 0..=PATIENCE {
            assert_eq!(direction.next(false), None);
            direction.acknowledge(17);
        }
        assert_eq!(direction.next(false), Some(Next::Gap(10)));
        // It came late: that is over now.
        assert_eq!(
            direction.next(false),
            Some(Next::Octets(b"behind".to_vec(), 0))
        );
        direction.take(1, b"0123456789", false, 0);
        assert_eq!(direction.next(true), None);
    }

    #[test]
    fn what_waits_is_bounded() {
        let mut direction = Direction::default();
        direction.synchronize(0);
        for number in 0..u32::try_from(MOST_SEGMENTS).unwrap() + 2 {
            direction.take(100 + 2 * number, &[1], false, 0);
        }
        assert_eq!(direction.next(false), Some(Next::Gap(99)));
    }
}
