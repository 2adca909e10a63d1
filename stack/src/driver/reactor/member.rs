//! Members of a poll set: queue pairs, as the poll set sees them.

use std::fmt::Debug;
use std::os::fd::BorrowedFd;
use std::time::Instant;

use crate::driver::cq::direct::DirectCompletions;
use crate::driver::udp::socket::ReceiveBuffer;
pub(crate) use dgiwarp_engine::connected::NextReceive;

/// One of the sockets of a member.
pub(crate) type SocketIndex = u8;

/// A member of a poll set. A number is used again with another generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct MemberId {
    /// Below 2^24.
    pub(crate) key: u32,
    pub(crate) generation: u32,
}

impl MemberId {
    /// The token of a socket in an epoll set.
    pub(crate) fn token(self, socket: SocketIndex) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.key) << 8 | u64::from(socket)
    }

    pub(crate) fn from_token(token: u64) -> (Self, SocketIndex) {
        let [g0, g1, g2, g3, k0, k1, k2, socket] = token.to_be_bytes();
        let member = Self {
            key: u32::from_be_bytes([0, k0, k1, k2]),
            generation: u32::from_be_bytes([g0, g1, g2, g3]),
        };
        (member, socket)
    }
}

/// The yield of a receive call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Received {
    Nothing,
    /// Nothing but bells: the descriptor is not readable by them any more, and no other thread has taken input that they announced.
    Bells,
    Something,
    /// Something whose answers wait until the burst is [over](Member::end_burst).
    Held,
    /// All there was: another call would find nothing.
    Everything,
}

impl From<bool> for Received {
    /// Whether there was something.
    #[inline]
    fn from(something: bool) -> Self {
        if something {
            Self::Something
        } else {
            Self::Nothing
        }
    }
}

/// A queue pair, or another source of input, that a poll set serves.
pub(crate) trait Member: Debug + Send + Sync {
    /// Receives once from one socket. `None` if another thread is at work.
    fn receive(
        &self,
        socket: SocketIndex,
        buffer: &mut ReceiveBuffer,
        next: NextReceive,
    ) -> Option<Received>;

    /// Whether it counts polls that find nothing.
    fn counts_polls(&self) -> bool {
        false
    }

    /// A program's poll has found nothing on its socket, which is tried on every poll.
    fn polled_in_vain(&self) {}

    /// Receives once from a socket that is tried on every poll: `receive` is called when its descriptor is readable. A completion may go to `direct`.
    #[inline]
    fn receive_hot(
        &self,
        socket: SocketIndex,
        buffer: &mut ReceiveBuffer,
        next: NextReceive,
        _direct: &mut DirectCompletions<'_>,
    ) -> Option<Received> {
        self.receive(socket, buffer, next)
    }

    /// The caller of `receive` turns to something else, and what is [held](Received::Held) leaves.
    fn end_burst(&self) {}

    /// Has the descriptor become readable by what arrives in memory, if `wanted`. Returns whether the socket's input is in memory: its
    /// descriptor stays in the epoll set then.
    fn want_bells(&self, _socket: SocketIndex, _wanted: bool) -> bool {
        false
    }

    /// Whether completions wait in the completion queue of receives.
    fn has_completions(&self) -> bool;

    /// Reads the error queue of a socket. `None` if another thread is at work. The error of a stream is its end, which `receive` meets.
    fn read_error_queue(&self, _socket: SocketIndex) -> Option<()> {
        None
    }

    /// Calls `with` with the descriptor of a socket that is to be polled. Returns whether there is one.
    fn with_socket(&self, socket: SocketIndex, with: &mut dyn FnMut(BorrowedFd<'_>)) -> bool;

    /// Continues sending. If something is left, returns whether a full socket is the reason.
    fn flush_unsent(&self) -> Option<bool>;

    /// Sends the acknowledgements that the peer waits for: `at_once`, or those that are overdue. Returns whether none is left.
    fn flush_acks(&self, _at_once: bool) -> bool {
        true
    }

    /// The thread that polls is about to sleep: acknowledgements that wait for a message of it leave.
    fn release_acks(&self) {}

    /// Ends the queue pair if completions of it were lost.
    fn fail_overrun(&self);

    /// Runs timers that are due and returns the next deadline.
    fn handle_timeout(&self, now: Instant) -> Option<Instant>;

    /// The process ends, and accepted work requests of this QP are nowhere but in it: they get more time. `None` if another thread is at work.
    fn leaves_by_process(&self) -> Option<bool> {
        Some(false)
    }

    /// The process ends: hands accepted work requests to the network. Returns whether nothing is left, which holds if it is called `at_last`. Work requests
    /// that another thread has in hand may be left.
    fn leave_process(&self, _at_last: bool) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_keep_all_their_parts() {
        let member = MemberId {
            key: 0x00ab_cdef,
            generation: 0x0123_4567,
        };
        assert_eq!(MemberId::from_token(member.token(4)), (member, 4));
    }
}
