//! Sets of numbers as ranges, in bounded memory, as QUIC keeps those of packets (RFC 9000 section 13.2.3).

use std::collections::BTreeMap;

/// A set of numbers.
#[derive(Debug, Default)]
pub(crate) struct Ranges {
    /// First and last number of each range. Between two ranges is at least one number of neither.
    ranges: BTreeMap<u64, u64>,
}

impl Ranges {
    /// Whether the set has a number.
    pub(crate) fn contains(&self, number: u64) -> bool {
        self.range_of(number).is_some()
    }

    fn range_of(&self, number: u64) -> Option<(u64, u64)> {
        let before = self.ranges.range(..=number).next_back();
        let (first, last) = before.map(|(first, last)| (*first, *last))?;
        (number <= last).then_some((first, last))
    }

    /// Adds a number.
    pub(crate) fn insert(&mut self, number: u64) {
        if self.contains(number) {
            return;
        }
        let mut first = number;
        let mut last = number;
        if let Some((before, end)) = self.ranges.range(..number).next_back()
            && end.checked_add(1) == Some(number)
        {
            first = *before;
        }
        if let Some(next) = number.checked_add(1)
            && let Some(end) = self.ranges.remove(&next)
        {
            last = end;
        }
        self.ranges.insert(first, last);
    }

    /// Removes a number.
    pub(crate) fn remove(&mut self, number: u64) {
        let Some((first, last)) = self.range_of(number) else {
            return;
        };
        self.ranges.remove(&first);
        if first < number {
            self.ranges.insert(first, number - 1);
        }
        if number < last {
            self.ranges.insert(number + 1, last);
        }
    }

    /// Removes all numbers below this one.
    pub(crate) fn forget_below(&mut self, floor: u64) {
        let cut = self.range_of(floor);
        self.ranges = self.ranges.split_off(&floor);
        if let Some((_, last)) = cut {
            self.ranges.insert(floor, last);
        }
    }

    /// Has at most `most` ranges, at least one, by adding the numbers between the lowest ones.
    pub(crate) fn shrink(&mut self, most: usize) {
        while self.ranges.len() > most.max(1)
            && let Some((first, _)) = self.ranges.pop_first()
            && let Some((_, last)) = self.ranges.pop_first()
        {
            self.ranges.insert(first, last);
        }
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.ranges.len()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone, Copy)]
    enum Step {
        Insert(u64),
        Remove(u64),
        ForgetBelow(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        // Both ends of the numbers.
        let number = prop_oneof![0..40_u64, u64::MAX - 20..=u64::MAX];
        prop_oneof![
            6 => number.clone().prop_map(Step::Insert),
            2 => number.prop_map(Step::Remove),
            1 => (0..40_u64).prop_map(Step::ForgetBelow),
        ]
    }

    fn all(ranges: &Ranges) -> BTreeSet<u64> {
        let numbers = (0..40).chain(u64::MAX - 20..=u64::MAX);
        numbers.filter(|it| ranges.contains(*it)).collect()
    }

    proptest! {
        #[test]
        fn it_is_a_set(steps in proptest::collection::vec(step(), 0..100)) {
            let (mut ranges, mut set) = (Ranges::default(), BTreeSet::new());
            for step in steps {
                match step {
                    Step::Insert(number) => {
                        ranges.insert(number);
                        set.insert(number);
                    }
                    Step::Remove(number) => {
                        ranges.remove(number);
                        set.remove(&number);
                    }
                    Step::ForgetBelow(floor) => {
                        ranges.forget_below(floor);
                        set = set.split_off(&floor);
                    }
                }
                prop_assert_eq!(all(&ranges), set.clone());
            }
            let gaps = set.iter().filter(|it| !set.contains(&it.wrapping_sub(1)) || **it == 0);
            prop_assert_eq!(ranges.len(), gaps.count());
            ranges.shrink(3);
            prop_assert!(ranges.len() <= 3);
            prop_assert!(all(&ranges).is_superset(&set));
        }
    }

    #[test]
    fn the_lowest_gaps_are_filled_first() {
        let mut ranges = Ranges::default();
        for number in [1, 3, 7, 9] {
            ranges.insert(number);
        }
        ranges.shrink(2);
        let numbers: Vec<_> = all(&ranges).into_iter().collect();
        assert_eq!(numbers, [1, 2, 3, 4, 5, 6, 7, 9]);
        ranges.shrink(0);
        assert_eq!(ranges.len(), 1);
    }
}
