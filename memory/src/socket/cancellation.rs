//! Cancellation of threads (`pthread_cancel(3)`), which system calls act upon.

use std::ffi::c_int;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

/// `PTHREAD_CANCEL_DISABLE`.
const DISABLE: c_int = 1;

/// Disables cancellation of the thread until it is dropped: a cancellation in a system call would unwind through frames that hold locks. One that is
/// requested meanwhile stays pending until the program's next cancellation point.
///
/// Beginning and ending it cost an atomic operation each, so that code without system calls does without.
#[derive(Debug)]
pub struct NoCancellation(c_int);

impl NoCancellation {
    /// Disables it.
    #[must_use]
    #[inline]
    pub fn begin() -> Self {
        let mut old = 0;
        // SAFETY: changes only the calling thread's state, and writes the old one.
        unsafe { pthread_setcancelstate(DISABLE, &raw mut old) };
        Self(old)
    }
}

impl Drop for NoCancellation {
    #[inline]
    fn drop(&mut self) {
        let mut old = 0;
        // SAFETY: as above, with a state that was in force before.
        unsafe { pthread_setcancelstate(self.0, &raw mut old) };
    }
}
