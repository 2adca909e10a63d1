//! cargo-mutants over the protocol crates: of the mutants that compile, a package's own tests catch 95 of 100.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use xtask::skips::skip;
use xtask::workspace;

/// Version that is installed where none is.
const VERSION: &str = "27.1.0";

/// The program, or `None` where it is not installed and cannot be.
static CARGO_MUTANTS: LazyLock<Option<PathBuf>> = LazyLock::new(|| {
    let tools = workspace::root().join("target/tools");
    let own = tools.join("bin/cargo-mutants");
    let runs = |program: &Path| {
        let version = Command::new(program)
            .args(["mutants", "--version"])
            .output();
        version.is_ok_and(|output| output.status.success())
    };
    for program in [Path::new("cargo-mutants"), &own] {
        if runs(program) {
            return Some(program.to_path_buf());
        }
    }
    let status = workspace::cargo()
        .args([
            "install",
            "cargo-mutants",
            "--locked",
            "--version",
            VERSION,
            "--root",
        ])
        .arg(&tools)
        .status();
    status.is_ok_and(|status| status.success()).then_some(own)
});

/// Runs cargo-mutants over a package, or a shard of its mutants.
fn check(test: &str, package: &str, shard: Option<&str>) {
    let Some(program) = CARGO_MUTANTS.as_deref() else {
        skip(test, "cargo-mutants cannot be installed");
        return;
    };
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    let mut command = Command::new(program);
    command
        .args([
            "mutants",
            "--jobs=1",
            "--colors=never",
            "--package",
            package,
        ])
        .arg("--output")
        .arg(&folder)
        // Runs that share a target folder wait for one another.
        .env_remove("CARGO_TARGET_DIR")
        .current_dir(workspace::root());
    command.args(shard.map(|shard| format!("--shard={shard}")));
    let output = command.output().unwrap();
    let mutants = |file: &str| fs::read_to_string(folder.join("mutants.out").join(file)).unwrap();
    let missed = mutants("missed.txt");
    let caught = mutants("caught.txt").lines().count() + mutants("timeout.txt").lines().count();
    let viable = caught + missed.lines().count();
    println!("{package}: {caught} of {viable} caught, missed:\n{missed}");
    assert!(viable > 0, "{output:?}");
    assert!(
        caught * 100 >= viable * 95,
        "{caught} of {viable}:\n{missed}"
    );
}

#[test]
#[ignore = "5 min"]
fn soak_cargo_mutants_codec() {
    check("soak_cargo_mutants_codec", "dgiwarp-codec", None);
}

#[test]
#[ignore = "10 min"]
fn soak_cargo_mutants_memory() {
    check("soak_cargo_mutants_memory", "dgiwarp-memory", None);
}

#[test]
#[ignore = "5 min"]
fn soak_cargo_mutants_ddp() {
    check("soak_cargo_mutants_ddp", "dgiwarp-ddp", None);
}

#[test]
#[ignore = "10 min"]
fn soak_cargo_mutants_sockets() {
    check("soak_cargo_mutants_sockets", "dgiwarp-sockets", None);
}

#[test]
#[ignore = "10 min"]
fn soak_cargo_mutants_llp_udp() {
    check("soak_cargo_mutants_llp_udp", "dgiwarp-llp-udp", None);
}

#[test]
#[ignore = "25 min"]
fn soak_cargo_mutants_llp_tcp_mpa() {
    check(
        "soak_cargo_mutants_llp_tcp_mpa",
        "dgiwarp-llp-tcp-mpa",
        None,
    );
}

#[test]
#[ignore = "75 min"]
fn soak_cargo_mutants_rdmap_1() {
    check("soak_cargo_mutants_rdmap_1", "dgiwarp-rdmap", Some("0/2"));
}

#[test]
#[ignore = "75 min"]
fn soak_cargo_mutants_rdmap_2() {
    check("soak_cargo_mutants_rdmap_2", "dgiwarp-rdmap", Some("1/2"));
}
