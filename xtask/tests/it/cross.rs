//! Other processors: the libraries and programs compile for aarch64, and those for 32-bit processors are refused.

use std::process::Output;

use xtask::skips::skip;
use xtask::workspace::cross::{self, AARCH64};

/// Runs cargo for a target.
fn cargo(target: &str, arguments: &[&str]) -> Output {
    cross::cargo(target, env!("CARGO_TARGET_TMPDIR"), arguments).unwrap()
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
#[ignore = "five minutes"]
fn soak_libraries_and_programs_build_for_aarch64() {
    if let Some(reason) = cross::obstacle(AARCH64) {
        return skip("soak_libraries_and_programs_build_for_aarch64", &reason);
    }
    let everything = ["build", "--workspace", "--all-features", "--lib", "--bins"];
    let output = cargo(AARCH64, &everything);
    assert!(output.status.success(), "{}", errors(&output));
}

#[test]
#[ignore = "half a minute"]
fn soak_32_bits_are_refused() {
    let target = "i686-unknown-linux-gnu";
    if let Some(reason) = cross::obstacle(target) {
        return skip("soak_32_bits_are_refused", &reason);
    }
    let output = cargo(target, &["check", "-p", "dgiwarp-memory"]);
    let said = errors(&output);
    assert!(!output.status.success(), "{said}");
    assert!(said.contains("64-bit little-endian processors"), "{said}");
}
