//! Cancellation points, `pthread_cancel(3)`: a call whose longest sleep has ended returns to its edge, which has no destructors, and begins again there unless the thread was cancelled.

use crate::ffi::entry;
use crate::rsocket::wait::now;
use nix::errno::Errno;
use std::cell::Cell;
use std::time::Instant;

/// Result of an attempt that ended so that the thread acts upon its cancellation.
const AGAIN: Errno = Errno::ERESTART;

thread_local! {
    /// The call is a cancellation point.
    static IS_POINT: Cell<bool> = const { Cell::new(false) };
}

unsafe extern "C-unwind" {
    fn pthread_testcancel();
}

/// The longest sleep of a call has ended: fails if the call is a cancellation point.
pub(super) fn slept_long() -> Result<(), Errno> {
    if IS_POINT.get() { Err(AGAIN) } else { Ok(()) }
}

/// Whether an attempt ended so that the thread acts upon its cancellation.
pub(super) fn is_again(errno: Errno) -> bool {
    errno == AGAIN
}

/// Convention of calls that wait: a cancellation point. `attempt` has no destructor, and goes on where its last attempt was when it is called again.
pub(super) fn cancellable<T>(failure: T, mut attempt: impl FnMut() -> Result<T, Errno>) -> T {
    loop {
        // SAFETY: a cancelled thread unwinds through frames without destructors.
        unsafe { pthread_testcancel() };
        let outer = IS_POINT.replace(true);
        let result = entry(Err(Errno::EIO), &mut attempt);
        IS_POINT.set(outer);
        match result {
            Ok(result) => return result,
            Err(AGAIN) => {}
            Err(errno) => {
                errno.set();
                return failure;
            }
        }
    }
}

/// The time at which the first attempt of a call began.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Begin(Option<Instant>);

impl Begin {
    pub(super) fn time(&mut self) -> Instant {
        *self.0.get_or_insert_with(now)
    }
}
