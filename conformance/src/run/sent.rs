//! All that the device sent in a run, judged by the rules of a sender, whatever each case was about.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::bench::{Trial, Verdict};
use crate::cases::{self, Case, Family, Level};
use crate::recording::sequence;
use crate::recording::{Conversation, Recorder, Way};
use crate::trace::{self, Finding, Keyword};
use crate::wire::hex;

use super::outcome::{Done, Outcome, Plan, of_trials};

/// Findings of one rule that are listed, of each case those that differ; the others are counted.
const MOST: usize = 200;
/// The most octets of a frame that go with a finding.
const EVIDENCE: usize = 96;

/// Findings of one rule.
#[derive(Debug, Default)]
struct Found {
    trials: Vec<Trial>,
    others: u64,
    /// Traffic of the case that found it first.
    recorder: Recorder,
}

/// Rules that the device broke in a case.
#[derive(Debug, Default)]
pub(super) struct Broke {
    /// On the connections of trials that failed, which are inconclusive for that.
    pub(super) in_trials: BTreeSet<&'static str>,
    /// On any connection.
    pub(super) at_all: BTreeSet<&'static str>,
}

/// Findings of all rules so far.
#[derive(Debug, Default)]
pub(super) struct Sent {
    found: BTreeMap<&'static str, Found>,
    /// Whether the device sent octets over TCP, and datagrams.
    streams: bool,
    datagrams: bool,
}

impl Sent {
    /// Judges what the device sent in a case. Trials that failed on a connection where it broke a rule are inconclusive, because the rule has the finding.
    pub(super) fn take(
        &mut self,
        plan: &Plan,
        case: &Case,
        trials: &mut [Trial],
        recorder: &Recorder,
    ) -> Broke {
        let conversations = recorder.conversations();
        for conversation in &conversations {
            let spoke = conversation
                .pieces
                .iter()
                .any(|piece| piece.way == Way::Received && !piece.octets.is_empty());
            self.streams |= spoke && !conversation.datagrams;
            self.datagrams |= spoke && conversation.datagrams;
        }
        let mut basic: BTreeMap<usize, &'static str> = BTreeMap::new();
        // A SHOULD that a rule and a case are about is one finding; a MUST is broken all the same.
        let mut recommended: BTreeMap<usize, &'static str> = BTreeMap::new();
        for (number, finding) in trace::judge(&conversations) {
            if plan.selection.leaves_out(finding.rule.id) {
                continue;
            }
            // A known deviation excuses nothing: it would hide news.
            let known = plan
                .profile
                .as_ref()
                .is_some_and(|p| p.has(finding.rule.id, &name(case, number), &finding.detail));
            let of_rules = match finding.rule.keyword {
                Keyword::Must => Some(&mut basic),
                Keyword::Should => (case.level == Level::Should).then_some(&mut recommended),
            };
            if let Some(of_rules) = of_rules.filter(|_| !known) {
                let index = usize::try_from(number - 1).unwrap_or(usize::MAX);
                of_rules.entry(index).or_insert(finding.rule.id);
            }
            self.add(case, number, finding, &conversations, recorder);
        }
        let at_all = basic.values().copied().collect();
        for (index, rule) in recommended {
            basic.entry(index).or_insert(rule);
        }
        Broke {
            in_trials: reconsider(plan, case, trials, &basic),
            at_all,
        }
    }

    fn add(
        &mut self,
        case: &Case,
        number: u64,
        finding: Finding,
        conversations: &[Conversation],
        recorder: &Recorder,
    ) {
        let found = self.found.entry(finding.rule.id).or_insert_with(|| Found {
            recorder: recorder.clone(),
            ..Found::default()
        });
        let seen = found.trials.iter().any(|trial| {
            trial.seen == finding.detail && trial.what.split(',').next() == Some(case.id)
        });
        if seen || found.trials.len() == MOST {
            found.others += 1;
            return;
        }
        let conversation = usize::try_from(number - 1)
            .ok()
            .and_then(|index| conversations.get(index));
        found.trials.push(Trial {
            what: name(case, number),
            verdict: Verdict::Fail,
            seen: finding.detail,
            allowed: vec![format!("{} ({})", finding.rule.says, finding.rule.clause)],
            clause: finding.rule.clause.to_owned(),
            octets: Some((String::new(), hex(&finding.octets, EVIDENCE))),
            steps: conversation.map_or_else(Vec::new, sequence::steps),
            conversation: None,
        });
    }

    /// The rules that the plan asks for, and those that are broken.
    pub(super) fn finish(mut self, plan: &Plan) -> Vec<Done> {
        let asked: BTreeSet<_> = plan.selection.cases().iter().map(|case| case.id).collect();
        cases::all()
            .into_iter()
            .filter(|case| case.family == Family::Sent)
            .filter_map(|case| match self.found.remove(case.id) {
                Some(found) => Some(broken(plan, case, found)),
                None => asked.contains(case.id).then(|| self.kept(case)),
            })
            .collect()
    }

    fn kept(&self, case: Case) -> Done {
        let datagrams = case
            .clauses
            .iter()
            .all(|clause| clause.starts_with("Datagram"));
        let (spoke, reason) = if datagrams {
            (
                self.datagrams,
                "no case of this run had the device send a datagram",
            )
        } else {
            (
                self.streams,
                "no case of this run had the device send anything over TCP",
            )
        };
        let (outcome, reason) = if spoke {
            (Outcome::Pass, "")
        } else {
            (Outcome::Skipped, reason)
        };
        Done {
            case,
            outcome,
            reason: reason.to_owned(),
            trials: Vec::new(),
            recorder: Recorder::default(),
            took: Duration::ZERO,
            dead: false,
        }
    }
}

/// Name of a finding in a connection of a case.
fn name(case: &Case, number: u64) -> String {
    format!("{}, connection {number}", case.id)
}

/// Takes back what may be due to the rules that these conversations break, and names those.
fn reconsider(
    plan: &Plan,
    case: &Case,
    trials: &mut [Trial],
    basic: &BTreeMap<usize, &'static str>,
) -> BTreeSet<&'static str> {
    let mut rules = BTreeSet::new();
    let failed = trials
        .iter_mut()
        .filter(|trial| trial.verdict == Verdict::Fail);
    for trial in failed {
        let rule = trial.conversation.and_then(|index| basic.get(&index));
        // A known deviation stays one.
        let known = plan
            .profile
            .as_ref()
            .is_some_and(|p| p.has(case.id, &trial.what, &trial.seen));
        if let Some(rule) = rule.filter(|_| !known) {
            trial.verdict = Verdict::Inconclusive;
            rules.insert(*rule);
        }
    }
    rules
}

fn broken(plan: &Plan, case: Case, found: Found) -> Done {
    let mut reason = String::new();
    let outcome = of_trials(plan, &case, &found.trials, &mut reason);
    if found.others > 0 {
        reason = format!("{reason} and {} times more", found.others);
    }
    Done {
        case,
        outcome,
        reason,
        trials: found.trials,
        recorder: found.recorder,
        took: Duration::ZERO,
        dead: false,
    }
}
