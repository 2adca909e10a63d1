//! A server command at one end, a client command at the other, from start to clean end.

use std::ffi::OsString;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

use super::{Lab, LabError, Side, is_listening};
use crate::clock;
use crate::interrupt::Interrupt;

/// How often the two processes are looked at.
const TICK: Duration = Duration::from_millis(5);
/// How long a process may take to end after SIGTERM, before SIGKILL.
const GRACE: Duration = Duration::from_secs(2);

/// When the server counts as up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// A TCP listener or UDP socket on this port; `None`: on any port.
    pub port: Option<u16>,
    /// At most this long; then the session fails.
    pub limit: Duration,
}

impl Default for Wait {
    fn default() -> Self {
        Self {
            port: None,
            limit: Duration::from_secs(10),
        }
    }
}

/// One server and one client command in a [`Lab`].
#[derive(Debug)]
pub struct Session<'a> {
    /// Program and arguments of the server; its standard input is empty.
    pub server: &'a [OsString],
    /// Program and arguments of the client.
    pub client: &'a [OsString],
    /// When the client may start.
    pub wait: Wait,
}

impl Session<'_> {
    /// Runs the session and returns the client's exit status as a shell would number it (128 + signal if it was
    /// killed), or 128 + signal if `interrupt` came first. The server is ended with SIGTERM, then SIGKILL.
    ///
    /// # Errors
    /// [`LabError::ServerNotUp`], or a process that could not be started.
    pub fn run(&self, lab: &Lab, interrupt: &Interrupt) -> Result<i32, LabError> {
        let mut server = start(lab, Side::Server, self.server)?;
        let ended = self.drive(lab, &mut server, interrupt);
        stop_group(&mut server);
        ended
    }

    fn drive(&self, lab: &Lab, server: &mut Child, interrupt: &Interrupt) -> Result<i32, LabError> {
        if let Some(signal) = self.await_server(lab, server, interrupt)? {
            return Ok(128 + signal);
        }
        let mut client = start(lab, Side::Client, self.client)?;
        let mut server_seen = false;
        loop {
            if let Some(status) = ended(&mut client)? {
                return Ok(exit_code(status));
            }
            if !server_seen && let Some(status) = ended(server)? {
                server_seen = true;
                if !status.success() {
                    eprintln!("lab: the server ended with {status} while the client ran");
                }
            }
            if let Some(signal) = interrupt.caught() {
                stop_one(&mut client);
                return Ok(128 + signal);
            }
            clock::pause(TICK);
        }
    }

    /// Returns `None` once the server is up, the signal number if one came first.
    fn await_server(
        &self,
        lab: &Lab,
        server: &mut Child,
        interrupt: &Interrupt,
    ) -> Result<Option<i32>, LabError> {
        let deadline = clock::now() + self.wait.limit;
        let holder = lab.namespace(Side::Server).holder();
        while !is_listening(holder, self.wait.port) {
            if let Some(status) = ended(server)? {
                return Err(LabError::ServerNotUp(format!("it ended with {status}")));
            }
            if let Some(signal) = interrupt.caught() {
                return Ok(Some(signal));
            }
            if clock::now() >= deadline {
                let port = self
                    .wait
                    .port
                    .map_or_else(|| "any port".to_owned(), |port| format!("port {port}"));
                return Err(LabError::ServerNotUp(format!(
                    "nothing on {port} after {} s",
                    self.wait.limit.as_secs()
                )));
            }
            clock::pause(TICK);
        }
        Ok(None)
    }
}

/// Starts one command line. The server gets a process group of its own, so that its children can be ended with it;
/// the client stays in ours, where a terminal's keys reach it.
fn start(lab: &Lab, side: Side, line: &[OsString]) -> Result<Child, LabError> {
    let (program, arguments) = line
        .split_first()
        .ok_or_else(|| LabError::ServerNotUp("an empty command line".to_owned()))?;
    let mut command = lab.command(side, program);
    command.args(arguments);
    if side == Side::Server {
        command.stdin(Stdio::null()).process_group(0);
    }
    command
        .spawn()
        .map_err(|source| process_error(program, source))
}

fn ended(child: &mut Child) -> Result<Option<ExitStatus>, LabError> {
    child.try_wait().map_err(|source| LabError::Process {
        what: format!("process {}", child.id()),
        source,
    })
}

fn process_error(program: &OsString, source: std::io::Error) -> LabError {
    LabError::Process {
        what: program.to_string_lossy().into_owned(),
        source,
    }
}

/// The number a shell gives: the exit code, or 128 plus the signal.
fn exit_code(status: ExitStatus) -> i32 {
    status
        .code()
        .unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

/// Ends the server and the children it started.
fn stop_group(server: &mut Child) {
    if let Ok(Some(_)) = server.try_wait() {
        return;
    }
    stop(server, |pid, signal| {
        // Fails only if the group is gone already.
        let _gone = killpg(pid, signal);
    });
}

fn stop_one(client: &mut Child) {
    stop(client, |pid, signal| {
        let _gone = kill(pid, signal);
    });
}

fn stop(child: &mut Child, send: impl Fn(Pid, Signal)) {
    let Ok(pid) = i32::try_from(child.id()).map(Pid::from_raw) else {
        return;
    };
    send(pid, Signal::SIGTERM);
    let deadline = clock::now() + GRACE;
    while clock::now() < deadline {
        if let Ok(Some(_)) = child.try_wait() {
            return;
        }
        clock::pause(TICK);
    }
    send(pid, Signal::SIGKILL);
    let _status = child.wait();
}
