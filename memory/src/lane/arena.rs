//! Arenas: sealed memory of two processes, with a lane for each direction.

use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use super::ends::{LaneInput, LaneOutput, Memory};
use super::one_sided::{Grants, PAGE_OCTETS, Pages, PeerGrants};
use super::protocol::{Control, Ring};
use super::sync::Ordering;
use crate::mapping::{SEALS, memory_file};

#[cfg(test)]
mod tests;

/// First octets of an arena.
const MAGIC: u64 = u64::from_le_bytes(*b"DGWARENA");
/// Version of the layout.
const VERSION: u32 = 3;
/// Octets of a page.
const PAGE: usize = 4096;
/// Offset of the words of lane 0, and octets from there to those of lane 1.
const CONTROLS: usize = 0x400;
/// Offset of the words for one-sided copies of the maker; those of the taker follow them.
const GRANTS: usize = PAGE;
/// Offset of the ring of lane 0; that of lane 1 follows it.
const RINGS: usize = 2 * PAGE;
/// Logarithms of the octets of the longest ring. A lane begins with the least.
const RING_LOGARITHMS: std::ops::RangeInclusive<u32> = 12..=20;
const FIRST_RING: u32 = *RING_LOGARITHMS.start();

const _: () = assert!(size_of::<Control>() <= CONTROLS && size_of::<Header>() <= CONTROLS);
const _: () = assert!(GRANTS + 2 * PAGE_OCTETS == RINGS);

/// Beginning of an arena. Written before the arena is handed over.
#[repr(C)]
struct Header {
    magic: u64,
    version: u32,
    /// Logarithm of the octets of each ring.
    ring_logarithm: u32,
    /// Octets of the arena.
    octets: u64,
}

/// Reason not to use an arena of another process.
#[derive(Debug, thiserror::Error)]
pub enum ArenaError {
    /// The kernel refuses.
    #[error("cannot use an arena")]
    System(#[from] io::Error),
    /// The memory can be taken away.
    #[error("an arena has the seals {0:#x}")]
    Seals(libc::c_int),
    /// It is no arena of this version.
    #[error("an arena has the magic number {magic:#x} and version {version}")]
    Version {
        /// First octets.
        magic: u64,
        /// Version.
        version: u32,
    },
    /// Its sizes do not agree.
    #[error("an arena of {octets} octets has rings of 2^{ring_logarithm}")]
    Size {
        /// Octets of the file.
        octets: u64,
        /// Logarithm of the octets of a ring.
        ring_logarithm: u32,
    },
}

/// One of the two processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArenaEnd {
    /// The one that made the arena. It sends in lane 0.
    Maker,
    /// The other one. It sends in lane 1.
    Taker,
}

/// A mapping of shared memory, unmapped when the last end of a lane goes.
#[derive(Debug)]
pub(super) struct Shared {
    start: NonNull<u8>,
    octets: usize,
}

// SAFETY: an address range; all accesses are atomic operations and raw copies.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    fn map(fd: BorrowedFd<'_>, octets: usize) -> io::Result<Self> {
        // SAFETY: a new mapping, at an address of the kernel's choice.
        let address = unsafe {
            libc::mmap(
                ptr::null_mut(),
                octets,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                fd.as_raw_fd(),
                0,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(address.cast::<u8>())
            .ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?;
        let mapping = Self { start, octets };
        // A child that forks off has no connection.
        mapping.advise(libc::MADV_DONTFORK)?;
        Ok(mapping)
    }

    fn advise(&self, advice: libc::c_int) -> io::Result<()> {
        // SAFETY: advice about a mapping of this object.
        let result = unsafe { libc::madvise(self.start.as_ptr().cast(), self.octets, advice) };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    /// Takes memory for the pages of `len` octets now, so that too little of it is an error and not a signal.
    pub(super) fn populate(&self, start: NonNull<u8>, len: usize) -> io::Result<()> {
        let from = start.as_ptr() as usize - self.start.as_ptr() as usize;
        assert!(
            len <= self.octets - from,
            "rings are inside of their mapping"
        );
        // SAFETY: advice about a part of the mapping of this object.
        let result =
            unsafe { libc::madvise(start.as_ptr().cast(), len, libc::MADV_POPULATE_WRITE) };
        match io::Error::last_os_error() {
            // Kernels before 5.14.
            error if result < 0 && error.raw_os_error() != Some(libc::EINVAL) => Err(error),
            _ => Ok(()),
        }
    }

    /// Takes memory for what a new arena uses: header, words, and the beginning of both rings.
    fn populate_first(&self, ring: usize) -> io::Result<()> {
        self.populate(self.start, GRANTS)?;
        self.populate(self.at(RINGS), 1 << FIRST_RING)?;
        self.populate(self.at(RINGS + ring), 1 << FIRST_RING)
    }

    fn header(&self) -> *mut Header {
        self.start.as_ptr().cast()
    }

    /// Address of the octet at an offset.
    fn at(&self, offset: usize) -> NonNull<u8> {
        assert!(offset < self.octets, "offsets follow from the arena's size");
        // SAFETY: inside the mapping.
        unsafe { self.start.add(offset) }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: the mapping of `map`; no end of a lane is left, each holds an `Arc` of it.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.octets) };
    }
}

/// Memory that two processes share, with a lane for each direction.
#[derive(Debug)]
pub struct Arena {
    shared: Arc<Shared>,
    ring: usize,
}

/// An arena of another process, of which nothing has been mapped yet.
#[derive(Debug)]
pub struct OfferedArena<'a> {
    fd: BorrowedFd<'a>,
    octets: usize,
}

impl<'a> OfferedArena<'a> {
    /// Checks seals and length of the file.
    ///
    /// # Errors
    /// [`ArenaError`].
    pub fn check(fd: BorrowedFd<'a>) -> Result<Self, ArenaError> {
        // SAFETY: asks about an open descriptor.
        let seals = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) };
        if seals < 0 {
            return Err(io::Error::last_os_error().into());
        }
        if seals & SEALS != SEALS {
            return Err(ArenaError::Seals(seals));
        }
        let octets = length(fd)?;
        let len = usize::try_from(octets).unwrap_or(usize::MAX);
        if len < RINGS || len > octets_of(1 << RING_LOGARITHMS.end()) {
            return Err(wrong_size(octets, 0));
        }
        Ok(Self { fd, octets: len })
    }

    /// Maps the arena, after all checks.
    ///
    /// # Errors
    /// [`ArenaError`].
    pub fn open(self) -> Result<Arena, ArenaError> {
        let shared = Shared::map(self.fd, self.octets)?;
        // SAFETY: inside the mapping. Read once: the other process may change it.
        let header = unsafe { shared.header().read_volatile() };
        if (header.magic, header.version) != (MAGIC, VERSION) {
            return Err(ArenaError::Version {
                magic: header.magic,
                version: header.version,
            });
        }
        let octets = self.octets as u64;
        let ring_logarithm = header.ring_logarithm;
        let fits = RING_LOGARITHMS.contains(&ring_logarithm)
            && octets_of(1 << ring_logarithm) == self.octets
            && header.octets == octets;
        if !fits {
            return Err(wrong_size(octets, ring_logarithm));
        }
        let ring = 1 << ring_logarithm;
        shared.populate_first(ring)?;
        Ok(Arena {
            shared: Arc::new(shared),
            ring,
        })
    }
}

const fn wrong_size(octets: u64, ring_logarithm: u32) -> ArenaError {
    ArenaError::Size {
        octets,
        ring_logarithm,
    }
}

/// Octets of an arena.
const fn octets_of(ring: usize) -> usize {
    RINGS + 2 * ring
}

impl Arena {
    /// Octets of memory that an arena takes before a ring [grows](LaneOutput::grow), with that for [grants](Self::grants).
    pub const FIRST_OCTETS: usize = octets_of(1 << FIRST_RING);

    /// Makes an arena with rings of up to 2^`ring_logarithm` octets, 12 to 20, and the descriptor to hand over.
    ///
    /// # Errors
    /// Errors of `memfd_create(2)`, `ftruncate(2)`, `fcntl(2)`, `mmap(2)` and `madvise(2)`; `EFBIG` beyond `RLIMIT_FSIZE`, `EINVAL` for other
    /// sizes.
    pub fn create(ring_logarithm: u32) -> io::Result<(Self, OwnedFd)> {
        if !RING_LOGARITHMS.contains(&ring_logarithm) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let ring = 1usize << ring_logarithm;
        let octets = octets_of(ring);
        let fd = memory_file(c"dgiwarp-lanes", octets)?;
        let shared = Shared::map(fd.as_fd(), octets)?;
        shared.populate_first(ring)?;
        let header = Header {
            magic: MAGIC,
            version: VERSION,
            ring_logarithm,
            octets: octets as u64,
        };
        // SAFETY: the first octets of the mapping, which no other process has yet.
        unsafe { shared.header().write(header) };
        let arena = Self {
            shared: Arc::new(shared),
            ring,
        };
        for lane in 0..2 {
            // SAFETY: the words of a lane are inside the mapping, aligned to a page, and zero; every access to them is atomic.
            let words = unsafe { words_of(&arena.shared, lane).as_ref() };
            words.bells.0.armed.store(1, Ordering::Relaxed);
            let ring = &words.published.0.ring;
            ring.store(FIRST_RING, Ordering::Relaxed);
        }
        Ok((arena, fd))
    }

    /// Octets of the arena.
    #[must_use]
    pub fn octets(&self) -> usize {
        self.shared.octets
    }

    /// Regions that an end grants to its peer, and those that the peer grants to it. Both ends know the `token`.
    #[must_use]
    pub fn grants(&self, end: ArenaEnd, token: u128) -> (Grants, PeerGrants) {
        let page = |index| self.shared.at(GRANTS + index * PAGE_OCTETS).cast();
        let (own, peers) = match end {
            ArenaEnd::Maker => (page(0), page(1)),
            ArenaEnd::Taker => (page(1), page(0)),
        };
        let (receives, sends) = match end {
            ArenaEnd::Maker => (1, 0),
            ArenaEnd::Taker => (0, 1),
        };
        let lanes = [receives, sends].map(|lane| words_of(&self.shared, lane));
        let pages = Pages::new(Arc::clone(&self.shared), [own, peers], lanes);
        (
            Grants::new(pages.clone(), token),
            PeerGrants::new(pages, token),
        )
    }

    /// The lanes of an end: that in which it sends, and that in which it receives.
    #[must_use]
    pub fn lanes(self, end: ArenaEnd) -> (LaneOutput, LaneInput) {
        let (sends, receives) = match end {
            ArenaEnd::Maker => (0, 1),
            ArenaEnd::Taker => (1, 0),
        };
        let Self { shared, ring } = self;
        let memory = |lane| {
            let words = words_of(&shared, lane);
            let octets = shared.at(RINGS + lane * ring);
            let sizes = Ring {
                present: FIRST_RING,
                most: ring.trailing_zeros(),
            };
            Memory::new(Arc::clone(&shared), words, octets, sizes)
        };
        let ends = (memory(sends), memory(receives));
        (LaneOutput::new(ends.0), LaneInput::new(ends.1))
    }
}

/// Words of a lane.
fn words_of(shared: &Shared, lane: usize) -> NonNull<Control> {
    shared.at((1 + lane) * CONTROLS).cast()
}

/// Octets of a file.
fn length(fd: BorrowedFd<'_>) -> io::Result<u64> {
    // SAFETY: the kernel's structure of numbers, for which zeros are valid.
    let mut status = unsafe { std::mem::zeroed::<libc::stat>() };
    // SAFETY: the kernel writes one structure.
    if unsafe { libc::fstat(fd.as_raw_fd(), &raw mut status) } < 0 {
        return Err(io::Error::last_os_error());
    }
    u64::try_from(status.st_size).map_err(|_| io::ErrorKind::InvalidData.into())
}
