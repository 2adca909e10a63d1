//! Cases about MPA: startup, CRCs, Markers, FPDUs.

use std::time::Duration;

pub(super) mod calling;
pub(super) mod crc;
pub(super) mod depths;
pub(super) mod enhanced;
pub(super) mod framing;
pub(super) mod initiator;
pub(super) mod rejection;
pub(super) mod said;
pub(super) mod startup;

/// The least time between two pieces of a frame, so that a busy device sees the first alone.
const BETWEEN: Duration = Duration::from_millis(200);
