//! Peers that are in doubt: ICMP reported that nobody has the port that a datagram was sent to (§4.6).

use std::time::{Duration, Instant};

use super::Association;
use crate::rd::config::RdConfig;
use crate::rd::envelope::Envelope;

/// Silence after which a peer in doubt is lost.
const DOUBT: Duration = Duration::from_millis(250);
/// Probe timeouts that a doubt has at least.
const PROBES: u32 = 3;
/// Shortest time between two probes of a peer in doubt.
pub(super) const PROBE_INTERVAL: Duration = Duration::from_millis(25);
/// Latest packet numbers that an error may quote.
const RECENT: u64 = 1024;

impl Association {
    /// Takes note of an ICMP error about a datagram that was sent to the peer's address, of which `quoted` is the envelope. Returns whether a probe has to leave.
    pub(in crate::rd) fn doubt(
        &mut self,
        config: &RdConfig,
        now: Instant,
        quoted: &Envelope,
    ) -> bool {
        let next = self.recovery.next();
        // A peer that was never heard of may be about to begin.
        let is_of_peer = self.peer_id == Some(quoted.association) && config.epoch == quoted.epoch;
        let is_recent = quoted.number < next && next - quoted.number <= RECENT;
        if !is_of_peer || !is_recent || self.doubted.is_some() {
            return false;
        }
        self.backoff = 0;
        let least = self.pto(config) * PROBES;
        self.doubted = Some(now + DOUBT.max(least).min(config.unreachable));
        self.probes = 1;
        true
    }
}
