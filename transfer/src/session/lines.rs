//! Carriers of a session's streams.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use nix::poll::PollFlags;

use crate::carrier::{Arrival, Carrier, CarrierError, Wake};
use crate::engine::{Outgoing, SourceEngine, Streams};

/// One carrier.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) carrier: Carrier,
    /// Local slots whose octets have not left.
    locals: Vec<u16>,
    /// Frames that came before it was here.
    pub(super) early: Vec<Arrival>,
}

/// All carriers, by the number of their stream.
#[derive(Debug, Default)]
pub(super) struct Lines {
    lines: BTreeMap<u16, Line>,
}

impl Lines {
    pub(super) fn add(&mut self, number: u16, carrier: Carrier, early: Vec<Arrival>) {
        let line = Line {
            carrier,
            locals: Vec::new(),
            early,
        };
        self.lines.insert(number, line);
    }

    /// Closes a carrier; returns the local slots that it had.
    pub(super) fn remove(&mut self, number: u16) -> Vec<u16> {
        self.lines
            .remove(&number)
            .map_or_else(Vec::new, |it| it.locals)
    }

    pub(super) fn get_mut(&mut self, number: u16) -> Option<&mut Line> {
        self.lines.get_mut(&number)
    }

    /// The first carrier.
    pub(super) fn first_mut(&mut self) -> Option<&mut Line> {
        self.lines.values_mut().next()
    }

    /// Receives what is there on one. Bounded work.
    pub(super) fn poll(
        &mut self,
        number: u16,
        arrivals: &mut Vec<Arrival>,
    ) -> Result<(), CarrierError> {
        let Some(line) = self.lines.get_mut(&number) else {
            return Ok(());
        };
        arrivals.append(&mut line.early);
        let polled = line.carrier.poll(arrivals);
        for arrival in arrivals.iter() {
            if let Arrival::Sent(local) = arrival
                && let Some(at) = line.locals.iter().position(|it| it == local)
            {
                line.locals.swap_remove(at);
            }
        }
        polled
    }

    /// Sends what may leave: blocks of a source in turns over all streams, so that each has some. Returns the streams that failed.
    pub(super) fn transmit(
        &mut self,
        streams: &mut Streams,
        mut source: Option<&mut SourceEngine>,
        now: Duration,
    ) -> Vec<(u16, CarrierError)> {
        let mut failed = Vec::new();
        loop {
            let mut any = false;
            for (&number, line) in &mut self.lines {
                if !line.carrier.has_room() || failed.iter().any(|(it, _)| *it == number) {
                    continue;
                }
                let block = || source.as_mut().and_then(|it| it.poll_block());
                let Some((taken, outgoing)) = streams.poll_transmit(number, now, block) else {
                    continue;
                };
                if let Outgoing::Block { local, .. } = &outgoing {
                    line.locals.push(*local);
                }
                match line.carrier.send(taken, &outgoing) {
                    Ok(()) => any = true,
                    Err(error) => failed.push((number, error)),
                }
            }
            if !any {
                return failed;
            }
        }
    }

    pub(super) fn is_drained(&self) -> bool {
        self.lines.values().all(|it| it.carrier.is_drained())
    }

    /// Waits for something to come on any, room, or the waker. Returns the streams that failed.
    pub(super) fn wait(
        &mut self,
        wake: &Wake,
        timeout: Duration,
    ) -> Result<Vec<(u16, CarrierError)>, CarrierError> {
        let mut failed = Vec::new();
        let mut idle = true;
        for (&number, line) in &mut self.lines {
            match line.carrier.prepare() {
                Ok(is_idle) => idle &= is_idle,
                Err(error) => failed.push((number, error)),
            }
        }
        if idle && failed.is_empty() {
            let carriers = self.lines.values().map(|it| it.carrier.waited());
            let fds: Vec<(BorrowedFd<'_>, PollFlags)> = carriers.collect();
            wake.sleep_on(&fds, timeout)?;
        }
        for line in self.lines.values_mut() {
            line.carrier.end_wait();
        }
        Ok(failed)
    }
}
