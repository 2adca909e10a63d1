//! Programs whose connections are within this host, through shared memory from their first message on: most of them would end before they have moved.

use std::net::{IpAddr, Ipv4Addr};
use std::process::Command;

use crate::common::each::{compiled, gids, prints_ok};
use crate::common::{RUN, scratch};

/// Runs until one is seen to share memory.
const RUNS: usize = 10;

/// Runs a program with the index of the loopback address, where its connections share memory at once, and where they stay on TCP.
fn runs_both_ways(name: &str, source: &str) {
    let name = format!("same_host_{name}");
    let Some(program) = compiled(&name, source) else {
        return;
    };
    let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let index = gids()
        .iter()
        .find(|(_, gid)| gid.address == loopback)
        .map(|(index, _)| index);
    let index = index.unwrap().to_string();
    let run = |way: &str| {
        let statistics = scratch(&name).join(format!("{way}.json"));
        let _ = std::fs::remove_file(&statistics);
        let mut command = Command::new("timeout");
        command
            .env("DGIWARP_RC", "tcp")
            .env("DGIWARP_SAME_HOST", way)
            .env("DGIWARP_SAME_HOST_AFTER", "0")
            .env("DGIWARP_STATS", &statistics);
        command.args(["120", RUN]).arg(&program).arg(&index);
        prints_ok(&mut command);
        carries(&std::fs::read_to_string(&statistics).unwrap())
    };
    assert!(!run("off"));
    // Ends meet in the background: on a busy machine a short program may be over by then.
    assert!((0..RUNS).any(|_| run("ring")), "all of it went by TCP");
}

/// Whether a lane carried octets of any queue pair.
fn carries(counted: &str) -> bool {
    counted
        .split("\"lane_octets_sent\":")
        .skip(1)
        .any(|rest| !rest.starts_with('0'))
}

#[test]
fn queue_pairs_go_back_to_reset_and_up_again() {
    runs_both_ways("reset", include_str!("../c/reset.c"));
}

#[test]
fn a_process_that_sends_and_ends_loses_nothing() {
    runs_both_ways("exit", include_str!("../c/exit.c"));
}

#[test]
fn a_send_queue_is_drained_and_goes_on() {
    runs_both_ways("drain", include_str!("../c/drain.c"));
}

#[test]
fn polled_completions_free_the_places_of_the_send_queue() {
    runs_both_ways("places", include_str!("../c/places.c"));
}

#[test]
fn messages_posted_at_once_arrive_whatever_their_program_does_next() {
    runs_both_ways("burst", include_str!("../c/burst.c"));
}
