//! errno values of errors, as rdma-core's man pages list them.

use dgiwarp::{Error, PostError, PostFailure};
use nix::errno::Errno;
use std::io;

/// errno value of an operation on the device or its objects.
pub(crate) fn of(error: Error) -> Errno {
    Errno::from_raw(error.errno())
}

/// errno value of a refused work request.
pub(crate) fn of_post(error: PostError) -> Errno {
    match error {
        // ibv_post_send(3), ibv_post_recv(3): the queue is full.
        PostError::QueueFull | PostError::NoMemory => Errno::ENOMEM,
        _ => Errno::EINVAL,
    }
}

/// errno value of a refused list of work requests.
pub(crate) fn of_post_failure(failure: PostFailure) -> Errno {
    of_post(failure.source)
}

/// Number of accepted work requests of a list, and the errno value of the next one's refusal.
pub(crate) fn of_refusal(failure: PostFailure) -> (usize, Errno) {
    (failure.accepted, of_post(failure.source))
}

/// errno value of an I/O error.
pub(crate) fn of_io(error: &io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}
