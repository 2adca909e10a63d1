//! Cache of paths to requesters whose addresses are validated.

use std::net::IpAddr;

use dgiwarp_engine::types::Route;
use dgiwarp_llp_udp::{Path, PathKind, Peer};
use rustc_hash::FxHashMap;

use crate::driver::udp::port::Port;
use crate::driver::udp::route;

/// Most paths in the cache of a QP. A full table is cleared: looking a path up costs a few system calls.
const MAX_PATHS: usize = 256;

/// Destination, scope of the interface, and address of ours.
type Key = (IpAddr, u32, Option<IpAddr>);

/// The paths of a QP to its requesters.
#[derive(Debug, Default)]
pub(crate) struct PathCache {
    paths: FxHashMap<Key, Option<Route>>,
}

impl PathCache {
    /// The path to a peer from an address of ours, looked up if it is new. `mtu` limits a route's. On loopback the peer's receive buffer is
    /// likely as large as that of `port`.
    pub(crate) fn path(
        &mut self,
        peer: Peer,
        from: Option<IpAddr>,
        port: &Port,
        mtu: impl FnOnce(u32) -> u32,
    ) -> Option<Route> {
        let address = peer.socket_addr()?;
        let scope_id = match address {
            std::net::SocketAddr::V6(v6) => v6.scope_id(),
            std::net::SocketAddr::V4(_) => 0,
        };
        let key = (address.ip(), scope_id, from);
        if let Some(path) = self.paths.get(&key) {
            return path.clone();
        }
        if self.paths.len() >= MAX_PATHS {
            self.paths.clear();
        }
        let path = port.look_up(key.0, scope_id).ok().map(|route| {
            let kind = if route::is_local(key.0, route) {
                let receive_buffer = port.granted_receive_buffer().unwrap_or(0);
                PathKind::Loopback { receive_buffer }
            } else {
                PathKind::Network
            };
            let path = Path::new(kind, key.0.is_ipv6(), mtu(route.mtu));
            Route::new(key.0, scope_id, from, route.source, path)
        });
        self.paths.insert(key, path.clone());
        path
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::udp::memory_port::MemoryPort;

    #[test]
    fn a_path_is_looked_up_once_and_the_table_is_bounded() {
        let mut path_cache = PathCache::default();
        let [memory] = MemoryPort::network();
        let memory = Port::Memory(memory);
        let mut looked_up = 0;
        for port in [1, 2] {
            let peer = Peer::ip(([127, 0, 0, 1], port).into());
            let path = path_cache.path(peer, None, &memory, |mtu| {
                looked_up += 1;
                mtu
            });
            assert_eq!(
                path.unwrap()
                    .limit(crate::driver::device::clock::now())
                    .get(),
                65_000
            );
        }
        assert_eq!(looked_up, 1);
        for last in 0..=255 {
            for other in [1, 2] {
                let peer = Peer::ip(([127, 0, other, last], 1).into());
                assert!(path_cache.path(peer, None, &memory, |mtu| mtu).is_some());
                assert!(path_cache.paths.len() <= MAX_PATHS);
            }
        }
    }
}
