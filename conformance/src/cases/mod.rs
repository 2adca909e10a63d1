//! Cases. A case is a row here and a function beside it; the function tries one thing or many and notes each.

mod datagram;
mod extensions;
mod impairment;
mod limits;
mod messages;
mod more;
mod mpa;
mod order;
mod rdmap;
mod reads;
mod reliable;
mod rules;
mod sent;
mod tagged;
mod untagged;

use mpa::{calling, crc, depths, enhanced, framing, initiator, rejection, said, startup};

use crate::bench::{Bench, Broken};

pub(crate) use datagram::lives as datagrams_live;

/// Groups of cases, by layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Family {
    /// M: MPA's startup frames.
    Startup,
    /// C and K: CRCs and Markers.
    Crc,
    /// E: enhanced startup of RFC 6581.
    Enhanced,
    /// F: FPDUs.
    Framing,
    /// T: tagged segments.
    Tagged,
    /// U: untagged segments.
    Untagged,
    /// R: RDMAP.
    Rdmap,
    /// A and I: atomics and Immediate Data of RFC 7306.
    Extensions,
    /// N: what networks do to connections.
    Impairment,
    /// D: the datagram mapping, over UDP.
    Datagram,
    /// L: reliable datagrams, format 4 of the mapping.
    Reliable,
    /// Rules of a sender, for all that the device sends in the cases of a run.
    Sent,
}

/// End that begins a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Role {
    /// The tester connects to the device.
    Initiator,
    /// The device connects to the tester, by its agent.
    Responder,
}

/// Needs of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Needs {
    /// A port that accepts connections.
    Port,
    /// The agent.
    Agent,
}

/// How binding the clause is that a case tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Level {
    /// MUST, SHALL, or their negatives: a deviation fails the run.
    Must,
    /// SHOULD: a deviation is reported and fails nothing.
    Should,
}

/// One case.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Its name: a letter for the family and a number. Never reused.
    pub id: &'static str,
    /// Its family.
    pub family: Family,
    /// Subject of the test in a few words.
    pub about: &'static str,
    /// The clauses it tests, as in `RFC 5041 §7.2`, of one RFC and section each; `Datagram §5` is one of
    /// `rfc-notes/datagram-mapping.md`, `Reliable §5` of `rfc-notes/reliable-datagrams.md`.
    pub clauses: &'static [&'static str],
    /// End that connects.
    pub role: Role,
    /// Needs of the case.
    pub needs: Needs,
    /// How binding it is.
    pub level: Level,
    /// Version of its trials and judgements; goes up with each change of them that a report can show.
    pub version: u16,
    /// Whether devices are known to crash by it, their hosts included.
    pub may_crash: bool,
    /// Whether it takes a minute or more.
    pub slow: bool,
    /// The trials.
    pub run: fn(&mut Bench<'_>) -> Result<(), Broken>,
}

/// A case that needs a port, tests a MUST, and crashes nobody.
const fn case(
    id: &'static str,
    family: Family,
    about: &'static str,
    clauses: &'static [&'static str],
    run: fn(&mut Bench<'_>) -> Result<(), Broken>,
) -> Case {
    Case {
        id,
        family,
        about,
        clauses,
        role: Role::Initiator,
        needs: Needs::Port,
        level: Level::Must,
        version: 1,
        may_crash: false,
        slow: false,
        run,
    }
}

/// A case that needs an agent.
const fn agent_case(
    id: &'static str,
    family: Family,
    about: &'static str,
    clauses: &'static [&'static str],
    run: fn(&mut Bench<'_>) -> Result<(), Broken>,
) -> Case {
    Case {
        needs: Needs::Agent,
        ..case(id, family, about, clauses, run)
    }
}

/// A case in which the device connects.
const fn responder(
    id: &'static str,
    family: Family,
    about: &'static str,
    clauses: &'static [&'static str],
    run: fn(&mut Bench<'_>) -> Result<(), Broken>,
) -> Case {
    Case {
        role: Role::Responder,
        ..agent_case(id, family, about, clauses, run)
    }
}

impl Case {
    const fn may_crash(self) -> Self {
        Self {
            may_crash: true,
            ..self
        }
    }

    const fn should(self) -> Self {
        Self {
            level: Level::Should,
            ..self
        }
    }
}

/// All cases, in the order in which they run.
#[must_use]
pub fn all() -> Vec<Case> {
    let mut all = [
        reads::FIRST,
        tagged::FIRST,
        startup::CASES,
        crc::CASES,
        enhanced::CASES,
        framing::CASES,
        tagged::CASES,
        untagged::CASES,
        rdmap::CASES,
        messages::CASES,
        reads::CASES,
        extensions::CASES,
        initiator::CASES,
        order::CASES,
        sent::CASES,
        rejection::CASES,
        said::CASES,
        more::CASES,
        depths::CASES,
        limits::CASES,
        impairment::CASES,
    ]
    .concat();
    all.extend(datagram::cases());
    all.extend(reliable::cases());
    all.extend(rules::cases());
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn cases_are_named_once_and_cite_clauses() {
        let mut names = BTreeSet::new();
        for case in all() {
            assert!(names.insert(case.id), "{} twice", case.id);
            assert!(!case.clauses.is_empty(), "{} cites nothing", case.id);
            for clause in case.clauses {
                let section = clause.strip_prefix("RFC ").and_then(|c| c.split_once(" §"));
                let ours = ["Datagram §", "Reliable §"];
                let datagram = ours.iter().any(|it| clause.starts_with(it));
                assert!(section.is_some() || datagram, "{}: {clause}", case.id);
            }
        }
    }
}
