//! The program's memory: buffers and vectors of buffers.

use dgiwarp::{Buffer, RegionSlice};
use libc::iovec;
use nix::errno::Errno;
use std::ffi::c_void;

/// Most vectors of a call (`IOV_MAX`).
const MAX_VECTORS: usize = 1024;

/// Vectors of a call, and how much of them was done.
pub(super) struct Vectors<'a> {
    vectors: &'a [iovec],
    /// Octets of the first vector that are done.
    first: usize,
    /// Octets that are left.
    left: usize,
    all: usize,
}

impl<'a> Vectors<'a> {
    /// # Safety
    /// The program's vectors are valid for the call, and nobody else uses their memory.
    pub(super) unsafe fn new(vectors: &'a [iovec]) -> Result<Self, Errno> {
        let mut left = 0_usize;
        for vector in vectors {
            if vector.iov_base.is_null() && vector.iov_len > 0 {
                return Err(Errno::EFAULT);
            }
            left = left.checked_add(vector.iov_len).ok_or(Errno::EINVAL)?;
        }
        if isize::try_from(left).is_err() {
            return Err(Errno::EINVAL);
        }
        Ok(Self {
            vectors,
            first: 0,
            left,
            all: left,
        })
    }

    pub(super) fn left(&self) -> usize {
        self.left
    }

    /// Octets of the call, those of earlier attempts among them.
    pub(super) fn all(&self) -> usize {
        self.all
    }

    /// Octets that are done.
    pub(super) fn done(&self) -> usize {
        self.all - self.left
    }

    /// The next octets that lie in one piece, at most `most`.
    fn next(&mut self, most: usize) -> Option<(*mut u8, usize)> {
        loop {
            let (first, others) = self.vectors.split_first()?;
            let octets = (first.iov_len - self.first).min(most);
            if octets == 0 && !others.is_empty() && self.first == first.iov_len {
                (self.vectors, self.first) = (others, 0);
                continue;
            }
            if octets == 0 {
                return None;
            }
            let at = first.iov_base.cast::<u8>().wrapping_add(self.first);
            self.first += octets;
            self.left -= octets;
            return Some((at, octets));
        }
    }

    /// Copies the next octets into a buffer.
    pub(super) fn copy_into(&mut self, buffer: &Buffer, at: usize, octets: usize) {
        let mut copied = 0;
        while copied < octets
            && let Some((from, some)) = self.next(octets - copied)
        {
            // SAFETY: the program's memory, by the contract of `new`.
            let piece = unsafe { std::slice::from_raw_parts(from, some) };
            buffer.write(at + copied, piece);
            copied += some;
        }
    }

    /// Copies the next octets into memory that others use, too.
    pub(super) fn place(&mut self, to: &RegionSlice<'_>) {
        let mut copied = 0;
        while copied < to.len()
            && let Some((from, some)) = self.next(to.len() - copied)
        {
            // SAFETY: the program's memory, by the contract of `new`.
            let piece = unsafe { std::slice::from_raw_parts(from, some) };
            to.subslice(copied, some)
                .expect("no more than is left")
                .place(piece);
            copied += some;
        }
    }

    /// Copies the next octets into a slice.
    pub(super) fn copy_to(&mut self, to: &mut [u8]) {
        let mut copied = 0;
        while copied < to.len()
            && let Some((from, some)) = self.next(to.len() - copied)
        {
            // SAFETY: the program's memory, by the contract of `new`.
            let piece = unsafe { std::slice::from_raw_parts(from, some) };
            to[copied..copied + some].copy_from_slice(piece);
            copied += some;
        }
    }

    /// Fills the next octets from a buffer.
    pub(super) fn fill_from(&mut self, buffer: &Buffer, at: usize, octets: usize) {
        let mut copied = 0;
        while copied < octets
            && let Some((to, some)) = self.next(octets - copied)
        {
            // SAFETY: the program's memory, by the contract of `new`; calls that receive write all of it.
            let piece = unsafe { std::slice::from_raw_parts_mut(to, some) };
            buffer.read(at + copied, piece);
            copied += some;
        }
    }

    /// Leaves the next octets as they are.
    pub(super) fn skip(&mut self, octets: usize) {
        let mut skipped = 0;
        while skipped < octets
            && let Some((_, some)) = self.next(octets - skipped)
        {
            skipped += some;
        }
    }

    /// Fills the next octets from a slice.
    pub(super) fn fill(&mut self, from: &[u8]) {
        let mut copied = 0;
        while copied < from.len()
            && let Some((to, some)) = self.next(from.len() - copied)
        {
            // SAFETY: as above.
            let piece = unsafe { std::slice::from_raw_parts_mut(to, some) };
            piece.copy_from_slice(&from[copied..copied + some]);
            copied += some;
        }
    }
}

/// One vector.
pub(super) fn one(base: *const c_void, octets: usize) -> iovec {
    iovec {
        iov_base: base.cast_mut(),
        iov_len: octets,
    }
}

/// The vectors of a call.
///
/// # Safety
/// `vectors` is NULL or has `count` elements.
pub(super) unsafe fn many<'a>(vectors: *const iovec, count: usize) -> Result<&'a [iovec], Errno> {
    match (vectors.is_null(), count) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(Errno::EFAULT),
        (_, count) if count > MAX_VECTORS => Err(Errno::EINVAL),
        // SAFETY: not NULL, so as many elements by the caller's contract.
        (false, count) => Ok(unsafe { std::slice::from_raw_parts(vectors, count) }),
    }
}
