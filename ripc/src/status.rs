//! Status of a call.

use std::fmt;

/// Code of a status; the meanings are gRPC's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Code {
    /// Success.
    Ok,
    /// The caller cancelled the call.
    Cancelled,
    /// None of the others.
    Unknown,
    /// The request is wrong, whatever the state of the service.
    InvalidArgument,
    /// The time of the call was over. It may have been executed.
    DeadlineExceeded,
    /// There is no such thing, or no such service is known.
    NotFound,
    /// There is such a thing already.
    AlreadyExists,
    /// The caller may not do it.
    PermissionDenied,
    /// No room: for the call, a payload, or a peer.
    ResourceExhausted,
    /// The service is not in a state for it.
    FailedPrecondition,
    /// The call was executed, and its reply is lost.
    Aborted,
    /// Beyond the end of something.
    OutOfRange,
    /// The endpoint has no such service or method, or not this version of the protocol.
    Unimplemented,
    /// The service failed.
    Internal,
    /// The connection was lost or could not be made. A call that had been sent may have been executed.
    Unavailable,
    /// Data is lost or damaged.
    DataLoss,
    /// The caller did not prove its identity.
    Unauthenticated,
}

const CODES: [(Code, &str); 17] = [
    (Code::Ok, "ok"),
    (Code::Cancelled, "cancelled"),
    (Code::Unknown, "unknown"),
    (Code::InvalidArgument, "invalid argument"),
    (Code::DeadlineExceeded, "deadline exceeded"),
    (Code::NotFound, "not found"),
    (Code::AlreadyExists, "already exists"),
    (Code::PermissionDenied, "permission denied"),
    (Code::ResourceExhausted, "resource exhausted"),
    (Code::FailedPrecondition, "failed precondition"),
    (Code::Aborted, "aborted"),
    (Code::OutOfRange, "out of range"),
    (Code::Unimplemented, "unimplemented"),
    (Code::Internal, "internal"),
    (Code::Unavailable, "unavailable"),
    (Code::DataLoss, "data loss"),
    (Code::Unauthenticated, "unauthenticated"),
];

impl Code {
    /// Number on the wire.
    #[must_use]
    pub fn number(self) -> u16 {
        let at = CODES.iter().position(|(code, _)| *code == self);
        at.and_then(|at| u16::try_from(at).ok()).unwrap_or(2)
    }

    pub(crate) fn of_wire(number: u16) -> Self {
        let found = CODES.get(usize::from(number));
        found.map_or(Self::Unknown, |(code, _)| *code)
    }
}

/// The words of gRPC's name.
impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = CODES.iter().find(|(code, _)| code == self);
        f.write_str(found.map_or("unknown", |(_, words)| words))
    }
}

/// Why a call failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {text}")]
pub struct Status {
    /// Its code.
    pub code: Code,
    /// A text for people.
    pub text: String,
}

impl Status {
    /// A status with a text for people.
    #[must_use]
    pub fn new(code: Code, text: impl Into<String>) -> Self {
        let text = text.into();
        Self { code, text }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_grpc() {
        for (number, code) in [
            (0, Code::Ok),
            (4, Code::DeadlineExceeded),
            (14, Code::Unavailable),
        ] {
            assert_eq!((code.number(), Code::of_wire(number)), (number, code));
        }
        assert_eq!(Code::of_wire(17), Code::Unknown);
        let status = Status::new(Code::NotFound, "no key");
        assert_eq!(status.to_string(), "not found: no key");
    }
}
