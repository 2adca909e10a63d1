//! Expected failures: what is known of a device, so that a run fails only on news.

use serde::Deserialize;
use std::path::Path;
use thiserror::Error;

/// Why there is no profile.
#[derive(Debug, Error)]
pub enum ProfileError {
    /// The file cannot be read.
    #[error("{0}: {1}")]
    Io(String, std::io::Error),
    /// It is no profile.
    #[error("{0}: {1}")]
    Json(String, serde_json::Error),
    /// An entry would expect every failure.
    #[error("{0}: an entry has neither \"case\" nor \"seen\"")]
    Everything(String),
}

/// A file of expected failures.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// The device.
    pub device: String,
    /// Known deviations.
    pub expected: Vec<Expected>,
}

/// Trials that are known to fail.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expected {
    /// The case; without it all cases, and then [`seen`](Self::seen) is needed.
    #[serde(default)]
    pub case: String,
    /// Part of the trial's name; all trials without it.
    #[serde(default)]
    pub trial: String,
    /// Whole reaction of the device in the report's words; any reaction without it.
    #[serde(default)]
    pub seen: String,
    /// Actual behaviour, for the reader.
    pub why: String,
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
        let everything = |entry: &Expected| entry.case.is_empty() && entry.seen.is_empty();
        if profile.expected.iter().any(everything) {
            return Err(ProfileError::Everything(name.to_owned()));
        }
        Ok(profile)
    }

    /// Known deviation of this trial, in which `seen` is the device's reaction.
    #[must_use]
    pub fn expects(&self, case: &str, trial: &str, seen: &str) -> Option<&Expected> {
        self.expected.iter().find(|expected| {
            (expected.case.is_empty() || expected.case == case)
                && trial.contains(&expected.trial)
                && (expected.seen.is_empty() || expected.seen == seen)
        })
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
                let known = expected.case.is_empty()
                    || crate::cases::all()
                        .iter()
                        .any(|case| case.id == expected.case);
                assert!(known, "{name}: {}", expected.case);
                assert!(!expected.why.is_empty());
            }
        }
    }

    const ONE: &str = r#"{"device":"x","expected":[
        {"case":"M05","trial":"257","why":"y"}, {"seen":"end of stream","why":"z"}]}"#;

    #[test]
    fn a_trial_is_expected_by_a_part_of_its_name() {
        let profile = Profile::parse("x", ONE).unwrap();
        assert!(profile.expects("M05", "257 octets", "reset").is_some());
        assert!(profile.expects("M05", "256 octets", "reset").is_none());
        assert!(profile.expects("M06", "257 octets", "reset").is_none());
    }

    #[test]
    fn a_trial_of_any_case_is_expected_by_what_was_seen() {
        let profile = Profile::parse("x", ONE).unwrap();
        let of = |seen| profile.expects("M06", "anything", seen);
        assert_eq!(of("end of stream").unwrap().why, "z");
        assert!(of("nothing; end of stream").is_none());
        assert!(of("").is_none(), "what happens to a whole case");
    }

    #[test]
    fn an_entry_does_not_expect_everything() {
        let text = ONE.replace("\"seen\"", "\"trial\"");
        let refused = Profile::parse("x", &text);
        assert!(matches!(refused, Err(ProfileError::Everything(_))));
    }
}
