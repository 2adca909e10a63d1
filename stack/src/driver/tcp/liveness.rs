//! Liveness of a connected peer's host: whether it still acknowledges at TCP.
//!
//! The kernel would retransmit for a quarter of an hour before it gives up octets without acknowledgement, and its own shorter limit (`TCP_USER_TIMEOUT`) also
//! ends a connection whose peer answers but does not read, as it may for as long as it likes. So while TCP has something to deliver, the time of the last
//! acknowledgement is checked now and then; an idle connection is left to TCP's keepalive.

use std::io;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use dgiwarp_memory::TcpProgress;
use socket2::{SockRef, TcpKeepalive};

use crate::driver::device::clock;

/// Checks in the time that a peer has.
const CHECKS: u32 = 8;
/// Probes of a closed window that a peer may leave unanswered.
const PROBES: u8 = 2;
/// The shortest time between keepalive probes.
const SECOND: Duration = Duration::from_secs(1);

/// Makes TCP itself ask an idle peer, so that one that is gone is found after `patience`, in whole seconds.
pub(crate) fn keep_alive(stream: &TcpStream, patience: Duration) -> io::Result<()> {
    if patience.is_zero() {
        return Ok(());
    }
    let idle = (patience / 2).max(SECOND);
    let interval = (patience / 4).max(SECOND);
    let probes = patience.saturating_sub(idle).as_secs() / interval.as_secs();
    let retries = u32::try_from(probes.clamp(1, 100)).unwrap_or(1);
    let keepalive = TcpKeepalive::new()
        .with_time(idle)
        .with_interval(interval)
        .with_retries(retries);
    SockRef::from(stream).set_tcp_keepalive(&keepalive)
}

/// Liveness check of one connection.
#[derive(Debug)]
pub(crate) struct Liveness {
    /// How long the peer may be silent; zero is for ever.
    patience: Duration,
    /// Time since which octets have been unacknowledged, and time of the next check.
    watching: Option<(Instant, Instant)>,
}

impl Liveness {
    pub(crate) const fn new(patience: Duration) -> Self {
        Self {
            patience,
            watching: None,
        }
    }

    /// TCP took something to deliver.
    #[inline]
    pub(crate) fn sent(&mut self, now: Instant) {
        if self.watching.is_none() && !self.patience.is_zero() {
            self.watching = Some((now, self.next_check(now)));
        }
    }

    /// Time of the next check.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.watching.map(|(_, look)| look)
    }

    /// Time of the next check, rounded so that the checks of many connections share wake-ups.
    fn next_check(&self, now: Instant) -> Instant {
        let step = self.patience / CHECKS;
        clock::round_up(now + step, step)
    }

    /// Looks if it is time to. Returns whether the peer's host is gone.
    pub(crate) fn check(
        &mut self,
        now: Instant,
        look: impl FnOnce() -> io::Result<TcpProgress>,
    ) -> bool {
        let Some((since, due)) = self.watching else {
            return false;
        };
        if now < due {
            return false;
        }
        let Ok(progress) = look() else {
            // A broken socket returns its error when it is used.
            self.watching = None;
            return false;
        };
        let is_idle = progress.unacknowledged == 0 && progress.unsent == 0;
        self.watching = (!is_idle).then(|| (since, self.next_check(now)));
        // Before there was something to deliver, there was nothing to acknowledge.
        let silent = progress.since_acknowledgement.min(now - since);
        // Behind a closed window nothing but probes leaves, ever more seldom.
        let asked = progress.unacknowledged > 0 || progress.probes > PROBES;
        !is_idle && asked && silent >= self.patience
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(4);
    const LOOK: Duration = Duration::from_millis(500);

    fn progress(unacknowledged: u32, unsent: u32, probes: u8, silent: Duration) -> TcpProgress {
        TcpProgress {
            unacknowledged,
            unsent,
            probes,
            since_acknowledgement: silent,
        }
    }

    /// Looks at each deadline until it is over; returns after how long the peer is given up.
    fn lives(state: impl Fn(Duration) -> TcpProgress) -> Option<Duration> {
        let mut liveness = Liveness::new(PATIENCE);
        let began = clock::now();
        liveness.sent(began);
        while let Some(due) = liveness.deadline()
            && due < began + Duration::from_secs(60)
        {
            assert!(!liveness.check(due - Duration::from_nanos(1), || panic!("too early")));
            if liveness.check(due, || Ok(state(due - began))) {
                return Some(due - began);
            }
        }
        None
    }

    #[test]
    fn who_acknowledges_nothing_is_gone() {
        let gone = lives(|time| progress(1, 0, 0, Duration::from_secs(3600) + time));
        let gone = gone.expect("given up");
        assert!(gone >= PATIENCE && gone <= PATIENCE + LOOK, "{gone:?}");
    }

    #[test]
    fn who_does_not_read_is_there() {
        let slow = Duration::from_secs(30);
        assert_eq!(lives(|_| progress(0, 1, 1, slow)), None);
        assert_eq!(lives(|_| progress(9, 1, 0, Duration::from_secs(3))), None);
        assert!(lives(|_| progress(0, 1, 3, slow)).is_some());
    }

    #[test]
    fn it_sleeps_when_there_is_nothing_to_deliver() {
        let mut liveness = Liveness::new(PATIENCE);
        assert_eq!(liveness.deadline(), None);
        let now = clock::now();
        liveness.sent(now);
        let due = liveness.deadline().expect("it watches");
        assert!(due > now && due <= now + 2 * LOOK);
        assert!(!liveness.check(due, || Ok(progress(0, 0, 0, PATIENCE))));
        assert_eq!(liveness.deadline(), None);
        let mut liveness = Liveness::new(Duration::ZERO);
        liveness.sent(now);
        assert_eq!(liveness.deadline(), None);
    }
}
