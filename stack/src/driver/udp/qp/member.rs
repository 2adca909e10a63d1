//! A datagram queue pair as a member of its poll set.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use dgiwarp_memory::socket::NoCancellation;

use crate::driver::cq::direct::DirectCompletions;
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
        self.try_run(|inner| {
            let received = self.receive_locked(inner, socket, buffer);
            if received <= Received::Bells && socket == 0 && self.has_any_lanes() {
                return received.max(self.receive_unannounced(inner, buffer));
            }
            received
        })
    }

    #[inline]
    fn receive_hot(
        &self,
        socket: SocketIndex,
        buffer: &mut ReceiveBuffer,
        next: NextReceive,
        direct: &mut DirectCompletions<'_>,
    ) -> Option<Received> {
        if !self.has_lanes(socket) {
            let _guard = NoCancellation::begin();
            return self.receive(socket, buffer, next);
        }
        self.try_run(|inner| {
            let received = self.receive_short(inner, socket, buffer, direct);
            received.unwrap_or_else(|| {
                let _guard = NoCancellation::begin();
                self.receive_from_lane(inner, socket, buffer)
            })
        })
    }

    fn want_bells(&self, socket: SocketIndex, wanted: bool) -> bool {
        self.want_bells_at(socket, wanted)
    }

    fn has_completions(&self) -> bool {
        self.recv_cq.has_completions()
    }

    fn read_error_queue(&self, socket: SocketIndex) -> Option<()> {
        self.try_run(|inner| self.read_error_queue_locked(inner, socket))
    }

    fn with_socket(&self, socket: SocketIndex, with: &mut dyn FnMut(BorrowedFd<'_>)) -> bool {
        self.run(|inner| {
            let port = inner.ports.get(socket);
            port.inspect(|port| with(port.as_fd())).is_some()
        })
    }

    fn flush_unsent(&self) -> Option<bool> {
        self.continue_sending()
    }

    fn leave_process(&self, at_last: bool) -> bool {
        let sends_all = |inner: &mut UdInner| {
            self.work(inner);
            !inner.engine.has_unsent()
        };
        at_last || self.try_run(sends_all) == Some(true)
    }

    fn fail_overrun(&self) {
        self.flush_overrun();
    }

    fn handle_timeout(&self, now: Instant) -> Option<Instant> {
        self.run(|inner| {
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
        })
    }
}
