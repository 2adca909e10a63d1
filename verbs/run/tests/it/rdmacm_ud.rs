//! Debian's unmodified programs on rdma_cm's datagram side: `udaddy`, which finds a service and exchanges messages with it,
//! and `mckey`, which joins multicast groups.

use crate::common::have;
use crate::common::scene::{Family, Place, Scene};
use crate::common::session::{self, End, Finish, Ready};
use std::time::Duration;

/// The service that udaddy always has.
const SERVICE: Ready = Ready::PortIs(7174);
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

/// Addresses of both ends are InfiniBand's, with GIDs.
const UDADDY_BY_GID: &[End] = &[
    End::server("udaddy -f gid -b {server}")
        .ready(SERVICE)
        .says(DONE),
    End::client("udaddy -f gid -s {server}").says(DONE),
];

const UDADDY: &[End] = &[
    End::server("udaddy -b {server}").ready(SERVICE).says(DONE),
    End::client("udaddy -s {server}").says(DONE),
];
/// Several pairs of queue pairs, more and longer messages, another port space, another address of ours.
const UDADDIES: &[End] = &[
    End::server("udaddy -b {server} -c 8 -C 100 -S 1000")
        .ready(SERVICE)
        .says(DONE),
    End::client("udaddy -s {server} -b {client} -c 8 -C 100 -S 1000").says(DONE),
];
const UDADDY_IPOIB: &[End] = &[
    End::server("udaddy -p 0x0002").ready(SERVICE).says(DONE),
    End::client("udaddy -s {server} -p 0x0002").says(DONE),
];
/// A service for all addresses, of both kinds, answers from the one that was asked.
const UDADDY_ANY: &[End] = &[
    End::server("udaddy -b ::0").ready(SERVICE).says(DONE),
    End::client("udaddy -s 127.0.0.9").says(DONE),
];
/// Both ends shift the port.
const UDADDY_ELSEWHERE: &[End] = &[
    End::server("udaddy")
        .ready(Ready::PortIs(9174))
        .environment(&[("DGIWARP_PORT_OFFSET", "2000")])
        .says(DONE),
    End::client("udaddy -s {server}")
        .environment(&[("DGIWARP_PORT_OFFSET", "2000")])
        .says(DONE),
];
/// Whatever the first tries of a lookup meet, the programs see nothing of it.
const UDADDY_LOSSY: &[End] = &[
    End::server("udaddy -C 0 -c 20")
        .ready(SERVICE)
        .environment(&[("DGIWARP_FAULT", "drop=0.2,dup=0.2,corrupt=0.05,seed=3")])
        .says(&["return status 0"]),
    End::client("udaddy -s {server} -C 0 -c 20").says(&["return status 0"]),
];

#[test]
fn udaddy_on_this_host() {
    let sessions: &[(Family, &[End])] = &[
        (Family::V4, UDADDY),
        (Family::V4, UDADDY_ELSEWHERE),
        (Family::V6, UDADDY),
        (Family::V6, UDADDY_ANY),
        (Family::V6, UDADDY_BY_GID),
    ];
    run("udaddy_on_this_host", "udaddy", Place::Here, sessions);
}

#[test]
fn udaddy_of_an_ordinary_user_with_nothing_but_loopback() {
    let sessions: &[(Family, &[End])] = &[
        (Family::V4, UDADDIES),
        (Family::V4, UDADDY_IPOIB),
        (Family::V4, UDADDY_LOSSY),
        (Family::V6, UDADDIES),
    ];
    run("udaddy_loopback", "udaddy", Place::Loopback, sessions);
}

#[test]
fn udaddy_of_an_ordinary_user_between_two_hosts() {
    let sessions: &[(Family, &[End])] = &[
        (Family::V4, UDADDIES),
        (Family::V4, UDADDY_ELSEWHERE),
        (Family::V6, UDADDIES),
    ];
    run("udaddy_apart", "udaddy", Place::Apart, sessions);
}

const IN_TIME: Duration = Duration::from_secs(6);

/// Nobody listens, on a host that is there and on one that is not; and the service's port is taken.
#[test]
fn udaddy_fails_in_time() {
    const NOBODY: &[End] = &[End::client("udaddy -s {server}")
        .says(&["event: RDMA_CM_EVENT_UNREACHABLE, error: 1"])
        .finish(Finish::Failure)
        .limit(IN_TIME)];
    const NO_HOST: &[End] = &[End::client("udaddy -s 10.99.0.77")
        .says(&["event: RDMA_CM_EVENT_UNREACHABLE"])
        .finish(Finish::Failure)
        .limit(IN_TIME)];
    const TAKEN: &[End] = &[
        End::server("udaddy").ready(SERVICE).finish(Finish::Stopped),
        End::server("udaddy")
            .ready(Ready::Started)
            .complains(&["bind address failed: Address already in use"])
            .finish(Finish::Failure)
            .limit(IN_TIME),
    ];
    let sessions: &[(Family, &[End])] = &[
        (Family::V4, NOBODY),
        (Family::V6, NOBODY),
        (Family::V4, NO_HOST),
        (Family::V4, TAKEN),
    ];
    run("udaddy_fails", "udaddy", Place::Apart, sessions);
}

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
