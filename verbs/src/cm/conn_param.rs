//! `struct rdma_conn_param` of calls.

use crate::abi::rdma_conn_param;
use crate::ffi::load;
use nix::errno::Errno;
use std::ffi::c_void;

/// Parameters of `rdma_connect(3)` and `rdma_accept(3)`.
pub(crate) struct ConnParam {
    /// `None` for NULL: every parameter has its default.
    pub(crate) c: Option<rdma_conn_param>,
    pub(crate) private_data: Vec<u8>,
}

impl ConnParam {
    /// # Safety
    /// `c` is NULL or points to parameters with valid private data.
    pub(crate) unsafe fn read(c: *const rdma_conn_param) -> Result<Self, Errno> {
        if c.is_null() {
            return Ok(Self {
                c: None,
                private_data: Vec::new(),
            });
        }
        // SAFETY: the caller's contract.
        let c = unsafe { load(c) }?;
        // SAFETY: the caller's contract.
        let private_data = unsafe { octets(c.private_data, c.private_data_len) };
        Ok(Self {
            c: Some(c),
            private_data,
        })
    }

    /// QPN of a queue pair that the program created without rdma_cm; 0 for none.
    pub(crate) fn qp_num(&self) -> u32 {
        self.c.map_or(0, |c| c.qp_num)
    }
}

/// # Safety
/// `from` is NULL or points to `length` octets.
pub(crate) unsafe fn octets(from: *const c_void, length: u8) -> Vec<u8> {
    if from.is_null() {
        return Vec::new();
    }
    // SAFETY: not NULL, so `length` octets by the caller's contract.
    unsafe { std::slice::from_raw_parts(from.cast::<u8>(), length.into()) }.to_vec()
}
