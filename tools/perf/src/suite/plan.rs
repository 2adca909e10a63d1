//! The groups of a suite, and the cases that are judged by them.

mod host;
mod messages;
mod others;
mod scale;
mod streams;

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::catalog::Subject;
use crate::catalog::subjects::*;
use crate::run::group::{Group, Member};
use crate::suite::results::Figure;

/// Rounds that a noisy machine gets beside those planned for, at most, in multiples of them.
const MORE_ROUNDS: u32 = 3;

/// The network of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Place {
    /// The loopback interface.
    Lo,
    /// Two network namespaces, a link of 1500 octets with all offloads.
    Veth,
    /// A link between namespaces whose sending host cuts segments itself, as for a plain network card.
    Wire,
}

impl Place {
    /// The name in groups and documents.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Lo => "lo",
            Self::Veth => "veth",
            Self::Wire => "wire",
        }
    }
}

/// A group of the suite.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Planned {
    /// Where it runs.
    pub(crate) place: Place,
    /// Its members and rounds.
    pub(crate) group: Group,
    /// The cases judged by it.
    pub(crate) cases: Vec<Case>,
}

/// A figure of one quantity: of members of one group, over that of others.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Case {
    /// The quantity's name.
    pub(crate) quantity: &'static str,
    /// Its name within the quantity.
    pub(crate) name: String,
    /// Members of the group; the better one of each round counts.
    pub(crate) ours: Vec<String>,
    /// Members compared with, the better one of each round; none if the figure stands for itself.
    pub(crate) base: Vec<String>,
    /// Which figure.
    pub(crate) figure: Figure,
    /// Factor of the figure compared with.
    pub(crate) scale: f64,
}

/// Length and number of rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pace {
    /// A choice of sizes, and short rounds.
    pub(crate) quick: bool,
    /// Rounds, if given.
    pub(crate) rounds: Option<u32>,
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// The message size of rates.
const SMALL: u64 = 64;

/// Raw sockets, and each operation that a message can be sent with.
const MESSAGES: [Subject; 6] = [
    UDP_RAW,
    UD_SEND,
    UD_WRITE_RECORD,
    TCP_RAW,
    RC_SEND,
    RC_WRITE,
];

impl Case {
    fn new(
        quantity: &'static str,
        name: impl Into<String>,
        ours: &[Subject],
        base: &[Subject],
        figure: Figure,
    ) -> Self {
        let keys = |subjects: &[Subject]| subjects.iter().map(ToString::to_string).collect();
        Self {
            quantity,
            name: name.into(),
            ours: keys(ours),
            base: keys(base),
            figure,
            scale: 1.0,
        }
    }
}

impl Pace {
    fn group(
        self,
        place: Place,
        name: &str,
        (rounds, milliseconds): (u32, u64),
        members: Vec<Member>,
    ) -> Planned {
        let (rounds, milliseconds) = match self.quick {
            true => (rounds.div_ceil(2).max(3), milliseconds.div_ceil(3)),
            false => (rounds, milliseconds),
        };
        Planned {
            place,
            group: Group {
                name: format!("{} {name}", place.name()),
                rounds: self.rounds.unwrap_or(rounds),
                round_time: Duration::from_millis(milliseconds),
                iters: None,
                // A number that was asked for is kept, and a quick run is one.
                more_rounds: match self.rounds {
                    None if !self.quick => rounds * MORE_ROUNDS,
                    None | Some(_) => 0,
                },
                repeats: 0,
                members,
            },
            cases: Vec::new(),
        }
    }

    /// All sizes, or a few significant ones in a quick run.
    const fn sizes<'a>(self, all: &'a [u64], quick: &'a [u64]) -> &'a [u64] {
        if self.quick { quick } else { all }
    }
}

impl Planned {
    fn with(mut self, cases: impl IntoIterator<Item = Case>) -> Self {
        self.cases.extend(cases);
        self
    }

    /// Without the cases of other quantities, and the members that only they need.
    fn only(mut self, ids: &[String]) -> Option<Self> {
        self.cases
            .retain(|case| ids.iter().any(|id| id == case.quantity));
        let needed = |member: &Member| {
            let named =
                |case: &Case| case.ours.contains(&member.key) || case.base.contains(&member.key);
            self.cases.iter().any(named)
        };
        self.group.members.retain(needed);
        (!self.cases.is_empty()).then_some(self)
    }
}

/// The groups that these quantities need, of all quantities if none is named.
pub(crate) fn groups(pace: Pace, only: &[String]) -> Vec<Planned> {
    let mut groups = Vec::new();
    groups.extend(messages::latencies(pace));
    groups.push(messages::programs(pace));
    groups.extend(messages::sleeping(pace));
    groups.extend(messages::rates(pace));
    groups.extend(host::within_host(pace));
    groups.push(streams::loopback_goodput(pace));
    groups.push(streams::sleeping_goodput(pace));
    groups.push(streams::short_goodput(pace));
    groups.push(streams::cpu(pace, Place::Lo));
    groups.push(streams::veth_goodput(pace));
    groups.push(streams::wire_goodput(pace));
    groups.push(streams::cpu(pace, Place::Wire));
    groups.extend(streams::losses(pace));
    groups.extend(others::peers(pace));
    groups.extend(scale::scales(pace));
    if !only.is_empty() {
        groups = groups
            .into_iter()
            .filter_map(|group| group.only(only))
            .collect();
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::quantities::{QUANTITIES, find};

    const FULL: Pace = Pace {
        quick: false,
        rounds: None,
    };
    const QUICK: Pace = Pace {
        quick: true,
        rounds: None,
    };

    #[test]
    fn every_quantity_has_a_case_and_every_case_its_members() {
        for pace in [FULL, QUICK] {
            let groups = groups(pace, &[]);
            for quantity in QUANTITIES {
                let has =
                    |group: &Planned| group.cases.iter().any(|case| case.quantity == quantity.id);
                assert!(groups.iter().any(has), "{}", quantity.id);
            }
            for group in &groups {
                for case in &group.cases {
                    assert!(find(case.quantity).is_some(), "{}", case.quantity);
                    assert!(!case.ours.is_empty(), "{}: {}", group.group.name, case.name);
                    for key in case.ours.iter().chain(&case.base) {
                        let there = group
                            .group
                            .members
                            .iter()
                            .filter(|member| member.key == *key);
                        assert_eq!(there.count(), 1, "{}: {key}", group.group.name);
                    }
                }
            }
        }
    }

    #[test]
    fn groups_have_names_of_their_own_and_fit_the_time() {
        for (pace, limit) in [(FULL, 14 * 60), (QUICK, 160)] {
            let groups = groups(pace, &[]);
            for (at, group) in groups.iter().enumerate() {
                let first = groups
                    .iter()
                    .position(|other| other.group.name == group.group.name);
                assert_eq!(first, Some(at), "{}", group.group.name);
                assert!(
                    group
                        .group
                        .members
                        .iter()
                        .filter(|it| it.spec().is_some())
                        .count()
                        <= 16
                );
            }
            let total: Duration = groups.iter().map(|it| it.group.duration()).sum();
            assert!(total < Duration::from_secs(limit), "{total:?}");
        }
    }

    #[test]
    fn a_choice_leaves_out_what_it_does_not_need() {
        let only = ["ud-latency".to_owned(), "goodput-wire".to_owned()];
        let groups = groups(QUICK, &only);
        let names: Vec<&str> = groups
            .iter()
            .map(|group| group.group.name.as_str())
            .collect();
        assert_eq!(names, ["lo lat 64", "lo lat 1K", "wire bw 1M"]);
        let keys = |at: usize| -> Vec<&str> {
            let members = groups[at].group.members.iter();
            members.map(|member| member.key.as_str()).collect()
        };
        assert_eq!(keys(0), ["udp raw", "ud send", "ud write-record"]);
        assert_eq!(keys(2), ["udp raw", "ud write-record"]);
    }
}
