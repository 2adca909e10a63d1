//! The end of a connection behind what was posted and requested before its reason.
//!
//! Work requests before the one that fails complete as if nothing were behind them, so that the first completion with an error is that of the reason, as on
//! InfiniBand.

use std::time::{Duration, Instant};

use dgiwarp_rdmap::stream::{Blamed, Peer, StreamError};

use crate::connected::RcEnd;
use crate::connected::engine::RcEngine;
use crate::connected::wqe::{Extent, RcSendWqe, RcWork};
use crate::cq_ring::CompletionSink;
use crate::recv_queue::Tables;

/// Time for a peer to take the answers to its requests from before its error.
const ANSWERED_FOR: Duration = Duration::from_secs(4);

/// An end whose reason is known, and that others come before. No work request begins any more.
#[derive(Debug, Clone, Copy)]
pub(in crate::connected) struct PendingEnd {
    pub(in crate::connected) end: RcEnd,
    /// Work request that is the reason, behind others that complete first. Without one the peer is the reason, and its requests from before are answered
    /// first.
    pub(in crate::connected) blamed: Option<u64>,
}

/// Time of the answers before a pending end. Beside it, because memcheck takes a look into an `Option` that has none for one at undefined memory.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::connected) struct AnswerTime {
    /// Deadline, from the first call that knows the time.
    until: Option<Instant>,
    /// It has passed.
    is_over: bool,
}

impl RcEngine {
    /// Ends the connection for an error of a work request, once those before it are complete.
    pub(in crate::connected) fn end_in_order(
        &mut self,
        end: RcEnd,
        blamed: Option<u64>,
        tables: Tables<'_>,
        completions: &mut impl CompletionSink,
    ) {
        self.complete_sends(completions);
        if blamed.is_none_or(|blamed| self.sends.oldest() >= blamed) {
            self.finish(end, blamed, tables, completions);
            return;
        }
        self.pending_end = Some(PendingEnd { end, blamed });
        // Acknowledgements of unsignaled work requests are wanted, too.
        if let Some(Extent { messages, .. }) = blamed.and_then(|it| self.sends.mark(it).copied()) {
            self.note_wanted(messages);
        }
    }

    /// Ends the connection for an error of the peer's, once a dgiwarp peer has the answers to its requests from before. Another peer has the Terminate at
    /// the earliest opportunity (RFC 5040 §7.1 rules 2 and 3).
    pub(in crate::connected) fn end_behind_responses(
        &mut self,
        error: StreamError,
        tables: Tables<'_>,
        completions: &mut impl CompletionSink,
    ) {
        let end = RcEnd::Stream(error);
        let is_dgiwarp = matches!(self.stream.dgiwarp_ext().peer(), Peer::Dgiwarp(_));
        let may_wait = is_dgiwarp && self.pending_end.is_none() && self.llp.may_send();
        if may_wait && self.stream.has_responses() {
            self.pending_end = Some(PendingEnd { end, blamed: None });
        } else {
            self.finish(end, None, tables, completions);
        }
    }

    /// Whether nothing comes before the pending end any more.
    #[inline]
    pub fn is_end_due(&self) -> bool {
        self.pending_end.is_some_and(|pending| {
            let is_next = match pending.blamed {
                Some(blamed) => self.sends.oldest() >= blamed,
                None => !self.stream.has_responses(),
            };
            self.end.is_none() && (self.answer_time.is_over || is_next && !self.is_amid())
        })
    }

    /// Begins the time for the answers, if an end behind them is pending.
    #[inline]
    pub(in crate::connected) fn begin_answer_deadline(&mut self, now: Instant) {
        if self.pending_end.is_some_and(|it| it.blamed.is_none()) && !self.answer_time.is_over {
            self.answer_time.until.get_or_insert(now + ANSWERED_FOR);
        }
    }

    /// When the answers before the pending end are given up.
    #[inline]
    pub(in crate::connected) fn answer_deadline(&self) -> Option<Instant> {
        self.answer_time.until
    }

    /// Notes that the time for the answers is over; `make_fpdus` comes next.
    pub(in crate::connected) fn time_out_answers(&mut self, now: Instant) {
        if self.answer_time.until.is_some_and(|until| until <= now) {
            self.answer_time = AnswerTime {
                until: None,
                is_over: true,
            };
        }
    }

    /// Ends the connection for the pending reason.
    pub(in crate::connected) fn end_pending(
        &mut self,
        tables: Tables<'_>,
        completions: &mut impl CompletionSink,
    ) {
        if let Some(PendingEnd { end, blamed }) = self.pending_end {
            self.finish(end, blamed, tables, completions);
        }
    }

    /// The work request that the peer's Terminate is about, if it has begun and is not complete.
    pub(in crate::connected) fn blamed(&mut self) -> Option<u64> {
        match self.stream.blamed()? {
            Blamed::Request(number) => Some(number),
            Blamed::Queued(behind) => {
                let queued = self.sends.begun().rev().filter(|(number, wqe)| {
                    // The message of an immediate comes behind its Write.
                    let is_amid = self.sending.as_ref().is_some_and(|it| it.number == *number);
                    is_queued(wqe) && !(is_amid && matches!(wqe.work, RcWork::Write { .. }))
                });
                let mut queued = queued.map(|(number, _)| number);
                queued.nth(usize::try_from(behind - 1).ok()?)
            }
            Blamed::Write(stag, offset) => {
                let mut begun = self.sends.begun();
                let write = begun.find(|(_, wqe)| match wqe.work {
                    RcWork::Write {
                        stag: of, start, ..
                    } => {
                        let octets = offset.get().wrapping_sub(start.get());
                        of == stag && octets <= u64::from(wqe.length)
                    }
                    RcWork::Send { .. }
                    | RcWork::SendImmediate { .. }
                    | RcWork::Read { .. }
                    | RcWork::Atomic { .. }
                    | RcWork::Memory(_) => false,
                });
                write.map(|(number, _)| number)
            }
        }
    }
}

/// Whether a work request has a message to the peer's receive queue.
const fn is_queued(wqe: &RcSendWqe) -> bool {
    match wqe.work {
        RcWork::Send { .. } | RcWork::SendImmediate { .. } => true,
        RcWork::Write { immediate, .. } => immediate.is_some(),
        RcWork::Read { .. } | RcWork::Atomic { .. } | RcWork::Memory(_) => false,
    }
}
