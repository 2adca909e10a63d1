//! Associations: all state that a datagram QP keeps for a peer, but for the messages that it has received from there.
//!
//! A peer has one association, whatever is done with it: the count of the messages to it (§3), and for each local address a [`Handshake`],
//! the exchange that yields the peer's cookie (§6). Whatever is larger than an unvalidated address may have asks for that cookie, and
//! the exchange begins where there is none. Each part has a bound of its own, so that one use of a peer displaces no other.
//!
//! Received messages belong to a [source](super::source), which is more than a peer: the address with an epoch, of which a peer
//! has another one for each group, and after each restart.
//!
//! Requests of peers belong to the [responder](super::read::Responder): the source addresses of most of its requesters may be forged, or have no association,
//! and its queues and its counts of Terminates are bounded by requesters, not by peers. One table for both would hold forged addresses beside the
//! numbers of messages, and would need lists of requesters to keep those bounds.

mod handshake;
mod rtt;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Instant;

use rustc_hash::FxHashMap;
use slab::Slab;

use super::Secret;
use handshake::Handshake;
pub use handshake::HandshakeId;

/// Most peers with a count; beyond, all counts are dropped and the rule of §3 for dropped counts applies.
const MAX_COUNTS: usize = 65_536;

/// Random numbers of [`Associations`].
#[derive(Debug, Clone, Copy)]
pub struct AssociationConfig {
    /// Epoch of the messages to single hosts.
    pub epoch: u32,
    /// Key of the epochs of groups: the epoch of one group reveals no other.
    pub group_key: [u32; 4],
    /// First message number.
    pub number: u32,
    /// Key of nonces.
    pub secret: Secret,
}

/// State of one peer; it has at least one part.
#[derive(Debug)]
struct Association<K> {
    peer: K,
    /// Number of the next message to the peer, once there was one.
    next: Option<u32>,
    /// Epoch of the messages to the peer, once there was one to it as a group.
    group_epoch: Option<u32>,
    /// One for each local address.
    handshakes: Vec<HandshakeId>,
}

/// The associations of a QP. `K` is the address of a peer, `V` an address of ours.
#[derive(Debug)]
pub struct Associations<K, V> {
    config: AssociationConfig,
    peers: Slab<Association<K>>,
    index: FxHashMap<K, usize>,
    /// Association of the latest message, mostly also of the next one.
    latest: usize,
    /// Associations with a count, at most [`MAX_COUNTS`].
    counts: usize,
    /// Number above all numbers of this epoch, in serial order.
    ceiling: u32,
    handshakes: Slab<Handshake<K, V>>,
    /// Handshake that was considered last for eviction.
    hand: usize,
    /// A cookie request is due.
    request_due: bool,
    /// Nonces drawn.
    drawn: u64,
    /// Lower bound of the times at which cookie requests, or operations that use handshakes, are due: it may be early, never late.
    timeout: Option<Instant>,
}

impl<K: Copy + Eq + Hash, V: Copy + Eq> Associations<K, V> {
    /// No associations.
    #[must_use]
    pub fn new(config: AssociationConfig) -> Self {
        Self {
            peers: Slab::new(),
            index: FxHashMap::default(),
            latest: 0,
            counts: 0,
            ceiling: config.number,
            handshakes: Slab::new(),
            hand: 0,
            request_due: false,
            drawn: 0,
            timeout: None,
            config,
        }
    }

    /// Epoch and number of the next message to `peer`. Messages are numbered by destination. A member receives those to its
    /// groups and those to itself from one address: only the epoch distinguishes their numbers (§4).
    #[inline]
    pub fn number(&mut self, peer: K, is_group: bool) -> (u32, u32) {
        let number = match self.peers.get(self.latest) {
            Some(it) if it.peer == peer => it.next.unwrap_or_else(|| self.turn_to(peer)),
            Some(_) | None => self.turn_to(peer),
        };
        let above = number.wrapping_add(1);
        if above.wrapping_sub(self.ceiling) < 1 << 31 {
            self.ceiling = above;
        }
        let association = &mut self.peers[self.latest];
        association.next = Some(above);
        let epoch = if is_group {
            let key = &self.config.group_key;
            *association
                .group_epoch
                .get_or_insert_with(|| group_epoch(key, &peer))
        } else {
            self.config.epoch
        };
        (epoch, number)
    }

    /// Changes to another peer than that of the latest message, or to a peer without a count.
    fn turn_to(&mut self, peer: K) -> u32 {
        self.latest = self.enter(peer);
        if let Some(next) = self.peers[self.latest].next {
            return next;
        }
        if self.counts >= MAX_COUNTS {
            // A receiver may still have the last number of a dropped peer: continue above all numbers.
            self.config.number = self.ceiling;
            self.drop_counts();
            self.latest = self.enter(peer);
        }
        self.counts += 1;
        self.config.number
    }

    fn drop_counts(&mut self) {
        self.counts = 0;
        self.peers.retain(|_, association| {
            association.next = None;
            !association.handshakes.is_empty()
        });
        self.index.retain(|_, id| self.peers.contains(*id));
    }

    /// The association of a peer, made if it is new.
    fn enter(&mut self, peer: K) -> usize {
        *self.index.entry(peer).or_insert_with(|| {
            self.peers.insert(Association {
                peer,
                next: None,
                group_epoch: None,
                handshakes: Vec::new(),
            })
        })
    }
}

fn group_epoch(key: &[u32; 4], group: &impl Hash) -> u32 {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    group.hash(&mut hasher);
    let [a, b, c, d, ..] = hasher.finish().to_be_bytes();
    u32::from_be_bytes([a, b, c, d])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn associations(epoch: u32, group_key: [u32; 4], number: u32) -> Associations<u32, ()> {
        Associations::new(AssociationConfig {
            epoch,
            group_key,
            number,
            secret: Secret::new([1, 2]),
        })
    }

    fn counting_from(number: u32) -> Associations<u32, ()> {
        associations(0, [0; 4], number)
    }

    impl Associations<u32, ()> {
        fn take(&mut self, peer: u32) -> u32 {
            self.number(peer, false).1
        }
    }

    #[test]
    fn peers_count_apart_and_across_the_wrap() {
        let mut numbers = counting_from(u32::MAX);
        assert_eq!(numbers.take(1), u32::MAX);
        assert_eq!(numbers.take(1), 0);
        assert_eq!(numbers.take(2), u32::MAX);
        assert_eq!(numbers.take(1), 1);
    }

    /// Numbers that are half of all numbers apart have no order: the ceiling stays.
    #[test]
    fn the_ceiling_follows_numbers_above_it_alone() {
        for (behind, follows) in [(0, true), (1 << 31, false), ((1 << 31) + 1, true)] {
            let mut numbers = counting_from(0);
            numbers.take(1);
            numbers.ceiling = 2_u32.wrapping_add(behind);
            let before = numbers.ceiling;
            assert_eq!(numbers.take(1), 1);
            let expected = if follows { 2 } else { before };
            assert_eq!(numbers.ceiling, expected, "{behind} behind");
        }
    }

    #[test]
    fn a_forgotten_peer_continues_above_all_numbers() {
        let mut numbers = counting_from(u32::MAX - 10);
        let mut last = 0;
        for _ in 0..100 {
            last = numbers.take(u32::MAX);
        }
        for peer in 0..u32::try_from(MAX_COUNTS).unwrap() {
            numbers.take(peer);
        }
        let again = numbers.take(u32::MAX);
        assert!(again.wrapping_sub(last) >= 1 && again.wrapping_sub(last) < 1 << 31);
    }

    #[test]
    fn the_counts_of_peers_are_bounded() {
        let mut numbers = counting_from(0);
        for peer in 0..3 * u32::try_from(MAX_COUNTS).unwrap() {
            numbers.take(peer);
            assert!(numbers.peers.len() <= MAX_COUNTS);
        }
    }

    #[test]
    fn every_group_has_an_epoch_of_its_own() {
        let mut own = associations(7, [1, 2, 3, 4], 0);
        assert_eq!(own.number(1, false).0, 7);
        let epoch = own.number(1, true).0;
        assert_eq!(own.number(1, true).0, epoch);
        assert_eq!(own.number(1, false).0, 7);
        assert_ne!(epoch, 7);
        assert_ne!(epoch, own.number(2, true).0);
        let mut restarted = associations(7, [1, 2, 3, 5], 0);
        assert_ne!(epoch, restarted.number(1, true).0);
    }
}
