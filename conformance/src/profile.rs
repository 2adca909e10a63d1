//! Expected failures: what is known of a device, so that a run fails only on news.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use thiserror::Error;

/// Reaction of an entry for a case that cannot be carried through; its trial is part of the reason.
pub const BROKEN: &str = "BROKEN";
/// Reaction of an entry for a device that accepts no good connection behind a case; its trial is part of the reason.
pub const DEAD: &str = "DEAD";
/// Name for any case, or any trial.
const ANY: &str = "*";

/// Why there is no profile.
#[derive(Debug, Error)]
pub enum ProfileError {
    /// The file cannot be read.
    #[error("{0}: {1}")]
    Io(String, std::io::Error),
    /// It is no profile.
    #[error("{0}: {1}")]
    Json(String, serde_json::Error),
    /// An entry would hide news.
    #[error("{0}: entry {1} ({2}) needs {3}")]
    Vague(String, usize, String, &'static str),
}

/// A file of expected failures.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// The device.
    pub device: String,
    /// Known deviations.
    pub expected: Vec<Expected>,
    /// How often entries with a bound were met in this run, by their number.
    #[serde(skip)]
    met: RefCell<BTreeMap<usize, u32>>,
}

/// Trials that are known to fail, in one way.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expected {
    /// The case; `*` for any, and then [`at_most`](Self::at_most) is needed.
    pub case: String,
    /// Part of the trial's name; `*` for any.
    pub trial: String,
    /// Whole reaction of the device in the report's words, [`BROKEN`] or [`DEAD`]. A `*` stands for any octets.
    pub seen: String,
    /// How often in a run; beyond, it is news.
    #[serde(default)]
    pub at_most: Option<u32>,
    /// Whether some runs have it and others do not.
    #[serde(default)]
    pub varies: bool,
    /// Actual behaviour, for the reader.
    pub why: String,
}

impl Expected {
    /// Whether a trial of this name is meant.
    fn is_of(&self, case: &str, trial: &str) -> bool {
        [ANY, case].contains(&self.case.as_str())
            && (self.trial == ANY || trial.contains(&self.trial))
    }

    /// Whether it is this trial with this reaction.
    #[must_use]
    pub fn fits(&self, case: &str, trial: &str, seen: &str) -> bool {
        self.is_of(case, trial) && matches(&self.seen, seen)
    }
}

/// Whether text is as a pattern has it, in which `*` stands for any octets.
fn matches(pattern: &str, text: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else {
        return pattern == text;
    };
    let Some(mut text) = text.strip_prefix(first) else {
        return false;
    };
    let mut parts: Vec<_> = rest.split('*').collect();
    let last = parts.pop().unwrap_or_default();
    for part in parts {
        let Some(at) = text.find(part) else {
            return false;
        };
        text = &text[at + part.len()..];
    }
    text.ends_with(last)
}

/// Profiles that come with the tester, by name.
const OWN: &[(&str, &str)] = &[("siw", include_str!("../profiles/siw.json"))];

impl Profile {
    /// A profile of the tester's own by its name, or one from a file.
    ///
    /// # Errors
    /// [`ProfileError`].
    pub fn load(name: &str) -> Result<Self, ProfileError> {
        let own = OWN.iter().find(|(own, _)| *own == name);
        let text = match own {
            Some((_, text)) => (*text).to_owned(),
            None => std::fs::read_to_string(Path::new(name))
                .map_err(|error| ProfileError::Io(name.to_owned(), error))?,
        };
        Self::parse(name, &text)
    }

    fn parse(name: &str, text: &str) -> Result<Self, ProfileError> {
        let profile: Self = serde_json::from_str(text)
            .map_err(|error| ProfileError::Json(name.to_owned(), error))?;
        for (number, entry) in (1..).zip(&profile.expected) {
            let blanket = entry.case == ANY && entry.at_most.is_none();
            let lacks = [
                (entry.case.is_empty(), "\"case\""),
                (entry.trial.is_empty(), "\"trial\""),
                (entry.seen.is_empty() || entry.seen == ANY, "\"seen\""),
                (entry.why.is_empty(), "\"why\""),
                (blanket, "\"at_most\", because it is about any case"),
            ];
            if let Some((_, what)) = lacks.into_iter().find(|(lacks, _)| *lacks) {
                let case = entry.case.clone();
                return Err(ProfileError::Vague(name.to_owned(), number, case, what));
            }
        }
        Ok(profile)
    }

    /// Known deviation of this trial, in which `seen` is the device's reaction. An entry with a bound counts.
    #[must_use]
    pub fn expects(&self, case: &str, trial: &str, seen: &str) -> Option<&Expected> {
        let mut met = self.met.borrow_mut();
        let mut fitting = self
            .expected
            .iter()
            .enumerate()
            .filter(|(_, entry)| entry.fits(case, trial, seen));
        fitting.find_map(|(number, entry)| {
            let Some(most) = entry.at_most else {
                return Some(entry);
            };
            let met = met.entry(number).or_insert(0);
            if *met >= most {
                return None;
            }
            *met += 1;
            Some(entry)
        })
    }

    /// Whether an entry is about this trial with this reaction. Nothing is counted.
    #[must_use]
    pub fn has(&self, case: &str, trial: &str, seen: &str) -> bool {
        self.expected
            .iter()
            .any(|entry| entry.fits(case, trial, seen))
    }

    /// Why this trial is known to fail in some runs and not in others, if it is.
    #[must_use]
    pub fn varies(&self, case: &str, trial: &str, seen: &str) -> Option<&str> {
        self.expected
            .iter()
            .find(|entry| entry.varies && entry.fits(case, trial, seen))
            .map(|entry| entry.why.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_profiles_name_cases_that_exist() {
        for (name, _) in OWN {
            let profile = Profile::load(name).unwrap();
            for expected in &profile.expected {
                let known = expected.case == ANY
                    || crate::cases::all()
                        .iter()
                        .any(|case| case.id == expected.case);
                assert!(known, "{name}: {}", expected.case);
            }
        }
    }

    const ONE: &str = r#"{"device":"x","expected":[
        {"case":"M05","trial":"257","seen":"reset","why":"y"},
        {"case":"M06","trial":"*","seen":"Terminate 0/*, * octets of headers","why":"t"},
        {"case":"*","trial":"*","seen":"end of stream","at_most":2,"varies":true,"why":"z"}]}"#;

    #[test]
    fn a_trial_is_expected_by_case_name_and_reaction() {
        let profile = Profile::parse("x", ONE).unwrap();
        let of = |case, trial, seen| profile.expects(case, trial, seen).map(|one| &one.why[..]);
        assert_eq!(of("M05", "257 octets", "reset"), Some("y"));
        assert_eq!(of("M05", "257 octets", "nothing"), None, "news");
        assert_eq!(of("M05", "256 octets", "reset"), None);
        assert_eq!(of("M06", "257 octets", "reset"), None);
        assert_eq!(
            of("M06", "any", "Terminate 0/1/01, 20 octets of headers"),
            Some("t")
        );
        assert_eq!(
            of("M06", "any", "Terminate 1/1/01, 20 octets of headers"),
            None
        );
        assert_eq!(
            of(
                "M06",
                "any",
                "Terminate 0/1/01, 20 octets of headers; reset"
            ),
            None
        );
    }

    #[test]
    fn what_any_case_may_show_is_bounded() {
        let profile = Profile::parse("x", ONE).unwrap();
        for expected in [true, true, false] {
            let found = profile.expects("M07", "anything", "end of stream");
            assert_eq!(found.is_some(), expected);
        }
        assert_eq!(
            profile.varies("M07", "anything", "end of stream"),
            Some("z")
        );
        assert_eq!(profile.varies("M05", "257 octets", "reset"), None);
    }

    #[test]
    fn an_entry_that_would_hide_news_is_refused() {
        for (from, to) in [
            (r#""case":"M05""#, r#""case":"""#),
            (r#""trial":"257""#, r#""trial":"""#),
            (r#""seen":"reset""#, r#""seen":"*""#),
            (r#""at_most":2,"#, ""),
        ] {
            let refused = Profile::parse("x", &ONE.replace(from, to));
            assert!(matches!(refused, Err(ProfileError::Vague(..))), "{from}");
        }
        let refused = Profile::parse("x", &ONE.replace(r#""seen":"reset","#, ""));
        assert!(matches!(refused, Err(ProfileError::Json(..))));
    }
}
