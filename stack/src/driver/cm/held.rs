//! Connections whose MPA startup is over at the Initiator and that wait for its program before they send anything (`rdma_establish(3)`).
//!
//! InfiniBand's Initiator answers the Reply with a message of its own when the program says so, and the Responder's program learns of the
//! establishment then. Here the first FPDU stands for that message.

use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use dgiwarp_llp_tcp_mpa::{Established, Event};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use crate::driver::cm::rd_carrier::Caller;
use crate::driver::device::clock;
use crate::driver::tcp::mpa_startup::Outcome;

/// Longest wait for a program that has received the Reply: below the five seconds in which a Responder expects the first FPDU.
const LONGEST: Duration = Duration::from_secs(2);

/// A connection that waits.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) caller: Caller,
    pub(crate) peer: SocketAddr,
    pub(crate) outcome: Outcome,
    until: Instant,
}

/// The attempts that are to be held, by the numbers that the program gave them, with their connections.
#[derive(Debug, Default)]
pub(crate) struct HeldConnections {
    attempts: Mutex<FxHashMap<u64, Option<Held>>>,
}

impl HeldConnections {
    /// Holds the connection that the attempt leads to.
    pub(crate) fn hold(&self, context: u64) {
        self.attempts.lock().insert(context, None);
    }

    /// The establishment that an attempt led to, if the connection is to be held; it is [put](Self::put) here next. Whatever else it led to is not held.
    pub(crate) fn wants(&self, context: u64, outcome: &Outcome) -> Option<Established> {
        let mut attempts = self.attempts.lock();
        attempts.get(&context)?;
        match outcome {
            Outcome::Mpa {
                event: Event::Established(established),
                ..
            } => Some(established.clone()),
            Outcome::Mpa { .. } | Outcome::Failed(_) => {
                attempts.remove(&context);
                None
            }
        }
    }

    /// Holds a connection.
    pub(crate) fn put(&self, caller: Caller, peer: SocketAddr, outcome: Outcome) {
        let held = Held {
            caller,
            peer,
            outcome,
            until: clock::now() + LONGEST,
        };
        self.attempts.lock().insert(held.caller.context, Some(held));
    }

    /// Takes the connection of an attempt out, which is not to be held any more.
    pub(crate) fn release(&self, context: u64) -> Option<Held> {
        self.attempts.lock().remove(&context).flatten()
    }

    /// Takes out a connection that has waited long enough.
    pub(crate) fn take_due(&self) -> Option<Held> {
        let mut attempts = self.attempts.lock();
        let now = clock::now();
        let is_due = |held: &Option<Held>| held.as_ref().is_some_and(|held| held.until <= now);
        let (context, _) = attempts.iter().find(|(_, held)| is_due(held))?;
        let context = *context;
        attempts.remove(&context).flatten()
    }

    /// When [`take_due`](Self::take_due) returns a connection.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let attempts = self.attempts.lock();
        attempts.values().flatten().map(|held| held.until).min()
    }

    /// Local address of a connection that waits.
    pub(crate) fn local_addr(&self, context: u64) -> Option<SocketAddr> {
        let attempts = self.attempts.lock();
        let stream: &TcpStream = match &attempts.get(&context)?.as_ref()?.outcome {
            Outcome::Mpa { stream, .. } => stream,
            Outcome::Failed(_) => return None,
        };
        stream.local_addr().ok()
    }
}
