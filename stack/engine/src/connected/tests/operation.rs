//! Writes, Reads, atomics, fences and Terminates between two engines.

use dgiwarp_ddp::{STag, TaggedOffset};
use dgiwarp_memory::Access;
use dgiwarp_rdmap::wire::{AtomicOperation, Cause};

use super::*;
use super::{End, Lower, PD, PLAIN, now, over_each_llp, pair, pair_over};
use crate::mr::Keys;
use crate::types::{Wc, WcOpcode};

over_each_llp! {
    a_write_with_immediate_and_a_read_of_it,
    reads_and_atomics_wait_for_credit_and_complete_in_order,
    compare_and_swap_stores_only_what_was_expected,
    a_fence_waits_for_reads,
    inline_data_leaves_from_the_work_request,
    what_the_peer_does_not_allow_ends_the_connection_on_both_sides,
    a_refused_write_is_reported_and_nothing_is_placed,
    what_the_queue_pair_does_not_allow_no_key_gives,
    a_send_takes_a_key_away,
    a_key_is_taken_from_the_peers_by_its_owner,
    memory_that_goes_away_under_a_read,
    a_connection_without_reads_fails_them,
    a_read_returns_the_octets_from_before_the_write_behind_it,
}

/// Registers all of an end's memory anew with these rights, from address zero.
fn register(end: &End, access: Access) -> Keys {
    end.mrs.register(end.memory.region(), 0, access, PD)
}

fn at(keys: Keys, addr: u64) -> (STag, TaggedOffset) {
    (STag::new(keys.rkey), TaggedOffset::new(addr))
}

fn write(keys: Keys, addr: u64, immediate: Option<u32>) -> RcWork {
    let (stag, start) = at(keys, addr);
    RcWork::Write {
        stag,
        start,
        immediate,
    }
}

fn read(keys: Keys, addr: u64) -> RcWork {
    let (stag, start) = at(keys, addr);
    RcWork::Read { stag, start }
}

fn atomic(keys: Keys, addr: u64, operation: AtomicOperation) -> RcWork {
    let (stag, start) = at(keys, addr);
    RcWork::Atomic {
        stag,
        start,
        operation,
    }
}

const ADD_ONE: AtomicOperation = AtomicOperation::FetchAdd { add: 1, mask: 0 };

/// Carries octets both ways until nothing is left.
fn settle(a: &mut End, b: &mut End, piece: usize) {
    while !(a.engine.poll_transmit(now()).is_empty() && b.engine.poll_transmit(now()).is_empty()) {
        a.carry_to(b, piece);
        b.carry_to(a, piece);
    }
}

fn outcomes(wcs: &[Wc]) -> Vec<(u64, WcOpcode, WcStatus)> {
    wcs.iter()
        .map(|wc| (wc.wr_id, wc.opcode, wc.status))
        .collect()
}

fn a_write_with_immediate_and_a_read_of_it(llp: Lower) {
    for piece in [1, 700, 1 << 20] {
        let (mut client, mut server) = pair(llp);
        let keys = register(&server, Access::REMOTE_WRITE | Access::REMOTE_READ);
        let message: Vec<u8> = (0..5000u32).map(|i| (i * 13).to_le_bytes()[0]).collect();
        client.memory.write(0, &message);
        server.post_recv(1, 16_000, 0);
        let source = [client.sge(0, 2000), client.sge(2000, 3000)];
        client.post(2, write(keys, 7001, Some(0xabcd)), &source, false);
        let sink = [client.sge(6000, 3), client.sge(8000, 4997)];
        client.post(3, read(keys, 7001), &sink, false);
        settle(&mut client, &mut server, piece);
        let success = WcStatus::Success;
        assert_eq!(
            outcomes(&client.completed.sent),
            [
                (2, WcOpcode::RdmaWrite, success),
                (3, WcOpcode::RdmaRead, success)
            ]
        );
        assert_eq!(server.memory.to_vec(7001, 5000), message);
        assert_eq!(client.memory.to_vec(6000, 3), message[..3]);
        assert_eq!(client.memory.to_vec(8000, 4997), message[3..]);
        let wc = server.completed.received[0];
        assert_eq!(wc.opcode, WcOpcode::RecvRdmaWithImmediate);
        assert_eq!((wc.immediate, wc.byte_len), (Some(0xabcd), 5000));
    }
}

fn reads_and_atomics_wait_for_credit_and_complete_in_order(llp: Lower) {
    let (mut client, mut server) = pair(llp);
    let keys = register(&server, Access::REMOTE_ATOMIC | Access::REMOTE_READ);
    for wr_id in 0..6u64 {
        let sges = [client.sge(wr_id * 8, 8)];
        let work = if wr_id % 3 == 2 {
            read(keys, 64)
        } else {
            atomic(keys, 64, ADD_ONE)
        };
        client.post(wr_id, work, &sges, false);
    }
    client.post(6, RcWork::Send { invalidate: None }, &[], false);
    server.post_recv(9, 0, 8);
    // One request is outstanding at a time, so one ULPDU waits: header, request.
    assert_eq!(client.waiting(), llp.octets(18 + 52));
    settle(&mut client, &mut server, 9);
    assert!(client.completed.sent.iter().map(|wc| wc.wr_id).eq(0..7));
    let found: Vec<u64> = (0..6)
        .map(|i| u64::from_ne_bytes(client.memory.to_vec(i * 8, 8).try_into().unwrap()))
        .collect();
    assert_eq!(found, [0, 1, 2, 2, 3, 4]);
    assert_eq!(server.completed.received.len(), 1);
}

fn compare_and_swap_stores_only_what_was_expected(llp: Lower) {
    let (mut client, mut server) = pair(llp);
    let keys = register(&server, Access::REMOTE_ATOMIC);
    server.memory.write(128, &7u64.to_ne_bytes());
    for (wr_id, compare, swap) in [(0, 7, 100), (1, 7, 200)] {
        let operation = AtomicOperation::CompareSwap {
            compare,
            compare_mask: u64::MAX,
            swap,
            swap_mask: u64::MAX,
        };
        let sges = [client.sge(wr_id * 8, 8)];
        client.post(wr_id, atomic(keys, 128, operation), &sges, false);
    }
    settle(&mut client, &mut server, 100);
    assert_eq!(server.memory.to_vec(128, 8), 100u64.to_ne_bytes());
    assert_eq!(client.memory.to_vec(0, 8), 7u64.to_ne_bytes());
    assert_eq!(client.memory.to_vec(8, 8), 100u64.to_ne_bytes());
    assert_eq!(client.completed.sent[1].opcode, WcOpcode::CompareSwap);
}

fn a_fence_waits_for_reads(llp: Lower) {
    let (mut client, mut server) = pair(llp);
    let keys = register(&server, Access::REMOTE_READ | Access::REMOTE_WRITE);
    let sges = [client.sge(0, 8)];
    client.post(1, read(keys, 0), &sges, false);
    let before = client.waiting();
    client.post(2, write(keys, 0, None), &sges, true);
    assert_eq!(client.waiting(), before, "it waits");
    assert_eq!(client.engine.poll_timeout(), None);
    server.memory.write(0, b"original");
    settle(&mut client, &mut server, 100);
    assert_eq!(client.memory.to_vec(0, 8), b"original");
    assert_eq!(client.completed.sent.len(), 2);
}

fn inline_data_leaves_from_the_work_request(llp: Lower) {
    let (mut client, mut server) = pair(llp);
    let keys = register(&server, Access::REMOTE_WRITE);
    client.mrs.deregister(client.keys);
    client.engine.accept(RcSendWqe {
        wr_id: 1,
        work: write(keys, 10, None),
        data: RcData::Inline(b"inline".iter().copied().collect()),
        length: 6,
        signaled: false,
        solicited: false,
        fence: false,
        remote_srqn: 0,
    });
    client.work(|_, _, _| ());
    settle(&mut client, &mut server, 1);
    assert_eq!(server.memory.to_vec(9, 8), b"\0inline\0");
    assert_eq!(
        (client.completed.sent.len(), client.completed.retired),
        (0, 1)
    );
}

/// RFC 5040 §4.8: the target reports the error, and the source's work request ends with it, the others flushed.
fn what_the_peer_does_not_allow_ends_the_connection_on_both_sides(llp: Lower) {
    let none = Keys { lkey: 0, rkey: 99 };
    type Case = (Option<Access>, fn(Keys) -> RcWork, (u8, u8, u8));
    let cases: [Case; 5] = [
        (None, |keys| read(keys, 0), (0, 1, 0x00)),
        (
            Some(Access::REMOTE_WRITE),
            |keys| read(keys, 0),
            (0, 1, 0x02),
        ),
        (
            Some(Access::REMOTE_READ),
            |keys| read(keys, 16_380),
            (0, 1, 0x01),
        ),
        (
            Some(Access::REMOTE_ATOMIC),
            |keys| atomic(keys, 12, ADD_ONE),
            (0, 2, 0x07),
        ),
        (
            Some(Access::REMOTE_READ),
            |keys| atomic(keys, 16, ADD_ONE),
            (0, 1, 0x02),
        ),
    ];
    for (access, work, (layer, error_type, code)) in cases {
        let (mut client, mut server) = pair(llp);
        let keys = access.map_or(none, |access| register(&server, access));
        let sges = [client.sge(0, 8)];
        client.post(1, work(keys), &sges, false);
        client.post(2, RcWork::Send { invalidate: None }, &[], true);
        settle(&mut client, &mut server, 13);
        let cause = Cause {
            layer,
            error_type,
            code,
        };
        let Some(RcEnd::Stream(error)) = server.engine.end() else {
            panic!("{:?}", server.engine.end());
        };
        assert_eq!(error.cause(), Some(cause));
        assert_eq!(
            client.engine.end(),
            Some(RcEnd::Stream(StreamError::Terminated(cause)))
        );
        let statuses: Vec<_> = client.completed.sent.iter().map(|wc| wc.status).collect();
        let first = if error_type == 1 {
            WcStatus::RemoteAccess
        } else {
            WcStatus::RemoteOperation
        };
        assert_eq!(statuses, [first, WcStatus::Flushed], "{cause}");
    }
}

fn a_refused_write_is_reported_and_nothing_is_placed(llp: Lower) {
    let (mut client, mut server) = pair(llp);
    let keys = register(&server, Access::REMOTE_READ);
    client.memory.write(0, b"no");
    let sges = [client.sge(0, 2)];
    client.post(1, write(keys, 0, None), &sges, false);
    settle(&mut client, &mut server, 100);
    assert_eq!(server.memory.to_vec(0, 2), [0, 0]);
    let ended = RcEnd::Stream(StreamError::Terminated(Cause::ACCESS));
    assert_eq!(client.engine.end(), Some(ended));
    // It had completed here already: completion is local.
    assert_eq!(client.completed.sent[0].status, WcStatus::Success);
}

/// As a key without the right; nothing else changes.
fn what_the_queue_pair_does_not_allow_no_key_gives(llp: Lower) {
    type Case = (Access, fn(Keys) -> RcWork);
    let cases: [Case; 3] = [
        (Access::REMOTE_WRITE, |keys| write(keys, 0, None)),
        (Access::REMOTE_READ, |keys| read(keys, 0)),
        (Access::REMOTE_ATOMIC, |keys| atomic(keys, 16, ADD_ONE)),
    ];
    for (needed, work) in cases {
        for denied in [needed, Access::all() - needed] {
            let (mut client, mut server) = pair(llp);
            let keys = register(&server, Access::all());
            server.engine.deny(denied);
            client.memory.write(0, b"changes!");
            let sges = [client.sge(0, 8)];
            client.post(1, work(keys), &sges, false);
            settle(&mut client, &mut server, 100);
            if denied == needed {
                let ended = RcEnd::Stream(StreamError::Terminated(Cause::ACCESS));
                assert_eq!(client.engine.end(), Some(ended), "{needed:?}");
                assert_eq!(server.memory.to_vec(0, 24), [0; 24]);
            } else {
                assert_eq!(client.engine.end(), None, "{needed:?}");
                assert_eq!(client.completed.sent[0].status, WcStatus::Success);
            }
        }
    }
}

fn a_send_takes_a_key_away(llp: Lower) {
    let (mut client, mut server) = pair(llp);
    let all = Access::REMOTE_WRITE | Access::REMOTE_INVALIDATE;
    let keys = register(&server, all);
    let invalidating = RcWork::Send {
        invalidate: Some(STag::new(keys.rkey)),
    };
    server.post_recv(1, 0, 8);
    client.post(2, invalidating, &[], false);
    settle(&mut client, &mut server, 100);
    assert_eq!(server.completed.received[0].invalidated, Some(keys.rkey));
    let sges = [client.sge(0, 2)];
    client.post(3, write(keys, 0, None), &sges, false);
    settle(&mut client, &mut server, 100);
    let Some(RcEnd::Stream(StreamError::Terminated(cause))) = client.engine.end() else {
        panic!("{:?}", client.engine.end());
    };
    assert_eq!((cause.layer, cause.error_type, cause.code), (1, 1, 0));
}

fn a_key_is_taken_from_the_peers_by_its_owner(llp: Lower) {
    let (mut client, mut server) = pair(llp);
    let keys = register(&client, Access::REMOTE_READ);
    let stag = STag::new(keys.rkey);
    client.post(
        1,
        RcWork::Memory(MemoryWork::LocalInvalidate { stag }),
        &[],
        false,
    );
    settle(&mut client, &mut server, 100);
    let success = (1, WcOpcode::LocalInvalidate, WcStatus::Success);
    assert_eq!(outcomes(&client.completed.sent), [success]);
    client.post(
        2,
        RcWork::Memory(MemoryWork::LocalInvalidate { stag }),
        &[],
        false,
    );
    assert_eq!(client.completed.sent[1].status, WcStatus::MwBind);
    // RFC 5040 §7.1 rule 1: a local error is reported to the peer, without headers.
    settle(&mut client, &mut server, 100);
    let end = RcEnd::Stream(StreamError::Terminated(Cause::LOCAL));
    assert_eq!(server.engine.end(), Some(end));
}

fn memory_that_goes_away_under_a_read(llp: Lower) {
    // At the sink: our own program's fault.
    let (mut client, mut server) = pair(llp);
    let keys = register(&server, Access::REMOTE_READ);
    let sges = [client.sge(0, 8)];
    client.post(1, read(keys, 0), &sges, false);
    client.mrs.deregister(client.keys);
    settle(&mut client, &mut server, 100);
    assert_eq!(client.completed.sent[0].status, WcStatus::LocalProtection);
    assert_eq!(client.engine.end(), Some(RcEnd::LocalProtection));

    // At the source, after the request was taken, while the answer waits for TCP.
    let (mut client, mut server) = pair(llp);
    let keys = register(&server, Access::REMOTE_READ);
    let sges = [client.sge(0, 16_000)];
    for wr_id in 0..9 {
        client.post(wr_id, read(keys, 0), &sges, false);
    }
    client.carry_to(&mut server, 1000);
    server.mrs.deregister(keys);
    settle(&mut client, &mut server, 1000);
    let statuses: Vec<_> = client.completed.sent.iter().map(|wc| wc.status).collect();
    let (first, rest) = statuses.split_at(1);
    assert_eq!(first, [WcStatus::Success], "it had been copied");
    assert_eq!(rest[0], WcStatus::RemoteAccess);
    assert!(rest[1..].iter().all(|status| *status == WcStatus::Flushed));
}

#[test]
fn a_bad_crc_is_reported() {
    let (mut client, mut server) = pair(Lower::Mpa);
    client.post(1, RcWork::Send { invalidate: None }, &[], false);
    let mut octets = client.engine.poll_transmit(now()).to_vec();
    *octets.last_mut().unwrap() ^= 1;
    client
        .engine
        .transmitted(now(), octets.len(), &mut client.completed);
    // A Responder may send once it has received an FPDU; one with a bad CRC is none.
    client.post(2, RcWork::Send { invalidate: None }, &[], false);
    server.post_recv(3, 0, 0);
    let good = client.engine.poll_transmit(now()).to_vec();
    let (mut other, mut peer) = pair(Lower::Mpa);
    other.post(1, RcWork::Send { invalidate: None }, &[], false);
    peer.post_recv(3, 0, 0);
    other.carry_to(&mut peer, 100);
    for bad in [&octets, &good] {
        peer.work(|engine, tables, completed| engine.handle_input(now(), bad, tables, completed));
    }
    settle(&mut other, &mut peer, 100);
    let Some(RcEnd::Stream(StreamError::Terminated(cause))) = other.engine.end() else {
        panic!("{:?}", other.engine.end());
    };
    assert_eq!((cause.layer, cause.error_type, cause.code), (2, 0, 2));
}

fn a_connection_without_reads_fails_them(llp: Lower) {
    let (mut client, mut server) = pair_over(llp, 0, [PLAIN; 2]);
    let keys = register(&server, Access::REMOTE_READ);
    let sges = [client.sge(0, 8)];
    client.post(1, read(keys, 0), &sges, false);
    assert_eq!(client.completed.sent[0].status, WcStatus::General);
    assert_eq!(client.engine.end(), Some(RcEnd::NoReads));
    settle(&mut client, &mut server, 100);
}

/// One-sided MPI replaces memory and returns the old octets so, without a fence.
fn a_read_returns_the_octets_from_before_the_write_behind_it(llp: Lower) {
    let (mut client, mut server) = pair_over(llp, 4, [PLAIN; 2]);
    let keys = register(&server, Access::REMOTE_WRITE | Access::REMOTE_READ);
    client.memory.write(500, &[2; 100]);
    server.memory.write(100, &[1; 100]);
    for i in 0..3 {
        client.post(i, read(keys, 100), &[client.sge(1000 * i, 100)], false);
    }
    client.post(3, write(keys, 100, None), &[client.sge(500, 100)], false);
    client.post(4, read(keys, 100), &[client.sge(3000, 100)], false);
    // All of it is there when the server polls.
    for octets in client.take(usize::MAX) {
        let tables = Tables {
            mrs: &server.mrs,
            recv_queue: &server.receives,
        };
        let completed = &mut server.completed;
        server
            .engine
            .handle_input(now(), &octets, tables, completed);
    }
    server.work(|_, _, _| ());
    settle(&mut client, &mut server, 1 << 20);
    for i in 0..3 {
        assert_eq!(client.memory.to_vec(1000 * i, 100), [1; 100], "Read {i}");
    }
    assert_eq!(client.memory.to_vec(3000, 100), [2; 100]);
}
