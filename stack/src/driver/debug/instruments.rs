//! Optional stages between the sockets of a queue pair and its engine: faults made on purpose, and a
//! capture file.

use std::net::SocketAddr;
use std::time::Instant;

use crate::driver::debug::fault::{Deliver, Faults, Loss};
use crate::driver::debug::tap::{Fate, Tap};
use crate::{Config, QpCounters};
use dgiwarp_engine::datagram::Arrival;

/// The instruments of one queue pair.
#[derive(Debug)]
pub(crate) struct Instruments {
    faults: Option<Faults>,
    tap: Option<Tap>,
}

impl Instruments {
    /// Instruments as the settings have them; the queue pair is bound to `local` and was made after `order` others.
    pub(crate) fn new(config: &Config, local: SocketAddr, order: u64) -> Option<Box<Self>> {
        let this = Self {
            faults: config.fault.map(|fault| Faults::new(&fault, order)),
            tap: config
                .pcap
                .as_ref()
                .and_then(|path| Tap::open(path, local, config.group_port)),
        };
        (this.faults.is_some() || this.tap.is_some()).then(|| Box::new(this))
    }

    /// Faults alone, for sockets that share a capture file.
    pub(crate) fn faults_only(config: &Config, order: u64) -> Option<Box<Self>> {
        let faults = Some(Faults::new(&config.fault?, order));
        Some(Box::new(Self { faults, tap: None }))
    }

    /// Takes what one receive call brought and gives `engine` the datagrams that arrive because of it, one at a time; `engine` returns the drop
    /// reason, or their fate.
    pub(crate) fn take<R: Into<Fate>>(
        &mut self,
        now: Instant,
        arrival: Arrival<'_>,
        engine: impl FnMut(Arrival<'_>) -> R,
    ) {
        let Self { faults, tap } = self;
        let mut to = Engine {
            handle: engine,
            tap: tap.as_mut(),
        };
        match faults {
            Some(faults) => faults.take(now, arrival, &mut to),
            None => arrival.each().for_each(|one| to.deliver(one)),
        }
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.faults.as_ref()?.poll_timeout()
    }

    /// Gives `engine` what waited long enough.
    pub(crate) fn handle_timeout<R: Into<Fate>>(
        &mut self,
        now: Instant,
        engine: impl FnMut(Arrival<'_>) -> R,
    ) {
        if let Some(faults) = &mut self.faults {
            let mut to = Engine {
                handle: engine,
                tap: self.tap.as_mut(),
            };
            faults.handle_timeout(now, &mut to);
        }
    }

    /// Forgets datagrams that wait.
    pub(crate) fn forget(&mut self) {
        if let Some(faults) = &mut self.faults {
            faults.forget();
        }
    }

    /// The capture file, if there is one.
    pub(crate) fn tap(&mut self) -> Option<&mut Tap> {
        self.tap.as_mut()
    }

    /// Issues the warning that had to wait while registered memory was held.
    pub(crate) fn warn_of_failure(&mut self) {
        if let Some(tap) = &mut self.tap {
            tap.warn_of_failure();
        }
    }

    /// Puts the counts of faults, if there are instruments, into `counters`.
    pub(crate) fn count(instruments: Option<&Self>, counters: &mut QpCounters) {
        if let Some(this) = instruments {
            let counts = this.faults.as_ref().map(Faults::counts);
            counts.unwrap_or_default().add_to(counters);
        }
    }
}

/// Where what arrives goes, and who writes it down.
struct Engine<'a, F> {
    handle: F,
    tap: Option<&'a mut Tap>,
}

impl<R: Into<Fate>, F: FnMut(Arrival<'_>) -> R> Deliver for Engine<'_, F> {
    fn deliver(&mut self, arrival: Arrival<'_>) {
        let fate = (self.handle)(arrival).into();
        if let Some(tap) = &mut self.tap {
            tap.received(arrival, fate);
        }
    }

    fn lose(&mut self, arrival: Arrival<'_>, loss: Loss) {
        if let Some(tap) = &mut self.tap {
            tap.received(arrival, Fate::Lost(loss));
        }
    }
}
