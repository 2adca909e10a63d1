//! Ways of the data: queue pairs or TCP connections.

use std::net::SocketAddr;
use std::sync::Arc;

use dgiwarp::Rnic;
use dgiwarp_transfer::{Connection, Error, Options, Port, rc_config};

use crate::{Failed, Streams};

/// How data moves, and by how much memory.
#[derive(Debug, Clone, Copy)]
pub struct Carriage {
    /// A TCP connection carries the data instead of a queue pair.
    pub tcp: bool,
    /// Sizes of the session.
    pub options: Options,
    /// Connections that an end which dials brings up, where the peer takes them.
    pub streams: Streams,
}

impl Carriage {
    /// Connects to the first address that answers.
    ///
    /// # Errors
    /// [`Failed::Session`] with the last one's.
    pub fn dial(&self, addresses: &[SocketAddr]) -> Result<Connection, Failed> {
        let rnic = self.rnic()?;
        let mut failed = Failed::Usage("the host has no address".into());
        for address in addresses {
            let connected = match &rnic {
                Some(rnic) => Connection::rc(rnic, *address),
                None => Connection::tcp(*address),
            };
            match connected {
                Ok(connection) => return Ok(self.with_streams(connection, rnic, *address)),
                Err(error) => failed = Failed::of(error),
            }
        }
        Err(failed)
    }

    /// Has a session dial further streams to its peer.
    fn with_streams(
        &self,
        connection: Connection,
        rnic: Option<Rnic>,
        to: SocketAddr,
    ) -> Connection {
        if self.streams == Streams::Fixed(1) {
            return connection;
        }
        let dial = move || match &rnic {
            Some(rnic) => Connection::rc(rnic, to),
            None => Connection::tcp(to),
        };
        match self.streams {
            Streams::Fixed(count) => connection.with_streams(count, Arc::new(dial)),
            Streams::Auto => connection.with_tuned_streams(Arc::new(dial)),
        }
    }

    /// Listens at an address.
    ///
    /// # Errors
    /// [`Failed::Session`].
    pub fn listen(&self, address: SocketAddr) -> Result<(Port, SocketAddr), Failed> {
        let opened = listen(self.rnic()?.as_ref(), address);
        opened.map_err(|error| Failed::Session(format!("{address}: {error}")))
    }

    /// The device; none for TCP.
    fn rnic(&self) -> Result<Option<Rnic>, Failed> {
        if self.tcp {
            return Ok(None);
        }
        Rnic::open(rc_config()).map(Some).map_err(Failed::of)
    }
}

/// Listens with a device, or by TCP without one.
///
/// # Errors
/// [`Error`] of [`Port`].
pub fn listen(rnic: Option<&Rnic>, address: SocketAddr) -> Result<(Port, SocketAddr), Error> {
    let port = match rnic {
        Some(rnic) => Port::rc(rnic, address)?,
        None => Port::tcp(address)?,
    };
    let local = port.local_addr()?;
    Ok((port, local))
}
