//! Check that a range of this process can be registered.

use std::fs;
use std::io;

const PAGE: usize = 4096;

/// A range cannot be registered.
#[derive(Debug, thiserror::Error)]
pub enum MappedError {
    /// The range wraps around the address space or holds pages that are not mapped (`ENOMEM`).
    #[error("{len} bytes at {address:#x} are not all mapped")]
    Hole {
        /// Start of the range.
        address: usize,
        /// Length of the range in bytes.
        len: usize,
    },
    /// A part of the range lacks the protection that the access asks for (`EFAULT`).
    #[error("memory at {address:#x} cannot be {}", if *.write { "written" } else { "read" })]
    Protection {
        /// Start of the first mapping that lacks it.
        address: usize,
        /// Write access is missing; else read access.
        write: bool,
    },
    /// The memory map could not be read.
    #[error("cannot read the memory map: {0}")]
    Maps(#[source] io::Error),
}

/// Checks that `len` bytes at `address` are mapped readable, and writable if `write`. Pages are
/// neither populated nor touched.
///
/// # Errors
/// [`MappedError`]; the variants' docs name the errno that `ibv_reg_mr(3)` reports.
pub fn check_mapped(address: usize, len: usize, write: bool) -> Result<(), MappedError> {
    let hole = MappedError::Hole { address, len };
    let Some(end) = address.checked_add(len) else {
        return Err(hole);
    };
    if len == 0 {
        return Ok(());
    }
    if !has_all_pages(address, end).map_err(MappedError::Maps)? {
        return Err(hole);
    }
    let maps = fs::read_to_string("/proc/self/maps").map_err(MappedError::Maps)?;
    for (start, stop, protection) in maps.lines().filter_map(parse_line) {
        if stop <= address || start >= end {
            continue;
        }
        let readable = protection.starts_with('r');
        let writable = protection.as_bytes().get(1) == Some(&b'w');
        if !readable || (write && !writable) {
            return Err(MappedError::Protection {
                address: start.max(address),
                write: readable,
            });
        }
    }
    Ok(())
}

/// Whether `mincore(2)` finds no hole; a hole is `ENOMEM`. No page is touched.
fn has_all_pages(address: usize, end: usize) -> io::Result<bool> {
    let mut residency = [0u8; 4096];
    let mut page = address & !(PAGE - 1);
    while page < end {
        let step = (end - page).min(residency.len() * PAGE);
        // SAFETY: `residency` has one byte for each page of `step`; the range itself is only inspected.
        let status =
            unsafe { libc::mincore(page as *mut libc::c_void, step, residency.as_mut_ptr()) };
        if status != 0 {
            let error = io::Error::last_os_error();
            return match error.raw_os_error() {
                Some(libc::ENOMEM) => Ok(false),
                _ => Err(error),
            };
        }
        page += step;
    }
    Ok(true)
}

fn parse_line(line: &str) -> Option<(usize, usize, &str)> {
    let mut words = line.split_ascii_whitespace();
    let (start, stop) = words.next()?.split_once('-')?;
    Some((
        usize::from_str_radix(start, 16).ok()?,
        usize::from_str_radix(stop, 16).ok()?,
        words.next()?,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Buffer;

    #[test]
    fn owned_memory_is_mapped_and_the_null_page_is_not() {
        let buffer = Buffer::zeroed(3 * PAGE + 5).unwrap();
        let address = usize::try_from(buffer.region().address()).unwrap();
        assert!(check_mapped(address, buffer.len(), true).is_ok());
        assert!(check_mapped(address + 1, PAGE, true).is_ok());
        assert!(matches!(
            check_mapped(0, 1, false),
            Err(MappedError::Hole { .. })
        ));
        assert!(matches!(
            check_mapped(usize::MAX - 3, 8, false),
            Err(MappedError::Hole { .. })
        ));
    }

    /// Pages at an address where the kernel maps nothing by itself.
    struct Pages {
        address: usize,
        count: usize,
    }

    impl Pages {
        fn map(address: usize, count: usize) -> Self {
            // SAFETY: MAP_FIXED_NOREPLACE replaces no mapping.
            let at = unsafe {
                libc::mmap(
                    address as *mut libc::c_void,
                    count * PAGE,
                    libc::PROT_READ | libc::PROT_WRITE,
                    libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE,
                    -1,
                    0,
                )
            };
            assert_eq!(at.addr(), address);
            Self { address, count }
        }

        /// Address of a page.
        fn page(&self, index: usize) -> usize {
            self.address + index * PAGE
        }

        fn protect(&self, index: usize, protection: libc::c_int) {
            // SAFETY: one page of these, which nothing refers to.
            let status =
                unsafe { libc::mprotect(self.page(index) as *mut libc::c_void, PAGE, protection) };
            assert_eq!(status, 0);
        }
    }

    impl Drop for Pages {
        fn drop(&mut self) {
            // SAFETY: these pages were mapped here, and nothing refers to them.
            unsafe { libc::munmap(self.address as *mut libc::c_void, self.count * PAGE) };
        }
    }

    #[test]
    fn a_hole_is_found_wherever_it_is() {
        // One page more than one call of mincore(2) covers.
        let pages = Pages::map(0x5a_0000_0000, 4097);
        let whole = 4097 * PAGE;
        assert!(check_mapped(pages.address, whole, true).is_ok());
        assert!(check_mapped(pages.address + 5, whole - 5, true).is_ok());
        for (address, len) in [
            (pages.address, whole + 1),
            (pages.page(4097), 1),
            (pages.page(4096) + 1, PAGE),
            (pages.address - 1, 2),
        ] {
            let result = check_mapped(address, len, false);
            assert!(matches!(result, Err(MappedError::Hole { .. })), "{len}");
        }
        assert!(check_mapped(pages.page(4097), 0, true).is_ok());
    }

    #[test]
    fn protection_is_that_of_the_pages_of_the_range() {
        let pages = Pages::map(0x5b_0000_0000, 3);
        pages.protect(1, libc::PROT_READ);
        pages.protect(2, libc::PROT_NONE);
        let lacking = |address, len, write| match check_mapped(address, len, write) {
            Err(MappedError::Protection { address, write }) => Some((address, write)),
            other => other.map(|()| None).unwrap(),
        };
        let page = |index| pages.page(index);
        assert_eq!(lacking(page(0), PAGE, true), None);
        assert_eq!(lacking(page(0), 2 * PAGE, false), None);
        assert_eq!(lacking(page(0), PAGE + 1, true), Some((page(1), true)));
        assert_eq!(lacking(page(1) + 7, 1, true), Some((page(1) + 7, true)));
        assert_eq!(lacking(page(1), PAGE + 1, false), Some((page(2), false)));
        assert_eq!(lacking(page(2), PAGE, true), Some((page(2), false)));
    }

    #[test]
    fn constants_cannot_be_written_by_a_peer() {
        static CONSTANT: [u8; 64] = [7; 64];
        let address = CONSTANT.as_ptr().addr();
        assert!(check_mapped(address, 64, false).is_ok());
        assert!(matches!(
            check_mapped(address, 64, true),
            Err(MappedError::Protection { write: true, .. })
        ));
    }
}
