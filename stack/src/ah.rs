//! Address handles: a remote host and the path there.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
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
        self.0.path.lock().limit(now)
    }

    pub(crate) fn handle_too_big(&self, now: Instant, size: u16, mtu: u32) -> bool {
        self.0.path.lock().handle_too_big(now, size, mtu)
    }

    pub(crate) fn sends_singly(&self) -> bool {
        self.0.singly.load(Ordering::Relaxed)
    }

    pub(crate) fn send_singly(&self) {
        self.0.singly.store(true, Ordering::Relaxed);
    }
}
