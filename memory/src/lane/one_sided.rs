//! One-sided copies: the ends of an arena grant each other regions, and copy without the other process.

use std::fmt;
use std::io;
use std::mem::size_of;
use std::ptr::NonNull;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::arena::Shared;
use super::grants::{GrantPage, GrantTerms, Known, MOST};
use super::protocol::{Control, Program};
use super::sync::Ordering;
use crate::MemoryFile;
use crate::peer_memory::PeerMemory;

/// Octets of a proof.
const PROOF: usize = 16;
/// Octets of an end's words.
pub(super) const PAGE_OCTETS: usize = 0x800;

const _: () = assert!(size_of::<GrantPage>() == PAGE_OCTETS);

/// The words of both ends for one-sided copies.
#[derive(Clone)]
pub(super) struct Pages {
    own: NonNull<GrantPage>,
    peers: NonNull<GrantPage>,
    /// Of the lane in which this end receives.
    receives: NonNull<Control>,
    /// Of the lane in which it sends.
    sends: NonNull<Control>,
    shared: Arc<Shared>,
}

// SAFETY: the addresses are inside the mapping, which is held; all accesses are atomic operations.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Pages {
    /// The words at these addresses, inside the mapping, aligned as they have to be: those of this end, of its peer, and of the lanes in which this end receives
    /// and sends.
    pub(super) const fn new(
        shared: Arc<Shared>,
        [own, peers]: [NonNull<GrantPage>; 2],
        [receives, sends]: [NonNull<Control>; 2],
    ) -> Self {
        Self {
            own,
            peers,
            receives,
            sends,
            shared,
        }
    }

    fn own(&self) -> &GrantPage {
        // SAFETY: aligned words inside the mapping, which is held. They are atomic: the other process may change them.
        unsafe { self.own.as_ref() }
    }

    fn peers(&self) -> &GrantPage {
        // SAFETY: as above.
        unsafe { self.peers.as_ref() }
    }

    /// Takes memory for the words of both ends: they share a page, and memory is taken from its beginning.
    fn take_memory(&self) -> io::Result<()> {
        let first = self.own.min(self.peers);
        self.shared.populate(first.cast(), 2 * PAGE_OCTETS)
    }

    /// State of this end's program, as its peer sees it.
    fn own_program(&self) -> &Program {
        // SAFETY: as above.
        unsafe { &self.receives.as_ref().program.0 }
    }

    /// State of the peer's program.
    fn peers_program(&self) -> &Program {
        // SAFETY: as above.
        unsafe { &self.sends.as_ref().program.0 }
    }
}

/// Regions of this end that its peer may read and write by itself.
pub struct Grants {
    pages: Pages,
    /// The token, where the peer finds it in this process alone.
    proof: Box<[u8; PROOF]>,
    places: Mutex<[Place; MOST]>,
    /// Memory of the words of both ends is taken.
    has_memory: AtomicBool,
}

/// The place of a grant, as this process knows it.
#[derive(Debug, Clone, Copy, Default)]
struct Place {
    /// STag; 0 where there is none, and no copy is under way.
    stag: u32,
    /// Odd while the grant holds.
    generation: u32,
}

impl Place {
    const fn holds(self) -> bool {
        self.generation % 2 == 1
    }

    fn advance(&mut self) {
        self.generation = self.generation.wrapping_add(1);
    }
}

impl fmt::Debug for Grants {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grants")
            .field("places", &self.places)
            .finish_non_exhaustive()
    }
}

impl Grants {
    pub(super) fn new(pages: Pages, token: u128) -> Self {
        Self {
            pages,
            proof: Box::new(token.to_be_bytes()),
            places: Mutex::default(),
            has_memory: AtomicBool::new(false),
        }
    }

    fn places(&self) -> MutexGuard<'_, [Place; MOST]> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Grants the peer a region, unless it has a grant of this STag, there is no place, or it is not `wanted` any more: that is asked while no other thread
    /// [revokes](Self::revoke). Allocates nothing. Returns whether the peer has a grant.
    pub fn grant(&self, terms: &GrantTerms, wanted: impl FnOnce() -> bool) -> bool {
        if terms.stag == 0 {
            return false;
        }
        let mut places = self.places();
        if let Some(place) = places.iter().find(|it| it.stag == terms.stag) {
            return place.holds();
        }
        let Some(index) = places.iter().position(|it| it.stag == 0) else {
            return false;
        };
        if !wanted() || !self.has_memory() {
            return false;
        }
        places[index].stag = terms.stag;
        places[index].advance();
        self.pages.own().grants[index].publish(terms);
        let publications = &self.pages.own_program().publications;
        let next = publications.load(Ordering::Relaxed).wrapping_add(1);
        publications.store(next, Ordering::Release);
        true
    }

    /// Whether there is no place for another grant.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.places().iter().all(|place| place.stag != 0)
    }

    /// Takes memory for the words of both ends, which no end uses before there is a grant. Returns whether it is there.
    fn has_memory(&self) -> bool {
        if self.has_memory.load(Ordering::Relaxed) {
            return true;
        }
        let taken = self.pages.take_memory();
        if taken.is_ok() {
            self.has_memory.store(true, Ordering::Relaxed);
            let address = self.proof.as_ptr().expose_provenance() as u64;
            let proof = &self.pages.own().proof.0;
            proof.store(address, Ordering::Relaxed);
        }
        taken.is_ok()
    }

    /// Revokes the grant of an STag, or all of them, and waits for the peer's copies while `wait` returns true. Allocates nothing. Returns whether no copy
    /// is under way: the memory is this process's alone.
    pub fn revoke(&self, stag: Option<u32>, mut wait: impl FnMut() -> bool) -> bool {
        // Generations of those that are revoked.
        let mut revoked = [None; MOST];
        let of_these = |it: u32| it != 0 && stag.is_none_or(|stag| stag == it);
        for (index, place) in self.places().iter_mut().enumerate() {
            if of_these(place.stag) {
                self.pages.own().grants[index].revoke();
                if place.holds() {
                    place.advance();
                }
                revoked[index] = Some(place.generation);
            }
        }
        let mut waits = true;
        let mut is_over = true;
        for (index, generation) in revoked.iter_mut().enumerate() {
            while generation.is_some() && self.pages.peers().copies_with(index) {
                if !waits {
                    (*generation, is_over) = (None, false);
                    break;
                }
                waits = wait();
            }
        }
        // A place of which another thread has revoked the grant as well may have another one by now.
        for (place, revoked) in self.places().iter_mut().zip(revoked) {
            if revoked == Some(place.generation) {
                place.stag = 0;
            }
        }
        is_over
    }
}

/// A part of a region of the peer, with the grant for it.
#[derive(Debug, Clone, Copy)]
pub struct Granted {
    index: u32,
    generation: u32,
    /// Address in the process of the peer.
    address: u64,
    /// Offset in the region.
    offset: u64,
    /// The memory file of the region, and the region's octets.
    file: Option<(MemoryFile, u64)>,
}

impl Granted {
    /// Index of the grant, and its generation.
    #[must_use]
    pub const fn of(&self) -> (u32, u32) {
        (self.index, self.generation)
    }

    /// Offset of the part in the region.
    #[must_use]
    pub const fn offset(&self) -> u64 {
        self.offset
    }

    /// The memory file that holds the region, and the region's octets.
    #[must_use]
    pub const fn file(&self) -> Option<(MemoryFile, u64)> {
        self.file
    }
}

/// Regions of the peer that this end may read and write by itself.
pub struct PeerGrants {
    pages: Pages,
    proof: [u8; PROOF],
    /// Grants as they were when the peer had made so many.
    known: Vec<Known>,
    publications: u32,
}

impl fmt::Debug for PeerGrants {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeerGrants")
            .field("known", &self.known)
            .finish_non_exhaustive()
    }
}

impl PeerGrants {
    pub(super) fn new(pages: Pages, token: u128) -> Self {
        Self {
            pages,
            proof: token.to_be_bytes(),
            known: Vec::with_capacity(MOST),
            publications: 0,
        }
    }

    /// The grant of `length` octets at a Tagged Offset, to be written or read. `None` where the peer has granted no such thing.
    #[inline]
    pub fn find(&mut self, stag: u32, start: u64, length: u32, write: bool) -> Option<Granted> {
        let words = &self.pages.peers_program().publications;
        let publications = words.load(Ordering::Acquire);
        if publications != self.publications {
            self.publications = publications;
            self.read_all();
        }
        let known = self.known.iter().find(|it| it.terms.stag == stag)?;
        let terms = &known.terms;
        let offset = start.checked_sub(terms.start)?;
        let is_inside = offset.checked_add(length.into())? <= terms.length;
        let is_right = if write { terms.write } else { terms.read };
        let granted = Granted {
            index: known.index,
            generation: known.generation,
            address: terms.address.checked_add(offset)?,
            offset,
            file: terms.file.map(|file| (file, terms.length)),
        };
        (is_inside && is_right).then_some(granted)
    }

    #[cold]
    fn read_all(&mut self) {
        self.known.clear();
        let grants = self.pages.peers().grants.iter();
        self.known
            .extend(grants.zip(0..).filter_map(|(words, index)| {
                let (generation, terms) = words.read()?;
                Some(Known {
                    index,
                    generation,
                    terms,
                })
            }));
    }

    /// Calls `copy` with the address of what was granted, in the process of the peer, which revokes no grant meanwhile. `None` if it has revoked this one.
    #[inline]
    pub fn copy<R>(&mut self, granted: Granted, copy: impl FnOnce(u64) -> R) -> Option<R> {
        let (own, peers) = (self.pages.own(), self.pages.peers());
        if !own.begin_copy(peers, granted.index, granted.generation) {
            let is_it =
                |it: &Known| (it.index, it.generation) == (granted.index, granted.generation);
            self.known.retain(|it| !is_it(it));
            return None;
        }
        let result = copy(granted.address);
        self.pages.own().end_copy();
        Some(result)
    }

    /// Whether this is the memory of the peer's process: the token is where the peer says.
    #[must_use]
    pub fn are_of(&self, memory: &PeerMemory) -> bool {
        let address = self.pages.peers().proof.0.load(Ordering::Acquire);
        let mut found = [0; PROOF];
        memory.read_bytes(address, &mut found) && found == self.proof
    }

    /// Polls of the peer's program for input, modulo 2^32.
    #[inline]
    #[must_use]
    pub fn polls(&self) -> u32 {
        self.pages.peers_program().polls.load(Ordering::Relaxed)
    }

    /// Counts a poll of this end's program.
    #[inline]
    pub fn note_poll(&self) {
        let polls = &self.pages.own_program().polls;
        let next = polls.load(Ordering::Relaxed).wrapping_add(1);
        polls.store(next, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
