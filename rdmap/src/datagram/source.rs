//! Sources and their windows of message numbers (§4).

use std::hash::Hash;
use std::time::{Duration, Instant};

use bitvec::array::BitArray;
use rustc_hash::FxHashMap;

/// Late-segment window: message numbers of a source with a state.
const WINDOW: u32 = 1024;
/// Idle time after which a source is evicted from a full table.
const EVICT_AFTER: Duration = Duration::from_secs(1);
/// Entries checked to evict one: a new source must not cost more than a segment does.
const EVICT_LOOKS: usize = 8;

/// Index of a source in its table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct SourceId(usize);

/// State of a source.
#[derive(Debug)]
pub(super) struct Source<K> {
    pub(super) key: K,
    epoch: u32,
    /// The highest message number seen.
    highest: u32,
    /// Bit `n % WINDOW`: number n, at most `WINDOW` - 1 behind `highest`, is closed.
    closed: BitArray<[u64; WINDOW as usize / 64]>,
    last_seen: Instant,
    /// Records of this source that are open.
    pub(super) open_records: u32,
    /// UC Writes of this source that are open.
    pub(super) open_writes: u32,
    /// Receives bound to incomplete Sends of this source.
    pub(super) assemblies: u32,
}

/// Position of a number relative to the highest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// Newer than the highest.
    Newer,
    /// Not closed, and this many behind the highest.
    Open(u32),
    /// Closed, or behind the window.
    Late,
}

impl<K> Source<K> {
    pub(super) fn standing(&self, number: u32) -> Standing {
        let ahead = number.wrapping_sub(self.highest);
        if ahead != 0 && ahead < 1 << 31 {
            return Standing::Newer;
        }
        let behind = ahead.wrapping_neg();
        if behind >= WINDOW || self.closed[position(number)] {
            Standing::Late
        } else {
            Standing::Open(behind)
        }
    }

    /// Makes `number`, which is newer, the highest.
    pub(super) fn advance(&mut self, number: u32) {
        let step = number.wrapping_sub(self.highest);
        if step >= WINDOW {
            self.closed.fill(false);
        } else {
            for skipped in 1..=step {
                self.closed
                    .set(position(self.highest.wrapping_add(skipped)), false);
            }
        }
        self.highest = number;
    }

    /// Marks `number` as closed.
    pub(super) fn close(&mut self, number: u32) {
        if self.highest.wrapping_sub(number) < WINDOW {
            self.closed.set(position(number), true);
        }
    }

    /// Whether no record, Write or assembly is bound to the source.
    fn holds_nothing(&self) -> bool {
        self.open_records == 0 && self.open_writes == 0 && self.assemblies == 0
    }

    /// How far `number` is behind the highest.
    pub(super) fn behind(&self, number: u32) -> u32 {
        self.highest.wrapping_sub(number)
    }
}

fn position(number: u32) -> usize {
    (number % WINDOW) as usize
}

/// The sources of a QP: bounded, found by address and epoch.
#[derive(Debug)]
pub(super) struct SourceTable<K> {
    capacity: usize,
    entries: Vec<Source<K>>,
    index: FxHashMap<(K, u32), SourceId>,
    /// Source of the latest segment: segments of one source mostly arrive together.
    latest: Option<(K, u32, SourceId)>,
    /// Next entry to consider for eviction.
    hand: usize,
}

impl<K: Copy + Eq + Hash> SourceTable<K> {
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            capacity,
            entries: Vec::new(),
            index: FxHashMap::default(),
            latest: None,
            hand: 0,
        }
    }

    #[inline]
    pub(super) fn find(&mut self, key: K, epoch: u32) -> Option<SourceId> {
        if let Some((latest_key, latest_epoch, id)) = self.latest
            && latest_epoch == epoch
            && latest_key == key
        {
            return Some(id);
        }
        let id = *self.index.get(&(key, epoch))?;
        self.latest = Some((key, epoch, id));
        Some(id)
    }

    /// Adds a source whose first message seen is `number`. `None` where the table is full.
    pub(super) fn insert(
        &mut self,
        now: Instant,
        key: K,
        epoch: u32,
        number: u32,
    ) -> Option<SourceId> {
        let source = Source {
            key,
            epoch,
            highest: number,
            closed: BitArray::ZERO,
            last_seen: now,
            open_records: 0,
            open_writes: 0,
            assemblies: 0,
        };
        let id = if self.entries.len() < self.capacity {
            self.entries.push(source);
            SourceId(self.entries.len() - 1)
        } else {
            let id = self.evict(now)?;
            self.entries[id.0] = source;
            id
        };
        self.index.insert((key, epoch), id);
        self.latest = Some((key, epoch, id));
        Some(id)
    }

    fn evict(&mut self, now: Instant) -> Option<SourceId> {
        for _ in 0..EVICT_LOOKS.min(self.entries.len()) {
            let id = SourceId(self.hand);
            self.hand = (self.hand + 1) % self.entries.len();
            let source = &self.entries[id.0];
            let idle = now.saturating_duration_since(source.last_seen) >= EVICT_AFTER;
            if idle && source.holds_nothing() {
                self.index.remove(&(source.key, source.epoch));
                self.latest = None;
                return Some(id);
            }
        }
        None
    }

    pub(super) fn touch(&mut self, now: Instant, id: SourceId) -> &mut Source<K> {
        let source = &mut self.entries[id.0];
        source.last_seen = now;
        source
    }

    pub(super) fn get(&self, id: SourceId) -> &Source<K> {
        &self.entries[id.0]
    }

    pub(super) fn get_mut(&mut self, id: SourceId) -> &mut Source<K> {
        &mut self.entries[id.0]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[expect(
        clippy::disallowed_methods,
        reason = "any instant serves as the origin"
    )]
    fn origin() -> Instant {
        Instant::now()
    }

    #[test]
    fn a_full_table_makes_room_only_for_the_idle() {
        let start = origin();
        let mut table = SourceTable::new(2);
        table.insert(start, 'a', 1, 0).unwrap();
        table.insert(start, 'b', 1, 0).unwrap();
        assert!(table.insert(start, 'c', 1, 0).is_none());
        let later = start + EVICT_AFTER;
        let b = table.find('b', 1).unwrap();
        table.touch(later, b);
        assert!(table.insert(later, 'c', 1, 0).is_some());
        assert!(table.find('a', 1).is_none());
        assert!(table.find('b', 1).is_some());
    }

    #[test]
    fn a_restarted_sender_is_another_source() {
        let start = origin();
        let mut table = SourceTable::new(8);
        let first = table.insert(start, 'a', 1, 7).unwrap();
        assert_eq!(table.find('a', 1), Some(first));
        assert_eq!(table.find('a', 2), None);
    }

    /// §4: idle for 1 s, and with nothing open.
    #[test]
    fn a_source_with_something_open_keeps_its_place() {
        let open: [fn(&mut Source<char>) -> &mut u32; 3] = [
            |source| &mut source.open_records,
            |source| &mut source.open_writes,
            |source| &mut source.assemblies,
        ];
        for open in open {
            let start = origin();
            let mut table = SourceTable::new(1);
            let id = table.insert(start, 'a', 1, 0).unwrap();
            *open(table.get_mut(id)) = 1;
            let idle = start + Duration::from_secs(1);
            assert_eq!(table.insert(idle, 'b', 1, 0), None);
            assert_eq!(table.find('a', 1), Some(id));
            *open(table.get_mut(id)) = 0;
            let early = idle.checked_sub(Duration::from_nanos(1)).unwrap();
            assert_eq!(table.insert(early, 'b', 1, 0), None);
            assert_eq!(table.insert(idle, 'b', 1, 7), Some(id));
            assert_eq!((table.find('a', 1), table.find('b', 1)), (None, Some(id)));
            assert_eq!(table.get(id).standing(8), Standing::Newer);
        }
    }

    /// Each new source checks a bounded number of entries, behind those that were checked for the one before.
    #[test]
    fn all_entries_have_their_turn() {
        let start = origin();
        let mut table = SourceTable::new(20);
        for key in 0..20 {
            let id = table.insert(start, key, 1, 0).unwrap();
            table.get_mut(id).open_records = u32::from(key != 17);
        }
        let idle = start + Duration::from_secs(1);
        assert_eq!(table.insert(idle, 20, 1, 0), None);
        assert_eq!(table.insert(idle, 20, 1, 0), None);
        let place = table.insert(idle, 20, 1, 0).unwrap();
        assert_eq!((table.find(17, 1), table.find(20, 1)), (None, Some(place)));
        // The search goes on behind the place that was found, and from the end to the beginning.
        let first = table.find(0, 1).unwrap();
        table.get_mut(first).open_records = 0;
        assert_eq!(table.insert(idle, 21, 1, 0), Some(first));
    }

    /// §4: 1024 numbers, in serial order.
    #[test]
    fn the_window_ends_where_the_specification_says() {
        let mut table = SourceTable::new(1);
        let id = table.insert(origin(), (), 0, 5000).unwrap();
        let source = table.get_mut(id);
        let far = 5000_u32.wrapping_add(1 << 31);
        for (number, standing) in [
            (5000, Standing::Open(0)),
            (3977, Standing::Open(1023)),
            (3976, Standing::Late),
            (5001, Standing::Newer),
            (far - 1, Standing::Newer),
            (far, Standing::Late),
        ] {
            assert_eq!(source.standing(number), standing, "{number}");
        }
        assert_eq!((source.behind(5000), source.behind(3976)), (0, 1024));
        source.close(3976);
        assert_eq!(
            source.standing(5000),
            Standing::Open(0),
            "one of the bits is theirs both"
        );
        source.close(3977);
        assert_eq!(source.standing(3977), Standing::Late);
        // The bits of numbers that were passed over are cleared, also by a step of the whole window.
        for step in [1, 1023, 1024, 1025] {
            let highest = source.highest;
            for behind in 0..1024 {
                source.close(highest.wrapping_sub(behind));
            }
            source.advance(highest.wrapping_add(step));
            for behind in 0..1024 {
                let expected = if behind < step {
                    Standing::Open(behind)
                } else {
                    Standing::Late
                };
                assert_eq!(
                    source.standing(source.highest.wrapping_sub(behind)),
                    expected
                );
            }
        }
    }

    proptest! {
        /// The window equals a plain set of closed numbers, across the wrap.
        #[test]
        fn the_window_equals_a_set(start: u32, steps in proptest::collection::vec((0u32..1500, 0u32..1200, any::<bool>()), 1..60)) {
            let mut table = SourceTable::new(1);
            let id = table.insert(origin(), (), 0, start).unwrap();
            let source = table.get_mut(id);
            let mut highest = start;
            let mut closed = std::collections::HashSet::new();
            for (ahead, behind, close) in steps {
                let newer = highest.wrapping_add(ahead);
                if ahead > 0 {
                    prop_assert_eq!(source.standing(newer), Standing::Newer);
                    source.advance(newer);
                    highest = newer;
                }
                let number = highest.wrapping_sub(behind);
                let expected = if behind >= WINDOW || closed.contains(&number) {
                    Standing::Late
                } else {
                    Standing::Open(behind)
                };
                prop_assert_eq!(source.standing(number), expected);
                if close {
                    source.close(number);
                    closed.insert(number);
                }
            }
        }
    }
}
