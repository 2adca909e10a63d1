//! RDMA Read and atomic operations of a connected queue pair.

use std::net::IpAddr;

use dgiwarp::{
    AtomicOperation, Config, Cq, Pd, PostError, QpAttr, RcOperation, RcQpAttr, RcSendWr,
    ReadDepths, Rnic, Wc,
};

use crate::catalog::Op;
use crate::endpoint::ours::fetch::{Outcome, Request, Requester};
use crate::endpoint::ours::link::Link;
use crate::endpoint::ours::{device, stack};
use crate::error::{PerfError, Result};
use crate::machine::host::Side;
use crate::session::control::{Datagrams, EndpointSpec, Offer};

/// A connected queue pair.
#[derive(Debug)]
pub(crate) struct RcRequester {
    link: Link,
}

impl Requester for RcRequester {
    const LOSES: bool = false;

    fn config(spec: &EndpointSpec, side: Side) -> Config {
        device(spec, side)
    }

    fn open(
        rnic: &Rnic,
        pd: &Pd,
        cq: &Cq,
        requests: usize,
        local: IpAddr,
        side: Side,
    ) -> Result<(Self, Offer)> {
        let attributes = RcQpAttr::from(QpAttr {
            max_send_wr: requests,
            max_recv_wr: 1,
            max_sge: 1,
            ..QpAttr::new(cq, cq)
        });
        // All requests in flight may be at the responder.
        let depth = u16::try_from(requests).unwrap_or(u16::MAX);
        let depths = ReadDepths {
            ird: depth,
            ord: depth,
        };
        let (link, ports) = Link::open(rnic, pd, &attributes, local, side, depths)?;
        let offer = Offer {
            ports,
            ..Offer::default()
        };
        Ok((Self { link }, offer))
    }

    fn connect(&mut self, _pd: &Pd, peer: IpAddr, offer: &Offer) -> Result<()> {
        self.link.connect(peer, offer)
    }

    fn complete(&mut self) -> Result<()> {
        self.link.complete()
    }

    fn post(&mut self, request: &Request) -> Result<bool> {
        let Request {
            rkey, remote_addr, ..
        } = *request;
        let atomic = |operation| RcOperation::Atomic {
            rkey,
            remote_addr,
            operation,
        };
        let operation = match request.op {
            Op::FetchAdd => atomic(AtomicOperation::FetchAdd { add: 1, mask: 0 }),
            // Each finds what the one before it stored.
            Op::CompareSwap => atomic(AtomicOperation::CompareSwap {
                compare: request.number,
                compare_mask: u64::MAX,
                swap: request.number + 1,
                swap_mask: u64::MAX,
            }),
            Op::Read => RcOperation::Read { rkey, remote_addr },
            other => {
                let what = format!("{} fetches nothing", other.name());
                return Err(PerfError::Protocol(what));
            }
        };
        let sges = std::slice::from_ref(&request.sink);
        let work = RcSendWr::new(request.wr_id, operation, sges);
        match self.link.qp.post_send(&[work]) {
            Ok(()) => Ok(true),
            Err(failure) if failure.source == PostError::QueueFull => Ok(false),
            Err(error) => Err(stack("post a request")(error)),
        }
    }

    fn ended(&self, wc: &Wc) -> Result<Outcome> {
        self.link.succeeded(*wc).map(|_| Outcome::Complete)
    }

    /// Connections have none.
    fn datagrams(&self) -> Datagrams {
        Datagrams::default()
    }
}
