//! Listeners of rsockets beside listening TCP sockets of the program.
//!
//! One is made by the first call that waits for connections, so of several processes that share a listening socket one that accepts has it: rdma_cm marks its port, and the
//! others stay plain. At a port where the process has taken rsockets before, `listen` makes it: clients of a program that listens anew connect at once. A thread accepts its connections ahead of the program, up to the backlog, as the kernel does: a client's `connect` does not wait for `accept`.

use crate::children;
use crate::policy;
use crate::records;
use crate::rules::{Direction, Protocol};
use crate::system::address;
use crate::system::kernel::{self, acquire, readable, release, semaphore};
use crate::system::report;
use crate::system::rsockets;
use crate::table::Slot;
use libc::{c_int, sockaddr};
use std::collections::{BTreeMap, VecDeque};
use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

/// Longest backlog, as the kernel's.
const MAX_BACKLOG: usize = 4096;
/// Milliseconds between checks for room in a full backlog, or for descriptors.
const FULL: c_int = 10;

/// A listening TCP socket of the program.
#[derive(Debug)]
pub(crate) struct Listener {
    /// Descriptors that it has.
    faces: usize,
    backlog: usize,
    slot: Slot,
    state: State,
}

#[derive(Debug)]
enum State {
    /// Nothing has waited for connections.
    New,
    /// A thread makes the rsocket.
    Making,
    Plain,
    Beside(Arc<Queue>),
}

/// Ports at which the process has taken rsockets, a bit for each.
static SERVED: [AtomicU64; 1024] = [const { AtomicU64::new(0) }; 1024];

static LISTENERS: Mutex<BTreeMap<u32, Listener>> = Mutex::new(BTreeMap::new());

/// Listeners of the process by number.
pub(crate) fn listeners() -> MutexGuard<'static, BTreeMap<u32, Listener>> {
    LISTENERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Connections that were accepted ahead of the program.
#[derive(Debug)]
pub(crate) struct Queue {
    /// Readable while there are any.
    pub(crate) bell: c_int,
    /// Port of the program's socket.
    port: u16,
    stop: c_int,
    accepted: Mutex<VecDeque<c_int>>,
    /// Held by the thread that takes from the kernel's socket, so that none waits there.
    pub(crate) turn: Mutex<()>,
    backlog: usize,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Drop for Queue {
    fn drop(&mut self) {
        kernel::close(self.bell);
        kernel::close(self.stop);
    }
}

/// A new listener of one descriptor. Returns its number.
pub(crate) fn begin(fd: c_int, backlog: c_int) -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let id = NEXT.fetch_add(1, Ordering::Relaxed);
    let backlog = usize::try_from(backlog).unwrap_or(0);
    let listener = Listener {
        faces: 1,
        backlog: backlog.clamp(1, MAX_BACKLOG),
        slot: records::listener(fd),
        state: State::New,
    };
    listeners().insert(id, listener);
    id
}

/// The word of a port in `SERVED`, and its bit.
fn served(port: u16) -> (&'static AtomicU64, u64) {
    (&SERVED[usize::from(port / 64)], 1 << (port % 64))
}

/// Whether the process has taken rsockets at the port of a socket before.
pub(crate) fn has_served(fd: c_int) -> bool {
    kernel::local(fd).is_some_and(|address| {
        let (word, bit) = served(address.port());
        word.load(Ordering::Relaxed) & bit != 0
    })
}

/// The listener has another descriptor.
pub(crate) fn share(id: u32) {
    if let Some(listener) = listeners().get_mut(&id) {
        listener.faces += 1;
    }
}

/// A descriptor of the listener is closed. With the last one its queue ends.
pub(crate) fn leave(id: u32) {
    let mut listeners = listeners();
    let Some(listener) = listeners.get_mut(&id) else {
        return;
    };
    listener.faces -= 1;
    if listener.faces > 0 {
        return;
    }
    listener.slot.leave();
    let ended = listeners.remove(&id);
    drop(listeners);
    if let Some(Listener {
        state: State::Beside(queue),
        ..
    }) = ended
    {
        queue.stop();
        for left in queue.lock().drain(..) {
            // SAFETY: an rsocket that nothing else uses.
            unsafe { rsockets::rclose(left) };
        }
    }
}

/// Gives the UDP port of a number up, for a socket of the program: its listener takes no more rsockets. Returns whether one had it.
pub(crate) fn yield_port(port: u16) -> bool {
    let theirs: Vec<_> = listeners()
        .values()
        .filter_map(|listener| match &listener.state {
            State::Beside(queue) if queue.port == port => Some(Arc::clone(queue)),
            _ => None,
        })
        .collect();
    theirs.iter().filter(|queue| queue.stop()).count() > 0
}

/// A child of fork(2) has its parent's listening sockets, but none of the rsockets.
pub(crate) fn forget(listeners: &mut BTreeMap<u32, Listener>) {
    for word in &SERVED {
        word.store(0, Ordering::Relaxed);
    }
    for listener in listeners.values_mut() {
        listener.slot = Slot::default();
        let _parents = ManuallyDrop::new(std::mem::replace(&mut listener.state, State::New));
    }
}

/// The queue of a listener, if it has one already.
pub(crate) fn present(id: u32) -> Option<Arc<Queue>> {
    match &listeners().get(&id)?.state {
        State::Beside(queue) => Some(Arc::clone(queue)),
        State::New | State::Making | State::Plain => None,
    }
}

/// The queue of the listener with this descriptor, made by the first call; `None` where it is plain.
pub(crate) fn queue(fd: c_int, id: u32) -> Option<Arc<Queue>> {
    let backlog = loop {
        {
            let mut listeners = listeners();
            let listener = listeners.get_mut(&id)?;
            match &listener.state {
                State::Beside(queue) => return Some(Arc::clone(queue)),
                State::Plain => return None,
                State::Making => {}
                State::New => {
                    listener.state = State::Making;
                    break listener.backlog;
                }
            }
        }
        kernel::poll(&mut [], 1);
    };
    let made = make(fd, backlog);
    if let Some(address) = kernel::local(fd) {
        report::listener(address, made.as_ref().err().copied());
    }
    let reason = made.as_ref().err().copied();
    let made = made.ok();
    if let Some(listener) = listeners().get_mut(&id) {
        if listener.slot == Slot::default() {
            listener.slot = records::listener(fd);
        }
        listener.slot.takes_rsockets(reason);
        listener.state = match &made {
            Some(queue) => State::Beside(Arc::clone(queue)),
            None => State::Plain,
        };
    }
    made
}

fn make(fd: c_int, backlog: usize) -> Result<Arc<Queue>, &'static str> {
    let (storage, length) = kernel::raw_local(fd).ok_or("it has no address")?;
    let at: *const sockaddr = (&raw const storage).cast();
    // SAFETY: an address of this length.
    let local = unsafe { address::read(at, length) }.ok_or("it has no address")?;
    let rule = policy::decide(local.port(), Direction::Listen, Protocol::Tcp);
    if rule == Some(false) {
        return Err("a rule");
    }
    if rule.is_none() && policy::forks() {
        return Err("the program makes a child for each connection");
    }
    if !rsockets::are_there() {
        return Err("librdmacm.so.1 has no rsockets");
    }
    // SAFETY: numbers only.
    let rsocket = unsafe { rsockets::rsocket(storage.ss_family.into(), libc::SOCK_STREAM, 0) };
    if rsocket < 0 {
        return Err("the device makes no rsockets");
    }
    let listens = || {
        if local.is_ipv6() {
            let level = libc::IPPROTO_IPV6;
            let only = kernel::option(fd, level, libc::IPV6_V6ONLY).unwrap_or(0);
            let (value, size) = ((&raw const only).cast(), address::length_of::<c_int>());
            // SAFETY: a number.
            unsafe { rsockets::rsetsockopt(rsocket, level, libc::IPV6_V6ONLY, value, size) };
        }
        // SAFETY: an address of this length.
        if unsafe { rsockets::rbind(rsocket, at, length) } != 0 {
            return Err("rsockets of another process, or a UDP socket, have the port");
        }
        // SAFETY: numbers only.
        if unsafe { rsockets::rlisten(rsocket, c_int::try_from(backlog).unwrap_or(128)) } != 0 {
            return Err("rsockets of another process, or a UDP socket, have the port");
        }
        rsockets::set_nonblocking(rsocket, true);
        let no = "no more descriptors";
        let bell = semaphore().ok_or(no)?;
        let Some(stop) = semaphore() else {
            kernel::close(bell);
            return Err(no);
        };
        let queue = Arc::new(Queue {
            bell,
            port: local.port(),
            stop,
            accepted: Mutex::default(),
            turn: Mutex::default(),
            backlog,
            thread: Mutex::default(),
        });
        let (word, bit) = served(local.port());
        word.fetch_or(bit, Ordering::Relaxed);
        let theirs = Arc::clone(&queue);
        let thread = kernel::without_signals(|| {
            let builder = thread::Builder::new().name("dgiwarp-accept".to_owned());
            builder.spawn(move || theirs.run(rsocket))
        });
        let thread = thread.map_err(|_| "no more threads")?;
        *queue.lock_thread() = Some(thread);
        Ok(queue)
    };
    listens().inspect_err(|_| {
        // SAFETY: an rsocket that nothing else uses.
        unsafe { rsockets::rclose(rsocket) };
    })
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, VecDeque<c_int>> {
        self.accepted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_thread(&self) -> MutexGuard<'_, Option<JoinHandle<()>>> {
        self.thread.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the listener of rsockets. Returns whether there was one.
    fn stop(&self) -> bool {
        let Some(thread) = self.lock_thread().take() else {
            return false;
        };
        release(self.stop);
        let _ = thread.join();
        true
    }

    /// The next connection's rsocket.
    pub(crate) fn take(&self) -> Option<c_int> {
        if !acquire(self.bell) {
            return None;
        }
        self.lock().pop_front()
    }

    /// Accepts until the listener is closed.
    fn run(&self, rsocket: c_int) {
        loop {
            let lowest = kernel::lowest_free(self.stop);
            let scarce = lowest < 0 || !kernel::has_descriptors(lowest);
            let full = scarce || self.lock().len() > self.backlog;
            let mut fds = [readable(self.stop), readable(rsocket)];
            let (watched, timeout) = if full { (1, FULL) } else { (2, -1) };
            kernel::poll(&mut fds[..watched], timeout);
            if fds[0].revents != 0 || children::use_connections() {
                break;
            }
            if full || fds[1].revents == 0 {
                continue;
            }
            // SAFETY: no address is asked for.
            let accepted = unsafe { rsockets::raccept(rsocket, ptr::null_mut(), ptr::null_mut()) };
            if accepted >= 0 {
                self.lock().push_back(accepted);
                release(self.bell);
            }
        }
        // SAFETY: an rsocket that nothing else uses.
        unsafe { rsockets::rclose(rsocket) };
    }
}
