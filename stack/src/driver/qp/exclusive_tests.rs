//! Real threads on [`Exclusive`]; `interleavings` goes through all interleavings of a few.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::driver::qp::exclusive::Exclusive;

#[test]
fn threads_lose_nothing() {
    let queue = AtomicU64::new(0);
    let shared = Exclusive::new(0u64);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..10_000 {
                    queue.fetch_add(1, Ordering::SeqCst);
                    shared.run_or_mark(|done| *done += queue.swap(0, Ordering::SeqCst));
                }
            });
        }
    });
    assert_eq!(shared.run(|done| *done, |_| ()), 40_000);
}
