//! Programs in C that are linked to our library by pkg-config, as their users do it.

use super::{compile, have, library, succeed};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// Where our header is, for programs that are not linked so.
pub(crate) const INCLUDE: &str = concat!("-I", env!("CARGO_MANIFEST_DIR"), "/../include");
const EXAMPLES: &str = concat!("-I", env!("CARGO_MANIFEST_DIR"), "/../examples/c");
const STRICT: [&str; 3] = ["-Wall", "-Wextra", "-Werror"];
/// The examples keep to a standard of C.
const STANDARD: &str = "-std=c11";

/// pkg-config's flags for the build tree; `None` skips the test.
pub(crate) fn flags(test: &str) -> Option<Vec<String>> {
    if !have(test, "pkg-config", "pkg-config") {
        return None;
    }
    let library = library();
    let profile = library.ancestors().nth(2).unwrap();
    let mut command = Command::new("pkg-config");
    command
        .args(["--cflags", "--libs", "dgiwarp"])
        .env("PKG_CONFIG_PATH", profile.join("pkgconfig"));
    let said = String::from_utf8(succeed(&mut command).stdout).unwrap();
    Some(said.split_ascii_whitespace().map(str::to_owned).collect())
}

/// Compiles a program without a warning, to where every user can start it.
pub(crate) fn linked(name: &str, source: &str) -> Option<(TempDir, PathBuf)> {
    let flags = flags(name)?;
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), Permissions::from_mode(0o755)).unwrap();
    let mut arguments = [&STRICT[..], &["-g", EXAMPLES]].concat();
    if !source.contains("pair.h") {
        arguments.push(STANDARD);
    }
    arguments.extend(flags.iter().map(String::as_str));
    let program = compile(name, directory.path(), source, &arguments)?;
    Some((directory, program))
}

/// Compiles a program of the verbs alone, as one that shall run on hardware.
pub(crate) fn plain(name: &str, directory: &Path, source: &str) -> Option<PathBuf> {
    let arguments = [&STRICT[..], &[STANDARD, INCLUDE, EXAMPLES, "-libverbs"]].concat();
    compile(name, directory, source, &arguments)
}
