//! Asynchronous events.

/// Event of an object of the device (`ibv_get_async_event(3)`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AsyncEvent {
    /// The error queue of a QP, which was empty, has an entry: see `UdQp::poll_error`.
    ErrorQueue {
        /// The QP.
        qpn: u32,
    },
    /// A Write-Record found every record slot of a QP in use; its octets were placed and not recorded. Not raised again until a slot
    /// was free.
    RecordRingFull {
        /// The QP.
        qpn: u32,
    },
    /// A shared receive queue holds fewer receives than its limit, which is disarmed now.
    SrqLimit {
        /// `id` of the queue.
        srq: u64,
    },
    /// A completion found its queue full and was lost; the queue takes no more. Its queue pairs end, each with
    /// [`QpFatal`](Self::QpFatal); others do not suffer.
    CqOverrun {
        /// `Cq::id` of the queue.
        cq: u64,
    },
    /// The peer of a connected QP named local memory without the right for its access; the connection is over.
    QpAccessError {
        /// The QP.
        qpn: u32,
    },
    /// The peer of a connected QP violated the protocol; the connection is over.
    QpRequestError {
        /// The QP.
        qpn: u32,
    },
    /// A connection ended by an error of the lower layer, or completions of a QP of any transport were lost.
    QpFatal {
        /// The QP.
        qpn: u32,
    },
    /// A QP that takes its receives from a shared queue is in error and takes no more of them.
    LastWqeReached {
        /// The QP.
        qpn: u32,
    },
    /// A message of the peer's came to a connected QP that was [not ready to send](crate::connected::RcEngine::await_first_message).
    CommunicationEstablished {
        /// The QP.
        qpn: u32,
    },
    /// A send queue that was to be [drained](crate::sq_drain::SqDrain), with notice, has no work request under way.
    SqDrained {
        /// The QP.
        qpn: u32,
    },
    /// The device cannot be used any more.
    DeviceFatal,
    /// The host has addresses again. This and the next three are raised by the program that watches the network (`Rnic::watch_network`), as the C library does.
    PortActive,
    /// The host has no address any more.
    PortError,
    /// The port's LID, which is made from the host's first IPv4 address, is another one.
    LidChange,
    /// An address came to the host or went.
    GidChange,
}

impl AsyncEvent {
    /// Whether the event belongs to a QP.
    pub fn is_about(self, number: u32) -> bool {
        match self {
            Self::ErrorQueue { qpn }
            | Self::RecordRingFull { qpn }
            | Self::QpAccessError { qpn }
            | Self::QpRequestError { qpn }
            | Self::QpFatal { qpn }
            | Self::LastWqeReached { qpn }
            | Self::CommunicationEstablished { qpn }
            | Self::SqDrained { qpn } => qpn == number,
            Self::SrqLimit { .. }
            | Self::CqOverrun { .. }
            | Self::DeviceFatal
            | Self::PortActive
            | Self::PortError
            | Self::LidChange
            | Self::GidChange => false,
        }
    }

    /// Whether the event reports a state that others may have replaced: the latest of each kind counts.
    pub fn is_state(self) -> bool {
        matches!(self, Self::PortActive | Self::PortError)
    }
}
