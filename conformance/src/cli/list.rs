//! `dgiwarp-conform list`.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::{EXIT_FINDINGS, Failed, Select, quiet, write};
use crate::cases::Case;
use crate::clauses::Clauses;
use crate::report::book;

#[derive(Debug, Args)]
pub(super) struct ListArgs {
    #[command(flatten)]
    select: Select,
    /// As JSON
    #[arg(long)]
    json: bool,
    /// Write a page of the book for each case, and their index, into this folder
    #[arg(long, value_name = "FOLDER", hide = true, conflicts_with = "json")]
    book: Option<PathBuf>,
}

pub(super) fn list(args: &ListArgs) -> Result<ExitCode, Failed> {
    let clauses = Clauses::load().map_err(|error| (EXIT_FINDINGS, error.to_string()))?;
    let cases = args.select.selection()?.cases();
    if let Some(folder) = &args.book {
        std::fs::create_dir_all(folder).map_err(|error| (EXIT_FINDINGS, error.to_string()))?;
        for (name, text) in book::pages(&cases, &clauses) {
            write(&folder.join(name), text)?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let mut out = std::io::stdout().lock();
    let printed = if args.json {
        let rows: Vec<_> = cases.iter().map(|case| row(case, &clauses)).collect();
        serde_json::to_writer_pretty(&mut out, &rows)
            .map_err(std::io::Error::from)
            .and_then(|()| writeln!(out))
    } else {
        cases.iter().try_for_each(|case| {
            let clauses = case.clauses.join(", ");
            writeln!(out, "{:<4} {} ({clauses})", case.id, case.about)
        })
    };
    quiet(printed)?;
    Ok(ExitCode::SUCCESS)
}

fn row(case: &Case, clauses: &Clauses) -> serde_json::Value {
    let rules: Vec<_> = clauses
        .of_case(case.id)
        .map(|rule| rule.id.to_string())
        .collect();
    serde_json::json!({
        "case": case.id,
        "about": case.about,
        "family": book::word(case.family),
        "role": book::word(case.role),
        "needs": book::word(case.needs),
        "level": book::word(case.level),
        "version": case.version,
        "may_crash": case.may_crash,
        "slow": case.slow,
        "clauses": case.clauses,
        "rules": rules,
    })
}
