//! State of an identifier of port spaces UDP and IPOIB.

use crate::cm::addr::address;
use crate::cm::device;
use crate::cm::id::options::Options;
use crate::ffi::errno;
use dgiwarp::{ServiceListener, ServiceLookup, ServicePort, ServiceRequest};
use nix::errno::Errno;
use std::net::{IpAddr, SocketAddr};

/// State of an identifier of port spaces UDP and IPOIB.
#[derive(Debug, Default)]
pub(crate) struct Udp {
    /// A bound port number, until the identifier listens or queries.
    pub(super) port: Option<ServicePort>,
    pub(super) role: Role,
    pub(super) groups: Groups,
}

/// Role in a service ID resolution.
#[derive(Debug, Default)]
pub(super) enum Role {
    #[default]
    None,
    /// Listener; dropping it ends the service.
    Listener { _service: ServiceListener },
    /// Query; dropping it cancels the query.
    Query { _lookup: ServiceLookup },
    /// A query of the peer that the program has not answered.
    Queried(Box<ServiceRequest>),
}

/// Multicast groups of an identifier.
#[derive(Debug, Default)]
pub(super) struct Groups {
    /// Number of the next join.
    pub(super) next: u64,
    pub(super) joined: Vec<Group>,
}

/// A joined multicast group.
#[derive(Clone, Copy, Debug)]
pub(super) struct Group {
    pub(super) number: u64,
    /// The program's address, by which it leaves.
    pub(super) named: SocketAddr,
    pub(super) address: IpAddr,
    pub(super) sgid_index: u8,
    /// Interface index.
    pub(super) interface: u32,
    pub(super) send_only: bool,
    /// The identifier's queue pair is attached.
    pub(super) attached: bool,
}

impl Udp {
    /// Binds a port number. Returns the address with the program's port number.
    pub(crate) fn bind(&mut self, to: SocketAddr, options: Options) -> Result<SocketAddr, Errno> {
        let device = device::device()?;
        let offset = device.port_offset;
        let address = address::to_socket(to, offset);
        let bind = || ServicePort::bind(address, options.af_only).map_err(errno::of);
        let port = match bind() {
            // A listener of connections that has moved is queried there; the service answers for it.
            Err(Errno::EADDRINUSE) if device.connections.give_up_queries(address.port()) => bind(),
            result => result,
        }?;
        let local = address::from_socket(port.local_addr(), offset);
        self.port = Some(port);
        Ok(local)
    }

    pub(super) fn queried(request: ServiceRequest) -> Self {
        Self {
            role: Role::Queried(Box::new(request)),
            ..Self::default()
        }
    }

    /// Takes the query that the program answers.
    pub(super) fn take_request(&mut self) -> Result<ServiceRequest, Errno> {
        match std::mem::take(&mut self.role) {
            Role::Queried(request) => Ok(*request),
            other => {
                self.role = other;
                Err(Errno::EINVAL)
            }
        }
    }
}
