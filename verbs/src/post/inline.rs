//! Inline data: the program may reuse its buffer as soon as the post returns, and the buffer needs no key.
//!
//! The stack sends from registered memory. So inline data is copied into a ring of slots that the queue pair registers
//! for itself, with as many slots more than its send queue has places as one post may fill: sends leave the queue in the
//! order in which they were posted, so the slots of a post that is accepted are never ones that outstanding sends still
//! read, and the slots of one that is refused are nobody's.

use crate::device::limits::MAX_INLINE;
use crate::ffi::errno;
use crate::mem::mr::Pd;
use dgiwarp::{Access, Buffer, Mr, Sge};
use nix::errno::Errno;
use std::sync::{Mutex, PoisonError};

/// Bytes of one slot: what `ibv_query_qp` reports as `max_inline_data`.
pub(crate) const SLOT: usize = 256;
const _: () = assert!(SLOT as u64 == MAX_INLINE as u64);

/// The slots, made when the first inline send is posted.
#[derive(Debug)]
pub(crate) struct InlineRing {
    slots: usize,
    ring: Mutex<Option<Ring>>,
}

#[derive(Debug)]
struct Ring {
    buffer: Buffer,
    mr: Mr,
    slots: usize,
    next: usize,
}

impl Ring {
    fn new(pd: &Pd, slots: usize) -> Result<Self, Errno> {
        let buffer = Buffer::zeroed(slots * SLOT).map_err(|error| errno::of_io(&error))?;
        let mr = pd
            .pd
            .register(buffer.region(), Access::empty())
            .map_err(errno::of)?;
        Ok(Self {
            buffer,
            mr,
            slots,
            next: 0,
        })
    }
}

/// The slots that one post fills.
#[derive(Debug)]
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
        self.ring.buffer.write(start, data);
        self.next = (self.next + 1) % self.ring.slots;
        Ok(self.ring.mr.sge(start..start + data.len()))
    }
}

impl InlineRing {
    /// For a send queue with `places`, which the stack enforces, and posts of up to `longest` work requests that are
    /// accepted all or none.
    pub(crate) fn new(places: u32, longest: u32) -> Self {
        Self {
            slots: usize::try_from(places.saturating_add(longest)).unwrap_or(usize::MAX),
            ring: Mutex::new(None),
        }
    }

    /// Lets `post` fill slots and post from them; they count as used only if that succeeds.
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
