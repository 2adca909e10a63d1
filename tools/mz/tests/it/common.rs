//! Ends that listen, and trees.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time that nothing here takes, on a loaded machine either.
pub(crate) const SOON: Duration = Duration::from_secs(100);

pub(crate) fn mz(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mz"));
    command.args(arguments);
    command.stdin(Stdio::null());
    command
}

/// An end that listens on the loopback interface.
#[derive(Debug)]
pub(crate) struct Listener {
    pub(crate) child: Child,
    pub(crate) host: String,
    pub(crate) code: String,
    said: Option<JoinHandle<String>>,
}

impl Listener {
    pub(crate) fn start(arguments: &[&str]) -> Self {
        Self::of(mz(arguments).args(["--bind", "127.0.0.1:0"]))
    }

    pub(crate) fn of(command: &mut Command) -> Self {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut errors = BufReader::new(child.stderr.take().unwrap());
        let mut first = String::new();
        errors.read_line(&mut first).unwrap();
        let rest = first.strip_prefix("mz: listening at ").expect(&first);
        let (host, code) = rest.trim().split_once(", code ").expect(&first);
        let (host, code) = (host.to_owned(), code.to_owned());
        let said = std::thread::spawn(move || {
            let mut said = String::new();
            // Names need not be UTF-8, messages are.
            let _ = errors.read_to_string(&mut said);
            said
        });
        Self {
            child,
            host,
            code,
            said: Some(said),
        }
    }

    /// A command that sends to it.
    pub(crate) fn send(&self, arguments: &[&str]) -> Command {
        let code = ["send", "--code", &self.code];
        mz(&[&code[..], arguments, &[&self.host]].concat())
    }

    /// Its status and messages, once it has ended.
    pub(crate) fn ended(&mut self) -> (ExitStatus, String) {
        let status = wait(&mut self.child);
        let said = self.said.take().unwrap().join().unwrap();
        (status, said)
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn wait(child: &mut Child) -> ExitStatus {
    let end = Instant::now() + SOON;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if Instant::now() > end {
            let _ = child.kill();
            panic!("a program does not end");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Runs to its end; the messages.
pub(crate) fn run(command: &mut Command) -> (Option<i32>, String) {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code(), said)
}

#[track_caller]
pub(crate) fn succeed(command: &mut Command) -> String {
    let (code, said) = run(command);
    assert_eq!(code, Some(0), "{command:?}: {said}");
    said
}

/// It fails, with this in its message.
#[track_caller]
pub(crate) fn fail(command: &mut Command, with: &str) {
    let (code, said) = run(command);
    assert_eq!(code, Some(1), "{command:?}: {said}");
    assert!(said.contains(with), "{said}");
}

/// Octets that look random, of a seed.
pub(crate) fn octets(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_be_bytes()
    };
    std::iter::repeat_with(next)
        .flatten()
        .take(length)
        .collect()
}

/// Files of all sizes around those of blocks, links, empty directories, odd names.
pub(crate) fn make_tree(path: &Path) {
    fs::create_dir_all(path.join("a/b")).unwrap();
    fs::create_dir_all(path.join("empty/er")).unwrap();
    fs::write(path.join("nothing"), "").unwrap();
    let half = 512 << 10;
    for length in [half - 1, half, half + 1, 2 * half, 2 * half + 1, 5_000_000] {
        fs::write(path.join(format!("a/{length}")), octets(1, length)).unwrap();
    }
    for index in 0..300 {
        fs::write(path.join(format!("a/b/{index}")), octets(index, 900)).unwrap();
    }
    let name = std::os::unix::ffi::OsStrExt::from_bytes(b"not utf-8 \xff\n%");
    fs::write(path.join::<&std::ffi::OsStr>(name), "x").unwrap();
    std::os::unix::fs::symlink("5000000", path.join("a/link")).unwrap();
    std::os::unix::fs::symlink("../nowhere", path.join("empty/dangling")).unwrap();
}

/// Names, kinds, modes, times and contents below a path.
pub(crate) fn listing(root: &Path) -> Vec<String> {
    use std::os::unix::fs::MetadataExt as _;
    let mut found = Vec::new();
    let mut todo = vec![root.to_owned()];
    while let Some(folder) = todo.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let metadata = fs::symlink_metadata(&path).unwrap();
            let content = if metadata.is_dir() {
                todo.push(path.clone());
                "directory".to_owned()
            } else if metadata.is_symlink() {
                format!("{:?}", fs::read_link(&path).unwrap())
            } else {
                blake3::hash(&fs::read(&path).unwrap()).to_string()
            };
            let times = (metadata.mtime(), metadata.mtime_nsec());
            let mode = metadata.mode();
            let path = path.strip_prefix(root).unwrap();
            found.push(format!("{path:?} {mode:o} {times:?} {content}"));
        }
    }
    found.sort();
    found
}
