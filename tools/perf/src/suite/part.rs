//! The process that runs the groups of one place, started there by the suite: it takes a [`Task`] on standard
//! input and answers with one line for each group.

use std::io::{Read, Write};
use std::path::PathBuf;

use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};

use crate::cli::PinPair;
use crate::error::{IoContext, PerfError, Result};
use crate::machine::host::Wait;
use crate::machine::interrupt::Interrupt;
use crate::run::figures::Series;
use crate::run::group::Group;
use crate::run::{Bench, Limits};
use crate::session::client::At;

/// The task of a part.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Task {
    /// Address of the server's control port.
    pub(crate) host: String,
    /// The control port.
    pub(crate) port: u16,
    /// CPUs of client and server.
    pub(crate) pins: PinPair,
    /// The program that puts others on dgiwarp, if one was found.
    pub(crate) runner: Option<PathBuf>,
    /// The groups to measure, in this order.
    pub(crate) groups: Vec<Group>,
}

/// A line of a part's output.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Event {
    /// Both sides are connected.
    Ready {
        /// The CPUs of client and server, when both are pinned.
        pinned: Option<(usize, usize)>,
        /// How they wait where they may spin.
        wait: Wait,
    },
    /// The rounds of a group.
    Done(Vec<Series>),
}

/// Runs the task on standard input.
pub(crate) fn run() -> Result<()> {
    set_pdeathsig(Signal::SIGKILL).during("follow the parent process")?;
    let interrupt = Interrupt::install()?;
    let mut text = String::new();
    std::io::stdin()
        .read_to_string(&mut text)
        .during("read the task")?;
    let task: Task =
        serde_json::from_str(&text).map_err(|error| PerfError::Protocol(error.to_string()))?;
    let mut bench = Bench {
        runner: task.runner,
        lenient: true,
        ..Bench::connect(At::own(&task.host, task.port), task.pins, None, interrupt)?
    };
    emit(&Event::Ready {
        pinned: bench.pinned,
        wait: bench.wait,
    })?;
    for group in &task.groups {
        let measured = bench.measure(group, Limits::default());
        measured.result?;
        emit(&Event::Done(measured.series))?;
    }
    Ok(())
}

fn emit(event: &Event) -> Result<()> {
    let mut line =
        serde_json::to_vec(event).map_err(|error| PerfError::Protocol(error.to_string()))?;
    line.push(b'\n');
    let mut stdout = std::io::stdout();
    stdout
        .write_all(&line)
        .and_then(|()| stdout.flush())
        .during("write to standard output")
}
