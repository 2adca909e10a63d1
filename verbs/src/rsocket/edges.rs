//! Edges of `EPOLLET`: changes that make a member of a poll set reported again although it was ready all the time.

use libc::{POLLIN, POLLOUT, POLLPRI, c_short};

/// Numbers of changes of a connection.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Edges {
    /// Octets that came.
    readable: u64,
    /// Room that came after a call had found none.
    writable: u64,
    /// Ends of the directions and of the connection, which any events report.
    ends: u64,
}

impl Edges {
    /// Octets came.
    pub(super) fn came(&mut self) {
        self.readable += 1;
    }

    /// Room came.
    pub(super) fn has_room(&mut self) {
        self.writable += 1;
    }

    /// A direction has ended, or the connection.
    pub(super) fn ended(&mut self) {
        self.ends += 1;
    }

    /// Whether a change of these events came after `seen`.
    fn are_new(self, events: c_short, seen: Self) -> bool {
        // Octets of TCP that come are an edge of urgent data too, whether they are urgent or not.
        let (reads, writes) = (events & (POLLIN | POLLPRI) != 0, events & POLLOUT != 0);
        self.ends != seen.ends
            || reads && self.readable != seen.readable
            || writes && self.writable != seen.writable
    }
}

/// Events that a caller waits for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Interest {
    pub(super) events: c_short,
    /// Changes before these were reported; `None` for levels.
    pub(super) seen: Option<Edges>,
}

impl Interest {
    pub(super) const fn level(events: c_short) -> Self {
        Self { events, seen: None }
    }

    /// Whether events that were found at these changes are to be reported.
    pub(super) fn is_met(self, found: c_short, now: Option<Edges>) -> bool {
        let is_new = match (self.seen, now) {
            (Some(seen), Some(now)) => now.are_new(self.events, seen),
            (None, _) | (_, None) => true,
        };
        found != 0 && is_new
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use libc::POLLRDHUP;

    #[test]
    fn changes_of_one_direction_are_none_of_the_other() {
        let start = Edges::default();
        let (mut came, mut room, mut ended) = (start, start, start);
        came.came();
        room.has_room();
        ended.ended();
        for (events, new) in [
            (POLLIN, [true, false, true]),
            (POLLOUT, [false, true, true]),
            (POLLIN | POLLOUT, [true, true, true]),
            (POLLRDHUP, [false, false, true]),
            (POLLOUT | POLLPRI, [true, true, true]),
            (POLLOUT | POLLRDHUP, [false, true, true]),
            // Errors and hang-ups alone.
            (0, [false, false, true]),
        ] {
            assert_eq!(
                [came, room, ended].map(|it| it.are_new(events, start)),
                new,
                "{events:#x}"
            );
            let level = Interest::level(events);
            assert!(level.is_met(1, Some(start)) && !level.is_met(0, Some(came)));
            let edge = Interest {
                events,
                seen: Some(came),
            };
            assert!(!edge.is_met(1, Some(came)) && edge.is_met(1, None));
        }
    }
}
