//! ICMP errors about datagrams that nobody took: every one reaches the program, but for floods of them, and nothing else changes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use crate::common::node::{Node, SOON};
use crate::common::strangers::nobody;
use crate::common::{self, Process, role, wait_until};
use dgiwarp::{Destination, ErrorEntry, ErrorReason, UdQp, WcStatus};
use nix::errno::Errno;
use nix::sys::resource::{UsageWho, getrusage};

/// The way to a port that nobody receives at, that port's name, and the socket that holds it.
fn to_nobody(node: &Node, address: IpAddr) -> (Destination, SocketAddr, UdpSocket) {
    let (socket, name) = nobody(address);
    (node.to_port(address, name.port()), name, socket)
}

/// Sends `count` messages, each of which succeeds: losing datagrams is not an error of a send.
fn send(node: &Node, to: &Destination, count: u64) {
    for wr_id in 0..count {
        node.send(wr_id, to, 0..64);
        let wc = node.wait();
        assert_eq!((wc.wr_id, wc.status), (wr_id, WcStatus::Success));
    }
}

/// Takes entries of the error queue until there were `count`.
fn entries(qp: &UdQp, count: usize) -> Vec<ErrorEntry> {
    let mut entries = Vec::new();
    wait_until(SOON, "all errors are told", || {
        entries.extend(std::iter::from_fn(|| qp.poll_error()));
        entries.len() >= count
    });
    entries
}

fn refused(peer: SocketAddr) -> ErrorEntry {
    ErrorEntry {
        peer,
        message: None,
        reason: ErrorReason::Network {
            errno: Errno::ECONNREFUSED as i32,
        },
    }
}

fn each_is_told(address: IpAddr) {
    let node = Node::new(64);
    let (first, second) = (to_nobody(&node, address), to_nobody(&node, address));
    // By turns over the socket that the QPN names, then to one of them often enough for a socket of its own.
    for _ in 0..8 {
        send(&node, &first.0, 1);
        send(&node, &second.0, 1);
    }
    send(&node, &second.0, 100);
    let told = entries(&node.qp, 116);
    let of = |peer| told.iter().filter(|entry| **entry == refused(peer)).count();
    assert_eq!((of(first.1), of(second.1), told.len()), (8, 108, 116));
}

#[test]
fn each_lost_datagram_is_told_with_its_peer() {
    each_is_told(Ipv4Addr::LOCALHOST.into());
}

#[test]
fn each_lost_datagram_is_told_with_its_peer_over_ipv6() {
    let name = here!("each_lost_datagram_is_told_with_its_peer_over_ipv6");
    if UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)).is_err() {
        return common::skip(name, "there is no IPv6");
    }
    each_is_told(Ipv6Addr::LOCALHOST.into());
}

#[test]
fn more_than_the_queue_holds_is_counted() {
    let node = Node::new(64);
    let (destination, nobody, _held) = to_nobody(&node, Ipv4Addr::LOCALHOST.into());
    send(&node, &destination, 1000);
    wait_until(SOON, "all errors are counted", || {
        node.qp.counters().errors_lost >= 1000 - 256
    });
    assert_eq!(node.qp.counters().errors_lost, 1000 - 256);
    assert_eq!(entries(&node.qp, 256), vec![refused(nobody); 256]);
    assert_eq!(node.qp.poll_error(), None);
    assert_eq!(node.qp.counters().send_errors, 0);
}

/// Errors about many peers, none of which has a socket of its own, are told up to a number, and again when the flood is over. All Sends succeed.
#[test]
fn a_flood_of_errors_is_told_in_part() {
    let node = Node::new(64);
    let peers: Vec<_> = (0..32)
        .map(|_| to_nobody(&node, Ipv4Addr::LOCALHOST.into()))
        .collect();
    let errors = |told: usize| told as u64 + node.qp.counters().errors_lost;
    let take = || std::iter::from_fn(|| node.qp.poll_error()).count();
    let (mut sent, mut told) = (0, 0);
    // Without a limit only errors of the last Sends are missing.
    wait_until(SOON, "many errors are not told", || {
        peers.iter().for_each(|peer| send(&node, &peer.0, 1));
        sent += peers.len() as u64;
        told += take();
        errors(told) + 1000 < sent
    });
    let before = errors(told);
    common::sleep(Duration::from_millis(600));
    wait_until(SOON, "errors are told again", || {
        send(&node, &peers[0].0, 1);
        told += take();
        errors(told) > before
    });
    assert_eq!(node.qp.counters().send_errors, 0);
}

/// Processor time that this process has used.
fn processor_time() -> Duration {
    let usage = getrusage(UsageWho::RUSAGE_SELF).unwrap();
    let of = |time: nix::sys::time::TimeVal| {
        Duration::from_micros(
            u64::try_from(nix::sys::time::TimeValLike::num_microseconds(&time)).unwrap(),
        )
    };
    of(usage.user_time()) + of(usage.system_time())
}

/// Errors make a socket ready. A thread that sleeps on it must read them, or it never sleeps again.
#[test]
fn errors_that_nobody_takes_keep_nobody_awake() {
    let name = here!("errors_that_nobody_takes_keep_nobody_awake");
    if role().is_none() {
        return Process::start(name, "sleeper", &[]).finish(SOON);
    }
    let node = Node::new(64);
    for round in 0..4 {
        let (destination, _, _held) = to_nobody(&node, Ipv4Addr::LOCALHOST.into());
        send(&node, &destination, 20);
        let before = processor_time();
        if round % 2 == 0 {
            // The background thread alone.
            common::sleep(Duration::from_millis(300));
        } else {
            assert_eq!(node.cq.wait(Duration::from_millis(300)), Ok(None));
        }
        let used = processor_time() - before;
        assert!(used < Duration::from_millis(60), "{used:?} of 300 ms");
    }
    assert_eq!(entries(&node.qp, 80).len(), 80);
}
