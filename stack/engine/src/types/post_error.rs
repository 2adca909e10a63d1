//! Errors of posting.

/// Why a work request was not accepted; nothing of it was queued.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PostError {
    /// The queue holds as many work requests as it was created for.
    #[error("the queue is full")]
    QueueFull,
    /// There is no memory for the work request.
    #[error("there is no memory for the work request")]
    NoMemory,
    /// More scatter/gather elements than the queue was created for.
    #[error("too many scatter/gather elements")]
    TooManySges,
    /// The message is longer than the operation allows, or reaches past the end of the address space.
    #[error("the message is too long")]
    TooLong,
    /// The QP takes its receives from a shared receive queue: post there.
    #[error("the queue pair takes its receives from a shared queue")]
    SharedReceiveQueue,
    /// The destination's address and the QP's socket are not of one kind.
    #[error("the destination cannot be reached from this QP's address")]
    AddressFamily,
    /// The parts of the work request do not fit its operation: inline data with a Read, an atomic of other than 8 octets.
    #[error("the parts of the work request do not fit its operation")]
    Malformed,
    /// Queue pairs of this kind do not have the operation.
    #[error("queue pairs of this kind do not have the operation")]
    Unsupported,
    /// A group cannot be read from.
    #[error("a group cannot be read from")]
    Group,
    /// The peer is a plain one, and takes no Sends with immediate: no RFC has them.
    #[error("the peer takes no Sends with immediate")]
    NoImmediates,
    /// The QP is being destroyed.
    #[error("the queue pair is not able to send")]
    State,
}

/// Not all work requests of a list were accepted (`bad_wr` of `ibv_post_send(3)`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{source} (after {accepted} accepted work requests)")]
pub struct PostFailure {
    /// Work requests that were accepted; they complete as usual.
    pub accepted: usize,
    /// Error of the next one.
    pub source: PostError,
}
