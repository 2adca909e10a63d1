//! RC QPs on reliable datagrams whose peers the program named, by the peers' hosts: the end of a connection of rdma_cm beside them comes behind their messages.

use std::net::IpAddr;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use rustc_hash::{FxBuildHasher, FxHashMap};

use super::RdShared;

/// QPs at which those are forgotten that are gone.
const LEAST: usize = 64;

/// A QP with the host of its peer, and its process: a child has copies of its parent's.
#[derive(Debug)]
struct Paired {
    process: u32,
    host: IpAddr,
    qp: Weak<RdShared>,
}

/// The QPs by their addresses, and the number at which those are forgotten that are gone.
static ALL: Mutex<(FxHashMap<usize, Paired>, usize)> =
    Mutex::new((FxHashMap::with_hasher(FxBuildHasher), LEAST));

/// Enters a QP whose peer is at this host, in place of a peer that it had before.
pub(crate) fn enter(qp: &Arc<RdShared>, host: IpAddr) {
    let mut all = ALL.lock();
    let (entries, limit) = &mut *all;
    if entries.len() >= *limit {
        entries.retain(|_, it| it.qp.strong_count() > 0);
        *limit = 2 * entries.len() + LEAST;
    }
    let entry = Paired {
        process: std::process::id(),
        host: host.to_canonical(),
        qp: Arc::downgrade(qp),
    };
    // No other has this address as long as the entry is there.
    entries.insert(Arc::as_ptr(qp).addr(), entry);
}

/// Receives the messages that a host has sent to these QPs of this process, and returns whether completions of theirs lie in a completion queue.
pub(crate) fn has_untaken_of(host: IpAddr) -> bool {
    let (process, host) = (std::process::id(), host.to_canonical());
    let of_host = |it: &Paired| {
        let is_its = it.process == process && it.host == host;
        is_its.then(|| it.qp.upgrade()).flatten()
    };
    let qps: Vec<_> = ALL.lock().0.values().filter_map(of_host).collect();
    // Each of them receives.
    let untaken = qps.iter().filter(|qp| qp.has_untaken());
    untaken.count() > 0
}
