//! Messages beside the connection's beginning and end: those of a QP that is taken out of service before its connection is up, and those that another connection's end follows.

use std::net::IpAddr;

use crate::driver::cm::event_connections::Events;
use crate::driver::device::clock;
use crate::driver::reactor::member::NextReceive;
use crate::driver::tcp::qp::{From, RcShared};

impl RcShared {
    /// Whether work requests wait for the connection to come up, or for its first FPDUs.
    pub(crate) fn is_coming_up(&self) -> bool {
        let coming = self.try_run(|inner| {
            let Some(link) = &mut inner.link else {
                return !inner.given_up && !inner.waiting.is_empty() && !inner.sq_drain.holds();
            };
            let engine = &link.engine;
            let unsent = engine.has_unsent(clock::now()) && !link.pipe.is_blocked();
            let waits =
                engine.end().is_none() && !link.paused && (unsent || engine.awaits_first_fpdus());
            if waits {
                self.receive_once(inner, NextReceive::Unknown, From::All);
            }
            waits
        });
        // Another thread has it.
        coming.unwrap_or(true)
    }

    /// Receives, and returns whether completions of it were not taken, or the connection is still coming up.
    pub(crate) fn has_untaken(&self) -> bool {
        let coming = self.run(|inner| {
            let Some(link) = &mut inner.link else {
                return self.is_claimed() && !inner.given_up;
            };
            self.receive_last(link);
            self.work(inner);
            false
        });
        coming || self.has_success()
    }

    /// Has the disconnect event come behind messages that the peer's host has sent to other QPs.
    pub(crate) fn follow(&self, follows: fn(IpAddr) -> bool) {
        self.run(|inner| inner.follows = Some(follows));
    }
}

impl Events for RcShared {
    fn disconnect(&self) {
        Self::disconnect(self);
    }
}
