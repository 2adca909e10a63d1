//! Queue pairs that are connected, reset or destroyed, and processes that end, as C programs written against the installed headers see them.

use crate::common::RUN;
use crate::common::each::{compiled, for_each_gid, gids, prints_ok, runs, runs_as};
use std::net::IpAddr;
use std::process::Command;
use xtask::lab::Namespace;
use xtask::skips;

#[test]
fn queue_pairs_go_back_to_reset_and_up_again() {
    for_each_gid("reset", include_str!("../c/reset.c"));
}

#[test]
fn a_process_that_sends_and_ends_loses_nothing() {
    for_each_gid("exit", include_str!("../c/exit.c"));
}

#[test]
fn messages_posted_at_once_arrive_whatever_their_program_does_next() {
    for_each_gid("burst", include_str!("../c/burst.c"));
}

#[test]
fn messages_leave_before_their_queue_pair_though_nothing_is_connected_yet() {
    for_each_gid("early", include_str!("../c/early.c"));
}

#[test]
fn a_disconnect_event_comes_behind_messages_beside_its_connection() {
    let Some(program) = compiled("behind", include_str!("../c/behind.c")) else {
        return;
    };
    for (index, gid) in gids().iter() {
        // An identifier has no scope.
        if !matches!(gid.address, IpAddr::V6(v6) if v6.is_unicast_link_local()) {
            runs(&program, &[gid.address.to_string(), index.to_string()]);
        }
    }
}

#[test]
fn access_flags_bind_the_peer_and_a_queue_pair_may_be_its_own() {
    for_each_gid("access", include_str!("../c/access.c"));
}

#[test]
fn a_send_queue_is_drained_and_goes_on() {
    for_each_gid("drain", include_str!("../c/drain.c"));
}

#[test]
fn a_message_to_a_queue_pair_in_rtr_is_reported() {
    for_each_gid("established", include_str!("../c/established.c"));
}

#[test]
fn polled_completions_free_the_places_of_the_send_queue() {
    for_each_gid("places", include_str!("../c/places.c"));
}

/// Programs written for InfiniBand reuse queue pairs after it; RNICs have none.
#[test]
fn connections_leave_timewait_where_the_persona_has_it() {
    if let Some(program) = compiled("timewait", include_str!("../c/timewait.c")) {
        for (persona, comes) in [("roce", "1"), ("iwarp", "0")] {
            runs_as(persona, &program, &[comes.to_owned()]);
        }
    }
}

#[test]
fn the_ports_events_follow_the_hosts_addresses() {
    let test = "network";
    let Some(program) = compiled(test, include_str!("../c/network.c")) else {
        return;
    };
    let Some(namespace) = skips::made(test, Namespace::new()) else {
        return;
    };
    let mut command = namespace.command("timeout");
    prints_ok(command.args(["120", RUN]).arg(&program).arg("0"));
}

/// With a plain peer, and as an RNIC that lets messages wait, they wait whatever the attributes say.
#[test]
fn rnr_retries_end_where_the_attributes_say_so() {
    let Some(program) = compiled("rnr", include_str!("../c/rnr.c")) else {
        return;
    };
    for (index, _) in gids().iter() {
        for (persona, hello, meant) in [("roce", "1", "1"), ("roce", "0", "0"), ("iwarp", "1", "0")]
        {
            let mut command = Command::new("timeout");
            command
                .env("DGIWARP_PERSONA", persona)
                .env("DGIWARP_HELLO", hello)
                .env("DGIWARP_NO_RECEIVE", "wait");
            // On reliable datagrams there are no plain peers.
            if hello == "0" {
                command.env("DGIWARP_RC", "tcp");
            }
            command.args(["120", RUN]).arg(&program);
            prints_ok(command.args([&index.to_string(), meant]));
        }
    }
}

#[test]
fn rnr_retry_counts_of_connections_limit_the_peers_messages() {
    let Some(program) = compiled("rnr_cm", include_str!("../c/rnr_cm.c")) else {
        return;
    };
    for (count, limits) in [("1", "1"), ("0", "0")] {
        runs(&program, &[count.into(), limits.into()]);
    }
}
