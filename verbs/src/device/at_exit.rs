//! End of the process: devices that the program did not close send what their queue pairs accepted, and write statistics.

use crate::ffi::fork::ProcessTable;
use dgiwarp::{Rnic, WeakRnic};
use dgiwarp_memory::socket::NoCancellation;
use std::process;
use std::sync::{Once, OnceLock};

/// Devices that are or were open, each with the process that opened it.
static OPEN: ProcessTable<Vec<(u32, WeakRnic)>> = ProcessTable::inherited(Vec::new());

/// Function that posts last messages before devices leave.
static BEFORE: OnceLock<fn()> = OnceLock::new();

/// Sets the function that is called before devices leave.
pub(crate) fn before(leave: fn()) {
    let _ = BEFORE.set(leave);
}

/// Adds a device that was opened.
pub(crate) fn add(rnic: &Rnic) {
    let mut open = OPEN.lock();
    open.retain(|(_, rnic)| rnic.upgrade().is_some());
    open.push((process::id(), rnic.downgrade()));
    drop(open);
    static REGISTER: Once = Once::new();
    REGISTER.call_once(|| {
        // SAFETY: a function of this library, which is never unloaded.
        unsafe { libc::atexit(at_exit) };
    });
}

extern "C" fn at_exit() {
    let _guard = NoCancellation::begin();
    let _ = std::panic::catch_unwind(|| {
        if let Some(leave) = BEFORE.get() {
            leave();
        }
        let Some(mut open) = OPEN.try_lock() else {
            return;
        };
        for (opener, rnic) in open.drain(..) {
            // In a forked child, threads of the parent may have held locks of the device.
            if opener == process::id()
                && let Some(rnic) = rnic.upgrade()
            {
                rnic.leave_process();
                rnic.write_statistics();
            }
        }
    });
}
