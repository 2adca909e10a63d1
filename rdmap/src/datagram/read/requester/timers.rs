//! Deadlines, probes and timeouts.

use std::hash::Hash;
use std::time::{Duration, Instant};

use super::target::Lost;
use super::{ReadEnd, ReadSink, Requester};
use crate::datagram::{Associations, HandshakeId};

use super::target::ReadKey;

/// Largest factor of the exponential back-off of timeouts, as a power of two.
const MAX_BACK_OFF: u32 = 3;
/// Back-off goes on up to this time.
const LONG: Duration = Duration::from_millis(160);
/// Timeouts without a response after which the cookie is dropped: the target may have restarted with another key.
const COOKIE_REPEATS: u32 = 2;
/// Silence after which it is.
const COOKIE_SILENCE: Duration = Duration::from_millis(100);

/// Time to wait after fruitless timeouts.
fn back_off(timeout: Duration, fruitless: u32) -> Duration {
    let most = LONG.max(timeout * (1 << MAX_BACK_OFF));
    timeout.saturating_mul(1 << fruitless.min(16)).min(most)
}

impl<K: Copy + Eq + Hash, V: Copy + Eq, R> Requester<K, V, R> {
    /// Ends Reads whose deadline has passed, and repeats requests without a response in time. Due when the timer of the associations is.
    pub fn handle_timeout(
        &mut self,
        now: Instant,
        sink: &mut impl ReadSink<R>,
        associations: &mut Associations<K, V>,
    ) {
        for slot in 0..self.reads.capacity() {
            let Some(read) = self.reads.get(slot) else {
                continue;
            };
            let (deadline, sink_stag) = (read.deadline, read.sink_stag);
            let key = ReadKey { slot, sink_stag };
            if deadline <= now {
                let errno = associations.handshake(read.target).errno;
                self.finish(key, ReadEnd::TimedOut(errno), sink, associations);
            } else {
                associations.wake_by(deadline);
            }
        }
        for target in 0..self.targets.len() {
            if !self.targets[target].asks.is_empty() {
                self.check_target(now, HandshakeId(target), associations);
            }
        }
    }

    /// When a target with requests is to be probed, or its requests time out.
    pub(super) fn due(
        &self,
        id: HandshakeId,
        associations: &Associations<K, V>,
    ) -> Option<Instant> {
        let target = &self.targets[id.0];
        let since = target.owes_since()?;
        let rtt = &associations.handshake(id).rtt;
        let wait = match rtt.probe_timeout() {
            Some(probe) if target.probed.is_none() && target.fruitless == 0 => probe,
            Some(_) | None => back_off(rtt.timeout(), target.fruitless),
        };
        Some(since + wait)
    }

    fn check_target(
        &mut self,
        now: Instant,
        id: HandshakeId,
        associations: &mut Associations<K, V>,
    ) {
        let Some(due) = self.due(id, associations) else {
            return;
        };
        if due > now {
            return associations.wake_by(due);
        }
        let has_samples = associations.handshake(id).rtt.probe_timeout().is_some();
        let target = &self.targets[id.0];
        if has_samples && target.probed.is_none() && target.fruitless == 0 {
            self.probe(now, id, associations);
        } else {
            self.time_out(now, id, associations);
        }
    }

    /// Requests the last missing octets of the last request alone: the response is evidence for the rest.
    fn probe(&mut self, now: Instant, id: HandshakeId, associations: &mut Associations<K, V>) {
        let target = &mut self.targets[id.0];
        target.probed = Some(now);
        let last = target.asks.last().copied();
        let has_cookie = associations.handshake(id).cookie.is_some();
        if let Some(ask) = last
            && let Some(read) = self.read(ask.key)
            && (has_cookie || read.length <= self.max_unvalidated)
            && let Some(&(start, end)) =
                super::chunk::gaps(&read.map, ask.front, ask.end, usize::MAX).last()
        {
            let start = start.max(end - (end - start).min(read.segment));
            self.send_probe(
                now,
                id,
                Lost {
                    key: ask.key,
                    start,
                    end,
                },
                associations,
            );
        }
        if let Some(due) = self.due(id, associations) {
            associations.wake_by(due);
        }
    }

    /// All requests of a target count as lost.
    fn time_out(&mut self, now: Instant, id: HandshakeId, associations: &mut Associations<K, V>) {
        let target = &mut self.targets[id.0];
        for index in 0..target.asks.len() {
            let end = target.asks[index].end;
            target.lose(index, end);
        }
        target.asks.clear();
        target.probed = None;
        target.fruitless += 1;
        let silent_since = target.last_arrival;
        let silent =
            silent_since.is_none_or(|at| now.saturating_duration_since(at) >= COOKIE_SILENCE);
        let handshake = associations.handshake_mut(id);
        if target.fruitless > COOKIE_REPEATS && silent && handshake.cookie.is_some() {
            handshake.cookie = None;
        }
        self.window.timed_out();
        // Short Reads need no cookie, but the target sends Terminates only to validated addresses.
        associations.validate(now, id);
        self.places_freed(id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_double_to_eight_times_or_160_ms() {
        let millis = Duration::from_millis;
        let waits = |timeout| [0, 1, 3, 4, 7, 8, 100].map(|times| back_off(timeout, times));
        let short = [1, 2, 8, 16, 128, 160, 160].map(millis);
        assert_eq!(waits(millis(1)), short);
        let long = [50, 100, 400, 400, 400, 400, 400].map(millis);
        assert_eq!(waits(millis(50)), long);
    }
}
