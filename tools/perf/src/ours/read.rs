//! RDMA Read: the client fetches messages out of the server's memory.
//!
//! The server registers a region, and lets its queue pair answer. The client posts as many Reads as the
//! window holds; a completion is both the data and the credit for the next one.

use std::net::{IpAddr, SocketAddr};

use dgiwarp::{
    Access, Config, Cq, Destination, Fault, Operation, Pd, PostError, Rnic, SendWr, UdQp, UdQpAttr,
    Wc, WcStatus,
};

use crate::catalog::Mode;
use crate::control::{Datagrams, EndpointSpec, Offer, RemoteRegion};
use crate::error::{PerfError, Result};
use crate::host::{Side, Wait};
use crate::measure::{
    Arrival, BLOCK_SLICE, Flow, Geometry, Idle, PingPong, RecordShape, Want, Watch,
};
use crate::ours::memory::{Memory, stride};
use crate::ours::ud::holes;
use crate::ours::{stack, too_early};
use crate::pattern::{self, narrow, widen};

/// Reads outstanding, at most.
const MAX_READS: u64 = 64;
/// And at least, so that one is being served while another is asked for.
const MIN_READS: u64 = 4;
/// Octets that outstanding Reads ask for, if not fewer Reads than that: the queue pair itself asks for no more
/// at a time than its receive buffer holds.
const OUTSTANDING: u64 = 1 << 20;
/// The largest region that the server exposes beside one message.
const ROOM: u64 = 4 << 20;

/// One side of RDMA Reads.
#[derive(Debug)]
pub(crate) struct Reads {
    pd: Pd,
    cq: Cq,
    qp: UdQp,
    _rnic: Rnic,
    blocking: bool,
    check: bool,
    mode: Mode,
    size: usize,
    peer: Option<Destination>,
    target: Option<RemoteRegion>,
    /// What the peer reads.
    _exposed: Option<Memory>,
    /// Where Reads put what they fetch, one slot each.
    sink: Option<Memory>,
    free: Vec<usize>,
    /// What each slot waits for: octets, and the number of the ping or round that asked.
    asked: Vec<(u64, u64)>,
    pattern: Vec<u8>,
    stride: usize,
    round: u64,
    /// Octets of this round's Reads that ended, of which the sender was not told yet.
    ended: u64,
    told: u64,
    counted: Datagrams,
}

/// A Read that ended.
#[derive(Clone, Copy, Debug)]
struct Ended {
    /// What was asked for, in octets.
    length: u64,
    /// Who asked.
    tag: u64,
    /// How much of it is there.
    valid: u64,
    /// Gaps in that.
    holes: u64,
}

impl Reads {
    /// Opens this side's queue pair on `local`.
    pub(crate) fn open(spec: &EndpointSpec, local: IpAddr, side: Side) -> Result<(Self, Offer)> {
        let mut config = Config::default();
        config.receive_buffer = spec.receive_buffer;
        config.max_mtu = spec.mtu;
        // The data comes to the client.
        if spec.loss > 0.0 && side == Side::Client {
            config.fault = Some(Fault {
                drop: spec.loss,
                seed: spec.seed,
                ..Fault::default()
            });
        }
        let rnic = Rnic::open(config).map_err(stack("open the device"))?;
        let pd = rnic.alloc_pd();
        let entries = 2 * narrow(MAX_READS);
        let cq = rnic
            .create_cq(entries)
            .map_err(stack("create a completion queue"))?;
        let attributes = UdQpAttr {
            bind: Some(SocketAddr::new(local, 0)),
            max_send_wr: entries,
            max_recv_wr: 1,
            ..UdQpAttr::new(&cq, &cq)
        };
        let qp = pd
            .create_ud_qp(&attributes)
            .map_err(stack("create a queue pair"))?;
        let granted = qp
            .receive_buffer()
            .map_err(stack("read the receive buffer's size"))?;
        let exposed = match side {
            Side::Client => None,
            Side::Server => {
                let memory =
                    Memory::new(&pd, narrow(ROOM + stride(spec.size)), Access::REMOTE_READ)?;
                // Every message starts with the pattern's first byte, and there is one in each slot.
                let pattern = pattern::fill(narrow(spec.size));
                let slots = memory.buffer.len() / narrow(stride(spec.size));
                for slot in 0..slots.min(narrow(MAX_READS)) {
                    memory
                        .buffer
                        .write(slot * narrow(stride(spec.size)), &pattern);
                }
                Some(memory)
            }
        };
        let offer = Offer {
            ports: vec![qp.qpn()],
            receive_buffer: widen(granted),
            region: exposed.as_ref().map(Memory::remote),
            qkey: None,
        };
        let reads = Self {
            pd,
            cq,
            qp,
            _rnic: rnic,
            blocking: spec.wait == Wait::Block,
            check: spec.check,
            mode: spec.mode,
            size: narrow(spec.size),
            peer: None,
            target: None,
            _exposed: exposed,
            sink: None,
            free: Vec::new(),
            asked: Vec::new(),
            pattern: Vec::new(),
            stride: narrow(stride(spec.size)),
            round: 0,
            ended: 0,
            told: 0,
            counted: Datagrams::default(),
        };
        Ok((reads, offer))
    }

    /// Learns where the peer is.
    pub(crate) fn connect(&mut self, peer: IpAddr, offer: &Offer) -> Result<()> {
        let &[qpn] = offer.ports.as_slice() else {
            return Err(PerfError::Protocol("a queue pair has one port".to_owned()));
        };
        let ah = self
            .pd
            .create_ah(peer)
            .map_err(stack("create an address handle"))?;
        self.peer = Some(Destination { ah, qpn, qkey: 0 });
        self.target = offer.region;
        Ok(())
    }

    /// A Read fetches a whole message; the window is how many of them are outstanding.
    pub(crate) fn geometry(&self, window: Option<u64>) -> Geometry {
        let size = widen(self.size);
        let reads = window.unwrap_or(OUTSTANDING) / size;
        let reads = if window.is_none() && self.mode != Mode::Lat {
            reads.max(MIN_READS)
        } else {
            reads
        };
        let room = (ROOM + stride(size)) / stride(size);
        let window = size * reads.clamp(1, MAX_READS.min(room));
        Geometry {
            size,
            chunk: size,
            segment: size,
            window,
            credit_every: size,
        }
    }

    /// Prepares the slots that Reads fill.
    pub(crate) fn configure(&mut self, geometry: &Geometry) -> Result<()> {
        let slots = narrow(geometry.window / geometry.size.max(1));
        if let Some(target) = self.target {
            if !(1..=narrow(MAX_READS)).contains(&slots)
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
            self.asked = vec![(0, 0); slots];
            self.pattern = pattern::fill(self.size);
        }
        Ok(())
    }

    /// Posts one Read of `length` octets that `tag` tells from others; false if there is no room.
    fn post(&mut self, length: u64, tag: u64) -> Result<bool> {
        let target = self.target.ok_or_else(too_early)?;
        let sink = self.sink.as_ref().ok_or_else(too_early)?;
        let Some(&slot) = self.free.last() else {
            return Ok(false);
        };
        let start = slot * self.stride;
        let sges = [sink.region.sge(start..start + narrow(length))];
        let request = SendWr {
            wr_id: widen(slot),
            operation: Operation::Read {
                rkey: target.stag,
                remote_addr: target.base + widen(start),
                timeout: None,
            },
            // Lent: a clone and its end cost an atomic operation each.
            destination: self.peer.take().ok_or_else(too_early)?,
            sges: &sges,
            signaled: true,
            solicited: false,
        };
        let posted = self.qp.post_send(std::slice::from_ref(&request));
        self.peer = Some(request.destination);
        match posted {
            Ok(()) => {
                self.free.pop();
                if let Some(asked) = self.asked.get_mut(slot) {
                    *asked = (length, tag);
                }
                Ok(true)
            }
            Err(failure) if failure.source == PostError::QueueFull => Ok(false),
            Err(error) => Err(stack("post a Read")(error)),
        }
    }

    /// The next Read that ended.
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
        let holes = match wc.status {
            WcStatus::Success => {
                self.verify(&wc)?;
                0
            }
            // Its time was over: what came is there.
            WcStatus::ResponseTimeout => {
                let map = self.qp.take_read_map(wc.wr_id);
                map.map_or(0, |map| holes(&map.ranges, map.length))
            }
            status => {
                return Err(PerfError::Stack {
                    what: "a Read",
                    reason: format!("{status} (error {})", wc.vendor_error),
                });
            }
        };
        let slot = narrow(wc.wr_id);
        self.free.push(slot);
        let (length, tag) = self.asked.get(slot).copied().unwrap_or((0, 0));
        Ok(Some(Ended {
            length,
            tag,
            valid: u64::from(wc.byte_len),
            holes,
        }))
    }

    fn verify(&self, wc: &Wc) -> Result<()> {
        if !self.check {
            return Ok(());
        }
        let sink = self.sink.as_ref().ok_or_else(too_early)?;
        let start = narrow(wc.wr_id) * self.stride;
        let bytes = sink.buffer.to_vec(start, narrow(u64::from(wc.byte_len)));
        // What an earlier Read left must not pass for what this one fetched.
        sink.buffer.write(start, &vec![0; bytes.len()]);
        pattern::verify_stream(&bytes, 0, &self.pattern)
    }

    fn counters(&self) -> Datagrams {
        let counters = self.qp.counters();
        Datagrams {
            sent: counters.segments_sent,
            dropped: counters.fault_dropped,
            refused: counters.dropped_in_all(),
            ..Datagrams::default()
        }
    }
}

impl PingPong for Reads {
    const LOSES: bool = true;

    fn send(&mut self, sequence: u64, watch: &mut Watch<'_>) -> Result<()> {
        while !self.post(widen(self.size), sequence)? {
            if watch.idle(false)? == Idle::Stop {
                break;
            }
            // The slot of a Read that was given up comes back with its completion.
            self.take_ended(false)?;
        }
        Ok(())
    }

    /// On the server nothing completes: looking for completions is what answers requests at once.
    fn try_receive(&mut self) -> Result<Option<u64>> {
        let Some(read) = self.take_ended(true)? else {
            return Ok(None);
        };
        Ok((read.valid == read.length).then_some(read.tag))
    }
}

impl Flow for Reads {
    const LOSES: bool = true;

    fn start_round(&mut self, round: u16) -> Result<()> {
        self.round = u64::from(round);
        while self.take_ended(false)?.is_some() {}
        (self.ended, self.told) = (0, 0);
        self.counted = self.counters();
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
        let Some(read) = self.take_ended(may_wait)? else {
            return Ok(Arrival::Nothing);
        };
        if read.tag != self.round {
            return Ok(Arrival::Other);
        }
        self.ended += read.length;
        Ok(Arrival::Data {
            bytes: read.valid,
            end: Some(self.ended),
            record: Some(RecordShape { holes: read.holes }),
        })
    }

    /// The server needs none.
    fn credit(&mut self, _position: u64) -> Result<()> {
        Ok(())
    }

    fn datagrams(&mut self) -> Datagrams {
        let now = self.counters();
        Datagrams {
            sent: now.sent - self.counted.sent,
            dropped: now.dropped - self.counted.dropped,
            refused: now.refused - self.counted.refused,
            ..Datagrams::default()
        }
    }
}
