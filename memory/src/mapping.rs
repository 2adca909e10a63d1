//! Anonymous mappings, which own the memory of buffers.

use std::io;
use std::ptr::{self, NonNull};

/// An anonymous mapping, unmapped when the last owner goes.
#[derive(Debug)]
pub(crate) struct Mapping {
    /// First byte of the mapping.
    ptr: NonNull<u8>,
    /// Bytes asked for; 0 maps one.
    len: usize,
}

// SAFETY: a mapping is only an address range; every access goes through `RegionSlice`, whose rules
// (no references, raw copies only) hold from any thread.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` zero bytes, one page at least.
    pub(crate) fn zeroed(len: usize) -> io::Result<Self> {
        Self::anonymous(len, libc::PROT_READ | libc::PROT_WRITE)
    }

    /// Maps `len` bytes that are always zero and take no memory but that of page tables.
    pub(crate) fn always_zero(len: usize) -> io::Result<Self> {
        Self::anonymous(len, libc::PROT_READ)
    }

    fn anonymous(len: usize, protection: libc::c_int) -> io::Result<Self> {
        // SAFETY: an anonymous private mapping at an address of the kernel's choice touches no
        // existing memory.
        let address = unsafe {
            libc::mmap(
                ptr::null_mut(),
                len.max(1),
                protection,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let ptr = NonNull::new(address.cast::<u8>())
            .ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?;
        Ok(Self { ptr, len })
    }

    pub(crate) fn ptr(&self) -> NonNull<u8> {
        self.ptr
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: address and length are those of `mmap`, and no `Region` is left: each holds an `Arc`
        // of this mapping.
        unsafe { libc::munmap(self.ptr.as_ptr().cast(), self.len.max(1)) };
    }
}
