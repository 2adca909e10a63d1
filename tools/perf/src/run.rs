//! The runner of every measurement: the members of a [`Group`] take turns, round by round (A B A B).
//!
//! [`group`] describes a measurement, [`figures`] are its results. Single measurements ([`crate::single`]), the
//! suite ([`crate::suite`]) and the latencies of other programs ([`crate::programs`]) differ in the groups that they
//! describe and in the reports that they make.

pub(crate) mod figures;
pub(crate) mod group;
pub(crate) mod progress;
pub(crate) mod scale;

use std::collections::HashMap;
use std::net::{Ipv4Addr, UdpSocket};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::catalog::{Mode, Transport};
use crate::cli::PinPair;
use crate::endpoint::pattern::{narrow, widen};
use crate::error::{IoContext, PerfError, Result};
use crate::machine::clock;
use crate::machine::host::{Cpus, Side, Wait, choose_wait};
use crate::machine::interrupt::Interrupt;
use crate::programs::{perftest, threads};
use crate::run::figures::{Figures, Series};
use crate::run::group::{Group, Kind, Member};
use crate::run::scale::{Scale, Stage};
use crate::session::client::{At, Opened, Round, Session};
use crate::session::control::EndpointSpec;
use crate::stats;

/// Margin of a median of ratios, as a share of it, within which a group is measured for long enough.
pub(crate) const SETTLED: f64 = 0.01;

/// Rounds that every group gets if it is late itself; if the whole run is, it gets one.
const MIN_ROUNDS: u32 = 3;

/// Bounds of the time of a group.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Limits {
    /// No repetition ends later, and no round begins later but the first few.
    pub(crate) deadline: Option<Instant>,
    /// Less time is left than the rest of the run was planned to take.
    pub(crate) behind: bool,
}

/// The outcome of a group: its rounds, and the error that ended it early.
#[derive(Debug)]
pub(crate) struct Measured {
    /// One for each member, in their order.
    pub(crate) series: Vec<Series>,
    /// Conditions that the reader of the figures needs.
    pub(crate) notes: Vec<String>,
    /// The error that ended the group early.
    pub(crate) result: Result<()>,
}

/// Resources of all groups of a run.
#[derive(Debug)]
pub(crate) struct Bench {
    /// Connections to servers.
    pub(crate) session: Session,
    /// CPUs of both sides.
    pub(crate) cpus: Cpus,
    /// CPUs of client and server, when both are pinned.
    pub(crate) pinned: Option<(usize, usize)>,
    /// [`Wait::Block`] makes every endpoint sleep.
    pub(crate) wait: Wait,
    /// `dgiwarp-run`, which puts other programs on dgiwarp.
    pub(crate) runner: Option<PathBuf>,
    /// A program that fails leaves its figures empty instead of ending the run.
    pub(crate) lenient: bool,
}

/// One member of the group that runs.
struct Turn<'a> {
    member: &'a Member,
    state: State,
    series: Series,
}

enum State {
    /// An endpoint of the session, and the messages of its next round.
    Endpoint { number: usize, messages: u64 },
    /// Everything that begins anew in each round.
    Program,
    /// Nothing that could run.
    Missing,
}

/// Many peers, for each transport of a group.
type Stages = HashMap<Transport, Stage>;

impl Bench {
    /// Connects to a server and pins both sides.
    pub(crate) fn connect(
        at: At<'_>,
        pins: PinPair,
        wait: Option<Wait>,
        interrupt: Interrupt,
    ) -> Result<Self> {
        let cpus = Cpus::new(pins)?;
        let mut session = Session::new(interrupt);
        let server = session.join(at, pins.server)?;
        let client = cpus.place(Side::Client)?;
        Ok(Self {
            session,
            cpus,
            pinned: client.pinned.zip(server.pinned),
            wait: wait.unwrap_or_else(|| choose_wait(&client, &server)),
            runner: None,
            lenient: false,
        })
    }

    /// Measures one group.
    pub(crate) fn measure(&mut self, group: &Group, limits: Limits) -> Measured {
        let mut notes = Vec::new();
        let mut turns = Vec::new();
        let result = self.run(group, limits, &mut turns, &mut notes);
        Measured {
            series: turns.into_iter().map(|turn| turn.series).collect(),
            notes,
            result,
        }
    }

    fn run<'a>(
        &mut self,
        group: &'a Group,
        limits: Limits,
        turns: &mut Vec<Turn<'a>>,
        notes: &mut Vec<String>,
    ) -> Result<()> {
        self.session.close_all()?;
        for member in &group.members {
            turns.push(self.open(member, group)?);
        }
        // The first round warms caches and finds the messages that fit the time. Programs warm up by themselves.
        for turn in &mut *turns {
            if let State::Endpoint { messages, .. } = turn.state {
                self.endpoint_round(turn, group, messages, limits)?;
            }
        }
        let mut stages = Stages::default();
        let mut least = f64::INFINITY;
        for attempt in 0..=group.repeats {
            let earlier: Vec<Series> = turns.iter_mut().map(Turn::restart).collect();
            let outcome = self.interleave(group, limits, turns, &mut stages);
            let drift = drift(turns);
            if attempt == 0 || (outcome.is_ok() && drift < least) {
                least = drift;
            } else {
                // A repetition that was cut short is worth less than a complete run.
                for (turn, earlier) in turns.iter_mut().zip(earlier) {
                    turn.series = earlier;
                }
            }
            outcome?;
            let in_time = limits
                .deadline
                .is_none_or(|deadline| clock::now() + group.duration() < deadline);
            if least <= stats::MAX_DRIFT || !in_time {
                break;
            }
        }
        notes.extend(conditions(group, turns, least));
        Ok(())
    }

    /// Gives every member its turn in each round.
    fn interleave(
        &mut self,
        group: &Group,
        limits: Limits,
        turns: &mut [Turn<'_>],
        stages: &mut Stages,
    ) -> Result<()> {
        for number in 0..group.rounds + group.more_rounds {
            if number >= group.rounds && (limits.behind || settled(turns)) {
                break;
            }
            // A machine that is much slower than planned for gives fewer rounds, not a longer run.
            let late = limits
                .deadline
                .is_some_and(|deadline| clock::now() > deadline);
            if late && number >= if limits.behind { 1 } else { MIN_ROUNDS } {
                break;
            }
            for turn in &mut *turns {
                self.session.check_interrupt()?;
                match turn.state {
                    State::Missing => {}
                    State::Endpoint { messages, .. } => {
                        let messages = group.messages(number).unwrap_or(messages);
                        let round = self.endpoint_round(turn, group, messages, limits)?;
                        if let Some(spec) = turn.member.spec() {
                            turn.series.push(spec, round);
                        }
                    }
                    State::Program => self.program_round(turn, stages)?,
                }
            }
        }
        Ok(())
    }

    fn open<'a>(&mut self, member: &'a Member, group: &Group) -> Result<Turn<'a>> {
        let missing = match &member.kind {
            Kind::Endpoint {
                spec,
                receivers,
                window,
            } => {
                let servers = narrow(u64::from(*receivers));
                let opened = self.session.open(&self.settled(spec)?, servers, *window)?;
                match opened {
                    Opened::Ready(number) => {
                        let messages = first_guess(spec.mode, spec.size);
                        let messages = messages.min(group.messages(0).unwrap_or(messages));
                        let state = State::Endpoint { number, messages };
                        return Ok(Turn::new(member, state, None));
                    }
                    Opened::TooLargeToPing(granted) => Some(format!(
                        "a ping-pong has no flow control, and the receive buffer is {granted} bytes (limited by \
                         net.core.rmem_max or --rcvbuf)"
                    )),
                }
            }
            Kind::Program { line, .. } => perftest::missing(line, self.runner.as_deref()),
            Kind::Peer { peer, test } => peer.missing(*test),
            Kind::Threads { .. } | Kind::Scale(_) => None,
        };
        let state = match missing {
            Some(_) => State::Missing,
            None => State::Program,
        };
        Ok(Turn::new(member, state, missing))
    }

    /// The description of an endpoint with all that is decided when it opens.
    fn settled(&self, spec: &EndpointSpec) -> Result<EndpointSpec> {
        let mut spec = spec.clone();
        if self.wait == Wait::Block {
            spec.wait = Wait::Block;
        }
        if let Some(group) = &mut spec.group {
            group.port = free_group_port()?;
        }
        Ok(spec)
    }

    fn endpoint_round(
        &mut self,
        turn: &mut Turn<'_>,
        group: &Group,
        now: u64,
        limits: Limits,
    ) -> Result<Round> {
        let (State::Endpoint { number, messages }, Some(spec)) =
            (&mut turn.state, turn.member.spec())
        else {
            return Err(PerfError::Protocol("no such endpoint".to_owned()));
        };
        let round = self.session.round(*number, spec.mode, now)?;
        // A run with a deadline follows a slow machine at once.
        let least = limits.deadline.map_or(*messages / 2, |_| 0);
        *messages = next_messages((*messages, least), group.round_time, &round);
        Ok(round)
    }

    /// One round of a program. In a lenient run, one that failed or hung is not started again.
    fn program_round(&mut self, turn: &mut Turn<'_>, stages: &mut Stages) -> Result<()> {
        let outcome = self.program(&turn.member.kind, stages);
        // Starting processes took this thread elsewhere.
        let _ = self.cpus.place(Side::Client)?;
        match outcome {
            Ok(figures) => turn.series.figures.push(Some(figures)),
            Err(error) if !self.lenient || matches!(error, PerfError::Interrupted) => {
                return Err(error);
            }
            Err(error) => {
                turn.series.missing = Some(error.to_string());
                turn.state = State::Missing;
            }
        }
        Ok(())
    }

    fn program(&self, kind: &Kind, stages: &mut Stages) -> Result<Figures> {
        let interrupt = self.session.interrupt();
        match (kind, &self.runner) {
            (Kind::Scale(scale), _) => self.scale(stages, *scale),
            (Kind::Peer { peer, test }, _) => peer.run(*test, &self.cpus, interrupt),
            (&Kind::Threads { wait, size, iters }, _) => {
                threads::half_round_trip(wait, narrow(size), iters, &self.cpus).map(Figures::time)
            }
            (Kind::Program { line, size, iters }, Some(under)) => {
                let amount = (narrow(*size), *iters);
                perftest::latency(under, line, amount, &self.cpus, interrupt).map(Figures::time)
            }
            (Kind::Program { .. } | Kind::Endpoint { .. }, _) => {
                Err(PerfError::Protocol(format!("{kind:?} is no program")))
            }
        }
    }

    /// A round with many peers, which exist from the first such round of the group on.
    fn scale(&self, stages: &mut Stages, scale: Scale) -> Result<Figures> {
        let transport = scale.transport;
        let mut stage = match stages.remove(&transport) {
            Some(stage) => stage,
            None => Stage::open(transport, scale.all, &self.cpus)?,
        };
        // After an error the two sides may disagree on the next step: a stage that failed is closed.
        let figures = stage.run(scale, self.session.interrupt())?;
        stages.insert(transport, stage);
        Ok(figures)
    }
}

impl<'a> Turn<'a> {
    fn new(member: &'a Member, state: State, missing: Option<String>) -> Self {
        Self {
            member,
            state,
            series: Series::new(&member.key, missing),
        }
    }

    /// Begins an empty series and returns the one before.
    fn restart(&mut self) -> Series {
        let empty = Series::new(&self.member.key, self.series.missing.clone());
        std::mem::replace(&mut self.series, empty)
    }
}

/// A free port of a group address: members that take turns must not receive each other's datagrams.
fn free_group_port() -> Result<u16> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).during("find a free port")?;
    Ok(socket.local_addr().during("find a free port")?.port())
}

/// Whether the medians of all ratios to raw rows are known well enough.
fn settled(turns: &[Turn<'_>]) -> bool {
    turns.iter().all(|turn| {
        let Some(spec) = turn.member.spec() else {
            return true;
        };
        let raw = spec.subject.baseline(spec.mode).and_then(|subject| {
            turns
                .iter()
                .find(|it| it.member.spec().is_some_and(|it| it.subject == subject))
        });
        let Some(raw) = raw else {
            return true;
        };
        let (ours, raw) = (turn.series.values(spec.mode), raw.series.values(spec.mode));
        let ratio = stats::paired_ratio(&ours, &raw);
        ratio.is_none_or(|ratio| ratio.margin() <= SETTLED * ratio.median)
    })
}

/// The largest drift of a raw p50; 1 for streams, whose rate varies by nature.
fn drift(turns: &[Turn<'_>]) -> f64 {
    let drifts = turns.iter().filter_map(|turn| {
        let spec = turn.member.spec()?;
        let raw = spec.mode == Mode::Lat && spec.subject.baseline(spec.mode).is_none();
        raw.then(|| stats::drift(&turn.series.values(spec.mode)))
    });
    drifts.fold(1.0, f64::max)
}

/// Notes on rounds left out and on a machine that was busy.
fn conditions(group: &Group, turns: &[Turn<'_>], drift: f64) -> Vec<String> {
    let mut notes = Vec::new();
    let missing = turns.iter().find_map(|turn| turn.series.missing.as_ref());
    if let Some(reason) = missing {
        notes.push(format!("{} left out over datagrams: {reason}", group.name));
    }
    let rounds = turns.iter().map(|turn| turn.series.figures.len()).max();
    let rounds = rounds.unwrap_or(0);
    if rounds > 0 && widen(rounds) < u64::from(group.rounds) {
        notes.push(format!(
            "{}: only {rounds} of {} rounds, out of time",
            group.name, group.rounds
        ));
    }
    if drift > stats::MAX_DRIFT {
        notes.push(format!(
            "{}: the raw p50 drifted by {drift:.2}x between rounds, the machine was busy",
            group.name
        ));
    }
    notes
}

/// Messages of the warm-up round: few milliseconds in any case.
fn first_guess(mode: Mode, size: u64) -> u64 {
    match mode {
        Mode::Lat if size > 1 << 16 => 20,
        Mode::Lat => 100,
        Mode::Idle => 1,
        Mode::Bw | Mode::Bibw | Mode::Rate | Mode::Loss | Mode::Fanout => {
            ((4 << 20) / size).clamp(8, 2000)
        }
    }
}

/// Messages that fill the time at the speed of the last round: at most 8 times the messages of now, and no fewer than
/// `least`.
fn next_messages((now, least): (u64, u64), time: Duration, round: &Round) -> u64 {
    let wanted = time.as_nanos() * u128::from(round.messages) / u128::from(round.wall_ns.max(1));
    let wanted = u64::try_from(wanted).unwrap_or(u64::MAX);
    wanted
        .clamp(least, now.saturating_mul(8))
        .clamp(8, 10_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_messages_follows_the_speed_within_limits() {
        let round = |messages, wall_ns| Round {
            messages,
            wall_ns,
            ..Round::default()
        };
        let fast = round(10, 1_000_000);
        let time = Duration::from_millis(5);
        assert_eq!(next_messages((10, 5), time, &fast), 50);
        assert_eq!(next_messages((100, 50), time, &fast), 50);
        assert_eq!(next_messages((1000, 500), time, &fast), 500);
        assert_eq!(next_messages((4, 2), time, &fast), 32);
        let stuck = round(10, 3_000_000_000);
        assert_eq!(next_messages((10, 5), time, &stuck), 8);
        assert_eq!(next_messages((100, 50), time, &stuck), 50);
        assert_eq!(next_messages((100, 0), time, &stuck), 8);
    }
}
