//! The link to the peer's host goes down: nothing comes any more, not even an end.

use std::env;
use std::net::IpAddr;
use std::process::Command;
use std::time::Duration;

use dgiwarp::{Config, MpaConfig, RcEnd, Rnic, WcStatus};
use xtask::debian::find_program;
use xtask::lab::{Config as LabConfig, INTERFACE, Lab, Side};
use xtask::skips;

use super::end::{End, LIMIT};
use super::{ROOM, Remote, peer, post_everything};
use crate::common::{Process, given, now, role, sleep};

const NAME: &str = here!("a_vanished_host_ends_everything_that_was_posted");
/// Connections of the witness.
const COUNT: usize = 4;

#[test]
fn a_vanished_host_ends_everything_that_was_posted() {
    match role().as_deref() {
        Some("peer") => {
            let IpAddr::V4(address) = Side::Client.address() else {
                unreachable!("an IPv4 address");
            };
            return peer(address);
        }
        Some(_) => return witness(),
        None => {}
    }
    let Some(lab) = skips::made(NAME, Lab::new(&LabConfig::default())) else {
        return;
    };
    let program = env::current_exe().unwrap();
    let at = |side| lab.command(side, &program);
    let variables = [("CONNECTIONS", COUNT.to_string())];
    let mut peer = Process::start_as(at(Side::Client), NAME, "peer", &variables);
    let told = peer.tells("at ", LIMIT * 4);
    let variables = [("PEER", told)];
    let witness = Process::start_as(at(Side::Server), NAME, "witness", &variables);
    witness.finish(LIMIT * 6);
}

/// Four connections at once, each lost in another state.
fn witness() {
    let remote = Remote::parse(&given("PEER"));
    let mpa = MpaConfig::default();
    let rnic = Rnic::open(Config::default()).unwrap();
    let [busy, reading, silent, late] = [(); COUNT].map(|()| End::on(&rnic, ROOM));
    for end in [&reading, &silent, &late] {
        for wr_id in 0..2 {
            end.post_recv(wr_id);
        }
        end.qp.connect(remote.at, &mpa, b"").unwrap();
        // So that it works, and is not in the middle of something.
        end.post(50, remote.read(), 64);
        let wc = end.cq.wait(LIMIT).unwrap().expect("the Read completes");
        assert_eq!(wc.status, WcStatus::Success);
    }
    let posted = post_everything(&busy, remote);
    for wr_id in 100..104 {
        reading.post(wr_id, remote.read(), ROOM);
    }
    sleep(Duration::from_millis(5));
    set_link_down();
    let deadline = now() + LIMIT;
    // A work request that is posted to a peer that is gone already is lost like the rest. All before it may have been quicker than the link's end.
    busy.post(200, remote.write(), 10);
    reading.post(200, remote.read(), 10);
    late.post(100, remote.write(), 10);
    late.post(101, remote.read(), 10);
    late.post(102, remote.atomic(), 8);
    busy.all(posted + 1, deadline).check_lost();
    reading.all(7, deadline).check_lost();
    silent.all(2, deadline).check_all_flushed();
    late.all(5, deadline).check_lost();
    for end in [&busy, &reading, &silent, &late] {
        assert!(
            matches!(end.qp.end(), Some(RcEnd::Mpa(_))),
            "{:?}",
            end.qp.end()
        );
    }
    let left = deadline.saturating_duration_since(now());
    println!("over {left:?} before its time");
}

fn set_link_down() {
    let ip = find_program("ip").expect("the lab was made with it");
    let status = Command::new(ip)
        .args(["link", "set", INTERFACE, "down"])
        .status();
    assert!(status.unwrap().success());
}
