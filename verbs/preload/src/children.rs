//! Children of fork(2) that use connections of their parent, as of servers that fork for each connection.
//!
//! The first such call is recorded in memory that parent and children share: listeners of rsockets of the parent end, and later connections stay plain.

use crate::system::{kernel, next};
use libc::{
    F_DUPFD_CLOEXEC, MAP_ANONYMOUS, MAP_FAILED, MAP_SHARED, PROT_READ, PROT_WRITE, c_int, c_long,
};
use std::fs;
use std::path::Path;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether a child has used one.
fn record() -> Option<&'static AtomicBool> {
    static RECORD: OnceLock<Option<&'static AtomicBool>> = OnceLock::new();
    *RECORD.get_or_init(|| {
        let rights = PROT_READ | PROT_WRITE;
        let flags = MAP_SHARED | MAP_ANONYMOUS;
        // SAFETY: new memory of the system's choice.
        let page = unsafe {
            libc::mmap(
                ptr::null_mut(),
                size_of::<AtomicBool>(),
                rights,
                flags,
                -1,
                0,
            )
        };
        // SAFETY: a page of zeros, which is never unmapped.
        (page != MAP_FAILED).then(|| unsafe { &*page.cast::<AtomicBool>() })
    })
}

/// Makes the memory, before the first fork.
pub(crate) fn begin() {
    record();
}

/// This process is such a child.
pub(crate) fn report() {
    if let Some(record) = record() {
        record.store(true, Ordering::Relaxed);
    }
}

/// Whether a child of this process, or one beside it, has used a connection.
pub(crate) fn use_connections() -> bool {
    record().is_some_and(|it| it.load(Ordering::Relaxed))
}

/// Least number of the bell's descriptor: those below are left to `select(2)`.
const LEAST: c_long = 1024;

static BELL: OnceLock<Option<c_int>> = OnceLock::new();

/// A descriptor that becomes readable where a child of this process uses a UDP socket with a companion.
pub(crate) fn companions_bell() -> Option<c_int> {
    *BELL.get_or_init(|| {
        let low = kernel::semaphore()?;
        // SAFETY: numbers only.
        let bell = unsafe { next::fcntl(low, F_DUPFD_CLOEXEC, LEAST) };
        if bell < 0 {
            return Some(low);
        }
        kernel::close(low);
        Some(bell)
    })
}

/// This process is a child that uses such a socket: the companions of its parent end, and so datagrams reach the socket that both have.
pub(crate) fn end_companions() {
    report();
    let Some(Some(bell)) = BELL.get() else { return };
    // The program may have closed all descriptors, and opened others.
    let at = fs::read_link(format!("/proc/self/fd/{bell}"));
    if at.is_ok_and(|it| it == Path::new("anon_inode:[eventfd]")) {
        kernel::release(*bell);
    }
}
