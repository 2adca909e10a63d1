//! Address handles: a remote host and the path there.

use std::net::IpAddr;

use dgiwarp_engine::types::Route;
use dgiwarp_rdmap::datagram::Cookie;

use crate::driver::device::clock;

/// A remote host and what is known of the path there (`ibv_create_ah(3)`). Clones share it.
#[derive(Debug, Clone)]
pub struct AddressHandle(Route);

impl AddressHandle {
    pub(crate) fn new(route: Route) -> Self {
        Self(route)
    }

    /// The route that work requests take.
    #[inline]
    pub(crate) fn route(&self) -> &Route {
        &self.0
    }

    /// The handle with which Write-Records carry this cookie.
    pub(crate) fn with_cookie(&self, cookie: Cookie) -> Self {
        Self(self.0.with_cookie(cookie))
    }

    /// Whether the destination is a broadcast or multicast address: messages then go to the device's group port, and a QPN given with the
    /// handle has no meaning.
    #[must_use]
    #[inline]
    pub fn is_group(&self) -> bool {
        self.0.is_group()
    }

    /// The group's handle with another hop limit (TTL), 0 to 255: messages pass at most `hop_limit` - 1 routers. The default of 1 keeps
    /// them in the sender's network, 0 on this host. No effect on the handle of a single host.
    #[must_use]
    pub fn with_hop_limit(&self, hop_limit: u8) -> Self {
        Self(self.0.with_hop_limit(hop_limit))
    }

    /// The remote host.
    #[must_use]
    pub fn destination(&self) -> IpAddr {
        self.0.destination()
    }

    /// The interface index of a link-local destination or of a group, else 0.
    #[must_use]
    pub fn scope_id(&self) -> u32 {
        self.0.scope_id()
    }

    /// The source address, if one was chosen.
    #[must_use]
    pub fn source(&self) -> Option<IpAddr> {
        self.0.source()
    }

    /// The source address that the kernel chooses for this destination.
    #[must_use]
    pub fn route_source(&self) -> IpAddr {
        self.0.route_source()
    }

    /// Octets of UDP payload that one datagram to this host may have now.
    #[must_use]
    pub fn datagram_limit(&self) -> u16 {
        self.0.limit(clock::now()).get()
    }
}
