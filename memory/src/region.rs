//! Regions and the checked slices of them.

use std::io;
use std::marker::PhantomData;
use std::os::fd::AsRawFd;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{self, AtomicU8, AtomicU64, Ordering};

use dgiwarp_codec::{Payload, crc};

use crate::mapping::{Mapping, MemoryFile};
use crate::{mapped, on_demand};

/// Octets that a prefetch reaches.
#[cfg(target_arch = "x86_64")]
const PREFETCHED: usize = 2048;
/// Octets of a cache line.
#[cfg(target_arch = "x86_64")]
const LINE: usize = 64;

/// Octets of one copy through memory of this thread.
const CHUNK: usize = 4096;

/// A range reaches outside its region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{len} bytes at offset {offset} reach outside a region of {region_len} bytes")]
pub struct OutOfBounds {
    /// Offset of the range in the region, in bytes.
    pub offset: usize,
    /// Length of the range in bytes.
    pub len: usize,
    /// Length of the region in bytes.
    pub region_len: usize,
}

/// An atomic operation could not be done, and memory is untouched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AtomicError {
    /// The address is not a multiple of 8 (RFC 7306 §5).
    #[error("address {0:#x} is not a multiple of 8")]
    Misaligned(usize),
    /// The slice is not 8 bytes long.
    #[error("atomic operations work on 8 bytes, not {0}")]
    Length(usize),
}

/// Memory that may be registered.
///
/// Cloning shares it. A region of a [`Buffer`](crate::Buffer) or of a file keeps that mapped.
#[derive(Debug, Clone)]
pub struct Region {
    /// First byte; `ptr..ptr + len` is mapped as long as the region exists.
    ptr: NonNull<u8>,
    /// Bytes.
    len: usize,
    /// Pages come and go: every access is one that may fail.
    on_demand: bool,
    /// Owner of the memory; `None` for a C program's.
    mapping: Option<Arc<Mapping>>,
}

// SAFETY: a region gives access to its bytes only through `RegionSlice`, which makes raw copies and no
// references; concurrent access is described, and allowed, by the crate's header.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// A region over a C program's memory.
    ///
    /// # Safety
    /// `ptr..ptr + len` must not wrap and must stay mapped, with the protection that its use needs,
    /// until no `Region` made here is left; that is the contract of `ibv_reg_mr(3)`. Rust code must
    /// hold no reference into the range while the region exists.
    #[must_use]
    pub unsafe fn from_raw_parts(ptr: NonNull<u8>, len: usize) -> Self {
        Self {
            ptr,
            len,
            on_demand: false,
            mapping: None,
        }
    }

    /// A region over a range of this process whose pages are mapped, protected and unmapped while it exists (`IBV_ACCESS_ON_DEMAND`).
    ///
    /// Each use checks the pages first ([`reach`](Self::reach)), and each copy goes through `process_vm_readv(2)` or `process_vm_writev(2)`: of
    /// pages that are unmapped after the check, a copy writes nothing and reads zeros. Where the kernel denies these calls, copies are
    /// plain, and a program must not unmap pages during an operation on them. Atomic operations are plain everywhere.
    ///
    /// # Safety
    /// `ptr..ptr + len` must not wrap, and Rust code must hold no reference into the range while the region exists.
    #[must_use]
    pub unsafe fn on_demand(ptr: NonNull<u8>, len: usize) -> Self {
        Self {
            ptr,
            len,
            on_demand: true,
            mapping: None,
        }
    }

    /// A region of `len` zeroes that can be read only: writing to it ends the process.
    ///
    /// # Errors
    /// Error of `mmap(2)`, in practice `ENOMEM`.
    pub fn zeroes(len: usize) -> io::Result<Self> {
        let mapping = Mapping::always_zero(len)?;
        Ok(Self::from_mapping(Arc::new(mapping)))
    }

    /// A region over a mapping, which it keeps mapped.
    pub(crate) fn from_mapping(mapping: Arc<Mapping>) -> Self {
        Self {
            ptr: mapping.ptr(),
            len: mapping.len(),
            on_demand: false,
            mapping: Some(mapping),
        }
    }

    /// The region with pages that come and go.
    pub(crate) fn with_pages_on_demand(self) -> Self {
        Self {
            on_demand: true,
            ..self
        }
    }

    /// Address of the first byte in this process.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.ptr.addr().get() as u64
    }

    /// The place in a memory file where a peer on this host finds the region: that of a buffer [made so](crate::Buffer::in_memory_file).
    #[must_use]
    pub fn memory_file(&self) -> Option<MemoryFile> {
        let mapping = self.mapping.as_ref()?;
        let fd = u32::try_from(mapping.file()?.as_raw_fd()).ok()?;
        let offset = (self.ptr.addr().get() - mapping.ptr().addr().get()) as u64;
        Some(MemoryFile { fd, offset })
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the region has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A region of `len` bytes at `offset` of this one, to be registered by itself. It keeps the same memory mapped.
    ///
    /// # Errors
    /// [`OutOfBounds`] if they are not all inside the region.
    pub fn part(&self, offset: usize, len: usize) -> Result<Self, OutOfBounds> {
        Ok(Self {
            ptr: self.slice(offset, len)?.ptr,
            len,
            on_demand: self.on_demand,
            mapping: self.mapping.clone(),
        })
    }

    /// Whether its pages come and go.
    #[inline]
    #[must_use]
    pub fn is_on_demand(&self) -> bool {
        self.on_demand
    }

    /// Whether `len` bytes at `offset`, which are inside the region, can be read now, or written if `write`. Of a region whose pages do not come on
    /// demand this was checked when it was registered.
    #[inline]
    #[must_use]
    pub fn reach(&self, offset: usize, len: usize, write: bool) -> bool {
        !self.on_demand || mapped::populate(self.ptr.addr().get() + offset, len, write)
    }

    /// `len` bytes at `offset`.
    ///
    /// # Errors
    /// [`OutOfBounds`] if they are not all inside the region.
    #[inline]
    pub fn slice(&self, offset: usize, len: usize) -> Result<RegionSlice<'_>, OutOfBounds> {
        RegionSlice {
            ptr: self.ptr,
            len: self.len,
            on_demand: self.on_demand,
            region: PhantomData,
        }
        .subslice(offset, len)
    }
}

/// A checked part of a [`Region`].
#[derive(Debug, Clone, Copy)]
pub struct RegionSlice<'a> {
    ptr: NonNull<u8>,
    len: usize,
    /// As of its region.
    on_demand: bool,
    region: PhantomData<&'a Region>,
}

// SAFETY: see `Region`: only raw copies are made through it.
unsafe impl Send for RegionSlice<'_> {}
// SAFETY: as above.
unsafe impl Sync for RegionSlice<'_> {}

impl<'a> RegionSlice<'a> {
    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the slice has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether its pages come and go.
    #[cfg(feature = "sockets")]
    pub(crate) const fn is_on_demand(&self) -> bool {
        self.on_demand
    }

    /// `len` bytes at `ptr`, of memory that nobody has a reference to.
    ///
    /// # Safety
    /// They can be read and written for `'a`, and no reference reaches them.
    #[cfg(feature = "sockets")]
    pub(crate) const unsafe fn from_raw(ptr: NonNull<u8>, len: usize) -> Self {
        Self {
            ptr,
            len,
            on_demand: false,
            region: PhantomData,
        }
    }

    /// `len` bytes at `offset` of this slice.
    ///
    /// # Errors
    /// [`OutOfBounds`] if they are not all inside the slice.
    #[inline]
    pub fn subslice(&self, offset: usize, len: usize) -> Result<Self, OutOfBounds> {
        let fits = offset.checked_add(len).is_some_and(|end| end <= self.len);
        if !fits {
            return Err(OutOfBounds {
                offset,
                len,
                region_len: self.len,
            });
        }
        Ok(Self {
            // SAFETY: `offset` is at most `self.len`, so the result is inside the region or one past it.
            ptr: unsafe { self.ptr.add(offset) },
            len,
            on_demand: self.on_demand,
            region: PhantomData,
        })
    }

    /// Writes `src` here, **last byte last**: a program that polls the last byte, or the last aligned word, of
    /// a peer's write sees all other bytes with it.
    ///
    /// A plain `memcpy` may store the end of the range first.
    ///
    /// # Panics
    /// If the lengths differ: the caller cuts the slice for these bytes.
    #[inline]
    pub fn place(&self, src: &[u8]) {
        assert_eq!(src.len(), self.len, "placement covers its slice exactly");
        if (self.on_demand || on_demand::guards()) && on_demand::write(self.ptr, src) {
            return;
        }
        let Some((head, tail)) = src.split_last_chunk::<8>() else {
            self.place_short(src);
            return;
        };
        // SAFETY: `head.len() < self.len` bytes are inside the region; `src` is a reference, which by the
        // contract of `Region` cannot overlap it.
        unsafe { ptr::copy_nonoverlapping(head.as_ptr(), self.ptr.as_ptr(), head.len()) };
        atomic::fence(Ordering::Release);
        let word = u64::from_ne_bytes(*tail);
        // SAFETY: the last 8 bytes of the slice start at `head.len()`.
        self.place_last(unsafe { self.ptr.add(head.len()) }.cast(), word);
    }

    /// Copies the first `N` bytes, each loaded once. `None` if there are fewer.
    #[inline]
    #[must_use]
    pub fn first_chunk<const N: usize>(&self) -> Option<[u8; N]> {
        let mut chunk = [0; N];
        self.subslice(0, N).ok()?.copy_to(&mut chunk);
        Some(chunk)
    }

    /// Writes the octets of another slice, which may be of a region that another process writes, in the order of
    /// [`place`](Self::place). Each octet is loaded once.
    ///
    /// # Panics
    /// If the lengths differ.
    #[inline(always)]
    pub fn place_region(&self, src: &RegionSlice<'_>) {
        assert_eq!(src.len, self.len, "placement covers its slice exactly");
        let is_plain = !(self.on_demand || src.on_demand || on_demand::guards());
        let Some(head) = self.len.checked_sub(size_of::<u64>()).filter(|_| is_plain) else {
            return self.place_region_apart(src);
        };
        // SAFETY: the last 8 bytes of the slice start at `head`.
        let from = unsafe { src.ptr.add(head) }.cast::<u64>();
        // Before the copy, which changes them where the slices overlap.
        // SAFETY: inside the region; alignment is not asked for.
        let word = unsafe { from.read_unaligned() };
        // SAFETY: `head` bytes are inside both slices; `ptr::copy` allows that they overlap.
        unsafe { ptr::copy(src.ptr.as_ptr(), self.ptr.as_ptr(), head) };
        atomic::fence(Ordering::Release);
        // SAFETY: as the last bytes of the other slice.
        self.place_last(unsafe { self.ptr.add(head) }.cast(), word);
    }

    /// Writes the last 8 bytes of the slice, which begin at `last`, at once if they are aligned.
    #[inline]
    fn place_last(&self, last: NonNull<u64>, word: u64) {
        debug_assert!(last.addr().get() + size_of::<u64>() == self.ptr.addr().get() + self.len);
        if last.is_aligned() {
            // SAFETY: aligned, inside the region, and never accessed through a reference.
            unsafe { AtomicU64::from_ptr(last.as_ptr()) }.store(word, Ordering::Release);
        } else {
            // SAFETY: inside the region; alignment is not asked for.
            unsafe { last.write_unaligned(word) };
        }
    }

    /// As [`place_region`](Self::place_region), of few bytes, or where an access to either slice may fail.
    #[inline(never)]
    fn place_region_apart(&self, src: &RegionSlice<'_>) {
        if on_demand::guards()
            && !src.on_demand
            && on_demand::write_from(self.ptr, src.as_ptr(), src.len)
        {
            return;
        }
        if self.on_demand || src.on_demand {
            self.place_in_chunks(src);
            return;
        }
        let head = self.len.saturating_sub(8);
        let mut tail = [0; 8];
        let tail = &mut tail[..self.len - head];
        let inside = "the tail is the rest of the slice";
        // Before the copy, which changes it where the slices overlap.
        src.subslice(head, tail.len()).expect(inside).copy_to(tail);
        // SAFETY: `head` bytes are inside both slices; `ptr::copy` allows that they overlap.
        unsafe { ptr::copy(src.ptr.as_ptr(), self.ptr.as_ptr(), head) };
        atomic::fence(Ordering::Release);
        self.subslice(head, tail.len()).expect(inside).place(tail);
    }

    /// Copies through memory of this thread, where an access to either slice may fail.
    #[cold]
    fn place_in_chunks(&self, src: &RegionSlice<'_>) {
        src.for_each_chunk(|at, octets| {
            let to = self.subslice(at, octets.len());
            to.expect("the slices have one length").place(octets);
        });
    }

    /// Calls `each` with copies of consecutive parts, and the offset of each.
    pub(crate) fn for_each_chunk(&self, mut each: impl FnMut(usize, &[u8])) {
        let mut chunk = [0; CHUNK];
        let mut at = 0;
        while at < self.len {
            let length = (self.len - at).min(CHUNK);
            let part = self.subslice(at, length).expect("a part of the slice");
            part.copy_to(&mut chunk[..length]);
            each(at, &chunk[..length]);
            at += length;
        }
    }

    fn place_short(&self, src: &[u8]) {
        let Some((&last, head)) = src.split_last() else {
            return;
        };
        // SAFETY: as in `place`.
        unsafe { ptr::copy_nonoverlapping(head.as_ptr(), self.ptr.as_ptr(), head.len()) };
        // SAFETY: the last byte of the slice.
        let byte = unsafe { self.ptr.add(head.len()) };
        // SAFETY: a byte is always aligned and this one is inside the region.
        unsafe { AtomicU8::from_ptr(byte.as_ptr()) }.store(last, Ordering::Release);
    }

    /// Copies the bytes out into `dst`, each loaded once.
    ///
    /// # Panics
    /// If the lengths differ.
    #[inline]
    pub fn copy_to(&self, dst: &mut [u8]) {
        assert_eq!(dst.len(), self.len, "a copy covers its slice exactly");
        if self.on_demand && on_demand::read(self.ptr, dst) {
            return;
        }
        // SAFETY: the slice has `len` bytes inside the region; `dst` is a unique reference and cannot
        // overlap a region by the contract of `Region`.
        unsafe { ptr::copy_nonoverlapping(self.ptr.as_ptr(), dst.as_mut_ptr(), self.len) };
    }

    /// Has the processor load the cache lines of the first 2 KiB, for themselves alone if `write`. It is a hint, and waits for nothing.
    #[inline]
    pub fn prefetch(&self, write: bool) {
        #[cfg(target_arch = "x86_64")]
        for offset in (0..self.len.min(PREFETCHED)).step_by(LINE) {
            use std::arch::x86_64::{_MM_HINT_ET0, _MM_HINT_T0, _mm_prefetch};
            let line = self.ptr.as_ptr().wrapping_add(offset).cast_const().cast();
            if write {
                // SAFETY: a prefetch of any address does nothing that a program sees.
                unsafe { _mm_prefetch::<_MM_HINT_ET0>(line) };
            } else {
                // SAFETY: as above.
                unsafe { _mm_prefetch::<_MM_HINT_T0>(line) };
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = write;
    }

    /// The first byte, loaded now.
    ///
    /// # Panics
    /// If the slice is empty.
    #[inline]
    #[must_use]
    pub fn load(&self) -> u8 {
        assert!(self.len > 0, "an empty slice has no first byte");
        let mut octet = [0];
        if self.on_demand && on_demand::read(self.ptr, &mut octet) {
            return octet[0];
        }
        // SAFETY: inside the region, always aligned.
        unsafe { AtomicU8::from_ptr(self.ptr.as_ptr()) }.load(Ordering::Acquire)
    }

    /// Adds `value` to the 8 bytes (native order) and returns their value before (RFC 7306 §5.1).
    ///
    /// # Errors
    /// [`AtomicError`] if the slice is not 8 bytes at a multiple of 8.
    pub fn fetch_add(&self, value: u64) -> Result<u64, AtomicError> {
        Ok(self.atomic()?.fetch_add(value, Ordering::AcqRel))
    }

    /// Stores `swap` in the 8 bytes (native order) if they hold `compare`, and returns their value before
    /// (RFC 7306 §5.2).
    ///
    /// # Errors
    /// [`AtomicError`] if the slice is not 8 bytes at a multiple of 8.
    pub fn compare_swap(&self, compare: u64, swap: u64) -> Result<u64, AtomicError> {
        let result =
            self.atomic()?
                .compare_exchange(compare, swap, Ordering::AcqRel, Ordering::Acquire);
        Ok(result.unwrap_or_else(|held| held))
    }

    fn atomic(&self) -> Result<&'a AtomicU64, AtomicError> {
        if self.len != 8 {
            return Err(AtomicError::Length(self.len));
        }
        let word = self.ptr.cast::<u64>();
        if !word.is_aligned() {
            return Err(AtomicError::Misaligned(self.ptr.addr().get()));
        }
        // SAFETY: 8 aligned bytes inside the region, never accessed through a plain reference.
        Ok(unsafe { AtomicU64::from_ptr(word.as_ptr()) })
    }

    /// Address of the first byte, for system calls.
    pub(crate) fn as_ptr(&self) -> *const u8 {
        self.ptr.as_ptr()
    }
}

impl Payload for RegionSlice<'_> {
    fn len(&self) -> usize {
        self.len
    }

    #[inline]
    fn copy(&self, offset: usize, dst: &mut [u8]) {
        self.subslice(offset, dst.len())
            .expect("the caller cuts its own segments")
            .copy_to(dst);
    }

    fn crc(&self, offset: usize, length: usize, crc: u32) -> u32 {
        let part = self
            .subslice(offset, length)
            .expect("the caller cuts its own segments");
        if self.on_demand {
            let mut crc = crc;
            part.for_each_chunk(|_, octets| crc = crc::crc32c_append(crc, octets));
            return crc;
        }
        // SAFETY: the bytes are inside the region. They may change while they are read: the verbs contract
        // asks the application to leave a buffer alone until its completion, and if it does not, the value
        // is that of some mixture, which a receiver rejects. The reference ends with this call.
        let bytes = unsafe { std::slice::from_raw_parts(part.as_ptr(), part.len) };
        crc::crc32c_append(crc, bytes)
    }
}

#[cfg(test)]
mod tests;
