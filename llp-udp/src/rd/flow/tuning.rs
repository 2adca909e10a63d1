//! Receiver's window of a long path (§6.4).

use std::time::{Duration, Instant};

use super::rtt::Rtt;

/// Shortest round trip of a long path. On shorter ones the window of all peers carries more than a receive buffer has room for.
const LONG: Duration = Duration::from_millis(1);

/// Window that a peer is granted beyond its share: twice, where it sent half of its grant in one round trip, as far as the
/// receiver's own smallest sample of that goes. So the grant is no limit to a peer whose datagrams are on the path, not in the receive buffer.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::rd) struct Tuning {
    /// Octets; 0 before the first growth.
    window: u32,
    /// Begin of the present round trip.
    since: Option<Instant>,
    /// Octets that arrived in it.
    octets: u64,
}

impl Tuning {
    pub(in crate::rd) const fn window(&self) -> u32 {
        self.window
    }

    /// Takes a datagram with segments of a peer that has this grant.
    pub(in crate::rd) fn on_arrival(&mut self, now: Instant, octets: u64, grant: u32, rtt: &Rtt) {
        let round = rtt.minimum();
        if !rtt.is_sampled() || round < LONG {
            return;
        }
        let elapsed = now.saturating_duration_since(*self.since.get_or_insert(now));
        if elapsed >= round {
            let sent = u128::from(self.octets) * round.as_nanos() / elapsed.as_nanos();
            if sent * 2 >= u128::from(grant) {
                self.window = grant.saturating_mul(2);
            }
            self.since = Some(now);
            self.octets = 0;
        }
        self.octets += octets;
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::congestion::tests::origin;
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Window after ten round trips of this time, in each of which a peer sends `octets` in ten datagrams.
    fn window(round: Duration, octets: u64, grant: u32) -> u32 {
        let mut rtt = Rtt::new(MS);
        rtt.sample(round, Duration::ZERO);
        let mut tuning = Tuning::default();
        let start = origin();
        for datagram in 0..100 {
            let now = start + round / 10 * datagram;
            let grant = tuning.window().max(grant);
            tuning.on_arrival(now, octets / 10, grant, &rtt);
        }
        tuning.window()
    }

    #[test]
    fn a_window_that_is_used_up_grows_on_long_paths_alone() {
        assert_eq!(window(20 * MS, 100_000, 100_000), 200_000 * 2);
        assert_eq!(window(20 * MS, 50_000, 100_000), 200_000);
        assert_eq!(window(20 * MS, 49_000, 100_000), 0, "half of it is used");
        assert_eq!(window(MS, 50_000, 100_000), 200_000, "the shortest");
        assert_eq!(window(MS - MS / 100, 100_000, 100_000), 0, "a short path");
    }

    #[test]
    fn nothing_grows_before_the_round_trip_is_known() {
        let mut tuning = Tuning::default();
        let start = origin();
        for at in 0..100 {
            tuning.on_arrival(start + at * MS, 100_000, 1000, &Rtt::new(10 * MS));
        }
        assert_eq!(tuning.window(), 0);
    }

    #[test]
    fn a_pause_counts_as_time_in_which_nothing_came() {
        let mut rtt = Rtt::new(MS);
        rtt.sample(10 * MS, Duration::ZERO);
        let mut tuning = Tuning::default();
        for at in 0..10 {
            tuning.on_arrival(
                origin() + at * Duration::from_secs(1),
                90_000,
                100_000,
                &rtt,
            );
        }
        assert_eq!(tuning.window(), 0);
    }
}
