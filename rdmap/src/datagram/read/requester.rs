//! Requesting half of RDMA Read (§7.1).

mod chunk;
mod inbound;
mod outbound;
mod timers;

use std::collections::VecDeque;
use std::hash::Hash;
use std::time::{Duration, Instant};

use dgiwarp_codec::{Payload, PayloadSlice};
use dgiwarp_ddp::{Msn, RangeMap, STag, TaggedOffset};
use rustc_hash::FxHashMap;
use slab::Slab;

use super::amplification::max_unvalidated_read;
use super::segment::Short;
use super::targets::{MAX_OPEN, ReadKey, TargetId, Targets};
use crate::datagram::{Cookie, PlaceFailed, Secret};
use crate::wire::Cause;
use chunk::Chunks;

/// Settings of a [`Requester`].
#[derive(Debug, Clone, Copy)]
pub struct RequesterConfig {
    /// Our epoch.
    pub epoch: u32,
    /// Key of sink STags and nonces.
    pub secret: Secret,
    /// The first MSN of queue 1, a random number.
    pub msn: u32,
    /// Octets that the lower layer adds to each segment.
    pub overhead: usize,
}

/// Limits of requested octets that have not arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Octets.
    pub octets: u32,
    /// Datagrams.
    pub datagrams: u32,
}

impl Limits {
    /// Most octets in flight whatever the receive buffer.
    const MAX_OCTETS: usize = 256 << 10;

    /// Limits of §8 for a granted receive buffer of this many octets.
    #[must_use]
    pub fn of_receive_buffer(granted: usize) -> Self {
        let octets = (granted / 4).clamp(1, Self::MAX_OCTETS);
        Self {
            octets: u32::try_from(octets).unwrap_or(u32::MAX),
            datagrams: u32::try_from((granted / 1024).max(1)).unwrap_or(u32::MAX),
        }
    }

    /// Octets of a chunk: a quarter of the window, in whole segments where it has room for one.
    fn chunk(self, segment: u32) -> u32 {
        let quarter = (self.octets / 4).max(1);
        if quarter > segment {
            quarter - quarter % segment
        } else {
            quarter
        }
    }
}

/// A Read to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadWork<K, V> {
    /// Peer to read from.
    pub peer: K,
    /// Local address of the requests.
    pub via: V,
    /// Names the buffer that is read.
    pub source_stag: STag,
    /// TO of the first octet.
    pub source_offset: TaggedOffset,
    /// Octets, 0 to 2^30.
    pub length: u32,
    /// Expected octets of payload in a response segment, at least 1.
    pub segment: u32,
    /// Time at which the Read ends at the latest.
    pub deadline: Instant,
}

/// End of a Read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadEnd {
    /// Every octet is placed.
    Complete,
    /// The deadline has passed; the errno is the latest ICMP error of the peer, if there is one.
    TimedOut(Option<i32>),
    /// The peer refused the Read.
    Refused(Cause),
    /// The sink memory is not registered any more.
    LocalProtection,
    /// The QP was flushed.
    Flushed,
}

/// Memory and completions behind the requester. `R` is the caller's state of a Read.
pub trait ReadSink<R> {
    /// Memory that received payload lies in.
    type Payload: Payload + ?Sized;

    /// Places octets at `offset` of a Read's message.
    ///
    /// # Errors
    /// [`PlaceFailed`]: the memory is not registered any more.
    fn place_read(
        &mut self,
        read: &R,
        offset: u32,
        payload: PayloadSlice<'_, Self::Payload>,
    ) -> Result<(), PlaceFailed>;

    /// Completes a Read. `map` is its validity map; the memory of the map is used again.
    fn finish(&mut self, read: R, end: ReadEnd, map: &mut RangeMap);
}

/// A segment to be sent, without its CRC.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outgoing<K, V> {
    /// Peer that it is sent to.
    pub peer: K,
    /// Local address that it is sent from.
    pub via: V,
    /// Octets.
    pub segment: Short,
}

/// Counters of the requester.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Counts {
    pub(super) requests: u64,
    pub(super) repeats: u64,
    pub(super) timed_out: u64,
}

/// An outstanding Read.
#[derive(Debug)]
struct Read<R> {
    token: R,
    /// Number of the Read among all posted.
    posted: u64,
    target: TargetId,
    sink_stag: u32,
    source_stag: STag,
    source_offset: TaggedOffset,
    length: u32,
    segment: u32,
    deadline: Instant,
    map: RangeMap,
    chunks: Chunks,
    /// Message offset up to which octets were requested.
    next: u32,
    asked_all: bool,
    /// The Read is in the ready queue of its target.
    is_ready: bool,
    /// The Read, or a chunk to be repeated, waits for the target's cookie.
    waits: bool,
    last_arrival: Option<Instant>,
}

/// The requesting half of a datagram QP's Reads. `K` is the address of a peer, `V` an address of ours, `R` the
/// caller's state of a Read.
#[derive(Debug)]
pub struct Requester<K, V, R> {
    config: RequesterConfig,
    limits: Limits,
    /// Octets of the longest Read that needs no cookie.
    max_unvalidated: u32,
    reads: Slab<Read<R>>,
    by_stag: FxHashMap<u32, usize>,
    targets: Targets<K, V>,
    /// Targets with ready Reads, in round robin.
    round: VecDeque<TargetId>,
    /// Chunks to be repeated: the Read and the chunk's start.
    repeats: VecDeque<(ReadKey, u32)>,
    /// Requests that were made together and are not polled yet.
    queued: VecDeque<Outgoing<K, V>>,
    /// A cookie request is due.
    exchange_wanted: bool,
    octets_in_flight: u32,
    datagrams_in_flight: u32,
    /// The window is full; requests go on when half of it is free, several at a time, which wakes the target less often.
    is_full: bool,
    msn: Msn,
    drawn: u64,
    submitted: u64,
    /// Number of requests so far, by which they are ordered.
    serial: u64,
    maps: Vec<RangeMap>,
    /// Lower bound of all timers: it may be early, never late.
    timeout: Option<Instant>,
    counts: Counts,
}

impl<K: Copy + Eq + Hash, V: Copy + Eq + Hash, R> Requester<K, V, R> {
    /// A requester without Reads.
    #[must_use]
    pub fn new(config: RequesterConfig, limits: Limits) -> Self {
        Self {
            limits,
            max_unvalidated: max_unvalidated_read(config.overhead),
            reads: Slab::new(),
            by_stag: FxHashMap::default(),
            targets: Targets::new(),
            round: VecDeque::new(),
            repeats: VecDeque::new(),
            queued: VecDeque::new(),
            exchange_wanted: false,
            octets_in_flight: 0,
            datagrams_in_flight: 0,
            is_full: false,
            msn: Msn::new(config.msn),
            drawn: 0,
            submitted: 0,
            serial: 0,
            maps: Vec::new(),
            timeout: None,
            counts: Counts::default(),
            config,
        }
    }

    /// Starts a Read.
    pub fn submit(&mut self, now: Instant, work: ReadWork<K, V>, token: R) {
        let target = self.targets.find_or_add(work.peer, work.via);
        self.targets.get_mut(target).reads += 1;
        let sink_stag = self.draw_stag();
        self.submitted += 1;
        let slot = self.reads.insert(Read {
            token,
            posted: self.submitted,
            target,
            sink_stag,
            source_stag: work.source_stag,
            source_offset: work.source_offset,
            length: work.length,
            segment: work.segment.max(1),
            deadline: work.deadline,
            map: self.maps.pop().unwrap_or_default(),
            chunks: Chunks::new(),
            next: 0,
            asked_all: false,
            is_ready: false,
            waits: false,
            last_arrival: None,
        });
        self.by_stag.insert(sink_stag, slot);
        self.wake_by(work.deadline);
        let needs_cookie = work.length > self.max_unvalidated;
        if needs_cookie && self.targets.get(target).cookie.is_none() {
            self.reads[slot].waits = true;
            self.want_cookie(now, target);
        } else {
            self.make_ready(ReadKey { slot, sink_stag });
        }
    }

    /// Requests a new cookie from a target, until it arrives or [`stop_asking`](Self::stop_asking).
    pub fn ask_for_cookie(&mut self, now: Instant, peer: K, via: V) {
        let id = self.targets.find_or_add(peer, via);
        self.targets.get_mut(id).cookie = None;
        self.want_cookie(now, id);
    }

    /// The cookie of a target, if there is one.
    #[must_use]
    pub fn cookie(&mut self, peer: K, via: V) -> Option<Cookie> {
        let id = self.targets.find_or_add(peer, via);
        self.targets.get(id).cookie
    }

    /// Stops the requests for a cookie that no Read needs.
    pub fn stop_asking(&mut self, peer: K, via: V) {
        let id = self.targets.find_or_add(peer, via);
        let target = self.targets.get_mut(id);
        if target.reads == 0 {
            target.exchange = None;
        }
    }

    /// A sink STag that names no outstanding Read.
    fn draw_stag(&mut self) -> u32 {
        loop {
            self.drawn += 1;
            let stag = self.config.secret.sink_stag(self.drawn);
            if !self.by_stag.contains_key(&stag) {
                return stag;
            }
        }
    }

    fn read(&self, key: ReadKey) -> Option<&Read<R>> {
        let read = self.reads.get(key.slot)?;
        (read.sink_stag == key.sink_stag).then_some(read)
    }

    fn read_mut(&mut self, key: ReadKey) -> Option<&mut Read<R>> {
        let read = self.reads.get_mut(key.slot)?;
        (read.sink_stag == key.sink_stag).then_some(read)
    }

    /// The Read with this sink STag, if it is from this peer.
    fn find(&self, from: K, stag: STag) -> Option<ReadKey> {
        let slot = *self.by_stag.get(&stag.get())?;
        let read = self.reads.get(slot)?;
        (self.targets.get(read.target).peer == from).then_some(ReadKey {
            slot,
            sink_stag: stag.get(),
        })
    }

    /// Adds a Read to the ready queue of its target.
    fn make_ready(&mut self, key: ReadKey) {
        let Some(read) = self.read_mut(key) else {
            return;
        };
        if read.is_ready || read.asked_all {
            return;
        }
        read.is_ready = true;
        let target = read.target;
        self.targets.get_mut(target).ready.push_back(key);
        self.enter_round(target);
    }

    fn enter_round(&mut self, id: TargetId) {
        let target = self.targets.get_mut(id);
        target.is_full &= target.open > MAX_OPEN / 2;
        if !target.in_round && !target.is_full && !target.ready.is_empty() {
            target.in_round = true;
            self.round.push_back(id);
        }
    }

    fn want_cookie(&mut self, now: Instant, target: TargetId) {
        let target = self.targets.get_mut(target);
        target.want_cookie(now);
        let Some(exchange) = &target.exchange else {
            return;
        };
        self.exchange_wanted |= exchange.wanted;
        let due = exchange.due;
        self.wake_by(due);
    }

    /// Ends a Read.
    fn finish(&mut self, key: ReadKey, end: ReadEnd, sink: &mut impl ReadSink<R>) {
        if self.read(key).is_none() {
            return;
        }
        let mut read = self.reads.remove(key.slot);
        self.by_stag.remove(&read.sink_stag);
        for chunk in &read.chunks {
            self.octets_in_flight -= chunk.missing;
            self.datagrams_in_flight -= chunk.datagrams;
        }
        let open: u32 = read.chunks.iter().map(|chunk| chunk.requests).sum();
        let target = self.targets.get_mut(read.target);
        target.open -= open;
        target.reads -= 1;
        if target.reads == 0 {
            target.rest();
        }
        self.enter_round(read.target);
        if matches!(end, ReadEnd::TimedOut(_)) {
            self.counts.timed_out += 1;
        }
        sink.finish(read.token, end, &mut read.map);
        read.map.clear();
        self.maps.push(read.map);
    }

    /// Ends all Reads with [`ReadEnd::Flushed`], in posting order, for the destruction of the QP.
    pub fn flush(&mut self, sink: &mut impl ReadSink<R>) {
        let mut order: Vec<_> = self
            .reads
            .iter()
            .map(|(slot, read)| (read.posted, slot, read.sink_stag))
            .collect();
        order.sort_unstable();
        for (_, slot, sink_stag) in order {
            self.finish(ReadKey { slot, sink_stag }, ReadEnd::Flushed, sink);
        }
        self.repeats.clear();
        self.queued.clear();
    }

    /// Notes an ICMP error of a peer, for Reads from there that time out.
    pub fn note_error(&mut self, peer: K, errno: i32) {
        for (_, target) in self.targets.iter_mut() {
            if target.peer == peer {
                target.errno = Some(errno);
            }
        }
    }

    /// Whether no Read is outstanding.
    #[must_use]
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.reads.is_empty()
    }

    /// Requests sent so far, repetitions among them, and Reads that timed out.
    #[must_use]
    pub fn counts(&self) -> (u64, u64, u64) {
        let Counts {
            requests,
            repeats,
            timed_out,
        } = self.counts;
        (requests, repeats, timed_out)
    }

    /// Requested octets that have not arrived.
    #[must_use]
    pub fn octets_in_flight(&self) -> u32 {
        self.octets_in_flight
    }

    fn wake_by(&mut self, at: Instant) {
        self.timeout = Some(self.timeout.map_or(at, |timeout| timeout.min(at)));
    }

    /// Time at which [`handle_timeout`](Self::handle_timeout) is to be called.
    #[must_use]
    #[inline]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.timeout
    }
}

/// Largest factor of the exponential back-off of repetitions, as a power of two.
const MAX_BACK_OFF: u32 = 3;

fn back_off(patience: Duration, fruitless: u32) -> Duration {
    patience * (1 << fruitless.min(MAX_BACK_OFF))
}
