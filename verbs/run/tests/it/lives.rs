//! Queue pairs that are connected, reset or destroyed, and processes that end, as C programs written against the installed headers see them.

use crate::common::{RUN, compile, scratch, succeed};
use dgiwarp_verbs::gid::{GidTable, host_gids};
use std::process::Command;

/// Compiles a program of `tests/c` and runs it with the index of each of the host's addresses.
fn for_each_gid(name: &str, source: &str) {
    let include = concat!("-I", env!("CARGO_MANIFEST_DIR"), "/tests/c");
    let arguments = ["-Wall", include, "-libverbs"];
    let Some(program) = compile(name, &scratch(name), source, &arguments) else {
        return;
    };
    let mut gids = GidTable::new();
    gids.update(host_gids().unwrap());
    for (index, gid) in gids.iter() {
        let mut command = Command::new("timeout");
        let output = succeed(
            command
                .args(["60", RUN])
                .arg(&program)
                .arg(index.to_string()),
        );
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        let said = (text(&output.stdout), text(&output.stderr));
        assert_eq!(said, ("ok\n".into(), String::new()), "{}", gid.address);
    }
}

#[test]
fn queue_pairs_go_back_to_reset_and_up_again() {
    for_each_gid("reset", include_str!("../c/reset.c"));
}

#[test]
fn a_process_that_sends_and_ends_loses_nothing() {
    for_each_gid("exit", include_str!("../c/exit.c"));
}

#[test]
fn access_flags_bind_the_peer_and_a_queue_pair_may_be_its_own() {
    for_each_gid("access", include_str!("../c/access.c"));
}
