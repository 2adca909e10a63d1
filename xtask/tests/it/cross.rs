//! Other processors: the libraries and programs compile for aarch64, and those for 32-bit processors are refused.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use xtask::skips::skip;
use xtask::workspace;

/// The linker for aarch64 (Debian package gcc-aarch64-linux-gnu).
const LINKER: &str = "aarch64-linux-gnu-gcc";

/// Whether the toolchain has the standard library for a target, if need be from now on.
fn has_target(test: &str, target: &str) -> bool {
    let added = Command::new("rustup")
        .args(["target", "add", target])
        .output();
    let has = added.is_ok_and(|output| output.status.success());
    if !has {
        let reason = format!("rustup cannot add the standard library for {target}");
        skip(test, &reason);
    }
    has
}

/// The toolchain's folder with lld under the name that C compilers search for. One for another processor searches PATH for no `ld.lld`.
fn linkers() -> PathBuf {
    let output = Command::new("rustc")
        .args(["--print", "target-libdir"])
        .output();
    let libraries = String::from_utf8(output.unwrap().stdout).unwrap();
    Path::new(libraries.trim()).with_file_name("bin/gcc-ld")
}

/// Runs cargo for a target, apart from other builds.
fn cargo(target: &str, arguments: &[&str]) -> Output {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cross");
    let flags = format!("-Clink-arg=-B{}", linkers().display());
    workspace::cargo()
        .args(arguments)
        .args(["--target", target, "--target-dir"])
        .arg(folder)
        .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", LINKER)
        .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUSTFLAGS", flags)
        .output()
        .unwrap()
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
#[ignore = "five minutes"]
fn soak_libraries_and_programs_build_for_aarch64() {
    let test = "soak_libraries_and_programs_build_for_aarch64";
    let target = "aarch64-unknown-linux-gnu";
    if Command::new(LINKER).arg("--version").output().is_err() {
        return skip(
            test,
            &format!("{LINKER} is missing (Debian package gcc-aarch64-linux-gnu)"),
        );
    }
    if !has_target(test, target) {
        return;
    }
    let everything = ["build", "--workspace", "--all-features", "--lib", "--bins"];
    let output = cargo(target, &everything);
    assert!(output.status.success(), "{}", errors(&output));
}

#[test]
#[ignore = "half a minute"]
fn soak_32_bits_are_refused() {
    let (test, target) = ("soak_32_bits_are_refused", "i686-unknown-linux-gnu");
    if !has_target(test, target) {
        return;
    }
    let output = cargo(target, &["check", "-p", "dgiwarp-memory"]);
    let said = errors(&output);
    assert!(!output.status.success(), "{said}");
    assert!(said.contains("64-bit little-endian processors"), "{said}");
}
