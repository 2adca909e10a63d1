//! Received Write-Records (§5).

use std::hash::Hash;
use std::time::Instant;

use super::writes::{check_range, place};
use super::{Origin, Receiver, Ulp};
use crate::datagram::DropReason;
use crate::datagram::records::Fields;
use crate::datagram::segment::WriteSegment;
use crate::datagram::source::SourceId;
use crate::wire::Flags;

impl<K: Copy + Eq + Hash, R> Receiver<K, R> {
    #[inline]
    pub(super) fn handle_write_record<U: Ulp<K, Receive = R>>(
        &mut self,
        now: Instant,
        origin: Origin<K>,
        write: &WriteSegment<'_, U::Payload>,
        ulp: &mut U,
    ) -> Result<(), DropReason> {
        if self.config.record_slots == 0 {
            return Err(DropReason::WriteRecordOff);
        }
        let extension = &write.extension;
        let from = origin.peer;
        // A segment of an open record of this STag and base was admitted with the record's first.
        let open = self.sources.find(from, extension.epoch).and_then(|source| {
            let slot = self.records.find(source, extension.number)?;
            (self.records.record(slot).target() == write.target()).then_some((source, slot))
        });
        if let Some((source, slot)) = open {
            return self.place_recorded((now, origin), source, slot, write, ulp);
        }
        let source = self.admit_write(now, origin, write, ulp)?;
        if self.records.find(source, extension.number).is_some() {
            // Another buffer or length than in earlier segments of this message.
            return Err(DropReason::Malformed);
        }
        let fields = Fields {
            source: from,
            stag: write.stag,
            base: write.base,
            length: extension.length,
        };
        if write.is_whole() {
            return self.place_whole((now, origin), source, fields, write, ulp);
        }
        let Some(slot) = self.records.open(now, source, extension.number, fields) else {
            return self.place_unrecorded(origin, write, ulp);
        };
        self.sources.get_mut(source).open_records += 1;
        self.wake_by(now + self.config.record_timeout);
        self.place_recorded((now, origin), source, slot, write, ulp)
    }

    /// Places a message of one segment: its record is closed at once.
    fn place_whole<U: Ulp<K, Receive = R>>(
        &mut self,
        (now, origin): (Instant, Origin<K>),
        source: SourceId,
        fields: Fields<K>,
        write: &WriteSegment<'_, U::Payload>,
        ulp: &mut U,
    ) -> Result<(), DropReason> {
        let extension = &write.extension;
        let number = extension.number;
        let Some((slot, handle)) = self.records.open_closed(now, source, number, fields) else {
            return self.place_unrecorded(origin, write, ulp);
        };
        let placed = place(origin, write, ulp);
        if let Err(reason) = placed {
            self.records.release(handle);
            return Err(reason);
        }
        let record = self.records.record_mut(slot);
        record
            .map
            .insert(0, extension.length)
            .map_err(|_| DropReason::MapFull)?;
        record.immediate = extension.immediate();
        record.solicited = extension.flags.contains(Flags::SOLICITED);
        self.sources.get_mut(source).close(number);
        self.report_segment(slot, write, ulp);
        ulp.deliver_record(handle, self.records.record(slot));
        Ok(())
    }

    /// Reports a placed segment, if reports are configured. The validity map contains it in any case.
    #[inline]
    fn report_segment<U: Ulp<K, Receive = R>>(
        &self,
        slot: usize,
        write: &WriteSegment<'_, U::Payload>,
        ulp: &mut U,
    ) {
        if !self.config.segment_completions {
            return;
        }
        let length = u32::try_from(write.payload.len()).unwrap_or(0);
        let handle = self.records.handle(slot);
        let record = self.records.record(slot);
        if !ulp.deliver_segment(handle, record, write.extension.offset, length) {
            ulp.count(DropReason::SegmentUnreported);
        }
    }

    /// Places octets without a record, because the ring is full.
    fn place_unrecorded<U: Ulp<K, Receive = R>>(
        &mut self,
        origin: Origin<K>,
        write: &WriteSegment<'_, U::Payload>,
        ulp: &mut U,
    ) -> Result<(), DropReason> {
        place(origin, write, ulp)?;
        ulp.count(DropReason::RecordDropped);
        if !self.told_of_full_ring {
            self.told_of_full_ring = true;
            ulp.record_ring_full();
        }
        Ok(())
    }

    #[inline]
    fn place_recorded<U: Ulp<K, Receive = R>>(
        &mut self,
        (now, origin): (Instant, Origin<K>),
        source: SourceId,
        slot: usize,
        write: &WriteSegment<'_, U::Payload>,
        ulp: &mut U,
    ) -> Result<(), DropReason> {
        let extension = &write.extension;
        let (start, end) = write.range();
        let record = self.records.record_mut(slot);
        check_range(&record.map, (start, end))?;
        place(origin, write, ulp)?;
        record
            .map
            .insert(start, end)
            .map_err(|_| DropReason::MapFull)?;
        record.immediate = extension.immediate();
        record.solicited = extension.flags.contains(Flags::SOLICITED);
        let complete = record.map.octets() == record.length;
        self.records.touch(now, slot);
        self.sources.touch(now, source);
        self.report_segment(slot, write, ulp);
        if complete {
            self.close_record(slot, ulp);
        }
        Ok(())
    }

    pub(super) fn close_record<U: Ulp<K, Receive = R>>(&mut self, slot: usize, ulp: &mut U) {
        let (owner, number, handle) = self.records.close(slot);
        let source = self.sources.get_mut(owner);
        source.open_records -= 1;
        source.close(number);
        ulp.deliver_record(handle, self.records.record(slot));
    }
}
