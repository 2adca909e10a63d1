//! Mappings of a stream.

use dgiwarp::Mr;

/// Memory that the program has mapped.
#[derive(Default)]
pub(in crate::rsocket) struct Maps {
    pub(in crate::rsocket) maps: Vec<Map>,
}

/// One mapping.
pub(in crate::rsocket) struct Map {
    pub(in crate::rsocket) buffer: usize,
    pub(in crate::rsocket) length: usize,
    pub(in crate::rsocket) offset: u64,
    pub(in crate::rsocket) mr: Mr,
    /// Slot of the peer's list; `None` where the peer does not get it.
    pub(in crate::rsocket) slot: Option<u16>,
    pub(in crate::rsocket) announced: bool,
}

impl Maps {
    pub(in crate::rsocket) fn free_slot(&self, slots: u16) -> Option<u16> {
        (0..slots).find(|slot| self.maps.iter().all(|map| map.slot != Some(*slot)))
    }

    pub(in crate::rsocket) fn pending(&self) -> Option<usize> {
        self.maps
            .iter()
            .position(|map| map.slot.is_some() && !map.announced)
    }
}
