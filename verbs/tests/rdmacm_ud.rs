//! Debian's unmodified programs on rdma_cm's datagram side: `mckey`, which joins multicast groups.

#![allow(
    clippy::unwrap_used,
    reason = "a test stops where something is not as expected"
)]

mod common;

use common::have;
use common::scene::{Family, Place, Scene};
use common::session::{self, End, Ready};
use std::time::Duration;

/// The port that members of groups receive at.
const GROUPS: Ready = Ready::PortIs(18514);

const DONE: &[&str] = &[
    "data transfers complete",
    "test complete",
    "return status 0",
];

/// Runs sessions of one of rdmacm-utils' programs in a place, with both kinds of addresses if it has them.
fn run(test: &str, program: &str, place: Place, sessions: &[(Family, &[End])]) {
    if !have(test, program, "rdmacm-utils") {
        return;
    }
    let Some(scene) = Scene::new(test, place) else {
        return;
    };
    for (family, ends) in sessions {
        if scene.has(*family) {
            session::run(&scene, *family, ends);
        }
    }
}

const IN_TIME: Duration = Duration::from_secs(6);

const MCKEY: &[End] = &[
    End::server("mckey -m 239.192.18.1 -b {server}")
        .ready(GROUPS)
        .says(DONE),
    End::server("mckey -m 239.192.18.1 -b {server}")
        .ready(GROUPS)
        .says(DONE),
    End::client("mckey -m 239.192.18.1 -b {client} -s").says(&["test complete", "return status 0"]),
];
/// Several queue pairs at each end, a sender that is no member, and a group named by its GID.
const MCKEYS: &[End] = &[
    End::server("mckey -m 239.192.18.2 -b {server} -c 4 -C 50 -S 1000")
        .ready(GROUPS)
        .says(DONE),
    End::server("mckey -m 239.192.18.2 -b {server} -c 4 -C 50 -S 1000")
        .ready(GROUPS)
        .says(DONE),
    End::client("mckey -m 239.192.18.2 -b {client} -c 4 -C 50 -S 1000 -s -o")
        .says(&["test complete", "return status 0"]),
];
const MCKEY_UNMAPPED: &[End] = &[
    End::server("mckey -M ::ffff:239.192.18.3 -b {server}")
        .ready(GROUPS)
        .says(DONE),
    End::server("mckey -m 239.192.18.3 -b {server}")
        .ready(GROUPS)
        .says(DONE),
    End::client("mckey -M ::ffff:239.192.18.3 -b {client} -s -o").says(&["return status 0"]),
];
/// As MCKEY, in IPv6.
const MCKEY_V6: &[End] = &[
    End::server("mckey -m ff05::18:4 -b {server}")
        .ready(GROUPS)
        .says(DONE),
    End::server("mckey -M ff05::18:4 -b {server}")
        .ready(GROUPS)
        .says(DONE),
    End::client("mckey -m ff05::18:4 -b {client} -s").says(&["return status 0"]),
];

#[test]
fn mckey_on_this_host() {
    run("mckey_here", "mckey", Place::Here, &[(Family::V4, MCKEY)]);
}

#[test]
fn mckey_of_an_ordinary_user_with_nothing_but_loopback() {
    /// There is no multicast on the IPv6 loopback interface.
    const NO_GROUP: &[End] = &[End::client("mckey -m ff05::18:5 -b {client} -s")
        .says(&["event: RDMA_CM_EVENT_MULTICAST_ERROR, error: -101"])
        .limit(IN_TIME)];
    let sessions: &[(Family, &[End])] = &[
        (Family::V4, MCKEYS),
        (Family::V4, MCKEY_UNMAPPED),
        (Family::V6, NO_GROUP),
    ];
    run("mckey_loopback", "mckey", Place::Loopback, sessions);
}

#[test]
fn mckey_of_an_ordinary_user_between_two_hosts() {
    let sessions: &[(Family, &[End])] = &[
        (Family::V4, MCKEYS),
        (Family::V4, MCKEY_UNMAPPED),
        (Family::V6, MCKEY_V6),
    ];
    run("mckey_apart", "mckey", Place::Apart, sessions);
}
