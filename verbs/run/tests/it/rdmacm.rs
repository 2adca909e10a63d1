//! Debian's unmodified programs of rdma_cm, connected: rping, ucmatose, `rdma_server` and its kind, cmtime.

use crate::common::have;
use crate::common::scene::{Family, Place, Scene};
use crate::common::session::{self, End, Finish};

/// A session of programs, in each of the places and with each kind of address there.
fn everywhere(test: &str, ends: &[End]) {
    in_places(test, &[Place::Here, Place::Loopback, Place::Apart], ends);
}

fn in_places(test: &str, places: &[Place], ends: &[End]) {
    with_families(test, places, &[Family::V4, Family::V6], ends);
}

fn with_families(test: &str, places: &[Place], families: &[Family], ends: &[End]) {
    if !have(test, "rping", "rdmacm-utils") {
        return;
    }
    for place in places {
        let Some(scene) = Scene::new(test, *place) else {
            continue;
        };
        for family in families {
            if scene.has(*family) {
                session::run(&scene, *family, ends);
            }
        }
    }
}

const DATA: &[&str] = &["ping data: rdma-ping-0:", "ping data: rdma-ping-9:"];

#[test]
fn rping() {
    everywhere(
        "rping",
        &[
            End::server("rping -s -a {server} -p {port} -C 10 -v -V -S 200")
                .says(DATA)
                .complains(&["server DISCONNECT EVENT"]),
            // It may be gone before its other thread tells of the end.
            End::client("rping -c -a {server} -p {port} -C 10 -v -V -S 200")
                .says(DATA)
                .complains(&[]),
        ],
    );
}

/// Each end with a queue pair that it makes and moves itself, the other without and with.
#[test]
fn rping_with_queue_pairs_of_its_own() {
    const OURS: &str = "rping -s -a {server} -p {port} -C 10 -v";
    const OWN: &str = "rping -s -q -a {server} -p {port} -C 10 -v";
    for (server, client) in [
        (OURS, "rping -c -q -a {server} -p {port} -C 10 -v"),
        (OWN, "rping -c -a {server} -p {port} -C 10 -v"),
        (OWN, "rping -c -q -a {server} -p {port} -C 10 -v"),
    ] {
        in_places(
            "rping_with_queue_pairs_of_its_own",
            &[Place::Here],
            &[
                End::server(server).says(DATA).complains(&[]),
                End::client(client).says(DATA).complains(&[]),
            ],
        );
    }
}

#[test]
fn rping_with_eight_clients() {
    const CLIENT: End = End::client("rping -c -a {server} -p {port} -C 100 -v -V -S 200")
        .says(DATA)
        .complains(&[]);
    let server = End::server("rping -s -P -a {server} -p {port} -S 200")
        .complains(&[])
        .finish(Finish::Stopped);
    let mut ends = vec![server];
    ends.extend([CLIENT; 8]);
    in_places(
        "rping_with_eight_clients",
        &[Place::Here, Place::Apart],
        &ends,
    );
}

/// Again and again without one failure.
fn rping_in_a_row(test: &str, times: usize) {
    if !have(test, "rping", "rdmacm-utils") {
        return;
    }
    let Some(scene) = Scene::new(test, Place::Here) else {
        return;
    };
    for _ in 0..times {
        session::run(
            &scene,
            Family::V4,
            &[
                End::server("rping -s -a {server} -p {port} -C 10 -V").complains(&[]),
                End::client("rping -c -a {server} -p {port} -C 10 -V").complains(&[]),
            ],
        );
    }
}

#[test]
fn rping_twenty_times_in_a_row() {
    rping_in_a_row("rping_twenty_times_in_a_row", 20);
}

#[test]
#[ignore = "long: only with --soak"]
fn soak_rping_a_hundred_times_in_a_row() {
    rping_in_a_row("soak_rping_a_hundred_times_in_a_row", 100);
}

#[test]
fn ucmatose() {
    const SAYS: &[&str] = &["data transfers complete", "return status 0"];
    everywhere(
        "ucmatose",
        &[
            End::server("ucmatose -b {server} -p {port} -c 10 -C 20 -S 3000").says(SAYS),
            End::client("ucmatose -s {server} -p {port} -c 10 -C 20 -S 3000").says(SAYS),
        ],
    );
}

/// Identifiers move to another channel while they have events.
#[test]
fn ucmatose_migrates_identifiers() {
    const SAYS: &[&str] = &["return status 0"];
    in_places(
        "ucmatose_migrates_identifiers",
        &[Place::Here],
        &[
            End::server("ucmatose -b {server} -p {port} -c 5 -m").says(SAYS),
            End::client("ucmatose -s {server} -p {port} -c 5 -m").says(SAYS),
        ],
    );
}

/// The server listens on the first address that `getaddrinfo` has for any, which is IPv4's.
const ANY: &[Family] = &[Family::V4];

#[test]
fn rdma_server_and_rdma_client() {
    with_families(
        "rdma_server_and_rdma_client",
        &[Place::Here, Place::Loopback, Place::Apart],
        ANY,
        &[
            End::server("rdma_server -p {port}").says(&["rdma_server: end 0"]),
            End::client("rdma_client -s {server} -p {port}").says(&["rdma_client: end 0"]),
        ],
    );
}

#[test]
fn rdma_xserver_and_rdma_xclient() {
    with_families(
        "rdma_xserver_and_rdma_xclient",
        &[Place::Here, Place::Apart],
        ANY,
        &[
            End::server("rdma_xserver -p {port}").says(&["rdma_xserver: end 0"]),
            End::client("rdma_xclient -s {server} -p {port}").says(&["rdma_xclient: end 0"]),
        ],
    );
}

#[test]
fn cmtime() {
    everywhere(
        "cmtime",
        &[
            End::server("cmtime -p {port}").finish(Finish::Stopped),
            End::client("cmtime -s {server} -p {port} -c 50").says(&["connect      :"]),
        ],
    );
}
