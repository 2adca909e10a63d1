//! Connecting, listening, answering and ending: `rdma_connect(3)` and its kind, for whatever transport an identifier has.

use super::addr::resolve;
use super::id::{self, Id, State, Transport};
use super::{tcp, udp};
use crate::abi::{rdma_cm_id, rdma_conn_param};
use crate::ffi::{load, minus_one};
use nix::errno::Errno;
use std::ffi::{c_int, c_void};
use std::net::SocketAddr;
use std::sync::Arc;

/// What a program says with a request or its answer.
pub(crate) struct Parameters {
    /// `None` leaves everything to us.
    pub(crate) c: Option<rdma_conn_param>,
    pub(crate) private_data: Vec<u8>,
}

impl Parameters {
    /// # Safety
    /// `c` is NULL or points to parameters whose private data is there.
    unsafe fn read(c: *const rdma_conn_param) -> Result<Self, Errno> {
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

    /// The number of a queue pair that the program made; 0 names none.
    pub(crate) fn qp_num(&self) -> u32 {
        self.c.map_or(0, |c| c.qp_num)
    }
}

/// # Safety
/// `from` is NULL or points to `length` octets.
unsafe fn octets(from: *const c_void, length: u8) -> Vec<u8> {
    if from.is_null() {
        return Vec::new();
    }
    // SAFETY: not NULL, so the caller's contract says so.
    unsafe { std::slice::from_raw_parts(from.cast::<u8>(), length.into()) }.to_vec()
}

/// Which of the two kinds of identifier it is.
enum Kind {
    Tcp,
    Udp,
}

fn kind(id: &Id) -> Result<Kind, Errno> {
    match &id.lock().transport {
        Transport::Tcp(_) => Ok(Kind::Tcp),
        Transport::Udp(_) => Ok(Kind::Udp),
        Transport::Closed => Err(Errno::EINVAL),
    }
}

/// The program's call on an identifier of the kind that it is.
///
/// # Safety
/// `pointer` is NULL or a live identifier.
unsafe fn call<T>(
    pointer: *mut rdma_cm_id,
    tcp: impl FnOnce(&Arc<Id>) -> Result<T, Errno>,
    udp: impl FnOnce(&Arc<Id>) -> Result<T, Errno>,
) -> Result<T, Errno> {
    // SAFETY: the caller's contract.
    let id = unsafe { id::id(pointer) }?;
    id.take_turn();
    match kind(id)? {
        Kind::Tcp => tcp(id),
        Kind::Udp => udp(id),
    }
}

/// The number of the queue pair that a service is asked with or given: the identifier's, else the one that the program names.
fn service_qpn(id: &Id, parameters: &Parameters) -> u32 {
    // SAFETY: alive as long as the program calls with it.
    let own = unsafe { (*id.c()).qp };
    if own.is_null() {
        parameters.qp_num()
    } else {
        // SAFETY: `rdma_create_qp` made it, or the program put it there; it is alive.
        unsafe { (*own).qp_num }
    }
}

fn ask_for_service(id: &Arc<Id>, parameters: &Parameters) -> Result<(), Errno> {
    let qpn = service_qpn(id, parameters);
    let mut inner = id.lock();
    if inner.state != State::RouteResolved {
        return Err(Errno::EINVAL);
    }
    udp::connect(id, &mut inner, qpn, &parameters.private_data)?;
    inner.state = State::Connecting;
    Ok(())
}

fn offer_service(id: &Arc<Id>, backlog: c_int) -> Result<(), Errno> {
    if id.lock().state == State::Idle {
        resolve::bind(id, SocketAddr::from(([0, 0, 0, 0], 0)))?;
    }
    let mut inner = id.lock();
    if inner.state != State::Bound {
        return Err(Errno::EINVAL);
    }
    udp::listen(id, &mut inner, backlog)?;
    inner.state = State::Listening;
    Ok(())
}

fn give_service(id: &Arc<Id>, parameters: &Parameters) -> Result<(), Errno> {
    let qpn = service_qpn(id, parameters);
    let mut inner = id.lock();
    if inner.state != State::Requested {
        return Err(Errno::EINVAL);
    }
    udp::accept(&mut inner, qpn, &parameters.private_data)?;
    inner.state = State::Connected;
    Ok(())
}

fn refuse_service(id: &Arc<Id>, private_data: &[u8]) -> Result<(), Errno> {
    let mut inner = id.lock();
    if inner.state != State::Requested {
        return Err(Errno::EINVAL);
    }
    udp::reject(&mut inner, private_data)?;
    inner.state = State::Over;
    Ok(())
}

pub(crate) unsafe extern "C" fn rdma_connect(
    pointer: *mut rdma_cm_id,
    parameters: *mut rdma_conn_param,
) -> c_int {
    minus_one(|| {
        // SAFETY: the program passes parameters, or NULL.
        let parameters = unsafe { Parameters::read(parameters) }?;
        let tcp = |id: &Arc<Id>| tcp::connect(id, &parameters);
        // SAFETY: the program passes a live identifier.
        unsafe { call(pointer, tcp, |id| ask_for_service(id, &parameters)) }?;
        // SAFETY: the identifier is used by this call alone.
        unsafe { id::complete(pointer) }.map(|()| 0)
    })
}

pub(crate) unsafe extern "C" fn rdma_listen(pointer: *mut rdma_cm_id, backlog: c_int) -> c_int {
    minus_one(|| {
        let tcp = |id: &Arc<Id>| tcp::listen(id, backlog);
        // SAFETY: the program passes a live identifier.
        unsafe { call(pointer, tcp, |id| offer_service(id, backlog)) }.map(|()| 0)
    })
}

pub(crate) unsafe extern "C" fn rdma_accept(
    pointer: *mut rdma_cm_id,
    parameters: *mut rdma_conn_param,
) -> c_int {
    minus_one(|| {
        // SAFETY: the program passes parameters, or NULL.
        let parameters = unsafe { Parameters::read(parameters) }?;
        let tcp = |id: &Arc<Id>| tcp::accept(id, &parameters).map(|()| true);
        // Whoever gives a service hears no more of it.
        let udp = |id: &Arc<Id>| give_service(id, &parameters).map(|()| false);
        // SAFETY: the program passes a live identifier.
        if unsafe { call(pointer, tcp, udp) }? {
            // SAFETY: the identifier is used by this call alone.
            unsafe { id::complete(pointer) }?;
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
        let tcp = |id: &Arc<Id>| tcp::reject(id, &private_data);
        // SAFETY: the program passes a live identifier.
        unsafe { call(pointer, tcp, |id| refuse_service(id, &private_data)) }.map(|()| 0)
    })
}

/// The reason that this gives on InfiniBand has no word in iWARP.
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
    minus_one(|| unsafe { call(pointer, tcp::establish, udp) }.map(|()| 0))
}

pub(crate) unsafe extern "C" fn rdma_disconnect(pointer: *mut rdma_cm_id) -> c_int {
    minus_one(|| {
        // rdma_disconnect(3): there is nothing to end.
        let udp = |_: &Arc<Id>| Err(Errno::EINVAL);
        // SAFETY: the program passes a live identifier.
        if unsafe { call(pointer, tcp::disconnect, udp) }? {
            // SAFETY: the identifier is used by this call alone.
            unsafe { id::complete(pointer) }?;
        }
        Ok(0)
    })
}
