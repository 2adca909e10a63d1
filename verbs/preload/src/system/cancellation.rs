//! Cancellation of threads (`pthread_cancel(3)`), which is disabled in calls of rsockets: waits for them end from time to time, and the thread acts upon it between two.

use libc::c_int;

unsafe extern "C-unwind" {
    fn pthread_testcancel();
}

/// Longest wait in milliseconds. A thread that waits for rsockets wakes up as often in any case.
const LONGEST: c_int = 500;

/// Waits by `wait`, whose argument is a timeout in milliseconds and whose result 0 is its end. A negative timeout is none. The thread may be cancelled
/// before each wait, so that callers have nothing with a destructor.
pub(crate) fn waiting(timeout: c_int, wait: impl Fn(c_int) -> c_int) -> c_int {
    let mut left = timeout;
    loop {
        // SAFETY: a cancelled thread unwinds through frames without destructors.
        unsafe { pthread_testcancel() };
        let time = if left < 0 { LONGEST } else { left.min(LONGEST) };
        let result = wait(time);
        if result != 0 || time == left {
            return result;
        }
        if left > 0 {
            left -= time;
        }
    }
}
