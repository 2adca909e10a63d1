//! Goes through the cases: runs each, asks afterwards whether the device still lives, and keeps what came of it.

mod echo;
mod outcome;
mod sent;

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::time::{Duration, Instant};

use crate::agent::{Agent, AgentError};
use crate::bench::{Bench, Broken, Settings, Verdict};
use crate::cases::{self, Case, Family, Needs};
use crate::clock;
use crate::profile;
use crate::recording::Recorder;
use crate::selection::Selection;

use self::echo::Echo;
use self::outcome::of_trials;
pub use self::outcome::{Done, Outcome, Plan};
use self::sent::{Broke, Sent};

/// File descriptors that an agent may have more of than at first: libraries open some for good later on.
const SPARE_DESCRIPTORS: u64 = 8;

/// Progress of a run.
#[derive(Clone, Copy, Debug)]
pub enum Progress<'a> {
    /// A case begins.
    Begins(&'a Case),
    /// It is done.
    Done(&'a Done),
}

/// Runs the plan; `each` sees every case when it begins and when it is done. If the device has gone for good, the cases behind are skipped, each with that reason.
pub fn run(
    plan: &mut Plan,
    mut agent: Option<Agent>,
    each: &mut dyn FnMut(Progress<'_>),
) -> Vec<Done> {
    let mut all: Vec<Done> = Vec::new();
    let (echo, connects) = Echo::of(&plan.settings, agent.as_mut());
    // The agent's file descriptors after one good connection. Of a device that takes none they are counted after the first case.
    let mut descriptors = agent
        .as_mut()
        .filter(|_| connects)
        .and_then(|agent| agent.clear().ok());
    let mut gone: Option<String> = None;
    // Why datagrams do not get through, if they do not; asked once.
    let mut silent: Option<Option<String>> = None;
    let mut sent = Sent::default();
    for case in plan.selection.cases() {
        if case.family == Family::Sent {
            continue;
        }
        each(Progress::Begins(&case));
        if let Some(why) = &gone {
            let done = skipped(&case, why.clone());
            each(Progress::Done(&done));
            all.push(done);
            continue;
        }
        let by_datagrams = matches!(case.family, Family::Datagram | Family::Reliable);
        if by_datagrams && inapplicable(plan, &case, agent.is_some()).is_none() {
            let first = silent.is_none();
            let silent = silent.get_or_insert_with(|| no_datagrams(plan, agent.as_mut()));
            if let Some(why) = silent {
                let mut done = skipped(&case, why.clone());
                if first {
                    done.outcome = Outcome::Broken;
                }
                each(Progress::Done(&done));
                all.push(done);
                continue;
            }
        }
        let started = clock::now();
        let mut done = one(plan, &case, agent.as_mut(), (started, echo), &mut sent);
        if done.outcome != Outcome::Skipped {
            afterwards(plan, agent.as_mut(), (&mut descriptors, echo), &mut done);
        }
        done.took = clock::now() - started;
        each(Progress::Done(&done));
        let dead = done.dead;
        all.push(done);
        if dead && !revived(plan, agent.as_mut(), echo) {
            gone = Some(format!(
                "the device accepts no good connection since {}",
                case.id
            ));
        }
    }
    for done in sent.finish(plan) {
        each(Progress::Begins(&done.case));
        each(Progress::Done(&done));
        all.push(done);
    }
    all
}

/// A case that does not run.
fn skipped(case: &Case, reason: String) -> Done {
    Done {
        case: *case,
        outcome: Outcome::Skipped,
        reason,
        trials: Vec::new(),
        recorder: Recorder::default(),
        took: Duration::ZERO,
        dead: false,
    }
}

/// All cases of a selection, none of which runs.
#[must_use]
pub fn none(selection: &Selection, reason: &str) -> Vec<Done> {
    let cases = selection.cases();
    cases
        .iter()
        .map(|case| skipped(case, reason.to_owned()))
        .collect()
}

/// Advice for the tester's user where no case came through: a port that nobody listens at, a firewall, or a device of revision 1.
#[must_use]
pub fn hint(settings: &Settings) -> Option<String> {
    let target = settings.target;
    match Bench::new(settings, None).open() {
        Ok(_) => return None,
        Err(Broken::Connect(error)) if error.kind() == ErrorKind::ConnectionRefused => {
            return Some(format!("{target}: nobody listens there"));
        }
        Err(Broken::Connect(error)) => {
            return Some(format!(
                "{target}: TCP does not get there: a firewall may drop it, or the device has another address for RDMA, which --data gives ({error})"
            ));
        }
        Err(_) => {}
    }
    let old = Settings {
        revision: 1,
        ..settings.clone()
    };
    if settings.revision >= 2 && Bench::new(&old, None).open().is_ok() {
        return Some(format!(
            "{target}: the device accepts no Request of revision 2 and accepts one of revision 1: test it with --revision 1"
        ));
    }
    Some(format!(
        "{target}: something listens there that accepts no RDMA connection"
    ))
}

/// Why no datagram gets to a queue pair of the device: one finding, and no fault of all cases about datagrams.
fn no_datagrams(plan: &Plan, agent: Option<&mut Agent>) -> Option<String> {
    let mut bench = Bench::new(&plan.settings, agent);
    let broken = cases::datagrams_live(&mut bench).err()?;
    let at = plan.settings.target.ip();
    Some(format!(
        "{at}: a good datagram does not get to a queue pair: a firewall may drop UDP, or the device has another address for it, which --data gives ({broken})"
    ))
}

/// Has the agent listen anew, for devices that lose a listener and nothing else; whether they serve again.
fn revived(plan: &mut Plan, agent: Option<&mut Agent>, echo: Echo) -> bool {
    let Some(agent) = agent else {
        return false;
    };
    let Ok(port) = agent.listen_again() else {
        return false;
    };
    plan.settings.target.set_port(port);
    echo.alive(&plan.settings, echo.source(Some(agent))).is_ok()
}

/// Why a case says nothing about this device, if so.
fn inapplicable(plan: &Plan, case: &Case, has_agent: bool) -> Option<&'static str> {
    if case.may_crash && !plan.allow_crash {
        Some("may crash the device: --allow-crash")
    } else if case.slow && !plan.slow {
        Some("takes a minute or more: --slow")
    } else if case.needs == Needs::Agent && !has_agent {
        Some("needs an agent on the device")
    } else if plan.settings.revision < 2 && needs_revision_2(case) {
        Some("about enhanced startup (RFC 6581), which revision 1 does not have")
    } else {
        None
    }
}

/// Cases whose good Requests or Replies are of revision 2. E01, E02 and E41 are about devices of either.
fn needs_revision_2(case: &Case) -> bool {
    case.clauses
        .iter()
        .all(|clause| clause.starts_with("RFC 6581"))
        && !["E01", "E02", "E41"].contains(&case.id)
}

fn one(
    plan: &Plan,
    case: &Case,
    agent: Option<&mut Agent>,
    (started, echo): (Instant, Echo),
    sent: &mut Sent,
) -> Done {
    let mut agent = agent;
    let source = echo.source(agent.as_deref_mut());
    let mut bench = Bench::new(&plan.settings, agent).asking(source);
    let result = match inapplicable(plan, case, bench.has_agent()) {
        Some(why) => Err(Broken::Skip(why)),
        None => (case.run)(&mut bench),
    };
    let (mut trials, recorder) = bench.finish();
    let Broke {
        mut in_trials,
        mut at_all,
    } = sent.take(plan, case, &mut trials, &recorder);
    if case.id != echo::CASE && echo == Echo::Unanswered {
        if echo.reconsider(&mut trials, &recorder) {
            in_trials.insert(echo::CASE);
        }
        if matches!(result, Err(Broken::First(_))) {
            at_all.insert(echo::CASE);
        }
    }
    let mut reason = String::new();
    let outcome = match result {
        Ok(()) => of_trials(plan, case, &trials, &mut reason),
        Err(Broken::Skip(why)) => {
            reason = why.to_owned();
            of_trials(plan, case, &trials, &mut reason).max(Outcome::Skipped)
        }
        Err(broken) => {
            reason = broken.to_string();
            match plan
                .profile
                .as_ref()
                .and_then(|p| p.expects(case.id, &reason, profile::BROKEN))
            {
                Some(expected) => {
                    reason = format!("{reason}; expected: {}", expected.why);
                    Outcome::ExpectedFail
                }
                // Earlier findings count more than the failure to try the rest.
                None => match of_trials(plan, case, &trials, &mut String::new()) {
                    Outcome::Fail => Outcome::Fail,
                    // The broken rule has the finding, and may be why.
                    _ if !at_all.is_empty() => {
                        reason = format!("see {}: {reason}", listed(&at_all));
                        Outcome::Inconclusive
                    }
                    Outcome::Pass
                    | Outcome::Skipped
                    | Outcome::Inconclusive
                    | Outcome::Deviates
                    | Outcome::ExpectedFail
                    | Outcome::Broken
                    | Outcome::Dead => Outcome::Broken,
                },
            }
        }
    };
    if in_trials.is_empty() && reason.is_empty() && outcome == Outcome::Inconclusive {
        let unknown = trials
            .iter()
            .find(|trial| trial.verdict == Verdict::Inconclusive);
        reason = unknown.map_or_else(String::new, |trial| {
            format!("shows something only where {}", trial.allowed.join("; "))
        });
    }
    if !in_trials.is_empty() && !reason.starts_with("see ") {
        reason = format!("{reason} see {}", listed(&in_trials));
    }
    Done {
        case: *case,
        outcome,
        reason: reason.trim_start().to_owned(),
        trials,
        recorder,
        took: clock::now() - started,
        dead: false,
    }
}

/// Names of rules.
fn listed(rules: &BTreeSet<&'static str>) -> String {
    let rules: Vec<_> = rules.iter().copied().collect();
    rules.join(", ")
}

/// Asks for a good connection, several times if need be, and looks for what was left behind.
fn afterwards(
    plan: &Plan,
    agent: Option<&mut Agent>,
    (descriptors, echo): (&mut Option<u64>, Echo),
    done: &mut Done,
) {
    let mut agent = agent;
    if let Some(agent) = agent.as_deref_mut()
        && let Err(error) = look_for_leaks(plan, agent, descriptors, done)
    {
        return dead(plan, done, &error.to_string());
    }
    if matches!(done.case.family, Family::Datagram | Family::Reliable) {
        let mut bench = Bench::new(&plan.settings, agent);
        if let Err(broken) = cases::datagrams_live(&mut bench) {
            dead(plan, done, &format!("afterwards: {broken}"));
        }
        return;
    }
    let until = clock::now() + plan.settings.patience.answer * 2;
    let source = echo.source(agent);
    loop {
        match echo.alive(&plan.settings, source) {
            Ok(()) => return,
            Err(_) if clock::now() < until => clock::pause(plan.settings.patience.quiet),
            Err(broken) => return dead(plan, done, &format!("afterwards: {broken}")),
        }
    }
}

/// Has the agent destroy everything, and counts its file descriptors. Remains of the case in the device, such as half-open
/// connections, may take their time to end.
fn look_for_leaks(
    plan: &Plan,
    agent: &mut Agent,
    descriptors: &mut Option<u64>,
    done: &mut Done,
) -> Result<(), AgentError> {
    let until = clock::now() + plan.settings.patience.answer;
    loop {
        let now = agent.clear()?;
        let first = *descriptors.get_or_insert(now);
        if now <= first + SPARE_DESCRIPTORS {
            return Ok(());
        }
        if clock::now() >= until {
            done.outcome = done.outcome.max(Outcome::Fail);
            done.reason = format!(
                "{} the agent had {first} file descriptors and has {now}",
                done.reason
            );
            *descriptors = Some(now);
            return Ok(());
        }
        clock::pause(plan.settings.patience.quiet);
    }
}

/// The device takes no good connection any more; known devices may be known for it.
fn dead(plan: &Plan, done: &mut Done, why: &str) {
    let expected = plan
        .profile
        .as_ref()
        .and_then(|p| p.expects(done.case.id, why, profile::DEAD));
    done.dead = true;
    done.outcome = Outcome::Dead;
    done.reason = format!("{} {why}", done.reason);
    if let Some(expected) = expected {
        done.outcome = Outcome::ExpectedFail;
        done.reason = format!("{}; expected: {}", done.reason, expected.why);
    }
}
