//! Boundary of exported functions: no panic and no cancellation crosses it, and each convention for failing has one helper.

use dgiwarp::Buffer;
use dgiwarp_memory::socket::NoCancellation;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use std::ffi::c_int;
use std::hint::black_box;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// A panic was caught: state may be half changed, so no device opens any more.
static FATAL: AtomicBool = AtomicBool::new(false);

/// Raises a fatal event in every open context; set by the first of them.
static RAISE_FATAL: OnceLock<fn()> = OnceLock::new();

/// Sets the function that a caught panic calls.
pub(crate) fn on_fatal(raise: fn()) {
    let _ = RAISE_FATAL.set(raise);
}

/// Whether a panic was caught in this process.
pub(crate) fn is_fatal() -> bool {
    FATAL.load(Ordering::Acquire)
}

/// Runs the body of an exported function. A panic becomes `failure` with errno `EIO` and a fatal event.
pub(crate) fn entry<T>(failure: T, body: impl FnOnce() -> T) -> T {
    let _guard = NoCancellation::begin();
    data_path_entry(failure, body)
}

/// As [`entry`], for calls of the data path: cancellation is disabled where they come to a system call, which most of them do not.
pub(crate) fn data_path_entry<T>(failure: T, body: impl FnOnce() -> T) -> T {
    // After a panic only objects that refuse work once FATAL is set use the captures again.
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| {
        FATAL.store(true, Ordering::Release);
        if let Some(raise) = RAISE_FATAL.get() {
            raise();
        }
        Errno::EIO.set();
        failure
    })
}

/// Convention: 0 or an errno value. Sets `errno` too: several programs print it with `perror`.
pub(crate) fn errno_value(body: impl FnOnce() -> Result<(), Errno>) -> c_int {
    entry(libc::EIO, || match body() {
        Ok(()) => 0,
        Err(errno) => {
            errno.set();
            errno as c_int
        }
    })
}

/// Memory that must be left for an object to be made, in bytes: more than all allocations of an object and its threads that have no size from the program.
const HEADROOM: usize = 2 << 20;

/// Checks that memory for an object can be had. Small allocations end the process where they fail, so none is begun near the end.
pub(crate) fn check_memory() -> Result<(), Errno> {
    // A mapping leaves the program's allocator as it is. The allocator may have memory of its own left.
    let mapped = Buffer::zeroed(HEADROOM).map(drop);
    if mapped.is_ok()
        || black_box(Vec::<u8>::new())
            .try_reserve_exact(HEADROOM)
            .is_ok()
    {
        return Ok(());
    }
    Err(Errno::ENOMEM)
}

/// Convention: a pointer to a new object, or NULL and `errno`.
pub(crate) fn pointer<T>(body: impl FnOnce() -> Result<*mut T, Errno>) -> *mut T {
    entry(ptr::null_mut(), || {
        check_memory()
            .and_then(|()| body())
            .unwrap_or_else(|errno| {
                errno.set();
                ptr::null_mut()
            })
    })
}

/// Convention: a number, or -1 and `errno`.
pub(crate) fn minus_one(body: impl FnOnce() -> Result<c_int, Errno>) -> c_int {
    let _guard = NoCancellation::begin();
    minus_one_on_data_path(body)
}

/// As [`minus_one`], by [`data_path_entry`].
pub(crate) fn minus_one_on_data_path(body: impl FnOnce() -> Result<c_int, Errno>) -> c_int {
    data_path_entry(-1, || {
        body().unwrap_or_else(|errno| {
            errno.set();
            -1
        })
    })
}

/// Convention of calls that make objects or begin work in the background: a number, or -1 and `errno`.
pub(crate) fn minus_one_making(body: impl FnOnce() -> Result<c_int, Errno>) -> c_int {
    minus_one(|| check_memory().and_then(|()| body()))
}

/// Outcome of one attempt of a blocking call.
pub(crate) enum Attempt {
    Done,
    /// Nothing is queued: the next attempt follows when this descriptor is readable.
    Wait(RawFd),
}

impl Attempt {
    /// Nothing is queued behind `fd`: wait, or `EAGAIN` if the program made the descriptor non-blocking.
    pub(crate) fn again(fd: impl AsFd) -> Result<Self, Errno> {
        Self::again_at(&fd, || fd.as_fd())
    }

    /// As [`again`](Self::again), where the thread waits at another descriptor.
    pub(crate) fn again_at<'a>(
        fd: impl AsFd,
        wait_fd: impl FnOnce() -> BorrowedFd<'a>,
    ) -> Result<Self, Errno> {
        if is_nonblocking(&fd)? {
            return Err(Errno::EAGAIN);
        }
        Ok(Self::Wait(wait_fd().as_raw_fd()))
    }
}

/// Convention of blocking calls: 0, or -1 and `errno`. They are cancellation points, as in rdma-core, where they read from a
/// descriptor: programs end the threads in them with `pthread_cancel`. So `attempt` captures nothing with a destructor, and
/// the wait is outside of it.
pub(crate) fn waiting(attempt: impl Fn() -> Result<Attempt, Errno>) -> c_int {
    loop {
        match entry(Err(Errno::EIO), &attempt) {
            Ok(Attempt::Done) => return 0,
            Ok(Attempt::Wait(fd)) => {
                let readable = libc::pollfd {
                    fd,
                    events: libc::POLLIN,
                    revents: 0,
                };
                if poll(&mut [readable], -1) < 0 {
                    return -1;
                }
            }
            Err(errno) => {
                errno.set();
                return -1;
            }
        }
    }
}

/// poll(2) as a cancellation point: a cancelled thread unwinds from here, so callers have no destructors.
///
/// ThreadSanitizer ends a program whose thread unwinds from its own poll(2) below a library that it ignores, so this is the C library's.
pub(crate) fn poll(descriptors: &mut [libc::pollfd], timeout_ms: c_int) -> c_int {
    unsafe extern "C-unwind" {
        #[link_name = "__poll"]
        fn poll(fds: *mut libc::pollfd, count: libc::nfds_t, timeout: c_int) -> c_int;
    }
    let count = libc::nfds_t::try_from(descriptors.len()).unwrap_or(0);
    // SAFETY: `count` entries, valid for the call.
    unsafe { poll(descriptors.as_mut_ptr(), count, timeout_ms) }
}

/// Whether the program has set `O_NONBLOCK`.
pub(crate) fn is_nonblocking(fd: impl AsFd) -> Result<bool, Errno> {
    let flags = fcntl(fd, FcntlArg::F_GETFL)?;
    Ok(OFlag::from_bits_retain(flags).contains(OFlag::O_NONBLOCK))
}

/// Writes a result through a pointer of the program.
///
/// # Safety
/// `pointer` is NULL or valid for writing a `T`.
pub(crate) unsafe fn store<T>(pointer: *mut T, value: T) -> Result<(), Errno> {
    if pointer.is_null() {
        return Err(Errno::EINVAL);
    }
    // SAFETY: not NULL, so by the caller's contract valid for writing.
    unsafe { pointer.write(value) };
    Ok(())
}

/// Reads a struct through a pointer of the program.
///
/// # Safety
/// `pointer` is NULL or points to a valid `T`.
pub(crate) unsafe fn load<T: Copy>(pointer: *const T) -> Result<T, Errno> {
    if pointer.is_null() {
        return Err(Errno::EINVAL);
    }
    // SAFETY: not NULL, so by the caller's contract valid for reading.
    Ok(unsafe { pointer.read() })
}

/// Writes the first `size` bytes of `value`, and zeroes behind its end: programs compiled against other headers have
/// shorter or longer structs.
///
/// # Safety
/// `to` is NULL or has `size` bytes of room.
pub(crate) unsafe fn store_prefix<T>(to: *mut u8, value: &T, size: usize) -> Result<(), Errno> {
    if to.is_null() {
        return Err(Errno::EINVAL);
    }
    let known = size.min(size_of::<T>());
    // SAFETY: both sides have at least `known` bytes, and the program's memory does not overlap ours.
    unsafe { ptr::copy_nonoverlapping(ptr::from_ref(value).cast(), to, known) };
    // SAFETY: `known` is at most `size`.
    let rest = unsafe { to.add(known) };
    // SAFETY: the rest of the `size` bytes.
    unsafe { rest.write_bytes(0, size - known) };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_follow_each_convention_and_set_errno() {
        assert_eq!(errno_value(|| Err(Errno::EBUSY)), libc::EBUSY);
        assert_eq!(Errno::last(), Errno::EBUSY);
        assert!(pointer::<u8>(|| Err(Errno::ENOMEM)).is_null());
        assert_eq!(Errno::last(), Errno::ENOMEM);
        assert_eq!(minus_one(|| Err(Errno::EAGAIN)), -1);
        assert_eq!(Errno::last(), Errno::EAGAIN);
        assert_eq!(errno_value(|| Ok(())), 0);
    }
}
