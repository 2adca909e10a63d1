//! Writes and Reads that one end does alone: which, when, and in which order they complete.

use super::*;
use crate::connected::{OneSidedData, OneSidedSpan};
use crate::types::WcOpcode;
use dgiwarp_ddp::{STag, TaggedOffset};
use dgiwarp_rdmap::wire::AtomicOperation;

/// Octets of the longest Write and the longest Read.
const LONGEST: [u32; 2] = [32 << 10, 256 << 10];

/// Ends that know each other, of which nothing is under way.
fn pair() -> (End, End) {
    let (mut client, mut server) = pair_over(Lower::Mpa, 4, [RcOptions::default(); 2]);
    client.work(|_, _, _| ());
    settle(&mut client, &mut server);
    (client, server)
}

fn settle(client: &mut End, server: &mut End) {
    for _ in 0..4 {
        client.carry_to(server, 1000);
        server.carry_to(client, 1000);
    }
}

fn stag() -> STag {
    STag::new(0x1234)
}

fn write(immediate: Option<u32>) -> RcWork {
    RcWork::Write {
        stag: stag(),
        start: TaggedOffset::new(100),
        immediate,
    }
}

fn read() -> RcWork {
    RcWork::Read {
        stag: stag(),
        start: TaggedOffset::new(100),
    }
}

/// Posts without doing any of it.
fn post(end: &mut End, wr_id: u64, work: RcWork, sges: &[Sge]) {
    let length = sges.iter().map(|sge| sge.length).sum();
    post_of(end, wr_id, work, sges, length);
}

fn post_of(end: &mut End, wr_id: u64, work: RcWork, sges: &[Sge], length: u32) {
    end.engine.accept(RcSendWqe {
        wr_id,
        work,
        data: RcData::Sges(copy_sges(sges)),
        length,
        signaled: wr_id % 2 == 1,
        solicited: false,
        fence: false,
        remote_srqn: 0,
    });
}

/// Does the next work request alone, with its octets as `copy` sees them.
fn copy(end: &mut End, copy: impl FnOnce(&OneSidedData<'_>) -> bool) -> bool {
    let tables = Tables {
        mrs: &end.mrs,
        recv_queue: &end.receives,
    };
    end.engine.do_one_sided(tables, &mut end.completed, copy)
}

#[test]
fn writes_and_reads_without_anything_before_them_are_done_alone() {
    let (mut client, _server) = pair();
    assert_eq!(client.engine.next_one_sided(), None);
    let sges = [client.sge(0, 5), client.sge(50, 0), client.sge(10, 7)];
    post(&mut client, 1, write(None), &sges);
    post(&mut client, 2, read(), &sges);
    post(&mut client, 3, read(), &sges);
    let span = |write| OneSidedSpan {
        stag: 0x1234,
        start: 100,
        length: 12,
        write,
    };
    assert!(client.engine.is_next_one_sided());
    assert_eq!(client.engine.next_one_sided(), Some(span(true)));
    client.memory.write(0, b"first");
    client.memory.write(10, b", third");
    assert!(copy(&mut client, |data| {
        let OneSidedData::Write(pieces) = data else {
            panic!("a Write")
        };
        let mut octets = Vec::new();
        for piece in *pieces {
            let dgiwarp_memory::Piece::Region(slice) = piece else {
                panic!("registered memory")
            };
            let at = octets.len();
            octets.resize(at + slice.len(), 0);
            slice.copy_to(&mut octets[at..]);
        }
        assert_eq!((data.octets(), &octets[..]), (12, &b"first, third"[..]));
        true
    }));
    for _ in 0..2 {
        assert_eq!(client.engine.next_one_sided(), Some(span(false)));
        assert!(copy(&mut client, |data| {
            let OneSidedData::Read(slices) = data else {
                panic!("a Read")
            };
            slices[0].place(b"FIRST");
            slices[1].place(b", THIRD");
            true
        }));
    }
    assert_eq!(client.memory.to_vec(0, 17), b"FIRST\0\0\0\0\0, THIRD");
    let ids: Vec<_> = client
        .completed
        .sent
        .iter()
        .map(|wc| (wc.wr_id, wc.opcode))
        .collect();
    assert_eq!(ids, [(1, WcOpcode::RdmaWrite), (3, WcOpcode::RdmaRead)]);
    assert!(client.engine.has_completed_all() && client.engine.is_idle());
    assert_eq!(client.waiting(), 0);
}

/// The peer wakes up for the Send, and finds the Write before it.
#[test]
fn a_write_with_a_send_behind_goes_with_it() {
    let (mut client, _server) = pair();
    let sges = [client.sge(0, 8)];
    post(&mut client, 1, write(None), &sges);
    assert!(client.engine.next_one_sided().is_some());
    post(&mut client, 2, write(None), &sges);
    assert!(client.engine.next_one_sided().is_some());
    post(&mut client, 3, RcWork::Send { invalidate: None }, &sges);
    assert_eq!(client.engine.next_one_sided(), None);
}

#[test]
fn nothing_is_overtaken() {
    let (mut client, mut server) = pair();
    server.post_recv(7, 100, 64);
    let sges = [client.sge(0, 8)];
    let before: [RcWork; 3] = [RcWork::Send { invalidate: None }, write(Some(7)), read()];
    for (number, work) in before.into_iter().enumerate() {
        let (mut client, mut server) = pair();
        server.post_recv(7, 100, 64);
        let wr_id = 2 * number as u64;
        post(&mut client, wr_id, work, &sges);
        post(&mut client, 9, write(None), &sges);
        // One that waits, and one that has left and is not acknowledged.
        if !matches!(work, RcWork::Read { .. }) {
            assert_eq!(client.engine.next_one_sided(), None, "{work:?}");
        }
        client.work(|_, _, _| ());
        post(&mut client, 11, write(None), &sges);
        assert_eq!(client.engine.next_one_sided(), None, "{work:?}");
    }
    // It may be done once the peer has acknowledged what was before, although nobody has asked for a completion.
    post(&mut client, 2, RcWork::Send { invalidate: None }, &sges);
    client.work(|_, _, _| ());
    settle(&mut client, &mut server);
    post(&mut client, 3, write(None), &sges);
    assert_eq!(client.engine.next_one_sided(), None);
    let placed = server.engine.placed();
    client
        .engine
        .acknowledged_in_memory(placed, &mut client.completed);
    assert!(client.engine.next_one_sided().is_some());
}

#[test]
fn long_ones_immediates_and_atomics_are_for_the_peer() {
    let (mut client, _server) = pair();
    for (work, longest) in [(write(None), LONGEST[0]), (read(), LONGEST[1])] {
        for (length, may) in [(longest, true), (longest + 1, false)] {
            post_of(&mut client, 2, work, &[], length);
            assert_eq!(client.engine.is_next_one_sided(), may, "{work:?} {length}");
            assert_eq!(client.engine.next_one_sided().is_some(), may);
            client.engine.sends.flush(|_, _| ());
        }
    }
    let atomic = RcWork::Atomic {
        stag: stag(),
        start: TaggedOffset::new(0),
        operation: AtomicOperation::FetchAdd {
            add: 1,
            mask: u64::MAX,
        },
    };
    for work in [RcWork::Send { invalidate: None }, write(Some(1)), atomic] {
        post_of(&mut client, 2, work, &[], 8);
        assert!(!client.engine.is_next_one_sided(), "{work:?}");
        client.engine.sends.flush(|_, _| ());
    }
}

/// A copy that fails leaves the work request to the lane, and memory that it may not use ends the connection as ever.
#[test]
fn what_cannot_be_copied_goes_the_other_way() {
    let (mut client, _server) = pair();
    let sges = [client.sge(0, 8)];
    post(&mut client, 1, write(None), &sges);
    assert!(!copy(&mut client, |_| false));
    assert!(client.engine.next_one_sided().is_some());
    client.work(|_, _, _| ());
    assert!(client.waiting() > 0, "it has left");
    for work in [write(None), read()] {
        let (mut client, _server) = pair();
        let beyond = [client.sge(16_380, 8)];
        post(&mut client, 1, work, &beyond);
        assert!(!copy(&mut client, |_| panic!("no memory to copy")));
        client.work(|_, _, _| ());
        let status: Vec<_> = client.completed.sent.iter().map(|wc| wc.status).collect();
        if matches!(work, RcWork::Write { .. }) {
            assert_eq!(status, [WcStatus::LocalProtection]);
        }
    }
}

/// Ends that know nothing of each other, or complete locally, do nothing alone.
#[test]
fn plain_peers_do_nothing_alone() {
    let (mut client, _server) = pair_over(Lower::Mpa, 4, [PLAIN; 2]);
    let sges = [client.sge(0, 8)];
    post(&mut client, 1, write(None), &sges);
    assert!(client.engine.is_next_one_sided());
    assert_eq!(client.engine.next_one_sided(), None);
}
