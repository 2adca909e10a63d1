//! The error queue, and asynchronous events of `dgiwarpdv.h`.

use super::datagram::{address_of, datagram};
use super::sized::{size_of_program, store_sized};
use crate::abi::{
    DGIWARPDV_ERROR_CLOSED, DGIWARPDV_ERROR_NETWORK, DGIWARPDV_ERROR_RESTARTED,
    DGIWARPDV_ERROR_RNR_RETRIES, DGIWARPDV_ERROR_TERMINATE, DGIWARPDV_ERROR_UNREACHABLE,
    DGIWARPDV_ERROR_VIOLATION, dgiwarpdv_error, ibv_context, ibv_qp,
};
use crate::device::context;
use crate::ffi::minus_one;
use crate::qp::queue_pair::{self, Transport};
use dgiwarp::{ErrorEntry, ErrorReason};
use std::ffi::c_int;

fn to_c(entry: ErrorEntry, size: usize) -> dgiwarpdv_error {
    let (gid, qpn, scope_id) = address_of(entry.peer);
    let mut error = dgiwarpdv_error {
        size,
        qpn,
        gid,
        scope_id,
        has_message: u32::from(entry.message.is_some()),
        message: entry.message.unwrap_or(0),
        ..dgiwarpdv_error::default()
    };
    error.reason = match entry.reason {
        ErrorReason::Terminate {
            layer,
            error_type,
            code,
        } => {
            error.layer = layer;
            error.error_type = error_type;
            error.code = code;
            DGIWARPDV_ERROR_TERMINATE
        }
        ErrorReason::Network { errno } => {
            error.network_errno = errno;
            DGIWARPDV_ERROR_NETWORK
        }
        ErrorReason::Unreachable => DGIWARPDV_ERROR_UNREACHABLE,
        ErrorReason::RnrRetries => DGIWARPDV_ERROR_RNR_RETRIES,
        ErrorReason::Restarted => DGIWARPDV_ERROR_RESTARTED,
        ErrorReason::Violation => DGIWARPDV_ERROR_VIOLATION,
        ErrorReason::Closed => DGIWARPDV_ERROR_CLOSED,
        // The enum is open.
        _ => error.reason,
    };
    error
}

pub(super) unsafe extern "C" fn dgiwarpdv_poll_error(
    qp: *mut ibv_qp,
    error: *mut dgiwarpdv_error,
) -> c_int {
    minus_one(|| {
        // SAFETY: the program passes room of the size in its first field.
        let size = unsafe { size_of_program(error) }?;
        // SAFETY: and a live queue pair.
        let entry = match unsafe { &queue_pair::state(qp)?.qp } {
            Transport::Rd(rd) => rd.poll_error(),
            Transport::Ud(_)
            | Transport::Uc(_)
            | Transport::Rc(_)
            | Transport::RcRd(_)
            | Transport::XrcTarget(_) => {
                // SAFETY: as above.
                unsafe { datagram(qp) }?.poll_error()
            }
        };
        match entry {
            None => Ok(0),
            // SAFETY: as above.
            Some(entry) => unsafe { store_sized(error, size, &to_c(entry, size)) }.map(|()| 1),
        }
    })
}

pub(super) unsafe extern "C" fn dgiwarpdv_enable_events(context: *mut ibv_context) -> c_int {
    minus_one(|| {
        // SAFETY: the program passes an open context.
        unsafe { context::state(context) }?
            .async_events
            .enable_all();
        Ok(0)
    })
}
