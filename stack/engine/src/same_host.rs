//! Queue pairs and their peers on this host, which share memory: meetings, the order of datagrams between socket and lane, and the choice between lane and
//! one-sided copies (`rfc-notes/same-host.md`).

mod copy_choice;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

pub use copy_choice::CopyChoice;

/// Time after which what the socket has carried is received, or lost.
const LATE: Duration = Duration::from_millis(100);

/// Octets of a peer behind which it is invited again, where it has not answered.
const AGAIN: u64 = 256 << 10;
/// Invitations of a peer at most.
const INVITATIONS: u8 = 8;

/// Progress of an end towards meeting a peer. A peer is met once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Meeting {
    /// So many octets of the peer have come.
    NotYet(u64),
    /// The peer was invited for the nth time.
    Invited(u8),
    /// So many octets of the peer have come since it has not answered the nth invitation: it may have had no place for this end then. It may invite this end, too.
    Unanswered(u64, u8),
    /// The ends have met, or will not, but for an invitation that is being made, the next after so many.
    Over(u8),
}

/// Answer to the invitation of a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// It is taken.
    Accept,
    /// It is taken, and that of this end given up.
    AcceptInstead,
    /// It is ignored.
    Ignore,
}

impl Meeting {
    /// A meeting with a peer of which nothing has come.
    pub const NEW: Self = Self::NotYet(0);
    /// No meeting.
    pub const OVER: Self = Self::Over(0);

    /// Octets of the peer have come, which is met after so many, if at all. Returns whether it is to be invited now.
    #[inline]
    pub fn received(&mut self, octets: usize, after: Option<u64>) -> bool {
        let Some(after) = after else {
            return false;
        };
        let (before, after) = match self {
            Self::NotYet(before) => (before, after),
            Self::Unanswered(before, times) if *times < INVITATIONS => (before, after.max(AGAIN)),
            Self::Invited(_) | Self::Unanswered(..) | Self::Over(_) => return false,
        };
        *before = before.saturating_add(octets as u64);
        octets > 0 && *before >= after
    }

    /// The peer is invited now, or never again.
    pub fn leave(&mut self) {
        *self = match *self {
            Self::Unanswered(_, times) => Self::Over(times),
            Self::NotYet(_) | Self::Invited(_) | Self::Over(_) => Self::OVER,
        };
    }

    /// The invitation is on its way.
    pub fn note_invited(&mut self) {
        if let Self::Over(times) = *self {
            *self = Self::Invited(times.saturating_add(1));
        }
    }

    /// The ends do not meet; `late` where nobody answered in time.
    pub fn failed(&mut self, late: bool) {
        *self = match self {
            Self::Invited(times) if late => Self::Unanswered(0, *times),
            _ => Self::OVER,
        };
    }

    /// The peer has invited this end. Where both have invited each other, the invitation of the lower address and port counts.
    pub fn invited(&mut self, ours: Option<SocketAddr>, theirs: Option<SocketAddr>) -> Answer {
        let answer = match self {
            Self::NotYet(_) | Self::Unanswered(..) => Answer::Accept,
            Self::Invited(_) if ours >= theirs => Answer::AcceptInstead,
            Self::Invited(_) | Self::Over(_) => return Answer::Ignore,
        };
        *self = Self::OVER;
        answer
    }
}

/// Carrier of the next datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Carrier {
    /// The lane, if it has room.
    Lane,
    /// The socket.
    Socket,
    /// The socket, behind a bell, from which on the peer counts.
    SocketBehindBell,
}

/// Order of what an end sends: no datagram overtakes another on its way by the socket or the lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SendOrder {
    /// All go by the socket: the peer has not been told yet from where on it counts.
    #[default]
    Uncounted,
    /// All go by the socket until the peer has received so many by it, the last of which left at this time.
    BySocket(u64, Instant),
    /// All go by the lane.
    ByLane,
}

impl SendOrder {
    /// The carrier of a datagram that leaves now, where the peer reports that it has `received` so many by the socket.
    #[inline]
    pub fn carrier(&mut self, now: Instant, received: impl FnOnce() -> u64) -> Carrier {
        match *self {
            Self::ByLane => Carrier::Lane,
            Self::Uncounted => {
                *self = Self::BySocket(1, now);
                Carrier::SocketBehindBell
            }
            // Lost datagrams are not waited for.
            Self::BySocket(sent, at)
                if received() < sent && now.saturating_duration_since(at) < LATE =>
            {
                Carrier::Socket
            }
            Self::BySocket(..) => {
                *self = Self::ByLane;
                Carrier::Lane
            }
        }
    }

    /// The lane has no room: datagrams go by the socket, of which the peer has `received` so many.
    pub fn lane_is_full(&mut self, now: Instant, received: u64) {
        *self = Self::BySocket(received, now);
    }

    /// The socket has taken `datagrams`.
    #[inline]
    pub fn sent_by_socket(&mut self, now: Instant, datagrams: usize) {
        if let Self::BySocket(sent, at) = self {
            // A peer may report any number.
            *sent = sent.saturating_add(datagrams as u64);
            *at = now;
        }
    }
}

/// Count of what an end has received by the socket, since the first bell of its peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReceiveCount(Option<u64>);

impl ReceiveCount {
    /// A receive call brought `datagrams`, or a bell, which is none. Returns the count for the peer, if it counts from before.
    pub fn received(&mut self, datagrams: usize) -> Option<u64> {
        self.0 = match (self.0, datagrams) {
            (Some(received), _) => Some(received + datagrams as u64),
            (None, 0) => Some(1),
            (None, _) => None,
        };
        self.0
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;
    use crate::connected::tests::now;

    fn at(port: u16) -> Option<SocketAddr> {
        Some(([127, 0, 0, 1], port).into())
    }

    #[test]
    fn a_peer_is_invited_once_enough_octets_came() {
        let mut meeting = Meeting::NEW;
        assert!(!meeting.received(4095, Some(4096)));
        assert!(!meeting.received(10, None), "never");
        assert!(!meeting.received(0, Some(1)), "nothing came");
        assert!(meeting.received(1, Some(4096)));
        meeting = Meeting::Invited(1);
        assert!(!meeting.received(10_000, Some(4096)));
    }

    /// Of two invitations that cross, one counts, at both ends the same.
    #[test]
    fn one_of_two_crossing_invitations_counts() {
        for (ours, theirs) in [(1, 2), (2, 1)] {
            let (mut here, mut there) = (Meeting::Invited(1), Meeting::Invited(1));
            let answers = [
                here.invited(at(ours), at(theirs)),
                there.invited(at(theirs), at(ours)),
            ];
            let expected = if ours < theirs {
                [Answer::Ignore, Answer::AcceptInstead]
            } else {
                [Answer::AcceptInstead, Answer::Ignore]
            };
            assert_eq!(answers, expected);
        }
        let mut meeting = Meeting::NEW;
        assert_eq!(meeting.invited(at(1), at(2)), Answer::Accept);
        assert_eq!(meeting.invited(at(2), at(1)), Answer::Ignore, "again");
    }

    /// A peer that had no place for this end, and so did not answer, invites it when it has one.
    #[test]
    fn a_peer_that_did_not_answer_is_invited_again_and_may_invite() {
        let mut meeting = Meeting::NEW;
        assert!(meeting.received(1, Some(1)));
        for _ in 0..INVITATIONS {
            meeting.leave();
            meeting.note_invited();
            assert!(!meeting.received(1 << 30, Some(1)), "it may still answer");
            meeting.failed(true);
            assert!(!meeting.received((256 << 10) - 1, Some(1)));
            assert_eq!(
                meeting.received(1, Some(1)),
                meeting != Meeting::Unanswered(0, INVITATIONS)
            );
        }
        assert!(!meeting.received(1 << 30, Some(1)), "too often");
        assert_eq!(meeting.invited(at(1), at(2)), Answer::Accept);
        assert_eq!(meeting.invited(at(1), at(2)), Answer::Ignore, "again");
        meeting.failed(true);
        assert_eq!(meeting, Meeting::OVER);
        let mut meeting = Meeting::Invited(1);
        meeting.failed(false);
        assert_eq!(meeting.invited(at(1), at(2)), Answer::Ignore);
    }

    /// A sender and a receiver with a socket and a lane between them.
    #[derive(Default)]
    struct Way {
        order: SendOrder,
        count: ReceiveCount,
        reported: u64,
        /// Bells are `None`.
        socket: VecDeque<Option<u32>>,
        lane: VecDeque<u32>,
        /// Taken from the socket, and not handed over: records of the lane come before it.
        held: Option<u32>,
        received: Vec<u32>,
    }

    impl Way {
        fn send(&mut self, number: u32, now: Instant, room: usize) {
            let reported = self.reported;
            match self.order.carrier(now, || reported) {
                Carrier::Lane if self.lane.len() < room => return self.lane.push_back(number),
                Carrier::Lane => self.order.lane_is_full(now, reported),
                Carrier::Socket => {}
                Carrier::SocketBehindBell => self.socket.push_back(None),
            }
            self.socket.push_back(Some(number));
            self.order.sent_by_socket(now, 1);
        }

        fn receive(&mut self) {
            if let Some(number) = self.lane.pop_front() {
                return self.received.push(number);
            }
            if let Some(number) = self.held.take() {
                return self.take(number);
            }
            match self.socket.pop_front() {
                Some(None) => self.reported = self.count.received(0).unwrap(),
                Some(Some(number)) => self.held = Some(number),
                None => {}
            }
        }

        fn take(&mut self, number: u32) {
            self.received.push(number);
            self.reported = self.count.received(1).unwrap_or(self.reported);
        }
    }

    proptest! {
        #[test]
        fn no_datagram_overtakes_another(
            steps in proptest::collection::vec((any::<bool>(), 1usize..4, any::<bool>()), 1..200),
        ) {
            let (mut way, now) = (Way::default(), now());
            let mut sent = 0;
            for (sends, times, roomy) in steps {
                for _ in 0..times {
                    if sends {
                        way.send(sent, now, if roomy { 8 } else { 1 });
                        sent += 1;
                    } else {
                        way.receive();
                    }
                }
            }
            for _ in 0..2 * sent + 4 {
                way.receive();
            }
            prop_assert_eq!(way.received, (0..sent).collect::<Vec<_>>());
        }
    }

    /// Datagrams of the socket that are lost are not waited for; those of others are.
    #[test]
    fn lost_datagrams_are_waited_for_a_while() {
        let start = now();
        let mut order = SendOrder::default();
        assert_eq!(order.carrier(start, || 0), Carrier::SocketBehindBell);
        order.sent_by_socket(start, 3);
        assert_eq!(order.carrier(start, || 3), Carrier::Socket);
        let late = start + LATE;
        assert_eq!(
            order.carrier(late - Duration::from_nanos(1), || 3),
            Carrier::Socket
        );
        assert_eq!(order.carrier(late, || 3), Carrier::Lane);
        order.lane_is_full(late, 3);
        order.sent_by_socket(late, 1);
        assert_eq!(order.carrier(late, || 3), Carrier::Socket);
        assert_eq!(order.carrier(late, || 4), Carrier::Lane);
        order.lane_is_full(late, u64::MAX);
        order.sent_by_socket(late, 1);
        assert_eq!(order.carrier(late, || u64::MAX), Carrier::Lane);
    }

    #[test]
    fn the_count_begins_with_a_bell() {
        let mut count = ReceiveCount::default();
        assert_eq!(count.received(5), None);
        assert_eq!(count.received(0), Some(1));
        assert_eq!(count.received(2), Some(3));
        assert_eq!(count.received(0), Some(3));
    }
}
