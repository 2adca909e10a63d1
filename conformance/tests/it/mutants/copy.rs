//! A copy of the workspace that mutants are built in, one after the other, with a target directory kept between them.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tempfile::TempDir;
use xtask::workspace::cargo;

use super::deadline::Deadline;
use super::rules::Mutant;
use super::sources::{Files, Sources, files, rust_among};

/// Limit of one build. The first one compiles all dependencies.
const BUILD_TIME: Duration = Duration::from_secs(480);

/// Packages that the workspace optimizes in its development profile. For a run of a few cases a mutant is compiled faster without.
const OPTIMIZED: &[&str] = &[
    "dgiwarp",
    "dgiwarp-codec",
    "dgiwarp-ddp",
    "dgiwarp-engine",
    "dgiwarp-llp-tcp-mpa",
    "dgiwarp-llp-udp",
    "dgiwarp-memory",
    "dgiwarp-rdmap",
    "dgiwarp-verbs",
];

/// The copy, locked against other processes.
pub(crate) struct Copy {
    files: Files,
    sources: Sources,
    tree: PathBuf,
    target: PathBuf,
    _lock: File,
}

impl Copy {
    /// Takes the lock, and reads the workspace as it is now.
    pub(crate) fn of_the_workspace() -> Self {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("mutants");
        let tree = folder.join("tree");
        fs::create_dir_all(&tree).unwrap();
        let lock = File::create(folder.join("lock")).unwrap();
        lock.lock().unwrap();
        let files = files();
        Self {
            sources: rust_among(&files),
            files,
            tree,
            target: folder.join("target"),
            _lock: lock,
        }
    }

    /// The library with a mutant's edits, or without any, in a folder for `LD_LIBRARY_PATH`.
    ///
    /// # Errors
    /// The edit that does not apply, or the compiler's messages.
    pub(crate) fn build(&self, mutant: Option<&Mutant>) -> Result<TempDir, String> {
        let edited = match mutant {
            Some(mutant) => mutant.apply(&self.sources)?,
            None => Sources::new(),
        };
        self.write(&edited);
        self.compile()?;
        let built = self.target.join("debug/deps/libdgiwarp_verbs.so");
        let folder = tempfile::tempdir_in(self.target.parent().unwrap()).unwrap();
        fs::copy(built, folder.path().join("libdgiwarp_verbs.so")).unwrap();
        for name in ["libibverbs.so.1", "librdmacm.so.1"] {
            symlink("libdgiwarp_verbs.so", folder.path().join(name)).unwrap();
        }
        Ok(folder)
    }

    /// Writes the files with these edits to the copy. Unchanged files keep their modification times, so that cargo does not compile them again.
    fn write(&self, edited: &Sources) {
        for path in files_below(&self.tree) {
            if !self
                .files
                .contains_key(path.strip_prefix(&self.tree).unwrap())
            {
                fs::remove_file(path).unwrap();
            }
        }
        for (path, original) in &self.files {
            let wanted = edited
                .get(path)
                .map_or(&original[..], |text| text.original().as_bytes());
            let copy = self.tree.join(path);
            if fs::read(&copy).is_ok_and(|present| present == wanted) {
                continue;
            }
            fs::create_dir_all(copy.parent().unwrap()).unwrap();
            fs::write(copy, wanted).unwrap();
        }
    }

    fn compile(&self) -> Result<(), String> {
        let mut messages = tempfile::NamedTempFile::new().unwrap();
        let mut command = cargo();
        command
            .current_dir(&self.tree)
            .args(["build", "--quiet", "--offline", "--locked"])
            .args(["--package", "dgiwarp-verbs-library", "--target-dir"])
            .arg(&self.target)
            .args(["--config", "profile.dev.debug=false"])
            .args(["--config", "profile.dev.incremental=true"]);
        for package in OPTIMIZED {
            let setting = format!("profile.dev.package.{package}.opt-level=0");
            command.args(["--config", &setting]);
        }
        // Edits leave unused code behind, and warnings of it.
        command.env("RUSTFLAGS", "--cap-lints=allow");
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(messages.reopen().unwrap())
            .spawn()
            .unwrap();
        let deadline = Deadline::of(child.id(), BUILD_TIME);
        let status = child.wait().unwrap();
        drop(deadline);
        if status.success() {
            return Ok(());
        }
        let mut text = String::new();
        std::io::Read::read_to_string(&mut messages, &mut text).unwrap();
        Err(format!("{status}\n{text}"))
    }
}

fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_dir() {
            files.extend(files_below(&entry.path()));
        } else {
            files.push(entry.path());
        }
    }
    files
}
