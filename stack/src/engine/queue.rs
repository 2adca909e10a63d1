//! Work queue elements and the receive queue.

use std::collections::VecDeque;

use dgiwarp_rdmap::datagram::TakeError;
use parking_lot::Mutex;
use smallvec::SmallVec;

use super::mr::MrTable;
use crate::{PostError, RecvWr, Sge};

/// Scatter/gather elements. A few are kept in place: work requests are moved more than once, and most have one element.
pub(crate) type SgeList = SmallVec<[Sge; 2]>;

/// The sum of the elements' lengths.
///
/// # Errors
/// [`PostError::TooLong`] above 2^32 - 1.
pub(crate) fn total_length(sges: &[Sge]) -> Result<u32, PostError> {
    sges.iter()
        .try_fold(0u32, |sum, sge| sum.checked_add(sge.length))
        .ok_or(PostError::TooLong)
}

/// Copies elements into a list of the queue's own.
pub(crate) fn copy_sges(sges: &[Sge], max: usize) -> Result<SgeList, PostError> {
    if sges.len() > max {
        return Err(PostError::TooManySges);
    }
    Ok(SgeList::from_slice(sges))
}

/// The tables that a QP shares with others.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tables<'a> {
    pub(crate) mrs: &'a MrTable,
    pub(crate) recv_queue: &'a RecvQueue,
}

/// A posted receive.
#[derive(Debug, Clone)]
pub(crate) struct RecvWqe {
    pub(crate) wr_id: u64,
    pub(crate) sges: SgeList,
    pub(crate) length: u32,
}

/// Posted receives, in order. Every transport takes from it, and several QPs may share one.
#[derive(Debug)]
pub(crate) struct RecvQueue {
    capacity: usize,
    max_sge: usize,
    posted: Mutex<VecDeque<RecvWqe>>,
}

impl RecvQueue {
    pub(crate) fn new(capacity: usize, max_sge: usize) -> Self {
        Self {
            capacity,
            max_sge,
            // Grows with what is really posted: a ring goes through all of its room, and what is used should stay in the
            // cache.
            posted: Mutex::new(VecDeque::new()),
        }
    }

    pub(crate) fn post(&self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        let wqe = RecvWqe {
            wr_id: wr.wr_id,
            sges: copy_sges(wr.sges, self.max_sge)?,
            length: total_length(wr.sges)?,
        };
        let mut posted = self.posted.lock();
        if posted.len() >= self.capacity {
            return Err(PostError::QueueFull);
        }
        posted.push_back(wqe);
        Ok(())
    }

    /// Takes the receive at the head, if `length` octets fit it.
    #[inline]
    pub(crate) fn take(&self, length: u32) -> Result<RecvWqe, TakeError> {
        let mut posted = self.posted.lock();
        match posted.front() {
            None => Err(TakeError::Empty),
            Some(head) if head.length < length => Err(TakeError::TooShort),
            Some(_) => posted.pop_front().ok_or(TakeError::Empty),
        }
    }

    pub(crate) fn give_back(&self, wqe: RecvWqe) {
        self.posted.lock().push_front(wqe);
    }

    /// Empties the queue, for a QP that flushes.
    pub(crate) fn drain(&self) -> Vec<RecvWqe> {
        self.posted.lock().drain(..).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(queue.take(11).unwrap_err(), TakeError::TooShort);
        let first = queue.take(10).unwrap();
        assert_eq!(first.wr_id, 1);
        queue.give_back(first);
        assert_eq!(queue.take(0).unwrap().wr_id, 1);
        assert_eq!(queue.take(0).unwrap().wr_id, 2);
        assert_eq!(queue.take(0).unwrap_err(), TakeError::Empty);
    }

    #[test]
    fn lengths_that_overflow_are_refused() {
        let sge = Sge {
            length: u32::MAX,
            ..Sge::default()
        };
        assert_eq!(total_length(&[sge]), Ok(u32::MAX));
        assert_eq!(total_length(&[sge, sge]), Err(PostError::TooLong));
    }
}
