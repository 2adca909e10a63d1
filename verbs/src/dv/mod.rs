//! Direct verbs: the functions of our own header `infiniband/dgiwarpdv.h`, which documents them.
//!
//! Their symbols have a version of their own, so that a program that needs them does not start with rdma-core's
//! library.

mod counters;
mod datagram;
mod error_queue;
mod memory;
mod qp;
mod records;
mod remove_device;
mod sized;
mod wait_cq;
mod wc_source;
mod wr;
mod yield_port;

use crate::abi::{DGIWARPDV_VERSION, ibv_device};
use crate::device::list::expect_device;
use crate::export::export;
use crate::ffi::entry;

export! {
/// Functions beyond rdma-core's: name, node, and implementation.
pub DV_EXPORTS, bound by bind;
    "DGIWARP_1.0" {
        "dgiwarpdv_bitmap" => records::dgiwarpdv_bitmap;
        "dgiwarpdv_counter_name" => counters::dgiwarpdv_counter_name;
        "dgiwarpdv_create_qp" => qp::dgiwarpdv_create_qp;
        "dgiwarpdv_enable_events" => error_queue::dgiwarpdv_enable_events;
        "dgiwarpdv_is_supported" => dgiwarpdv_is_supported;
        "dgiwarpdv_poll_error" => error_queue::dgiwarpdv_poll_error;
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
        "dgiwarpdv_remove_device" => remove_device::dgiwarpdv_remove_device;
        "dgiwarpdv_set_max_rate" => qp::dgiwarpdv_set_max_rate;
        "dgiwarpdv_take_read_map" => wr::dgiwarpdv_take_read_map;
        "dgiwarpdv_version" => dgiwarpdv_version;
        "dgiwarpdv_wait_cq" => wait_cq::dgiwarpdv_wait_cq;
        "dgiwarpdv_wc_create_ah" => wc_source::dgiwarpdv_wc_create_ah;
        "dgiwarpdv_wc_source" => wc_source::dgiwarpdv_wc_source;
        "dgiwarpdv_wr_set_read_timeout" => wr::dgiwarpdv_wr_set_read_timeout;
        "dgiwarpdv_wr_write_record" => wr::dgiwarpdv_wr_write_record;
        "dgiwarpdv_wr_write_record_imm" => wr::dgiwarpdv_wr_write_record_imm;
        "dgiwarpdv_yield_port" => yield_port::dgiwarpdv_yield_port;
    }
}

extern "C" fn dgiwarpdv_version() -> u32 {
    DGIWARPDV_VERSION
}

extern "C" fn dgiwarpdv_is_supported(device: *mut ibv_device) -> bool {
    entry(false, || expect_device(device).is_ok())
}
