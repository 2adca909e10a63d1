//! Routes: a remote host and the path to it.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::time::Instant;

use dgiwarp_llp_udp::{DatagramLimit, Path, PathKind};
use dgiwarp_rdmap::datagram::Cookie;
use parking_lot::Mutex;

/// A remote host and the state of the path to it. Clones share both.
#[derive(Debug, Clone)]
pub struct Route(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    destination: IpAddr,
    scope_id: u32,
    source: Option<IpAddr>,
    route_source: IpAddr,
    path_kind: PathKind,
    path: Mutex<Path>,
    /// The limit of `path` while nothing in `path` ages, in octets of UDP payload; 0 otherwise.
    limit: AtomicU16,
    /// The device under this path cannot segment trains.
    singly: AtomicBool,
    /// The cookie that address validation at the peer yielded.
    cookie: Option<Cookie>,
    /// The hop limit (TTL) of a group; `None` for a single host.
    group: Option<u8>,
}

impl Route {
    /// The hop limit of multicast where none is chosen: the network of the sender alone, as in the kernel.
    pub const GROUP_HOP_LIMIT: u8 = 1;

    /// A route to a single host. `source` is a chosen source address, `route_source` the one of the routing table.
    #[must_use]
    pub fn new(
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
            path_kind: path.kind(),
            path: Mutex::new(path),
            limit: AtomicU16::new(0),
            singly: AtomicBool::new(false),
            cookie: None,
            group: None,
        }))
    }

    /// The route with another cookie and hop limit.
    fn changed(&self, cookie: Option<Cookie>, group: Option<u8>) -> Self {
        let inner = &self.0;
        Self(Arc::new(Inner {
            destination: inner.destination,
            scope_id: inner.scope_id,
            source: inner.source,
            route_source: inner.route_source,
            path_kind: inner.path_kind,
            path: Mutex::new(*inner.path.lock()),
            limit: AtomicU16::new(0),
            singly: AtomicBool::new(inner.singly.load(Ordering::Relaxed)),
            cookie,
            group,
        }))
    }

    /// The route of a group, with [`GROUP_HOP_LIMIT`](Self::GROUP_HOP_LIMIT).
    #[must_use]
    pub fn of_group(&self) -> Self {
        self.changed(None, Some(Self::GROUP_HOP_LIMIT))
    }

    /// The route whose Write-Records carry `cookie`.
    #[must_use]
    pub fn with_cookie(&self, cookie: Cookie) -> Self {
        self.changed(Some(cookie), self.0.group)
    }

    /// The route of a group with another hop limit; no effect on the route of a single host.
    #[must_use]
    pub fn with_hop_limit(&self, hop_limit: u8) -> Self {
        self.changed(self.0.cookie, self.0.group.map(|_| hop_limit))
    }

    /// The cookie of [`with_cookie`](Self::with_cookie).
    #[must_use]
    pub fn cookie(&self) -> Option<Cookie> {
        self.0.cookie
    }

    /// Whether the destination is a broadcast or multicast address.
    #[must_use]
    #[inline]
    pub fn is_group(&self) -> bool {
        self.0.group.is_some()
    }

    /// The hop limit of a group.
    #[must_use]
    #[inline]
    pub fn hop_limit(&self) -> Option<u8> {
        self.0.group
    }

    /// The remote host.
    #[must_use]
    #[inline]
    pub fn destination(&self) -> IpAddr {
        self.0.destination
    }

    /// The interface index of a link-local destination or of a group, else 0.
    #[must_use]
    #[inline]
    pub fn scope_id(&self) -> u32 {
        self.0.scope_id
    }

    /// The chosen source address.
    #[must_use]
    #[inline]
    pub fn source(&self) -> Option<IpAddr> {
        self.0.source
    }

    /// The source address that the routing table chooses.
    #[must_use]
    pub fn route_source(&self) -> IpAddr {
        self.0.route_source
    }

    /// Kind of the path.
    #[inline]
    #[must_use]
    pub fn path_kind(&self) -> PathKind {
        self.0.path_kind
    }

    /// Octets of UDP payload that one datagram may have at `now`.
    #[inline]
    #[must_use]
    pub fn limit(&self, now: Instant) -> DatagramLimit {
        match DatagramLimit::stored(self.0.limit.load(Ordering::Relaxed)) {
            Some(limit) => limit,
            None => self.limit_of_path(now),
        }
    }

    fn limit_of_path(&self, now: Instant) -> DatagramLimit {
        let path = self.0.path.lock();
        let limit = path.limit(now);
        if !path.ages() {
            self.0.limit.store(limit.get(), Ordering::Relaxed);
        }
        limit
    }

    /// Handles a datagram of `size` octets of payload that the path refused; `mtu` is the MTU of the route now. Returns whether the limit
    /// shrank.
    #[must_use]
    pub fn handle_too_big(&self, now: Instant, size: u16, mtu: u32) -> bool {
        let mut path = self.0.path.lock();
        self.0.limit.store(0, Ordering::Relaxed);
        path.handle_too_big(now, size, mtu)
    }

    /// Whether datagrams leave one per system call because the device cannot segment trains.
    #[must_use]
    pub fn sends_singly(&self) -> bool {
        self.0.singly.load(Ordering::Relaxed)
    }

    /// Datagrams leave one per system call from now on.
    pub fn send_singly(&self) {
        self.0.singly.store(true, Ordering::Relaxed);
    }
}
