//! Runs one program, passing its output on line by line while somebody reads along, with a time limit.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::clock;
use crate::interrupt::Interrupt;

/// How often the time limit and the interrupt flag are looked at.
const TICK: Duration = Duration::from_millis(50);
/// How long output may still come after the program ended, when a child of it keeps the pipe open.
const LINGER: Duration = Duration::from_millis(500);
/// How long the program may take to end after SIGTERM, before SIGKILL.
const GRACE: Duration = Duration::from_secs(3);

/// How a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// By itself.
    Status(ExitStatus),
    /// Killed at the time limit.
    TimedOut,
    /// Ended because this process received the signal.
    Interrupted(i32),
}

impl End {
    /// Whether it ended by itself, with status 0.
    #[must_use]
    pub fn is_success(self) -> bool {
        matches!(self, Self::Status(status) if status.success())
    }
}

/// Starts `command` with an empty standard input and in its own process group, passes its standard output on to `out` as
/// it comes and gives each line to `read`. Past `limit`, or when `interrupt` is set, the whole group is ended.
///
/// # Errors
/// The program could not be started, or `out` cannot be written.
pub fn run(
    command: &mut Command,
    limit: Duration,
    interrupt: &Interrupt,
    out: &mut dyn Write,
    mut read: impl FnMut(&str),
) -> io::Result<End> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .process_group(0)
        .spawn()?;
    let (sender, lines) = mpsc::channel();
    if let Some(stdout) = child.stdout.take() {
        thread::spawn(move || forward(stdout, &sender));
    }
    let deadline = clock::now() + limit;
    let mut open = true;
    loop {
        if open {
            open = show(&lines, TICK, out, &mut read)?;
        } else {
            clock::pause(TICK);
        }
        if let Some(status) = child.try_wait()? {
            let linger = clock::now() + LINGER;
            while open && clock::now() < linger {
                open = show(&lines, TICK, out, &mut read)?;
            }
            // Whatever it left running must not disturb what comes next.
            signal_group(&child, Signal::SIGKILL);
            return Ok(End::Status(status));
        }
        if let Some(signal) = interrupt.caught() {
            end_group(&mut child, Signal::SIGTERM);
            return Ok(End::Interrupted(signal));
        }
        if clock::now() >= deadline {
            // SIGABRT would leave a core; the name of the running test is already on the screen.
            end_group(&mut child, Signal::SIGKILL);
            while open && show(&lines, TICK, out, &mut read)? && clock::now() < deadline + LINGER {}
            return Ok(End::TimedOut);
        }
    }
}

/// Passes on what arrives within `wait`; false at the end of the output.
fn show(
    lines: &Receiver<Vec<u8>>,
    wait: Duration,
    out: &mut dyn Write,
    read: &mut impl FnMut(&str),
) -> io::Result<bool> {
    let mut wait = wait;
    loop {
        match lines.recv_timeout(wait) {
            Ok(line) => {
                out.write_all(&line)?;
                out.flush()?;
                read(String::from_utf8_lossy(&line).trim_end_matches('\n'));
                wait = Duration::ZERO;
            }
            Err(RecvTimeoutError::Timeout) => return Ok(true),
            Err(RecvTimeoutError::Disconnected) => return Ok(false),
        }
    }
}

fn forward(stdout: ChildStdout, sender: &Sender<Vec<u8>>) {
    let mut stdout = BufReader::new(stdout);
    loop {
        let mut line = Vec::new();
        match stdout.read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => {
                if sender.send(line).is_err() {
                    return;
                }
            }
        }
    }
}

fn end_group(child: &mut Child, signal: Signal) {
    signal_group(child, signal);
    let deadline = clock::now() + GRACE;
    while matches!(child.try_wait(), Ok(None)) && clock::now() < deadline {
        clock::pause(TICK);
    }
    signal_group(child, Signal::SIGKILL);
    let _status = child.wait();
}

fn signal_group(child: &Child, signal: Signal) {
    if let Ok(group) = i32::try_from(child.id()) {
        // Fails only if nobody of the group is left.
        let _gone = killpg(Pid::from_raw(group), signal);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    /// Waits until a process is gone, or a zombie that nobody has collected yet.
    fn await_end(pid: &str) {
        let stat = format!("/proc/{pid}/stat");
        let deadline = clock::now() + Duration::from_secs(5);
        while std::fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z")) {
            assert!(clock::now() < deadline, "process {pid} is still there");
            clock::pause(TICK);
        }
    }

    #[test]
    fn output_and_status_come_through() {
        let mut seen = Vec::new();
        let end = run(
            &mut sh("echo one; printf two; exit 3"),
            Duration::from_secs(10),
            &Interrupt::never(),
            &mut io::sink(),
            |line| seen.push(line.to_owned()),
        )
        .unwrap();
        assert!(matches!(end, End::Status(status) if status.code() == Some(3)));
        assert!(!end.is_success());
        assert_eq!(seen, ["one", "two"]);
    }

    #[test]
    fn a_hanging_program_and_its_children_are_killed() {
        let begin = clock::now();
        let mut pid = String::new();
        let end = run(
            &mut sh("sleep 1000 & echo $!; wait"),
            Duration::from_millis(300),
            &Interrupt::never(),
            &mut io::sink(),
            |line| line.clone_into(&mut pid),
        )
        .unwrap();
        assert_eq!(end, End::TimedOut);
        assert!(begin.elapsed() < Duration::from_secs(5));
        await_end(&pid);
    }

    #[test]
    fn a_child_that_stays_neither_delays_nor_survives() {
        let begin = clock::now();
        let mut pid = String::new();
        let end = run(
            &mut sh("sleep 30 & echo $!; exit 0"),
            Duration::from_secs(20),
            &Interrupt::never(),
            &mut io::sink(),
            |line| line.clone_into(&mut pid),
        )
        .unwrap();
        assert!(end.is_success());
        assert!(begin.elapsed() < Duration::from_secs(10));
        await_end(&pid);
    }
}
