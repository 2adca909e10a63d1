//! RDMA Read of an unreliable datagram queue pair.

use std::net::{IpAddr, SocketAddr};

use dgiwarp::{
    Config, Cq, Destination, Fault, Operation, Pd, PostError, QpAttr, Rnic, SendWr, UdQp, UdQpAttr,
    Wc, WcStatus,
};

use crate::endpoint::ours::fetch::{Outcome, Request, Requester};
use crate::endpoint::ours::ud::holes;
use crate::endpoint::ours::{same_host, stack, too_early};
use crate::endpoint::pattern::widen;
use crate::error::{PerfError, Result};
use crate::machine::host::Side;
use crate::session::control::{Datagrams, EndpointSpec, Offer};

/// A datagram queue pair, and the other one.
#[derive(Debug)]
pub(crate) struct UdRequester {
    qp: UdQp,
    peer: Option<Destination>,
}

impl Requester for UdRequester {
    const LOSES: bool = true;

    fn config(spec: &EndpointSpec, side: Side) -> Config {
        let mut config = Config::default();
        config.same_host = same_host(spec);
        config.receive_buffer = spec.receive_buffer;
        config.max_mtu = spec.mtu;
        config.autocork = spec.autocork;
        // The data comes to the client.
        if spec.loss > 0.0 && side == Side::Client {
            config.fault = Some(Fault {
                drop: spec.loss,
                seed: spec.seed,
                ..Fault::default()
            });
        }
        config
    }

    fn open(
        _rnic: &Rnic,
        pd: &Pd,
        cq: &Cq,
        requests: usize,
        local: IpAddr,
        _side: Side,
    ) -> Result<(Self, Offer)> {
        let attributes = UdQpAttr {
            bind: Some(SocketAddr::new(local, 0)),
            ..UdQpAttr::from(QpAttr {
                max_send_wr: requests,
                max_recv_wr: 1,
                ..QpAttr::new(cq, cq)
            })
        };
        let qp = pd
            .create_ud_qp(&attributes)
            .map_err(stack("create a queue pair"))?;
        let granted = qp
            .receive_buffer()
            .map_err(stack("read the receive buffer's size"))?;
        let offer = Offer {
            ports: vec![qp.qpn()],
            receive_buffer: widen(granted),
            ..Offer::default()
        };
        Ok((Self { qp, peer: None }, offer))
    }

    fn connect(&mut self, pd: &Pd, peer: IpAddr, offer: &Offer) -> Result<()> {
        let &[qpn] = offer.ports.as_slice() else {
            return Err(PerfError::Protocol("a queue pair has one port".to_owned()));
        };
        let ah = pd
            .create_ah(peer)
            .map_err(stack("create an address handle"))?;
        self.peer = Some(Destination { ah, qpn, qkey: 0 });
        Ok(())
    }

    fn complete(&mut self) -> Result<()> {
        Ok(())
    }

    fn post(&mut self, request: &Request) -> Result<bool> {
        let work = SendWr {
            wr_id: request.wr_id,
            operation: Operation::Read {
                rkey: request.rkey,
                remote_addr: request.remote_addr,
                timeout: None,
            },
            // Lent: a clone and its end cost an atomic operation each.
            destination: self.peer.take().ok_or_else(too_early)?,
            sges: std::slice::from_ref(&request.sink),
            signaled: true,
            solicited: false,
        };
        let posted = self.qp.post_send(std::slice::from_ref(&work));
        self.peer = Some(work.destination);
        match posted {
            Ok(()) => Ok(true),
            Err(failure) if failure.source == PostError::QueueFull => Ok(false),
            Err(error) => Err(stack("post a Read")(error)),
        }
    }

    fn ended(&self, wc: &Wc) -> Result<Outcome> {
        match wc.status {
            WcStatus::Success => Ok(Outcome::Complete),
            // Its time was over: what came is there.
            WcStatus::ResponseTimeout => {
                let map = self.qp.take_read_map(wc.wr_id);
                let holes = map.map_or(0, |map| holes(&map.ranges, map.length));
                Ok(Outcome::Partial { holes })
            }
            status => Err(PerfError::Stack {
                what: "a Read",
                reason: format!("{status} (error {})", wc.vendor_error),
            }),
        }
    }

    fn datagrams(&self) -> Datagrams {
        let counters = self.qp.counters();
        Datagrams {
            sent: counters.segments_sent,
            dropped: counters.fault_dropped,
            refused: counters.dropped_in_all(),
            ..Datagrams::default()
        }
    }
}
