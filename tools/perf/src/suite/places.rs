//! Where groups run: the loopback interface, or two network namespaces with a link between them.
//!
//! A namespace exists as long as a process is in it. Its keeper is a program that reads its standard input,
//! which ends with this process however this ends: nothing stays behind, and nothing has a name.

use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, Command, Stdio};

use nix::unistd::Uid;

use crate::machine::host::Side;
use crate::session::process::Process;
use crate::suite::plan::Place;

/// The two ends of the link (RFC 5737's first documentation network), and the interface's name.
const CLIENT: &str = "192.0.2.1";
const SERVER: &str = "192.0.2.2";
const LINK: &str = "link0";

/// A process that keeps a namespace.
#[derive(Debug)]
struct Keeper {
    process: Process,
    _stdin: Option<ChildStdin>,
    /// In a user namespace of its own, since this process is not root.
    user: bool,
}

/// Two namespaces with a link; gone with this value.
#[derive(Debug)]
struct Link {
    client: Keeper,
    server: Keeper,
}

/// A place that is ready.
#[derive(Debug)]
pub(crate) struct Site(Option<Link>);

impl Site {
    /// Makes the place, or reports the reason why not.
    pub(crate) fn make(place: Place) -> Result<Self, String> {
        match place {
            Place::Lo => Ok(Self(None)),
            Place::Veth => Link::make(false).map(|link| Self(Some(link))),
            Place::Wire => Link::make(true).map(|link| Self(Some(link))),
        }
    }

    /// The address that the server listens on.
    pub(crate) const fn address(&self) -> &'static str {
        match self.0 {
            None => "127.0.0.1",
            Some(_) => SERVER,
        }
    }

    /// A command that runs on one side.
    pub(crate) fn command(&self, side: Side, program: &std::path::Path) -> Command {
        let Some(link) = &self.0 else {
            return Command::new(program);
        };
        let keeper = match side {
            Side::Client => &link.client,
            Side::Server => &link.server,
        };
        let mut command = keeper.enter();
        command.arg("--").arg(program);
        command
    }
}

impl Link {
    fn make(wire: bool) -> Result<Self, String> {
        let client = Keeper::first()?;
        let server = Keeper::beside(&client)?;
        let there = server.process.0.id().to_string();
        client.ip(&format!(
            "link add {LINK} mtu 1500 type veth peer name {LINK} mtu 1500 netns {there}"
        ))?;
        for (keeper, address) in [(&client, CLIENT), (&server, SERVER)] {
            keeper.ip(&format!("addr add {address}/24 dev {LINK}"))?;
            keeper.ip("link set lo up")?;
            keeper.ip(&format!("link set {LINK} up"))?;
            if wire {
                keeper.call(
                    "ethtool",
                    &format!("-K {LINK} tso off gso off tx-udp-segmentation off gro on"),
                )?;
            }
        }
        Ok(Self { client, server })
    }
}

impl Keeper {
    /// A namespace; of an ordinary user, one within a user namespace where that user is root.
    fn first() -> Result<Self, String> {
        let user = !Uid::effective().is_root();
        let mut command = Command::new("unshare");
        if user {
            command.arg("-r");
        }
        command.args(["-n", "cat"]);
        Self::start(command, user)
    }

    /// One more, with the same owner.
    fn beside(other: &Self) -> Result<Self, String> {
        let mut command = other.enter();
        command.args(["unshare", "-n", "cat"]);
        Self::start(command, other.user)
    }

    /// A line of input comes back once the process is in its namespace.
    fn start(mut command: Command, user: bool) -> Result<Self, String> {
        let failed = |what: &dyn std::fmt::Display| format!("no network namespace: {what}");
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| failed(&format_args!("unshare: {error}")))?;
        let mut stdin = child.stdin.take();
        let asked = stdin.as_mut().map(|stdin| stdin.write_all(b"\n"));
        let mut answer = String::new();
        if let (Some(Ok(())), Some(stdout)) = (asked, child.stdout.take()) {
            let _ = BufReader::new(stdout).read_line(&mut answer);
        }
        let mut keeper = Self {
            process: Process(child),
            _stdin: stdin,
            user,
        };
        if answer == "\n" {
            return Ok(keeper);
        }
        let mut words = String::new();
        if let Some(stderr) = keeper.process.0.stderr.take() {
            let _ = BufReader::new(stderr).read_line(&mut words);
        }
        Err(failed(&words.trim()))
    }

    /// A command line whose rest is run in the namespace.
    fn enter(&self) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["-t", &self.process.0.id().to_string(), "-n"]);
        if self.user {
            command.args(["-U", "--preserve-credentials"]);
        }
        command
    }

    fn ip(&self, line: &str) -> Result<(), String> {
        self.call("ip", line)
    }

    /// Runs a program in the namespace to its end.
    fn call(&self, program: &str, line: &str) -> Result<(), String> {
        let output = self
            .enter()
            .arg("--")
            .arg(program)
            .args(line.split(' '))
            .env("PATH", path_of_root())
            .stdin(Stdio::null())
            .output()
            .map_err(|error| format!("nsenter: {error}"))?;
        if output.status.success() {
            return Ok(());
        }
        let words = String::from_utf8_lossy(&output.stderr);
        let words = words.lines().next().unwrap_or_default();
        Err(format!("{program} {line}: {words}"))
    }
}

/// Folders of programs, with those of root.
fn path_of_root() -> String {
    let path = std::env::var("PATH").unwrap_or_default();
    format!("{path}:/usr/sbin:/sbin")
}
