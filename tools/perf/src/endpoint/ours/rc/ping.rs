//! Ping-pong over a connected queue pair.

use dgiwarp::WcOpcode;

use crate::catalog::Op;
use crate::endpoint::ours::rc::Rc;
use crate::error::Result;
use crate::measure::{Idle, PingPong, Watch};

impl PingPong for Rc {
    const LOSES: bool = false;

    fn send(&mut self, sequence: u64, watch: &mut Watch<'_>) -> Result<()> {
        self.sequence = sequence;
        while !self.post_message()? {
            // A completion makes room.
            self.completion(false)?;
            if watch.idle(false)? == Idle::Stop {
                break;
            }
        }
        self.finish_direct(watch)?;
        match self.consumed.take() {
            Some(slot) => self.post_receive(slot),
            None => Ok(()),
        }
    }

    fn try_receive(&mut self) -> Result<Option<u64>> {
        if self.op == Op::Write {
            return self.try_receive_write();
        }
        let Some(wc) = self.completion(true)? else {
            return Ok(None);
        };
        match wc.opcode {
            WcOpcode::Recv | WcOpcode::RecvRdmaWithImmediate => {
                self.arrived(wc.wr_id)?;
                // Posted again behind the answer: others are posted still.
                if let Some(slot) = self.consumed.replace(wc.wr_id) {
                    self.post_receive(slot)?;
                }
                Ok(Some(self.sequence))
            }
            _ => Ok(None),
        }
    }
}

impl Rc {
    /// Polls the queue until the Write that was posted has completed, as `ib_write_lat` does between two messages.
    fn finish_direct(&mut self, watch: &mut Watch<'_>) -> Result<()> {
        while self.unfinished > 0 {
            if self.completion(false)?.is_none() && watch.idle(false)? == Idle::Stop {
                break;
            }
        }
        Ok(())
    }

    /// Polling is what places the peer's Write, unless the peer or another thread did.
    fn try_receive_write(&mut self) -> Result<Option<u64>> {
        if !self.direct {
            self.completion(false)?;
        }
        if self.is_written() {
            self.arrived(0)?;
            return Ok(Some(self.sequence));
        }
        self.let_others_run();
        Ok(None)
    }
}
