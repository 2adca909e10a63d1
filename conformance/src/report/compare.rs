//! Differences between the results of two runs.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::profile::Profile;

/// One thing that two runs do not have in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The case.
    pub case: String,
    /// The trial; empty for what is about all of the case.
    pub trial: String,
    /// The first run's result.
    pub first: String,
    /// The second run's.
    pub second: String,
    /// Why runs are known to differ in it, if they are.
    pub known: Option<String>,
}

/// Results of one device, whole or as one of several in a document.
#[must_use]
pub fn runs(document: &Value) -> Vec<&Value> {
    match document["runs"].as_array() {
        Some(runs) => runs.iter().collect(),
        None => vec![document],
    }
}

/// A trial's name, and which of those of that name it is.
type Trial = (String, usize);

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn cases(run: &Value) -> BTreeMap<String, &Value> {
    let all = run["cases"].as_array().into_iter().flatten();
    all.map(|case| (text(&case["case"]), case)).collect()
}

/// Trials with their reaction; of those that passed, nothing unless all are asked for.
fn trials(case: &Value, all: bool) -> BTreeMap<Trial, String> {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let mut trials = BTreeMap::new();
    for trial in case["trials"].as_array().into_iter().flatten() {
        let name = text(&trial["trial"]);
        let number = seen.entry(name.clone()).or_insert(0);
        *number += 1;
        let reaction = text(&trial["device"]);
        let passed = trial["pass"] == true;
        let unknown = trial["inconclusive"] == true;
        let what = match (passed, all) {
            (true, false) => "pass".to_owned(),
            (true, true) => format!("pass: {reaction}"),
            (false, _) if unknown => format!("inconclusive: {reaction}"),
            (false, _) => format!("fail: {reaction}"),
        };
        trials.insert((name, *number), what);
    }
    trials
}

/// Differences of two runs, by case. `all` compares reactions that passed too.
#[must_use]
pub fn compare(
    first: &Value,
    second: &Value,
    profile: Option<&Profile>,
    all: bool,
) -> Vec<Difference> {
    let (first, second) = (cases(first), cases(second));
    let names: BTreeSet<_> = first.keys().chain(second.keys()).collect();
    let mut differences = Vec::new();
    for name in names {
        match (first.get(name), second.get(name)) {
            (Some(first), Some(second)) => {
                differences.extend(of_case(name, first, second, profile, all));
            }
            (first, second) => {
                let word = |side: Option<&&Value>| {
                    side.map_or_else(|| "not in this run".to_owned(), |case| outcome(case))
                };
                differences.push(Difference {
                    case: name.clone(),
                    trial: String::new(),
                    first: word(first),
                    second: word(second),
                    known: None,
                });
            }
        }
    }
    differences
}

fn outcome(case: &Value) -> String {
    let outcome = text(&case["outcome"]);
    let reason = text(&case["reason"]);
    if outcome == "skipped" && !reason.is_empty() {
        return format!("{outcome}: {reason}");
    }
    outcome
}

fn of_case(
    name: &str,
    first: &Value,
    second: &Value,
    profile: Option<&Profile>,
    all: bool,
) -> Vec<Difference> {
    let mut differences = Vec::new();
    let (old, new) = (trials(first, all), trials(second, all));
    let names: BTreeSet<_> = old.keys().chain(new.keys()).collect();
    for trial in names {
        let side = |trials: &BTreeMap<Trial, String>| {
            let what = trials.get(trial).cloned();
            what.unwrap_or_else(|| "not tried".to_owned())
        };
        let (first, second) = (side(&old), side(&new));
        if first == second {
            continue;
        }
        // Each side that did not pass has to be known to vary.
        let failed: Vec<_> = [&first, &second]
            .into_iter()
            .filter_map(|side| {
                side.strip_prefix("fail: ")
                    .or_else(|| side.strip_prefix("inconclusive: "))
            })
            .collect();
        let why: Vec<_> = failed
            .iter()
            .filter_map(|seen| profile?.varies(name, &trial.0, seen))
            .collect();
        let known = (!failed.is_empty() && why.len() == failed.len())
            .then(|| why.first().map(|why| (*why).to_owned()))
            .flatten();
        differences.push(Difference {
            case: name.to_owned(),
            trial: trial.0.clone(),
            first,
            second,
            known,
        });
    }
    // A case may end with its first failure: a failure that is known to vary explains what one run tried behind it and the other did not.
    let ended = differences.iter().find_map(|one| one.known.clone());
    for one in &mut differences {
        let sides = [one.first.as_str(), one.second.as_str()];
        if one.known.is_none() && sides.contains(&"not tried") && sides.contains(&"pass") {
            one.known.clone_from(&ended);
        }
    }
    let (old, new) = (outcome(first), outcome(second));
    if old != new {
        // Known trials explain the outcome of their case.
        let known = differences
            .iter()
            .map(|difference| difference.known.clone())
            .reduce(|one, other| one.and(other))
            .flatten();
        differences.push(Difference {
            case: name.to_owned(),
            trial: String::new(),
            first: old,
            second: new,
            known,
        });
    }
    let version = |case: &Value| case["version"].as_u64();
    if version(first) != version(second) {
        let word = |case| version(case).map_or_else(|| "none".to_owned(), |n| n.to_string());
        differences.push(Difference {
            case: name.to_owned(),
            trial: String::new(),
            first: format!("version {}", word(first)),
            second: format!("version {}", word(second)),
            known: None,
        });
    }
    differences
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn run(outcome: &str, trials: &[(&str, bool, &str)]) -> Value {
        let trials: Vec<_> = trials
            .iter()
            .map(|(trial, pass, device)| json!({"trial": trial, "pass": pass, "device": device}))
            .collect();
        json!({"cases": [{"case": "M02", "version": 1, "outcome": outcome, "reason": "", "trials": trials}]})
    }

    fn found(first: &Value, second: &Value, profile: Option<&Profile>) -> Vec<(String, bool)> {
        compare(first, second, profile, false)
            .into_iter()
            .map(|it| {
                (
                    format!("{}: {} / {}", it.trial, it.first, it.second),
                    it.known.is_some(),
                )
            })
            .collect()
    }

    #[test]
    fn equal_runs_have_no_difference_and_others_each_of_theirs() {
        let first = run("pass", &[("a", true, "x"), ("a", true, "x")]);
        assert!(found(&first, &first, None).is_empty());
        let other = run("pass", &[("a", true, "y"), ("a", true, "x")]);
        assert!(found(&first, &other, None).is_empty(), "both are allowed");
        assert_eq!(compare(&first, &other, None, true).len(), 1);
        let bad = run("fail", &[("a", true, "x"), ("a", false, "reset")]);
        let differences = found(&first, &bad, None);
        assert_eq!(differences[0], ("a: pass / fail: reset".to_owned(), false));
        assert_eq!(differences[1], (": pass / fail".to_owned(), false));
        let none = json!({"cases": []});
        assert_eq!(found(&first, &none, None)[0].0, ": pass / not in this run");
        let mut newer = first.clone();
        newer["cases"][0]["version"] = 2.into();
        assert_eq!(found(&first, &newer, None)[0].0, ": version 1 / version 2");
    }

    #[test]
    fn a_difference_that_is_known_to_vary_is_named() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = r#"{"device":"x","expected":[
            {"case":"M02","trial":"a","seen":"reset","varies":true,"why":"now and then"}]}"#;
        std::fs::write(file.path(), text).unwrap();
        let profile = Profile::load(file.path().to_str().unwrap()).unwrap();
        let good = run("pass", &[("a", true, "x"), ("b", true, "x")]);
        let known = run("expected-fail", &[("a", false, "reset"), ("b", true, "x")]);
        assert!(
            found(&good, &known, Some(&profile))
                .iter()
                .all(|(_, known)| *known)
        );
        let mut unknown = run("inconclusive", &[("a", false, "reset"), ("b", true, "x")]);
        unknown["cases"][0]["trials"][0]["inconclusive"] = true.into();
        let differences = found(&good, &unknown, Some(&profile));
        assert!(differences.len() == 2 && differences.iter().all(|(_, known)| *known));
        let ended = run("expected-fail", &[("a", false, "reset")]);
        let differences = found(&good, &ended, Some(&profile));
        assert!(differences.len() == 3 && differences.iter().all(|(_, known)| *known));
        let news = run("fail", &[("a", false, "reset"), ("b", false, "reset")]);
        let differences = found(&good, &news, Some(&profile));
        assert_eq!(
            differences
                .iter()
                .map(|(_, known)| *known)
                .collect::<Vec<_>>(),
            [true, false, false]
        );
    }
}
