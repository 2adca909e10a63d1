//! Memory that all arenas of a process take.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Octets that this process takes for arenas. Rings that peers send in are theirs.
pub(crate) const BUDGET: usize = 64 << 20;

/// Octets of all arenas of the process.
static ARENAS: AtomicUsize = AtomicUsize::new(0);

/// A share of the budget, given back when it goes.
#[derive(Debug)]
pub(crate) struct Share(usize);

impl Share {
    pub(crate) fn take(octets: usize) -> Option<Self> {
        let mut share = Self(0);
        share.grow(octets).then_some(share)
    }

    /// Takes `octets` more. Returns whether they are there.
    pub(crate) fn grow(&mut self, octets: usize) -> bool {
        let more = |taken: usize| taken.checked_add(octets).filter(|it| *it <= BUDGET);
        let grown = ARENAS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        if grown.is_ok() {
            self.0 += octets;
        }
        grown.is_ok()
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        ARENAS.fetch_sub(self.0, Ordering::Relaxed);
    }
}

/// Held by tests that take all of it.
#[cfg(test)]
pub(crate) static ALONE: parking_lot::Mutex<()> = parking_lot::Mutex::new(());

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_is_for_all_arenas_and_comes_back() {
        let _alone = ALONE.lock();
        let mut most = Share::take(BUDGET - (1 << 20)).unwrap();
        assert!(Share::take(BUDGET).is_none() && !most.grow(2 << 20));
        drop(most);
        assert!(Share::take(2 << 20).is_some_and(|mut share| share.grow(2 << 20)));
    }
}
