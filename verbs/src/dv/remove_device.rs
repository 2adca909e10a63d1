//! `dgiwarpdv_remove_device`: the events of a device that goes away, for tests of programs.

use crate::cm::raise_removal;
use crate::device::async_queue::raise_fatal;
use crate::ffi::entry;
use std::ffi::c_int;

pub(super) extern "C" fn dgiwarpdv_remove_device() -> c_int {
    entry(0, || {
        let raised = raise_fatal() + raise_removal();
        c_int::try_from(raised).unwrap_or(c_int::MAX)
    })
}
