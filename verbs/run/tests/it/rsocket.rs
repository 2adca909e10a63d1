//! Rsockets: Debian's unmodified programs against each other, C programs of the interface, peers that are gone or hostile, and programs of plain sockets
//! with `librspreload.so`.

use crate::common::each::{compiled, prints_ok};
use crate::common::scene::{Family, Place, Scene};
use crate::common::session::{self, End, Finish, Ready};
use crate::common::{RUN, compile, have, scratch, skip};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// A session of programs of rdmacm-utils.
fn session(test: &str, place: Place, families: &[Family], ends: &[End]) {
    if !have(test, "rstream", "rdmacm-utils") {
        return;
    }
    let Some(scene) = Scene::new(test, place) else {
        return;
    };
    for family in families {
        if scene.has(*family) {
            session::run(&scene, *family, ends);
        }
    }
}

const BOTH: &[Family] = &[Family::V4, Family::V6];

/// The two ends of rstream with these options, each of which prints its row.
macro_rules! rstream {
    ($options:literal) => {
        [
            End::server(concat!("rstream -b {server} -p {port} ", $options)).says(&["custom"]),
            End::client(concat!("rstream -s {server} -p {port} ", $options)).says(&["custom"]),
        ]
    };
}

/// Personas of the two ends.
const PERSONAS: [[&[(&str, &str)]; 2]; 3] = [
    [
        &[("DGIWARP_PERSONA", "roce")],
        &[("DGIWARP_PERSONA", "iwarp")],
    ],
    [
        &[("DGIWARP_PERSONA", "iwarp")],
        &[("DGIWARP_PERSONA", "roce")],
    ],
    [
        &[("DGIWARP_PERSONA", "iwarp")],
        &[("DGIWARP_PERSONA", "iwarp")],
    ],
];

#[test]
fn rstream_with_each_of_its_options() {
    let runs = [
        rstream!("-S 1000 -C 100 -I 2"),
        rstream!("-S 1000 -C 100 -I 2 -T b"),
        rstream!("-S 1000 -C 100 -I 2 -T a"),
        rstream!("-S 1000 -C 100 -I 2 -T a -T b"),
        rstream!("-S 1000 -C 100 -I 2 -T n"),
        rstream!("-S 1000 -C 100 -I 2 -T r -T b"),
        rstream!("-S 1000 -C 100 -I 2 -T v -T b"),
        rstream!("-S 1000 -C 100 -I 2 -T s -T b"),
        rstream!("-S 1000 -C 100 -I 2 -T b -i 0"),
        rstream!("-S 100000 -C 20 -I 1 -T b -B 3000"),
        rstream!("-S 1000 -C 100 -I 2 -T b -f ip"),
        rstream!("-S 1000000 -C 5 -I 2 -T b -T v"),
    ];
    for ends in runs {
        session("rstream_options", Place::Here, BOTH, &ends);
    }
    let keep_alive = [
        End::server("rstream -p {port} -S 64 -C 10 -I 1 -T b -k 1")
            .says(&["Keepalive: ON", "time: 1"]),
        End::client("rstream -s {server} -p {port} -S 64 -C 10 -I 1 -T b -k 1")
            .says(&["Keepalive: ON", "time: 1"]),
    ];
    session("rstream_keepalive", Place::Here, &[Family::V4], &keep_alive);
    let forks = [
        End::server("rstream -p {port} -S 64 -C 10 -I 1 -T f -T b"),
        End::client("rstream -s {server} -p {port} -S 64 -C 10 -I 1 -T s -T b").says(&["custom"]),
    ];
    session("rstream_fork", Place::Here, &[Family::V4], &forks);
}

#[test]
fn rstream_by_gid() {
    let v6 = rstream!("-S 1000 -C 100 -I 2 -T b -f gid");
    session("rstream_gid", Place::Here, &[Family::V6], &v6);
    // The GID of an IPv4 address.
    let v4 = [
        End::server("rstream -f gid -b ::ffff:{server} -p {port} -S 1000 -C 100 -I 2")
            .says(&["custom"]),
        End::client("rstream -f gid -s ::ffff:{server} -p {port} -S 1000 -C 100 -I 2")
            .says(&["custom"]),
    ];
    session("rstream_gid", Place::Here, &[Family::V4], &v4);
    // A host name or an IPv4 address is no GID.
    let refused = [
        End::client("rstream -f gid -s {server} -p {port} -S 1000 -C 100 -I 2")
            .finish(Finish::Failure)
            .says(&["getaddrinfo: "]),
    ];
    session("rstream_gid", Place::Here, &[Family::V4], &refused);
    let ends = [
        End::server("riostream -f gid -p {port} -S 1000 -C 20 -I 2").says(&["custom"]),
        End::client("riostream -f gid -s {server} -p {port} -S 1000 -C 20 -I 2").says(&["custom"]),
    ];
    session("riostream_gid", Place::Here, &[Family::V6], &ends);
}

#[test]
fn rstream_between_personas() {
    for [server, client] in PERSONAS {
        let [one, other] = rstream!("-S 30000 -C 20 -I 2 -T b -T v");
        let ends = [one.environment(server), other.environment(client)];
        session("rstream_personas", Place::Here, &[Family::V4], &ends);
    }
}

#[test]
fn rstream_between_hosts() {
    session(
        "rstream_apart",
        Place::Apart,
        BOTH,
        &rstream!("-S 200000 -C 10 -I 2 -T b -T v"),
    );
}

#[test]
#[ignore = "3 min"]
fn soak_rstream_with_all_sizes() {
    let ends = [
        End::server("rstream -p {port} -S all -T b")
            .says(&["64_lat", "4m_bw"])
            .limit(Duration::from_secs(600)),
        End::client("rstream -s {server} -p {port} -S all -T b")
            .says(&["64_lat", "4m_bw"])
            .limit(Duration::from_secs(600)),
    ];
    session("rstream_all", Place::Here, &[Family::V4], &ends);
}

#[test]
fn riostream() {
    let ends = [
        End::server("riostream -p {port} -S 10000 -C 20 -I 2 -T v").says(&["custom"]),
        End::client("riostream -s {server} -p {port} -S 10000 -C 20 -I 2 -T v").says(&["custom"]),
    ];
    session("riostream", Place::Here, &[Family::V4], &ends);
}

#[test]
fn rcopy() {
    let folder = scratch("rcopy");
    let (from, to) = (folder.join("from"), folder.join("to"));
    let octets: Vec<u8> = (0..3_000_000_u32)
        .map(|n| n.to_le_bytes()[n as usize % 3])
        .collect();
    fs::write(&from, &octets).unwrap();
    let line = format!(
        "rcopy {} {{server}}:{} -p {{port}}",
        from.display(),
        to.display()
    );
    let ends = [
        End::server("rcopy -p {port}").finish(Finish::Stopped),
        End::client(line.leak()).says(&["3000000 bytes in"]),
    ];
    // The server listens at IPv4 alone.
    session("rcopy", Place::Here, &[Family::V4], &ends);
    if to.exists() {
        assert_eq!(fs::read(&to).unwrap(), octets);
    }
}

#[test]
fn udpong() {
    for client in [
        "udpong -s {server} -p {port} -S 500 -C 100",
        "udpong -s {server} -p {port} -S 500 -C 100 -T e -T b",
        "udpong -s {server} -p {port} -S 1400 -C 100 -T e -T a",
    ] {
        let ends = [
            End::server("udpong -b {server} -p {port}").finish(Finish::Stopped),
            End::client(client).says(&["custom"]),
        ];
        session("udpong", Place::Here, BOTH, &ends);
    }
    let ends = [
        End::server("udpong -b {server} -p {port}").finish(Finish::Stopped),
        End::client("udpong -s {server} -p {port} -S 1400 -C 200 -T e -T b").says(&["custom"]),
    ];
    session("udpong_apart", Place::Apart, BOTH, &ends);
}

/// A peer that is killed ends the other end's calls, whether these send or receive, wait or poll.
#[test]
fn a_killed_peer_is_noticed() {
    for client in [
        "rstream -s {server} -p {port} -S 100000 -C 1000000 -I 1 -T b",
        "rstream -s {server} -p {port} -S 100000 -C 1000000 -I 1 -T b -T a",
        "rstream -s {server} -p {port} -S 64 -C 1 -I 10000000 -T b",
    ] {
        let server = client.replace("-s {server} ", "");
        let ends = [
            End::server(server.leak()).finish(Finish::Killed(Duration::from_millis(800))),
            End::client(client)
                .finish(Finish::Failure)
                .complains(&[])
                .limit(Duration::from_secs(20)),
        ];
        session("rsocket_killed", Place::Here, &[Family::V4], &ends);
    }
}

/// A program of the interface, compiled; `None` skips the test.
fn program(test: &str, source: &str) -> Option<std::path::PathBuf> {
    if !Path::new("/usr/include/rdma/rsocket.h").is_file() {
        skip(
            test,
            "rdma/rsocket.h is missing (Debian package librdmacm-dev)",
        );
        return None;
    }
    compiled(test, source)
}

/// Runs a program of the interface for each persona and family of addresses.
fn runs_in_each_way(test: &str, source: &str) {
    let Some(program) = program(test, source) else {
        return;
    };
    for persona in ["roce", "iwarp"] {
        for family in ["4", "6"] {
            let mut command = Command::new("timeout");
            command.env("DGIWARP_PERSONA", persona);
            prints_ok(command.args(["120", RUN]).arg(&program).arg(family));
        }
    }
}

#[test]
fn calls_do_what_the_man_page_says() {
    runs_in_each_way("rsocket", include_str!("../c/rsocket.c"));
}

#[test]
fn threads_are_cancelled_in_waits() {
    let source = include_str!("../c/rsocket_cancelled.c");
    let Some(program) = program("rsocket_cancelled", source) else {
        return;
    };
    prints_ok(Command::new("timeout").args(["120", RUN]).arg(&program));
}

#[test]
fn poll_sets_have_rsockets_and_other_descriptors() {
    runs_in_each_way("repoll", include_str!("../c/repoll.c"));
}

/// Connections of many are found in another way than those of few, and where memory carries them in a third.
#[test]
fn poll_sets_have_many_rsockets() {
    let Some(program) = program("repoll_many", include_str!("../c/repoll.c")) else {
        return;
    };
    for same_host in ["off", "auto"] {
        let mut command = Command::new("timeout");
        command.env("DGIWARP_SAME_HOST", same_host);
        prints_ok(command.args(["120", RUN]).arg(&program).args(["4", "many"]));
    }
}

/// A peer that is killed ends calls of each kind, for both ways to it.
#[test]
fn a_killed_peer_ends_calls_that_wait() {
    let source = include_str!("../c/rsocket_killed.c");
    let Some(program) = program("rsocket_killed", source) else {
        return;
    };
    for same_host in ["auto", "off"] {
        let mut command = Command::new("timeout");
        command.env("DGIWARP_SAME_HOST", same_host);
        prints_ok(command.args(["120", RUN]).arg(&program).arg("4"));
    }
}

/// A preloaded library that has epoll(7), as rdma-core's has since version 65, gets calls of the program alone.
#[test]
fn epoll_of_the_library_is_its_own() {
    let Some(program) = program("own_epoll_program", include_str!("../c/repoll.c")) else {
        return;
    };
    let test = "own_epoll";
    let source = include_str!("../c/own_epoll.c");
    let Some(library) = compile(test, &scratch(test), source, &["-Wall", "-shared", "-fPIC"])
    else {
        return;
    };
    let mut command = Command::new("timeout");
    command.env("LD_PRELOAD", library);
    prints_ok(command.args(["120", RUN]).arg(&program).arg("4"));
}

/// Rdma-core's library that makes rsockets of sockets. Both ends need it.
const PRELOAD: &[(&str, &str)] = &[(
    "LD_PRELOAD",
    "/usr/lib/x86_64-linux-gnu/rsocket/librspreload.so",
)];

/// The scene of programs of plain sockets; `None` skips the test.
fn preloaded(test: &str, programs: &[(&str, &str)]) -> Option<Scene> {
    let (_, library) = PRELOAD[0];
    if !Path::new(library).is_file() {
        skip(
            test,
            "librspreload.so is missing (Debian package librdmacm1)",
        );
        return None;
    }
    for (program, package) in programs {
        if !have(test, program, package) {
            return None;
        }
    }
    Scene::new(test, Place::Here)
}

#[test]
fn iperf3_runs_with_librspreload() {
    let Some(scene) = preloaded("rsocket_iperf3", &[("iperf3", "iperf3")]) else {
        return;
    };
    let ends = [
        // It asks for options that rsockets do not have.
        End::server("iperf3 -s -1 -p {port} --forceflush")
            .ready(Ready::Says("listening"))
            .environment(PRELOAD)
            .says(&["receiver"])
            .complains(&[]),
        End::client("iperf3 -c {server} -p {port} -n 20M")
            .environment(PRELOAD)
            .says(&["receiver", "iperf Done."])
            .complains(&[]),
    ];
    session::run(&scene, Family::V4, &ends);
}

/// A file from standard input to standard output, to its end.
#[test]
fn nc_runs_with_librspreload() {
    let programs = [("nc.traditional", "netcat-traditional")];
    let Some(scene) = preloaded("rsocket_nc", &programs) else {
        return;
    };
    let folder = scratch("rsocket_nc");
    let (from, to) = (folder.join("from"), folder.join("to"));
    let octets: Vec<u8> = (0..3_000_000_u32)
        .map(|n| n.to_le_bytes()[n as usize % 3])
        .collect();
    fs::write(&from, &octets).unwrap();
    let script = |name: &str, text: String| {
        let path = folder.join(name);
        fs::write(&path, text).unwrap();
        path
    };
    let server = format!("exec nc.traditional -l -s $1 -p $2 > {}", to.display());
    let client = format!("exec nc.traditional -q 0 $1 $2 < {}", from.display());
    let ends = [
        End::server("sh {program} {server} {port}")
            .program(&script("server", server))
            .environment(PRELOAD),
        End::client("sh {program} {server} {port}")
            .program(&script("client", client))
            .environment(PRELOAD),
    ];
    session::run(&scene, Family::V4, &ends);
    assert_eq!(fs::read(&to).unwrap(), octets);
}

/// An HTTP client, which does not wait when it connects, and a server that selects.
#[test]
fn curl_and_webfsd_run_with_librspreload() {
    let programs = [("curl", "curl"), ("webfsd", "webfs")];
    let Some(scene) = preloaded("rsocket_curl", &programs) else {
        return;
    };
    let folder = scratch("rsocket_curl");
    fs::write(folder.join("only-file"), "x").unwrap();
    let ends = [
        End::server("webfsd -F -i {server} -p {port} -r {program}")
            .program(&folder)
            .environment(PRELOAD)
            .finish(Finish::Stopped),
        End::client("curl -sS -m 30 http://{server}:{port}/")
            .environment(PRELOAD)
            .says(&["only-file"]),
        // Two requests on one connection.
        End::client("curl -sS -m 30 http://{server}:{port}/ http://{server}:{port}/")
            .environment(PRELOAD)
            .says(&["only-file"]),
    ];
    session::run(&scene, Family::V4, &ends);
}
