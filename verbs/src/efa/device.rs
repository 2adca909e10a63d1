//! Attributes that EFA devices have beyond `ibv_query_device(3)`.

use super::adapter::expect_efa;
use super::sized::length;
use crate::abi::{
    EFADV_DEVICE_ATTR_CAPS_CQ_WITH_SGID, EFADV_DEVICE_ATTR_CAPS_RDMA_READ, efadv_device_attr,
    ibv_context,
};
use crate::device::context::expect_any;
use crate::device::limits;
use crate::ffi::{errno_value, store_prefix};
use nix::errno::Errno;
use std::ffi::c_int;
use std::mem::offset_of;

/// The attributes: sizes of EFA devices, which programs size their pools by. Queue pairs are granted more on request.
const ATTR: efadv_device_attr = efadv_device_attr {
    comp_mask: 0,
    max_sq_wr: 4096,
    max_rq_wr: 8192,
    max_sq_sge: 2,
    max_rq_sge: 2,
    inline_buf_size: 32,
    reserved: [0; 2],
    // Without EFADV_DEVICE_ATTR_CAPS_RNR_RETRY: libfabric would limit the RNR retries, and the error of one message flushes
    // those behind it to the same peer, which libfabric does not send again.
    device_caps: EFADV_DEVICE_ATTR_CAPS_RDMA_READ | EFADV_DEVICE_ATTR_CAPS_CQ_WITH_SGID,
    max_rdma_size: limits::MAX_MESSAGE,
};

/// Attributes for a struct of `length` bytes: capabilities belong to the version that has the size of Reads too.
fn attr(length: usize) -> efadv_device_attr {
    if length < size_of::<efadv_device_attr>() {
        efadv_device_attr {
            device_caps: 0,
            max_rdma_size: 0,
            ..ATTR
        }
    } else {
        ATTR
    }
}

pub(super) unsafe extern "C" fn efadv_query_device(
    context: *mut ibv_context,
    to: *mut efadv_device_attr,
    inlen: u32,
) -> c_int {
    errno_value(|| {
        expect_efa()?;
        // SAFETY: the program passes an open context.
        unsafe { expect_any(context) }?;
        let length = length(inlen, offset_of!(efadv_device_attr, reserved))?;
        if to.is_null() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: the program provides `inlen` bytes.
        unsafe { store_prefix(to.cast(), &attr(length), length) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_struct_has_no_capabilities() {
        assert_eq!(attr(24).device_caps, 0);
        assert_eq!(attr(28).device_caps, 0);
        assert_eq!(attr(32).device_caps, 5);
        assert_eq!(attr(40).max_rdma_size, 1 << 30);
    }
}
