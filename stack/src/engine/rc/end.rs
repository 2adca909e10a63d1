//! Why a connection is over, and what that means for what was posted.

use dgiwarp_llp_tcp_mpa::Error as MpaError;
use dgiwarp_rdmap::stream::StreamError;
use dgiwarp_rdmap::wire::Cause;

use crate::WcStatus;
use crate::engine::mr::BindError;

/// Why a connection is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RcEnd {
    /// The peer closed between two messages.
    #[error("the peer closed the connection")]
    PeerClosed,
    /// The peer's queue pair, which this one was paired with, is gone or in error.
    #[error("the peer's queue pair is gone")]
    PeerLeft,
    /// The peer of a paired queue pair closed the connection without a word.
    #[error("the peer ended without closing its queue pair")]
    PeerLost,
    /// This side closed.
    #[error("the connection was closed here")]
    Closed,
    /// MPA failed: a bad CRC, a lost connection.
    #[error(transparent)]
    Mpa(MpaError),
    /// The peer violated DDP or RDMAP, or terminated.
    #[error(transparent)]
    Stream(StreamError),
    /// A posted work request named memory that is not registered, or not with the right it needs.
    #[error("a posted work request names memory that is not registered")]
    LocalProtection,
    /// A window could not be bound, a region not be registered, or a key not be invalidated.
    #[error("a work request on memory failed: {0}")]
    Bind(BindError),
    /// A Read or atomic was posted on a connection that was agreed on without any (an ORD of zero).
    #[error("the connection allows no RDMA Reads and no atomics")]
    NoReads,
    /// A Send with immediate was posted before it was known that the peer takes none: it is not dgiwarp.
    #[error("the peer takes no Sends with immediate")]
    NoImmediates,
}

/// What an end does to the work request that the peer was at: the one that its Terminate names, or else the oldest.
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
    }
}

/// What a Terminate of the peer's says about a work request of ours (RFC 5040 §4.8, RFC 5041 §7.2).
fn terminated(cause: Cause) -> WcStatus {
    match (cause.layer, cause.error_type, cause.code) {
        // The buffer that we named: RDMAP's protection errors, DDP's of tagged buffers.
        (0 | 1, 1, _) => WcStatus::RemoteAccess,
        // No buffer for a Send.
        (1, 2, 0x02) => WcStatus::RnrRetryExceeded,
        // Its other errors are about what we sent, as are an opcode or version that it does not take.
        (1, 2, _) | (0, 2, 0x05 | 0x06) => WcStatus::RemoteInvalidRequest,
        (_, _, _) => WcStatus::RemoteOperation,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
