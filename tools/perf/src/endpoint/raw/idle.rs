//! Plain TCP connections that do nothing.

use std::net::{IpAddr, SocketAddr, TcpStream};

use socket2::Socket;

use crate::endpoint::idle::Connections;
use crate::endpoint::raw::tcp::{CONNECT_TIMEOUT, accept, socket};
use crate::error::{IoContext, PerfError, Result};
use crate::machine::host::Side;
use crate::session::control::Offer;

/// Sockets.
#[derive(Debug)]
pub(crate) struct TcpConnections {
    count: usize,
    listener: Option<Socket>,
    streams: Vec<TcpStream>,
}

impl Connections for TcpConnections {
    fn open(count: usize, local: IpAddr, side: Side) -> Result<(Self, Offer)> {
        let mut connections = Self {
            count,
            listener: None,
            streams: Vec::with_capacity(count),
        };
        let mut offer = Offer::default();
        if side == Side::Server {
            let listener = socket(local)?;
            let backlog = i32::try_from(count).unwrap_or(i32::MAX);
            listener
                .bind(&SocketAddr::new(local, 0).into())
                .and_then(|()| listener.listen(backlog))
                .during("listen on a TCP port")?;
            let bound = listener.local_addr().during("read a local port")?;
            offer.ports = bound.as_socket().iter().map(SocketAddr::port).collect();
            connections.listener = Some(listener);
        }
        Ok((connections, offer))
    }

    /// The kernel completes them, as far as the server's backlog goes.
    fn connect(&mut self, peer: IpAddr, offer: &Offer) -> Result<()> {
        if self.listener.is_some() {
            return Ok(());
        }
        let &[port] = offer.ports.as_slice() else {
            return Err(PerfError::Protocol("raw TCP needs one port".to_owned()));
        };
        for _ in 0..self.count {
            let socket = socket(peer)?;
            socket
                .connect_timeout(&SocketAddr::new(peer, port).into(), CONNECT_TIMEOUT)
                .during("connect a TCP connection")?;
            self.streams.push(socket.into());
        }
        Ok(())
    }

    fn complete(&mut self) -> Result<()> {
        if let Some(listener) = &self.listener {
            for _ in 0..self.count {
                self.streams.push(accept(listener)?);
            }
        }
        Ok(())
    }
}
