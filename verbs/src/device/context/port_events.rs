//! Events of the port: its state, its LID and its GIDs follow the host's links and addresses.

use crate::abi::ibv_gid;
use crate::device::async_queue::AsyncQueue;
use crate::device::context::{refresh_gids, with_gids};
use crate::device::gid::{Gid, GidTable};
use dgiwarp::{AsyncEvent, NetworkWatch, Rnic};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// The port, as far as events report its changes.
#[derive(Debug, Default, PartialEq, Eq)]
struct Port {
    /// By index; an empty slot is a zero GID.
    gids: Vec<ibv_gid>,
    lid: u16,
    is_up: bool,
}

impl Port {
    fn of(table: &GidTable) -> Self {
        let gid = |index| table.get(index).map_or_else(ibv_gid::default, Gid::raw);
        Self {
            gids: (0..table.len()).map(gid).collect(),
            lid: table.lid(),
            is_up: table.primary().is_some(),
        }
    }

    /// The events that lead from one state to another.
    fn events(&self, now: &Self) -> impl Iterator<Item = AsyncEvent> {
        let state = if now.is_up {
            AsyncEvent::PortActive
        } else {
            AsyncEvent::PortError
        };
        [
            (self.is_up != now.is_up).then_some(state),
            (self.lid != now.lid).then_some(AsyncEvent::LidChange),
            (self.gids != now.gids).then_some(AsyncEvent::GidChange),
        ]
        .into_iter()
        .flatten()
    }
}

/// Raises the port's events in a context. Without netlink sockets, as in some sandboxes, there are none.
pub(in crate::device) fn raise_in(queue: &Arc<AsyncQueue>, rnic: &Rnic) -> Option<NetworkWatch> {
    let known = Mutex::new(with_gids(Port::of));
    let queue: Weak<AsyncQueue> = Arc::downgrade(queue);
    let changed = move || {
        let Some(queue) = queue.upgrade() else {
            return;
        };
        // Without the present addresses the next change finds them.
        if refresh_gids().is_err() {
            return;
        }
        let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
        let now = with_gids(Port::of);
        known.events(&now).for_each(|event| queue.raise(event));
        *known = now;
    };
    let watch = rnic.watch_network(changed);
    watch
        .inspect_err(|error| tracing::debug!(%error, "no events of the port"))
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(gids: &[u8], lid: u16) -> Port {
        let gid = |octet: &u8| ibv_gid { raw: [*octet; 16] };
        Port {
            gids: gids.iter().map(gid).collect(),
            lid,
            is_up: gids.iter().any(|octet| *octet != 0),
        }
    }

    fn between(before: &Port, now: &Port) -> Vec<AsyncEvent> {
        before.events(now).collect()
    }

    #[test]
    fn each_change_has_its_event() {
        use AsyncEvent::{GidChange, LidChange, PortActive, PortError};
        let (down, one, two) = (port(&[0], 0), port(&[1], 5), port(&[1, 2], 5));
        assert_eq!(between(&one, &one), []);
        assert_eq!(between(&one, &two), [GidChange]);
        assert_eq!(between(&two, &port(&[1, 0], 5)), [GidChange]);
        assert_eq!(between(&one, &port(&[3], 6)), [LidChange, GidChange]);
        assert_eq!(between(&one, &down), [PortError, LidChange, GidChange]);
        assert_eq!(between(&down, &one), [PortActive, LidChange, GidChange]);
    }
}
