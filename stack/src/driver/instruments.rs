//! What stands between the sockets of a queue pair and its engine when somebody asked for it: faults made on purpose.

use std::time::Instant;

use super::fault::{Deliver, FaultCounts, Faults};
use crate::Config;
use crate::engine::ud::Arrival;

/// The instruments of one queue pair.
#[derive(Debug)]
pub(crate) struct Instruments {
    faults: Option<Faults>,
}

impl Instruments {
    /// What the settings ask for; the queue pair was made after `order` others.
    pub(crate) fn new(config: &Config, order: u64) -> Option<Box<Self>> {
        let faults = config.fault.as_ref()?;
        Some(Box::new(Self {
            faults: Some(Faults::new(faults, order)),
        }))
    }

    /// Takes what one receive call brought and gives `engine` what arrives because of it.
    pub(super) fn take(
        &mut self,
        now: Instant,
        arrival: Arrival<'_>,
        engine: impl FnMut(Arrival<'_>),
    ) {
        let mut to = Engine { handle: engine };
        match &mut self.faults {
            Some(faults) => faults.take(now, arrival, &mut to),
            None => to.deliver(arrival),
        }
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.faults.as_ref()?.poll_timeout()
    }

    /// Gives `engine` what waited long enough.
    pub(super) fn handle_timeout(&mut self, now: Instant, engine: impl FnMut(Arrival<'_>)) {
        if let Some(faults) = &mut self.faults {
            faults.handle_timeout(now, &mut Engine { handle: engine });
        }
    }

    pub(super) fn fault_counts(&self) -> FaultCounts {
        self.faults
            .as_ref()
            .map_or_else(FaultCounts::default, Faults::counts)
    }
}

/// Where what arrives goes.
struct Engine<F> {
    handle: F,
}

impl<F: FnMut(Arrival<'_>)> Deliver for Engine<F> {
    fn deliver(&mut self, arrival: Arrival<'_>) {
        (self.handle)(arrival);
    }

    fn lose(&mut self, _arrival: Arrival<'_>) {}
}
