//! Writes, Reads, atomics and immediates between queue pairs on real sockets, under faults.

use dgiwarp::{AtomicOperation, Config, RcOperation, Wc, WcOpcode, WcStatus};

use super::end::{End, ROOM, octets_of};
use super::faulty;
use crate::common::node::SOON;
use crate::common::now;

/// Rounds of each operation.
const ROUNDS: usize = 60;

/// Completions of `count` work requests of `end`; other ends are polled meanwhile, and what they get is returned too.
fn complete(end: &End, other: &End, count: usize) -> (Vec<Wc>, Vec<Wc>) {
    let (mut done, mut there) = (Vec::new(), Vec::new());
    let deadline = now() + SOON;
    while done.len() < count {
        assert!(now() < deadline, "{done:?}");
        done.extend(end.poll());
        there.extend(other.poll());
    }
    (done, there)
}

fn all_succeeded(done: &[Wc], count: usize) {
    assert_eq!(done.len(), count);
    for (number, wc) in done.iter().enumerate() {
        assert_eq!(wc.status, WcStatus::Success, "{wc:?}");
        assert_eq!(wc.wr_id, u64::try_from(number).unwrap(), "in order");
    }
}

/// Octets of a Write, of a Write with immediate and of the Read that follows are the same, whatever the network does.
fn write_and_read(configs: [Config; 2]) {
    let [one, two] = configs;
    let (one, two) = (End::new(one, 0), End::new(two, 32));
    let to = two.qp.qpn();
    for number in 0..ROUNDS {
        let length = [0, 1, 1410, 1411, 5000, ROOM][number % 6];
        let (from, back, there) = (one.room(0), one.room(1), two.room(number));
        let octets = octets_of(number, length);
        one.fill(from, &octets);
        one.fill(back, &vec![0; length]);
        let (rkey, remote_addr) = two.remote(there);
        let immediate = (number % 2 == 1).then(|| u32::try_from(number).unwrap());
        let write = RcOperation::Write {
            rkey,
            remote_addr,
            immediate,
        };
        one.post_operation(0, write, to, from, length).unwrap();
        let read = RcOperation::Read { rkey, remote_addr };
        one.post_operation(1, read, to, back, length).unwrap();
        let (done, mut there) = complete(&one, &two, 2);
        all_succeeded(&done, 2);
        assert_eq!(
            [WcOpcode::RdmaWrite, WcOpcode::RdmaRead],
            [done[0].opcode, done[1].opcode]
        );
        assert_eq!(one.octets(back, length), octets, "{number}");
        if immediate.is_some() && there.is_empty() {
            there.push(two.wait());
        }
        assert_eq!(there.len(), usize::from(immediate.is_some()), "{there:?}");
        for wc in there {
            assert_eq!(wc.opcode, WcOpcode::RecvRdmaWithImmediate);
            assert_eq!((wc.status, wc.immediate), (WcStatus::Success, immediate));
            assert_eq!(wc.byte_len as usize, length);
            assert_eq!(wc.source.unwrap().port(), one.qp.qpn());
            two.post_recv(wc.wr_id);
        }
    }
}

#[test]
fn writes_and_reads_reach_the_peers_memory() {
    write_and_read([Config::default(), Config::default()]);
}

#[test]
fn writes_and_reads_survive_faults() {
    write_and_read([faulty(11), faulty(12)]);
}

/// Two ends add to one counter of a third at once, under faults: no addition is lost or made twice.
#[test]
fn atomics_of_many_peers_are_carried_out_once() {
    let target = End::new(faulty(21), 0);
    let there = target.room(0);
    let (rkey, remote_addr) = target.remote(there);
    target.fill(there, &[0; 8]);
    let ends = [End::new(faulty(22), 0), End::new(faulty(23), 0)];
    let operation = AtomicOperation::FetchAdd { add: 1, mask: 0 };
    for end in &ends {
        for number in 0..ROUNDS {
            let add = RcOperation::Atomic {
                rkey,
                remote_addr,
                operation,
            };
            let wr_id = u64::try_from(number).unwrap();
            end.post_operation(wr_id, add, target.qp.qpn(), end.room(number), 8)
                .unwrap();
        }
    }
    let mut seen = Vec::new();
    for end in &ends {
        let (done, _) = complete(end, &target, ROUNDS);
        all_succeeded(&done, ROUNDS);
        for number in 0..ROUNDS {
            let value = end.octets(end.room(number), 8);
            seen.push(u64::from_ne_bytes(value.try_into().unwrap()));
        }
    }
    seen.sort_unstable();
    let all = u64::try_from(2 * ROUNDS).unwrap();
    assert_eq!(seen, (0..all).collect::<Vec<_>>());
    let value = target.octets(there, 8);
    assert_eq!(u64::from_ne_bytes(value.try_into().unwrap()), all);
}

#[test]
fn immediates_of_sends_arrive_with_them() {
    let (one, two) = (End::new(faulty(31), 0), End::new(faulty(32), 8));
    for number in 0..ROUNDS {
        let length = [0, 1406, 1407, 6000][number % 4];
        one.fill(one.room(0), &octets_of(number, length));
        let immediate = u32::try_from(number).unwrap();
        let send = RcOperation::SendImmediate { immediate };
        one.post_operation(9, send, two.qp.qpn(), one.room(0), length)
            .unwrap();
        let wc = two.wait();
        assert_eq!((wc.status, wc.opcode), (WcStatus::Success, WcOpcode::Recv));
        assert_eq!(
            (wc.immediate, wc.byte_len as usize),
            (Some(immediate), length)
        );
        assert_eq!(two.received(&wc), octets_of(number, length));
        two.post_recv(wc.wr_id);
        let wc = one.wait();
        assert_eq!((wc.status, wc.opcode), (WcStatus::Success, WcOpcode::Send));
    }
}

/// Wrong keys fail, and work requests behind them; later ones go.
#[test]
fn a_wrong_key_fails_as_on_a_connection() {
    let (one, two) = (
        End::new(Config::default(), 0),
        End::new(Config::default(), 0),
    );
    let to = two.qp.qpn();
    let (rkey, remote_addr) = two.remote(two.room(0));
    for rkey in [rkey ^ 0x0100_0000, rkey] {
        let operations = [
            RcOperation::Write {
                rkey,
                remote_addr,
                immediate: None,
            },
            RcOperation::Read { rkey, remote_addr },
        ];
        for operation in operations {
            one.post_operation(1, operation, to, one.room(0), 100)
                .unwrap();
            let (done, _) = complete(&one, &two, 1);
            let right = rkey == two.remote(0).0;
            let expected = if right {
                WcStatus::Success
            } else {
                WcStatus::RemoteAccess
            };
            assert_eq!(done[0].status, expected);
        }
    }
}
