//! Limits of `ibv_query_device(3)`. Creating an object enforces them.

use nix::sys::resource::{Resource, getrlimit};
use std::ffi::c_int;

/// Not an assigned OUI: the locally administered bit is set.
pub(crate) const VENDOR_ID: u32 = 0x0002_d61a;
/// Version of the device model.
pub(crate) const VENDOR_PART_ID: u32 = 1;
/// Longest message that the port carries, in bytes.
pub(crate) const MAX_MESSAGE: u32 = 1 << 30;
/// Work requests in one send or receive queue.
pub(crate) const MAX_QP_WR: c_int = 16_384;
/// Scatter/gather entries in one work request.
pub(crate) const MAX_SGE: c_int = 16;
const _: () = assert!(MAX_SGE as usize == dgiwarp::MAX_SGE);
/// Bytes of inline data in one work request.
pub(crate) const MAX_INLINE: u32 = 256;
/// Completion queues in one context.
pub(crate) const MAX_CQ: c_int = 65_536;
/// Entries of one completion queue.
pub(crate) const MAX_CQE: c_int = 1 << 20;
/// Shared receive queues in one context.
pub(crate) const MAX_SRQ: c_int = 65_536;
/// Multicast groups of one queue pair.
pub(crate) const MAX_MCAST_GROUPS: c_int = 64;
/// Reads and atomics outstanding of one queue pair, in each direction.
pub(crate) const MAX_RD_ATOMIC: u8 = 128;
/// Memory regions in one context.
pub(crate) const MAX_MR: c_int = 1 << 20;
/// Memory windows in one context.
pub(crate) const MAX_MW: c_int = MAX_MR;
/// Bytes of device memory of the process.
pub(crate) const MAX_DM: usize = 16 << 20;
/// Protection domains in one context.
pub(crate) const MAX_PD: c_int = 65_536;
/// Address handles in one context.
pub(crate) const MAX_AH: c_int = 1 << 20;

/// Most queue pairs: each needs a descriptor, and 64 descriptors are left for other purposes.
pub(crate) fn max_qp() -> c_int {
    let descriptors = getrlimit(Resource::RLIMIT_NOFILE).map_or(1024, |(soft, _)| soft);
    c_int::try_from(descriptors.saturating_sub(64).clamp(1, 65_535)).unwrap_or(65_535)
}
