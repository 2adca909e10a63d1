//! The Linux kernel's siw in a virtual machine (`conformance/interop/siw-vm`).
//!
//! ```no_run
//! use core::time::Duration;
//! use dgiwarp_conform::siw::{self, Vm};
//!
//! let vm = Vm::boot(&[]).unwrap();
//! let server = vm.spawn("rping -s -a $GUEST_IP -C 1 -v", Duration::from_secs(20)).unwrap();
//! vm.wait_listening(7174).unwrap();
//! vm.in_network(|| std::net::TcpStream::connect((siw::GUEST_IP, 7174))).unwrap().unwrap();
//! println!("{:?}", server.wait());
//! ```

use core::time::Duration;
use nix::sched::{CloneFlags, setns};
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::thread;
use thiserror::Error;

/// The guest's address, on its siw device `siw0`.
pub const GUEST_IP: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
/// Our address in the VM's network.
pub const HOST_IP: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);

/// Why a VM did not come up or a command could not be run.
#[derive(Debug, Error)]
pub enum VmError {
    /// A process or file operation failed.
    #[error("cannot {what}: {source}")]
    Io {
        /// Name of the failed step.
        what: &'static str,
        /// The operating system's reason.
        source: io::Error,
    },
    /// The VM did not come up; standard error has the reason.
    #[error("the VM did not come up")]
    Boot,
    /// A guest command failed.
    #[error("guest command ended with {0}")]
    Status(ExitStatus),
    /// A guest command ended without saying what it was waited for.
    #[error("a guest command ended after saying only {0:?}")]
    Silent(String),
}

fn io_error(what: &'static str) -> impl FnOnce(io::Error) -> VmError {
    move |source| VmError::Io { what, source }
}

/// Output of a guest command.
#[derive(Debug, Clone)]
pub struct Output {
    /// Its exit status; 124 past its time limit.
    pub status: ExitStatus,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

/// Why no VM can run on this machine, if so: for tests that then skip.
#[must_use]
pub fn obstacle() -> Option<&'static str> {
    if !nix::unistd::geteuid().is_root() {
        Some("the VM with the kernel's siw needs root")
    } else if !Path::new("/dev/net/tun").exists() {
        Some("the VM with the kernel's siw needs /dev/net/tun")
    } else if !Path::new("/usr/bin/apt-get").exists() {
        Some("the VM with the kernel's siw is made with apt")
    } else {
        None
    }
}

/// A running VM and its network namespace. Both end with this value, or with the process
/// however that ends.
#[derive(Debug)]
pub struct Vm {
    holder: Child,
    /// Its end is what powers the VM off.
    stdin: Option<ChildStdin>,
    name: String,
    namespace: File,
}

impl Vm {
    /// Boots a VM with these settings of siw, such as `"mpa_crc_required=1"`; with none, siw
    /// is as in the kernel's source. Takes about 5 s, and a minute or two for the first VM
    /// of a machine. A kernel that does not come up, which happens where the machine has little
    /// time for it, is booted anew, twice.
    ///
    /// # Errors
    /// [`VmError`]; the reason is on standard error.
    pub fn boot(settings: &[&str]) -> Result<Self, VmError> {
        let mut options = vec!["hold", "--life", "900"];
        for setting in settings {
            options.extend(["--siw-param", setting]);
        }
        Self::boot_patiently(|| {
            let mut command = Command::new(script());
            command.args(&options);
            command
        })
    }

    /// Boots a machine with aarch64 processors, which QEMU emulates whole: Debian's arm64 kernel and verbs programs, and no siw. Commands in it see the folder
    /// `out` as `$OUT`. Takes about a minute, and some more for the first one of a machine.
    ///
    /// # Errors
    /// [`VmError`]; the reason is on standard error.
    pub fn boot_aarch64(out: &Path) -> Result<Self, VmError> {
        Self::boot_patiently(|| {
            let mut command = Command::new(script());
            command
                .env("SIW_VM_MACHINE", "aarch64")
                .args(["hold", "--life", "5400", "--boot-timeout", "300"])
                .args(["--mem", "2048", "--out"])
                .arg(out);
            command
        })
    }

    fn boot_patiently(holder: impl Fn() -> Command) -> Result<Self, VmError> {
        let mut again = 2;
        loop {
            match Self::boot_once(holder()) {
                Err(VmError::Boot) if again > 0 => {
                    again -= 1;
                    eprintln!("siw-vm: booting it anew");
                }
                result => return result,
            }
        }
    }

    fn boot_once(mut holder: Command) -> Result<Self, VmError> {
        let mut holder = holder
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(io_error("start siw-vm"))?;
        let stdin = holder.stdin.take();
        let stdout = holder.stdout.take().ok_or(VmError::Boot)?;
        let mut line = String::new();
        BufReader::new(stdout)
            .read_line(&mut line)
            .map_err(io_error("hear from siw-vm"))?;
        let field = |key: &str| {
            line.split_whitespace()
                .find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
                .map(str::to_owned)
        };
        let (Some(name), Some(netns)) = (field("name"), field("netns")) else {
            drop(stdin);
            // Its status adds nothing to what it wrote.
            holder.wait().map_err(io_error("wait for siw-vm"))?;
            return Err(VmError::Boot);
        };
        let namespace = File::open(Path::new("/run/netns").join(netns))
            .map_err(io_error("open the VM's network namespace"))?;
        Ok(Self {
            holder,
            stdin,
            name,
            namespace,
        })
    }

    /// Starts a shell command line in the guest. Past `limit` it is killed.
    ///
    /// # Errors
    /// [`VmError::Io`] if no process can be started here.
    pub fn spawn(&self, command: &str, limit: Duration) -> Result<GuestCommand, VmError> {
        Command::new(script())
            .args(["exec", "--name", &self.name, "--timeout"])
            .arg(limit.as_secs().max(1).to_string())
            .args(["--", command])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map(|mut child| GuestCommand {
                stdout: child.stdout.take().map(BufReader::new),
                child,
                seen: String::new(),
            })
            .map_err(io_error("run a guest command"))
    }

    /// Runs a shell command line in the guest to its end.
    ///
    /// # Errors
    /// [`VmError::Io`] if no process can be started here. A failing command is no error.
    pub fn run(&self, command: &str, limit: Duration) -> Result<Output, VmError> {
        self.spawn(command, limit)?.wait()
    }

    /// Waits up to 30 s until something in the guest listens on this TCP port.
    ///
    /// # Errors
    /// [`VmError`] if nothing does.
    pub fn wait_listening(&self, port: u16) -> Result<(), VmError> {
        let output = self.run(&format!("waitport {port} 30"), Duration::from_secs(40))?;
        if output.status.success() {
            Ok(())
        } else {
            Err(VmError::Status(output.status))
        }
    }

    /// Runs `body` in a thread that lives in the VM's network, as do threads and processes
    /// that it starts. Waits for its end.
    ///
    /// # Errors
    /// [`VmError::Io`] if the namespace cannot be entered.
    ///
    /// # Panics
    /// If `body` does, with its panic.
    pub fn in_network<R: Send>(&self, body: impl FnOnce() -> R + Send) -> Result<R, VmError> {
        thread::scope(|scope| {
            let inside = scope.spawn(|| {
                setns(&self.namespace, CloneFlags::CLONE_NEWNET)?;
                Ok::<R, nix::Error>(body())
            });
            match inside.join() {
                Ok(result) => {
                    result.map_err(|errno| io_error("enter the VM's network")(errno.into()))
                }
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }
}

impl Drop for Vm {
    fn drop(&mut self) {
        drop(self.stdin.take());
        if let Err(error) = self.holder.wait() {
            eprintln!("siw-vm: {error}");
        }
    }
}

/// A command that runs in the guest. Dropping this ends it.
#[derive(Debug)]
pub struct GuestCommand {
    child: Child,
    stdout: Option<BufReader<ChildStdout>>,
    /// Part of its standard output that was read already.
    seen: String,
}

impl GuestCommand {
    /// Waits until the command has written `text` to its standard output.
    ///
    /// # Errors
    /// [`VmError::Silent`] if it ends before it does.
    pub fn wait_for(&mut self, text: &str) -> Result<(), VmError> {
        while !self.seen.contains(text) {
            let read = match &mut self.stdout {
                Some(stdout) => stdout.read_line(&mut self.seen),
                None => Ok(0),
            };
            if read.map_err(io_error("read a guest command's output"))? == 0 {
                return Err(VmError::Silent(self.seen.clone()));
            }
        }
        Ok(())
    }

    /// Waits until the command has written `text` to its standard output, and takes what it wrote up to the end of that line.
    ///
    /// # Errors
    /// As [`wait_for`](Self::wait_for).
    pub fn take_until(&mut self, text: &str) -> Result<String, VmError> {
        self.wait_for(text)?;
        let at = self.seen.find(text).map_or(0, |at| at + text.len());
        let line = self.seen[at..].find('\n').map_or(0, |end| end + 1);
        // Whole lines are read, so that one which is complete within `text` ends there.
        let end = if text.ends_with('\n') { at } else { at + line };
        let later = self.seen.split_off(end);
        Ok(std::mem::replace(&mut self.seen, later))
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// [`VmError::Io`] if its output cannot be read.
    pub fn wait(mut self) -> Result<Output, VmError> {
        let out = self.stdout.take();
        let err = self.child.stderr.take();
        // Both pipes are read at once, so that neither fills up while the other is waited for.
        let (stdout, stderr) = thread::scope(|scope| {
            let err = scope.spawn(|| err.map_or_else(|| Ok(String::new()), io::read_to_string));
            let out = out.map_or_else(|| Ok(String::new()), io::read_to_string);
            (out, err.join())
        });
        let stdout = stdout.map_err(io_error("read a guest command's output"))?;
        let stderr = stderr
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            .map_err(io_error("read a guest command's output"))?;
        let status = self
            .child
            .wait()
            .map_err(io_error("wait for a guest command"))?;
        Ok(Output {
            status,
            stdout: std::mem::take(&mut self.seen) + &stdout,
            stderr,
        })
    }
}

impl Drop for GuestCommand {
    fn drop(&mut self) {
        let Ok(None) = self.child.try_wait() else {
            return;
        };
        // The script ends the guest's command upon this signal; a kill would leave it behind.
        let pid = i32::try_from(self.child.id()).map(nix::unistd::Pid::from_raw);
        if let Ok(pid) = pid
            && nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).is_ok()
            && let Err(error) = self.child.wait()
        {
            eprintln!("siw-vm exec: {error}");
        }
    }
}

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("interop/siw-vm")
}
