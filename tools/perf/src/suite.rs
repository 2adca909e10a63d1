//! Every quantity that dgiwarp has a goal for, measured in one run (`--suite`).
//!
//! [`quantities`] lists the bars, [`plan`] the rounds behind each. The groups of each place ([`places`]) run in
//! a process of their own ([`part`]), so that a failure takes no other group with it; [`results`] judges the
//! rounds, and [`report`] writes the verdicts.

pub(crate) mod part;
mod places;
mod plan;
pub(crate) mod quantities;
mod report;
mod results;

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use crate::cli::{Cli, RunArgs};
use crate::error::{IoContext, PerfError, Result};
use crate::machine::clock;
use crate::machine::host::{Host, Side, Wait};
use crate::machine::interrupt::Interrupt;
use crate::programs;
use crate::run::figures::Series;
use crate::run::progress::Progress;
use crate::session::process::{Process, own_program};
use crate::suite::part::{Event, Task};
use crate::suite::places::Site;
use crate::suite::plan::{Pace, Place, Planned};
use crate::suite::report::Document;
use crate::suite::results::{Recorded, judge, not_measured};

/// The report of a run.
const DEFAULT_HTML: &str = "dgiwarp-perf-suite.html";
/// Interval of checks for an interrupt.
const LOOK: Duration = Duration::from_millis(100);
/// A group may take this many times as long as planned, and this much longer.
const PATIENCE: (u32, Duration) = (8, Duration::from_secs(60));

/// State and results of the run.
struct Suite<'a> {
    args: &'a RunArgs,
    interrupt: Interrupt,
    progress: Progress,
    host: Host,
    recorded: Vec<Recorded>,
    /// Groups without a result, and why.
    failed: Vec<(String, String)>,
    notes: Vec<String>,
    /// Something went wrong that has nothing to do with what the machine has.
    broken: bool,
}

/// Measures, and reports; also after an interrupt.
pub(crate) fn run(cli: &Cli) -> Result<()> {
    let args = &cli.run;
    if let Some(unknown) = cli.only.iter().find(|id| quantities::find(id).is_none()) {
        return Err(PerfError::Usage(format!(
            "there is no quantity {unknown} (see --suite --list)"
        )));
    }
    let pace = Pace {
        quick: args.quick,
        rounds: args.rounds,
    };
    let groups = plan::groups(pace, &cli.only);
    let total: Duration = groups.iter().map(|it| it.group.duration()).sum();
    let interrupt = Interrupt::install()?;
    eprintln!(
        "dgiwarp-perf: {} groups, about {:.0} min",
        groups.len(),
        (total.as_secs_f64() / 60.0).ceil()
    );
    let mut suite = Suite {
        args,
        interrupt,
        progress: Progress::new(total),
        host: Host::read(),
        recorded: Vec::new(),
        failed: Vec::new(),
        notes: Vec::new(),
        broken: false,
    };
    if suite.host.is_busy() {
        suite.note(format!(
            "the machine is busy (load {:.1} on {} CPUs): judge by nothing but ratios",
            suite.host.load, suite.host.cores
        ));
    }
    let outcome = suite.places(&groups);
    suite.progress.clear();
    suite.report(&groups)?;
    outcome?;
    match suite.broken {
        true => Err(PerfError::PeerFailed(
            "some groups have no result".to_owned(),
        )),
        false => Ok(()),
    }
}

impl Suite<'_> {
    fn note(&mut self, text: String) {
        self.progress
            .aside(|| eprintln!("dgiwarp-perf: note: {text}"));
        self.notes.push(text);
    }

    /// One place after the other, each made once.
    fn places(&mut self, groups: &[Planned]) -> Result<()> {
        for place in [Place::Lo, Place::Veth, Place::Wire] {
            let here: Vec<&Planned> = groups.iter().filter(|group| group.place == place).collect();
            if here.is_empty() {
                continue;
            }
            match Site::make(place) {
                Ok(site) => {
                    // Memory that another group freed would count as free for the peers.
                    let (alone, together): (Vec<&Planned>, Vec<&Planned>) = here
                        .into_iter()
                        .partition(|group| group.group.counts_memory());
                    self.parts(&site, &together)?;
                    for group in alone {
                        self.parts(&site, &[group])?;
                    }
                }
                Err(reason) => {
                    for group in here {
                        self.progress.advance(group.group.duration());
                        self.failed.push((group.group.name.clone(), reason.clone()));
                    }
                    self.note(reason);
                }
            }
        }
        Ok(())
    }

    /// Runs these groups; what a failed one leaves is run by another process.
    fn parts(&mut self, site: &Site, groups: &[&Planned]) -> Result<()> {
        let mut left = groups;
        while let [next, ..] = left {
            let before = self.recorded.len();
            let outcome = self.part(site, left);
            let done = self.recorded.len() - before;
            let rest = left.get(done..).unwrap_or(&[]);
            match (outcome, rest) {
                (Err(PerfError::Interrupted), _) => return Err(PerfError::Interrupted),
                (Err(error), [failed, rest @ ..]) => {
                    self.broken = true;
                    self.progress.advance(failed.group.duration());
                    self.failed
                        .push((failed.group.name.clone(), error.to_string()));
                    self.note(format!("{}: {error}", failed.group.name));
                    left = rest;
                }
                (Err(error), []) => {
                    self.note(format!("after {}: {error}", next.group.name));
                    left = &[];
                }
                (Ok(()), rest) => left = rest,
            }
        }
        Ok(())
    }

    /// One process for these groups, and its server.
    fn part(&mut self, site: &Site, groups: &[&Planned]) -> Result<()> {
        let program = own_program()?;
        let command = site.command(Side::Server, &program);
        let (_server, port) = Process::server(command, site.address())?;
        let task = Task {
            host: site.address().to_owned(),
            port,
            pins: self.args.pins(),
            runner: programs::runner(None).ok(),
            groups: groups.iter().map(|it| it.group.clone()).collect(),
        };
        let mut client = start(site.command(Side::Client, &program), &task)?;
        let events = events(&mut client)?;
        for Planned { place, group, .. } in groups {
            self.progress.show(&group.name);
            let limit = group.duration() * PATIENCE.0 + PATIENCE.1;
            let members = self.next(&events, limit, &mut client)?;
            self.recorded.push(Recorded {
                group: group.name.clone(),
                place: *place,
                members,
            });
            self.progress.advance(group.duration());
        }
        Ok(())
    }

    /// The rounds that the client measured next.
    fn next(
        &mut self,
        events: &Receiver<String>,
        limit: Duration,
        client: &mut Process,
    ) -> Result<Vec<Series>> {
        let deadline = clock::now() + limit;
        loop {
            self.interrupt.check()?;
            let line = match events.recv_timeout(LOOK) {
                Ok(line) => line,
                Err(RecvTimeoutError::Timeout) if clock::now() < deadline => continue,
                Err(RecvTimeoutError::Timeout) => return Err(PerfError::PeerSilent(limit)),
                Err(RecvTimeoutError::Disconnected) => return Err(client.failure()),
            };
            let event = serde_json::from_str(&line);
            match event.map_err(|error| PerfError::Protocol(error.to_string()))? {
                Event::Done(series) => return Ok(series),
                Event::Ready { pinned, wait } => {
                    self.host.pinned = pinned;
                    let text =
                        "both sides sleep while they wait, since they have no CPU each to spin on";
                    if wait == Wait::Block && !self.notes.iter().any(|note| note == text) {
                        self.note(text.to_owned());
                    }
                }
            }
        }
    }

    /// Judges every case, and writes what was asked for.
    fn report(&self, groups: &[Planned]) -> Result<()> {
        let mut rows = Vec::new();
        for quantity in quantities::QUANTITIES {
            for group in groups {
                for case in group.cases.iter().filter(|it| it.quantity == quantity.id) {
                    let recorded = self.recorded.iter().find(|it| it.group == group.group.name);
                    let why = self
                        .failed
                        .iter()
                        .find(|(name, _)| *name == group.group.name);
                    let why = why.map_or("interrupted", |(_, reason)| reason);
                    rows.push(match recorded {
                        Some(recorded) => judge(quantity, case, recorded),
                        None => not_measured(quantity, case, &group.group.name, why.to_owned()),
                    });
                }
            }
        }
        let document = Document::new(&self.host, &self.notes, &rows, &self.recorded);
        let to_stdout = self.args.json_on_stdout();
        if let Some(path) = &self.args.json {
            crate::report::json::write(&document, path)?;
        }
        if !to_stdout {
            print!("{}", report::table(&rows));
        }
        let html = self
            .args
            .html
            .as_deref()
            .unwrap_or_else(|| Path::new(DEFAULT_HTML));
        std::fs::write(html, report::html(&document, groups)).during("write the HTML report")?;
        eprintln!("dgiwarp-perf: report with plots in {}", html.display());
        Ok(())
    }
}

/// Starts a part with its task.
fn start(mut command: Command, task: &Task) -> Result<Process> {
    let child = command
        .arg("part")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let mut client = Process(child.during("start the client process")?);
    let text = serde_json::to_vec(task).map_err(|error| PerfError::Protocol(error.to_string()))?;
    if let Some(mut stdin) = client.0.stdin.take() {
        stdin.write_all(&text).during("send the client its task")?;
    }
    Ok(client)
}

/// The lines of a part, read by a thread so that waiting for them can end.
fn events(client: &mut Process) -> Result<Receiver<String>> {
    let stdout = client.0.stdout.take().ok_or(PerfError::PeerGone)?;
    let (sender, receiver) = channel();
    let read = move |stdout: ChildStdout| {
        for line in BufReader::new(stdout)
            .lines()
            .map_while(std::io::Result::ok)
        {
            if sender.send(line).is_err() {
                break;
            }
        }
    };
    thread::spawn(move || read(stdout));
    Ok(receiver)
}
