//! Failures of a transfer, with the exit status of its program.

use std::fmt;
use std::process::ExitCode;

use dgiwarp_transfer::Error;
use dgiwarp_transfer::wire::Reason;

/// A transfer that failed, wholly or for some entries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failed {
    /// The command line makes no sense.
    Usage(String),
    /// The transfer ended early.
    Session(String),
    /// Some entries failed, each of which was reported.
    Entries(u64),
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(text) | Self::Session(text) => f.write_str(text),
            Self::Entries(count) => write!(f, "{count} entries failed"),
        }
    }
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        let hint = match &error {
            Error::Carrier(_)
            | Error::Silent
            | Error::Cancelled
            | Error::Ended {
                reason: Reason::Cancelled,
                ..
            } => "; the same command goes on from there",
            _ => "",
        };
        Self::Session(format!("{error}{hint}"))
    }
}

impl Failed {
    /// A failure of the system's that concerns the whole transfer.
    #[must_use]
    pub fn of(error: impl fmt::Display) -> Self {
        Self::Session(error.to_string())
    }

    /// Reports a result and yields the exit status: 0, 1, or 2 for a wrong command line.
    #[must_use]
    pub fn exit(program: &str, done: Result<(), Self>) -> ExitCode {
        let Err(failed) = done else {
            return ExitCode::SUCCESS;
        };
        eprintln!("{program}: {failed}");
        let usage = matches!(failed, Self::Usage(_));
        ExitCode::from(if usage { 2 } else { 1 })
    }
}
