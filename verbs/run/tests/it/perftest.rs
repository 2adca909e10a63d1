//! Debian's unmodified perftest: every benchmark over every transport that both have, by rows of options.
//!
//! A row counts as passed when both ends have status 0 and the client's table has the sizes and iterations asked for.
//! Datagrams that nobody has time to receive are lost, and `ib_send_bw` then waits for them: over UC and UD its rows send
//! no more than the smallest receive buffer of a stock kernel holds.

use crate::common::have;
use crate::common::scene::{Family, Place, Scene};
use crate::common::session::{self, End, Finish, REPEATED, Ready};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

/// A benchmark: server, client, and the size of its messages by default.
#[derive(Clone, Copy, Debug)]
struct Program {
    ends: [End; 2],
    size: u64,
}

/// Each row is within half a minute on a quiet machine; two busy loops besides make it four times as long.
const LIMIT: Duration = Duration::from_secs(180);

macro_rules! program {
    ($name:literal, $size:literal) => {
        Program {
            ends: [
                // Without -F an end fails whose clock's rate it could not measure, as on a busy machine.
                perftest(End::server(concat!($name, " -F -p {port}"))),
                perftest(End::client(concat!($name, " -F -p {port} {server}")))
                    // With -R a second connection follows the first without any word from the server.
                    .may_be_early("Unexpected CM event bl blka 8"),
            ],
            size: $size,
        }
    };
}

const fn perftest(end: End) -> End {
    // `check` reads standard error itself.
    end.complains(&[]).limit(LIMIT)
}

const SEND_LAT: Program = program!("ib_send_lat", 2);
const SEND_BW: Program = program!("ib_send_bw", 65_536);
const WRITE_LAT: Program = program!("ib_write_lat", 2);
const WRITE_BW: Program = program!("ib_write_bw", 65_536);
const READ_LAT: Program = program!("ib_read_lat", 2);
const READ_BW: Program = program!("ib_read_bw", 65_536);
const ATOMIC_LAT: Program = program!("ib_atomic_lat", 8);
const ATOMIC_BW: Program = program!("ib_atomic_bw", 8);

/// A benchmark and its options.
type Row = (Program, &'static str);

/// The scene, if the package is there too.
fn scene(test: &str, place: Place) -> Option<Scene> {
    have(test, "ib_send_lat", "perftest").then(|| Scene::new(test, place))?
}

/// Runs rows in a place; `more` options go to each of them.
fn run(test: &str, place: Place, more: &str, rows: &[Row]) {
    if let Some(scene) = scene(test, place) {
        for row in rows {
            run_row(&scene, more, alone(*row));
        }
    }
}

/// A row that has the cores for itself: its ends poll.
fn alone((program, options): Row) -> Row {
    let ends = program.ends.map(End::polls);
    (Program { ends, ..program }, options)
}

fn run_row(scene: &Scene, more: &str, (program, options): Row) {
    let words: Vec<&str> = [options, more]
        .into_iter()
        .flat_map(str::split_ascii_whitespace)
        .collect();
    // Addresses that perftest connects to are IPv4 addresses always; for others there is -x.
    let [server, client] = session::run_with(scene, Family::V4, &program.ends, &words)
        .try_into()
        .unwrap();
    let said = format!("{words:?}\n{}", client.stdout);
    assert_eq!(
        table(&client.stdout, &words),
        expected(program.size, largest(&client.stdout, &words), &words),
        "{said}"
    );
    for line in [&server.stderr, &client.stderr]
        .into_iter()
        .flat_map(|text| text.lines())
    {
        // Perftest talks there about clocks and the like; neither the dynamic linker nor our library may.
        let ours = line.contains("version information") || line.contains("dgiwarp");
        assert!(!ours, "{line}\n{said}");
    }
}

/// Sizes and iterations in the lines of a table, if the number of iterations was asked for.
fn table(stdout: &str, words: &[&str]) -> Vec<(u64, u64)> {
    let lines = stdout.lines().filter_map(|line| {
        let mut columns = line.split_ascii_whitespace();
        let size = columns.next()?.parse().ok()?;
        let iterations: u64 = columns.next()?.parse().ok()?;
        Some((size, iterations))
    });
    if after(words, "-D").is_some() {
        // As many as there was time for.
        lines
            .map(|(size, iterations)| (size, iterations.min(1)))
            .collect()
    } else {
        lines.collect()
    }
}

/// The lines that the table must have.
fn expected(size: u64, largest: u64, words: &[&str]) -> Vec<(u64, u64)> {
    let iterations = match after(words, "-D") {
        Some(_) => 1,
        None => after(words, "-n").unwrap() * after(words, "-q").unwrap_or(1),
    };
    let sizes: Vec<u64> = if words.contains(&"-a") {
        (1..=largest.ilog2()).map(|power| 1 << power).collect()
    } else {
        vec![after(words, "-s").unwrap_or(size)]
    };
    sizes.into_iter().map(|size| (size, iterations)).collect()
}

/// The largest message of `-a`: 8 MiB, or one datagram, as large as perftest prints at its beginning.
fn largest(stdout: &str, words: &[&str]) -> u64 {
    if !words.contains(&"UD") {
        return 8 << 20;
    }
    let (_, rest) = stdout.split_once(" Mtu             : ").unwrap();
    let (octets, _) = rest.split_once("[B]").unwrap();
    octets.parse().unwrap()
}

/// The number after an option.
fn after(words: &[&str], option: &str) -> Option<u64> {
    let at = words.iter().position(|word| *word == option)?;
    Some(words[at + 1].parse().unwrap())
}

/// A killed client ends a server that only polls, however they connected and whichever persona each device has.
#[test]
fn a_killed_peer_ends_a_program_that_only_polls() {
    const IWARP: &[(&str, &str)] = &[("DGIWARP_PERSONA", "iwarp")];
    const LIVES: Duration = Duration::from_secs(3);
    const ENDLESS: [&str; 2] = ["-n", "100000000"];
    let Some(scene) = scene("perftest_killed", Place::Here) else {
        return;
    };
    for (program, more, environments) in [
        (READ_BW, &["-R"][..], [&[][..], &[]]),
        (WRITE_BW, &["-R"], [&[], &[]]),
        (READ_BW, &["-R"], [&[], IWARP]),
        (READ_BW, &["-R"], [IWARP, &[]]),
        (WRITE_BW, &["-R"], [IWARP, IWARP]),
        (SEND_BW, &["-R"], [&[], &[]]),
        (SEND_BW, &[], [&[], &[]]),
    ] {
        let [server, client] = program.ends.map(End::polls);
        let ends = [
            server.environment(environments[0]).finish(Finish::Failure),
            client
                .environment(environments[1])
                .finish(Finish::Killed(LIVES)),
        ];
        let words = [&ENDLESS, more].concat();
        session::run_with(&scene, Family::V4, &ends, &words);
    }
}

/// Every benchmark, connected.
const CONNECTED: &[Row] = &[
    (SEND_LAT, "-n 100"),
    (SEND_BW, "-n 300"),
    (WRITE_LAT, "-n 100"),
    (WRITE_BW, "-n 300"),
    (READ_LAT, "-n 100"),
    (READ_BW, "-n 300"),
    (ATOMIC_LAT, "-n 100"),
    (ATOMIC_BW, "-n 300"),
];

#[test]
fn connected() {
    run("perftest_connected", Place::Here, "", CONNECTED);
}

/// RC queue pairs on reliable datagrams, through sockets and through memory.
#[test]
fn connected_by_reliable_datagrams() {
    const SOCKETS: &[(&str, &str)] = &[("DGIWARP_RC", "rd"), ("DGIWARP_SAME_HOST", "off")];
    const MEMORY: &[(&str, &str)] = &[
        ("DGIWARP_RC", "rd"),
        ("DGIWARP_SAME_HOST", "ring"),
        ("DGIWARP_SAME_HOST_AFTER", "0"),
    ];
    const MORE: &[Row] = &[
        (SEND_BW, "-n 50 -q 8"),
        (WRITE_BW, "-n 200 -b"),
        (SEND_LAT, "-n 100 -e"),
        (SEND_BW, "-n 50 -q 4 --use-srq"),
    ];
    let Some(scene) = scene("perftest_rc_rd", Place::Here) else {
        return;
    };
    for (environment, more) in [(SOCKETS, MORE), (MEMORY, &[])] {
        for row in CONNECTED.iter().chain(more) {
            let (program, options) = alone(*row);
            let ends = program.ends.map(|end| end.environment(environment));
            run_row(&scene, "", (Program { ends, ..program }, options));
        }
    }
    let [server, client] = SEND_BW.ends.map(|end| end.polls().environment(SOCKETS));
    let killed = Finish::Killed(Duration::from_secs(3));
    let ends = [server.finish(Finish::Failure), client.finish(killed)];
    session::run_with(&scene, Family::V4, &ends, &["-n", "100000000"]);
}

/// Reliable datagrams by rdma_cm, which agrees on TCP where one end has no datagrams.
#[test]
fn connected_by_rdma_cm_on_reliable_datagrams() {
    const RD: &[(&str, &str)] = &[("DGIWARP_RC", "rd"), ("DGIWARP_SAME_HOST", "off")];
    const TCP: &[(&str, &str)] = &[("DGIWARP_RC", "tcp")];
    const ROWS: &[Row] = &[
        (SEND_LAT, "-n 100"),
        (WRITE_LAT, "-n 100"),
        (WRITE_BW, "-n 200"),
        (READ_BW, "-n 200"),
    ];
    let Some(scene) = scene("perftest_rc_rd_cm", Place::Here) else {
        return;
    };
    for (first, second) in [(RD, RD), (RD, TCP), (TCP, RD)] {
        for row in ROWS {
            let (program, options) = alone(*row);
            let [server, client] = program.ends;
            let ends = [server.environment(first), client.environment(second)];
            run_row(&scene, "-R", (Program { ends, ..program }, options));
        }
    }
    let [server, client] = SEND_BW.ends.map(|end| end.polls().environment(RD));
    let killed = Finish::Killed(Duration::from_secs(2));
    let ends = [server.finish(Finish::Failure), client.finish(killed)];
    session::run_with(&scene, Family::V4, &ends, &["-n", "100000000", "-R"]);
}

/// Ends with different transports report it, both.
#[test]
fn transports_of_connected_queue_pairs_are_not_mixed() {
    const RD: &[(&str, &str)] = &[("DGIWARP_RC", "rd")];
    const TCP: &[(&str, &str)] = &[("DGIWARP_RC", "tcp")];
    let Some(scene) = scene("perftest_rc_mixed", Place::Here) else {
        return;
    };
    for first in [[RD, TCP], [TCP, RD]] {
        let [server, client] = SEND_BW.ends;
        let ends = [
            server.environment(first[0]).finish(Finish::Failure),
            client.environment(first[1]).finish(Finish::Failure),
        ];
        for end in session::run_with(&scene, Family::V4, &ends, &["-n", "100"]) {
            assert!(end.stderr.contains("DGIWARP_RC="), "{}", end.stderr);
        }
    }
}

/// perftest opens its domain with a file in /tmp.
#[test]
fn xrc() {
    run(
        "perftest_xrc",
        Place::Here,
        "-c XRC",
        &[
            (SEND_LAT, "-n 100"),
            (SEND_BW, "-n 300"),
            (WRITE_LAT, "-n 100"),
            (WRITE_BW, "-n 300"),
            (READ_BW, "-n 300"),
            (ATOMIC_BW, "-n 300"),
        ],
    );
}

#[test]
fn connected_by_rdma_cm() {
    run(
        "perftest_connected_by_rdma_cm",
        Place::Here,
        "-R",
        CONNECTED,
    );
}

/// Without a connection, or with one that loses. A group is an IPv4 address in the form of a GID.
const DATAGRAMS: &[Row] = &[
    (SEND_LAT, "-c UC -n 50 -s 3000"),
    (SEND_BW, "-c UC -n 30 -s 4096"),
    (WRITE_LAT, "-c UC -n 50"),
    (WRITE_BW, "-c UC -n 300"),
    (SEND_LAT, "-c UD -n 50 -s 4096"),
    (SEND_LAT, "-c UD -n 50 -R"),
    (SEND_BW, "-c UD -n 30 -s 4096"),
    (SEND_BW, "-c UD -n 30 -s 64 -R"),
    (
        SEND_BW,
        "-c UD -n 30 -s 512 -g -M 0:0:0:0:0:0:0:0:0:0:255:255:239:77:8:9",
    ),
];

#[test]
fn datagrams() {
    run("perftest_datagrams", Place::Here, "", DATAGRAMS);
}

/// Scalable reliable datagrams. As EFA, perftest posts by the extended calls and reads too.
#[test]
fn srd() {
    const EFA: &[(&str, &str)] = &[("DGIWARP_PERSONA", "efa")];
    const SENDS: &[Row] = &[
        (SEND_LAT, "-c SRD -n 100"),
        (SEND_BW, "-c SRD -n 300 -s 4096"),
    ];
    const AS_EFA: &[Row] = &[
        (SEND_BW, "-c SRD -n 300 -s 8928"),
        (SEND_BW, "-c SRD -n 100 -s 64 -q 4"),
        (READ_LAT, "-c SRD -n 100"),
        (READ_BW, "-c SRD -n 100"),
    ];
    let Some(scene) = scene("perftest_srd", Place::Here) else {
        return;
    };
    for row in SENDS {
        run_row(&scene, "", alone(*row));
    }
    for row in SENDS.iter().chain(AS_EFA) {
        let (program, options) = alone(*row);
        let ends = program.ends.map(|end| end.environment(EFA));
        run_row(&scene, "", (Program { ends, ..program }, options));
    }
}

const OPTIONS: &[Row] = &[
    (SEND_BW, "-n 10 -a"),
    (SEND_BW, "-n 200 -b"),
    (WRITE_BW, "-n 200 -b"),
    (READ_BW, "-n 200 -b"),
    (SEND_BW, "-n 50 -q 8"),
    (WRITE_BW, "-n 50 -q 8"),
    (READ_BW, "-n 50 -q 8"),
    (SEND_LAT, "-n 100 -e"),
    (SEND_BW, "-n 100 -e"),
    (READ_LAT, "-n 100 -e"),
    (SEND_LAT, "-n 100 -s 64 --inline_size=64"),
    (WRITE_BW, "-n 200 -s 64 --inline_size=64"),
    (SEND_LAT, "-D 1"),
    (WRITE_BW, "-D 1"),
    (SEND_BW, "-n 50 -q 4 --use-srq"),
    (SEND_BW, "-n 80 -l 8 --recv_post_list=8"),
];

#[test]
fn options() {
    run("perftest_options", Place::Here, "", OPTIONS);
}

/// Four pairs of programs, on two cores.
#[test]
fn pairs_beside_each_other() {
    let Some(scene) = scene("perftest_pairs", Place::Here) else {
        return;
    };
    let rows: [Row; 4] = [
        (SEND_BW, "-n 100"),
        (WRITE_BW, "-n 100"),
        (READ_BW, "-n 100"),
        (SEND_LAT, "-n 50 -e"),
    ];
    thread::scope(|scope| {
        for row in rows {
            let scene = &scene;
            scope.spawn(move || run_row(scene, "", row));
        }
    });
}

/// An ordinary user's, where there is nothing but loopback, and between two hosts: by TCP, by rdma_cm, and with the
/// second GID, which is an IPv6 address.
const PLACES: &[Row] = &[
    (SEND_LAT, "-n 50"),
    (WRITE_BW, "-n 100 -R"),
    (READ_BW, "-n 100 -x 1"),
    (SEND_LAT, "-c UD -n 50 -s 256 -x 1"),
    (
        SEND_BW,
        "-c UD -n 30 -s 256 -g -M 0:0:0:0:0:0:0:0:0:0:255:255:239:77:8:9",
    ),
];

#[test]
fn with_nothing_but_loopback() {
    run("perftest_loopback", Place::Loopback, "", PLACES);
}

#[test]
fn between_two_hosts() {
    run("perftest_apart", Place::Apart, "", PLACES);
    run(
        "perftest_apart",
        Place::Apart,
        "",
        &[(ATOMIC_BW, "-n 100"), (WRITE_LAT, "-c UC -n 50 -x 1")],
    );
}

/// A program that must fail, and report it. It takes a few seconds of a quiet machine.
const fn fails(line: &'static str, complains: &'static [&'static str]) -> End {
    End::client(line)
        .finish(Finish::Failure)
        .complains(complains)
        .limit(Duration::from_secs(60))
}

/// There is no Ethernet below datagrams to send raw frames on. Perftest reports that it failed, our library why.
#[test]
fn raw_ethernet_is_refused() {
    const fn refused(line: &'static str) -> End {
        fails(
            line,
            &[
                "Unable to create QP.",
                "refused: queue pairs are RC, UC, UD or XRC qp_type=8",
            ],
        )
        .environment(&[("DGIWARP_LOG", "debug")])
    }
    let Some(scene) = scene("raw_ethernet", Place::Here) else {
        return;
    };
    for end in [
        refused("raw_ethernet_bw --client -E 02:00:00:00:00:01 -B 02:00:00:00:00:02"),
        refused("raw_ethernet_bw --server -E 02:00:00:00:00:01 -B 02:00:00:00:00:02"),
        refused("raw_ethernet_lat --client -E 02:00:00:00:00:01 -B 02:00:00:00:00:02"),
        refused("raw_ethernet_fs_rate --client -E 02:00:00:00:00:01 -B 02:00:00:00:00:02"),
    ] {
        session::run(&scene, Family::V4, &[end]);
    }
}

/// More queue pairs than there are descriptors, at either end: that end reports it, and the other gets its end.
#[test]
fn descriptors_run_out() {
    const SERVER: &str = "ib_write_bw -F -q 1000 -n 5 -s 8 -p {port}";
    const CLIENT: &str = "ib_write_bw -F -q 1000 -n 5 -s 8 -p {port} {server}";
    const LIMITED_SERVER: &str = "prlimit --nofile=64 ib_write_bw -F -q 1000 -n 5 -s 8 -p {port}";
    const LIMITED_CLIENT: &str =
        "prlimit --nofile=64 ib_write_bw -F -q 1000 -n 5 -s 8 -p {port} {server}";
    const REFUSED: &[&str] = &["Unable to create QP."];
    let Some(scene) = scene("perftest_descriptors_run_out", Place::Here) else {
        return;
    };
    for ends in [
        [
            fails(LIMITED_SERVER, REFUSED).ready(Ready::Port),
            fails(CLIENT, &[]),
        ],
        [
            fails(SERVER, &[]).ready(Ready::Port),
            fails(LIMITED_CLIENT, REFUSED),
        ],
    ] {
        session::run(&scene, Family::V4, &ends);
    }
}

/// Every option that has a meaning where the device is software.
const MATRIX: &[Row] = &[
    (SEND_LAT, "-n 10 -a"),
    (WRITE_LAT, "-n 10 -a"),
    (READ_LAT, "-n 10 -a"),
    (WRITE_BW, "-n 10 -a"),
    (READ_BW, "-n 10 -a"),
    (SEND_BW, "-n 10 -a -R"),
    (WRITE_BW, "-n 10 -a -b -R"),
    (READ_BW, "-n 10 -a -R -q 8"),
    (SEND_LAT, "-n 10 -a -c UD"),
    (SEND_BW, "-n 10 -a -c UD"),
    (ATOMIC_BW, "-n 1000 -b"),
    (ATOMIC_BW, "-n 1000 -q 8"),
    (ATOMIC_BW, "-n 1000 -A CMP_AND_SWAP"),
    (ATOMIC_LAT, "-n 200 -A FETCH_AND_ADD"),
    (ATOMIC_LAT, "-n 200 -e"),
    (ATOMIC_BW, "-D 1 -R"),
    (SEND_BW, "-D 1 -b -R"),
    (WRITE_LAT, "-D 1"),
    (READ_BW, "-D 3 -f 1"),
    (SEND_LAT, "-D 1 -c UD -s 64"),
    (SEND_LAT, "-n 200 -e -c UC -s 64"),
    (SEND_LAT, "-n 200 -e -c UD -s 64 -R"),
    (READ_BW, "-n 500 -e -X 0"),
    (SEND_BW, "-n 500 -q 8 -e -b"),
    (SEND_LAT, "-n 200 --use-srq"),
    (SEND_BW, "-n 500 --use-srq -q 4 -R"),
    (SEND_BW, "-n 1000 -m 256"),
    (SEND_BW, "-n 1000 -r 1 -t 1"),
    (SEND_BW, "-n 1000 -r 4096 -t 4096"),
    (SEND_BW, "-n 333 -s 100001"),
    (SEND_BW, "-n 10 -s 8388608"),
    (SEND_BW, "-n 800 -l 8 --recv_post_list=8 -q 2"),
    (SEND_BW, "-n 1000 -Q 128"),
    (SEND_BW, "-n 500 -s 16 --inline_recv=32"),
    (SEND_LAT, "-n 200 -U"),
    (SEND_LAT, "-n 20 -c UC -s 100000"),
    (WRITE_BW, "-n 5"),
    (WRITE_BW, "-n 1023 -s 1"),
    (WRITE_BW, "-n 1001 -s 3 -t 1"),
    (WRITE_BW, "-n 2000 -t 8192"),
    (WRITE_BW, "-n 500 -Q 1 --report_gbits"),
    (WRITE_BW, "-n 500 -N --perform_warm_up"),
    (WRITE_BW, "-n 100 -q 4 --mr_per_qp -u 20 -S 3"),
    (WRITE_BW, "-n 500 -z"),
    (WRITE_BW, "-n 500 -R -T 32"),
    (WRITE_BW, "-n 500 --tclass=32 --ipv6"),
    (WRITE_BW, "-n 20 -q 100 -s 1024"),
    (WRITE_BW, "-n 20 -q 32 -s 1024 -R"),
    (
        WRITE_BW,
        "-n 500 -s 1024 --rate_limit=1 --rate_limit_type=SW",
    ),
    (READ_BW, "-n 500 -o 1"),
    (READ_BW, "-n 500 -o 16 -l 4"),
    (READ_LAT, "-n 200 -o 4"),
];

/// All rows, whichever of them fail.
fn whole_matrix(test: &str, place: Place) {
    let Some(scene) = scene(test, place) else {
        return;
    };
    let all = [CONNECTED, DATAGRAMS, OPTIONS, MATRIX]
        .into_iter()
        .flatten();
    let rows = all.map(|row| (*row, "")).chain(
        CONNECTED
            .iter()
            .flat_map(|row| [(*row, "-R"), (*row, "-x 1")]),
    );
    let failed: Vec<_> = rows
        .filter(|(row, more)| {
            let row = || run_row(&scene, more, alone(*row));
            catch_unwind(AssertUnwindSafe(row)).is_err()
        })
        .map(|((program, options), more)| format!("{:?} {options} {more}", program.ends[0]))
        .collect();
    assert!(failed.is_empty(), "{failed:#?}");
}

#[test]
#[ignore = "long: only with --soak"]
fn soak_the_whole_matrix_on_this_host() {
    whole_matrix("soak_perftest_here", Place::Here);
}

#[test]
#[ignore = "long: only with --soak"]
fn soak_the_whole_matrix_with_nothing_but_loopback() {
    whole_matrix("soak_perftest_loopback", Place::Loopback);
}

#[test]
#[ignore = "long: only with --soak"]
fn soak_the_whole_matrix_between_two_hosts() {
    whole_matrix("soak_perftest_apart", Place::Apart);
}

/// One row again and again.
fn in_a_row(test: &str, more: &str, row: Row, times: usize) {
    if let Some(scene) = scene(test, Place::Here) {
        for _ in 0..times {
            run_row(&scene, more, alone(row));
        }
    }
}

#[test]
#[ignore = "long: only with --soak"]
fn soak_ib_write_bw_a_hundred_times_in_a_row() {
    in_a_row("soak_ib_write_bw", "", (WRITE_BW, "-n 5000"), 100);
}

#[test]
#[ignore = "long: only with --soak"]
fn soak_ib_write_bw_by_rdma_cm_a_hundred_times_in_a_row() {
    in_a_row(
        "soak_ib_write_bw_by_rdma_cm",
        "-R",
        (WRITE_BW, "-n 5000"),
        100,
    );
    eprintln!(
        "{} clients came before their listener",
        REPEATED.load(Ordering::Relaxed)
    );
}
