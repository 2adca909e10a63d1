//! Memory in which everything that nobody may write is known.

use std::ops::Range;
use std::sync::OnceLock;

use dgiwarp_memory::{Access, Buffer};

use crate::mr::{Keys, MrTable, PdId};
use crate::types::Sge;

/// Octets between two areas that no key covers.
const GUARD: usize = 512;
/// Octet in guards, and in slots before they are used.
const GUARD_OCTET: u8 = 0x5e;

/// The domain of the queue pairs.
pub(super) const PD: PdId = PdId(7);
/// One that they have nothing to do with.
const OTHER_PD: PdId = PdId(8);

/// Octets of the area that the peer may use as it likes.
const OPEN: usize = 20_480;
/// Octets of the area that messages are taken from, and that the peer may read.
const SOURCE: usize = 20_480;
/// Octets of a slot.
pub(super) const SLOT: usize = 512;
/// Octets of an area of slots.
const SLOTS: usize = 16 * SLOT;
/// Octets of what belongs to another domain.
const FOREIGN: usize = 512;

/// An area, registered at an address that is its offset in the memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Area {
    pub(super) keys: Keys,
    pub(super) offset: usize,
    pub(super) len: usize,
}

impl Area {
    /// Address of its first octet.
    pub(super) fn addr(self) -> u64 {
        self.offset as u64
    }

    fn range(self) -> Range<usize> {
        self.offset..self.offset + self.len
    }

    /// Where a slot begins.
    pub(super) fn slot(self, number: u64) -> usize {
        self.offset + usize::try_from(number % (SLOTS / SLOT) as u64).unwrap_or(0) * SLOT
    }

    /// Two elements in a slot, `first` and `second` octets long, with four octets between them.
    pub(super) fn elements(self, number: u64, (first, second): (u32, u32)) -> [Sge; 2] {
        let start = self.slot(number) as u64;
        let element = |addr, length| Sge {
            addr,
            length,
            lkey: self.keys.lkey,
        };
        [
            element(start, first),
            element(start + u64::from(first) + 4, second),
        ]
    }
}

/// Areas with guards around them.
#[derive(Debug)]
pub(super) struct Guarded {
    memory: Buffer,
    /// Initial contents.
    initial: &'static [u8],
    pub(super) open: Area,
    pub(super) receives: Area,
    pub(super) sinks: Area,
    pub(super) source: Area,
    pub(super) foreign: Area,
}

impl Guarded {
    pub(super) fn new(mrs: &MrTable) -> Self {
        let lengths = [OPEN, SLOTS, SLOTS, SOURCE, FOREIGN];
        let total = lengths.iter().map(|length| length + GUARD).sum::<usize>() + GUARD;
        let memory = Buffer::zeroed(total).expect("there is memory");
        let mut at = 0;
        let mut area = |len: usize, access, pd| {
            let offset = at + GUARD;
            at = offset + len;
            let region = memory.region().part(offset, len).expect("it is inside");
            let keys = mrs.register(region, offset as u64, access, pd);
            Area { keys, offset, len }
        };
        let open = area(OPEN, Access::all(), PD);
        let receives = area(SLOTS, Access::LOCAL_WRITE, PD);
        let sinks = area(SLOTS, Access::LOCAL_WRITE, PD);
        let source = area(SOURCE, Access::REMOTE_READ, PD);
        let foreign = area(FOREIGN, Access::all(), OTHER_PD);
        let initial = initial(total, source.offset);
        memory.write(0, initial);
        Self {
            memory,
            initial,
            open,
            receives,
            sinks,
            source,
            foreign,
        }
    }

    /// The open area as a region.
    pub(super) fn open_region(&self) -> dgiwarp_memory::Region {
        let whole = self.memory.region();
        whole
            .part(self.open.offset, self.open.len)
            .expect("it is inside")
    }

    /// Contents of a part of the open area.
    pub(super) fn open_octets(&self, from: usize, to: usize) -> Vec<u8> {
        self.memory.to_vec(self.open.offset + from, to - from)
    }

    /// Makes a slot as it was at first.
    pub(super) fn clear_slot(&self, area: Area, number: u64) {
        self.memory.write(area.slot(number), &[GUARD_OCTET; SLOT]);
    }

    /// Octets placed in a slot's two elements. Panics if there is anything beside them.
    pub(super) fn slot(&self, area: Area, number: u64, (first, second): (u32, u32)) -> Vec<u8> {
        let slot = self.memory.to_vec(area.slot(number), SLOT);
        let (first, second) = (first as usize, second as usize);
        let (head, rest) = slot.split_at(first);
        let (gap, rest) = rest.split_at(4);
        let (tail, behind) = rest.split_at(second);
        assert!(
            gap.iter().chain(behind).all(|octet| *octet == GUARD_OCTET),
            "slot {number}: octets beside {first} and {second}"
        );
        [head, tail].concat()
    }

    /// Panics if an octet changed that nobody may write.
    pub(super) fn check(&self) {
        let found = self.memory.to_vec(0, self.memory.len());
        let mut from = 0;
        let writable = [self.open.range(), self.receives.range(), self.sinks.range()];
        for range in writable.into_iter().chain(Some(found.len()..found.len())) {
            let (now, before) = (
                found.get(from..range.start),
                self.initial.get(from..range.start),
            );
            assert!(
                now == before,
                "octets between {from} and {} changed",
                range.start
            );
            from = range.end;
        }
    }
}

/// Initial contents of every memory: all are laid out alike.
fn initial(total: usize, source: usize) -> &'static [u8] {
    static OCTETS: OnceLock<Vec<u8>> = OnceLock::new();
    OCTETS.get_or_init(|| {
        let mut octets = vec![GUARD_OCTET; total];
        let messages = octets.iter_mut().skip(source);
        for (octet, value) in messages.zip(pattern(0, SOURCE)) {
            *octet = value;
        }
        octets
    })
}

/// Contents of the area of messages from an offset on.
pub(super) fn pattern(from: usize, len: usize) -> Vec<u8> {
    (from..from + len)
        .map(|offset| {
            let [low, high, ..] = offset.to_le_bytes();
            low.wrapping_mul(7) ^ high
        })
        .collect()
}
