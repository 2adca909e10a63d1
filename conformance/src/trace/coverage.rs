//! Which octets of a message its segments have brought.

/// Ranges that are kept. Senders that leave out so many places on the way do not exist; beyond, nothing is judged.
const MOST: usize = 64;

/// The octets that came of one message.
#[derive(Debug, Default)]
pub(super) struct Coverage {
    /// Without overlap, in order.
    ranges: Vec<(u64, u64)>,
    next: Option<u64>,
    disordered: bool,
    doubled: bool,
    overflow: bool,
}

/// Union of the segments of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whole {
    /// All of it, in order.
    Ordered,
    /// All of it, in another order.
    Disordered,
    /// Octets are missing or there twice.
    Broken,
    /// The segments were not kept.
    Unknown,
}

impl Coverage {
    /// Takes a segment.
    pub(super) fn add(&mut self, at: u64, octets: usize) {
        let end = at.saturating_add(u64::try_from(octets).unwrap_or(u64::MAX));
        self.disordered |= self.next.is_some_and(|next| next != at);
        self.next = Some(end);
        if at == end {
            return;
        }
        let index = self.ranges.partition_point(|(_, to)| *to <= at);
        if self.ranges.get(index).is_some_and(|(from, _)| *from < end) {
            self.doubled = true;
            return;
        }
        let joins_left = index > 0 && self.ranges[index - 1].1 == at;
        let joins_right = self.ranges.get(index).is_some_and(|(from, _)| *from == end);
        match (joins_left, joins_right) {
            (true, true) => {
                let (_, to) = self.ranges.remove(index);
                self.ranges[index - 1].1 = to;
            }
            (true, false) => self.ranges[index - 1].1 = end,
            (false, true) => self.ranges[index].0 = at,
            (false, false) if self.ranges.len() < MOST => self.ranges.insert(index, (at, end)),
            (false, false) => self.overflow = true,
        }
    }

    /// The first octet and the one behind the last.
    pub(super) fn span(&self) -> (u64, u64) {
        match (self.ranges.first(), self.ranges.last()) {
            (Some((from, _)), Some((_, to))) => (*from, *to),
            _ => {
                let at = self.next.unwrap_or(0);
                (at, at)
            }
        }
    }

    /// The union, now that the last segment is there; `begin` is its required start, if known.
    pub(super) fn whole(&self, begin: Option<u64>) -> Whole {
        let (from, _) = self.span();
        if self.overflow {
            Whole::Unknown
        } else if self.doubled || self.ranges.len() > 1 || begin.is_some_and(|begin| begin != from)
        {
            Whole::Broken
        } else if self.disordered {
            Whole::Disordered
        } else {
            Whole::Ordered
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(segments: &[(u64, usize)]) -> Coverage {
        let mut coverage = Coverage::default();
        for (at, octets) in segments {
            coverage.add(*at, *octets);
        }
        coverage
    }

    #[test]
    fn what_is_whole_in_order_missing_or_double() {
        assert_eq!(
            of(&[(0, 5), (5, 5), (10, 1)]).whole(Some(0)),
            Whole::Ordered
        );
        assert_eq!(of(&[(7, 5), (12, 0)]).whole(None), Whole::Ordered);
        assert_eq!(of(&[(0, 0)]).whole(Some(0)), Whole::Ordered);
        assert_eq!(
            of(&[(0, 5), (10, 5), (5, 5)]).whole(Some(0)),
            Whole::Disordered
        );
        assert_eq!(of(&[(5, 5), (0, 5)]).span(), (0, 10));
        assert_eq!(of(&[(0, 5), (6, 5)]).whole(Some(0)), Whole::Broken);
        assert_eq!(of(&[(0, 5), (4, 5)]).whole(Some(0)), Whole::Broken);
        assert_eq!(of(&[(1, 5)]).whole(Some(0)), Whole::Broken);
        let many: Vec<_> = (0..100).map(|n| (2 * n, 1)).collect();
        assert_eq!(of(&many).whole(Some(0)), Whole::Unknown);
    }
}
