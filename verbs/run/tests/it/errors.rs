//! Failures around Debian's programs, and their messages: within a few seconds, never a crash, never a
//! program that waits for ever.

use crate::common::have;
use crate::common::scene::{Family, Place, Scene};
use crate::common::session::{self, End, Finish, Ready};
use std::time::Duration;

/// Time that the error of a program may take on a busy machine; five seconds of it are the program's own waiting.
const SOON: Duration = Duration::from_secs(20);

/// The programs' packages and the scene, if both are there.
fn scene(test: &str, place: Place) -> Option<Scene> {
    let there =
        have(test, "ibv_rc_pingpong", "ibverbs-utils") && have(test, "rping", "rdmacm-utils");
    there.then(|| Scene::new(test, place)).flatten()
}

/// A client alone, which fails soon and prints this on standard error.
const fn fails(line: &'static str, complains: &'static [&'static str]) -> End {
    End::client(line)
        .finish(Finish::Failure)
        .complains(complains)
        .limit(SOON)
}

/// A client alone, which ends soon.
const fn stops(line: &'static str) -> End {
    End::client(line)
        .finish(Finish::Exit)
        .complains(&[])
        .limit(SOON)
}

#[test]
fn nobody_listens() {
    let Some(scene) = scene("nobody_listens", Place::Loopback) else {
        return;
    };
    for end in [
        fails(
            "ibv_rc_pingpong -g 0 -p {port} {server}",
            &["Couldn't connect to"],
        ),
        // Status 8 is InfiniBand's "invalid service ID".
        fails(
            "rping -c -a {server} -p {port} -C 1",
            &["RDMA_CM_EVENT_REJECTED, error 8"],
        ),
        // Their status does not show it.
        stops("ucmatose -s {server} -p {port}"),
        stops("rdma_client -s {server} -p {port}"),
    ] {
        session::run(&scene, Family::V4, &[end]);
    }
}

/// Nobody has the address, there is no route to it, it is not ours.
#[test]
fn wrong_addresses() {
    let Some(scene) = scene("wrong_addresses", Place::Apart) else {
        return;
    };
    for end in [
        fails(
            "rping -c -a 10.99.0.77 -p {port} -C 1",
            &["RDMA_CM_EVENT_UNREACHABLE"],
        ),
        fails(
            "rping -c -a fd99::77 -p {port} -C 1",
            &["RDMA_CM_EVENT_UNREACHABLE"],
        ),
        fails(
            "rping -c -a 192.0.2.1 -p {port} -C 1",
            &["RDMA_CM_EVENT_ADDR_ERROR, error -101"],
        ),
        fails(
            "rping -s -a {server} -p {port} -C 1",
            &["rdma_bind_addr: Cannot assign requested address"],
        ),
        fails(
            "ibv_rc_pingpong -g 99 -p {port} {server}",
            &["can't read sgid of index 99"],
        ),
    ] {
        session::run(&scene, Family::V4, &[end]);
    }
}

/// The second process gets an error, the first one goes on.
#[test]
fn two_processes_on_one_port() {
    let Some(scene) = scene("two_processes_on_one_port", Place::Loopback) else {
        return;
    };
    const PINGPONG: &[End] = &[
        End::server("ibv_rc_pingpong -g 0 -p {port}").says(&["1000 iters"]),
        fails(
            "ibv_rc_pingpong -g 0 -p {port}",
            &["Couldn't listen to port"],
        )
        .ready(Ready::Ended),
        End::client("ibv_rc_pingpong -g 0 -p {port} {server}").says(&["1000 iters"]),
    ];
    const RPING: &[End] = &[
        End::server("rping -s -a {server} -p {port} -C 3").complains(&[]),
        fails(
            "rping -s -a {server} -p {port} -C 3",
            &["Address already in use"],
        )
        .ready(Ready::Ended),
        End::client("rping -c -a {server} -p {port} -C 3 -V").complains(&[]),
    ];
    for ends in [PINGPONG, RPING] {
        session::run(&scene, Family::V4, ends);
    }
}

/// More than the device has: the error of creating it, not of using it.
#[test]
fn queues_too_large() {
    let Some(scene) = scene("queues_too_large", Place::Loopback) else {
        return;
    };
    for end in [
        fails("ibv_rc_pingpong -g 0 -r 100000000", &["Couldn't create CQ"]),
        fails("ibv_rc_pingpong -g 0 -r 1000000", &["Couldn't create QP"]),
    ] {
        session::run(&scene, Family::V4, &[end]);
    }
}

/// With any number of descriptors a program works or reports what it could not have.
#[test]
fn descriptors_run_out() {
    let Some(scene) = scene("descriptors_run_out", Place::Loopback) else {
        return;
    };
    for (first, last) in [
        (
            "ibv_rc_pingpong -g 0 -p {port}",
            "ibv_rc_pingpong -g 0 -p {port} {server}",
        ),
        (
            "ibv_ud_pingpong -g 0 -p {port}",
            "ibv_ud_pingpong -g 0 -p {port} {server}",
        ),
        (
            "rping -s -a {server} -p {port} -C 3",
            "rping -c -a {server} -p {port} -C 3",
        ),
    ] {
        // From too few for the program itself to enough for all of it, whatever else the process was born with.
        for descriptors in 3..26 {
            // A test's few lines may as well stay.
            let limited = |line: &str| -> &'static str {
                format!("prlimit --nofile={descriptors} {line}").leak()
            };
            let server = End::server(first).finish(Finish::Stopped).complains(&[]);
            // rping's client joins a thread that nothing ends when its rdma_connect has failed.
            let client = End::client(limited(last))
                .finish(Finish::ExitOrComplaint)
                .complains(&[])
                .limit(SOON);
            session::run(&scene, Family::V4, &[server, client]);
            let server = End::server(limited(first))
                .ready(Ready::Started)
                .finish(Finish::Stopped)
                .complains(&[]);
            let client = End::client(last)
                .finish(Finish::Exit)
                .complains(&[])
                .limit(SOON);
            session::run(&scene, Family::V4, &[server, client]);
        }
    }
}

/// Where descriptors run out, the client fails, and a server that can goes on waiting for more.
#[test]
fn descriptors_run_out_amid_connections() {
    // A server's own call fails, or its listener has no descriptor for a connection: it then waits for those left.
    let ends = |server, client| {
        [
            End::server(server)
                .complains(&[])
                .finish(Finish::Stopped)
                .limit(SOON),
            End::client(client)
                .complains(&[])
                .finish(Finish::Failure)
                .limit(SOON),
        ]
    };
    let test = "descriptors_run_out_amid_connections";
    let Some(scene) = scene(test, Place::Loopback) else {
        return;
    };
    for ends in [
        ends(
            "ucmatose -b {server} -p {port} -c 60",
            "prlimit --nofile=40 ucmatose -s {server} -p {port} -c 60",
        ),
        ends(
            "prlimit --nofile=40 ucmatose -b {server} -p {port} -c 60",
            "ucmatose -s {server} -p {port} -c 60",
        ),
    ] {
        session::run(&scene, Family::V4, &ends);
    }
}

/// Each end notices the other's sudden death, in the middle of the work and in the middle of connecting.
#[test]
fn a_killed_rping() {
    const SERVER: End = End::server("rping -s -a {server} -p {port} -C 100000000").complains(&[]);
    const CLIENT: End = End::client("rping -c -a {server} -p {port} -C 100000000").complains(&[]);
    let Some(scene) = scene("a_killed_rping", Place::Apart) else {
        return;
    };
    for milliseconds in [0, 10, 30, 100, 500] {
        let killed = Finish::Killed(Duration::from_millis(milliseconds));
        // rping's own status is 0 or not, depending on which of its threads sees it first.
        let ends = |end: End| end.finish(Finish::Exit).limit(SOON);
        session::run(&scene, Family::V4, &[SERVER.finish(killed), ends(CLIENT)]);
        // A client that was never there leaves the server waiting for one.
        let server = SERVER.finish(Finish::Stopped);
        session::run(&scene, Family::V4, &[server, CLIENT.finish(killed)]);
        // A program that has printed something was there.
        let client = End::client("rping -c -a {server} -p {port} -C 100000000 -v")
            .ready(Ready::Says("ping data"))
            .complains(&[]);
        session::run(&scene, Family::V4, &[ends(SERVER), client.finish(killed)]);
    }
}
