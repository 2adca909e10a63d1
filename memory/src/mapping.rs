//! Mappings that own the memory of buffers and of regions of files, and memory files.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::{self, NonNull};

/// Seals that exclude `SIGBUS`: nobody can take memory away.
pub(crate) const SEALS: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

/// The place of a region in a memory file (`memfd_create(2)`) of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryFile {
    /// Number of the file's descriptor in that process, below 2^31.
    pub fd: u32,
    /// Offset of the region's first byte in the file.
    pub offset: u64,
}

/// A mapping, unmapped when the last owner goes.
#[derive(Debug)]
pub(crate) struct Mapping {
    /// First byte of the mapping.
    ptr: NonNull<u8>,
    /// Bytes asked for; 0 maps one.
    len: usize,
    /// The memory file that it maps from its beginning, where peers may map that as well.
    file: Option<OwnedFd>,
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

    /// Maps the first `len` bytes of a memory file that keeps its size, and holds it open.
    pub(crate) fn of_memory_file(file: OwnedFd, len: usize) -> io::Result<Self> {
        let mut mapping = Self::shared(file.as_fd(), 0, len, true)?;
        mapping.file = Some(file);
        Ok(mapping)
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
        Ok(Self {
            ptr,
            len,
            file: None,
        })
    }

    pub(crate) fn ptr(&self) -> NonNull<u8> {
        self.ptr
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn file(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(OwnedFd::as_fd)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: address and length are those of `mmap`, and no `Region` is left: each holds an `Arc`
        // of this mapping.
        unsafe { libc::munmap(self.ptr.as_ptr().cast(), self.len.max(1)) };
    }
}

/// Makes a memory file of so many bytes, zeroed and sealed. Pages take memory when they are first written.
///
/// # Errors
/// Errors of `memfd_create(2)`, `ftruncate(2)` and `fcntl(2)`; `EFBIG` beyond `RLIMIT_FSIZE`.
pub(crate) fn memory_file(name: &CStr, bytes: usize) -> io::Result<OwnedFd> {
    if bytes as u64 > longest_file()? {
        return Err(io::Error::from_raw_os_error(libc::EFBIG));
    }
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: a name that ends with zero.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), flags) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor without another owner.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let length =
        libc::off_t::try_from(bytes).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    // SAFETY: a call on a descriptor of this function.
    let sized = unsafe { libc::ftruncate(fd.as_raw_fd(), length) };
    // SAFETY: as above.
    if sized < 0 || unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, SEALS) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(fd)
}

/// Bytes that a file may have. `ftruncate(2)` beyond them raises `SIGXFSZ`, which ends a process that does not expect it.
fn longest_file() -> io::Result<u64> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the kernel writes one structure.
    if unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(limit.rlim_cur)
}
