//! Completion queues for event loops.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;

use crate::driver::cq::watch::Watch;
use crate::{Cq, Error};

/// A completion queue that an event loop of the program waits for, beside other descriptors. No thread stands between: the loop's own thread receives, by
/// [`Cq::poll`] and [`arm`](Self::arm), so that a message costs one wakeup.
///
/// ```
/// # use dgiwarp::{Config, Cq, CqWatch, Rnic};
/// # use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
/// # use std::os::fd::AsFd;
/// # fn example(cq: &Cq) -> Result<(), Box<dyn std::error::Error>> {
/// let watch = cq.watch()?;
/// loop {
///     while let Some(wc) = cq.poll_one()? {
///         println!("{wc:?}");
///     }
///     if watch.arm() {
///         let mut fds = [PollFd::new(watch.as_fd(), PollFlags::POLLIN)];
///         poll(&mut fds, PollTimeout::NONE)?;
///         watch.disarm();
///     }
/// }
/// # }
/// ```
///
/// The descriptor fits level-triggered and edge-triggered pollers (`EPOLLET`, as mio and tokio use it): whatever comes behind an `arm` that returned true makes it
/// readable anew. It may be readable although no completion follows, by acknowledgements for example.
///
/// Timers of queue pairs, such as retransmissions, stay with the background thread: a completion that they make makes the descriptor readable. A loop that does not
/// come back is replaced by that thread after some milliseconds, so that peers are answered; its completions wait in the queue.
#[derive(Debug)]
pub struct CqWatch {
    shared: Arc<Watch>,
}

impl Cq {
    /// Watches the queue. A queue may have several watches; each is woken by every completion, and threads in [`wait`](Self::wait) are too.
    ///
    /// # Errors
    /// [`Error::System`] where descriptors are exhausted.
    pub fn watch(&self) -> Result<CqWatch, Error> {
        let shared = Watch::new(&self.shared)?;
        Ok(CqWatch { shared })
    }
}

impl CqWatch {
    /// Prepares to sleep on the descriptor: receives what has arrived, and, where that makes no completion, sends what waits for a poll. Returns whether the loop may
    /// sleep. If not, there are completions to be [polled](Cq::poll), or another thread is at work with a queue pair: poll and arm again.
    #[must_use]
    pub fn arm(&self) -> bool {
        self.shared.arm()
    }

    /// As [`arm`](Self::arm), but receives nothing: input that is there makes the descriptor readable. Cheaper, for a loop that sleeps at many queues.
    #[must_use]
    pub fn arm_without_receive(&self) -> bool {
        self.shared.arm_without_receive()
    }

    /// The loop is awake: from now on a completion, such as that of a Send posted next, does not make the descriptor readable.
    pub fn disarm(&self) {
        self.shared.disarm();
    }

    /// Makes the descriptor readable until the next [`disarm`](Self::disarm), or [`arm`](Self::arm) that returns false: for other threads that have something for the loop.
    pub fn ring(&self) {
        self.shared.ring();
    }

    /// Whether there are completions, or data that may become some, without receiving it.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.shared.is_ready()
    }
}

/// Readable once something came behind [`CqWatch::arm`].
impl AsFd for CqWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.as_fd()
    }
}

/// The number of that descriptor.
impl AsRawFd for CqWatch {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}
