//! Associations by peer, by identifier and by time.

use std::collections::{BTreeSet, HashMap};
use std::ops::Deref;
use std::time::Instant;

use rustc_hash::FxHashMap;

use crate::Peer;
use crate::rd::association::{Association, Resting};
use crate::rd::config::RdConfig;

/// An association, or what is kept of one that rests.
#[derive(Debug)]
enum Slot {
    Free,
    Active(Box<Association>),
    Resting(Box<Resting>),
}

impl Slot {
    fn peer(&self) -> Option<Peer> {
        match self {
            Self::Free => None,
            Self::Active(association) => Some(association.peer),
            Self::Resting(resting) => Some(resting.peer),
        }
    }

    fn take(&mut self) -> Option<Association> {
        match std::mem::replace(self, Self::Free) {
            Self::Free => None,
            Self::Active(association) => Some(*association),
            Self::Resting(resting) => Some(Association::from(*resting)),
        }
    }

    /// The association, which rests no more.
    #[inline]
    fn wake(&mut self) -> Option<&mut Association> {
        if let Self::Resting(_) = self
            && let Some(association) = self.take()
        {
            *self = Self::Active(Box::new(association));
        }
        match self {
            Self::Active(association) => Some(association),
            Self::Free | Self::Resting(_) => None,
        }
    }
}

/// A look at an association, which goes on to rest if it does.
#[derive(Debug)]
pub(super) enum Look<'a> {
    Active(&'a Association),
    Resting(Box<Association>),
}

impl Deref for Look<'_> {
    type Target = Association;

    fn deref(&self) -> &Association {
        match self {
            Self::Active(association) => association,
            Self::Resting(association) => association,
        }
    }
}

/// All associations of an end.
#[derive(Debug, Default)]
pub(super) struct Table {
    slots: Vec<Slot>,
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
        if self.slots.get(self.recent).and_then(Slot::peer) != Some(peer) {
            self.recent = self.by_peer(peer)?;
        }
        Some(self.recent)
    }

    pub(super) fn by_id(&self, id: u32) -> Option<usize> {
        self.by_id.get(&id).copied()
    }

    pub(super) fn get(&self, at: usize) -> Option<Look<'_>> {
        match self.slots.get(at)? {
            Slot::Free => None,
            Slot::Active(association) => Some(Look::Active(association)),
            Slot::Resting(resting) => {
                let association = Association::from(Resting::clone(resting));
                Some(Look::Resting(Box::new(association)))
            }
        }
    }

    /// The association, which rests no more.
    #[inline]
    pub(super) fn get_mut(&mut self, at: usize) -> Option<&mut Association> {
        self.slots.get_mut(at)?.wake()
    }

    /// Associations that do not rest.
    pub(super) fn active(&self) -> impl Iterator<Item = &Association> {
        self.slots.iter().filter_map(|slot| match slot {
            Slot::Active(association) => Some(&**association),
            Slot::Free | Slot::Resting(_) => None,
        })
    }

    /// Peers of all associations.
    pub(super) fn peers(&self) -> impl Iterator<Item = Peer> {
        self.slots.iter().filter_map(Slot::peer)
    }

    /// Lets an association rest that may. Returns its peer if it does.
    pub(super) fn rest(&mut self, config: &RdConfig, now: Instant, at: usize) -> Option<Peer> {
        let slot = self.slots.get_mut(at)?;
        let Slot::Active(association) = slot else {
            return None;
        };
        let resting = association.rest(config, now)?;
        *slot = Slot::Resting(Box::new(resting));
        slot.peer()
    }

    /// Adds an association whose peer and identifier are new.
    pub(super) fn add(&mut self, association: Association) -> usize {
        let at = self.free.pop().unwrap_or(self.slots.len());
        self.by_peer.insert(association.peer, at);
        self.by_id.insert(association.id, at);
        self.unvalidated += usize::from(association.is_unvalidated());
        match self.slots.get_mut(at) {
            Some(slot) => *slot = Slot::Active(Box::new(association)),
            None => self.slots.push(Slot::Active(Box::new(association))),
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
        let peer = self.slots.get(at).and_then(Slot::peer);
        if peer != Some(before) && self.by_peer.get(&before) == Some(&at) {
            self.by_peer.remove(&before);
        }
        self.by_peer.entry(address).or_insert(at);
    }

    /// Registers the next timeout. One that is put off stays registered: it is looked at again when its former time has come, which costs less than to
    /// register each message's anew.
    pub(super) fn set_timer(&mut self, config: &RdConfig, at: usize) {
        let (registered, next) = match self.slots.get_mut(at) {
            None | Some(Slot::Free) => return,
            Some(Slot::Active(it)) => {
                let next = it.poll_timeout(config);
                (&mut it.timer, next)
            }
            Some(Slot::Resting(it)) => {
                let next = it.poll_timeout(config);
                (&mut it.timer, Some(next))
            }
        };
        if let (Some(registered), Some(next)) = (*registered, next)
            && registered <= next
        {
            return;
        }
        if let Some(before) = std::mem::replace(registered, next) {
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
