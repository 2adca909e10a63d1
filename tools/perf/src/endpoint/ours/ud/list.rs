//! Many messages in one call, as a list of work requests.

use dgiwarp::{Operation, PostError, SendWr, Sge};

use crate::catalog::Op;
use crate::endpoint::ours::ud::Ud;
use crate::endpoint::ours::{stack, too_early};
use crate::endpoint::pattern::{self, POSITION_BITS, narrow, widen};
use crate::error::Result;

impl Ud {
    /// Hands over the messages that begin at `position`, in one call; how many octets of them were taken.
    pub(super) fn transmit_list(&mut self, position: u64, length: u64) -> Result<u64> {
        let first = position / widen(self.chunk);
        let count = narrow(length) / self.chunk;
        let number = |at: usize| first + widen(at);
        let sges: Vec<[Sge; 1]> = (0..count)
            .map(|at| self.message_sge(number(at)))
            .collect::<Result<_>>()?;
        // Lent: a clone and its end cost an atomic operation each.
        let mut lent = std::mem::take(&mut self.destinations);
        if lent.len() < count {
            let peer = self.peer.as_ref().ok_or_else(too_early)?;
            lent.resize_with(count, || peer.clone());
        }
        let rest = lent.split_off(count);
        let requests: Vec<SendWr<'_>> = lent
            .drain(..)
            .zip(&sges)
            .enumerate()
            .map(|(at, (destination, sge))| SendWr {
                wr_id: 0,
                operation: self.operation(number(at)),
                destination,
                sges: sge,
                signaled: false,
                solicited: false,
            })
            .collect();
        let posted = self.qp.post_send(&requests);
        self.destinations = rest;
        let back = requests.into_iter().map(|request| request.destination);
        self.destinations.extend(back);
        match posted {
            Ok(()) => Ok(length),
            Err(failure) if failure.source == PostError::QueueFull => {
                Ok(widen(failure.accepted * self.chunk))
            }
            Err(error) => Err(stack("post a list of sends")(error)),
        }
    }

    /// Where the message of this number lies. One with a stamp gets it.
    fn message_sge(&self, number: u64) -> Result<[Sge; 1]> {
        let memory = self.outgoing.as_ref().ok_or_else(too_early)?;
        let start = self.source(number) * self.stride;
        if self.op == Op::Send && self.chunk >= pattern::STAMP {
            let position = number * widen(self.chunk);
            let stamp = (self.round << POSITION_BITS) | position;
            memory.buffer.write(start, &stamp.to_le_bytes());
        }
        Ok([memory.region.sge(start..start + self.chunk)])
    }

    /// The slot that the message of this number is sent from.
    pub(super) fn source(&self, number: u64) -> usize {
        narrow(number % widen(self.sources))
    }

    /// The operation on the message of this number.
    pub(super) fn operation(&self, number: u64) -> Operation {
        let slot = number % widen(self.slots);
        match (self.op, self.target) {
            (Op::WriteRecord, Some(target)) => Operation::WriteRecord {
                rkey: target.stag,
                remote_addr: target.base + slot * widen(self.stride),
                immediate: Some(self.immediate(number)),
            },
            _ => Operation::Send { immediate: None },
        }
    }
}
