//! Trees and programs of tests.
#![expect(clippy::unwrap_used, reason = "what the system refuses fails the test")]
#![expect(clippy::missing_panics_doc, reason = "a panic is how a test fails")]
#![expect(
    clippy::disallowed_methods,
    reason = "tests wait for other processes, with deadlines"
)]

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{XattrFlags, getxattr, listxattr, setxattr};

/// Time that nothing in a test takes, on a loaded machine either.
pub const SOON: Duration = Duration::from_secs(100);

/// Waits until a program has ended.
pub fn wait(child: &mut Child) -> ExitStatus {
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

/// Output of a program that ends, without standard input.
pub fn output(command: &mut Command) -> Output {
    command.stdin(Stdio::null()).output().unwrap()
}

/// Runs to its end; exit status, and all that was said.
pub fn run(command: &mut Command) -> (Option<i32>, String) {
    let output = output(command);
    let said = [output.stdout, output.stderr].concat();
    (
        output.status.code(),
        String::from_utf8_lossy(&said).into_owned(),
    )
}

/// It succeeds; all that was said.
#[track_caller]
pub fn succeed(command: &mut Command) -> String {
    let (code, said) = run(command);
    assert_eq!(code, Some(0), "{command:?}: {said}");
    said
}

/// It fails, with this in its message.
#[track_caller]
pub fn fail(command: &mut Command, with: &str) {
    let (code, said) = run(command);
    assert_eq!(code, Some(1), "{command:?}: {said}");
    assert!(said.contains(with), "{said}");
}

/// Octets that look random, of a seed. After a mebibyte they repeat, but for the number of the mebibyte.
#[must_use]
pub fn octets(seed: u64, length: usize) -> Vec<u8> {
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

/// Files of all sizes around those of blocks, links, empty directories, odd names.
pub fn make_tree(path: &Path) {
    fs::create_dir_all(path.join("a/b")).unwrap();
    fs::create_dir_all(path.join("empty/er")).unwrap();
    fs::write(path.join("nothing"), "").unwrap();
    fs::write(path.join("a/large"), octets(1, 5_000_000)).unwrap();
    let half = 512 << 10;
    for length in [half - 1, half, half + 1, 2 * half, 2 * half + 1] {
        fs::write(path.join(format!("a/{length}")), octets(1, length)).unwrap();
    }
    for index in 0..300 {
        fs::write(path.join(format!("a/b/{index}")), octets(index, 900)).unwrap();
    }
    for name in [&b"not utf-8 \xff\n%"[..], "ä ö%".as_bytes()] {
        let name = std::os::unix::ffi::OsStrExt::from_bytes(name);
        fs::write(path.join::<&OsStr>(name), "x").unwrap();
    }
    std::os::unix::fs::symlink("large", path.join("a/link")).unwrap();
    std::os::unix::fs::symlink("../nowhere", path.join("empty/dangling")).unwrap();
}

/// Names, kinds, modes, times and contents below a path, once no session has a directory of its own there.
#[must_use]
pub fn listing(root: &Path) -> Vec<String> {
    without_session(|| list(root, true))
}

/// The result of `look`, once no session has a directory of its own there: the peer of a program that ended removes its own a moment later.
fn without_session<T>(look: impl Fn() -> Option<T>) -> T {
    let end = Instant::now() + SOON;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < end, "a session left a directory behind");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// As [`listing`], with what a session that was killed has left.
#[must_use]
pub fn listing_with_left(root: &Path) -> Vec<String> {
    list(root, false).unwrap()
}

/// `None` where a session has a directory, and none is to be there.
fn list(root: &Path, is_over: bool) -> Option<Vec<String>> {
    let mut found = Vec::new();
    let mut todo = vec![root.to_owned()];
    while let Some(folder) = todo.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let entry = entry.unwrap();
            if is_over && is_of_session(&entry.file_name()) {
                return None;
            }
            let path = entry.path();
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
    Some(found)
}

/// Extended attributes of one file or directory.
pub type Attributes = BTreeMap<String, Vec<u8>>;

/// Sets an extended attribute; `false` where the file system has none, or no room for it.
#[must_use]
pub fn set_attribute(path: &Path, name: &str, value: &[u8]) -> bool {
    setxattr(path, name, value, XattrFlags::empty()).is_ok()
}

/// Extended attributes of the namespace `user.` that a path and all beneath it have, by names beneath it.
#[must_use]
pub fn attributes(root: &Path) -> BTreeMap<PathBuf, Attributes> {
    let mut found = BTreeMap::new();
    let mut todo = vec![root.to_owned()];
    while let Some(path) = todo.pop() {
        let metadata = fs::symlink_metadata(&path).unwrap();
        if metadata.is_dir() {
            todo.extend(fs::read_dir(&path).unwrap().map(|it| it.unwrap().path()));
        }
        if metadata.is_symlink() {
            continue;
        }
        let mut list = vec![0; 64 << 10];
        let octets = listxattr(&path, &mut list[..]).unwrap();
        let names = list[..octets].split(|it| *it == 0);
        let names = names.filter(|it| it.starts_with(b"user."));
        let value = |name: &[u8]| {
            let mut value = vec![0; 64 << 10];
            let octets = getxattr(&path, name, &mut value[..]).unwrap();
            value.truncate(octets);
            (String::from_utf8_lossy(name).into_owned(), value)
        };
        let own: Attributes = names.map(value).collect();
        if !own.is_empty() {
            found.insert(path.strip_prefix(root).unwrap().to_owned(), own);
        }
    }
    found
}

fn is_of_session(name: &OsStr) -> bool {
    name.as_bytes().starts_with(b".rftp-pack-")
}

/// Names in a directory, once no session has a directory of its own there.
#[must_use]
pub fn names(path: &Path) -> Vec<String> {
    let mut names = without_session(|| {
        let entries = fs::read_dir(path).unwrap();
        let names = entries.map(|it| it.unwrap().file_name());
        let is_ours = |it: OsString| (!is_of_session(&it)).then(|| it.into_string().unwrap());
        names.map(is_ours).collect::<Option<Vec<_>>>()
    });
    names.sort();
    names
}
