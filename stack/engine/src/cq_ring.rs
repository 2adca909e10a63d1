//! The ring of completions.

use std::collections::VecDeque;

use crate::types::{AsyncEvent, Wc, WcOpcode, WcStatus};

/// Where completions go.
pub trait CompletionSink {
    /// Completion of something posted.
    fn sent(&mut self, wc: Wc);
    /// Completion of something received.
    fn received(&mut self, wc: Wc);
    /// Report of a segment of a record. Returns whether there was room for it.
    fn segment(&mut self, wc: Wc) -> bool;
    /// A posted send left the queue, with or without a completion.
    fn retired(&mut self);
    /// Something that no completion tells.
    fn event(&mut self, event: AsyncEvent);
}

/// Completions that nobody wants.
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

/// What adding a completion asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pushed {
    /// Nothing.
    Quiet,
    /// A waiting program has to be told.
    Tell,
    /// The ring overran with this one.
    Overrun,
    /// No slot for segments of records is free; nothing was added.
    NoSlot,
}

/// What a program waits for on a completion channel (`ibv_req_notify_cq(3)`).
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
    /// Slots beyond `depth` that belong to the record rings of QPs: their completions are never lost.
    reserved: usize,
    records: usize,
    /// Slots beyond these for segments of records. QPs share them.
    segment_slots: usize,
    segments: usize,
    overrun: bool,
    /// What finds the ring full is lost without a word.
    lossy: bool,
    armed: Armed,
    stamps: Option<Stamps>,
}

/// When completions came, where somebody wants to know.
#[derive(Debug, Default)]
struct Stamps {
    /// One for each entry.
    of_entries: VecDeque<u64>,
    now: u64,
    of_last_taken: u64,
}

impl CqRing {
    pub fn new(depth: usize) -> Self {
        Self {
            entries: VecDeque::with_capacity(depth),
            depth,
            reserved: 0,
            records: 0,
            segment_slots: 0,
            segments: 0,
            overrun: false,
            lossy: false,
            armed: Armed::No,
            stamps: None,
        }
    }

    /// Makes it for another number of completions. Returns whether those that wait fit; else nothing is changed.
    pub fn resize(&mut self, depth: usize) -> bool {
        let fits = self.entries.len() - self.records - self.segments <= depth;
        if fits {
            self.depth = depth;
            self.reserve(0, 0);
        }
        fits
    }

    /// Loses completions that find it full, instead of overrunning for good.
    pub fn be_lossy(&mut self) {
        self.lossy = true;
    }

    /// Keeps the time of each completion from now on.
    pub fn keep_stamps(&mut self) {
        let of_entries = std::iter::repeat_n(0, self.entries.len()).collect();
        self.stamps.get_or_insert_with(|| Stamps {
            of_entries,
            ..Stamps::default()
        });
    }

    /// Says what time it is for those that are added next.
    pub fn set_time(&mut self, nanos: u64) {
        if let Some(stamps) = &mut self.stamps {
            stamps.now = nanos;
        }
    }

    /// When the completion came that was taken last, where the times are kept.
    pub fn stamp_of_last_taken(&self) -> Option<u64> {
        self.stamps.as_ref().map(|stamps| stamps.of_last_taken)
    }

    /// Sets slots aside for records, and for their segments.
    pub fn reserve(&mut self, records: usize, segments: usize) {
        self.reserved += records;
        self.segment_slots += segments;
        let room = self.depth + self.reserved + self.segment_slots;
        self.entries.reserve(room - self.entries.len().min(room));
    }

    /// Gives slots back, when a QP goes.
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
            let first = !self.lossy && !std::mem::replace(&mut self.overrun, true);
            return if first {
                Pushed::Overrun
            } else {
                Pushed::Quiet
            };
        }
        let tell = match self.armed {
            Armed::No => false,
            Armed::Any => true,
            Armed::Solicited => wc.solicited || wc.status != WcStatus::Success,
        };
        self.entries.push_back(wc);
        if let Some(stamps) = &mut self.stamps {
            stamps.of_entries.push_back(stamps.now);
        }
        if !tell {
            return Pushed::Quiet;
        }
        self.armed = Armed::No;
        Pushed::Tell
    }

    /// Moves completions to the front of `out` and returns how many.
    #[inline]
    pub fn poll(&mut self, out: &mut [Wc]) -> usize {
        let mut count = 0;
        for slot in out {
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
            *slot = wc;
            count += 1;
        }
        if self.entries.is_empty() {
            // Back to the front of the room: a ring that is seldom full need not go through all of it.
            self.entries.clear();
        }
        count
    }

    /// Takes out those of a QP.
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

    /// Whether one of a QP's that succeeded is there.
    pub fn has_good_of(&self, qpn: u32) -> bool {
        let mut entries = self.entries.iter();
        entries.any(|wc| wc.qpn == qpn && wc.status == WcStatus::Success)
    }

    /// Asks to be told of the next completion, or only of the next solicited one.
    pub fn arm(&mut self, solicited_only: bool) {
        self.armed = match (self.armed, solicited_only) {
            // A request for any completion is not weakened by a later one.
            (Armed::Any, _) | (_, false) => Armed::Any,
            (Armed::No | Armed::Solicited, true) => Armed::Solicited,
        };
    }

    pub fn is_overrun(&self) -> bool {
        self.overrun
    }

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
        let mut ring = CqRing::new(1);
        ring.reserve(2, 0);
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
        let mut ring = CqRing::new(1);
        let segment = |wr_id| Wc::new(wr_id, WcOpcode::WriteRecordSegment, 1);
        assert_eq!(ring.push(segment(0)), Pushed::NoSlot);
        ring.reserve(1, 2);
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
    fn a_ring_that_may_lose_completions_never_overruns() {
        let mut ring = CqRing::new(1);
        ring.be_lossy();
        ring.push(recv(1, false));
        assert_eq!(ring.push(recv(2, false)), Pushed::Quiet);
        assert!(!ring.is_overrun());
        let mut out = [recv(0, false); 2];
        assert_eq!(ring.poll(&mut out), 1);
        assert_eq!(out[0].wr_id, 1);
    }

    #[test]
    fn a_ring_is_not_made_smaller_than_what_waits_in_it() {
        let mut ring = CqRing::new(2);
        ring.push(recv(1, false));
        ring.push(recv(2, false));
        assert!(!ring.resize(1));
        assert!(ring.resize(3));
        assert_eq!(ring.push(recv(3, false)), Pushed::Quiet);
        assert_eq!(ring.push(recv(4, false)), Pushed::Overrun);
    }

    #[test]
    fn completions_keep_the_time_of_their_coming() {
        let mut ring = CqRing::new(8);
        ring.push(recv(1, false));
        ring.keep_stamps();
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
        let mut ring = CqRing::new(2);
        ring.reserve(1, 1);
        ring.keep_stamps();
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
        let mut ring = CqRing::new(8);
        assert_eq!(ring.push(recv(1, true)), Pushed::Quiet);
        ring.arm(true);
        assert_eq!(ring.push(recv(2, false)), Pushed::Quiet);
        assert_eq!(ring.push(recv(3, true)), Pushed::Tell);
        assert_eq!(ring.push(recv(4, true)), Pushed::Quiet);
        ring.arm(false);
        ring.arm(true);
        assert_eq!(ring.push(recv(5, false)), Pushed::Tell);
    }
}
