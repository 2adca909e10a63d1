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
    let plain = dgiwarpdv_error {
        size,
        qpn,
        gid,
        scope_id,
        has_message: u32::from(entry.message.is_some()),
        message: entry.message.unwrap_or(0),
        ..dgiwarpdv_error::default()
    };
    match entry.reason {
        ErrorReason::Terminate {
            layer,
            error_type,
            code,
        } => dgiwarpdv_error {
            reason: DGIWARPDV_ERROR_TERMINATE,
            layer,
            error_type,
            code,
            ..plain
        },
        ErrorReason::Network { errno } => dgiwarpdv_error {
            reason: DGIWARPDV_ERROR_NETWORK,
            network_errno: errno,
            ..plain
        },
        ErrorReason::Unreachable => dgiwarpdv_error {
            reason: DGIWARPDV_ERROR_UNREACHABLE,
            ..plain
        },
        ErrorReason::RnrRetries => dgiwarpdv_error {
            reason: DGIWARPDV_ERROR_RNR_RETRIES,
            ..plain
        },
        ErrorReason::Restarted => dgiwarpdv_error {
            reason: DGIWARPDV_ERROR_RESTARTED,
            ..plain
        },
        ErrorReason::Violation => dgiwarpdv_error {
            reason: DGIWARPDV_ERROR_VIOLATION,
            ..plain
        },
        ErrorReason::Closed => dgiwarpdv_error {
            reason: DGIWARPDV_ERROR_CLOSED,
            ..plain
        },
        // The enum is open.
        _ => plain,
    }
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
            Transport::Ud(_) | Transport::Uc(_) | Transport::Rc(_) | Transport::XrcTarget(_) => {
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
