//! Events of connections: recorded by the stack's threads, taken by calls of the program.

use crate::ffi::errno;
use dgiwarp::{ConnectError, ConnectionEvent, ConnectionSink, MpaError, RcRequest};
use nix::errno::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Requests that a listener keeps for the program.
const MAX_REQUESTS: usize = 1024;

/// Takes events of the stack.
#[derive(Debug, Default)]
pub(super) struct Events {
    mailboxes: Mutex<HashMap<u64, Arc<Mailbox>>>,
}

/// The sink of the process.
pub(super) fn events() -> Arc<Events> {
    static EVENTS: OnceLock<Arc<Events>> = OnceLock::new();
    Arc::clone(EVENTS.get_or_init(Arc::default))
}

impl Events {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Arc<Mailbox>>> {
        self.mailboxes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Events of one socket, and the descriptor that is its number.
#[derive(Debug)]
pub(super) struct Mailbox {
    /// Number that the stack's events carry.
    pub(super) key: u64,
    /// Readable while something waits in the mailbox.
    bell: EventFd,
    letters: Mutex<Letters>,
    /// An attempt to connect has failed.
    failed: AtomicBool,
}

#[derive(Debug, Default)]
pub(super) struct Letters {
    /// Of a listener.
    requests: VecDeque<RcRequest>,
    /// End of an attempt: the peer's private data, or the error.
    outcome: Option<Result<Vec<u8>, Errno>>,
    closed: bool,
}

impl Mailbox {
    pub(super) fn new() -> Result<Arc<Self>, Errno> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let mailbox = Arc::new(Self {
            key: NEXT.fetch_add(1, Ordering::Relaxed),
            bell: EventFd::from_flags(flags)?,
            letters: Mutex::default(),
            failed: AtomicBool::new(false),
        });
        events().lock().insert(mailbox.key, Arc::clone(&mailbox));
        Ok(mailbox)
    }

    /// The descriptor's number.
    pub(super) fn fd(&self) -> RawFd {
        self.bell.as_raw_fd()
    }

    /// The descriptor.
    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// A second descriptor of the same.
    pub(super) fn duplicate(&self, least: RawFd) -> Result<OwnedFd, Errno> {
        use nix::fcntl::{FcntlArg, fcntl};
        use std::os::fd::FromRawFd;
        let fd = fcntl(&self.bell, FcntlArg::F_DUPFD(least))?;
        // SAFETY: just made, and nobody else's.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Letters> {
        self.letters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ring(&self) {
        // Readable already where the counter is full.
        let _ = self.bell.write(1);
    }

    /// Clears the bell, unless more waits.
    fn settle(&self, letters: &Letters) {
        if letters.requests.is_empty() && letters.outcome.is_none() {
            let _ = self.bell.read();
        }
    }

    pub(super) fn has_request(&self) -> bool {
        !self.lock().requests.is_empty()
    }

    pub(super) fn take_request(&self) -> Option<RcRequest> {
        let mut letters = self.lock();
        let request = letters.requests.pop_front();
        self.settle(&letters);
        request
    }

    pub(super) fn take_outcome(&self) -> Option<Result<Vec<u8>, Errno>> {
        let mut letters = self.lock();
        let outcome = letters.outcome.take();
        self.settle(&letters);
        outcome
    }

    pub(super) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    pub(super) fn has_outcome(&self) -> bool {
        self.lock().outcome.is_some()
    }

    /// Whether the socket was closed.
    pub(super) fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// No events are recorded any more.
    pub(super) fn close(&self) {
        events().lock().remove(&self.key);
        self.lock().closed = true;
        // Dropped outside of the table's lock.
        let requests = std::mem::take(&mut self.lock().requests);
        drop(requests);
    }
}

impl ConnectionSink for Events {
    fn happened(&self, event: ConnectionEvent) {
        let key = match &event {
            ConnectionEvent::Request { context, .. }
            | ConnectionEvent::Established { context, .. }
            | ConnectionEvent::Rejected { context, .. }
            | ConnectionEvent::Failed { context, .. }
            | ConnectionEvent::Disconnected { context, .. } => *context,
            _ => return,
        };
        let Some(mailbox) = self.lock().get(&key).cloned() else {
            return;
        };
        let mut letters = mailbox.lock();
        match event {
            ConnectionEvent::Request { request, .. } => {
                // A request beyond them is dropped, which closes its connection.
                if letters.requests.len() < MAX_REQUESTS {
                    letters.requests.push_back(request);
                }
            }
            ConnectionEvent::Established { established, .. } => {
                letters.outcome = Some(Ok(established.private_data));
            }
            ConnectionEvent::Rejected { .. } => letters.outcome = Some(Err(Errno::ECONNREFUSED)),
            ConnectionEvent::Failed { error, .. } => letters.outcome = Some(Err(cause(&error))),
            // Completions report it.
            _ => return,
        }
        let failed = matches!(letters.outcome, Some(Err(_)));
        mailbox.failed.fetch_or(failed, Ordering::Relaxed);
        mailbox.ring();
    }
}

/// errno value of an attempt that failed.
pub(super) fn cause(error: &ConnectError) -> Errno {
    match error {
        ConnectError::Tcp(error) => errno::of_io(error),
        ConnectError::Mpa(MpaError::StartupTimeout(_)) => Errno::ETIMEDOUT,
        ConnectError::Mpa(MpaError::ClosedInStartup | MpaError::TcpLost) => Errno::ECONNRESET,
        ConnectError::Rejected(_) => Errno::ECONNREFUSED,
        ConnectError::State => Errno::EINVAL,
        ConnectError::Device(error) => Errno::from_raw(error.errno()),
        _ => Errno::EPROTO,
    }
}
