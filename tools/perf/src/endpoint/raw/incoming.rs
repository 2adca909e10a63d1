//! Memory that raw rows receive into.

use std::ops::{Deref, DerefMut};

/// Bytes from one page to the next.
const PAGE: usize = 4096;

/// Receive memory that begins in the middle of a page, as that of our queue pairs does: processors copy with `rep movsb` many times slower where the
/// destination's place in its page is 1 to 16 bytes behind the source's, which an allocator's 16 bytes would make of every page that the kernel has.
#[derive(Debug)]
pub(super) struct Incoming {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl Incoming {
    /// Zeroed memory of `len` bytes.
    pub(super) fn zeroed(len: usize) -> Self {
        let memory = vec![0; len + PAGE];
        let start = (PAGE + PAGE / 2 - memory.as_ptr().addr() % PAGE) % PAGE;
        Self { memory, start, len }
    }
}

impl Deref for Incoming {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.memory
            .get(self.start..self.start + self.len)
            .unwrap_or(&[])
    }
}

impl DerefMut for Incoming {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.memory
            .get_mut(self.start..self.start + self.len)
            .unwrap_or(&mut [])
    }
}

#[cfg(test)]
mod tests {
    use super::{Incoming, PAGE};

    #[test]
    fn it_begins_in_the_middle_of_a_page() {
        for len in [0, 1, 4095, 4096, 65536] {
            let incoming = Incoming::zeroed(len);
            assert_eq!(incoming.len(), len);
            assert_eq!(incoming.as_ptr().addr() % PAGE, PAGE / 2);
        }
    }
}
