//! Several programs that talk to each other, as data: what is started where, when the next one may start, and what
//! each has to print.
//!
//! ```ignore
//! const RPING: &[End] = &[
//!     End::server("rping -s -a {server} -p {port} -C 10 -v").ready(Ready::Port),
//!     End::client("rping -c -a {server} -p {port} -C 10 -v").says(&["client DISCONNECT EVENT"]),
//! ];
//! if let Some(scene) = Scene::new("rping", Place::Apart) {
//!     session::run(&scene, Family::V4, RPING);
//! }
//! ```

use super::scene::{Family, Scene};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use std::fs::{self, File};
use std::net::{TcpListener, UdpSocket};
use std::os::unix::fs::FileExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{PoisonError, RwLock};
use std::time::{Duration, Instant};
use xtask::clock;
use xtask::lab::Side;

/// When the next end may be started.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ready {
    /// At once.
    Started,
    /// When this process has a TCP listener, or a UDP socket, on `{port}`.
    Port,
    /// When it listens at a port that is always this one.
    PortIs(u16),
    /// When it has ended.
    Ended,
    /// When its standard output has this; programs that write to a file do so in blocks by default.
    Says(&'static str),
    /// When its standard error has this.
    Complains(&'static str),
}

/// How an end comes to its end.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Finish {
    /// By itself, with this exit status.
    Status(i32),
    /// By itself, with any status of failure; not by a signal, which would be a crash.
    Failure,
    /// By itself, with any status; not by a signal.
    Exit,
    /// By itself, or by SIGTERM a while after its first words on standard error: a program that names the error and then
    /// waits for a thread of its own that nothing ends.
    ExitOrComplaint,
    /// By SIGTERM, when all others have ended, if it is still there: a server that stays.
    Stopped,
    /// By SIGKILL, so long after it was ready.
    Killed(Duration),
}

/// One program of a session. In its command line `{port}` is a free port, `{server}` and `{client}` the addresses of
/// the two sides; words are separated by blanks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct End {
    side: Side,
    line: &'static str,
    ready: Ready,
    finish: Finish,
    says: &'static [&'static str],
    complains: Option<&'static [&'static str]>,
    environment: &'static [(&'static str, &'static str)],
    polls: bool,
    early: Option<&'static str>,
    limit: Duration,
}

impl End {
    /// A program on the server's side, run by `dgiwarp-run`.
    pub(crate) const fn server(line: &'static str) -> Self {
        Self {
            side: Side::Server,
            line,
            ready: Ready::Port,
            finish: Finish::Status(0),
            says: &[],
            complains: None,
            environment: &[],
            polls: false,
            early: None,
            limit: Duration::from_secs(60),
        }
    }

    /// A program on the client's side; the next one does not wait for it.
    pub(crate) const fn client(line: &'static str) -> Self {
        Self {
            side: Side::Client,
            ready: Ready::Started,
            ..Self::server(line)
        }
    }

    /// Value of `{program}` in its command line.
    pub(crate) fn program(self, program: &Path) -> Self {
        let line = self.line.replace("{program}", program.to_str().unwrap());
        // For as long as the test program runs, as all others.
        Self {
            line: line.leak(),
            ..self
        }
    }

    /// When the next end is started.
    pub(crate) const fn ready(self, ready: Ready) -> Self {
        Self { ready, ..self }
    }

    /// How it ends; without this, with status 0.
    pub(crate) const fn finish(self, finish: Finish) -> Self {
        Self { finish, ..self }
    }

    /// Texts that its standard output must have, each at least once.
    pub(crate) const fn says(self, says: &'static [&'static str]) -> Self {
        Self { says, ..self }
    }

    /// Texts that its standard error must have; without any it must be empty, because the dynamic linker complains there
    /// about symbol versions.
    pub(crate) const fn complains(self, complains: &'static [&'static str]) -> Self {
        Self {
            complains: Some(complains),
            ..self
        }
    }

    /// More environment variables.
    pub(crate) const fn environment(
        self,
        environment: &'static [(&'static str, &'static str)],
    ) -> Self {
        Self {
            environment,
            ..self
        }
    }

    /// It spins: no other session at the same time, since ends that poll take a core each.
    pub(crate) const fn polls(self) -> Self {
        Self {
            polls: true,
            ..self
        }
    }

    /// Its message on standard error when it came before its listener, which is nobody's fault: the session then begins
    /// once more, from nothing.
    pub(crate) const fn may_be_early(self, complaint: &'static str) -> Self {
        Self {
            early: Some(complaint),
            ..self
        }
    }

    /// How long it may take from its start; one minute without this.
    pub(crate) const fn limit(self, limit: Duration) -> Self {
        Self { limit, ..self }
    }
}

/// Status and output of an end.
#[derive(Debug)]
#[expect(dead_code, reason = "printed when a test fails")]
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    /// From its start to its end.
    pub(crate) took: Duration,
}

/// Sessions that poll are alone, others may run beside each other.
static CORES: RwLock<()> = RwLock::new(());

/// The time from a complaint to the end that a program comes to by itself.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Poll interval of processes.
const TICK: Duration = Duration::from_millis(5);

/// Starts the ends in order, waits for all of them, checks what they have to be checked for, and returns what they
/// left, in the same order.
pub(crate) fn run(scene: &Scene, family: Family, ends: &[End]) -> Vec<Ended> {
    run_with(scene, family, ends, &[])
}

/// Runs a scene as [`run`] does, with more words at the end of every command line.
pub(crate) fn run_with(scene: &Scene, family: Family, ends: &[End], more: &[&str]) -> Vec<Ended> {
    if ends.iter().any(|end| end.polls) {
        let _alone = CORES.write().unwrap_or_else(PoisonError::into_inner);
        run_or_repeat(scene, family, ends, more)
    } else {
        let _beside_others = CORES.read().unwrap_or_else(PoisonError::into_inner);
        run_or_repeat(scene, family, ends, more)
    }
}

/// How many sessions of this process began once more.
pub(crate) static REPEATED: AtomicU16 = AtomicU16::new(0);

fn run_or_repeat(scene: &Scene, family: Family, ends: &[End], more: &[&str]) -> Vec<Ended> {
    run_now(scene, family, ends, more, true).unwrap_or_else(|Early(what)| {
        let count = REPEATED.fetch_add(1, Ordering::Relaxed) + 1;
        eprintln!("REPEATED ({count} so far): came before its listener: {what}");
        let again = run_now(scene, family, ends, more, false);
        again.expect("the second time fails for good")
    })
}

/// An end, by its command line, that came before its listener.
#[derive(Debug)]
struct Early(String);

fn run_now(
    scene: &Scene,
    family: Family,
    ends: &[End],
    more: &[&str],
    forgiving: bool,
) -> Result<Vec<Ended>, Early> {
    let port = free_port();
    let mut running = Vec::new();
    for end in ends {
        let words = words(scene, family, end, port);
        running.push(Running::start(scene, end, &words, more));
        wait_ready(&mut running, port);
    }
    loop {
        let awaited = running.iter_mut().any(|one| one.is_awaited());
        if forgiving && let Some(early) = running.iter_mut().find_map(|one| one.was_early()) {
            return Err(early);
        }
        if !awaited {
            break;
        }
        clock::pause(TICK);
        check_limits(&mut running);
    }
    for one in running.iter_mut().filter(|one| one.ended.is_none()) {
        one.signal(Signal::SIGTERM);
    }
    while running.iter_mut().any(|one| one.poll().is_none()) {
        clock::pause(TICK);
        check_limits(&mut running);
    }
    let all = describe(&mut running);
    Ok(running.iter_mut().map(|one| one.check(&all)).collect())
}

fn words(scene: &Scene, family: Family, end: &End, port: u16) -> Vec<String> {
    let of = |side| scene.address(side, family).to_string();
    end.line
        .split_ascii_whitespace()
        .map(|word| {
            word.replace("{port}", &port.to_string())
                .replace("{server}", &of(Side::Server))
                .replace("{client}", &of(Side::Client))
        })
        .collect()
}

/// Waits until the end that was started last is ready, while none ends too early or takes too long.
fn wait_ready(running: &mut [Running<'_>], port: u16) {
    loop {
        let last = running.last_mut().unwrap();
        if last.is_ready(port) {
            last.ready_at = Some(clock::now());
            return;
        }
        if last.poll().is_some() {
            let all = describe(running);
            panic!("an end was gone before it was ready\n{all}");
        }
        clock::pause(TICK);
        check_limits(running);
    }
}

fn check_limits(running: &mut [Running<'_>]) {
    for one in running.iter_mut() {
        one.kill_in_time();
    }
    let late = running
        .iter_mut()
        .any(|one| one.started.elapsed() > one.end.limit && one.poll().is_none());
    if late {
        let all = describe(running);
        panic!("an end takes too long\n{all}");
    }
}

/// Everything about all ends, for a failure's message.
fn describe(running: &mut [Running<'_>]) -> String {
    let mut text = String::new();
    for one in running {
        let state = one
            .poll()
            .map_or_else(|| "still runs".to_owned(), |status| status.to_string());
        text += &format!(
            "--- {} ({state}, {:?})\n{}{}",
            one.line,
            one.took(),
            contents(&one.stdout),
            contents(&one.stderr)
        );
    }
    text
}

/// A started end. Dropping it ends its process group.
struct Running<'a> {
    end: &'a End,
    line: String,
    child: Child,
    stdout: File,
    stderr: File,
    started: Instant,
    ready_at: Option<Instant>,
    complained_at: Option<Instant>,
    ended: Option<(ExitStatus, Instant)>,
}

impl<'a> Running<'a> {
    fn start(scene: &Scene, end: &'a End, words: &[String], more: &[&str]) -> Self {
        let (stdout, stderr) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        let mut command = scene.dgiwarp_run(end.side);
        command
            .args(words)
            .args(more)
            .envs(end.environment.iter().copied());
        let child = command
            .stdin(Stdio::null())
            .stdout(stdout.try_clone().unwrap())
            .stderr(stderr.try_clone().unwrap())
            .process_group(0)
            .spawn()
            .unwrap();
        Self {
            end,
            line: [words.join(" "), more.join(" ")].join(" "),
            child,
            stdout,
            stderr,
            started: clock::now(),
            ready_at: None,
            complained_at: None,
            ended: None,
        }
    }

    fn is_ready(&mut self, port: u16) -> bool {
        match self.end.ready {
            Ready::Started => true,
            Ready::Port => has_socket(self.child.id(), port),
            Ready::PortIs(port) => has_socket(self.child.id(), port),
            Ready::Ended => self.poll().is_some(),
            Ready::Says(text) => contents(&self.stdout).contains(text),
            Ready::Complains(text) => contents(&self.stderr).contains(text),
        }
    }

    fn poll(&mut self) -> Option<ExitStatus> {
        if self.ended.is_none() {
            let status = self.child.try_wait().unwrap();
            self.ended = status.map(|status| (status, clock::now()));
        }
        self.ended.map(|(status, _)| status)
    }

    fn took(&self) -> Duration {
        let until = self.ended.map_or_else(clock::now, |(_, at)| at);
        until.duration_since(self.started)
    }

    /// Whether the session has to wait until it ends by itself.
    fn is_awaited(&mut self) -> bool {
        if self.poll().is_some() {
            return false;
        }
        match self.end.finish {
            Finish::Stopped => false,
            Finish::ExitOrComplaint => !self.has_complained(),
            _ => true,
        }
    }

    /// Whether its first words on standard error are [`LAST_WORDS`] old.
    fn has_complained(&mut self) -> bool {
        if self.complained_at.is_none() && !contents(&self.stderr).is_empty() {
            self.complained_at = Some(clock::now());
        }
        self.complained_at
            .is_some_and(|at| at.elapsed() >= LAST_WORDS)
    }

    fn was_early(&mut self) -> Option<Early> {
        let complaint = self.end.early?;
        let failed = self.poll().is_some_and(|status| !status.success());
        (failed && contents(&self.stderr).contains(complaint)).then(|| Early(self.line.clone()))
    }

    fn kill_in_time(&mut self) {
        if let (Finish::Killed(after), Some(ready)) = (self.end.finish, self.ready_at)
            && ready.elapsed() >= after
        {
            self.signal(Signal::SIGKILL);
        }
    }

    fn signal(&mut self, signal: Signal) {
        if self.poll().is_none()
            && let Ok(group) = i32::try_from(self.child.id())
        {
            // Fails only if the group has just ended.
            let _gone = killpg(Pid::from_raw(group), signal);
        }
    }

    /// Compares with what was expected; `all` goes to the message.
    fn check(&mut self, all: &str) -> Ended {
        let (status, _) = self.ended.unwrap();
        let ended = Ended {
            status,
            stdout: contents(&self.stdout),
            stderr: contents(&self.stderr),
            took: self.took(),
        };
        let line = &self.line;
        match self.end.finish {
            Finish::Status(code) => assert_eq!(status.code(), Some(code), "{line}\n{all}"),
            Finish::Failure => {
                assert!(status.code().is_some_and(|code| code != 0), "{line}\n{all}");
            }
            Finish::Exit => assert!(status.code().is_some(), "{line}\n{all}"),
            Finish::Stopped | Finish::ExitOrComplaint => {
                let signal = status.signal();
                let fine = signal.is_none_or(|signal| signal == Signal::SIGTERM as i32);
                assert!(fine, "{line}\n{all}");
            }
            Finish::Killed(_) => {}
        }
        for text in self.end.says {
            assert!(ended.stdout.contains(text), "{line}: no {text:?}\n{all}");
        }
        match self.end.complains {
            None => assert_eq!(ended.stderr, "", "{line}\n{all}"),
            Some(texts) => {
                for text in texts {
                    assert!(ended.stderr.contains(text), "{line}: no {text:?}\n{all}");
                }
            }
        }
        ended
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.signal(Signal::SIGKILL);
        // A process that cannot be waited for is gone.
        let _status = self.child.wait();
    }
}

/// Contents of a file so far. It is read by position, since the offset is the writing program's too.
fn contents(file: &File) -> String {
    let length = file.metadata().unwrap().len();
    let mut text = vec![0; usize::try_from(length).unwrap()];
    file.read_exact_at(&mut text, 0).unwrap();
    String::from_utf8_lossy(&text).into_owned()
}

/// A port below those that the kernel chooses by itself, free for TCP and UDP, and not given out here before; nor is the next one, which a program of RTP takes.
fn free_port() -> u16 {
    const FIRST: u16 = 10_000;
    const COUNT: u16 = 20_000;
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let process = u16::try_from(std::process::id() % u32::from(COUNT)).unwrap();
    loop {
        let next = NEXT.fetch_add(2, Ordering::Relaxed);
        let port = FIRST + (process.wrapping_mul(61) % COUNT + next % COUNT) % COUNT;
        if TcpListener::bind(("0.0.0.0", port)).is_ok()
            && UdpSocket::bind(("0.0.0.0", port)).is_ok()
        {
            return port;
        }
    }
}

/// Whether a process has a TCP listener or a UDP socket on this port.
fn has_socket(process: u32, port: u16) -> bool {
    let inodes = listeners(process, port);
    let Ok(descriptors) = fs::read_dir(format!("/proc/{process}/fd")) else {
        return false;
    };
    !inodes.is_empty()
        && descriptors.flatten().any(|descriptor| {
            fs::read_link(descriptor.path()).is_ok_and(|target| {
                inodes
                    .iter()
                    .any(|inode| target.as_os_str() == format!("socket:[{inode}]").as_str())
            })
        })
}

/// Inodes of the TCP listeners and UDP sockets on a port in the network of a process.
fn listeners(process: u32, port: u16) -> Vec<String> {
    const LISTEN: &str = "0A";
    let mut inodes = Vec::new();
    for table in ["tcp", "tcp6", "udp", "udp6"] {
        let text = fs::read_to_string(format!("/proc/{process}/net/{table}")).unwrap_or_default();
        for line in text.lines().skip(1) {
            // sl local_address rem_address st tx:rx tr:when retrnsmt uid timeout inode
            let columns: Vec<&str> = line.split_ascii_whitespace().collect();
            let (Some(local), Some(state), Some(inode)) =
                (columns.get(1), columns.get(3), columns.get(9))
            else {
                continue;
            };
            let here = local
                .rsplit_once(':')
                .is_some_and(|(_, hex)| u16::from_str_radix(hex, 16) == Ok(port));
            if here && (table.starts_with("udp") || *state == LISTEN) {
                inodes.push((*inode).to_owned());
            }
        }
    }
    inodes
}
