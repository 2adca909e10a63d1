//! A connected queue pair as a member of its poll set.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;
use std::time::Instant;

use crate::driver::cq::direct::DirectCompletions;
use crate::driver::device::clock;
use crate::driver::reactor::member::{Member, NextReceive, Received, SocketIndex};
use crate::driver::tcp::qp::ending::Rest;
use crate::driver::tcp::qp::{From, Link, RcShared};
use crate::driver::udp::socket::ReceiveBuffer;

impl Member for RcShared {
    fn receive(
        &self,
        _socket: SocketIndex,
        _buffer: &mut ReceiveBuffer,
        next: NextReceive,
    ) -> Option<Received> {
        self.try_run(|inner| self.receive_once(inner, next, From::All))
    }

    #[inline]
    fn receive_hot(
        &self,
        _socket: SocketIndex,
        _buffer: &mut ReceiveBuffer,
        next: NextReceive,
        direct: &mut DirectCompletions<'_>,
    ) -> Option<Received> {
        if !self.receives_from_memory() {
            return self.receive_hot_socket(next);
        }
        self.receive_from_lane(next, direct)
    }

    fn counts_polls(&self) -> bool {
        self.unlocked.has_grants.load(Ordering::Relaxed)
    }

    fn polled_in_vain(&self) {
        self.try_run(|inner| Self::note_poll(inner));
    }

    fn want_bells(&self, _socket: SocketIndex, wanted: bool) -> bool {
        self.unlocked.in_lane.load(Ordering::Acquire)
            && self.run(|inner| self.want_bells_locked(inner, wanted))
    }

    fn has_completions(&self) -> bool {
        self.recv_cq.has_completions()
    }

    fn with_socket(&self, _socket: SocketIndex, with: &mut dyn FnMut(BorrowedFd<'_>)) -> bool {
        self.run(|inner| {
            let polled = |link: &&Link| link.tcp_close.is_polled() && !link.paused;
            let link = inner.link.as_ref().filter(polled);
            link.inspect(|link| with(link.pipe.as_fd())).is_some()
        })
    }

    fn flush_unsent(&self) -> Option<bool> {
        self.continue_sending()
    }

    fn flush_acks(&self, at_once: bool) -> bool {
        let flushed = self.try_run(|inner| {
            if let Some(link) = &mut inner.link {
                if link.engine.flush_acks(clock::now(), at_once) {
                    self.work(inner);
                } else if link.engine.is_ack_awaited() {
                    return false;
                }
            }
            self.unlocked
                .has_pending_acks
                .store(false, Ordering::Relaxed);
            true
        });
        flushed.unwrap_or(false)
    }

    fn fail_overrun(&self) {
        self.flush_overrun();
    }

    fn handle_timeout(&self, now: Instant) -> Option<Instant> {
        self.run(|inner| {
            if let Some(link) = &mut inner.link {
                link.engine.handle_timeout(now);
            }
            self.look_after(inner, now);
            self.work(inner);
            inner.link.as_ref().and_then(|link| link.deadline)
        })
    }

    fn leave_process(&self, at_last: bool) -> bool {
        let done = self.exclusive.try_run(
            |inner| {
                let goes_on =
                    |link: &Link| link.tcp_close.may_send() && link.engine.has_unsent(clock::now());
                self.work(inner);
                if !at_last && inner.link.as_ref().is_some_and(goes_on) {
                    return false;
                }
                self.closing.store(true, Ordering::Release);
                inner.listener = None;
                inner.pending_established = None;
                self.let_go(inner, Rest::All, false);
                true
            },
            |_| {},
        );
        done == Some(true)
    }
}
