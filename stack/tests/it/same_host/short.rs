//! Short messages while both ends are polled, here by one thread: they take the direct way, and all rules hold there.

use std::thread;
use std::time::Duration;

use dgiwarp::{RcEnd, RcOperation, RcSendWr, SameHostMode, WcOpcode, WcStatus};

use super::{End, RECEIVES, SOON, Waits, at_once, connect, message};
use crate::common::{self, now};

/// Messages of 64 octets each way, many more than park both lanes.
const ROUNDS: usize = 2000;
const SHORT: usize = 1;

impl End {
    fn polled(&self, mut done: impl FnMut(u64) -> bool) {
        let until = now() + SOON;
        loop {
            if let Some(wc) = self.cq.poll_one().unwrap() {
                assert_eq!(wc.status, WcStatus::Success, "{wc:?}");
                if done(wc.wr_id) {
                    return;
                }
            }
            assert!(now() < until, "no completion in time");
        }
    }

    /// Takes the message with this number, and the completions before it.
    fn takes(&self, number: usize) {
        let mut slot = 0;
        self.polled(|wr_id| {
            slot = usize::try_from(wr_id).unwrap();
            slot < RECEIVES
        });
        let expected = message(number);
        let octets = self.memory.to_vec(slot * super::LONGEST, expected.len());
        assert!(octets == expected, "message {number} came wrong");
        self.post_recv(slot);
    }
}

fn ping_pong(ends: &[End; 2]) {
    exchange(ends, ROUNDS);
}

fn exchange([client, server]: &[End; 2], rounds: usize) {
    for _ in 0..rounds {
        client.send(SHORT);
        server.takes(SHORT);
        server.send(SHORT);
        client.takes(SHORT);
    }
}

/// Two ends whose short messages go the direct way.
fn warm() -> [End; 2] {
    let ends = [(); 2].map(|()| End::with(at_once(SameHostMode::Ring)));
    connect(&ends[0], &ends[1]);
    let until = now() + SOON;
    // They meet in the background.
    while ends.iter().any(|end| end.lane_octets().1 == 0) {
        ping_pong(&ends);
        assert!(now() < until, "all goes by TCP");
    }
    ping_pong(&ends);
    ends
}

/// No acknowledgement leaves beside them, and the program has its completions.
#[test]
fn short_messages_that_are_polled_leave_alone() {
    let ends = warm();
    let sent = || {
        let sent = |end: &End| end.rnic.counters().segments_sent;
        ends.iter().map(sent).sum::<u64>()
    };
    let messages = 2 * ROUNDS as u64;
    // On a busy machine a background thread may take over for a while, and each message has an acknowledgement or a request beside it then.
    let alone = (0..50).any(|_| {
        let before = sent();
        ping_pong(&ends);
        let segments = sent() - before;
        assert!(segments >= messages);
        segments < messages + messages / 4
    });
    assert!(alone, "acknowledgements leave beside messages");
    let [client, server] = &ends;
    // All lengths, many at a time, in order.
    for number in 0..50 {
        client.send(number);
        server.takes(number);
    }
}

/// A message that finds no receive waits for one, and those behind it wait too.
#[test]
fn short_messages_wait_for_receives() {
    let [client, server] = warm();
    for _ in 0..RECEIVES + 3 {
        client.send(SHORT);
    }
    let mut taken = 0;
    server.polled(|wr_id| {
        taken += usize::from(wr_id < RECEIVES as u64);
        taken == RECEIVES
    });
    for _ in 0..20 {
        assert_eq!(server.cq.poll_one().unwrap(), None);
    }
    assert!(server.rnic.counters().parked > 0);
    for slot in 0..RECEIVES {
        server.post_recv(slot);
    }
    server.takes(SHORT);
    server.takes(SHORT);
    server.takes(SHORT);
    let mut completions = 0;
    client.polled(|_| {
        completions += 1;
        completions == RECEIVES + 3
    });
    // And on.
    for _ in 0..100 {
        client.send(SHORT);
        server.takes(SHORT);
    }
}

/// Keys are checked: a Write to none ends the connection, places nothing, and those before it complete.
#[test]
fn short_writes_are_checked() {
    let [client, server] = warm();
    let at = RECEIVES * super::LONGEST;
    client.memory.write(at, b"octets!!");
    let sges = [client.mr.sge(at..at + 8)];
    let write = |rkey, wr_id| {
        let operation = RcOperation::Write {
            rkey,
            remote_addr: server.mr.addr() + at as u64,
            immediate: None,
        };
        client
            .qp
            .post_send(&[RcSendWr::new(wr_id, operation, &sges)])
            .unwrap();
    };
    // A Write completes at the end that is polled, and nothing at the other one.
    write(server.mr.rkey(), 1001);
    let until = now() + SOON;
    let completion = || {
        loop {
            assert!(now() < until, "no completion in time");
            let _ = server.cq.poll_one().unwrap();
            if let Some(wc) = client.cq.poll_one().unwrap()
                && wc.wr_id > 1000
            {
                return wc;
            }
        }
    };
    assert_eq!(completion().status, WcStatus::Success);
    assert_eq!(server.memory.to_vec(at, 8), b"octets!!");
    client.memory.write(at, b"another!");
    write(server.mr.rkey() ^ 0x100, 1002);
    let wc = completion();
    assert_eq!((wc.wr_id, wc.opcode), (1002, WcOpcode::RdmaWrite));
    assert_eq!(wc.status, WcStatus::RemoteAccess);
    assert_eq!(server.memory.to_vec(at, 8), b"octets!!");
    assert!(matches!(client.qp.end(), Some(RcEnd::Stream(_))));
}

/// A sender that polled when it posted, and sleeps or polls on: the peer places the message later, and sends nothing itself.
#[test]
fn a_sender_that_sleeps_has_its_completion() {
    let ends = warm();
    let [client, server] = &ends;
    for round in 0..30u64 {
        exchange(&ends, 200);
        client.send(SHORT);
        thread::scope(|scope| {
            scope.spawn(|| {
                common::sleep(Duration::from_millis(round % 10));
                server.takes(SHORT);
            });
            let wc = client.next(Waits::Sleeping);
            assert_eq!(wc.wr_id, 1000);
        });
    }
}
