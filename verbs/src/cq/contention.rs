//! Competition for the core of a thread that polls in vain.
//!
//! A thread that yields where others want its core gets it back after a time slice of each of them: milliseconds for each message. One that sleeps on the
//! sockets is woken by the data, and the scheduler prefers it to threads that have used their share.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// A yield of this length had a time slice of another thread in it.
const SLICE: Duration = Duration::from_micros(500);
/// Sleeps in place of yields until a yield probes again, which costs a time slice.
const SLEEPS: u32 = 256;

/// Evidence of competing threads. A count lost to a concurrent poll does no harm.
#[derive(Default)]
pub(crate) struct Contention {
    /// Sleeps until the next yield.
    sleeps_left: AtomicU32,
}

impl Contention {
    /// Leaves the core: by `yield_now`, which returns the time until the thread had it again, or by `sleep`.
    pub(crate) fn leave_core(&self, yield_now: impl FnOnce() -> Duration, sleep: impl FnOnce()) {
        let left = self.sleeps_left.load(Ordering::Relaxed);
        if left > 0 {
            self.sleeps_left.store(left - 1, Ordering::Relaxed);
            sleep();
        } else if yield_now() >= SLICE {
            self.sleeps_left.store(SLEEPS, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The yields and sleeps of so many polls in vain, where a yield takes so long.
    fn leaves(contention: &Contention, count: u32, micros: u64) -> (u32, u32) {
        let (mut yields, mut sleeps) = (0, 0);
        for _ in 0..count {
            contention.leave_core(
                || {
                    yields += 1;
                    Duration::from_micros(micros)
                },
                || sleeps += 1,
            );
        }
        (yields, sleeps)
    }

    #[test]
    fn a_thread_yields_on_a_core_of_its_own_and_sleeps_where_others_compete() {
        let contention = Contention::default();
        assert_eq!(leaves(&contention, 1000, 100), (1000, 0));
        assert_eq!(leaves(&contention, 257, 3000), (1, 256));
        assert_eq!(leaves(&contention, 1, 100), (1, 0), "the next one probes");
        assert_eq!(leaves(&contention, 1000, 100), (1000, 0));
    }
}
