//! Segments that a requester sends: repetitions of chunks, first requests of chunks.

use std::hash::Hash;
use std::time::Instant;

use dgiwarp_ddp::TaggedOffset;

use super::chunk::{Chunk, MAX_GAPS, gaps};
use super::target::{MAX_OPEN, ReadKey};
use super::{Read, Requester, back_off};
use crate::datagram::read::segment::{Outgoing, emit_request};
use crate::datagram::{Associations, HandshakeId};
use crate::wire::ReadRequest;

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
            || (self.is_open() && !self.round.is_empty())
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

    /// Whether the window may have room.
    fn is_open(&self) -> bool {
        !self.is_full
            || (self.octets_in_flight <= self.limits.octets / 2
                && self.datagrams_in_flight <= self.limits.datagrams / 2)
    }

    fn next_repeat(
        &mut self,
        now: Instant,
        associations: &mut Associations<K, V>,
    ) -> Option<Outgoing<K, V>> {
        while let Some((key, start)) = self.repeats.pop_front() {
            if self.repeat(now, key, start, associations).is_some() {
                return self.queued.pop_front();
            }
        }
        None
    }

    /// Requests the missing ranges of a chunk again. `None` if none can be requested now.
    fn repeat(
        &mut self,
        now: Instant,
        key: ReadKey,
        start: u32,
        associations: &mut Associations<K, V>,
    ) -> Option<()> {
        let read = self.read(key)?;
        let position = read
            .chunks
            .iter()
            .position(|it| it.start == start && it.to_repeat)?;
        let id = read.target;
        if read.length > self.max_unvalidated && associations.validate(now, id).is_none() {
            self.read_mut(key)?.waits = true;
            return None;
        }
        self.serial += 1;
        let serial = self.serial;
        let read = self.read(key)?;
        let chunk = read.chunks[position];
        let others = self.targets[id.0].open - chunk.requests;
        let max = if others as usize + MAX_GAPS > MAX_OPEN as usize {
            1
        } else {
            MAX_GAPS
        };
        let mut missing = gaps(&read.map, chunk.start, chunk.end, max);
        if chunk.start == chunk.end {
            missing.push((chunk.start, chunk.end));
        }
        let requests = u32::try_from(missing.len()).unwrap_or(1);
        for (from, to) in missing {
            self.ask(key, from, to, associations);
        }
        self.counts.repeats += u64::from(requests);
        self.targets[id.0].open = others + requests;
        let patience = associations.handshake(id).patience();
        let due = now + back_off(patience, chunk.fruitless);
        let chunk = &mut self.read_mut(key)?.chunks[position];
        chunk.asked_at = now;
        chunk.serial = serial;
        chunk.requests = requests;
        chunk.repeated = true;
        chunk.overtaken = 0;
        chunk.to_repeat = false;
        associations.wake_by(due);
        Some(())
    }

    /// Queues the request for a range.
    fn ask(&mut self, key: ReadKey, start: u32, end: u32, associations: &Associations<K, V>) {
        let msn = self.msn;
        let Some(read) = self.read(key) else {
            return;
        };
        let target = associations.handshake(read.target);
        let Some(request) = read.request(start, end) else {
            return;
        };
        let outgoing = Outgoing {
            peer: target.peer,
            via: target.via,
            segment: emit_request(&request, associations.epoch(), target.cookie, msn),
        };
        self.msn = msn.next();
        self.counts.requests += 1;
        self.queued.push_back(outgoing);
    }

    fn next_chunk(
        &mut self,
        now: Instant,
        associations: &mut Associations<K, V>,
    ) -> Option<Outgoing<K, V>> {
        if !self.is_open() {
            return None;
        }
        self.is_full = false;
        while let Some(&id) = self.round.front() {
            let target = &mut self.targets[id.0];
            let Some(&key) = target.ready.front() else {
                self.leave_round(id);
                continue;
            };
            if target.open >= MAX_OPEN {
                target.is_full = true;
                self.leave_round(id);
                continue;
            }
            if !self.can_ask(now, id, key, associations) {
                self.unready(id, key);
                continue;
            }
            if !self.has_window(key) {
                self.is_full = true;
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
        let octets = (read.length - read.next).min(self.limits.chunk(read.segment));
        (octets, octets.div_ceil(read.segment).max(1))
    }

    fn has_window(&self, key: ReadKey) -> bool {
        let Some(read) = self.read(key) else {
            return false;
        };
        let (octets, datagrams) = self.next_size(read);
        // One chunk may always be requested, however small the window is.
        self.datagrams_in_flight == 0
            || (self.octets_in_flight + octets <= self.limits.octets
                && self.datagrams_in_flight + datagrams <= self.limits.datagrams)
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
        self.ask(key, start, end, associations);
        self.serial += 1;
        let serial = self.serial;
        self.targets[id.0].open += 1;
        let due = now + associations.handshake(id).patience();
        self.octets_in_flight += octets;
        self.datagrams_in_flight += datagrams;
        if let Some(read) = self.read_mut(key) {
            read.next = end;
            read.asked_all = end == read.length;
            read.chunks.push(Chunk {
                start,
                end,
                asked_at: now,
                serial,
                missing: octets,
                datagrams,
                requests: 1,
                repeated: false,
                fruitless: 0,
                overtaken: 0,
                to_repeat: false,
            });
        }
        associations.wake_by(due);
        self.make_ready(key);
        self.enter_round(id);
    }
}
