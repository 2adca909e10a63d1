//! Windows, fast registration and invalidation in the order of the send queue, between two engines.

use dgiwarp_ddp::{STag, TaggedOffset};
use dgiwarp_memory::Access;
use dgiwarp_rdmap::wire::Cause;

use super::*;
use super::{End, Lower, PD, now, over_each_llp, pair};
use crate::mr::{Bind, BindError, Keys, increment};
use crate::types::{MwType, Wc, WcOpcode};

over_each_llp! {
    a_window_is_bound_used_and_invalidated,
    what_a_window_refuses,
    a_window_of_another_stream_is_not_associated,
    fast_registration_in_the_order_of_the_queue,
    memory_work_that_fails_ends_the_connection_in_order,
}

fn settle(a: &mut End, b: &mut End) {
    while !(a.engine.poll_transmit(now()).is_empty() && b.engine.poll_transmit(now()).is_empty()) {
        a.carry_to(b, 100);
        b.carry_to(a, 100);
    }
}

/// The peer's memory at `addr`, by this key.
fn write(rkey: u32, addr: u64) -> RcWork {
    RcWork::Write {
        stag: STag::new(rkey),
        start: TaggedOffset::new(addr),
        immediate: None,
    }
}

fn read(rkey: u32, addr: u64) -> RcWork {
    RcWork::Read {
        stag: STag::new(rkey),
        start: TaggedOffset::new(addr),
    }
}

fn send(invalidate: Option<u32>) -> RcWork {
    RcWork::Send {
        invalidate: invalidate.map(STag::new),
    }
}

fn bind(rkey: u32, region: Keys) -> RcWork {
    RcWork::Memory(MemoryWork::BindMw(Bind {
        kind: MwType::Two,
        rkey,
        lkey: region.lkey,
        addr: 1000,
        length: 100,
        access: Access::REMOTE_WRITE | Access::REMOTE_READ,
        zero_based: true,
    }))
}

fn invalidate(rkey: u32) -> RcWork {
    let stag = STag::new(rkey);
    RcWork::Memory(MemoryWork::LocalInvalidate { stag })
}

/// A region of the server's for windows, and a window.
fn windowed(server: &End) -> (Keys, u32) {
    let access = Access::LOCAL_WRITE | Access::MW_BIND;
    let region = server.mrs.register(server.memory.region(), 0, access, PD);
    (region, server.mrs.alloc_mw(PD, MwType::Two))
}

/// The client sends first, so that the server may send.
fn warm_up(client: &mut End, server: &mut End) {
    client.post(
        1,
        RcWork::Write {
            stag: STag::new(0),
            start: TaggedOffset::new(0),
            immediate: None,
        },
        &[],
        false,
    );
    settle(client, server);
    client.completed.sent.clear();
}

fn outcomes(wcs: &[Wc]) -> Vec<(u64, WcOpcode, WcStatus)> {
    let outcome = |wc: &Wc| (wc.wr_id, wc.opcode, wc.status);
    wcs.iter().map(outcome).collect()
}

fn a_window_is_bound_used_and_invalidated(llp: Lower) {
    let (mut client, mut server) = pair(llp);
    warm_up(&mut client, &mut server);
    let (region, mut key) = windowed(&server);
    for by_peer in [false, true, false] {
        key = increment(key);
        client.post_recv(1, 0, 8);
        server.post(2, bind(key, region), &[], false);
        server.post(3, send(None), &[], false);
        settle(&mut client, &mut server);
        client.memory.write(100, b"through the window");
        let sges = [client.sge(100, 18)];
        client.post(4, write(key, 50), &sges, false);
        let sges = [client.sge(200, 18)];
        client.post(5, read(key, 50), &sges, false);
        settle(&mut client, &mut server);
        assert_eq!(server.memory.to_vec(1050, 18), b"through the window");
        assert_eq!(client.memory.to_vec(200, 18), b"through the window");
        server.post_recv(6, 0, 8);
        client.post(7, send(by_peer.then_some(key)), &[], false);
        settle(&mut client, &mut server);
        let invalidated = server.completed.received[0].invalidated;
        assert_eq!(invalidated, by_peer.then_some(key));
        if !by_peer {
            server.post(8, invalidate(key), &[], false);
        }
        let ok = WcStatus::Success;
        let mut expected = vec![(2, WcOpcode::BindMw, ok), (3, WcOpcode::Send, ok)];
        expected.extend((!by_peer).then_some((8, WcOpcode::LocalInvalidate, ok)));
        assert_eq!(outcomes(&server.completed.sent), expected);
        for end in [&mut client, &mut server] {
            end.completed.sent.clear();
            end.completed.received.clear();
        }
    }
    // Afterwards its key names nothing.
    let sges = [client.sge(0, 1)];
    client.post(9, write(key, 0), &sges, false);
    settle(&mut client, &mut server);
    let Some(RcEnd::Stream(StreamError::Terminated(cause))) = client.engine.end() else {
        panic!("{:?}", client.engine.end());
    };
    assert_eq!((cause.layer, cause.error_type, cause.code), (1, 1, 0));
}

/// RFC 5041 §7.2 and RFC 5040 §4.8: what a window refuses has its code, in the layer that finds it.
fn what_a_window_refuses(llp: Lower) {
    type Case = (&'static str, fn(&mut Bind, &mut RcWork), (u8, u8, u8));
    let cases: [Case; 5] = [
        (
            "write out of bounds",
            |_, work| *work = write(0, 100),
            (1, 1, 1),
        ),
        (
            "read out of bounds",
            |_, work| *work = read(0, 100),
            (0, 1, 1),
        ),
        (
            "no right to write",
            |bind, work| {
                bind.access = Access::REMOTE_READ;
                *work = write(0, 0);
            },
            (0, 1, 2),
        ),
        (
            "no right to read",
            |bind, work| {
                bind.access = Access::REMOTE_WRITE;
                *work = read(0, 0);
            },
            (0, 1, 2),
        ),
        (
            "not invalidated by the peer of type 1",
            |bind, work| {
                bind.kind = MwType::One;
                *work = send(Some(0));
            },
            (0, 1, 9),
        ),
    ];
    for (what, change, expected) in cases {
        let (mut client, mut server) = pair(llp);
        let (region, mut key) = windowed(&server);
        let mut work = send(None);
        let RcWork::Memory(MemoryWork::BindMw(mut binding)) = bind(key, region) else {
            unreachable!("made above");
        };
        change(&mut binding, &mut work);
        if binding.kind == MwType::One {
            key = server.mrs.alloc_mw(PD, MwType::One);
            binding.rkey = key;
        }
        match &mut work {
            RcWork::Write { stag, .. } | RcWork::Read { stag, .. } => *stag = STag::new(key),
            RcWork::Send { invalidate } => *invalidate = Some(STag::new(key)),
            RcWork::SendImmediate { .. } | RcWork::Atomic { .. } | RcWork::Memory(_) => {
                unreachable!("none of them")
            }
        }
        server
            .mrs
            .bind(server.engine.config.stream(), &binding)
            .unwrap();
        server.post_recv(1, 0, 8);
        let sges = [client.sge(0, 8)];
        client.post(1, work, &sges, false);
        settle(&mut client, &mut server);
        let Some(RcEnd::Stream(StreamError::Terminated(cause))) = client.engine.end() else {
            panic!("{what}: {:?}", client.engine.end());
        };
        let found = (cause.layer, cause.error_type, cause.code);
        assert_eq!(found, expected, "{what}");
        assert_eq!(server.memory.to_vec(1000, 8), [0; 8], "{what}");
    }
}

fn a_window_of_another_stream_is_not_associated(llp: Lower) {
    type Case = (fn(u32, u64) -> RcWork, (u8, u8, u8));
    let cases: [Case; 2] = [(write, (1, 1, 2)), (read, (0, 1, 3))];
    for (work, expected) in cases {
        let (mut client, mut server) = pair(llp);
        let (region, key) = windowed(&server);
        let RcWork::Memory(MemoryWork::BindMw(binding)) = bind(key, region) else {
            unreachable!("made above");
        };
        let elsewhere = StreamId { pd: PD, qpn: 1 };
        server.mrs.bind(elsewhere, &binding).unwrap();
        let sges = [client.sge(0, 8)];
        client.post(1, work(key, 0), &sges, false);
        settle(&mut client, &mut server);
        let Some(RcEnd::Stream(StreamError::Terminated(cause))) = client.engine.end() else {
            panic!("{:?}", client.engine.end());
        };
        assert_eq!((cause.layer, cause.error_type, cause.code), expected);
    }
}

/// A registration is there for the work request behind it, and gone for the one behind its invalidation.
fn fast_registration_in_the_order_of_the_queue(llp: Lower) {
    let (mut client, mut server) = pair(llp);
    let target = server
        .mrs
        .register(server.memory.region(), 0, Access::REMOTE_WRITE, PD);
    let first = client.mrs.alloc_fast(PD);
    let mut rkey = first.rkey;
    for text in [b"one", b"two"] {
        rkey = increment(rkey);
        client.memory.write(5000, text);
        client.mrs.map(rkey, client.memory.region(), 0);
        let access = Access::LOCAL_WRITE;
        let register = RcWork::Memory(MemoryWork::RegisterMr { rkey, access });
        let sge = Sge {
            addr: 5000,
            length: 3,
            lkey: first.lkey & !0xff | rkey & 0xff,
        };
        client.post(1, register, &[], false);
        client.post(2, write(target.rkey, 0), &[sge], false);
        client.post(3, invalidate(rkey), &[], false);
        settle(&mut client, &mut server);
        assert_eq!(server.memory.to_vec(0, 3), text);
        let ok = WcStatus::Success;
        let expected = [
            (1, WcOpcode::RegisterMr, ok),
            (2, WcOpcode::RdmaWrite, ok),
            (3, WcOpcode::LocalInvalidate, ok),
        ];
        assert_eq!(outcomes(&client.completed.sent), expected);
        client.completed.sent.clear();
    }
    let sge = Sge {
        addr: 5000,
        length: 3,
        lkey: first.lkey & !0xff | rkey & 0xff,
    };
    client.post(4, write(target.rkey, 0), &[sge], false);
    assert_eq!(client.completed.sent[0].status, WcStatus::LocalProtection);
}

fn memory_work_that_fails_ends_the_connection_in_order(llp: Lower) {
    let (mut client, mut server) = pair(llp);
    let keys = server
        .mrs
        .register(server.memory.region(), 0, Access::REMOTE_READ, PD);
    let mw = client.mrs.alloc_mw(PD, MwType::Two);
    let sges = [client.sge(0, 8)];
    client.post(1, read(keys.rkey, 0), &sges, false);
    let bad = bind(mw, Keys { lkey: 1, rkey: 2 });
    // Behind a fence it waits for the Read.
    client.post(2, bad, &[], true);
    client.post(3, send(None), &[], false);
    assert!(client.completed.sent.is_empty());
    settle(&mut client, &mut server);
    let expected = [
        (1, WcOpcode::RdmaRead, WcStatus::Success),
        (2, WcOpcode::BindMw, WcStatus::MwBind),
        (3, WcOpcode::Send, WcStatus::Flushed),
    ];
    assert_eq!(outcomes(&client.completed.sent), expected);
    assert_eq!(
        client.engine.end(),
        Some(RcEnd::Bind(BindError::UnknownRegion(1)))
    );
    let end = RcEnd::Stream(StreamError::Terminated(Cause::LOCAL));
    assert_eq!(server.engine.end(), Some(end));
}

/// RFC 5044 §7.1.2 rule 4 makes a Responder wait; a binding has nothing that would leave.
#[test]
fn a_binding_needs_no_leave_to_send() {
    let (_client, mut server) = pair(Lower::Mpa);
    let (region, key) = windowed(&server);
    server.post(1, bind(key, region), &[], false);
    server.post(2, send(None), &[], false);
    server.post(3, invalidate(key), &[], false);
    let bound = [(1, WcOpcode::BindMw, WcStatus::Success)];
    assert_eq!(outcomes(&server.completed.sent), bound);
    assert!(server.engine.poll_transmit(now()).is_empty());
}
