//! Random traffic of verbs (`tests/c/traffic`): queue pairs of all kinds, with shared receive queues, windows, atomics, resets, errors, and peers that are
//! killed, under each set of settings that changes how connected ends behave. Every octet and every completion is checked: nothing is lost, doubled or stray.
//!
//! A failure names the seed of its round. `DGIWARP_TRAFFIC_SEED=N cargo test -p dgiwarp-run --test it traffic` runs that round alone, under each of the settings.

use crate::common::{RUN, have, scratch, skip};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Settings of a run.
struct Run {
    name: &'static str,
    variables: &'static [(&'static str, &'static str)],
    /// Words by which the program learns which settings it has.
    words: &'static [&'static str],
}

const RUNS: [Run; 6] = [
    Run {
        name: "default",
        variables: &[],
        words: &[],
    },
    Run {
        name: "no hello",
        variables: &[("DGIWARP_HELLO", "0")],
        words: &["plain"],
    },
    Run {
        name: "iwarp",
        variables: &[("DGIWARP_PERSONA", "iwarp")],
        words: &["plain", "terminates"],
    },
    Run {
        name: "local",
        variables: &[("DGIWARP_COMPLETION", "local")],
        words: &["local"],
    },
    Run {
        name: "shared memory",
        variables: &[
            ("DGIWARP_SAME_HOST", "ring"),
            ("DGIWARP_SAME_HOST_AFTER", "0"),
        ],
        words: &[],
    },
    Run {
        name: "faults",
        variables: &[(
            "DGIWARP_FAULT",
            "drop=0.01,dup=0.01,reorder=0.02,corrupt=0.005",
        )],
        words: &["duplicates"],
    },
];

fn compile() -> Option<PathBuf> {
    let test = "traffic";
    if !have(test, "cc", "gcc") {
        return None;
    }
    if !Path::new("/usr/include/infiniband/verbs.h").is_file() {
        skip(
            test,
            "infiniband/verbs.h is missing (Debian package libibverbs-dev)",
        );
        return None;
    }
    let program = scratch(test).join(test);
    let output = Command::new("cc")
        .args(["-O1", "-g", "-Wall", "-Wextra", "-Werror", "-o"])
        .arg(&program)
        .arg(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/tests/c/traffic/main.c"
        ))
        .args(["-libverbs", "-pthread"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    Some(program)
}

/// Runs the program under each of the settings for a time, in rounds of seeds that follow from `seed`.
fn run_each(seed: u64, time: Duration, threads: u32) {
    let Some(program) = compile() else {
        return;
    };
    for Run {
        name,
        variables,
        words,
    } in RUNS
    {
        let limit = time.as_secs() + 200;
        let output = Command::new("timeout")
            .args([&limit.to_string(), RUN])
            .arg(&program)
            .args(["0", &seed.to_string(), &time.as_secs_f64().to_string()])
            .arg(threads.to_string())
            .args(words)
            // A variable that the library does not have is reported.
            .env_remove("DGIWARP_TRAFFIC_SEED")
            .envs(variables.iter().copied())
            .output()
            .unwrap();
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        let (told, errors) = (text(&output.stdout), text(&output.stderr));
        println!("{name}, seed {seed}: {told}");
        assert!(
            output.status.success() && errors.is_empty(),
            "{name}, {}: {errors}",
            output.status
        );
    }
}

fn some_seed() -> u64 {
    RandomState::new().build_hasher().finish()
}

#[test]
fn nothing_is_lost_doubled_or_stray() {
    match std::env::var("DGIWARP_TRAFFIC_SEED") {
        Ok(seed) => run_each(seed.parse().unwrap(), Duration::ZERO, 1),
        Err(_) => run_each(some_seed(), Duration::from_secs(2), 1),
    }
}

#[test]
#[ignore = "takes half an hour"]
fn soak_nothing_is_lost_doubled_or_stray() {
    for _ in 0..6 {
        run_each(some_seed(), Duration::from_secs(60), 3);
    }
}
