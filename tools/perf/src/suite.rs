//! Every quantity that dgiwarp has a goal for, measured in one run (`--suite`).
//!
//! [`quantities`] says what is judged, [`runs`] which rounds give it. The groups of each place ([`places`]) run in
//! a process of their own ([`part`]), so that what fails takes no other group with it; [`results`] judges what they
//! recorded, and [`report`] writes it down.

pub(crate) mod part;
mod peers;
mod places;
pub(crate) mod quantities;
mod report;
mod results;
mod runs;
pub(crate) mod scale;

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use crate::cli::{Cli, PinPair, RunArgs};
use crate::clock;
use crate::error::{IoContext, PerfError, Result};
use crate::host::{Host, Pin, Side, Wait};
use crate::interrupt::Interrupt;
use crate::programs;
use crate::progress::Progress;
use crate::suite::part::{Event, Task};
use crate::suite::places::Site;
use crate::suite::report::Document;
use crate::suite::results::{Recorded, judge, not_measured};
use crate::suite::runs::{Group, Pace, Place};

/// Where a run leaves its report.
const DEFAULT_HTML: &str = "dgiwarp-perf-suite.html";
/// How often is looked for an interrupt.
const LOOK: Duration = Duration::from_millis(100);
/// A group may take this many times as long as planned, and this much longer.
const PATIENCE: (u32, Duration) = (8, Duration::from_secs(60));

/// What the run has so far.
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
    let groups = runs::groups(pace, &cli.only);
    let total: Duration = groups.iter().map(Group::duration).sum();
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
        self.progress.clear();
        eprintln!("dgiwarp-perf: note: {text}");
        self.notes.push(text);
    }

    /// One place after the other, each made once.
    fn places(&mut self, groups: &[Group]) -> Result<()> {
        for place in [Place::Lo, Place::Veth, Place::Wire] {
            let here: Vec<&Group> = groups.iter().filter(|group| group.place == place).collect();
            if here.is_empty() {
                continue;
            }
            match Site::make(place) {
                Ok(site) => {
                    // What others have freed would pass for memory that peers do not need.
                    let (alone, together): (Vec<&Group>, Vec<&Group>) =
                        here.into_iter().partition(|group| group.counts_memory());
                    self.parts(&site, &together)?;
                    for group in alone {
                        self.parts(&site, &[group])?;
                    }
                }
                Err(reason) => {
                    for group in here {
                        self.progress.advance(group.duration());
                        self.failed.push((group.name.clone(), reason.clone()));
                    }
                    self.note(reason);
                }
            }
        }
        Ok(())
    }

    /// Runs these groups; what a failed one leaves is run by another process.
    fn parts(&mut self, site: &Site, groups: &[&Group]) -> Result<()> {
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
                    self.progress.advance(failed.duration());
                    self.failed.push((failed.name.clone(), error.to_string()));
                    self.note(format!("{}: {error}", failed.name));
                    left = rest;
                }
                (Err(error), []) => {
                    self.note(format!("after {}: {error}", next.name));
                    left = &[];
                }
                (Ok(()), rest) => left = rest,
            }
        }
        Ok(())
    }

    /// One process for these groups, and its server.
    fn part(&mut self, site: &Site, groups: &[&Group]) -> Result<()> {
        let program = std::env::current_exe().during("find this program's file")?;
        let server = site
            .command(Side::Server, &program)
            .args(["server", "--child", "--bind", site.address(), "--port", "0"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn();
        let mut server = Started(server.during("start the server process")?);
        let port = server.port()?;
        let pins = self.args.pin.unwrap_or(PinPair {
            client: Pin::Auto,
            server: Pin::Auto,
        });
        let task = Task {
            host: site.address().to_owned(),
            port,
            pins: (pins.client, pins.server),
            runner: programs::runner(None).ok(),
            groups: groups.iter().copied().cloned().collect(),
        };
        let mut client = self.client(site.command(Side::Client, &program), &task)?;
        let events = client.events()?;
        for group in groups {
            self.progress.show(&group.name);
            let limit = group.duration() * PATIENCE.0 + PATIENCE.1;
            let recorded = self.next(&events, limit, &mut client)?;
            self.recorded.push(recorded);
            self.progress.advance(group.duration());
        }
        Ok(())
    }

    fn client(&self, mut command: Command, task: &Task) -> Result<Started> {
        let child = command
            .arg("part")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let mut client = Started(child.during("start the client process")?);
        let text =
            serde_json::to_vec(task).map_err(|error| PerfError::Protocol(error.to_string()))?;
        if let Some(mut stdin) = client.0.stdin.take() {
            stdin.write_all(&text).during("tell the client its task")?;
        }
        Ok(client)
    }

    /// What the client recorded next.
    fn next(
        &mut self,
        events: &Receiver<String>,
        limit: Duration,
        client: &mut Started,
    ) -> Result<Recorded> {
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
                Event::Done(recorded) => return Ok(recorded),
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
    fn report(&self, groups: &[Group]) -> Result<()> {
        let mut rows = Vec::new();
        for quantity in quantities::QUANTITIES {
            for group in groups {
                for case in group.cases.iter().filter(|it| it.quantity == quantity.id) {
                    let recorded = self.recorded.iter().find(|it| it.group == group.name);
                    let why = self.failed.iter().find(|(name, _)| *name == group.name);
                    let why = why.map_or("interrupted", |(_, reason)| reason);
                    rows.push(match recorded {
                        Some(recorded) => judge(quantity, case, recorded),
                        None => not_measured(quantity, case, &group.name, why.to_owned()),
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

/// A process that does not outlive this value.
struct Started(Child);

impl Started {
    /// The port that a server says it listens on.
    fn port(&mut self) -> Result<u16> {
        let mut line = String::new();
        if let Some(stdout) = self.0.stdout.take() {
            BufReader::new(stdout)
                .read_line(&mut line)
                .during("read from the server process")?;
        }
        let port = line.trim().rsplit(':').next();
        port.and_then(|port| port.parse().ok())
            .ok_or_else(|| PerfError::PeerFailed("the server process did not start".to_owned()))
    }

    /// Its lines, read by a thread so that waiting for them can end.
    fn events(&mut self) -> Result<Receiver<String>> {
        let stdout = self.0.stdout.take().ok_or(PerfError::PeerGone)?;
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

    /// Why it ended before it was done.
    fn failure(&mut self) -> PerfError {
        match self.0.wait().map(|status| status.code()) {
            Ok(Some(code)) if code == i32::from(crate::error::EXIT_INTERRUPTED) => {
                PerfError::Interrupted
            }
            Ok(Some(code)) => PerfError::PeerFailed(format!("the client ended with status {code}")),
            Ok(None) => PerfError::PeerFailed("the client was killed".to_owned()),
            Err(error) => PerfError::PeerFailed(error.to_string()),
        }
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
