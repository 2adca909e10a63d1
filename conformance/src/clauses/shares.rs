//! How many of the rules are tested, and how.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{By, Clause, Clauses};
use crate::cases::{self, Needs};

/// The RFCs whose MUST and MUST NOT the bar is about.
pub const PROTOCOL: [u16; 5] = [5044, 6581, 5041, 5040, 7306];
/// The share of those, in percent, that is to be tested by wire or agent.
pub const BAR: usize = 60;

/// How a rule is tested today: [`By`], but that cases which the tester does not have yet do not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Now {
    /// By at least one case that needs no agent.
    Wire,
    /// By at least one case with an agent.
    Agent,
    /// Only by tests of our sources.
    Unit,
    /// Only by cases to come.
    Planned,
    /// Not at all, for a reason.
    No,
}

/// Needs of the cases that exist.
#[derive(Debug, Clone)]
pub struct Registry(BTreeMap<&'static str, Needs>);

impl Registry {
    /// The cases of [`cases::all`].
    #[must_use]
    pub fn of_all() -> Self {
        let needs = |case: cases::Case| (case.id, case.needs);
        Self(cases::all().into_iter().map(needs).collect())
    }

    /// How a rule is tested.
    #[must_use]
    pub fn now(&self, rule: &Clause) -> Now {
        let needs: Vec<_> = rule
            .cases()
            .filter_map(|case| self.0.get(case.0.as_str()))
            .collect();
        match rule.by {
            By::Wire | By::Agent if needs.contains(&&Needs::Port) => Now::Wire,
            By::Wire | By::Agent if !needs.is_empty() => Now::Agent,
            By::Wire | By::Agent if rule.tests().next().is_some() => Now::Unit,
            By::Wire | By::Agent => Now::Planned,
            By::Unit => Now::Unit,
            By::No => Now::No,
        }
    }
}

/// Counts of rules.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Shares {
    /// All rules.
    pub rules: usize,
    /// Of which tested by wire.
    pub wire: usize,
    /// By an agent.
    pub agent: usize,
    /// By tests of our sources only.
    pub unit: usize,
    /// By cases to come only.
    pub planned: usize,
    /// Not at all, by the reason's word.
    pub no: BTreeMap<&'static str, usize>,
}

impl Shares {
    /// Counts some rules.
    pub fn of<'a>(rules: impl Iterator<Item = &'a Clause>, registry: &Registry) -> Self {
        let mut shares = Self::default();
        for rule in rules {
            shares.rules += 1;
            match registry.now(rule) {
                Now::Wire => shares.wire += 1,
                Now::Agent => shares.agent += 1,
                Now::Unit => shares.unit += 1,
                Now::Planned => shares.planned += 1,
                Now::No => {
                    let word = rule.reasons().next().map_or("?", |reason| reason.word());
                    *shares.no.entry(word).or_default() += 1;
                }
            }
        }
        shares
    }

    /// Clauses that a device can be tested for, in percent, rounded down.
    #[must_use]
    pub fn percent(&self) -> usize {
        (100 * (self.wire + self.agent))
            .checked_div(self.rules)
            .unwrap_or(0)
    }
}

/// The counts of one RFC, or of several.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Line {
    /// The RFC, or none for the sum over [`PROTOCOL`].
    pub rfc: Option<u16>,
    /// Of MUST and MUST NOT.
    pub strict: Shares,
    /// Of SHOULD and SHOULD NOT.
    pub lenient: Shares,
}

/// One line for each RFC, and the sum that the bar is about.
#[must_use]
pub fn lines(clauses: &Clauses) -> Vec<Line> {
    let registry = Registry::of_all();
    let line = |rfc: Option<u16>| {
        let of = |strict: bool| {
            let rules = clauses.rules.iter().filter(move |rule| {
                rfc.map_or_else(|| PROTOCOL.contains(&rule.id.rfc), |rfc| rfc == rule.id.rfc)
                    && rule.keyword.is_strict() == strict
            });
            Shares::of(rules, &registry)
        };
        Line {
            rfc,
            strict: of(true),
            lenient: of(false),
        }
    };
    clauses
        .rfcs()
        .into_iter()
        .map(Some)
        .chain([None])
        .map(line)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::{Case, Evidence, Keyword, Test};
    use super::*;

    fn rule(by: By, evidence: &[Evidence]) -> Clause {
        Clause {
            id: "5044-1-1".parse().unwrap(),
            keyword: Keyword::Must,
            by,
            says: String::new(),
            evidence: evidence.to_vec(),
        }
    }

    #[test]
    fn planned_cases_do_not_count() {
        let case = |name: &str| Evidence::Case(Case(name.to_owned()));
        let test = Evidence::Test(Test {
            file: "a.rs".to_owned(),
            name: "b".to_owned(),
        });
        let registry = Registry(BTreeMap::from([
            ("M01", Needs::Port),
            ("T01", Needs::Agent),
        ]));
        let now = |by, evidence: &[Evidence]| registry.now(&rule(by, evidence));
        assert_eq!(now(By::Wire, &[case("P01"), case("M01")]), Now::Wire);
        assert_eq!(now(By::Wire, &[case("T01")]), Now::Agent);
        assert_eq!(now(By::Agent, &[case("T01")]), Now::Agent);
        assert_eq!(now(By::Wire, &[case("P01"), test.clone()]), Now::Unit);
        assert_eq!(now(By::Wire, &[case("P01")]), Now::Planned);
        assert_eq!(now(By::Unit, &[test]), Now::Unit);
    }

    #[test]
    fn the_bar_is_reached() {
        let lines = lines(&Clauses::load().unwrap());
        let sum = lines.last().unwrap();
        assert_eq!((sum.rfc, sum.strict.rules), (None, 438));
        assert!(sum.strict.percent() >= BAR, "{sum:?}");
    }

    #[test]
    fn shares_add_up() {
        for line in lines(&Clauses::load().unwrap()) {
            for shares in [line.strict, line.lenient] {
                let no: usize = shares.no.values().sum();
                let sum = shares.wire + shares.agent + shares.unit + shares.planned + no;
                assert_eq!(sum, shares.rules);
            }
        }
    }
}
