//! The library under valgrind: no error of memory, and nothing lost, in the examples in C, the test of all direct verbs, and Debian's pingpongs.
//!
//! The examples call nothing that the test of all direct verbs does not call, so all but two of them run with `--soak` only.
//!
//! Valgrind has no AVX-512 and reports that to programs that ask for the processor's features, as the CRC does.

use crate::common::linked::linked;
use crate::common::scene::{Family, Place, Scene};
use crate::common::session::{self, End};
use crate::common::{have, succeed};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Options: no output unless something is wrong, as memory definitely lost is. Possibly lost is the memory of a thread that is still there at the end, as the device's is
/// if a peer takes its time to close a connection. To read the names of inlined functions takes longer than the programs do.
macro_rules! valgrind {
    ($line:literal) => {
        concat!(
            "valgrind -q --leak-check=full --show-leak-kinds=definite --errors-for-leak-kinds=definite --error-exitcode=99 --read-inline-info=no ",
            $line
        )
    };
}

/// Valgrind makes a program some thirty times slower, on a machine that may have other work.
const LIMIT: Duration = Duration::from_secs(240);

fn have_valgrind(test: &str) -> bool {
    have(test, "valgrind", "valgrind")
}

/// Both ends of an example under valgrind, the second one in an environment.
fn example(
    name: &str,
    source: &str,
    environment: &'static [(&'static str, &'static str)],
    place: Place,
) {
    let test = format!("valgrind {name}");
    if !have_valgrind(&test) {
        return;
    }
    let Some((_directory, program)) = linked(name, source) else {
        return;
    };
    let Some(scene) = Scene::new(&test, place) else {
        return;
    };
    let ends = [
        End::server(valgrind!("{program} {port}")),
        End::client(valgrind!("{program} {port} {server}")).environment(environment),
    ];
    let ends = ends.map(|end| end.program(&program).limit(LIMIT));
    session::run(&scene, Family::V4, &ends);
}

#[test]
fn write_record() {
    let source = include_str!("../../../examples/c/write_record.c");
    example(
        "write_record",
        source,
        &[("DGIWARP_MTU", "1500")],
        Place::Here,
    );
}

#[test]
fn reliable() {
    let source = include_str!("../../../examples/c/reliable.c");
    example("reliable", source, &[], Place::Here);
}

#[test]
#[ignore = "long under valgrind: only with --soak"]
fn soak_read_deadline() {
    let source = include_str!("../../../examples/c/read_deadline.c");
    let slow = &[("DGIWARP_FAULT", "delay=50ms")];
    example("read_deadline", source, slow, Place::Here);
}

#[test]
#[ignore = "long under valgrind: only with --soak"]
fn soak_error_queue() {
    let source = include_str!("../../../examples/c/error_queue.c");
    example("error_queue", source, &[], Place::Here);
}

#[test]
#[ignore = "long under valgrind: only with --soak"]
fn soak_restricted_memory() {
    let source = include_str!("../../../examples/c/restricted_memory.c");
    example("restricted_memory", source, &[], Place::Loopback);
}

#[test]
#[ignore = "long under valgrind: only with --soak"]
fn soak_counters() {
    let source = include_str!("../../../examples/c/counters.c");
    example("counters", source, &[], Place::Here);
}

#[test]
#[ignore = "long under valgrind: only with --soak"]
fn soak_standard_api() {
    let source = include_str!("../../../examples/c/standard_api.c");
    example("standard_api", source, &[], Place::Here);
}

#[test]
fn every_direct_verb() {
    if !have_valgrind("valgrind direct") {
        return;
    }
    let Some((_directory, program)) = linked("direct", include_str!("../c/direct.c")) else {
        return;
    };
    let line = valgrind!("{program} 0").replace("{program}", program.to_str().unwrap());
    let mut words = line.split_ascii_whitespace();
    let output = succeed(Command::new(words.next().unwrap()).args(words));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

/// A pingpong of ibverbs-utils, run by the wrapper.
fn pingpong(program: &str) {
    let test = format!("valgrind {program}");
    if !have_valgrind(&test) || !have(&test, program, "ibverbs-utils") {
        return;
    }
    let Some(scene) = Scene::new(&test, Place::Here) else {
        return;
    };
    let says = &["30 iters in "];
    let ends = [
        End::server(valgrind!("{program} -n 30 -p {port}"))
            .says(says)
            .polls(),
        End::client(valgrind!("{program} -n 30 -p {port} {server}")).says(says),
    ];
    let ends = ends.map(|end| end.program(Path::new(program)).limit(LIMIT));
    session::run(&scene, Family::V4, &ends);
}

#[test]
fn reliable_pingpong() {
    pingpong("ibv_rc_pingpong");
}

#[test]
#[ignore = "long under valgrind: only with --soak"]
fn soak_datagram_pingpong() {
    pingpong("ibv_ud_pingpong");
}

#[test]
fn a_mistake_is_found() {
    const SOURCE: &str = r"
#include <stdlib.h>
#include <infiniband/verbs.h>
int main(void)
{
    struct ibv_device **list = ibv_get_device_list(NULL);
    struct ibv_context *context = ibv_open_device(list[0]);
    context = NULL;
    return context != NULL;
}
";
    if !have_valgrind("valgrind mistake") {
        return;
    }
    let Some((_directory, program)) = linked("mistake", SOURCE) else {
        return;
    };
    let line = valgrind!("{program}").replace("{program}", program.to_str().unwrap());
    let mut words = line.split_ascii_whitespace();
    let mut command = Command::new(words.next().unwrap());
    let output = command.args(words).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(99), "{said}");
    assert!(said.contains("ibv_get_device_list"), "{said}");
}
