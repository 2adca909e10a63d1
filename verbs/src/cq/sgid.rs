//! The C struct through which EFA programs read the GID of a message's sender (`efadv_wc_read_sgid(3)`).

use crate::abi::{efadv_cq, ibv_cq_ex, ibv_gid};
use crate::ffi::CPointer;
use std::ffi::c_int;

/// `wc_read_sgid` of the struct.
pub(crate) type ReadSgid = unsafe extern "C" fn(*mut efadv_cq, *mut ibv_gid) -> c_int;

/// The struct, followed by its completion queue, which owns it.
#[repr(C)]
pub(crate) struct SgidReader {
    face: efadv_cq,
    cq: CPointer<ibv_cq_ex>,
}

impl SgidReader {
    pub(crate) fn new(cq: *mut ibv_cq_ex, read: ReadSgid) -> Self {
        Self {
            face: efadv_cq {
                comp_mask: 0,
                wc_read_sgid: Some(read),
            },
            cq: CPointer(cq),
        }
    }

    /// The completion queue of a struct; `None` for NULL.
    ///
    /// # Safety
    /// `face` is NULL or the struct of a reader, whose completion queue is live.
    pub(crate) unsafe fn queue(face: *mut efadv_cq) -> Option<*mut ibv_cq_ex> {
        // SAFETY: the struct is the first field of its reader, by the caller's contract.
        unsafe { face.cast::<Self>().as_ref() }.map(|reader| reader.cq.0)
    }
}
