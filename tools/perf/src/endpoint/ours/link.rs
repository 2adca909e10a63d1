//! How the two sides of a reliable queue pair come together. Connected: the server listens, the client connects, both within the exchange of
//! offers on the control connection. Datagrams: each side learns the other's number from its offer.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use dgiwarp::{
    ConnectionChannel, ConnectionEvent, Destination, MpaConfig, Pd, PostError, RcEnd, RcListener,
    RcQp, RcQpAttr, RcSendWr, RdQp, RdQpAttr, RdSendWr, ReadDepths, RecvWr, Rnic, Wc, WcStatus,
};

use crate::endpoint::ours::{stack, too_early};
use crate::error::{PerfError, Result};
use crate::machine::host::Side;
use crate::session::control::Offer;

/// How long the two sides have to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// A connected queue pair, and what it takes to connect it.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) qp: RcQp,
    state: State,
    depths: ReadDepths,
}

/// A queue pair that loses nothing.
#[derive(Debug)]
pub(super) enum Reliable {
    Connected(Link),
    Datagram {
        qp: Box<RdQp>,
        peer: Option<Destination>,
    },
}

impl Reliable {
    /// A reliable datagram queue pair, whose port is returned.
    pub(super) fn datagram(pd: &Pd, attributes: &RdQpAttr<'_>) -> Result<(Self, Vec<u16>)> {
        let qp = pd
            .create_rd_qp(attributes)
            .map_err(stack("create a queue pair"))?;
        let ports = vec![qp.qpn()];
        let datagram = Self::Datagram {
            qp: Box::new(qp),
            peer: None,
        };
        Ok((datagram, ports))
    }

    pub(super) fn connect(&mut self, peer: IpAddr, offer: &Offer) -> Result<()> {
        match self {
            Self::Connected(link) => link.connect(peer, offer),
            Self::Datagram { qp, peer: known } => {
                let &[qpn] = offer.ports.as_slice() else {
                    return Err(PerfError::Protocol("a queue pair has one port".to_owned()));
                };
                let ah = qp.pd().create_ah(peer);
                let ah = ah.map_err(stack("create an address handle"))?;
                *known = Some(Destination { ah, qpn, qkey: 0 });
                Ok(())
            }
        }
    }

    pub(super) fn complete(&mut self) -> Result<()> {
        match self {
            Self::Connected(link) => link.complete(),
            Self::Datagram { .. } => Ok(()),
        }
    }

    pub(super) fn post_recv(&self, wrs: &[RecvWr<'_>]) -> Result<()> {
        match self {
            Self::Connected(link) => link.qp.post_recv(wrs),
            Self::Datagram { qp, .. } => qp.post_recv(wrs),
        }
        .map_err(stack("post a receive"))
    }

    /// Posts one send work request; false if the queue is full.
    pub(super) fn post_send(&mut self, wr: RcSendWr<'_>) -> Result<bool> {
        let posted = match self {
            Self::Connected(link) => link.qp.post_send(&[wr]),
            Self::Datagram { qp, peer } => {
                // Lent: a clone and its end cost an atomic operation each.
                let request = RdSendWr {
                    destination: peer.take().ok_or_else(too_early)?,
                    wr,
                };
                let posted = qp.post_send(std::slice::from_ref(&request));
                *peer = Some(request.destination);
                posted
            }
        };
        match posted {
            Ok(()) => Ok(true),
            Err(failure) if failure.source == PostError::QueueFull => Ok(false),
            Err(error) => Err(stack("post a send")(error)),
        }
    }

    /// Posts work requests in one call; how many were taken.
    pub(super) fn post_sends(&self, wrs: Vec<RcSendWr<'_>>) -> Result<usize> {
        let count = wrs.len();
        let posted = match self {
            Self::Connected(link) => link.qp.post_send(&wrs),
            Self::Datagram { qp, peer } => {
                let destination = peer.as_ref().ok_or_else(too_early)?;
                let wrs: Vec<RdSendWr<'_>> = wrs
                    .into_iter()
                    .map(|wr| RdSendWr {
                        destination: destination.clone(),
                        wr,
                    })
                    .collect();
                qp.post_send(&wrs)
            }
        };
        match posted {
            Ok(()) => Ok(count),
            Err(failure) if failure.source == PostError::QueueFull => Ok(failure.accepted),
            Err(error) => Err(stack("post a list of sends")(error)),
        }
    }

    /// The completion, unless it is an error.
    pub(super) fn succeeded(&self, wc: Wc) -> Result<Wc> {
        match self {
            Self::Connected(link) => link.succeeded(wc),
            Self::Datagram { .. } if wc.status == WcStatus::Success => Ok(wc),
            // The peer destroyed its queue pair.
            Self::Datagram { .. } if wc.status == WcStatus::RemoteAborted => {
                Err(PerfError::PeerGone)
            }
            Self::Datagram { .. } => Err(PerfError::Stack {
                what: "a work request",
                reason: wc.status.to_string(),
            }),
        }
    }
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
