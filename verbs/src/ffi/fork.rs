//! `fork(2)`: the child has no thread that serves the parent's device, and its sockets are the parent's. The child therefore
//! replaces the sockets, and every object of the parent fails with `EIO`, except for a context that is asked for attributes or device
//! memory. Devices that the child opens itself work.

use dgiwarp_memory::socket::NoCancellation;
use std::any::Any;
use std::cell::RefCell;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError, TryLockError};
use std::thread;

/// Number of forks between the process that loaded the library and this one.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// Every table that was used.
static TABLES: Mutex<Vec<&'static dyn Table>> = Mutex::new(Vec::new());

thread_local! {
    /// Guards of all tables while this thread forks, so that the child's copies are whole.
    static HELD: RefCell<Vec<Box<dyn Any>>> = const { RefCell::new(Vec::new()) };
}

/// Distinguishes objects of this process from objects of its parent.
#[inline]
pub(crate) fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// A table of the process, for a `static`.
#[derive(Debug)]
pub(crate) struct ProcessTable<T> {
    value: Mutex<T>,
    /// The table is in [`TABLES`].
    listed: AtomicBool,
    /// A child keeps the parent's entries.
    inherited: bool,
}

impl<T: Default + Send + 'static> ProcessTable<T> {
    /// A table that begins empty in a child.
    pub(crate) const fn new(value: T) -> Self {
        Self::with(value, false)
    }

    /// A table whose entries hold for a child too.
    pub(crate) const fn inherited(value: T) -> Self {
        Self::with(value, true)
    }

    const fn with(value: T, inherited: bool) -> Self {
        Self {
            value: Mutex::new(value),
            listed: AtomicBool::new(false),
            inherited,
        }
    }

    pub(crate) fn lock(&'static self) -> MutexGuard<'static, T> {
        if !self.listed.load(Ordering::Acquire) {
            let mut tables = TABLES.lock().unwrap_or_else(PoisonError::into_inner);
            if !self.listed.swap(true, Ordering::AcqRel) {
                tables.push(self);
            }
        }
        self.value.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The entries, unless another thread holds the lock.
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.value.try_lock().ok()
    }
}

/// A table of any type.
trait Table: Sync {
    /// Locks the table for the time of a fork.
    fn hold(&'static self) -> Option<Box<dyn Any>>;
    /// Empties the child's copy without dropping the entries, which are the parent's.
    fn forget(&self);
}

impl<T: Default + Send + 'static> Table for ProcessTable<T> {
    fn hold(&'static self) -> Option<Box<dyn Any>> {
        hold(&self.value)
    }

    fn forget(&self) {
        if !self.inherited
            && let Some(mut value) = self.try_lock()
        {
            let _parents = ManuallyDrop::new(std::mem::take(&mut *value));
        }
    }
}

/// Takes a lock that other threads hold for moments only. After 10,000 attempts the child does without the table.
fn hold<T: 'static>(lock: &'static Mutex<T>) -> Option<Box<dyn Any>> {
    for _ in 0..10_000 {
        match lock.try_lock() {
            Ok(guard) => return Some(Box::new(guard)),
            Err(TryLockError::Poisoned(poisoned)) => return Some(Box::new(poisoned.into_inner())),
            Err(TryLockError::WouldBlock) => thread::yield_now(),
        }
    }
    None
}

/// Registers the handlers of `fork(2)`.
pub(crate) fn handle_forks() {
    static REGISTER: Once = Once::new();
    REGISTER.call_once(|| {
        // SAFETY: functions of this library, which is never unloaded.
        unsafe { libc::pthread_atfork(Some(prepare), Some(in_parent), Some(in_child)) };
    });
}

extern "C" fn prepare() {
    let tables = TABLES
        .try_lock()
        .map_or_else(|_| Vec::new(), |it| it.clone());
    let guards = tables.into_iter().map(Table::hold);
    let guards = guards.chain([hold(&TABLES)]).flatten();
    let _ = HELD.try_with(|held| held.borrow_mut().extend(guards));
}

extern "C" fn in_parent() {
    let _ = HELD.try_with(|held| held.borrow_mut().clear());
}

extern "C" fn in_child() {
    let _cancellation = NoCancellation::begin();
    in_parent();
    GENERATION.fetch_add(1, Ordering::Relaxed);
    if let Ok(tables) = TABLES.try_lock() {
        tables.iter().for_each(|table| table.forget());
    }
    replace_sockets();
}

/// Opens `/dev/null` in place of each socket: its number stays taken, because the parent's objects name it.
fn replace_sockets() {
    // SAFETY: a constant path.
    let null = unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
    for (fd, inode) in dgiwarp::own_sockets() {
        // SAFETY: plain data for which zero is a valid value.
        let mut status: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: writes one `stat`; a bad descriptor is an error.
        let found = unsafe { libc::fstat(fd, &raw mut status) } == 0;
        if found && status.st_mode & libc::S_IFMT == libc::S_IFSOCK && status.st_ino == inode {
            // SAFETY: the descriptor is a socket of this library, which nothing in this process uses.
            unsafe { libc::dup3(null, fd, libc::O_CLOEXEC) };
        }
    }
    if null >= 0 {
        // SAFETY: opened above.
        unsafe { libc::close(null) };
    }
}
