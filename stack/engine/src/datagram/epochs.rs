//! The epochs that a QP's messages carry (§3).

use std::hash::{DefaultHasher, Hash, Hasher};

use dgiwarp_llp_udp::Peer;

use crate::types::Route;

/// One epoch for the messages to single hosts, and another for each group.
///
/// Messages are numbered by destination. A member receives those to its groups and those to itself from one address: only the
/// epoch distinguishes their numbers (§4).
#[derive(Debug, Clone, Copy)]
pub(super) struct Epochs {
    own: u32,
    /// Key of the epochs of groups: the epoch of one group reveals no other.
    group_key: [u32; 4],
}

impl Epochs {
    pub(super) fn new(own: u32, group_key: [u32; 4]) -> Self {
        Self { own, group_key }
    }

    /// The epoch of a message to `peer`, which `route` leads to.
    #[inline]
    pub(super) fn of(&self, route: &Route, peer: Peer) -> u32 {
        if route.is_group() {
            self.of_group(peer)
        } else {
            self.own
        }
    }

    fn of_group(&self, group: Peer) -> u32 {
        let mut hasher = DefaultHasher::new();
        self.group_key.hash(&mut hasher);
        group.hash(&mut hasher);
        let [a, b, c, d, ..] = hasher.finish().to_be_bytes();
        u32::from_be_bytes([a, b, c, d])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dgiwarp_llp_udp::{Path, PathKind};

    #[test]
    fn every_group_has_an_epoch_of_its_own() {
        let epochs = Epochs::new(7, [1, 2, 3, 4]);
        let host = [192, 0, 2, 2].into();
        let path = Path::new(PathKind::Network, false, 1500);
        let route = Route::new(host, 0, None, host, path);
        let [one, other] =
            ["239.1.1.1:18514", "239.1.1.2:18514"].map(|a| Peer::ip(a.parse().unwrap()));
        assert_eq!(epochs.of(&route, one), 7);
        let group = route.of_group();
        let epoch = epochs.of(&group, one);
        assert_eq!(epochs.of(&group, one), epoch);
        assert_ne!(epoch, 7);
        assert_ne!(epoch, epochs.of(&group, other));
        let restarted = Epochs::new(7, [1, 2, 3, 5]);
        assert_ne!(epoch, restarted.of(&group, one));
    }
}
