//! Counters in an array with a fixed order.

use super::datagram::to_int;
use crate::abi::{ibv_context, ibv_qp};
use crate::device::context;
use crate::ffi::{entry, minus_one};
use crate::qp::queue_pair::{self, Transport};
use dgiwarp::{DropReason, QpCounters};
use nix::errno::Errno;
use std::ffi::{CStr, c_char, c_int};
use std::ptr;

/// Names in the order of `enum dgiwarpdv_counter`, new ones at the end.
const NAMES: &[&CStr] = &[
    c"segments_sent",
    c"octets_sent",
    c"segments_received",
    c"octets_received",
    c"octets_staged",
    c"octets_kept",
    c"parked",
    c"resized",
    c"send_errors",
    c"errors_lost",
    c"fault_dropped",
    c"fault_duplicated",
    c"fault_reordered",
    c"fault_corrupted",
    c"fault_delayed",
    c"fault_overflowed",
    c"read_requests_sent",
    c"read_repeats",
    c"read_responses_sent",
    c"reads_timed_out",
    c"malformed",
    c"bad-crc",
    c"unknown-format",
    c"bad-version",
    c"unexpected-opcode",
    c"bad-qkey",
    c"no-receive",
    c"receive-too-short",
    c"reassembly-full",
    c"reassembly-timeout",
    c"reassembly-superseded",
    c"write-record-off",
    c"bad-stag",
    c"bad-pd",
    c"no-access",
    c"wrong-peer",
    c"bad-cookie",
    c"not-well-known",
    c"out-of-bounds",
    c"late",
    c"duplicate",
    c"no-source-slot",
    c"map-full",
    c"unvalidated-read",
    c"read-queue-full",
    c"unsolicited",
    c"backlog-full",
    c"incomplete-write",
    c"record-dropped",
    c"segment-unreported",
    c"lane_octets_sent",
    c"lane_octets_received",
    c"lane_refused_budget",
    c"lane_refused_memory",
    c"lane_refused_unreachable",
    c"lane_refused_offer",
    c"lane_refused_late",
    c"lane_refused_user",
    c"lane_octets_placed",
    c"one_sided_operations",
    c"one_sided_octets",
];

/// Value of a counter by name.
fn value(counters: &QpCounters, name: &CStr) -> u64 {
    let is = |other: &str| other.as_bytes() == name.to_bytes();
    let plain = counters.iter().find(|(name, _)| is(name));
    let dropped = || {
        let reason = DropReason::ALL.iter().find(|reason| is(reason.name()));
        reason.map_or(0, |reason| counters.dropped(*reason))
    };
    plain.map_or_else(dropped, |(_, value)| value)
}

/// Writes the first `count` counters and returns the number of all.
///
/// # Safety
/// `values` points to room for `count` numbers, unless `count` is not positive.
unsafe fn store(counters: &QpCounters, values: *mut u64, count: c_int) -> Result<c_int, Errno> {
    let count = usize::try_from(count).map_err(|_| Errno::EINVAL)?;
    if count > 0 && values.is_null() {
        return Err(Errno::EINVAL);
    }
    let known = NAMES.iter().map(|name| value(counters, name));
    for (at, value) in known.chain(std::iter::repeat(0)).take(count).enumerate() {
        // SAFETY: `at` is below `count`.
        let slot = unsafe { values.add(at) };
        // SAFETY: the program provides `count` numbers.
        unsafe { slot.write(value) };
    }
    to_int(NAMES.len())
}

pub(super) unsafe extern "C" fn dgiwarpdv_query_counters(
    qp: *mut ibv_qp,
    values: *mut u64,
    count: c_int,
) -> c_int {
    minus_one(|| {
        // SAFETY: the program passes a live queue pair.
        let counters = match unsafe { &queue_pair::state(qp)?.qp } {
            Transport::Ud(ud) => ud.counters(),
            Transport::Uc(uc) => uc.counters(),
            Transport::Rd(rd) => rd.counters(),
            Transport::Rc(rc) => rc.counters(),
            Transport::RcRd(rc) => rc.counters(),
            Transport::XrcTarget(target) => target.rc.counters(),
        };
        // SAFETY: and room for the values.
        unsafe { store(&counters, values, count) }
    })
}

pub(super) unsafe extern "C" fn dgiwarpdv_query_device_counters(
    context: *mut ibv_context,
    values: *mut u64,
    count: c_int,
) -> c_int {
    minus_one(|| {
        // SAFETY: the program passes an open context.
        let counters = unsafe { context::state(context) }?.rnic.counters();
        // SAFETY: and room for the values.
        unsafe { store(&counters, values, count) }
    })
}

pub(super) extern "C" fn dgiwarpdv_counter_name(counter: c_int) -> *const c_char {
    entry(ptr::null(), || {
        let name = usize::try_from(counter).ok().and_then(|at| NAMES.get(at));
        name.map_or(ptr::null(), |name| name.as_ptr())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_counter_has_a_place_and_none_has_two() {
        let counters = QpCounters::default();
        let plain = counters.iter().map(|(name, _)| name);
        let dropped = DropReason::ALL.iter().map(|reason| reason.name());
        let all: BTreeSet<&str> = plain.chain(dropped).collect();
        let named: BTreeSet<&str> = NAMES.iter().map(|name| name.to_str().unwrap()).collect();
        assert_eq!(named, all);
        assert_eq!(named.len(), NAMES.len());
    }
}
