//! Numbers of descriptors.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// Moves a descriptor to a number of at least `least`, within the process's limit (`RLIMIT_NOFILE`); beyond the limit the descriptor keeps its number.
/// Low numbers are left to programs that use `select(2)`.
#[must_use]
pub fn move_up(fd: OwnedFd, least: RawFd) -> OwnedFd {
    if fd.as_raw_fd() >= least {
        return fd;
    }
    // SAFETY: makes another descriptor; the given one is open as long as `fd` lives.
    let higher = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, least) };
    if higher < 0 {
        return fd;
    }
    // SAFETY: a new descriptor without another owner.
    unsafe { OwnedFd::from_raw_fd(higher) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn low_numbers_are_given_up_where_there_are_others() {
        let low: OwnedFd = File::open("/dev/null").unwrap().into();
        let before = low.as_raw_fd();
        let moved = move_up(low, before + 40);
        assert!(moved.as_raw_fd() >= before + 40);
        let number = moved.as_raw_fd();
        let same = move_up(moved, number);
        assert_eq!(same.as_raw_fd(), number);
        // No process may have this one.
        assert_eq!(move_up(same, RawFd::MAX).as_raw_fd(), number);
    }
}
