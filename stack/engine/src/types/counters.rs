//! Counters of a QP.

use std::fmt;

use dgiwarp_rdmap::datagram::DropReason;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters of a queue pair since it was created, or the sums of a device's (`Rnic::counters`).
        #[derive(Debug, Clone, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct QpCounters {
            $($(#[$doc])* pub $name: u64,)*
            dropped: [u64; DropReason::ALL.len()],
        }

        impl Default for QpCounters {
            fn default() -> Self {
                Self {
                    $($name: 0,)*
                    dropped: [0; DropReason::ALL.len()],
                }
            }
        }

        impl QpCounters {
            /// All counters but those of drops, with their names.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }

            /// Adds the counters of another queue pair.
            pub fn add(&mut self, other: &Self) {
                $(self.$name += other.$name;)*
                for (sum, count) in self.dropped.iter_mut().zip(other.dropped) {
                    *sum += count;
                }
            }
        }
    };
}

counters! {
    /// Segments that were handed to the network.
    segments_sent,
    /// Octets of payload in them.
    octets_sent,
    /// Segments received and used.
    segments_received,
    /// Octets of them, headers included.
    octets_received,
    /// Octets of payload that a connected QP copied before they left. Large segments leave without a copy, except those of Read Responses and octets of a
    /// segment that TCP does not take at once.
    octets_staged,
    /// Octets of unfinished FPDUs that a connected QP kept until the rest arrived.
    octets_kept,
    /// Segments on a connection that waited in the RNR queue for a receive.
    parked,
    /// Trains cut anew because the path takes less than before.
    resized,
    /// Messages that the network refused.
    send_errors,
    /// Entries that found the error queue full.
    errors_lost,
    /// Datagrams lost on purpose (`Fault`).
    fault_dropped,
    /// Datagrams that arrived twice on purpose.
    fault_duplicated,
    /// Datagrams set aside on purpose, to be overtaken.
    fault_reordered,
    /// Datagrams of which a bit was flipped on purpose; the CRC finds them, so they are dropped as bad-crc too.
    fault_corrupted,
    /// Datagrams delayed on purpose.
    fault_delayed,
    /// Datagrams lost because too many were delayed.
    fault_overflowed,
    /// Read Requests sent, repeated ones included.
    read_requests_sent,
    /// Read Requests that were repeated for missing octets.
    read_repeats,
    /// Segments sent that answer Read Requests.
    read_responses_sent,
    /// Reads whose deadline passed before they were complete.
    reads_timed_out,
    /// Octets of FPDUs that a connected QP sent through memory that it shares with a peer on this host.
    lane_octets_sent,
    /// Octets of FPDUs that arrived so.
    lane_octets_received,
    /// Octets of FPDUs and datagrams that arrived so, and whose payload went straight from there to the program's memory.
    lane_octets_placed,
    /// Connections within this host that stayed on TCP because the memory of the process for such connections is used up.
    lane_refused_budget,
    /// Connections that did because memory or descriptors are missing, or limits forbid them.
    lane_refused_memory,
    /// Connections that did because the peer cannot be reached by its name, or this end can have none.
    lane_refused_unreachable,
    /// Connections that did because the peer is of another user.
    lane_refused_user,
    /// Connections that did because the peer's offer is wrong, or the peer gave up.
    lane_refused_offer,
    /// Connections that did because no offer came in time.
    lane_refused_late,
    /// Writes and Reads of a connected QP that it did alone, by copying to or from the memory of a peer on this host.
    one_sided_operations,
    /// Octets of them.
    one_sided_octets,
}

/// Counters that are not zero, in one line: `segments_sent 10, octets_sent 640, bad-crc 1`.
impl fmt::Display for QpCounters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let drops = DropReason::ALL.iter();
        let drops = drops.map(|reason| (reason.name(), self.dropped(*reason)));
        let mut any = false;
        for (name, count) in self.iter().chain(drops).filter(|(_, count)| *count > 0) {
            write!(f, "{}{name} {count}", if any { ", " } else { "" })?;
            any = true;
        }
        if any { Ok(()) } else { f.write_str("nothing") }
    }
}

impl QpCounters {
    /// Segments dropped for this reason.
    #[must_use]
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.dropped[reason.index()]
    }

    /// Segments dropped for any reason.
    #[must_use]
    pub fn dropped_in_all(&self) -> u64 {
        DropReason::ALL
            .iter()
            .filter(|reason| {
                // Octets that these count were placed.
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

    /// Counts segments that were sent, and octets of them.
    #[inline]
    pub fn count_sent(&mut self, segments: usize, octets: u64) {
        self.segments_sent += segments as u64;
        self.octets_sent += octets;
    }

    /// Counts a segment that was received.
    #[inline]
    pub fn count_received(&mut self, octets: usize) {
        self.segments_received += 1;
        self.octets_received += octets as u64;
    }

    /// Counts a segment that waits in the RNR queue.
    pub fn count_parked(&mut self) {
        self.parked += 1;
    }

    /// Counts a segment that was dropped.
    pub fn count_drop(&mut self, reason: DropReason) {
        self.dropped[reason.index()] += 1;
    }

    /// Counts a train that is cut anew.
    pub fn count_resized(&mut self) {
        self.resized += 1;
    }

    /// Counts a message that the network refused.
    pub fn count_send_error(&mut self) {
        self.send_errors += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_add_up_and_are_shown() {
        let mut sum = QpCounters::default();
        assert_eq!(sum.to_string(), "nothing");
        let mut one = QpCounters::default();
        one.count_sent(2, 100);
        one.count_drop(DropReason::BadCrc);
        sum.add(&one);
        sum.add(&one);
        assert_eq!((sum.segments_sent, sum.octets_sent), (4, 200));
        assert_eq!(sum.dropped(DropReason::BadCrc), 2);
        assert_eq!(
            sum.to_string(),
            "segments_sent 4, octets_sent 200, bad-crc 2"
        );
        assert_eq!(sum.iter().next(), Some(("segments_sent", 4)));
    }
}
