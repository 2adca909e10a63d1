//! Attributes of datagram queue pairs that verbs do not have.

use dgiwarp::RecordCompletions;
use std::net::SocketAddr;
use std::time::Duration;

/// Record slots by default, where records are enabled.
pub(crate) const RECORD_SLOTS: usize = 256;
/// Segment slots by default.
pub(crate) const SEGMENT_SLOTS: usize = 1024;
/// Reorder window by default, in message numbers.
pub(crate) const REORDER_WINDOW: u32 = 64;

/// Attributes of a reliable datagram queue pair alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReliableAttr {
    /// Silence of a peer after which messages to it fail; `None` is the default.
    pub(crate) unreachable: Option<Duration>,
}

/// Attributes of a datagram queue pair, reliable or not, that only `dgiwarpdv_create_qp` sets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DatagramAttr {
    pub(crate) bind: Option<SocketAddr>,
    pub(crate) record_slots: usize,
    pub(crate) record_completions: RecordCompletions,
    pub(crate) segment_slots: usize,
    pub(crate) record_timeout: Option<Duration>,
    pub(crate) reorder_window: u32,
    pub(crate) read_timeout: Option<Duration>,
    pub(crate) max_rate: u64,
    /// It is a reliable one.
    pub(crate) reliable: Option<ReliableAttr>,
}

impl Default for DatagramAttr {
    fn default() -> Self {
        Self {
            bind: None,
            record_slots: 0,
            record_completions: RecordCompletions::PerMessage,
            segment_slots: SEGMENT_SLOTS,
            record_timeout: None,
            reorder_window: REORDER_WINDOW,
            read_timeout: None,
            max_rate: 0,
            reliable: None,
        }
    }
}
