//! Path MTU: the longest datagram of a path (§8), with a fall-back in the manner of RFC 8899.

use std::time::{Duration, Instant};

/// Smallest limit of a path, in octets of UDP payload.
const FLOOR: u16 = 512;
/// Largest limit of a path.
const CEILING: u16 = 65_000;
/// Limit on loopback where the receive buffer holds only few large datagrams.
const SMALL_LOOPBACK: u16 = 16_384;
/// Smallest receive buffer, in octets, for the largest datagrams on loopback.
const LARGE_RECEIVE_BUFFER: usize = 1 << 20;
/// Lifetime of a limit learnt from an error: a path that has grown is found then.
const LEARNT_FOR: Duration = Duration::from_secs(600);

const IPV4_UDP_HEADERS: u32 = 28;
const IPV6_UDP_HEADERS: u32 = 48;

/// Octets of UDP payload that one datagram may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct DatagramLimit(u16);

impl DatagramLimit {
    /// A datagram that every path takes (§8), for peers whose path is unknown.
    pub const SMALLEST: Self = Self(FLOOR);

    /// The limit with this value of [`get`](Self::get); 0 stands for none.
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
}

/// Kind of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathKind {
    /// Both ends are on this host.
    Loopback {
        /// Receive buffer of our own sockets, in octets, taken as an estimate of the peer's.
        receive_buffer: usize,
    },
    /// Between hosts, or between network namespaces.
    Network,
}

/// A path to a peer: its kind, its MTU, and a limit learnt from errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Path {
    kind: PathKind,
    ipv6: bool,
    /// MTU of the route in octets, IP header included.
    mtu: u32,
    /// Limit learnt from an error, and when; valid for [`LEARNT_FOR`].
    learnt: Option<(u16, Instant)>,
}

impl Path {
    /// A path whose route has this MTU in octets.
    #[must_use]
    pub const fn new(kind: PathKind, ipv6: bool, mtu: u32) -> Self {
        Self {
            kind,
            ipv6,
            mtu,
            learnt: None,
        }
    }

    /// The kind.
    #[must_use]
    pub const fn kind(&self) -> PathKind {
        self.kind
    }

    /// Whether the limit may change with time alone: learnt limits expire.
    #[must_use]
    pub const fn ages(&self) -> bool {
        self.learnt.is_some()
    }

    /// The present limit.
    #[must_use]
    pub fn limit(&self, now: Instant) -> DatagramLimit {
        let by_route = self.by_route();
        match self.learnt {
            Some((size, at)) if now.saturating_duration_since(at) < LEARNT_FOR => {
                DatagramLimit(by_route.min(size))
            }
            Some(_) | None => DatagramLimit(by_route),
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

    /// Handles the refusal of a datagram of `size` octets; `mtu` is the route's MTU, read again. The limit becomes the
    /// route's, or half of `size` where the route's is no smaller.
    ///
    /// Returns whether the limit is smaller than `size` now.
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
        let buffer = |receive_buffer| PathKind::Loopback { receive_buffer };
        for (path, limit) in [
            (Path::new(buffer(1 << 20), false, 65_536), 65_000),
            (Path::new(buffer((1 << 20) - 1), false, 65_536), 16_384),
            (Path::new(PathKind::Network, false, 0), 512),
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
        assert_eq!(DatagramLimit::stored(1472), Some(DatagramLimit(1472)));
        assert_eq!(DatagramLimit::stored(0), None);
        assert_eq!(DatagramLimit::SMALLEST.get(), 512);
        assert_eq!(Path::new(STOCK, true, 1500).kind(), STOCK);
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
        let before = now + LEARNT_FOR.checked_sub(Duration::from_nanos(1)).unwrap();
        assert_eq!(path.limit(before).get(), 512);
        assert_eq!(
            path.limit(now + LEARNT_FOR).get(),
            1472,
            "learnt limits expire"
        );
        assert!(path.handle_too_big(now, 1472, 1499), "the route is smaller");
        assert_eq!(path.limit(now + LEARNT_FOR).get(), 1471);
    }
}
