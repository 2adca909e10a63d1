//! Unmodified programs of UDP sockets under `dgiwarp-run --sockets`: against each other, and against plain ones. Messages on standard error prove which way datagrams took.

use crate::common::scene::{Family, Place, Scene};
use crate::common::session::{self, End, Finish, Ready};
use crate::common::{RUN, have, script, succeed};
use std::process::Command;

const INFO: &[(&str, &str)] = &[("DGIWARP_LOG", "info")];
const OFF: &[(&str, &str)] = &[
    ("DGIWARP_LOG", "info"),
    (
        "DGIWARP_SOCKETS_RULES",
        "off:protocol=udp:direction=connect",
    ),
];
/// A datagram takes about half a millisecond.
const SLOW: &[(&str, &str)] = &[("DGIWARP_LOG", "info"), ("DGIWARP_MAX_RATE", "200000")];
const TAKES: &str = "takes datagrams by a queue pair";
const BOTH: &[&str] = &[TAKES, "datagrams of", "upgraded"];
const UPGRADED: &[&str] = &["datagrams of", "upgraded"];
const PYTHON: (&str, &str) = ("python3", "python3");

/// A server whose peers send by queue pairs.
const fn server(line: &'static str) -> End {
    End::server(line)
        .environment(INFO)
        .complains(BOTH)
        .ready(Ready::Complains(TAKES))
        .finish(Finish::Stopped)
}

/// A client that sends by a queue pair.
const fn client(line: &'static str) -> End {
    End::client(line).environment(INFO).complains(UPGRADED)
}

/// Words of `udp.py` under `dgiwarp-run --sockets`.
fn upgraded(mode: &str) -> &'static str {
    format!("--sockets python3 {{program}} {mode} {{server}} {{port}}").leak()
}

fn plain(mode: &str) -> &'static str {
    format!("python3 {{program}} {mode} {{server}} {{port}}").leak()
}

/// Each server has upgraded and plain clients.
fn serves(scene: &Scene, family: Family, mode: &str, asks: &[&str]) {
    let udp = script("udp.py");
    let mut ends = vec![server(upgraded(mode)).program(&udp)];
    for ask in asks {
        let says = &["echoed"];
        ends.push(client(upgraded(ask)).program(&udp).says(says));
        ends.push(End::client(plain(ask)).program(&udp).says(says));
    }
    session::run(scene, family, &ends);
}

#[test]
fn datagrams_of_all_lengths_are_echoed() {
    let Some(scene) = Scene::of("sockets_udp_echo", Place::Here, &[PYTHON]) else {
        return;
    };
    for family in [Family::V4, Family::V6] {
        if scene.has(family) {
            serves(&scene, family, "serve", &["ask", "ask-connected"]);
        }
    }
}

/// A server that waits in one of these ways.
#[test]
fn readiness_is_that_of_both_ways() {
    let Some(scene) = Scene::of("sockets_udp_ready", Place::Here, &[PYTHON]) else {
        return;
    };
    for mode in [
        "serve-poll",
        "serve-select",
        "serve-epoll",
        "serve-edges",
        "serve-once",
    ] {
        serves(&scene, Family::V4, mode, &["ask"]);
    }
    // It sends no datagrams without octets.
    serves(&scene, Family::V4, "serve-async", &["ask-connected"]);
}

#[test]
fn datagrams_stay_in_order_while_their_way_changes() {
    let Some(scene) = Scene::of("sockets_udp_order", Place::Here, &[PYTHON]) else {
        return;
    };
    serves(&scene, Family::V4, "serve", &["ask-in-flight"]);
    serves(&scene, Family::V4, "serve-epoll", &["ask-in-flight"]);
}

/// A queue pair that sends more slowly than the program has no free slot for some datagrams.
#[test]
fn datagrams_of_a_slow_queue_pair_stay_in_order() {
    let Some(scene) = Scene::of("sockets_udp_slow", Place::Here, &[PYTHON]) else {
        return;
    };
    let udp = script("udp.py");
    let asks = |environment| {
        client(upgraded("ask-in-flight"))
            .program(&udp)
            .environment(environment)
            .says(&["echoed"])
    };
    let serves = |environment| {
        server(upgraded("serve"))
            .program(&udp)
            .environment(environment)
    };
    for (ours, theirs) in [(SLOW, INFO), (INFO, SLOW)] {
        session::run(&scene, Family::V4, &[serves(ours), asks(theirs)]);
    }
}

#[test]
fn a_plain_server_gets_the_datagrams_alone() {
    let Some(scene) = Scene::of("sockets_udp_plain", Place::Here, &[PYTHON]) else {
        return;
    };
    let udp = script("udp.py");
    let ends = [
        End::server(plain("serve"))
            .program(&udp)
            .finish(Finish::Stopped),
        // Whatever it sends beside its datagrams would be echoed.
        End::client(upgraded("ask")).program(&udp).says(&["echoed"]),
        End::client(upgraded("ask-in-flight"))
            .program(&udp)
            .says(&["echoed"]),
    ];
    session::run(&scene, Family::V4, &ends);
}

#[test]
fn rules_and_options_keep_datagrams_plain() {
    let Some(scene) = Scene::of("sockets_udp_rules", Place::Here, &[PYTHON]) else {
        return;
    };
    let udp = script("udp.py");
    let stays = server(upgraded("serve")).program(&udp).complains(&[TAKES]);
    let ends = [
        stays,
        End::client(upgraded("ask"))
            .program(&udp)
            .environment(OFF)
            .says(&["echoed"]),
        client(upgraded("options"))
            .program(&udp)
            .complains(&["plain: an option of the socket", "0 connections upgraded"])
            .says(&["echoed with a TTL"]),
    ];
    session::run(&scene, Family::V4, &ends);
}

#[test]
fn datagrams_to_other_hosts_stay_theirs() {
    let Some(scene) = Scene::of("sockets_udp_elsewhere", Place::Here, &[PYTHON]) else {
        return;
    };
    let ends = [client(upgraded("elsewhere"))
        .program(&script("udp.py"))
        .says(&["none came"])];
    session::run(&scene, Family::V4, &ends);
}

/// Two hosts: datagrams are the kernel's.
#[test]
fn datagrams_between_hosts_are_plain() {
    let Some(scene) = Scene::of("sockets_udp_apart", Place::Apart, &[PYTHON]) else {
        return;
    };
    let udp = script("udp.py");
    let ends = [
        server(upgraded("serve")).program(&udp).complains(&[TAKES]),
        End::client(upgraded("ask")).program(&udp).says(&["echoed"]),
    ];
    session::run(&scene, Family::V4, &ends);
}

#[test]
fn sockets_are_shown() {
    let test = "sockets_udp_ss";
    if !have(test, PYTHON.0, PYTHON.1) {
        return;
    }
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = socket.local_addr().unwrap().port();
    drop(socket);
    let mut command = Command::new("timeout");
    command.args(["60", RUN, "--sockets", "python3"]);
    command.arg(script("udp.py"));
    command.args(["show", "127.0.0.1", &port.to_string()]);
    let output = succeed(command.env("SS", env!("CARGO_BIN_EXE_dgiwarp-ss")));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let lines = text.lines().map(|it| serde_json::from_str(it).unwrap());
    let objects: Vec<serde_json::Value> = lines.collect();
    let sockets = objects.iter().filter(|it| it["kind"] == "socket");
    let mut ways: Vec<_> = sockets
        .map(|it| {
            let way = it["way"].as_str().unwrap().replace("lane", "ud");
            let octets = it["octets_sent"].as_u64().unwrap();
            (way, octets, it["reason"].as_str().unwrap_or("").to_owned())
        })
        .collect();
    ways.sort();
    let row = |way: &str, octets, reason: &str| (way.to_owned(), octets, reason.to_owned());
    assert_eq!(
        ways,
        [
            // Without the first datagram, behind which the socket has waited first.
            row("ud", 9_900, ""),
            row("ud", 20_000, ""),
            row("udp", 10_000, "an option of the socket"),
        ],
        "{text}"
    );
    let process = objects.iter().find(|it| it["kind"] == "process").unwrap();
    assert_eq!([&process["upgraded"], &process["plain"]], [2, 1], "{text}");
}

/// Datagrams reach what has the address now, and the end of a server is reported as by the kernel.
#[test]
fn servers_are_killed_and_replaced() {
    let test = "sockets_udp_killed";
    let Some(scene) = Scene::of(test, Place::Here, &[PYTHON]) else {
        return;
    };
    let udp = script("udp.py");
    let program = udp.to_str().unwrap();
    let ours = format!("{RUN} --sockets python3 {program} serve 127.0.0.1");
    // Programs inherit the library.
    let theirs = format!("env -u LD_PRELOAD python3 {program} serve 127.0.0.1");
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = socket.local_addr().unwrap().port();
    drop(socket);
    let servers = [&ours, &theirs, &ours, &ours];
    let servers = servers.map(|it| format!("{it} {port}"));
    let mut command = Command::new("timeout");
    command.args(["50", RUN, "--sockets", "python3", program]);
    command.args(["ask-again", "127.0.0.1", &port.to_string()]);
    command.args(&servers).envs(INFO.iter().copied());
    let output = succeed(&mut command);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("echoed by all"), "{text}");
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    // Three of the servers, and two sockets at each of them, one of which stays.
    assert_eq!(log.matches(TAKES).count(), 3, "{log}");
    assert!(log.matches("upgraded\n").count() >= 3 + 4, "{log}");
    drop(scene);
}

/// Random calls have the results and the readiness that they have on the kernel's sockets.
#[test]
fn calls_do_what_they_do_with_udp() {
    let test = "sockets_udp_oracle";
    if !have(test, PYTHON.0, PYTHON.1) {
        return;
    }
    let calls = script("udp_calls.py");
    for host in ["127.0.0.1", "::1"] {
        if host == "::1" && std::net::UdpSocket::bind("[::1]:0").is_err() {
            continue;
        }
        let run = |words: &[&str]| {
            let mut command = Command::new("timeout");
            command.args(words).arg(&calls).args([host, "0", "12"]);
            let output = succeed(command.envs(INFO.iter().copied()));
            let text = |octets| String::from_utf8_lossy(octets).into_owned();
            (text(&output.stdout), text(&output.stderr))
        };
        let (expected, _) = run(&["60", "python3"]);
        let (found, log) = run(&["60", RUN, "--sockets", "python3"]);
        for (expected, found) in expected.lines().zip(found.lines()) {
            assert_eq!(found, expected, "of UDP, {log}");
        }
        assert_eq!(found.len(), expected.len());
        assert!(expected.lines().count() > 3600, "{expected}");
        assert_eq!(log.matches(" upgraded\n").count(), 24, "{log}");
    }
}

#[test]
fn children_use_the_sockets_of_their_parents() {
    let Some(scene) = Scene::of("sockets_udp_fork", Place::Here, &[PYTHON]) else {
        return;
    };
    let udp = script("udp.py");
    let ends = [
        server(upgraded("serve")).program(&udp),
        client(upgraded("fork"))
            .program(&udp)
            .says(&["both echoed"]),
        client(upgraded("duplicates"))
            .program(&udp)
            .says(&["echoed"]),
    ];
    session::run(&scene, Family::V4, &ends);
    let ends = [
        server(upgraded("serve-forked")).program(&udp),
        client(upgraded("ask-forked"))
            .program(&udp)
            .says(&["echoed"]),
    ];
    session::run(&scene, Family::V4, &ends);
}

#[test]
fn datagrams_of_a_process_that_ends_arrive() {
    let Some(scene) = Scene::of("sockets_udp_end", Place::Here, &[PYTHON]) else {
        return;
    };
    let udp = script("udp.py");
    let ends = [
        server(upgraded("collect"))
            .program(&udp)
            .says(&["all came"])
            .finish(Finish::Status(0)),
        client(upgraded("quick")).program(&udp),
    ];
    session::run(&scene, Family::V4, &ends);
}

#[test]
fn sockperf_plays_ping_pong() {
    let Some(scene) = Scene::of("sockets_sockperf", Place::Here, &[("sockperf", "sockperf")])
    else {
        return;
    };
    for options in ["-m 64", "-m 1400"] {
        let line = format!("--sockets sockperf ping-pong -i {{server}} -p {{port}} -t 1 {options}");
        let ends = [
            server("--sockets sockperf server -i {server} -p {port}"),
            client(line.leak()).says(&["Summary: Latency is"]),
        ];
        session::run(&scene, Family::V4, &ends);
    }
}

#[test]
fn sipp_makes_calls() {
    let Some(scene) = Scene::of("sockets_sipp", Place::Here, &[("sipp", "sip-tester")]) else {
        return;
    };
    for transport in ["u1", "un"] {
        let line = format!(
            "--sockets sipp -sn uac -t {transport} -max_socket 1000 -i {{client}} -m 200 -r 200 -nostdin {{server}}:{{port}}"
        );
        let ends = [
            server("--sockets sipp -sn uas -t u1 -i {server} -p {port} -nostdin")
                .complains(if transport == "u1" { BOTH } else { &[TAKES] })
                .finish(Finish::Stopped),
            End::client(line.leak())
                .environment(INFO)
                .complains(if transport == "u1" { UPGRADED } else { &[] }),
        ];
        session::run(&scene, Family::V4, &ends);
    }
}
