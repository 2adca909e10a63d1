//! Registered memory, cut into slots for messages.

use std::sync::atomic::{AtomicU64, Ordering};

use dgiwarp::{Access, Buffer, Mr, Pd};

use crate::endpoint::ours::stack;
use crate::endpoint::pattern::widen;
use crate::error::{PerfError, Result};
use crate::session::control::RemoteRegion;

/// Slots begin on their own cache lines, and hold a credit at least.
pub(crate) const ALIGN: u64 = 64;

/// Octets of all [`Memory`] of this process, and the most that there may be.
static IN_USE: AtomicU64 = AtomicU64::new(0);
static LIMIT: AtomicU64 = AtomicU64::new(u64::MAX);

/// Limits the memory of all endpoints together: a server's peer chooses their sizes.
pub(crate) fn limit(octets: u64) {
    LIMIT.store(octets, Ordering::Relaxed);
}

/// A share of the limit, given back when it goes.
#[derive(Debug)]
pub(crate) struct Share(u64);

impl Share {
    /// Takes so many octets, if they are left.
    pub(crate) fn take(octets: u64) -> Result<Self> {
        let limit = LIMIT.load(Ordering::Relaxed);
        let taken = IN_USE.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            used.checked_add(octets).filter(|sum| *sum <= limit)
        });
        match taken {
            Ok(_) => Ok(Self(octets)),
            Err(used) => Err(PerfError::Usage(format!(
                "{octets} bytes more than the {used} in use exceed this server's limit of {limit} (server --memory)"
            ))),
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        IN_USE.fetch_sub(self.0, Ordering::Relaxed);
    }
}

/// Memory and its registration.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) buffer: Buffer,
    pub(crate) region: Mr,
    _share: Share,
}

impl Memory {
    /// Zeros of this length, registered with these rights.
    pub(crate) fn new(pd: &Pd, length: usize, access: Access) -> Result<Self> {
        let share = Share::take(widen(length))?;
        let buffer = Buffer::zeroed(length).map_err(stack("allocate memory"))?;
        let region = pd
            .register(buffer.region(), access)
            .map_err(stack("register memory"))?;
        Ok(Self {
            buffer,
            region,
            _share: share,
        })
    }

    /// The region as the peer addresses it.
    pub(crate) fn remote(&self) -> RemoteRegion {
        RemoteRegion {
            stag: self.region.rkey(),
            base: self.region.addr(),
            length: widen(self.buffer.len()),
        }
    }
}

/// Distance of messages of this length.
pub(crate) fn stride(length: u64) -> u64 {
    length.next_multiple_of(ALIGN)
}
