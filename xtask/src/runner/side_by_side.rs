//! Test programs of a group, some of them at a time: most of them wait for sockets, timers and other processes, and leave processors idle.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::path::Path;
use std::process::Command;
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Scope;
use std::time::Duration;

use super::read_skips;
use crate::clock;
use crate::groups;
use crate::interrupt::Interrupt;
use crate::libtest::Reader;
use crate::skips;
use crate::stream::{self, End};
use crate::workspace::TestProgram;

/// Results of one program.
pub(super) struct Ended {
    pub(super) end: End,
    pub(super) reader: Reader,
    /// Names of skipped tests, and the reasons.
    pub(super) skips: Vec<(String, String)>,
}

/// Runs a program to its end, passing its output on. The file `skips` is its own.
pub(super) fn observe(
    command: &mut Command,
    limit: Duration,
    interrupt: &Interrupt,
    out: &mut dyn Write,
    skips: &Path,
) -> io::Result<Ended> {
    command.env(skips::VARIABLE, skips);
    let mut reader = Reader::default();
    let end = stream::run(command, limit, interrupt, out, |line| reader.line(line))?;
    Ok(Ended {
        end,
        reader,
        skips: read_skips(skips),
    })
}

/// A program of several at a time that has ended.
pub(super) struct Finished<'a> {
    pub(super) program: &'a TestProgram,
    pub(super) ended: Ended,
    /// Standard output, whole: that of programs that run at the same time is not mixed.
    pub(super) output: Vec<u8>,
    pub(super) took: Duration,
}

/// Starts `programs` in their order, at most `jobs` at a time, each for at most the limit of its group, and sends each that ended. No more are
/// started after an interrupt. Files of skipped tests are made beside `skips`, with a number behind the name.
///
/// An error is a program that could not be started.
pub(super) fn start<'scope, 'env>(
    scope: &'scope Scope<'scope, 'env>,
    programs: Vec<&'env TestProgram>,
    jobs: usize,
    interrupt: &'env Interrupt,
    skips: &Path,
) -> Receiver<io::Result<Finished<'env>>> {
    let (sender, results) = mpsc::channel();
    let waiting = Arc::new(Mutex::new(VecDeque::from(programs)));
    for job in 0..jobs {
        let (sender, waiting) = (sender.clone(), Arc::clone(&waiting));
        let skips = skips.with_extension(job.to_string());
        scope.spawn(move || {
            let next = || {
                let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
                match interrupt.caught() {
                    None => waiting.pop_front(),
                    Some(_) => None,
                }
            };
            while let Some(program) = next() {
                let begin = clock::now();
                let mut output = Vec::new();
                let mut command = program.command();
                command.args(program.arguments(false));
                let limit = groups::limit(program.group);
                let ended = observe(&mut command, limit, interrupt, &mut output, &skips);
                let result = ended.map(|ended| Finished {
                    program,
                    ended,
                    output,
                    took: begin.elapsed(),
                });
                // Nobody takes results after an error.
                if sender.send(result).is_err() {
                    return;
                }
            }
        });
    }
    results
}
