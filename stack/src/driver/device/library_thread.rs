//! Threads of a library in a program that knows nothing of them.

use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

use nix::sys::signal::{SigSet, SigmaskHow, pthread_sigmask};

use crate::driver::qp::staging;

/// Whether a thread has begun, and who waits for that. It allocates nothing for the thread that waits.
#[derive(Debug, Default)]
struct Begun {
    has: Mutex<bool>,
    changed: Condvar,
}

impl Begun {
    fn set(&self) {
        *self.has.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_one();
    }

    fn wait(&self) {
        let has = self.has.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_while(has, |has| !*has);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }
}

/// Starts a thread of a library, and returns when it has begun.
///
/// All signals are blocked in it: they are for the program's own threads. A thread that begins registers destructors of its thread-local memory, and the C library ends the process where
/// there is no memory for that (`__cxa_thread_atexit_impl`). A program that exhausts its memory right behind the call would end so, if the thread began later.
///
/// # Errors
/// No thread can be made (`pthread_create(3)`).
pub fn start_library_thread(
    name: &str,
    run: impl FnOnce() + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    let mut before = SigSet::empty();
    let blocked = pthread_sigmask(
        SigmaskHow::SIG_SETMASK,
        Some(&SigSet::all()),
        Some(&mut before),
    );
    let begun = Arc::new(Begun::default());
    let begins = Arc::clone(&begun);
    let started = std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(move || {
            staging::register();
            begins.set();
            drop(begins);
            run();
        });
    if blocked.is_ok() {
        let _ = pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&before), None);
    }
    let started = started?;
    begun.wait();
    Ok(started)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use nix::sys::signal::Signal;

    use super::*;

    /// A thread gives itself its name, before it registers destructors.
    #[test]
    fn a_thread_has_begun_when_it_is_started() {
        for number in 0..100 {
            let name = format!("begun-{number}");
            let (ends, end) = std::sync::mpsc::channel::<()>();
            let thread = start_library_thread(&name, move || {
                let _ = end.recv();
            })
            .unwrap();
            let named = std::fs::read_dir("/proc/self/task").unwrap().any(|task| {
                let comm = std::fs::read_to_string(task.unwrap().path().join("comm"));
                comm.is_ok_and(|comm| comm.trim_end() == name)
            });
            assert!(named, "{name}");
            drop(ends);
            thread.join().unwrap();
        }
    }

    #[test]
    fn a_thread_has_no_signals_and_leaves_those_of_its_maker() {
        let of_this = SigSet::thread_get_mask().unwrap();
        let ran = Arc::new(AtomicBool::new(false));
        let runs = Arc::clone(&ran);
        let thread = start_library_thread("test", move || {
            let mask = SigSet::thread_get_mask().unwrap();
            let blocked = Signal::iterator()
                .filter(|it| !matches!(it, Signal::SIGKILL | Signal::SIGSTOP))
                .all(|it| mask.contains(it));
            runs.store(blocked, Ordering::Relaxed);
        });
        thread.unwrap().join().unwrap();
        assert!(ran.load(Ordering::Relaxed));
        assert_eq!(SigSet::thread_get_mask().unwrap(), of_this);
    }
}
