//! Many messages in one call, as a list of work requests.

use dgiwarp::{RcSendWr, Sge};

use crate::endpoint::ours::rc::Rc;
use crate::endpoint::ours::too_early;
use crate::error::Result;

impl Rc {
    /// Posts the next messages, in one call; how many were taken.
    pub(super) fn post_list(&mut self, count: usize) -> Result<usize> {
        let messages = self.posted..;
        let sges: Vec<[Sge; 1]> = messages
            .clone()
            .take(count)
            .map(|number| self.tagged_message(number))
            .collect::<Result<_>>()?;
        let requests: Vec<RcSendWr<'_>> = messages
            .zip(&sges)
            .map(|(number, sge)| {
                let operation = self.operation(number)?;
                Ok(RcSendWr {
                    signaled: false,
                    ..RcSendWr::new(0, operation, sge)
                })
            })
            .collect::<Result<_>>()?;
        let taken = self.link.post_sends(requests)?;
        self.posted += crate::endpoint::pattern::widen(taken);
        Ok(taken)
    }

    /// Where the message of this number lies, with its tag.
    fn tagged_message(&self, number: u64) -> Result<[Sge; 1]> {
        let memory = self.outgoing.as_ref().ok_or_else(too_early)?;
        let start = self.place(number);
        let end = start + self.size;
        memory.buffer.write(end - 1, &[self.tag(number)]);
        Ok([memory.region.sge(start..end)])
    }
}
