//! Cases about MPA: startup, CRCs, Markers, FPDUs.

pub(super) mod calling;
pub(super) mod crc;
pub(super) mod depths;
pub(super) mod enhanced;
pub(super) mod framing;
pub(super) mod initiator;
pub(super) mod rejection;
pub(super) mod said;
pub(super) mod startup;
