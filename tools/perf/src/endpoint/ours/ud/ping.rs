//! Ping-pong over a datagram queue pair.

use dgiwarp::{Operation, Wc, WcOpcode};

use crate::catalog::Op;
use crate::endpoint::ours::too_early;
use crate::endpoint::ours::ud::Ud;
use crate::endpoint::pattern::{self, OFFSET_BITS, narrow};
use crate::error::Result;
use crate::measure::{Idle, PingPong, Watch};

const OFFSET_MASK: u64 = (1 << OFFSET_BITS) - 1;

impl PingPong for Ud {
    const LOSES: bool = true;

    fn send(&mut self, sequence: u64, watch: &mut Watch<'_>) -> Result<()> {
        let operation = match (self.op, self.target) {
            (Op::WriteRecord, Some(target)) => Operation::WriteRecord {
                rkey: target.stag,
                remote_addr: target.base,
                immediate: u32::try_from(sequence & OFFSET_MASK).ok(),
            },
            _ => {
                self.stamp_ping(sequence)?;
                Operation::Send { immediate: None }
            }
        };
        while !self.post(operation, 0, self.size)? {
            // The background thread drains it as the network has room.
            if watch.idle(false)? == Idle::Stop {
                break;
            }
        }
        match self.consumed.take() {
            Some(slot) => self.post_receive(slot),
            None => Ok(()),
        }
    }

    fn try_receive(&mut self) -> Result<Option<u64>> {
        let Some(wc) = self.completion(true)? else {
            return Ok(None);
        };
        match wc.opcode {
            WcOpcode::Recv => self.ping_received(&wc).map(Some),
            WcOpcode::WriteRecord => self.ping_recorded(&wc),
            _ => Ok(None),
        }
    }
}

impl Ud {
    fn stamp_ping(&self, sequence: u64) -> Result<()> {
        let memory = self.outgoing.as_ref().ok_or_else(too_early)?;
        if self.size < pattern::STAMP {
            let bytes = sequence.to_le_bytes();
            memory
                .buffer
                .write(0, bytes.get(..self.size).unwrap_or(&[]));
        } else {
            let stamp = sequence << OFFSET_BITS;
            memory.buffer.write(0, &stamp.to_le_bytes());
        }
        Ok(())
    }

    /// The sequence of a received message. Its receive is posted again behind the answer: others
    /// are posted still.
    fn ping_received(&mut self, wc: &Wc) -> Result<u64> {
        let memory = self.receives.as_ref().ok_or_else(too_early)?;
        let start = narrow(wc.wr_id) * self.receive_stride;
        let mut stamp = [0; pattern::STAMP];
        let length = self.size.min(pattern::STAMP);
        if let Some(stamp) = stamp.get_mut(..length) {
            memory.buffer.read(start, stamp);
        }
        if self.check && self.size >= pattern::STAMP {
            let message = memory.buffer.to_vec(start, self.size);
            pattern::verify(&message, self.chunk, &self.pattern, OFFSET_MASK)?;
        }
        if let Some(slot) = self.consumed.replace(wc.wr_id) {
            self.post_receive(slot)?;
        }
        let stamp = u64::from_le_bytes(stamp);
        Ok(if self.size < pattern::STAMP {
            stamp
        } else {
            stamp >> OFFSET_BITS
        })
    }

    /// The sequence of a complete record; one with holes is no answer.
    fn ping_recorded(&self, wc: &Wc) -> Result<Option<u64>> {
        self.qp.release_record(wc.record());
        if narrow(u64::from(wc.byte_len)) < self.size {
            return Ok(None);
        }
        if self.check {
            let memory = self.exposed.as_ref().ok_or_else(too_early)?;
            let message = memory.buffer.to_vec(0, self.size);
            pattern::verify_stream(&message, 0, &self.pattern)?;
        }
        Ok(wc.immediate.map(u64::from))
    }
}
