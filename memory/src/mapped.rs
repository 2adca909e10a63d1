//! Whether a range of this process can be registered.

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
        /// Whether write protection was the trouble.
        write: bool,
    },
    /// The kernel could not be asked.
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

/// `mincore(2)` answers `ENOMEM` for a range with a hole, without touching a page.
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
