//! Whether something ended in time, on a machine that may be busy with something else.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::common::{now, sleep};

/// How late anything may be.
pub(crate) const SLACK: Duration = Duration::from_millis(50);
/// A thread that did nothing but sleep was this late: then the machine is to blame.
const STALL: Duration = Duration::from_millis(4);
const ATTEMPTS: u32 = 6;

/// When something was due, and when it came.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Span {
    pub(crate) due: Instant,
    pub(crate) came: Instant,
}

impl Span {
    /// Runs `what`, which is to take `limit`.
    pub(crate) fn of<R>(limit: Duration, what: impl FnOnce() -> R) -> (Self, R) {
        let due = now() + limit;
        let result = what();
        let came = now();
        (Self { due, came }, result)
    }
}

/// Runs `attempt`, all of whose spans must be kept. It gets another chance where a thread that only sleeps was late
/// meanwhile, or where it gave up by itself (`None`) because what it wanted to see did not come about.
#[track_caller]
pub(crate) fn in_time(what: &str, mut attempt: impl FnMut() -> Option<Vec<Span>>) {
    for number in 1.. {
        let (spans, stall) = watched(&mut attempt);
        let late = spans.as_ref().map(|spans| {
            let late = spans
                .iter()
                .map(|span| span.came.saturating_duration_since(span.due));
            late.max().expect("something was measured")
        });
        println!("{what}: {late:?} late, a sleeper {stall:?}");
        match late {
            Some(late) if late <= SLACK => return,
            Some(late) if stall < STALL => panic!("{what}: {late:?} late"),
            Some(_) | None => assert!(
                number < ATTEMPTS,
                "{what}: {late:?} late, a sleeper {stall:?}"
            ),
        }
    }
}

/// Runs `what` beside a thread that sleeps. Returns how late that thread was at most.
fn watched<R>(what: impl FnOnce() -> R) -> (R, Duration) {
    let over = AtomicBool::new(false);
    let stall = AtomicU64::new(0);
    let result = std::thread::scope(|scope| {
        scope.spawn(|| {
            let nap = Duration::from_millis(1);
            while !over.load(Ordering::Relaxed) {
                let began = now();
                sleep(nap);
                let late = (now() - began).saturating_sub(nap);
                let micros = u64::try_from(late.as_micros()).unwrap_or(u64::MAX);
                stall.fetch_max(micros, Ordering::Relaxed);
            }
        });
        // Also when it panics: the scope waits for the sleeper.
        let _over = Over(&over);
        what()
    });
    (result, Duration::from_micros(stall.into_inner()))
}

/// Ends the sleeper when it is dropped.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
