//! SIGINT and SIGTERM as a flag: whoever waits for a child process looks at it and ends the child in order.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};

/// Remembers the last SIGINT or SIGTERM that this process received.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<AtomicUsize>);

impl Interrupt {
    /// A flag that no signal sets, for callers that leave signals alone (tests).
    #[must_use]
    pub fn never() -> Self {
        Self::default()
    }

    /// Registers the flag for SIGINT and SIGTERM of this process; their default action no longer happens.
    ///
    /// # Errors
    /// What `sigaction` returns.
    pub fn install() -> io::Result<Self> {
        let flag = Self::default();
        for signal in [SIGINT, SIGTERM] {
            let number = usize::try_from(signal).map_err(io::Error::other)?;
            signal_hook::flag::register_usize(signal, Arc::clone(&flag.0), number)?;
        }
        Ok(flag)
    }

    /// The number of the signal that came, if one did.
    #[must_use]
    pub fn caught(&self) -> Option<i32> {
        match self.0.load(Ordering::Relaxed) {
            0 => None,
            number => i32::try_from(number).ok(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_is_remembered() {
        let flag = Interrupt::install().unwrap();
        assert_eq!(flag.caught(), None);
        signal_hook::low_level::raise(SIGTERM).unwrap();
        assert_eq!(flag.caught(), Some(SIGTERM));
        assert_eq!(Interrupt::never().caught(), None);
    }
}
