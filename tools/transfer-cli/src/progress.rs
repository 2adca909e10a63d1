//! Progress on a terminal or as lines of JSON, failures always.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::IsTerminal as _;
use std::os::unix::ffi::OsStringExt as _;
use std::time::{Duration, Instant};

use dgiwarp_transfer::wire::{FileKind, Status};
use dgiwarp_transfer::{Event, Summary, Waits};
use indicatif::{HumanBytes, ProgressBar, ProgressStyle};
use serde_json::{Value, json};

use crate::Failed;
use crate::sessions::Record;

/// Output of a program.
#[derive(Debug, Clone, Copy, Default)]
pub struct Show {
    /// Its name.
    pub program: &'static str,
    /// Its command, where it has several.
    pub verb: &'static str,
    /// No bar and no summary.
    pub quiet: bool,
    /// A line for each entry.
    pub verbose: bool,
    /// One JSON object a line on standard output, for each event.
    pub json: bool,
}

/// Octets of a name in a record, and more where a character ends behind them.
const NAME: usize = 200;

#[expect(
    clippy::disallowed_methods,
    reason = "an edge: a user reads how long it took"
)]
fn now() -> Instant {
    Instant::now()
}

/// Progress of a session. Names are kept while their entries are unfinished.
#[derive(Debug)]
pub struct Progress {
    show: Show,
    bar: ProgressBar,
    names: BTreeMap<u32, String>,
    /// The entry that began last.
    current: String,
    /// Limits until the last report.
    waits: Waits,
    begun: Instant,
    /// For other processes; `None` without a descriptor for it.
    record: Option<Record>,
    /// Octets of the files that were offered, and of those the ones that are there.
    total: u64,
    octets: u64,
    /// Entries that are finished.
    finished: u64,
    /// Entries that failed so far.
    pub failures: u64,
    /// Events so far.
    pub events: u64,
}

impl Progress {
    /// Begins; with a bar where standard error is a terminal and the session is `alone`.
    #[must_use]
    pub fn new(show: Show, alone: bool) -> Self {
        let hidden = show.quiet || show.json || !alone || !std::io::stderr().is_terminal();
        let bar = if hidden {
            ProgressBar::hidden()
        } else {
            ProgressBar::new(0)
        };
        let style = "{bar:30} {bytes} of {total_bytes}  {binary_bytes_per_sec}  {msg}";
        if let Ok(style) = ProgressStyle::with_template(style) {
            bar.set_style(style);
        }
        if !hidden {
            bar.enable_steady_tick(Duration::from_millis(200));
        }
        Self {
            show,
            bar,
            names: BTreeMap::new(),
            current: String::new(),
            waits: Waits::default(),
            begun: now(),
            // A session that lists, and shows nothing, has no name: it is no transfer.
            record: (!show.program.is_empty()).then(Record::new).flatten(),
            total: 0,
            octets: 0,
            finished: 0,
            failures: 0,
            events: 0,
        }
    }

    /// Takes note of an event.
    pub fn note(&mut self, event: &Event) {
        self.events += 1;
        self.count(event);
        match event {
            Event::Offered { file, entry } => {
                if entry.kind == FileKind::File {
                    self.bar.inc_length(entry.size);
                }
                if self.show.verbose || self.show.json || !self.bar.is_hidden() {
                    let name = shown(&entry.name);
                    self.bar.set_message(name.clone());
                    self.names.insert(*file, name);
                }
            }
            Event::Resumed { octets, .. } | Event::Placed { octets, .. } => self.bar.inc(*octets),
            Event::Limited(waits) => {
                let text = limits(&waits.since(&self.waits), 1);
                self.waits = *waits;
                if !self.bar.is_hidden() {
                    self.bar.set_message(format!("{}{text}", self.current));
                }
            }
            Event::Finished { file, status, text } => {
                let name = self.names.remove(file).unwrap_or_default();
                if self.show.json {
                    let status = format!("{status:?}").to_lowercase();
                    line(&json!({"event": "entry", "name": name, "status": status, "text": text}));
                }
                if !status.is_good() {
                    self.fail(text);
                } else if self.show.verbose && *status == Status::Stored && !name.is_empty() {
                    self.bar.suspend(|| eprintln!("{name}"));
                }
            }
            Event::Removed { name, status, text } => {
                let name = shown(name);
                if self.show.json {
                    let status = if status.is_good() {
                        "removed"
                    } else {
                        "failed"
                    };
                    line(
                        &json!({"event": "removed", "name": name, "status": status, "text": text}),
                    );
                }
                if !status.is_good() {
                    self.fail(text);
                } else if self.show.verbose {
                    self.bar.suspend(|| eprintln!("removed {name}"));
                }
            }
            Event::Unreadable { name, text } => {
                if self.show.json {
                    line(
                        &json!({"event": "entry", "name": name, "status": "unreadable", "text": text}),
                    );
                }
                self.fail(text);
            }
            Event::Remark { text } => {
                if self.show.json {
                    line(&json!({"event": "remark", "text": text}));
                }
                self.say(text);
            }
            Event::Repeated { offset, .. } if self.show.verbose => {
                let text = format!(
                    "{}: a corrupt block at {offset} is sent again",
                    self.show.program
                );
                self.bar.suspend(|| eprintln!("{text}"));
            }
            _ => {}
        }
    }

    /// Keeps the record for other processes.
    fn count(&mut self, event: &Event) {
        match event {
            Event::Offered { entry, .. } => {
                self.total += entry.size;
                self.current = shown(&entry.name);
            }
            Event::Resumed { octets, .. } | Event::Placed { octets, .. } => self.octets += octets,
            Event::Finished { .. } => self.finished += 1,
            _ => {}
        }
        let now = now();
        let Some(record) = self.record.as_mut().filter(|it| it.is_due(now)) else {
            return;
        };
        let name: String = self.current.chars().take(NAME).collect();
        record.put(
            now,
            &json!({
                "program": self.show.program,
                "verb": self.show.verb,
                "octets": self.octets,
                "total": self.total,
                "entries": self.finished,
                "seconds": self.begun.elapsed().as_secs(),
                "limited_by": limit(&self.waits),
                "name": name,
            }),
        );
    }

    fn fail(&mut self, text: &str) {
        self.failures += 1;
        self.say(text);
    }

    fn say(&self, text: &str) {
        self.bar
            .suspend(|| eprintln!("{}: {text}", self.show.program));
    }

    /// Shows the result of a session, `from` a peer if there may be several.
    ///
    /// # Errors
    /// The failure of the session, or [`Failed::Entries`].
    pub fn end(&self, done: &Result<Summary, Failed>, from: Option<&str>) -> Result<(), Failed> {
        self.bar.finish_and_clear();
        let seconds = self.begun.elapsed().as_secs_f64();
        let from = from.map_or(String::new(), |peer| format!("{peer}: "));
        let summary = match done {
            Ok(summary) => summary,
            Err(failed) => {
                if self.show.json {
                    line(&json!({"event": "failed", "text": failed.to_string()}));
                }
                return Err(failed.clone());
            }
        };
        if self.show.json {
            line(&json!({
                "event": "end",
                "seconds": seconds,
                "octets": summary.octets,
                "copied": summary.copied,
                "mapped": summary.mapped,
                "stored": summary.stored,
                "present": summary.present,
                "failed": summary.failed,
                "removed": summary.removed,
                "streams": summary.streams,
                "resumed": summary.resumed,
                "repeated": summary.repeated,
                "waits": {
                    "disk": summary.waits.disk.as_secs_f64(),
                    "processor": summary.waits.processor.as_secs_f64(),
                    "network": summary.waits.network.as_secs_f64(),
                    "peer": summary.waits.peer.as_secs_f64(),
                },
            }));
        } else if !self.show.quiet {
            eprintln!(
                "{}: {from}{}",
                self.show.program,
                described(summary, seconds)
            );
        }
        let failed = summary.failed.max(self.failures);
        if failed > 0 {
            return Err(Failed::Entries(failed));
        }
        Ok(())
    }
}

/// A summary for people.
fn described(summary: &Summary, seconds: f64) -> String {
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a rate for people"
    )]
    let rate = (summary.octets as f64 / seconds) as u64;
    let octets = human(summary.octets);
    let mut text = format!(
        "{octets} in {seconds:.1} s ({}/s), {} entries",
        human(rate),
        summary.stored
    );
    for (count, what) in [
        (summary.present, "were there"),
        (summary.removed, "removed"),
        (summary.repeated, "corrupt blocks came again"),
    ] {
        if count > 0 {
            text += &format!(", {count} {what}");
        }
    }
    if summary.streams > 1 {
        text += &format!(", {} streams", summary.streams);
    }
    if summary.copied > 0 {
        let copied = human(summary.copied);
        text += &format!(", {copied} of them from old copies");
    }
    if summary.resumed > 0 {
        let resumed = human(summary.resumed);
        text += &format!(", {resumed} were there from an earlier run");
    }
    if summary.octets > 0 {
        text += &limits(&summary.waits, 4);
    }
    text
}

/// The part that limited a session most so far; empty where none did.
fn limit(waits: &Waits) -> &'static str {
    let parts = [
        (waits.disk, "disk"),
        (waits.processor, "processors"),
        (waits.network, "network"),
        (waits.peer, "peer"),
    ];
    let most = parts.iter().max_by_key(|(time, _)| *time);
    most.filter(|(time, _)| !time.is_zero())
        .map_or("", |(_, name)| name)
}

/// The parts that limited a session, those of most time first, `most` of them.
fn limits(waits: &Waits, most: usize) -> String {
    let total = waits.total().as_secs_f64();
    let mut parts = [
        (waits.disk, "the disk here"),
        (waits.processor, "processors here"),
        (waits.network, "the network"),
        (waits.peer, "the other end"),
    ];
    parts.sort_by_key(|(time, _)| std::cmp::Reverse(*time));
    let percent = |time: Duration| 100.0 * time.as_secs_f64() / total;
    let parts = parts.iter().map(|(time, name)| (percent(*time), name));
    let parts = parts.filter(|(percent, _)| *percent >= 1.0).take(most);
    let parts: Vec<_> = parts
        .map(|(percent, name)| format!("{name} {percent:.0} %"))
        .collect();
    if parts.is_empty() {
        return String::new();
    }
    format!("; limited by {}", parts.join(", "))
}

/// Prints an object as one line.
pub fn line(value: &Value) {
    println!("{value}");
}

/// Octets of a name for people.
#[must_use]
pub fn shown(octets: &[u8]) -> String {
    OsString::from_vec(octets.to_vec()).display().to_string()
}

/// Octets for people.
#[must_use]
pub fn human(octets: u64) -> String {
    HumanBytes(octets).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_shown_by_their_shares() {
        let at = Duration::from_millis;
        let waits = Waits {
            disk: at(100),
            processor: at(5),
            network: Duration::ZERO,
            peer: at(895),
        };
        let all = "; limited by the other end 90 %, the disk here 10 %";
        assert_eq!(limits(&waits, 4), all);
        assert_eq!(limits(&waits, 1), "; limited by the other end 90 %");
        assert_eq!(limits(&Waits::default(), 4), "");
    }
}
