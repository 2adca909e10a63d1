//! Processes that make the calls: a server and a client, on plain sockets or under `dgiwarp-run --sockets`.

use crate::common::RUN;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

/// Longest time of a call; the worker itself ends a wait after three seconds.
const LIMIT: Duration = Duration::from_secs(15);

/// One process of `tests/c/script.c`.
pub(super) struct Worker {
    child: Child,
    calls: ChildStdin,
    /// Its standard error.
    messages: File,
    results: Receiver<String>,
}

impl Worker {
    fn start(program: &Path, upgrades: bool) -> Self {
        let mut command = Command::new("setpriv");
        command.arg("--pdeathsig=KILL");
        if upgrades {
            command.args([RUN, "--sockets"]);
        }
        let messages = tempfile::tempfile().unwrap();
        let mut child = command
            .env("DGIWARP_LOG", "info")
            .env("DGIWARP_SOCKETS_RULES", "on")
            .arg(program)
            // Variables that the library does not have are reported.
            .env_remove("DGIWARP_ORACLE_COUNT")
            .env_remove("DGIWARP_ORACLE_SCRIPT")
            .env_remove("DGIWARP_ORACLE_SEED")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(messages.try_clone().unwrap())
            .spawn()
            .unwrap();
        let calls = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (sender, results) = channel();
        thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Self {
            child,
            calls,
            messages,
            results,
        }
    }

    /// Begins a call.
    pub(super) fn begin(&mut self, call: &str) {
        // Fails after the process has ended, which its missing result shows.
        let _ = self.calls.write_all(format!("{call}\n").as_bytes());
    }

    /// The result of the call that was begun.
    pub(super) fn end(&mut self) -> String {
        match self.results.recv_timeout(LIMIT) {
            Ok(result) => result,
            Err(_) => match self.child.try_wait() {
                Ok(Some(status)) => format!("ended: {status}"),
                _ => "hangs".into(),
            },
        }
    }

    /// Its messages but those of upgraded connections.
    pub(super) fn complaints(&mut self) -> String {
        let mut all = String::new();
        self.messages.rewind().unwrap();
        self.messages.read_to_string(&mut all).unwrap();
        let mut lines: Vec<_> = all.lines().collect();
        lines.retain(|line| !line.ends_with(" upgraded") && !line.ends_with(" takes rsockets"));
        lines.join("\n")
    }

    pub(super) fn call(&mut self, call: &str) -> String {
        self.begin(call);
        self.end()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Both ends of the connections of one way, and the server's port.
pub(super) struct Pair {
    ends: [Worker; 2],
    port: String,
    upgrades: bool,
    /// The client's port, as `sockname` and `peername` have it.
    client_port: String,
}

/// The end of a call: `c` is the client, `s` the server.
pub(super) fn end_of(call: &str) -> usize {
    usize::from(call.starts_with('s'))
}

impl Pair {
    pub(super) fn start(program: &Path, upgrades: bool) -> Self {
        let mut ends = [(); 2].map(|()| Worker::start(program, upgrades));
        let port = ends[1].call("listen");
        Self {
            ends,
            port,
            upgrades,
            client_port: String::new(),
        }
    }

    pub(super) fn end(&mut self, end: usize) -> &mut Worker {
        &mut self.ends[end]
    }

    /// A result of a call of the script, in which names stand for ports.
    pub(super) fn call(&mut self, end: usize, call: &str) -> String {
        let result = self.ends[end].call(call);
        self.named(&result)
    }

    pub(super) fn named(&self, result: &str) -> String {
        let port = |number: &str| format!("port {number}.");
        result
            .replace(&port(&self.port), "the server's port")
            .replace(&port(&self.client_port), "the client's port")
    }

    /// Makes a new connection; everything of the one before is closed. `None` where it should have been upgraded, and was not.
    pub(super) fn connect(&mut self, waits: bool, flags: u32) -> Option<[String; 2]> {
        for end in &mut self.ends {
            end.call("reset");
        }
        let call = format!("connect 0 {} {}", self.port, u32::from(!waits));
        self.ends[0].begin(&call);
        let accepted = self.ends[1].call(&format!("accept 0 {flags}"));
        let connected = self.ends[0].end();
        for end in &mut self.ends {
            // No delays of small segments.
            end.call("setopt 0 6 1 1");
            let kernels = !end.call("iskernels 0").starts_with('-');
            assert!(kernels || self.upgrades, "{connected}, {accepted}");
            if kernels && self.upgrades {
                eprintln!("not upgraded: {}", end.complaints());
                return None;
            }
        }
        let name = self.ends[1].call("peername 0");
        let port = name.split("port ").nth(1).unwrap_or_default();
        self.client_port = port.trim_end_matches('.').into();
        Some([connected, accepted])
    }
}
