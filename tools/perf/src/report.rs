//! Results as rows, and the forms they are reported in.

pub(crate) mod html;
pub(crate) mod json;
pub(crate) mod table;

use serde::Serialize;

use crate::catalog::{Mode, Op, Subject, Transport};
use crate::machine::host::Host;
use crate::stats::float;

/// One line of results. Fields that mean nothing for a row are `None`, null in JSON.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Row {
    /// The carrier of the messages.
    pub(crate) transport: Transport,
    /// The operation on them.
    pub(crate) op: Op,
    /// The measurement.
    pub(crate) mode: Mode,
    /// Payload bytes per message; in idle mode, connections.
    pub(crate) size: u64,
    /// Messages over all rounds.
    pub(crate) iters: u64,
    /// Smallest half round trip, in µs.
    pub(crate) min_us: Option<f64>,
    /// Median half round trip, in µs.
    pub(crate) p50_us: Option<f64>,
    /// 99th percentile, in µs.
    pub(crate) p99_us: Option<f64>,
    /// 99.9th percentile, in µs, with at least 10,000 samples.
    pub(crate) p999_us: Option<f64>,
    /// Goodput at the receiver, in 1e9 bits of payload per second.
    pub(crate) gbps: Option<f64>,
    /// Messages posted in one call, if they are posted in lists.
    pub(crate) list: Option<u32>,
    /// Million messages per second.
    pub(crate) mmsg_s: Option<f64>,
    /// The share of payload (streams) or pings (latency) that did not arrive.
    pub(crate) loss: Option<f64>,
    /// The share of bytes marked valid, where there are validity maps.
    pub(crate) valid_fraction: Option<f64>,
    /// Gaps in validity maps.
    pub(crate) holes: Option<u64>,
    /// The share of datagrams that the receiver dropped on purpose, as asked for.
    pub(crate) loss_rate: Option<f64>,
    /// Segments sent in a run with loss.
    pub(crate) segments: Option<u64>,
    /// Of these, dropped on purpose.
    pub(crate) segments_dropped: Option<u64>,
    /// Of these, dropped by the receiver for reasons of its own.
    pub(crate) segments_refused: Option<u64>,
    /// Of these, arrived, and marked valid where there are validity maps.
    pub(crate) segments_valid: Option<u64>,
    /// The share of messages that arrived completely.
    pub(crate) complete_fraction: Option<f64>,
    /// Gaps in validity maps per message sent. A message of which nothing arrived has no map.
    pub(crate) holes_per_message: Option<f64>,
    /// Receivers of one sender, in fan-out mode; goodput, rate and loss are sums and means over them.
    pub(crate) receivers: Option<u32>,
    /// The share of payload that each of them missed.
    pub(crate) receiver_loss: Option<Vec<f64>>,
    /// Memory of the process for each end of an idle connection, in KiB, of the side that needs more.
    pub(crate) user_kib: Option<f64>,
    /// Memory of the kernel for it, in KiB, as far as the whole kernel's grew.
    pub(crate) kernel_kib: Option<f64>,
    /// The raw row this one is compared with.
    pub(crate) baseline: Option<String>,
    /// Median of the baseline's rounds, in the mode's unit.
    pub(crate) baseline_value: Option<f64>,
    /// Median over the rounds of this row's figure over the baseline's.
    pub(crate) ratio: Option<f64>,
    /// Lower quartile of the same.
    pub(crate) ratio_q25: Option<f64>,
    /// Upper quartile of the same.
    pub(crate) ratio_q75: Option<f64>,
    /// CPU seconds of both sides per GiB of payload.
    pub(crate) cpu_s_per_gib: Option<f64>,
}

impl Row {
    /// A row without results.
    pub(crate) fn new(subject: Subject, mode: Mode, size: u64) -> Self {
        Self {
            transport: subject.transport,
            op: subject.op,
            mode,
            size,
            ..Self::default()
        }
    }

    /// The share of segments dropped on purpose, as counted.
    pub(crate) fn dropped_fraction(&self) -> Option<f64> {
        let (dropped, segments) = (self.segments_dropped?, self.segments?);
        Some(float(dropped) / float(segments.max(1)))
    }

    /// Lower quartile, median and upper quartile of the ratio.
    pub(crate) fn ratios(&self) -> Option<[f64; 3]> {
        Some([self.ratio_q25?, self.ratio?, self.ratio_q75?])
    }

    /// The transport with its operation.
    pub(crate) const fn subject(&self) -> Subject {
        Subject::new(self.transport, self.op)
    }
}

/// The results of a run.
#[derive(Clone, Debug)]
pub(crate) struct Report {
    /// The machine.
    pub(crate) host: Host,
    /// The results, in the order measured.
    pub(crate) rows: Vec<Row>,
    /// Conditions that the reader of the rows needs.
    pub(crate) notes: Vec<String>,
}

/// A message size as people write it: 64, 4K, 1M.
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [(u64, char); 3] = [(1 << 30, 'G'), (1 << 20, 'M'), (1 << 10, 'K')];
    for (unit, letter) in UNITS {
        if bytes >= unit && bytes.is_multiple_of(unit) {
            return format!("{}{letter}", bytes / unit);
        }
    }
    bytes.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_short_where_that_is_exact() {
        assert_eq!(size(1), "1");
        assert_eq!(size(1024), "1K");
        assert_eq!(size(1500), "1500");
        assert_eq!(size(1 << 20), "1M");
        assert_eq!(size(3 << 30), "3G");
    }
}
