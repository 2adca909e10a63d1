//! Message numbers of a sender (§3).

use std::hash::Hash;

use rustc_hash::FxHashMap;

/// Most peers with a count; beyond, all counts are dropped and the rule of §3 for dropped counts applies.
const MAX_PEERS: usize = 65_536;

/// Counts the messages with an extension from one QP to each of its peers.
#[derive(Debug, Clone)]
pub struct Numbers<K> {
    next: FxHashMap<K, u32>,
    /// Peer of the latest message, mostly also of the next one, and its next number. Its entry in the map is outdated.
    latest: Option<(K, u32)>,
    /// First number of a peer that is not in the map.
    start: u32,
    /// Number above all numbers of this epoch, in serial order.
    ceiling: u32,
}

impl<K: Copy + Eq + Hash> Numbers<K> {
    /// Counts from `start`, a random number.
    #[must_use]
    pub fn new(start: u32) -> Self {
        Self {
            next: FxHashMap::default(),
            latest: None,
            start,
            ceiling: start,
        }
    }

    /// The number of the next message to `peer`.
    #[inline]
    pub fn take(&mut self, peer: K) -> u32 {
        let number = match self.latest {
            Some((latest, next)) if latest == peer => next,
            Some(_) | None => self.turn_to(peer),
        };
        self.latest = Some((peer, number.wrapping_add(1)));
        self.raise_ceiling(number);
        number
    }

    /// Changes to another peer than the latest, whose count is stored.
    fn turn_to(&mut self, peer: K) -> u32 {
        if let Some((latest, next)) = self.latest {
            self.next.insert(latest, next);
        }
        if let Some(next) = self.next.get(&peer) {
            return *next;
        }
        if self.next.len() >= MAX_PEERS {
            // A receiver may still have the last number of a dropped peer: continue above all numbers.
            self.next.clear();
            self.start = self.ceiling;
        }
        self.start
    }

    fn raise_ceiling(&mut self, number: u32) {
        let above = number.wrapping_add(1);
        if above.wrapping_sub(self.ceiling) < 1 << 31 {
            self.ceiling = above;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_count_apart_and_across_the_wrap() {
        let mut numbers = Numbers::new(u32::MAX);
        assert_eq!(numbers.take('a'), u32::MAX);
        assert_eq!(numbers.take('a'), 0);
        assert_eq!(numbers.take('b'), u32::MAX);
        assert_eq!(numbers.take('a'), 1);
    }

    #[test]
    fn a_forgotten_peer_continues_above_all_numbers() {
        let mut numbers = Numbers::new(u32::MAX - 10);
        let mut last = 0;
        for _ in 0..100 {
            last = numbers.take(u32::MAX);
        }
        for peer in 0..u32::try_from(MAX_PEERS).unwrap() {
            numbers.take(peer);
        }
        let again = numbers.take(u32::MAX);
        assert!(again.wrapping_sub(last) >= 1 && again.wrapping_sub(last) < 1 << 31);
    }
}
