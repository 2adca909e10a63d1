//! The tables of clauses and how they are written.

use std::fmt;
use std::str::FromStr;

use serde::Deserialize;
use thiserror::Error;

macro_rules! files {
    ($($name:literal),*) => {
        /// The files, as compiled in: name and text.
        const FILES: &[(&str, &str)] = &[$(($name, include_str!(concat!("../../clauses/", $name)))),*];
    };
}
files!(
    "rfc5044.psv",
    "rfc6581.psv",
    "rfc5041.psv",
    "rfc5040.psv",
    "rfc7306.psv",
    "rfc5042.psv"
);
const COUNTS: &str = include_str!("../../clauses/counts.psv");
const PLANNED: &str = include_str!("../../clauses/planned.psv");

/// Why a table could not be read.
#[derive(Debug, Error)]
pub enum TableError {
    /// A line is not what the header announces.
    #[error("{file}: {source}")]
    Line {
        /// The file in `conformance/clauses/`.
        file: &'static str,
        /// The fault, with the number of the line.
        source: csv::Error,
    },
    /// A field of a clause is not one of the words there are.
    #[error("{file}: {id}: {word:?} is no {what}")]
    Word {
        /// The file in `conformance/clauses/`.
        file: &'static str,
        /// The clause.
        id: String,
        /// Kind of the expected word.
        what: &'static str,
        /// Word that stands there.
        word: String,
    },
}

/// The word that makes a sentence of an RFC a rule (RFC 2119). SHALL does not occur outside of definitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Keyword {
    /// An obligation.
    Must,
    /// A prohibition.
    MustNot,
    /// An obligation that may be departed from for a good reason.
    Should,
    /// A prohibition that may be departed from for a good reason.
    ShouldNot,
}

impl Keyword {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Must, Self::MustNot, Self::Should, Self::ShouldNot];

    /// As the RFCs write it.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Must => "MUST",
            Self::MustNot => "MUST NOT",
            Self::Should => "SHOULD",
            Self::ShouldNot => "SHOULD NOT",
        }
    }

    /// Whether nothing excuses a departure.
    #[must_use]
    pub const fn is_strict(self) -> bool {
        match self {
            Self::Must | Self::MustNot => true,
            Self::Should | Self::ShouldNot => false,
        }
    }
}

/// How a rule is tested: the strongest way there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum By {
    /// By a peer that sees nothing but octets.
    Wire,
    /// By a peer together with a program on the device under test.
    Agent,
    /// By tests of our own sources alone: of other devices nothing is known.
    Unit,
    /// Not at all, for a [`Reason`].
    No,
}

impl By {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Wire, Self::Agent, Self::Unit, Self::No];

    /// As the tables write it.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Wire => "wire",
            Self::Agent => "agent",
            Self::Unit => "unit",
            Self::No => "no",
        }
    }
}

/// Why a rule is not tested.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// It binds the program above.
    BindsUlp,
    /// It binds what lies below DDP, where that is not MPA: TCP, SCTP, the host.
    BindsLlp,
    /// It binds whoever configures the host.
    Administration,
    /// It binds the manager of a device that several users share; here every process has a device of its own.
    Privileged,
    /// IPsec is the host's.
    Ipsec,
    /// It announces rules that have rows of their own.
    Umbrella,
    /// It is about two layers inside an implementation, and nothing of it can be seen from outside.
    LocalInterface,
    /// It binds those who have an optional part, and ours has not.
    NotImplemented,
    /// The subject of the rule does not exist here, or cannot be brought about from outside.
    NothingToTest,
    /// It says once more what another row says.
    DuplicateOf(ClauseId),
}

impl Reason {
    /// Variants that name no other clause, with their words.
    pub const WORDS: [(&'static str, Self); 9] = [
        ("binds-ulp", Self::BindsUlp),
        ("binds-llp", Self::BindsLlp),
        ("administration", Self::Administration),
        ("privileged", Self::Privileged),
        ("ipsec", Self::Ipsec),
        ("umbrella", Self::Umbrella),
        ("local-interface", Self::LocalInterface),
        ("not-implemented", Self::NotImplemented),
        ("nothing-to-test", Self::NothingToTest),
    ];

    /// As the tables write it, without the clause that it may name.
    #[must_use]
    pub fn word(&self) -> &'static str {
        Self::WORDS
            .iter()
            .find(|(_, reason)| reason == self)
            .map_or("duplicate-of", |(word, _)| word)
    }

    fn parse(token: &str) -> Option<Self> {
        if let Some(id) = token.strip_prefix("duplicate-of:") {
            return id.parse().ok().map(Self::DuplicateOf);
        }
        let (_, reason) = Self::WORDS.iter().find(|(word, _)| *word == token)?;
        Some(reason.clone())
    }
}

/// A clause's name, like `5044-7.1.2-5`: RFC, section, and running number in the section.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClauseId {
    /// The RFC's number.
    pub rfc: u16,
    /// The section, like `7.1.2` or `A.4`.
    pub section: String,
    /// Counted from one, in the order of the text.
    pub number: u16,
}

impl fmt::Display for ClauseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-{}", self.rfc, self.section, self.number)
    }
}

/// The text is not `RFC-SECTION-NUMBER`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("not of the form 5044-7.1.2-5")]
pub struct NoClauseId;

impl FromStr for ClauseId {
    type Err = NoClauseId;

    fn from_str(text: &str) -> Result<Self, NoClauseId> {
        let mut parts = text.splitn(3, '-');
        let mut next = || {
            parts
                .next()
                .filter(|part| !part.is_empty())
                .ok_or(NoClauseId)
        };
        let (rfc, section, number) = (next()?, next()?, next()?);
        Ok(Self {
            rfc: rfc.parse().map_err(|_| NoClauseId)?,
            section: section.to_owned(),
            number: number.parse().map_err(|_| NoClauseId)?,
        })
    }
}

/// A case of the tester, like `M02`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Case(pub String);

impl Case {
    fn parse(token: &str) -> Option<Self> {
        let mut chars = token.chars();
        let family = chars.next().is_some_and(|c| c.is_ascii_uppercase());
        let number = chars.as_str();
        let numbered = number.len() == 2 && number.bytes().all(|b| b.is_ascii_digit());
        (family && numbered).then(|| Self(token.to_owned()))
    }
}

/// A test of our sources: the file below the workspace's root, and the function.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Test {
    /// Like `llp-tcp-mpa/src/framing/tests.rs`.
    pub file: String,
    /// Like `figure_5`.
    pub name: String,
}

impl Test {
    fn parse(token: &str) -> Option<Self> {
        let (file, name) = token.split_once("::")?;
        let file = file.ends_with(".rs").then(|| file.to_owned())?;
        Some(Self {
            file,
            name: name.to_owned(),
        })
    }
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}::{}", self.file, self.name)
    }
}

/// Evidence of a row.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Evidence {
    /// A case of the tester.
    Case(Case),
    /// A test of ours.
    Test(Test),
    /// Nothing, and why.
    Reason(Reason),
}

impl Evidence {
    fn parse(token: &str) -> Option<Self> {
        Case::parse(token)
            .map(Self::Case)
            .or_else(|| Test::parse(token).map(Self::Test))
            .or_else(|| Reason::parse(token).map(Self::Reason))
    }
}

/// One rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Clause {
    /// Its name.
    pub id: ClauseId,
    /// Keyword that makes it a rule.
    pub keyword: Keyword,
    /// How it is tested.
    pub by: By,
    /// The rule in our words.
    pub says: String,
    /// By what it is tested, or why it is not.
    pub evidence: Vec<Evidence>,
}

impl Clause {
    /// The cases of the tester that are about it.
    pub fn cases(&self) -> impl Iterator<Item = &Case> {
        self.evidence.iter().filter_map(|evidence| match evidence {
            Evidence::Case(case) => Some(case),
            Evidence::Test(_) | Evidence::Reason(_) => None,
        })
    }

    /// The tests of ours that are about it.
    pub fn tests(&self) -> impl Iterator<Item = &Test> {
        self.evidence.iter().filter_map(|evidence| match evidence {
            Evidence::Test(test) => Some(test),
            Evidence::Case(_) | Evidence::Reason(_) => None,
        })
    }

    /// Why it is not tested.
    pub fn reasons(&self) -> impl Iterator<Item = &Reason> {
        self.evidence.iter().filter_map(|evidence| match evidence {
            Evidence::Reason(reason) => Some(reason),
            Evidence::Case(_) | Evidence::Test(_) => None,
        })
    }
}

#[derive(Deserialize)]
struct ClauseLine {
    id: String,
    keyword: String,
    by: String,
    says: String,
    evidence: String,
}

/// How many rules a section has, counted in the RFC by a search for the words.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Count {
    /// The RFC's number.
    pub rfc: u16,
    /// The section.
    pub section: String,
    /// Of [`Keyword::Must`].
    pub must: usize,
    /// Of [`Keyword::MustNot`].
    pub must_not: usize,
    /// Of [`Keyword::Should`].
    pub should: usize,
    /// Of [`Keyword::ShouldNot`].
    pub should_not: usize,
}

impl Count {
    /// The count of a keyword.
    #[must_use]
    pub const fn of(&self, keyword: Keyword) -> usize {
        match keyword {
            Keyword::Must => self.must,
            Keyword::MustNot => self.must_not,
            Keyword::Should => self.should,
            Keyword::ShouldNot => self.should_not,
        }
    }
}

/// A case that clauses name and the tester does not have yet.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Planned {
    /// Its name, like `M02`.
    pub case: String,
    /// Subject of the planned case.
    pub does: String,
}

/// All tables.
#[derive(Debug, Clone)]
pub struct Clauses {
    /// The rules, by RFC and in the order of the text.
    pub rules: Vec<Clause>,
    /// How many there have to be.
    pub counts: Vec<Count>,
    /// Cases to come.
    pub planned: Vec<Planned>,
}

fn lines<T: for<'a> Deserialize<'a>>(file: &'static str, text: &str) -> Result<Vec<T>, TableError> {
    csv::ReaderBuilder::new()
        .delimiter(b'|')
        .comment(Some(b'#'))
        .quoting(false)
        .trim(csv::Trim::All)
        .from_reader(text.as_bytes())
        .deserialize()
        .collect::<Result<_, _>>()
        .map_err(|source| TableError::Line { file, source })
}

fn clause(file: &'static str, line: ClauseLine) -> Result<Clause, TableError> {
    let word = |what: &'static str, word: &str| TableError::Word {
        file,
        id: line.id.clone(),
        what,
        word: word.to_owned(),
    };
    Ok(Clause {
        id: line.id.parse().map_err(|_| word("clause", &line.id))?,
        keyword: Keyword::ALL
            .into_iter()
            .find(|keyword| keyword.word() == line.keyword)
            .ok_or_else(|| word("keyword", &line.keyword))?,
        by: By::ALL
            .into_iter()
            .find(|by| by.word() == line.by)
            .ok_or_else(|| word("way of testing", &line.by))?,
        evidence: line
            .evidence
            .split_whitespace()
            .map(|token| Evidence::parse(token).ok_or_else(|| word("case, test or reason", token)))
            .collect::<Result<_, _>>()?,
        says: line.says,
    })
}

impl Clauses {
    /// Tables without rules.
    #[must_use]
    pub const fn empty() -> Self {
        Self {
            rules: Vec::new(),
            counts: Vec::new(),
            planned: Vec::new(),
        }
    }

    /// Reads the tables that were compiled in.
    ///
    /// # Errors
    /// A table is not well-formed; a test sees to it that none is.
    pub fn load() -> Result<Self, TableError> {
        let mut rules = Vec::new();
        for (file, text) in FILES {
            for line in lines(file, text)? {
                rules.push(clause(file, line)?);
            }
        }
        Ok(Self {
            rules,
            counts: lines("counts.psv", COUNTS)?,
            planned: lines("planned.psv", PLANNED)?,
        })
    }

    /// The rules that a case is about. The part of its name behind a point distinguishes variants of a case and does not
    /// matter.
    pub fn of_case<'a>(&'a self, case: &'a str) -> impl Iterator<Item = &'a Clause> {
        let case = case.split_once('.').map_or(case, |(case, _)| case);
        self.rules
            .iter()
            .filter(move |rule| rule.cases().any(|Case(named)| named == case))
    }

    /// The RFCs that there are tables of, in the order of the tables.
    #[must_use]
    pub fn rfcs(&self) -> Vec<u16> {
        let mut rfcs: Vec<_> = self.rules.iter().map(|rule| rule.id.rfc).collect();
        rfcs.dedup();
        rfcs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_and_written() {
        for name in ["5044-7.1.2-5", "5042-A-1"] {
            assert_eq!(name.parse::<ClauseId>().unwrap().to_string(), name);
        }
        for wrong in ["5044-7.1.2", "5044--1", "RFC-4-1", "5044-4-x"] {
            assert_eq!(wrong.parse::<ClauseId>(), Err(NoClauseId));
        }
    }

    #[test]
    fn evidence_is_told_apart() {
        let case = Evidence::Case(Case("M02".to_owned()));
        assert_eq!(Evidence::parse("M02"), Some(case));
        let test = Test {
            file: "a/b.rs".to_owned(),
            name: "c".to_owned(),
        };
        assert_eq!(Evidence::parse("a/b.rs::c"), Some(Evidence::Test(test)));
        assert_eq!(
            Evidence::parse("ipsec"),
            Some(Evidence::Reason(Reason::Ipsec))
        );
        let other = Reason::DuplicateOf("5041-4.1-1".parse().unwrap());
        assert_eq!(other.word(), "duplicate-of");
        assert_eq!(
            Evidence::parse("duplicate-of:5041-4.1-1"),
            Some(Evidence::Reason(other))
        );
        for wrong in ["M2", "m02", "b::c", "laziness", "duplicate-of:x"] {
            assert_eq!(Evidence::parse(wrong), None);
        }
    }

    #[test]
    fn variants_of_a_case_share_its_rules() {
        let clauses = Clauses::load().unwrap();
        let ids = |case| -> Vec<_> { clauses.of_case(case).map(|rule| &rule.id).collect() };
        assert!(!ids("M02").is_empty());
        assert_eq!(ids("M02"), ids("M02.key-15"));
        assert!(ids("Z99").is_empty());
    }
}
