//! Identifiers of port space TCP: plain iWARP connections.

use super::event::Told;
use super::id::{Id, Options};
use super::{address, device};
use crate::errno;
use dgiwarp::{ConnectionEvent, ConnectionPort, PortOptions};
use nix::errno::Errno;
use std::net::SocketAddr;
use std::sync::Arc;

/// What such an identifier has.
#[derive(Debug, Default)]
pub(crate) struct Tcp {
    /// Bound, and neither listening nor connected from yet.
    port: Option<ConnectionPort>,
}

impl Tcp {
    /// Takes a port. Returns the address as programs name it.
    pub(crate) fn bind(&mut self, to: SocketAddr, options: Options) -> Result<SocketAddr, Errno> {
        let offset = device::device()?.port_offset;
        let options = PortOptions {
            only_v6: options.af_only,
            tos: options.tos,
        };
        let port = ConnectionPort::bind(address::to_socket(to, offset), options)
            .map_err(|error| errno::of_create(&error))?;
        let local = address::from_socket(port.local_addr(), offset);
        self.port = Some(port);
        Ok(local)
    }

    /// Ends all that the identifier `key` had begun.
    pub(crate) fn close(self, _key: u64) {}
}

/// What the program is told of a connection or listener.
pub(crate) fn tell(_id: &Arc<Id>, _event: ConnectionEvent) -> Option<Told> {
    None
}
