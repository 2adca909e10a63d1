//! The ring of completions.

use std::collections::{TryReserveError, VecDeque};

use crate::types::{AsyncEvent, Wc, WcOpcode, WcStatus};

/// Consumer of completions.
pub trait CompletionSink {
    /// Completion of a posted work request of the send queue.
    fn sent(&mut self, wc: Wc);
    /// Completion of a receive or a record.
    fn received(&mut self, wc: Wc);
    /// As [`received`](Self::received), of the completion that `make` returns, which may be made where it goes.
    #[inline]
    fn received_as(&mut self, make: impl FnOnce() -> Wc) {
        self.received(make());
    }
    /// As [`sent`](Self::sent), of the successful completion that `make` returns, which may be made where it goes.
    #[inline]
    fn sent_as(&mut self, make: impl FnOnce() -> Wc) {
        self.sent(make());
    }
    /// Report of a segment of a record. Returns whether there was room for it.
    fn segment(&mut self, wc: Wc) -> bool;
    /// A work request left the send queue, with or without a completion.
    fn retired(&mut self);
    /// Asynchronous event.
    fn event(&mut self, event: AsyncEvent);
}

/// Discards completions.
#[derive(Debug, Clone, Copy)]
pub struct Unheard;

impl CompletionSink for Unheard {
    fn sent(&mut self, _: Wc) {}
    fn received(&mut self, _: Wc) {}
    fn segment(&mut self, _: Wc) -> bool {
        false
    }
    fn retired(&mut self) {}
    fn event(&mut self, _: AsyncEvent) {}
}

/// Result of adding a completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pushed {
    /// No event is due.
    Quiet,
    /// The ring was armed for it: an event is due.
    Event,
    /// The ring has overrun, for the first time.
    Overrun,
    /// No slot for segments of records is free; nothing was added.
    NoSlot,
}

/// Completions that raise an event (`ibv_req_notify_cq(3)`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Armed {
    No,
    Solicited,
    Any,
}

/// Completions not yet polled.
#[derive(Debug)]
pub struct CqRing {
    entries: VecDeque<Wc>,
    depth: usize,
    /// Slots beyond `depth` for records of QPs: their completions are never lost.
    reserved: usize,
    records: usize,
    /// Further slots for segments of records. QPs share them.
    segment_slots: usize,
    segments: usize,
    overrun: bool,
    /// A completion that finds the ring full is dropped, and the ring does not overrun.
    ignore_overrun: bool,
    armed: Armed,
    stamps: Option<Stamps>,
}

/// Times of completions.
#[derive(Debug, Default)]
struct Stamps {
    /// One for each entry of the ring.
    of_entries: VecDeque<u64>,
    now: u64,
    of_last_taken: u64,
}

impl CqRing {
    /// An empty ring of `depth` slots.
    ///
    /// # Errors
    /// There is no memory for them.
    pub fn new(depth: usize) -> Result<Self, TryReserveError> {
        let mut ring = Self {
            entries: VecDeque::new(),
            depth,
            reserved: 0,
            records: 0,
            segment_slots: 0,
            segments: 0,
            overrun: false,
            ignore_overrun: false,
            armed: Armed::No,
            stamps: None,
        };
        ring.make_room(depth)?;
        Ok(ring)
    }

    /// Allocates `slots` slots in all.
    fn make_room(&mut self, slots: usize) -> Result<(), TryReserveError> {
        let more = slots.saturating_sub(self.entries.len());
        self.entries.try_reserve(more)?;
        match &mut self.stamps {
            Some(stamps) => stamps.of_entries.try_reserve(more),
            None => Ok(()),
        }
    }

    /// Changes the number of slots. Returns whether the completions that wait fit; otherwise nothing is changed.
    ///
    /// # Errors
    /// There is no memory for them; nothing is changed.
    pub fn resize(&mut self, depth: usize) -> Result<bool, TryReserveError> {
        let fits = self.entries.len() - self.records - self.segments <= depth;
        if fits {
            self.make_room(depth + self.reserved + self.segment_slots)?;
            self.depth = depth;
        }
        Ok(fits)
    }

    /// Drops completions that find the ring full from now on, instead of overrunning for good.
    pub fn ignore_overrun(&mut self) {
        self.ignore_overrun = true;
    }

    /// Keeps the time of each completion from now on.
    ///
    /// # Errors
    /// There is no memory for the times; nothing is changed.
    pub fn keep_stamps(&mut self) -> Result<(), TryReserveError> {
        if self.stamps.is_none() {
            let mut stamps = Stamps::default();
            let slots = self.depth + self.reserved + self.segment_slots;
            stamps.of_entries.try_reserve(slots)?;
            stamps.of_entries.resize(self.entries.len(), 0);
            self.stamps = Some(stamps);
        }
        Ok(())
    }

    /// Sets the time of completions that are added from now on.
    pub fn set_time(&mut self, nanos: u64) {
        if let Some(stamps) = &mut self.stamps {
            stamps.now = nanos;
        }
    }

    /// Time of the completion that was taken last, where times are kept.
    pub fn stamp_of_last_taken(&self) -> Option<u64> {
        self.stamps.as_ref().map(|stamps| stamps.of_last_taken)
    }

    /// Adds slots for records and for their segments.
    ///
    /// # Errors
    /// There is no memory for them; nothing is changed.
    pub fn reserve(&mut self, records: usize, segments: usize) -> Result<(), TryReserveError> {
        let slots = self.depth + self.reserved + self.segment_slots;
        self.make_room(slots + records + segments)?;
        self.reserved += records;
        self.segment_slots += segments;
        Ok(())
    }

    /// Removes slots of a QP that is gone.
    pub fn unreserve(&mut self, records: usize, segments: usize) {
        self.reserved = self.reserved.saturating_sub(records);
        self.segment_slots = self.segment_slots.saturating_sub(segments);
    }

    /// Adds a completion.
    ///
    /// A completion that finds the ring full is lost, and the ring is overrun for good: the program did not
    /// size it as `ibv_create_cq(3)` asks.
    #[inline]
    pub fn push(&mut self, wc: Wc) -> Pushed {
        if wc.opcode == WcOpcode::WriteRecord {
            self.records += 1;
        } else if wc.opcode == WcOpcode::WriteRecordSegment {
            if self.segments >= self.segment_slots {
                return Pushed::NoSlot;
            }
            self.segments += 1;
        } else if self.entries.len() - self.records - self.segments >= self.depth {
            let first = !self.ignore_overrun && !std::mem::replace(&mut self.overrun, true);
            return if first {
                Pushed::Overrun
            } else {
                Pushed::Quiet
            };
        }
        let raises = match self.armed {
            Armed::No => false,
            Armed::Any => true,
            Armed::Solicited => wc.solicited || wc.status != WcStatus::Success,
        };
        self.entries.push_back(wc);
        if let Some(stamps) = &mut self.stamps {
            stamps.of_entries.push_back(stamps.now);
        }
        if !raises {
            return Pushed::Quiet;
        }
        self.armed = Armed::No;
        Pushed::Event
    }

    /// Moves completions to the front of `out`. Returns how many.
    pub fn poll(&mut self, out: &mut [Wc]) -> usize {
        let mut slots = out.iter_mut();
        self.poll_each(slots.len(), |wc| {
            if let Some(slot) = slots.next() {
                *slot = *wc;
            }
        })
    }

    /// Takes completions, at most so many, and calls `each` with every one. Returns how many.
    #[inline]
    pub fn poll_each(&mut self, most: usize, mut each: impl FnMut(&Wc)) -> usize {
        let mut count = 0;
        while count < most {
            let Some(wc) = self.entries.pop_front() else {
                break;
            };
            if wc.opcode == WcOpcode::WriteRecord {
                self.records -= 1;
            } else if wc.opcode == WcOpcode::WriteRecordSegment {
                self.segments -= 1;
            }
            if let Some(stamps) = &mut self.stamps {
                stamps.of_last_taken = stamps.of_entries.pop_front().unwrap_or(0);
            }
            each(&wc);
            count += 1;
        }
        if self.entries.is_empty() {
            // Back to the front of the room: a ring that is seldom full need not go through all of it.
            self.entries.clear();
        }
        count
    }

    /// Removes completions of a QP.
    pub fn forget(&mut self, qpn: u32) {
        if let Some(stamps) = &mut self.stamps {
            let mut entries = self.entries.iter();
            stamps
                .of_entries
                .retain(|_| entries.next().is_none_or(|wc| wc.qpn != qpn));
        }
        let (mut records, mut segments) = (0, 0);
        self.entries.retain(|wc| {
            let forgotten = wc.qpn == qpn;
            records += usize::from(forgotten && wc.opcode == WcOpcode::WriteRecord);
            segments += usize::from(forgotten && wc.opcode == WcOpcode::WriteRecordSegment);
            !forgotten
        });
        self.records -= records;
        self.segments -= segments;
    }

    /// Whether a successful completion of a QP waits.
    pub fn has_success_of(&self, qpn: u32) -> bool {
        let mut entries = self.entries.iter();
        entries.any(|wc| wc.qpn == qpn && wc.status == WcStatus::Success)
    }

    /// Arms the ring for the next completion, or only for the next solicited one.
    pub fn arm(&mut self, solicited_only: bool) {
        self.armed = match (self.armed, solicited_only) {
            // A request for any completion is not weakened by a later one.
            (Armed::Any, _) | (_, false) => Armed::Any,
            (Armed::No | Armed::Solicited, true) => Armed::Solicited,
        };
    }

    /// No completion raises an event any more.
    pub fn disarm(&mut self) {
        self.armed = Armed::No;
    }

    /// Whether the ring has overrun.
    pub fn is_overrun(&self) -> bool {
        self.overrun
    }

    /// Whether no completion waits.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recv(wr_id: u64, solicited: bool) -> Wc {
        Wc {
            solicited,
            ..Wc::new(wr_id, WcOpcode::Recv, 1)
        }
    }

    #[test]
    fn records_have_slots_of_their_own() {
        let mut ring = CqRing::new(1).unwrap();
        ring.reserve(2, 0).unwrap();
        ring.push(recv(1, false));
        ring.push(Wc::new(2, WcOpcode::WriteRecord, 1));
        ring.push(Wc::new(3, WcOpcode::WriteRecord, 1));
        assert!(!ring.is_overrun());
        assert_eq!(ring.push(recv(4, false)), Pushed::Overrun);
        assert!(ring.is_overrun());
        assert_eq!(ring.push(recv(5, false)), Pushed::Quiet);
        let mut out = [recv(0, false); 8];
        assert_eq!(ring.poll(&mut out), 3);
        assert_eq!(out.map(|wc| wc.wr_id)[..3], [1, 2, 3]);
    }

    #[test]
    fn segments_have_slots_of_their_own_and_no_more() {
        let mut ring = CqRing::new(1).unwrap();
        let segment = |wr_id| Wc::new(wr_id, WcOpcode::WriteRecordSegment, 1);
        assert_eq!(ring.push(segment(0)), Pushed::NoSlot);
        ring.reserve(1, 2).unwrap();
        for wr_id in [1, 2] {
            assert_eq!(ring.push(segment(wr_id)), Pushed::Quiet);
        }
        assert_eq!(ring.push(segment(3)), Pushed::NoSlot);
        ring.push(recv(4, false));
        ring.push(Wc::new(5, WcOpcode::WriteRecord, 1));
        let mut out = [recv(0, false); 2];
        assert_eq!(ring.poll(&mut out), 2);
        assert_eq!(ring.push(segment(6)), Pushed::Quiet);
        assert!(!ring.is_overrun());
        ring.unreserve(1, 2);
        assert_eq!(ring.push(segment(7)), Pushed::NoSlot);
    }

    #[test]
    fn memory_that_cannot_be_had_is_an_error_and_changes_nothing() {
        const TOO_MANY: usize = usize::MAX >> 8;
        assert!(CqRing::new(TOO_MANY).is_err());
        let mut ring = CqRing::new(1).unwrap();
        assert!(ring.resize(TOO_MANY).is_err());
        assert!(ring.reserve(TOO_MANY, 0).is_err());
        ring.keep_stamps().unwrap();
        assert!(ring.resize(TOO_MANY).is_err());
        assert_eq!(ring.push(recv(1, false)), Pushed::Quiet);
        assert_eq!(ring.push(recv(2, false)), Pushed::Overrun);
    }

    #[test]
    fn a_ring_that_may_lose_completions_never_overruns() {
        let mut ring = CqRing::new(1).unwrap();
        ring.ignore_overrun();
        ring.push(recv(1, false));
        assert_eq!(ring.push(recv(2, false)), Pushed::Quiet);
        assert!(!ring.is_overrun());
        let mut out = [recv(0, false); 2];
        assert_eq!(ring.poll(&mut out), 1);
        assert_eq!(out[0].wr_id, 1);
    }

    #[test]
    fn a_ring_is_not_made_smaller_than_what_waits_in_it() {
        let mut ring = CqRing::new(2).unwrap();
        ring.push(recv(1, false));
        ring.push(recv(2, false));
        assert_eq!(ring.resize(1), Ok(false));
        assert_eq!(ring.resize(3), Ok(true));
        assert_eq!(ring.push(recv(3, false)), Pushed::Quiet);
        assert_eq!(ring.push(recv(4, false)), Pushed::Overrun);
    }

    #[test]
    fn completions_keep_the_time_of_their_coming() {
        let mut ring = CqRing::new(8).unwrap();
        ring.push(recv(1, false));
        ring.keep_stamps().unwrap();
        for (wr_id, time) in [(2, 20), (3, 30)] {
            ring.set_time(time);
            ring.push(recv(wr_id, false));
        }
        let mut out = [recv(0, false); 1];
        for stamp in [0, 20, 30] {
            assert_eq!(ring.poll(&mut out), 1);
            assert_eq!(ring.stamp_of_last_taken(), Some(stamp));
        }
    }

    #[test]
    fn completions_of_a_queue_pair_can_be_taken_out() {
        let mut ring = CqRing::new(2).unwrap();
        ring.reserve(1, 1).unwrap();
        ring.keep_stamps().unwrap();
        ring.set_time(10);
        ring.push(recv(1, false));
        for opcode in [WcOpcode::WriteRecord, WcOpcode::WriteRecordSegment] {
            ring.push(Wc::new(2, opcode, 7));
        }
        ring.push(Wc::new(3, WcOpcode::Send, 7));
        ring.forget(7);
        ring.forget(8);
        // Their slots are free again.
        ring.set_time(11);
        for opcode in [WcOpcode::WriteRecordSegment, WcOpcode::Send] {
            assert_eq!(ring.push(Wc::new(4, opcode, 7)), Pushed::Quiet);
        }
        let mut out = [recv(0, false); 8];
        assert_eq!(ring.poll(&mut out), 3);
        assert_eq!(out.map(|wc| wc.wr_id)[..3], [1, 4, 4]);
        assert_eq!(ring.stamp_of_last_taken(), Some(11));
        assert!(!ring.is_overrun());
    }

    #[test]
    fn a_program_is_told_once_and_only_of_what_it_asked_for() {
        let mut ring = CqRing::new(8).unwrap();
        assert_eq!(ring.push(recv(1, true)), Pushed::Quiet);
        ring.arm(true);
        assert_eq!(ring.push(recv(2, false)), Pushed::Quiet);
        assert_eq!(ring.push(recv(3, true)), Pushed::Event);
        assert_eq!(ring.push(recv(4, true)), Pushed::Quiet);
        ring.arm(false);
        ring.arm(true);
        assert_eq!(ring.push(recv(5, false)), Pushed::Event);
        ring.arm(false);
        ring.disarm();
        assert_eq!(ring.push(recv(6, true)), Pushed::Quiet);
    }
}
