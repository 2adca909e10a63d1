//! Children that fork off. The threads that serve the parent's device are not there, and its sockets are the parent's: so
//! a child lets go of the sockets, and every object that the parent made answers `EIO`. What the child opens itself works.

use crate::cm;
use crate::device::{async_event, at_exit, context};
use crate::qp::qp_table;
use std::any::Any;
use std::cell::RefCell;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, Once, TryLockError};
use std::thread;

/// How many times the process forked off its parent, its grandparent and so on, since the library was loaded.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// Tells objects of the parent's from those of this process.
#[inline]
pub(crate) fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

thread_local! {
    /// What the forking thread holds, so that the child finds it whole.
    static HELD: RefCell<Vec<Box<dyn Any>>> = const { RefCell::new(Vec::new()) };
}

/// Has the C library call us when the process forks.
pub(crate) fn watch() {
    static WATCH: Once = Once::new();
    WATCH.call_once(|| {
        // SAFETY: functions of this library, which is never unloaded.
        unsafe { libc::pthread_atfork(Some(prepare), Some(in_parent), Some(in_child)) };
    });
}

/// Takes a lock that other threads hold for moments only. Should one not give it back in time, the child does without.
pub(crate) fn held<T: 'static>(lock: &'static Mutex<T>) -> Option<Box<dyn Any>> {
    for _ in 0..10_000 {
        match lock.try_lock() {
            Ok(guard) => return Some(Box::new(guard)),
            Err(TryLockError::Poisoned(poisoned)) => return Some(Box::new(poisoned.into_inner())),
            Err(TryLockError::WouldBlock) => thread::yield_now(),
        }
    }
    None
}

/// Forgets a table of the parent's without destroying what it names.
pub(crate) fn forget<T: Default>(lock: &Mutex<T>) {
    if let Ok(mut value) = lock.try_lock() {
        let _kept = ManuallyDrop::new(std::mem::take(&mut *value));
    }
}

extern "C" fn prepare() {
    let locks = [
        cm::hold_devices(),
        cm::hold_identifiers(),
        qp_table::hold(),
        context::hold(),
        at_exit::hold(),
        async_event::hold(),
    ];
    let _ = HELD.try_with(|held| held.borrow_mut().extend(locks.into_iter().flatten()));
}

extern "C" fn in_parent() {
    let _ = HELD.try_with(|held| held.borrow_mut().clear());
}

extern "C" fn in_child() {
    in_parent();
    GENERATION.fetch_add(1, Ordering::Relaxed);
    cm::forget_parent();
    qp_table::forget();
    async_event::forget();
    let_go();
}

/// Puts nothing in the place of each socket: its number stays taken, since the parent's objects still name it.
fn let_go() {
    // SAFETY: a constant path.
    let nothing = unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
    for (fd, inode) in dgiwarp::own_sockets() {
        // SAFETY: plain data for which zero is a valid value.
        let mut status: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: writes one `stat`; a bad descriptor is an error.
        let known = unsafe { libc::fstat(fd, &raw mut status) } == 0;
        if known && status.st_mode & libc::S_IFMT == libc::S_IFSOCK && status.st_ino == inode {
            // SAFETY: the descriptor is a socket of this library, which nobody in this process uses any more.
            unsafe { libc::dup3(nothing, fd, libc::O_CLOEXEC) };
        }
    }
    if nothing >= 0 {
        // SAFETY: opened above.
        unsafe { libc::close(nothing) };
    }
}
