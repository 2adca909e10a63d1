//! Inline data: the program may reuse its buffer as soon as the post returns, and the buffer needs no key.
//!
//! The stack sends from registered memory. So inline data is copied into a ring of slots that the queue pair registers
//! for itself, one slot more than its send queue has places: sends leave the queue in the order in which they were
//! posted, so the slot of a post that is accepted is never one that an outstanding send still reads, and the slot of
//! one that is refused is nobody's.

use crate::limits::MAX_INLINE;
use crate::memory::Pd;
use dgiwarp::{Access, Buffer, Mr, Sge};
use nix::errno::Errno;
use std::sync::{Mutex, PoisonError};

/// Bytes of one slot: what `ibv_query_qp` reports as `max_inline_data`.
pub(crate) const SLOT: usize = 256;
const _: () = assert!(SLOT as u64 == MAX_INLINE as u64);

/// The slots, made when the first inline send is posted.
#[derive(Debug, Default)]
pub(crate) struct InlineRing {
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
        let buffer =
            Buffer::zeroed(slots * SLOT).map_err(|error| crate::device::errno_of(&error))?;
        let mr = pd
            .pd
            .register(buffer.region(), Access::empty())
            .map_err(|error| crate::errno::of_create(&error))?;
        Ok(Self {
            buffer,
            mr,
            slots,
            next: 0,
        })
    }
}

impl InlineRing {
    /// Copies `data`, at most [`SLOT`] bytes, into the next slot and posts it with `post`; the slot counts as used only
    /// if that accepted it.
    ///
    /// `send_queue` is the number of places in the send queue, which the stack enforces.
    pub(crate) fn post(
        &self,
        pd: &Pd,
        send_queue: u32,
        data: &[u8],
        post: impl FnOnce(Sge) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        if data.len() > SLOT {
            return Err(Errno::EINVAL);
        }
        let places = usize::try_from(send_queue).map_err(|_| Errno::EINVAL)?;
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        let ring = match &mut *ring {
            Some(ring) => ring,
            empty => empty.insert(Ring::new(pd, places + 1)?),
        };
        let start = ring.next * SLOT;
        ring.buffer.write(start, data);
        post(ring.mr.sge(start..start + data.len()))?;
        ring.next = (ring.next + 1) % ring.slots;
        Ok(())
    }
}
