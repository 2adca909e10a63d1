//! A page of the book for each case, from the same definitions as the cases themselves.

use core::fmt::Write as _;
use std::collections::BTreeMap;

use clap::ValueEnum;

use crate::cases::{Case, Family, Level, Needs, Role};
use crate::clauses::Clauses;

/// Name of a value on the command line and in results.
pub fn word(value: impl ValueEnum) -> String {
    value
        .to_possible_value()
        .map_or_else(String::new, |value| value.get_name().to_owned())
}

/// Subject of a family: the help of its value.
fn subject(family: Family) -> String {
    let help = family
        .to_possible_value()
        .and_then(|value| value.get_help().map(ToString::to_string));
    help.unwrap_or_else(|| word(family))
}

/// Files of the folder: `README.md`, the index, and one for each case.
#[must_use]
pub fn pages(cases: &[Case], clauses: &Clauses) -> Vec<(String, String)> {
    let mut pages = vec![("README.md".to_owned(), index(cases))];
    pages.extend(
        cases
            .iter()
            .map(|case| (format!("{}.md", case.id), page(case, clauses))),
    );
    pages
}

/// Lines of the book's summary, below the page that they belong to.
#[must_use]
pub fn summary(cases: &[Case]) -> String {
    let mut text = String::from("- [Cases of dgiwarp-conform](cases/README.md)\n");
    for case in cases {
        // Writing to a String cannot fail, here and below.
        let _ = writeln!(text, "  - [{}](cases/{0}.md)", case.id);
    }
    text
}

fn index(cases: &[Case]) -> String {
    let mut families: BTreeMap<Family, Vec<&Case>> = BTreeMap::new();
    for case in cases {
        families.entry(case.family).or_default().push(case);
    }
    let mut text = format!(
        "# Cases of dgiwarp-conform\n\nThe {} cases of [the conformance tester](../use/conform.md), one page each. `dgiwarp-conform list --book docs/cases` writes these pages.\n",
        cases.len()
    );
    for (family, cases) in families {
        let _ = write!(
            text,
            "\n## {}\n\n| case | subject | clauses |\n|---|---|---|\n",
            subject(family)
        );
        for case in cases {
            let _ = writeln!(
                text,
                "| [{id}]({id}.md) | {} | {} |",
                case.about,
                case.clauses.join(", "),
                id = case.id
            );
        }
    }
    text
}

fn page(case: &Case, clauses: &Clauses) -> String {
    let level = match case.level {
        Level::Must => "MUST: a deviation fails the run",
        Level::Should => "SHOULD: a deviation is reported and fails nothing",
    };
    let role = match case.role {
        _ if case.family == Family::Sent => "both",
        Role::Initiator => "Initiator: the tester connects to the device",
        Role::Responder => "Responder: the device connects to the tester",
    };
    let needs = match case.needs {
        _ if case.family == Family::Sent => "cases in which the device sends",
        Needs::Port => "a port that accepts RDMA connections",
        Needs::Agent => "the agent on the device",
    };
    let mut text = format!(
        "# {} {}\n\n| | |\n|---|---|\n| family | {} |\n| clauses | {} |\n| level | {level} |\n| role of the tester | {role} |\n| needs | {needs} |\n| version | {} |\n",
        case.id,
        case.about,
        subject(case.family),
        case.clauses.join(", "),
        case.version
    );
    let mut more = Vec::new();
    if case.may_crash {
        more.push((
            "--allow-crash",
            "Devices are known to crash by this case, their hosts included.",
        ));
    }
    if case.slow {
        more.push(("--slow", "It takes a minute or more."));
    }
    for (option, why) in &more {
        let _ = write!(text, "\n{why} It runs only with `{option}`.\n");
    }
    let rules: Vec<_> = clauses.of_case(case.id).collect();
    if !rules.is_empty() {
        text.push_str("\n## Rules\n\n");
        for rule in rules {
            let _ = writeln!(
                text,
                "- `{}` {}: {}",
                rule.id,
                rule.keyword.word(),
                rule.says
            );
        }
    }
    let options: String = more
        .iter()
        .map(|(option, _)| format!(" {option}"))
        .collect();
    let device = match case.needs {
        Needs::Port => "--target HOST:PORT",
        Needs::Agent => "--agent HOST:PORT --token TOKEN",
    };
    if case.family == Family::Sent {
        let _ = write!(
            text,
            "\nA rule of a sender: in each run it judges all that the device sends, whatever the cases are about, and `dgiwarp-conform lint` judges recorded traffic by it.\n\n## Run it\n\n```sh\ndgiwarp-conform run {device}\n```\n\n[All cases](README.md)\n"
        );
        return text;
    }
    let _ = write!(
        text,
        "\n## Run it\n\n```sh\ndgiwarp-conform run {device} --case {}{options}\n```\n\n[All cases](README.md)\n",
        case.id
    );
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;
    use crate::cases;

    /// The pages of the book are those of the cases as they are.
    #[test]
    fn the_book_has_a_fresh_page_for_each_case() {
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
        let advice = "cargo run -p dgiwarp-conform -- list --book docs/cases";
        let pages = pages(&cases::all(), &Clauses::load().unwrap());
        for (name, text) in &pages {
            let there = std::fs::read_to_string(docs.join("cases").join(name)).unwrap_or_default();
            assert!(*text == there, "{name} is old: {advice}");
        }
        let names: BTreeSet<_> = pages.iter().map(|(name, _)| name.clone()).collect();
        let files: BTreeSet<_> = std::fs::read_dir(docs.join("cases"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        assert_eq!(files, names, "{advice}");
        let listed = std::fs::read_to_string(docs.join("SUMMARY.md")).unwrap();
        let lines = summary(&cases::all());
        assert!(
            listed.contains(&lines),
            "docs/SUMMARY.md needs these lines:\n{lines}"
        );
    }
}
