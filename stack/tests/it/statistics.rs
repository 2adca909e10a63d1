//! Counters of a device, and the file for them.

use crate::common::node::Node;
use dgiwarp::{Config, Rnic};

fn number(line: &str, name: &str) -> u64 {
    let (_, rest) = line.split_once(&format!("\"{name}\":")).unwrap();
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap()
}

/// One Send from one queue pair of the device to another.
fn send(rnic: &Rnic) -> (Node, Node) {
    let node = || {
        let cq = rnic.create_cq(64).unwrap();
        Node::on(rnic.clone(), cq, 64, |_| ())
    };
    let (source, target) = (node(), node());
    target.post_recv(1, 0..64);
    source.send(1, &source.to(&target.qp), 0..64);
    assert_eq!(target.wait().byte_len, 64);
    (source, target)
}

#[test]
fn the_sums_of_a_device_outlive_its_queue_pairs() {
    let rnic = Rnic::open(Config::default()).unwrap();
    for count in 1..=3 {
        let live = send(&rnic);
        let counters = rnic.counters();
        assert_eq!(
            (counters.segments_sent, counters.segments_received),
            (count, count)
        );
        drop(live);
        assert_eq!(rnic.counters(), counters);
    }
}

#[test]
fn a_file_gets_a_line_for_each_queue_pair_and_one_for_the_device() {
    let name = format!("statistics-{}", std::process::id());
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_file(&path);
    let mut config = Config::default();
    config.stats = Some(path.clone());
    let rnic = Rnic::open(config).unwrap();
    let (source, target) = send(&rnic);
    let qpns = [source.qp.qpn(), target.qp.qpn()].map(u64::from);
    rnic.write_statistics();
    let read = || -> Vec<String> {
        let text = std::fs::read_to_string(&path).unwrap();
        text.lines().map(str::to_owned).collect()
    };
    let asked = read();
    assert_eq!(asked.len(), 3);
    assert_eq!(
        (
            number(&asked[0], "queue_pair"),
            number(&asked[0], "segments_sent")
        ),
        (qpns[0], 1)
    );
    assert_eq!(
        (
            number(&asked[1], "queue_pair"),
            number(&asked[1], "segments_sent")
        ),
        (qpns[1], 0)
    );
    drop(source);
    assert_eq!(read()[3], asked[0], "at its end");
    drop(target);
    assert!(rnic.downgrade().upgrade().is_some());
    let weak = rnic.downgrade();
    drop(rnic);
    assert!(weak.upgrade().is_none());
    let lines = read();
    assert_eq!(lines.len(), 6);
    assert_eq!(lines[5], asked[2], "the sums");
    assert_eq!(
        (
            number(&lines[5], "queue_pairs"),
            number(&lines[5], "segments_sent")
        ),
        (2, 1)
    );
    std::fs::remove_file(path).unwrap();
}
