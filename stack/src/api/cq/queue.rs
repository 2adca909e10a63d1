//! Completion queues and channels.

use crate::Rnic;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::driver::cq::channel::ChannelShared;
use crate::driver::cq::completion_queue::CompletionQueue;
use crate::driver::cq::sleep::Slept;
use crate::driver::device::clock;
use crate::{CqError, Error, Wc};

/// Most completions that a queue may be made for.
pub(crate) const MAX_CQE: usize = 1 << 22;

/// A completion queue (`ibv_create_cq(3)`). Cloning shares it.
#[derive(Debug, Clone)]
pub struct Cq {
    pub(crate) shared: Arc<CompletionQueue>,
}

impl Cq {
    /// Moves completions to the front of `out` and returns how many. Where there are none, it receives what has
    /// arrived first. Never blocks.
    ///
    /// # Errors
    /// [`CqError::Overrun`] once all completions before the lost one were taken.
    #[inline]
    pub fn poll(&self, out: &mut [Wc]) -> Result<usize, CqError> {
        self.shared.poll(out)
    }

    /// Takes completions, at most `most`, and calls `each` with every one. Returns how many. As [`poll`](Self::poll), without a copy of them.
    ///
    /// `each` must not use this queue: its lock is held.
    ///
    /// # Errors
    /// As [`poll`](Self::poll).
    #[inline]
    pub fn poll_each(&self, most: usize, each: impl FnMut(&Wc)) -> Result<usize, CqError> {
        self.shared.poll_each(most, each)
    }

    /// The next completion, if there is one.
    ///
    /// # Errors
    /// As [`poll`](Self::poll).
    #[inline]
    pub fn poll_one(&self) -> Result<Option<Wc>, CqError> {
        let mut out = [Wc::default()];
        let count = self.poll(&mut out)?;
        Ok((count > 0).then_some(out[0]))
    }

    /// Whether there are completions. Receives nothing.
    #[must_use]
    pub fn has_completions(&self) -> bool {
        self.shared.has_completions()
    }

    /// Waits at most `timeout` for the next completion: spins for some microseconds where there is a core for
    /// it, then sleeps.
    ///
    /// # Errors
    /// As [`poll`](Self::poll).
    pub fn wait(&self, timeout: Duration) -> Result<Option<Wc>, CqError> {
        if let Some(wc) = self.poll_one()? {
            return Ok(Some(wc));
        }
        let deadline = clock::now().checked_add(timeout);
        while self.shared.sleep(deadline) == Slept::Interrupted {}
        self.poll_one()
    }

    /// As [`wait`](Self::wait), but takes no completion. Returns false where a signal handler ran meanwhile, which may be before
    /// anything has come.
    pub fn sleep(&self, timeout: Duration) -> bool {
        self.shared.sleep(clock::now().checked_add(timeout)) != Slept::Interrupted
    }

    /// Takes completions of a queue pair, which is gone, out.
    pub fn forget(&self, qpn: u32) {
        self.shared.forget(qpn);
    }

    /// Asks for one event on the completion channel at the next completion, or the next solicited one
    /// (`ibv_req_notify_cq(3)`). Poll once more afterwards: earlier completions make no event.
    pub fn request_notification(&self, solicited_only: bool) {
        self.shared.arm(solicited_only);
    }

    /// Withdraws [`request_notification`](Self::request_notification): a thread that is awake again takes what comes by polling, at less cost. An event that was
    /// raised before stays on the channel.
    pub fn cancel_notification(&self) {
        self.shared.disarm();
    }

    /// Keeps the time of each completion from now on, for [`poll_stamped`](Self::poll_stamped). The cost is a read of the clock for each.
    ///
    /// # Errors
    /// [`Error::System`] with `ENOMEM` where there is no memory for them.
    pub fn keep_timestamps(&self) -> Result<(), Error> {
        self.shared.keep_stamps()
    }

    /// As [`poll_one`](Self::poll_one), with the time at which the completion came, on the clock of [`Rnic::time`](crate::Rnic::time); zero where times are
    /// not kept.
    ///
    /// # Errors
    /// As [`poll`](Self::poll).
    pub fn poll_stamped(&self) -> Result<Option<(Wc, Duration)>, CqError> {
        let found = self.shared.poll_stamped()?;
        Ok(found.map(|(wc, nanos)| (wc, Duration::from_nanos(nanos))))
    }

    /// Loses completions that find the queue full, without a word, where else the queue could not be polled any more.
    pub fn ignore_overrun(&self) {
        self.shared.ignore_overrun();
    }

    /// Makes the queue for at least `depth` completions, 1 to 2^22 (`ibv_resize_cq(3)`).
    ///
    /// # Errors
    /// [`Error::Limit`] for another depth, or if more completions wait in it; [`Error::System`] with `ENOMEM` where there is no memory for them.
    pub fn resize(&self, depth: usize) -> Result<(), Error> {
        Error::check_limit("completion queue depth", depth, 1, MAX_CQE)?;
        if self.shared.resize(depth)? {
            return Ok(());
        }
        Err(Error::Limit {
            what: "completion queue depth, with more completions in it,",
            value: depth,
            min: 1,
            max: MAX_CQE,
        })
    }

    /// Identifies the queue in [`CompChannel::next_event`].
    #[must_use]
    pub fn id(&self) -> u64 {
        self.shared.id()
    }
}

/// Tells a program of completions (`ibv_create_comp_channel(3)`). Cloning shares it.
///
/// Its descriptor is for poll(2), epoll(7) and runtimes that use them, beside other descriptors of the program, and readable exactly while an event
/// waits. Ask for a notification, poll earlier completions, and only then wait:
///
/// ```
/// # use dgiwarp::{Config, Cq, CompChannel, Rnic};
/// # use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
/// # use std::os::fd::AsFd;
/// # fn example(cq: &Cq, channel: &CompChannel) -> Result<(), Box<dyn std::error::Error>> {
/// cq.request_notification(false);
/// while let Some(wc) = cq.poll_one()? {
///     println!("{wc:?}");
/// }
/// let mut fds = [PollFd::new(channel.as_fd(), PollFlags::POLLIN)];
/// poll(&mut fds, PollTimeout::NONE)?;
/// while let Some(id) = channel.next_event(false) {
///     assert_eq!(id, cq.id());
/// }
/// # Ok(())
/// # }
/// ```
///
/// While a program sleeps on the descriptor, the background thread receives and raises the event. [`next_event`](Self::next_event) with `block`, or a sleep on
/// the descriptor of [`begin_wait`](Self::begin_wait), receives in the calling thread: one wake-up for a message instead of two.
///
/// An edge-triggered poller (`EPOLLET`, as mio and tokio use it) is woken only by new events: before it waits,
/// [`is_ready`](Self::is_ready) must return false. With the feature `tokio`, `AsyncCq` does all that.
#[derive(Debug, Clone)]
pub struct CompChannel {
    pub(crate) shared: Arc<ChannelShared>,
}

impl CompChannel {
    /// Whether the descriptor is readable now.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        is_readable(self.as_fd())
    }

    /// Prepares the calling thread to sleep in place of the background thread. The returned descriptor is readable when there is an event or data that
    /// may become one; then call [`next_event`](Self::next_event), which receives it.
    pub fn begin_wait(&self) -> BorrowedFd<'_> {
        self.shared.begin_wait()
    }

    /// The [`Cq::id`] of an armed queue with a completion event. Receives what has arrived. With
    /// `block` it waits; else `None` means that there is no event now.
    #[must_use]
    pub fn next_event(&self, block: bool) -> Option<u64> {
        loop {
            if let Some(cq) = self.shared.take() {
                return Some(cq);
            }
            self.shared.progress();
            if let Some(cq) = self.shared.take() {
                return Some(cq);
            }
            if !block {
                return None;
            }
            let mut fds = [PollFd::new(self.begin_wait(), PollFlags::POLLIN)];
            let _ = poll(&mut fds, PollTimeout::NONE);
        }
    }

    /// Takes events of a queue that the program destroyed out.
    pub fn forget(&self, cq: u64) {
        self.shared.forget(cq);
    }
}

pub(super) fn is_readable(fd: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::new(fd, PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
}

/// Readable exactly while [`CompChannel::next_event`] has one.
impl AsFd for CompChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.as_fd()
    }
}

/// The number of that descriptor.
impl AsRawFd for CompChannel {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

/// Completion queues and channels of a device.
impl Rnic {
    /// Makes a completion queue for at least `depth` completions, 1 to 2^22 (`ibv_create_cq(3)`).
    ///
    /// # Errors
    /// [`Error::Limit`] for another depth, [`Error::System`] where descriptors or memory are exhausted.
    pub fn create_cq(&self, depth: usize) -> Result<Cq, Error> {
        if !(1..=MAX_CQE).contains(&depth) {
            return Err(Error::Limit {
                what: "completion queue depth",
                value: depth,
                min: 1,
                max: MAX_CQE,
            });
        }
        let shared = CompletionQueue::new(depth, Arc::clone(&self.shared.background))?;
        Ok(Cq { shared })
    }

    /// Makes a completion queue whose events come through `channel`.
    ///
    /// # Errors
    /// As [`create_cq`](Self::create_cq).
    pub fn create_cq_on(&self, depth: usize, channel: &CompChannel) -> Result<Cq, Error> {
        let cq = self.create_cq(depth)?;
        channel.shared.attach(&cq.shared)?;
        Ok(cq)
    }

    /// Makes a completion channel (`ibv_create_comp_channel(3)`).
    ///
    /// # Errors
    /// [`Error::System`] where descriptors are exhausted.
    pub fn create_comp_channel(&self) -> Result<CompChannel, Error> {
        Ok(CompChannel {
            shared: ChannelShared::new()?,
        })
    }
}
