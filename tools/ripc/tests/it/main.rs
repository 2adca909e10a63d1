//! The program and its services as real processes: killed, stopped and missing ones.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::disallowed_methods, reason = "tests wait until a deadline")]

mod c;
mod failures;
mod gateway;
mod grpc;
mod keys;
mod program;

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Generous: tests run on loaded machines.
const SOON: Duration = Duration::from_secs(60);

fn ripc() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ripc"));
    command.env_remove("DGIWARP_FAULT");
    command
}

/// A process that serves files, and its address. It is killed at the end.
struct Server {
    child: Child,
    address: String,
}

impl Server {
    fn start(folder: &Path) -> Self {
        Self::start_with(folder, &[], Stdio::inherit())
    }

    /// With these options, and its standard error.
    fn start_with(folder: &Path, options: &[&str], errors: Stdio) -> Self {
        let mut command = ripc();
        command
            .args(["serve-files", "--listen", "127.0.0.1:0"])
            .args(["--interface", "127.0.0.1"])
            .args(options)
            .arg(folder)
            .stderr(errors);
        Self::spawn(&mut command)
    }

    /// A process whose first line ends with its address.
    fn spawn(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let out = child.stdout.take().unwrap();
        BufReader::new(out).read_line(&mut line).unwrap();
        let address = line.trim().rsplit(' ').next().unwrap().to_owned();
        Self { child, address }
    }

    /// A value of its status, in KiB.
    fn memory(&self, name: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()));
        let status = status.unwrap();
        let line = status.lines().find_map(|it| it.strip_prefix(name));
        let digits = line.unwrap().trim_matches(|it: char| !it.is_ascii_digit());
        digits.parse().unwrap()
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id().try_into().unwrap());
        kill(pid, signal).unwrap();
    }

    /// Stops all of its threads, and waits until they are.
    fn stop(&self) {
        self.signal(Signal::SIGSTOP);
        let tasks = format!("/proc/{}/task", self.child.id());
        let is_stopped = || {
            std::fs::read_dir(&tasks).unwrap().flatten().all(|task| {
                let stat = std::fs::read_to_string(task.path().join("stat"));
                stat.is_ok_and(|stat| stat.contains(") T "))
            })
        };
        while !is_stopped() {
            std::thread::yield_now();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
