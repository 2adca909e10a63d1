//! Builds for other processors, in a target folder of their own.

use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use cargo_metadata::Message;

/// The target that is built for besides this machine's.
pub const AARCH64: &str = "aarch64-unknown-linux-gnu";

/// The linker for aarch64 (Debian package gcc-aarch64-linux-gnu).
const LINKER: &str = "aarch64-linux-gnu-gcc";

/// Reason why this machine cannot compile for a target, if so. The target's standard library is added to the toolchain if need be.
#[must_use]
pub fn obstacle(target: &str) -> Option<String> {
    if target == AARCH64 && Command::new(LINKER).arg("--version").output().is_err() {
        return Some(format!(
            "{LINKER} is missing (Debian package gcc-aarch64-linux-gnu)"
        ));
    }
    let added = Command::new("rustup")
        .args(["target", "add", target])
        .output();
    let has = added.is_ok_and(|output| output.status.success());
    (!has).then(|| format!("rustup cannot add the standard library for {target}"))
}

/// The toolchain's folder with lld under the name that C compilers search for. One for another processor searches PATH for no `ld.lld`.
fn linkers() -> io::Result<PathBuf> {
    let output = Command::new("rustc")
        .args(["--print", "target-libdir"])
        .output()?;
    let libraries = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(Path::new(libraries.trim()).with_file_name("bin/gcc-ld"))
}

/// Target folder of these builds, below the folder that cargo gives integration tests.
#[must_use]
pub fn folder(tmp: &str) -> PathBuf {
    Path::new(tmp).join("cross")
}

/// Runs cargo for a target, apart from other builds; `tmp` is the `CARGO_TARGET_TMPDIR` of the test.
///
/// # Errors
/// cargo or rustc cannot be run.
pub fn cargo(target: &str, tmp: &str, arguments: &[&str]) -> io::Result<Output> {
    let flags = format!("-Clink-arg=-B{}", linkers()?.display());
    super::cargo()
        .args(arguments)
        .args(["--target", target, "--target-dir"])
        .arg(folder(tmp))
        .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", LINKER)
        .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUSTFLAGS", flags)
        .output()
}

/// Compiles the unit tests of libraries for a target, as [`cargo`] does, and returns each library's name with its test program.
///
/// # Errors
/// A test does not compile, or cargo cannot be run.
pub fn unit_tests(
    target: &str,
    tmp: &str,
    selection: &[&str],
) -> Result<Vec<(String, PathBuf)>, Box<dyn Error>> {
    let mut arguments = vec!["test", "--no-run", "--all-features", "--lib"];
    arguments.extend(["--message-format", "json-render-diagnostics"]);
    arguments.extend(selection);
    let output = cargo(target, tmp, &arguments)?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into());
    }
    let mut programs = Vec::new();
    for message in Message::parse_stream(output.stdout.as_slice()) {
        if let Message::CompilerArtifact(artifact) = message?
            && let (true, Some(program)) = (artifact.profile.test, artifact.executable)
        {
            programs.push((artifact.target.name, program.into()));
        }
    }
    programs.sort();
    Ok(programs)
}
