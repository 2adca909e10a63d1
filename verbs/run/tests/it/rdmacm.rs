//! Debian's unmodified programs of rdma_cm, connected: rping, ucmatose, `rdma_server` and its kind, cmtime.

use crate::common::scene::{Family, Place, Scene};
use crate::common::session::{self, End, Finish};
use crate::common::{RUN, have, scratch};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::Duration;
use xtask::clock;

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
            // It may be gone before its other thread prints the end.
            End::client("rping -c -a {server} -p {port} -C 10 -v -V -S 200")
                .says(DATA)
                .complains(&[]),
        ],
    );
}

/// TCP repairs what such a network does; only time is lost.
#[test]
fn rping_over_a_faulty_network() {
    in_places(
        "rping_over_a_faulty_network",
        &[Place::Faulty],
        &[
            End::server("rping -s -a {server} -p {port} -C 10 -v -V -S 20000")
                .says(DATA)
                .complains(&["server DISCONNECT EVENT"]),
            End::client("rping -c -a {server} -p {port} -C 10 -v -V -S 20000")
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

/// Revision 2 with enhanced data, in peer-to-peer mode with a Write as RTR indication, and in client-server mode.
const REQUESTS: [&[u8]; 2] = [
    b"MPA ID Req Frame\x50\x02\x00\x04\x80\x10\x80\x10",
    b"MPA ID Req Frame\x50\x02\x00\x04\x00\x10\x00\x10",
];

/// Connections that attackers begin at a port and do not go on with: silent ones, Requests that are closed before and after the Reply, and such that stay.
fn half_open_attempts(port: u16) -> Vec<TcpStream> {
    const IN_TIME: Duration = Duration::from_secs(10);
    let open = || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    let mut held = Vec::new();
    for round in 0..40 {
        held.push(open());
        for request in REQUESTS {
            let mut stream = open();
            stream.set_read_timeout(Some(IN_TIME)).unwrap();
            stream.write_all(request).unwrap();
            let mut reply = [0; 20];
            match round % 4 {
                0 => {}
                // The server may have closed before.
                1 => drop(stream.shutdown(Shutdown::Write)),
                2 => drop(stream.read(&mut reply)),
                _ => held.push(stream),
            }
        }
    }
    held
}

/// A server that serves many clients goes on beside attempts that come to nothing, which a connection manager never shows.
#[test]
fn rping_serves_on_beside_half_open_attempts() {
    const CLIENT: &str = "rping -c -a 127.0.0.1 -C 10 -v -S 200 -p";
    const SERVER: &str = "rping -s -P -a 127.0.0.1 -S 200 -p";
    if !have("rping_half_open", "rping", "rdmacm-utils") {
        return;
    }
    for persona in ["roce", "iwarp"] {
        let unused = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = unused.local_addr().unwrap().port();
        drop(unused);
        let start = |line: &str| {
            let mut command = Command::new(RUN);
            command
                .args(line.split(' '))
                .arg(port.to_string())
                .env("DGIWARP_PERSONA", persona)
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            command.spawn().unwrap()
        };
        let mut server = start(SERVER);
        wait_for_listener(port);
        let held = half_open_attempts(port);
        let status = start(CLIENT).wait().unwrap();
        let ended = server.try_wait().unwrap();
        server.kill().unwrap();
        server.wait().unwrap();
        assert!(status.success(), "{persona}: the client: {status}");
        assert_eq!(ended, None, "{persona}: the server ended");
        drop(held);
    }
}

fn wait_for_listener(port: u16) {
    for _ in 0..600 {
        if TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return;
        }
        clock::pause(Duration::from_millis(50));
    }
    panic!("nobody listens");
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

/// Addresses of both ends are InfiniBand's, with GIDs.
#[test]
fn ucmatose_by_gid() {
    const SAYS: &[&str] = &["data transfers complete", "return status 0"];
    with_families(
        "ucmatose_by_gid",
        &[Place::Here, Place::Apart],
        &[Family::V6],
        &[
            End::server("ucmatose -f gid -b {server} -p {port} -c 3").says(SAYS),
            End::client("ucmatose -f gid -s {server} -p {port} -c 3").says(SAYS),
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

const RD: &[(&str, &str)] = &[("DGIWARP_RC", "rd"), ("DGIWARP_SAME_HOST", "off")];
const RD_MEMORY: &[(&str, &str)] = &[
    ("DGIWARP_RC", "rd"),
    ("DGIWARP_SAME_HOST", "ring"),
    ("DGIWARP_SAME_HOST_AFTER", "0"),
];
/// The transport of a program that names none.
const TCP: &[(&str, &str)] = &[("DGIWARP_RC", "tcp"), ("DGIWARP_SAME_HOST", "off")];

const SESSIONS: &[[End; 2]] = &[
    [
        End::server("rping -s -a {server} -p {port} -C 10 -v -V -S 20000")
            .says(DATA)
            .complains(&["server DISCONNECT EVENT"]),
        End::client("rping -c -a {server} -p {port} -C 10 -v -V -S 20000")
            .says(DATA)
            .complains(&[]),
    ],
    [
        End::server("rdma_server -p {port}").says(&["rdma_server: end 0"]),
        End::client("rdma_client -s {server} -p {port}").says(&["rdma_client: end 0"]),
    ],
    [
        End::server("ucmatose -b {server} -p {port} -c 10 -C 20 -S 3000 -m")
            .says(&["data transfers complete", "return status 0"]),
        End::client("ucmatose -s {server} -p {port} -c 10 -C 20 -S 3000 -m")
            .says(&["data transfers complete", "return status 0"]),
    ],
    // Queue pairs of the programs' own, which they give by number.
    [
        End::server("rping -s -q -a {server} -p {port} -C 10 -v")
            .says(DATA)
            .complains(&[]),
        End::client("rping -c -q -a {server} -p {port} -C 10 -v")
            .says(DATA)
            .complains(&[]),
    ],
];

/// Both ends on reliable datagrams, through sockets and memory, and one end of each transport, which go over TCP.
#[test]
fn programs_agree_on_the_transport() {
    const TEST: &str = "programs_agree_on_the_transport";
    if !have(TEST, "rping", "rdmacm-utils") {
        return;
    }
    let Some(scene) = Scene::new(TEST, Place::Here) else {
        return;
    };
    for [server, client] in SESSIONS {
        for (first, second) in [(RD, RD), (RD_MEMORY, RD_MEMORY), (RD, TCP), (TCP, RD)] {
            let ends = [server.environment(first), client.environment(second)];
            session::run(&scene, Family::V4, &ends);
        }
    }
}

/// The statistics of a client tell by which of its transports the messages went.
#[test]
fn messages_go_by_datagrams_where_both_ends_have_the_setting() {
    const TEST: &str = "messages_go_by_datagrams";
    if !have(TEST, "rping", "rdmacm-utils") {
        return;
    }
    let Some(scene) = Scene::new(TEST, Place::Here) else {
        return;
    };
    let [server, client] = SESSIONS[0];
    for (of_server, by_datagrams) in [(RD, true), (TCP, false)] {
        let statistics = scratch(TEST).join(format!("{by_datagrams}.json"));
        let path: &str = statistics.to_str().unwrap().to_owned().leak();
        let of_client = [RD, &[("DGIWARP_STATS", path)]].concat().leak();
        let ends = [server.environment(of_server), client.environment(of_client)];
        session::run(&scene, Family::V4, &ends);
        let counted = std::fs::read_to_string(&statistics).unwrap();
        // The number of a queue pair with datagrams is its UDP port.
        let octets = counted.lines().filter_map(|line| {
            let number: u32 = field(line, "\"queue_pair\":")?;
            let octets: u64 = field(line, "\"octets_sent\":")?;
            (number < 1 << 16).then_some(octets)
        });
        // Each of ten pings is 20,000 octets, which the other end reads.
        let most = octets.max().unwrap();
        assert_eq!(most > 200_000, by_datagrams, "{counted}");
    }
}

/// The number behind a name in a line of statistics.
fn field<T: std::str::FromStr>(line: &str, name: &str) -> Option<T> {
    let (_, rest) = line.split_once(name)?;
    let digits = rest.split(|it: char| !it.is_ascii_digit()).next()?;
    digits.parse().ok()
}

/// Reliable datagrams repair what such a network does.
#[test]
fn rping_by_datagrams_over_a_faulty_network() {
    let [server, client] = SESSIONS[0];
    let ends = [server.environment(RD), client.environment(RD)];
    in_places("rping_by_datagrams_faulty", &[Place::Faulty], &ends);
}

/// A killed client ends the connection of a server that sleeps on its events.
#[test]
fn a_killed_client_by_datagrams_disconnects() {
    const LIVES: Duration = Duration::from_millis(1500);
    in_places(
        "a_killed_client_by_datagrams",
        &[Place::Here],
        &[
            End::server("rping -s -a {server} -p {port}")
                .environment(RD)
                .complains(&["server DISCONNECT EVENT"]),
            End::client("rping -c -a {server} -p {port} -S 64")
                .environment(RD)
                .complains(&[])
                .finish(Finish::Killed(LIVES)),
        ],
    );
}
