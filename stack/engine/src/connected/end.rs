//! The end of a connection, and its consequences for posted work requests.

use dgiwarp_ddp::error::UntaggedError;
use dgiwarp_llp_tcp_mpa::Error as MpaError;
use dgiwarp_rdmap::stream::StreamError;
use dgiwarp_rdmap::wire::Cause;

use crate::mr::BindError;
use crate::types::{AsyncEvent, WcStatus};

/// Why a connection is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RcEnd {
    /// The peer closed between two messages.
    #[error("the peer closed the connection")]
    PeerClosed,
    /// The peer's queue pair is gone or in error: they were connected out of band, or this one [outlives](crate::types::RcOptions::outlives_peer) it.
    #[error("the peer's queue pair is gone")]
    PeerLeft,
    /// The peer of an out-of-band connection closed it without a bye.
    #[error("the peer ended without closing its queue pair")]
    PeerLost,
    /// This end closed.
    #[error("the connection was closed here")]
    Closed,
    /// MPA failed: a bad CRC, a lost connection.
    #[error(transparent)]
    Mpa(MpaError),
    /// The peer violated DDP or RDMAP, or terminated.
    #[error(transparent)]
    Stream(StreamError),
    /// A posted work request named memory that is not registered, or without the right that it needs.
    #[error("a posted work request names memory that is not registered")]
    LocalProtection,
    /// A window could not be bound, a region not be registered, or a key not be invalidated.
    #[error("a work request on memory failed: {0}")]
    Bind(BindError),
    /// A Read or atomic was posted on a connection that was agreed on without any (an ORD of zero).
    #[error("the connection allows no RDMA Reads and no atomics")]
    NoReads,
    /// A Send with immediate was posted before its peer was detected as a plain one, which takes none.
    #[error("the peer takes no Sends with immediate")]
    NoImmediates,
    /// The peer of an XRC initiator is no XRC target.
    #[error("the peer is no XRC target")]
    NoXrcTarget,
}

impl RcEnd {
    /// Whether completions are to be polled before the disconnect is reported: the peer ended the connection, without an error.
    #[must_use]
    pub const fn comes_behind_completions(self) -> bool {
        match self {
            Self::PeerClosed | Self::PeerLeft | Self::PeerLost | Self::Mpa(_) => true,
            Self::Closed
            | Self::Stream(_)
            | Self::LocalProtection
            | Self::Bind(_)
            | Self::NoReads
            | Self::NoImmediates
            | Self::NoXrcTarget => false,
        }
    }
}

/// Status of the work request that an end is about: the one that a Terminate names, or else the oldest.
pub(super) fn blame(end: RcEnd) -> WcStatus {
    match end {
        RcEnd::PeerClosed | RcEnd::Closed => WcStatus::Flushed,
        RcEnd::PeerLeft | RcEnd::PeerLost => WcStatus::RetryExceeded,
        RcEnd::Mpa(error) => match error {
            MpaError::TcpLost | MpaError::ClosedInFpdu { .. } => WcStatus::RetryExceeded,
            MpaError::StartupFrame(_)
            | MpaError::StartupTimeout(_)
            | MpaError::ClosedInStartup
            | MpaError::Crc { .. }
            | MpaError::Marker { .. }
            | MpaError::InsufficientIrd { .. }
            | MpaError::NoMatchingRtr => WcStatus::Flushed,
        },
        RcEnd::Stream(StreamError::Terminated(cause)) => terminated(cause),
        RcEnd::Stream(_) => WcStatus::Flushed,
        RcEnd::LocalProtection => WcStatus::LocalProtection,
        RcEnd::Bind(_) => WcStatus::MwBind,
        RcEnd::NoReads | RcEnd::NoImmediates => WcStatus::General,
        RcEnd::NoXrcTarget => WcStatus::RemoteInvalidRequest,
    }
}

/// The event of an end whose reason is no work request of this program, as InfiniBand's responders raise it.
pub(super) fn event(end: RcEnd, qpn: u32) -> Option<AsyncEvent> {
    match end {
        RcEnd::PeerClosed
        | RcEnd::PeerLeft
        | RcEnd::PeerLost
        | RcEnd::Closed
        | RcEnd::LocalProtection
        | RcEnd::Bind(_)
        | RcEnd::NoReads
        | RcEnd::NoImmediates
        | RcEnd::NoXrcTarget => None,
        RcEnd::Mpa(error) => match error {
            MpaError::Crc { .. } | MpaError::Marker { .. } => Some(AsyncEvent::QpFatal { qpn }),
            MpaError::TcpLost
            | MpaError::ClosedInFpdu { .. }
            | MpaError::StartupFrame(_)
            | MpaError::StartupTimeout(_)
            | MpaError::ClosedInStartup
            | MpaError::InsufficientIrd { .. }
            | MpaError::NoMatchingRtr => None,
        },
        RcEnd::Stream(error) => match error {
            StreamError::Tagged(_)
            | StreamError::Source(_)
            | StreamError::CannotInvalidate(_)
            | StreamError::Misaligned(_) => Some(AsyncEvent::QpAccessError { qpn }),
            // A completion of this end or of the peer reports these.
            StreamError::Untagged(UntaggedError::NoBuffer | UntaggedError::TooLong)
            | StreamError::LocalProtection
            | StreamError::Terminated(_) => None,
            StreamError::Truncated(_)
            | StreamError::Control(_)
            | StreamError::UnexpectedOpcode(_)
            | StreamError::Length { .. }
            | StreamError::Written { .. }
            | StreamError::Untagged(_)
            | StreamError::AtomicCode(_)
            | StreamError::AtomicIdentifier { .. } => Some(AsyncEvent::QpRequestError { qpn }),
            StreamError::Llp(_) => Some(AsyncEvent::QpFatal { qpn }),
        },
    }
}

/// Status of our work request after a Terminate of the peer (RFC 5040 §4.8, RFC 5041 §7.2).
pub(crate) fn terminated(cause: Cause) -> WcStatus {
    match (cause.layer, cause.error_type, cause.code) {
        // Errors of the buffer that the request named: RDMAP's protection errors, DDP's of tagged buffers.
        (0 | 1, 1, _) => WcStatus::RemoteAccess,
        // No buffer for a Send.
        (1, 2, 0x02) => WcStatus::RnrRetryExceeded,
        // DDP's other errors are about our message, as are RDMAP's of opcode and version.
        (1, 2, _) | (0, 2, 0x05 | 0x06) => WcStatus::RemoteInvalidRequest,
        (_, _, _) => WcStatus::RemoteOperation,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dgiwarp_ddp::error::TaggedError;

    #[test]
    fn ends_without_a_work_request_of_ours_make_an_event() {
        let access = AsyncEvent::QpAccessError { qpn: 5 };
        let request = AsyncEvent::QpRequestError { qpn: 5 };
        let rows = [
            (
                RcEnd::Stream(StreamError::Source(TaggedError::Access)),
                Some(access),
            ),
            (
                RcEnd::Stream(StreamError::Tagged(TaggedError::BaseOrBounds)),
                Some(access),
            ),
            (RcEnd::Stream(StreamError::Truncated(3)), Some(request)),
            (
                RcEnd::Stream(StreamError::Untagged(UntaggedError::MsnRange)),
                Some(request),
            ),
            (
                RcEnd::Stream(StreamError::Untagged(UntaggedError::TooLong)),
                None,
            ),
            (
                RcEnd::Stream(StreamError::Llp(2)),
                Some(AsyncEvent::QpFatal { qpn: 5 }),
            ),
            (RcEnd::Mpa(MpaError::TcpLost), None),
            (RcEnd::PeerClosed, None),
        ];
        for (end, told) in rows {
            assert_eq!(event(end, 5), told, "{end}");
        }
    }

    #[test]
    fn a_terminate_tells_what_became_of_a_work_request() {
        let rows = [
            ((0, 1, 0x02), WcStatus::RemoteAccess),
            ((0, 1, 0x09), WcStatus::RemoteAccess),
            ((1, 1, 0x01), WcStatus::RemoteAccess),
            ((1, 2, 0x02), WcStatus::RnrRetryExceeded),
            ((1, 2, 0x05), WcStatus::RemoteInvalidRequest),
            ((0, 2, 0x06), WcStatus::RemoteInvalidRequest),
            ((0, 2, 0x07), WcStatus::RemoteOperation),
            ((0, 0, 0x00), WcStatus::RemoteOperation),
            ((2, 0, 0x02), WcStatus::RemoteOperation),
        ];
        for ((layer, error_type, code), status) in rows {
            let cause = Cause {
                layer,
                error_type,
                code,
            };
            let end = RcEnd::Stream(StreamError::Terminated(cause));
            assert_eq!(blame(end), status, "{cause}");
        }
        assert_eq!(
            blame(RcEnd::Mpa(MpaError::TcpLost)),
            WcStatus::RetryExceeded
        );
        assert_eq!(blame(RcEnd::PeerClosed), WcStatus::Flushed);
    }
}
