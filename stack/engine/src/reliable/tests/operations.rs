//! Operations on the peer's memory, immediates and invalidation, under loss too.

use dgiwarp_ddp::{STag, TaggedOffset};
use dgiwarp_rdmap::wire::AtomicOperation;

use super::*;
use crate::types::WcOpcode;

/// Octets of messages, in the second half of each memory.
const HERE: u64 = 1 << 19;
/// A place in the peer's memory.
const THERE: u64 = 3 << 18;

impl End {
    fn data(&self, addr: u64, length: u32) -> RcData {
        RcData::Sges(SgeList::from_slice(&[Sge {
            addr,
            length,
            lkey: self.lkey,
        }]))
    }

    fn stag(&self) -> STag {
        STag::new(self.keys.rkey)
    }

    fn octets(&self, at: u64, length: u32) -> Vec<u8> {
        let at = usize::try_from(at).unwrap();
        self.memory.to_vec(at, length.try_into().unwrap())
    }

    fn fill(&self, at: u64, length: u32, seed: u32) -> Vec<u8> {
        let octets: Vec<u8> = (0..length).map(|it| pattern(it + seed)).collect();
        self.memory.write(usize::try_from(at).unwrap(), &octets);
        octets
    }
}

/// Two ends, of which the second has receives.
fn two(now: Instant, receives: u64) -> [End; 2] {
    [End::new(now, 1, 0), End::new(now, 2, receives)]
}

/// One datagram of seven is lost, in both directions.
fn seventh() -> impl FnMut(u16) -> bool {
    let mut count = 0;
    move |_| {
        count += 1;
        count % 7 == 0
    }
}

fn write(ends: &[End; 2], at: u64, immediate: Option<u32>) -> RcWork {
    RcWork::Write {
        stag: ends[1].stag(),
        start: TaggedOffset::new(at),
        immediate,
    }
}

fn read(ends: &[End; 2], at: u64) -> RcWork {
    RcWork::Read {
        stag: ends[1].stag(),
        start: TaggedOffset::new(at),
    }
}

/// Writes and what follows them, of all lengths around those of segments.
#[test]
fn writes_place_octets_and_immediates_follow_them() {
    let mut now = origin();
    let mut ends = two(now, 16);
    let lengths = [0, 1, 1410, 1411, 2820, 2821, 20_000];
    for (seed, length) in (0..).zip(lengths) {
        let sent = ends[0].fill(HERE, length, seed);
        let data = ends[0].data(HERE, length);
        let work = write(&ends, THERE, None);
        ends[0].post(2, (2, QKEY), work, data);
        talk(&mut now, 200 * MS, &mut ends, seventh());
        assert_eq!(ends[0].sent(), [(2, OK)], "{length}");
        assert_eq!(ends[1].octets(THERE, length), sent);
        assert_eq!(ends[1].received(), [], "a Write takes no receive");

        let sent = ends[0].fill(HERE, length, seed + 50);
        let data = ends[0].data(HERE, length);
        let work = write(&ends, THERE, Some(0xcafe + seed));
        ends[0].post(3, (2, QKEY), work, data);
        talk(&mut now, 200 * MS, &mut ends, seventh());
        assert_eq!(ends[0].sent(), [(3, OK)], "{length}");
        let [wc] = ends[1].received()[..] else {
            panic!("a completion for {length}");
        };
        assert_eq!(wc.opcode, WcOpcode::RecvRdmaWithImmediate);
        assert_eq!((wc.status, wc.byte_len), (OK, length));
        assert_eq!((wc.immediate, wc.solicited), (Some(0xcafe + seed), true));
        assert_eq!(ends[1].octets(THERE, length), sent);
    }
    assert_eq!(ends[1].queue.len(), 16 - lengths.len());
}

#[test]
fn sends_carry_immediates_and_inline_octets() {
    let mut now = origin();
    let mut ends = two(now, 16);
    for length in [0, 1, 1406, 1407, 5000] {
        let sent = ends[0].fill(HERE, length, 9);
        let data = ends[0].data(HERE, length);
        let work = RcWork::SendImmediate { immediate: 77 };
        ends[0].post(2, (2, QKEY), work, data);
        talk(&mut now, 200 * MS, &mut ends, seventh());
        assert_eq!(ends[0].sent(), [(2, OK)], "{length}");
        let [wc] = ends[1].received()[..] else {
            panic!("a completion for {length}");
        };
        assert_eq!(
            (wc.opcode, wc.status, wc.byte_len),
            (WcOpcode::Recv, OK, length)
        );
        assert_eq!((wc.immediate, wc.solicited), (Some(77), false));
        assert_eq!(ends[1].octets(wc.wr_id * u64::from(ROOM), length), sent);
    }
    let inline = RcData::Inline(b"of the post"[..].into());
    let work = RcWork::Send { invalidate: None };
    ends[0].post(5, (2, QKEY), work, inline);
    talk(&mut now, 20 * MS, &mut ends, |_| false);
    let wc = ends[1].received()[0];
    assert_eq!((wc.byte_len, wc.immediate, wc.solicited), (11, None, true));
    assert_eq!(
        ends[1].octets(wc.wr_id * u64::from(ROOM), 11),
        b"of the post"
    );
}

#[test]
fn reads_return_octets_in_the_order_of_posts() {
    let mut now = origin();
    let mut ends = two(now, 16);
    let lengths = [0, 1, 1410, 1411, 40_000];
    for (seed, length) in (0..).zip(lengths) {
        // Behind a Write to the same place, which it sees, and before a Send.
        let sent = ends[0].fill(HERE, length, seed);
        let data = ends[0].data(HERE, length);
        let work = write(&ends, THERE, None);
        ends[0].post(1, (2, QKEY), work, data);
        let data = ends[0].data(THERE, length);
        let work = read(&ends, THERE);
        ends[0].post(2, (2, QKEY), work, data);
        ends[0].send(3, 2, QKEY, 10);
        talk(&mut now, 400 * MS, &mut ends, seventh());
        let done = ends[0].sent();
        assert_eq!(done, [(1, OK), (2, OK), (3, OK)], "{length}");
        if length > 10 {
            assert_eq!(ends[0].octets(THERE + 10, length - 10), sent[10..]);
        }
    }
    assert_eq!(ends[0].engine.outstanding(), 0);
}

/// More Reads than may be outstanding wait, and all get their octets, in order.
#[test]
fn many_requests_take_turns() {
    let mut now = origin();
    let mut ends = two(now, 1);
    ends[1].fill(THERE, 64_000, 5);
    for wr_id in 0..64 {
        let data = ends[0].data(HERE + wr_id * 1000, 1000);
        let work = read(&ends, THERE + wr_id * 1000);
        ends[0].post(wr_id, (2, QKEY), work, data);
    }
    ends[0].send(64, 2, QKEY, 10);
    talk(&mut now, 1000 * MS, &mut ends, seventh());
    let expected: Vec<_> = (0..65).map(|wr_id| (wr_id, OK)).collect();
    assert_eq!(ends[0].sent(), expected);
    let (got, there) = (
        ends[0].octets(HERE + 10, 63_990),
        ends[1].octets(THERE + 10, 63_990),
    );
    assert_eq!(got, there);
}

/// Each addition is made once, whatever is lost or comes twice, and each former value is seen once.
#[test]
fn atomics_are_carried_out_once() {
    let mut now = origin();
    let mut ends = two(now, 0);
    ends[1]
        .memory
        .write(usize::try_from(THERE).unwrap(), &[0; 8]);
    for wr_id in 0..100 {
        let data = ends[0].data(HERE + wr_id * 8, 8);
        let work = RcWork::Atomic {
            stag: ends[1].stag(),
            start: TaggedOffset::new(THERE),
            operation: AtomicOperation::FetchAdd { add: 1, mask: 0 },
        };
        ends[0].post(wr_id, (2, QKEY), work, data);
    }
    talk(&mut now, 2000 * MS, &mut ends, seventh());
    let expected: Vec<_> = (0..100).map(|wr_id| (wr_id, OK)).collect();
    assert_eq!(ends[0].sent(), expected);
    let value = |end: &End, at| u64::from_ne_bytes(end.octets(at, 8).try_into().unwrap());
    assert_eq!(value(&ends[1], THERE), 100);
    for wr_id in 0..100 {
        assert_eq!(value(&ends[0], HERE + wr_id * 8), wr_id);
    }
    let data = ends[0].data(HERE, 8);
    let work = RcWork::Atomic {
        stag: ends[1].stag(),
        start: TaggedOffset::new(THERE),
        operation: AtomicOperation::CompareSwap {
            compare: 100,
            compare_mask: u64::MAX,
            swap: 7,
            swap_mask: u64::MAX,
        },
    };
    ends[0].post(0, (2, QKEY), work, data);
    talk(&mut now, 20 * MS, &mut ends, |_| false);
    assert_eq!((value(&ends[0], HERE), value(&ends[1], THERE)), (100, 7));
}

#[test]
fn a_send_invalidates_a_key_of_its_peer_alone() {
    let mut now = origin();
    let mut ends = two(now, 4);
    let rights = RIGHTS.union(Access::REMOTE_INVALIDATE);
    let keys = ends[1].mrs.register(ends[1].memory.region(), 0, rights, PD);
    let foreign = ends[1]
        .mrs
        .register(ends[1].memory.region(), 0, rights, PdId(9));
    let send = |stag| RcWork::Send {
        invalidate: Some(STag::new(stag)),
    };
    let data = ends[0].data(HERE, 5000);
    ends[0].post(1, (2, QKEY), send(keys.rkey), data);
    talk(&mut now, 100 * MS, &mut ends, seventh());
    assert_eq!(ends[0].sent(), [(1, OK)]);
    let wc = ends[1].received()[0];
    assert_eq!((wc.status, wc.invalidated), (OK, Some(keys.rkey)));
    // Gone now, of another domain, or without the right.
    for stag in [keys.rkey, foreign.rkey, ends[1].keys.rkey] {
        let data = ends[0].data(HERE, 10);
        ends[0].post(2, (2, QKEY), send(stag), data);
        talk(&mut now, 100 * MS, &mut ends, |_| false);
        assert_eq!(ends[0].sent(), [(2, WcStatus::RemoteAccess)]);
    }
    assert_eq!((ends[1].received(), ends[1].queue.len()), (vec![], 3));
}

/// An operation that the peer's memory does not allow fails, changes nothing there, and what follows goes on.
#[test]
fn access_errors_are_those_of_rc() {
    let mut now = origin();
    let mut ends = two(now, 4);
    let private = ends[1]
        .mrs
        .register(ends[1].memory.region(), 0, Access::LOCAL_WRITE, PD);
    let foreign = ends[1]
        .mrs
        .register(ends[1].memory.region(), 0, RIGHTS, PdId(9));
    let end = 1 << 20;
    let key = ends[1].keys.rkey;
    let rows = [
        (key ^ 0x5a5a_0000, THERE),
        (private.rkey, THERE),
        (foreign.rkey, THERE),
        (key, end - 4),
        (key, u64::MAX - 4),
    ];
    ends[1].fill(THERE, 8, 3);
    let before = ends[1].octets(0, 1 << 20);
    for (stag, at) in rows {
        let (stag, start) = (STag::new(stag), TaggedOffset::new(at));
        let add = AtomicOperation::FetchAdd { add: 1, mask: 0 };
        let works = [
            RcWork::Write {
                stag,
                start,
                immediate: None,
            },
            RcWork::Write {
                stag,
                start,
                immediate: Some(1),
            },
            RcWork::Read { stag, start },
            RcWork::Atomic {
                stag,
                start,
                operation: add,
            },
        ];
        for work in works {
            let data = ends[0].data(HERE, 8);
            ends[0].post(2, (2, QKEY), work, data);
            let data = ends[0].data(HERE, 8);
            let behind = read(&ends, THERE);
            ends[0].post(4, (2, QKEY), behind, data);
            talk(&mut now, 100 * MS, &mut ends, |_| false);
            let [first, second] = ends[0].sent()[..] else {
                panic!("both end: {work:?}");
            };
            assert_eq!(first, (2, WcStatus::RemoteAccess), "{work:?}");
            assert_ne!(second, (4, OK), "{work:?}");
            for wc in ends[1].received() {
                assert_eq!(wc.status, WcStatus::RemoteOperation, "{work:?}");
                ends[1].post_recv(wc.wr_id);
            }
        }
    }
    assert_eq!(ends[1].octets(0, 1 << 20), before);
    let data = ends[0].data(HERE, 8);
    let odd = RcWork::Atomic {
        stag: STag::new(key),
        start: TaggedOffset::new(THERE + 4),
        operation: AtomicOperation::FetchAdd { add: 1, mask: 0 },
    };
    ends[0].post(5, (2, QKEY), odd, data);
    talk(&mut now, 100 * MS, &mut ends, |_| false);
    assert_eq!(ends[0].sent(), [(5, WcStatus::RemoteOperation)]);
    let data = ends[0].data(HERE, 8);
    let work = read(&ends, THERE);
    ends[0].post(6, (2, QKEY), work, data);
    talk(&mut now, 100 * MS, &mut ends, |_| false);
    assert_eq!(ends[0].sent(), [(6, OK)]);
}

/// Memory that goes between a request and its turn: the request is refused behind its acknowledgement.
#[test]
fn a_request_whose_memory_is_gone_is_refused_in_its_turn() {
    let mut now = origin();
    let mut ends = two(now, 4);
    ends[0].send(0, 2, QKEY, 10);
    talk(&mut now, 20 * MS, &mut ends, |_| false);
    assert_eq!(ends[0].sent(), [(0, OK)]);
    let keys = ends[1].mrs.register(ends[1].memory.region(), 0, RIGHTS, PD);
    // Of what leaves, the Read alone arrives, and waits for the Send before it.
    ends[0].send(1, 2, QKEY, 1400);
    let data = ends[0].data(HERE, 8);
    let work = RcWork::Read {
        stag: STag::new(keys.rkey),
        start: TaggedOffset::new(THERE),
    };
    ends[0].post(2, (2, QKEY), work, data);
    let mut count = 0;
    talk(&mut now, MS, &mut ends, |to| {
        count += u32::from(to == 2);
        to == 2 && count != 2
    });
    ends[1].mrs.deregister(keys);
    talk(&mut now, 100 * MS, &mut ends, |_| false);
    assert_eq!(ends[0].sent(), [(1, OK), (2, WcStatus::RemoteAccess)]);
    assert_eq!(ends[0].engine.outstanding(), 0);
}

/// A peer that ends takes Reads with it, also those that it acknowledged.
#[test]
fn requests_end_with_their_association() {
    let mut now = origin();
    let mut ends = two(now, 0);
    for wr_id in 0..20 {
        let data = ends[0].data(HERE, 8000);
        let work = read(&ends, THERE);
        ends[0].post(wr_id, (2, QKEY), work, data);
    }
    // No response comes.
    talk(&mut now, 20 * MS, &mut ends, |to| to == 1);
    let End {
        engine,
        mrs,
        queue,
        completed,
        ..
    } = &mut ends[1];
    let tables = Tables {
        mrs,
        recv_queue: queue,
    };
    engine.close(now, tables, completed);
    talk(&mut now, 5000 * MS, &mut ends, |_| false);
    let sent = ends[0].sent();
    assert_eq!(sent.len(), 20);
    assert!(sent.iter().all(|(_, status)| *status != OK), "{sent:?}");
    assert_eq!(ends[0].engine.outstanding(), 0);
    let data = ends[0].data(HERE, 8000);
    let work = read(&ends, THERE);
    ends[0].post(30, (2, QKEY), work, data);
    talk(&mut now, 1000 * MS, &mut ends, |_| false);
    assert_eq!(ends[0].sent(), [(30, OK)]);
}

/// A target that goes when it has acknowledged a Read is found to be gone, though nothing is in flight to it.
#[test]
fn a_target_that_owes_a_response_and_is_silent_is_gone() {
    let mut now = origin();
    let mut ends = two(now, 0);
    let data = ends[0].data(HERE, 40_000);
    let work = read(&ends, THERE);
    ends[0].post(1, (2, QKEY), work, data);
    let mut count = 0;
    talk(&mut now, 3000 * MS, &mut ends, |to| {
        count += u32::from(to == 1);
        to == 1 && count > 2
    });
    assert_eq!(ends[0].sent(), []);
    talk(&mut now, 3000 * MS, &mut ends, |to| to == 1);
    assert_eq!(ends[0].sent(), [(1, WcStatus::RetryExceeded)]);
}
