//! Address handles: a remote host and the path there.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::time::Instant;

use dgiwarp_llp_udp::{Path, SegmentLimit};
use dgiwarp_rdmap::datagram::Cookie;
use parking_lot::Mutex;

use crate::driver::udp_socket::Leave;

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
    /// What a queue pair proves to its peer with that it receives at the address it sends from.
    cookie: Option<Cookie>,
    /// Set where the destination is a group.
    group: Option<GroupWay>,
}

/// How messages to a group leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct GroupWay {
    hop_limit: u8,
}

/// As the kernel has it for multicast: the network of the sender alone.
const GROUP_HOP_LIMIT: u8 = 1;

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
            cookie: None,
            group: None,
        }))
    }

    /// The handle made into one of a group.
    pub(crate) fn of_group(self) -> Self {
        self.changed(
            None,
            Some(GroupWay {
                hop_limit: GROUP_HOP_LIMIT,
            }),
        )
    }

    /// The handle with which Write-Records carry this cookie.
    pub(crate) fn with_cookie(&self, cookie: Cookie) -> Self {
        self.changed(Some(cookie), self.0.group)
    }

    pub(crate) fn cookie(&self) -> Option<Cookie> {
        self.0.cookie
    }

    fn changed(&self, cookie: Option<Cookie>, group: Option<GroupWay>) -> Self {
        let inner = &self.0;
        Self(Arc::new(Inner {
            destination: inner.destination,
            scope_id: inner.scope_id,
            source: inner.source,
            route_source: inner.route_source,
            path: Mutex::new(*inner.path.lock()),
            limit: AtomicU16::new(0),
            singly: AtomicBool::new(inner.singly.load(Ordering::Relaxed)),
            cookie,
            group,
        }))
    }

    /// Whether the destination is a broadcast or multicast address: then messages go to the device's group port, and
    /// a QPN given with it has no meaning.
    #[must_use]
    #[inline]
    pub fn is_group(&self) -> bool {
        self.0.group.is_some()
    }

    /// The same group, for messages that may pass `hop_limit` - 1 routers; the default of 1 keeps them in the sender's
    /// network. 0 keeps them on this host. No effect on the handle of a single host.
    #[must_use]
    pub fn with_hop_limit(&self, hop_limit: u8) -> Self {
        self.changed(self.0.cookie, self.0.group.map(|_| GroupWay { hop_limit }))
    }

    /// How messages leave over a socket that is not connected.
    #[inline]
    pub(crate) fn leave(&self) -> Leave {
        match &self.0.group {
            None => self.0.source.into(),
            Some(way) => Leave {
                from: self.0.source,
                interface: self.0.scope_id,
                hop_limit: (way.hop_limit != GROUP_HOP_LIMIT).then_some(way.hop_limit),
            },
        }
    }

    /// The remote host.
    #[must_use]
    pub fn destination(&self) -> IpAddr {
        self.0.destination
    }

    /// The interface of a link-local destination or of a group, else 0.
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
