//! Copies from and to memory of this process that may be unmapped meanwhile.
//!
//! The kernel copies, with `process_vm_readv(2)` and `process_vm_writev(2)` on the calling process itself, which needs no capability. An access that
//! would raise SIGSEGV or SIGBUS in a plain copy ends the call.

use std::cell::Cell;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};

thread_local! {
    /// The thread places octets for programs that do nothing meanwhile.
    static IN_BACKGROUND: Cell<bool> = const { Cell::new(false) };
    /// Octets are placed through the kernel, whatever the region.
    static GUARDS: Cell<bool> = const { Cell::new(false) };
}

/// This thread is one in the background: what it [guards](guard) is placed through the kernel.
pub fn enter_background() {
    IN_BACKGROUND.set(true);
}

/// Places the octets of received messages with `place`. In a [background thread](enter_background), pages that a program has unmapped without a deregistration take nothing, and the
/// process goes on: hardware writes to the pinned pages then, which nobody sees. UCX unmaps its receive buffers before it destroys the queue pair.
#[inline(always)]
pub fn guard<R>(place: impl FnOnce() -> R) -> R {
    let guards = IN_BACKGROUND.get();
    if guards {
        GUARDS.set(true);
    }
    let result = place();
    if guards {
        GUARDS.set(false);
    }
    result
}

/// Whether octets are placed through the kernel now.
#[inline]
pub(crate) fn guards() -> bool {
    GUARDS.get()
}

/// The kernel, or a filter of system calls, denies them.
static DENIED: AtomicBool = AtomicBool::new(false);

/// Writes `src` to `to`, the last 8 octets last, as far as pages are mapped writable. `false` if the calls are denied: nothing is written.
#[cold]
pub(crate) fn write(to: NonNull<u8>, src: &[u8]) -> bool {
    write_from(to, src.as_ptr(), src.len())
}

/// As [`write`], of `len` octets at an address.
#[cold]
pub(crate) fn write_from(to: NonNull<u8>, from: *const u8, len: usize) -> bool {
    if DENIED.load(Ordering::Relaxed) {
        return false;
    }
    let head = len.saturating_sub(8);
    for (at, len) in [(0, head), (head, len - head)] {
        if len == 0 {
            continue;
        }
        let local = vector(from.wrapping_add(at), len);
        let remote = vector(to.as_ptr().wrapping_add(at), len);
        // SAFETY: `local` is only read. The kernel checks each page of both; nobody refers to `remote`, by the contract of a region.
        let copied = unsafe {
            libc::process_vm_writev(own_process(), &raw const local, 1, &raw const remote, 1, 0)
        };
        if copied < 0 && is_denied() {
            return false;
        }
        if usize::try_from(copied) != Ok(len) {
            break;
        }
    }
    true
}

/// Reads `dst.len()` octets at `from`; those whose pages are not mapped readable are 0. `false` if the calls are denied.
#[cold]
pub(crate) fn read(from: NonNull<u8>, dst: &mut [u8]) -> bool {
    if DENIED.load(Ordering::Relaxed) {
        return false;
    }
    let local = vector(dst.as_mut_ptr(), dst.len());
    let remote = vector(from.as_ptr(), dst.len());
    // SAFETY: `local` is a live, unique slice. The kernel checks each page of `remote`.
    let copied = unsafe {
        libc::process_vm_readv(own_process(), &raw const local, 1, &raw const remote, 1, 0)
    };
    let copied = match usize::try_from(copied) {
        Ok(copied) => copied,
        Err(_) if is_denied() => return false,
        Err(_) => 0,
    };
    dst[copied..].fill(0);
    true
}

fn own_process() -> libc::pid_t {
    std::process::id().cast_signed()
}

fn vector(base: *const u8, len: usize) -> libc::iovec {
    libc::iovec {
        iov_base: base.cast_mut().cast(),
        iov_len: len,
    }
}

/// Whether the last call failed because such calls are denied, which is so for good.
fn is_denied() -> bool {
    let errno = std::io::Error::last_os_error().raw_os_error();
    let denied = matches!(errno, Some(libc::EPERM | libc::EACCES | libc::ENOSYS));
    if denied {
        DENIED.store(true, Ordering::Relaxed);
    }
    denied
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Region;
    use crate::mapped::PAGE;
    use crate::mapped::tests::Pages;

    fn octets(len: usize) -> Vec<u8> {
        (0..len)
            .map(|at| u8::try_from((at * 7 + 1) % 256).unwrap())
            .collect()
    }

    fn region(pages: &Pages, len: usize) -> Region {
        let start = NonNull::new(pages.address as *mut u8).unwrap();
        // SAFETY: nothing refers to these pages.
        unsafe { Region::on_demand(start, len) }
    }

    #[test]
    fn copies_go_both_ways() {
        let pages = Pages::map(0x5d_0000_0000, 4);
        let region = region(&pages, 4 * PAGE);
        for (at, len) in [
            (0, 0),
            (3, 1),
            (5, 7),
            (9, 8),
            (11, 9),
            (1, 4 * PAGE - 1),
            (PAGE - 3, 6),
        ] {
            let slice = region.slice(at, len).unwrap();
            assert!(region.reach(at, len, true));
            slice.place(&octets(len));
            let mut found = vec![0xee; len];
            slice.copy_to(&mut found);
            assert_eq!(found, octets(len));
            if len > 0 {
                assert_eq!(slice.load(), 1);
            }
            let other = crate::Buffer::zeroed(len.max(1)).unwrap();
            let plain = other.region();
            plain.slice(0, len).unwrap().place_region(&slice);
            assert_eq!(other.to_vec(0, len), octets(len));
            slice.place(&vec![0; len]);
            slice.place_region(&plain.slice(0, len).unwrap());
            slice.copy_to(&mut found);
            assert_eq!(found, octets(len));
        }
    }

    #[test]
    fn checksums_are_those_of_plain_memory() {
        use dgiwarp_codec::Payload;
        let pages = Pages::map(0x5e_0000_0000, 4);
        let region = region(&pages, 4 * PAGE);
        let all = octets(4 * PAGE);
        region.slice(0, 4 * PAGE).unwrap().place(&all);
        for (at, len) in [(0, 0), (1, 100), (7, PAGE), (3, 3 * PAGE + 9)] {
            let slice = region.slice(0, 4 * PAGE).unwrap();
            assert_eq!(slice.crc(at, len, 5), Payload::crc(&all[..], at, len, 5));
        }
    }

    /// Plain regions, whose pages a program has unmapped, take nothing from a background thread.
    #[test]
    fn a_background_thread_places_nothing_where_nothing_is_mapped() {
        let pages = Pages::map(0x64_0000_0000, 2);
        let start = NonNull::new(pages.address as *mut u8).unwrap();
        // SAFETY: nothing refers to these pages.
        let region = unsafe { Region::from_raw_parts(start, 2 * PAGE) };
        let source = crate::Buffer::zeroed(2 * PAGE).unwrap();
        source.write(0, &octets(2 * PAGE));
        pages.protect(1, libc::PROT_NONE);
        let background = std::thread::spawn(move || {
            enter_background();
            let from = source.region();
            guard(|| {
                let whole = region.slice(0, 2 * PAGE).unwrap();
                whole.place(&octets(2 * PAGE));
                region.slice(PAGE, 8).unwrap().place(&[1; 8]);
                whole.place_region(&from.slice(0, 2 * PAGE).unwrap());
            });
            assert!(!guards());
            let mut found = vec![0; PAGE];
            region.slice(0, PAGE).unwrap().copy_to(&mut found);
            assert_eq!(found, octets(2 * PAGE)[..PAGE]);
        });
        background.join().unwrap();
    }

    /// Pages that are unmapped or protected behind a check end no process.
    #[test]
    fn pages_that_are_gone_take_nothing_and_give_zeros() {
        let pages = Pages::map(0x5f_0000_0000, 3);
        let region = region(&pages, 4 * PAGE);
        let whole = region.slice(0, 3 * PAGE).unwrap();
        whole.place(&octets(3 * PAGE));
        pages.protect(1, libc::PROT_READ);
        assert!(region.reach(0, 3 * PAGE, false));
        assert!(!region.reach(0, 3 * PAGE, true) && region.reach(0, PAGE, true));
        assert!(!region.reach(2 * PAGE, PAGE + 1, false), "a hole");
        whole.place(&vec![0xff; 3 * PAGE]);
        let mut found = vec![0; 3 * PAGE];
        whole.copy_to(&mut found);
        assert_eq!(found[..PAGE], [0xff; PAGE]);
        assert_eq!(found[PAGE..2 * PAGE], octets(3 * PAGE)[PAGE..2 * PAGE]);
        pages.protect(0, libc::PROT_NONE);
        assert!(!region.reach(0, 1, false));
        let first = region.slice(0, PAGE + 5).unwrap();
        let mut found = vec![0xee; PAGE + 5];
        first.copy_to(&mut found);
        assert_eq!(found, vec![0; PAGE + 5]);
        first.place(&found);
        assert_eq!(region.slice(9, 1).unwrap().load(), 0);
    }

    #[test]
    fn copies_between_regions_end_at_pages_that_are_gone() {
        let pages = Pages::map(0x63_0000_0000, 2);
        let region = region(&pages, 2 * PAGE);
        let whole = region.slice(0, 2 * PAGE).unwrap();
        whole.place(&octets(2 * PAGE));
        pages.protect(1, libc::PROT_NONE);
        let plain = crate::Buffer::zeroed(2 * PAGE).unwrap();
        let own = plain.region();
        let own = own.slice(0, 2 * PAGE).unwrap();
        own.place_region(&whole);
        assert_eq!(plain.to_vec(0, PAGE), octets(2 * PAGE)[..PAGE]);
        assert_eq!(plain.to_vec(PAGE, PAGE), [0; PAGE]);
        own.place(&[9; 2 * PAGE]);
        whole.place_region(&own);
        let mut found = [0xee; 2 * PAGE];
        whole.copy_to(&mut found);
        assert_eq!(found[..PAGE], [9; PAGE]);
        assert_eq!(found[PAGE..], [0; PAGE]);
    }

    #[test]
    fn parts_come_on_demand_too() {
        let pages = Pages::map(0x60_0000_0000, 1);
        let region = region(&pages, 2 * PAGE);
        let part = region.part(PAGE, PAGE).unwrap();
        assert!(part.is_on_demand() && !part.reach(0, 1, false));
        let plain = crate::Buffer::zeroed(8).unwrap();
        assert!(!plain.region().is_on_demand() && plain.region().reach(0, 8, true));
    }
}
