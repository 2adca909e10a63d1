//! Options of an identifier.

/// Values of `rdma_set_option(3)`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Options {
    pub(crate) tos: Option<u8>,
    pub(crate) af_only: bool,
    /// Time-out that queue pairs report, 4.096 us times two to this power. TCP has timers of its own.
    pub(crate) ack_timeout: Option<u8>,
}

impl Options {
    /// The time-out that a queue pair reports, by default about 67 ms.
    pub(crate) fn timeout(&self) -> u8 {
        self.ack_timeout.unwrap_or(14)
    }
}
