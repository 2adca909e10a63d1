//! Inline data: the program may reuse its buffer after the post, and the buffer needs no key.
//!
//! The stack sends from registered memory, so inline data is copied into a ring of registered slots of the queue pair.
//! The ring has a slot for each place of the send queue and for each work request of one post. Sends leave the queue in
//! posting order: slots of an accepted post are never in use by outstanding sends, and slots of a refused post are free
//! again.

use crate::device::limits::MAX_INLINE;
use crate::ffi::errno;
use crate::mem::allocator::{Allocated, OF_QP};
use crate::mem::mr::Pd;
use dgiwarp::{Access, Buffer, Mr, Region, Sge};
use nix::errno::Errno;
use std::sync::{Mutex, PoisonError};

/// Bytes of one slot: `max_inline_data` of `ibv_query_qp(3)`.
pub(crate) const SLOT: usize = 256;
const _: () = assert!(SLOT as u64 == MAX_INLINE as u64);

/// The slots, registered at the first inline send, or with the queue pair where the program allocates them.
pub(crate) struct InlineRing {
    slots: usize,
    ring: Mutex<Option<Ring>>,
}

struct Ring {
    // First: deregistration waits for the last use of the memory.
    mr: Mr,
    region: Region,
    /// Memory of the program's allocator.
    _allocated: Option<Allocated>,
    slots: usize,
    next: usize,
}

impl Ring {
    fn new(pd: &Pd, slots: usize) -> Result<Self, Errno> {
        let length = slots * SLOT;
        let allocated = match pd.allocators.get() {
            Some(allocators) => allocators.allocate(length, OF_QP)?,
            None => None,
        };
        let region = match &allocated {
            // SAFETY: kept beside the region, and dropped after it.
            Some(allocated) => unsafe { allocated.region() }?,
            None => Buffer::zeroed(length)
                .map_err(|error| errno::of_io(&error))?
                .region(),
        };
        let registered = pd.pd.register(region.clone(), Access::empty());
        Ok(Self {
            mr: registered.map_err(errno::of)?,
            region,
            _allocated: allocated,
            slots,
            next: 0,
        })
    }
}

/// The slots of one post.
pub(crate) struct Filling<'a> {
    ring: &'a Ring,
    next: usize,
}

impl Filling<'_> {
    /// Copies `data` into the next slot.
    pub(crate) fn fill(&mut self, data: &[u8]) -> Result<Sge, Errno> {
        if data.len() > SLOT {
            return Err(Errno::EINVAL);
        }
        let start = self.next * SLOT;
        let slot = self.ring.region.slice(start, data.len());
        slot.map_err(|_| Errno::EIO)?.place(data);
        self.next = (self.next + 1) % self.ring.slots;
        Ok(self.ring.mr.sge(start..start + data.len()))
    }
}

impl InlineRing {
    /// For a send queue of `places`, which the stack enforces, and posts of up to `longest` work requests that are
    /// accepted all or none. With a domain whose program allocates, the slots are allocated now.
    pub(crate) fn new(pd: Option<&Pd>, places: u32, longest: u32) -> Result<Self, Errno> {
        let slots = usize::try_from(places.saturating_add(longest)).unwrap_or(usize::MAX);
        let ring = match pd.filter(|pd| pd.allocators.get().is_some()) {
            Some(pd) => Some(Ring::new(pd, slots)?),
            None => None,
        };
        Ok(Self {
            slots,
            ring: Mutex::new(ring),
        })
    }

    /// Runs `post` with slots, which are in use only if it succeeds.
    pub(crate) fn post(
        &self,
        pd: &Pd,
        post: impl FnOnce(&mut Filling<'_>) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        let ring = match &mut *ring {
            Some(ring) => ring,
            empty => empty.insert(Ring::new(pd, self.slots)?),
        };
        let mut filling = Filling {
            next: ring.next,
            ring,
        };
        post(&mut filling)?;
        ring.next = filling.next;
        Ok(())
    }
}
