//! Ctrl-C as a descriptor: the signal is blocked and read when it suits, so that a run can
//! print what it has.

use std::cell::Cell;

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use crate::error::{IoContext, PerfError, Result};

/// Whether the user asked to stop.
#[derive(Debug)]
pub(crate) struct Interrupt {
    signals: Option<SignalFd>,
    raised: Cell<bool>,
}

impl Interrupt {
    /// Takes SIGINT over, for this thread and all it starts later. Call before other threads.
    pub(crate) fn install() -> Result<Self> {
        let mut set = SigSet::empty();
        set.add(Signal::SIGINT);
        set.thread_block().during("block SIGINT")?;
        let flags = SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC;
        let signals = SignalFd::with_flags(&set, flags).during("open a signal descriptor")?;
        Ok(Self {
            signals: Some(signals),
            raised: Cell::new(false),
        })
    }

    /// Leaves signals alone: SIGINT ends the process as usual.
    pub(crate) const fn none() -> Self {
        Self {
            signals: None,
            raised: Cell::new(false),
        }
    }

    /// Fails with [`PerfError::Interrupted`] once SIGINT has arrived.
    pub(crate) fn check(&self) -> Result<()> {
        if let Some(signals) = &self.signals
            && let Ok(Some(_)) = signals.read_signal()
        {
            self.raised.set(true);
        }
        if self.raised.get() {
            Err(PerfError::Interrupted)
        } else {
            Ok(())
        }
    }
}
