//! Streams of messages over a datagram queue pair.

use dgiwarp::{Operation, Wc, WcOpcode};

use crate::catalog::{Mode, Op};
use crate::endpoint::loss::{self, Mark};
use crate::endpoint::ours::ud::{Counted, Seen, Ud};
use crate::endpoint::ours::{extend, too_early};
use crate::endpoint::pattern::{self, POSITION_BITS, POSITION_MASK, narrow, widen};
use crate::error::Result;
use crate::measure::{Arrival, Flow, RecordShape, Want};
use crate::session::control::Datagrams;

/// An immediate is the low bits of the round and of the message number.
const NUMBER_BITS: u32 = 24;
const NUMBER_MASK: u64 = (1 << NUMBER_BITS) - 1;

impl Flow for Ud {
    const LOSES: bool = true;

    fn start_round(&mut self, round: u16) -> Result<()> {
        self.round = u64::from(round);
        self.highest = 0;
        self.members.restart();
        // Answers to earlier rounds; their receives are posted again.
        while let Some(wc) = self.completion(false)? {
            match wc.opcode {
                WcOpcode::Recv => self.post_receive(wc.wr_id)?,
                WcOpcode::WriteRecord => {
                    self.qp.release_record(wc.record());
                }
                _ => {}
            }
        }
        self.ending = None;
        self.counted = self.counted();
        self.seen = Seen::default();
        Ok(())
    }

    fn transmit(&mut self, position: u64, length: u64) -> Result<u64> {
        if self.list > 1 {
            return self.transmit_list(position, length);
        }
        let number = position / widen(self.chunk);
        let slot = self.source(number);
        if self.op != Op::WriteRecord
            && self.chunk >= pattern::STAMP
            && length >= widen(pattern::STAMP)
        {
            let memory = self.outgoing.as_ref().ok_or_else(too_early)?;
            let stamp = (self.round << POSITION_BITS) | position;
            memory
                .buffer
                .write(slot * self.stride, &stamp.to_le_bytes());
        }
        let taken = self.post(self.operation(number), slot, narrow(length))?;
        Ok(if taken { length } else { 0 })
    }

    fn poll(&mut self, _want: Want, may_wait: bool) -> Result<Arrival> {
        let Some(wc) = self.completion(may_wait && self.ending.is_none())? else {
            return Ok(self.ending.take().map_or(Arrival::Nothing, marked));
        };
        match wc.opcode {
            WcOpcode::Recv if wc.immediate.is_some() => self.position_received(&wc),
            WcOpcode::Recv => self.data_received(&wc),
            WcOpcode::WriteRecord => self.data_recorded(&wc),
            _ => Ok(Arrival::Other),
        }
    }

    fn credit(&mut self, position: u64) -> Result<()> {
        // A credit that finds the queue full is lost; the next one covers it.
        self.post_position(position).map(|_| ())
    }

    fn mark(&mut self, mark: Mark) -> Result<bool> {
        self.post_position(mark.to_position())
    }

    fn datagrams(&mut self) -> Datagrams {
        let now = self.counted();
        Datagrams {
            sent: now.sent - self.counted.sent,
            dropped: now.dropped - self.counted.dropped,
            refused: now.refused - self.counted.refused,
            marks: self.seen.marks,
            valid: self.seen.valid,
        }
    }

    fn settle(&mut self) {
        self.qp.complete_records();
    }
}

fn marked(position: u64) -> Arrival {
    Arrival::Data {
        bytes: 0,
        end: Some(position),
        record: None,
    }
}

impl Ud {
    /// Sends a short message with a position: a credit or a mark.
    fn post_position(&mut self, position: u64) -> Result<bool> {
        let memory = self.outgoing.as_ref().ok_or_else(too_early)?;
        let stamp = (self.round << POSITION_BITS) | position;
        memory
            .buffer
            .write(self.sources * self.stride, &stamp.to_le_bytes());
        let operation = Operation::Send { immediate: Some(0) };
        self.post(operation, self.sources, pattern::STAMP)
    }

    fn counted(&self) -> Counted {
        let counters = self.qp.counters();
        Counted {
            sent: counters.segments_sent,
            dropped: counters.fault_dropped,
            refused: counters.dropped_in_all(),
        }
    }

    /// The immediate of the message of this number.
    pub(super) fn immediate(&self, number: u64) -> u32 {
        let tag = (self.round << NUMBER_BITS) | (number & NUMBER_MASK);
        u32::try_from(tag & 0xffff_ffff).unwrap_or(0)
    }

    fn position_received(&mut self, wc: &Wc) -> Result<Arrival> {
        let stamp = self.read_stamp(wc)?;
        self.post_receive(wc.wr_id)?;
        if stamp >> POSITION_BITS != self.round {
            return Ok(Arrival::Other);
        }
        let mark = Mark::from_position(stamp & POSITION_MASK);
        self.seen.marks += u64::from(mark.is_some());
        match mark {
            None if self.group.is_some() => {
                let from = wc.source.map_or(0, |source| source.port());
                let reached = self.members.credit(from, stamp & POSITION_MASK);
                Ok(reached.map_or(Arrival::Other, Arrival::Credit))
            }
            None => Ok(Arrival::Credit(stamp & POSITION_MASK)),
            Some(mark) if mark.last => {
                // Everything was sent before: what is still open stays as it is.
                self.qp.complete_records();
                self.ending = Some(mark.position);
                Ok(Arrival::Other)
            }
            Some(mark) => Ok(marked(mark.position)),
        }
    }

    fn data_received(&self, wc: &Wc) -> Result<Arrival> {
        let bytes = u64::from(wc.byte_len);
        let mut end = None;
        let mut late = false;
        if self.chunk >= pattern::STAMP && bytes >= widen(pattern::STAMP) {
            let stamp = self.read_stamp(wc)?;
            late = stamp >> POSITION_BITS != self.round;
            end = Some((stamp & POSITION_MASK) + bytes);
        }
        if self.check && !late {
            let memory = self.receives.as_ref().ok_or_else(too_early)?;
            let start = narrow(wc.wr_id) * self.receive_stride;
            let message = memory.buffer.to_vec(start, narrow(bytes));
            pattern::verify(&message, self.chunk, &self.pattern, POSITION_MASK)?;
        }
        self.post_receive(wc.wr_id)?;
        Ok(if late {
            Arrival::Other
        } else {
            Arrival::Data {
                bytes,
                end,
                record: None,
            }
        })
    }

    fn read_stamp(&self, wc: &Wc) -> Result<u64> {
        let memory = self.receives.as_ref().ok_or_else(too_early)?;
        let mut stamp = [0; pattern::STAMP];
        let start = narrow(wc.wr_id) * self.receive_stride;
        memory.buffer.read(start, &mut stamp);
        Ok(u64::from_le_bytes(stamp))
    }

    /// A record may be of an earlier round, or have holes where segments were lost.
    fn data_recorded(&mut self, wc: &Wc) -> Result<Arrival> {
        let handle = wc.record();
        let Some(record) = self.qp.record(handle) else {
            return Ok(Arrival::Other);
        };
        self.qp.release_record(handle);
        let tag = u64::from(wc.immediate.unwrap_or(0));
        if tag >> NUMBER_BITS != self.round & 0xff {
            return Ok(Arrival::Other);
        }
        let number = extend(tag & NUMBER_MASK, self.highest, NUMBER_BITS);
        self.highest = self.highest.max(number + 1);
        let length = u64::from(record.length);
        let end = number * widen(self.chunk) + length;
        if self.check {
            let memory = self.exposed.as_ref().ok_or_else(too_early)?;
            let start = narrow(number % widen(self.slots)) * self.stride;
            for &(from, to) in &record.ranges {
                let (from, to) = (u64::from(from), u64::from(to));
                let bytes = memory
                    .buffer
                    .to_vec(start + narrow(from), narrow(to - from));
                pattern::verify_stream(&bytes, from, &self.pattern)?;
            }
        }
        if self.mode == Mode::Loss {
            self.seen.valid += loss::segments_in(&record.ranges, self.segment);
        }
        Ok(Arrival::Data {
            bytes: u64::from(wc.byte_len),
            end: Some(end),
            record: Some(RecordShape {
                holes: holes(&record.ranges, record.length),
            }),
        })
    }
}

/// Gaps before, between and behind valid ranges (start and end) of a message.
pub(in crate::endpoint::ours) fn holes(ranges: &[(u32, u32)], length: u32) -> u64 {
    let mut reached = 0;
    let mut holes = 0;
    for &(start, end) in ranges {
        holes += u64::from(start > reached);
        reached = end;
    }
    holes + u64::from(reached < length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_are_counted_before_between_and_behind() {
        assert_eq!(holes(&[(0, 100)], 100), 0);
        assert_eq!(holes(&[], 100), 1);
        assert_eq!(holes(&[(10, 30), (40, 50)], 100), 3);
        assert_eq!(holes(&[(0, 20), (40, 100)], 100), 1);
    }
}
