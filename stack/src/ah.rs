//! Address handles: a remote host and the path there.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::time::Instant;

use dgiwarp_llp_udp::{Path, SegmentLimit};
use parking_lot::Mutex;

/// A remote host and what is known of the path there (`ibv_create_ah(3)`). Cloning shares it.
#[derive(Debug, Clone)]
pub struct AddressHandle(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    destination: IpAddr,
    scope_id: u32,
    source: Option<IpAddr>,
    route_source: IpAddr,
    path: Mutex<Path>,
    /// What `path` says, as long as nothing was learnt that ages; 0 asks it.
    limit: AtomicU16,
    /// The device under this path cannot cut trains.
    singly: AtomicBool,
}

impl AddressHandle {
    pub(crate) fn new(
        destination: IpAddr,
        scope_id: u32,
        source: Option<IpAddr>,
        route_source: IpAddr,
        path: Path,
    ) -> Self {
        Self(Arc::new(Inner {
            destination,
            scope_id,
            source,
            route_source,
            path: Mutex::new(path),
            limit: AtomicU16::new(0),
            singly: AtomicBool::new(false),
        }))
    }

    /// The remote host.
    #[must_use]
    pub fn destination(&self) -> IpAddr {
        self.0.destination
    }

    /// The interface of a link-local destination, else 0.
    #[must_use]
    pub fn scope_id(&self) -> u32 {
        self.0.scope_id
    }

    /// The address of ours that messages leave from, if it was chosen.
    #[must_use]
    pub fn source(&self) -> Option<IpAddr> {
        self.0.source
    }

    /// The address of ours that the kernel chooses for this destination.
    #[must_use]
    pub fn route_source(&self) -> IpAddr {
        self.0.route_source
    }

    /// Octets of UDP payload that one datagram to this host may have now.
    #[must_use]
    pub fn datagram_limit(&self) -> u16 {
        self.limit(crate::driver::clock::now()).get()
    }

    #[inline]
    pub(crate) fn limit(&self, now: Instant) -> SegmentLimit {
        match SegmentLimit::stored(self.0.limit.load(Ordering::Relaxed)) {
            Some(limit) => limit,
            None => self.ask_path(now),
        }
    }

    fn ask_path(&self, now: Instant) -> SegmentLimit {
        let path = self.0.path.lock();
        let limit = path.limit(now);
        if !path.ages() {
            self.0.limit.store(limit.get(), Ordering::Relaxed);
        }
        limit
    }

    pub(crate) fn handle_too_big(&self, now: Instant, size: u16, mtu: u32) -> bool {
        let mut path = self.0.path.lock();
        self.0.limit.store(0, Ordering::Relaxed);
        path.handle_too_big(now, size, mtu)
    }

    pub(crate) fn sends_singly(&self) -> bool {
        self.0.singly.load(Ordering::Relaxed)
    }

    pub(crate) fn send_singly(&self) {
        self.0.singly.store(true, Ordering::Relaxed);
    }
}
