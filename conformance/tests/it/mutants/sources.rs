//! The files of the workspace, by their path in it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::text::Normalized;

pub(crate) type Files = BTreeMap<PathBuf, Vec<u8>>;

/// Rust sources, which edits may touch.
pub(crate) type Sources = BTreeMap<PathBuf, Normalized>;

/// The workspace.
pub(crate) fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// Files in git's index, and new ones that it does not ignore.
pub(crate) fn files() -> Files {
    let output = Command::new("git")
        .args([
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
        ])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let names = String::from_utf8(output.stdout).unwrap();
    let names = names.split_terminator('\0').map(PathBuf::from);
    names
        .filter_map(|name| {
            // A file that was removed and not yet committed is still in git's index.
            let octets = fs::read(root().join(&name)).ok()?;
            Some((name, octets))
        })
        .collect()
}

/// The Rust sources of packages, without integration tests and benchmarks.
pub(crate) fn rust_among(files: &Files) -> Sources {
    files
        .iter()
        .filter(|(path, _)| is_source(path))
        .map(|(path, octets)| {
            let text = String::from_utf8(octets.clone()).unwrap();
            (path.clone(), Normalized::of(text))
        })
        .collect()
}

fn is_source(path: &Path) -> bool {
    path.extension().is_some_and(|it| it == "rs") && path.iter().any(|part| part == "src")
}
