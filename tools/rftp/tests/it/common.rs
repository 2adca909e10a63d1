//! A server, and trees.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

/// A running `rftpd`.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) child: Child,
    pub(crate) port: u16,
}

impl Server {
    pub(crate) fn start(root: &Path, arguments: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_rftpd"))
            .arg("--root")
            .arg(root)
            .args(["--listen", "127.0.0.1:0"])
            .args(arguments)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let first = lines.next().unwrap().unwrap();
        let (_, port) = first.rsplit_once(':').unwrap();
        let port = port.parse().unwrap();
        // Shown with a test that fails, and so that the pipe never fills.
        std::thread::spawn(move || {
            lines
                .map_while(Result::ok)
                .for_each(|line| println!("{line}"))
        });
        Self { child, port }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("rftp://127.0.0.1:{}/{path}", self.port)
    }

    pub(crate) fn ftp(&self, path: &str) -> String {
        format!("ftp://127.0.0.1:{}/{path}", self.port)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn rftp(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rftp"));
    command.arg("cp").args(arguments);
    command
}

pub(crate) fn output(command: &mut Command) -> Output {
    command.stdin(Stdio::null()).output().unwrap()
}

#[track_caller]
pub(crate) fn succeed(command: &mut Command) -> String {
    let output = output(command);
    let said = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(output.status.success(), "{command:?}: {said}");
    said
}

/// It fails, with this in its message.
#[track_caller]
pub(crate) fn fail(command: &mut Command, with: &str) {
    let output = output(command);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{command:?}: {said}");
    assert!(said.contains(with), "{said}");
}

/// Octets that look random, of a seed. After a mebibyte they repeat, but for the number of the mebibyte.
pub(crate) fn octets(seed: u64, length: usize) -> Vec<u8> {
    const REPEATED: usize = 1 << 20;
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_be_bytes()
    };
    let first: Vec<u8> = std::iter::repeat_with(next)
        .flatten()
        .take(length.min(REPEATED))
        .collect();
    let mut all = first.repeat(length.div_ceil(REPEATED).max(1));
    all.truncate(length);
    for (index, piece) in all.chunks_mut(REPEATED).enumerate().skip(1) {
        let number = index.to_be_bytes();
        let count = piece.len().min(number.len());
        piece[..count].copy_from_slice(&number[..count]);
    }
    all
}

pub(crate) fn make_tree(path: &Path) {
    fs::create_dir_all(path.join("a/b")).unwrap();
    fs::create_dir(path.join("empty")).unwrap();
    fs::write(path.join("nothing"), "").unwrap();
    fs::write(path.join("a/large"), octets(1, 5_000_000)).unwrap();
    fs::write(path.join("a/b/ä ö%"), octets(2, 70_000)).unwrap();
    for index in 0..100 {
        fs::write(path.join(format!("a/b/{index}")), octets(index, 300)).unwrap();
    }
    std::os::unix::fs::symlink("large", path.join("a/link")).unwrap();
}

/// `diff -r` finds nothing.
#[track_caller]
pub(crate) fn assert_equal(one: &Path, other: &Path) {
    succeed(
        Command::new("diff")
            .args(["-r", "--no-dereference"])
            .arg(one)
            .arg(other),
    );
}

pub(crate) fn names(path: &Path) -> Vec<String> {
    let entries = fs::read_dir(path).unwrap();
    let mut names: Vec<_> = entries
        .map(|it| it.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}
