//! Registration, restrictions and the way out of the table.

mod grants;

use super::*;
use dgiwarp_ddp::{STag, TaggedOffset};
use dgiwarp_memory::Buffer;
use rand::SeedableRng;
use std::cell::Cell;
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};

const PD: PdId = PdId(1);
const STREAM: StreamId = StreamId { pd: PD, qpn: 7 };

fn table() -> MrTable {
    MrTable::new(ChaCha20Rng::seed_from_u64(1))
}

fn span(rkey: u32, start: u64, length: u32) -> TaggedSpan {
    TaggedSpan {
        stag: STag::new(rkey),
        start: TaggedOffset::new(start),
        length,
    }
}

#[test]
fn a_peer_gets_only_what_was_given() {
    let table = table();
    let region = Buffer::zeroed(100).unwrap().region();
    let keys = table.register(region.clone(), 1000, Access::REMOTE_WRITE, PD);
    let check = |stag, start, length, pd| {
        table
            .remote(
                StreamId { pd, qpn: 7 },
                span(stag, start, length),
                Access::REMOTE_WRITE,
            )
            .map(|_| ())
    };
    assert_eq!(check(keys.rkey, 1000, 100, PD), Ok(()));
    assert_eq!(check(keys.rkey, 1100, 0, PD), Ok(()));
    for (start, length) in [(999, 1), (1000, 101), (1100, 1), (0, u32::MAX)] {
        assert_eq!(
            check(keys.rkey, start, length, PD),
            Err(TaggedError::BaseOrBounds)
        );
    }
    assert_eq!(check(keys.rkey, u64::MAX, 2, PD), Err(TaggedError::Wrap));
    assert_eq!(
        check(keys.rkey, 1000, 1, PdId(2)),
        Err(TaggedError::NotAssociated)
    );
    let local_only = table.register(region, 1000, Access::LOCAL_WRITE, PD);
    assert_eq!(
        check(local_only.rkey, 1000, 1, PD),
        Err(TaggedError::Access)
    );
    table.deregister(local_only);
    assert_eq!(
        check(local_only.rkey, 1000, 1, PD),
        Err(TaggedError::InvalidStag)
    );
}

/// §5: the first check that fails names the reason, and restrictions stand between access and bounds.
#[test]
fn restrictions_are_checked_in_the_order_of_the_specification() {
    let table = table();
    let peer = Peer::ip("192.0.2.1:7".parse().unwrap());
    let terms = Terms {
        iova: 0,
        access: Access::REMOTE_WRITE,
        pd: PD,
        only_from: Some(peer),
        cookie: true,
        well_known: None,
    };
    let region = Buffer::zeroed(8).unwrap().region();
    let keys = table.register_with(region.clone(), terms).unwrap();
    let try_from = |peer: &str, to_group, cookie_valid, length| {
        let origin = Origin {
            peer: Peer::ip(peer.parse().unwrap()),
            to_group,
            cookie_valid,
        };
        let found = table.write_record(PD, origin, span(keys.rkey, 0, length));
        found.map(|_| ())
    };
    let other_port = try_from("192.0.2.1:8", true, false, 9);
    assert_eq!(other_port, Err(DropReason::WrongPeer));
    let peer = "[::ffff:192.0.2.1]:7";
    assert_eq!(try_from(peer, true, false, 9), Err(DropReason::BadCookie));
    assert_eq!(try_from(peer, true, true, 9), Err(DropReason::NotWellKnown));
    assert_eq!(try_from(peer, false, true, 9), Err(DropReason::OutOfBounds));
    assert_eq!(try_from(peer, false, true, 8), Ok(()));
    let connected = table.remote(STREAM, span(keys.rkey, 0, 8), Access::REMOTE_WRITE);
    assert_eq!(connected.map(|_| ()), Err(TaggedError::Access));
}

#[test]
fn a_chosen_stag_is_given_once_at_a_time() {
    let table = table();
    let region = Buffer::zeroed(8).unwrap().region();
    let choose = |stag| {
        let terms = Terms {
            iova: 0,
            access: Access::REMOTE_WRITE,
            pd: PD,
            only_from: None,
            cookie: false,
            well_known: Some(stag),
        };
        table.register_with(region.clone(), terms)
    };
    let keys = choose(0x4711).unwrap();
    assert_eq!(keys.rkey, 0x4711);
    assert_eq!(keys.lkey, 0x4711);
    let other = table.register(region.clone(), 0, Access::LOCAL_WRITE, PD);
    for taken in [0x4711, other.lkey, other.rkey, 0, u32::MAX] {
        assert_eq!(choose(taken), Err(RegisterError::StagTaken), "{taken:#x}");
    }
    let to_group = Origin {
        to_group: true,
        ..Peer::ip("192.0.2.1:7".parse().unwrap()).into()
    };
    let found = table.write_record(PD, to_group, span(0x4711, 0, 8));
    assert!(found.is_ok());
    drop(found);
    table.deregister(keys);
    assert!(choose(0x4711).is_ok(), "may be chosen again at once");
}

#[test]
fn a_peer_invalidates_only_what_it_may_and_nothing_lands_there_afterwards() {
    let table = table();
    let region = Buffer::zeroed(8).unwrap().region();
    let all = Access::REMOTE_WRITE | Access::REMOTE_INVALIDATE;
    let keys = table.register(region.clone(), 0, all, PD);
    let stag = STag::new(keys.rkey);
    let invalidate = |pd, stag| table.invalidate(StreamId { pd, qpn: 7 }, stag, true);
    assert_eq!(invalidate(PdId(2), stag), Err(TaggedError::NotAssociated));
    assert_eq!(invalidate(PD, stag), Ok(()));
    assert_eq!(invalidate(PD, stag), Err(TaggedError::InvalidStag));
    let gone = table.remote(STREAM, span(keys.rkey, 0, 8), Access::REMOTE_WRITE);
    assert_eq!(gone.map(|_| ()), Err(TaggedError::InvalidStag));
    table.deregister(keys);

    let keys = table.register(region, 0, Access::REMOTE_WRITE, PD);
    let stag = STag::new(keys.rkey);
    assert_eq!(invalidate(PD, stag), Err(TaggedError::Access));
    assert_eq!(table.invalidate(STREAM, stag, false), Ok(()));
}

#[test]
fn something_else_is_registered_under_the_same_keys() {
    let table = table();
    let [old, new] = [10, 20].map(|length| Buffer::zeroed(length).unwrap());
    let terms = |access, pd| Terms {
        iova: 1000,
        access,
        pd,
        only_from: None,
        cookie: false,
        well_known: None,
    };
    let keys = table.register(old.region(), 0, Access::REMOTE_READ, PD);
    let again = |keys, access, pd| table.reregister(keys, new.region(), terms(access, pd));
    assert_eq!(again(keys, Access::REMOTE_WRITE, PD), Ok(keys));
    let write = |keys: Keys, start| {
        let found = table.remote(STREAM, span(keys.rkey, start, 20), Access::REMOTE_WRITE);
        found.map(|_| ())
    };
    assert_eq!(write(keys, 1000), Ok(()));
    assert_eq!(write(keys, 0), Err(TaggedError::BaseOrBounds));
    assert_eq!(again(keys, Access::REMOTE_WRITE, PdId(9)), Ok(keys));
    assert_eq!(write(keys, 1000), Err(TaggedError::NotAssociated));

    // A key that was invalidated may be another's one day.
    assert_eq!(again(keys, Access::REMOTE_WRITE, PD), Ok(keys));
    let stag = STag::new(keys.rkey);
    assert_eq!(table.invalidate(STREAM, stag, false), Ok(()));
    let fresh = again(keys, Access::REMOTE_WRITE, PD).unwrap();
    assert!(fresh.lkey == fresh.rkey && fresh.rkey != keys.rkey);
    assert_eq!(write(keys, 1000), Err(TaggedError::InvalidStag));
    assert_eq!(write(fresh, 1000), Ok(()));
    table.deregister(fresh);
    assert_eq!(write(fresh, 1000), Err(TaggedError::InvalidStag));
}

/// A key that a program sent its peer before it gave the region other rights stays, unless it was invalidated.
#[test]
fn a_region_that_is_opened_to_peers_keeps_its_key() {
    let table = table();
    let buffer = Buffer::zeroed(8).unwrap();
    let rights = [
        Access::LOCAL_WRITE,
        Access::REMOTE_READ,
        Access::LOCAL_WRITE | Access::REMOTE_WRITE,
        Access::REMOTE_ATOMIC,
    ];
    let read = |key| {
        let found = table.remote(STREAM, span(key, 0, 8), Access::REMOTE_READ);
        found.map(|_| ())
    };
    for (first, invalidated) in rights
        .iter()
        .flat_map(|first| [(first, false), (first, true)])
    {
        let old = table.register(buffer.region(), 0, *first, PD);
        if invalidated {
            let done = table.invalidate(STREAM, STag::new(old.rkey), false);
            assert_eq!(done, Ok(()));
        }
        let again = |keys, access| {
            let terms = Terms {
                iova: 0,
                access,
                pd: PD,
                only_from: None,
                cookie: false,
                well_known: None,
            };
            table.reregister(keys, buffer.region(), terms).unwrap()
        };
        let open = again(old, Access::REMOTE_READ);
        assert_eq!(open.lkey, open.rkey, "{first:?}, {invalidated}");
        assert_eq!(open == old, !invalidated, "{first:?}");
        assert_eq!(read(open.rkey), Ok(()));
        for gone in [old.lkey, old.rkey]
            .into_iter()
            .filter(|key| *key != open.rkey)
        {
            assert_eq!(read(gone), Err(TaggedError::InvalidStag));
        }
        let sge = |lkey| Sge {
            addr: 0,
            length: 8,
            lkey,
        };
        assert!(table.local(PD, sge(open.lkey), false).is_ok());
        let closed = again(open, Access::LOCAL_WRITE);
        assert_eq!(closed, open, "keys in use stay");
        assert_eq!(read(closed.rkey), Err(TaggedError::Access));
        let open = again(closed, Access::REMOTE_READ);
        assert_eq!(open, closed);
        table.deregister(open);
        assert_eq!(read(open.rkey), Err(TaggedError::InvalidStag));
        assert!(table.local(PD, sge(open.lkey), false).is_err());
    }
}

#[test]
fn keys_are_unlike_and_not_reused_soon() {
    let table = table();
    let region = Buffer::zeroed(1).unwrap().region();
    let mut seen = HashSet::new();
    for _ in 0..1000 {
        let keys = table.register(region.clone(), 0, Access::LOCAL_WRITE, PD);
        assert!(seen.insert(keys.rkey));
        table.deregister(keys);
        let keys = table.register(region.clone(), 0, Access::REMOTE_WRITE, PD);
        assert!(seen.insert(keys.rkey));
        table.deregister(keys);
        let gone = table.remote(STREAM, span(keys.rkey, 0, 0), Access::REMOTE_WRITE);
        assert_eq!(gone.map(|_| ()), Err(TaggedError::InvalidStag));
    }
}

/// Programs that only ran on devices with equal keys send peers the local one.
#[test]
fn a_region_has_one_key() {
    let table = table();
    let region = Buffer::zeroed(1).unwrap().region();
    for access in [
        Access::empty(),
        Access::REMOTE_READ,
        Access::REMOTE_WRITE,
        Access::REMOTE_ATOMIC,
    ] {
        let keys = table.register(region.clone(), 0, access | Access::LOCAL_WRITE, PD);
        assert_eq!(keys.lkey, keys.rkey);
    }
}

#[test]
fn a_refused_key_of_a_private_region_is_reported() {
    thread_local!(static REPORTED: Cell<Option<u32>> = const { Cell::new(None) });
    let table = table().reporting(|key| REPORTED.set(Some(key)));
    let region = Buffer::zeroed(8).unwrap().region();
    let private = table.register(region.clone(), 0, Access::LOCAL_WRITE, PD);
    let origin = Origin::from(Peer::ip("192.0.2.1:7".parse().unwrap()));
    let tries: [&dyn Fn(TaggedSpan) -> bool; 3] = [
        &|span| table.remote(STREAM, span, Access::REMOTE_READ).is_err(),
        &|span| table.write_record(PD, origin, span).is_err(),
        &|span| table.remote_read(PD, origin, span).is_err(),
    ];
    for refuses in tries {
        assert!(refuses(span(private.lkey, 0, 8)));
        assert_eq!(REPORTED.take(), Some(private.lkey));
        assert!(refuses(span(private.lkey ^ 1, 0, 8)));
        assert_eq!(REPORTED.take(), None);
    }
    let shared = table.register(region, 0, Access::REMOTE_WRITE, PD);
    assert!(tries[0](span(shared.rkey, 0, 8)) && tries[1](span(shared.rkey, 0, 9)));
    assert_eq!(REPORTED.take(), None, "peers have another right");
    let stag = STag::new(shared.rkey);
    table.invalidate(STREAM, stag, false).unwrap();
    assert!(tries[0](span(shared.rkey, 0, 8)));
    assert_eq!(REPORTED.take(), None, "it was invalidated");
}

#[test]
fn a_null_region_has_every_address_and_no_memory() {
    let table = table();
    let keys = table
        .register_null(Region::zeroes(1 << 20).unwrap(), PD)
        .unwrap();
    for addr in [0, 1, 1 << 40, u64::MAX - 7, u64::MAX] {
        for length in [1, 8, 1 << 20] {
            let sge = Sge {
                addr,
                length,
                lkey: keys.lkey,
            };
            let view = table.view_local();
            let mut read = vec![1; length as usize];
            view.slice(PD, sge).unwrap().copy_to(&mut read);
            assert!(read.iter().all(|octet| *octet == 0));
            assert!(view.sink(PD, sge).unwrap().is_none(), "it is discarded");
            assert!(view.slice(PdId(2), sge).is_err() && view.sink(PdId(2), sge).is_err());
            drop(view);
            assert!(table.local(PD, sge, true).is_ok());
        }
    }
    for key in [keys.lkey, keys.rkey] {
        for right in [Access::REMOTE_READ, Access::REMOTE_WRITE] {
            let found = table.remote(STREAM, span(key, 0, 8), right);
            assert_eq!(found.map(|_| ()), Err(TaggedError::InvalidStag));
        }
    }
    table.deregister(keys);
    let sge = Sge {
        addr: 0,
        length: 1,
        lkey: keys.lkey,
    };
    assert!(table.local(PD, sge, false).is_err());
}

#[test]
fn nothing_lands_after_deregistration() {
    let table = table();
    let buffer = Buffer::zeroed(64).unwrap();
    let stop = AtomicBool::new(false);
    for _ in 0..200 {
        let keys = table.register(buffer.region(), 0, Access::REMOTE_WRITE, PD);
        stop.store(false, Ordering::Relaxed);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    if let Ok(held) =
                        table.remote(STREAM, span(keys.rkey, 0, 64), Access::REMOTE_WRITE)
                    {
                        held.slice(0, 64).unwrap().place(&[1; 64]);
                    }
                }
            });
            table.deregister(keys);
            buffer.write(0, &[0; 64]);
            std::thread::yield_now();
            assert_eq!(buffer.to_vec(0, 64), [0; 64]);
            stop.store(true, Ordering::Relaxed);
        });
    }
}

/// Deregistration waits for a copy under the table's lock: only registered memory is copied.
#[test]
fn deregistration_waits_for_who_looks_at_the_table() {
    let table = table();
    let region = Buffer::zeroed(8).unwrap().region();
    let keys = table.register(region, 0, Access::LOCAL_WRITE, PD);
    let sge = Sge {
        addr: 0,
        length: 8,
        lkey: keys.lkey,
    };
    let begins = AtomicBool::new(false);
    let gone = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let view = table.view_local();
        let slice = view.slice(PD, sge).unwrap();
        scope.spawn(|| {
            begins.store(true, Ordering::SeqCst);
            table.deregister(keys);
            gone.store(true, Ordering::SeqCst);
        });
        while !begins.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        // Long enough for a deregistration that does not wait.
        for _ in 0..1000 {
            std::thread::yield_now();
        }
        slice.place(&[1; 8]);
        assert!(!gone.load(Ordering::SeqCst));
        drop(view);
    });
    assert!(gone.load(Ordering::SeqCst));
    assert_eq!(table.local(PD, sge, true).unwrap_err(), LocalProtection);
}
