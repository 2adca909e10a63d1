//! The end of the process: what queue pairs accepted leaves, and statistics, of devices that the program did not close.

use crate::ffi::fork;
use std::any::Any;
use std::process;
use std::sync::{Mutex, Once, PoisonError};

use dgiwarp::{Rnic, WeakRnic};

/// Devices that are or were open, and the process that opened them.
static OPEN: Mutex<Vec<(u32, WeakRnic)>> = Mutex::new(Vec::new());

/// Keeps others away while the process forks.
pub(crate) fn hold() -> Option<Box<dyn Any>> {
    fork::held(&OPEN)
}

/// Remembers a device that was opened.
pub(crate) fn remember(rnic: &Rnic) {
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    open.retain(|(_, rnic)| rnic.upgrade().is_some());
    open.push((process::id(), rnic.downgrade()));
    drop(open);
    static REGISTER: Once = Once::new();
    REGISTER.call_once(|| {
        // SAFETY: the function is of this library, and the C library forgets it should the library be unloaded.
        unsafe { libc::atexit(at_exit) };
    });
}

extern "C" fn at_exit() {
    let _ = std::panic::catch_unwind(|| {
        let Ok(mut open) = OPEN.try_lock() else {
            return;
        };
        for (opener, rnic) in open.drain(..) {
            // In a forked child, threads that are not there any more may have held locks.
            if opener == process::id()
                && let Some(rnic) = rnic.upgrade()
            {
                rnic.leave_process();
                rnic.write_statistics();
            }
        }
    });
}
