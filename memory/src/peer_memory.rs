//! The memory of another process on this host.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;

use crate::{FileError, MemoryFile, Piece, Region, RegionSlice};

/// Parts of one copy: of 64 pieces, and the last octets.
const MOST: usize = 65;
/// Octets of a copy that are written last.
const LAST: usize = 8;

/// The memory of another process (`/proc/PID/mem` of `proc(5)`), for copies that need nothing of that process.
///
/// It is that of the program that ran when it was opened: after an `execve(2)`, or under a process number that was used again, copies fail. The kernel opens
/// it for processes that may trace the other one (`ptrace(2)`, "Ptrace access mode checking"). Writing ignores the protection of private pages, as a device
/// does that has pinned them.
#[derive(Debug)]
pub struct PeerMemory {
    file: File,
}

impl From<OwnedFd> for PeerMemory {
    fn from(fd: OwnedFd) -> Self {
        Self { file: fd.into() }
    }
}

impl From<PeerMemory> for OwnedFd {
    fn from(memory: PeerMemory) -> Self {
        memory.file.into()
    }
}

impl AsFd for PeerMemory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl PeerMemory {
    /// Opens the memory of a process.
    ///
    /// # Errors
    /// Errors of `open(2)`: `EACCES` or `EPERM` without the right to trace the process, `ENOENT` if there is none, `EMFILE` without a descriptor.
    pub fn open(pid: u32) -> io::Result<Self> {
        let path = format!("/proc/{pid}/mem");
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        Ok(Self { file })
    }

    /// Maps `len` octets of a memory file that a process has open, to be read and written. A file that may be cut shorter is refused.
    ///
    /// # Errors
    /// Errors of `open(2)` and `mmap(2)`; [`InvalidInput`](io::ErrorKind::InvalidInput) for anything else than such a memory file, and for octets outside of it.
    pub fn map(pid: u32, file: MemoryFile, len: usize) -> io::Result<Region> {
        let MemoryFile { fd, offset } = file;
        let path = format!("/proc/{pid}/fd/{fd}");
        // Opening a device or a pipe may wait, or do something.
        if !fs::read_link(&path)?
            .as_os_str()
            .as_bytes()
            .starts_with(b"/memfd:")
        {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
            .open(path)?;
        let region = Region::of_file(file.as_fd(), offset, len, true);
        match region {
            Ok(region) if !region.is_on_demand() => Ok(region),
            Err(FileError::System(error)) => Err(error),
            Ok(_) | Err(_) => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    /// Reads octets at an address. Returns whether all are there.
    #[must_use]
    pub fn read_bytes(&self, address: u64, into: &mut [u8]) -> bool {
        let mut parts = Parts::new();
        parts.push(into.as_mut_ptr(), into.len())
            && parts.transfer(&self.file, address, libc::preadv)
    }

    /// Reads octets at an address into slices, one behind the other. Returns whether all are there: else some may be written.
    #[must_use]
    pub fn read(&self, address: u64, into: &[RegionSlice<'_>]) -> bool {
        let mut parts = Parts::new();
        into.iter()
            .all(|slice| parts.push(slice.as_ptr().cast_mut(), slice.len()))
            && parts.transfer(&self.file, address, libc::preadv)
    }

    /// Writes octets at an address, the last 8 of them last and at one time. Returns whether all are written: else some may be.
    #[must_use]
    pub fn write(&self, address: u64, pieces: &[Piece<'_>]) -> bool {
        let mut last = [0; LAST];
        let parts = Parts::to_write(pieces, &mut last);
        parts.is_some_and(|parts| parts.transfer(&self.file, address, libc::pwritev))
    }
}

/// Vectored system call.
type Vectored = unsafe extern "C" fn(
    libc::c_int,
    *const libc::iovec,
    libc::c_int,
    libc::off_t,
) -> libc::ssize_t;

/// Memory of this process that a copy reads or writes.
struct Parts {
    parts: [libc::iovec; MOST],
    len: usize,
    octets: usize,
}

impl Parts {
    const fn new() -> Self {
        let none = libc::iovec {
            iov_base: std::ptr::null_mut(),
            iov_len: 0,
        };
        Self {
            parts: [none; MOST],
            len: 0,
            octets: 0,
        }
    }

    /// Adds octets. Returns whether there was room.
    fn push(&mut self, base: *mut u8, len: usize) -> bool {
        if len == 0 {
            return true;
        }
        let Some(part) = self.parts.get_mut(self.len) else {
            return false;
        };
        *part = libc::iovec {
            iov_base: base.cast(),
            iov_len: len,
        };
        self.len += 1;
        self.octets += len;
        true
    }

    /// Memory of `pieces`, whose last octets are copied to `last`: nothing orders the octets of one part. `None` where there is no room for so many.
    fn to_write(pieces: &[Piece<'_>], last: &mut [u8; LAST]) -> Option<Self> {
        let octets: usize = pieces.iter().map(Piece::len).sum();
        let (mut before, mut gathered) = (octets.saturating_sub(LAST), 0);
        let mut parts = Self::new();
        for piece in pieces {
            let now = before.min(piece.len());
            let rest = &mut last[gathered..gathered + piece.len() - now];
            let base = match piece {
                Piece::Bytes(bytes) => {
                    rest.copy_from_slice(&bytes[now..]);
                    bytes.as_ptr()
                }
                Piece::Region(slice) => {
                    let behind = slice.subslice(now, rest.len());
                    behind.expect("a part of the slice").copy_to(rest);
                    slice.as_ptr()
                }
            };
            gathered += rest.len();
            before -= now;
            if !parts.push(base.cast_mut(), now) {
                return None;
            }
        }
        parts.push(last.as_mut_ptr(), gathered).then_some(parts)
    }

    /// Copies all octets with one call. Returns whether it did.
    fn transfer(&self, file: &File, address: u64, call: Vectored) -> bool {
        let (Ok(at), Ok(len)) = (
            libc::off_t::try_from(address),
            libc::c_int::try_from(self.len),
        ) else {
            return false;
        };
        // SAFETY: the parts are live for the call, of slices or regions; the kernel checks each page of them, and of the other process.
        let copied = unsafe { call(file.as_raw_fd(), self.parts.as_ptr(), len, at) };
        usize::try_from(copied) == Ok(self.octets)
    }
}

/// Whether a process has ended, reaped by its parent or not (`pidfd_open(2)`). A number that was used again counts as running.
#[must_use]
pub fn is_process_gone(pid: u32) -> bool {
    // SAFETY: a system call that takes numbers.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    let Ok(fd) = libc::c_int::try_from(fd) else {
        return false;
    };
    if fd < 0 {
        return io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH);
    }
    // SAFETY: a new descriptor without another owner.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let mut polled = libc::pollfd {
        fd: fd.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one structure, for a call that does not wait.
    let ended = unsafe { libc::poll(&raw mut polled, 1, 0) };
    ended > 0
}

/// Lets all processes of the user trace this one, and so [open](PeerMemory::open) its memory, where the Yama security module restricts that to its parents
/// (`PR_SET_PTRACER` of `prctl(2)`).
///
/// # Errors
/// `EINVAL` where the kernel has no Yama.
pub fn allow_tracing() -> io::Result<()> {
    // SAFETY: a setting of this process.
    let set = unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY, 0, 0, 0) };
    if set < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

#[cfg(test)]
mod tests;
