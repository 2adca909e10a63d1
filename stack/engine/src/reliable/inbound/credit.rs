//! Peers that wait for receives, and the credit that they get for these.

use std::collections::VecDeque;

use dgiwarp_llp_udp::Peer;
use dgiwarp_llp_udp::rd::Endpoint;
use rustc_hash::FxHashSet;

use super::{Inbound, MOST_CREDIT};
use crate::recv_queue::RecvQueue;

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
    fn pop(&mut self) -> Option<Peer> {
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
}

impl Inbound {
    /// Whether peers may be granted more when receives are posted.
    pub(in super::super) fn is_hungry(&self) -> bool {
        !self.hungry.is_empty()
    }

    /// Whether messages of peers found no receive, and go again once one is posted.
    pub(in super::super) fn has_refused(&self) -> bool {
        !self.refused.is_empty()
    }

    /// Grants receives that are posted and promised to nobody, half of these to each peer in turn. Credit lets several messages be under way; whether these find
    /// receives is decided when they arrive, so that no peer waits for one that does not use its credit.
    ///
    /// However many peers wait, no more are looked at than get something.
    pub(in super::super) fn grant(&mut self, receives: &RecvQueue, endpoint: &mut Endpoint) {
        if !self.refused.is_empty() {
            self.grant_refused(receives, endpoint);
        }
        if self.hungry.is_empty() {
            return;
        }
        let mut free = receives.unpromised();
        for _ in 0..self.hungry.order.len() {
            let half = free / 2;
            if half == 0 {
                return;
            }
            let Some(peer) = self.hungry.pop() else {
                return;
            };
            let Some(from) = self.peers.get_mut(&peer) else {
                continue;
            };
            let more = MOST_CREDIT.saturating_sub(from.credit).min(half);
            if more == 0 {
                continue;
            }
            endpoint.grant(peer, u32::try_from(more).unwrap_or(0));
            from.credit += more;
            receives.promise(more);
            free -= more;
            if from.credit <= MOST_CREDIT / 2 {
                self.hungry.push(peer);
            }
        }
    }

    /// Grants peers one receive each whose messages found none, as many as are posted, promised or not.
    fn grant_refused(&mut self, receives: &RecvQueue, endpoint: &mut Endpoint) {
        let mut posted = receives.len();
        while posted > 0
            && let Some(peer) = self.refused.pop()
        {
            let Some(from) = self.peers.get_mut(&peer) else {
                continue;
            };
            // Beyond, the delay of RNR decides: credit cannot be taken back.
            if from.credit < 2 * MOST_CREDIT {
                posted -= 1;
                endpoint.grant(peer, 1);
                from.credit += 1;
                receives.promise(1);
            }
        }
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
