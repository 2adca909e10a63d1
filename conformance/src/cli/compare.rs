//! `dgiwarp-conform compare`.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};

use super::{EXIT_FINDINGS, Failed, quiet, usage};
use crate::profile::Profile;
use crate::report::{self, Difference};

#[derive(Debug, Args)]
pub(super) struct CompareArgs {
    /// Results of the first run, as --json wrote them
    first: PathBuf,
    /// Results of the second run
    second: PathBuf,
    /// Names what is known to vary between runs: siw, or a file
    #[arg(long, value_name = "NAME|FILE")]
    profile: Option<String>,
    /// Compare reactions that passed too
    #[arg(long)]
    all: bool,
    /// As JSON
    #[arg(long)]
    json: bool,
}

fn read(path: &Path) -> Result<Value, Failed> {
    let wrong = |error: String| usage(format!("{}: {error}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
    let document: Value = serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
    if report::runs(&document)
        .iter()
        .any(|run| !run["cases"].is_array())
    {
        return Err(wrong("no results of dgiwarp-conform run --json".to_owned()));
    }
    Ok(document)
}

pub(super) fn compare(args: &CompareArgs) -> Result<ExitCode, Failed> {
    let profile = args.profile.as_deref().map(Profile::load);
    let profile = profile.transpose().map_err(usage)?;
    let (first, second) = (read(&args.first)?, read(&args.second)?);
    let (first, second) = (report::runs(&first), report::runs(&second));
    if first.len() != second.len() {
        return Err(usage(format!(
            "{} devices in the first, {} in the second",
            first.len(),
            second.len()
        )));
    }
    let mut news = false;
    let mut documents = Vec::new();
    let mut out = io::stdout().lock();
    for (first, second) in first.iter().zip(&second) {
        let all = report::compare(first, second, profile.as_ref(), args.all);
        news |= all.iter().any(|one| one.known.is_none());
        if args.json {
            documents.push(document(first, second, &all));
        } else {
            quiet(text(&mut out, first, second, &all))?;
        }
    }
    if args.json {
        quiet(writeln!(out, "{:#}", Value::Array(documents)))?;
    }
    Ok(if news {
        ExitCode::from(EXIT_FINDINGS)
    } else {
        ExitCode::SUCCESS
    })
}

fn document(first: &Value, second: &Value, all: &[Difference]) -> Value {
    let rows: Vec<_> = all
        .iter()
        .map(|one| {
            json!({
                "case": one.case, "trial": one.trial, "first": one.first, "second": one.second, "varies": one.known,
            })
        })
        .collect();
    json!({ "first": first["target"], "second": second["target"], "differences": rows })
}

fn text(out: &mut impl Write, first: &Value, second: &Value, all: &[Difference]) -> io::Result<()> {
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let name = |run: &Value| format!("{} {}", word(&run["target"]), word(&run["device"]));
    let (one, other) = (name(first), name(second));
    writeln!(out, "{} and {}", one.trim(), other.trim())?;
    for field in ["tester", "options"] {
        if first[field] != second[field] {
            writeln!(out, "  {field}: {} / {}", first[field], second[field])?;
        }
    }
    let (known, news): (Vec<_>, Vec<_>) = all.iter().partition(|one| one.known.is_some());
    for (title, list) in [("differences", news), ("known to vary", known)] {
        if list.is_empty() {
            continue;
        }
        writeln!(out, "{title}:")?;
        for one in list {
            let trial = if one.trial.is_empty() {
                String::new()
            } else {
                format!(", {}", one.trial)
            };
            writeln!(out, "  {}{trial}", one.case)?;
            writeln!(out, "    first   {}", one.first)?;
            writeln!(out, "    second  {}", one.second)?;
            if let Some(why) = &one.known {
                writeln!(out, "    because {why}")?;
            }
        }
    }
    let known = all.iter().filter(|one| one.known.is_some()).count();
    writeln!(
        out,
        "{} differences, {known} more that are known to vary",
        all.len() - known
    )
}
