//! Work queue elements and the receive queue.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use dgiwarp_rdmap::datagram::TakeError;
use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;

use super::cq_ring::CompletionSink;
use super::mr::{MrTable, PdId};
use crate::types::{AsyncEvent, PostError, PostFailure, RecvWr, Sge, Wc};

/// Scatter/gather elements. A few are kept in place: work requests are moved more than once, and most have one element.
pub type SgeList = SmallVec<[Sge; 2]>;

/// The sum of the lengths of at most `max` elements.
///
/// # Errors
/// [`PostError::TooManySges`], [`PostError::TooLong`] above 2^32 - 1.
#[inline]
pub fn total_length(sges: &[Sge], max: usize) -> Result<u32, PostError> {
    if sges.len() > max {
        return Err(PostError::TooManySges);
    }
    sges.iter()
        .try_fold(0u32, |sum, sge| sum.checked_add(sge.length))
        .ok_or(PostError::TooLong)
}

/// Copies elements into an owned list.
#[inline]
pub fn copy_sges(sges: &[Sge]) -> SgeList {
    match sges {
        // The usual case, without a call of memcpy.
        [sge] => SgeList::from_buf_and_len([*sge, Sge::default()], 1),
        sges => SgeList::from_slice(sges),
    }
}

/// Tables that QPs share.
#[derive(Debug, Clone, Copy)]
pub struct Tables<'a> {
    /// Registered memory.
    pub mrs: &'a MrTable,
    /// Posted receives.
    pub recv_queue: &'a RecvQueue,
}

impl<'a> Tables<'a> {
    /// These tables with another receive queue, if there is one.
    #[inline]
    #[must_use]
    pub fn with(self, recv_queue: Option<&'a RecvQueue>) -> Self {
        Self {
            recv_queue: recv_queue.unwrap_or(self.recv_queue),
            ..self
        }
    }
}

/// A posted receive.
#[derive(Debug, Clone)]
pub struct RecvWqe {
    /// Returned in the completion.
    pub wr_id: u64,
    /// Destination of the payload.
    pub sges: SgeList,
    /// Sum of the elements' lengths, octets.
    pub length: u32,
}

/// A stream that waits for a receive.
pub trait Waiter: fmt::Debug + Send + Sync {
    /// A receive was posted; another stream may have taken it.
    fn receive_posted(&self);
}

/// The completion queue of a shared receive queue that has one of its own (XRC).
pub trait ReceiveSink: fmt::Debug + Send + Sync {
    /// Completion of a receive.
    fn received(&self, wc: Wc);
}

/// A waiter, unless it is gone.
pub type WeakWaiter = Weak<dyn Waiter>;

#[cold]
fn notify_all(waiters: Vec<WeakWaiter>) {
    for waiter in waiters {
        if let Some(waiter) = waiter.upgrade() {
            waiter.receive_posted();
        }
    }
}

/// Posted receives, in order. Every transport takes from it, and several QPs may share one.
#[derive(Debug)]
pub struct RecvQueue {
    capacity: usize,
    max_sge: usize,
    shared: Option<Shared>,
    /// Where its receives complete; `None` where that is the queue pair's matter.
    sink: Option<Arc<dyn ReceiveSink>>,
    posted: Mutex<Posted>,
    /// Credit that peers of reliable datagram QPs have and did not use: a hint, since others may take the receives.
    promised: AtomicUsize,
}

/// Properties of a shared receive queue.
#[derive(Debug, Clone, Copy)]
struct Shared {
    id: u64,
    /// Protection domain of the memory of its receives; its QPs may belong to others.
    pd: PdId,
}

#[derive(Debug, Default)]
struct Posted {
    // Grows with the receives that are posted: a ring goes through all of its room, and memory in use should stay in the cache.
    receives: VecDeque<RecvWqe>,
    /// An event is due when fewer receives remain; 0 when none is.
    limit: usize,
    /// Streams that found the queue empty. Each is here once, and takes from the queue again after it was notified.
    waiters: Vec<WeakWaiter>,
}

impl Posted {
    fn wait(&mut self, waiter: &WeakWaiter) {
        if self.waiters.len() == self.waiters.capacity() {
            self.waiters.retain(|waiter| waiter.strong_count() > 0);
        }
        self.waiters.push(Weak::clone(waiter));
    }

    /// Whether the limit is undercut, which disarms it.
    fn is_below_limit(&mut self) -> bool {
        let below = self.receives.len() < self.limit;
        if below {
            self.limit = 0;
        }
        below
    }
}

impl RecvQueue {
    /// The queue of one QP.
    pub fn new(capacity: usize, max_sge: usize) -> Self {
        Self {
            capacity,
            max_sge,
            shared: None,
            sink: None,
            posted: Mutex::default(),
            promised: AtomicUsize::new(0),
        }
    }

    /// A shared receive queue.
    pub fn shared(capacity: usize, max_sge: usize, id: u64, pd: PdId) -> Self {
        Self {
            shared: Some(Shared { id, pd }),
            ..Self::new(capacity, max_sge)
        }
    }

    /// The queue, with a completion queue of its own.
    #[must_use]
    pub fn completing_to(self, sink: Arc<dyn ReceiveSink>) -> Self {
        Self {
            sink: Some(sink),
            ..self
        }
    }

    /// Completes a receive of this queue; `completions` are those of the queue pair that took it.
    #[inline]
    pub fn complete(&self, wc: Wc, completions: &mut impl CompletionSink) {
        match &self.sink {
            None => completions.received(wc),
            Some(sink) => sink.received(wc),
        }
    }

    /// As [`complete`](Self::complete), with the successful completion that `make` returns.
    #[inline(always)]
    pub fn complete_as(&self, make: impl FnOnce() -> Wc, completions: &mut impl CompletionSink) {
        match &self.sink {
            None => completions.received_as(make),
            Some(sink) => sink.received(make()),
        }
    }

    /// Receives that may be posted at a time; none where a queue pair receives nothing, or by XRC only.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Receives that are posted.
    pub fn len(&self) -> usize {
        self.posted.lock().receives.len()
    }

    /// Whether none is posted.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether QPs share the queue.
    pub fn is_shared(&self) -> bool {
        self.shared.is_some()
    }

    /// Protection domain of the memory of receives, given the domain of the QP that takes them.
    #[inline]
    pub fn pd(&self, of_qp: PdId) -> PdId {
        self.shared.map_or(of_qp, |shared| shared.pd)
    }

    /// Arms one event for when fewer than `limit` receives remain; 0 disarms it. Returns the event if fewer remain already.
    pub fn arm_limit(&self, limit: usize) -> Option<AsyncEvent> {
        let mut posted = self.posted.lock();
        posted.limit = limit;
        let below = posted.is_below_limit();
        self.shared
            .filter(|_| below)
            .map(|shared| AsyncEvent::SrqLimit { srq: shared.id })
    }

    /// Posts one receive.
    #[cfg(test)]
    pub fn post(&self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        let mut waiters = Vec::new();
        self.push(wr, &mut waiters)?;
        notify_all(waiters);
        Ok(())
    }

    /// Posts one. Adds the waiters to notify: under the lock that they registered under, so that none is missed.
    #[inline]
    fn push(&self, wr: &RecvWr<'_>, waiters: &mut Vec<WeakWaiter>) -> Result<(), PostError> {
        let wqe = RecvWqe {
            wr_id: wr.wr_id,
            length: total_length(wr.sges, self.max_sge)?,
            sges: copy_sges(wr.sges),
        };
        let mut posted = self.posted.lock();
        if posted.receives.len() >= self.capacity {
            return Err(PostError::QueueFull);
        }
        let room = posted.receives.try_reserve(1);
        room.map_err(|_| PostError::NoMemory)?;
        posted.receives.push_back(wqe);
        if !posted.waiters.is_empty() {
            waiters.append(&mut posted.waiters);
        }
        Ok(())
    }

    /// Posts receives in order, until one is refused.
    pub fn post_all(&self, wrs: &[RecvWr<'_>]) -> Result<(), PostFailure> {
        let mut waiters = Vec::new();
        let mut result = Ok(());
        for (accepted, wr) in wrs.iter().enumerate() {
            if let Err(source) = self.push(wr, &mut waiters) {
                result = Err(PostFailure { accepted, source });
                break;
            }
        }
        // Only now: a waiter takes all receives that it needs.
        if !waiters.is_empty() {
            notify_all(waiters);
        }
        result
    }

    /// Posts receives of a QP, which may post to a queue of its own only.
    pub fn post_own(&self, wrs: &[RecvWr<'_>]) -> Result<(), PostFailure> {
        if self.is_shared() || self.capacity == 0 {
            return Err(PostFailure {
                accepted: 0,
                source: PostError::SharedReceiveQueue,
            });
        }
        self.post_all(wrs)
    }

    /// Takes the receive at the head, if `length` octets fit it. Raises the event of [`arm_limit`](Self::arm_limit).
    #[inline]
    pub fn take(
        &self,
        length: u32,
        completions: &mut impl CompletionSink,
    ) -> Result<RecvWqe, TakeError> {
        let mut posted = self.posted.lock();
        let taken = match posted.receives.front() {
            None => return Err(TakeError::Empty),
            Some(head) if head.length < length => return Err(TakeError::TooShort),
            Some(_) => posted.receives.pop_front().ok_or(TakeError::Empty)?,
        };
        self.taken(posted, completions);
        Ok(taken)
    }

    /// The head of the queue, for a stream that takes several receives while nobody else takes or posts one.
    #[inline(always)]
    pub fn lock_head(&self) -> LockedHead<'_> {
        LockedHead {
            queue: self,
            posted: self.posted.lock(),
        }
    }

    /// Receives were taken.
    #[inline(always)]
    fn taken(&self, mut posted: MutexGuard<'_, Posted>, completions: &mut impl CompletionSink) {
        let below = posted.is_below_limit();
        drop(posted);
        if below && let Some(Shared { id, .. }) = self.shared {
            completions.event(AsyncEvent::SrqLimit { srq: id });
        }
    }

    /// Takes the receive at the head. If there is none, `waiter` is notified, once, when one is posted.
    #[inline]
    pub fn take_or_wait(
        &self,
        completions: &mut impl CompletionSink,
        waiter: &WeakWaiter,
    ) -> Option<RecvWqe> {
        let mut posted = self.posted.lock();
        let Some(taken) = posted.receives.pop_front() else {
            posted.wait(waiter);
            return None;
        };
        self.taken(posted, completions);
        Some(taken)
    }

    /// Receives that are posted and promised to nobody.
    pub fn unpromised(&self) -> usize {
        let promised = self.promised.load(Ordering::Relaxed);
        self.len().saturating_sub(promised)
    }

    /// A peer got credit for so many receives.
    pub fn promise(&self, receives: usize) {
        self.promised.fetch_add(receives, Ordering::Relaxed);
    }

    /// A peer used so much credit, or has it no more.
    pub fn redeem(&self, receives: usize) {
        self.promised.fetch_sub(receives, Ordering::Relaxed);
    }

    /// Has `waiter` notified, once, when a receive is posted.
    pub fn wait(&self, waiter: &WeakWaiter) {
        self.posted.lock().wait(waiter);
    }

    /// Puts a receive that was taken back to the head.
    pub fn give_back(&self, wqe: RecvWqe) {
        let mut posted = self.posted.lock();
        posted.receives.push_front(wqe);
        let waiters = std::mem::take(&mut posted.waiters);
        drop(posted);
        notify_all(waiters);
    }

    /// The requests in the queue, from the head.
    #[cfg(test)]
    pub fn wr_ids(&self) -> Vec<u64> {
        self.posted
            .lock()
            .receives
            .iter()
            .map(|wqe| wqe.wr_id)
            .collect()
    }

    /// Empties the queue, for a QP that flushes. Receives that QPs share belong to none of them and stay.
    pub fn drain(&self) -> Vec<RecvWqe> {
        if self.is_shared() {
            return Vec::new();
        }
        self.posted.lock().receives.drain(..).collect()
    }
}

/// The [locked head](RecvQueue::lock_head) of a queue.
#[derive(Debug)]
pub struct LockedHead<'a> {
    queue: &'a RecvQueue,
    posted: MutexGuard<'a, Posted>,
}

impl LockedHead<'_> {
    /// Takes the receive at the head, if `length` octets fit it and `place`, called with its elements, puts them there. Returns its `wr_id`.
    #[inline]
    pub fn take_placed(&mut self, length: u32, place: impl FnOnce(&[Sge]) -> bool) -> Option<u64> {
        let (wr_id, sges) = self.head(length)?;
        if !place(sges) {
            return None;
        }
        self.take_head();
        Some(wr_id)
    }

    /// The `wr_id` and the elements of the receive at the head, if `length` octets fit it.
    #[inline(always)]
    pub fn head(&self, length: u32) -> Option<(u64, &[Sge])> {
        let head = self.posted.receives.front()?;
        (head.length >= length).then_some((head.wr_id, &head.sges))
    }

    /// Takes the receive at the head.
    #[inline(always)]
    pub fn take_head(&mut self) {
        drop(self.posted.receives.pop_front());
    }

    /// Lets others use the queue. Raises the event of [`arm_limit`](RecvQueue::arm_limit).
    #[inline(always)]
    pub fn unlock(self, completions: &mut impl CompletionSink) {
        self.queue.taken(self.posted, completions);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recording_sink::RecordingSink;

    #[test]
    fn the_queue_is_bounded_and_keeps_its_order() {
        let queue = RecvQueue::new(2, 1);
        let sge = Sge {
            addr: 0,
            length: 10,
            lkey: 1,
        };
        let post = |wr_id, sges: &[Sge]| queue.post(&RecvWr { wr_id, sges });
        assert_eq!(post(1, &[sge]), Ok(()));
        assert_eq!(post(2, &[sge, sge]), Err(PostError::TooManySges));
        assert_eq!(post(2, &[]), Ok(()));
        assert_eq!(post(3, &[sge]), Err(PostError::QueueFull));
        let take = |length| queue.take(length, &mut RecordingSink::default());
        assert_eq!(take(11).unwrap_err(), TakeError::TooShort);
        let first = take(10).unwrap();
        assert_eq!(first.wr_id, 1);
        queue.give_back(first);
        assert_eq!(take(0).unwrap().wr_id, 1);
        assert_eq!(take(0).unwrap().wr_id, 2);
        assert_eq!(take(0).unwrap_err(), TakeError::Empty);
    }

    #[test]
    fn a_shared_queue_reports_each_limit_once_and_is_not_flushed() {
        let queue = RecvQueue::shared(8, 1, 5, PdId(3));
        for wr_id in 0..6 {
            queue.post(&RecvWr { wr_id, sges: &[] }).unwrap();
        }
        let told = [AsyncEvent::SrqLimit { srq: 5 }];
        let mut raised = RecordingSink::default();
        assert_eq!(queue.arm_limit(5), None);
        let mut take = || {
            queue.take(0, &mut raised).unwrap();
            std::mem::take(&mut raised.events)
        };
        assert_eq!(take(), []);
        assert_eq!(take(), told);
        assert_eq!(take(), []);
        assert_eq!(queue.arm_limit(4), Some(told[0]), "three are left");
        assert_eq!(queue.arm_limit(3), None);
        assert_eq!(queue.arm_limit(0), None);
        assert_eq!(take(), []);
        assert!(queue.drain().is_empty());
        assert_eq!(take(), []);
        assert_eq!(queue.pd(PdId(1)), PdId(3));
        assert_eq!(RecvQueue::new(1, 1).pd(PdId(1)), PdId(1));
    }

    #[test]
    fn receives_that_are_placed_under_one_lock_leave_in_order() {
        let queue = RecvQueue::shared(8, 1, 5, PdId(3));
        let sge = |length| Sge {
            length,
            ..Sge::default()
        };
        for wr_id in 0..4 {
            let sges = [sge(10)];
            queue.post(&RecvWr { wr_id, sges: &sges }).unwrap();
        }
        assert_eq!(queue.arm_limit(3), None);
        let mut raised = RecordingSink::default();
        let mut head = queue.lock_head();
        let takes_ten = |sges: &[Sge]| sges == [sge(10)];
        assert_eq!(head.take_placed(10, takes_ten), Some(0));
        assert_eq!(
            head.take_placed(11, |_| unreachable!("11 octets in 10")),
            None
        );
        assert_eq!(head.take_placed(1, |_| false), None);
        assert_eq!(head.take_placed(0, takes_ten), Some(1));
        head.unlock(&mut raised);
        assert_eq!(raised.events, [AsyncEvent::SrqLimit { srq: 5 }]);
        assert_eq!(queue.wr_ids(), [2, 3]);
        let mut head = queue.lock_head();
        assert_eq!(head.take_placed(10, takes_ten), Some(2));
        assert_eq!(head.take_placed(10, takes_ten), Some(3));
        assert_eq!(head.take_placed(0, |_| true), None, "the queue is empty");
        head.unlock(&mut raised);
        assert_eq!(raised.events.len(), 1, "once");
    }

    #[test]
    fn lengths_that_overflow_are_refused() {
        let sge = Sge {
            length: u32::MAX,
            ..Sge::default()
        };
        assert_eq!(total_length(&[sge], 2), Ok(u32::MAX));
        assert_eq!(total_length(&[sge, sge], 2), Err(PostError::TooLong));
        assert_eq!(total_length(&[sge, sge], 1), Err(PostError::TooManySges));
    }
}
