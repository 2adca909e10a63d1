//! Events of a requester: responses, Terminates, and peers that validated our address.

use std::hash::Hash;
use std::time::Instant;

use dgiwarp_codec::PayloadSlice;
use dgiwarp_ddp::{STag, TaggedOffset};

use super::ask::{Answered, answered_by};
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
            self.attribute(now, key, (start, end), false, associations);
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
        let is_whole = read.map.octets() == read.length;
        let chunk = &mut read.chunks[position];
        let datagrams = chunk.arrived(octets, read.segment);
        if chunk.missing == 0 {
            read.chunks.remove(position);
        }
        self.window.arrived((octets, datagrams));
        associations.handshake_mut(read.target).errno = None;
        if is_whole {
            // Its other requests are answered, or superfluous; the sample and the evidence count.
            self.attribute(now, key, (start, end), true, associations);
            self.finish(key, ReadEnd::Complete, sink, associations);
        } else {
            self.attribute(now, key, (start, end), true, associations);
            self.make_ready(key);
        }
        Ok(())
    }

    /// Finds the request that a response answers, and what is lost if that one is answered.
    fn attribute(
        &mut self,
        now: Instant,
        key: ReadKey,
        (start, end): (u32, u32),
        is_new: bool,
        associations: &mut Associations<K, V>,
    ) {
        let Some(read) = self.reads.get(key.slot) else {
            return;
        };
        let (id, map) = (read.target, &read.map);
        let target = &mut self.targets[id.0];
        target.last_arrival = Some(now);
        target.probed = None;
        target.fruitless = 0;
        let rtt = &mut associations.handshake_mut(id).rtt;
        let Some(index) = answered_by(&target.asks, now, rtt.least(), (key, start, end)) else {
            if is_new {
                target.reordering.found(now, rtt.smoothed());
            }
            return;
        };
        let ask = &mut target.asks[index];
        if !ask.answered {
            ask.answered = true;
            let took = now.saturating_duration_since(ask.at);
            rtt.sample(took);
            self.window
                .sample(now, took, rtt.least(), ask.end - ask.start);
        }
        let (is_probe, validated) = (ask.is_probe, ask.validated);
        match ask.answer(start, end, map) {
            Answered::Next if index == 0 && !ask.is_over => return,
            Answered::Next | Answered::Ahead => {}
            Answered::Late => {
                if is_new {
                    target.reordering.found(now, rtt.smoothed());
                }
                return;
            }
        }
        // Whatever was requested before, in the same queue of the target, has left.
        for earlier in target.asks[..index]
            .iter_mut()
            .filter(|it| it.validated == validated)
        {
            earlier.evidence = earlier.evidence.saturating_add(1);
            earlier.reached = earlier.end;
        }
        let threshold = target.reordering.threshold(now, rtt.smoothed());
        let before = target.lost.len();
        for at in 0..=index {
            let ask = target.asks[at];
            let proved = is_probe && at < index && ask.validated == validated;
            if ask.misses_some() && (ask.evidence >= threshold || proved) {
                target.lose(at, ask.reached);
            }
        }
        if target.lost.len() > before {
            self.window.lost(now);
        }
        let open = target.asks.len();
        target.asks.retain(|ask| !ask.is_over);
        if target.asks.len() < open || target.lost.len() > before {
            self.places_freed(id);
        }
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
            self.make_ready(ReadKey { slot, sink_stag });
        }
        if let Some(target) = self.targets.get_mut(id.0) {
            target.fruitless = 0;
            self.enter_repeats(id);
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
