//! The loop of a session.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::jobs::{read, write};
use super::workers::Workers;
use super::{Connection, Control, Error, Options, Sink, Source, Summary};
use crate::carrier::{Arrival, Carrier, CarrierError, Pool, RECEIVES};
use crate::engine::{
    Event, Link, Outgoing, SinkDone, SinkEngine, SinkJob, SourceDone, SourceEngine, SourceJob,
    Violation,
};
use crate::hash::MIN_BLOCK;
use crate::wire::{Abort, Frame, Hello, Reason, Role};

/// Longest block.
const MAX_BLOCK: u32 = 64 << 20;
/// Time that an ABORT has to leave, and a source to close after the end.
const LINGER: Duration = Duration::from_secs(4);

/// Sends files. Returns when the sink has finished all of them, or with the failure that ended the session; failures of single files are events, and counted.
///
/// # Errors
/// [`Error`].
pub fn send(
    connection: Connection,
    source: Arc<dyn Source>,
    options: &Options,
    control: &Control,
    on_event: &mut dyn FnMut(&Event),
) -> Result<Summary, Error> {
    let packs = source.packer().is_some();
    let ordered = connection.is_ordered();
    let mut session = Session::begin(connection, (Role::Source, packs), options, control)?;
    let (block, packs) = session.handshake(options, packs)?;
    let pool = Pool::new(block, options.slots)?;
    session.carrier.attach(&pool)?;
    let mut engine = SourceEngine::new(block, options.slots, packs);
    if ordered {
        engine = engine.ordered();
    }
    if options.prune {
        engine = engine.pruning();
    }
    let engine = Box::new(engine);
    let work = Arc::new(move |job, scratch: &mut Vec<u8>| read(&*source, &pool, job, scratch));
    let waker = control.wake.waker();
    let workers = Workers::start(options.threads, &waker, &work)?;
    let mut side = Side::Source { engine, workers };
    session.run(&mut side, on_event)
}

/// Receives files. Returns when the source has no further ones and all are finished, or with the failure that ended the session; what is whole of files is kept
/// then.
///
/// # Errors
/// [`Error`].
pub fn receive(
    connection: Connection,
    sink: Arc<dyn Sink>,
    options: &Options,
    control: &Control,
    on_event: &mut dyn FnMut(&Event),
) -> Result<Summary, Error> {
    let packs = sink.unpacker().is_some();
    let ordered = connection.is_ordered();
    let mut session = Session::begin(connection, (Role::Sink, packs), options, control)?;
    let (block, packs) = session.handshake(options, packs)?;
    let pool = Pool::new(block, options.slots)?;
    let window = session.carrier.attach(&pool)?;
    let mut engine = SinkEngine::new(block, window, packs);
    if ordered {
        engine = engine.ordered();
    }
    if options.prune {
        engine = engine.pruning();
    }
    let engine = Box::new(engine);
    let work =
        Arc::new(move |job, scratch: &mut Vec<u8>| write(&*sink, &pool, block, job, scratch));
    let waker = control.wake.waker();
    let workers = Workers::start(options.threads, &waker, &work)?;
    let mut side = Side::Sink { engine, workers };
    let done = session.run(&mut side, on_event);
    if let Side::Sink {
        engine,
        mut workers,
    } = side
    {
        workers.stop();
        for job in engine_leftovers(*engine, &workers) {
            work(job, &mut Vec::new());
        }
    }
    done
}

/// Takes results of the last jobs into account, then gives open files up.
fn engine_leftovers(mut engine: SinkEngine, workers: &Workers<SinkJob, SinkDone>) -> Vec<SinkJob> {
    while let Ok(done) = workers.results.try_recv() {
        // The peer's rules do not matter any more.
        let _ = engine.handle_done(done);
    }
    engine.abandon()
}

enum Side {
    Source {
        engine: Box<SourceEngine>,
        workers: Workers<SourceJob, SourceDone>,
    },
    Sink {
        engine: Box<SinkEngine>,
        workers: Workers<SinkJob, SinkDone>,
    },
}

struct Session<'a> {
    carrier: Carrier,
    link: Link,
    control: &'a Control,
    began: Instant,
    arrivals: Vec<Arrival>,
    hello: Option<Hello>,
    role: Role,
    summary: Summary,
}

impl<'a> Session<'a> {
    #[expect(
        clippy::disallowed_methods,
        reason = "an edge: times of the engine count from here"
    )]
    fn begin(
        connection: Connection,
        (role, packs): (Role, bool),
        options: &Options,
        control: &'a Control,
    ) -> Result<Self, Error> {
        let block = options.block;
        if !block.is_power_of_two() || !(MIN_BLOCK..=MAX_BLOCK).contains(&block) {
            return Err(Error::Option("the block length"));
        }
        if !(2..=4096).contains(&options.slots) {
            return Err(Error::Option("the number of slots"));
        }
        if !(1..=64).contains(&options.threads) {
            return Err(Error::Option("the number of threads"));
        }
        let mut link = Link::new(Duration::ZERO, RECEIVES);
        for taken in &connection.taken {
            link.handle_input(Duration::ZERO, *taken)?;
        }
        link.push(Outgoing::Frame(Frame::Hello(Hello {
            role,
            packs,
            receives: RECEIVES,
            block,
            token: options.token,
        })));
        for request in connection.request {
            link.push(Outgoing::Frame(Frame::Request(request)));
        }
        Ok(Self {
            carrier: connection.carrier,
            link,
            control,
            began: Instant::now(),
            arrivals: connection.arrivals,
            hello: connection.hello,
            role,
            summary: Summary::default(),
        })
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// Exchanges HELLOs; returns the length of blocks, and whether both ends pack.
    fn handshake(&mut self, options: &Options, packs: bool) -> Result<(u32, bool), Error> {
        let done = self.await_hello();
        let block = done.and_then(|hello| {
            self.link.set_window(hello.receives)?;
            if hello.role == self.role {
                return Err(Violation::Role.into());
            }
            if !hello.block.is_power_of_two() || !(MIN_BLOCK..=MAX_BLOCK).contains(&hello.block) {
                return Err(Violation::BlockLength(hello.block).into());
            }
            Ok((hello.block.min(options.block), packs && hello.packs))
        });
        block.map_err(|error| self.tell(error))
    }

    fn await_hello(&mut self) -> Result<Hello, Error> {
        loop {
            self.transmit()?;
            if let Some(hello) = self.hello {
                return Ok(hello);
            }
            self.carrier.poll(&mut self.arrivals)?;
            if self.arrivals.is_empty() {
                self.wait()?;
                continue;
            }
            // Frames behind the HELLO stay for the loop.
            let arrival = self.arrivals.remove(0);
            let now = self.now();
            match arrival {
                Arrival::Frame(taken, frame) => {
                    self.link.handle_input(now, taken)?;
                    match frame {
                        Frame::Hello(hello) => self.hello = Some(hello),
                        Frame::Abort(abort) => return Err(ended(abort)),
                        other => return Err(Violation::Unexpected(other.kind()).into()),
                    }
                }
                Arrival::Sent(_) | Arrival::Some => {}
            }
        }
    }

    fn transmit(&mut self) -> Result<(), CarrierError> {
        while self.carrier.has_room()
            && let Some((taken, outgoing)) = self.link.poll_transmit(self.began.elapsed())
        {
            self.carrier.send(taken, &outgoing)?;
        }
        Ok(())
    }

    fn wait(&mut self) -> Result<(), Error> {
        if self.control.is_cancelled() {
            return Err(Error::Cancelled);
        }
        let now = self.now();
        if self.link.is_silent(now) {
            return Err(Error::Silent);
        }
        let timeout = self.link.poll_timeout(now).saturating_sub(now);
        Ok(self.carrier.wait(&self.control.wake, timeout)?)
    }

    /// Reports an error to the peer, if it is not the peer's own report, and waits a moment until it has left.
    fn tell(&mut self, error: Error) -> Error {
        let (reason, text) = match &error {
            Error::Violation(violation) => (Reason::Violation, violation.to_string()),
            Error::Carrier(error @ (CarrierError::Malformed(_) | CarrierError::Block { .. })) => {
                (Reason::Violation, error.to_string())
            }
            Error::Cancelled => (Reason::Cancelled, "cancelled at the other end".into()),
            Error::System(error) => (Reason::Failure, error.to_string()),
            _ => return error,
        };
        let mut last = Link::new(self.now(), RECEIVES);
        last.push(Outgoing::Frame(Frame::Abort(Abort { reason, text })));
        let until = self.now() + LINGER;
        // A block that is half sent comes first. Frames that are queued do not matter any more, but `taken` does not go back.
        let mut arrivals = Vec::new();
        while !self.carrier.has_room() {
            let left = until.saturating_sub(self.now());
            let polled = self.carrier.poll(&mut arrivals);
            if left.is_zero()
                || polled.is_err()
                || self.carrier.wait(&self.control.wake, left).is_err()
            {
                return error;
            }
        }
        if let Some((_, outgoing)) = last.poll_transmit(self.now())
            && self.carrier.send(self.link.taken(), &outgoing).is_ok()
        {
            self.linger(until);
        }
        error
    }

    /// Goes on until the peer closes, or the time is over.
    fn linger(&mut self, until: Duration) {
        loop {
            let now = self.now();
            let mut arrivals = Vec::new();
            if now >= until || self.carrier.poll(&mut arrivals).is_err() {
                return;
            }
            if arrivals.is_empty()
                && self
                    .carrier
                    .wait(&self.control.wake, until.saturating_sub(now))
                    .is_err()
            {
                return;
            }
        }
    }

    fn run(&mut self, side: &mut Side, on_event: &mut dyn FnMut(&Event)) -> Result<Summary, Error> {
        match self.turns(side, on_event) {
            Ok(()) => Ok(self.summary),
            // All files are finished, and the source may close as soon as it has the FINISH.
            Err(Error::Carrier(CarrierError::Lost(_))) if side.is_finished() => Ok(self.summary),
            Err(error) => Err(self.tell(error)),
        }
    }

    fn turns(&mut self, side: &mut Side, on_event: &mut dyn FnMut(&Event)) -> Result<(), Error> {
        loop {
            let polled = self.carrier.poll(&mut self.arrivals);
            let mut moved = !self.arrivals.is_empty();
            self.deliver(side)?;
            if let Err(error) = polled {
                self.report(side, on_event);
                return Err(error.into());
            }
            moved |= side.take_results()?;
            if let Side::Source { engine, .. } = side
                && let Some(window) = engine.window()
            {
                self.carrier.set_window(window);
            }
            side.submit();
            side.push_to(&mut self.link);
            self.transmit()?;
            self.report(side, on_event);
            // The sink's FINISH is the last frame that matters: its connection may be gone already.
            if side.is_finished() && self.role == Role::Source {
                return Ok(());
            }
            if side.is_finished() && self.link.is_idle() && self.carrier.is_drained() {
                self.linger(self.now() + LINGER);
                return Ok(());
            }
            if self.control.is_cancelled() {
                return Err(Error::Cancelled);
            }
            if !moved {
                self.wait()?;
            }
        }
    }

    fn deliver(&mut self, side: &mut Side) -> Result<(), Error> {
        let now = self.now();
        for arrival in std::mem::take(&mut self.arrivals) {
            match arrival {
                Arrival::Frame(taken, frame) => {
                    self.link.handle_input(now, taken)?;
                    match (frame, &mut *side) {
                        (Frame::Abort(abort), _) => return Err(ended(abort)),
                        (frame, Side::Source { engine, .. }) => engine.handle_frame(frame)?,
                        (frame, Side::Sink { engine, .. }) => engine.handle_frame(frame)?,
                    }
                }
                Arrival::Sent(slot) => {
                    if let Side::Source { engine, .. } = side {
                        engine.handle_sent(slot);
                    }
                }
                Arrival::Some => self.link.heard(now),
            }
        }
        Ok(())
    }

    fn report(&mut self, side: &mut Side, on_event: &mut dyn FnMut(&Event)) {
        while let Some(event) = match side {
            Side::Source { engine, .. } => engine.poll_event(),
            Side::Sink { engine, .. } => engine.poll_event(),
        } {
            let summary = &mut self.summary;
            match &event {
                Event::Placed { octets, .. } => summary.octets += octets,
                Event::Resumed { octets, .. } => summary.resumed += octets,
                Event::Repeated { .. } => summary.repeated += 1,
                Event::Unreadable { .. } => summary.failed += 1,
                Event::Finished { status, .. } => match status {
                    crate::wire::Status::Stored => summary.stored += 1,
                    crate::wire::Status::Present => summary.present += 1,
                    _ => summary.failed += 1,
                },
                Event::Removed { status, .. } if status.is_good() => summary.removed += 1,
                Event::Removed { .. } => summary.failed += 1,
                Event::Offered { .. } => {}
            }
            on_event(&event);
        }
    }
}

impl Side {
    fn take_results(&mut self) -> Result<bool, Violation> {
        let mut any = false;
        match self {
            Self::Source { engine, workers } => {
                while let Ok(done) = workers.results.try_recv() {
                    engine.handle_done(done);
                    any = true;
                }
            }
            Self::Sink { engine, workers } => {
                while let Ok(done) = workers.results.try_recv() {
                    engine.handle_done(done)?;
                    any = true;
                }
            }
        }
        Ok(any)
    }

    fn submit(&mut self) {
        match self {
            Self::Source { engine, workers } => {
                while let Some(job) = engine.poll_job() {
                    workers.submit(job);
                }
            }
            Self::Sink { engine, workers } => {
                while let Some(job) = engine.poll_job() {
                    workers.submit(job);
                }
            }
        }
    }

    fn push_to(&mut self, link: &mut Link) {
        match self {
            Self::Source { engine, .. } => {
                while let Some(outgoing) = engine.poll_transmit() {
                    link.push(outgoing);
                }
            }
            Self::Sink { engine, .. } => {
                while let Some(frame) = engine.poll_transmit() {
                    link.push(Outgoing::Frame(frame));
                }
            }
        }
    }

    fn is_finished(&self) -> bool {
        match self {
            Self::Source { engine, .. } => engine.is_finished(),
            Self::Sink { engine, .. } => engine.is_finished(),
        }
    }
}

fn ended(abort: Abort) -> Error {
    let Abort { reason, text } = abort;
    Error::Ended { reason, text }
}
