//! Allocators of parent domains: `ibv_alloc_parent_domain(3)`.

use crate::abi::{AllocFunction, FreeFunction, ibv_pd};
use crate::ffi::CPointer;
use dgiwarp_memory::Region;
use nix::errno::Errno;
use std::ffi::c_void;
use std::ptr::NonNull;

/// `IBV_ALLOCATOR_USE_DEFAULT`.
const USE_DEFAULT: usize = usize::MAX;
/// Alignment of buffers in bytes: they are registered, so whole pages.
const ALIGNMENT: usize = 4096;

/// `DGIWARPDV_RES_TYPE_QP`: inline data of a UD or UC queue pair. The driver in the upper half is `RDMA_DRIVER_UNKNOWN`.
pub(crate) const OF_QP: u64 = 1;

/// Functions of the program that allocate buffers of objects of a parent domain.
#[derive(Clone, Copy)]
pub(crate) struct Allocators {
    pub(crate) pd: CPointer<ibv_pd>,
    pub(crate) context: CPointer<c_void>,
    pub(crate) alloc: AllocFunction,
    pub(crate) free: FreeFunction,
}

impl Allocators {
    /// A buffer, or `None` where the program leaves that to the device.
    pub(crate) fn allocate(
        &self,
        length: usize,
        resource: u64,
    ) -> Result<Option<Allocated>, Errno> {
        let (pd, context) = (self.pd.0, self.context.0);
        // SAFETY: a function of the program for its live domain, called in a call of the program.
        let found = unsafe { (self.alloc)(pd, context, length, ALIGNMENT, resource) };
        if found.addr() == USE_DEFAULT {
            return Ok(None);
        }
        let memory = NonNull::new(found).ok_or(Errno::ENOMEM)?;
        Ok(Some(Allocated {
            by: *self,
            memory: CPointer(memory.as_ptr()),
            length,
            resource,
        }))
    }
}

/// A buffer of the program's allocator, which gets it back when this is dropped.
pub(crate) struct Allocated {
    by: Allocators,
    memory: CPointer<c_void>,
    length: usize,
    resource: u64,
}

impl Allocated {
    /// The buffer as memory to register.
    ///
    /// # Safety
    /// The region is not used after this is dropped.
    pub(crate) unsafe fn region(&self) -> Result<Region, Errno> {
        let start = NonNull::new(self.memory.0.cast::<u8>()).ok_or(Errno::ENOMEM)?;
        // SAFETY: by the contract of the program's function, `length` bytes until they are freed.
        Ok(unsafe { Region::from_raw_parts(start, self.length) })
    }
}

impl Drop for Allocated {
    fn drop(&mut self) {
        let (pd, context) = (self.by.pd.0, self.by.context.0);
        // SAFETY: memory of the function's counterpart, freed once; the domain lives as long as its objects.
        unsafe { (self.by.free)(pd, context, self.memory.0, self.resource) };
    }
}
