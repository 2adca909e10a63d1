//! The error queue of a datagram QP, reliable or not: reports of peers and of the network about messages that were sent earlier.
//!
//! Nothing in it changes the state of the QP. It is bounded, because others decide how much comes.

use std::collections::VecDeque;
use std::net::SocketAddr;

/// Entries kept; later ones are counted and lost.
const MAX_ENTRIES: usize = 256;

/// Report of a peer or of the network about a message sent earlier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ErrorEntry {
    /// Destination of the message.
    pub peer: SocketAddr,
    /// Number of the message, if the report contains it.
    pub message: Option<u32>,
    /// The report.
    pub reason: ErrorReason,
}

/// Contents of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorReason {
    /// The peer sent a Terminate message (RFC 5040 §4.8).
    Terminate {
        /// The layer that found the error.
        layer: u8,
        /// The kind of error of that layer.
        error_type: u8,
        /// The error of that kind.
        code: u8,
    },
    /// The network reported an error (ICMP): `ECONNREFUSED` where no QP has that number, `EHOSTUNREACH` and the like.
    Network {
        /// The errno.
        errno: i32,
    },
    /// The peer of a reliable datagram QP was silent for too long.
    Unreachable,
    /// The message found no receive at the peer too often.
    RnrRetries,
    /// The peer restarted: messages that were under way may have been carried out.
    Restarted,
    /// The peer violated the protocol.
    Violation,
    /// The peer ended the association with messages under way, which may have been carried out.
    Closed,
}

/// Entries that the program did not take yet.
#[derive(Debug, Default)]
pub(crate) struct ErrorQueue {
    entries: VecDeque<ErrorEntry>,
    lost: u64,
}

impl ErrorQueue {
    /// Adds an entry. Returns whether the queue was empty, which is worth an asynchronous event.
    pub(crate) fn push(&mut self, entry: ErrorEntry) -> bool {
        if self.entries.len() >= MAX_ENTRIES {
            self.lost += 1;
            return false;
        }
        self.entries.push_back(entry);
        self.entries.len() == 1
    }

    pub(crate) fn pop(&mut self) -> Option<ErrorEntry> {
        self.entries.pop_front()
    }

    /// Counts reports that never became entries.
    pub(super) fn lose(&mut self, count: u64) {
        self.lost += count;
    }

    /// Entries that found the queue full.
    pub(crate) fn lost(&self) -> u64 {
        self.lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_queue_is_bounded_and_tells_when_it_turns_non_empty() {
        let entry = |message| ErrorEntry {
            peer: "192.0.2.1:7".parse().unwrap(),
            message: Some(message),
            reason: ErrorReason::Network { errno: 111 },
        };
        let mut queue = ErrorQueue::default();
        assert!(queue.push(entry(0)));
        for message in 1..300 {
            assert!(!queue.push(entry(message)));
        }
        assert_eq!(queue.lost(), 300 - 256);
        for message in 0..256 {
            assert_eq!(queue.pop(), Some(entry(message)));
        }
        assert_eq!(queue.pop(), None);
        assert!(queue.push(entry(1)));
    }
}
