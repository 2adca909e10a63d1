//! Receiver of a poll set while no thread polls: the background thread, threads that wait, or none.

use std::sync::atomic::Ordering;

use crate::driver::reactor::adaptive_arming::AdaptiveArming;
use crate::driver::reactor::poll_set::{PollSet, SLOW_TICK};

impl PollSet {
    /// Takes note of a batch that a poller found.
    #[inline]
    pub(super) fn found_by_poller(&self) {
        if self.arming.found_by_poller() {
            self.leave_to_pollers();
        }
    }

    /// The background thread was woken by data, and `found` it still there.
    pub(crate) fn woken(&self, found: bool) {
        if self.arming.woken(found) {
            self.leave_to_pollers();
        }
    }

    fn leave_to_pollers(&self) {
        self.event_wanted.store(false, Ordering::SeqCst);
        self.stop_watching();
    }

    fn stop_watching(&self) {
        if self.arming.turn_off() {
            self.waker.modify(self.sockets_fd(), self.id, false);
            // Another thread may have armed the set in between.
            if self.arming.is_on() {
                self.waker.modify(self.sockets_fd(), self.id, true);
            }
            self.note();
            // The thread may sleep without a tick, and sets that are not armed need one.
            self.waker.wake_within(SLOW_TICK);
        }
    }

    pub(crate) fn arming(&self) -> &AdaptiveArming {
        &self.arming
    }

    /// Arms the set: the background thread watches its sockets from now on.
    pub(crate) fn arm(&self) {
        self.arming.turn(true);
        self.unpark_armed();
        self.rearm();
        // Left to the poller a moment ago, by a thread that posts: a set that is armed gets no ticks.
        if self.has_unsent() {
            self.waker.wake();
        }
    }

    /// Continues to watch after an event, unless a poller disarmed the set meanwhile: that often happens at this very moment, with the same
    /// datagram.
    pub(crate) fn rearm(&self) {
        self.waker.modify(self.sockets_fd(), self.id, true);
        if !self.arming.is_on() {
            self.waker.modify(self.sockets_fd(), self.id, false);
        }
    }

    /// Arms the set for the first time.
    pub(crate) fn start_watching(&self) {
        self.arming
            .turn(self.waker.add_once(self.sockets_fd(), self.id));
        // A note of before was lost: the thread did not know the set.
        self.take_note();
        self.note();
    }

    // Programs that wait for an event of a completion channel.

    /// A completion queue was armed. A program that waits in a call of the channel receives for itself, and a second sleeper on the
    /// sockets would be woken by each datagram too; for one that polls the channel's descriptor the background thread receives.
    pub(crate) fn want_event(&self) {
        self.unpark();
        self.flush_before_sleep();
        if self.waiters_receive.load(Ordering::SeqCst) {
            return self.leave_to_pollers();
        }
        self.arming.restart();
        self.event_wanted.store(true, Ordering::SeqCst);
        if !self.arming.is_on() && !self.has_sleepers() {
            self.arm();
        }
    }

    /// A thread is about to sleep on the sockets in a call of a channel.
    pub(crate) fn receive_by_waiting(&self) {
        self.waiters_receive.store(true, Ordering::SeqCst);
        self.unpark();
        // Afterwards: from now on, posts leave nothing to a poller.
        if self.flush_before_sleep() {
            self.ring_ready();
        }
        self.note_sleep();
        self.leave_to_pollers();
    }

    /// Data lay in the sockets that no thread received: a program that waits does so at the descriptor, or does something else.
    pub(crate) fn data_lay_there(&self) {
        self.waiters_receive.store(false, Ordering::SeqCst);
        self.arming.data_lay_there();
    }

    /// A poller is at work, and the background thread leaves the set to it until the next tick, unless a program may sleep until that thread
    /// has raised an event. Where input comes through memory it comes back at once for a while: a program that polls for the end of its own message, and
    /// then memory for the peer's, finds that end long before the peer's message is there.
    pub(crate) fn step_aside(&self) {
        let comes_back = self.has_memory_input.load(Ordering::Relaxed) && self.arming.makes_way();
        if !comes_back && !self.is_event_wanted() {
            self.arming.turn(false);
            if !self.is_event_wanted() {
                self.note();
                return;
            }
            self.arming.turn(true);
            self.unpark_armed();
        }
        std::thread::yield_now();
        self.rearm();
    }

    fn is_event_wanted(&self) -> bool {
        self.event_wanted.load(Ordering::SeqCst)
    }

    /// Gives every member with something left to send a turn: the calling thread is about to sleep, and polls no more. Returns whether some of
    /// it may go on at once, as answers that waited for input do.
    pub(crate) fn flush_before_sleep(&self) -> bool {
        self.has_unsent() && self.flush_unsent()
    }

    // Threads that sleep on the sockets.

    /// Whether a program polls and, as far as the set has learnt, no thread sleeps until something arrives.
    #[inline]
    pub(crate) fn is_polled(&self) -> bool {
        !self.arming.is_on() && !self.has_sleepers() && !self.waiters_receive.load(Ordering::SeqCst)
    }

    /// Whether a thread is woken by input, or may be: one that is registered as a sleeper, or that waits for a channel's events now.
    pub(crate) fn is_slept_on(&self) -> bool {
        self.has_sleepers() || self.waiters_receive.load(Ordering::SeqCst) && self.is_asleep()
    }

    /// Whether the last thread that polled sleeps until something arrives, as far as the set can tell: it may have been woken by something else, or cancelled.
    pub(crate) fn is_asleep(&self) -> bool {
        self.polls_at_sleep.load(Ordering::Relaxed) == self.arming.polls()
    }

    /// The calling thread, which polls, sleeps next: acknowledgements that wait for a message of it leave.
    pub(crate) fn note_sleep(&self) {
        self.release_acks();
        let polls = self.arming.polls();
        self.polls_at_sleep.store(polls, Ordering::Relaxed);
    }

    pub(crate) fn has_sleepers(&self) -> bool {
        self.sleepers.load(Ordering::SeqCst) > 0
    }

    /// A thread is about to sleep on the sockets.
    pub(crate) fn begin_sleep(&self) {
        self.stop_watching();
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        self.unpark();
    }

    /// A program that is registered as a sleeper is about to sleep again: the background thread, which may have received for it, leaves the set to it.
    pub(crate) fn sleep_again(&self) {
        self.note_sleep();
        self.stop_watching();
    }

    /// The thread of [`begin_sleep`](Self::begin_sleep) is awake.
    pub(crate) fn end_sleep(&self) {
        let sleepers = self.sleepers.fetch_sub(1, Ordering::SeqCst);
        if sleepers == 1 && self.is_event_wanted() {
            self.arm();
        }
    }

    /// A completion queue was armed: the sockets announce their input until its event. [`want_event`](Self::want_event) follows.
    pub(crate) fn await_event(&self) {
        self.awaited.fetch_add(1, Ordering::SeqCst);
    }

    /// Its event has come, or never will.
    pub(crate) fn await_no_event(&self) {
        self.awaited.fetch_sub(1, Ordering::SeqCst);
    }
}
