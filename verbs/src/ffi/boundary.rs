//! What every exported function needs: a boundary that no panic crosses, the C conventions for failing, and the way
//! from a C pointer back to the object behind it.

use crate::device::async_event::announce_fatal;
use crate::ffi::fork::generation;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::os::fd::{AsFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Set once a panic was caught. From then on no device can be opened: state that was being changed may be half changed.
static FATAL: AtomicBool = AtomicBool::new(false);

/// Whether a panic was caught in this process.
pub(crate) fn is_fatal() -> bool {
    FATAL.load(Ordering::Acquire)
}

mod cancellation {
    use std::ffi::c_int;

    unsafe extern "C" {
        fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
    }

    /// `PTHREAD_CANCEL_DISABLE`.
    const DISABLE: c_int = 1;

    /// Keeps `pthread_cancel` away from the thread: it would take effect in some system call of ours and unwind through
    /// frames that hold locks. What comes meanwhile takes effect later, in the program's own calls or in
    /// [`wait`](super::wait).
    pub(super) struct Disabled(c_int);

    impl Disabled {
        pub(super) fn new() -> Self {
            let mut old = 0;
            // SAFETY: changes the calling thread's state alone, and writes the old one.
            unsafe { pthread_setcancelstate(DISABLE, &raw mut old) };
            Self(old)
        }
    }

    impl Drop for Disabled {
        fn drop(&mut self) {
            let mut old = 0;
            // SAFETY: as above, with a state that was in force before.
            unsafe { pthread_setcancelstate(self.0, &raw mut old) };
        }
    }
}

/// Runs the body of an exported function; a panic becomes `failure` with errno `EIO` and marks the device fatal.
pub(crate) fn entry<T>(failure: T, body: impl FnOnce() -> T) -> T {
    let _disabled = cancellation::Disabled::new();
    // The closure's captures are not used again after a panic, except for objects that refuse work once FATAL is set.
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| {
        FATAL.store(true, Ordering::Release);
        announce_fatal();
        Errno::EIO.set();
        failure
    })
}

/// For functions that return 0 or an errno value. They set `errno` too: several programs print it with `perror`.
pub(crate) fn errno_value(body: impl FnOnce() -> Result<(), Errno>) -> c_int {
    entry(libc::EIO, || match body() {
        Ok(()) => 0,
        Err(errno) => {
            errno.set();
            errno as c_int
        }
    })
}

/// For functions that return a pointer, or NULL and `errno`.
pub(crate) fn pointer<T>(body: impl FnOnce() -> Result<*mut T, Errno>) -> *mut T {
    entry(ptr::null_mut(), || {
        body().unwrap_or_else(|errno| {
            errno.set();
            ptr::null_mut()
        })
    })
}

/// For functions that return a number, or -1 and `errno`.
pub(crate) fn minus_one(body: impl FnOnce() -> Result<c_int, Errno>) -> c_int {
    entry(-1, || {
        body().unwrap_or_else(|errno| {
            errno.set();
            -1
        })
    })
}

/// What an attempt at a call that may have to wait comes to.
pub(crate) enum Attempt {
    /// It is done.
    Done,
    /// There is nothing yet; try again when this descriptor is readable.
    Wait(RawFd),
}

/// For functions that return 0, or -1 and `errno`, and that wait. They are points of cancellation, as in rdma-core, where
/// they read from a descriptor: programs end the threads that wait in them with `pthread_cancel`. So `attempt` may
/// capture nothing that has to be dropped, and waiting is done outside of it.
pub(crate) fn waiting(attempt: impl Fn() -> Result<Attempt, Errno>) -> c_int {
    loop {
        let outcome = entry(Err(Errno::EIO), &attempt);
        match outcome {
            Ok(Attempt::Done) => return 0,
            Ok(Attempt::Wait(fd)) => {
                if wait(fd) < 0 {
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

/// Waits until a descriptor is readable. Cancelling the thread unwinds from here, through frames without destructors.
fn wait(fd: RawFd) -> c_int {
    unsafe extern "C-unwind" {
        fn poll(fds: *mut libc::pollfd, count: libc::nfds_t, timeout: c_int) -> c_int;
    }
    let mut entry = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one entry, valid for the call.
    unsafe { poll(&raw mut entry, 1, -1) }
}

/// Whether the program made a descriptor that we gave it non-blocking.
pub(crate) fn is_nonblocking(fd: impl AsFd) -> Result<bool, Errno> {
    let flags = fcntl(fd, FcntlArg::F_GETFL)?;
    Ok(OFlag::from_bits_retain(flags).contains(OFlag::O_NONBLOCK))
}

/// A type of ours that stands behind a C struct.
pub(crate) trait Facade: Send + Sync {
    /// The struct that programs see.
    type C;
    /// Distinguishes this type from every other behind a C pointer.
    const TAG: u32;
}

/// A pointer that is kept only to hand it back to the program.
#[derive(Debug)]
pub(crate) struct CPointer<T>(pub(crate) *mut T);

impl<T> Clone for CPointer<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for CPointer<T> {}
// SAFETY: never dereferenced by whoever keeps it; to them it is a number.
unsafe impl<T> Send for CPointer<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for CPointer<T> {}

/// A C struct with our state behind it. The C struct is the first field, so the two pointers are one address.
#[repr(C)]
pub(crate) struct Object<T: Facade> {
    c: UnsafeCell<T::C>,
    tag: AtomicU32,
    state: T,
}

/// The tag of objects of this process: the upper eight bits tell the generations of processes that fork apart.
#[inline]
fn present_tag<T: Facade>() -> u32 {
    T::TAG ^ generation() << 24
}

impl<T: Facade> Object<T> {
    /// Allocates the object; the pointer belongs to the C program until [`Object::release`].
    pub(crate) fn create(c: T::C, state: T) -> *mut T::C {
        let object = Box::new(Self {
            c: UnsafeCell::new(c),
            tag: AtomicU32::new(present_tag::<T>()),
            state,
        });
        Box::into_raw(object).cast()
    }

    /// The state behind a C pointer; NULL and pointers to anything else are `EINVAL`.
    ///
    /// # Safety
    /// `pointer` is NULL or points to a live object made by [`Object::create`] of some `T`, and stays alive for `'a`:
    /// that is the contract of every verbs function, kept by its caller.
    pub(crate) unsafe fn state<'a>(pointer: *mut T::C) -> Result<&'a T, Errno> {
        let object = pointer.cast::<Self>();
        // One that is not aligned is nobody's: programs have been seen to pass what lay in memory that they had freed.
        if object.is_null() || !object.is_aligned() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: the caller passes a live object of ours; only its atomic tag is touched until the type is known.
        let tag = unsafe { &(*object).tag };
        let tag = tag.load(Ordering::Relaxed);
        if tag != present_tag::<T>() {
            // The parent's, in a child that forked off, or nothing of the kind.
            let parents = (tag ^ T::TAG) << 8 == 0;
            return Err(if parents { Errno::EIO } else { Errno::EINVAL });
        }
        // SAFETY: the tag says that `state` is a `T`; it is only ever shared, never borrowed mutably.
        Ok(unsafe { &(*object).state })
    }

    /// Takes the object back from the C program and frees it, returning the state.
    ///
    /// # Safety
    /// As for [`Object::state`], and no other use of the object is under way or follows.
    pub(crate) unsafe fn release(pointer: *mut T::C) -> Result<T, Errno> {
        // SAFETY: the caller keeps the contract of `state`, which is the same.
        unsafe { Self::state(pointer) }?;
        // SAFETY: made by `create` as a Box of this type (the tag says so), and used by nobody else from here on.
        let object = unsafe { Box::from_raw(pointer.cast::<Self>()) };
        // A second release of the same pointer should meet a tag that does not fit, as long as the memory is unused.
        object.tag.store(0, Ordering::Relaxed);
        Ok(object.state)
    }
}

/// Writes through a pointer that the program passed for a result.
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

/// Reads a struct that the program passed by pointer.
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

#[cfg(test)]
mod tests {
    use super::*;

    struct Apple(u8);
    struct Pear;
    impl Facade for Apple {
        type C = u64;
        const TAG: u32 = 1;
    }
    impl Facade for Pear {
        type C = u64;
        const TAG: u32 = 2;
    }

    #[test]
    fn a_pointer_to_another_kind_of_object_is_refused() {
        let apple = Object::create(0, Apple(7));
        // SAFETY: `apple` is alive.
        assert!(unsafe { Object::<Pear>::state(apple) }.is_err());
        // SAFETY: NULL is allowed.
        assert!(unsafe { Object::<Apple>::state(ptr::null_mut()) }.is_err());
        // SAFETY: `apple` is alive.
        assert_eq!(unsafe { Object::<Apple>::state(apple) }.unwrap().0, 7);
        // SAFETY: `apple` is alive and not used afterwards.
        assert_eq!(unsafe { Object::<Apple>::release(apple) }.unwrap().0, 7);
    }

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
