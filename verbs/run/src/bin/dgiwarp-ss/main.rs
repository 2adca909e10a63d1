//! Shows the sockets of programs that run under `dgiwarp-run --sockets`.
//!
//! Each of these processes has a memfd with a table of them, in which its library writes ([`dgiwarp_socket_table`]). It is read through `/proc/PID/fd`, where the kernel decides who may look:
//! the process's user, and root.

#![forbid(unsafe_code)]

mod cli;
mod json;
mod processes;
mod text;

use cli::Cli;
use processes::{Failure, Process};
use std::io::{self, Write};
use std::process::ExitCode;

const EXIT_UNREADABLE: u8 = 3;

fn main() -> ExitCode {
    let cli = cli::parse();
    let (processes, failures) = match &cli.pid[..] {
        [] => processes::all(),
        pids => processes::of(pids),
    };
    // A reader that went away is no failure.
    let _ = show(&cli, &processes, &mut io::stdout().lock());
    for Failure { pid, reason } in &failures {
        eprintln!("dgiwarp-ss: process {pid}: {reason}");
    }
    if failures.is_empty() || cli.pid.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(EXIT_UNREADABLE)
    }
}

fn show(cli: &Cli, processes: &[Process], out: &mut impl Write) -> io::Result<()> {
    if cli.json {
        json::write(out, cli, processes)
    } else {
        text::write(out, cli, processes)
    }
}
