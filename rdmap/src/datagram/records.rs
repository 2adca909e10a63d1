//! Records of Write-Records (§5).

use std::time::Instant;

use dgiwarp_ddp::{RangeMap, STag, TaggedOffset};
use rustc_hash::FxHashMap;

use super::segment::Target;
use super::source::SourceId;

/// Names a record until it is released; a stale handle names none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RecordHandle(u64);

impl RecordHandle {
    /// The handle as a number, for a completion.
    #[must_use]
    pub const fn to_u64(self) -> u64 {
        self.0
    }

    /// The handle of a completion.
    #[must_use]
    pub const fn from_u64(value: u64) -> Self {
        Self(value)
    }

    fn new(slot: usize, generation: u32) -> Self {
        let slot = u32::try_from(slot).expect("a ring has at most 65,536 slots");
        Self(u64::from(generation) << 32 | u64::from(slot))
    }

    fn slot(self) -> usize {
        let [_, _, _, _, a, b, c, d] = self.0.to_be_bytes();
        u32::from_be_bytes([a, b, c, d]) as usize
    }
}

/// Record of a Write-Record: its valid octets and the fields of its message.
#[derive(Debug, Clone)]
pub struct Record<K> {
    /// Peer that wrote.
    pub source: K,
    /// Names the buffer written to.
    pub stag: STag,
    /// TO of the message's first octet.
    pub base: TaggedOffset,
    /// Octets of the whole message.
    pub length: u32,
    /// Immediate, if the message has one.
    pub immediate: Option<u32>,
    /// The message raises a solicited event.
    pub solicited: bool,
    /// Validity map, relative to `base`.
    pub map: RangeMap,
}

impl<K> Record<K> {
    pub(super) fn target(&self) -> Target {
        Target {
            stag: self.stag,
            base: self.base,
            length: self.length,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Free,
    Open,
    Closed,
}

#[derive(Debug)]
struct Slot<K> {
    state: State,
    generation: u32,
    owner: SourceId,
    number: u32,
    last_placed: Instant,
    record: Record<K>,
}

/// The ring of a QP's records.
#[derive(Debug)]
pub(super) struct Records<K> {
    slots: Vec<Slot<K>>,
    /// Maps of the slots not yet made. Their memory is allocated with the ring, because none may be allocated
    /// while registered memory is held.
    maps: Vec<RangeMap>,
    free: Vec<usize>,
    open: Vec<usize>,
    /// Most open records. The rest of the slots is for messages of one segment, so that messages which are begun and never ended do
    /// not use up the ring.
    max_open: usize,
    /// First generation of every slot.
    generation: u32,
    index: FxHashMap<(SourceId, u32), usize>,
    /// Slot of the latest segment: segments of one message mostly arrive together.
    latest: usize,
}

impl<K: Copy> Records<K> {
    pub(super) fn new(capacity: usize, generation: u32) -> Self {
        Self {
            generation,
            slots: Vec::with_capacity(capacity),
            maps: (0..capacity).map(|_| RangeMap::new()).collect(),
            free: Vec::with_capacity(capacity),
            open: Vec::with_capacity(capacity),
            max_open: capacity - capacity / 4,
            index: FxHashMap::with_capacity_and_hasher(capacity, rustc_hash::FxBuildHasher),
            latest: 0,
        }
    }

    /// The open record of a message.
    #[inline]
    pub(super) fn find(&mut self, owner: SourceId, number: u32) -> Option<usize> {
        if let Some(slot) = self.slots.get(self.latest)
            && slot.state == State::Open
            && slot.number == number
            && slot.owner == owner
        {
            return Some(self.latest);
        }
        let slot = *self.index.get(&(owner, number))?;
        self.latest = slot;
        Some(slot)
    }

    /// Takes a slot for a message of several segments. `None` if the ring is full, or three quarters of its slots are open.
    pub(super) fn open(
        &mut self,
        now: Instant,
        owner: SourceId,
        number: u32,
        fields: Fields<K>,
    ) -> Option<usize> {
        if self.open.len() >= self.max_open {
            return None;
        }
        let slot = self.take_slot(now, owner, number, fields)?;
        self.slots[slot].state = State::Open;
        self.open.push(slot);
        self.index.insert((owner, number), slot);
        self.latest = slot;
        Some(slot)
    }

    /// Takes a slot for a message of one segment, which is closed at once.
    pub(super) fn open_closed(
        &mut self,
        now: Instant,
        owner: SourceId,
        number: u32,
        fields: Fields<K>,
    ) -> Option<(usize, RecordHandle)> {
        let slot = self.take_slot(now, owner, number, fields)?;
        let entry = &mut self.slots[slot];
        entry.state = State::Closed;
        Some((slot, RecordHandle::new(slot, entry.generation)))
    }

    fn take_slot(
        &mut self,
        now: Instant,
        owner: SourceId,
        number: u32,
        fields: Fields<K>,
    ) -> Option<usize> {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => self.grow(now, owner, fields.source)?,
        };
        let entry = &mut self.slots[slot];
        entry.owner = owner;
        entry.number = number;
        entry.last_placed = now;
        entry.record.source = fields.source;
        entry.record.stag = fields.stag;
        entry.record.base = fields.base;
        entry.record.length = fields.length;
        entry.record.immediate = None;
        entry.record.solicited = false;
        entry.record.map.clear();
        Some(slot)
    }

    fn grow(&mut self, now: Instant, owner: SourceId, source: K) -> Option<usize> {
        let map = self.maps.pop()?;
        self.slots.push(Slot {
            state: State::Free,
            generation: self.generation,
            owner,
            number: 0,
            last_placed: now,
            record: Record {
                source,
                stag: STag::new(0),
                base: TaggedOffset::new(0),
                length: 0,
                immediate: None,
                solicited: false,
                map,
            },
        });
        Some(self.slots.len() - 1)
    }

    #[inline]
    pub(super) fn record_mut(&mut self, slot: usize) -> &mut Record<K> {
        &mut self.slots[slot].record
    }

    pub(super) fn record(&self, slot: usize) -> &Record<K> {
        &self.slots[slot].record
    }

    pub(super) fn handle(&self, slot: usize) -> RecordHandle {
        RecordHandle::new(slot, self.slots[slot].generation)
    }

    pub(super) fn touch(&mut self, now: Instant, slot: usize) {
        self.slots[slot].last_placed = now;
    }

    /// Closes an open record; it stays in its slot until it is released.
    pub(super) fn close(&mut self, slot: usize) -> (SourceId, u32, RecordHandle) {
        let entry = &mut self.slots[slot];
        entry.state = State::Closed;
        let (owner, number) = (entry.owner, entry.number);
        let handle = RecordHandle::new(slot, entry.generation);
        self.index.remove(&(owner, number));
        if let Some(position) = self.open.iter().position(|&other| other == slot) {
            self.open.swap_remove(position);
        }
        (owner, number, handle)
    }

    /// Open slots of messages of `owner`, with their numbers.
    pub(super) fn open_of(&self, owner: SourceId) -> impl Iterator<Item = (usize, u32)> + '_ {
        self.open.iter().filter_map(move |&slot| {
            let entry = &self.slots[slot];
            (entry.owner == owner).then_some((slot, entry.number))
        })
    }

    /// Open slots with the time of their last placement.
    pub(super) fn open_slots(&self) -> impl Iterator<Item = (usize, Instant)> + '_ {
        self.open
            .iter()
            .map(|&slot| (slot, self.slots[slot].last_placed))
    }

    pub(super) fn get(&self, handle: RecordHandle) -> Option<&Record<K>> {
        let entry = self.slots.get(handle.slot())?;
        let current = RecordHandle::new(handle.slot(), entry.generation) == handle;
        (entry.state != State::Free && current).then_some(&entry.record)
    }

    /// Frees the slot of a closed record. Returns whether the handle names one.
    pub(super) fn release(&mut self, handle: RecordHandle) -> bool {
        let slot = handle.slot();
        let Some(entry) = self.slots.get_mut(slot) else {
            return false;
        };
        if entry.state != State::Closed || RecordHandle::new(slot, entry.generation) != handle {
            return false;
        }
        entry.state = State::Free;
        entry.generation = entry.generation.wrapping_add(1);
        self.free.push(slot);
        true
    }
}

/// Fields of a record from the first segment of its message.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fields<K> {
    pub(super) source: K,
    pub(super) stag: STag,
    pub(super) base: TaggedOffset,
    pub(super) length: u32,
}

#[cfg(test)]
mod tests {
    use super::super::source::SourceTable;
    use super::*;
    use crate::test_clock::origin;
    use std::time::Duration;

    fn sources(now: Instant) -> [SourceId; 2] {
        let mut table = SourceTable::new(2);
        ['a', 'b'].map(|key| table.insert(now, key, 0, 0).unwrap())
    }

    const FIELDS: Fields<char> = Fields {
        source: 'a',
        stag: STag::new(7),
        base: TaggedOffset::new(8),
        length: 9,
    };

    #[test]
    fn handles_carry_slot_and_generation() {
        let handle = RecordHandle::new(0xffff, 0x0102_0304);
        assert_eq!(handle.to_u64(), 0x0102_0304_0000_ffff);
        assert_eq!(RecordHandle::from_u64(handle.to_u64()), handle);
        assert_eq!(handle.slot(), 0xffff);
    }

    #[test]
    fn three_quarters_of_the_ring_are_for_open_records() {
        let now = origin();
        let [a, _] = sources(now);
        let mut records = Records::new(9, 5);
        for number in 0..7 {
            assert!(records.open(now, a, number, FIELDS).is_some());
        }
        assert_eq!(records.open(now, a, 7, FIELDS), None);
        assert!(records.open_closed(now, a, 7, FIELDS).is_some());
        assert!(records.open_closed(now, a, 8, FIELDS).is_some());
        assert_eq!(records.open_closed(now, a, 9, FIELDS), None, "full");
        let slot = records.find(a, 3).unwrap();
        records.close(slot);
        assert_eq!(records.open(now, a, 10, FIELDS), None, "not released");
    }

    #[test]
    fn open_records_are_found_by_source_and_number() {
        let now = origin();
        let [a, b] = sources(now);
        let mut records = Records::new(8, 0);
        let of_a = records.open(now, a, 1, FIELDS).unwrap();
        let of_b = records.open(now, b, 1, FIELDS).unwrap();
        let other = records.open(now, a, 2, FIELDS).unwrap();
        for _ in 0..2 {
            for (owner, number, slot) in [(a, 1, of_a), (b, 1, of_b), (a, 2, other)] {
                assert_eq!(records.find(owner, number), Some(slot));
                // The latest is not mistaken for another.
                assert_eq!(records.find(owner, number), Some(slot));
            }
        }
        assert_eq!(records.find(b, 2), None);
        let later = now + Duration::from_secs(1);
        records.touch(later, of_b);
        let placed: Vec<_> = records.open_slots().collect();
        assert_eq!(placed, [(of_a, now), (of_b, later), (other, now)]);
        let mut of_source: Vec<_> = records.open_of(a).collect();
        of_source.sort_unstable();
        assert_eq!(of_source, [(of_a, 1), (other, 2)]);
        assert_eq!(records.find(a, 1), Some(of_a));
        let handle = records.handle(of_a);
        assert_eq!(records.close(of_a), (a, 1, handle));
        assert_eq!(records.find(a, 1), None);
        let open: Vec<_> = records.open_of(a).collect();
        assert_eq!(open, [(other, 2)]);
    }

    #[test]
    fn a_record_is_there_until_it_is_released_and_its_handle_goes_stale() {
        let now = origin();
        let [a, b] = sources(now);
        let mut records = Records::new(2, u32::MAX);
        let slot = records.open(now, a, 1, FIELDS).unwrap();
        let handle = records.handle(slot);
        assert!(!records.release(handle), "it is open");
        records.record_mut(slot).map.insert(0, 5).unwrap();
        records.record_mut(slot).immediate = Some(3);
        records.record_mut(slot).solicited = true;
        records.close(slot);
        let record = records.get(handle).unwrap();
        assert_eq!(
            (record.stag, record.base, record.length),
            (FIELDS.stag, FIELDS.base, 9)
        );
        assert_eq!((record.source, record.map.octets()), ('a', 5));
        let unknown = RecordHandle::new(1, u32::MAX);
        assert!(records.get(unknown).is_none() && !records.release(unknown));
        let stale = RecordHandle::new(slot, u32::MAX - 1);
        assert!(records.get(stale).is_none() && !records.release(stale));
        assert!(records.release(handle));
        assert!(records.get(handle).is_none() && !records.release(handle));
        // The generation wraps; the slot is used again, and empty.
        let (again, handle) = records.open_closed(now, b, 2, FIELDS).unwrap();
        assert_eq!((again, handle), (slot, RecordHandle::new(slot, 0)));
        let record = records.record(again);
        assert_eq!(
            (record.immediate, record.solicited, record.map.octets()),
            (None, false, 0)
        );
        assert!(records.release(handle));
    }
}
