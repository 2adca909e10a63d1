//! `dgiwarp-conform clauses`: the rules of the RFCs and how they are tested.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Args as ClapArgs;
use serde::Serialize;
use thiserror::Error;

use super::shares::{self, BAR, Line, Now, Registry, Shares};
use super::{Clause, Clauses, TableError};

/// Print how the rules of the RFCs are tested.
#[derive(Debug, Clone, Default, ClapArgs)]
pub struct Args {
    /// Only this RFC, and each of its rules; repeatable.
    #[arg(long, value_name = "NUMBER")]
    pub rfc: Vec<u16>,
    /// Each rule that no case of the tester tests today.
    #[arg(long)]
    pub untested: bool,
    /// Only the rules that this case is about; repeatable.
    #[arg(long, value_name = "CASE")]
    pub case: Vec<String>,
    /// Print JSON: one object with `shares` and `clauses`.
    #[arg(long)]
    pub json: bool,
}

/// Why nothing was printed.
#[derive(Debug, Error)]
pub enum Error {
    /// The tables are not well-formed.
    #[error(transparent)]
    Table(#[from] TableError),
    /// There is no table of this RFC.
    #[error("there are no rules of RFC {0} here")]
    UnknownRfc(u16),
    /// Nobody reads.
    #[error(transparent)]
    Output(#[from] io::Error),
    /// Something cannot be JSON.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
}

/// Prints what was asked for to standard output. A reader that has gone is no failure.
///
/// # Errors
/// As [`run`].
pub fn main(args: &Args) -> Result<ExitCode, Error> {
    match run(args, &mut io::stdout().lock()) {
        Err(Error::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => {}
        Err(Error::Json(error)) if error.io_error_kind() == Some(io::ErrorKind::BrokenPipe) => {}
        done => done?,
    }
    Ok(ExitCode::SUCCESS)
}

/// A rule as JSON has it.
#[derive(Serialize)]
struct Rule<'a> {
    id: String,
    keyword: &'static str,
    tested: Now,
    says: &'a str,
    cases: Vec<&'a str>,
    tests: Vec<String>,
    reasons: Vec<&'static str>,
}

#[derive(Serialize)]
struct Document<'a> {
    shares: Vec<Line>,
    clauses: Vec<Rule<'a>>,
}

fn rule(clause: &Clause, tested: Now) -> Rule<'_> {
    Rule {
        id: clause.id.to_string(),
        keyword: clause.keyword.word(),
        tested,
        says: &clause.says,
        cases: clause.cases().map(|case| case.0.as_str()).collect(),
        tests: clause.tests().map(ToString::to_string).collect(),
        reasons: clause.reasons().map(|reason| reason.word()).collect(),
    }
}

/// Prints what was asked for.
///
/// # Errors
/// An RFC that there is no table of, or an output that does not take it.
pub fn run(args: &Args, out: &mut impl Write) -> Result<(), Error> {
    let clauses = Clauses::load()?;
    let known = clauses.rfcs();
    if let Some(unknown) = args.rfc.iter().find(|rfc| !known.contains(rfc)) {
        return Err(Error::UnknownRfc(*unknown));
    }
    let registry = Registry::of_all();
    let mut lines = shares::lines(&clauses);
    if !args.rfc.is_empty() {
        lines.retain(|line| line.rfc.is_some_and(|rfc| args.rfc.contains(&rfc)));
    }
    let asked = |clause: &&Clause| {
        (args.rfc.is_empty() || args.rfc.contains(&clause.id.rfc))
            && (args.case.is_empty() || clause.cases().any(|named| args.case.contains(&named.0)))
            && (!args.untested || !matches!(registry.now(clause), Now::Wire | Now::Agent))
    };
    let rules: Vec<_> = clauses
        .rules
        .iter()
        .filter(asked)
        .map(|clause| rule(clause, registry.now(clause)))
        .collect();
    if args.json {
        let document = Document {
            shares: lines,
            clauses: rules,
        };
        serde_json::to_writer_pretty(&mut *out, &document)?;
        writeln!(out)?;
        return Ok(());
    }
    if !args.rfc.is_empty() || args.untested || !args.case.is_empty() {
        print_rules(&rules, out)?;
    }
    if args.case.is_empty() {
        print_shares(&lines, out)?;
    }
    Ok(())
}

fn print_rules(rules: &[Rule<'_>], out: &mut impl Write) -> io::Result<()> {
    for rule in rules {
        let tested = match rule.tested {
            Now::Wire => "wire",
            Now::Agent => "agent",
            Now::Unit => "unit",
            Now::Planned => "planned",
            Now::No => "no",
        };
        let by: Vec<_> = rule
            .cases
            .iter()
            .copied()
            .chain(rule.tests.iter().map(String::as_str))
            .chain(rule.reasons.iter().copied())
            .collect();
        writeln!(
            out,
            "{:<14} {:<10} {tested:<8} {}\n{:34} {}",
            rule.id,
            rule.keyword,
            rule.says,
            "",
            by.join(" ")
        )?;
    }
    writeln!(out)
}

fn print_shares(lines: &[Line], out: &mut impl Write) -> io::Result<()> {
    writeln!(
        out,
        "{:<10} {:<9} {:>6} {:>6} {:>6} {:>6} {:>8} {:>6} {:>7}",
        "", "", "rules", "wire", "agent", "unit", "planned", "no", "tested"
    )?;
    for line in lines {
        let name = line
            .rfc
            .map_or_else(|| "the five".to_owned(), |rfc| format!("RFC {rfc}"));
        print_line(&name, "MUST", &line.strict, out)?;
        if line.lenient.rules > 0 {
            print_line("", "SHOULD", &line.lenient, out)?;
        }
    }
    writeln!(
        out,
        "\nTested: by wire or agent, in percent; at least {BAR} of the MUST and MUST NOT of the five RFCs of the protocol are to be."
    )
}

fn print_line(name: &str, keyword: &str, shares: &Shares, out: &mut impl Write) -> io::Result<()> {
    let no: usize = shares.no.values().sum();
    let reasons: Vec<_> = shares
        .no
        .iter()
        .map(|(word, count)| format!("{word} {count}"))
        .collect();
    writeln!(
        out,
        "{name:<10} {keyword:<9} {:>6} {:>6} {:>6} {:>6} {:>8} {no:>6} {:>6}%  {}",
        shares.rules,
        shares.wire,
        shares.agent,
        shares.unit,
        shares.planned,
        shares.percent(),
        reasons.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(args: &Args) -> String {
        let mut out = Vec::new();
        run(args, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn rules_are_chosen() {
        let of_case = printed(&Args {
            case: vec!["M02".to_owned()],
            ..Args::default()
        });
        assert!(of_case.contains("5044-7.1.1-2 "), "{of_case}");
        assert!(!of_case.contains("5044-4.1-1 "), "{of_case}");
        let wrong = Args {
            rfc: vec![959],
            ..Args::default()
        };
        assert!(matches!(
            run(&wrong, &mut Vec::new()),
            Err(Error::UnknownRfc(959))
        ));
    }

    #[test]
    fn json_has_every_rule() {
        let text = printed(&Args {
            json: true,
            ..Args::default()
        });
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        let rules = value["clauses"].as_array().unwrap();
        assert_eq!(rules.len(), Clauses::load().unwrap().rules.len());
        assert!(rules.iter().all(|rule| rule["id"].is_string()));
    }
}
