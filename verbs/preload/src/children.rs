//! Children of fork(2) that use connections of their parent, as of servers that fork for each connection.
//!
//! The first such call is recorded in memory that parent and children share: listeners of rsockets of the parent end, and later connections stay plain.

use libc::{MAP_ANONYMOUS, MAP_FAILED, MAP_SHARED, PROT_READ, PROT_WRITE};
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
