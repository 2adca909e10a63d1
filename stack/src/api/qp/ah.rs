//! Address handles: a remote host and the path there.

use crate::driver::udp::{multicast as groups, route};
use crate::{Error, Pd, Rnic};
use dgiwarp_llp_udp::{Path, PathKind};
use std::net::IpAddr;
use std::net::{Ipv6Addr, SocketAddr};

use dgiwarp_engine::types::Route;
use dgiwarp_rdmap::datagram::Cookie;

use crate::driver::device::clock;

/// Address of a remote host with its path (`ibv_create_ah(3)`). Clones share it.
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

/// Address handles of a protection domain.
impl Pd {
    /// Makes an address handle to a host (`ibv_create_ah(3)`).
    ///
    /// # Errors
    /// [`Error::Route`] where there is no route to it.
    pub fn create_ah(&self, destination: IpAddr) -> Result<AddressHandle, Error> {
        self.create_ah_from(destination, 0, None)
    }

    /// Makes an address handle to a host, with the interface of a link-local address (its `scope_id`, else 0), and
    /// with the address of ours that messages shall leave from.
    ///
    /// A broadcast or multicast address makes the handle of a group: whatever the QPN, messages go to the group port
    /// ([`Config::group_port`](crate::Config::group_port)) of all that [attached](crate::UdQp::attach_group). `scope_id` or `source` choose the interface, and
    /// the kernel's route to the group where both are missing. On the loopback interface, which has no such route, give `source`.
    ///
    /// # Errors
    /// [`Error::Route`] where there is no route to it.
    pub fn create_ah_from(
        &self,
        destination: IpAddr,
        scope_id: u32,
        source: Option<IpAddr>,
    ) -> Result<AddressHandle, Error> {
        let destination = destination.to_canonical();
        let source = source.map(|source| source.to_canonical());
        let found = if groups::is_known(destination) {
            route::look_up_group(destination, scope_id, source)
        } else {
            route::look_up(destination, scope_id)
        };
        let route = found.map_err(|source| Error::Route {
            address: destination,
            source,
        })?;
        let kind = if route::is_local(destination, route) {
            let receive_buffer = granted_receive_buffer(&self.rnic)?;
            PathKind::Loopback { receive_buffer }
        } else {
            PathKind::Network
        };
        let mtu = self.rnic.shared.background.limit_mtu(route.mtu);
        let path = Path::new(kind, destination.is_ipv6(), mtu);
        let source = source.filter(|source| !source.is_unspecified());
        // Where the kernel would choose the same source, naming it only costs. For a group it also chooses the interface, and a
        // chosen interface does not choose a loopback address.
        let source = if route.group {
            source.or_else(|| (scope_id != 0 && destination.is_ipv4()).then_some(route.source))
        } else {
            source.filter(|source| *source != route.source)
        };
        let to = Route::new(destination, scope_id, source, route.source, path);
        Ok(AddressHandle::new(if route.group {
            to.of_group()
        } else {
            to
        }))
    }
}

/// The receive buffer that sockets of this device are granted: on loopback the peer's are most likely the same. Asked once.
fn granted_receive_buffer(rnic: &Rnic) -> Result<usize, Error> {
    if let Some(granted) = rnic.shared.receive_buffer.get() {
        return Ok(*granted);
    }
    let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0));
    let ports = crate::driver::udp::qp::bind(any, rnic.config())
        .or_else(|_| crate::driver::udp::qp::bind(([0, 0, 0, 0], 0).into(), rnic.config()))?;
    let granted = ports
        .main()
        .granted_receive_buffer()
        .map_err(Error::system("cannot read a socket's receive buffer"))?;
    Ok(*rnic.shared.receive_buffer.get_or_init(|| granted))
}
