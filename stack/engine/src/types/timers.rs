//! Deadlines of several timers.

use std::time::Instant;

/// The first deadline of timers that are set.
///
/// Unlike `into_iter().flatten().min()` this selects values, not references to values that may be absent: the optimized code of the latter computes with
/// uninitialized octets, which valgrind reports in every program.
#[inline]
pub fn earliest<const N: usize>(timers: [Option<Instant>; N]) -> Option<Instant> {
    let mut first: Option<Instant> = None;
    for timer in timers {
        first = match (first, timer) {
            (Some(before), Some(at)) if before <= at => Some(before),
            (_, Some(at)) => Some(at),
            (before, None) => before,
        };
    }
    first
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn the_first_of_those_that_are_set() {
        #[expect(clippy::disallowed_methods, reason = "any instant serves")]
        let origin = Instant::now();
        let at = |millis| Some(origin + Duration::from_millis(millis));
        assert_eq!(earliest([None, None]), None);
        assert_eq!(earliest([None, at(3), None]), at(3));
        assert_eq!(earliest([at(5), None, at(3), at(4)]), at(3));
        assert_eq!(earliest([at(1), at(2)]), at(1));
    }
}
