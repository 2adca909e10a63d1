//! The files of the source tree, as text.

use std::fs;
use std::path::{Path, PathBuf};

use xtask::workspace;

/// Folders without sources of ours, wherever they lie. In a second work tree `.git` is a file.
const NOT_OURS: [&str; 3] = ["target", ".git", "proptest-regressions"];
/// Folder at the root that `cargo xtask dist` writes.
const DIST: &str = "dist";

/// One text file.
pub(crate) struct File {
    /// Path from the root of the tree, with `/`.
    pub(crate) path: String,
    /// Its text.
    pub(crate) text: String,
}

impl File {
    /// Whether the path lies in this folder of the tree.
    pub(crate) fn is_in(&self, folder: &str) -> bool {
        self.path
            .strip_prefix(folder)
            .is_some_and(|rest| rest.starts_with('/'))
    }
}

/// All text files of the tree, also those that git does not know yet. Sorted by path.
pub(crate) fn files() -> Vec<File> {
    let root = workspace::root();
    let mut paths = Vec::new();
    collect(&root, &mut paths);
    let mut files: Vec<_> = paths
        .into_iter()
        .filter_map(|path| {
            let text = fs::read_to_string(&path).ok()?;
            let path = path.strip_prefix(&root).unwrap().to_str()?.to_owned();
            Some(File { path, text })
        })
        .collect();
    files.sort_by(|a, b| a.path.cmp(&b.path));
    assert!(
        files
            .iter()
            .any(|file| file.path == "xtask/tests/it/tidy/tree.rs"),
        "the walk is blind"
    );
    files
}

/// The Rust sources among [`files`].
pub(crate) fn rust_files() -> Vec<File> {
    files()
        .into_iter()
        .filter(|file| {
            Path::new(&file.path)
                .extension()
                .is_some_and(|extension| extension == "rs")
        })
        .collect()
}

fn collect(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let (path, kind) = (entry.path(), entry.file_type().unwrap());
        let name = entry.file_name();
        if NOT_OURS.iter().any(|skipped| name == *skipped) || path == workspace::root().join(DIST) {
            continue;
        }
        if kind.is_dir() {
            collect(&path, found);
        } else if kind.is_file() {
            found.push(path);
        }
    }
}
