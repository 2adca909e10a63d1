//! Waiting for peers that ask for a connection, and answering them.

use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use dgiwarp_llp_tcp_mpa::{DatagramTerms, Event};

use crate::driver::cm::connect::Cm;
use crate::driver::cm::events::IncomingRequest;
use crate::driver::device::clock;
use crate::driver::tcp::qp::{ConnectTicket, Startup};
use crate::driver::tcp::socket as tcp;
use crate::{
    Access, ConnectError, ConnectionEvent, Error, MpaConfig, MpaRequest, Negotiation, RcQp,
    RcRequest, ReadDepths,
};
use dgiwarp_engine::connected::RcConfig;

/// Waits for connections on a TCP port.
#[derive(Debug)]
pub struct RcListener {
    cm: Arc<Cm>,
    local: SocketAddr,
}

impl RcListener {
    /// Listens on an address and TCP port, port 0 for one of the system's choice. `mpa` configures this end of every connection.
    ///
    /// # Errors
    /// [`Error::Bind`] where the port is taken or the address is not one of this host's.
    pub fn bind(address: SocketAddr, mpa: MpaConfig) -> Result<Self, Error> {
        let bind = |source| Error::Bind { address, source };
        let listener = tcp::listen(address).map_err(bind)?;
        let local = listener.local_addr().map_err(bind)?;
        let cm = Cm::new(None, None)?;
        cm.listen(listener, mpa, 0)?;
        Ok(Self { cm, local })
    }

    /// The address and port that it listens on.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// The next request for a connection; `None` if nobody asks within `timeout`. Many may be on their way at a time. One that
    /// connects without a proper request is an error within [`MpaConfig::startup_timeout`]; the listener goes on.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub fn accept(&self, timeout: Duration) -> Result<Option<RcRequest>, ConnectError> {
        match self.cm.wait(clock::now().checked_add(timeout)) {
            None => Ok(None),
            Some(ConnectionEvent::Request { request, .. }) => Ok(Some(request)),
            Some(ConnectionEvent::Failed { error, .. }) => Err(error),
            Some(
                ConnectionEvent::Established { .. }
                | ConnectionEvent::Rejected { .. }
                | ConnectionEvent::Disconnected { .. }
                | ConnectionEvent::TimewaitExit { .. },
            ) => unreachable!("nothing that happens to a listener"),
        }
    }
}

impl RcRequest {
    /// Address of the peer.
    #[must_use]
    pub fn peer(&self) -> SocketAddr {
        self.incoming.peer
    }

    /// Our address and TCP port that it came to; `None` if the connection is gone already.
    #[must_use]
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.incoming.stream.local_addr().ok()
    }

    /// The MPA Request.
    #[must_use]
    pub fn request(&self) -> &MpaRequest {
        &self.incoming.request
    }

    /// Accepts on a queue pair, as MPA Responder.
    ///
    /// # Errors
    /// [`ConnectError`]; the request is gone then, and the queue pair may be used for another.
    pub fn accept(
        self,
        qp: &RcQp,
        depths: ReadDepths,
        private_data: &[u8],
    ) -> Result<Negotiation, ConnectError> {
        self.accept_with(qp, depths, (None, private_data))
    }

    /// Accepts on the queue pair of a connection that carries events alone where there are terms of the queue pair that has the messages.
    pub(crate) fn accept_with(
        self,
        qp: &RcQp,
        depths: ReadDepths,
        content: (Option<DatagramTerms>, &[u8]),
    ) -> Result<Negotiation, ConnectError> {
        let ticket = qp.shared.claim().ok_or(ConnectError::State)?;
        self.answer(qp, ticket, depths, content)
            .inspect_err(|_| qp.shared.unclaim(ticket))
    }

    fn answer(
        self,
        qp: &RcQp,
        ticket: ConnectTicket,
        depths: ReadDepths,
        (terms, private_data): (Option<DatagramTerms>, &[u8]),
    ) -> Result<Negotiation, ConnectError> {
        let IncomingRequest {
            stream,
            peer,
            mut connection,
            ..
        } = self.incoming;
        match terms {
            Some(terms) => connection.accept_by_datagrams(depths, terms, private_data)?,
            None => connection.accept(depths, private_data)?,
        }
        let Some(Event::Established(established)) = connection.poll_event() else {
            unreachable!("accepting begins full operation");
        };
        // The receives are in place before the Reply leaves: the peer may send as soon as it has it.
        tcp::transmit_all(&stream, &mut connection)?;
        let config = RcConfig {
            qpn: qp.qpn(),
            pd: qp.pd().id,
            peer,
            options: qp.shared.unlocked.options,
            paired: false,
            denied: Access::empty(),
        };
        qp.shared.link(
            ticket,
            config,
            *connection,
            stream.into(),
            Startup::default(),
        )?;
        Ok(established.negotiation)
    }

    /// Says no, with private data for the peer.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub fn reject(self, private_data: &[u8]) -> Result<(), ConnectError> {
        self.send_reject(private_data).map(drop)
    }

    /// Rejects the request and returns the stream, to be read to its end so that the peer surely gets the Reject.
    pub(crate) fn send_reject(self, private_data: &[u8]) -> Result<TcpStream, ConnectError> {
        let IncomingRequest {
            stream,
            mut connection,
            ..
        } = self.incoming;
        connection.reject(ReadDepths { ird: 0, ord: 0 }, private_data)?;
        tcp::transmit_all(&stream, &mut connection)?;
        stream.shutdown(Shutdown::Write)?;
        Ok(stream)
    }
}
