//! Ends of connections while both lanes are full: messages of the peer wait for receives, and messages to it for room.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use dgiwarp::{Completion, MpaConfig, RcListener, RcOptions, SameHostMode, WcStatus};
use nix::sys::signal::Signal;

use super::{DEPTHS, End, RECEIVES, SOON, Waits, at_once, send};
use crate::common::{self, Process, now, role};

/// Messages that each end exchanges first, so that the connection moves.
const BEFORE: usize = 200;
/// Messages of the peer beyond the receives.
const MORE: usize = 4;
/// Messages that are posted at once.
const DEPTH: usize = 100;
/// Number of a message of 64 octets.
const SHORT: usize = 1;
/// Time without a completion after which the lane to the peer is full.
const QUIET: Duration = Duration::from_millis(200);

/// The peer process: exchanges messages, sends more than there are receives, and waits to be killed.
fn peer() {
    let end = End::with(at_once(SameHostMode::Ring));
    let listener = RcListener::bind((Ipv4Addr::LOCALHOST, 0).into(), MpaConfig::default()).unwrap();
    println!("at {}", listener.local_addr());
    let request = listener.accept(SOON).unwrap().expect("a request");
    request.accept(&end.qp, DEPTHS, b"").unwrap();
    end.exchange(BEFORE, Waits::Polling);
    println!("sends {}", end.lane_octets().0);
    (0..RECEIVES + MORE).for_each(|_| end.send(SHORT));
    // While it polls nobody rings: octets that are not read would make its death an error of TCP instead of an end.
    let until = now() + SOON;
    while now() < until {
        end.cq.poll_one().unwrap();
    }
}

/// Reason for which the connection ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reason {
    /// The peer is killed.
    Death,
    /// A message has waited for a receive for too long.
    Timeout,
}

/// Fills both lanes, lets the connection end, and waits for all that is posted. Returns whether there were lanes.
fn end(test: &str, reason: Reason, waits: Waits) -> bool {
    let mut process = Process::start(test, "peer", &[]);
    let to: SocketAddr = process.tells("at ", SOON).parse().unwrap();
    let options = RcOptions {
        completion: Completion::Local,
        // Longer than it takes to fill the lanes.
        receive_timeout: (reason == Reason::Timeout).then_some(SOON / 12),
        ..RcOptions::default()
    };
    let end = End::with_options(at_once(SameHostMode::Ring), options);
    end.qp.connect(to, &MpaConfig::default(), b"").unwrap();
    end.exchange(BEFORE, Waits::Polling);
    let moved = process.tells("sends ", SOON) != "0" && end.lane_octets().0 > 0;
    for _ in 0..RECEIVES {
        assert!(end.next(waits).wr_id < 1000, "a receive");
    }
    // No receive is left: its other messages wait.
    common::sleep(Duration::from_millis(100));
    send(&process, Signal::SIGSTOP);
    let (mut left, mut last) = (0, now());
    while now() < last + QUIET {
        (left..DEPTH).for_each(|_| end.send(SHORT));
        left = DEPTH;
        while let Some(wc) = end.cq.poll_one().unwrap() {
            assert_eq!((wc.wr_id, wc.status), (1000, WcStatus::Success));
            (left, last) = (left - 1, now());
        }
    }
    if reason == Reason::Death {
        process.kill();
    }
    let ends = now();
    while left > 0 {
        let wc = match waits {
            Waits::Sleeping => end.cq.wait(SOON).unwrap(),
            Waits::Polling => end.cq.poll_one().unwrap(),
        };
        assert!(now() < ends + SOON / 3, "{left} are left");
        if let Some(wc) = wc {
            assert_eq!(wc.wr_id, 1000);
            assert_ne!(wc.status, WcStatus::Success);
            left -= 1;
        }
    }
    moved
}

/// As [`end`], until the stream has moved: on a busy machine the ends may meet later.
fn end_behind_lanes(test: &str, reason: Reason, waits: Waits) {
    let moved = (0..10).any(|_| end(test, reason, waits));
    assert!(moved, "the stream never moved");
}

#[test]
fn a_peer_that_is_killed_behind_full_lanes_ends_all() {
    if role().is_some() {
        return peer();
    }
    let test = here!("a_peer_that_is_killed_behind_full_lanes_ends_all");
    for waits in [Waits::Polling, Waits::Sleeping] {
        end_behind_lanes(test, Reason::Death, waits);
    }
}

#[test]
fn the_receive_timeout_holds_behind_full_lanes() {
    if role().is_some() {
        return peer();
    }
    let test = here!("the_receive_timeout_holds_behind_full_lanes");
    end_behind_lanes(test, Reason::Timeout, Waits::Polling);
}
