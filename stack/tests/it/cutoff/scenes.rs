//! Operations in progress while the peer is lost, and when they must be over.

use std::os::fd::AsFd as _;
use std::thread;
use std::time::{Duration, Instant};

use dgiwarp::{CompChannel, Destination, DropReason, Operation, Rnic, Wc, WcOpcode, WcStatus};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::peer::{MEMORY, Task, config};
use super::punctual::{Span, in_time};
use super::stage::Stage;
use crate::common::node::{Node, SEND, SOON};
use crate::common::{now, sleep};

/// The record timeout and the time for the reassembly of a Send.
const SILENCE: Duration = Duration::from_millis(200);
/// How long a QP that is destroyed tries to send what was posted.
const FLUSH: Duration = Duration::from_secs(1);
/// How long a Read may take.
const DEADLINE: Duration = Duration::from_millis(400);
/// How long a wait is to take that waits in vain.
const WAIT: Duration = Duration::from_millis(300);
/// The longest Send.
const LONGEST_SEND: usize = 1 << 24;

/// All scenes, each with its peer back in place before it.
pub(crate) fn play(stage: &mut Stage) {
    for (what, sleeper) in [
        ("a record, with a thread in Cq::wait", Sleeper::Wait),
        ("a record, with a thread at a channel", Sleeper::Channel),
    ] {
        scene(stage, what, |stage| record(stage, sleeper));
    }
    scene(stage, "an incomplete Send", incomplete_send);
    scene(stage, "waits in vain", waits);
    scene(stage, "Sends and Write-Records", sends);
    for (what, sleeper) in [
        ("a Read, with a thread in Cq::wait", Sleeper::Wait),
        ("a Read, with a thread at a channel", Sleeper::Channel),
    ] {
        scene(stage, what, |stage| read(stage, sleeper));
    }
    scene(stage, "destruction", destruction);
}

fn scene(stage: &mut Stage, what: &str, mut attempt: impl FnMut(&mut Stage) -> Option<Vec<Span>>) {
    in_time(what, || {
        let spans = attempt(stage);
        stage.mend();
        spans
    });
}

/// Thread that waits for the record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sleeper {
    Wait,
    Channel,
}

/// Cuts the peer off as soon as some of its message came, and returns when the last of it did.
fn cut_mid_transfer(
    stage: &mut Stage,
    node: &Node,
    segments: u64,
    over: impl Fn() -> bool,
) -> Instant {
    let mut cut = false;
    let mut seen = 0;
    let mut last = now();
    let until = now() + SOON;
    while !over() {
        assert!(now() < until, "{seen} segments came, cut off: {cut}");
        let count = node.qp.counters().segments_received;
        if count > seen {
            (seen, last) = (count, now());
        }
        if count >= segments && !cut {
            stage.cut();
            cut = true;
        }
        sleep(Duration::from_micros(200));
    }
    last
}

/// A long Write-Record ends in its middle: its record is completed with what came.
fn record(stage: &mut Stage, sleeper: Sleeper) -> Option<Vec<Span>> {
    let rnic = Rnic::open(config()).unwrap();
    let channel = rnic.create_comp_channel().unwrap();
    let cq = match sleeper {
        Sleeper::Channel => rnic.create_cq_on(64, &channel),
        Sleeper::Wait => rnic.create_cq(64),
    };
    let node = Node::on(rnic, cq.unwrap(), MEMORY, |attr| attr.record_slots = 4);
    stage.acquaint(&node);
    stage.remote.order(&node, Task::Write, MEMORY);
    let (last, (came, wc)) = thread::scope(|scope| {
        let waiter = scope.spawn(|| wait_for_record(&node, &channel, sleeper));
        let last = cut_mid_transfer(stage, &node, 50, || waiter.is_finished());
        (last, waiter.join().unwrap())
    });
    assert_eq!(
        (wc.opcode, wc.status),
        (WcOpcode::WriteRecord, WcStatus::Success)
    );
    let record = node.qp.record(wc.record()).unwrap();
    assert_eq!(
        (record.valid, record.length),
        (wc.byte_len, u32::try_from(MEMORY).unwrap())
    );
    let due = last + SILENCE;
    // Else all of it came before the peer was lost.
    (record.valid < record.length).then_some(vec![Span { due, came }])
}

fn wait_for_record(node: &Node, channel: &CompChannel, sleeper: Sleeper) -> (Instant, Wc) {
    let wc = match sleeper {
        Sleeper::Wait => node.wait(),
        Sleeper::Channel => {
            node.cq.request_notification(false);
            assert_eq!(wait_at(channel, SOON).0, Some(node.cq.id()));
            node.cq.poll_one().unwrap().expect("the event told of it")
        }
    };
    (now(), wc)
}

/// A long Send ends in its middle: the receive that it took is given back, and takes the next message.
fn incomplete_send(stage: &mut Stage) -> Option<Vec<Span>> {
    let node = Node::with(LONGEST_SEND + 4096, config(), |_| ());
    let other = Node::with(64, config(), |_| ());
    stage.acquaint(&node);
    let before = node.qp.counters().segments_received;
    node.post_recv(5, 0..LONGEST_SEND);
    stage.remote.order(&node, Task::Send, LONGEST_SEND);
    let given_up = || node.qp.counters().dropped(DropReason::ReassemblyTimeout) > 0;
    let until = now() + SOON;
    while node.qp.counters().segments_received == before {
        assert!(now() < until, "nothing came");
        std::hint::spin_loop();
    }
    let first = now();
    stage.cut();
    let mut looked = false;
    while !given_up() {
        assert!(now() < until, "never given up");
        // Not sooner, because polling keeps the background thread from what it is here to do.
        if !looked && now() > first + 5 * SILENCE {
            looked = true;
            if let Some(wc) = node.cq.poll_one().unwrap() {
                // All of it came before the peer was lost.
                assert_eq!(
                    (wc.wr_id, wc.status, wc.byte_len as usize),
                    (5, WcStatus::Success, LONGEST_SEND)
                );
                return None;
            }
        }
        sleep(Duration::from_micros(200));
    }
    let given_up = Span {
        due: first + SILENCE,
        came: now(),
    };
    let (works, ()) = Span::of(Duration::ZERO, || {
        other.send(6, &other.to(&node.qp), 0..64);
        let wc = node.wait();
        assert_eq!(
            (wc.wr_id, wc.status, wc.byte_len),
            (5, WcStatus::Success, 64)
        );
    });
    Some(vec![given_up, works])
}

/// A long Read whose target is lost ends at its deadline, with what came; so does one that is posted afterwards, with nothing.
fn read(stage: &mut Stage, sleeper: Sleeper) -> Option<Vec<Span>> {
    let rnic = Rnic::open(config()).unwrap();
    let channel = rnic.create_comp_channel().unwrap();
    let cq = match sleeper {
        Sleeper::Channel => rnic.create_cq_on(64, &channel),
        Sleeper::Wait => rnic.create_cq(64),
    };
    let node = Node::on(rnic, cq.unwrap(), MEMORY, |_| ());
    let to = stage.remote.way(&node);
    stage.acquaint(&node);
    let read = stage.remote.read(DEADLINE);
    let run = |wr_id, lose: &mut dyn FnMut()| {
        Span::of(DEADLINE, || {
            node.post(wr_id, read, &to, &[node.mr.sge(..)]).unwrap();
            lose();
            let wc = match sleeper {
                Sleeper::Wait => node.wait(),
                Sleeper::Channel => {
                    node.cq.request_notification(false);
                    assert_eq!(wait_at(&channel, SOON).0, Some(node.cq.id()));
                    node.cq.poll_one().unwrap().expect("the event told of it")
                }
            };
            assert_eq!((wc.wr_id, wc.opcode), (wr_id, WcOpcode::RdmaRead));
            wc
        })
    };
    let (begun, wc) = run(9, &mut || {
        // The background thread reads meanwhile.
        sleep(Duration::from_millis(20));
        stage.cut();
    });
    let whole = u32::try_from(MEMORY).unwrap();
    if wc.status == WcStatus::Success || wc.byte_len == 0 {
        return None;
    }
    assert_eq!(wc.status, WcStatus::ResponseTimeout);
    let map = node.qp.take_read_map(9).expect("it failed");
    let valid: u32 = map.ranges.iter().map(|(start, end)| end - start).sum();
    assert_eq!((map.length, valid), (whole, wc.byte_len));
    let (unbegun, wc) = run(10, &mut || ());
    assert_eq!((wc.status, wc.byte_len), (WcStatus::ResponseTimeout, 0));
    Some(vec![begun, unbegun])
}

/// Nobody answers any more: waits last as long as they are asked to.
fn waits(stage: &mut Stage) -> Option<Vec<Span>> {
    let rnic = Rnic::open(config()).unwrap();
    let channel = rnic.create_comp_channel().unwrap();
    let cq = rnic.create_cq_on(64, &channel).unwrap();
    let node = Node::on(rnic, cq, 4096, |_| ());
    for _ in 0..20 {
        stage.acquaint(&node);
    }
    node.post_recv(7, 0..64);
    stage.cut();
    let (by_wait, wc) = Span::of(WAIT, || node.cq.wait(WAIT));
    assert_eq!(wc, Ok(None));
    node.cq.request_notification(false);
    let (by_channel, (event, wakes)) = Span::of(WAIT, || wait_at(&channel, WAIT));
    assert_eq!(event, None);
    assert!(
        wakes < 20,
        "the channel was ready for nothing {wakes} times"
    );
    assert!(now() >= by_channel.due);
    Some(vec![by_wait, by_channel])
}

/// Waits for an event as a program with a loop of its own does. Returns how often it woke up, too.
fn wait_at(channel: &CompChannel, time: Duration) -> (Option<u64>, u32) {
    let until = now() + time;
    let mut wakes = 0;
    loop {
        let event = channel.next_event(false);
        let left = until.saturating_duration_since(now());
        if event.is_some() || left.is_zero() {
            return (event, wakes);
        }
        let timeout = PollTimeout::try_from(left.as_micros().div_ceil(1000)).unwrap();
        let mut fds = [PollFd::new(channel.as_fd(), PollFlags::POLLIN)];
        wakes += u32::from(poll(&mut fds, timeout).unwrap() > 0);
    }
}

/// Sends to a lost peer complete all the same, at once.
fn sends(stage: &mut Stage) -> Option<Vec<Span>> {
    let node = Node::with(1 << 20, config(), |_| ());
    let to = stage.remote.way(&node);
    stage.acquaint(&node);
    stage.cut();
    let each = |operation: Operation, length: usize| {
        Span::of(Duration::ZERO, || {
            node.post(8, operation, &to, &[node.mr.sge(..length)])
                .unwrap();
            let wc = node.wait();
            // Where no route is left, the completion has an error.
            assert!(
                [WcStatus::Success, WcStatus::General].contains(&wc.status),
                "{wc:?}"
            );
            assert_eq!(wc.wr_id, 8);
        })
        .0
    };
    let mut spans: Vec<_> = (0..200).map(|_| each(SEND, 1024)).collect();
    spans.extend((0..20).map(|_| each(stage.remote.write(), 1 << 20)));
    Some(spans)
}

/// A queue pair with far more to send than there is time for.
fn destruction(stage: &mut Stage) -> Option<Vec<Span>> {
    let node = Node::with(MEMORY, config(), |_| ());
    let idle = Node::with(4096, config(), |_| ());
    let to: Destination = stage.remote.way(&node);
    stage.acquaint(&node);
    stage.acquaint(&idle);
    for wr_id in 0..200 {
        node.post(wr_id, stage.remote.write(), &to, &[node.mr.sge(..)])
            .unwrap();
    }
    node.post(0, stage.remote.read(SOON), &to, &[node.mr.sge(..)])
        .unwrap();
    stage.cut();
    let Node {
        qp,
        cq,
        mr,
        memory,
        pd,
    } = node;
    let (of_qp, ()) = Span::of(FLUSH, || drop(qp));
    let (of_rest, ()) = Span::of(Duration::ZERO, || drop((cq, mr, memory, pd)));
    let (of_idle, ()) = Span::of(Duration::ZERO, || drop(idle));
    Some(vec![of_qp, of_rest, of_idle])
}
