//! Lists of C: chains of work requests, and scatter/gather lists.

use crate::abi::ibv_sge;
use crate::post::inline::SLOT;
use arrayvec::ArrayVec;
use dgiwarp::{MAX_SGE, Sge};
use nix::errno::Errno;
use std::ffi::c_int;
use std::mem::offset_of;
use std::{ptr, slice};

/// Work requests of a chain that are posted at a time.
pub(super) const BATCH: usize = 16;

/// Work requests of a chain.
pub(super) type Batch<'a, W> = ArrayVec<&'a W, BATCH>;

/// A refused work request: its place in the batch, and the reason.
pub(super) type Refused = (usize, Errno);

/// Posts a chain of work requests in order, a batch at a time. The first refused one ends the posting, and is reported in `bad`.
///
/// # Safety
/// `first` is NULL or begins a chain of valid work requests linked by `next`; `bad` is NULL or room for a pointer.
pub(super) unsafe fn post_chain<W>(
    first: *mut W,
    bad: *mut *mut W,
    next: impl Fn(&W) -> *mut W,
    mut post: impl FnMut(&[&W]) -> Result<(), Refused>,
) -> c_int {
    let mut at = first;
    loop {
        let head = at;
        let mut batch = Batch::new();
        // SAFETY: NULL, or a work request of the chain.
        while let Some(wr) = unsafe { at.as_ref() } {
            if batch.try_push(wr).is_err() {
                break;
            }
            at = next(wr);
        }
        if batch.is_empty() {
            return 0;
        }
        if let Err((accepted, errno)) = post(&batch) {
            if !bad.is_null() {
                let before = batch.get(accepted.wrapping_sub(1));
                let refused = before.map_or(head, |wr| next(wr));
                // SAFETY: not NULL, so room for a pointer.
                unsafe { bad.write(refused) };
            }
            errno.set();
            return errno as c_int;
        }
    }
}

/// The scatter/gather list of a work request. More than [`MAX_SGE`] elements are `EINVAL`.
///
/// # Safety
/// `list` points to `count` valid elements, unless `count` is not positive.
pub(super) unsafe fn elements<'a>(list: *const ibv_sge, count: c_int) -> Result<&'a [Sge], Errno> {
    const {
        assert!(size_of::<Sge>() == size_of::<ibv_sge>());
        assert!(align_of::<Sge>() == align_of::<ibv_sge>());
        assert!(offset_of!(Sge, addr) == offset_of!(ibv_sge, addr));
        assert!(offset_of!(Sge, length) == offset_of!(ibv_sge, length));
        assert!(offset_of!(Sge, lkey) == offset_of!(ibv_sge, lkey));
    }
    let count = usize::try_from(count).map_err(|_| Errno::EINVAL)?;
    // SAFETY: the caller's contract is the same, and both structs have the same layout.
    unsafe { array(list.cast::<Sge>(), count) }
}

/// An array of a program. More than [`MAX_SGE`] elements are `EINVAL`.
///
/// # Safety
/// `list` points to `count` valid elements, unless `count` is 0.
pub(super) unsafe fn array<'a, T>(list: *const T, count: usize) -> Result<&'a [T], Errno> {
    if count == 0 {
        return Ok(&[]);
    }
    if list.is_null() || count > MAX_SGE {
        return Err(Errno::EINVAL);
    }
    // SAFETY: not NULL, so `count` elements by the caller's contract; the program does not write them during the call.
    Ok(unsafe { slice::from_raw_parts(list, count) })
}

impl From<ibv_sge> for Sge {
    fn from(sge: ibv_sge) -> Self {
        Self {
            addr: sge.addr,
            length: sge.length,
            lkey: sge.lkey,
        }
    }
}

/// Payload of an inline work request in one place, at most [`SLOT`] octets. A longer one is `EINVAL`.
///
/// # Safety
/// The element points to readable memory of its length, which nobody writes for `'a`.
pub(super) unsafe fn inline<'a>(sge: &Sge) -> Result<&'a [u8], Errno> {
    let start = usize::try_from(sge.addr).map_err(|_| Errno::EFAULT)?;
    let length = usize::try_from(sge.length).map_err(|_| Errno::EFAULT)?;
    match length {
        0 => Ok(&[]),
        1..=SLOT if start != 0 => {
            let from = ptr::with_exposed_provenance::<u8>(start);
            // SAFETY: the caller's contract.
            Ok(unsafe { slice::from_raw_parts(from, length) })
        }
        1..=SLOT => Err(Errno::EFAULT),
        _ => Err(Errno::EINVAL),
    }
}

/// Copied payload of an inline work request, at most [`SLOT`] bytes.
pub(super) struct InlineData {
    bytes: [u8; SLOT],
    length: usize,
}

impl InlineData {
    /// Copies the payload. A longer one is `EINVAL`.
    ///
    /// # Safety
    /// Each element points to readable memory of its length.
    pub(super) unsafe fn gather(list: &[Sge]) -> Result<Self, Errno> {
        let mut data = Self {
            bytes: [0; SLOT],
            length: 0,
        };
        for sge in list {
            let start = usize::try_from(sge.addr).map_err(|_| Errno::EFAULT)?;
            let length = usize::try_from(sge.length).map_err(|_| Errno::EFAULT)?;
            if length == 0 {
                continue;
            }
            let room = data
                .bytes
                .get_mut(data.length..)
                .and_then(|rest| rest.get_mut(..length))
                .ok_or(Errno::EINVAL)?;
            let from = ptr::with_exposed_provenance::<u8>(start);
            // SAFETY: readable by the caller's contract; `room` is of the same length and does not overlap it.
            unsafe { ptr::copy_nonoverlapping(from, room.as_mut_ptr(), length) };
            data.length += length;
        }
        Ok(data)
    }

    pub(super) fn as_slice(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }
}
