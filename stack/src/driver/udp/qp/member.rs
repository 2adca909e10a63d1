//! A datagram queue pair as a member of its poll set.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;
use std::time::Instant;

use crate::AsyncEvent;
use crate::driver::reactor::member::{Member, NextReceive, Received, SocketIndex};
use crate::driver::udp::qp::{UdInner, UdShared};
use crate::driver::udp::socket::ReceiveBuffer;

impl Member for UdShared {
    fn receive(
        &self,
        socket: SocketIndex,
        buffer: &mut ReceiveBuffer,
        _next: NextReceive,
    ) -> Option<Received> {
        let received = self.exclusive.try_run(
            |inner| self.receive_locked(inner, socket, buffer),
            |inner| self.work(inner),
        )?;
        Some(if received {
            Received::Something
        } else {
            Received::Nothing
        })
    }

    fn has_completions(&self) -> bool {
        self.recv_cq.has_completions()
    }

    fn read_error_queue(&self, socket: SocketIndex) -> Option<()> {
        self.exclusive.try_run(
            |inner| self.read_error_queue_locked(inner, socket),
            |inner| self.work(inner),
        )
    }

    fn with_socket(&self, socket: SocketIndex, with: &mut dyn FnMut(BorrowedFd<'_>)) -> bool {
        self.run(|inner| {
            let socket = inner.sockets.get(socket);
            socket.inspect(|socket| with(socket.as_fd())).is_some()
        })
    }

    fn flush_unsent(&self) -> Option<bool> {
        if self.closing.load(Ordering::Acquire) {
            return None;
        }
        self.exclusive
            .try_run(|inner| self.work(inner), |inner| self.work(inner));
        self.unsent
            .load(Ordering::Acquire)
            .then(|| self.blocked.load(Ordering::Acquire))
    }

    fn fail_overrun(&self) {
        let lost = self.send_cq.is_overrun() || self.recv_cq.is_overrun();
        if !lost || self.failed.swap(true, Ordering::AcqRel) {
            return;
        }
        self.run(|inner| {
            // A program that destroys the QP has no use for events of it.
            if self.closing.load(Ordering::Acquire) {
                return;
            }
            inner.engine.flush(self.tables(), &mut self.completions());
            let qpn = inner.engine.qpn().into();
            let events = self.recv_cq.background().events();
            events.raise(AsyncEvent::QpFatal { qpn });
            if self.recv_queue.is_shared() {
                events.raise(AsyncEvent::LastWqeReached { qpn });
            }
        });
    }

    fn handle_timeout(&self, now: Instant) -> Option<Instant> {
        self.exclusive.run(
            |inner| {
                let UdInner {
                    engine,
                    instruments,
                    ..
                } = inner;
                if let Some(instruments) = instruments {
                    instruments.handle_timeout(now, |arrival| {
                        engine.handle_input(now, arrival, self.tables(), &mut self.completions())
                    });
                }
                engine.handle_timeout(now, self.tables(), &mut self.completions());
                let goes_on = engine.paused_until().is_some_and(|until| until <= now);
                if goes_on || engine.has_output() {
                    self.work(inner);
                }
                inner.deadline = inner.poll_timeout();
                inner.deadline
            },
            |inner| self.work(inner),
        )
    }
}
