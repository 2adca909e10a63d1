//! Random work requests between two processes, in every way that their connections go: completions, messages and memory are those that the verbs demand.
//!
//! A failure names its seed; `DGIWARP_RANDOM_SEED=N cargo test -p dgiwarp-run --test it random` runs that one alone.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::process::Command;
use std::thread;

use crate::common::RUN;
use crate::common::each::{compiled, gids, prints_ok};

/// Settings of both ends. As an RNIC, a device keeps to the RFCs where the program expects what InfiniBand has, unless it is set otherwise.
const WAYS: [&[(&str, &str)]; 6] = [
    &[("DGIWARP_SAME_HOST", "off")],
    &[
        ("DGIWARP_SAME_HOST", "ring"),
        ("DGIWARP_SAME_HOST_AFTER", "0"),
    ],
    &[
        ("DGIWARP_SAME_HOST", "direct"),
        ("DGIWARP_SAME_HOST_AFTER", "0"),
    ],
    &[("DGIWARP_SAME_HOST", "auto")],
    &[
        ("DGIWARP_PERSONA", "iwarp"),
        ("DGIWARP_HELLO", "1"),
        ("DGIWARP_COMPLETION", "placed"),
        ("DGIWARP_NO_RECEIVE", "wait"),
    ],
    &[("DGIWARP_RC", "rd"), ("DGIWARP_SAME_HOST", "off")],
];

fn run(program: &Path, index: usize, way: &[(&str, &str)], first: u64, count: u64) {
    let mut command = Command::new("timeout");
    // A seed that does not end says so within its own time.
    let limit = 120 + 2 * count;
    command.env("DGIWARP_PERSONA", "roce");
    command.envs(way.iter().copied());
    command.args([&limit.to_string(), RUN]).arg(program);
    command.args([index.to_string(), first.to_string(), count.to_string()]);
    prints_ok(&mut command);
}

/// Runs seeds in all ways side by side, each way with its own.
fn run_all(name: &str, first: u64, count: u64) {
    let Some(program) = compiled(name, include_str!("../c/random.c")) else {
        return;
    };
    let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let gids = gids();
    let index = gids.iter().find(|(_, gid)| gid.address == loopback);
    let index = index.unwrap().0;
    let own = std::env::var("DGIWARP_RANDOM_SEED").ok();
    let own = own.map(|seed| seed.parse().unwrap());
    thread::scope(|scope| {
        for (way, from) in WAYS.iter().zip((first..).step_by(1_000_000)) {
            let program = &program;
            scope.spawn(move || match own {
                Some(seed) => run(program, index, way, seed, 1),
                None => run(program, index, way, from, count),
            });
        }
    });
}

#[test]
fn random_work_requests_have_the_results_that_the_verbs_demand() {
    run_all("random", 0, 12);
}

#[test]
#[ignore = "takes ten minutes"]
fn soak_random_work_requests() {
    let count = std::env::var("DGIWARP_RANDOM_COUNT");
    let count = count.map_or(800, |it| it.parse().unwrap());
    let first = RandomState::new().build_hasher().finish() >> 16;
    run_all("random_soak", first, count);
}
