//! Receiving half of a datagram QP.

mod sends;
mod uc_writes;
mod ulp;
mod write_records;
mod writes;

use std::hash::Hash;
use std::time::{Duration, Instant};

use super::DropReason;
use super::assembly::Assemblies;
use super::open_writes::OpenWrites;
use super::records::{Record, RecordHandle, Records};
use super::segment::Parsed;
use super::source::{SourceId, SourceTable, Standing};
use crate::wire::{Extension, Flags};

pub use ulp::{Delivery, Origin, PlaceFailed, TakeError, Ulp};

/// Settings of a [`Receiver`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReceiverConfig {
    /// The QP's Q_Key.
    pub qkey: u32,
    /// Slots of the record ring; 0 turns the reception of Write-Records off.
    pub record_slots: usize,
    /// Generation of the first records' handles. A receiver that replaces another one needs a new generation, so that old handles are stale.
    pub record_generation: u32,
    /// Placed segments of Write-Records are reported, beside their records.
    pub segment_completions: bool,
    /// Reorder window: message numbers behind the source's highest from which a Write-Record is closed, 1 to 1023.
    pub reorder_window: u32,
    /// Time without placement after which a record is closed.
    pub record_timeout: Duration,
    /// Time after which an incomplete Send is dropped.
    pub reassembly_timeout: Duration,
    /// Most receives bound to incomplete Sends.
    pub max_assemblies: usize,
    /// Most sources in the table.
    pub max_sources: usize,
}

impl Default for ReceiverConfig {
    fn default() -> Self {
        Self {
            qkey: 0,
            record_slots: 0,
            record_generation: 0,
            segment_completions: false,
            reorder_window: 64,
            record_timeout: Duration::from_millis(200),
            reassembly_timeout: Duration::from_millis(200),
            max_assemblies: 1,
            max_sources: 16_384,
        }
    }
}

/// Peers whose segments a QP takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Service<K> {
    /// UD: any.
    Datagram,
    /// UC: the connected peer, and none before it is set.
    Connected(Option<K>),
}

/// The receiving half of a datagram QP. `K` is the address of a peer, `R` a receive.
#[derive(Debug)]
pub struct Receiver<K, R> {
    config: ReceiverConfig,
    service: Service<K>,
    sources: SourceTable<K>,
    records: Records<K>,
    /// The full ring was reported, and no slot became free since.
    told_of_full_ring: bool,
    writes: OpenWrites,
    assemblies: Assemblies<R>,
    /// Lower bound of all timers: it may be early, never late.
    timeout: Option<Instant>,
}

impl<K: Copy + Eq + Hash, R> Receiver<K, R> {
    /// The receiver of a UD QP, without sources.
    #[must_use]
    pub fn new(config: ReceiverConfig) -> Self {
        Self {
            service: Service::Datagram,
            told_of_full_ring: false,
            writes: OpenWrites::default(),
            sources: SourceTable::new(config.max_sources),
            records: Records::new(config.record_slots, config.record_generation),
            assemblies: Assemblies::new(),
            timeout: None,
            config,
        }
    }

    /// The receiver of a UC QP, without a peer.
    #[must_use]
    pub fn new_connected(config: ReceiverConfig) -> Self {
        Self {
            service: Service::Connected(None),
            ..Self::new(config)
        }
    }

    /// Sets the peer of a UC QP. Returns whether the QP is one, without a peer so far.
    pub fn connect(&mut self, peer: K) -> bool {
        let connects = self.service == Service::Connected(None);
        if connects {
            self.service = Service::Connected(Some(peer));
        }
        connects
    }

    /// Whether the QP takes segments from `peer` at all (§5.2).
    #[must_use]
    #[inline]
    pub fn takes_from(&self, peer: K) -> bool {
        match self.service {
            Service::Datagram => true,
            Service::Connected(sole) => sole == Some(peer),
        }
    }

    /// Whether the QP takes a Send with this Q_Key from `peer` (§7).
    #[must_use]
    #[inline]
    pub fn takes_send(&self, peer: K, qkey: u32) -> bool {
        self.takes_from(peer) && qkey == self.config.qkey
    }

    /// Sets the Q_Key for segments from now on.
    pub fn set_qkey(&mut self, qkey: u32) {
        self.config.qkey = qkey;
    }

    /// Handles a segment. Segments of Reads belong to the [`Requester`](super::read::Requester) and the
    /// [`Responder`](super::read::Responder), and are dropped here.
    ///
    /// # Errors
    /// The drop reason, for the caller to count. No octet of the segment was placed.
    #[inline]
    pub fn handle_parsed<U: Ulp<K, Receive = R>>(
        &mut self,
        now: Instant,
        origin: &Origin<K>,
        parsed: &Parsed<'_, U::Payload>,
        ulp: &mut U,
    ) -> Result<(), DropReason> {
        let from = origin.peer;
        if !self.takes_from(from) {
            return Err(DropReason::WrongPeer);
        }
        match *parsed {
            Parsed::WriteRecord(ref write) => {
                if write.extension.flags.contains(Flags::WRITE) {
                    return match self.service {
                        Service::Datagram => Err(DropReason::UnexpectedOpcode),
                        Service::Connected(_) => self.handle_uc_write(now, *origin, write, ulp),
                    };
                }
                self.handle_write_record(now, *origin, write, ulp)
            }
            Parsed::Send {
                qkey,
                solicited,
                payload,
            } => self.handle_send(from, qkey, solicited, payload, ulp),
            Parsed::SegmentedSend {
                qkey,
                ref extension,
                payload,
            } => self.handle_segmented_send(now, from, qkey, extension, payload, ulp),
            Parsed::Read(_) => Err(DropReason::UnexpectedOpcode),
        }
    }

    /// The source of a segment that passed its checks and is not late.
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

    /// Advances the source to a newer number, and closes the records beyond the reorder window.
    fn advance<U: Ulp<K, Receive = R>>(&mut self, id: SourceId, number: u32, ulp: &mut U) {
        let source = self.sources.get_mut(id);
        if source.standing(number) != Standing::Newer {
            return;
        }
        source.advance(number);
        self.give_up_old_writes(id, ulp);
        let window = self.config.reorder_window;
        while self.sources.get(id).open_records != 0 {
            let source = self.sources.get(id);
            let mut open = self.records.open_of(id);
            let Some((slot, _)) = open.find(|&(_, number)| source.behind(number) > window) else {
                return;
            };
            drop(open);
            self.close_record(slot, ulp);
        }
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

    /// Closes records and UC Writes, and drops incomplete Sends, whose time is over.
    pub fn handle_timeout<U: Ulp<K, Receive = R>>(&mut self, now: Instant, ulp: &mut U) {
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
            self.close_record(slot, ulp);
        }
        self.give_up_silent_writes(now, ulp);
        let reassembly_timeout = self.config.reassembly_timeout;
        loop {
            let mut ages = self.assemblies.ages();
            let Some((position, _)) = ages.find(|&(_, seen)| seen + reassembly_timeout <= now)
            else {
                break;
            };
            drop(ages);
            let receive = self.close_assembly(position);
            ulp.give_back(receive);
            ulp.count(DropReason::ReassemblyTimeout);
        }
        let records = self
            .records
            .open_slots()
            .map(|(_, placed)| placed + record_timeout);
        let writes = self
            .writes
            .last_placed()
            .map(|placed| placed + record_timeout);
        let sends = self
            .assemblies
            .ages()
            .map(|(_, seen)| seen + reassembly_timeout);
        self.timeout = records.chain(writes).chain(sends).min();
    }

    /// Closes all open records now: completion on demand.
    pub fn complete_now<U: Ulp<K, Receive = R>>(&mut self, ulp: &mut U) {
        loop {
            let Some((slot, _)) = self.records.open_slots().next() else {
                return;
            };
            self.close_record(slot, ulp);
        }
    }

    /// Returns the receives of all incomplete Sends, for the destruction or reset of the QP.
    pub fn abandon_sends<U: Ulp<K, Receive = R>>(&mut self, ulp: &mut U) {
        while self.assemblies.len() > 0 {
            let receive = self.close_assembly(0);
            ulp.give_back(receive);
        }
    }

    /// A delivered record that is not released.
    #[must_use]
    pub fn record(&self, handle: RecordHandle) -> Option<&Record<K>> {
        self.records.get(handle)
    }

    /// Releases a delivered record. Returns whether the handle names one.
    pub fn release(&mut self, handle: RecordHandle) -> bool {
        let released = self.records.release(handle);
        self.told_of_full_ring &= !released;
        released
    }
}

#[cfg(test)]
mod tests;
