//! How the two sides of a connected queue pair come together: the server listens, the client connects, both within the exchange of
//! offers on the control connection.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use dgiwarp::{
    ConnectionChannel, ConnectionEvent, MpaConfig, Pd, RcEnd, RcListener, RcQp, RcQpAttr,
    ReadDepths, Rnic, Wc, WcStatus,
};

use crate::endpoint::ours::stack;
use crate::error::{PerfError, Result};
use crate::machine::host::Side;
use crate::session::control::Offer;

/// How long the two sides have to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// A queue pair, and what it takes to connect it.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) qp: RcQp,
    state: State,
    depths: ReadDepths,
}

#[derive(Debug)]
enum State {
    /// The server's, until the client has connected.
    Listening(RcListener),
    /// The client's, until the server has accepted.
    Connecting(ConnectionChannel),
    Connected,
}

impl Link {
    /// Makes the queue pair. The server's half listens on `local`, on the port that is returned.
    pub(super) fn open(
        rnic: &Rnic,
        pd: &Pd,
        attributes: &RcQpAttr<'_>,
        local: IpAddr,
        side: Side,
        depths: ReadDepths,
    ) -> Result<(Self, Vec<u16>)> {
        let qp = pd
            .create_rc_qp(attributes)
            .map_err(stack("create a queue pair"))?;
        let mut ports = Vec::new();
        let state = match side {
            Side::Client => State::Connecting(
                rnic.create_connection_channel()
                    .map_err(stack("create a connection channel"))?,
            ),
            Side::Server => {
                let any_port = SocketAddr::new(local, 0);
                let listener =
                    RcListener::bind(any_port, wanted(depths)).map_err(stack("listen"))?;
                ports.push(listener.local_addr().port());
                State::Listening(listener)
            }
        };
        Ok((Self { qp, state, depths }, ports))
    }

    /// The client begins to connect. The server learns nothing that it needs.
    pub(super) fn connect(&self, peer: IpAddr, offer: &Offer) -> Result<()> {
        let State::Connecting(channel) = &self.state else {
            return Ok(());
        };
        let &[port] = offer.ports.as_slice() else {
            return Err(PerfError::Protocol("a listener has one port".to_owned()));
        };
        let to = SocketAddr::new(peer, port);
        channel
            .connect(&self.qp, to, &wanted(self.depths), b"", 0)
            .map_err(stack("connect"))
    }

    /// Waits until the two are connected; the server first, which accepts. Receives have to be posted before.
    pub(super) fn complete(&mut self) -> Result<()> {
        match std::mem::replace(&mut self.state, State::Connected) {
            State::Listening(listener) => {
                let request = listener
                    .accept(CONNECT_TIMEOUT)
                    .map_err(stack("accept a connection"))?
                    .ok_or(PerfError::NoData {
                        transport: "rc",
                        waited: CONNECT_TIMEOUT,
                    })?;
                request
                    .accept(&self.qp, self.depths, b"")
                    .map_err(stack("accept a connection"))?;
                Ok(())
            }
            State::Connecting(channel) => match channel.next_event(CONNECT_TIMEOUT) {
                Some(ConnectionEvent::Established { .. }) => Ok(()),
                Some(ConnectionEvent::Failed { error, .. }) => Err(stack("connect")(error)),
                Some(other) => Err(PerfError::Protocol(format!("unexpected {other:?}"))),
                None => Err(PerfError::NoData {
                    transport: "rc",
                    waited: CONNECT_TIMEOUT,
                }),
            },
            State::Connected => Ok(()),
        }
    }

    /// The completion, unless it is an error.
    pub(super) fn succeeded(&self, wc: Wc) -> Result<Wc> {
        if wc.status == WcStatus::Success {
            return Ok(wc);
        }
        Err(match self.qp.end() {
            // Nothing was wrong with the request.
            Some(RcEnd::PeerClosed) => PerfError::PeerGone,
            Some(end) => PerfError::Stack {
                what: "a work request",
                reason: format!("{}, since {end}", wc.status),
            },
            None => PerfError::Stack {
                what: "a work request",
                reason: format!("{} (error {})", wc.status, wc.vendor_error),
            },
        })
    }
}

fn wanted(depths: ReadDepths) -> MpaConfig {
    MpaConfig {
        depths,
        ..MpaConfig::default()
    }
}
