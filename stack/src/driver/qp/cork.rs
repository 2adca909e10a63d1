//! Autocorking: messages that are posted back to back leave together, as small writes to a TCP socket do with `tcp_autocorking`.
//!
//! The first message after a poll leaves at once. Later ones wait for the next poll, or until they fill a train. Where a program does not poll soon, they leave
//! with the background thread's next tick, at most 4 ms later, and its next messages are not held up.

use std::time::{Duration, Instant};

use dgiwarp_llp_udp::{MAX_TRAIN_DATAGRAMS, MAX_TRAIN_OCTETS, Peer};

/// Length from which a message does not wait.
const LONG: u32 = 8192;
/// Octets of headers that a message has around its payload, at most.
const OVERHEAD: usize = 128;
/// Time for which messages are held up while the program goes on posting.
const HOLD_FOR: Duration = Duration::from_micros(20);
/// Wait from which the program counts as one that does not poll behind its posts.
const TOO_LONG: Duration = Duration::from_micros(50);
/// Posts that leave at once after such a wait; twice as many after another one, up to the most.
const PAUSE: u32 = 64;
const LONGEST_PAUSE: u32 = 1 << 16;
/// Share of the pause that each poll in time takes from it: one wait that was too long in ten makes it longer and longer.
const FORGET: u32 = 16;

/// Messages that wait for the next poll.
#[derive(Debug)]
pub(crate) struct Cork {
    /// Messages that may wait.
    most: usize,
    /// Messages posted since they last left, their octets, and those of the last one.
    messages: usize,
    octets: usize,
    last: usize,
    /// Peer of the last message, where a queue pair has several.
    peer: Option<Peer>,
    /// The last message cannot leave together with those before it.
    joins_none: bool,
    /// The program's polls at the last post.
    polls: u64,
    /// Time since which messages wait.
    since: Option<Instant>,
    /// Posts that are still to leave at once.
    pause: u32,
    next_pause: u32,
}

impl Cork {
    /// A cork for a send queue of `max_send_wr` work requests, of which at most half wait; none if it is not `on`.
    pub(crate) fn new(on: bool, max_send_wr: usize) -> Self {
        Self {
            most: if on {
                MAX_TRAIN_DATAGRAMS.min(max_send_wr / 2)
            } else {
                0
            },
            messages: 0,
            octets: 0,
            last: 0,
            peer: None,
            joins_none: false,
            polls: 0,
            since: None,
            pause: 0,
            next_pause: PAUSE,
        }
    }

    /// Takes note of a posted message, to a `peer` where the queue pair has several.
    #[inline]
    pub(crate) fn add(&mut self, length: u32, peer: Option<Peer>) {
        // No train has messages to different peers; long ones leave from where they lie, each by itself.
        self.joins_none = self.peer != peer || length >= LONG;
        self.peer = peer;
        self.messages += 1;
        self.last = length as usize + OVERHEAD;
        self.octets = self.octets.saturating_add(self.last);
    }

    /// Whether the messages wait that were posted, by a program that has polled so many times.
    #[inline]
    pub(crate) fn holds(&mut self, polls: u64, now: impl FnOnce() -> Instant) -> bool {
        if self.polls == polls {
            self.holds_another(now)
        } else {
            self.polls = polls;
            false
        }
    }

    /// Whether they wait where the program has not polled since its last post.
    #[inline(never)]
    fn holds_another(&mut self, now: impl FnOnce() -> Instant) -> bool {
        if self.pause > 0 {
            self.pause -= 1;
            return false;
        }
        let with_another = self.octets.saturating_add(self.last);
        if self.joins_none || self.messages >= self.most || with_another > MAX_TRAIN_OCTETS {
            return false;
        }
        let now = now();
        let since = *self.since.get_or_insert(now);
        now.saturating_duration_since(since) < HOLD_FOR
    }

    /// Whether messages wait.
    #[inline]
    pub(crate) fn is_holding(&self) -> bool {
        self.since.is_some()
    }

    /// All messages leave.
    #[inline]
    pub(crate) fn release(&mut self, now: impl FnOnce() -> Instant) {
        self.messages = 0;
        self.octets = 0;
        if let Some(since) = self.since.take() {
            self.learn(now().saturating_duration_since(since));
        }
    }

    fn learn(&mut self, waited: Duration) {
        if waited >= TOO_LONG {
            self.pause = self.next_pause;
            self.next_pause = (self.next_pause * 2).min(LONGEST_PAUSE);
        } else {
            self.next_pause = (self.next_pause - self.next_pause / FORGET).max(PAUSE);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use super::*;
    use crate::driver::device::clock;

    const SOON: Duration = Duration::from_micros(1);

    /// A program that posts messages of `length` octets, and its clock.
    struct Program {
        cork: Cork,
        length: u32,
        peer: SocketAddr,
        polls: u64,
        now: Instant,
    }

    impl Program {
        fn new(max_send_wr: usize, length: u32) -> Self {
            Self {
                cork: Cork::new(true, max_send_wr),
                length,
                peer: (Ipv4Addr::LOCALHOST, 1).into(),
                polls: 1,
                now: clock::now(),
            }
        }

        /// Whether a message that is posted `after` the last event waits.
        fn post(&mut self, after: Duration) -> bool {
            self.now += after;
            self.cork.add(self.length, Some(Peer::ip(self.peer)));
            let holds = self.cork.holds(self.polls, || self.now);
            if !holds {
                self.cork.release(|| self.now);
            }
            holds
        }

        fn poll(&mut self, after: Duration) {
            self.now += after;
            self.polls += 1;
            self.cork.release(|| self.now);
        }

        /// How many of these posts wait in a row, behind a first one that does not.
        fn held(&mut self) -> usize {
            self.poll(SOON);
            assert!(!self.post(SOON), "the first one after a poll leaves");
            (0..1000).take_while(|_| self.post(Duration::ZERO)).count()
        }
    }

    #[test]
    fn messages_wait_until_they_fill_a_train() {
        assert_eq!(Program::new(1000, 64).held(), MAX_TRAIN_DATAGRAMS - 1);
        assert_eq!(Program::new(1000, 4096).held(), 14);
        assert_eq!(Program::new(1000, LONG - 1).held(), 6);
        assert_eq!(Program::new(1000, LONG).held(), 0);
        assert_eq!(Program::new(1000, u32::MAX).held(), 0);
    }

    #[test]
    fn most_of_a_short_queue_is_free() {
        for (max_send_wr, held) in [(1, 0), (2, 0), (3, 0), (4, 1), (16, 7)] {
            let program = &mut Program::new(max_send_wr, 64);
            assert_eq!(program.held(), held, "of {max_send_wr}");
        }
        let mut off = Program::new(1000, 64);
        off.cork = Cork::new(false, 1000);
        assert_eq!(off.held(), 0);
    }

    #[test]
    fn a_post_in_each_turn_never_waits() {
        let mut program = Program::new(1000, 64);
        for _ in 0..1000 {
            program.poll(SOON);
            assert!(!program.post(SOON));
        }
    }

    #[test]
    fn a_message_to_another_peer_does_not_wait() {
        let mut program = Program::new(1000, 64);
        program.poll(SOON);
        for port in 1..10 {
            program.peer.set_port(port);
            assert!(!program.post(SOON));
        }
        assert!(program.post(SOON));
        assert!(program.post(SOON));
        program.peer.set_port(10);
        assert!(!program.post(SOON), "those before it leave, too");
    }

    #[test]
    fn a_program_that_posts_slowly_has_its_messages_sent() {
        let mut program = Program::new(1000, 64);
        program.poll(SOON);
        assert!(!program.post(SOON));
        assert!(program.post(SOON));
        assert!(program.post(HOLD_FOR / 2));
        assert!(!program.post(HOLD_FOR / 2));
    }

    /// Each wait that was too long makes the pause longer, and those that were not make it shorter again.
    #[test]
    fn a_program_that_does_not_poll_is_seldom_held_up() {
        let mut program = Program::new(1000, 64);
        let late = |program: &mut Program| {
            program.poll(SOON);
            assert!(!program.post(SOON));
            let pause = (0..200_000).take_while(|_| !program.post(SOON)).count();
            program.poll(TOO_LONG);
            pause
        };
        assert_eq!(late(&mut program), 0);
        assert_eq!(late(&mut program), 64);
        assert_eq!(late(&mut program), 128);
        for _ in 0..20 {
            late(&mut program);
        }
        assert_eq!(late(&mut program), LONGEST_PAUSE as usize);
        program.cork.pause = 0;
        for _ in 0..200 {
            assert!(program.held() > 1);
        }
        late(&mut program);
        assert_eq!(late(&mut program), 64);
    }

    #[test]
    fn polls_in_time_do_not_outweigh_those_that_come_late() {
        let mut program = Program::new(1000, 64);
        for _ in 0..20 {
            for _ in 0..5 {
                program.cork.pause = 0;
                program.held();
            }
            program.cork.pause = 0;
            program.poll(SOON);
            assert!(!program.post(SOON) && program.post(SOON));
            program.poll(TOO_LONG);
        }
        assert!(program.cork.next_pause > LONGEST_PAUSE / 2);
    }
}
