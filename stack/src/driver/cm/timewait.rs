//! The time after a connection in which its queue pair is not to be reused, on InfiniBand: connections that are in it, and its end as an event.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::driver::device::clock;
use crate::driver::reactor::waker::Waker;

/// Connections in timewait, by the numbers that the program gave them. Empty unless the program requests the events.
#[derive(Debug, Default)]
pub(crate) struct Timewait {
    wanted: OnceLock<Wanted>,
    /// Ordered by deadline: the time is that of all.
    waiting: Mutex<VecDeque<(Instant, u64)>>,
}

#[derive(Debug)]
struct Wanted {
    time: Duration,
    /// Of the thread that reports the ends.
    waker: Arc<Waker>,
}

impl Timewait {
    /// Reports ends, `time` after the end of each connection from now on. Not the first call has no effect.
    pub(crate) fn report(&self, time: Duration, waker: &Arc<Waker>) {
        let waker = Arc::clone(waker);
        let _ = self.wanted.set(Wanted { time, waker });
    }

    /// A connection has ended.
    pub(crate) fn enter(&self, context: u64) {
        let Some(Wanted { time, waker }) = self.wanted.get() else {
            return;
        };
        let mut waiting = self.waiting.lock();
        // Read under the lock, so that deadlines are in order.
        let until = clock::now() + *time;
        waiting.push_back((until, context));
        drop(waiting);
        waker.wake_before(clock::to_nanos(Some(until)));
    }

    /// Deadline of the connection that leaves first.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.waiting.lock().front().map(|(until, _)| *until)
    }

    /// Takes a connection whose time is over.
    pub(crate) fn take_due(&self) -> Option<u64> {
        let mut waiting = self.waiting.lock();
        let is_due = |(until, _): &mut (Instant, u64)| *until <= clock::now();
        waiting.pop_front_if(is_due).map(|(_, context)| context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_in_order_when_their_time_is_over() {
        let timewait = Timewait::default();
        timewait.enter(1);
        assert_eq!((timewait.poll_timeout(), timewait.take_due()), (None, None));
        let waker = Arc::new(Waker::new().unwrap());
        timewait.report(Duration::from_millis(20), &waker);
        let before = clock::now();
        timewait.enter(2);
        timewait.enter(3);
        let until = timewait.poll_timeout().unwrap();
        assert!(until >= before + Duration::from_millis(20));
        let mut left = Vec::new();
        while left.len() < 2 {
            if let Some(context) = timewait.take_due() {
                assert!(clock::now() >= until);
                left.push(context);
            }
        }
        assert_eq!(left, [2, 3]);
        assert_eq!(timewait.poll_timeout(), None);
    }
}
