//! Datagram iWARP: Send and RDMA Write-Record of an unreliable datagram queue pair.
//!
//! Each side has one queue pair. A Send carries a stamp in its payload, as raw datagrams do; a
//! Write-Record carries its number as immediate, and every message in flight has a slot of its
//! own in the target region. Credits are short Sends with an immediate, in the other direction.

mod flow;
mod list;
mod ping;

pub(super) use flow::holes;

use std::net::{IpAddr, SocketAddr};

use dgiwarp::{
    Access, Config, Destination, Fault, GroupInterface, Operation, Pd, PostError, QpAttr,
    QpCounters, RecvWr, Rnic, SendWr, UdQp, UdQpAttr, Wc, WcStatus,
};

use crate::catalog::{Mode, Op};
use crate::endpoint::members::Members;
use crate::endpoint::ours::completions::Completions;
use crate::endpoint::ours::memory::{ALIGN, Memory, stride};
use crate::endpoint::ours::{same_host, stack, too_early};
use crate::endpoint::pattern::{self, narrow, widen};
use crate::error::{PerfError, Result};
use crate::machine::host::{Side, Wait};
use crate::measure::Geometry;
use crate::session::control::{EndpointSpec, Offer, RemoteRegion};

/// Messages in flight, at most.
const MAX_SLOTS: usize = 4096;
/// Receives posted for credits: one comes per half window.
const CREDIT_RECEIVES: usize = 16;
/// Receives posted for ping-pong, where one message is under way. Few, so that they stay cached.
const PING_RECEIVES: usize = 4;
/// Send work requests that may wait for the network.
const SEND_SLOTS: usize = 512;
/// Room for messages in flight beside those that a window must always hold.
const ROOM: u64 = 4 << 20;
/// Overhead of a segment of a Write-Record: tagged header, extension, CRC.
const WRITE_RECORD_OVERHEAD: u64 = 14 + 24 + 4;

/// One side of a datagram iWARP endpoint.
#[derive(Debug)]
pub(crate) struct Ud {
    pd: Pd,
    completions: Completions,
    qp: UdQp,
    rnic: Rnic,
    op: Op,
    mode: Mode,
    check: bool,
    size: usize,
    peer: Option<Destination>,
    /// Messages of one call, and as many times the peer once that is more than one.
    list: usize,
    destinations: Vec<Destination>,
    /// The address of the group, and who receives there, where this side sends to one.
    group: Option<IpAddr>,
    members: Members,
    target: Option<RemoteRegion>,
    /// Where the peer's Write-Records go.
    exposed: Option<Memory>,
    /// Sources: one slot per message in flight, and a last one for credits. Write-Records carry no stamps, and all
    /// have the same source: it is no more in memory and no less in the cache than the one of raw sockets.
    outgoing: Option<Memory>,
    /// Slots for messages in it.
    sources: usize,
    /// Slots of posted receives.
    receives: Option<Memory>,
    receive_stride: usize,
    pattern: Vec<u8>,
    chunk: usize,
    /// Payload of one segment of a Write-Record.
    segment: u64,
    /// Distance of two messages in `outgoing` and at the target.
    stride: usize,
    slots: usize,
    /// A receive to post again once the answer is on its way.
    consumed: Option<u64>,
    round: u64,
    /// The highest message number seen in this round, plus one.
    highest: u64,
    /// Counters at the start of the round, and the last mark, shown when everything before it was.
    counted: Counted,
    seen: Seen,
    ending: Option<u64>,
}

/// Datagrams of this queue pair since it was made.
#[derive(Clone, Copy, Debug, Default)]
struct Counted {
    sent: u64,
    dropped: u64,
    refused: u64,
}

/// Counts of a round's datagrams on this side.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    marks: u64,
    valid: u64,
}

impl Ud {
    /// Counters of this side's queue pair.
    pub(crate) fn counters(&self) -> QpCounters {
        self.rnic.counters()
    }

    /// Opens this side's queue pair on `local`.
    pub(crate) fn open(spec: &EndpointSpec, local: IpAddr, side: Side) -> Result<(Self, Offer)> {
        let mut config = Config::default();
        config.same_host = same_host(spec);
        config.receive_buffer = spec.receive_buffer;
        config.max_mtu = spec.mtu;
        config.autocork = spec.autocork;
        if let Some(group) = spec.group {
            config.group_port = group.port;
        }
        // Without loss too: who decides of each datagram by itself takes its time.
        if spec.mode == Mode::Loss && side == Side::Server {
            config.fault = Some(Fault {
                drop: spec.loss,
                seed: spec.seed,
                ..Fault::default()
            });
        }
        let rnic = Rnic::open(config).map_err(stack("open the device"))?;
        let pd = rnic.alloc_pd();
        let cq = rnic
            .create_cq(2 * MAX_SLOTS + CREDIT_RECEIVES + SEND_SLOTS)
            .map_err(stack("create a completion queue"))?;
        let records = spec.subject.op == Op::WriteRecord;
        let attributes = UdQpAttr {
            bind: Some(SocketAddr::new(local, 0)),
            record_slots: if records { MAX_SLOTS } else { 0 },
            ..UdQpAttr::from(QpAttr {
                max_send_wr: SEND_SLOTS,
                max_recv_wr: 2 * MAX_SLOTS + CREDIT_RECEIVES,
                ..QpAttr::new(&cq, &cq)
            })
        };
        let qp = pd
            .create_ud_qp(&attributes)
            .map_err(stack("create a queue pair"))?;
        let group = spec.group.map(|group| IpAddr::V4(group.address));
        if let Some(group) = group
            && side == Side::Server
        {
            qp.attach_group(group, Some(GroupInterface::Address(local)))
                .map_err(stack("attach to a group"))?;
        }
        let granted = qp
            .receive_buffer()
            .map_err(stack("read the receive buffer's size"))?;
        let granted = widen(granted);
        let exposed = if records {
            let length = narrow(ROOM + 4 * spec.size.min(granted / 4));
            Some(Memory::new(
                &pd,
                length,
                Access::LOCAL_WRITE | Access::REMOTE_WRITE,
            )?)
        } else {
            None
        };
        let offer = Offer {
            ports: vec![qp.qpn()],
            receive_buffer: granted,
            region: exposed.as_ref().map(Memory::remote),
            ..Offer::default()
        };
        let ud = Self {
            pd,
            completions: Completions::new(cq, spec.wait == Wait::Block),
            qp,
            rnic,
            op: spec.subject.op,
            mode: spec.mode,
            check: spec.check,
            size: narrow(spec.size),
            peer: None,
            list: narrow(u64::from(spec.list.max(1))),
            destinations: Vec::new(),
            group: group.filter(|_| side == Side::Client),
            members: Members::default(),
            target: None,
            exposed,
            outgoing: None,
            sources: 0,
            receives: None,
            receive_stride: 0,
            pattern: Vec::new(),
            chunk: 0,
            segment: 0,
            stride: 0,
            slots: 0,
            consumed: None,
            round: 0,
            highest: 0,
            counted: Counted::default(),
            seen: Seen::default(),
            ending: None,
        };
        Ok((ud, offer))
    }

    /// Learns where the peer is.
    pub(crate) fn connect(&mut self, peer: IpAddr, offer: &Offer) -> Result<()> {
        let &[qpn] = offer.ports.as_slice() else {
            return Err(PerfError::Protocol("a queue pair has one port".to_owned()));
        };
        let ah = match self.group {
            None => self.pd.create_ah(peer),
            Some(group) => {
                self.members.add(qpn);
                let local = self.qp.local_addr().ip();
                self.pd.create_ah_from(group, 0, Some(local))
            }
        };
        let ah = ah.map_err(stack("create an address handle"))?;
        self.peer = Some(Destination { ah, qpn, qkey: 0 });
        self.target = offer.region;
        Ok(())
    }

    /// Cuts messages so that one is never more than the receiver's buffer holds, and so that two
    /// large ones can be in flight: a queue pair reports whole messages, not their segments.
    pub(crate) fn geometry(&self, granted: u64, window: Option<u64>) -> Result<Geometry> {
        let size = widen(self.size);
        let limit = if self.mode == Mode::Lat {
            granted / 4
        } else {
            granted / 8
        };
        let chunk = size.min(limit.max(1));
        let limit = self
            .peer
            .as_ref()
            .map_or(u64::MAX, |peer| u64::from(peer.ah.datagram_limit()));
        let payload = limit.saturating_sub(WRITE_RECORD_OVERHEAD).max(1);
        let mut geometry = Geometry::datagram(size, chunk, chunk.min(payload), granted, window);
        if window.is_none() {
            geometry.window = geometry.window.max((2 * chunk).min(granted / 4));
        }
        // One slot more than can be in flight, so that the latest arrival can be verified.
        let room = (ROOM + 4 * chunk) / stride(chunk);
        let slots = room.clamp(2, widen(MAX_SLOTS)) - 1;
        geometry.window = geometry.window.min(slots * chunk).max(chunk);
        geometry.chunk = chunk * widen(self.list);
        geometry.window = geometry.window.max(geometry.chunk);
        geometry.credit_every = (geometry.window / 2).max(chunk);
        Ok(geometry)
    }

    /// Prepares memory and posts receives for the agreed sizes.
    pub(crate) fn configure(&mut self, geometry: &Geometry) -> Result<()> {
        let chunk = geometry.chunk / widen(self.list);
        self.chunk = narrow(chunk);
        self.segment = geometry.segment;
        self.stride = narrow(stride(chunk));
        let in_flight = narrow(geometry.window.div_ceil(chunk.max(1)));
        self.slots = (in_flight + 1).min(MAX_SLOTS);
        let needed = widen(self.slots) * stride(chunk);
        if self.target.is_some_and(|target| target.length < needed) {
            return Err(PerfError::Protocol(format!(
                "impossible sizes {geometry:?}"
            )));
        }
        self.pattern = pattern::fill(self.chunk);
        self.sources = match self.op {
            Op::WriteRecord => 1,
            _ => self.slots,
        };
        let length = (self.sources + 1) * self.stride;
        let outgoing = Memory::new(&self.pd, length, Access::empty())?;
        for slot in 0..self.sources {
            outgoing.buffer.write(slot * self.stride, &self.pattern);
        }
        self.outgoing = Some(outgoing);

        // Write-Records consume no receives: only credits do. A Send in a stream finds one even
        // when a second window was sent before this side polled.
        let (count, stride) = match (self.op, self.mode) {
            (Op::WriteRecord, _) => (CREDIT_RECEIVES, narrow(ALIGN)),
            (_, Mode::Lat) => (PING_RECEIVES, self.stride),
            (_, Mode::Bw | Mode::Bibw | Mode::Rate | Mode::Loss | Mode::Fanout | Mode::Idle) => (
                2 * self.slots + CREDIT_RECEIVES.min(self.slots),
                self.stride,
            ),
        };
        self.receive_stride = stride;
        self.receives = Some(Memory::new(&self.pd, count * stride, Access::LOCAL_WRITE)?);
        for slot in 0..count {
            self.post_receive(widen(slot))?;
        }
        Ok(())
    }

    /// Posts the receive of this slot.
    fn post_receive(&self, slot: u64) -> Result<()> {
        let memory = self.receives.as_ref().ok_or_else(too_early)?;
        let start = narrow(slot) * self.receive_stride;
        let request = RecvWr {
            wr_id: slot,
            sges: &[memory.region.sge(start..start + self.receive_stride)],
        };
        self.qp
            .post_recv(&[request])
            .map_err(stack("post a receive"))
    }

    /// Posts one send work request; false if the queue is full.
    fn post(&mut self, operation: Operation, slot: usize, length: usize) -> Result<bool> {
        let memory = self.outgoing.as_ref().ok_or_else(too_early)?;
        let start = slot * self.stride;
        let sges = [memory.region.sge(start..start + length)];
        let request = SendWr {
            wr_id: 0,
            operation,
            // Lent: a clone and its end cost an atomic operation each.
            destination: self.peer.take().ok_or_else(too_early)?,
            sges: &sges,
            signaled: false,
            solicited: false,
        };
        let posted = self.qp.post_send(std::slice::from_ref(&request));
        self.peer = Some(request.destination);
        match posted {
            Ok(()) => Ok(true),
            Err(failure) if failure.source == PostError::QueueFull => Ok(false),
            Err(error) => Err(stack("post a send")(error)),
        }
    }

    /// The next completion, if there is one; with `wait`, within `BLOCK_SLICE`.
    fn completion(&mut self, wait: bool) -> Result<Option<Wc>> {
        match self.completions.next(wait)? {
            Some(wc) if wc.status != WcStatus::Success => Err(PerfError::Stack {
                what: "a work request",
                reason: format!("{} (error {})", wc.status, wc.vendor_error),
            }),
            other => Ok(other),
        }
    }
}
