//! Posted work requests in posting order, which is that of their completions (RFC 5040 §5.5 rule 15), and the progress of each.

use std::collections::VecDeque;

/// Progress of a work request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Nothing of it has left.
    Posted,
    /// Some segments, or a request to the peer, have left.
    Begun,
    /// All segments are with the lower layer. Completion depends on the lower layer, or on the peer.
    Framed,
    /// Complete, but perhaps behind one that is not.
    Done,
}

#[derive(Debug)]
struct Entry<W, M> {
    wqe: W,
    state: State,
    mark: M,
}

/// Work requests `W`. Each has a number, counted from zero in posting order, and a mark `M` that its transport sets as it makes progress and that
/// decides when a framed one is complete.
#[derive(Debug)]
pub(crate) struct SendQueue<W, M> {
    entries: VecDeque<Entry<W, M>>,
    /// Number of the first entry.
    oldest: u64,
    /// Number of the first entry that has not begun; at least `oldest`.
    unstarted: u64,
}

impl<W, M> Default for SendQueue<W, M> {
    fn default() -> Self {
        Self {
            entries: VecDeque::new(),
            oldest: 0,
            unstarted: 0,
        }
    }
}

impl<W, M: Default> SendQueue<W, M> {
    /// Appends a work request.
    #[inline(always)]
    pub(crate) fn push(&mut self, wqe: W) {
        self.entries.push_back(Entry {
            wqe,
            state: State::Posted,
            mark: M::default(),
        });
    }
}

impl<W, M> SendQueue<W, M> {
    /// Whether every work request has been removed.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Work requests that have not been removed.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Number of the oldest work request, or of the next one to be posted.
    pub(crate) const fn oldest(&self) -> u64 {
        self.oldest
    }

    /// The oldest work request.
    #[inline]
    pub(crate) fn oldest_wqe(&self) -> Option<&W> {
        self.entries.front().map(|entry| &entry.wqe)
    }

    /// Number of the oldest work request if it has begun.
    pub(crate) fn oldest_begun(&self) -> Option<u64> {
        (self.unstarted > self.oldest).then_some(self.oldest)
    }

    #[inline]
    fn index(&self, number: u64) -> Option<usize> {
        usize::try_from(number.checked_sub(self.oldest)?).ok()
    }

    #[inline]
    fn entry_mut(&mut self, number: u64) -> Option<&mut Entry<W, M>> {
        self.entries.get_mut(self.index(number)?)
    }

    /// The work request of a number.
    #[inline]
    pub(crate) fn get(&self, number: u64) -> Option<&W> {
        let entry = self.entries.get(self.index(number)?)?;
        Some(&entry.wqe)
    }

    /// The first work request that has not begun, with its number.
    #[inline]
    pub(crate) fn unstarted(&self) -> Option<(u64, &W)> {
        self.get(self.unstarted).map(|wqe| (self.unstarted, wqe))
    }

    /// Work requests that are not framed, in order.
    #[inline]
    pub(crate) fn unframed_mut(&mut self) -> impl Iterator<Item = &mut W> {
        self.entries
            .iter_mut()
            .skip_while(|entry| matches!(entry.state, State::Framed | State::Done))
            .map(|entry| &mut entry.wqe)
    }

    /// The work request if there is one alone.
    #[inline]
    pub(crate) fn sole_mut(&mut self) -> Option<&mut W> {
        if self.entries.len() != 1 {
            return None;
        }
        self.entries.front_mut().map(|entry| &mut entry.wqe)
    }

    /// The first unstarted work request has begun.
    #[inline]
    pub(crate) fn begin(&mut self, mark: M) {
        if let Some(entry) = self.entry_mut(self.unstarted) {
            entry.state = State::Begun;
            entry.mark = mark;
            self.unstarted += 1;
        }
    }

    /// The lower layer has all segments of a work request.
    #[inline]
    pub(crate) fn framed(&mut self, number: u64, mark: M) {
        if let Some(entry) = self.entry_mut(number) {
            entry.state = State::Framed;
            entry.mark = mark;
        }
    }

    /// A work request is complete whatever its mark. Returns the mark.
    pub(crate) fn done(&mut self, number: u64) -> Option<&M> {
        let entry = self.entry_mut(number)?;
        entry.state = State::Done;
        Some(&entry.mark)
    }

    /// Whether the oldest work request is framed, with a mark that `fits`.
    #[inline]
    pub(crate) fn oldest_is_framed(&self, fits: impl FnOnce(&M) -> bool) -> bool {
        self.entries
            .front()
            .is_some_and(|entry| entry.state == State::Framed && fits(&entry.mark))
    }

    /// Removes complete work requests from the front, after `complete` was called with each: those that are done, and framed ones whose mark was
    /// `reached`.
    #[inline]
    pub(crate) fn complete(&mut self, reached: impl Fn(&M) -> bool, mut complete: impl FnMut(&W)) {
        while let Some(entry) = self.entries.front() {
            let is_complete = match entry.state {
                State::Posted | State::Begun => false,
                State::Framed => reached(&entry.mark),
                State::Done => true,
            };
            if !is_complete {
                return;
            }
            complete(&entry.wqe);
            self.remove_oldest();
        }
    }

    /// Removes the oldest work request, which is complete whatever its progress, after `complete` was called with it.
    #[inline]
    pub(crate) fn complete_oldest(&mut self, complete: impl FnOnce(&W)) {
        if let Some(entry) = self.entries.front() {
            complete(&entry.wqe);
            self.remove_oldest();
        }
    }

    /// Removes all work requests, after `flush` was called with the number of each.
    pub(crate) fn flush(&mut self, mut flush: impl FnMut(u64, &W)) {
        while let Some(entry) = self.entries.front() {
            flush(self.oldest, &entry.wqe);
            self.remove_oldest();
        }
    }

    #[inline]
    fn remove_oldest(&mut self) {
        if self.entries.len() == 1 {
            // Dropped where it is: most queues have one entry at a time.
            self.entries.clear();
        } else {
            self.entries.pop_front();
        }
        self.oldest += 1;
        self.unstarted = self.unstarted.max(self.oldest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A queue of three, named by their numbers, whose marks are octets.
    fn queue() -> SendQueue<u64, u64> {
        let mut queue = SendQueue::default();
        (0..3).for_each(|wqe| queue.push(wqe));
        queue
    }

    fn completed(queue: &mut SendQueue<u64, u64>, octets: u64) -> Vec<u64> {
        let mut completed = Vec::new();
        queue.complete(|mark| *mark <= octets, |wqe| completed.push(*wqe));
        completed
    }

    #[test]
    fn work_requests_begin_and_complete_in_posting_order() {
        let mut queue = queue();
        assert_eq!(
            (queue.oldest_begun(), queue.unstarted()),
            (None, Some((0, &0)))
        );
        queue.begin(0);
        assert_eq!(
            (queue.oldest_begun(), queue.unstarted()),
            (Some(0), Some((1, &1)))
        );
        queue.begin(0);
        queue.framed(1, 20);
        assert!(
            completed(&mut queue, 100).is_empty(),
            "the first is not framed"
        );
        queue.framed(0, 10);
        assert!(queue.oldest_is_framed(|mark| *mark == 10));
        assert_eq!(completed(&mut queue, 10), [0]);
        assert_eq!((queue.oldest(), queue.len()), (1, 2));
        assert_eq!(completed(&mut queue, 20), [1]);
        assert_eq!(
            (queue.oldest_begun(), queue.unstarted()),
            (None, Some((2, &2)))
        );
    }

    #[test]
    fn one_that_is_done_waits_for_those_before_it() {
        let mut queue = queue();
        queue.begin(1);
        queue.begin(7);
        assert_eq!(queue.done(1), Some(&7));
        assert!(completed(&mut queue, 0).is_empty());
        assert_eq!(queue.done(0), Some(&1));
        assert_eq!(completed(&mut queue, 0), [0, 1]);
        assert_eq!((queue.get(1), queue.get(2)), (None, Some(&2)));
        assert_eq!(queue.done(5), None);
    }

    #[test]
    fn the_oldest_completes_whatever_its_progress() {
        let mut queue = queue();
        queue.begin(0);
        let mut completed = Vec::new();
        queue.complete_oldest(|wqe| completed.push(*wqe));
        assert_eq!(queue.oldest_begun(), None);
        queue.complete_oldest(|wqe| completed.push(*wqe));
        assert_eq!(completed, [0, 1]);
        assert_eq!((queue.oldest(), queue.unstarted()), (2, Some((2, &2))));
    }

    #[test]
    fn flushing_takes_all_whatever_their_progress() {
        let mut queue = queue();
        queue.begin(0);
        let mut flushed = Vec::new();
        queue.flush(|number, wqe| flushed.push((number, *wqe)));
        assert_eq!(flushed, [(0, 0), (1, 1), (2, 2)]);
        assert!(queue.is_empty() && queue.unstarted().is_none());
        queue.push(3);
        assert_eq!(queue.unstarted(), Some((3, &3)));
    }
}
