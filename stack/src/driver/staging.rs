//! Room for building a train, one per thread, so that it stays in that core's cache.

use std::cell::Cell;

thread_local! {
    static STAGING: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Takes this thread's room.
pub(crate) fn take() -> Vec<u8> {
    STAGING.take()
}

/// Puts it back.
pub(crate) fn put_back(staging: Vec<u8>) {
    STAGING.set(staging);
}
