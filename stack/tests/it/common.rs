//! Processes of a test: the test program starts itself again, and the environment names the role of each.

pub(crate) mod cable;
pub(crate) mod connected;
pub(crate) mod node;
pub(crate) mod resources;
pub(crate) mod strangers;

use std::env;
use std::io::Read as _;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

pub(crate) use xtask::skips::skip;

/// Names the role of a process that a test started.
pub(crate) const ROLE: &str = "TEST_ROLE";

/// The clock.
#[expect(clippy::disallowed_methods, reason = "these tests live in real time")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Waits, for changes that raise no event, and only beside a deadline.
#[expect(clippy::disallowed_methods, reason = "these tests live in real time")]
pub(crate) fn sleep(time: Duration) {
    std::thread::sleep(time);
}

/// The file of a directory whose name begins so.
pub(crate) fn file_in(directory: &Path, begin: &str) -> PathBuf {
    let files = std::fs::read_dir(directory).unwrap();
    let mut paths = files.map(|file| file.unwrap().path());
    let named = |path: &PathBuf| {
        path.file_name()
            .unwrap()
            .to_string_lossy()
            .starts_with(begin)
    };
    paths.find(named).unwrap()
}

/// Waits until `done`, which is polled every millisecond.
#[track_caller]
pub(crate) fn wait_until(within: Duration, what: &str, mut done: impl FnMut() -> bool) {
    let deadline = now() + within;
    while !done() {
        assert!(now() < deadline, "{what}: not within {within:?}");
        sleep(Duration::from_millis(1));
    }
}

/// CRC32c, bit by bit.
pub(crate) fn crc32c(octets: &[u8]) -> u32 {
    let crc = octets.iter().fold(u32::MAX, |crc, octet| {
        (0..8).fold(crc ^ u32::from(*octet), |crc, _| {
            (crc >> 1) ^ (0x82f6_3b78 * (crc & 1))
        })
    });
    !crc
}

/// Datagrams that found a socket full, as the kernel counts them.
pub(crate) fn overruns(port: u16) -> u64 {
    let of = |table: &str| {
        let table = std::fs::read_to_string(table).unwrap_or_default();
        let mine = table.lines().skip(1).filter(|line| {
            let local = line.split_ascii_whitespace().nth(1).unwrap();
            local.ends_with(&format!(":{port:04X}"))
        });
        mine.map(|line| {
            line.split_ascii_whitespace()
                .last()
                .unwrap()
                .parse::<u64>()
                .unwrap()
        })
        .sum::<u64>()
    };
    of("/proc/net/udp") + of("/proc/net/udp6")
}

/// Octets that lie in the sockets of a port and were not received yet, the kernel's overhead included.
pub(crate) fn waiting(port: u16) -> u64 {
    let of = |table: &str| {
        let table = std::fs::read_to_string(table).unwrap_or_default();
        let mine = table.lines().skip(1).filter_map(|line| {
            let words: Vec<_> = line.split_ascii_whitespace().collect();
            let (_, received) = words[4].split_once(':').unwrap();
            words[1]
                .ends_with(&format!(":{port:04X}"))
                .then(|| u64::from_str_radix(received, 16).unwrap())
        });
        mine.sum::<u64>()
    };
    of("/proc/net/udp") + of("/proc/net/udp6")
}

/// Resident memory of this process, in octets.
pub(crate) fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

/// Role of this process, if a test started it.
pub(crate) fn role() -> Option<String> {
    env::var(ROLE).ok()
}

/// A variable that the test set for this process.
pub(crate) fn given(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("{name} is not set"))
}

/// A test's path as the harness has it, from one with the name of this program before it.
pub(crate) fn harness_path(test: &str) -> &str {
    let (_program, path) = test.split_once("::").expect("a path made by `here!`");
    path
}

/// Runs this test again in a network namespace of its own, after `prepare`. Returns whether this is that run.
pub(crate) fn inside(name: &str, prepare: &str) -> bool {
    if role().is_some() {
        return true;
    }
    let unshare = |command: &str| {
        let mut unshare = Command::new("unshare");
        unshare.args(["--user", "--map-root-user", "--net", "sh", "-ec", command]);
        unshare
    };
    let possible = unshare("ip link set lo up").output();
    if !possible.is_ok_and(|output| output.status.success()) {
        skip(name, "network namespaces cannot be made here");
        return false;
    }
    let output = unshare(prepare)
        .env(ROLE, "inside")
        .env("PROGRAM", env::current_exe().unwrap())
        .env("TEST", harness_path(name))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let done = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}");
    assert!(done.contains("1 passed"), "{done}");
    false
}

/// A process, killed when it is dropped.
pub(crate) struct Process {
    role: String,
    child: Child,
    stdout: ChildStdout,
    /// Output that no caller has read.
    printed: Vec<u8>,
}

impl Process {
    /// Starts a test of this program, named by `here!`, as another process.
    pub(crate) fn start(test: &str, role: &str, variables: &[(&str, String)]) -> Self {
        Self::start_as(
            Command::new(env::current_exe().unwrap()),
            test,
            role,
            variables,
        )
    }

    /// Starts this program by a command that does so in its own way, as in another network.
    pub(crate) fn start_as(
        mut command: Command,
        test: &str,
        role: &str,
        variables: &[(&str, String)],
    ) -> Self {
        let mut child = command
            .args([
                harness_path(test),
                "--exact",
                "--include-ignored",
                "--nocapture",
            ])
            .arg("--test-threads=1")
            .env(ROLE, role)
            .envs(variables.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Self {
            role: role.to_owned(),
            stdout: child.stdout.take().unwrap(),
            child,
            printed: Vec::new(),
        }
    }

    /// Its process number.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// The rest of the next line that it prints with `prefix`.
    #[track_caller]
    pub(crate) fn tells(&mut self, prefix: &str, within: Duration) -> String {
        let deadline = now() + within;
        loop {
            while let Some(end) = self.printed.iter().position(|octet| *octet == b'\n') {
                let line: Vec<u8> = self.printed.drain(..=end).collect();
                let line = String::from_utf8_lossy(&line);
                // The harness prints the name of the test before it, on the same line.
                if let Some((_, rest)) = line.split_once(prefix) {
                    return rest.trim().to_owned();
                }
            }
            let more = self.read(deadline);
            assert!(more, "{} ended before it told {prefix:?}", self.role);
        }
    }

    /// Waits for its end, which must be a success.
    #[track_caller]
    pub(crate) fn finish(mut self, within: Duration) {
        let deadline = now() + within;
        while self.read(deadline) {}
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{} failed: {status}", self.role);
    }

    /// Kills it with `SIGKILL`.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    #[track_caller]
    fn read(&mut self, deadline: Instant) -> bool {
        let left = deadline.saturating_duration_since(now());
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        let mut fds = [PollFd::new(self.stdout.as_fd(), PollFlags::POLLIN)];
        let ready = poll(&mut fds, timeout).unwrap();
        assert!(ready > 0, "{} takes too long", self.role);
        let mut octets = [0; 4096];
        let count = self.stdout.read(&mut octets).unwrap();
        self.printed.extend_from_slice(&octets[..count]);
        count > 0
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
