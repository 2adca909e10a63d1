//! Connected queue pairs that do nothing.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use dgiwarp::{
    Config, ConnectionChannel, ConnectionEvent, Cq, MpaConfig, Pd, RcListener, RcQp, RcQpAttr,
    Rnic, SameHostMode,
};

use crate::endpoint::idle::Connections;
use crate::endpoint::ours::stack;
use crate::error::{PerfError, Result};
use crate::machine::host::Side;
use crate::session::control::Offer;

/// How long the next of them may take to be connected.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// Queue pairs of one device, on one completion queue.
#[derive(Debug)]
pub(crate) struct RcConnections {
    qps: Vec<RcQp>,
    way: Way,
    _cq: Cq,
    _pd: Pd,
}

#[derive(Debug)]
enum Way {
    Listening(RcListener),
    Connecting(ConnectionChannel),
}

impl Connections for RcConnections {
    fn open(count: usize, local: IpAddr, side: Side) -> Result<(Self, Offer)> {
        let mut config = Config::default();
        config.same_host = SameHostMode::Off;
        let rnic = Rnic::open(config).map_err(stack("open the device"))?;
        let pd = rnic.alloc_pd();
        let cq = rnic
            .create_cq(256)
            .map_err(stack("create a completion queue"))?;
        let attributes = RcQpAttr::new(&cq, &cq);
        let qps = (0..count)
            .map(|_| pd.create_rc_qp(&attributes))
            .collect::<std::result::Result<_, _>>()
            .map_err(stack("create a queue pair"))?;
        let mut offer = Offer::default();
        let way = match side {
            Side::Client => Way::Connecting(
                rnic.create_connection_channel()
                    .map_err(stack("create a connection channel"))?,
            ),
            Side::Server => {
                let any_port = SocketAddr::new(local, 0);
                let listener = RcListener::bind(any_port, MpaConfig::default());
                let listener = listener.map_err(stack("listen"))?;
                offer.ports.push(listener.local_addr().port());
                Way::Listening(listener)
            }
        };
        let connections = Self {
            qps,
            way,
            _cq: cq,
            _pd: pd,
        };
        Ok((connections, offer))
    }

    fn connect(&mut self, peer: IpAddr, offer: &Offer) -> Result<()> {
        let (Way::Connecting(channel), &[port]) = (&self.way, offer.ports.as_slice()) else {
            return Ok(());
        };
        let to = SocketAddr::new(peer, port);
        for qp in &self.qps {
            channel
                .connect(qp, to, &MpaConfig::default(), b"", 0)
                .map_err(stack("connect"))?;
        }
        Ok(())
    }

    fn complete(&mut self) -> Result<()> {
        let depths = MpaConfig::default().depths;
        let silent = || PerfError::NoData {
            transport: "rc",
            waited: CONNECT_TIMEOUT,
        };
        for qp in &self.qps {
            match &self.way {
                Way::Listening(listener) => {
                    let request = listener
                        .accept(CONNECT_TIMEOUT)
                        .map_err(stack("accept a connection"))?
                        .ok_or_else(silent)?;
                    request
                        .accept(qp, depths, b"")
                        .map_err(stack("accept a connection"))?;
                }
                Way::Connecting(channel) => match channel.next_event(CONNECT_TIMEOUT) {
                    Some(ConnectionEvent::Established { .. }) => {}
                    Some(ConnectionEvent::Failed { error, .. }) => {
                        return Err(stack("connect")(error));
                    }
                    Some(other) => {
                        return Err(PerfError::Protocol(format!("unexpected {other:?}")));
                    }
                    None => return Err(silent()),
                },
            }
        }
        Ok(())
    }
}
