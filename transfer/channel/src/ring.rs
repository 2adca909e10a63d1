//! States of slots, without input or output.

use std::collections::VecDeque;

use crate::wire::Malformed;

/// State of a slot of the peer's ring, and of this end's copy of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outgoing {
    Free,
    /// The program writes to it.
    Acquired,
    /// Its block is the peer's.
    Published,
}

/// The ring of the peer.
#[derive(Debug)]
pub(crate) struct OutgoingRing {
    slots: Vec<Outgoing>,
    free: VecDeque<u16>,
}

impl OutgoingRing {
    pub(crate) fn new(slots: u16) -> Self {
        Self {
            slots: vec![Outgoing::Free; slots.into()],
            free: (0..slots).collect(),
        }
    }

    /// Takes a free slot.
    pub(crate) fn acquire(&mut self) -> Option<u16> {
        let slot = self.free.pop_front()?;
        self.set(slot, Outgoing::Acquired);
        Some(slot)
    }

    /// Gives an acquired slot back.
    pub(crate) fn abandon(&mut self, slot: u16) {
        self.set(slot, Outgoing::Free);
        // It is the warmest.
        self.free.push_front(slot);
    }

    /// The block of an acquired slot leaves.
    pub(crate) fn publish(&mut self, slot: u16) {
        self.set(slot, Outgoing::Published);
    }

    /// The peer released a slot.
    pub(crate) fn on_released(&mut self, slot: u16) -> Result<(), Malformed> {
        if self.slots.get(usize::from(slot)) != Some(&Outgoing::Published) {
            return Err(Malformed("a slot without a block was released"));
        }
        self.set(slot, Outgoing::Free);
        self.free.push_back(slot);
        Ok(())
    }

    fn set(&mut self, slot: u16, state: Outgoing) {
        if let Some(place) = self.slots.get_mut(usize::from(slot)) {
            *place = state;
        }
    }
}

/// State of a slot of this end's ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Incoming {
    Empty,
    /// A block is there that the program has, or has not taken yet.
    Full,
}

/// The ring of this end.
#[derive(Debug)]
pub(crate) struct IncomingRing {
    slots: Vec<Incoming>,
    slot_size: u32,
    /// Blocks that the program has not taken, with their lengths.
    ready: VecDeque<(u16, u32)>,
    /// Slots that the peer was not told of.
    released: VecDeque<u16>,
}

impl IncomingRing {
    pub(crate) fn new(slots: u16, slot_size: u32) -> Self {
        Self {
            slots: vec![Incoming::Empty; slots.into()],
            slot_size,
            ready: VecDeque::new(),
            released: VecDeque::new(),
        }
    }

    /// A block came.
    pub(crate) fn on_block(&mut self, slot: u16, length: u32) -> Result<(), Malformed> {
        if length > self.slot_size {
            return Err(Malformed("a block longer than its slot"));
        }
        match self.slots.get_mut(usize::from(slot)) {
            Some(state @ Incoming::Empty) => *state = Incoming::Full,
            Some(Incoming::Full) => return Err(Malformed("a slot was used before its release")),
            None => return Err(Malformed("a slot that the ring has not")),
        }
        self.ready.push_back((slot, length));
        Ok(())
    }

    /// The next block.
    pub(crate) fn take(&mut self) -> Option<(u16, u32)> {
        self.ready.pop_front()
    }

    /// The program needs a block no longer.
    pub(crate) fn release(&mut self, slot: u16) {
        if let Some(state) = self.slots.get_mut(usize::from(slot)) {
            *state = Incoming::Empty;
            self.released.push_back(slot);
        }
    }

    /// Whether the peer is told of released slots now: it may run out of slots while a quarter of them wait, or while the program waits.
    pub(crate) fn release_is_due(&self, waits: bool) -> bool {
        let waiting = self.released.len();
        waiting > 0 && (waits || waiting * 4 >= self.slots.len())
    }

    /// Takes released slots of which the peer is told now.
    pub(crate) fn take_released(
        &mut self,
        most: usize,
    ) -> impl ExactSizeIterator<Item = u16> + use<'_> {
        let count = self.released.len().min(most);
        self.released.drain(..count)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_slot_goes_round() {
        let mut ring = OutgoingRing::new(2);
        assert_eq!(
            (ring.acquire(), ring.acquire(), ring.acquire()),
            (Some(0), Some(1), None)
        );
        assert!(ring.on_released(0).is_err(), "it was not published");
        ring.publish(0);
        ring.abandon(1);
        assert_eq!(ring.on_released(0), Ok(()));
        assert!(ring.on_released(0).is_err(), "it is free");
        assert!(ring.on_released(2).is_err(), "there is none");
        assert_eq!((ring.acquire(), ring.acquire()), (Some(1), Some(0)));
    }

    #[test]
    fn a_peer_that_breaks_the_rules_is_noticed() {
        let mut ring = IncomingRing::new(2, 100);
        assert!(ring.on_block(2, 1).is_err());
        assert!(ring.on_block(0, 101).is_err());
        assert_eq!(ring.on_block(0, 100), Ok(()));
        assert!(ring.on_block(0, 100).is_err());
        assert_eq!(ring.take(), Some((0, 100)));
        assert!(ring.on_block(0, 100).is_err(), "the program has it");
        ring.release(0);
        assert_eq!(ring.on_block(0, 0), Ok(()));
    }

    #[test]
    fn a_quarter_is_told_at_once() {
        let mut ring = IncomingRing::new(16, 1);
        for slot in 0..4 {
            assert!(!ring.release_is_due(false));
            assert_eq!(ring.release_is_due(true), slot > 0);
            ring.on_block(slot, 1).unwrap();
            ring.take();
            ring.release(slot);
        }
        assert!(ring.release_is_due(false));
        assert_eq!(ring.take_released(3).collect::<Vec<_>>(), [0, 1, 2]);
        assert!(!ring.release_is_due(false) && ring.release_is_due(true));
    }

    proptest! {
        /// Two ends, whose notices stay in order: each block comes once, in order, and slots are neither lost nor used twice.
        #[test]
        fn blocks_come_in_order_and_slots_stay(
            slots in 1_u16..9,
            steps in proptest::collection::vec(0_u8..6, 0..400),
        ) {
            let mut outgoing = OutgoingRing::new(slots);
            let mut incoming = IncomingRing::new(slots, 1000);
            let (mut blocks, mut releases) = (VecDeque::new(), VecDeque::new());
            let (mut acquired, mut held) = (Vec::new(), Vec::new());
            let (mut sent, mut came) = (0_u32, 0_u32);
            for step in steps {
                match step {
                    0 => acquired.extend(outgoing.acquire()),
                    1 => if let Some(slot) = acquired.pop() {
                        outgoing.publish(slot);
                        blocks.push_back((slot, sent));
                        sent += 1;
                    },
                    2 => if let Some(slot) = acquired.pop() {
                        outgoing.abandon(slot);
                    },
                    3 => if let Some((slot, length)) = blocks.pop_front() {
                        prop_assert_eq!(incoming.on_block(slot, length), Ok(()));
                    },
                    4 => if let Some((slot, length)) = incoming.take() {
                        prop_assert_eq!(length, came);
                        came += 1;
                        held.push(slot);
                    },
                    _ => {
                        if let Some(slot) = held.pop() {
                            incoming.release(slot);
                        }
                        if incoming.release_is_due(false) {
                            releases.extend(incoming.take_released(2));
                        }
                        if let Some(slot) = releases.pop_front() {
                            prop_assert_eq!(outgoing.on_released(slot), Ok(()));
                        }
                    }
                }
                let under_way = acquired.len() + blocks.len() + incoming.ready.len() + held.len()
                    + incoming.released.len() + releases.len();
                prop_assert_eq!(under_way + outgoing.free.len(), usize::from(slots));
            }
        }
    }
}
