//! `infiniband/dgiwarpdv.h` as C programs see it, and the examples in C.

use crate::common::each::{gids, prints_ok};
use crate::common::linked::{INCLUDE, linked, plain};
use crate::common::scene::{Family, Place, Scene};
use crate::common::session::{self, End, Ended};
use crate::common::{RUN, have, succeed};
use std::fs;
use std::path::Path;
use std::process::Command;

/// The two ends of an example, `{program}` being what was compiled.
fn run(place: Place, name: &str, program: &Path, ends: [End; 2]) -> Option<Vec<Ended>> {
    let scene = Scene::new(name, place)?;
    let ends = ends.map(|end| end.program(program));
    Some(session::run(&scene, Family::V4, &ends))
}

const FIRST: End = End::server("{program} {port}");
const SECOND: End = End::client("{program} {port} {server}");

#[test]
fn a_write_record_shows_what_arrived_of_it() {
    let Some((_directory, program)) = linked(
        "write_record",
        include_str!("../../../examples/c/write_record.c"),
    ) else {
        return;
    };
    let lossy = &[("DGIWARP_FAULT", "drop=0.1,seed=1")];
    let ends = [
        FIRST
            .environment(lossy)
            .says(&["of 100000 bytes are valid, immediate 2024", "#", "."]),
        SECOND
            .environment(&[("DGIWARP_MTU", "1500")])
            .says(&["source: written"]),
    ];
    let ended = run(Place::Here, "write_record", &program, ends).unwrap();
    let lines = ended[0].stdout.lines();
    let ranges = lines.filter(|line| line.contains(" to ")).count();
    assert!(ranges > 1, "{}", ended[0].stdout);
}

#[test]
fn a_read_ends_in_time_and_says_what_it_brought() {
    let Some((_directory, program)) = linked(
        "read_deadline",
        include_str!("../../../examples/c/read_deadline.c"),
    ) else {
        return;
    };
    // The requester's window lets no more than a few parts of the Read come in each delay, so that it takes seconds.
    let slow = &[("DGIWARP_FAULT", "delay=50ms")];
    let ends = [
        FIRST,
        SECOND
            .environment(slow)
            .says(&["1000 bytes read", "not all of 16777216 bytes came"]),
    ];
    run(Place::Here, "read_deadline", &program, ends);
}

#[test]
fn errors_come_back_to_the_sender() {
    let Some((_directory, program)) = linked(
        "error_queue",
        include_str!("../../../examples/c/error_queue.c"),
    ) else {
        return;
    };
    let says = &["Connection refused", "layer 0, type 1, code 0"];
    run(
        Place::Here,
        "error_queue",
        &program,
        [FIRST, SECOND.says(says)],
    );
}

#[test]
fn memory_is_kept_from_those_it_is_not_for() {
    let Some((_directory, program)) = linked(
        "restricted_memory",
        include_str!("../../../examples/c/restricted_memory.c"),
    ) else {
        return;
    };
    let says = &[
        "\"from the one peer\"",
        "\"with a cookie\"",
        "\"to the group\" at rkey 0x4711",
        "two others were not let in",
    ];
    let ends = [FIRST.says(says), SECOND];
    // In a network of its own: the group's members elsewhere would hear it too.
    run(Place::Loopback, "restricted_memory", &program, ends);
}

#[test]
fn one_queue_pair_serves_many_clients_and_loses_nothing() {
    let source = include_str!("../../../examples/c/reliable.c");
    let Some((_directory, program)) = linked("reliable", source) else {
        return;
    };
    let lossy = &[("DGIWARP_FAULT", "drop=0.05,reorder=0.05,seed=3")];
    let ends = [
        FIRST
            .environment(lossy)
            .says(&["client 0 says A client", "client 7 says H client"]),
        SECOND.environment(lossy).says(&[
            "a wrong rkey is refused (layer 1, type 1, code 0)",
            "8 rows are there",
        ]),
    ];
    run(Place::Here, "reliable", &program, ends);
}

#[test]
fn reliable_datagrams_answer_as_the_header_says() {
    for_each_gid("reliable", include_str!("../c/reliable.c"), &[]);
}

/// With either persona, and with a network that loses a peer's last messages.
#[test]
fn the_end_of_a_process_ends_its_reliable_datagrams() {
    let Some((_directory, program)) = linked("left", include_str!("../c/left.c")) else {
        return;
    };
    let gids = gids();
    let index = |v6: bool| {
        gids.iter().find_map(|(index, gid)| {
            (gid.address.is_loopback() && gid.address.is_ipv6() == v6).then_some(index)
        })
    };
    let v4 = index(false).expect("a loopback address");
    let mut rows = vec![
        ("iwarp", "", v4),
        ("roce", "", v4),
        ("roce", "drop=0.1,reorder=0.1,seed=3", v4),
        ("roce", "drop=0.2,seed=3", v4),
    ];
    // Some hosts have no IPv6.
    rows.extend(index(true).map(|v6| ("roce", "", v6)));
    for (persona, fault, index) in rows {
        let mut command = Command::new("timeout");
        command.env("DGIWARP_PERSONA", persona);
        if !fault.is_empty() {
            command.env("DGIWARP_FAULT", fault);
        }
        command.args(["120", RUN]).arg(&program);
        prints_ok(command.arg(index.to_string()));
    }
}

#[test]
fn queue_pairs_count_what_they_do() {
    let Some((_directory, program)) =
        linked("counters", include_str!("../../../examples/c/counters.c"))
    else {
        return;
    };
    let ends = [
        FIRST.says(&["target: segments_received "]),
        SECOND.says(&["source: octets_sent 655360\n"]),
    ];
    run(Place::Here, "counters", &program, ends);
}

#[test]
fn a_program_for_hardware_uses_what_is_there() {
    let directory = tempfile::tempdir().unwrap();
    let source = include_str!("../../../examples/c/standard_api.c");
    let Some(program) = plain("standard_api", directory.path(), source) else {
        return;
    };
    let ends = [FIRST.says(&["\"hello\" by Write-Record"]), SECOND];
    run(Place::Here, "standard_api", &program, ends);
}

/// Runs a program of `tests/c` with the index of each of the host's addresses.
fn for_each_gid(name: &str, source: &str, environment: &[(&str, &str)]) {
    let Some((_directory, program)) = linked(name, source) else {
        return;
    };
    for (index, _) in gids().iter() {
        let mut command = Command::new("timeout");
        command.arg("120").arg(&program).arg(index.to_string());
        prints_ok(command.envs(environment.iter().copied()));
    }
}

#[test]
fn every_function_answers_as_the_header_says() {
    for_each_gid("direct", include_str!("../c/direct.c"), &[]);
}

#[test]
fn a_program_sees_its_device_go() {
    for_each_gid("removal", include_str!("../c/removal.c"), &[]);
}

#[test]
fn records_close_when_the_queue_pair_wants_it() {
    let lossy = [
        ("DGIWARP_FAULT", "drop=0.5,seed=1"),
        ("DGIWARP_MTU", "1500"),
    ];
    for_each_gid("loss", include_str!("../c/loss.c"), &lossy);
}

#[test]
fn weak_functions_are_absent_without_the_library() {
    const SOURCE: &str = r#"
#define DGIWARPDV_WEAK
#include <stdio.h>
#include <infiniband/dgiwarpdv.h>
int main(void)
{
    ibv_fork_init();
    if (dgiwarpdv_version)
        printf(dgiwarpdv_version() == DGIWARPDV_VERSION ? "same" : "other");
    else
        printf("absent");
    return 0;
}
"#;
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = plain("weak", directory.path(), SOURCE) else {
        return;
    };
    assert_eq!(succeed(&mut Command::new(&program)).stdout, b"absent");
    assert_eq!(succeed(Command::new(RUN).arg(&program)).stdout, b"same");
}

#[test]
fn the_header_is_one_for_cpp_too() {
    if !have("header", "c++", "g++") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("header.cc");
    let source =
        "#include <infiniband/dgiwarpdv.h>\nint main() { return dgiwarpdv_version() == 0; }\n";
    fs::write(&file, source).unwrap();
    let mut command = Command::new("c++");
    command.args(["-std=c++11", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]);
    succeed(command.args(["-fsyntax-only", INCLUDE]).arg(&file));
}

#[test]
fn counters_have_the_names_of_the_header() {
    let header = include_str!("../../../include/infiniband/dgiwarpdv.h");
    let (_, counters) = header.split_once("enum dgiwarpdv_counter {").unwrap();
    let (counters, _) = counters.split_once("};").unwrap();
    let names = counters.lines().filter_map(|line| {
        let name = line.trim().strip_prefix("DGIWARPDV_")?;
        name.strip_suffix(',')
    });
    let names: Vec<&str> = names.collect();
    assert!(names.len() > 40, "{names:?}");
    let shown = names
        .iter()
        .map(|name| format!("puts(dgiwarpdv_counter_name(DGIWARPDV_{name}));\n"));
    let source = format!(
        "#include <stdio.h>\n#include <infiniband/dgiwarpdv.h>\nint main(void) {{\n{}return {} != DGIWARPDV_COUNTERS || \
         dgiwarpdv_counter_name(DGIWARPDV_COUNTERS); }}\n",
        shown.collect::<String>(),
        names.len()
    );
    let Some((_directory, program)) = linked("names", &source) else {
        return;
    };
    let said = String::from_utf8(succeed(&mut Command::new(program)).stdout).unwrap();
    let expected: Vec<String> = names
        .iter()
        .map(|name| match name.strip_prefix("DROPPED_") {
            Some(reason) => reason.to_lowercase().replace('_', "-"),
            None => name.to_lowercase(),
        })
        .collect();
    assert_eq!(said.lines().collect::<Vec<_>>(), expected);
}
