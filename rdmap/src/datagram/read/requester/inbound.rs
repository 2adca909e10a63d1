//! Events of a requester: responses, Terminates, and peers that validated our address.

use std::hash::Hash;
use std::time::Instant;

use dgiwarp_codec::PayloadSlice;
use dgiwarp_ddp::{STag, TaggedOffset};

use super::target::ReadKey;
use super::{ReadEnd, ReadSink, Requester};
use crate::datagram::read::segment::{About, TerminateReport};
use crate::datagram::{Associations, DropReason, HandshakeId};

impl<K: Copy + Eq + Hash, V: Copy + Eq, R> Requester<K, V, R> {
    /// Handles a Read Response segment.
    ///
    /// # Errors
    /// The drop reason. No octet was placed.
    pub fn handle_response<S: ReadSink<R>>(
        &mut self,
        now: Instant,
        from: K,
        (stag, tagged_offset): (STag, TaggedOffset),
        payload: PayloadSlice<'_, S::Payload>,
        sink: &mut S,
        associations: &mut Associations<K, V>,
    ) -> Result<(), DropReason> {
        // The sink STag ends with its Read: late responses are dropped here.
        let key = self
            .find(from, stag, associations)
            .ok_or(DropReason::BadStag)?;
        let read = &mut self.reads[key.slot];
        let range = u32::try_from(tagged_offset.get()).ok().and_then(|start| {
            let length = u32::try_from(payload.len()).ok()?;
            Some((start, start.checked_add(length)?))
        });
        let Some((start, end)) = range.filter(|(_, end)| *end <= read.length) else {
            return Err(DropReason::OutOfBounds);
        };
        if payload.is_empty() {
            if read.length > 0 {
                return Err(DropReason::Malformed);
            }
            self.finish(key, ReadEnd::Complete, sink, associations);
            return Ok(());
        }
        if read.map.contains(start, end) {
            return Err(DropReason::Duplicate);
        }
        // RFC 5040 §5.2.2: only within the range of its own request.
        let position = read
            .chunks
            .iter()
            .position(|chunk| chunk.start <= start && end <= chunk.end)
            .ok_or(DropReason::OutOfBounds)?;
        if !read.map.has_room(start, end) {
            return Err(DropReason::MapFull);
        }
        if sink.place_read(&read.token, start, payload).is_err() {
            self.finish(key, ReadEnd::LocalProtection, sink, associations);
            return Ok(());
        }
        let before = read.map.octets();
        read.map
            .insert(start, end)
            .map_err(|_| DropReason::MapFull)?;
        let octets = read.map.octets() - before;
        read.last_arrival = Some(now);
        let is_whole = read.map.octets() == read.length;
        let chunk = &mut read.chunks[position];
        self.datagrams_in_flight -= chunk.arrived(octets, read.segment);
        self.octets_in_flight -= octets;
        let is_chunk_whole = chunk.missing == 0;
        associations.handshake_mut(read.target).errno = None;
        if is_chunk_whole {
            self.complete_chunk(now, key, position, associations);
        }
        if is_whole {
            self.finish(key, ReadEnd::Complete, sink, associations);
        }
        Ok(())
    }

    fn complete_chunk(
        &mut self,
        now: Instant,
        key: ReadKey,
        position: usize,
        associations: &mut Associations<K, V>,
    ) {
        let Some(read) = self.reads.get_mut(key.slot) else {
            return;
        };
        let chunk = read.chunks.remove(position);
        for earlier in &mut read.chunks {
            if earlier.overtaken_by(chunk.serial) {
                earlier.to_repeat = true;
                self.repeats.push_back((key, earlier.start));
            }
        }
        let id = read.target;
        self.targets[id.0].open -= chunk.requests;
        // Karn's rule: the response to a repeated request gives no sample of the response time.
        if !chunk.repeated {
            let took = now.saturating_duration_since(chunk.asked_at);
            associations.handshake_mut(id).sample(took);
        }
        self.enter_round(id);
        self.make_ready(key);
    }

    /// Lets the Reads go on that waited for this handshake.
    pub fn resume(&mut self, id: HandshakeId) {
        for slot in 0..self.reads.capacity() {
            let Some(read) = self.reads.get_mut(slot) else {
                continue;
            };
            if read.target != id || !read.waits {
                continue;
            }
            read.waits = false;
            let sink_stag = read.sink_stag;
            let key = ReadKey { slot, sink_stag };
            for chunk in read.chunks.iter_mut().filter(|chunk| chunk.to_repeat) {
                chunk.fruitless = 0;
                self.repeats.push_back((key, chunk.start));
            }
            self.make_ready(key);
        }
    }

    /// Handles a Terminate about an own Read Request, which ends the Read.
    ///
    /// # Errors
    /// [`DropReason::Unsolicited`] if it names no outstanding Read from this peer.
    pub fn handle_terminate(
        &mut self,
        from: K,
        report: &TerminateReport,
        sink: &mut impl ReadSink<R>,
        associations: &mut Associations<K, V>,
    ) -> Result<(), DropReason> {
        let About::Request(request) = &report.about else {
            return Err(DropReason::Unsolicited);
        };
        let key = self
            .find(from, request.sink_stag, associations)
            .ok_or(DropReason::Unsolicited)?;
        self.finish(key, ReadEnd::Refused(report.cause), sink, associations);
        Ok(())
    }
}
