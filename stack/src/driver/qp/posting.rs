//! Work requests on their way from the threads that post to an engine that one thread at a time works, and completions on
//! their way back.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::driver::cq::completion_queue::CompletionQueue;
use crate::driver::cq::direct::DirectCompletions;
use crate::driver::qp::exclusive::Exclusive;
use crate::{AsyncEvent, PostError, Wc, WcStatus};
use dgiwarp_engine::cq_ring::CompletionSink;

/// The send queue of a QP as posting threads see it.
#[derive(Debug)]
pub(crate) struct Posting<W> {
    /// Work requests posted while another thread was at work.
    inbox: Mutex<VecDeque<W>>,
    /// Length of `inbox`, for a check without the lock.
    waiting: AtomicUsize,
    outstanding: AtomicUsize,
    max: usize,
}

impl<W> Posting<W> {
    /// A queue for at most `max` outstanding work requests.
    pub(crate) fn new(max: usize) -> Self {
        Self {
            inbox: Mutex::new(VecDeque::with_capacity(max.min(1024))),
            waiting: AtomicUsize::new(0),
            outstanding: AtomicUsize::new(0),
            max,
        }
    }

    /// Work requests that may be outstanding.
    pub(crate) fn max(&self) -> usize {
        self.max
    }

    /// Takes room for `wanted` work requests; returns how many there is room for, or none if these are fewer than `least`.
    fn admit(&self, wanted: usize, least: usize) -> usize {
        let mut admitted = 0;
        let _ = self
            .outstanding
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, |outstanding| {
                admitted = wanted.min(self.max.saturating_sub(outstanding));
                if admitted < least {
                    admitted = 0;
                }
                (admitted > 0).then_some(outstanding + admitted)
            });
        admitted
    }

    /// Leaves a work request to the thread that is at work.
    fn leave(&self, wqe: W) {
        let mut inbox = self.inbox.lock();
        inbox.push_back(wqe);
        self.waiting.store(inbox.len(), Ordering::Release);
    }

    /// Leaves work requests to the thread that is at work. Returns how many, and why no more.
    #[cold]
    fn leave_all<T>(
        &self,
        exclusive: &Exclusive<T>,
        wqes: &mut dyn Iterator<Item = Result<W, PostError>>,
        most: usize,
        work: impl Fn(&mut T),
    ) -> (usize, Result<(), PostError>) {
        let taken = take(wqes, most, |wqe| self.leave(wqe));
        exclusive.run_or_mark(work);
        taken
    }

    /// A work request left the engine.
    #[inline]
    pub(crate) fn retire(&self) {
        self.outstanding.fetch_sub(1, Ordering::AcqRel);
    }

    /// Forgets everything, for a QP that is made new.
    pub(crate) fn reset(&self) {
        let mut inbox = self.inbox.lock();
        inbox.clear();
        self.waiting.store(0, Ordering::Release);
        self.outstanding.store(0, Ordering::Release);
    }

    /// Whether nothing was posted while another thread was at work.
    #[inline]
    pub(crate) fn is_handed_over(&self) -> bool {
        self.waiting.load(Ordering::Acquire) == 0
    }

    /// Hands over what was posted while another thread was at work.
    #[inline]
    pub(crate) fn empty(&self, mut accept: impl FnMut(W)) {
        if self.waiting.load(Ordering::Acquire) != 0 {
            self.hand_over(&mut accept);
        }
    }

    #[cold]
    fn hand_over(&self, accept: &mut dyn FnMut(W)) {
        let mut inbox = self.inbox.lock();
        self.waiting.store(0, Ordering::Release);
        while let Some(wqe) = inbox.pop_front() {
            accept(wqe);
        }
    }

    /// Gives work requests to the engine in this thread with `accept`, and goes on with `after`; if another thread is at work, that one does the `work`.
    /// Unless there is room for `least` of them, none is accepted. Returns how many were, and why no more.
    #[inline]
    pub(crate) fn post<T>(
        &self,
        exclusive: &Exclusive<T>,
        mut wqes: impl ExactSizeIterator<Item = Result<W, PostError>>,
        least: usize,
        (accept, after): (impl Fn(&mut T, W), impl Fn(&mut T)),
        work: impl Fn(&mut T),
    ) -> (usize, Result<(), PostError>) {
        let wanted = wqes.len();
        let admitted = self.admit(wanted, least);
        let ran = exclusive.try_run(
            |engine| {
                // Work requests that others posted before go first.
                self.empty(|wqe| accept(engine, wqe));
                let taken = take(&mut wqes, admitted, |wqe| accept(engine, wqe));
                after(engine);
                taken
            },
            &work,
        );
        let (accepted, mut result) = match ran {
            Some(taken) => taken,
            None => self.leave_all(exclusive, &mut wqes, admitted, work),
        };
        // Seldom: an atomic operation costs as much as a copy of the message.
        if accepted < admitted {
            self.outstanding
                .fetch_sub(admitted - accepted, Ordering::AcqRel);
        }
        if result.is_ok() && accepted < wanted {
            result = Err(PostError::QueueFull);
        }
        (accepted, result)
    }
}

/// Work requests that are sent as they are posted.
impl<W> Posting<W> {
    /// Has `send` post one work request in this thread, behind all others, and send it at once. Where another thread is at work, or there is no room, or
    /// `send` does not, nothing is posted. Returns whether it was.
    #[inline]
    pub(crate) fn post_alone<T>(
        &self,
        exclusive: &Exclusive<T>,
        send: impl FnOnce(&mut T) -> bool,
        work: impl Fn(&mut T),
    ) -> bool {
        self.post_ahead(exclusive, 1, |engine, _| usize::from(send(engine)), work) == 1
    }

    /// As [`post_alone`](Self::post_alone) with several work requests: `send` is called with the number that there is room for, at most `wanted`, and returns
    /// how many it has posted and sent. Returns that.
    #[inline]
    pub(crate) fn post_ahead<T>(
        &self,
        exclusive: &Exclusive<T>,
        wanted: usize,
        send: impl FnOnce(&mut T, usize) -> usize,
        work: impl Fn(&mut T),
    ) -> usize {
        let admitted = self.admit(wanted, 1);
        if admitted == 0 {
            return 0;
        }
        let first = |engine: &mut T| {
            if self.is_handed_over() {
                send(engine, admitted)
            } else {
                0
            }
        };
        let sent = exclusive.try_run(first, work).unwrap_or(0);
        if sent < admitted {
            self.outstanding
                .fetch_sub(admitted - sent, Ordering::AcqRel);
        }
        sent
    }
}

/// Hands over `most` work requests, until one could not be made. Returns how many, and why no more.
#[inline]
fn take<W, I: Iterator<Item = Result<W, PostError>> + ?Sized>(
    wqes: &mut I,
    most: usize,
    mut accept: impl FnMut(W),
) -> (usize, Result<(), PostError>) {
    for taken in 0..most {
        match wqes.next() {
            Some(Ok(wqe)) => accept(wqe),
            Some(Err(error)) => return (taken, Err(error)),
            None => return (taken, Ok(())),
        }
    }
    (most, Ok(()))
}

/// Sends completions to the queues of a QP.
pub(crate) struct Completions<'a, 'd, W> {
    pub(crate) send_cq: &'a CompletionQueue,
    pub(crate) recv_cq: &'a CompletionQueue,
    pub(crate) posting: &'a Posting<W>,
    /// Place of the thread that polls.
    pub(crate) direct: Option<&'a mut DirectCompletions<'d>>,
    /// Error state of a connected QP: set before a completion with an error is visible.
    pub(crate) over: Option<&'a AtomicBool>,
}

impl<W> Completions<'_, '_, W> {
    #[inline]
    fn note_state(&self, wc: &Wc) {
        if let Some(over) = self.over
            && wc.status != WcStatus::Success
        {
            over.store(true, Ordering::Release);
        }
    }

    #[inline]
    fn complete(&mut self, cq: &CompletionQueue, wc: Wc) {
        self.complete_as(cq, || wc);
    }

    /// Completes with the completion that `make` returns: in the place of the thread that polls, or by the queue.
    #[inline(always)]
    fn complete_as(&mut self, cq: &CompletionQueue, make: impl FnOnce() -> Wc) {
        match &mut self.direct {
            Some(direct) if cq.gives_directly(direct) => direct.put(make),
            Some(_) | None => push_apart(cq, make()),
        }
    }
}

#[inline(never)]
fn push_apart(cq: &CompletionQueue, wc: Wc) {
    cq.push(wc);
}

impl<W> CompletionSink for Completions<'_, '_, W> {
    #[inline]
    fn sent(&mut self, wc: Wc) {
        self.note_state(&wc);
        self.complete(self.send_cq, wc);
    }

    #[inline(always)]
    fn received(&mut self, wc: Wc) {
        self.note_state(&wc);
        self.complete(self.recv_cq, wc);
    }

    #[inline(always)]
    fn sent_as(&mut self, make: impl FnOnce() -> Wc) {
        self.complete_as(self.send_cq, make);
    }

    #[inline(always)]
    fn received_as(&mut self, make: impl FnOnce() -> Wc) {
        self.complete_as(self.recv_cq, make);
    }

    fn segment(&mut self, wc: Wc) -> bool {
        self.recv_cq.push(wc)
    }

    #[inline]
    fn retired(&mut self) {
        self.posting.retire();
    }

    fn event(&mut self, event: AsyncEvent) {
        self.recv_cq.background().events().raise(event);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_is_sent_at_once_goes_behind_all_others_or_not_at_all() {
        let (posting, engine) = (Posting::<u32>::new(1), Exclusive::new(Vec::new()));
        let post = |send: &dyn Fn(&mut Vec<u32>) -> bool| {
            posting.post_alone(&engine, |engine| send(engine), |_| {})
        };
        let sends = |engine: &mut Vec<u32>| {
            engine.push(1);
            true
        };
        assert!(!post(&|_| false));
        assert!(post(&sends), "there is room again");
        assert!(!post(&sends), "one is outstanding");
        posting.retire();
        let nested = engine.try_run(|_| post(&|_| unreachable!("another is at work")), |_| {});
        assert_eq!(nested, Some(false));
        posting.leave(7);
        assert!(!post(&sends), "another one waits");
        posting.empty(|wqe| assert_eq!(wqe, 7));
        assert!(post(&sends));
        assert_eq!(engine.try_run(|engine| engine.len(), |_| {}), Some(2));
    }

    #[test]
    fn several_that_are_sent_at_once_take_the_places_that_they_need() {
        let (posting, engine) = (Posting::<u32>::new(4), Exclusive::new(()));
        let post = |wanted, sent: usize| {
            let mut admitted = 0;
            let send = |(): &mut (), most| {
                admitted = most;
                sent
            };
            let sent = posting.post_ahead(&engine, wanted, send, |()| {});
            (admitted, sent)
        };
        assert_eq!(post(0, 0), (0, 0));
        assert_eq!(post(3, 2), (3, 2));
        assert_eq!(post(3, 0), (2, 0), "two are outstanding");
        assert_eq!(post(2, 2), (2, 2));
        assert_eq!(post(1, 1), (0, 0), "four are");
    }
}
