//! Messages of one association: those that leave (§6) and those that arrive (§5).

pub(super) mod inbound;
pub(super) mod outbound;
