//! Structs whose length the program passes beside them: programs and libraries of different versions work together.

use crate::ffi::load;
use nix::errno::Errno;
use std::slice;

/// The length of a program's struct, if it is at least `least` bytes, else `EINVAL`.
pub(super) fn length(inlen: u32, least: usize) -> Result<usize, Errno> {
    let length = usize::try_from(inlen).map_err(|_| Errno::EINVAL)?;
    // Larger than any version: the length was not set.
    (least..=4096)
        .contains(&length)
        .then_some(length)
        .ok_or(Errno::EINVAL)
}

/// Reads attributes of the program. Fields beyond `T` have to be zero, else `EINVAL`.
///
/// # Safety
/// `from` is NULL or points to `inlen` bytes, and `T` consists of integers.
pub(super) unsafe fn load_attr<T: Copy>(from: *const T, inlen: u32) -> Result<T, Errno> {
    let length = length(inlen, size_of::<T>())?;
    // SAFETY: the caller's contract; the length is at least that of `T`.
    let attr = unsafe { load(from) }?;
    // SAFETY: not NULL, as `load` has checked, and as long as the program states.
    let octets = unsafe { slice::from_raw_parts(from.cast::<u8>(), length) };
    let beyond = octets.get(size_of::<T>()..).unwrap_or_default();
    beyond
        .iter()
        .all(|octet| *octet == 0)
        .then_some(attr)
        .ok_or(Errno::EINVAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_covers_the_fields_that_are_read() {
        assert_eq!(length(8, 8), Ok(8));
        assert_eq!(length(7, 8), Err(Errno::EINVAL));
        assert_eq!(length(u32::MAX, 8), Err(Errno::EINVAL));
    }

    #[test]
    fn fields_that_we_do_not_know_must_be_zero() {
        let mut theirs: [u64; 2] = [7, 0];
        // SAFETY: two words of 8 bytes.
        let loaded = unsafe { load_attr(theirs.as_ptr(), 16) };
        assert_eq!(loaded, Ok(7));
        theirs[1] = 1;
        // SAFETY: as above.
        let loaded = unsafe { load_attr(theirs.as_ptr(), 16) };
        assert_eq!(loaded, Err(Errno::EINVAL));
        // SAFETY: as above.
        let loaded = unsafe { load_attr(theirs.as_ptr(), 8) };
        assert_eq!(loaded, Ok(7));
    }
}
