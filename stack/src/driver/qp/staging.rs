//! Staging memory for datagrams and FPDUs, one per thread and transport, so that it stays in that core's cache and queue pairs without anything to
//! send need none.

use std::cell::Cell;
use std::ops::{Deref, DerefMut};

use arrayvec::ArrayVec;
use dgiwarp_llp_tcp_mpa::framing::LONGEST_FPDU;

use dgiwarp_engine::connected::ROOM;

thread_local! {
    static STAGING: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
    static STREAMS: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
    static RX_BUFFER: Cell<Option<Box<RxBuffer>>> = const { Cell::new(None) };
}

/// Octets that one call reads from a connection at most: a message of 256 KiB with its FPDUs' headers. More do not fit the cache with the memory
/// they go to.
const READ: usize = 272 << 10;
/// Memory of this thread's that connections may have for FPDUs that are unfinished, in pieces. Others allocate theirs.
const SPARE: usize = 8;

/// Octets from one page to the next.
const PAGE: usize = 4096;

/// Memory that the kernel receives into. It begins in the middle of a page.
///
/// Processors copy with `rep movsb` 16 times slower where the destination's place in its page is 1 to 16 octets behind the source's. Segments, and
/// memory of programs, begin at places near the beginning of a page, and so does what an allocator gives: 16 octets behind it.
#[derive(Debug)]
pub(crate) struct MidPage {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl MidPage {
    /// Zeroed memory of `len` octets.
    pub(crate) fn zeroed(len: usize) -> Self {
        let memory = vec![0; len + PAGE];
        let start = (PAGE + PAGE / 2 - memory.as_ptr().addr() % PAGE) % PAGE;
        Self { memory, start, len }
    }
}

impl Deref for MidPage {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.len]
    }
}

impl DerefMut for MidPage {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.len]
    }
}

/// Receive buffer of one thread that reads from connections.
#[derive(Debug)]
pub(crate) struct RxBuffer {
    pub(crate) octets: MidPage,
    spare: ArrayVec<Vec<u8>, SPARE>,
    /// Pieces of spare memory allocated so far, at most `SPARE`.
    made: usize,
}

impl RxBuffer {
    fn new() -> Box<Self> {
        Box::new(Self {
            octets: MidPage::zeroed(READ),
            spare: ArrayVec::new(),
            made: 0,
        })
    }

    /// Takes this thread's buffer, or a new one.
    pub(crate) fn take() -> Box<Self> {
        let own = RX_BUFFER.try_with(Cell::take).ok().flatten();
        own.unwrap_or_else(Self::new)
    }

    /// Gives the buffer back to this thread.
    pub(crate) fn put_back(self: Box<Self>) {
        // A thread that is ending has none any more.
        let _ = RX_BUFFER.try_with(|cell| cell.set(Some(self)));
    }

    /// Memory for an unfinished FPDU; empty where none is left, so that the engine allocates only as much as it needs.
    pub(crate) fn spare(&mut self) -> Vec<u8> {
        match self.spare.pop() {
            Some(memory) => memory,
            None if self.made < SPARE => {
                self.made += 1;
                vec![0; LONGEST_FPDU]
            }
            None => Vec::new(),
        }
    }

    /// Takes such memory back.
    pub(crate) fn give_spare(&mut self, memory: Vec<u8>) {
        if memory.len() == LONGEST_FPDU {
            // The one beyond is freed.
            let _ = self.spare.try_push(memory);
        }
    }
}

/// Registers the destructors of this thread's memory, before memory may be short.
pub(crate) fn register() {
    STAGING.with(|_| ());
    STREAMS.with(|_| ());
    RX_BUFFER.with(|_| ());
}

/// Takes this thread's room. At the end of a process its last thread has none any more, and handlers of the end may still send.
pub(crate) fn take() -> Vec<u8> {
    STAGING.try_with(Cell::take).unwrap_or_default()
}

/// Puts it back.
pub(crate) fn put_back(staging: Vec<u8>) {
    let _ = STAGING.try_with(|room| room.set(staging));
}

/// Takes this thread's room for the FPDUs of a connection.
pub(crate) fn take_for_stream() -> Vec<u8> {
    let mut room = STREAMS.try_with(Cell::take).unwrap_or_default();
    room.reserve(ROOM);
    room
}

/// Puts it back, or that of another connection which is not needed any more.
pub(crate) fn put_back_of_stream(mut room: Vec<u8>) {
    if room.capacity() >= ROOM {
        room.clear();
        let _ = STREAMS.try_with(|streams| streams.set(room));
    }
}

#[cfg(test)]
mod tests {
    use super::{MidPage, PAGE};

    #[test]
    fn receive_memory_begins_in_the_middle_of_a_page() {
        for len in [1, 4095, 4096, super::READ] {
            let memory = MidPage::zeroed(len);
            assert_eq!(memory.len(), len);
            assert_eq!(memory.as_ptr().addr() % PAGE, PAGE / 2);
        }
    }
}
