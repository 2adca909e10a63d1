//! Streams of messages over a connected queue pair.

use dgiwarp::{RcOperation, Wc, WcOpcode};

use crate::catalog::Op;
use crate::endpoint::ours::extend;
use crate::endpoint::ours::rc::Rc;
use crate::endpoint::pattern::{narrow, widen};
use crate::error::{PerfError, Result};
use crate::measure::{Arrival, Flow, Want};

/// The immediate of a credit has this bit, below it the low bits of the round, and below these how many of its messages were seen.
const CREDIT: u64 = 1 << 31;
const SEEN_BITS: u32 = 24;
const SEEN: u64 = (1 << SEEN_BITS) - 1;

impl Flow for Rc {
    const LOSES: bool = false;

    fn start_round(&mut self, round: u16) -> Result<()> {
        // All messages of earlier rounds were seen, but maybe not the last credit.
        while let Some(wc) = self.completion(false)? {
            if is_receive(&wc) {
                self.post_receive(wc.wr_id)?;
            }
        }
        self.round = u64::from(round);
        self.credited = 0;
        Ok(())
    }

    fn transmit(&mut self, _position: u64, length: u64) -> Result<u64> {
        if self.list > 1 {
            let taken = self.post_list(narrow(length) / self.size)?;
            return Ok(widen(taken * self.size));
        }
        let taken = self.post_message()?;
        Ok(if taken { length } else { 0 })
    }

    fn poll(&mut self, want: Want, may_wait: bool) -> Result<Arrival> {
        let written = self.op == Op::Write && want != Want::Credit;
        // One poll of the queue may have placed many.
        if written && self.is_written() {
            return self.message(0);
        }
        let Some(wc) = self.completion(may_wait && !written)? else {
            if written && may_wait {
                self.let_others_run();
            }
            return Ok(Arrival::Nothing);
        };
        if !is_receive(&wc) {
            return Ok(Arrival::Other);
        }
        let credit = wc.immediate.map(u64::from);
        let arrival = match credit.filter(|credit| credit & CREDIT != 0) {
            Some(credit) if credit & !SEEN == self.credit_of_round() => {
                self.credited = extend(credit & SEEN, self.credited, SEEN_BITS);
                Arrival::Credit(self.credited * widen(self.size))
            }
            Some(_) => Arrival::Other,
            None => self.message(wc.wr_id)?,
        };
        self.post_receive(wc.wr_id)?;
        Ok(arrival)
    }

    fn credit(&mut self, position: u64) -> Result<()> {
        let seen = position / widen(self.size);
        let operation = RcOperation::Write {
            rkey: 0,
            remote_addr: 0,
            immediate: u32::try_from(self.credit_of_round() | (seen & SEEN)).ok(),
        };
        // The queue has room for as many credits as there can be beside a whole window.
        if self.post(operation, &[])? {
            Ok(())
        } else {
            Err(PerfError::Stack {
                what: "post a credit",
                reason: "the queue is full".to_owned(),
            })
        }
    }
}

fn is_receive(wc: &Wc) -> bool {
    matches!(wc.opcode, WcOpcode::Recv | WcOpcode::RecvRdmaWithImmediate)
}

impl Rc {
    /// A credit of this round, without what was seen.
    const fn credit_of_round(&self) -> u64 {
        CREDIT | ((self.round << SEEN_BITS) & (CREDIT - 1))
    }

    /// Counts the peer's next message.
    fn message(&mut self, receive: u64) -> Result<Arrival> {
        self.arrived(receive)?;
        Ok(Arrival::Data {
            bytes: widen(self.size),
            end: None,
            record: None,
        })
    }
}
