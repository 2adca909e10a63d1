//! Names of enum values, and conversions of InfiniBand rates. The texts are rdma-core's: programs print them, and
//! scripts match them.

use crate::ffi::entry;
use std::ffi::{CStr, c_char, c_int};

/// `enum ibv_wc_status`, by value.
const WC_STATUS: [&CStr; 24] = [
    c"success",
    c"local length error",
    c"local QP operation error",
    c"local EE context operation error",
    c"local protection error",
    c"Work Request Flushed Error",
    c"memory management operation error",
    c"bad response error",
    c"local access error",
    c"remote invalid request error",
    c"remote access error",
    c"remote operation error",
    c"transport retry counter exceeded",
    c"RNR retry counter exceeded",
    c"local RDD violation error",
    c"remote invalid RD request",
    c"aborted error",
    c"invalid EE context number",
    c"invalid EE context state",
    c"fatal error",
    c"response timeout error",
    c"general error",
    c"TM error",
    c"TM software rendezvous",
];

/// `enum ibv_event_type`, by value.
const EVENT_TYPE: [&CStr; 20] = [
    c"CQ error",
    c"local work queue catastrophic error",
    c"invalid request local work queue error",
    c"local access violation work queue error",
    c"communication established",
    c"send queue drained",
    c"path migrated",
    c"path migration request error",
    c"local catastrophic error",
    c"port active",
    c"port error",
    c"LID change",
    c"P_Key change",
    c"SM change",
    c"SRQ catastrophic error",
    c"SRQ limit reached",
    c"last WQE reached",
    c"client reregistration",
    c"GID table change",
    c"WQ fatal",
];

/// `enum ibv_node_type`, by value.
const NODE_TYPE: [&CStr; 8] = [
    c"unknown",
    c"InfiniBand channel adapter",
    c"InfiniBand switch",
    c"InfiniBand router",
    c"iWARP NIC",
    c"usNIC",
    c"usNIC UDP",
    c"unspecified",
];

/// `enum ibv_port_state`, by value.
const PORT_STATE: [&CStr; 6] = [
    c"no state change (NOP)",
    c"down",
    c"init",
    c"armed",
    c"active",
    c"active defer",
];

/// `enum rdma_cm_event_type`, by value.
const CM_EVENT: [&CStr; 16] = [
    c"RDMA_CM_EVENT_ADDR_RESOLVED",
    c"RDMA_CM_EVENT_ADDR_ERROR",
    c"RDMA_CM_EVENT_ROUTE_RESOLVED",
    c"RDMA_CM_EVENT_ROUTE_ERROR",
    c"RDMA_CM_EVENT_CONNECT_REQUEST",
    c"RDMA_CM_EVENT_CONNECT_RESPONSE",
    c"RDMA_CM_EVENT_CONNECT_ERROR",
    c"RDMA_CM_EVENT_UNREACHABLE",
    c"RDMA_CM_EVENT_REJECTED",
    c"RDMA_CM_EVENT_ESTABLISHED",
    c"RDMA_CM_EVENT_DISCONNECTED",
    c"RDMA_CM_EVENT_DEVICE_REMOVAL",
    c"RDMA_CM_EVENT_MULTICAST_JOIN",
    c"RDMA_CM_EVENT_MULTICAST_ERROR",
    c"RDMA_CM_EVENT_ADDR_CHANGE",
    c"RDMA_CM_EVENT_TIMEWAIT_EXIT",
];

/// A rate: value of `enum ibv_rate`, multiple of 2.5 Gbit/s where rdma-core has one, and Mbit/s.
const RATES: [(c_int, Option<c_int>, c_int); 23] = [
    (2, Some(1), 2500),
    (5, Some(2), 5000),
    (3, Some(4), 10000),
    (11, None, 14062),
    (6, Some(8), 20000),
    (15, None, 25781),
    (19, Some(11), 28125),
    (4, Some(12), 30000),
    (7, Some(16), 40000),
    (20, Some(20), 53125),
    (12, None, 56250),
    (8, Some(24), 60000),
    (9, Some(32), 80000),
    (16, None, 103125),
    (13, None, 112500),
    (10, Some(48), 120000),
    (14, None, 168750),
    (17, None, 206250),
    (18, None, 309375),
    (21, Some(160), 425000),
    (22, Some(240), 637500),
    (23, Some(320), 850000),
    (24, Some(480), 1275000),
];

/// `IBV_RATE_MAX`: no limit, and the answer for numbers that are no rate.
const RATE_MAX: c_int = 0;

fn name(table: &'static [&'static CStr], value: c_int, unknown: &'static CStr) -> *const c_char {
    let index = usize::try_from(value).ok();
    index
        .and_then(|index| table.get(index))
        .copied()
        .unwrap_or(unknown)
        .as_ptr()
}

pub(crate) extern "C" fn ibv_wc_status_str(status: c_int) -> *const c_char {
    name(&WC_STATUS, status, c"unknown")
}

pub(crate) extern "C" fn ibv_event_type_str(event: c_int) -> *const c_char {
    name(&EVENT_TYPE, event, c"unknown")
}

pub(crate) extern "C" fn ibv_node_type_str(node_type: c_int) -> *const c_char {
    name(&NODE_TYPE, node_type, c"unknown")
}

pub(crate) extern "C" fn ibv_port_state_str(state: c_int) -> *const c_char {
    name(&PORT_STATE, state, c"unknown")
}

pub(crate) extern "C" fn rdma_event_str(event: c_int) -> *const c_char {
    name(&CM_EVENT, event, c"UNKNOWN EVENT")
}

pub(crate) extern "C" fn ibv_rate_to_mult(rate: c_int) -> c_int {
    entry(-1, || {
        RATES
            .iter()
            .find(|row| row.0 == rate)
            .and_then(|row| row.1)
            .unwrap_or(-1)
    })
}

pub(crate) extern "C" fn mult_to_ibv_rate(mult: c_int) -> c_int {
    entry(RATE_MAX, || {
        RATES
            .iter()
            .find(|row| row.1 == Some(mult))
            .map_or(RATE_MAX, |row| row.0)
    })
}

pub(crate) extern "C" fn ibv_rate_to_mbps(rate: c_int) -> c_int {
    entry(-1, || {
        RATES
            .iter()
            .find(|row| row.0 == rate)
            .map_or(-1, |row| row.2)
    })
}

pub(crate) extern "C" fn mbps_to_ibv_rate(mbps: c_int) -> c_int {
    entry(RATE_MAX, || {
        RATES
            .iter()
            .find(|row| row.2 == mbps)
            .map_or(RATE_MAX, |row| row.0)
    })
}
