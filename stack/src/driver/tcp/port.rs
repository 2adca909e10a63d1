//! TCP ports for connections, and listeners that have moved away from theirs (`rfc-notes/datagram-mapping.md` §10.1).

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::num::NonZeroU16;

use socket2::Socket;

use crate::Error;
use crate::driver::tcp::port_mark::{self, PortMark};
use crate::driver::tcp::socket::{self as tcp, PortOptions};
use crate::driver::udp::socket::UdpSocket;

/// A TCP port that was bound, and is to listen or to be connected from. Dropping it sets it free.
#[derive(Debug)]
pub struct ConnectionPort {
    pub(crate) socket: Socket,
    /// The address that a listener is known by.
    pub(crate) local: SocketAddr,
    pub(crate) options: PortOptions,
    /// Set where the socket has another port than `local`.
    pub(crate) moved: Option<Moved>,
    pub(crate) mark: Option<PortMark>,
}

/// Port of a socket that is known by another one.
#[derive(Debug)]
pub(crate) struct Moved {
    pub(crate) port: NonZeroU16,
    /// The UDP port of the number that it is known by; `None` where another socket has it.
    pub(crate) queries: Option<UdpSocket>,
}

impl ConnectionPort {
    /// Binds an address and TCP port, port 0 for one of the system's choice.
    ///
    /// # Errors
    /// [`Error::Bind`] where another listens on the port or the address is not one of this host's.
    pub fn bind(address: SocketAddr, options: PortOptions) -> Result<Self, Error> {
        Self::try_bind(address, options).map_err(|source| Error::Bind { address, source })
    }

    fn try_bind(address: SocketAddr, options: PortOptions) -> io::Result<Self> {
        let (socket, moved) = match tcp::bind(address, options) {
            Ok(socket) => (socket, None),
            Err(error) if options.may_move && may_share(&error, address, None) => {
                let (socket, moved) = away(address, options)?;
                (socket, Some(moved))
            }
            Err(error) => return Err(error),
        };
        let own = socket.local_addr()?.as_socket().unwrap_or(address);
        let local = if moved.is_some() { address } else { own };
        let mark = options.may_move.then(|| port_mark::place(local.port()));
        Ok(Self {
            socket,
            local,
            options,
            moved,
            mark: mark.flatten(),
        })
    }

    /// The address and port. A listener that has moved is known by it.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Gives the TCP port up for another socket, as [`PortOptions::may_move`] does.
    ///
    /// # Errors
    /// [`Error::Bind`] where the UDP port of the same number is taken.
    pub fn move_away(&mut self) -> Result<(), Error> {
        if self.moved.is_some() {
            return Ok(());
        }
        let address = self.local;
        let (socket, moved) =
            away(address, self.options).map_err(|source| Error::Bind { address, source })?;
        (self.socket, self.moved) = (socket, Some(moved));
        Ok(())
    }

    /// Lets the port listen. One that may move does so where another TCP socket listens at it.
    pub(crate) fn listen(self, backlog: i32) -> io::Result<(TcpListener, ListeningPort)> {
        let Self {
            socket,
            local,
            options,
            mut moved,
            mark,
        } = self;
        let listener = match tcp::listen_on(socket, backlog) {
            Err(error)
                if options.may_move
                    && moved.is_none()
                    && may_share(&error, local, mark.as_ref()) =>
            {
                let (socket, to) = away(local, options)?;
                moved = Some(to);
                tcp::listen_on(socket, backlog)?
            }
            result => result?,
        };
        let port = ListeningPort {
            local,
            options,
            backlog,
            moved,
            _mark: mark,
        };
        Ok((listener, port))
    }
}

/// Port of a listener.
#[derive(Debug)]
pub(crate) struct ListeningPort {
    /// The address that it is known by.
    pub(crate) local: SocketAddr,
    pub(crate) options: PortOptions,
    pub(crate) backlog: i32,
    pub(crate) moved: Option<Moved>,
    _mark: Option<PortMark>,
}

/// Whether an address is taken by a TCP socket that is none of rdma_cm's.
fn may_share(error: &io::Error, address: SocketAddr, own: Option<&PortMark>) -> bool {
    error.kind() == io::ErrorKind::AddrInUse
        && address.port() != 0
        && !port_mark::is_marked(address.port(), own)
}

/// Another TCP port of the address, and the UDP port at which it is queried.
pub(crate) fn away(address: SocketAddr, options: PortOptions) -> io::Result<(Socket, Moved)> {
    let queries = match UdpSocket::bind_service(address, options.only_v6) {
        Ok(socket) => Some(socket),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => None,
        Err(error) => return Err(error),
    };
    let mut any_port = address;
    any_port.set_port(0);
    let options = PortOptions {
        port_when_connected: false,
        ..options
    };
    let socket = tcp::bind(any_port, options)?;
    let own = socket.local_addr()?.as_socket();
    let port = own.and_then(|own| NonZeroU16::new(own.port()));
    let port = port.ok_or(io::ErrorKind::AddrNotAvailable)?;
    Ok((socket, Moved { port, queries }))
}
