//! A whole run from the client's point of view: the server process of a local run, the groups
//! one after the other, and the reports.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::cli::{ClientArgs, DEFAULT_RECEIVE_BUFFER, PinPair, RunArgs};
use crate::client::Session;
use crate::clock::{self, seconds};
use crate::error::{IoContext, PerfError, Result};
use crate::host::{Host, Pin, Placement, Side, Wait, allowed_cpus, choose_wait};
use crate::interrupt::Interrupt;
use crate::pattern;
use crate::plan::{self, Group};
use crate::progress::Progress;
use crate::report::{Report, html, json, table};
use crate::run::{self, Settings};

/// Where a local run leaves its report.
const DEFAULT_HTML: &str = "dgiwarp-perf-report.html";

/// Measures against the server on another machine.
pub(crate) fn remote(args: &ClientArgs) -> Result<()> {
    let groups = plan::without_fanout(plan::groups(&args.run)?)?;
    let interrupt = Interrupt::install()?;
    measure(&args.run, &args.host, args.port, &groups, interrupt, None)
}

/// Starts a server on this machine and measures against it.
pub(crate) fn local(args: &RunArgs) -> Result<()> {
    let groups = plan::groups(args)?;
    let interrupt = Interrupt::install()?;
    let (server, port) = OwnServer::start()?;
    let html = args.html.is_none().then(|| Path::new(DEFAULT_HTML));
    let outcome = measure(args, "127.0.0.1", port, &groups, interrupt, html);
    drop(server);
    outcome
}

/// The server process of a local run; it ends with this value.
struct OwnServer(Child);

impl OwnServer {
    fn start() -> Result<(Self, u16)> {
        let program = std::env::current_exe().during("find this program's file")?;
        let mut child = Command::new(program)
            .args(["server", "--child", "--bind", "127.0.0.1", "--port", "0"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .during("start the server process")?;
        let stdout = child.stdout.take();
        let server = Self(child);
        let mut line = String::new();
        if let Some(stdout) = stdout {
            BufReader::new(stdout)
                .read_line(&mut line)
                .during("read from the server process")?;
        }
        let port = line
            .trim()
            .rsplit(':')
            .next()
            .and_then(|port| port.parse().ok());
        match port {
            Some(port) => Ok((server, port)),
            None => Err(PerfError::PeerFailed(
                "the server process did not start".to_owned(),
            )),
        }
    }
}

impl Drop for OwnServer {
    fn drop(&mut self) {
        // It ends by itself when the control connection closes; this is for the other cases.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn measure(
    args: &RunArgs,
    host: &str,
    port: u16,
    groups: &[Group],
    interrupt: Interrupt,
    html_default: Option<&Path>,
) -> Result<()> {
    let mut report = Report {
        host: Host::read(),
        rows: Vec::new(),
        notes: Vec::new(),
    };
    let pins = args.pin.unwrap_or(PinPair {
        client: Pin::Auto,
        server: Pin::Auto,
    });
    let allowed = allowed_cpus()?;
    let (mut session, server) = Session::connect(host, port, pins.server, interrupt)?;
    let client = Placement::pin(&allowed, pins.client, Side::Client)?;
    report.host.pinned = client.pinned.zip(server.pinned);
    let wait = args.wait.unwrap_or_else(|| choose_wait(&client, &server));
    announce(groups, wait, &mut report);

    let settings = Settings {
        wait,
        check: args.check,
        receive_buffer: usize::try_from(args.rcvbuf.unwrap_or(DEFAULT_RECEIVE_BUFFER))
            .unwrap_or(usize::MAX),
        window: args.window,
        mtu: args.mtu,
        seed: args.seed,
        deadline: None,
        behind: false,
    };
    let outcome = execute(&mut session, groups, &settings, args, &mut report);
    match outcome {
        Ok(()) | Err(PerfError::Interrupted) => {
            write_reports(args, html_default, &report)?;
            outcome
        }
        Err(error) => Err(error),
    }
}

/// Says how long it will take, and under which conditions, on standard error.
fn announce(groups: &[Group], wait: Wait, report: &mut Report) {
    let time = plan::duration(groups) + Duration::from_millis(500);
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
}

/// Several receivers sleep while they wait unless each has a CPU; then all rows that are compared with theirs do.
fn wait_of_all(groups: &[Group], group: &Group, wait: Wait, report: &mut Report) -> Wait {
    if group.fanout.is_none() || wait == Wait::Block {
        return wait;
    }
    let receivers = groups.iter().filter_map(|group| group.fanout);
    let most = receivers.map(|fanout| fanout.receivers).max().unwrap_or(1);
    let (sides, cores) = (u64::from(most) + 1, report.host.cores);
    if sides <= pattern::widen(cores) {
        return wait;
    }
    let text = format!("fanout: {sides} processes on {cores} CPUs, so all sleep while they wait");
    if !report.notes.contains(&text) {
        note(report, text);
    }
    Wait::Block
}

fn note(report: &mut Report, text: String) {
    eprintln!("dgiwarp-perf: note: {text}");
    report.notes.push(text);
}

/// Runs all groups; the rows of each are printed when it is done.
fn execute(
    session: &mut Session,
    groups: &[Group],
    settings: &Settings,
    args: &RunArgs,
    report: &mut Report,
) -> Result<()> {
    let mut progress = Progress::new(plan::duration(groups));
    let mut heading = None;
    let mut rest = plan::duration(groups);
    let deadline = clock::now() + args.time_limit();
    let bounded = args.iters.is_none() && args.rounds.is_none();
    let mut servers = Vec::new();
    for group in groups {
        let receivers = group.fanout.map_or(1, |fanout| fanout.receivers);
        let wait = wait_of_all(groups, group, settings.wait, report);
        while pattern::widen(session.servers()) < u64::from(receivers) {
            let (server, port) = OwnServer::start()?;
            session.join("127.0.0.1", port, Pin::None)?;
            servers.push(server);
        }
        let what = format!("{} {}", group.mode.name(), crate::report::size(group.size));
        progress.show(&what);
        // Each group gets its share of the time that is left.
        let left = deadline.saturating_duration_since(clock::now());
        let share = seconds(group.duration()) / seconds(rest).max(1e-9);
        let behind = left < rest;
        rest = rest.saturating_sub(group.duration());
        let settings = Settings {
            wait,
            deadline: bounded.then(|| clock::now() + left.mul_f64(share.min(1.0))),
            behind,
            ..*settings
        };
        let outcome = run::group(session, group, &settings);
        progress.advance(group.duration());
        progress.clear();
        if !args.json_on_stdout() {
            let section = Some((group.mode, group.loss));
            if heading != section && !outcome.rows.is_empty() {
                heading = section;
                println!("{}", table::heading(group.mode, group.loss));
            }
            for row in &outcome.rows {
                println!("{}", table::line(row));
            }
        }
        report.rows.extend(outcome.rows);
        for text in outcome.notes {
            note(report, text);
        }
        outcome.result?;
    }
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
