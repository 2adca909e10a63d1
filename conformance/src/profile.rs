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
}

/// A file of expected failures.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// The device.
    pub device: String,
    /// What is known of it.
    pub expected: Vec<Expected>,
}

/// Trials that are known to fail.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expected {
    /// The case.
    pub case: String,
    /// What the trial's name contains; all trials without it.
    #[serde(default)]
    pub trial: String,
    /// What the device does instead, for the reader.
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
        serde_json::from_str(&text).map_err(|error| ProfileError::Json(name.to_owned(), error))
    }

    /// What is known of this trial.
    #[must_use]
    pub fn expects(&self, case: &str, trial: &str) -> Option<&Expected> {
        self.expected
            .iter()
            .find(|expected| expected.case == case && trial.contains(&expected.trial))
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
                let known = crate::cases::all()
                    .iter()
                    .any(|case| case.id == expected.case);
                assert!(known, "{name}: {}", expected.case);
                assert!(!expected.why.is_empty());
            }
        }
    }

    #[test]
    fn a_trial_is_expected_by_a_part_of_its_name() {
        let text = r#"{"device":"x","expected":[{"case":"M05","trial":"257","why":"y"}]}"#;
        let profile: Profile = serde_json::from_str(text).unwrap();
        assert!(profile.expects("M05", "257 octets").is_some());
        assert!(profile.expects("M05", "256 octets").is_none());
        assert!(profile.expects("M06", "257 octets").is_none());
    }
}
