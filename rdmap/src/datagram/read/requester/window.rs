//! Octets and datagrams that may be requested and not have arrived (§8).

use std::time::{Duration, Instant};

/// Limits of requested octets that have not arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Octets, at first and at least.
    pub octets: u32,
    /// Octets on a path that holds that many.
    pub most_octets: u32,
    /// Datagrams.
    pub datagrams: u32,
}

impl Limits {
    /// Octets in flight whatever the receive buffer, where no more are on the path.
    const FIRST_OCTETS: usize = 256 << 10;
    /// Most octets in flight whatever the receive buffer.
    const MOST_OCTETS: usize = 64 << 20;

    /// Limits of §8 for a granted receive buffer of this many octets.
    #[must_use]
    pub fn of_receive_buffer(granted: usize) -> Self {
        let octets = (granted / 4).clamp(1, Self::FIRST_OCTETS);
        let most = (granted / 2).clamp(octets, Self::MOST_OCTETS);
        let number = |octets| u32::try_from(octets).unwrap_or(u32::MAX);
        Self {
            octets: number(octets),
            most_octets: number(most),
            datagrams: number((granted / 1024).max(1)),
        }
    }
}

/// The window of a requester. It grows as long as it holds requests back and round trips stay short: then the path, and no queue, has its octets.
#[derive(Debug)]
pub(super) struct Window {
    limits: Limits,
    octets: u32,
    pub(super) octets_in_flight: u32,
    pub(super) datagrams_in_flight: u32,
    /// Requests go on when half of the window is free, several at a time, which wakes the target less often.
    is_full: bool,
    /// The window was full since it last changed.
    was_full: bool,
    /// Octets were lost at that time.
    lost_at: Option<Instant>,
}

impl Window {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            octets: limits.octets,
            octets_in_flight: 0,
            datagrams_in_flight: 0,
            is_full: false,
            was_full: false,
            lost_at: None,
        }
    }

    /// Whether the window may have room.
    pub(super) fn is_open(&self) -> bool {
        !self.is_full
            || (self.octets_in_flight <= self.octets / 2
                && self.datagrams_in_flight <= self.limits.datagrams / 2)
    }

    /// Whether this many octets and datagrams may be requested. One chunk may always be.
    pub(super) fn has_room(&mut self, (octets, datagrams): (u32, u32)) -> bool {
        let has_room = self.datagrams_in_flight == 0
            || (self.octets_in_flight.saturating_add(octets) <= self.octets
                && self.datagrams_in_flight.saturating_add(datagrams) <= self.limits.datagrams);
        self.is_full = !has_room;
        self.was_full |= self.is_full;
        has_room
    }

    pub(super) fn requested(&mut self, (octets, datagrams): (u32, u32)) {
        self.octets_in_flight += octets;
        self.datagrams_in_flight += datagrams;
    }

    pub(super) fn arrived(&mut self, (octets, datagrams): (u32, u32)) {
        self.octets_in_flight -= octets;
        self.datagrams_in_flight -= datagrams;
    }

    /// Octets of the next chunk, of which `left` are to be requested: a quarter of the window in whole segments, and no small rest.
    pub(super) fn chunk(&self, left: u32, segment: u32) -> u32 {
        let quarter = (self.octets / 4).max(1);
        let whole = if quarter > segment {
            quarter - quarter % segment
        } else {
            quarter
        };
        if left <= quarter {
            left
        } else if left < whole.saturating_mul(2) {
            // The last two are equal.
            left.div_ceil(2).next_multiple_of(segment).min(whole)
        } else {
            whole
        }
    }

    /// The first response to a request for `octets` took that long, where the shortest time was `least`.
    pub(super) fn sample(&mut self, now: Instant, took: Duration, least: Duration, octets: u32) {
        let lost_lately = |at| now.saturating_duration_since(at) < took;
        if took > least * 4 {
            self.octets = self
                .octets
                .saturating_sub(octets / 2)
                .max(self.limits.octets);
        } else if self.was_full && took <= least * 2 && !self.lost_at.is_some_and(lost_lately) {
            self.octets = self
                .octets
                .saturating_add(octets)
                .min(self.limits.most_octets);
        }
        self.was_full = self.is_full;
    }

    /// Octets were lost.
    pub(super) fn lost(&mut self, now: Instant) {
        self.lost_at = Some(now);
    }

    /// Nothing has come for so long that all that was requested counts as lost.
    pub(super) fn timed_out(&mut self) {
        self.octets = self.limits.octets;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_clock::origin;

    fn millis(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    #[test]
    fn chunks_leave_no_small_rest() {
        let window = Window::new(Limits::of_receive_buffer(4 << 20));
        let cut = |mut left: u32, segment| {
            let mut cut = Vec::new();
            while left > 0 {
                let chunk = window.chunk(left, segment);
                cut.push(chunk);
                left -= chunk;
            }
            cut
        };
        assert_eq!(cut(65_536, 1454), [65_536]);
        assert_eq!(cut(65_537, 1454), [33_442, 32_095]);
        assert_eq!(cut(200_000, 1454), [65_430, 65_430, 34_896, 34_244]);
        assert_eq!(cut(200_000, 64_900), [64_900, 64_900, 64_900, 5300]);
        let mut limits = Limits::of_receive_buffer(4000);
        limits.octets = 1000;
        let window = Window::new(limits);
        assert_eq!(window.chunk(5000, 1454), 250);
        assert_eq!(window.chunk(300, 1454), 250);
        for left in 1..1000 {
            assert!((1..=left).contains(&window.chunk(left, 64)));
        }
    }

    /// §8.
    #[test]
    fn the_window_follows_a_long_path_and_no_queue() {
        let limits = Limits::of_receive_buffer(8 << 20);
        assert_eq!((limits.octets, limits.most_octets), (256 << 10, 4 << 20));
        let mut window = Window::new(limits);
        let mut now = origin();
        let (rtt, chunk) = (millis(50), 64 << 10);
        // Not full.
        window.sample(now, rtt, rtt, chunk);
        assert_eq!(window.octets, 256 << 10);
        for _ in 0..200 {
            while window.has_room((chunk, 1)) {
                window.requested((chunk, 1));
            }
            now += rtt;
            window.arrived((chunk, 1));
            window.sample(now, rtt, rtt, chunk);
        }
        assert_eq!(window.octets, 4 << 20);
        // Twice the round trip: a queue holds the rest. Four times: too much of it.
        window.sample(now, rtt * 3, rtt, chunk);
        assert_eq!(window.octets, 4 << 20);
        for _ in 0..50 {
            window.sample(now, rtt * 5, rtt, chunk);
        }
        assert_eq!(window.octets, (4 << 20) - 50 * (chunk / 2));
        window.timed_out();
        assert_eq!(window.octets, 256 << 10);
    }

    #[test]
    fn four_times_the_shortest_round_trip_is_not_too_long() {
        let limits = Limits::of_receive_buffer(8 << 20);
        let mut window = Window::new(limits);
        window.octets = limits.octets + 10_000;
        window.sample(origin(), millis(40), millis(10), 1000);
        assert_eq!(window.octets, limits.octets + 10_000);
        window.sample(origin(), millis(41), millis(10), 1000);
        assert_eq!(window.octets, limits.octets + 9500);
    }

    #[test]
    fn a_full_window_opens_when_half_of_octets_and_datagrams_is_free() {
        let limits = Limits {
            datagrams: 17,
            ..Limits::of_receive_buffer(8 << 20)
        };
        let half = limits.octets / 2;
        let full = |(octets, datagrams)| {
            let mut window = Window::new(limits);
            window.requested((octets, datagrams));
            assert!(!window.has_room((limits.octets, 17)));
            window
        };
        for (left, is_open) in [
            ((half, 8), true),
            ((half, 9), false),
            ((half + 1, 8), false),
        ] {
            assert_eq!(full(left).is_open(), is_open, "{left:?}");
        }
    }

    #[test]
    fn losses_hold_the_window() {
        let mut window = Window::new(Limits::of_receive_buffer(8 << 20));
        let (now, rtt) = (origin(), millis(50));
        window.requested((256 << 10, 4));
        assert!(!window.has_room((1, 1)));
        window.lost(now);
        window.sample(now + millis(49), rtt, rtt, 1000);
        assert_eq!(window.octets, 256 << 10);
        window.sample(now + millis(50), rtt, rtt, 1000);
        assert_eq!(window.octets, (256 << 10) + 1000);
    }
}
