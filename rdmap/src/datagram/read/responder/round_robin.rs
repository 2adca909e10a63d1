//! Queued items of peers, which take turns.

use std::collections::VecDeque;
use std::hash::Hash;

use arrayvec::ArrayVec;
use rustc_hash::FxHashMap;
use slab::Slab;

use crate::datagram::DropReason;

#[derive(Debug)]
struct Entry<K, T, const N: usize> {
    peer: K,
    items: ArrayVec<T, N>,
}

/// Queues of peers, each of at most `N` items and never empty.
#[derive(Debug)]
pub(super) struct RoundRobin<K, T, const N: usize> {
    entries: Slab<Entry<K, T, N>>,
    index: FxHashMap<K, usize>,
    /// Peers in the order of their turns.
    turns: VecDeque<usize>,
    max_peers: usize,
}

impl<K: Copy + Eq + Hash, T, const N: usize> RoundRobin<K, T, N> {
    pub(super) fn new(max_peers: usize) -> Self {
        Self {
            entries: Slab::new(),
            index: FxHashMap::default(),
            turns: VecDeque::new(),
            max_peers,
        }
    }

    /// Checks that a peer may queue an item, and that none of its items is `alike`.
    pub(super) fn check(&self, peer: K, alike: impl Fn(&T) -> bool) -> Result<(), DropReason> {
        match self.index.get(&peer) {
            None if self.entries.len() >= self.max_peers => Err(DropReason::NoSourceSlot),
            None => Ok(()),
            Some(slot) => {
                let items = &self.entries[*slot].items;
                if items.iter().any(alike) {
                    Err(DropReason::Duplicate)
                } else if items.is_full() {
                    Err(DropReason::ReadQueueFull)
                } else {
                    Ok(())
                }
            }
        }
    }

    /// Queues an item that [`check`](Self::check) admitted. A new peer has its turn after all others.
    pub(super) fn push(&mut self, peer: K, item: T) {
        let slot = *self.index.entry(peer).or_insert_with(|| {
            let slot = self.entries.insert(Entry {
                peer,
                items: ArrayVec::new(),
            });
            self.turns.push_back(slot);
            slot
        });
        let _ = self.entries[slot].items.try_push(item);
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    /// The next peer and its items.
    pub(super) fn front(&self) -> Option<(K, &[T])> {
        let entry = &self.entries[*self.turns.front()?];
        Some((entry.peer, &entry.items))
    }

    /// Ends the turn of the next peer, after `update` of its items. A peer without items goes; one with items has its next turn after all
    /// others.
    pub(super) fn end_turn<R>(
        &mut self,
        update: impl FnOnce(K, &mut ArrayVec<T, N>) -> R,
    ) -> Option<R> {
        let slot = self.turns.pop_front()?;
        let Entry { peer, items } = &mut self.entries[slot];
        let updated = update(*peer, items);
        if items.is_empty() {
            let gone = self.entries.remove(slot);
            self.index.remove(&gone.peer);
        } else {
            self.turns.push_back(slot);
        }
        Some(updated)
    }

    pub(super) fn clear(&mut self) {
        self.entries.clear();
        self.index.clear();
        self.turns.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn push(line: &mut RoundRobin<char, u8, 2>, peer: char, item: u8) -> Result<(), DropReason> {
        line.check(peer, |it| *it == item)?;
        line.push(peer, item);
        Ok(())
    }

    #[test]
    fn peers_take_turns_within_bounds() {
        let mut line = RoundRobin::new(2);
        for (peer, item, expected) in [
            ('a', 1, Ok(())),
            ('a', 1, Err(DropReason::Duplicate)),
            ('a', 2, Ok(())),
            ('a', 3, Err(DropReason::ReadQueueFull)),
            ('b', 4, Ok(())),
            ('c', 5, Err(DropReason::NoSourceSlot)),
        ] {
            assert_eq!(push(&mut line, peer, item), expected, "{peer} {item}");
        }
        let mut served = Vec::new();
        while let Some((peer, items)) = line.front() {
            served.push((peer, items[0]));
            line.end_turn(|_, items| items.remove(0));
        }
        assert_eq!(served, [('a', 1), ('b', 4), ('a', 2)]);
        assert!(line.is_empty() && line.end_turn(|_, _| ()).is_none());
        assert_eq!(push(&mut line, 'c', 5), Ok(()), "places are free again");
        line.clear();
        assert!(line.is_empty());
        assert_eq!(push(&mut line, 'c', 5), Ok(()));
    }
}
