//! Messages between datagram queue pairs: immediates, solicited events, Q_Keys, and lengths from nothing to a gibibyte.

use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::thread;
use std::time::Duration;

use crate::common::node::{Node, SEND, SOON};
use crate::common::{now, sleep, wait_until};
use dgiwarp::{
    CompChannel, Config, Destination, DropReason, Operation, PostError, RecordCompletions, Rnic,
    SendWr, Wc, WcOpcode, WcStatus,
};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

const IMMEDIATE: u32 = 0xdead_beef;
const WITH_IMMEDIATE: Operation = Operation::Send {
    immediate: Some(IMMEDIATE),
};
/// Longest Send.
const MAX_SEND: usize = 16 << 20;

/// Octet i of a message; a period that is no power of two, so that a segment at a wrong place shows.
fn pattern(length: usize) -> Vec<u8> {
    (1..=251).cycle().take(length).collect()
}

#[test]
fn an_immediate_comes_with_a_send_of_any_length() {
    let (sender, receiver) = (Node::new(200_000), Node::new(200_000));
    let to = sender.to(&receiver.qp);
    for length in [0, 1, 1001, 65_000, 199_999] {
        sender.memory.write(0, &pattern(length));
        receiver.memory.write(0, &vec![0; length]);
        for (wr_id, operation, immediate) in [(1, WITH_IMMEDIATE, Some(IMMEDIATE)), (2, SEND, None)]
        {
            receiver.post_recv(wr_id, 0..200_000);
            let sges = [sender.mr.sge(..length)];
            sender.post(0, operation, &to, &sges).unwrap();
            let wc = receiver.wait();
            assert_eq!((wc.wr_id, wc.opcode), (wr_id, WcOpcode::Recv));
            assert_eq!((wc.byte_len as usize, wc.immediate), (length, immediate));
            assert_eq!(receiver.memory.to_vec(0, length), pattern(length));
        }
    }
}

#[test]
fn another_qkey_is_dropped_and_counted() {
    let sender = Node::new(70_000);
    let receiver = Node::with(70_000, Config::default(), |attr| {
        attr.qkey = 0x1111_1111;
        attr.record_slots = 1;
    });
    let to = |qkey| Destination {
        qkey,
        ..sender.to(&receiver.qp)
    };
    let bad = || receiver.qp.counters().dropped(DropReason::BadQkey);
    let send = |operation, qkey, length: usize| {
        let sges = [sender.mr.sge(..length)];
        sender.post(0, operation, &to(qkey), &sges).unwrap();
        assert_eq!(sender.wait().status, WcStatus::Success);
    };
    receiver.post_recv(1, 0..70_000);
    send(SEND, 0, 10);
    wait_until(SOON, "a plain Send is counted", || bad() == 1);
    // Two segments.
    send(WITH_IMMEDIATE, 0x1111_1110, 66_000);
    wait_until(SOON, "a segmented Send is counted", || bad() == 3);
    assert_eq!(receiver.cq.poll_one(), Ok(None));
    send(SEND, 0x1111_1111, 11);
    assert_eq!(receiver.wait().byte_len, 11);
    // One that is changed counts from then on.
    receiver.qp.set_qkey(5);
    assert_eq!(receiver.qp.qkey(), 5);
    receiver.post_recv(2, 0..70_000);
    send(SEND, 0x1111_1111, 12);
    send(WITH_IMMEDIATE, 5, 13);
    assert_eq!(receiver.wait().byte_len, 13);
    assert_eq!(bad(), 4);
    // A Write-Record has none.
    send(sender.write_to(&receiver, 0), 9, 14);
    assert_eq!(receiver.wait().opcode, WcOpcode::WriteRecord);
}

fn is_readable(channel: &CompChannel) -> bool {
    let mut fds = [PollFd::new(channel.as_fd(), PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::ZERO).unwrap() > 0
}

/// A channel whose queue is armed for solicited completions raises these and errors, and nothing else.
#[test]
fn only_solicited_completions_make_an_event_where_asked() {
    let sender = Node::new(70_000);
    let rnic = Rnic::open(Config::default()).unwrap();
    let channel = rnic.create_comp_channel().unwrap();
    let cq = rnic.create_cq_on(64, &channel).unwrap();
    let receiver = Node::on(rnic, cq, 70_000, |attr| {
        attr.record_slots = 4;
        attr.record_completions = RecordCompletions::PerSegment;
    });
    let to = sender.to(&receiver.qp);
    let post = |operation, length: usize, solicited| {
        let wr = SendWr {
            wr_id: 0,
            operation,
            destination: to.clone(),
            sges: &[sender.mr.sge(..length)],
            signaled: true,
            solicited,
        };
        sender.qp.post_send(&[wr]).unwrap();
        assert_eq!(sender.wait().status, WcStatus::Success);
    };
    let write = sender.write_to(&receiver, 0);
    // A Send of one segment, of two, with immediate, a Write-Record of one segment and of two.
    for (operation, length, completions) in [
        (SEND, 10, 1),
        (SEND, 66_000, 1),
        (WITH_IMMEDIATE, 10, 1),
        (write, 10, 2),
        (write, 66_000, 3),
    ] {
        receiver.post_recv(1, 0..70_000);
        receiver.post_recv(2, 0..70_000);
        receiver.cq.request_notification(true);
        for solicited in [false, true] {
            post(operation, length, solicited);
            if solicited {
                let mut fds = [PollFd::new(channel.as_fd(), PollFlags::POLLIN)];
                assert_eq!(poll(&mut fds, PollTimeout::from(10_000u16)), Ok(1));
                assert_eq!(channel.next_event(true), Some(receiver.cq.id()));
            }
            for done in 1..=completions {
                let wc = receiver.wait();
                let last = done == completions;
                assert_eq!(wc.solicited, solicited && last, "{wc:?}");
            }
            assert_eq!(channel.next_event(false), None, "{operation:?} {length}");
            assert!(!is_readable(&channel));
        }
        receiver.qp.flush();
        while let Some(wc) = receiver.cq.poll_one().unwrap() {
            if wc.opcode == WcOpcode::WriteRecord {
                receiver.qp.release_record(wc.record());
            }
        }
    }
    // An error raises an event too.
    receiver.post_recv(3, 0..10);
    receiver.cq.request_notification(true);
    receiver.qp.flush();
    assert_eq!(channel.next_event(false), Some(receiver.cq.id()));
    assert_eq!(receiver.wait().status, WcStatus::Flushed);
}

/// Rate that a receiver keeps up with on a busy machine, in octets per second.
const RATE: u64 = 150_000_000;

/// Posts a message of `length` octets again and again until it arrives whole; a busy machine may lose some of a long one. `is_whole` checks
/// what came.
fn until_whole(
    length: usize,
    receiver: &Node,
    mut send: impl FnMut() + Send,
    is_whole: impl Fn(Wc) -> bool + Sync,
) {
    let within = SOON / 2 + 3 * Duration::from_secs(length as u64) / u32::try_from(RATE).unwrap();
    for attempt in 1.. {
        assert!(attempt <= 5, "{length} octets never arrive");
        let whole = thread::scope(|scope| {
            // The receiver is there before the first octet.
            let poller = scope.spawn(|| receiver.cq.wait(within).unwrap());
            send();
            poller.join().unwrap().is_some_and(&is_whole)
        });
        if whole {
            return;
        }
        receiver.qp.flush();
        while receiver.cq.poll_one().unwrap().is_some() {}
    }
}

/// Fills the memory of a node with the pattern.
fn fill(node: &Node, length: usize) {
    let chunk = pattern(251 << 10);
    for start in (0..length).step_by(chunk.len()) {
        let octets = chunk.len().min(length - start);
        node.memory.write(start, &chunk[..octets]);
    }
}

/// Whether the memory of a node holds the pattern from `offset` on, and zeros on both sides of it.
fn holds(node: &Node, offset: usize, length: usize) -> bool {
    let chunk = pattern(251 << 10);
    let inside = (0..length).step_by(chunk.len()).all(|start| {
        let octets = chunk.len().min(length - start);
        node.memory.to_vec(offset + start, octets) == chunk[..octets]
    });
    let outside = [offset - 1, offset + length];
    inside && outside.map(|at| node.memory.to_vec(at, 1)) == [[0], [0]]
}

#[test]
fn sends_of_all_lengths_arrive() {
    let paced = Node::with(MAX_SEND + 1, Config::default(), |attr| attr.max_rate = RATE);
    let receiver = Node::new(MAX_SEND + 8);
    let to = paced.to(&receiver.qp);
    fill(&paced, MAX_SEND);
    for length in [1, 64_999, 65_000, 65_001, 1 << 20, MAX_SEND] {
        receiver.memory.write(0, &vec![0; length + 8]);
        let send = || {
            receiver.post_recv(1, 3..length + 3);
            paced.send(0, &to, 0..length);
            assert_eq!(paced.wait().status, WcStatus::Success);
        };
        until_whole(length, &receiver, send, |wc| {
            assert_eq!((wc.opcode, wc.status), (WcOpcode::Recv, WcStatus::Success));
            assert_eq!(wc.byte_len as usize, length);
            holds(&receiver, 3, length)
        });
    }
    let refused = paced.post(0, SEND, &to, &[paced.mr.sge(..=MAX_SEND)]);
    assert_eq!(refused.unwrap_err().source, PostError::TooLong);
}

/// Writes `length` octets to an odd address of a target that keeps records.
fn writes_arrive(lengths: &[usize]) {
    let longest = lengths.iter().copied().max().unwrap();
    let source = Node::with(longest, Config::default(), |attr| attr.max_rate = RATE);
    let target = Node::with(longest + 16, Config::default(), |attr| {
        attr.record_slots = 4
    });
    let to = source.to(&target.qp);
    fill(&source, longest);
    for (offset, length) in (1..8).step_by(2).cycle().zip(lengths.iter().copied()) {
        for start in (0..longest + 16).step_by(1 << 20) {
            let octets = (1 << 20).min(longest + 16 - start);
            target.memory.write(start, &vec![0; octets]);
        }
        let send = || {
            let operation = source.write_to(&target, offset);
            let sges = [source.mr.sge(..length)];
            source.post(0, operation, &to, &sges).unwrap();
            assert_eq!(source.wait().status, WcStatus::Success);
        };
        until_whole(length, &target, send, |wc| {
            assert_eq!(wc.opcode, WcOpcode::WriteRecord);
            let valid = target
                .qp
                .with_record(wc.record(), |record| {
                    assert_eq!(record.length() as usize, length);
                    record.valid() as usize
                })
                .unwrap();
            assert_eq!(wc.byte_len as usize, valid);
            target.qp.release_record(wc.record());
            let offset = usize::try_from(offset).unwrap();
            valid == length && holds(&target, offset, length)
        });
    }
}

#[test]
fn write_records_of_all_lengths_arrive() {
    writes_arrive(&[
        0,
        1,
        7,
        1001,
        64_999,
        65_000,
        65_001,
        1 << 20,
        (1 << 20) + 1,
    ]);
}

#[test]
fn a_write_record_of_a_quarter_gibibyte_arrives() {
    writes_arrive(&[256 << 20]);
}

#[test]
#[ignore = "two gibibytes of memory, and a quarter of a minute"]
fn soak_a_write_record_of_a_gibibyte_arrives() {
    writes_arrive(&[1 << 30]);
}

/// With nobody polling, the background thread sends what the rate allows, and no more.
#[test]
fn a_rate_is_kept_while_nobody_polls() {
    const MESSAGES: u64 = 20;
    let mut config = Config::default();
    config.max_rate = 50_000_000;
    let slow = Node::with(1 << 20, config, |_| ());
    let nobody = slow.to_port(Ipv4Addr::LOCALHOST.into(), 9);
    let began = now();
    for wr_id in 0..MESSAGES {
        slow.send(wr_id, &nobody, 0..1 << 20);
    }
    assert!(
        now() - began < Duration::from_millis(300),
        "posting waits for nothing"
    );
    wait_until(SOON, "all leave", || {
        slow.qp.counters().octets_sent == MESSAGES << 20
    });
    // 20 MiB at 50 MB/s are 419 ms, but for what may leave at once.
    assert!(now() - began > Duration::from_millis(400));
    // Without a rate the rest leaves at once.
    slow.qp.set_max_rate(1);
    slow.send(MESSAGES, &nobody, 0..1 << 20);
    slow.send(MESSAGES + 1, &nobody, 0..1 << 20);
    sleep(Duration::from_millis(20));
    assert!(slow.qp.counters().octets_sent < (MESSAGES + 1) << 20);
    slow.qp.set_max_rate(0);
    for wr_id in 0..MESSAGES + 2 {
        assert_eq!(slow.wait().wr_id, wr_id);
    }
}

/// Posted work requests and completions in the queue are forgotten; peers take later messages for another source's.
#[test]
fn after_a_reset_a_queue_pair_is_like_new() {
    let a = Node::with(4096, Config::default(), |attr| attr.qp.max_send_wr = 4);
    let b = Node::with(4096, Config::default(), |attr| attr.record_slots = 4);
    let (to_a, to_b) = (b.to(&a.qp), a.to(&b.qp));
    let mut handles = Vec::new();
    for round in 0..6 {
        // A Write-Record takes a slot of the peer's ring, and its number may be one that an earlier life used.
        let write = a.write_to(&b, 0);
        a.post(1, write, &to_b, &[a.mr.sge(..100)]).unwrap();
        let wc = b.wait();
        assert_eq!((wc.opcode, wc.byte_len), (WcOpcode::WriteRecord, 100));
        let handle = wc.record();
        handles.push(handle);
        if round == 2 {
            b.qp.reset();
            assert!(b.qp.record(handle).is_none());
        } else {
            assert!(b.qp.record(handle).is_some());
            b.qp.release_record(handle);
        }
        // A Read that is never answered, receives that nobody fills, and a completion that nobody polls.
        let nowhere = a.to_port(Ipv4Addr::LOCALHOST.into(), 9);
        let read = Operation::Read {
            rkey: 1,
            remote_addr: 0,
            timeout: None,
        };
        a.post(2, read, &nowhere, &[a.mr.sge(..8)]).unwrap();
        a.post_recv(3, 0..64);
        a.post_recv(4, 0..64);
        a.qp.reset();
        assert_eq!(a.cq.poll_one().unwrap(), None);
        a.post_recv(5, 0..64);
        b.send(6, &to_a, 0..32);
        assert_eq!(b.wait().wr_id, 6);
        let wc = a.wait();
        assert_eq!((wc.wr_id, wc.opcode), (5, WcOpcode::Recv));
    }
    let distinct: std::collections::HashSet<_> = handles.iter().collect();
    assert_eq!(distinct.len(), 6, "no handle names two records");
    assert!(a.qp.counters().segments_sent >= 6);
}
