//! Unmodified programs of TCP sockets under `dgiwarp-run --sockets`: against each other, and against plain ones. Messages on standard error prove which way a connection took.

use crate::common::each::{compiled, prints_ok};
use crate::common::scene::{Family, Place, Scene};
use crate::common::session::{self, End, Finish, Ready};
use crate::common::{RUN, have, scratch, script, succeed};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Both ways of a connection are reported.
const INFO: &[(&str, &str)] = &[("DGIWARP_LOG", "info")];
const OFF: &[(&str, &str)] = &[
    ("DGIWARP_LOG", "info"),
    (
        "DGIWARP_SOCKETS_RULES",
        "off:program=curl:direction=connect",
    ),
];
const ON: &[(&str, &str)] = &[("DGIWARP_LOG", "info"), ("DGIWARP_SOCKETS_RULES", "on")];
const TAKES: &[&str] = &["takes rsockets", "connection from", "upgraded"];
const UPGRADED: &[&str] = &["connection to", "upgraded"];
const PLAIN: &[&str] = &["plain: the port has no listener of rsockets on this host"];

/// A server whose connections are upgraded.
const fn server(line: &'static str) -> End {
    // A listener of rsockets begins after the kernel's.
    End::server(line)
        .environment(INFO)
        .complains(TAKES)
        .ready(Ready::Complains("takes rsockets"))
}

/// A client whose connections are upgraded.
const fn client(line: &'static str) -> End {
    End::client(line).environment(INFO).complains(UPGRADED)
}

const PYTHON: (&str, &str) = ("python3", "python3");

const HTTP_SERVER: &str =
    "--sockets python3 -m http.server {port} --bind {server} --directory {program}";
const CURL: &str = "--sockets curl -sS -m 20 http://{server}:{port}/file";
const CURL6: &str = "--sockets curl -gsS -m 20 http://[{server}]:{port}/file";

fn served(test: &str) -> PathBuf {
    let folder = scratch(test);
    fs::write(folder.join("file"), "octets of a file").unwrap();
    folder
}

#[test]
fn an_http_server_serves_upgraded_and_plain_clients() {
    let test = "sockets_http";
    let Some(scene) = Scene::of(test, Place::Here, &[PYTHON, ("curl", "curl")]) else {
        return;
    };
    let folder = served(test);
    let says = &["octets of a file"];
    for (family, url) in [(Family::V4, CURL), (Family::V6, CURL6)] {
        if !scene.has(family) {
            continue;
        }
        let plain = url.trim_start_matches("--sockets ");
        let stays = server(HTTP_SERVER).program(&folder).finish(Finish::Stopped);
        let ends = [stays, client(url).says(says), End::client(plain).says(says)];
        session::run(&scene, family, &ends);
    }
    let plain = HTTP_SERVER.trim_start_matches("--sockets ");
    let ends = [
        End::server(plain)
            .program(&folder)
            .finish(Finish::Stopped)
            .complains(&["GET"]),
        client(CURL).says(says).complains(PLAIN),
    ];
    session::run(&scene, Family::V4, &ends);
    let ends = [
        server(HTTP_SERVER)
            .program(&folder)
            .finish(Finish::Stopped)
            .complains(&["takes rsockets", "GET"]),
        client(CURL)
            .environment(OFF)
            .says(says)
            .complains(&["plain: a rule"]),
    ];
    session::run(&scene, Family::V4, &ends);
}

/// Between two hosts the client sends a port query.
#[test]
fn an_http_server_serves_other_hosts() {
    let test = "sockets_http_apart";
    let Some(scene) = Scene::of(test, Place::Apart, &[PYTHON, ("curl", "curl")]) else {
        return;
    };
    // A folder that any user can read.
    let folder = Path::new("/usr/share/common-licenses");
    let url = "--sockets curl -sS -m 20 http://{server}:{port}/BSD";
    let says = &["Redistribution"];
    let ends = [
        server(HTTP_SERVER).program(folder).finish(Finish::Stopped),
        client(url).says(says),
        End::client(url.trim_start_matches("--sockets ")).says(says),
    ];
    session::run(&scene, Family::V4, &ends);
    let ends = [
        End::server(HTTP_SERVER.trim_start_matches("--sockets "))
            .program(folder)
            .finish(Finish::Stopped)
            .complains(&["GET"]),
        client(url)
            .says(says)
            .complains(&["plain: the host has no listener of rsockets"]),
    ];
    session::run(&scene, Family::V4, &ends);
}

/// A file from standard input to standard output, to its end.
#[test]
fn nc_copies_a_file() {
    let test = "sockets_nc";
    let Some(scene) = Scene::of(test, Place::Here, &[("nc.openbsd", "netcat-openbsd")]) else {
        return;
    };
    let folder = scratch(test);
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
    let receive = format!("exec nc.openbsd -l $1 $2 > {} < /dev/null", to.display());
    let send = format!("exec nc.openbsd -N $1 $2 < {}", from.display());
    let ends = [
        server("--sockets sh {program} {server} {port}").program(&script("server", receive)),
        client("--sockets sh {program} {server} {port}").program(&script("client", send)),
    ];
    session::run(&scene, Family::V4, &ends);
    assert_eq!(fs::read(&to).unwrap(), octets);
}

#[test]
fn iperf3_runs() {
    let Some(scene) = Scene::of("sockets_iperf3", Place::Here, &[("iperf3", "iperf3")]) else {
        return;
    };
    for options in ["-n 20M", "-n 20M -R", "-n 20M -P 2", "-u -n 100K -b 0"] {
        let line = format!("--sockets iperf3 -c {{server}} -p {{port}} {options}");
        let ends = [
            server("--sockets iperf3 -s -1 -p {port}"),
            client(line.leak()).says(&["receiver", "iperf Done."]),
        ];
        session::run(&scene, Family::V4, &ends);
    }
}

/// Octets of one-sided copies of any queue pair.
fn copied(counted: &str) -> u64 {
    let octets = |rest: &str| {
        let end = rest.find(|it: char| !it.is_ascii_digit());
        rest[..end.unwrap_or(rest.len())].parse::<u64>().unwrap()
    };
    let counts = counted.split("\"one_sided_octets\":").skip(1);
    counts.map(octets).sum()
}

/// A stream goes from the sending program's memory to the receive buffer, which both processes map, where they may copy alone.
#[test]
fn streams_go_by_the_receive_buffer() {
    let test = "sockets_mapped";
    let Some(scene) = Scene::of(test, Place::Here, &[("iperf3", "iperf3")]) else {
        return;
    };
    let run = |way: &'static str| {
        let statistics = scratch(test).join(way);
        let _ = fs::remove_file(&statistics);
        let file: &str = statistics.to_str().unwrap().to_owned().leak();
        let ways = [("DGIWARP_SAME_HOST", way), ("DGIWARP_STATS", file)];
        let ends = [
            server("--sockets iperf3 -s -1 -p {port}"),
            client("--sockets iperf3 -c {server} -p {port} -n 200M")
                .environment([INFO, &ways].concat().leak())
                .says(&["receiver", "iperf Done."]),
        ];
        session::run(&scene, Family::V4, &ends);
        copied(&fs::read_to_string(&statistics).unwrap())
    };
    assert_eq!(run("ring"), 0);
    // Ends meet in the background, and the buffer is granted behind that.
    let mut of_all = (0..10).map(|_| run("auto"));
    assert!(of_all.any(|octets| octets > 100 << 20));
}

/// By memory on one host, and by sockets between two: a set of twenty connections finds those with input in ways of its own for each.
#[test]
fn redis_serves_upgraded_and_plain_clients() {
    let test = "sockets_redis";
    // For a snapshot, which an ordinary user of another namespace writes.
    let folder = scratch(test);
    fs::set_permissions(&folder, Permissions::from_mode(0o777)).unwrap();
    for place in [Place::Here, Place::Apart] {
        let Some(scene) = Scene::of(test, place, &[("redis-server", "redis-server")]) else {
            return;
        };
        let line = "redis-benchmark -h {server} -p {port} -n 4000 -c 20 -q -t set,get";
        let both = format!("--sockets {line}");
        let ends = [
            server("--sockets redis-server --bind {server} --port {port} --protected-mode no --save 3600 1000000 --dir {program}")
                .program(&folder)
                .finish(Finish::Stopped),
            client(both.leak()).says(&["SET", "GET"]),
            End::client(line).says(&["SET", "GET"]),
        ];
        session::run(&scene, Family::V4, &ends);
    }
}

#[test]
fn asyncio_echoes() {
    let Some(scene) = Scene::of("sockets_asyncio", Place::Here, &[PYTHON]) else {
        return;
    };
    let echo = script("echo.py");
    let ends = [
        server("--sockets python3 {program} serve {server} {port}")
            .program(&echo)
            .finish(Finish::Stopped),
        client("--sockets python3 {program} ask {server} {port}")
            .program(&echo)
            .says(&["echoed"]),
        End::client("python3 {program} ask {server} {port}")
            .program(&echo)
            .says(&["echoed"]),
    ];
    session::run(&scene, Family::V4, &ends);
}

/// A client that makes a connection for each request has plain ones soon, unless a rule is against it.
#[test]
fn short_connections_stay_plain() {
    let Some(scene) = Scene::of("sockets_short", Place::Here, &[PYTHON]) else {
        return;
    };
    let echo = script("echo.py");
    let line = "--sockets python3 {program} ask-often {server} {port}";
    let ends = [
        server("--sockets python3 {program} serve {server} {port}")
            .program(&echo)
            .finish(Finish::Stopped),
        client(line)
            .program(&echo)
            .says(&["echoed"])
            .complains(&["upgraded", "plain: connections to the server were short"]),
        client(line)
            .program(&echo)
            .environment(ON)
            .says(&["echoed"])
            .complains(&["200 connections upgraded, 0 plain"]),
    ];
    session::run(&scene, Family::V4, &ends);
}

#[test]
fn a_killed_peer_is_noticed() {
    let Some(scene) = Scene::of("sockets_killed", Place::Here, &[PYTHON]) else {
        return;
    };
    let echo = script("echo.py");
    let ends = [
        server("--sockets python3 {program} silent {server} {port}")
            .program(&echo)
            .finish(Finish::Killed(Duration::from_millis(2500))),
        client("--sockets python3 {program} wait {server} {port}")
            .program(&echo)
            .says(&["the peer is gone"])
            .limit(Duration::from_millis(7500)),
    ];
    session::run(&scene, Family::V4, &ends);
}

/// Workers that share a listening socket: one has the rsockets, and plain connections reach all.
#[test]
fn workers_share_a_listener() {
    let Some(scene) = Scene::of("sockets_workers", Place::Here, &[PYTHON]) else {
        return;
    };
    let echo = script("echo.py");
    let ends = [
        server("--sockets python3 {program} workers {server} {port}")
            .program(&echo)
            .complains(&["takes rsockets", "plain: rsockets of another process"])
            .finish(Finish::Stopped),
        client("--sockets python3 {program} ask-workers {server} {port}")
            .program(&echo)
            .says(&["echoed"]),
        End::client("python3 {program} ask-workers {server} {port}")
            .program(&echo)
            .says(&["echoed"]),
    ];
    session::run(&scene, Family::V4, &ends);
}

/// A connection that the server has closed before the client has seen that it was made is one, and no other is made in its place.
#[test]
fn connections_that_are_closed_at_once_have_been_made() {
    let Some(scene) = Scene::of("sockets_greeting", Place::Here, &[PYTHON]) else {
        return;
    };
    let echo = script("echo.py");
    let ends = [
        server("--sockets python3 {program} greet {server} {port}")
            .program(&echo)
            .finish(Finish::Stopped),
        client("--sockets python3 {program} be-greeted {server} {port}")
            .program(&echo)
            .environment(ON)
            .says(&["greeted"]),
    ];
    session::run(&scene, Family::V4, &ends);
}

/// A listener at the port of an earlier one takes rsockets before its program waits for connections: the server of `iperf3` listens anew for data, and its client
/// connects at once.
#[test]
fn a_program_that_listens_anew_takes_rsockets_at_once() {
    let Some(scene) = Scene::of("sockets_anew", Place::Here, &[PYTHON]) else {
        return;
    };
    let echo = script("echo.py");
    let ends = [
        server("--sockets python3 {program} listen-anew {server} {port}").program(&echo),
        client("--sockets python3 {program} connect-anew {server} {port}")
            .program(&echo)
            .says(&["accepted"])
            .complains(&["2 connections upgraded, 0 plain"]),
    ];
    session::run(&scene, Family::V4, &ends);
}

/// Threads that wait at an epoll set serve connections that another one adds, the first of them and later ones.
#[test]
fn threads_share_an_epoll_set() {
    let Some(scene) = Scene::of("sockets_threads", Place::Here, &[PYTHON]) else {
        return;
    };
    let echo = script("echo.py");
    let line = "--sockets python3 {program} ask-threads {server} {port}";
    let ends = [
        server("--sockets python3 {program} threads {server} {port}")
            .program(&echo)
            .finish(Finish::Stopped),
        client(line)
            .program(&echo)
            .environment(ON)
            .says(&["echoed"])
            .complains(&["7 connections upgraded, 0 plain"]),
        // Its connections wake the threads too.
        End::client("python3 {program} ask-threads {server} {port}")
            .program(&echo)
            .says(&["echoed"]),
    ];
    session::run(&scene, Family::V4, &ends[..2]);
    session::run(&scene, Family::V4, &ends);
}

#[test]
fn a_child_has_none_of_its_parent_s_connections() {
    let Some(scene) = Scene::of("sockets_fork", Place::Here, &[PYTHON]) else {
        return;
    };
    let echo = script("echo.py");
    let ends = [
        server("--sockets python3 {program} serve {server} {port}")
            .program(&echo)
            .finish(Finish::Stopped),
        client("--sockets python3 {program} fork {server} {port}")
            .program(&echo)
            .says(&["the parent goes on"])
            .complains(&["upgraded", "switch rsockets off for the program"]),
    ];
    session::run(&scene, Family::V4, &ends);
}

/// A server that forks for each connection loses those made before the first child has noticed, and is plain from then on.
#[test]
fn a_server_that_forks_stays_plain() {
    let Some(scene) = Scene::of("sockets_children", Place::Here, &[PYTHON]) else {
        return;
    };
    let echo = script("echo.py");
    let ends = [
        server("--sockets python3 {program} children {server} {port}")
            .program(&echo)
            .complains(&["upgraded", "later ones stay plain"])
            .finish(Finish::Stopped),
        client("--sockets python3 {program} ask-children {server} {port}")
            .program(&echo)
            .says(&["echoed"])
            .complains(&["upgraded", "plain: "]),
    ];
    session::run(&scene, Family::V4, &ends);
}

/// Calls have the results and the readiness that they have on TCP sockets.
#[test]
fn calls_do_what_they_do_with_tcp() {
    let test = "sockets_oracle";
    if !have(test, PYTHON.0, PYTHON.1) {
        return;
    }
    let calls = script("sockets.py");
    for family in ["4", "6"] {
        if family == "6" && std::net::UdpSocket::bind("[::1]:0").is_err() {
            continue;
        }
        let mut plain = Command::new("timeout");
        let plain = succeed(plain.args(["60", "python3"]).arg(&calls).arg(family));
        let mut ours = Command::new("timeout");
        ours.envs(ON.iter().copied());
        let words = ["60", RUN, "--sockets", "python3"];
        let ours = succeed(ours.args(words).arg(&calls).arg(family));
        let text = |octets| String::from_utf8_lossy(octets).into_owned();
        let (expected, found) = (text(&plain.stdout), text(&ours.stdout));
        for (expected, found) in expected.lines().zip(found.lines()) {
            assert_eq!(found, expected, "of TCP, {}", text(&ours.stderr));
        }
        assert_eq!(found.len(), expected.len());
        assert!(expected.lines().count() > 50, "{expected}");
        // Both ends of each connection.
        let upgraded = text(&ours.stderr).matches(" upgraded\n").count();
        assert!(upgraded >= 20, "{}", text(&ours.stderr));
    }
}

/// Runs a program with each of these rules.
fn runs_with(rules: &[&str], test: &str, source: &str) {
    let Some(program) = compiled(test, source) else {
        return;
    };
    for rules in rules {
        let mut command = Command::new("timeout");
        command.env("DGIWARP_SOCKETS_RULES", rules);
        prints_ok(command.args(["60", RUN, "--sockets"]).arg(&program));
    }
}

/// Whether its listener takes rsockets or a rule has it plain.
#[test]
fn threads_are_cancelled_in_accept() {
    let source = include_str!("../c/accept_cancelled.c");
    runs_with(&["on", "off"], "accept_cancelled", source);
}

/// Waits for datagrams, and for readiness of connections too.
#[test]
fn threads_are_cancelled_in_waits() {
    let source = include_str!("../c/wait_cancelled.c");
    runs_with(&["on", "off"], "wait_cancelled", source);
}

#[test]
fn readiness_is_there_in_destructors() {
    let source = include_str!("../c/last_calls.c");
    runs_with(&["on"], "last_calls", source);
}

#[test]
fn connections_leave_low_numbers_to_the_program() {
    let source = include_str!("../c/low_numbers.c");
    runs_with(&["on"], "low_numbers", source);
}
