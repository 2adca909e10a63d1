//! Lists of C: chains of work requests, and scatter/gather lists.

use crate::abi::ibv_sge;
use crate::post::inline::SLOT;
use dgiwarp::{MAX_SGE, Sge};
use nix::errno::Errno;
use std::ffi::c_int;
use std::slice;

/// Posts a chain of work requests in order. The first refused one ends the posting, and is reported in `bad`.
///
/// # Safety
/// `first` is NULL or begins a chain of valid work requests linked by `next`; `bad` is NULL or room for a pointer.
pub(super) unsafe fn post_chain<W: Copy>(
    first: *mut W,
    bad: *mut *mut W,
    next: impl Fn(&W) -> *mut W,
    mut post: impl FnMut(&W) -> Result<(), Errno>,
) -> c_int {
    let mut at = first;
    // SAFETY: NULL, or a work request of the chain.
    while let Some(wr) = unsafe { at.as_ref() } {
        if let Err(errno) = post(wr) {
            if !bad.is_null() {
                // SAFETY: not NULL, so room for a pointer.
                unsafe { bad.write(at) };
            }
            errno.set();
            return errno as c_int;
        }
        at = next(wr);
    }
    0
}

/// The scatter/gather list of a work request. More than [`MAX_SGE`] elements are `EINVAL`.
///
/// # Safety
/// `list` points to `count` valid elements, unless `count` is not positive.
pub(super) unsafe fn elements<'a>(
    list: *const ibv_sge,
    count: c_int,
) -> Result<&'a [ibv_sge], Errno> {
    let count = usize::try_from(count).map_err(|_| Errno::EINVAL)?;
    // SAFETY: the caller's contract is the same.
    unsafe { array(list, count) }
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

/// Room for a scatter/gather list in the stack's form, which the caller keeps so that the array is not copied.
#[derive(Default)]
pub(super) struct Sges([Sge; MAX_SGE]);

impl Sges {
    /// The list, of which at most [`MAX_SGE`] elements are taken.
    #[inline]
    pub(super) fn of(&mut self, list: &[ibv_sge]) -> &[Sge] {
        for (to, from) in self.0.iter_mut().zip(list) {
            *to = Sge::from(*from);
        }
        self.0.get(..list.len()).unwrap_or_default()
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
    pub(super) unsafe fn gather(list: &[ibv_sge]) -> Result<Self, Errno> {
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
            let from = std::ptr::with_exposed_provenance::<u8>(start);
            // SAFETY: readable by the caller's contract; `room` is of the same length and does not overlap it.
            unsafe { std::ptr::copy_nonoverlapping(from, room.as_mut_ptr(), length) };
            data.length += length;
        }
        Ok(data)
    }

    pub(super) fn as_slice(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }
}
