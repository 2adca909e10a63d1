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
///
/// With `APART` 1, for transports that complete most work requests before the next post, one that is posted to an empty queue has a place of its
/// own, where it comes and goes without the bookkeeping of a ring.
#[derive(Debug)]
pub(crate) struct SendQueue<W, M, const APART: usize = 0> {
    /// The oldest entry, if it was posted to an empty queue.
    apart: [Option<Entry<W, M>>; APART],
    /// The entries behind it.
    ring: VecDeque<Entry<W, M>>,
    /// Number of the first entry.
    oldest: u64,
    /// Number of the first entry that has not begun; at least `oldest`.
    unstarted: u64,
}

impl<W, M, const APART: usize> Default for SendQueue<W, M, APART> {
    fn default() -> Self {
        Self {
            apart: [const { None }; APART],
            ring: VecDeque::new(),
            oldest: 0,
            unstarted: 0,
        }
    }
}

impl<W, M: Default, const APART: usize> SendQueue<W, M, APART> {
    /// Appends a work request.
    #[inline(always)]
    pub(crate) fn push(&mut self, wqe: W) {
        self.push_entry(Entry {
            wqe,
            state: State::Posted,
            mark: M::default(),
        });
    }
}

impl<W, M, const APART: usize> SendQueue<W, M, APART> {
    /// Appends a work request of which the lower layer has all segments, where all before it have begun.
    #[inline(always)]
    pub(crate) fn push_framed(&mut self, wqe: W, mark: M) {
        debug_assert!(self.unstarted().is_none(), "work requests begin in order");
        self.push_entry(Entry {
            wqe,
            state: State::Framed,
            mark,
        });
        self.unstarted += 1;
    }

    /// A work request was posted to the empty queue, and is kept elsewhere: its number is passed over.
    #[inline(always)]
    pub(crate) fn pass(&mut self) {
        debug_assert!(self.is_empty(), "nothing is before it here");
        self.oldest += 1;
        self.unstarted += 1;
    }

    /// Takes the work request of the last number that was [passed](Self::pass) over, and not returned since. The lower layer has all segments of it.
    pub(crate) fn return_framed(&mut self, wqe: W, mark: M) {
        debug_assert!(self.apart().is_none(), "it would be behind that");
        self.ring.push_front(Entry {
            wqe,
            state: State::Framed,
            mark,
        });
        self.oldest -= 1;
    }

    #[inline(always)]
    fn push_entry(&mut self, entry: Entry<W, M>) {
        let is_empty = self.is_empty();
        match self.apart.first_mut() {
            Some(place) if is_empty => *place = Some(entry),
            Some(_) | None => self.ring.push_back(entry),
        }
    }

    /// Whether every work request has been removed.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.apart().is_none() && self.ring.is_empty()
    }

    /// Work requests that have not been removed.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.ring.len() + self.of_apart()
    }

    /// Number of the oldest work request, or of the next one to be posted.
    pub(crate) const fn oldest(&self) -> u64 {
        self.oldest
    }

    /// The oldest work request.
    #[inline]
    pub(crate) fn oldest_wqe(&self) -> Option<&W> {
        self.front().map(|entry| &entry.wqe)
    }

    /// The work request that was posted last.
    #[inline]
    pub(crate) fn newest(&self) -> Option<&W> {
        let newest = self.ring.back().or_else(|| self.apart());
        newest.map(|entry| &entry.wqe)
    }

    /// Number of the oldest work request if it has begun.
    pub(crate) fn oldest_begun(&self) -> Option<u64> {
        (self.unstarted > self.oldest).then_some(self.oldest)
    }

    #[inline]
    fn apart(&self) -> Option<&Entry<W, M>> {
        self.apart.first()?.as_ref()
    }

    #[inline]
    fn apart_mut(&mut self) -> Option<&mut Entry<W, M>> {
        self.apart.first_mut()?.as_mut()
    }

    /// Entries that are apart: 0 or 1.
    #[inline]
    fn of_apart(&self) -> usize {
        usize::from(self.apart().is_some())
    }

    #[inline]
    fn front(&self) -> Option<&Entry<W, M>> {
        self.apart().or_else(|| self.ring.front())
    }

    #[inline]
    fn front_mut(&mut self) -> Option<&mut Entry<W, M>> {
        match self.apart.first_mut() {
            Some(Some(entry)) => Some(entry),
            Some(None) | None => self.ring.front_mut(),
        }
    }

    #[inline]
    fn index(&self, number: u64) -> Option<usize> {
        usize::try_from(number.checked_sub(self.oldest)?).ok()
    }

    #[inline]
    fn entry_mut(&mut self, number: u64) -> Option<&mut Entry<W, M>> {
        match self.index(number)?.checked_sub(self.of_apart()) {
            None => self.apart_mut(),
            Some(index) => self.ring.get_mut(index),
        }
    }

    /// The work request of a number.
    #[inline]
    pub(crate) fn get(&self, number: u64) -> Option<&W> {
        let entry = match self.index(number)?.checked_sub(self.of_apart()) {
            None => self.apart(),
            Some(index) => self.ring.get(index),
        };
        entry.map(|entry| &entry.wqe)
    }

    /// The first work request that has not begun, with its number.
    #[inline]
    pub(crate) fn unstarted(&self) -> Option<(u64, &W)> {
        self.get(self.unstarted).map(|wqe| (self.unstarted, wqe))
    }

    /// Work requests that have begun, in order, with their numbers.
    pub(crate) fn begun(&self) -> impl DoubleEndedIterator<Item = (u64, &W)> {
        let numbers = self.oldest..self.unstarted;
        numbers.filter_map(|number| Some((number, self.get(number)?)))
    }

    /// Work requests that are not framed, in order.
    #[inline]
    pub(crate) fn unframed_mut(&mut self) -> impl Iterator<Item = &mut W> {
        let apart = self.apart.iter_mut().flatten();
        apart
            .chain(&mut self.ring)
            .skip_while(|entry| matches!(entry.state, State::Framed | State::Done))
            .map(|entry| &mut entry.wqe)
    }

    /// The work request if there is one alone.
    #[inline]
    pub(crate) fn sole_mut(&mut self) -> Option<&mut W> {
        if self.len() != 1 {
            return None;
        }
        self.front_mut().map(|entry| &mut entry.wqe)
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

    /// The mark of a work request.
    pub(crate) fn mark(&mut self, number: u64) -> Option<&M> {
        self.entry_mut(number).map(|entry| &entry.mark)
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
        self.front()
            .is_some_and(|entry| entry.state == State::Framed && fits(&entry.mark))
    }

    /// Removes complete work requests from the front, after `complete` was called with each: those that are done, and framed ones whose mark was
    /// `reached`.
    #[inline]
    pub(crate) fn complete(&mut self, reached: impl Fn(&M) -> bool, mut complete: impl FnMut(&W)) {
        while let Some(entry) = self.front() {
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
    #[inline(always)]
    pub(crate) fn complete_oldest(&mut self, complete: impl FnOnce(&W)) {
        if let Some(entry) = self.front() {
            complete(&entry.wqe);
            self.remove_oldest();
        }
    }

    /// Removes all work requests, after `flush` was called with the number of each.
    pub(crate) fn flush(&mut self, mut flush: impl FnMut(u64, &W)) {
        while let Some(entry) = self.front() {
            flush(self.oldest, &entry.wqe);
            self.remove_oldest();
        }
    }

    #[inline(always)]
    fn remove_oldest(&mut self) {
        if let Some(place) = self.apart.first_mut().filter(|place| place.is_some()) {
            *place = None;
        } else if self.ring.len() == 1 {
            // Dropped where it is.
            self.ring.clear();
        } else {
            self.ring.pop_front();
        }
        self.oldest += 1;
        self.unstarted = self.unstarted.max(self.oldest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A queue of three, named by their numbers, whose marks are octets.
    fn queue<const APART: usize>() -> SendQueue<u64, u64, APART> {
        let mut queue = SendQueue::default();
        (0..3).for_each(|wqe| queue.push(wqe));
        queue
    }

    fn completed<const APART: usize>(
        queue: &mut SendQueue<u64, u64, APART>,
        octets: u64,
    ) -> Vec<u64> {
        let mut completed = Vec::new();
        queue.complete(|mark| *mark <= octets, |wqe| completed.push(*wqe));
        completed
    }

    #[test]
    fn work_requests_begin_and_complete_in_posting_order() {
        fn check<const APART: usize>() {
            let mut queue = queue::<APART>();
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
        check::<0>();
        check::<1>();
    }

    #[test]
    fn one_that_is_done_waits_for_those_before_it() {
        fn check<const APART: usize>() {
            let mut queue = queue::<APART>();
            queue.begin(1);
            queue.begin(7);
            assert_eq!(queue.done(1), Some(&7));
            assert!(completed(&mut queue, 0).is_empty());
            assert_eq!(queue.done(0), Some(&1));
            assert_eq!(completed(&mut queue, 0), [0, 1]);
            assert_eq!((queue.get(1), queue.get(2)), (None, Some(&2)));
            assert_eq!(queue.done(5), None);
        }
        check::<0>();
        check::<1>();
    }

    #[test]
    fn the_oldest_completes_whatever_its_progress() {
        fn check<const APART: usize>() {
            let mut queue = queue::<APART>();
            queue.begin(0);
            let mut completed = Vec::new();
            queue.complete_oldest(|wqe| completed.push(*wqe));
            assert_eq!(queue.oldest_begun(), None);
            queue.complete_oldest(|wqe| completed.push(*wqe));
            assert_eq!(completed, [0, 1]);
            assert_eq!((queue.oldest(), queue.unstarted()), (2, Some((2, &2))));
        }
        check::<0>();
        check::<1>();
    }

    #[test]
    fn flushing_takes_all_whatever_their_progress() {
        fn check<const APART: usize>() {
            let mut queue = queue::<APART>();
            queue.begin(0);
            let mut flushed = Vec::new();
            queue.flush(|number, wqe| flushed.push((number, *wqe)));
            assert_eq!(flushed, [(0, 0), (1, 1), (2, 2)]);
            assert!(queue.is_empty() && queue.unstarted().is_none());
            queue.push(3);
            assert_eq!(queue.unstarted(), Some((3, &3)));
        }
        check::<0>();
        check::<1>();
    }
}
