//! A reliable datagram QP that is taken out of service: messages that leave before, and those that have arrived.

use std::iter;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::{RdInner, RdShared, SEND_BUDGET};
use crate::driver::device::clock;
use crate::driver::reactor::member::Received;
use crate::driver::udp::socket::ReceiveBuffer;
use dgiwarp_engine::reliable::RdEngine;

/// Time limit of destruction for posted Sends to be placed at their peers.
const FLUSH_FOR: Duration = Duration::from_secs(1);
/// Time limit of an RC QP that goes into error for posted work requests to be placed at the peer.
const ERROR_FOR: Duration = Duration::from_secs(1);
/// Time limit of a process that ends for peers to post receives that its messages wait for.
const RECEIVES_FOR: Duration = Duration::from_millis(200);
/// Wait of a QP that is taken out of service for what arrives, in milliseconds.
const CLOSING_POLL: u8 = 1;
/// Receive calls between two checks for output, while a QP is taken out of service.
const CLOSING_RECEIVES: usize = 64;
/// Receive calls for what has arrived before the end of a peer: more than a socket's buffer has datagrams.
const LAST_RECEIVES: usize = 4096;

impl RdShared {
    /// Takes the QP out of service. Posted Sends get a bounded time to be placed; then the associations are closed.
    pub(crate) fn close(&self) {
        let deadline = clock::now() + FLUSH_FOR;
        // From now on only this thread sends.
        self.closing.store(true, Ordering::Release);
        self.let_leave(deadline, |engine| engine.outstanding() > 0);
        self.open.store(false, Ordering::Release);
        self.run(|inner| {
            inner
                .engine
                .close(clock::now(), self.tables(), &mut self.completions());
            self.transmit_some(inner, usize::MAX);
            self.poll_set.unwatch(inner.ports.main().as_fd());
            self.leave_meetings(None);
            self.forget_peer_ports(inner);
        });
        self.detach();
    }

    /// Ends an RC QP in order, beside the program: posted work requests get a bounded time to be placed, and the rest is flushed.
    pub(crate) fn disconnect(&self) {
        self.run(|inner| {
            self.posting.empty(|wqe| inner.engine.accept(wqe));
            let now = clock::now();
            inner
                .engine
                .disconnect(now, now + FLUSH_FOR, self.tables(), &mut self.completions());
            self.work(inner);
        });
    }

    /// Ends an RC QP at once, as the program has it (`ibv_modify_qp(3)` to the error state). An RNIC would have sent what was posted, so it leaves before, without
    /// work requests that wait for receives.
    pub(crate) fn flush_behind_posted(&self) {
        if !self.is_over() {
            // A program's transition stops it before.
            let unready = self.run(|inner| std::mem::take(&mut inner.is_unready));
            self.let_leave(clock::now() + ERROR_FOR, RdEngine::is_sending);
            self.run(|inner| inner.is_unready = unready);
        }
        self.flush();
    }

    /// Ends an RC QP whose peer ended: what has arrived is placed before. Receives stay posted behind an orderly end, until the program of this end ends the connection, too.
    pub(crate) fn end_behind_arrived(&self, orderly: bool) {
        self.receive_arrived();
        if !orderly {
            return self.flush();
        }
        self.run(|inner| {
            inner
                .engine
                .peer_left(clock::now(), self.tables(), &mut self.completions());
            self.work(inner);
        });
    }

    /// Receives what has arrived.
    fn receive_arrived(&self) {
        let mut buffer = ReceiveBuffer::new();
        self.run(|inner| {
            for _ in 0..LAST_RECEIVES {
                if !self.receive_some(inner, &mut buffer) {
                    break;
                }
            }
            self.work(inner);
        });
    }

    /// Receives what has arrived, and returns whether completions of messages lie in the completion queues.
    pub(crate) fn has_untaken(&self) -> bool {
        self.receive_arrived();
        self.has_success()
    }

    /// The process ends, and nothing leaves or comes behind it. Ends the associations once all that was posted is placed at the peers, or waits only for receives
    /// there for too long, or `at_last`. Returns whether they are ended.
    pub(super) fn leave(&self, inner: &mut RdInner, at_last: bool) -> bool {
        let mut buffer = ReceiveBuffer::new();
        let now = clock::now();
        self.handle_timeout_locked(inner, now);
        for _ in 0..CLOSING_RECEIVES {
            if !self.receive_some(inner, &mut buffer) {
                break;
            }
        }
        self.work(inner);
        let since = *inner.leaving_since.get_or_insert(now);
        let engine = &mut inner.engine;
        let waits = now < since + RECEIVES_FOR || engine.is_sending();
        if (engine.outstanding() > 0 && waits || self.unsent.load(Ordering::Acquire)) && !at_last {
            return false;
        }
        engine.leave_process(now, self.tables(), &mut self.completions());
        self.transmit_some(inner, usize::MAX);
        true
    }

    /// Whether completions of messages lie in the completion queues.
    pub(crate) fn has_success(&self) -> bool {
        let mut queues = [&self.send_cq, &self.recv_cq].into_iter();
        queues.any(|cq| cq.has_success_of(self.qpn))
    }

    /// Receives once from each socket. Returns whether something came.
    fn receive_some(&self, inner: &mut RdInner, buffer: &mut ReceiveBuffer) -> bool {
        let sockets = inner.ports.in_use();
        let received = sockets
            .map(|index| self.receive_locked(inner, index, buffer, false))
            .max();
        received.is_some_and(|received| received > Received::Nothing)
    }

    /// Sends and receives for as long as `goes_on` holds, up to the deadline.
    fn let_leave(&self, deadline: Instant, goes_on: impl Fn(&RdEngine) -> bool) {
        let mut buffer = ReceiveBuffer::new();
        while self.run(|inner| {
            self.posting.empty(|wqe| inner.engine.accept(wqe));
            self.handle_timeout_locked(inner, clock::now());
            for _ in 0..CLOSING_RECEIVES {
                if !self.receive_some(inner, &mut buffer) {
                    break;
                }
            }
            self.transmit_some(inner, SEND_BUDGET);
            goes_on(&inner.engine)
        }) && clock::now() < deadline
        {
            self.run(|inner| {
                let ports = iter::once(inner.ports.main()).chain(inner.ports.siblings());
                let mut fds: Vec<_> = ports
                    .map(|port| PollFd::new(port.as_fd(), PollFlags::POLLIN))
                    .collect();
                let _ = poll(&mut fds, PollTimeout::from(CLOSING_POLL));
            });
        }
    }
}
