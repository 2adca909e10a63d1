//! The process that runs the groups of one place, started there by the suite: it takes a [`Task`] on standard
//! input and answers with one line for each group.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::time::Duration;

use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};

use crate::catalog::{Mode, Op, Subject, Transport};
use crate::cli::DEFAULT_RECEIVE_BUFFER;
use crate::client::{Opened, Round, Session};
use crate::control::EndpointSpec;
use crate::error::{IoContext, PerfError, Result};
use crate::host::{Pin, Placement, Side, Wait, allowed_cpus, choose_wait};
use crate::interrupt::Interrupt;
use crate::loss::DEFAULT_MTU;
use crate::pattern::narrow;
use crate::programs::{Cpus, perftest};
use crate::run::bytes_per_ns;
use crate::stats;
use crate::suite::peers::{Peer, Test};
use crate::suite::results::{Figures, Recorded, Series};
use crate::suite::runs::{Group, Kind, Member};
use crate::suite::scale::{Scale, Stage};

/// What a part is asked to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Task {
    /// Address of the server's control port.
    pub(crate) host: String,
    /// The control port.
    pub(crate) port: u16,
    /// Where client and server run.
    pub(crate) pins: (Pin, Pin),
    /// The program that puts others on dgiwarp, if there is one.
    pub(crate) runner: Option<PathBuf>,
    /// What to measure, in this order.
    pub(crate) groups: Vec<Group>,
}

/// What a part says.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Event {
    /// Both sides are there, on these CPUs.
    Ready {
        /// The CPUs of client and server, when both are pinned.
        pinned: Option<(usize, usize)>,
        /// How they wait where they may spin.
        wait: Wait,
    },
    /// A group is done.
    Done(Recorded),
}

/// One member of the group that runs, ready for its rounds.
struct Runner<'a> {
    member: &'a Member,
    state: State,
    series: Series,
}

enum State {
    /// An endpoint of the session, and how many messages its next round has.
    Endpoint {
        number: usize,
        mode: Mode,
        messages: u64,
    },
    Program,
    Peer(Peer, Test),
    Scale(Scale),
    Missing,
}

/// Many peers, for each transport of a group.
type Stages = HashMap<Transport, Stage>;

/// What the process needs beside the session.
struct Part {
    allowed: Vec<usize>,
    task: Task,
    wait: Wait,
}

/// Runs the task on standard input.
pub(crate) fn run() -> Result<()> {
    set_pdeathsig(Signal::SIGKILL).during("follow the parent process")?;
    let interrupt = Interrupt::install()?;
    let mut text = String::new();
    std::io::stdin()
        .read_to_string(&mut text)
        .during("read the task")?;
    let task: Task =
        serde_json::from_str(&text).map_err(|error| PerfError::Protocol(error.to_string()))?;
    let allowed = allowed_cpus()?;
    let (mut session, server) = Session::connect(&task.host, task.port, task.pins.1, interrupt)?;
    let client = Placement::pin(&allowed, task.pins.0, Side::Client)?;
    let wait = choose_wait(&client, &server);
    say(&Event::Ready {
        pinned: client.pinned.zip(server.pinned),
        wait,
    })?;
    let part = Part {
        allowed,
        task,
        wait,
    };
    for group in &part.task.groups {
        let recorded = part.group(&mut session, group)?;
        say(&Event::Done(recorded))?;
    }
    Ok(())
}

fn say(event: &Event) -> Result<()> {
    let mut line =
        serde_json::to_vec(event).map_err(|error| PerfError::Protocol(error.to_string()))?;
    line.push(b'\n');
    let mut stdout = std::io::stdout();
    stdout
        .write_all(&line)
        .and_then(|()| stdout.flush())
        .during("write to standard output")
}

impl Part {
    /// A B A B: each round gives every member its turn.
    fn group(&self, session: &mut Session, group: &Group) -> Result<Recorded> {
        session.close_all()?;
        let mut stages = Stages::default();
        let mut runners = Vec::new();
        for member in &group.members {
            runners.push(self.open(session, member)?);
        }
        // The first round warms caches and tells how many messages fit the time. Programs warm up by themselves.
        for number in 0..=group.rounds {
            for runner in &mut runners {
                if number == 0 && !matches!(runner.state, State::Endpoint { .. }) {
                    continue;
                }
                let figures = self.turn(session, &mut stages, runner, group.round_time)?;
                let is_missing = matches!(runner.state, State::Missing);
                if number > 0 && !is_missing {
                    runner.series.rounds.push(figures);
                }
            }
        }
        Ok(Recorded {
            group: group.name.clone(),
            place: group.place,
            members: runners.into_iter().map(|runner| runner.series).collect(),
        })
    }

    fn open<'a>(&self, session: &mut Session, member: &'a Member) -> Result<Runner<'a>> {
        let mut series = Series {
            key: member.key.clone(),
            ..Series::default()
        };
        let state = match &member.kind {
            Kind::Endpoint { mode, .. } => {
                match session.open(&self.spec(member, &member.kind), 1, None)? {
                    Opened::Ready(number) => State::Endpoint {
                        number,
                        mode: *mode,
                        messages: first_guess(*mode, member.size),
                    },
                    Opened::TooLargeToPing(granted) => {
                        series.missing =
                            Some(format!("a receive buffer of {granted} octets is too small"));
                        State::Missing
                    }
                }
            }
            Kind::Program { line, .. } => {
                let name = line.split(' ').next().unwrap_or_default();
                series.missing = if self.task.runner.is_none() {
                    Some("dgiwarp-run is neither beside this program nor in PATH".to_owned())
                } else if perftest::find(name).is_none() {
                    Some(format!("{name} is not installed (Debian: perftest)"))
                } else {
                    None
                };
                match series.missing {
                    Some(_) => State::Missing,
                    None => State::Program,
                }
            }
            Kind::Scale(scale) => State::Scale(*scale),
            Kind::Peer { peer, test } => {
                series.missing = peer.missing(*test);
                match series.missing {
                    Some(_) => State::Missing,
                    None => State::Peer(*peer, *test),
                }
            }
        };
        Ok(Runner {
            member,
            state,
            series,
        })
    }

    fn spec(&self, member: &Member, kind: &Kind) -> EndpointSpec {
        let (subject, mode, wait, loss, list) = match *kind {
            Kind::Endpoint {
                subject,
                mode,
                wait,
                loss,
                list,
            } => (subject, mode, wait, loss, list),
            Kind::Program { .. } | Kind::Peer { .. } | Kind::Scale(_) => (
                Subject::new(Transport::Tcp, Op::Raw),
                Mode::Lat,
                Wait::Block,
                0.0,
                1,
            ),
        };
        EndpointSpec {
            subject,
            mode,
            size: member.size,
            wait: if self.wait == Wait::Block {
                Wait::Block
            } else {
                wait
            },
            receive_buffer: narrow(DEFAULT_RECEIVE_BUFFER),
            check: false,
            mtu: if mode == Mode::Loss { DEFAULT_MTU } else { 0 },
            loss,
            seed: 1,
            list,
            group: None,
        }
    }

    /// One round of one member; nothing if it failed in a way that leaves the others alone.
    fn turn(
        &self,
        session: &mut Session,
        stages: &mut Stages,
        runner: &mut Runner<'_>,
        time: Duration,
    ) -> Result<Option<Figures>> {
        session.check_interrupt()?;
        match &mut runner.state {
            State::Missing => Ok(None),
            State::Endpoint {
                number,
                mode,
                messages,
            } => {
                let round = session.round(*number, *mode, *messages)?;
                *messages = next_messages(*messages, time, &round);
                Ok(Some(figures(runner.member, &round)))
            }
            State::Program | State::Peer(..) | State::Scale(_) => {
                let outcome = match runner.state {
                    State::Scale(scale) => self.scale(stages, scale, session.interrupt()),
                    _ => self.program(runner, session.interrupt()),
                };
                // Starting processes took this thread elsewhere.
                let _ = Placement::pin(&self.allowed, self.task.pins.0, Side::Client)?;
                match outcome {
                    Ok(figures) => Ok(Some(figures)),
                    Err(PerfError::Interrupted) => Err(PerfError::Interrupted),
                    Err(error) => {
                        // What failed or hung once would do so in each round.
                        runner.series.missing = Some(error.to_string());
                        runner.state = State::Missing;
                        Ok(None)
                    }
                }
            }
        }
    }

    /// A round with many peers, who are there from the group's first such round on.
    fn scale(&self, stages: &mut Stages, scale: Scale, interrupt: &Interrupt) -> Result<Figures> {
        let transport = scale.transport;
        let mut stage = match stages.remove(&transport) {
            Some(stage) => stage,
            None => Stage::open(transport, scale.all, &self.cpus())?,
        };
        // After an error the two sides may not agree any more on what comes next.
        let figures = stage.run(scale, interrupt)?;
        stages.insert(transport, stage);
        Ok(figures)
    }

    fn cpus(&self) -> Cpus {
        Cpus {
            allowed: self.allowed.clone(),
            client: self.task.pins.0,
            server: self.task.pins.1,
        }
    }

    /// A run of somebody else's program.
    fn program(&self, runner: &Runner<'_>, interrupt: &Interrupt) -> Result<Figures> {
        let cpus = self.cpus();
        let size = narrow(runner.member.size);
        match (&runner.state, &runner.member.kind, &self.task.runner) {
            (State::Peer(peer, test), ..) => peer.run(*test, &cpus, interrupt),
            (_, Kind::Program { line, iters }, Some(under)) => {
                let us = perftest::latency(under, line, (size, *iters), &cpus, interrupt)?;
                Ok(Figures {
                    us: Some(us),
                    ..Figures::default()
                })
            }
            (_, kind, _) => Err(PerfError::Protocol(format!("{kind:?} is no program"))),
        }
    }
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

/// Messages that fill the time at the speed just seen; one odd round does not change them by much.
fn next_messages(now: u64, time: Duration, round: &Round) -> u64 {
    let wanted = time.as_nanos() * u128::from(round.messages) / u128::from(round.wall_ns.max(1));
    let wanted = u64::try_from(wanted).unwrap_or(u64::MAX);
    wanted
        .clamp(now / 2, now.saturating_mul(8))
        .clamp(8, 10_000_000)
}

/// What a round of an endpoint says.
fn figures(member: &Member, round: &Round) -> Figures {
    let Kind::Endpoint { subject, mode, .. } = member.kind else {
        return Figures::default();
    };
    if mode == Mode::Lat {
        let mut samples = round.samples.clone();
        samples.sort_unstable();
        return Figures {
            us: stats::percentile(&samples, 0.5).map(stats::microseconds),
            ..Figures::default()
        };
    }
    let speed = bytes_per_ns(round);
    let received = round.here.received_bytes + round.there.received_bytes;
    let gib = float(received) / float(1 << 30);
    let cpu = float(round.here.cpu_ns + round.there.cpu_ns) / 1e9;
    let sent = float(round.messages) * float(member.size);
    Figures {
        gigabytes_s: speed,
        mmsg_s: speed.map(|speed| speed * 1000.0 / float(member.size)),
        cpu_s_per_gib: (received > 0).then(|| cpu / gib),
        arrived: (mode == Mode::Loss).then(|| float(received) / sent.max(1.0)),
        valid: (mode == Mode::Loss && subject.op == Op::WriteRecord).then(|| valid(round)),
        ..Figures::default()
    }
}

/// Segments marked valid over those that were neither dropped on purpose nor refused. Marks are no data.
fn valid(round: &Round) -> f64 {
    let (from, to) = (&round.here.datagrams, &round.there.datagrams);
    let marks_lost = from.marks.saturating_sub(to.marks);
    let sent = from.sent.saturating_sub(from.marks);
    let lost = to.dropped.saturating_sub(marks_lost) + to.refused;
    float(to.valid) / float(sent.saturating_sub(lost).max(1))
}

#[expect(clippy::cast_precision_loss, reason = "counts stay below 2^52")]
const fn float(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::{Datagrams, RoundReport};

    fn round() -> Round {
        Round {
            messages: 10,
            wall_ns: 1_000_000,
            here: RoundReport {
                cpu_ns: 1 << 20,
                datagrams: Datagrams {
                    sent: 35,
                    marks: 5,
                    ..Datagrams::default()
                },
                ..RoundReport::default()
            },
            there: RoundReport {
                received_bytes: 9000,
                first_bytes: 1000,
                elapsed_ns: 4000,
                datagrams: Datagrams {
                    marks: 4,
                    dropped: 4,
                    valid: 27,
                    ..Datagrams::default()
                },
                ..RoundReport::default()
            },
            ..Round::default()
        }
    }

    fn member(op: Op, mode: Mode) -> Member {
        Member {
            key: "it".to_owned(),
            size: 1000,
            kind: Kind::Endpoint {
                subject: Subject::new(Transport::Ud, op),
                mode,
                wait: Wait::Spin,
                loss: 0.1,
                list: 1,
            },
        }
    }

    #[test]
    fn a_round_with_loss_says_what_is_valid_of_what_came_through() {
        let figures = figures(&member(Op::WriteRecord, Mode::Loss), &round());
        assert_eq!(figures.gigabytes_s, Some(2.0));
        assert_eq!((figures.valid, figures.arrived), (Some(1.0), Some(0.9)));
        let mut lost = round();
        lost.there.datagrams.valid = 26;
        assert!(valid(&lost) < 1.0);
    }

    #[test]
    fn a_stream_has_speed_rate_and_cpu_time() {
        let figures = figures(&member(Op::Send, Mode::Bw), &round());
        assert_eq!((figures.mmsg_s, figures.valid), (Some(2.0), None));
        let seconds_per_gib = (f64::from(1 << 20) / 1e9) / (9000.0 / f64::from(1 << 30));
        assert!((figures.cpu_s_per_gib.unwrap() - seconds_per_gib).abs() < 1e-9);
    }

    #[test]
    fn the_number_of_messages_follows_the_speed_within_limits() {
        let time = Duration::from_millis(5);
        assert_eq!(next_messages(10, time, &round()), 50);
        assert_eq!(next_messages(100, time, &round()), 50);
        assert_eq!(next_messages(1000, time, &round()), 500);
    }
}
