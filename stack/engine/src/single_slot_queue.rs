//! A queue that is mostly empty or has one element.

use std::collections::VecDeque;

/// Elements in order. One that finds the queue empty goes to a slot of its own, always the same, whereas a ring uses another place each time.
#[derive(Debug)]
pub struct SingleSlotQueue<T> {
    /// Before all others.
    alone: Option<T>,
    others: VecDeque<T>,
}

impl<T> Default for SingleSlotQueue<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> SingleSlotQueue<T> {
    /// An empty queue.
    pub const fn new() -> Self {
        Self {
            alone: None,
            others: VecDeque::new(),
        }
    }

    /// Appends an element.
    #[inline]
    pub fn push(&mut self, element: T) {
        if self.is_empty() {
            self.alone = Some(element);
        } else {
            self.push_behind(element);
        }
    }

    /// Apart, so that the case of an empty queue is inlined.
    #[inline(never)]
    fn push_behind(&mut self, element: T) {
        self.others.push_back(element);
    }

    /// Whether the queue has no element.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.alone.is_none() && self.others.is_empty()
    }

    /// Number of elements.
    #[inline]
    pub fn len(&self) -> usize {
        usize::from(self.alone.is_some()) + self.others.len()
    }

    /// The element behind `index` others.
    #[inline]
    pub fn get(&self, index: usize) -> Option<&T> {
        match index.checked_sub(usize::from(self.alone.is_some())) {
            Some(index) => self.others.get(index),
            None => self.alone.as_ref(),
        }
    }

    /// The element behind `index` others, to be changed.
    #[inline]
    pub fn get_mut(&mut self, index: usize) -> Option<&mut T> {
        match index.checked_sub(usize::from(self.alone.is_some())) {
            Some(index) => self.others.get_mut(index),
            None => self.alone.as_mut(),
        }
    }

    /// The first element.
    #[inline]
    pub fn first(&self) -> Option<&T> {
        self.alone.as_ref().or_else(|| self.others.front())
    }

    /// The first element, to be changed.
    #[inline]
    pub fn first_mut(&mut self) -> Option<&mut T> {
        self.alone.as_mut().or_else(|| self.others.front_mut())
    }

    /// The first element, if no other follows it. One behind which others once stood may not be found.
    #[inline]
    pub fn sole_mut(&mut self) -> Option<&mut T> {
        self.alone.as_mut().filter(|_| self.others.is_empty())
    }

    /// Removes the first element.
    #[inline]
    pub fn remove_first(&mut self) {
        if self.alone.is_some() {
            self.alone = None;
        } else {
            self.others.pop_front();
        }
    }

    /// All elements, to be changed.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.alone.iter_mut().chain(&mut self.others)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// It is a queue: what comes first goes first, however long it gets in between.
        #[test]
        fn elements_keep_their_order(pushes in proptest::collection::vec(any::<bool>(), 0..200)) {
            let mut queue = SingleSlotQueue::new();
            let mut expected = VecDeque::new();
            for (number, push) in pushes.into_iter().enumerate() {
                if push {
                    queue.push(number);
                    expected.push_back(number);
                } else {
                    queue.remove_first();
                    expected.pop_front();
                }
                prop_assert_eq!(queue.first(), expected.front());
                prop_assert_eq!(queue.first_mut(), expected.front_mut());
                prop_assert_eq!(queue.is_empty(), expected.is_empty());
                prop_assert_eq!(queue.len(), expected.len());
                for index in 0..=expected.len() {
                    prop_assert_eq!(queue.get(index), expected.get(index));
                    prop_assert_eq!(queue.get_mut(index), expected.get_mut(index));
                }
                prop_assert!(queue.iter_mut().eq(&mut expected));
                if let Some(sole) = queue.sole_mut() {
                    prop_assert_eq!(vec![*sole], Vec::from(expected.clone()));
                }
            }
        }
    }
}
