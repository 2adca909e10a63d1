//! Progress on a terminal, failures always.

use std::collections::BTreeMap;
use std::io::IsTerminal as _;
use std::time::Duration;

use dgiwarp_transfer::Event;
use dgiwarp_transfer::wire::{FileKind, Status};
use indicatif::{HumanBytes, ProgressBar, ProgressStyle};

use super::url::shown;

/// Names are kept while their files are open.
#[derive(Debug)]
pub(super) struct Progress {
    bar: ProgressBar,
    names: BTreeMap<u32, String>,
    verbose: bool,
    pub(super) failures: u64,
}

impl Progress {
    pub(super) fn new(quiet: bool, verbose: bool) -> Self {
        let bar = if quiet || !std::io::stderr().is_terminal() {
            ProgressBar::hidden()
        } else {
            ProgressBar::new(0)
        };
        let style = "{bar:30} {bytes} of {total_bytes}  {binary_bytes_per_sec}  {msg}";
        if let Ok(style) = ProgressStyle::with_template(style) {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(200));
        Self {
            bar,
            names: BTreeMap::new(),
            verbose,
            failures: 0,
        }
    }

    pub(super) fn note(&mut self, event: &Event) {
        match event {
            Event::Offered { file, entry } => {
                let name = shown(&entry.name);
                if entry.kind == FileKind::File {
                    self.bar.inc_length(entry.size);
                    self.bar.set_message(name.clone());
                }
                self.names.insert(*file, name);
            }
            Event::Resumed { octets, .. } | Event::Placed { octets, .. } => self.bar.inc(*octets),
            Event::Finished { file, status, text } => {
                let name = self.names.remove(file).unwrap_or_default();
                if !status.is_good() {
                    self.fail(text);
                } else if self.verbose && *status == Status::Stored && !name.is_empty() {
                    self.bar.suspend(|| println!("{name}"));
                }
            }
            Event::Unreadable { text, .. } => self.fail(text),
            Event::Repeated { offset, .. } if self.verbose => {
                let text = format!("rftp: a corrupt block at {offset} is sent again");
                self.bar.suspend(|| eprintln!("{text}"));
            }
            _ => {}
        }
    }

    fn fail(&mut self, text: &str) {
        self.failures += 1;
        self.bar.suspend(|| eprintln!("rftp: {text}"));
    }

    pub(super) fn end(&self) {
        self.bar.finish_and_clear();
    }
}

/// Octets for people.
pub(super) fn human(octets: u64) -> String {
    HumanBytes(octets).to_string()
}
