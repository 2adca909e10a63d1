//! Grants: regions that peers on this host read and write by themselves (rfc-notes/same-host.md).
//!
//! A connection that has been used with an STag may grant the region to its peer. The thread that takes the region from the table, or the STag from the peers,
//! revokes its grants first and waits for copies under way.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

use dgiwarp_memory::{Access, MemoryFile};
use parking_lot::Mutex;

/// A grant of the region was made, or is about to be.
const GRANTED: u8 = 1;
/// No more are made.
const CLOSED: u8 = 2;

/// Terms on which a peer may use a region by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegionTerms {
    /// STag.
    pub stag: u32,
    /// Any of [`Access::REMOTE_READ`] and [`Access::REMOTE_WRITE`].
    pub access: Access,
    /// Tagged Offset of the first octet.
    pub start: u64,
    /// Octets.
    pub length: u64,
    /// Address of the first octet in this process.
    pub address: u64,
    /// The memory file of this process that holds the region, where there is one.
    pub file: Option<MemoryFile>,
}

/// A connection that grants regions to its peer.
pub trait Grantor: fmt::Debug + Send + Sync {
    /// Revokes the grant of an STag, and waits until the peer copies with it no more, a second at most. Allocates nothing. Returns whether that is so.
    fn revoke(&self, stag: u32) -> bool;
}

/// A peer copies from or to the region, and did not end within a second: it may be stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerCopies;

/// Grants of a registration.
#[derive(Debug, Default)]
pub(super) struct Granted(AtomicU8);

impl Granted {
    /// A grant is about to be made.
    pub(super) fn begin(&self) {
        self.0.fetch_or(GRANTED, Ordering::SeqCst);
    }

    /// Whether grants may be made still.
    pub(super) fn may_be(&self) -> bool {
        self.0.load(Ordering::SeqCst) & CLOSED == 0
    }
}

/// Connections that may have granted regions to their peers.
#[derive(Debug, Default)]
pub(super) struct Grantors {
    /// Each in its place.
    places: Mutex<Vec<Option<Arc<dyn Grantor>>>>,
    /// Registrations whose grants were revoked.
    revocations: AtomicU32,
}

impl Grantors {
    pub(super) fn add(&self, grantor: Arc<dyn Grantor>) {
        let mut places = self.places.lock();
        match places.iter_mut().find(|place| place.is_none()) {
            Some(place) => *place = Some(grantor),
            None => places.push(Some(grantor)),
        }
    }

    pub(super) fn remove(&self, grantor: &Arc<dyn Grantor>) {
        let is_it = |it: &Arc<dyn Grantor>| Arc::ptr_eq(it, grantor);
        let mut places = self.places.lock();
        let place = places
            .iter_mut()
            .find(|place| place.as_ref().is_some_and(is_it));
        let removed = place.and_then(Option::take);
        drop((places, removed));
    }

    /// Has no grants of a registration made any more, revokes those that there are, and waits for copies under way.
    pub(super) fn close(&self, granted: &Granted, stag: u32) -> Result<(), PeerCopies> {
        let before = granted.0.fetch_or(CLOSED, Ordering::SeqCst);
        if before & GRANTED == 0 {
            return Ok(());
        }
        self.revocations.fetch_add(1, Ordering::AcqRel);
        // A connection keeps its place; one that comes meanwhile finds that no more grants are made.
        for index in 0.. {
            let grantor = match self.places.lock().get(index) {
                None => break,
                Some(place) => place.clone(),
            };
            if grantor.is_some_and(|grantor| !grantor.revoke(stag)) {
                return Err(PeerCopies);
            }
        }
        Ok(())
    }

    /// Changes with each registration whose grants are revoked.
    #[inline]
    pub(super) fn revocations(&self) -> u32 {
        self.revocations.load(Ordering::Acquire)
    }
}
