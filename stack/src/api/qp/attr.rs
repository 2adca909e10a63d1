//! Attributes of queue pairs of all transports.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::srq::MAX_WR;
use crate::driver::qp::core::QpParts;
use crate::{Cq, Error, MAX_SGE, RcOptions, RecordCompletions, Srq};
use dgiwarp_engine::mr::MrTable;
use dgiwarp_engine::recv_queue::RecvQueue;

/// Default of the reorder window, in message numbers.
const DEFAULT_REORDER_WINDOW: u32 = 64;

/// Attributes that queue pairs of every transport have (`ibv_qp_init_attr`).
#[derive(Debug, Clone)]
pub struct QpAttr<'a> {
    /// Where completions of posted sends go.
    pub send_cq: &'a Cq,
    /// Where completions of receives go.
    pub recv_cq: &'a Cq,
    /// Sends outstanding at most, 1 to 65,536. Default 256.
    pub max_send_wr: usize,
    /// Receives posted at most, 1 to 65,536. Default 256.
    pub max_recv_wr: usize,
    /// Scatter/gather elements per work request, 1 to [`MAX_SGE`]. Default 4.
    pub max_sge: usize,
    /// A queue to take receives from instead of one of this QP's own; then `max_recv_wr` does not count, and receives are posted there.
    /// Default none.
    pub srq: Option<&'a Srq>,
}

impl<'a> QpAttr<'a> {
    /// The defaults with these completion queues.
    #[must_use]
    pub const fn new(send_cq: &'a Cq, recv_cq: &'a Cq) -> Self {
        Self {
            send_cq,
            recv_cq,
            max_send_wr: 256,
            max_recv_wr: 256,
            max_sge: 4,
            srq: None,
        }
    }

    pub(in crate::api) fn check(&self) -> Result<(), Error> {
        Error::check_limit("max_send_wr", self.max_send_wr, 1, MAX_WR)?;
        Error::check_limit("max_recv_wr", self.max_recv_wr, 1, MAX_WR)?;
        Error::check_limit("max_sge", self.max_sge, 1, MAX_SGE)
    }

    /// Queues and tables of a queue pair with this number.
    pub(in crate::api) fn parts(&self, qpn: u32, mrs: &Arc<MrTable>) -> QpParts {
        QpParts {
            qpn,
            max_send_wr: self.max_send_wr,
            recv_queue: match self.srq {
                Some(srq) => Arc::clone(&srq.queue),
                None => Arc::new(RecvQueue::new(self.max_recv_wr, self.max_sge)),
            },
            send_cq: Arc::clone(&self.send_cq.shared),
            recv_cq: Arc::clone(&self.recv_cq.shared),
            mrs: Arc::clone(mrs),
        }
    }
}

/// Attributes of a datagram queue pair, UD or UC (`ibv_qp_init_attr`).
#[derive(Debug, Clone)]
pub struct UdQpAttr<'a> {
    /// Completion queues, sizes and shared receive queue. Records complete with the receives.
    pub qp: QpAttr<'a>,
    /// Address and UDP port to bind; the port is the QPN. `None`: all addresses, a port of the system's choice.
    pub bind: Option<SocketAddr>,
    /// Q_Key that received Sends must carry. Default 0.
    pub qkey: u32,
    /// Records of Write-Records kept at most, 0 to 65,536; 0, the default, does not take any.
    pub record_slots: usize,
    /// Completions that records make. Default [`PerMessage`](RecordCompletions::PerMessage).
    pub record_completions: RecordCompletions,
    /// Slots of the completion queue set aside for segments of records, 1 to 65,536, where [`PerSegment`](RecordCompletions::PerSegment) asks for their
    /// completions; QPs of one completion queue share them. Default 1024.
    pub segment_slots: usize,
    /// A record is closed when nothing was placed for this long. `None`, the default, takes [`Config::record_timeout`](crate::Config::record_timeout).
    pub record_timeout: Option<Duration>,
    /// How many messages a Write-Record may be behind the latest of its source before its record is closed, 1 to 1023. Default 64.
    pub reorder_window: u32,
    /// The time that Reads may take which name none. `None`, the default, takes [`Config::read_timeout`](crate::Config::read_timeout).
    pub read_timeout: Option<Duration>,
    /// Octets that may leave per second, headers included; 0, the default, is [`Config::max_rate`](crate::Config::max_rate). Sends and Write-Records
    /// have no feedback: one that is longer than the receiver's buffer arrives whole only if the sender keeps to a rate that the receiver keeps
    /// up with. A receiver gives a Send 200 ms from its first segment on, so a rate of less than five times its length per second loses it.
    pub max_rate: u64,
    /// Whether receives begin with 40 octets for a GRH. Default no.
    pub grh: bool,
}

impl<'a> UdQpAttr<'a> {
    /// The defaults with these completion queues.
    #[must_use]
    pub fn new(send_cq: &'a Cq, recv_cq: &'a Cq) -> Self {
        QpAttr::new(send_cq, recv_cq).into()
    }
}

impl<'a> From<QpAttr<'a>> for UdQpAttr<'a> {
    fn from(qp: QpAttr<'a>) -> Self {
        Self {
            qp,
            bind: None,
            qkey: 0,
            record_slots: 0,
            record_completions: RecordCompletions::PerMessage,
            segment_slots: 1024,
            record_timeout: None,
            reorder_window: DEFAULT_REORDER_WINDOW,
            read_timeout: None,
            max_rate: 0,
            grh: false,
        }
    }
}

/// Attributes of a connected queue pair (`ibv_qp_init_attr`).
#[derive(Debug, Clone)]
pub struct RcQpAttr<'a> {
    /// Completion queues, sizes and shared receive queue.
    pub qp: QpAttr<'a>,
    /// Whether the QP may be connected with [`RcQp::pair`](crate::RcQp::pair) too, instead of by MPA requests of the program's own. Its number then names the TCP
    /// port at which it can be reached. Default no.
    pub paired: bool,
    /// Whether it is an XRC initiator: it only sends, to a target of an XRC domain ([`Xrcd`](crate::Xrcd)). Default no.
    pub xrc_initiator: bool,
    /// How it behaves; `None`, the default, takes [`Config::rc`](crate::Config::rc).
    pub options: Option<RcOptions>,
}

impl<'a> RcQpAttr<'a> {
    /// The defaults with these completion queues.
    #[must_use]
    pub fn new(send_cq: &'a Cq, recv_cq: &'a Cq) -> Self {
        QpAttr::new(send_cq, recv_cq).into()
    }
}

impl<'a> From<QpAttr<'a>> for RcQpAttr<'a> {
    fn from(qp: QpAttr<'a>) -> Self {
        Self {
            qp,
            paired: false,
            xrc_initiator: false,
            options: None,
        }
    }
}
