//! Room for building what leaves, one per thread and transport, so that it stays in that core's cache and queue pairs without anything to
//! send need none.

use std::cell::Cell;

use crate::engine::rc::ROOM;

thread_local! {
    static STAGING: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
    static STREAMS: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Takes this thread's room.
pub(crate) fn take() -> Vec<u8> {
    STAGING.take()
}

/// Puts it back.
pub(crate) fn put_back(staging: Vec<u8>) {
    STAGING.set(staging);
}

/// Takes this thread's room for the FPDUs of a connection.
pub(super) fn take_for_stream() -> Vec<u8> {
    let mut room = STREAMS.take();
    room.reserve(ROOM);
    room
}

/// Puts it back, or that of another connection which is not needed any more.
pub(super) fn put_back_of_stream(mut room: Vec<u8>) {
    if room.capacity() >= ROOM {
        room.clear();
        STREAMS.set(room);
    }
}
