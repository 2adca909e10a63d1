//! Connecting, listening, answering and ending, for every port space: `rdma_connect(3)` and its kin.

use crate::abi::{rdma_cm_id, rdma_conn_param};
use crate::cm::conn_param::{ConnParam, octets};
use crate::cm::id::identifier::{Id, Transport, id};
use crate::cm::id::lifecycle::complete;
use crate::cm::{tcp, udp};
use crate::ffi::{minus_one, minus_one_making};
use nix::errno::Errno;
use std::ffi::{c_int, c_void};
use std::sync::Arc;

/// Runs the call of the identifier's transport.
///
/// # Safety
/// `pointer` is NULL or a live identifier.
unsafe fn call<T>(
    pointer: *mut rdma_cm_id,
    tcp: impl FnOnce(&Arc<Id>) -> Result<T, Errno>,
    udp: impl FnOnce(&Arc<Id>) -> Result<T, Errno>,
) -> Result<T, Errno> {
    // SAFETY: the caller's contract.
    let id = unsafe { id(pointer) }?;
    id.open_gate();
    let is_tcp = match &id.lock().transport {
        Transport::Tcp(_) => true,
        Transport::Udp(_) => false,
        Transport::Closed => return Err(Errno::EINVAL),
    };
    if is_tcp { tcp(id) } else { udp(id) }
}

pub(crate) unsafe extern "C" fn rdma_connect(
    pointer: *mut rdma_cm_id,
    param: *mut rdma_conn_param,
) -> c_int {
    minus_one_making(|| {
        // SAFETY: the program passes parameters, or NULL.
        let param = unsafe { ConnParam::read(param) }?;
        let tcp = |id: &Arc<Id>| tcp::connect::connect(id, &param);
        let udp = |id: &Arc<Id>| udp::connect::connect(id, &param);
        // SAFETY: the program passes a live identifier.
        unsafe { call(pointer, tcp, udp) }?;
        // SAFETY: no other call uses the identifier.
        unsafe { complete(pointer) }.map(|()| 0)
    })
}

pub(crate) unsafe extern "C" fn rdma_listen(pointer: *mut rdma_cm_id, backlog: c_int) -> c_int {
    minus_one_making(|| {
        let tcp = |id: &Arc<Id>| tcp::connect::listen(id, backlog);
        let udp = |id: &Arc<Id>| udp::connect::listen(id, backlog);
        // SAFETY: the program passes a live identifier.
        unsafe { call(pointer, tcp, udp) }.map(|()| 0)
    })
}

pub(crate) unsafe extern "C" fn rdma_accept(
    pointer: *mut rdma_cm_id,
    param: *mut rdma_conn_param,
) -> c_int {
    minus_one_making(|| {
        // SAFETY: the program passes parameters, or NULL.
        let param = unsafe { ConnParam::read(param) }?;
        let tcp = |id: &Arc<Id>| tcp::connect::accept(id, &param).map(|()| true);
        // SIDR has no event for the end that accepts.
        let udp = |id: &Arc<Id>| udp::connect::accept(id, &param).map(|()| false);
        // SAFETY: the program passes a live identifier.
        if unsafe { call(pointer, tcp, udp) }? {
            // SAFETY: no other call uses the identifier.
            unsafe { complete(pointer) }?;
        }
        Ok(0)
    })
}

pub(crate) unsafe extern "C" fn rdma_reject(
    pointer: *mut rdma_cm_id,
    private_data: *const c_void,
    private_data_len: u8,
) -> c_int {
    minus_one(|| {
        // SAFETY: the program passes as many octets.
        let private_data = unsafe { octets(private_data, private_data_len) };
        let tcp = |id: &Arc<Id>| tcp::connect::reject(id, &private_data);
        let udp = |id: &Arc<Id>| udp::connect::reject(id, &private_data);
        // SAFETY: the program passes a live identifier.
        unsafe { call(pointer, tcp, udp) }.map(|()| 0)
    })
}

/// iWARP has no reason "vendor option not supported": a plain rejection.
pub(crate) unsafe extern "C" fn rdma_reject_ece(
    pointer: *mut rdma_cm_id,
    private_data: *const c_void,
    private_data_len: u8,
) -> c_int {
    // SAFETY: the same contract.
    unsafe { rdma_reject(pointer, private_data, private_data_len) }
}

pub(crate) unsafe extern "C" fn rdma_establish(pointer: *mut rdma_cm_id) -> c_int {
    let udp = |_: &Arc<Id>| Err(Errno::EINVAL);
    // SAFETY: the program passes a live identifier.
    minus_one(|| unsafe { call(pointer, tcp::connect::establish, udp) }.map(|()| 0))
}

pub(crate) unsafe extern "C" fn rdma_disconnect(pointer: *mut rdma_cm_id) -> c_int {
    minus_one(|| {
        // rdma_disconnect(3): datagrams have no connection.
        let udp = |_: &Arc<Id>| Err(Errno::EINVAL);
        // SAFETY: the program passes a live identifier.
        if unsafe { call(pointer, tcp::connect::disconnect, udp) }? {
            // SAFETY: no other call uses the identifier.
            unsafe { complete(pointer) }?;
        }
        Ok(0)
    })
}
