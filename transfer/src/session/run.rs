//! The loop of a session.

mod join;
mod side;

use std::sync::Arc;
use std::time::{Duration, Instant};

use side::Side;

use super::jobs::{read, write};
use super::joins::Joins;
use super::lines::Lines;
use super::workers::Workers;
use super::{Connection, Control, Error, Options, Sink, Source, Summary};
use crate::carrier::{Arrival, CarrierError, Pool, RECEIVES};
use crate::engine::{
    Event, LimitMeter, Link, MAX_STREAMS, MIN_RECEIVES, Outgoing, SinkDone, SinkEngine, SinkJob,
    SourceEngine, Streams, Tuner, Violation, Waits,
};
use crate::hash::MIN_BLOCK;
use crate::protection::BlockProtection;
use crate::wire::{Abort, Frame, Hello, Offering, Reason, Role, Window};

/// Longest block.
const MAX_BLOCK: u32 = 64 << 20;
/// Time that an ABORT has to leave, and a source to close after the end.
const LINGER: Duration = Duration::from_secs(4);
/// Time between two reports of the limits.
const REPORT: Duration = Duration::from_secs(1);

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
    let means = Means {
        packs: source.packer().is_some(),
        attributes: options.attributes && source.has_attributes(),
    };
    let ordered = connection.is_ordered();
    let mut session = Session::begin(connection, (Role::Source, means), options, control)?;
    let Agreed {
        block,
        packs,
        deltas,
        attributes,
        protection,
    } = session.handshake(options, means)?;
    let pool = Pool::new(block, options.slots, protection)?;
    session.attach(&pool)?;
    let mut engine = SourceEngine::new(block, options.slots, packs);
    if ordered {
        engine = engine.ordered();
    }
    if options.prune {
        engine = engine.pruning();
    }
    if deltas {
        engine = engine.with_deltas();
    }
    if attributes {
        source.keep_attributes();
        engine = engine.with_attributes();
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
    let means = Means {
        packs: sink.unpacker().is_some(),
        attributes: options.attributes && sink.has_attributes(),
    };
    let ordered = connection.is_ordered();
    let mut session = Session::begin(connection, (Role::Sink, means), options, control)?;
    let Agreed {
        block,
        packs,
        deltas,
        attributes,
        protection,
    } = session.handshake(options, means)?;
    let pool = session.create_pool((block, options.slots), protection)?;
    let window = session.attach(&pool)?;
    let mut engine = SinkEngine::new(block, window, packs);
    if ordered {
        engine = engine.ordered();
    }
    if options.prune {
        engine = engine.pruning();
    }
    if deltas {
        engine = engine.with_deltas();
    }
    if attributes {
        engine = engine.with_attributes();
    }
    let engine = Box::new(engine);
    let remarks = Arc::clone(&sink);
    let work =
        Arc::new(move |job, scratch: &mut Vec<u8>| write(&*sink, &pool, block, job, scratch));
    let waker = control.wake.waker();
    let workers = Workers::start(options.threads, &waker, &work)?;
    let mut side = Side::Sink {
        engine,
        workers,
        sink: remarks,
    };
    let done = session.run(&mut side, on_event);
    if let Side::Sink {
        engine,
        mut workers,
        ..
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

/// Means of an end's source or sink.
#[derive(Clone, Copy)]
struct Means {
    packs: bool,
    attributes: bool,
}

/// Means that both ends have.
struct Agreed {
    /// Length of blocks.
    block: u32,
    packs: bool,
    deltas: bool,
    attributes: bool,
    /// Keys of blocks, where they are encrypted.
    protection: Option<Arc<BlockProtection>>,
}

struct Session<'a> {
    lines: Lines,
    streams: Streams,
    joins: Joins,
    /// Further streams that the peer takes.
    offering: Option<Offering>,
    /// Connections that were dialled for further streams.
    dialled: usize,
    /// The search for their number, where it is not given.
    tuner: Option<Tuner>,
    control: &'a Control,
    began: Instant,
    meter: LimitMeter,
    /// Time of the last event with the limits.
    reported: Duration,
    hello: Option<Hello>,
    /// Keys of blocks, where frames are protected.
    protection: Option<Arc<BlockProtection>>,
    /// Memory of blocks, once the session has it.
    pool: Option<Pool>,
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
        (role, means): (Role, Means),
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
        if options.encrypt && connection.blocks.is_none() {
            return Err(Error::Option("encryption without a secret"));
        }
        let mut streams = Streams::new(Duration::ZERO, RECEIVES);
        for taken in &connection.taken {
            streams.handle_input(0, Duration::ZERO, *taken)?;
        }
        let several = !matches!(connection.joins, Joins::None);
        let hello = Hello {
            role,
            packs: means.packs,
            streams: several,
            joins: false,
            deltas: options.deltas,
            encrypts: options.encrypt,
            attributes: means.attributes,
            receives: RECEIVES,
            block,
            token: options.token,
        };
        streams.push_own(0, Frame::Hello(hello));
        if let Joins::Taken { key, .. } = &connection.joins
            && connection.hello.is_some_and(|it| it.streams)
        {
            let offering = Offering {
                streams: u16::try_from(MAX_STREAMS - 1).unwrap_or(0),
                key: *key,
            };
            streams.push_own(0, Frame::Streams(offering));
        }
        for request in connection.request {
            streams.push_own(0, Frame::Request(request));
        }
        let mut lines = Lines::default();
        lines.add(0, connection.carrier, connection.arrivals);
        Ok(Self {
            lines,
            streams,
            joins: connection.joins,
            offering: None,
            dialled: 0,
            tuner: None,
            control,
            began: Instant::now(),
            meter: LimitMeter::new(Duration::ZERO),
            reported: Duration::ZERO,
            hello: connection.hello,
            protection: connection.blocks,
            pool: None,
            role,
            summary: Summary::default(),
        })
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// Exchanges HELLOs.
    fn handshake(&mut self, options: &Options, means: Means) -> Result<Agreed, Error> {
        let done = self.await_hello();
        let agreed = done.and_then(|hello| {
            self.streams.greet(0, hello.receives)?;
            if hello.role == self.role {
                return Err(Violation::Role.into());
            }
            if !hello.block.is_power_of_two() || !(MIN_BLOCK..=MAX_BLOCK).contains(&hello.block) {
                return Err(Violation::BlockLength(hello.block).into());
            }
            let encrypts = options.encrypt || hello.encrypts;
            Ok(Agreed {
                block: hello.block.min(options.block),
                packs: means.packs && hello.packs,
                attributes: means.attributes && hello.attributes,
                deltas: options.deltas && hello.deltas,
                protection: self.protection.clone().filter(|_| encrypts),
            })
        });
        agreed.map_err(|error| self.tell(error))
    }

    /// Memory for blocks of the peer's.
    fn create_pool(
        &mut self,
        sizes: (u32, u16),
        protection: Option<Arc<BlockProtection>>,
    ) -> Result<Pool, Error> {
        let line = self.lines.first_mut();
        let line = line.ok_or_else(|| CarrierError::Lost("no connection".into()))?;
        Ok(line.carrier.create_pool(sizes, protection)?)
    }

    /// Gives the first carrier the memory of blocks; returns its window.
    fn attach(&mut self, pool: &Pool) -> Result<Window, Error> {
        self.pool = Some(pool.clone());
        let line = self.lines.first_mut();
        let line = line.ok_or_else(|| CarrierError::Lost("no connection".into()))?;
        Ok(line.carrier.attach(pool)?)
    }

    fn await_hello(&mut self) -> Result<Hello, Error> {
        let mut arrivals = Vec::new();
        loop {
            self.transmit(None)?;
            if let Some(hello) = self.hello {
                return Ok(hello);
            }
            if arrivals.is_empty() {
                self.lines.poll(0, &mut arrivals)?;
            }
            if arrivals.is_empty() {
                if let Some((_, error)) = self.wait()?.pop() {
                    return Err(error.into());
                }
                continue;
            }
            // Frames behind the HELLO stay for the loop.
            let arrival = arrivals.remove(0);
            let now = self.now();
            match arrival {
                Arrival::Frame(taken, frame) => {
                    self.streams.handle_input(0, now, taken)?;
                    match frame {
                        Frame::Hello(hello) => self.hello = Some(hello),
                        Frame::Abort(abort) => return Err(ended(abort)),
                        other => return Err(Violation::Unexpected(other.kind()).into()),
                    }
                }
                Arrival::Sent(_) | Arrival::Some => {}
            }
            if self.hello.is_some()
                && let Some(line) = self.lines.get_mut(0)
            {
                line.early.append(&mut arrivals);
            }
        }
    }

    /// Sends what may leave. A stream that fails is left.
    fn transmit(&mut self, side: Option<&mut Side>) -> Result<(), Error> {
        let now = self.now();
        let mut source = match side {
            Some(Side::Source { engine, .. }) => Some(&mut **engine),
            _ => None,
        };
        let failed = self
            .lines
            .transmit(&mut self.streams, source.as_deref_mut(), now);
        self.leave_all(failed, source)
    }

    fn leave_all(
        &mut self,
        failed: Vec<(u16, CarrierError)>,
        mut source: Option<&mut SourceEngine>,
    ) -> Result<(), Error> {
        for (number, error) in failed {
            self.leave(number, error.into(), source.as_deref_mut())?;
        }
        Ok(())
    }

    /// A stream is gone; the session ends with the error if it was the last.
    fn leave(
        &mut self,
        number: u16,
        error: Error,
        source: Option<&mut SourceEngine>,
    ) -> Result<(), Error> {
        if !self.streams.leave(number) {
            return Err(error);
        }
        let locals = self.lines.remove(number);
        if let Some(engine) = source {
            locals.into_iter().for_each(|it| engine.handle_sent(it));
        }
        Ok(())
    }

    fn wait(&mut self) -> Result<Vec<(u16, CarrierError)>, Error> {
        if self.control.is_cancelled() {
            return Err(Error::Cancelled);
        }
        let now = self.now();
        let mut end = self.streams.poll_timeout(now);
        if let Some(tuner) = &self.tuner {
            end = end.min(tuner.poll_timeout());
        }
        let timeout = end.saturating_sub(now);
        if self.streams.silent(now).is_some() && self.streams.numbers().len() < 2 {
            return Err(Error::Silent);
        }
        Ok(self.lines.wait(&self.control.wake, timeout)?)
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
        let abort = Outgoing::Frame(Frame::Abort(Abort { reason, text }));
        let until = self.now() + LINGER;
        // A block that is half sent comes first. Frames that are queued do not matter any more, but `taken` does not go back.
        let mut arrivals = Vec::new();
        let (began, wake) = (self.began, &self.control.wake);
        let Some(number) = self.streams.numbers().first().copied() else {
            return error;
        };
        let taken = self.streams.link(number).map_or(0, Link::taken);
        let Some(line) = self.lines.get_mut(number) else {
            return error;
        };
        while !line.carrier.has_room() {
            let left = until.saturating_sub(began.elapsed());
            let polled = line.carrier.poll(&mut arrivals);
            if left.is_zero() || polled.is_err() || line.carrier.wait(wake, left).is_err() {
                return error;
            }
        }
        if line.carrier.send(taken, &abort).is_ok() {
            self.linger(until);
        }
        error
    }

    /// Goes on until the peer closes, or the time is over.
    fn linger(&mut self, until: Duration) {
        let (began, wake) = (self.began, &self.control.wake);
        let Some(line) = self.lines.first_mut() else {
            return;
        };
        loop {
            let now = began.elapsed();
            let mut arrivals = Vec::new();
            if now >= until || line.carrier.poll(&mut arrivals).is_err() {
                return;
            }
            let left = until.saturating_sub(now);
            if arrivals.is_empty() && line.carrier.wait(wake, left).is_err() {
                return;
            }
        }
    }

    fn run(&mut self, side: &mut Side, on_event: &mut dyn FnMut(&Event)) -> Result<Summary, Error> {
        let done = self.turns(side, on_event);
        self.summary.waits = self.waits(side);
        self.summary.mapped = self.pool.as_ref().map_or(0, Pool::mapped);
        match done {
            Ok(()) => Ok(self.summary),
            // All files are finished, and the source may close as soon as it has the FINISH.
            Err(Error::Carrier(CarrierError::Lost(_))) if side.is_finished() => Ok(self.summary),
            Err(error) => Err(self.tell(error)),
        }
    }

    fn turns(&mut self, side: &mut Side, on_event: &mut dyn FnMut(&Event)) -> Result<(), Error> {
        let mut arrivals = Vec::new();
        loop {
            let mut moved = false;
            for number in self.streams.numbers() {
                let polled = self.lines.poll(number, &mut arrivals);
                moved |= !arrivals.is_empty();
                self.deliver(number, &mut arrivals, side)?;
                if side.is_finished() && self.role == Role::Source {
                    break;
                }
                if let Err(error) = polled {
                    self.report(side, on_event);
                    self.leave(number, error.into(), side.source())?;
                    moved = true;
                }
            }
            let open = u64::try_from(self.streams.numbers().len()).unwrap_or(0);
            self.summary.streams = self.summary.streams.max(open);
            moved |= side.take_results()?;
            while let (Some(engine), Some(block)) = (side.source(), self.streams.poll_lost()) {
                engine.handle_lost(&block);
            }
            side.submit();
            side.push_to(&mut self.streams);
            self.join(side)?;
            self.transmit(Some(side))?;
            // Blocks that left may have been the last of their files.
            side.submit();
            self.report(side, on_event);
            self.measure(side, on_event);
            // The sink's FINISH is the last frame that matters: its connection may be gone already.
            if side.is_finished() && self.role == Role::Source {
                return Ok(());
            }
            if side.is_finished() && self.streams.is_idle() && self.lines.is_drained() {
                self.linger(self.now() + LINGER);
                return Ok(());
            }
            if self.control.is_cancelled() {
                return Err(Error::Cancelled);
            }
            if !moved {
                let failed = self.wait()?;
                self.leave_all(failed, side.source())?;
                if let Some(number) = self.streams.silent(self.now()) {
                    self.leave(number, Error::Silent, side.source())?;
                }
            }
        }
    }

    /// Adds time to the limit that held until now, and reports all of it once a second.
    fn measure(&mut self, side: &Side, on_event: &mut dyn FnMut(&Event)) {
        let now = self.now();
        self.meter.note(now, side.limit(&self.streams));
        if now >= self.reported + REPORT {
            self.reported = now;
            on_event(&Event::Limited(self.waits(side)));
        }
    }

    fn waits(&self, side: &Side) -> Waits {
        let (busy, running) = side.usage();
        self.meter.waits(busy, running)
    }

    fn deliver(
        &mut self,
        number: u16,
        arrivals: &mut Vec<Arrival>,
        side: &mut Side,
    ) -> Result<(), Error> {
        let now = self.now();
        for arrival in arrivals.drain(..) {
            match arrival {
                Arrival::Frame(taken, frame) => {
                    self.streams.handle_input(number, now, taken)?;
                    self.take(number, frame, side)?;
                }
                Arrival::Sent(slot) => {
                    if let Side::Source { engine, .. } = side {
                        engine.handle_sent(slot);
                    }
                }
                Arrival::Some => self.streams.heard(number, now),
            }
        }
        Ok(())
    }

    fn take(&mut self, number: u16, frame: Frame, side: &mut Side) -> Result<(), Error> {
        match (frame, side) {
            (Frame::Abort(abort), _) => return Err(ended(abort)),
            (Frame::Streams(offering), _) if self.offering.is_none() => {
                self.offering = Some(offering);
            }
            (Frame::Hello(hello), _) if number > 0 && hello.joins => {
                self.streams.greet(number, hello.receives)?;
            }
            (Frame::Left(left), side) => {
                let locals = self.lines.remove(left.stream);
                if let Some(engine) = side.source() {
                    locals.into_iter().for_each(|it| engine.handle_sent(it));
                }
                self.streams.handle_left(left)?;
            }
            (Frame::Window(window), Side::Source { engine, .. }) => {
                if number == 0 {
                    let pool = self.pool.as_ref();
                    let octets = pool.map_or(0, |it| it.octets(it.block_length()));
                    if (window.slot_length as usize) < octets {
                        return Err(Violation::Window(window.slot_length).into());
                    }
                    engine.handle_frame(Frame::Window(window))?;
                }
                let like = |first: Window| {
                    (first.slots, first.slot_length) == (window.slots, window.slot_length)
                };
                if !engine.window().is_some_and(like) {
                    return Err(Violation::Window(window.slot_length).into());
                }
                if let Some(line) = self.lines.get_mut(number) {
                    line.carrier.set_window(window);
                }
                self.streams.set_open(number);
            }
            (frame, Side::Source { engine, .. }) => engine.handle_frame(frame)?,
            (frame, Side::Sink { engine, .. }) => engine.handle_frame(frame)?,
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
                Event::Copied { octets, .. } => summary.copied += octets,
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
                Event::Offered { .. } | Event::Remark { .. } | Event::Limited(_) => {}
            }
            on_event(&event);
        }
    }
}

fn ended(abort: Abort) -> Error {
    let Abort { reason, text } = abort;
    Error::Ended { reason, text }
}
