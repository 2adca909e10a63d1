//! `SO_KEEPALIVE`: a thread that writes nothing to the peer from time to time, so that TCP notices one that is gone.

use crate::ffi::fork::ProcessTable;
use crate::rsocket::wait::now;
use nix::errno::Errno;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Seconds of a connection without `TCP_KEEPIDLE`, where the system has no number.
const DEFAULT: u32 = 7200;

/// Sends a keep-alive. Returns the seconds until the next one, or `None` where the socket is gone.
type Send = Box<dyn FnMut() -> Option<u32> + std::marker::Send>;

struct Entry {
    /// Key of the socket.
    key: u64,
    send: Send,
    due: Instant,
}

/// Sockets with keep-alives; of the process, since a child has none.
static RUNNING: ProcessTable<bool> = ProcessTable::new(false);
static ENTRIES: Mutex<Vec<Entry>> = Mutex::new(Vec::new());
static CHANGED: Condvar = Condvar::new();

/// Seconds between keep-alives that the system has.
pub(in crate::rsocket) fn default_seconds() -> u32 {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_keepalive_time");
    let seconds = text.ok().and_then(|text| text.trim().parse().ok());
    seconds.unwrap_or(DEFAULT)
}

/// Begins keep-alives of a socket, or changes when the next is due.
pub(in crate::rsocket) fn begin(key: u64, seconds: u32, send: Send) -> Result<(), Errno> {
    end(key);
    let mut running = RUNNING.lock();
    let entry = Entry {
        key,
        send,
        due: after(seconds),
    };
    let mut entries = ENTRIES.lock().unwrap_or_else(PoisonError::into_inner);
    if !*running {
        // A parent process keeps its own.
        entries.clear();
        let started = dgiwarp::start_library_thread("dgiwarp-rsocket", run);
        started.map_err(|_| Errno::EAGAIN)?;
        *running = true;
    }
    entries.push(entry);
    CHANGED.notify_one();
    Ok(())
}

fn after(seconds: u32) -> Instant {
    now() + Duration::from_secs(seconds.into())
}

/// Ends keep-alives of a socket.
pub(in crate::rsocket) fn end(key: u64) {
    let mut entries = ENTRIES.lock().unwrap_or_else(PoisonError::into_inner);
    entries.retain(|entry| entry.key != key);
}

fn run() {
    let mut entries = ENTRIES.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        let due = entries.iter().position(|entry| entry.due <= now());
        if let Some(at) = due {
            let mut entry = entries.swap_remove(at);
            // Without the lock: the last handle of a socket may be dropped here.
            drop(entries);
            let next = (entry.send)();
            entries = ENTRIES.lock().unwrap_or_else(PoisonError::into_inner);
            let replaced = entries.iter().any(|it| it.key == entry.key);
            if let Some(seconds) = next
                && !replaced
            {
                entry.due = after(seconds);
                entries.push(entry);
            }
            continue;
        }
        let next = entries.iter().map(|entry| entry.due).min();
        let wait = next.map_or(Duration::from_secs(3600), |at| {
            at.saturating_duration_since(now())
        });
        entries = CHANGED
            .wait_timeout(entries, wait)
            .unwrap_or_else(PoisonError::into_inner)
            .0;
    }
}
