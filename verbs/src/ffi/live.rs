//! Objects and lists that the program owns at present, by address. Functions that destroy check a pointer here before they read
//! anything behind it, so that a second call for one object, or one for something else, is `EINVAL`.

use crate::ffi::fork::ProcessTable;
use std::alloc::{Layout, dealloc};
use std::collections::{BTreeMap, VecDeque};
use std::ptr::NonNull;

/// Destroyed objects whose memory is kept. Inline functions of `verbs.h` read the context of an object before they call its
/// device, and a second call for a destroyed one shall arrive there.
const RETIRED: usize = 256;

static LIVE: ProcessTable<Live> = ProcessTable::inherited(Live {
    tags: BTreeMap::new(),
    retired: VecDeque::new(),
});

#[derive(Default)]
struct Live {
    /// Tag of the type, by [`key`].
    tags: BTreeMap<usize, u32>,
    /// Memory of destroyed objects, the oldest first.
    retired: VecDeque<Retired>,
}

/// Memory of a destroyed object.
struct Retired {
    memory: NonNull<u8>,
    layout: Layout,
}

// SAFETY: memory that nothing else owns.
unsafe impl Send for Retired {}

impl Drop for Retired {
    fn drop(&mut self) {
        // SAFETY: by the contract of `retire`, allocated with this layout and owned by this value.
        unsafe { dealloc(self.memory.as_ptr(), self.layout) };
    }
}

/// The complement of an address: leak checkers take no object for reachable because this table has it.
fn key<T>(pointer: *mut T) -> usize {
    !pointer.addr()
}

/// The program has `pointer` from now on.
pub(crate) fn enter<T>(pointer: *mut T, tag: u32) {
    LIVE.lock().tags.insert(key(pointer), tag);
}

/// Whether the program has `pointer`, as an object with this tag.
pub(crate) fn contains<T>(pointer: *mut T, tag: u32) -> bool {
    LIVE.lock().tags.get(&key(pointer)) == Some(&tag)
}

/// The program gives `pointer` back; returns whether it had it as an object with this tag.
pub(crate) fn leave<T>(pointer: *mut T, tag: u32) -> bool {
    let mut live = LIVE.lock();
    let had = live.tags.get(&key(pointer)) == Some(&tag);
    if had {
        live.tags.remove(&key(pointer));
    }
    had
}

/// Keeps the memory of an object for a while instead of freeing it.
///
/// # Safety
/// `memory` was allocated with `layout` by Rust's global allocator; its contents are dropped, and nothing else frees it.
pub(crate) unsafe fn retire(memory: NonNull<u8>, layout: Layout) {
    let mut live = LIVE.lock();
    live.retired.push_back(Retired { memory, layout });
    let oldest = if live.retired.len() > RETIRED {
        live.retired.pop_front()
    } else {
        None
    };
    drop(live);
    drop(oldest);
}
