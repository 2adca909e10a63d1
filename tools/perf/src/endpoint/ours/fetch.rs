//! Fetches out of the server's memory: RDMA Reads, and the atomic operations, which change the octets that they fetch.
//!
//! The server registers a region, and lets its queue pair answer. The client posts as many requests as the window holds; a completion is
//! both the data and the credit for the next one. [`Requester`] hides the kind of queue pair.

mod rc;
mod ud;

use std::fmt::Debug;
use std::net::IpAddr;

use dgiwarp::{Access, Config, Cq, Pd, QpCounters, Rnic, Sge, Wc};
use nix::poll::poll;

pub(crate) use self::rc::RcRequester;
pub(crate) use self::ud::UdRequester;
use crate::catalog::{Mode, Op, Transport};
use crate::endpoint::ours::memory::{Memory, stride};
use crate::endpoint::ours::{stack, too_early};
use crate::endpoint::pattern::{self, narrow, widen};
use crate::error::{IoContext, PerfError, Result};
use crate::machine::host::{Side, Wait};
use crate::measure::{
    Arrival, BLOCK_SLICE, Flow, Geometry, Idle, PingPong, RecordShape, Want, Watch,
};
use crate::session::control::{Datagrams, EndpointSpec, Offer, RemoteRegion};

/// Requests outstanding, at most.
const MAX_REQUESTS: u64 = 64;
/// And at least, so that one is being served while another is made.
const MIN_REQUESTS: u64 = 4;
/// Octets that outstanding requests ask for, if not fewer requests than that: a queue pair itself asks for no more
/// at a time than its receive buffer holds.
const OUTSTANDING: u64 = 1 << 20;
/// The largest region that the server exposes beside one message.
const ROOM: u64 = 4 << 20;

/// A target that sleeps checks the control connection this often, in milliseconds.
const SLEEP: u8 = 4;

/// A queue pair that asks, or that is asked.
pub(crate) trait Requester: Debug + Sized {
    /// Whether a request can end without all that it asked for.
    const LOSES: bool;

    /// The device's settings for this side.
    fn config(spec: &EndpointSpec, side: Side) -> Config;

    /// Makes the queue pair on `local`, with room for so many requests. Returns also where the peer finds it, and
    /// its receive buffer, if the window depends on that.
    fn open(
        rnic: &Rnic,
        pd: &Pd,
        cq: &Cq,
        requests: usize,
        local: IpAddr,
        side: Side,
    ) -> Result<(Self, Offer)>;

    /// Learns where the peer is.
    fn connect(&mut self, pd: &Pd, peer: IpAddr, offer: &Offer) -> Result<()>;

    /// Waits until the two are connected, if they ever are.
    fn complete(&mut self) -> Result<()>;

    /// Posts a request; false if there is no room.
    fn post(&mut self, request: &Request) -> Result<bool>;

    /// The outcome of a request.
    fn ended(&self, wc: &Wc) -> Result<Outcome>;

    /// Datagrams of this queue pair since it was made.
    fn datagrams(&self) -> Datagrams;
}

/// A request to be posted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    op: Op,
    /// Returned in the completion.
    wr_id: u64,
    rkey: u32,
    remote_addr: u64,
    /// Where the answer goes.
    sink: Sge,
    /// How many atomic operations came before.
    number: u64,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// With everything asked for.
    Complete,
    /// With so many gaps.
    Partial {
        /// Before, between and behind what came.
        holes: u64,
    },
}

/// One side of what is fetched.
#[derive(Debug)]
pub(crate) struct Fetches<Q> {
    pd: Pd,
    cq: Cq,
    qp: Q,
    rnic: Rnic,
    op: Op,
    blocking: bool,
    /// The target of one-sided copies.
    asleep: bool,
    check: bool,
    mode: Mode,
    size: usize,
    target: Option<RemoteRegion>,
    /// The memory that the peer fetches.
    _exposed: Option<Memory>,
    /// Where what is fetched goes, one slot each.
    sink: Option<Memory>,
    free: Vec<usize>,
    asked: Vec<Asked>,
    /// Requests posted so far.
    posted: u64,
    pattern: Vec<u8>,
    stride: usize,
    round: u64,
    /// Octets of this round's requests that ended, which the sender does not count yet.
    ended: u64,
    told: u64,
    counted: Datagrams,
}

/// The request that a slot waits for.
#[derive(Clone, Copy, Debug, Default)]
struct Asked {
    /// Octets.
    length: u64,
    /// The number of the ping or round that asked.
    tag: u64,
    /// How many requests came before.
    number: u64,
}

/// A request that ended.
#[derive(Clone, Copy, Debug)]
struct Ended {
    asked: Asked,
    /// How much of it is there.
    valid: u64,
    /// Gaps in that.
    holes: u64,
}

impl<Q: Requester> Fetches<Q> {
    /// Opens this side's queue pair on `local`.
    pub(crate) fn open(spec: &EndpointSpec, local: IpAddr, side: Side) -> Result<(Self, Offer)> {
        let rnic = Rnic::open(Q::config(spec, side)).map_err(stack("open the device"))?;
        let pd = rnic.alloc_pd();
        let entries = 2 * narrow(MAX_REQUESTS);
        let cq = rnic
            .create_cq(entries)
            .map_err(stack("create a completion queue"))?;
        let (qp, mut offer) = Q::open(&rnic, &pd, &cq, entries, local, side)?;
        let exposed = match side {
            Side::Client => None,
            Side::Server => {
                let length = narrow(ROOM + stride(spec.size));
                if spec.subject.op == Op::Read {
                    let memory = Memory::new(&pd, length, Access::REMOTE_READ)?;
                    fill(&memory, spec.size);
                    Some(memory)
                } else {
                    // They count from zero.
                    Some(Memory::new(&pd, length, Access::REMOTE_ATOMIC)?)
                }
            }
        };
        offer.region = exposed.as_ref().map(Memory::remote);
        let fetches = Self {
            pd,
            cq,
            qp,
            rnic,
            op: spec.subject.op,
            blocking: spec.wait == Wait::Block,
            asleep: side == Side::Server && spec.subject.transport == Transport::RcDirect,
            check: spec.check,
            mode: spec.mode,
            size: narrow(spec.size),
            target: None,
            _exposed: exposed,
            sink: None,
            free: Vec::new(),
            asked: Vec::new(),
            posted: 0,
            pattern: Vec::new(),
            stride: narrow(stride(spec.size)),
            round: 0,
            ended: 0,
            told: 0,
            counted: Datagrams::default(),
        };
        Ok((fetches, offer))
    }

    /// Counters of this side's queue pair.
    pub(crate) fn counters(&self) -> QpCounters {
        self.rnic.counters()
    }

    /// Learns where the peer is.
    pub(crate) fn connect(&mut self, peer: IpAddr, offer: &Offer) -> Result<()> {
        self.target = offer.region;
        self.qp.connect(&self.pd, peer, offer)
    }

    /// A request fetches a whole message; the window is how many of them are outstanding.
    pub(crate) fn geometry(&self, window: Option<u64>) -> Geometry {
        let size = widen(self.size);
        let requests = window.unwrap_or(OUTSTANDING) / size;
        let requests = if window.is_none() && self.mode != Mode::Lat {
            requests.max(MIN_REQUESTS)
        } else {
            requests
        };
        let room = (ROOM + stride(size)) / stride(size);
        let window = size * requests.clamp(1, MAX_REQUESTS.min(room));
        Geometry {
            size,
            chunk: size,
            segment: size,
            window,
            credit_every: size,
        }
    }

    /// Prepares the slots that requests fill, and completes the connection.
    pub(crate) fn configure(&mut self, geometry: &Geometry) -> Result<()> {
        let slots = narrow(geometry.window / geometry.size.max(1));
        if let Some(target) = self.target {
            if !(1..=narrow(MAX_REQUESTS)).contains(&slots)
                || target.length < widen(slots * self.stride)
            {
                return Err(PerfError::Protocol(format!(
                    "impossible sizes {geometry:?}"
                )));
            }
            self.sink = Some(Memory::new(
                &self.pd,
                slots * self.stride,
                Access::LOCAL_WRITE,
            )?);
            self.free = (0..slots).collect();
            self.asked = vec![Asked::default(); slots];
            self.pattern = pattern::fill(self.size);
        }
        self.qp.complete()
    }

    /// Posts one request for `length` octets named by `tag`; false if there is no room.
    fn post(&mut self, length: u64, tag: u64) -> Result<bool> {
        let target = self.target.ok_or_else(too_early)?;
        let sink = self.sink.as_ref().ok_or_else(too_early)?;
        let Some(&slot) = self.free.last() else {
            return Ok(false);
        };
        let start = slot * self.stride;
        let offset = match self.op {
            Op::Read => start,
            // All change the same place, as counters and locks are changed.
            _ => 0,
        };
        let number = self.posted;
        let request = Request {
            op: self.op,
            wr_id: widen(slot),
            rkey: target.stag,
            remote_addr: target.base + widen(offset),
            sink: sink.region.sge(start..start + narrow(length)),
            number,
        };
        let taken = self.qp.post(&request)?;
        if taken {
            self.free.pop();
            self.posted += 1;
            if let Some(asked) = self.asked.get_mut(slot) {
                *asked = Asked {
                    length,
                    tag,
                    number,
                };
            }
        }
        Ok(taken)
    }

    /// The next request that ended.
    fn take_ended(&mut self, may_wait: bool) -> Result<Option<Ended>> {
        let completion = self
            .cq
            .poll_one()
            .map_err(stack("poll the completion queue"))?;
        let completion = match completion {
            None if may_wait && self.blocking => self
                .cq
                .wait(BLOCK_SLICE)
                .map_err(stack("wait for a completion"))?,
            other => other,
        };
        let Some(wc) = completion else {
            return Ok(None);
        };
        let outcome = self.qp.ended(&wc)?;
        let slot = narrow(wc.wr_id);
        self.free.push(slot);
        let asked = self.asked.get(slot).copied().unwrap_or_default();
        let (valid, holes) = match outcome {
            Outcome::Complete => (asked.length, 0),
            Outcome::Partial { holes } => (u64::from(wc.byte_len), holes),
        };
        if self.check && outcome == Outcome::Complete {
            self.verify(slot, &asked)?;
        }
        Ok(Some(Ended {
            asked,
            valid,
            holes,
        }))
    }

    fn verify(&self, slot: usize, asked: &Asked) -> Result<()> {
        let sink = self.sink.as_ref().ok_or_else(too_early)?;
        let start = slot * self.stride;
        let bytes = sink.buffer.to_vec(start, narrow(asked.length));
        // Octets of an earlier request must not pass for those of this one.
        sink.buffer.write(start, &vec![0; bytes.len()]);
        match self.op {
            Op::Read => pattern::verify_stream(&bytes, 0, &self.pattern),
            // Each adds one to what the one before it left there.
            _ => pattern::verify_stream(&bytes, 0, &asked.number.to_ne_bytes()),
        }
    }
}

/// Every message starts with the pattern's first byte, and there is one in each slot.
fn fill(memory: &Memory, size: u64) {
    let pattern = pattern::fill(narrow(size));
    let stride = narrow(stride(size));
    let slots = memory.buffer.len() / stride;
    for slot in 0..slots.min(narrow(MAX_REQUESTS)) {
        memory.buffer.write(slot * stride, &pattern);
    }
}

impl<Q: Requester> PingPong for Fetches<Q> {
    const LOSES: bool = Q::LOSES;

    fn send(&mut self, sequence: u64, watch: &mut Watch<'_>) -> Result<()> {
        while !self.post(widen(self.size), sequence)? {
            if watch.idle(false)? == Idle::Stop {
                break;
            }
            // The slot of a request that was given up comes back with its completion.
            self.take_ended(false)?;
        }
        Ok(())
    }

    /// On the server nothing completes: polling the completion queue answers requests at once, and one-sided copies need no answer.
    fn try_receive(&mut self) -> Result<Option<u64>> {
        if self.asleep {
            poll(&mut [], SLEEP).during("sleep")?;
            return Ok(None);
        }
        let Some(ended) = self.take_ended(true)? else {
            return Ok(None);
        };
        Ok((ended.valid == ended.asked.length).then_some(ended.asked.tag))
    }
}

impl<Q: Requester> Flow for Fetches<Q> {
    const LOSES: bool = Q::LOSES;

    fn start_round(&mut self, round: u16) -> Result<()> {
        self.round = u64::from(round);
        while self.take_ended(false)?.is_some() {}
        (self.ended, self.told) = (0, 0);
        self.counted = self.qp.datagrams();
        Ok(())
    }

    fn transmit(&mut self, _position: u64, length: u64) -> Result<u64> {
        let taken = self.post(length, self.round)?;
        Ok(if taken { length } else { 0 })
    }

    fn poll(&mut self, _want: Want, may_wait: bool) -> Result<Arrival> {
        if self.told < self.ended {
            self.told = self.ended;
            return Ok(Arrival::Credit(self.told));
        }
        let Some(ended) = self.take_ended(may_wait)? else {
            return Ok(Arrival::Nothing);
        };
        if ended.asked.tag != self.round {
            return Ok(Arrival::Other);
        }
        self.ended += ended.asked.length;
        Ok(Arrival::Data {
            bytes: ended.valid,
            end: Some(self.ended),
            record: Q::LOSES.then_some(RecordShape { holes: ended.holes }),
        })
    }

    /// The server needs none.
    fn credit(&mut self, _position: u64) -> Result<()> {
        Ok(())
    }

    fn datagrams(&mut self) -> Datagrams {
        let now = self.qp.datagrams();
        Datagrams {
            sent: now.sent - self.counted.sent,
            dropped: now.dropped - self.counted.dropped,
            refused: now.refused - self.counted.refused,
            ..Datagrams::default()
        }
    }
}
