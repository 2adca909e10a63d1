//! Check that a range of this process can be registered.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::str;

pub(crate) const PAGE: usize = 4096;

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
        /// Start of the first mapping that lacks it, or of the range where that is unknown.
        address: usize,
        /// Write access is missing; else read access.
        write: bool,
    },
}

/// Checks that `len` bytes at `address` are mapped readable, and writable if `write`.
///
/// `/proc/self/maps` answers that, and pages are neither populated nor touched. Where it cannot be read, `madvise(2)` populates the range as
/// the program's own access would; where that is refused too, `mincore(2)` finds holes alone; and where all three are, the caller is trusted.
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
    let range = Range {
        address,
        end,
        write,
    };
    let found = range.in_maps("/proc/self/maps");
    match found.unwrap_or_else(|_| range.without_maps()) {
        Found::Good => Ok(()),
        Found::Hole => Err(hole),
        Found::Protected { address, write } => Err(MappedError::Protection { address, write }),
    }
}

/// Whether `len` bytes at `address` can be read now, or written if `write`. Pages that come on demand are brought into memory, as by an access.
pub(crate) fn populate(address: usize, len: usize, write: bool) -> bool {
    let Some(end) = address.checked_add(len) else {
        return false;
    };
    let range = Range {
        address,
        end,
        write,
    };
    len == 0
        || is_present(range.populate(), populates, || {
            check_mapped(address, len, write).is_ok()
        })
}

/// Whether memory is there, by the outcome of `madvise(2)`. A kernel that does not populate memory leaves that to `is_mapped`.
fn is_present(
    populated: Result<(), i32>,
    populates: impl FnOnce() -> bool,
    is_mapped: impl FnOnce() -> bool,
) -> bool {
    match populated {
        Ok(()) => true,
        Err(libc::ENOMEM | libc::EFAULT) => false,
        Err(_) => !populates() && is_mapped(),
    }
}

/// Outcome of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    Good,
    Hole,
    /// Memory from `address` on lacks a protection: to be written, or else to be read.
    Protected {
        address: usize,
        write: bool,
    },
}

/// `address..end`, not empty.
#[derive(Debug, Clone, Copy)]
struct Range {
    address: usize,
    end: usize,
    /// The range must be writable.
    write: bool,
}

impl Range {
    /// Checks against a memory map, whose lines ascend.
    fn in_maps(self, path: &str) -> io::Result<Found> {
        let mut maps = BufReader::new(File::open(path)?);
        let mut line = Vec::new();
        // From `address` to here all is mapped with the right protection.
        let mut covered = self.address;
        while covered < self.end {
            line.clear();
            if maps.read_until(b'\n', &mut line)? == 0 {
                return Ok(Found::Hole);
            }
            let parsed = str::from_utf8(&line).ok().and_then(parse_line);
            let (start, stop, protection) = parsed.ok_or(io::ErrorKind::InvalidData)?;
            if stop <= covered {
                continue;
            }
            if start > covered {
                return Ok(Found::Hole);
            }
            let readable = protection.starts_with('r');
            let writable = protection.as_bytes().get(1) == Some(&b'w');
            if !readable || (self.write && !writable) {
                return Ok(Found::Protected {
                    address: covered,
                    write: readable,
                });
            }
            covered = stop;
        }
        Ok(Found::Good)
    }

    /// Checks where there is no memory map.
    fn without_maps(self) -> Found {
        self.judge(self.populate(), populates, || self.has_hole())
    }

    /// The outcome by that of `madvise(2)`, and where it decides nothing by `mincore(2)`.
    fn judge(
        self,
        populated: Result<(), i32>,
        populates: impl Fn() -> bool,
        has_hole: impl FnOnce() -> bool,
    ) -> Found {
        match populated {
            Ok(()) => Found::Good,
            Err(libc::ENOMEM) => Found::Hole,
            // The protection, or a kernel before 5.14.
            Err(libc::EINVAL | libc::EFAULT) if populates() => Found::Protected {
                address: self.address,
                write: self.write,
            },
            Err(_) if has_hole() => Found::Hole,
            Err(_) => Found::Good,
        }
    }

    /// Brings pages into memory as an access does, or returns the errno of `madvise(2)`.
    fn populate(self) -> Result<(), i32> {
        self.advise(if self.write {
            libc::MADV_POPULATE_WRITE
        } else {
            libc::MADV_POPULATE_READ
        })
    }

    /// `madvise(2)`, or its errno.
    fn advise(self, advice: libc::c_int) -> Result<(), i32> {
        let start = self.address & !(PAGE - 1);
        // SAFETY: populating changes no byte of the range.
        let status = unsafe { libc::madvise(start as *mut libc::c_void, self.end - start, advice) };
        if status == 0 {
            return Ok(());
        }
        Err(io::Error::last_os_error().raw_os_error().unwrap_or(0))
    }

    /// Whether `mincore(2)` finds a hole, which is `ENOMEM`. No page is touched.
    fn has_hole(self) -> bool {
        let mut residency = [0u8; 4096];
        let mut page = self.address & !(PAGE - 1);
        while page < self.end {
            let step = (self.end - page).min(residency.len() * PAGE);
            // SAFETY: `residency` has one byte for each page of `step`; the range itself is only inspected.
            let status =
                unsafe { libc::mincore(page as *mut libc::c_void, step, residency.as_mut_ptr()) };
            if status != 0 {
                return io::Error::last_os_error().raw_os_error() == Some(libc::ENOMEM);
            }
            page += step;
        }
        false
    }
}

/// Whether the kernel populates memory on request.
fn populates() -> bool {
    let own = 0u8;
    let address = (&raw const own).addr();
    let range = Range {
        address,
        end: address + 1,
        write: true,
    };
    range.advise(libc::MADV_POPULATE_WRITE).is_ok()
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
pub(crate) mod tests {
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
    pub(crate) struct Pages {
        pub(crate) address: usize,
        count: usize,
    }

    impl Pages {
        pub(crate) fn map(address: usize, count: usize) -> Self {
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

        pub(crate) fn protect(&self, index: usize, protection: libc::c_int) {
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

    /// Every way to check a range comes to one answer, as far as it can.
    #[test]
    fn ranges_are_checked_without_a_memory_map_too() {
        let pages = Pages::map(0x5c_0000_0000, 4098);
        pages.protect(1, libc::PROT_READ);
        pages.protect(2, libc::PROT_NONE);
        let range = |first: usize, end: usize, write| Range {
            address: pages.page(first) + 5,
            end: pages.page(end) - 7,
            write,
        };
        let read_only = Found::Protected {
            address: pages.page(1) + 5,
            write: true,
        };
        for (range, expected) in [
            (range(0, 1, true), Found::Good),
            (range(0, 2, false), Found::Good),
            (range(1, 2, true), read_only),
            (range(3, 4098, true), Found::Good),
            (range(3, 4099, true), Found::Hole),
            (range(4098, 4099, false), Found::Hole),
        ] {
            let in_maps = range.in_maps("/proc/self/maps").unwrap();
            assert_eq!(in_maps, expected, "{range:?}");
            if populates() {
                assert_eq!(range.without_maps(), expected, "{range:?}");
            }
            assert_eq!(range.has_hole(), expected == Found::Hole, "{range:?}");
        }
        assert!(range(0, 1, true).in_maps("/proc/self/no-maps").is_err());
    }

    /// A kernel populates memory or not, and may refuse both system calls.
    #[test]
    fn outcomes_of_system_calls_decide_as_they_are_documented() {
        let range = Range {
            address: PAGE,
            end: 2 * PAGE,
            write: true,
        };
        let protected = Found::Protected {
            address: PAGE,
            write: true,
        };
        for (populated, populates, has_hole, expected) in [
            (Ok(()), false, true, Found::Good),
            (Err(libc::ENOMEM), true, false, Found::Hole),
            (Err(libc::EFAULT), true, false, protected),
            (Err(libc::EINVAL), true, true, protected),
            (Err(libc::EINVAL), false, true, Found::Hole),
            (Err(libc::EINVAL), false, false, Found::Good),
            (Err(libc::EPERM), true, false, Found::Good),
            (Err(libc::EPERM), true, true, Found::Hole),
        ] {
            let found = range.judge(populated, || populates, || has_hole);
            assert_eq!(found, expected, "{populated:?} {populates} {has_hole}");
        }
        for (populated, populates, is_mapped, expected) in [
            (Ok(()), true, false, true),
            (Err(libc::ENOMEM), false, true, false),
            (Err(libc::EFAULT), false, true, false),
            (Err(libc::EINVAL), true, true, false),
            (Err(libc::EINVAL), false, true, true),
            (Err(libc::EINVAL), false, false, false),
        ] {
            let found = is_present(populated, || populates, || is_mapped);
            assert_eq!(found, expected, "{populated:?} {populates} {is_mapped}");
        }
    }

    #[test]
    fn what_is_empty_or_mapped_can_be_brought_into_memory() {
        let pages = Pages::map(0x61_0000_0000, 1);
        assert!(populate(pages.address + 1, 0, true));
        assert!(populate(pages.page(1) + 1, 0, true));
        assert!(populate(pages.address + 5, PAGE - 5, true));
        assert!(!populate(pages.address + 5, PAGE, false));
        assert!(!populate(usize::MAX - 3, 8, false));
    }

    /// Ends at the end of a page, and a hole behind as many pages as one call of mincore(2) covers.
    #[test]
    fn holes_are_looked_for_in_the_whole_range() {
        let pages = Pages::map(0x62_0000_0000, 4098);
        let has_hole = |first, end| {
            let range = Range {
                address: pages.page(first),
                end: pages.page(end),
                write: false,
            };
            range.has_hole()
        };
        assert!(!has_hole(0, 1) && !has_hole(0, 4096) && !has_hole(0, 4098));
        assert!(has_hole(0, 4099) && has_hole(2, 4099) && has_hole(4098, 4099));
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
