//! Ends in network namespaces of their own, as containers have them: a directory that both have leads them to shared memory.

use std::path::Path;
use std::sync::mpsc;

use super::limits::{decided, refusals};
use super::*;
use crate::common::cable::on_two_hosts;
use crate::common::{inside, wait_until};

const RUN: &str = "ip link set lo up; exec \"$PROGRAM\" \"$TEST\" --exact --nocapture";
/// Address of the other container.
const OTHER: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 2);
const THIS: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 1);

fn with_directory(directory: Option<&Path>) -> Config {
    let mut config = at_once(SameHostMode::Ring);
    config.host_dir = directory.map(Path::to_owned);
    config
}

/// Exchanges messages over a connection between two containers. Returns the counters of this end and of the other one.
fn exchange_between(directories: [Option<&Path>; 2], waits: [Waits; 2]) -> [String; 2] {
    let [ours, theirs] = directories.map(with_directory);
    let (tell, told) = mpsc::channel();
    let (go_on, wait) = mpsc::channel();
    let (count, counted) = mpsc::channel();
    let other = move || {
        let end = End::with(theirs);
        let listener = RcListener::bind((OTHER, 0).into(), MpaConfig::default()).unwrap();
        tell.send(listener.local_addr()).unwrap();
        let request = listener.accept(SOON).unwrap().expect("a request");
        request.accept(&end.qp, DEPTHS, b"").unwrap();
        end.exchange(200, waits[1]);
        wait.recv_timeout(SOON).unwrap();
        count.send(end.rnic.counters().to_string()).unwrap();
    };
    let mut counters = None;
    on_two_hosts(other, || {
        let end = End::with(ours);
        let to = told.recv_timeout(SOON).unwrap();
        end.qp.connect(to, &MpaConfig::default(), b"").unwrap();
        end.exchange(200, waits[0]);
        let ours = if directories.iter().all(Option::is_some) {
            decided(&end)
        } else {
            end.rnic.counters().to_string()
        };
        go_on.send(()).unwrap();
        counters = Some([ours, counted.recv_timeout(SOON).unwrap()]);
    });
    counters.unwrap()
}

fn is_empty(directory: &Path) -> bool {
    std::fs::read_dir(directory).unwrap().next().is_none()
}

#[test]
fn connections_of_containers_share_memory_by_a_directory() {
    if !inside(
        here!("connections_of_containers_share_memory_by_a_directory"),
        RUN,
    ) {
        return;
    }
    let directory = tempfile::tempdir_in("/tmp").unwrap();
    let both = [Some(directory.path()); 2];
    for waits in [
        [Waits::Polling, Waits::Polling],
        [Waits::Sleeping, Waits::Polling],
        [Waits::Sleeping, Waits::Sleeping],
    ] {
        for counters in exchange_between(both, waits) {
            assert!(
                counters.contains("lane_octets_received") && !counters.contains("lane_refused"),
                "{waits:?}: {counters}"
            );
        }
        assert!(is_empty(directory.path()));
    }
}

/// Without a directory, with one at one end, or with two, connections stay on TCP; nobody waits longer for that.
#[test]
fn containers_without_a_common_directory_use_the_network() {
    if !inside(
        here!("containers_without_a_common_directory_use_the_network"),
        RUN,
    ) {
        return;
    }
    let [first, second] = [(); 2].map(|()| tempfile::tempdir_in("/tmp").unwrap());
    let [first, second] = [first.path(), second.path()];
    for (directories, reasons) in [
        ([None, None], None),
        ([Some(first), None], None),
        ([None, Some(first)], None),
        (
            [Some(first), Some(second)],
            Some(["lane_refused_late 1", "lane_refused_unreachable 1"]),
        ),
    ] {
        let counters = exchange_between(directories, [Waits::Polling, Waits::Sleeping]);
        for (at, counters) in counters.iter().enumerate() {
            assert!(!counters.contains("lane_octets"), "{counters}");
            match reasons {
                Some(reasons) => assert!(counters.contains(reasons[at]), "{counters}"),
                None => assert!(!counters.contains("lane_refused"), "{counters}"),
            }
        }
    }
    assert!(is_empty(first) && is_empty(second));
}

/// Also with a peer that has none, and then by sockets.
#[test]
fn datagrams_of_containers_share_memory_by_a_directory() {
    const MESSAGES: usize = 400;
    if !inside(
        here!("datagrams_of_containers_share_memory_by_a_directory"),
        RUN,
    ) {
        return;
    }
    let directory = tempfile::tempdir_in("/tmp").unwrap();
    let common = Some(directory.path());
    for (directories, shared) in [([common; 2], true), ([common, None], false)] {
        let [ours, theirs] = directories.map(with_directory);
        let (tell, told) = mpsc::channel();
        let (answer, answered) = mpsc::channel();
        let other = move || {
            let end = datagrams::End::new(theirs, Waits::Sleeping);
            tell.send(end.node.qp.qpn()).unwrap();
            let to = answered.recv_timeout(SOON).unwrap();
            let to = end.node.to_port(THIS.into(), to);
            for number in 0..MESSAGES {
                end.take(number);
                end.send(number, &to);
            }
            answered.recv_timeout(SOON).unwrap();
            assert_eq!(end.lane_octets() > (0, 0), shared);
        };
        on_two_hosts(other, || {
            let end = datagrams::End::new(ours, Waits::Polling);
            let to = told.recv_timeout(SOON).unwrap();
            answer.send(end.node.qp.qpn()).unwrap();
            let to = end.node.to_port(OTHER.into(), to);
            for number in 0..MESSAGES {
                end.send(number, &to);
                end.take(number);
            }
            let (sent, received) = end.lane_octets();
            assert_eq!((sent > 0, received > 0), (shared, shared));
            answer.send(0).unwrap();
            let late = || refusals(&end.node.qp.counters()) > 0;
            if !shared {
                wait_until(SOON, "an offer that does not come", late);
            }
        });
        assert!(is_empty(directory.path()));
    }
}
