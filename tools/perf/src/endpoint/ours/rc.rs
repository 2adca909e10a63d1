//! Queue pairs that lose nothing, connected ones over TCP and reliable datagrams over UDP: Send, RDMA Write, and RDMA Write with immediate.
//!
//! Every message is one work request, whatever its size, and has a slot of its own in the peer's memory while it is in flight. Nothing
//! gets lost, so counting identifies messages. The last byte of each is a tag that differs from that of the message before in
//! the same slot: the target of plain Writes polls its completion queue and that byte, as RDMA programs do. Credits are
//! empty Writes with an immediate in the other direction.

mod flow;
mod list;
mod ping;

use std::net::{IpAddr, SocketAddr};

use dgiwarp::{
    Access, Pd, QpAttr, QpCounters, RcOperation, RcQpAttr, RcSendWr, RdQpAttr, ReadDepths, RecvWr,
    Rnic, Sge, Wc,
};

use crate::catalog::{Mode, Op, Transport};
use crate::endpoint::ours::completions::Completions;
use crate::endpoint::ours::link::{Link, Reliable};
use crate::endpoint::ours::memory::{Memory, stride};
use crate::endpoint::ours::{device, stack, too_early};
use crate::endpoint::pattern::{self, narrow, widen};
use crate::error::{PerfError, Result};
use crate::machine::host::{Side, Wait};
use crate::measure::{Geometry, MAX_MESSAGES, most_in_flight};
use crate::session::control::{EndpointSpec, Offer, RemoteRegion};

/// Receives posted for credits: one comes per half window.
const CREDIT_RECEIVES: usize = 16;
/// Receives posted for ping-pong, where one message is under way. Few, so that they stay cached.
const PING_RECEIVES: usize = 4;
/// Neither side reads the other's memory.
const NO_READS: ReadDepths = ReadDepths { ird: 0, ord: 0 };

/// One side of a connected or reliable datagram queue pair.
#[derive(Debug)]
pub(crate) struct Rc {
    pd: Pd,
    completions: Completions,
    link: Reliable,
    rnic: Rnic,
    op: Op,
    mode: Mode,
    blocking: bool,
    check: bool,
    size: usize,
    /// Messages of one call.
    list: usize,
    target: Option<RemoteRegion>,
    /// Where the peer's Writes go.
    exposed: Option<Memory>,
    /// Sources: one slot per message in flight.
    outgoing: Option<Memory>,
    /// Slots of posted receives.
    receives: Option<Memory>,
    receive_stride: usize,
    /// A message but for its tag, with `check`.
    pattern: Vec<u8>,
    /// Distance of two messages in `outgoing` and at the target.
    stride: usize,
    slots: u64,
    /// Messages posted, and seen of the peer's, since the queue pair was made.
    posted: u64,
    seen: u64,
    round: u64,
    /// Messages of this round that the peer has acknowledged.
    credited: u64,
    /// The sequence of the latest ping that this side sent.
    sequence: u64,
    /// A receive to post again once the answer is on its way.
    consumed: Option<u64>,
    /// The target of Writes polls nothing but memory.
    direct: bool,
    /// Signaled work requests that have not completed; with `direct`, all are signaled.
    unfinished: u64,
}

impl Rc {
    /// Opens this side's queue pair on `local`.
    pub(crate) fn open(spec: &EndpointSpec, local: IpAddr, side: Side) -> Result<(Self, Offer)> {
        let rnic = Rnic::open(device(spec, side)).map_err(stack("open the device"))?;
        let pd = rnic.alloc_pd();
        let most = narrow(MAX_MESSAGES) + CREDIT_RECEIVES;
        let cq = rnic
            .create_cq(2 * most)
            .map_err(stack("create a completion queue"))?;
        let attributes = QpAttr {
            max_send_wr: most,
            max_recv_wr: most,
            max_sge: 1,
            ..QpAttr::new(&cq, &cq)
        };
        let (link, ports) = if spec.subject.transport.is_reliable_datagram() {
            let attributes = RdQpAttr {
                bind: Some(SocketAddr::new(local, 0)),
                ..RdQpAttr::new(attributes)
            };
            Reliable::datagram(&pd, &attributes)?
        } else {
            let attributes = RcQpAttr::from(attributes);
            let (link, ports) = Link::open(&rnic, &pd, &attributes, local, side, NO_READS)?;
            (Reliable::Connected(link), ports)
        };
        let exposed = match spec.subject.op {
            Op::Write | Op::WriteImm => {
                let length = most_in_flight(spec.mode, spec.size) * stride(spec.size);
                let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
                Some(Memory::new(&pd, narrow(length), access)?)
            }
            // Credits are empty, and named by nobody.
            _ => None,
        };
        let offer = Offer {
            ports,
            region: exposed.as_ref().map(Memory::remote),
            ..Offer::default()
        };
        let blocking = spec.wait == Wait::Block;
        let rc = Self {
            pd,
            completions: Completions::new(cq, blocking),
            link,
            rnic,
            op: spec.subject.op,
            mode: spec.mode,
            blocking,
            check: spec.check,
            size: narrow(spec.size),
            list: narrow(u64::from(spec.list.max(1))),
            target: None,
            exposed,
            outgoing: None,
            receives: None,
            receive_stride: 0,
            pattern: Vec::new(),
            stride: narrow(stride(spec.size)),
            slots: 1,
            posted: 0,
            seen: 0,
            round: 0,
            credited: 0,
            sequence: 0,
            consumed: None,
            direct: spec.subject.transport == Transport::RcDirect,
            unfinished: 0,
        };
        Ok((rc, offer))
    }

    /// Counters of this side's queue pair.
    pub(crate) fn counters(&self) -> QpCounters {
        self.rnic.counters()
    }

    /// The client begins to connect.
    pub(crate) fn connect(&mut self, peer: IpAddr, offer: &Offer) -> Result<()> {
        self.target = offer.region;
        self.link.connect(peer, offer)
    }

    /// Messages are not cut, and in flight are as many as the peer has slots for.
    pub(crate) fn geometry(&self, window: Option<u64>) -> Geometry {
        let size = widen(self.size);
        let most = size * most_in_flight(self.mode, size);
        let geometry = Geometry::connected(size, size, window);
        Geometry {
            window: geometry.window.min(most),
            credit_every: geometry.credit_every.min(most),
            chunk: size * widen(self.list),
            ..geometry
        }
    }

    /// Prepares memory, posts receives for the agreed sizes, and completes the connection.
    pub(crate) fn configure(&mut self, geometry: &Geometry) -> Result<()> {
        if self.mode != Mode::Lat {
            self.slots = (geometry.window / geometry.size).clamp(1, MAX_MESSAGES);
        }
        let length = narrow(self.slots) * self.stride;
        if self
            .target
            .is_some_and(|target| target.length < widen(length))
        {
            return Err(PerfError::Protocol(format!(
                "impossible sizes {geometry:?}"
            )));
        }
        let pattern = pattern::fill(self.size);
        let outgoing = Memory::new(&self.pd, length, Access::empty())?;
        for slot in 0..narrow(self.slots) {
            outgoing.buffer.write(slot * self.stride, &pattern);
        }
        self.outgoing = Some(outgoing);
        self.pattern = pattern;

        let messages = match (self.op, self.mode) {
            (Op::Write, _) => 0,
            (_, Mode::Lat) => PING_RECEIVES,
            _ => narrow(self.slots),
        };
        let count = match self.mode {
            Mode::Lat => messages,
            _ => messages + CREDIT_RECEIVES,
        };
        if self.op == Op::Send {
            self.receive_stride = self.stride;
            let length = count * self.receive_stride;
            self.receives = Some(Memory::new(&self.pd, length, Access::LOCAL_WRITE)?);
        }
        for slot in 0..count {
            self.post_receive(widen(slot))?;
        }
        self.link.complete()
    }

    /// Posts the receive of this slot. A receive for an immediate alone has no memory.
    fn post_receive(&self, slot: u64) -> Result<()> {
        let sge = self.receives.as_ref().map(|memory| {
            let start = narrow(slot) * self.receive_stride;
            memory.region.sge(start..start + self.receive_stride)
        });
        let request = RecvWr {
            wr_id: slot,
            sges: sge.as_slice(),
        };
        self.link.post_recv(&[request])
    }

    /// Posts the next message; false if the queue is full.
    fn post_message(&mut self) -> Result<bool> {
        let memory = self.outgoing.as_ref().ok_or_else(too_early)?;
        let start = self.place(self.posted);
        let end = start + self.size;
        memory.buffer.write(end - 1, &[self.tag(self.posted)]);
        let operation = self.operation(self.posted)?;
        let sges = [memory.region.sge(start..end)];
        let taken = self.post(operation, &sges)?;
        self.posted += u64::from(taken);
        Ok(taken)
    }

    /// Where the message of this number lies, here and at the target.
    fn place(&self, number: u64) -> usize {
        narrow(number % self.slots) * self.stride
    }

    /// The operation on the message of this number.
    fn operation(&self, number: u64) -> Result<RcOperation> {
        match (self.op, self.target) {
            (Op::Send, _) => Ok(RcOperation::Send { invalidate: None }),
            (Op::Write | Op::WriteImm, Some(target)) => Ok(RcOperation::Write {
                rkey: target.stag,
                remote_addr: target.base + widen(self.place(number)),
                immediate: (self.op == Op::WriteImm).then_some(0),
            }),
            _ => Err(too_early()),
        }
    }

    /// Posts one send work request; false if the queue is full.
    fn post(&mut self, operation: RcOperation, sges: &[Sge]) -> Result<bool> {
        let taken = self.link.post_send(RcSendWr {
            signaled: self.direct,
            ..RcSendWr::new(0, operation, sges)
        })?;
        self.unfinished += u64::from(taken && self.direct);
        Ok(taken)
    }

    /// The last byte of the message with this number.
    fn tag(&self, number: u64) -> u8 {
        pattern::tag(number, self.slots)
    }

    /// The next completion, if there is one. With `wait` a blocking side sleeps for it.
    fn completion(&mut self, wait: bool) -> Result<Option<Wc>> {
        let Some(wc) = self.completions.next(wait)? else {
            return Ok(None);
        };
        let wc = self.link.succeeded(wc)?;
        if self.direct {
            self.unfinished = self.unfinished.saturating_sub(1);
        }
        Ok(Some(wc))
    }

    /// A Write wakes nobody: instead of sleeping its target yields the CPU between two polls.
    fn let_others_run(&self) {
        if self.blocking {
            std::thread::yield_now();
        }
    }

    /// Whether the peer's next Write is there.
    fn is_written(&self) -> bool {
        let at = narrow(self.seen % self.slots) * self.stride + self.size - 1;
        let memory = self.exposed.as_ref();
        memory.is_some_and(|memory| memory.buffer.load(at) == self.tag(self.seen))
    }

    /// The peer's next message arrived: in the receive of this slot if it was a Send, else where it was written to.
    fn arrived(&mut self, receive: u64) -> Result<()> {
        if self.check {
            let (memory, slot, stride) = match self.op {
                Op::Send => (&self.receives, receive, self.receive_stride),
                _ => (&self.exposed, self.seen % self.slots, self.stride),
            };
            let memory = memory.as_ref().ok_or_else(too_early)?;
            let start = narrow(slot) * stride;
            let message = memory.buffer.to_vec(start, self.size);
            let (number, tag) = (self.seen, self.tag(self.seen));
            pattern::verify_tagged(&message, number, tag, &self.pattern)?;
            // Present octets must not pass for the next message.
            memory.buffer.write(start, &vec![0; self.size]);
        }
        self.seen += 1;
        Ok(())
    }
}
