//! Senders of messages, at the completions of an extended completion queue.

use super::datagram::address_of;
use super::sized::{size_of_program, store_sized};
use crate::abi::{dgiwarpdv_wc_source, ibv_ah, ibv_cq_ex, ibv_pd};
use crate::cq::cq_ex;
use crate::ffi::{Object, errno, minus_one, pointer};
use crate::mem::mr::domain;
use crate::qp::ah::Ah;
use std::ffi::c_int;
use std::net::SocketAddr;

pub(super) unsafe extern "C" fn dgiwarpdv_wc_source(
    cq: *mut ibv_cq_ex,
    source: *mut dgiwarpdv_wc_source,
) -> c_int {
    minus_one(|| {
        // SAFETY: the program passes room of the size in its first field.
        let size = unsafe { size_of_program(source) }?;
        // SAFETY: and a completion queue that it polls.
        let (from, _) = unsafe { cq_ex::source(cq) }?;
        let (gid, qpn, scope_id) = address_of(from);
        let answer = dgiwarpdv_wc_source {
            size,
            gid,
            qpn,
            scope_id,
        };
        // SAFETY: as above.
        unsafe { store_sized(source, size, &answer) }.map(|()| 0)
    })
}

pub(super) unsafe extern "C" fn dgiwarpdv_wc_create_ah(
    cq: *mut ibv_cq_ex,
    pd: *mut ibv_pd,
) -> *mut ibv_ah {
    pointer(|| {
        // SAFETY: the program passes a live protection domain.
        let domain = unsafe { domain(pd) }?;
        // SAFETY: and a completion queue that it polls.
        let (from, to) = unsafe { cq_ex::source(cq) }?;
        let scope = match from {
            SocketAddr::V4(_) => 0,
            SocketAddr::V6(v6) => v6.scope_id(),
        };
        // Datagrams leave from the address that the peer used.
        let handle = domain.pd.create_ah_from(from.ip(), scope, to);
        let handle = handle.map_err(errno::of)?;
        let face = ibv_ah {
            // SAFETY: a live protection domain; this field never changes.
            context: unsafe { (*pd).context },
            pd,
            handle: 0,
        };
        Ok(Object::create(face, Ah { handle, pd: domain }))
    })
}
