//! Registered memory, cut into slots for messages.

use dgiwarp::{Access, Buffer, Mr, Pd};

use crate::endpoint::ours::stack;
use crate::endpoint::pattern::widen;
use crate::error::Result;
use crate::session::control::RemoteRegion;

/// Slots begin on their own cache lines, and hold a credit at least.
pub(crate) const ALIGN: u64 = 64;

/// Memory and its registration.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) buffer: Buffer,
    pub(crate) region: Mr,
}

impl Memory {
    /// Zeros of this length, registered with these rights.
    pub(crate) fn new(pd: &Pd, length: usize, access: Access) -> Result<Self> {
        let buffer = Buffer::zeroed(length).map_err(stack("allocate memory"))?;
        let region = pd
            .register(buffer.region(), access)
            .map_err(stack("register memory"))?;
        Ok(Self { buffer, region })
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
