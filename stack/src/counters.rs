//! What a QP counts.

use dgiwarp_rdmap::datagram::DropReason;

use crate::driver::fault::FaultCounts;

/// Counters of a QP since it was made.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct QpCounters {
    /// Segments handed to the network.
    pub segments_sent: u64,
    /// Octets of payload in them.
    pub octets_sent: u64,
    /// Segments received and used.
    pub segments_received: u64,
    /// Octets of them, headers included.
    pub octets_received: u64,
    /// Trains cut anew because the path takes less than before.
    pub resized: u64,
    /// Messages that the network refused.
    pub send_errors: u64,
    /// Entries that found the error queue full.
    pub errors_lost: u64,
    /// Datagrams lost on purpose ([`Fault`](crate::Fault)).
    pub fault_dropped: u64,
    /// Datagrams that arrived twice on purpose.
    pub fault_duplicated: u64,
    /// Datagrams set aside on purpose, to be overtaken.
    pub fault_reordered: u64,
    /// Datagrams of which a bit was flipped on purpose; the CRC finds them, so they are dropped as bad-crc too.
    pub fault_corrupted: u64,
    /// Datagrams delayed on purpose.
    pub fault_delayed: u64,
    /// Datagrams lost because too many were delayed.
    pub fault_overflowed: u64,
    dropped: [u64; DropReason::ALL.len()],
}

impl Default for QpCounters {
    fn default() -> Self {
        Self {
            segments_sent: 0,
            octets_sent: 0,
            segments_received: 0,
            octets_received: 0,
            resized: 0,
            send_errors: 0,
            errors_lost: 0,
            fault_dropped: 0,
            fault_duplicated: 0,
            fault_reordered: 0,
            fault_corrupted: 0,
            fault_delayed: 0,
            fault_overflowed: 0,
            dropped: [0; DropReason::ALL.len()],
        }
    }
}

impl QpCounters {
    /// Segments dropped for this reason.
    #[must_use]
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.dropped[reason.index()]
    }

    /// Segments dropped for whatever reason.
    #[must_use]
    pub fn dropped_in_all(&self) -> u64 {
        DropReason::ALL
            .iter()
            .filter(|reason| {
                // Octets that these count were used.
                !matches!(
                    reason,
                    DropReason::RecordDropped
                        | DropReason::IncompleteWrite
                        | DropReason::SegmentUnreported
                )
            })
            .map(|reason| self.dropped(*reason))
            .sum()
    }

    /// Takes over what was done on purpose.
    pub(crate) fn set_faults(&mut self, counts: FaultCounts) {
        self.fault_dropped = counts.dropped;
        self.fault_duplicated = counts.duplicated;
        self.fault_reordered = counts.reordered;
        self.fault_corrupted = counts.corrupted;
        self.fault_delayed = counts.delayed;
        self.fault_overflowed = counts.overflowed;
    }

    #[inline]
    pub(crate) fn count_sent(&mut self, segments: usize, octets: u64) {
        self.segments_sent += segments as u64;
        self.octets_sent += octets;
    }

    #[inline]
    pub(crate) fn count_received(&mut self, octets: usize) {
        self.segments_received += 1;
        self.octets_received += octets as u64;
    }

    pub(crate) fn count_drop(&mut self, reason: DropReason) {
        self.dropped[reason.index()] += 1;
    }

    pub(crate) fn count_resized(&mut self) {
        self.resized += 1;
    }

    pub(crate) fn count_send_error(&mut self) {
        self.send_errors += 1;
    }
}
