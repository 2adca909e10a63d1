//! Associations by peer, by identifier and by time.

use std::collections::{BTreeSet, HashMap};
use std::time::Instant;

use rustc_hash::FxHashMap;

use crate::Peer;
use crate::rd::association::Association;
use crate::rd::config::RdConfig;

/// All associations of an end.
#[derive(Debug, Default)]
pub(super) struct Table {
    slots: Vec<Option<Association>>,
    free: Vec<usize>,
    by_peer: HashMap<Peer, usize>,
    /// Identifiers are drawn at this end: nobody can choose many with one hash.
    by_id: FxHashMap<u32, usize>,
    /// The association that was found last.
    recent: usize,
    timers: BTreeSet<(Instant, usize)>,
    unvalidated: usize,
}

impl Table {
    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Associations whose peer is not validated.
    pub(super) const fn unvalidated(&self) -> usize {
        self.unvalidated
    }

    /// A peer was validated.
    pub(super) const fn validated(&mut self) {
        self.unvalidated -= 1;
    }

    pub(super) fn by_peer(&self, peer: Peer) -> Option<usize> {
        self.by_peer.get(&peer).copied()
    }

    /// As [`by_peer`](Self::by_peer), at no cost for the peer that was found last.
    #[inline]
    pub(super) fn find(&mut self, peer: Peer) -> Option<usize> {
        if self.get(self.recent).is_none_or(|it| it.peer != peer) {
            self.recent = self.by_peer(peer)?;
        }
        Some(self.recent)
    }

    pub(super) fn by_id(&self, id: u32) -> Option<usize> {
        self.by_id.get(&id).copied()
    }

    pub(super) fn get(&self, at: usize) -> Option<&Association> {
        self.slots.get(at)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, at: usize) -> Option<&mut Association> {
        self.slots.get_mut(at)?.as_mut()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Association> {
        self.slots.iter().flatten()
    }

    /// Adds an association whose peer and identifier are new.
    pub(super) fn add(&mut self, association: Association) -> usize {
        let at = self.free.pop().unwrap_or(self.slots.len());
        self.by_peer.insert(association.peer, at);
        self.by_id.insert(association.id, at);
        self.unvalidated += usize::from(association.is_unvalidated());
        match self.slots.get_mut(at) {
            Some(slot) => *slot = Some(association),
            None => self.slots.push(Some(association)),
        }
        at
    }

    pub(super) fn remove(&mut self, at: usize) -> Option<Association> {
        let association = self.slots.get_mut(at)?.take()?;
        self.free.push(at);
        for peer in [association.peer, association.address] {
            if self.by_peer.get(&peer) == Some(&at) {
                self.by_peer.remove(&peer);
            }
        }
        self.by_id.remove(&association.id);
        self.unvalidated -= usize::from(association.is_unvalidated());
        if let Some(timer) = association.timer {
            self.timers.remove(&(timer, at));
        }
        Some(association)
    }

    /// The association has another address beside the peer's first.
    pub(super) fn moved(&mut self, at: usize, before: Peer, address: Peer) {
        let peer = self.get(at).map(|association| association.peer);
        if peer != Some(before) && self.by_peer.get(&before) == Some(&at) {
            self.by_peer.remove(&before);
        }
        self.by_peer.entry(address).or_insert(at);
    }

    /// Registers the next timeout. One that is put off stays registered: it is looked at again when its former time has come, which costs less than to
    /// register each message's anew.
    pub(super) fn set_timer(&mut self, config: &RdConfig, at: usize) {
        let Some(association) = self.slots.get_mut(at).and_then(Option::as_mut) else {
            return;
        };
        let next = association.poll_timeout(config);
        if let (Some(registered), Some(next)) = (association.timer, next)
            && registered <= next
        {
            return;
        }
        if let Some(before) = std::mem::replace(&mut association.timer, next) {
            self.timers.remove(&(before, at));
        }
        if let Some(next) = next {
            self.timers.insert((next, at));
        }
    }

    pub(super) fn next_timer(&self) -> Option<Instant> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Takes the next association whose timeout is due.
    pub(super) fn take_timer(&mut self, now: Instant) -> Option<usize> {
        let (due, at) = self.timers.first().copied()?;
        if due > now {
            return None;
        }
        self.timers.pop_first();
        if let Some(association) = self.get_mut(at) {
            association.timer = None;
        }
        Some(at)
    }
}
