//! Progress of an endpoint by an event loop of the program.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;

use dgiwarp::{CqWatch, Wc};
use parking_lot::MutexGuard;

use super::Endpoint;
use super::progress::{BATCH, Inner, Shared};
use crate::error::Error;

/// Handlers that begin in one turn, at most.
const HANDLERS: usize = 32;

/// An event loop that drives the endpoint.
#[derive(Debug)]
pub(super) struct Driving {
    pub(super) watch: Arc<CqWatch>,
    pub(super) turns: u64,
    /// It has had no turn yet, or none for some time although something waited for it: threads make progress in its place until its next one.
    pub(super) late: bool,
    /// Another thread polled at its last turn, and rings when it ceases to.
    pub(super) excluded: bool,
}

/// Drives an endpoint from an event loop of the program, such as a runtime of futures: input is received, tasks are woken and handlers of
/// [`serve_deferred`](Endpoint::serve_deferred) begin in the loop's own thread, without a thread of the endpoint between. A call that a task awaits costs one wakeup
/// at each end then.
///
/// The loop calls [`turn`](Self::turn), at first and whenever the descriptor is readable, until it returns [`Turned::Idle`]. Threads that wait in calls of the endpoint make
/// progress for themselves beside it. Where the loop does not come although something waits, threads of the endpoint take its place after some milliseconds, until its
/// next turn; where the driver is dropped, for good. It does not keep the endpoint open.
///
/// ```
/// # use dgiwarp_ripc::{Endpoint, Turned};
/// # use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
/// # use std::os::fd::AsFd;
/// # fn example(endpoint: &Endpoint) -> Result<(), Box<dyn std::error::Error>> {
/// let mut driver = endpoint.driver()?.expect("no other drives it");
/// loop {
///     match driver.turn() {
///         Turned::Again => {}
///         Turned::Idle => {
///             let mut fds = [PollFd::new(driver.as_fd(), PollFlags::POLLIN)];
///             poll(&mut fds, PollTimeout::NONE)?;
///         }
///         Turned::Closed => break,
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Driver {
    shared: Arc<Shared>,
    watch: Arc<CqWatch>,
}

/// Outcome of a turn of a [`Driver`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turned {
    /// There may be more to do: other work of the loop may come first.
    Again,
    /// Nothing is left: the next turn is due when the descriptor is readable.
    Idle,
    /// The endpoint is closed.
    Closed,
}

impl Endpoint {
    /// The driver of the endpoint, for an event loop. `None` where it has one.
    ///
    /// # Errors
    /// [`Error::Device`] where descriptors are exhausted.
    pub fn driver(&self) -> Result<Option<Driver>, Error> {
        if self.has_driver() {
            return Ok(None);
        }
        let shared = Arc::clone(self.shared());
        let watch = Arc::new(shared.cq.watch()?);
        let driving = Driving {
            watch: Arc::clone(&watch),
            turns: 0,
            late: true,
            excluded: false,
        };
        if !shared.begin_driving(driving) {
            return Ok(None);
        }
        Ok(Some(Driver { shared, watch }))
    }

    /// Whether the endpoint has a [`Driver`].
    #[must_use]
    pub fn has_driver(&self) -> bool {
        self.shared().is_driving()
    }
}

impl Driver {
    /// Takes what has come, and begins handlers that return at once. Never waits.
    pub fn turn(&mut self) -> Turned {
        self.advance(true)
    }

    /// A [`turn`](Self::turn) of a loop that comes again at once: the descriptor is not readable by what comes meanwhile. [`Turned::Idle`]: nothing was there.
    #[cfg(feature = "tokio")]
    pub(crate) fn poll(&mut self) -> Turned {
        self.advance(false)
    }

    fn advance(&mut self, arms: bool) -> Turned {
        let shared = &self.shared;
        let mut inner = shared.lock();
        self.note_turn(&mut inner);
        if inner.state.closed {
            return Turned::Closed;
        }
        let mut found = false;
        if inner.turn.polling {
            self.exclude(&mut inner);
        } else {
            found = self.receive(&mut inner);
        }
        for _ in 0..HANDLERS {
            let Some(job) = inner.state.jobs.next_deferred() else {
                break;
            };
            shared.execute(&mut inner, job);
            // Threads may have taken its place while the handler ran.
            self.note_turn(&mut inner);
            found = true;
        }
        if inner.state.closed {
            return Turned::Closed;
        }
        if found && inner.state.jobs.has_deferred() {
            return Turned::Again;
        }
        if !arms {
            return if found { Turned::Again } else { Turned::Idle };
        }
        if inner.turn.polling {
            self.exclude(&mut inner);
            return Turned::Idle;
        }
        inner.turn.polling = true;
        let may_sleep = MutexGuard::unlocked(&mut inner, || self.watch.arm());
        inner.turn.polling = false;
        if may_sleep {
            Turned::Idle
        } else {
            Turned::Again
        }
    }

    fn note_turn(&self, inner: &mut Inner) {
        if let Some(driving) = &mut inner.turn.driving {
            driving.turns += 1;
            driving.late = false;
        }
    }

    /// Another thread polls: it rings when it ceases to.
    fn exclude(&self, inner: &mut Inner) {
        if let Some(driving) = &mut inner.turn.driving {
            driving.excluded = true;
        }
    }

    /// Takes completions. Returns whether there were some.
    fn receive(&self, inner: &mut MutexGuard<'_, Inner>) -> bool {
        let shared = &self.shared;
        inner.turn.polling = true;
        let mut wcs = [Wc::default(); BATCH];
        let polled = MutexGuard::unlocked(inner, || {
            self.watch.disarm();
            shared.cq.poll(&mut wcs)
        });
        inner.turn.polling = false;
        let count = polled.unwrap_or_else(|error| {
            tracing::error!(%error, "the completion queue failed");
            inner.state.closed = true;
            0
        });
        shared.process(inner, wcs.get(..count).unwrap_or_default());
        shared.wake_from_driver(inner);
        count > 0
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.shared.end_driving();
    }
}

/// Readable when a turn is due.
impl AsFd for Driver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.watch.as_fd()
    }
}

/// The number of that descriptor.
impl AsRawFd for Driver {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}
