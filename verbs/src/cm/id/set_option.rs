//! `rdma_set_option(3)`, and calls without effect on iWARP.

use crate::abi::{
    RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT,
    RDMA_OPTION_ID_AFONLY, RDMA_OPTION_ID_REUSEADDR, RDMA_OPTION_ID_TOS, ibv_ece, rdma_cm_id,
};
use crate::cm::event::types::EventType;
use crate::cm::id::identifier::{Id, State, id};
use crate::ffi::{load, minus_one, store};
use crate::qp::ece::expect_empty;
use nix::errno::Errno;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

/// A value of the program, whose length has to be that of `T`.
///
/// # Safety
/// `value` is NULL or has `length` octets.
unsafe fn value<T: Copy>(value: *const c_void, length: usize) -> Result<T, Errno> {
    if length != size_of::<T>() {
        return Err(Errno::EINVAL);
    }
    // SAFETY: the caller's contract, and the length fits.
    unsafe { load(value.cast::<T>()) }
}

/// # Safety
/// `pointer` is NULL or has `length` octets.
unsafe fn set(
    id: &Arc<Id>,
    level: c_int,
    name: c_int,
    pointer: *const c_void,
    length: usize,
) -> Result<(), Errno> {
    let mut inner = id.lock();
    match (level, name) {
        (RDMA_OPTION_ID, RDMA_OPTION_ID_TOS) => {
            // SAFETY: the caller's contract.
            inner.options.tos = Some(unsafe { value(pointer, length) }?);
        }
        (RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR) => {
            // SAFETY: the caller's contract. Old connections never keep a port number from being bound.
            unsafe { value::<c_int>(pointer, length) }?;
            if !matches!(inner.state, State::Idle | State::Bound) {
                return Err(Errno::EINVAL);
            }
        }
        (RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY) => {
            // SAFETY: the caller's contract.
            let only: c_int = unsafe { value(pointer, length) }?;
            inner.expect(State::Idle)?;
            inner.options.af_only = only != 0;
        }
        (RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT) => {
            // SAFETY: the caller's contract.
            let timeout: u8 = unsafe { value(pointer, length) }?;
            if timeout > 31 {
                return Err(Errno::EINVAL);
            }
            inner.options.ack_timeout = Some(timeout);
        }
        // A path record of the program. TCP and UDP find their paths themselves.
        (RDMA_OPTION_IB, RDMA_OPTION_IB_PATH) => {
            if inner.state != State::AddressResolved || length == 0 || pointer.is_null() {
                return Err(Errno::EINVAL);
            }
            inner.state = State::RouteResolved;
            id.raise_plain(EventType::RouteResolved, 0);
        }
        _ => return Err(Errno::ENOSYS),
    }
    Ok(())
}

pub(crate) unsafe extern "C" fn rdma_set_option(
    pointer: *mut rdma_cm_id,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: usize,
) -> c_int {
    minus_one(|| {
        // SAFETY: the program passes a live identifier.
        let id = unsafe { id(pointer) }?;
        // SAFETY: and as many octets.
        unsafe { set(id, level, name, value, length) }.map(|()| 0)
    })
}

/// A message before the event of its connection. TCP establishes the connection by itself.
pub(crate) unsafe extern "C" fn rdma_notify(pointer: *mut rdma_cm_id, _event: c_uint) -> c_int {
    // SAFETY: the program passes a live identifier.
    minus_one(|| unsafe { id(pointer) }.map(|_| 0))
}

/// Options for the peer, which iWARP does not carry: those that request nothing are set.
pub(crate) unsafe extern "C" fn rdma_set_local_ece(
    pointer: *mut rdma_cm_id,
    ece: *mut ibv_ece,
) -> c_int {
    minus_one(|| {
        // SAFETY: the program passes a live identifier.
        unsafe { id(pointer) }?;
        // SAFETY: and options.
        expect_empty(unsafe { load(ece) }?).map(|()| 0)
    })
}

/// Vendor options of the peer: none.
pub(crate) unsafe extern "C" fn rdma_get_remote_ece(
    pointer: *mut rdma_cm_id,
    ece: *mut ibv_ece,
) -> c_int {
    minus_one(|| {
        // SAFETY: the program passes a live identifier.
        unsafe { id(pointer) }?;
        // SAFETY: and room for options.
        unsafe { store(ece, ibv_ece::default()) }.map(|()| 0)
    })
}
