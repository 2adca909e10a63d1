//! Segments that a requester sends: requests for lost ranges, first requests of chunks.

use std::hash::Hash;
use std::time::Instant;

use dgiwarp_ddp::TaggedOffset;

use super::ask::Ask;
use super::chunk::{Chunk, gaps};
use super::target::{Lost, MAX_OPEN, ReadKey};
use super::{Read, Requester};
use crate::datagram::read::segment::{Outgoing, emit_request};
use crate::datagram::{Associations, HandshakeId};
use crate::wire::ReadRequest;

/// Reason for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The octets were not requested before.
    First,
    /// They are lost.
    Repeat,
    /// Nothing has come for a while.
    Probe,
}

impl<R> Read<R> {
    /// The request for a range of the message. The sink offset is the offset in the message.
    fn request(&self, start: u32, end: u32) -> Option<ReadRequest> {
        ReadRequest {
            sink_stag: dgiwarp_ddp::STag::new(self.sink_stag),
            sink_offset: TaggedOffset::new(0),
            size: self.length,
            source_stag: self.source_stag,
            source_offset: self.source_offset,
        }
        .after(start)
        .map(|request| ReadRequest {
            size: end - start,
            ..request
        })
    }
}

impl<K: Copy + Eq + Hash, V: Copy + Eq, R> Requester<K, V, R> {
    /// Whether [`poll_transmit`](Self::poll_transmit) may have something.
    #[must_use]
    #[inline]
    pub fn has_transmit(&self) -> bool {
        !self.queued.is_empty()
            || !self.repeats.is_empty()
            || (self.window.is_open() && !self.round.is_empty())
    }

    /// The next request, which counts as sent now. A cookie request that is due goes before new requests, which may need the cookie.
    pub fn poll_transmit(
        &mut self,
        now: Instant,
        associations: &mut Associations<K, V>,
    ) -> Option<Outgoing<K, V>> {
        self.queued
            .pop_front()
            .or_else(|| associations.poll_transmit(now))
            .or_else(|| self.next_repeat(now, associations))
            .or_else(|| self.next_chunk(now, associations))
    }

    /// Requests lost ranges again, of one target after the other.
    fn next_repeat(
        &mut self,
        now: Instant,
        associations: &mut Associations<K, V>,
    ) -> Option<Outgoing<K, V>> {
        while let Some(id) = self.repeats.pop_front() {
            self.targets[id.0].in_repeats = false;
            self.repeat(now, id, associations);
            if !self.queued.is_empty() {
                return self.queued.pop_front();
            }
        }
        None
    }

    /// Requests the missing octets of the first lost range of a target, as far as it has places.
    fn repeat(&mut self, now: Instant, id: HandshakeId, associations: &mut Associations<K, V>) {
        let target = &mut self.targets[id.0];
        let places = MAX_OPEN.saturating_sub(target.asks.len());
        if places == 0 {
            return;
        }
        let has_cookie = associations.handshake(id).cookie.is_some();
        let may_ask = |lost: &Lost| {
            let read = self.reads.get(lost.key.slot);
            has_cookie || read.is_none_or(|read| read.length <= self.max_unvalidated)
        };
        let Some(position) = target.lost.iter().position(may_ask) else {
            if !target.lost.is_empty() {
                // The answer lets the target go on.
                associations.validate(now, id);
            }
            return;
        };
        let Some(Lost { key, start, end }) = target.lost.remove(position) else {
            return;
        };
        if let Some(read) = self.read(key) {
            let mut missing = gaps(&read.map, start, end, places);
            if read.length == 0 {
                missing.push((0, 0));
            }
            for (from, to) in missing {
                self.counts.repeats += 1;
                self.ask(now, key, (from, to), Kind::Repeat, associations);
            }
        }
        self.enter_repeats(id);
    }

    /// Requests octets of which nothing was heard, before they count as lost.
    pub(super) fn send_probe(
        &mut self,
        now: Instant,
        id: HandshakeId,
        lost: Lost,
        associations: &mut Associations<K, V>,
    ) {
        if self.targets[id.0].has_place() {
            self.counts.repeats += 1;
            self.ask(
                now,
                lost.key,
                (lost.start, lost.end),
                Kind::Probe,
                associations,
            );
        }
    }

    /// Queues the request for a range.
    fn ask(
        &mut self,
        now: Instant,
        key: ReadKey,
        (start, end): (u32, u32),
        kind: Kind,
        associations: &mut Associations<K, V>,
    ) {
        let msn = self.msn;
        let Some(read) = self.read(key) else {
            return;
        };
        let id = read.target;
        let handshake = associations.handshake(id);
        let Some(request) = read.request(start, end) else {
            return;
        };
        let outgoing = Outgoing {
            peer: handshake.peer,
            via: handshake.via,
            segment: emit_request(&request, associations.epoch(), handshake.cookie, msn),
        };
        let ask = Ask {
            key,
            start,
            end,
            at: now,
            front: start,
            reached: start,
            evidence: 0,
            validated: handshake.cookie.is_some(),
            repeated: kind != Kind::First,
            is_probe: kind == Kind::Probe,
            answered: false,
            is_over: false,
        };
        self.msn = msn.next();
        self.counts.requests += 1;
        self.queued.push_back(outgoing);
        self.targets[id.0].asks.push(ask);
        if let Some(due) = self.due(id, associations) {
            associations.wake_by(due);
        }
    }

    fn next_chunk(
        &mut self,
        now: Instant,
        associations: &mut Associations<K, V>,
    ) -> Option<Outgoing<K, V>> {
        if !self.window.is_open() {
            return None;
        }
        while let Some(&id) = self.round.front() {
            let target = &mut self.targets[id.0];
            let Some(&key) = target.ready.front() else {
                self.leave_round(id);
                continue;
            };
            if !target.has_place() {
                target.is_full = true;
                self.leave_round(id);
                continue;
            }
            if !self.can_ask(now, id, key, associations) {
                self.unready(id, key);
                continue;
            }
            let size = self.read(key).map(|read| self.next_size(read));
            if !size.is_some_and(|size| self.window.has_room(size)) {
                return None;
            }
            self.ask_next(now, id, key, associations);
            return self.queued.pop_front();
        }
        None
    }

    fn leave_round(&mut self, id: HandshakeId) {
        self.round.pop_front();
        self.targets[id.0].in_round = false;
    }

    /// Removes the first Read from the ready queue of its target.
    fn unready(&mut self, id: HandshakeId, key: ReadKey) {
        self.targets[id.0].ready.pop_front();
        if let Some(read) = self.read_mut(key) {
            read.is_ready = false;
        }
    }

    /// Whether the next octets of a Read may be requested, apart from the window.
    fn can_ask(
        &mut self,
        now: Instant,
        id: HandshakeId,
        key: ReadKey,
        associations: &mut Associations<K, V>,
    ) -> bool {
        let max_unvalidated = self.max_unvalidated;
        let Some(read) = self.read_mut(key) else {
            return false;
        };
        if read.length > max_unvalidated && associations.validate(now, id).is_none() {
            read.waits = true;
            return false;
        }
        !read.asked_all && !read.chunks.is_full()
    }

    /// Octets and datagrams of the next chunk of a Read.
    fn next_size(&self, read: &Read<R>) -> (u32, u32) {
        let octets = self.window.chunk(read.length - read.next, read.segment);
        (octets, octets.div_ceil(read.segment).max(1))
    }

    /// Requests the next chunk of the first Read of the first target, and moves both to the end of their queues.
    fn ask_next(
        &mut self,
        now: Instant,
        id: HandshakeId,
        key: ReadKey,
        associations: &mut Associations<K, V>,
    ) {
        self.unready(id, key);
        self.leave_round(id);
        let Some(read) = self.read(key) else {
            return;
        };
        let (octets, datagrams) = self.next_size(read);
        let (start, end) = (read.next, read.next + octets);
        self.ask(now, key, (start, end), Kind::First, associations);
        self.window.requested((octets, datagrams));
        if let Some(read) = self.read_mut(key) {
            read.next = end;
            read.asked_all = end == read.length;
            read.chunks.push(Chunk {
                start,
                end,
                missing: octets,
                datagrams,
            });
        }
        self.make_ready(key);
        self.enter_round(id);
    }
}
