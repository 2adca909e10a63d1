//! Records of Write-Records: how they close, their contents, and overruns when nobody takes them.
//!
//! Incomplete messages come from a socket of the test, in datagrams made after the specification and by no code of dgiwarp.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::ops::Range;
use std::time::Duration;

use crate::common::node::{Node, SOON};
use crate::common::strangers::dropped;
use crate::common::{crc32c, now, wait_until};
use dgiwarp::{AsyncEvent, Config, DropReason, RecordCompletions, WcOpcode, WcStatus};

/// A source of Write-Records that decides itself which segments it sends.
struct Source<'a> {
    socket: UdpSocket,
    target: &'a Node,
    epoch: u32,
}

impl<'a> Source<'a> {
    fn new(target: &'a Node) -> Self {
        Self {
            socket: UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap(),
            target,
            epoch: 0x1234_5678,
        }
    }

    fn address(&self) -> SocketAddr {
        self.socket.local_addr().unwrap()
    }

    /// Sends `payload` at `offset` of message `number`, which has `length` octets and goes to the start of the memory.
    fn send(&self, number: u32, length: u32, offset: u32, payload: &[u8]) {
        let end = offset + u32::try_from(payload.len()).unwrap();
        let mut datagram = vec![if end == length { 0xc1 } else { 0x81 }, 0x4c];
        datagram.extend(self.target.mr.rkey().to_be_bytes());
        datagram.extend((self.target.mr.addr() + u64::from(offset)).to_be_bytes());
        datagram.extend([0x01, 0, 0, 0]);
        for word in [self.epoch, number, length, offset, !number] {
            datagram.extend(word.to_be_bytes());
        }
        datagram.extend(payload);
        datagram.extend(crc32c(&datagram).to_le_bytes());
        let address = (Ipv4Addr::LOCALHOST, self.target.qp.qpn());
        self.socket.send_to(&datagram, address).unwrap();
    }
}

fn target(timeout: Duration, record_slots: usize) -> Node {
    let mut config = Config::default();
    config.record_timeout = timeout;
    Node::with(4096, config, |attr| attr.record_slots = record_slots)
}

#[test]
fn the_check_value_of_the_crc() {
    assert_eq!(crc32c(b"123456789"), 0xe306_9283);
}

#[test]
fn a_silent_message_closes_after_the_record_timeout() {
    let timeout = Duration::from_millis(200);
    let target = target(timeout, 4);
    let source = Source::new(&target);
    let began = now();
    source.send(7, 1000, 100, &[1; 50]);
    source.send(7, 1000, 950, &[2; 50]);
    let wc = target.wait();
    let took = now() - began;
    // The clock of the data path ticks every few milliseconds.
    assert!(took >= timeout - Duration::from_millis(20), "{took:?}");
    assert_eq!(
        (wc.opcode, wc.status, wc.byte_len),
        (WcOpcode::WriteRecord, WcStatus::Success, 100)
    );
    assert_eq!(
        (wc.source, wc.immediate),
        (Some(source.address()), Some(!7))
    );
    let record = target.qp.record(wc.record()).unwrap();
    assert_eq!(record.ranges, [(100, 150), (950, 1000)]);
    assert_eq!(
        (record.length, record.valid, record.remote_addr),
        (1000, 100, target.mr.addr())
    );
    assert_eq!(record.bitmap(50), [0b0000_0100, 0, 0b0000_1000]);
    // Too late, even if it is the rest.
    source.send(7, 1000, 0, &[3; 100]);
    wait_until(SOON, "a late segment is counted", || {
        target.qp.counters().dropped(DropReason::Late) == 1
    });
    assert_eq!(target.memory.to_vec(0, 100), [0; 100]);
    assert!(target.qp.release_record(wc.record()));
    assert!(!target.qp.release_record(wc.record()));
    assert_eq!(target.qp.record(wc.record()), None);
}

#[test]
fn a_record_closes_on_demand() {
    let target = target(SOON * 6, 4);
    let source = Source::new(&target);
    source.send(1, 300, 0, &[1; 100]);
    source.send(2, 300, 200, &[2; 100]);
    wait_until(SOON, "both arrive", || {
        target.qp.counters().segments_received == 2
    });
    assert_eq!(target.cq.poll_one(), Ok(None));
    target.qp.complete_records();
    let mut ranges: Vec<_> = (0..2)
        .map(|_| {
            let wc = target.cq.poll_one().unwrap().expect("there at once");
            assert_eq!(wc.byte_len, 100);
            target.qp.record(wc.record()).unwrap().ranges
        })
        .collect();
    ranges.sort_unstable();
    assert_eq!(ranges, [[(0, 100)], [(200, 300)]]);
    target.qp.complete_records();
    assert_eq!(target.cq.poll_one(), Ok(None));
}

#[test]
fn a_full_ring_places_and_does_not_record() {
    let target = target(SOON, 2);
    let sender = Node::new(4096);
    let to = sender.to(&target.qp);
    let write = |octet: u8| {
        sender.memory.write(0, &[octet; 10]);
        let operation = sender.write_to(&target, u64::from(octet) * 10);
        sender
            .post(0, operation, &to, &[sender.mr.sge(..10)])
            .unwrap();
        assert_eq!(sender.wait().status, WcStatus::Success);
    };
    write(1);
    write(2);
    let first = target.wait();
    target.wait();
    let events = target.pd.rnic().async_events();
    assert_eq!(events.next_event(false), None);
    for count in 1..=2 {
        write(3);
        wait_until(SOON, "it is counted", || {
            target.qp.counters().dropped(DropReason::RecordDropped) == count
        });
    }
    let full = AsyncEvent::RecordRingFull {
        qpn: target.qp.qpn().into(),
    };
    assert_eq!(events.next_event(false), Some(full));
    assert_eq!(events.next_event(false), None, "told once");
    assert_eq!(target.memory.to_vec(30, 10), [3; 10], "placed all the same");
    assert_eq!(target.cq.poll_one(), Ok(None));
    assert!(target.qp.release_record(first.record()));
    write(4);
    let wc = target.wait();
    let record = target.qp.record(wc.record()).unwrap();
    assert_eq!(record.remote_addr, target.mr.addr() + 40);
    assert_eq!(dropped(&target.qp.counters()), 0);
    assert_eq!(events.next_event(false), None);
    write(5);
    wait_until(SOON, "it is counted", || {
        target.qp.counters().dropped(DropReason::RecordDropped) == 3
    });
    assert_eq!(events.next_event(false), Some(full), "full once more");
}

#[test]
fn segments_complete_one_by_one_where_that_is_asked_for() {
    let target = Node::with(4096, Config::default(), |attr| {
        attr.record_slots = 4;
        attr.record_completions = RecordCompletions::PerSegment;
        attr.segment_slots = 3;
    });
    let source = Source::new(&target);
    for offset in [200, 0, 400] {
        source.send(1, 500, offset, &[7; 100]);
    }
    for offset in [200, 0, 400] {
        let wc = target.wait();
        assert_eq!(
            (wc.opcode, wc.offset),
            (WcOpcode::WriteRecordSegment, offset)
        );
        assert_eq!((wc.status, wc.byte_len), (WcStatus::Success, 100));
        assert_eq!(wc.source, Some(source.address()));
        // The record is open and grows.
        let valid = target
            .qp
            .with_record(wc.record(), |record| {
                assert_eq!((record.length(), record.source()), (500, wc.source));
                record.ranges().to_vec()
            })
            .expect("it is there");
        assert!(valid.contains(&(offset, offset + 100)), "{valid:?}");
        assert!(!target.qp.release_record(wc.record()), "it is open");
    }
    // More than slots are set aside for, and the octets are valid all the same.
    for offset in [100, 300] {
        source.send(1, 500, offset, &[8; 100]);
    }
    for number in 2..=3 {
        source.send(number, 10, 0, &[9; 10]);
    }
    wait_until(SOON, "all arrive", || {
        target.qp.counters().segments_received == 7
    });
    assert_eq!(
        target.qp.counters().dropped(DropReason::SegmentUnreported),
        1
    );
    assert_eq!(dropped(&target.qp.counters()), 0);
    let segment = WcOpcode::WriteRecordSegment;
    let record = WcOpcode::WriteRecord;
    for (opcode, offset, octets) in [
        (segment, 100, 100),
        (segment, 300, 100),
        (record, 0, 500),
        (segment, 0, 10),
        (record, 0, 10),
        (record, 0, 10),
    ] {
        let wc = target.wait();
        assert_eq!(
            (wc.opcode, wc.offset, wc.byte_len),
            (opcode, offset, octets)
        );
        assert_eq!(
            target.qp.with_record(wc.record(), |record| record.valid()),
            Some(if octets == 10 { 10 } else { 500 })
        );
    }
    assert_eq!(target.cq.poll_one(), Ok(None));
}

#[test]
fn a_message_of_more_holes_than_a_map_holds_keeps_64_ranges() {
    let target = target(SOON * 6, 2);
    let source = Source::new(&target);
    let send_holes = |holes: Range<u32>| {
        for hole in holes {
            source.send(1, 2000, hole * 20, &[7; 10]);
        }
    };
    send_holes(0..64);
    // Loopback interfaces may reorder datagrams of a thread that changes its CPU.
    wait_until(SOON, "the map is full", || {
        target.qp.counters().segments_received == 64
    });
    send_holes(64..70);
    wait_until(SOON, "all arrive", || {
        target.qp.counters().dropped(DropReason::MapFull) == 6
    });
    // One that closes a gap needs no range of its own.
    source.send(1, 2000, 10, &[8; 10]);
    wait_until(SOON, "it arrives", || {
        target.qp.counters().segments_received == 65
    });
    target.qp.complete_records();
    let wc = target.wait();
    let record = target.qp.record(wc.record()).unwrap();
    let expected: Vec<_> = [(0, 30)]
        .into_iter()
        .chain((2..64).map(|hole| (hole * 20, hole * 20 + 10)))
        .collect();
    assert_eq!(record.ranges, expected);
    assert_eq!(
        target.memory.to_vec(64 * 20, 720),
        [0; 720],
        "what the map cannot hold is not placed"
    );
}
