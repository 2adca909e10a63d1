//! The calling thread's `errno`.

use libc::c_int;

fn place() -> *mut c_int {
    // SAFETY: the address of the calling thread's own errno.
    unsafe { libc::__errno_location() }
}

pub(crate) fn get() -> c_int {
    // SAFETY: valid for reading while the thread lives.
    unsafe { place().read() }
}

pub(crate) fn set(value: c_int) {
    // SAFETY: valid for writing while the thread lives.
    unsafe { place().write(value) };
}

/// Result of a call that fails.
pub(crate) fn fail<T: From<i8>>(value: c_int) -> T {
    set(value);
    T::from(-1)
}
