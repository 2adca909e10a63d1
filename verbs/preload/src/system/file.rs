//! Memory of this process that others can read, as a file without a name.

use crate::system::kernel;
use crate::system::next;
use libc::{
    F_SEAL_GROW, F_SEAL_SEAL, F_SEAL_SHRINK, MAP_FAILED, MAP_SHARED, MFD_ALLOW_SEALING,
    MFD_CLOEXEC, PROT_READ, PROT_WRITE, c_int, c_void,
};
use std::ffi::CStr;
use std::ptr;
use std::sync::atomic::AtomicU64;

/// `F_SEAL_FUTURE_WRITE`: no other mapping or call writes.
const FUTURE_WRITE: c_int = 0x10;

/// A mapped memfd.
#[derive(Debug)]
pub(crate) struct Memory {
    fd: c_int,
    inode: u64,
    start: *mut AtomicU64,
    words: usize,
}

// SAFETY: the memory belongs to no thread, and all accesses are atomic.
unsafe impl Send for Memory {}

impl Memory {
    /// Words of zero. They take memory once they are used.
    pub(crate) fn new(name: &CStr, words: usize) -> Option<Self> {
        if words as u64 * 8 > longest_file()? {
            return None;
        }
        // SAFETY: a C string.
        let fd = unsafe { libc::memfd_create(name.as_ptr(), MFD_CLOEXEC | MFD_ALLOW_SEALING) };
        if fd < 0 {
            return None;
        }
        Self::begin(fd, words).or_else(|| {
            kernel::close(fd);
            None
        })
    }

    fn begin(fd: c_int, words: usize) -> Option<Self> {
        let octets = words.checked_mul(8)?;
        // SAFETY: numbers only.
        if unsafe { libc::ftruncate(fd, libc::off_t::try_from(octets).ok()?) } != 0 {
            return None;
        }
        let rights = PROT_READ | PROT_WRITE;
        // SAFETY: new memory of the system's choice.
        let start = unsafe { libc::mmap(ptr::null_mut(), octets, rights, MAP_SHARED, fd, 0) };
        if start == MAP_FAILED {
            return None;
        }
        let mut memory = Self {
            fd,
            inode: kernel::inode(fd),
            start: start.cast(),
            words,
        };
        if !memory.seal() {
            memory.unmap();
            return None;
        }
        memory.move_up();
        Some(memory)
    }

    /// Fixes the size. Kernels before 5.1 have no seal against writes.
    fn seal(&self) -> bool {
        let size = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
        [size | FUTURE_WRITE, size].into_iter().any(|seals| {
            // SAFETY: numbers only.
            unsafe { next::fcntl(self.fd, libc::F_ADD_SEALS, seals.into()) == 0 }
        })
    }

    fn move_up(&mut self) {
        self.fd = kernel::leave_low_numbers(self.fd);
    }

    /// The first word. All are valid until [`end`](Self::end).
    pub(crate) fn start(&self) -> *mut AtomicU64 {
        self.start
    }

    fn unmap(&self) {
        let start: *mut c_void = self.start.cast();
        // SAFETY: the mapping of this object, which nothing uses any more.
        unsafe { libc::munmap(start, self.words * 8) };
    }

    /// Gives descriptor and mapping up, in a child of fork(2). The program may have closed the descriptor, and the number may be another file's.
    pub(crate) fn end(self) {
        if self.inode != 0 && kernel::inode(self.fd) == self.inode {
            kernel::close(self.fd);
        }
        self.unmap();
    }
}

/// Octets that a file may have. `ftruncate(2)` beyond them raises `SIGXFSZ`, which ends a process that does not expect it.
fn longest_file() -> Option<u64> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: room for a limit.
    let result = unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) };
    (result == 0).then_some(limit.rlim_cur)
}
