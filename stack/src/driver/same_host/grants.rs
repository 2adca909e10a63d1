//! One-sided copies: grants to a peer on this host, and the memory of its process.

use std::num::NonZeroU32;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use dgiwarp_engine::mr::{Grantor, MrTable, RegionTerms};
use dgiwarp_memory::lane::{GrantTerms, Grants, PeerGrants};
use dgiwarp_memory::socket::NoCancellation;
use dgiwarp_memory::{Access, PeerMemory, is_process_gone};
use parking_lot::Mutex;

use crate::driver::device::{clock, fds};

/// Time that a revocation waits for a copy under way: the longest takes a fraction of a millisecond.
const PATIENCE: Duration = Duration::from_secs(1);
/// Time after which it checks whether the peer's process is gone.
const DOUBT: Duration = Duration::from_millis(2);

/// Grants of an arena's end, and those of its peer, in the peer's process.
#[derive(Debug)]
pub(crate) struct CopyEnds {
    grants: Grants,
    pub(crate) peers: PeerGrants,
    peer: NonZeroU32,
}

impl CopyEnds {
    pub(crate) fn new((grants, peers): (Grants, PeerGrants), peer: NonZeroU32) -> Self {
        Self {
            grants,
            peers,
            peer,
        }
    }

    /// Has grants of this end revoked with the regions of a table.
    pub(crate) fn register(self, mrs: Arc<MrTable>) -> (OwnGrants, PeerGrants, NonZeroU32) {
        let grants = Arc::new(WaitingGrants {
            grants: self.grants,
            peer: self.peer,
        });
        let grantor: Arc<dyn Grantor> = Arc::<WaitingGrants>::clone(&grants);
        mrs.add_grantor(Arc::clone(&grantor));
        let own = OwnGrants {
            grants,
            grantor,
            mrs,
        };
        (own, self.peers, self.peer)
    }
}

/// Grants whose revocation waits for copies.
#[derive(Debug)]
struct WaitingGrants {
    grants: Grants,
    peer: NonZeroU32,
}

impl WaitingGrants {
    /// Revokes the grant of an STag, or all. Returns whether the peer copies with it no more.
    fn revoke(&self, stag: Option<u32>) -> bool {
        let mut since = None;
        let wait = || {
            let now = clock::now();
            let waited = now - *since.get_or_insert(now);
            thread::yield_now();
            waited < DOUBT || (waited < PATIENCE && !is_process_gone(self.peer.get()))
        };
        self.grants.revoke(stag, wait) || is_process_gone(self.peer.get())
    }
}

impl Grantor for WaitingGrants {
    fn revoke(&self, stag: u32) -> bool {
        self.revoke(Some(stag))
    }
}

/// Grants of a connection's end. They are revoked when it is dropped; one that the peer goes on copying with stays known to the table of regions.
#[derive(Debug)]
pub(crate) struct OwnGrants {
    grants: Arc<WaitingGrants>,
    grantor: Arc<dyn Grantor>,
    mrs: Arc<MrTable>,
}

impl OwnGrants {
    /// Grants a region on these terms, while it `may` be. Returns whether it is granted.
    pub(crate) fn grant(&self, terms: &RegionTerms, may: &dyn Fn() -> bool) -> bool {
        let terms = GrantTerms {
            stag: terms.stag,
            read: terms.access.contains(Access::REMOTE_READ),
            write: terms.access.contains(Access::REMOTE_WRITE),
            start: terms.start,
            length: terms.length,
            address: terms.address,
            file: terms.file,
        };
        self.grants.grants.grant(&terms, may)
    }

    /// Whether there is no place for another grant.
    pub(crate) fn is_full(&self) -> bool {
        self.grants.grants.is_full()
    }

    /// Revokes all grants.
    pub(crate) fn revoke_all(&self) -> bool {
        let revoked = self.grants.revoke(None);
        if !revoked {
            tracing::warn!(
                pid = self.grants.peer.get(),
                "a peer copies from or to memory of this process, and does not end: is it stopped?"
            );
        }
        revoked
    }
}

impl Drop for OwnGrants {
    fn drop(&mut self) {
        if self.revoke_all() {
            self.mrs.remove_grantor(&self.grantor);
        }
    }
}

/// Memory of other processes that is open, by their numbers.
static OPEN: Mutex<Vec<(NonZeroU32, Weak<PeerMemory>)>> = Mutex::new(Vec::new());

/// The memory of the peer's process, if the kernel lets this one copy.
pub(crate) fn open(peer: NonZeroU32, grants: &PeerGrants) -> Option<Arc<PeerMemory>> {
    let _guard = NoCancellation::begin();
    let mut open = OPEN.lock();
    open.retain(|(_, memory)| memory.strong_count() > 0);
    let same = open.iter().filter(|(pid, _)| *pid == peer);
    let known = same.filter_map(|(_, memory)| memory.upgrade());
    // A process with the same number may have gone before, or have run another program.
    let known = known.into_iter().find(|memory| grants.are_of(memory));
    if known.is_some() {
        return known;
    }
    let memory = PeerMemory::open(peer.get())
        .inspect_err(|error| tracing::debug!(pid = peer.get(), %error, "no one-sided copies"))
        .ok()?;
    let memory = Arc::new(fds::adopt(memory));
    if !grants.are_of(&memory) {
        tracing::debug!(pid = peer.get(), "no one-sided copies: another process");
        return None;
    }
    open.push((peer, Arc::downgrade(&memory)));
    Some(memory)
}
