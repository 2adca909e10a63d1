//! Requesting half of RDMA Read (§7.1).

mod ask;
mod chunk;
mod inbound;
mod outbound;
mod target;
mod timers;
mod window;

use std::collections::VecDeque;
use std::hash::Hash;
use std::time::Instant;

use dgiwarp_codec::{Payload, PayloadSlice};
use dgiwarp_ddp::{Msn, RangeMap, STag, TaggedOffset};
use rustc_hash::FxHashMap;
use slab::Slab;

use super::amplification::max_unvalidated_read;
use super::segment::Outgoing;
use crate::datagram::{Associations, HandshakeId, PlaceFailed, Secret};
use crate::wire::Cause;
use chunk::Chunks;
use target::{MAX_OPEN, ReadKey, Target};
pub use window::Limits;
use window::Window;

/// Settings of a [`Requester`].
#[derive(Debug, Clone, Copy)]
pub struct RequesterConfig {
    /// Key of sink STags.
    pub secret: Secret,
    /// The first MSN of queue 1, a random number.
    pub msn: u32,
    /// Octets that the lower layer adds to each segment.
    pub overhead: usize,
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
    target: HandshakeId,
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
    /// The Read waits for the target's cookie.
    waits: bool,
}

/// The requesting half of a datagram QP's Reads. `K` is the address of a peer, `V` an address of ours, `R` the
/// caller's state of a Read.
#[derive(Debug)]
pub struct Requester<K, V, R> {
    config: RequesterConfig,
    window: Window,
    /// Octets of the longest Read that needs no cookie.
    max_unvalidated: u32,
    reads: Slab<Read<R>>,
    by_stag: FxHashMap<u32, usize>,
    /// Targets, at the places of their handshakes.
    targets: Vec<Target>,
    /// Targets with ready Reads, in round robin.
    round: VecDeque<HandshakeId>,
    /// Targets with lost ranges and places for requests, in round robin.
    repeats: VecDeque<HandshakeId>,
    /// Requests that were made together and are not polled yet.
    queued: VecDeque<Outgoing<K, V>>,
    msn: Msn,
    drawn: u64,
    submitted: u64,
    maps: Vec<RangeMap>,
    counts: Counts,
}

impl<K: Copy + Eq + Hash, V: Copy + Eq, R> Requester<K, V, R> {
    /// A requester without Reads.
    #[must_use]
    pub fn new(config: RequesterConfig, limits: Limits) -> Self {
        Self {
            window: Window::new(limits),
            max_unvalidated: max_unvalidated_read(config.overhead),
            reads: Slab::new(),
            by_stag: FxHashMap::default(),
            targets: Vec::new(),
            round: VecDeque::new(),
            repeats: VecDeque::new(),
            queued: VecDeque::new(),
            msn: Msn::new(config.msn),
            drawn: 0,
            submitted: 0,
            maps: Vec::new(),
            counts: Counts::default(),
            config,
        }
    }

    /// Starts a Read.
    pub fn submit(
        &mut self,
        now: Instant,
        work: ReadWork<K, V>,
        token: R,
        associations: &mut Associations<K, V>,
    ) {
        let target = associations.hold(work.peer, work.via);
        if self.targets.len() <= target.0 {
            self.targets.resize_with(target.0 + 1, Target::default);
        }
        let target_state = &mut self.targets[target.0];
        if target_state.asks.is_empty() && target_state.lost.is_empty() {
            // Of an earlier peer, or of long ago.
            (target_state.fruitless, target_state.probed) = (0, None);
        }
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
        });
        self.by_stag.insert(sink_stag, slot);
        associations.wake_by(work.deadline);
        let needs_cookie = work.length > self.max_unvalidated;
        if needs_cookie && associations.validate(now, target).is_none() {
            self.reads[slot].waits = true;
        } else {
            self.make_ready(ReadKey { slot, sink_stag });
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
    fn find(&self, from: K, stag: STag, associations: &Associations<K, V>) -> Option<ReadKey> {
        let slot = *self.by_stag.get(&stag.get())?;
        let read = self.reads.get(slot)?;
        (associations.handshake(read.target).peer == from).then_some(ReadKey {
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
        self.targets[target.0].ready.push_back(key);
        self.enter_round(target);
    }

    fn enter_round(&mut self, id: HandshakeId) {
        let target = &mut self.targets[id.0];
        target.is_full &= target.asks.len() > MAX_OPEN / 2;
        if !target.in_round && !target.is_full && !target.ready.is_empty() {
            target.in_round = true;
            self.round.push_back(id);
        }
    }

    /// Adds a target with lost ranges and a place for a request to those that repeat.
    fn enter_repeats(&mut self, id: HandshakeId) {
        let target = &mut self.targets[id.0];
        if !target.in_repeats && !target.lost.is_empty() && target.has_place() {
            target.in_repeats = true;
            self.repeats.push_back(id);
        }
    }

    /// Requests of a target are answered whole, or given up.
    fn places_freed(&mut self, id: HandshakeId) {
        self.enter_repeats(id);
        self.enter_round(id);
    }

    /// Ends a Read.
    fn finish(
        &mut self,
        key: ReadKey,
        end: ReadEnd,
        sink: &mut impl ReadSink<R>,
        associations: &mut Associations<K, V>,
    ) {
        if self.read(key).is_none() {
            return;
        }
        let mut read = self.reads.remove(key.slot);
        self.by_stag.remove(&read.sink_stag);
        for chunk in &read.chunks {
            self.window.arrived((chunk.missing, chunk.datagrams));
        }
        let target = &mut self.targets[read.target.0];
        target.asks.retain(|ask| ask.key != key);
        target.lost.retain(|lost| lost.key != key);
        associations.release(read.target);
        self.places_freed(read.target);
        if matches!(end, ReadEnd::TimedOut(_)) {
            self.counts.timed_out += 1;
        }
        sink.finish(read.token, end, &mut read.map);
        read.map.clear();
        self.maps.push(read.map);
    }

    /// Ends all Reads with [`ReadEnd::Flushed`], in posting order, for the destruction of the QP.
    pub fn flush(&mut self, sink: &mut impl ReadSink<R>, associations: &mut Associations<K, V>) {
        let mut order: Vec<_> = self
            .reads
            .iter()
            .map(|(slot, read)| (read.posted, slot, read.sink_stag))
            .collect();
        order.sort_unstable();
        for (_, slot, sink_stag) in order {
            let key = ReadKey { slot, sink_stag };
            self.finish(key, ReadEnd::Flushed, sink, associations);
        }
        self.queued.clear();
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

    /// Requests and lost ranges that are kept.
    #[cfg(test)]
    pub(super) fn kept(&self) -> usize {
        let targets = self.targets.iter();
        targets.map(|it| it.asks.len() + it.lost.len()).sum()
    }

    /// Requested octets that have not arrived.
    #[must_use]
    pub fn octets_in_flight(&self) -> u32 {
        self.window.octets_in_flight
    }
}
