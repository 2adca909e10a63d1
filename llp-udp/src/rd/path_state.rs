//! Observed state of the path to a peer.

use std::fmt;
use std::time::Duration;

/// State of the path to a peer (§6.2, §6.3), as RFC 9002 names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PathState {
    /// Congestion window in octets; `None` where a fixed rate takes its place.
    pub window: Option<u64>,
    /// Octets in flight.
    pub in_flight: u64,
    /// Smoothed round-trip time, or the initial estimate.
    pub smoothed_rtt: Duration,
    /// Smallest round-trip time; `None` before the first sample.
    pub minimum_rtt: Option<Duration>,
    /// Largest packet number that was declared lost of late. All up to it that elicit acknowledgements, and are not acknowledged, were.
    pub lost: Option<u64>,
}

impl fmt::Display for PathState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(window) = self.window {
            write!(f, "window {window}, ")?;
        }
        write!(f, "in flight {}", self.in_flight)?;
        if let Some(minimum) = self.minimum_rtt {
            let [smoothed, minimum] = [self.smoothed_rtt, minimum].map(|it| it.as_micros());
            write!(f, ", RTT {smoothed} us, minimum {minimum} us")?;
        }
        if let Some(lost) = self.lost {
            write!(f, ", lost to {lost}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_parts_are_left_out() {
        let mut state = PathState {
            window: None,
            in_flight: 0,
            smoothed_rtt: Duration::from_millis(1),
            minimum_rtt: None,
            lost: None,
        };
        assert_eq!(state.to_string(), "in flight 0");
        state.window = Some(14_720);
        state.in_flight = 2944;
        state.minimum_rtt = Some(Duration::from_micros(180));
        state.lost = Some(17);
        assert_eq!(
            state.to_string(),
            "window 14720, in flight 2944, RTT 1000 us, minimum 180 us, lost to 17"
        );
    }
}
