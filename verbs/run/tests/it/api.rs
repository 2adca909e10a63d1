//! The verbs as a C program written against the installed headers sees them: attributes, errors, contents of
//! completions, events, teardown.

use crate::common::{RUN, compile, scratch, skip, succeed};
use dgiwarp_verbs::gid::{GidTable, host_gids};
use std::path::Path;
use std::process::Command;

#[test]
fn datagram_queue_pairs_do_what_the_man_pages_say() {
    let directory = scratch("ud");
    let Some(program) = compile(
        "ud",
        &directory,
        include_str!("../c/ud.c"),
        &["-Wall", "-libverbs"],
    ) else {
        return;
    };
    let mut gids = GidTable::new();
    gids.update(host_gids().unwrap());
    for (index, gid) in gids.iter() {
        let output = succeed(
            Command::new("timeout")
                .args(["30", RUN])
                .arg(&program)
                .arg(index.to_string()),
        );
        assert_eq!(
            String::from_utf8_lossy(&output.stdout),
            "ok\n",
            "{}",
            gid.address
        );
        assert_eq!(
            String::from_utf8_lossy(&output.stderr),
            "",
            "{}",
            gid.address
        );
    }
    if gids.lid() == 0 {
        return skip("ud_lid", "the first IPv4 address of this host has no LID");
    }
    let output = succeed(
        Command::new("timeout")
            .args(["30", RUN])
            .arg(&program)
            .arg("-1"),
    );
    assert_eq!(String::from_utf8_lossy(&output.stdout), "ok\n");
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
fn connections_of_rdma_cm_do_too() {
    if !Path::new("/usr/include/rdma/rdma_verbs.h").is_file() {
        return skip(
            "cm",
            "rdma/rdma_verbs.h is missing (Debian package librdmacm-dev)",
        );
    }
    let directory = scratch("cm");
    let libraries = ["-Wall", "-lrdmacm", "-libverbs", "-lpthread"];
    let Some(program) = compile("cm", &directory, include_str!("../c/cm.c"), &libraries) else {
        return;
    };
    for gid in host_gids().unwrap() {
        // A link-local address is not one without its interface.
        if gid.raw().raw.starts_with(&[0xfe, 0x80]) {
            continue;
        }
        let mut command = Command::new("timeout");
        command.args(["60", RUN]).arg(&program);
        let output = succeed(command.arg(gid.address.to_string()));
        assert_eq!(
            (
                &*String::from_utf8_lossy(&output.stdout),
                &*String::from_utf8_lossy(&output.stderr)
            ),
            ("ok\n", ""),
            "{}",
            gid.address
        );
    }
}

/// Compiles a program and runs it once with the index of each of the host's addresses.
fn for_each_gid(name: &str, source: &str) {
    let directory = scratch(name);
    let Some(program) = compile(name, &directory, source, &["-Wall", "-libverbs"]) else {
        return;
    };
    let mut gids = GidTable::new();
    gids.update(host_gids().unwrap());
    for (index, gid) in gids.iter() {
        let mut command = Command::new("timeout");
        command.args(["30", RUN]).arg(&program);
        let output = succeed(command.arg(index.to_string()));
        assert_eq!(
            (
                &*String::from_utf8_lossy(&output.stdout),
                &*String::from_utf8_lossy(&output.stderr)
            ),
            ("ok\n", ""),
            "{}",
            gid.address
        );
    }
}
