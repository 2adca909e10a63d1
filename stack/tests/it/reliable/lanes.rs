//! Reliable datagrams within this host through shared memory.

use std::thread;
use std::time::Duration;

use dgiwarp::{Config, SameHostMode, WcOpcode, WcStatus};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::end::{End, ROOM, octets_of};
use super::{exchange, length};
use crate::common::node::SOON;
use crate::common::{Process, now, role};

fn at_once() -> Config {
    let mut config = Config::default();
    config.same_host = SameHostMode::Ring;
    config.same_host_after = 0;
    config
}

/// Octets sent and received through shared memory.
fn lane_octets(end: &End) -> (u64, u64) {
    let counters = end.qp.counters();
    (counters.lane_octets_sent, counters.lane_octets_received)
}

/// Many messages of many peers, more of them than lanes have room for.
#[test]
fn messages_of_many_peers_go_through_memory_once_and_in_order() {
    let ends: Vec<_> = (0..4).map(|_| End::new(at_once(), 16)).collect();
    exchange(&ends);
    for end in &ends {
        let (sent, received) = lane_octets(end);
        assert!(sent > 0 && received > 0, "{sent} {received}");
        assert_eq!(end.qp.counters().dropped_in_all(), 0);
    }
}

/// An end that is reset gives its lanes up, and has new ones with the peers that it meets again.
#[test]
fn ends_that_are_reset_meet_again() {
    let ends: Vec<_> = (0..3).map(|_| End::new(at_once(), 16)).collect();
    let mut before = [0; 3];
    for round in 0..8 {
        exchange(&ends);
        for (end, before) in ends.iter().zip(&mut before) {
            let (sent, _) = lane_octets(end);
            assert!(sent > *before, "round {round}: {sent}");
            *before = sent;
        }
        let again = &ends[round % ends.len()];
        again.qp.reset();
        (0..16).for_each(|slot| again.post_recv(slot));
        // The others learn of it before they send again: what was under way would fail.
        let others = || ends.iter().filter(|end| !std::ptr::eq(*end, again));
        let until = now() + SOON;
        while others().any(|end| end.qp.peers() == ends.len() - 1) {
            assert!(
                now() < until,
                "round {round}: an association that does not end"
            );
            others().for_each(|end| assert!(end.poll().is_none()));
        }
    }
}

/// One message at a time, whoever sleeps.
#[test]
fn messages_go_through_memory_however_their_ends_wait() {
    const MESSAGES: usize = 300;
    for sleeps in [[false, false], [false, true], [true, false], [true, true]] {
        let ends = [(); 2].map(|()| End::new(at_once(), 4));
        let next = |end: &End, sleeps: bool| loop {
            let wc = if sleeps {
                end.cq.wait(SOON).unwrap().expect("a completion")
            } else {
                end.wait()
            };
            assert_eq!(wc.status, WcStatus::Success, "{wc:?}");
            if wc.opcode != WcOpcode::Send {
                break wc;
            }
        };
        let take = |end: &End, number: usize, sleeps: bool| {
            let wc = next(end, sleeps);
            assert_eq!(end.received(&wc), octets_of(number, length(number)));
            end.post_recv(wc.wr_id);
        };
        let [a, b] = &ends;
        thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0..MESSAGES {
                    take(b, number, sleeps[1]);
                    b.post(number, a.qp.qpn(), length(number)).unwrap();
                }
            });
            for number in 0..MESSAGES {
                a.post(number, b.qp.qpn(), length(number)).unwrap();
                take(a, number, sleeps[0]);
            }
        });
        let (sent, received) = lane_octets(a);
        assert!(
            sent > 100 * ROOM as u64 / 8 && received > 0,
            "{sleeps:?}: {sent} {received}"
        );
    }
}

/// A peer in a process of its own, which takes everything.
fn victim() {
    let end = End::new(at_once(), 8);
    println!("port {}", end.qp.qpn());
    // It answers each message, so that both ends have lanes.
    for number in 0.. {
        if let Some(wc) = end.cq.wait(SOON * 6).unwrap() {
            if wc.opcode != WcOpcode::Recv {
                continue;
            }
            let from = wc.source.unwrap().port();
            end.post_recv(wc.wr_id);
            let _full = end.post(number % 200, from, 8);
        }
    }
}

/// A peer that has lanes, which have carried messages.
fn start_victim(test: &str, sender: &End) -> (Process, u16) {
    let mut process = Process::start(test, "victim", &[]);
    let port = process.tells("port ", SOON).parse().unwrap();
    let deadline = now() + SOON;
    for number in 0.. {
        assert!(now() < deadline, "no lanes");
        sender.post(number % 200, port, 5000).unwrap();
        let mut done = 0;
        while done < 2 {
            let wc = sender.wait();
            assert_eq!(wc.status, WcStatus::Success);
            if wc.opcode == WcOpcode::Recv {
                sender.post_recv(wc.wr_id);
            }
            done += 1;
        }
        let (sent, received) = lane_octets(sender);
        if sent > 50_000 && received > 0 {
            break;
        }
    }
    (process, port)
}

/// A peer that is killed while messages are in lanes fails them as one without lanes, and others go on.
#[test]
fn a_killed_peer_fails_what_is_in_its_lane() {
    if role().is_some() {
        return victim();
    }
    let sender = End::new(at_once(), 8);
    let other = End::new(at_once(), 16);
    let test = here!("a_killed_peer_fails_what_is_in_its_lane");
    let (victim, port) = start_victim(test, &sender);
    for number in 0..20 {
        sender.post(number, port, ROOM).unwrap();
    }
    drop(victim);
    let killed = now();
    let (mut ended, mut others) = (0, 0);
    sender.post(100, other.qp.qpn(), 500).unwrap();
    while ended < 20 || others < 20 {
        assert!(now() < killed + SOON, "{ended} {others}");
        while let Some(wc) = other.poll() {
            assert_eq!(wc.status, WcStatus::Success);
            other.post_recv(wc.wr_id);
        }
        let Some(wc) = sender.poll() else { continue };
        if wc.opcode == WcOpcode::Recv {
            sender.post_recv(wc.wr_id);
        } else if End::posted(wc.wr_id).1 == port {
            ended += 1;
        } else {
            assert_eq!(wc.status, WcStatus::Success);
            others += 1;
            sender.post(100, other.qp.qpn(), 500).unwrap();
        }
    }
}

fn signal(process: &Process, signal: Signal) {
    let pid = i32::try_from(process.id()).unwrap();
    kill(Pid::from_raw(pid), signal).unwrap();
}

/// A peer that is stopped takes what waits in its lane, and what was sent again by the socket, once and in order when it goes on.
#[test]
fn a_stopped_peer_takes_everything_later() {
    if role().is_some() {
        return victim();
    }
    let sender = End::new(at_once(), 64);
    let test = here!("a_stopped_peer_takes_everything_later");
    let (victim, port) = start_victim(test, &sender);
    for pause in [50, 500] {
        signal(&victim, Signal::SIGSTOP);
        for number in 0..100 {
            sender.post(number, port, ROOM).unwrap();
        }
        let until = now() + Duration::from_millis(pause);
        let begun = now();
        let (mut stopped, mut done) = (true, 0);
        while done < 100 {
            assert!(now() < begun + SOON, "{done}");
            if stopped && now() >= until {
                signal(&victim, Signal::SIGCONT);
                stopped = false;
            }
            let Some(wc) = sender.poll() else { continue };
            assert_eq!(wc.status, WcStatus::Success);
            if wc.opcode == WcOpcode::Recv {
                sender.post_recv(wc.wr_id);
            } else {
                assert_eq!(End::posted(wc.wr_id).0, done, "in order");
                done += 1;
            }
        }
    }
}
