//! Single measurements: the server process of a local run, the groups one after the other, and the reports.

mod plan;
mod rows;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::cli::{ClientArgs, RunArgs};
use crate::endpoint::pattern;
use crate::error::{IoContext, PerfError, Result};
use crate::machine::clock;
use crate::machine::host::{Host, Pin, Wait};
use crate::machine::interrupt::Interrupt;
use crate::report::{Report, html, json, table};
use crate::run::group::Group;
use crate::run::progress::Progress;
use crate::run::{Bench, Limits};
use crate::session::client::At;
use crate::session::process::{Process, own_program};

/// The report of a local run.
const DEFAULT_HTML: &str = "dgiwarp-perf-report.html";
/// The address of both sides of a local run.
const HERE: &str = "127.0.0.1";

/// Measures against the server on another machine.
pub(crate) fn remote(args: &ClientArgs) -> Result<()> {
    let groups = plan::without_fanout(plan::groups(&args.run)?)?;
    let interrupt = Interrupt::install()?;
    let at = At {
        host: &args.host,
        port: args.port,
        token: &args.token,
    };
    measure(&args.run, at, groups, interrupt, None)
}

/// Starts a server on this machine and measures against it.
pub(crate) fn local(args: &RunArgs) -> Result<()> {
    let groups = plan::groups(args)?;
    let interrupt = Interrupt::install()?;
    let (server, port) = own_server()?;
    let html = args.html.is_none().then(|| Path::new(DEFAULT_HTML));
    let outcome = measure(args, At::own(HERE, port), groups, interrupt, html);
    drop(server);
    outcome
}

fn own_server() -> Result<(Process, u16)> {
    Process::server(Command::new(own_program()?), HERE)
}

fn measure(
    args: &RunArgs,
    server: At<'_>,
    groups: Vec<Group>,
    interrupt: Interrupt,
    html_default: Option<&Path>,
) -> Result<()> {
    let mut report = Report {
        host: Host::read(),
        rows: Vec::new(),
        notes: Vec::new(),
    };
    let mut bench = Bench::connect(server, args.pins(), args.wait, interrupt)?;
    report.host.pinned = bench.pinned;
    let groups = announce(groups, bench.wait, &mut report);
    let outcome = execute(&mut bench, &groups, args, &mut report);
    match outcome {
        Ok(()) | Err(PerfError::Interrupted) => {
            write_reports(args, html_default, &report)?;
            outcome
        }
        Err(error) => Err(error),
    }
}

/// Announces duration and conditions on standard error.
///
/// Several receivers sleep while they wait unless each has a CPU; then the groups with several receivers sleep, all
/// of them, since their rows are compared.
fn announce(groups: Vec<Group>, wait: Wait, report: &mut Report) -> Vec<Group> {
    let time = plan::duration(&groups) + Duration::from_millis(500);
    eprintln!(
        "dgiwarp-perf: {} groups of rows, about {:.0} s",
        groups.len(),
        time.as_secs_f64().ceil()
    );
    if report.host.is_busy() {
        let text = format!(
            "the machine is busy (load {:.1} on {} CPUs): streams suffer most, judge by ratios",
            report.host.load, report.host.cores
        );
        note(report, text);
    }
    if wait == Wait::Block {
        note(
            report,
            "both sides sleep while they wait, since they have no CPU each to spin on: \
             latencies include waking up"
                .to_owned(),
        );
    } else if report.host.pinned.is_none() {
        note(
            report,
            "not pinned: the scheduler may put both sides on one CPU".to_owned(),
        );
    }
    let receivers = groups.iter().filter_map(Group::receivers).max();
    let (sides, cores) = (u64::from(receivers.unwrap_or(0)) + 1, report.host.cores);
    if wait == Wait::Block || sides <= pattern::widen(cores) {
        return groups;
    }
    note(
        report,
        format!("fanout: {sides} processes on {cores} CPUs, so all sleep while they wait"),
    );
    let settled = |group: Group| match group.receivers() {
        Some(_) => group.sleeping(),
        None => group,
    };
    groups.into_iter().map(settled).collect()
}

fn note(report: &mut Report, text: String) {
    eprintln!("dgiwarp-perf: note: {text}");
    report.notes.push(text);
}

/// Runs all groups; the rows of each are printed when it is done.
fn execute(bench: &mut Bench, groups: &[Group], args: &RunArgs, report: &mut Report) -> Result<()> {
    let mut progress = Progress::new(plan::duration(groups));
    let mut heading = None;
    let mut rest = plan::duration(groups);
    let deadline = clock::now() + args.time_limit();
    let bounded = args.iters.is_none() && args.rounds.is_none();
    let mut servers = Vec::new();
    for group in groups {
        let receivers = group.receivers().unwrap_or(1);
        while pattern::widen(bench.session.servers()) < u64::from(receivers) {
            let (server, port) = own_server()?;
            bench.session.join(At::own(HERE, port), Pin::None)?;
            servers.push(server);
        }
        progress.show(&group.name);
        // Each group gets its share of the time that is left.
        let left = deadline.saturating_duration_since(clock::now());
        let share = group.duration().as_secs_f64() / rest.as_secs_f64().max(1e-9);
        let limits = Limits {
            deadline: bounded.then(|| clock::now() + left.mul_f64(share.min(1.0))),
            behind: left < rest,
        };
        rest = rest.saturating_sub(group.duration());
        let measured = bench.measure(group, limits);
        progress.advance(group.duration());
        let rows = rows::rows(group, &measured.series);
        let section = rows.first().map(|row| (row.mode, group.loss()));
        progress.aside(|| {
            if !args.json_on_stdout() && section.is_some() {
                print!("{}", table::text(&rows, heading != section));
            }
            for text in measured.notes {
                note(report, text);
            }
        });
        heading = section.or(heading);
        report.rows.extend(rows);
        measured.result?;
    }
    progress.clear();
    Ok(())
}

fn write_reports(args: &RunArgs, html_default: Option<&Path>, report: &Report) -> Result<()> {
    if let Some(path) = &args.json {
        json::write(&json::document(report), path)?;
    }
    if let Some(path) = args.html.as_deref().or(html_default) {
        fs::write(path, html::document(report)).during("write the HTML report")?;
        eprintln!("dgiwarp-perf: report with plots in {}", path.display());
    }
    Ok(())
}
