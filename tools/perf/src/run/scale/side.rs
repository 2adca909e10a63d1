//! One side of many peers: the queue pairs, and what its calls cost.

use std::time::Duration;

use dgiwarp::{
    Access, AddressHandle, ConnectionChannel, ConnectionEvent, Cq, Destination, MpaConfig,
    Operation, Pd, QpAttr, RcOperation, RcQp, RcQpAttr, RcSendWr, RdQp, RdQpAttr, RdSendWr, RecvWr,
    Rnic, SendWr, UdQp, UdQpAttr, Wc, WcOpcode, WcStatus,
};
use serde::{Deserialize, Serialize};

use crate::catalog::Transport;
use crate::endpoint::ours::memory::Memory;
use crate::endpoint::ours::stack;
use crate::endpoint::pattern::narrow;
use crate::error::{PerfError, Result};
use crate::machine::clock;
use crate::run::scale::{HERE, SIZE, index};
use crate::stats::float;

/// Receives of a queue pair with many peers: more than are under way.
const RECEIVES: usize = 64;
/// Connections asked for at a time: a listener's backlog holds as many.
const AT_A_TIME: usize = 64;
/// How long the next of them may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Completions taken in one call.
pub(super) const BATCH: usize = 16;

/// Times of a side's calls in a round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Cost {
    /// Time of a message: of the calls that post one, and of those that find one, in microseconds.
    pub(crate) us: Option<f64>,
    /// Messages received.
    pub(crate) answered: u64,
}

/// The calls of a round, each with its time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Calls {
    posts: Vec<u64>,
    polls: Vec<u64>,
    answered: u64,
}

impl Calls {
    /// A call that posted one message.
    pub(super) fn posted(&mut self, nanoseconds: u64) {
        self.posts.push(nanoseconds);
    }

    /// A call that found so many messages, one at least.
    pub(super) fn found(&mut self, nanoseconds: u64, messages: u64) {
        self.polls.push(nanoseconds / messages);
        self.answered += messages;
    }

    /// These and those of another thread.
    pub(super) fn join(&mut self, other: &Self) {
        self.posts.extend(&other.posts);
        self.polls.extend(&other.polls);
        self.answered += other.answered;
    }

    /// The sum of both kinds' means, each without its longest tenth: that is when somebody else had the CPU.
    pub(super) fn cost(&mut self) -> Cost {
        let post = mean_of_shorter(&mut self.posts);
        let poll = mean_of_shorter(&mut self.polls);
        let cost = Cost {
            us: poll.map(|poll| (post.unwrap_or(0.0) + poll) / 1000.0),
            answered: self.answered,
        };
        self.posts.clear();
        self.polls.clear();
        self.answered = 0;
        cost
    }
}

fn mean_of_shorter(nanoseconds: &mut [u64]) -> Option<f64> {
    nanoseconds.sort_unstable();
    let kept = nanoseconds.len() - nanoseconds.len() / 10;
    let sum: u64 = nanoseconds.iter().take(kept).sum();
    let count = crate::endpoint::pattern::widen(kept);
    (kept > 0).then(|| float(sum) / float(count))
}

/// The side that speaks with all peers.
#[derive(Debug)]
pub(crate) struct One {
    cq: Cq,
    memory: Memory,
    kind: Kind,
    _pd: Pd,
    batch: Vec<Wc>,
}

/// A queue pair whose work requests name their peers.
#[derive(Debug)]
pub(super) enum DatagramQp {
    Ud(UdQp),
    Rd(RdQp),
}

impl DatagramQp {
    pub(super) fn open(pd: &Pd, transport: Transport, attributes: QpAttr<'_>) -> Result<Self> {
        let bind = Some((HERE, 0).into());
        let made = match transport.is_reliable_datagram() {
            true => {
                let mut attributes = RdQpAttr::new(attributes);
                attributes.bind = bind;
                pd.create_rd_qp(&attributes).map(Self::Rd)
            }
            false => {
                let attributes = UdQpAttr {
                    bind,
                    ..UdQpAttr::from(attributes)
                };
                pd.create_ud_qp(&attributes).map(Self::Ud)
            }
        };
        made.map_err(stack("create a queue pair"))
    }

    pub(super) fn qpn(&self) -> u16 {
        match self {
            Self::Ud(qp) => qp.qpn(),
            Self::Rd(qp) => qp.qpn(),
        }
    }

    pub(super) fn post_send(
        &self,
        ah: &AddressHandle,
        qpn: u16,
        sges: &[dgiwarp::Sge],
    ) -> Result<()> {
        let destination = Destination {
            ah: ah.clone(),
            qpn,
            qkey: 0,
        };
        let posted = match self {
            Self::Ud(qp) => qp.post_send(&[SendWr {
                wr_id: 0,
                operation: Operation::Send { immediate: None },
                destination,
                sges,
                signaled: false,
                solicited: false,
            }]),
            Self::Rd(qp) => qp.post_send(&[RdSendWr {
                destination,
                wr: RcSendWr {
                    signaled: false,
                    ..RcSendWr::new(0, RcOperation::Send { invalidate: None }, sges)
                },
            }]),
        };
        posted.map_err(stack("post a send"))
    }

    pub(super) fn post_recv(&self, request: RecvWr<'_>) -> Result<()> {
        let posted = match self {
            Self::Ud(qp) => qp.post_recv(&[request]),
            Self::Rd(qp) => qp.post_recv(&[request]),
        };
        posted.map_err(stack("post a receive"))
    }
}

#[derive(Debug)]
enum Kind {
    Datagram {
        qp: DatagramQp,
        ah: AddressHandle,
        ports: Vec<u16>,
    },
    Rc {
        qps: Vec<RcQp>,
        first: u32,
        by_number: Vec<u32>,
    },
}

impl One {
    /// Makes queue pairs, and connects them.
    pub(super) fn open(
        rnic: &Rnic,
        transport: Transport,
        peers: u32,
        ports: &[u16],
    ) -> Result<Self> {
        let pd = rnic.alloc_pd();
        let cq = rnic
            .create_cq(4096)
            .map_err(stack("create a completion queue"))?;
        let memory = Memory::new(&pd, (RECEIVES + 1) * SIZE, Access::LOCAL_WRITE)?;
        let kind = match transport.uses_datagrams() {
            true => datagrams(&pd, &cq, transport, &memory, ports)?,
            false => {
                let qps = rc_qps(&pd, &cq, peers)?;
                post_rc_receives(&qps, &memory)?;
                let &[port] = ports else {
                    return Err(PerfError::Protocol("a listener has one port".to_owned()));
                };
                connect(rnic, &qps, port)?;
                let (first, by_number) = by_number(&qps);
                Kind::Rc {
                    qps,
                    first,
                    by_number,
                }
            }
        };
        Ok(Self {
            cq,
            memory,
            kind,
            _pd: pd,
            batch: vec![Wc::default(); BATCH],
        })
    }

    /// Sends one message to a peer.
    pub(super) fn send(&self, peer: u64, calls: &mut Calls) -> Result<()> {
        let sge = [self.memory.region.sge(..SIZE)];
        let start = clock::now();
        match &self.kind {
            Kind::Datagram { qp, ah, ports } => {
                let qpn = ports.get(narrow(peer)).copied().unwrap_or(0);
                qp.post_send(ah, qpn, &sge)?;
            }
            Kind::Rc { qps, .. } => {
                let qp = qps.get(narrow(peer)).ok_or(PerfError::PeerGone)?;
                post_rc(qp, &sge)?;
            }
        }
        calls.posted(clock::nanoseconds(start, clock::now()));
        Ok(())
    }

    /// Sends one message to each of these ports, of which nobody answers.
    pub(super) fn disturb(&self, ports: [u16; 2]) -> Result<()> {
        let sge = [self.memory.region.sge(..SIZE)];
        if let Kind::Datagram { qp, ah, .. } = &self.kind {
            for port in ports {
                qp.post_send(ah, port, &sge)?;
            }
        }
        Ok(())
    }

    /// Takes what has arrived; how much it was.
    pub(super) fn poll(&mut self, calls: &mut Calls) -> Result<u64> {
        let start = clock::now();
        let found = self
            .cq
            .poll(&mut self.batch)
            .map_err(stack("poll the completion queue"))?;
        let mut answers = 0;
        for wc in self.batch.iter().take(found) {
            if !is_message(wc)? {
                continue;
            }
            answers += 1;
            match &self.kind {
                Kind::Datagram { qp, .. } => {
                    let sges = [receive(&self.memory, wc.wr_id)];
                    qp.post_recv(RecvWr {
                        wr_id: wc.wr_id,
                        sges: &sges,
                    })?;
                }
                Kind::Rc {
                    qps,
                    first,
                    by_number,
                } => {
                    let qp = find(qps, *first, by_number, wc.qpn)?;
                    post_rc_receive(qp, &self.memory)?;
                }
            }
        }
        if answers > 0 {
            calls.found(clock::nanoseconds(start, clock::now()), answers);
        }
        Ok(answers)
    }
}

fn datagrams(
    pd: &Pd,
    cq: &Cq,
    transport: Transport,
    memory: &Memory,
    ports: &[u16],
) -> Result<Kind> {
    let attributes = QpAttr {
        max_recv_wr: RECEIVES,
        ..QpAttr::new(cq, cq)
    };
    let qp = DatagramQp::open(pd, transport, attributes)?;
    for slot in 1..=RECEIVES {
        let slot = crate::endpoint::pattern::widen(slot);
        let sges = [receive(memory, slot)];
        qp.post_recv(RecvWr {
            wr_id: slot,
            sges: &sges,
        })?;
    }
    let ah = pd
        .create_ah(HERE)
        .map_err(stack("create an address handle"))?;
    Ok(Kind::Datagram {
        qp,
        ah,
        ports: ports.to_vec(),
    })
}

/// Whether it is a received message; an error of a datagram's way is none of a connection.
pub(super) fn is_message(wc: &Wc) -> Result<bool> {
    if wc.status != WcStatus::Success {
        return Err(PerfError::Stack {
            what: "a work request",
            reason: format!("{} (error {})", wc.status, wc.vendor_error),
        });
    }
    Ok(wc.opcode == WcOpcode::Recv)
}

fn receive(memory: &Memory, slot: u64) -> dgiwarp::Sge {
    let start = narrow(slot) * SIZE;
    memory.region.sge(start..start + SIZE)
}

pub(super) fn post_rc(qp: &RcQp, sges: &[dgiwarp::Sge]) -> Result<()> {
    let request = RcSendWr {
        signaled: false,
        ..RcSendWr::new(0, RcOperation::Send { invalidate: None }, sges)
    };
    qp.post_send(&[request]).map_err(stack("post a send"))
}

/// Small queues, as a server with many clients would have.
pub(super) fn rc_qps(pd: &Pd, cq: &Cq, count: u32) -> Result<Vec<RcQp>> {
    let attributes = RcQpAttr::from(QpAttr {
        max_send_wr: 16,
        max_recv_wr: 16,
        max_sge: 1,
        ..QpAttr::new(cq, cq)
    });
    (0..index(count))
        .map(|_| pd.create_rc_qp(&attributes))
        .collect::<std::result::Result<_, _>>()
        .map_err(stack("create a queue pair"))
}

/// All receives may fill the same memory: nobody reads it.
pub(super) fn post_rc_receive(qp: &RcQp, memory: &Memory) -> Result<()> {
    let sges = [memory.region.sge(SIZE..2 * SIZE)];
    let request = RecvWr {
        wr_id: 0,
        sges: &sges,
    };
    qp.post_recv(&[request]).map_err(stack("post a receive"))
}

pub(super) fn post_rc_receives(qps: &[RcQp], memory: &Memory) -> Result<()> {
    for qp in qps {
        for _ in 0..8 {
            post_rc_receive(qp, memory)?;
        }
    }
    Ok(())
}

/// Where the queue pair of a number is: numbers lie close together.
pub(super) fn by_number(qps: &[RcQp]) -> (u32, Vec<u32>) {
    let first = qps.iter().map(RcQp::qpn).min().unwrap_or(0);
    let last = qps.iter().map(RcQp::qpn).max().unwrap_or(0);
    let mut places = vec![u32::MAX; index(last - first) + 1];
    for (place, qp) in qps.iter().enumerate() {
        if let Some(entry) = places.get_mut(index(qp.qpn() - first)) {
            *entry = u32::try_from(place).unwrap_or(u32::MAX);
        }
    }
    (first, places)
}

pub(super) fn find<'a>(
    qps: &'a [RcQp],
    first: u32,
    by_number: &[u32],
    qpn: u32,
) -> Result<&'a RcQp> {
    let place = by_number.get(index(qpn.wrapping_sub(first))).copied();
    let qp = place.and_then(|place| qps.get(index(place)));
    qp.ok_or_else(|| PerfError::Protocol(format!("no queue pair {qpn}")))
}

/// Connects all, some at a time.
fn connect(rnic: &Rnic, qps: &[RcQp], port: u16) -> Result<()> {
    let channel: ConnectionChannel = rnic
        .create_connection_channel()
        .map_err(stack("create a connection channel"))?;
    for some in qps.chunks(AT_A_TIME) {
        for qp in some {
            let to = (HERE, port).into();
            channel
                .connect(qp, to, &MpaConfig::default(), b"", 0)
                .map_err(stack("connect"))?;
        }
        for _ in some {
            match channel.next_event(CONNECT_TIMEOUT) {
                Some(ConnectionEvent::Established { .. }) => {}
                Some(ConnectionEvent::Failed { error, .. }) => {
                    return Err(stack("connect")(error));
                }
                other => return Err(PerfError::Protocol(format!("unexpected {other:?}"))),
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cost_of_a_message_is_that_of_posting_and_of_finding_it() {
        let mut calls = Calls::default();
        for _ in 0..9 {
            calls.posted(2000);
            calls.found(6000, 2);
        }
        // Somebody else had the CPU.
        calls.posted(3_000_000);
        calls.found(9_000_000, 1);
        let cost = calls.cost();
        assert_eq!((cost.us, cost.answered), (Some(5.0), 19));
        assert_eq!(calls.cost(), Cost::default());
    }
}
