//! Frames in order with credit: no end sends more than its peer has receives for (`rfc-notes/transfer.md` §4).

use std::collections::VecDeque;
use std::time::Duration;

use super::Violation;
use crate::wire::{Block, Frame};

/// Receives of each end before its HELLO is there.
const FIRST_RECEIVES: u32 = 16;
/// Receives that only carry a PING with `taken`.
const RESERVE: u32 = 2;
/// Time without a frame after which a PING leaves.
const PING_AFTER: Duration = Duration::from_secs(1);
/// Silence after which the peer counts as stopped. A host that is gone is found earlier, by its TCP.
pub const SILENCE: Duration = Duration::from_secs(30);

/// Fewest receives that an end may have.
pub const MIN_RECEIVES: u16 = 16;

/// An outgoing frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outgoing {
    /// A frame alone.
    Frame(Frame),
    /// A block: the octets of the local slot go before the notice.
    Block {
        /// The notice.
        block: Block,
        /// Slot of ours with the octets.
        local: u16,
    },
}

/// State of both directions. Order of calls: [`handle_input`](Self::handle_input) for each frame that came, [`push`](Self::push), then
/// [`poll_transmit`](Self::poll_transmit) until it is empty; [`poll_timeout`](Self::poll_timeout) last.
#[derive(Debug)]
pub struct Link {
    /// Receives that the peer has.
    window: u32,
    /// Own receives.
    receives: u32,
    sent: u32,
    /// Frames of ours that the peer took.
    peer_taken: u32,
    /// Frames that we took.
    taken: u32,
    /// Value of `taken` that the peer has.
    reported: u32,
    queue: VecDeque<Outgoing>,
    last_sent: Duration,
    last_heard: Duration,
}

impl Link {
    /// A link with this many receives of ours.
    #[must_use]
    pub fn new(now: Duration, receives: u16) -> Self {
        Self {
            window: FIRST_RECEIVES,
            receives: u32::from(receives),
            sent: 0,
            peer_taken: 0,
            taken: 0,
            reported: 0,
            queue: VecDeque::new(),
            last_sent: now,
            last_heard: now,
        }
    }

    /// Sets the receives that the peer's HELLO names.
    ///
    /// # Errors
    /// [`Violation::Receives`] for fewer than 16.
    pub fn set_window(&mut self, receives: u16) -> Result<(), Violation> {
        if receives < MIN_RECEIVES {
            return Err(Violation::Receives(receives));
        }
        self.window = u32::from(receives);
        Ok(())
    }

    /// Queues a frame.
    pub fn push(&mut self, outgoing: Outgoing) {
        self.queue.push_back(outgoing);
    }

    /// Frames taken, as headers have it.
    #[must_use]
    pub fn taken(&self) -> u32 {
        self.taken
    }

    /// Frames of ours that the peer took.
    #[must_use]
    pub fn peer_taken(&self) -> u32 {
        self.peer_taken
    }

    /// Whether a frame that is pushed now may leave.
    #[must_use]
    pub fn has_credit(&self) -> bool {
        self.outstanding() < self.window - RESERVE
    }

    /// Takes a frame back that has not left.
    pub fn pop(&mut self) -> Option<Outgoing> {
        self.queue.pop_front()
    }

    /// Whether all that was pushed has left.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty()
    }

    /// Takes note of a frame that came, whose header has this `taken`.
    ///
    /// # Errors
    /// [`Violation::Taken`] if the peer took frames that were never sent.
    pub fn handle_input(&mut self, now: Duration, taken: u32) -> Result<(), Violation> {
        self.last_heard = now;
        self.taken = self.taken.wrapping_add(1);
        let advance = taken.wrapping_sub(self.peer_taken);
        if advance > self.outstanding() {
            return Err(Violation::Taken(taken));
        }
        self.peer_taken = taken;
        Ok(())
    }

    /// Notes octets of the peer that are no whole frame yet.
    pub fn heard(&mut self, now: Duration) {
        self.last_heard = now;
    }

    fn outstanding(&self) -> u32 {
        self.sent.wrapping_sub(self.peer_taken)
    }

    /// The next frame that may leave, with the `taken` of its header.
    pub fn poll_transmit(&mut self, now: Duration) -> Option<(u32, Outgoing)> {
        let normal = self.has_credit();
        let unreported = self.taken.wrapping_sub(self.reported);
        let outgoing = if normal && let Some(next) = self.queue.pop_front() {
            next
        } else if unreported >= self.receives / 4 && self.outstanding() < self.window
            || normal && now >= self.last_sent + PING_AFTER
        {
            Outgoing::Frame(Frame::Ping)
        } else {
            return None;
        };
        self.sent = self.sent.wrapping_add(1);
        self.reported = self.taken;
        self.last_sent = now;
        Some((self.taken, outgoing))
    }

    /// Whether the peer has been silent for too long.
    #[must_use]
    pub fn is_silent(&self, now: Duration) -> bool {
        now >= self.last_heard + SILENCE
    }

    /// Time at which something is due though nothing comes.
    #[must_use]
    pub fn poll_timeout(&self, now: Duration) -> Duration {
        let silent = self.last_heard + SILENCE;
        let ping = self.last_sent + PING_AFTER;
        // Without credit a PING that is due cannot leave.
        if ping <= now {
            silent
        } else {
            silent.min(ping)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::ZERO;

    fn ping() -> Outgoing {
        Outgoing::Frame(Frame::Ping)
    }

    #[test]
    fn no_more_leaves_than_the_peer_has_receives_for() {
        let mut link = Link::new(NOW, 16);
        for _ in 0..40 {
            link.push(Outgoing::Frame(Frame::Finish));
        }
        let sent = std::iter::from_fn(|| link.poll_transmit(NOW)).count();
        assert_eq!(sent, 14);
        // Two more for `taken` alone, each when four frames came.
        for _ in 0..4 {
            link.handle_input(NOW, 0).unwrap();
        }
        assert_eq!(link.poll_transmit(NOW), Some((4, ping())));
        assert_eq!(link.poll_transmit(NOW), None);
        link.handle_input(NOW, 15).unwrap();
        assert_eq!(std::iter::from_fn(|| link.poll_transmit(NOW)).count(), 14);
        assert_eq!(link.handle_input(NOW, 30), Err(Violation::Taken(30)));
    }

    #[test]
    fn an_idle_link_pings_and_finds_silence() {
        let mut link = Link::new(NOW, 16);
        assert_eq!(link.poll_timeout(NOW), PING_AFTER);
        assert_eq!(link.poll_transmit(PING_AFTER), Some((0, ping())));
        assert_eq!(link.poll_transmit(PING_AFTER), None);
        assert!(link.is_silent(SILENCE) && !link.is_silent(PING_AFTER));
    }
}
