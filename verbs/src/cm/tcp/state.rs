//! State of an identifier of port space TCP.

use crate::cm::addr::address;
use crate::cm::device::{self, Device};
use crate::cm::id::identifier::{self, Id};
use crate::cm::id::options::Options;
use crate::cm::tcp::depths::Depths;
use crate::cm::tcp::qp::ConnectionQp;
use crate::ffi::errno;
use dgiwarp::{ChannelListener, ConnectionPort, PortOptions, RcRequest};
use nix::errno::Errno;
use std::net::SocketAddr;
use std::sync::Arc;

/// State of an identifier of port space TCP.
#[derive(Default)]
pub(crate) struct Tcp {
    /// A bound TCP port number, until the identifier listens or connects.
    pub(super) port: Option<ConnectionPort>,
    pub(super) listener: Option<ChannelListener>,
    /// The peer's request, until the program answers.
    pub(super) request: Option<RcRequest>,
    pub(super) qp: ConnectionQp,
    /// Depths of the request. On the passive side they are the answer's unless the program gives others.
    pub(super) depths: Depths,
    /// A connection attempt is outstanding, to be cancelled with the identifier.
    pub(super) connecting: bool,
}

impl Tcp {
    /// Binds a TCP port number. Returns the address with the program's port number.
    pub(crate) fn bind(&mut self, to: SocketAddr, options: Options) -> Result<SocketAddr, Errno> {
        let offset = device::device()?.port_offset;
        let options = PortOptions {
            may_move: true,
            ..port_options(options)
        };
        let port =
            ConnectionPort::bind(address::to_socket(to, offset), options).map_err(errno::of)?;
        let local = address::from_socket(port.local_addr(), offset);
        self.port = Some(port);
        Ok(local)
    }

    /// Gives the TCP port up for another socket of the program. Returns whether the identifier had it and did so.
    fn yield_port(&mut self, port: u16) -> bool {
        let has_it = |local: SocketAddr| local.port() == port;
        match (&mut self.port, &self.listener) {
            (Some(bound), _) if has_it(bound.local_addr()) => bound.move_away().is_ok(),
            (None, Some(listener)) if has_it(listener.local_addr()) => listener.move_away().is_ok(),
            (Some(_), _) | (None, Some(_) | None) => false,
        }
    }

    /// Cancels a connection attempt, ends a connection that is held back, and refuses a request of the identifier `key`.
    pub(crate) fn close(self, key: u64) {
        let may_be_held = matches!(self.qp, ConnectionQp::StandIn(_));
        if !self.connecting && !may_be_held && self.request.is_none() {
            return;
        }
        let Ok(device) = device::device() else {
            return;
        };
        if self.connecting || may_be_held {
            device.connections.cancel(key);
        }
        if let Some(request) = self.request {
            refuse(&device, request);
        }
    }
}

/// Makes identifiers give a TCP port up for a socket of the program. Returns their number.
pub(crate) fn yield_port(port: u16) -> usize {
    let ids = identifier::all();
    let yields = |id: &Arc<Id>| id.lock().tcp().is_ok_and(|tcp| tcp.yield_port(port));
    ids.iter().filter(|id| yields(id)).count()
}

/// Rejects a request that no call will answer.
pub(crate) fn refuse(device: &Device, request: RcRequest) {
    // The peer may be gone.
    let _ = device.connections.reject(request, &[]);
}

pub(super) fn port_options(options: Options) -> PortOptions {
    PortOptions {
        only_v6: options.af_only,
        tos: options.tos,
        port_when_connected: false,
        may_move: false,
    }
}
