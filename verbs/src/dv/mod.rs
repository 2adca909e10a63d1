//! The functions of our own header, `infiniband/dgiwarpdv.h`: what the verbs have no words for. The header documents them.
//!
//! Their symbols have a version of their own, so that a program that needs them is not started with rdma-core's library.

mod completions;
mod counters;
mod errors;
mod memory;
mod qp;
mod records;
mod sized;
mod work;

pub(crate) use qp::Extras;

use crate::abi::{DGIWARPDV_VERSION, ibv_device, ibv_gid, ibv_qp};
use crate::device::gid::to_gid;
use crate::device::list::expect_device;
use crate::export::export;
use crate::ffi::entry;
use crate::qp::queue_pair::{self as queue_pair, Transport};
use dgiwarp::{UcQp, UdQp};
use nix::errno::Errno;
use std::ffi::c_int;
use std::net::SocketAddr;

export! {
/// Exported beside rdma-core's functions: name, node, and the function behind it.
pub DIRECT, bound by bind;
    "DGIWARP_1.0" {
        "dgiwarpdv_bitmap" => records::dgiwarpdv_bitmap;
        "dgiwarpdv_counter_name" => counters::dgiwarpdv_counter_name;
        "dgiwarpdv_create_qp" => qp::dgiwarpdv_create_qp;
        "dgiwarpdv_enable_events" => errors::dgiwarpdv_enable_events;
        "dgiwarpdv_is_supported" => dgiwarpdv_is_supported;
        "dgiwarpdv_poll_error" => errors::dgiwarpdv_poll_error;
        "dgiwarpdv_prove_address" => memory::dgiwarpdv_prove_address;
        "dgiwarpdv_query_counters" => counters::dgiwarpdv_query_counters;
        "dgiwarpdv_query_device_counters" => counters::dgiwarpdv_query_device_counters;
        "dgiwarpdv_query_qp" => qp::dgiwarpdv_query_qp;
        "dgiwarpdv_record_bitmap" => records::dgiwarpdv_record_bitmap;
        "dgiwarpdv_record_complete_now" => records::dgiwarpdv_record_complete_now;
        "dgiwarpdv_record_info" => records::dgiwarpdv_record_info;
        "dgiwarpdv_record_ranges" => records::dgiwarpdv_record_ranges;
        "dgiwarpdv_record_release" => records::dgiwarpdv_record_release;
        "dgiwarpdv_reg_mr" => memory::dgiwarpdv_reg_mr;
        "dgiwarpdv_set_max_rate" => qp::dgiwarpdv_set_max_rate;
        "dgiwarpdv_take_read_map" => work::dgiwarpdv_take_read_map;
        "dgiwarpdv_version" => dgiwarpdv_version;
        "dgiwarpdv_wait_cq" => completions::dgiwarpdv_wait_cq;
        "dgiwarpdv_wr_set_read_timeout" => work::dgiwarpdv_wr_set_read_timeout;
        "dgiwarpdv_wr_write_record" => work::dgiwarpdv_wr_write_record;
        "dgiwarpdv_wr_write_record_imm" => work::dgiwarpdv_wr_write_record_imm;
    }
}

extern "C" fn dgiwarpdv_version() -> u32 {
    DGIWARPDV_VERSION
}

extern "C" fn dgiwarpdv_is_supported(device: *mut ibv_device) -> bool {
    entry(false, || expect_device(device).is_ok())
}

/// A queue pair of the datagram engine.
enum Datagram<'a> {
    Ud(&'a UdQp),
    Uc(&'a UcQp),
}

/// The queue pair behind a pointer, if it is one of the datagram engine; `EOPNOTSUPP` for reliable ones.
///
/// # Safety
/// `qp` is NULL or a live queue pair that stays alive for `'a`.
unsafe fn datagram<'a>(qp: *mut ibv_qp) -> Result<Datagram<'a>, Errno> {
    // SAFETY: the caller's contract is the same.
    match unsafe { &queue_pair::state(qp)?.qp } {
        Transport::Ud(ud) => Ok(Datagram::Ud(ud)),
        Transport::Uc(uc) => Ok(Datagram::Uc(uc)),
        Transport::Rc(_) => Err(Errno::EOPNOTSUPP),
    }
}

/// Where a peer is: its GID, its QPN, and the interface of a link-local address.
fn place(peer: SocketAddr) -> (ibv_gid, u32, u32) {
    let scope = match peer {
        SocketAddr::V4(_) => 0,
        SocketAddr::V6(v6) => v6.scope_id(),
    };
    (to_gid(peer.ip()), peer.port().into(), scope)
}

/// A number as C functions return it, of things of which there are never too many.
fn number(count: usize) -> Result<c_int, Errno> {
    c_int::try_from(count).map_err(|_| Errno::EOVERFLOW)
}
