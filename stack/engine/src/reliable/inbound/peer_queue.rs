//! Peers that wait for receives.

use std::collections::VecDeque;

use dgiwarp_llp_udp::Peer;
use rustc_hash::FxHashSet;

/// Peers that wait, each once, those that began first before others.
#[derive(Debug, Default)]
pub(super) struct PeerQueue {
    order: VecDeque<Peer>,
    members: FxHashSet<Peer>,
}

impl PeerQueue {
    /// Appends a peer that does not wait yet.
    #[inline]
    pub(super) fn push(&mut self, peer: Peer) {
        if self.members.insert(peer) {
            self.order.push_back(peer);
        }
    }

    /// Takes the peer that has waited longest.
    pub(super) fn pop(&mut self) -> Option<Peer> {
        let peer = self.order.pop_front()?;
        self.members.remove(&peer);
        Some(peer)
    }

    /// Takes a peer out.
    pub(super) fn remove(&mut self, peer: Peer) {
        if self.members.remove(&peer) {
            self.order.retain(|it| *it != peer);
        }
    }

    /// Takes all out.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.order.len()
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn peers_wait_once_and_in_their_order() {
        let peer = |port| Peer::Ip((Ipv4Addr::LOCALHOST, port).into());
        let mut queue = PeerQueue::default();
        for port in [3, 1, 2, 1, 3] {
            queue.push(peer(port));
        }
        queue.remove(peer(3));
        queue.remove(peer(9));
        assert_eq!(queue.pop(), Some(peer(1)));
        queue.push(peer(1));
        queue.push(peer(3));
        let rest = std::iter::from_fn(|| queue.pop());
        assert_eq!(rest.collect::<Vec<_>>(), [peer(2), peer(1), peer(3)]);
        assert!(queue.is_empty());
        queue.push(peer(1));
        assert!(!queue.is_empty());
        queue.clear();
        queue.push(peer(1));
        assert_eq!(queue.pop(), Some(peer(1)));
    }
}
