//! The stack's errors as errno values, as rdma-core's man pages have them.

use dgiwarp::{Error, PostError};
use nix::errno::Errno;

/// Why an object could not be made.
pub(crate) fn of_create(error: &Error) -> Errno {
    Errno::from_raw(error.errno())
}

/// Why a work request was not accepted.
pub(crate) fn of_post(error: PostError) -> Errno {
    match error {
        // ibv_post_send(3), ibv_post_recv(3): the queue is full.
        PostError::QueueFull => Errno::ENOMEM,
        PostError::TooManySges
        | PostError::TooLong
        | PostError::SharedReceiveQueue
        | PostError::AddressFamily
        | PostError::Group
        | PostError::State => Errno::EINVAL,
        // The stack may learn new reasons before this table does.
        _ => Errno::EINVAL,
    }
}
