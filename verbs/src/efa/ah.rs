//! Numbers of address handles.

use super::adapter::expect_efa;
use super::sized::length;
use crate::abi::{efadv_ah_attr, ibv_ah};
use crate::cq::wc::lid_of;
use crate::ffi::{Object, errno_value, store_prefix};
use crate::qp::ah::Ah;
use std::ffi::c_int;
use std::mem::offset_of;

/// The number is the `slid` of completions of the peer's messages: the LID of its address.
pub(super) unsafe extern "C" fn efadv_query_ah(
    ah: *mut ibv_ah,
    to: *mut efadv_ah_attr,
    inlen: u32,
) -> c_int {
    errno_value(|| {
        expect_efa()?;
        // SAFETY: the program passes a live address handle.
        let state = unsafe { Object::<Ah>::state(ah) }?;
        let length = length(inlen, offset_of!(efadv_ah_attr, reserved))?;
        let attr = efadv_ah_attr {
            ahn: lid_of(state.handle.destination()),
            ..efadv_ah_attr::default()
        };
        // SAFETY: and `inlen` bytes for the answer.
        unsafe { store_prefix(to.cast(), &attr, length) }
    })
}
