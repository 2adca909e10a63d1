//! Structs that begin with their size: programs and libraries of different versions work together.

use crate::ffi::store_prefix;
use nix::errno::Errno;
use std::{ptr, slice};

/// Reads a struct of another version. Fields missing in the program's have the values of `fresh`; fields missing here
/// have to be zero, else `EOPNOTSUPP`.
///
/// # Safety
/// `from` is NULL or points to as many octets as its first field counts, and `T` consists of integers and raw pointers
/// only, beginning with that field.
pub(super) unsafe fn load_sized<T: Copy>(from: *const T, fresh: T) -> Result<T, Errno> {
    // SAFETY: the caller's contract.
    let size = unsafe { size_of_program(from) }?;
    // SAFETY: the caller's contract.
    let octets = unsafe { slice::from_raw_parts(from.cast::<u8>(), size) };
    let (known, beyond) = octets.split_at(size.min(size_of::<T>()));
    if beyond.iter().any(|octet| *octet != 0) {
        return Err(Errno::EOPNOTSUPP);
    }
    let mut value = fresh;
    // SAFETY: `known` is at most as long as `T`, for which any octets are valid by the caller's contract.
    unsafe {
        ptr::copy_nonoverlapping(known.as_ptr(), (&raw mut value).cast(), known.len());
    }
    Ok(value)
}

/// The size field of a program's struct.
///
/// # Safety
/// As for [`load_sized`].
pub(super) unsafe fn size_of_program<T>(of: *const T) -> Result<usize, Errno> {
    if of.is_null() {
        return Err(Errno::EINVAL);
    }
    // SAFETY: not NULL, so the struct begins with its size.
    let size = unsafe { of.cast::<usize>().read() };
    // Larger than any version: the field was not set.
    if !(size_of::<usize>()..=4096).contains(&size) {
        return Err(Errno::EINVAL);
    }
    Ok(size)
}

/// Writes a struct of another version.
///
/// # Safety
/// `to` is NULL or points to as much room as its first field counts, which [`size_of_program`] has read as `size`.
pub(super) unsafe fn store_sized<T>(to: *mut T, size: usize, value: &T) -> Result<(), Errno> {
    // SAFETY: the caller's contract.
    unsafe { store_prefix(to.cast(), value, size) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[repr(C)]
    struct Ours {
        size: usize,
        first: u64,
        second: u64,
    }

    const FRESH: Ours = Ours {
        size: 0,
        first: 1,
        second: 2,
    };

    #[test]
    fn fields_that_the_program_does_not_know_are_fresh() {
        let theirs: [usize; 3] = [16, 7, 8];
        // SAFETY: three words are more than the first counts.
        let loaded = unsafe { load_sized(theirs.as_ptr().cast::<Ours>(), FRESH) }.unwrap();
        assert_eq!((loaded.first, loaded.second), (7, 2));
    }

    #[test]
    fn fields_that_we_do_not_know_must_be_zero() {
        let mut theirs: [usize; 4] = [32, 7, 8, 0];
        // SAFETY: four words, as the first counts.
        let loaded = unsafe { load_sized(theirs.as_ptr().cast::<Ours>(), FRESH) }.unwrap();
        assert_eq!((loaded.first, loaded.second), (7, 8));
        theirs[3] = 1;
        // SAFETY: as above.
        let loaded = unsafe { load_sized(theirs.as_ptr().cast::<Ours>(), FRESH) };
        assert_eq!(loaded, Err(Errno::EOPNOTSUPP));
        theirs[0] = 0;
        // SAFETY: as above.
        let loaded = unsafe { load_sized(theirs.as_ptr().cast::<Ours>(), FRESH) };
        assert_eq!(loaded, Err(Errno::EINVAL));
    }
}
