//! Queue pairs with attributes that verbs do not have.

use super::datagram::datagram;
use super::sized::{load_sized, size_of_program, store_sized};
use crate::abi::{
    DGIWARPDV_QP_DRIVER_TYPE_RD, DGIWARPDV_QP_RECORDS, DGIWARPDV_QP_SEGMENT_COMPLETIONS,
    dgiwarpdv_qp_attr, dgiwarpdv_qp_init_attr, ibv_context, ibv_qp, ibv_qp_init_attr_ex,
};
use crate::cm::addr::address;
use crate::device::context;
use crate::ffi::{errno, minus_one, pointer};
use crate::qp::create::create_extended;
use crate::qp::datagram_attr::{
    DatagramAttr, RECORD_SLOTS, REORDER_WINDOW, ReliableAttr, SEGMENT_SLOTS,
};
use crate::qp::queue_pair::{self, Transport};
use crate::qp::rc_transport;
use dgiwarp::RecordCompletions;
use nix::errno::Errno;
use std::ffi::c_int;
use std::net::SocketAddr;
use std::time::Duration;

/// `None` for zero, which selects the default.
fn unless_zero<T: PartialEq + Default>(value: T) -> Option<T> {
    (value != T::default()).then_some(value)
}

fn milliseconds(value: u32) -> Option<Duration> {
    unless_zero(value).map(|millis| Duration::from_millis(millis.into()))
}

/// Attributes of a reliable datagram queue pair, if it is to be one.
fn reliable(attr: &dgiwarpdv_qp_init_attr) -> Result<Option<ReliableAttr>, Errno> {
    match attr.driver_qp_type {
        0 if attr.unreachable_ms == 0 => Ok(None),
        DGIWARPDV_QP_DRIVER_TYPE_RD => Ok(Some(ReliableAttr {
            unreachable: milliseconds(attr.unreachable_ms),
        })),
        _ => Err(Errno::EOPNOTSUPP),
    }
}

impl DatagramAttr {
    fn of(attr: &dgiwarpdv_qp_init_attr, bind: Option<SocketAddr>) -> Result<Self, Errno> {
        const KNOWN: u32 = DGIWARPDV_QP_RECORDS | DGIWARPDV_QP_SEGMENT_COMPLETIONS;
        let has = |flag| attr.flags & flag != 0;
        if attr.flags & !KNOWN != 0 || attr.reserved != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        if has(DGIWARPDV_QP_SEGMENT_COMPLETIONS) && !has(DGIWARPDV_QP_RECORDS) {
            return Err(Errno::EINVAL);
        }
        let count = |value: u32| usize::try_from(value).map_err(|_| Errno::EINVAL);
        let slots = unless_zero(count(attr.record_slots)?).unwrap_or(RECORD_SLOTS);
        Ok(Self {
            bind,
            record_slots: if has(DGIWARPDV_QP_RECORDS) { slots } else { 0 },
            record_completions: if has(DGIWARPDV_QP_SEGMENT_COMPLETIONS) {
                RecordCompletions::PerSegment
            } else {
                RecordCompletions::PerMessage
            },
            segment_slots: unless_zero(count(attr.segment_slots)?).unwrap_or(SEGMENT_SLOTS),
            record_timeout: milliseconds(attr.record_timeout_ms),
            reorder_window: unless_zero(attr.reorder_window).unwrap_or(REORDER_WINDOW),
            read_timeout: milliseconds(attr.read_timeout_ms),
            max_rate: attr.max_rate,
            reliable: reliable(attr)?,
        })
    }
}

/// The address to bind.
///
/// # Safety
/// The pointer in `attr` is NULL or points to an address of the length beside it.
unsafe fn bind_address(attr: &dgiwarpdv_qp_init_attr) -> Result<Option<SocketAddr>, Errno> {
    let length = usize::try_from(attr.bind_addr_len).map_err(|_| Errno::EINVAL)?;
    if attr.bind_addr.is_null() {
        return Ok(None);
    }
    if length < size_of::<libc::sockaddr_in>() {
        return Err(Errno::EINVAL);
    }
    // SAFETY: not NULL, and long enough for its family.
    let family = unsafe { (*attr.bind_addr).sa_family };
    if c_int::from(family) == libc::AF_INET6 && length < size_of::<libc::sockaddr_in6>() {
        return Err(Errno::EINVAL);
    }
    // SAFETY: as long as its family needs, as was just checked.
    unsafe { address::read(attr.bind_addr) }.map(Some)
}

// SAFETY: integers and a pointer, for which zero is a valid value.
const FRESH: dgiwarpdv_qp_init_attr = unsafe { std::mem::zeroed() };

pub(super) unsafe extern "C" fn dgiwarpdv_create_qp(
    context: *mut ibv_context,
    init: *mut ibv_qp_init_attr_ex,
    dv: *const dgiwarpdv_qp_init_attr,
) -> *mut ibv_qp {
    pointer(|| {
        // SAFETY: the program passes an open context.
        unsafe { context::state(context) }?;
        let attr_dv = if dv.is_null() {
            DatagramAttr::default()
        } else {
            // SAFETY: not NULL, so attributes of the size in their first field.
            let attr = unsafe { load_sized(dv, FRESH) }?;
            // SAFETY: their address is valid.
            let bind = unsafe { bind_address(&attr) }?;
            DatagramAttr::of(&attr, bind)?
        };
        // SAFETY: the contract is that of `ibv_create_qp_ex(3)`.
        unsafe { create_extended(init, (&attr_dv, rc_transport::present())) }
    })
}

pub(super) unsafe extern "C" fn dgiwarpdv_query_qp(
    qp: *mut ibv_qp,
    attr: *mut dgiwarpdv_qp_attr,
) -> c_int {
    minus_one(|| {
        // SAFETY: the program passes room of the size in its first field.
        let size = unsafe { size_of_program(attr) }?;
        // SAFETY: and a live queue pair.
        let granted = match unsafe { &queue_pair::state(qp)?.qp } {
            Transport::Rd(rd) => rd.receive_buffer(),
            Transport::Ud(_)
            | Transport::Uc(_)
            | Transport::Rc(_)
            | Transport::RcRd(_)
            | Transport::XrcTarget(_) => {
                // SAFETY: as above.
                unsafe { datagram(qp) }?.receive_buffer()
            }
        };
        let granted = granted.map_err(errno::of)?;
        let answer = dgiwarpdv_qp_attr {
            size,
            receive_buffer: u64::try_from(granted).unwrap_or(u64::MAX),
        };
        // SAFETY: as above.
        unsafe { store_sized(attr, size, &answer) }.map(|()| 0)
    })
}

pub(super) unsafe extern "C" fn dgiwarpdv_set_max_rate(
    qp: *mut ibv_qp,
    bytes_per_second: u64,
) -> c_int {
    minus_one(|| {
        // SAFETY: the program passes a live queue pair.
        unsafe { datagram(qp) }?.set_max_rate(bytes_per_second);
        Ok(0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_that_of_the_verbs() {
        assert_eq!(DatagramAttr::of(&FRESH, None), Ok(DatagramAttr::default()));
    }

    #[test]
    fn records_are_taken_where_asked_for() {
        let attr = |flags| dgiwarpdv_qp_init_attr { flags, ..FRESH };
        let slots =
            |flags| DatagramAttr::of(&attr(flags), None).map(|attr_dv| attr_dv.record_slots);
        assert_eq!(slots(DGIWARPDV_QP_RECORDS), Ok(256));
        assert_eq!(slots(DGIWARPDV_QP_SEGMENT_COMPLETIONS), Err(Errno::EINVAL));
        assert_eq!(slots(1 << 31), Err(Errno::EOPNOTSUPP));
    }
}
