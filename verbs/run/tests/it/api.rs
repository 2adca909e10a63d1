//! The verbs as a C program written against the installed headers sees them: attributes, errors, contents of
//! completions, events, teardown.

use crate::common::each::{addresses, compiled, for_each_gid, gids, prints_ok, runs, runs_as};
use crate::common::{RUN, skip};
use std::path::Path;
use std::process::Command;

#[test]
fn datagram_queue_pairs_do_what_the_man_pages_say() {
    for_each_gid("ud", include_str!("../c/ud.c"));
}

#[test]
fn datagram_queue_pairs_have_lids() {
    if gids().lid() == 0 {
        return skip("ud_lid", "the first IPv4 address of this host has no LID");
    }
    if let Some(program) = compiled("ud_lid", include_str!("../c/ud.c")) {
        runs(&program, &["-1".into()]);
    }
}

#[test]
fn connected_datagrams_and_shared_receive_queues_do_too() {
    for_each_gid("uc", include_str!("../c/uc.c"));
}

#[test]
fn reliable_queue_pairs_do_too() {
    for_each_gid("rc", include_str!("../c/rc.c"));
}

#[test]
fn chains_are_posted_up_to_the_first_refused_work_request() {
    for_each_gid("chain", include_str!("../c/chain.c"));
}

/// Domains, numbered queues, handles of one target; and the refusal where the device has none.
#[test]
fn xrc_queue_pairs_do_too() {
    let source = include_str!("../c/xrc.c");
    for_each_gid("xrc", source);
    if let Some(program) = compiled("xrc_refused", source) {
        let mut without_hello = Command::new("timeout");
        without_hello.env("DGIWARP_HELLO", "0").args(["30", RUN]);
        prints_ok(without_hello.arg(&program).arg("0"));
        runs_as("iwarp", &program, &["0".into()]);
    }
}

#[test]
fn connections_of_rdma_cm_do_too() {
    if !Path::new("/usr/include/rdma/rdma_verbs.h").is_file() {
        return skip(
            "cm",
            "rdma/rdma_verbs.h is missing (Debian package librdmacm-dev)",
        );
    }
    if let Some(program) = compiled("cm", include_str!("../c/cm.c")) {
        for address in addresses() {
            runs(&program, &[address.to_string()]);
        }
    }
}
