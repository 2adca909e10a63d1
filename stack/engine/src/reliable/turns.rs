//! Receives of an RC QP, which its messages take in their order whatever order they arrive in (§9.1).

use crate::cq_ring::CompletionSink;
use crate::recv_queue::{RecvQueue, RecvWqe};

/// Receives that are taken in order.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// Number of the message that the receive at the head is for, modulo 2^16.
    next: u16,
    /// Receives of messages that have not arrived, each before one that has.
    ahead: Vec<(u16, RecvWqe)>,
}

impl Turns {
    /// The receive of the message with this number. `None` if too few are posted for it and those before.
    pub(super) fn take(
        &mut self,
        number: u16,
        queue: &RecvQueue,
        completions: &mut impl CompletionSink,
    ) -> Option<RecvWqe> {
        if let Some(at) = self.ahead.iter().position(|(of, _)| *of == number) {
            return Some(self.ahead.swap_remove(at).1);
        }
        let before = number.wrapping_sub(self.next);
        // One from before has had its receive. No message is 4,096 ahead.
        if before >= 1 << 15 || queue.len() <= before.into() {
            return None;
        }
        loop {
            let taken = queue.take(0, completions).ok()?;
            let of = self.next;
            self.next = of.wrapping_add(1);
            if of == number {
                return Some(taken);
            }
            self.ahead.push((of, taken));
        }
    }

    /// Numbers of the receives that no message had.
    pub(super) fn ahead(&self) -> impl Iterator<Item = u16> + '_ {
        self.ahead.iter().map(|(number, _)| *number)
    }

    /// All receives that no message had, with their numbers.
    pub(super) fn into_ahead(self) -> Vec<(u16, RecvWqe)> {
        self.ahead
    }

    /// Order of a number among those that are not older than 2^15 messages.
    pub(super) const fn place(&self, number: u16) -> i16 {
        number.wrapping_sub(self.next).cast_signed()
    }
}
