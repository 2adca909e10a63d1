//! `fork(2)`, and the end of the process.
//!
//! A child has its parent's listening sockets and plain connections. The parent's rsockets are none of the child's: calls on them fail.

use crate::children;
use crate::lifetimes::lifetimes;
use crate::listener::{self, Listener};
use crate::peers;
use crate::policy;
use crate::records::{self, Slots};
use crate::sets;
use crate::system::report;
use crate::system::rsockets;
use crate::table::{self, Face, Shared, Udp};
use libc::c_int;
use std::any::Any;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{MutexGuard, Once};

/// Process that the library's state is of.
static OWNER: AtomicI32 = AtomicI32::new(0);

thread_local! {
    /// Guards of all state while this thread forks, so that the child's copies are whole.
    static HELD: RefCell<Vec<Box<dyn Any>>> = const { RefCell::new(Vec::new()) };
}

/// Registers the handlers of fork(2) and exit(3).
pub(crate) fn begin() {
    static BEGIN: Once = Once::new();
    BEGIN.call_once(|| {
        OWNER.store(own(), Ordering::Relaxed);
        children::begin();
        // SAFETY: functions of this library, which is never unloaded.
        unsafe { libc::pthread_atfork(Some(prepare), Some(in_parent), Some(in_child)) };
        // SAFETY: as above.
        unsafe { libc::atexit(report::summary) };
    });
}

fn own() -> c_int {
    // SAFETY: a number of this process.
    unsafe { libc::getpid() }
}

/// Whether the library's state is this process's. A child of vfork(2) has its parent's memory, and closes only its own copies of descriptors.
pub(crate) fn is_owner() -> bool {
    OWNER.load(Ordering::Relaxed) == own()
}

extern "C" fn prepare() {
    let _ = HELD.try_with(|held| {
        let mut held = held.borrow_mut();
        held.push(Box::new(listener::listeners()));
        held.push(Box::new(sets::sets()));
        held.push(Box::new(table::shared()));
        held.push(Box::new(peers::results()));
        held.push(Box::new(lifetimes()));
        held.push(Box::new(records::slots()));
    });
}

extern "C" fn in_parent() {
    let _ = HELD.try_with(|held| held.borrow_mut().clear());
}

extern "C" fn in_child() {
    let _ = HELD.try_with(|held| {
        for guard in held.borrow_mut().iter_mut() {
            if let Some(listeners) =
                guard.downcast_mut::<MutexGuard<'static, BTreeMap<u32, Listener>>>()
            {
                listener::forget(listeners);
            } else if let Some(shared) =
                guard.downcast_mut::<MutexGuard<'static, BTreeMap<c_int, Shared>>>()
            {
                shared.clear();
            } else if let Some(slots) = guard.downcast_mut::<MutexGuard<'static, Slots>>() {
                slots.forget();
            }
        }
    });
    in_parent();
    OWNER.store(own(), Ordering::Relaxed);
    report::forget();
    sets::sets().clear();
    table::forget_waiters();
    for (fd, face) in table::all() {
        match face {
            Face::Connection { .. } => drop(table::replace(fd, Some(Face::Parents))),
            Face::Datagram { .. } => drop(table::replace(fd, Some(Face::ParentsDatagram))),
            Face::Udp(udp) if udp.making => {
                let udp = Udp {
                    making: false,
                    ..udp
                };
                table::replace(fd, Some(Face::Udp(udp)));
            }
            Face::PollSet { .. } | Face::Plain(_) => drop(table::replace(fd, None)),
            Face::Socket
            | Face::Listener(_)
            | Face::Parents
            | Face::Udp(_)
            | Face::ParentsDatagram => {}
        }
    }
}

/// A call on a connection of the parent fails, and the reason is on standard error once.
pub(crate) fn refuse() -> c_int {
    children::report();
    static REPORTED: AtomicBool = AtomicBool::new(false);
    if !REPORTED.swap(true, Ordering::Relaxed) {
        report::warn(&format!(
            "a connection that became an rsocket is good for the process that made it alone, and its child uses it; \
             later ones stay plain, and to keep all of them so, switch rsockets off for the program: {}=off:program={}",
            policy::VARIABLE,
            policy::program()
        ));
    }
    libc::EIO
}

/// Ends all connections, so that peers read what was sent, and then the end.
pub(crate) fn end() {
    if !is_owner() {
        return;
    }
    for (fd, face) in table::all() {
        if let Face::Connection { rsocket, .. } = face {
            table::replace(fd, None);
            // SAFETY: a connection of this process, which ends.
            unsafe { rsockets::rclose(rsocket) };
        }
    }
    report::summary();
}
