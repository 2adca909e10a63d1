//! Ways of a companion's datagrams: peers and their queue pairs.

use dgiwarp::AddressHandle;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Datagrams to one destination after which its companion is looked for: fewer cost less without.
const FIRST: u32 = 8;
/// Time after which it is looked for again.
const PAUSE: Duration = Duration::from_secs(1);
/// Time for which datagrams of a queue pair that has ended are still taken.
const LINGERS: Duration = Duration::from_secs(60);
/// Destinations that are remembered.
const MAX_DESTINATIONS: usize = 4096;
/// Peers at a time: as many as a queue pair shares memory with.
pub(super) const MAX_ROUTES: usize = 4;
/// Time after which a route without datagrams makes room for another.
const IDLE: Duration = Duration::from_secs(5);

/// Way to a peer.
#[derive(Debug)]
pub(super) struct Route {
    /// Number in the exchange.
    pub(super) key: u64,
    /// Queue pair of the peer, once the peer takes datagrams of ours.
    pub(super) qpn: Option<u16>,
    /// Queue pair that it has named.
    named: Option<u16>,
    /// Address of ours that the peer sees.
    pub(super) source: SocketAddr,
    pub(super) handle: AddressHandle,
    used: Instant,
}

#[derive(Debug, Default)]
struct Destination {
    /// Datagrams that went by the kernel.
    sent: u32,
    asked: Option<Instant>,
}

/// Queue pair that datagrams are taken of.
#[derive(Debug)]
struct Known {
    /// Address of the peer's socket to which datagrams go.
    to: SocketAddr,
    /// Address from which they come: of a socket at all addresses, the one that the kernel takes.
    source: SocketAddr,
    ended: Option<Instant>,
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Routes {
    routes: HashMap<SocketAddr, Route>,
    destinations: HashMap<SocketAddr, Destination>,
    known: HashMap<u16, Known>,
}

impl Routes {
    pub(super) fn is_empty(&self) -> bool {
        self.routes.is_empty()
    }

    /// The route to a peer that takes datagrams.
    pub(super) fn get(&mut self, to: SocketAddr, now: Instant) -> Option<&Route> {
        let route = self.routes.get_mut(&to)?;
        route.qpn?;
        route.used = now;
        Some(route)
    }

    /// Counts a datagram that goes by the kernel. Returns whether a companion of the destination is to be looked for.
    pub(super) fn count(&mut self, to: SocketAddr, now: Instant) -> bool {
        if self.routes.contains_key(&to) {
            return false;
        }
        if self.destinations.len() >= MAX_DESTINATIONS && !self.destinations.contains_key(&to) {
            self.destinations.clear();
        }
        let destination = self.destinations.entry(to).or_default();
        destination.sent = destination.sent.saturating_add(1);
        let is_due = |asked| now.saturating_duration_since(asked) >= PAUSE;
        let asks = destination.sent >= FIRST && destination.asked.is_none_or(is_due);
        if asks {
            destination.asked = Some(now);
        }
        asks
    }

    /// Whether there is room for another route. One that is idle makes it: its number in the exchange is returned.
    pub(super) fn make_room(&mut self, now: Instant) -> Result<Option<u64>, Full> {
        if self.routes.len() < MAX_ROUTES {
            return Ok(None);
        }
        let oldest = self.routes.iter().min_by_key(|(_, route)| route.used);
        let (to, route) = oldest.ok_or(Full)?;
        if now.saturating_duration_since(route.used) < IDLE {
            return Err(Full);
        }
        let (to, key) = (*to, route.key);
        self.remove(to, key, now);
        Ok(Some(key))
    }

    /// Enters a route, and takes datagrams of the peer's queue pair where it is known. Returns the number of one that it replaces.
    pub(super) fn enter(&mut self, to: SocketAddr, new: NewRoute, now: Instant) -> Option<u64> {
        if let Some(qpn) = new.takes_from {
            self.take_from(qpn, to, to);
        }
        let route = Route {
            key: new.key,
            qpn: None,
            named: new.takes_from,
            source: new.source,
            handle: new.handle,
            used: now,
        };
        self.routes.insert(to, route).map(|it| it.key)
    }

    fn take_from(&mut self, qpn: u16, to: SocketAddr, source: SocketAddr) {
        let known = Known {
            to,
            source,
            ended: None,
        };
        self.known.insert(qpn, known);
    }

    /// The peer takes datagrams, at this queue pair or at the one that it has named before. Datagrams of the former are taken from now on.
    pub(super) fn open(&mut self, to: SocketAddr, key: u64, at: Option<(u16, SocketAddr)>) -> bool {
        let Some(route) = self.routes.get_mut(&to).filter(|it| it.key == key) else {
            return false;
        };
        route.qpn = at.map(|(qpn, _)| qpn).or(route.named);
        let is_open = route.qpn.is_some();
        if let Some((qpn, source)) = at {
            self.take_from(qpn, to, source);
        }
        is_open
    }

    /// A route has ended. The destination is asked again with the next datagram, unless its socket has refused.
    pub(super) fn lose(&mut self, to: SocketAddr, key: u64, refused: bool, now: Instant) {
        if self.remove(to, key, now)
            && !refused
            && let Some(destination) = self.destinations.get_mut(&to)
        {
            destination.asked = None;
        }
    }

    fn remove(&mut self, to: SocketAddr, key: u64, now: Instant) -> bool {
        if self.routes.get(&to).is_none_or(|it| it.key != key) {
            return false;
        }
        self.routes.remove(&to);
        self.known.retain(|_, known| {
            if known.to == to && known.ended.is_none() {
                known.ended = Some(now);
            }
            known
                .ended
                .is_none_or(|ended| now.saturating_duration_since(ended) < LINGERS)
        });
        true
    }

    /// Ends all routes but that to one peer. Returns their numbers in the exchange.
    pub(super) fn clear_but(&mut self, peer: Option<SocketAddr>, now: Instant) -> Vec<u64> {
        let others = self.routes.iter().filter(|(to, _)| Some(**to) != peer);
        let others: Vec<_> = others.map(|(to, route)| (*to, route.key)).collect();
        for (to, key) in &others {
            self.remove(*to, *key, now);
        }
        others.into_iter().map(|(_, key)| key).collect()
    }

    /// Whether a datagram is of a peer: it came from the peer's queue pair, and names the socket beside that.
    pub(super) fn is_peers(&self, came_from: SocketAddr, source: SocketAddr) -> bool {
        let ip = came_from.ip().to_canonical();
        self.known.get(&came_from.port()).is_some_and(|known| {
            known.source.port() == source.port()
                && known.source.ip() == source.ip().to_canonical()
                && [known.source.ip(), known.to.ip()].contains(&ip)
        })
    }
}

/// No route is idle.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Full;

/// A route of which the peer has not said that it takes datagrams.
#[derive(Debug)]
pub(super) struct NewRoute {
    pub(super) key: u64,
    pub(super) source: SocketAddr,
    pub(super) handle: AddressHandle,
    /// Queue pair of the peer.
    pub(super) takes_from: Option<u16>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rsocket::wait::now;

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_destination_is_asked_behind_some_datagrams_and_then_once_a_second() {
        let mut routes = Routes::default();
        let (start, to) = (now(), address("127.0.0.1:9"));
        let mut asked = |millis: u64, count: u32| {
            let at = start + Duration::from_millis(millis);
            (0..count).filter(|_| routes.count(to, at)).count()
        };
        assert_eq!(asked(0, FIRST - 1), 0);
        assert_eq!(asked(0, 1000), 1);
        assert_eq!(asked(999, 1000), 0);
        assert_eq!(asked(1000, 1000), 1);
    }

    #[test]
    fn destinations_are_bounded() {
        let mut routes = Routes::default();
        for port in 1..=u16::MAX {
            routes.count(([127, 0, 0, 1], port).into(), now());
            assert!(routes.destinations.len() <= MAX_DESTINATIONS);
        }
    }

    #[test]
    fn datagrams_of_strangers_are_not_taken() {
        let mut routes = Routes::default();
        let peer = address("127.0.0.2:9");
        assert!(!routes.is_peers(address("127.0.0.2:40000"), peer));
        routes.take_from(40_000, peer, address("127.0.0.1:9"));
        for (from, source, taken) in [
            ("127.0.0.1:40000", "127.0.0.1:9", true),
            ("[::ffff:127.0.0.1]:40000", "127.0.0.1:9", true),
            ("127.0.0.2:40000", "127.0.0.1:9", true),
            // Another queue pair, source and host.
            ("127.0.0.1:40001", "127.0.0.1:9", false),
            ("127.0.0.1:40000", "127.0.0.1:10", false),
            ("127.0.0.2:40000", "127.0.0.2:9", false),
            ("192.0.2.1:40000", "127.0.0.1:9", false),
            ("192.0.2.1:40000", "192.0.2.1:9", false),
        ] {
            let found = routes.is_peers(address(from), address(source));
            assert_eq!(found, taken, "{source} from {from}");
        }
    }
}
