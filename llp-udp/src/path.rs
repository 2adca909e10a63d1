//! How large a datagram a path takes (§8; the fall-back is in the manner of RFC 8899).

use std::time::{Duration, Instant};

/// Smallest datagram that is ever cut, in octets of UDP payload.
const FLOOR: u16 = 512;
/// Largest datagram that is ever sent.
const CEILING: u16 = 65_000;
/// Loopback datagrams for receivers whose buffer holds only few large ones.
const SMALL_LOOPBACK: u16 = 16_384;
/// A receive buffer of this many octets takes the largest datagrams.
const LARGE_RECEIVE_BUFFER: usize = 1 << 20;
/// What was learnt from an error is forgotten after this long, so that a path that grew is found.
const LEARNT_FOR: Duration = Duration::from_secs(600);

const IPV4_UDP_HEADERS: u32 = 28;
const IPV6_UDP_HEADERS: u32 = 48;

/// Octets of UDP payload that one datagram may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SegmentLimit(u16);

impl SegmentLimit {
    /// The limit that [`get`](Self::get) gave, kept elsewhere as a number; 0 stands for none.
    #[must_use]
    pub const fn stored(octets: u16) -> Option<Self> {
        if octets == 0 {
            None
        } else {
            Some(Self(octets))
        }
    }

    /// The number of octets.
    #[must_use]
    pub const fn get(self) -> u16 {
        self.0
    }

    /// Octets of message payload beside `headers` octets of headers, CRC included.
    #[must_use]
    #[inline]
    pub fn payload(self, headers: usize) -> u32 {
        u32::from(self.0).saturating_sub(u32::try_from(headers).unwrap_or(u32::MAX))
    }
}

/// What kind of path it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathKind {
    /// Both ends are on this host.
    Loopback {
        /// The receive buffer granted to our own sockets, in octets: the peer's are likely the same.
        receive_buffer: usize,
    },
    /// Between hosts, or between network namespaces.
    Network,
}

/// A path to a peer and what is known of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Path {
    kind: PathKind,
    ipv6: bool,
    mtu: u32,
    /// A smaller size learnt from an error, and when.
    learnt: Option<(u16, Instant)>,
}

impl Path {
    /// A path whose route has this MTU.
    #[must_use]
    pub const fn new(kind: PathKind, ipv6: bool, mtu: u32) -> Self {
        Self {
            kind,
            ipv6,
            mtu,
            learnt: None,
        }
    }

    /// Whether both ends are on this host.
    #[must_use]
    pub const fn is_loopback(&self) -> bool {
        matches!(self.kind, PathKind::Loopback { .. })
    }

    /// Whether the limit may change with time alone: something was learnt, and learnt sizes age.
    #[must_use]
    pub const fn ages(&self) -> bool {
        self.learnt.is_some()
    }

    /// The present limit.
    #[must_use]
    pub fn limit(&self, now: Instant) -> SegmentLimit {
        let by_route = self.by_route();
        match self.learnt {
            Some((size, at)) if now.saturating_duration_since(at) < LEARNT_FOR => {
                SegmentLimit(by_route.min(size))
            }
            Some(_) | None => SegmentLimit(by_route),
        }
    }

    fn by_route(&self) -> u16 {
        let headers = if self.ipv6 {
            IPV6_UDP_HEADERS
        } else {
            IPV4_UDP_HEADERS
        };
        let by_mtu = u16::try_from(self.mtu.saturating_sub(headers)).unwrap_or(CEILING);
        let by_kind = match self.kind {
            PathKind::Loopback { receive_buffer } if receive_buffer < LARGE_RECEIVE_BUFFER => {
                SMALL_LOOPBACK
            }
            PathKind::Loopback { .. } | PathKind::Network => CEILING,
        };
        by_mtu.min(by_kind).max(FLOOR)
    }

    /// The network refused a datagram of `size` octets, and the route's MTU was read again. The limit
    /// then is what the route gives, and if that is no smaller, half of what failed.
    ///
    /// Returns whether there is a smaller size to try.
    pub fn handle_too_big(&mut self, now: Instant, size: u16, mtu: u32) -> bool {
        self.mtu = mtu;
        if self.by_route() < size {
            return true;
        }
        let smaller = (size / 2).max(FLOOR);
        if smaller >= size {
            return false;
        }
        self.learnt = Some((smaller, now));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LARGE: PathKind = PathKind::Loopback {
        receive_buffer: 8 << 20,
    };
    const STOCK: PathKind = PathKind::Loopback {
        receive_buffer: 425_984,
    };

    #[expect(
        clippy::disallowed_methods,
        reason = "any instant serves as the origin"
    )]
    fn origin() -> Instant {
        Instant::now()
    }

    #[test]
    fn the_limit_follows_route_and_receive_buffer() {
        let now = origin();
        for (path, limit) in [
            (Path::new(PathKind::Network, false, 1500), 1472),
            (Path::new(PathKind::Network, true, 1500), 1452),
            (Path::new(PathKind::Network, false, 9000), 8972),
            (Path::new(LARGE, false, 65_536), 65_000),
            (Path::new(STOCK, false, 65_536), 16_384),
            (Path::new(LARGE, false, 1500), 1472),
            (Path::new(PathKind::Network, false, 300), 512),
            (Path::new(PathKind::Network, false, 1_000_000), 65_000),
        ] {
            assert_eq!(path.limit(now).get(), limit, "{path:?}");
        }
        assert_eq!(SegmentLimit(1472).payload(42), 1430);
        assert_eq!(SegmentLimit(20).payload(42), 0);
    }

    #[test]
    fn a_smaller_route_is_followed_and_an_unexplained_error_halves() {
        let now = origin();
        let mut path = Path::new(PathKind::Network, false, 9000);
        assert!(path.handle_too_big(now, 8972, 1500));
        assert_eq!(path.limit(now).get(), 1472);
        assert!(!path.ages());
        assert!(path.handle_too_big(now, 1472, 1500));
        assert_eq!(path.limit(now).get(), 736);
        assert!(path.handle_too_big(now, 736, 1500));
        assert_eq!(path.limit(now).get(), 512);
        assert!(!path.handle_too_big(now, 512, 1500));
        assert!(
            !path.handle_too_big(now, 22, 1500),
            "nothing is learnt from small ones"
        );
        assert!(path.ages());
        assert_eq!(path.limit(now + LEARNT_FOR).get(), 1472, "learnt sizes age");
    }
}
