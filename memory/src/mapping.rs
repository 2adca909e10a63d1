//! Mappings that own the memory of buffers and of regions of files.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::ptr::{self, NonNull};

/// A mapping, unmapped when the last owner goes.
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
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        Self::new(len, protection, flags, (-1, 0))
    }

    /// Maps `len` bytes of a file at `offset`, to be read, and written if `write`. Both are multiples of the file's page.
    pub(crate) fn shared(
        file: BorrowedFd<'_>,
        offset: libc::off_t,
        len: usize,
        write: bool,
    ) -> io::Result<Self> {
        let writable = if write { libc::PROT_WRITE } else { 0 };
        let protection = libc::PROT_READ | writable;
        Self::new(
            len,
            protection,
            libc::MAP_SHARED,
            (file.as_raw_fd(), offset),
        )
    }

    fn new(
        len: usize,
        protection: libc::c_int,
        flags: libc::c_int,
        (fd, offset): (RawFd, libc::off_t),
    ) -> io::Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let address =
            unsafe { libc::mmap(ptr::null_mut(), len.max(1), protection, flags, fd, offset) };
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
