//! The send queue of a connected QP. Short messages that left as they were posted are complete soon after: what their completion needs is kept apart,
//! since a whole work request takes four times as much memory.

use std::collections::VecDeque;

use dgiwarp_ddp::{STag, TaggedOffset};

use crate::connected::wqe::{Extent, RcData, RcSendWqe, RcWork};
use crate::cq_ring::CompletionSink;
use crate::recv_queue::SgeList;
use crate::types::{Wc, WcOpcode, WcStatus};

/// A short message that has left.
#[derive(Debug, Clone, Copy)]
pub(in crate::connected) struct LeftMessage {
    pub(in crate::connected) wr_id: u64,
    /// Destination of a Write; `None` for a Send.
    pub(in crate::connected) written: Option<(STag, TaggedOffset)>,
    pub(in crate::connected) length: u32,
    pub(in crate::connected) signaled: bool,
}

impl LeftMessage {
    #[inline]
    fn complete(&self, qpn: u32, completions: &mut impl CompletionSink) {
        let opcode = match self.written {
            Some(_) => WcOpcode::RdmaWrite,
            None => WcOpcode::Send,
        };
        let wc = || Wc {
            byte_len: self.length,
            ..Wc::new(self.wr_id, opcode, qpn)
        };
        // First: the program may post into the free place as soon as it has the completion.
        completions.retired();
        if self.signaled {
            completions.sent_as(wc);
        }
    }

    /// The work request. Nothing of it leaves again: its memory, and the STag to be invalidated, are not there any more.
    fn wqe(self) -> RcSendWqe {
        RcSendWqe {
            wr_id: self.wr_id,
            work: match self.written {
                Some((stag, start)) => RcWork::Write {
                    stag,
                    start,
                    immediate: None,
                },
                None => RcWork::Send { invalidate: None },
            },
            data: RcData::Sges(SgeList::new()),
            length: self.length,
            signaled: self.signaled,
            solicited: false,
            fence: false,
            remote_srqn: 0,
        }
    }
}

/// Work requests that are not complete, in posting order.
#[derive(Debug, Default)]
pub(in crate::connected) struct SendQueue {
    /// Messages that have left, before all in `queue`.
    left: VecDeque<(LeftMessage, Extent)>,
    queue: crate::send_queue::SendQueue<RcSendWqe, Extent>,
}

impl SendQueue {
    /// Appends a work request.
    #[inline(always)]
    pub(in crate::connected) fn push(&mut self, wqe: RcSendWqe) {
        self.queue.push(wqe);
    }

    /// Appends a message that has left, where all work requests before it have begun.
    #[inline(always)]
    pub(in crate::connected) fn push_left(&mut self, message: LeftMessage, extent: Extent) {
        if self.queue.is_empty() {
            self.left.push_back((message, extent));
            self.queue.pass();
        } else {
            self.queue.push_framed(message.wqe(), extent);
        }
    }

    /// Makes whole work requests of messages that have left.
    pub(in crate::connected) fn unfold(&mut self) {
        while let Some((message, extent)) = self.left.pop_back() {
            self.queue.return_framed(message.wqe(), extent);
        }
    }

    #[inline]
    pub(in crate::connected) fn is_empty(&self) -> bool {
        self.left.is_empty() && self.queue.is_empty()
    }

    #[inline]
    pub(in crate::connected) fn len(&self) -> usize {
        self.left.len() + self.queue.len()
    }

    /// Number of the oldest work request, or of the next one to be posted.
    pub(in crate::connected) fn oldest(&self) -> u64 {
        self.queue.oldest() - self.left.len() as u64
    }

    /// Number of the oldest work request if it has begun.
    pub(in crate::connected) fn oldest_begun(&self) -> Option<u64> {
        if self.left.is_empty() {
            self.queue.oldest_begun()
        } else {
            Some(self.oldest())
        }
    }

    /// The work request that was posted last, if it has not left as it was posted.
    #[inline]
    pub(in crate::connected) fn newest(&self) -> Option<&RcSendWqe> {
        self.queue.newest()
    }

    /// The work request of a number, if it has not left as it was posted.
    #[inline]
    pub(in crate::connected) fn get(&self, number: u64) -> Option<&RcSendWqe> {
        self.queue.get(number)
    }

    /// The first work request that has not begun, with its number.
    #[inline]
    pub(in crate::connected) fn unstarted(&self) -> Option<(u64, &RcSendWqe)> {
        self.queue.unstarted()
    }

    /// Work requests that have begun, in order, with their numbers.
    pub(in crate::connected) fn begun(
        &mut self,
    ) -> impl DoubleEndedIterator<Item = (u64, &RcSendWqe)> {
        self.unfold();
        self.queue.begun()
    }

    /// The first unstarted work request has begun.
    #[inline]
    pub(in crate::connected) fn begin(&mut self, mark: Extent) {
        self.queue.begin(mark);
    }

    /// The lower layer has all segments of a work request.
    #[inline]
    pub(in crate::connected) fn framed(&mut self, number: u64, mark: Extent) {
        self.queue.framed(number, mark);
    }

    /// The mark of a work request.
    pub(in crate::connected) fn mark(&mut self, number: u64) -> Option<&Extent> {
        self.unfold();
        self.queue.mark(number)
    }

    /// A work request is complete whatever its mark. Returns the mark.
    pub(in crate::connected) fn done(&mut self, number: u64) -> Option<&Extent> {
        self.queue.done(number)
    }

    /// Whether the oldest work request is framed, with a mark that `fits`.
    #[inline]
    pub(in crate::connected) fn oldest_is_framed(
        &self,
        fits: impl FnOnce(&Extent) -> bool,
    ) -> bool {
        match self.left.front() {
            Some((_, extent)) => fits(extent),
            None => self.queue.oldest_is_framed(fits),
        }
    }

    /// Completes the oldest work requests: framed ones of which TCP has `taken` all octets (RFC 5040 §5.5 rule 14) and that are among the first `placed`
    /// Sends and Writes.
    #[inline]
    pub(in crate::connected) fn complete(
        &mut self,
        taken: u64,
        placed: Option<u64>,
        qpn: u32,
        completions: &mut impl CompletionSink,
    ) {
        let reached = |extent: &Extent| {
            extent.octets <= taken && placed.is_none_or(|placed| extent.messages <= placed)
        };
        while let Some((message, extent)) = self.left.front() {
            if !reached(extent) {
                return;
            }
            message.complete(qpn, completions);
            self.left.pop_front();
        }
        self.queue.complete(reached, |wqe| {
            wqe.complete(qpn, WcStatus::Success, completions);
        });
    }

    /// Removes all work requests, after `flush` was called with the number of each.
    pub(in crate::connected) fn flush(&mut self, flush: impl FnMut(u64, &RcSendWqe)) {
        self.unfold();
        self.queue.flush(flush);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recording_sink::RecordingSink;

    fn message(wr_id: u64) -> LeftMessage {
        LeftMessage {
            wr_id,
            written: None,
            length: 1,
            signaled: true,
        }
    }

    fn extent(messages: u64) -> Extent {
        Extent {
            octets: 0,
            messages,
        }
    }

    /// Three messages that left, a work request, and two more that left behind it.
    fn queue() -> SendQueue {
        let mut queue = SendQueue::default();
        (0..3).for_each(|it| queue.push_left(message(it), extent(it + 1)));
        queue.push(message(3).wqe());
        queue.begin(Extent::default());
        queue.framed(3, extent(4));
        (4..6).for_each(|it| queue.push_left(message(it), extent(it + 1)));
        queue
    }

    #[test]
    fn messages_that_left_complete_in_order_with_all_others() {
        let mut queue = queue();
        for placed in 0..=6 {
            let mut completions = RecordingSink::default();
            queue.complete(0, Some(placed), 1, &mut completions);
            let expected = placed.checked_sub(1).into_iter().collect::<Vec<_>>();
            let ids = completions.sent.iter().map(|wc| wc.wr_id);
            assert_eq!(ids.collect::<Vec<_>>(), expected);
            assert_eq!((queue.oldest(), queue.len() as u64), (placed, 6 - placed));
            assert_eq!(queue.is_empty(), placed == 6);
        }
        queue.push_left(message(6), extent(7));
        assert_eq!((queue.oldest(), queue.oldest_begun()), (6, Some(6)));
        queue.push(message(7).wqe());
        assert_eq!(queue.unstarted().map(|(number, _)| number), Some(7));
    }

    #[test]
    fn their_numbers_are_those_of_work_requests() {
        let ids = |queue: &mut SendQueue| {
            let begun = queue.begun().map(|(number, wqe)| (number, wqe.wr_id));
            begun.collect::<Vec<_>>()
        };
        let numbered: Vec<_> = (0..6).map(|it| (it, it)).collect();
        assert_eq!(ids(&mut queue()), numbered);
        let mut flushed = Vec::new();
        queue().flush(|number, wqe| flushed.push((number, wqe.wr_id)));
        assert_eq!(flushed, numbered);
        let mut queue = queue();
        queue.complete(0, Some(1), 1, &mut RecordingSink::default());
        assert_eq!(queue.oldest_begun(), Some(1));
        assert_eq!(queue.mark(2).map(|it| it.messages), Some(3));
        assert_eq!(ids(&mut queue), numbered[1..]);
        assert!(queue.oldest_is_framed(|extent| extent.messages == 2));
    }
}
