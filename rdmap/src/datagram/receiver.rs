//! What happens to each received segment.

use std::hash::Hash;
use std::time::{Duration, Instant};

use dgiwarp_ddp::error::TaggedError;
use dgiwarp_ddp::placement::{TaggedBuffers, TaggedSpan};
use dgiwarp_ddp::{STag, TaggedOffset};

use super::DropReason;
use super::assembly::Assemblies;
use super::records::{Fields, Record, RecordHandle, Records};
use super::segment::{self, Parsed};
use super::source::{SourceId, SourceTable, Standing};
use crate::wire::{Extension, Flags};

/// Settings of a [`Receiver`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReceiverConfig {
    /// The QP's Q_Key.
    pub qkey: u32,
    /// Slots of the record ring; 0 turns the reception of Write-Records off.
    pub record_slots: usize,
    /// How many numbers a Write-Record may be behind the source's highest before it is closed, 1 to 1023.
    pub reorder_window: u32,
    /// A record is closed when nothing was placed for this long.
    pub record_timeout: Duration,
    /// An incomplete Send is given up after this long.
    pub reassembly_timeout: Duration,
    /// Receives that may be bound to incomplete Sends.
    pub max_assemblies: usize,
    /// Sources remembered.
    pub max_sources: usize,
}

impl Default for ReceiverConfig {
    fn default() -> Self {
        Self {
            qkey: 0,
            record_slots: 0,
            reorder_window: 64,
            record_timeout: Duration::from_millis(200),
            reassembly_timeout: Duration::from_millis(200),
            max_assemblies: 1,
            max_sources: 16_384,
        }
    }
}

/// Incomplete Sends that one source may have.
const MAX_ASSEMBLIES_PER_SOURCE: u32 = 2;

/// Why no receive could be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TakeError {
    /// None is posted.
    #[error("no receive is posted")]
    Empty,
    /// The one at the head is shorter than the message.
    #[error("the receive is shorter than the message")]
    TooShort,
}

/// A receive names memory that is not there any more; it completes with a local protection error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the memory of a posted receive is not registered")]
pub struct PlaceFailed;

/// A Send that arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delivery<K> {
    /// Who sent it.
    pub source: K,
    /// Octets.
    pub length: u32,
    /// The immediate, if one came.
    pub immediate: Option<u32>,
    /// Whether the sender asked for a solicited event.
    pub solicited: bool,
}

/// The receiver's way to memory, receive queue and completion queue.
pub trait Upper<K>: TaggedBuffers {
    /// A receive taken from the queue.
    type Receive;

    /// State for a new source or message is about to be made, which may allocate: let go of memory that
    /// is held between placements.
    fn prepare_state(&mut self) {}

    /// Takes the receive at the head of the queue, if `length` octets fit it.
    ///
    /// # Errors
    /// [`TakeError`]; then the queue is unchanged.
    fn take_receive(&mut self, length: u32) -> Result<Self::Receive, TakeError>;

    /// Places octets of a message at `offset` of a receive.
    ///
    /// # Errors
    /// [`PlaceFailed`]; then the receive is completed in error with [`fail`](Self::fail).
    fn place_untagged(
        &mut self,
        receive: &Self::Receive,
        offset: u32,
        payload: &[u8],
    ) -> Result<(), PlaceFailed>;

    /// Completes a receive.
    fn deliver(&mut self, receive: Self::Receive, delivery: Delivery<K>);

    /// Completes a receive in error.
    fn fail(&mut self, receive: Self::Receive);

    /// Returns a receive to the head of the queue.
    fn give_back(&mut self, receive: Self::Receive);

    /// Completes a record.
    fn deliver_record(&mut self, handle: RecordHandle, record: &Record<K>);

    /// Counts what was not the fault of the segment at hand.
    fn count(&mut self, reason: DropReason);
}

/// The receiving half of a datagram QP. `K` is the address of a peer, `R` a receive.
#[derive(Debug)]
pub struct Receiver<K, R> {
    config: ReceiverConfig,
    sources: SourceTable<K>,
    records: Records<K>,
    assemblies: Assemblies<R>,
    /// No timer expires before this. It may be early, never late.
    timeout: Option<Instant>,
}

impl<K: Copy + Eq + Hash, R> Receiver<K, R> {
    /// A receiver that knows no source.
    #[must_use]
    pub fn new(config: ReceiverConfig) -> Self {
        Self {
            sources: SourceTable::new(config.max_sources),
            records: Records::new(config.record_slots),
            assemblies: Assemblies::new(),
            timeout: None,
            config,
        }
    }

    /// Changes the Q_Key for segments from now on.
    pub fn set_qkey(&mut self, qkey: u32) {
        self.config.qkey = qkey;
    }

    /// Handles a segment from `from`: a datagram without its CRC, which the caller checked.
    ///
    /// # Errors
    /// The reason for which it was dropped, for the caller to count. Nothing of it was placed then.
    #[inline]
    pub fn handle_segment<U: Upper<K, Receive = R>>(
        &mut self,
        now: Instant,
        from: K,
        bytes: &[u8],
        upper: &mut U,
    ) -> Result<(), DropReason> {
        match segment::parse(bytes)? {
            Parsed::WriteRecord {
                stag,
                tagged_offset,
                base,
                extension,
                payload,
            } => {
                let write = WriteSegment {
                    stag,
                    tagged_offset,
                    base,
                    extension,
                    payload,
                };
                self.handle_write_record(now, from, &write, upper)
            }
            Parsed::Send {
                qkey,
                solicited,
                payload,
            } => self.handle_send(from, qkey, solicited, payload, upper),
            Parsed::SegmentedSend {
                qkey,
                extension,
                payload,
            } => self.handle_segmented_send(now, from, qkey, &extension, payload, upper),
        }
    }

    fn handle_send<U: Upper<K, Receive = R>>(
        &mut self,
        source: K,
        qkey: u32,
        solicited: bool,
        payload: &[u8],
        upper: &mut U,
    ) -> Result<(), DropReason> {
        if qkey != self.config.qkey {
            return Err(DropReason::BadQkey);
        }
        let length = u32::try_from(payload.len()).map_err(|_| DropReason::Malformed)?;
        let receive = upper.take_receive(length)?;
        if upper.place_untagged(&receive, 0, payload).is_err() {
            upper.fail(receive);
            return Ok(());
        }
        let delivery = Delivery {
            source,
            length,
            immediate: None,
            solicited,
        };
        upper.deliver(receive, delivery);
        Ok(())
    }

    fn handle_segmented_send<U: Upper<K, Receive = R>>(
        &mut self,
        now: Instant,
        from: K,
        qkey: u32,
        extension: &Extension,
        payload: &[u8],
        upper: &mut U,
    ) -> Result<(), DropReason> {
        if qkey != self.config.qkey {
            return Err(DropReason::BadQkey);
        }
        upper.prepare_state();
        let source = self.source_of(now, from, extension)?;
        self.advance(source, extension.number, upper);
        let position = match self.assemblies.find(source, extension.number) {
            Some(position) => position,
            None => self.open_assembly(now, source, extension, upper)?,
        };
        let assembly = self.assemblies.get_mut(position);
        let end = extension.offset + u32::try_from(payload.len()).unwrap_or(0);
        if assembly.length != extension.length {
            return Err(DropReason::Malformed);
        }
        if assembly.map.contains(extension.offset, end) && extension.length > 0 {
            return Err(DropReason::Duplicate);
        }
        if !assembly.map.has_room(extension.offset, end) {
            return Err(DropReason::MapFull);
        }
        if upper
            .place_untagged(&assembly.receive, extension.offset, payload)
            .is_err()
        {
            let receive = self.close_assembly(position);
            upper.fail(receive);
            return Ok(());
        }
        assembly
            .map
            .insert(extension.offset, end)
            .map_err(|_| DropReason::MapFull)?;
        if assembly.map.octets() == extension.length {
            let receive = self.close_assembly(position);
            let delivery = Delivery {
                source: from,
                length: extension.length,
                immediate: extension.immediate(),
                solicited: extension.flags.contains(Flags::SOLICITED),
            };
            upper.deliver(receive, delivery);
        }
        Ok(())
    }

    fn open_assembly<U: Upper<K, Receive = R>>(
        &mut self,
        now: Instant,
        source: SourceId,
        extension: &Extension,
        upper: &mut U,
    ) -> Result<usize, DropReason> {
        let full = self.assemblies.len() >= self.config.max_assemblies
            || self.sources.get(source).assemblies >= MAX_ASSEMBLIES_PER_SOURCE;
        if full {
            return Err(DropReason::ReassemblyFull);
        }
        let receive = upper.take_receive(extension.length)?;
        self.sources.get_mut(source).assemblies += 1;
        self.wake_by(now + self.config.reassembly_timeout);
        let message = (extension.number, extension.length);
        Ok(self.assemblies.add(now, source, message, receive))
    }

    fn close_assembly(&mut self, position: usize) -> R {
        let (owner, number, receive) = self.assemblies.remove(position);
        let source = self.sources.get_mut(owner);
        source.assemblies -= 1;
        source.close(number);
        receive
    }

    #[inline]
    fn handle_write_record<U: Upper<K, Receive = R>>(
        &mut self,
        now: Instant,
        from: K,
        write: &WriteSegment<'_>,
        upper: &mut U,
    ) -> Result<(), DropReason> {
        if self.config.record_slots == 0 {
            return Err(DropReason::WriteRecordOff);
        }
        let extension = &write.extension;
        // The checks of §5 steps 3 to 7 come before any state is made, and cover the whole message, so that
        // a record never promises octets outside the region. For an open record of this STag and base they
        // were made with its first segment; placement repeats them for its own octets.
        let open = self.sources.find(from, extension.epoch).and_then(|source| {
            let slot = self.records.find(source, extension.number)?;
            self.records
                .record(slot)
                .belongs(write)
                .then_some((source, slot))
        });
        if let Some((source, slot)) = open {
            return self.place_recorded(now, source, slot, write, upper);
        }
        upper
            .check(TaggedSpan {
                stag: write.stag,
                start: write.base,
                length: extension.length,
            })
            .map_err(drop_reason)?;
        upper.prepare_state();
        let source = self.source_of(now, from, extension)?;
        if let Standing::Open(behind) = self.sources.get(source).standing(extension.number)
            && behind > self.config.reorder_window
        {
            return Err(DropReason::Late);
        }
        self.advance(source, extension.number, upper);
        if self.records.find(source, extension.number).is_some() {
            // Same message, other buffer or length: the sender contradicts itself.
            return Err(DropReason::Malformed);
        }
        let fields = Fields {
            source: from,
            stag: write.stag,
            base: write.base,
            length: extension.length,
        };
        if write.payload.len() == extension.length as usize {
            return self.place_whole(now, source, fields, write, upper);
        }
        let Some(slot) = self.records.open(now, source, extension.number, fields) else {
            return Self::place_unrecorded(write, upper);
        };
        self.sources.get_mut(source).open_records += 1;
        self.wake_by(now + self.config.record_timeout);
        self.place_recorded(now, source, slot, write, upper)
    }

    /// A message of one segment: its record is closed as soon as it is made.
    fn place_whole<U: Upper<K, Receive = R>>(
        &mut self,
        now: Instant,
        source: SourceId,
        fields: Fields<K>,
        write: &WriteSegment<'_>,
        upper: &mut U,
    ) -> Result<(), DropReason> {
        let extension = &write.extension;
        let number = extension.number;
        let Some((slot, handle)) = self.records.open_closed(now, source, number, fields) else {
            return Self::place_unrecorded(write, upper);
        };
        if let Err(error) = upper.place(write.stag, write.tagged_offset, write.payload) {
            self.records.abandon(handle);
            return Err(drop_reason(error));
        }
        let record = self.records.record_mut(slot);
        record
            .map
            .insert(0, extension.length)
            .map_err(|_| DropReason::MapFull)?;
        record.immediate = extension.immediate();
        record.solicited = extension.flags.contains(Flags::SOLICITED);
        self.sources.get_mut(source).close(number);
        upper.deliver_record(handle, self.records.record(slot));
        Ok(())
    }

    /// The ring is full: the octets are placed, the record is lost.
    fn place_unrecorded<U: Upper<K, Receive = R>>(
        write: &WriteSegment<'_>,
        upper: &mut U,
    ) -> Result<(), DropReason> {
        upper
            .place(write.stag, write.tagged_offset, write.payload)
            .map_err(drop_reason)?;
        upper.count(DropReason::RecordDropped);
        Ok(())
    }

    #[inline]
    fn place_recorded<U: Upper<K, Receive = R>>(
        &mut self,
        now: Instant,
        source: SourceId,
        slot: usize,
        write: &WriteSegment<'_>,
        upper: &mut U,
    ) -> Result<(), DropReason> {
        let extension = &write.extension;
        let start = extension.offset;
        let end = start + u32::try_from(write.payload.len()).unwrap_or(0);
        let record = self.records.record_mut(slot);
        if record.map.contains(start, end) && extension.length > 0 {
            return Err(DropReason::Duplicate);
        }
        if !record.map.has_room(start, end) {
            return Err(DropReason::MapFull);
        }
        upper
            .place(write.stag, write.tagged_offset, write.payload)
            .map_err(drop_reason)?;
        record
            .map
            .insert(start, end)
            .map_err(|_| DropReason::MapFull)?;
        record.immediate = extension.immediate();
        record.solicited = extension.flags.contains(Flags::SOLICITED);
        let complete = record.map.octets() == record.length;
        self.records.touch(now, slot);
        self.sources.touch(now, source);
        if complete {
            self.close_record(slot, upper);
        }
        Ok(())
    }

    fn close_record<U: Upper<K, Receive = R>>(&mut self, slot: usize, upper: &mut U) {
        let (owner, number, handle) = self.records.close(slot);
        let source = self.sources.get_mut(owner);
        source.open_records -= 1;
        source.close(number);
        upper.deliver_record(handle, self.records.record(slot));
    }

    /// The source of a segment that passed its checks, with the number not late.
    fn source_of(
        &mut self,
        now: Instant,
        from: K,
        extension: &Extension,
    ) -> Result<SourceId, DropReason> {
        let Some(id) = self.sources.find(from, extension.epoch) else {
            return self
                .sources
                .insert(now, from, extension.epoch, extension.number)
                .ok_or(DropReason::NoSourceSlot);
        };
        let source = self.sources.touch(now, id);
        match source.standing(extension.number) {
            Standing::Late => Err(DropReason::Late),
            Standing::Newer | Standing::Open(_) => Ok(id),
        }
    }

    /// Takes note of a newer number, and closes the records that it leaves too far behind.
    fn advance<U: Upper<K, Receive = R>>(&mut self, id: SourceId, number: u32, upper: &mut U) {
        let source = self.sources.get_mut(id);
        if source.standing(number) != Standing::Newer {
            return;
        }
        source.advance(number);
        let window = self.config.reorder_window;
        while self.sources.get(id).open_records > 0 {
            let source = self.sources.get(id);
            let mut open = self.records.open_of(id);
            let Some((slot, _)) = open.find(|&(_, number)| source.behind(number) > window) else {
                return;
            };
            drop(open);
            self.close_record(slot, upper);
        }
    }

    fn wake_by(&mut self, at: Instant) {
        self.timeout = Some(self.timeout.map_or(at, |timeout| timeout.min(at)));
    }

    /// When [`handle_timeout`](Self::handle_timeout) should next be called.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.timeout
    }

    /// Closes records and gives up Sends whose time is over.
    pub fn handle_timeout<U: Upper<K, Receive = R>>(&mut self, now: Instant, upper: &mut U) {
        if self.timeout.is_none_or(|timeout| now < timeout) {
            return;
        }
        self.timeout = None;
        let record_timeout = self.config.record_timeout;
        loop {
            let mut open = self.records.open_slots();
            let Some((slot, _)) = open.find(|&(_, placed)| placed + record_timeout <= now) else {
                break;
            };
            drop(open);
            self.close_record(slot, upper);
        }
        let reassembly_timeout = self.config.reassembly_timeout;
        loop {
            let mut ages = self.assemblies.ages();
            let Some((position, _)) = ages.find(|&(_, seen)| seen + reassembly_timeout <= now)
            else {
                break;
            };
            drop(ages);
            let receive = self.close_assembly(position);
            upper.give_back(receive);
            upper.count(DropReason::ReassemblyTimeout);
        }
        let records = self
            .records
            .open_slots()
            .map(|(_, placed)| placed + record_timeout);
        let sends = self
            .assemblies
            .ages()
            .map(|(_, seen)| seen + reassembly_timeout);
        self.timeout = records.chain(sends).min();
    }

    /// Closes all open records now: completion on demand.
    pub fn complete_now<U: Upper<K, Receive = R>>(&mut self, upper: &mut U) {
        loop {
            let Some((slot, _)) = self.records.open_slots().next() else {
                return;
            };
            self.close_record(slot, upper);
        }
    }

    /// Returns the receives of all incomplete Sends, for a QP that is torn down or reset.
    pub fn abandon_sends<U: Upper<K, Receive = R>>(&mut self, upper: &mut U) {
        while self.assemblies.len() > 0 {
            let receive = self.close_assembly(0);
            upper.give_back(receive);
        }
    }

    /// A record that was delivered and not yet released.
    #[must_use]
    pub fn record(&self, handle: RecordHandle) -> Option<&Record<K>> {
        self.records.get(handle)
    }

    /// Gives the slot of a delivered record back. Returns whether the handle named one.
    pub fn release(&mut self, handle: RecordHandle) -> bool {
        self.records.release(handle)
    }
}

/// A Write-Record segment, parsed.
struct WriteSegment<'a> {
    stag: STag,
    tagged_offset: TaggedOffset,
    base: TaggedOffset,
    extension: Extension,
    payload: &'a [u8],
}

impl<K> Record<K> {
    fn belongs(&self, write: &WriteSegment<'_>) -> bool {
        self.stag == write.stag && self.base == write.base && self.length == write.extension.length
    }
}

impl From<TakeError> for DropReason {
    fn from(error: TakeError) -> Self {
        match error {
            TakeError::Empty => Self::NoReceive,
            TakeError::TooShort => Self::ReceiveTooShort,
        }
    }
}

fn drop_reason(error: TaggedError) -> DropReason {
    match error {
        TaggedError::InvalidStag => DropReason::BadStag,
        TaggedError::BaseOrBounds | TaggedError::Wrap => DropReason::OutOfBounds,
        TaggedError::NotAssociated => DropReason::BadPd,
        TaggedError::Version => DropReason::BadVersion,
        TaggedError::Access => DropReason::NoAccess,
    }
}

#[cfg(test)]
mod tests;
