//! Enhanced connection establishment (`ibv_set_ece(3)`): options of vendors, of which this device has none and iWARP carries none.

use crate::abi::{ibv_ece, ibv_qp};
use crate::ffi::{errno_value, load, store};
use crate::qp::queue_pair;
use nix::errno::Errno;
use std::ffi::c_int;

/// Checks options of a program: those that request nothing are valid, of whatever vendor.
pub(crate) fn expect_empty(ece: ibv_ece) -> Result<(), Errno> {
    if ece.comp_mask != 0 || ece.options != 0 {
        return Err(Errno::EINVAL);
    }
    Ok(())
}

pub(crate) unsafe extern "C" fn ibv_query_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    errno_value(|| {
        // SAFETY: the program passes a live queue pair.
        unsafe { queue_pair::state(qp) }?;
        // SAFETY: and room for options.
        unsafe { store(ece, ibv_ece::default()) }
    })
}

/// Writes the accepted options: none.
pub(crate) unsafe extern "C" fn ibv_set_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    errno_value(|| {
        // SAFETY: the program passes a live queue pair.
        unsafe { queue_pair::state(qp) }?;
        // SAFETY: and options.
        expect_empty(unsafe { load(ece) }?)?;
        // SAFETY: loaded above, so not NULL.
        unsafe { store(ece, ibv_ece::default()) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_request_something_are_refused() {
        let plain = ibv_ece::default();
        let vendors = ibv_ece {
            vendor_id: 0x15b3,
            ..plain
        };
        assert_eq!(expect_empty(plain), Ok(()));
        assert_eq!(expect_empty(vendors), Ok(()));
        let options = ibv_ece {
            options: 1,
            ..vendors
        };
        assert_eq!(expect_empty(options), Err(Errno::EINVAL));
        let unknown = ibv_ece {
            comp_mask: 1,
            ..plain
        };
        assert_eq!(expect_empty(unknown), Err(Errno::EINVAL));
    }
}
