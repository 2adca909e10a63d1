//! Ways of the data: queue pairs or TCP connections.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;

use dgiwarp::Rnic;
use dgiwarp_transfer::{Connection, Control, Error, Options, Port, Secret, rc_config};

use crate::{Encryption, Failed, Streams};

/// How data moves, and by how much memory.
#[derive(Debug, Clone, Copy)]
pub struct Carriage {
    /// A TCP connection carries the data instead of a queue pair.
    pub tcp: bool,
    /// Sizes of the session.
    pub options: Options,
    /// Connections that an end which dials brings up, where the peer takes them.
    pub streams: Streams,
    /// Encryption of the files' contents, of connections with a secret.
    pub encryption: Encryption,
}

impl Carriage {
    /// Connects to the first address that answers.
    ///
    /// # Errors
    /// [`Failed::Session`] with the last one's.
    pub fn dial(&self, addresses: &[SocketAddr]) -> Result<Connection, Failed> {
        let (connection, _) = self.dial_one(addresses)?;
        Ok(connection)
    }

    /// Connects to the first address that answers, and agrees with the peer on keys. Returns the options of a session with it, too.
    ///
    /// # Errors
    /// [`Failed::Session`] with the last one's; `refused` turns the failure of the agreement into one.
    pub fn dial_protected(
        &self,
        addresses: &[SocketAddr],
        secret: &Secret,
        control: &Control,
        refused: impl FnOnce(Error) -> Failed,
    ) -> Result<(Connection, Options), Failed> {
        let (connection, to) = self.dial_one(addresses)?;
        let connection = connection.protected(secret, control).map_err(refused)?;
        Ok((connection, self.options_with(to.ip())))
    }

    /// Options of a session with this peer, on a connection with a secret.
    #[must_use]
    pub fn options_with(&self, peer: IpAddr) -> Options {
        let encrypt = match self.encryption {
            Encryption::Auto => !is_own(peer),
            Encryption::Always => true,
            Encryption::Never => false,
        };
        Options {
            encrypt,
            ..self.options
        }
    }

    fn dial_one(&self, addresses: &[SocketAddr]) -> Result<(Connection, SocketAddr), Failed> {
        let rnic = self.rnic()?;
        let mut failed = Failed::Usage("the host has no address".into());
        for address in addresses {
            let connected = match &rnic {
                Some(rnic) => Connection::rc(rnic, *address),
                None => Connection::tcp(*address),
            };
            match connected {
                Ok(connection) => {
                    let connection = self.with_streams(connection, rnic, *address);
                    return Ok((connection, *address));
                }
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

/// Whether the address is one of this host's.
fn is_own(address: IpAddr) -> bool {
    UdpSocket::bind((address.to_canonical(), 0)).is_ok()
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
