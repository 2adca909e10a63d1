//! Two processes of a program of perftest, and the figure that the client prints.

use std::io::Read;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use nix::poll::{PollTimeout, poll};

use crate::error::{IoContext, PerfError, Result};
use crate::machine::clock;
use crate::machine::host::{Cpus, Side};
use crate::machine::interrupt::Interrupt;
use crate::session::process::Process;

/// How long a server may take until it listens.
const START: Duration = Duration::from_secs(10);
/// How long one run may take.
const RUN: Duration = Duration::from_secs(60);
/// Poll interval of conditions without an event, in milliseconds.
const LOOK: u8 = 50;

/// The typical (median) latency that the client reports, in microseconds.
pub(crate) fn latency(
    runner: &Path,
    line: &str,
    (size, iters): (usize, u32),
    cpus: &Cpus,
    interrupt: &Interrupt,
) -> Result<f64> {
    let port = free_port()?;
    let start = |side, host: Option<&str>| -> Result<Running> {
        let mut command = Command::new(runner);
        command
            .args(line.split_whitespace())
            .args(["-F", "-p", &port.to_string()])
            .args(["-s", &size.to_string(), "-n", &iters.to_string()])
            .args(host)
            // Its rows are beside those of sockets.
            .env("DGIWARP_SAME_HOST", "off")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let child = cpus.start(side, || command.spawn())?;
        Running::new(child.during("start a program under dgiwarp-run")?)
    };
    let server = start(Side::Server, None)?;
    server.wait_until_listening(port, interrupt)?;
    let client = start(Side::Client, Some("127.0.0.1"))?;
    let printed = client.output(RUN, interrupt)?;
    typical(&printed).ok_or_else(|| {
        PerfError::PeerFailed(format!("{line} printed no latency: {}", printed.trim()))
    })
}

/// A port of TCP that nobody has at the moment.
pub(crate) fn free_port() -> Result<u16> {
    let probe = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).during("find a free port")?;
    let address = probe.local_addr().during("read a local port")?;
    Ok(address.port())
}

/// A process that does not outlive this value.
pub(crate) struct Running {
    process: Process,
    stdout: ChildStdout,
}

impl Running {
    /// Takes over a process whose standard output is a pipe.
    pub(crate) fn new(mut child: Child) -> Result<Self> {
        let Some(stdout) = child.stdout.take() else {
            return Err(PerfError::PeerGone);
        };
        Ok(Self {
            process: Process(child),
            stdout,
        })
    }

    /// Waits until somebody listens on this port of TCP.
    pub(crate) fn wait_until_listening(&self, port: u16, interrupt: &Interrupt) -> Result<()> {
        let deadline = clock::now() + START;
        let of_port = format!(":{port:04X}");
        let listens = |line: &str| {
            let mut words = line.split_ascii_whitespace();
            // Number, local address, remote address, state; 0A is that of a listener.
            words.nth(1).is_some_and(|local| local.ends_with(&of_port))
                && words.nth(1) == Some("0A")
        };
        loop {
            let tables = ["/proc/net/tcp", "/proc/net/tcp6"]
                .map(|table| std::fs::read_to_string(table).unwrap_or_default());
            if tables.iter().flat_map(|it| it.lines()).any(listens) {
                return Ok(());
            }
            pause(interrupt, deadline, "the program's server does not listen")?;
        }
    }

    /// Waits for the end, at most this long, and returns what was printed.
    pub(crate) fn output(mut self, limit: Duration, interrupt: &Interrupt) -> Result<String> {
        let deadline = clock::now() + limit;
        loop {
            // The output fits a pipe, so it is read when the program has ended.
            let ended = self.process.0.try_wait().during("wait for a program")?;
            if ended.is_some() {
                break;
            }
            pause(interrupt, deadline, "the program does not end")?;
        }
        let mut printed = String::new();
        self.stdout
            .read_to_string(&mut printed)
            .during("read what a program prints")?;
        Ok(printed)
    }
}

/// Waits a moment, at most until the deadline.
fn pause(interrupt: &Interrupt, deadline: Instant, late: &str) -> Result<()> {
    interrupt.check()?;
    if clock::now() > deadline {
        return Err(PerfError::PeerFailed(late.to_owned()));
    }
    let _ = poll(&mut [], PollTimeout::from(LOOK));
    Ok(())
}

/// Reads the fifth column of perftest's table: octets, iterations, least, most, typical.
fn typical(printed: &str) -> Option<f64> {
    let mut lines = printed.lines();
    lines.find(|line| line.contains("t_typical"))?;
    let row = lines.next()?;
    row.split_ascii_whitespace().nth(4)?.parse().ok()
}

/// The reason why a line of perftest cannot run here, if so.
pub(crate) fn missing(line: &str, runner: Option<&Path>) -> Option<String> {
    if runner.is_none() {
        return Some("dgiwarp-run is neither beside this program nor in PATH".to_owned());
    }
    let name = line.split(' ').next().unwrap_or_default();
    let missing = find(name).is_none();
    missing.then(|| format!("{name} is not installed (Debian: perftest)"))
}

/// Where a program is, as a shell would find it.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let folders = std::env::var_os("PATH")?;
    std::env::split_paths(&folders)
        .map(|folder| folder.join(program))
        .find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_typical_latency_is_read() {
        let printed = "\
 local address: LID 0000 QPN 0x1a PSN 0x2b
---------------------------------------------------------------------------------------
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]
 64      20000          5.75           59.58        6.73     \t       7.32        \t1.45
---------------------------------------------------------------------------------------
";
        assert_eq!(typical(printed), Some(6.73));
        assert_eq!(typical("Couldn't connect to 127.0.0.1:18515\n"), None);
        assert_eq!(typical(" #bytes t_typical[usec]\n"), None);
    }
}
