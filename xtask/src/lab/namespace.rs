//! One network namespace, held open by a child process.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::LabError;

/// Script of the holder: it reports that it is inside, waits until its standard input is closed (which also happens
/// when the owner is killed), then kills whatever else is in the namespace, which a process that keeps forking may
/// need more than once.
const HOLDER: &str = r#"
echo inside
cat >/dev/null
own=$(readlink /proc/self/ns/net)
for round in 1 2 3 4 5; do
    found=
    for process in /proc/[0-9]*; do
        [ "$process" = "/proc/$$" ] && continue
        [ "$(readlink "$process/ns/net" 2>/dev/null)" = "$own" ] || continue
        kill -9 "${process#/proc/}" 2>/dev/null && found=yes
    done
    [ -n "$found" ] || break
done
"#;

/// A fresh network namespace with only `lo`, which is up. Dropping it kills what still runs inside.
#[derive(Debug)]
pub struct Namespace {
    holder: Child,
    /// Inside a user namespace too: entering needs that one first.
    user: bool,
}

impl Namespace {
    /// Makes a namespace: plainly if this process may, else inside a user namespace of its own.
    ///
    /// # Errors
    /// [`LabError::NoNamespaces`] if the kernel refuses both.
    pub fn new() -> Result<Self, LabError> {
        require("ip", "iproute2")?;
        require("unshare", "util-linux")?;
        let mut plain = Command::new(find("unshare"));
        plain.arg("--net");
        let mut user = Command::new(find("unshare"));
        user.args(["--user", "--map-root-user", "--net"]);
        let namespace = match Self::hold(plain, false) {
            Ok(namespace) => namespace,
            Err(_) => Self::hold(user, true)?,
        };
        namespace.bring_up_loopback()?;
        Ok(namespace)
    }

    /// Makes another namespace with the same owner, so that a link between the two can be made.
    pub(super) fn sibling(&self) -> Result<Self, LabError> {
        let mut unshare = if self.user {
            let mut enter = self.enter(false);
            enter.arg(find("unshare"));
            enter
        } else {
            Command::new(find("unshare"))
        };
        unshare.arg("--net");
        let namespace = Self::hold(unshare, self.user)?;
        namespace.bring_up_loopback()?;
        Ok(namespace)
    }

    /// A command that will run inside, as the calling user (who is root inside, if a user namespace was needed).
    #[must_use]
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = self.enter(true);
        command.arg("--").arg(program);
        command
    }

    /// The process whose `/proc/PID/ns/net` and `/proc/PID/net` are this namespace's.
    #[must_use]
    pub fn holder(&self) -> u32 {
        self.holder.id()
    }

    /// Whether this kernel has IPv6 switched on.
    #[must_use]
    pub fn has_ipv6(&self) -> bool {
        Path::new(&format!("/proc/{}/net/if_inet6", self.holder())).exists()
    }

    /// Runs a set-up program inside and returns what it printed, or its failure as an error.
    pub(super) fn set_up(
        &self,
        program: &'static str,
        arguments: &[&str],
    ) -> Result<String, LabError> {
        let package = if program == "ethtool" {
            "ethtool"
        } else {
            "iproute2"
        };
        require(program, package)?;
        let output = self
            .command(find(program))
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .map_err(|source| LabError::Process {
                what: program.to_owned(),
                source,
            })?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        Err(LabError::Setup {
            command: format!("{program} {}", arguments.join(" ")),
            stderr: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        })
    }

    fn bring_up_loopback(&self) -> Result<(), LabError> {
        self.set_up("ip", &["link", "set", "lo", "up"])?;
        Ok(())
    }

    /// `nsenter` with the namespaces of this holder, ready for a program and its arguments.
    fn enter(&self, network: bool) -> Command {
        let mut enter = Command::new(find("nsenter"));
        let of = |kind| format!("--{kind}=/proc/{}/ns/{kind}", self.holder());
        if self.user {
            enter.args([of("user").as_str(), "--preserve-credentials"]);
        }
        if network {
            enter.arg(of("net"));
        }
        enter
    }

    /// Starts the holder under `unshare`, and returns once it is inside.
    fn hold(mut unshare: Command, user: bool) -> Result<Self, LabError> {
        let mut holder = unshare
            .args(["--", "sh", "-c", HOLDER])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Not in our process group: a Ctrl-C must not end the holder before it has tidied up.
            .process_group(0)
            .spawn()
            .map_err(|source| LabError::Process {
                what: "unshare".to_owned(),
                source,
            })?;
        let mut line = String::new();
        let heard = holder.stdout.take().is_some_and(|stdout| {
            BufReader::new(stdout)
                .read_line(&mut line)
                .is_ok_and(|n| n > 0)
        });
        if heard {
            return Ok(Self { holder, user });
        }
        let mut reason = String::new();
        if let Some(mut stderr) = holder.stderr.take() {
            // An unreadable reason is reported as an empty one.
            let _unread = stderr.read_to_string(&mut reason);
        }
        let _status = holder.wait();
        Err(LabError::NoNamespaces {
            reason: reason.trim().to_owned(),
        })
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        drop(self.holder.stdin.take());
        // Nothing to do about a holder that cannot be waited for.
        let _status = self.holder.wait();
    }
}

/// Fails with the package's name if the program is not installed.
pub(super) fn require(program: &'static str, package: &'static str) -> Result<(), LabError> {
    if crate::debian::find_program(program).is_some() {
        return Ok(());
    }
    Err(LabError::MissingProgram { program, package })
}

/// The program's full path: an ordinary user's PATH lacks the sbin folders that some of them live in.
fn find(program: &str) -> PathBuf {
    crate::debian::find_program(program).unwrap_or_else(|| PathBuf::from(program))
}
