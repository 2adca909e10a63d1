//! The tables of clauses keep what they promise: every rule has a case, a test or a reason, and all of them exist.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use super::{By, Case, Clauses, Keyword, Reason};
use crate::cases::{self, Needs};

static CLAUSES: LazyLock<Clauses> =
    LazyLock::new(|| Clauses::load().expect("the tables are well-formed"));

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn assert_none(what: &str, wrong: &[String]) {
    assert!(wrong.is_empty(), "{what}:\n{}", wrong.join("\n"));
}

#[test]
fn every_rule_of_the_rfcs_has_its_row() {
    let mut rows: BTreeMap<(u16, &str, Keyword), usize> = BTreeMap::new();
    let mut last: Option<(u16, &str, u16)> = None;
    let mut wrong = Vec::new();
    for rule in &CLAUSES.rules {
        let (rfc, section, number) = (rule.id.rfc, rule.id.section.as_str(), rule.id.number);
        *rows.entry((rfc, section, rule.keyword)).or_default() += 1;
        // Numbers without gaps from one: no two rows have the same name.
        let expected = match last {
            Some((r, s, n)) if (r, s) == (rfc, section) => n + 1,
            _ => 1,
        };
        if number != expected {
            wrong.push(format!("{} should have number {expected}", rule.id));
        }
        last = Some((rfc, section, number));
    }
    for count in &CLAUSES.counts {
        for keyword in Keyword::ALL {
            let key = (count.rfc, count.section.as_str(), keyword);
            let found = rows.remove(&key).unwrap_or(0);
            if found != count.of(keyword) {
                wrong.push(format!(
                    "RFC {} §{}: {found} rows with {}, {} in the text",
                    count.rfc,
                    count.section,
                    keyword.word(),
                    count.of(keyword)
                ));
            }
        }
    }
    for (rfc, section, _) in rows.into_keys() {
        wrong.push(format!("RFC {rfc} §{section} has no line in counts.psv"));
    }
    assert_none("rows and counts differ", &wrong);
}

#[test]
fn every_rule_is_tested_or_has_a_reason() {
    let mut wrong = Vec::new();
    for rule in &CLAUSES.rules {
        let (case, test, reason) = (
            rule.cases().next().is_some(),
            rule.tests().next().is_some(),
            rule.reasons().next().is_some(),
        );
        let fits = match rule.by {
            By::Wire | By::Agent => case && !reason,
            By::Unit => test && !case && !reason,
            By::No => reason && !case && !test,
        };
        if !fits || rule.says.is_empty() {
            wrong.push(format!("{} ({})", rule.id, rule.by.word()));
        }
    }
    assert_none("rows whose evidence is not of the kind they say", &wrong);
}

#[test]
fn a_duplicate_names_another_rule() {
    let known: BTreeSet<_> = CLAUSES.rules.iter().map(|rule| &rule.id).collect();
    let mut wrong = Vec::new();
    for rule in &CLAUSES.rules {
        for reason in rule.reasons() {
            if let Reason::DuplicateOf(other) = reason
                && (!known.contains(other) || *other == rule.id)
            {
                wrong.push(format!("{}: {other}", rule.id));
            }
        }
    }
    assert_none("duplicates of nothing", &wrong);
}

#[test]
fn every_section_has_a_note() {
    let mut wrong = Vec::new();
    for count in &CLAUSES.counts {
        let note = format!("rfc-notes/rfc{}.md", count.rfc);
        let text = fs::read_to_string(root().join(&note)).expect("a note for every RFC");
        let heading = format!("### §{} ", count.section);
        if !text.lines().any(|line| line.starts_with(&heading)) {
            wrong.push(format!("{note}: §{}", count.section));
        }
    }
    assert_none("sections without a note", &wrong);
}

/// Whether a source has a test function of this name: attributes stand right above it, `#[test]` among them, or `over_each_llp!` lists it.
fn has_test(source: &str, name: &str) -> bool {
    let signature = format!("fn {name}(");
    let lines: Vec<_> = source.lines().map(str::trim).collect();
    let mut listed = lines
        .iter()
        .skip_while(|line| **line != "over_each_llp! {")
        .take_while(|line| **line != "}");
    if listed.any(|line| line.strip_suffix(',') == Some(name)) {
        return source.contains(&signature);
    }
    lines
        .iter()
        .enumerate()
        .filter(|(_, line)| line.starts_with(&signature))
        .any(|(at, _)| {
            lines[..at]
                .iter()
                .rev()
                .take_while(|line| line.starts_with("#[") || line.starts_with("//"))
                .any(|line| *line == "#[test]")
        })
}

#[test]
fn named_tests_exist() {
    let mut sources: BTreeMap<&str, String> = BTreeMap::new();
    let mut wrong = BTreeSet::new();
    for rule in &CLAUSES.rules {
        for test in rule.tests() {
            let source = sources
                .entry(&test.file)
                .or_insert_with(|| fs::read_to_string(root().join(&test.file)).unwrap_or_default());
            if !has_test(source, &test.name) {
                wrong.insert(test.to_string());
            }
        }
    }
    assert_none("no such tests", &wrong.into_iter().collect::<Vec<_>>());
}

#[test]
fn a_function_is_no_test_without_its_attribute() {
    let source =
        "#[test]\n// Why.\n#[ignore]\nfn a() {}\n\n#[test]\nfn b() {}\nfn c() {}\nfn ab() {}\n";
    assert!(has_test(source, "a") && has_test(source, "b"));
    assert!(!has_test(source, "c") && !has_test(source, "ab") && !has_test(source, "d"));
}

#[test]
fn named_cases_exist_or_are_planned() {
    let cases = cases::all();
    let known: BTreeSet<_> = cases.iter().map(|case| case.id).collect();
    let planned: BTreeSet<_> = CLAUSES.planned.iter().map(|p| p.case.as_str()).collect();
    assert_eq!(planned.len(), CLAUSES.planned.len(), "a case planned twice");
    let named: BTreeSet<_> = CLAUSES
        .rules
        .iter()
        .flat_map(|rule| rule.cases())
        .map(|Case(case)| case.as_str())
        .collect();
    let there: Vec<_> = known.intersection(&planned).collect();
    assert!(there.is_empty(), "planned and there: {there:?}");
    let nowhere: Vec<_> = named
        .difference(&known)
        .filter(|case| !planned.contains(*case))
        .collect();
    assert!(nowhere.is_empty(), "neither there nor planned: {nowhere:?}");
    let unused: Vec<_> = planned.difference(&named).collect();
    assert!(unused.is_empty(), "planned for no rule: {unused:?}");
}

#[test]
fn by_is_what_the_cases_need() {
    let cases = cases::all();
    let needs = |name: &str| cases.iter().find(|case| case.id == name).map(|c| c.needs);
    let mut wrong = Vec::new();
    for rule in &CLAUSES.rules {
        let needs: Vec<_> = rule.cases().map(|Case(name)| needs(name)).collect();
        let port = needs.contains(&Some(Needs::Port));
        let agents = needs.iter().all(|need| *need == Some(Needs::Agent));
        let fits = match rule.by {
            By::Wire => !agents,
            By::Agent => !port,
            By::Unit | By::No => true,
        };
        if !fits {
            wrong.push(format!("{} ({})", rule.id, rule.by.word()));
        }
    }
    assert_none("rows whose cases are of the other kind", &wrong);
}
