//! Windows and fast registration.

use super::super::*;
use dgiwarp_ddp::{STag, TaggedOffset};
use dgiwarp_memory::Buffer;
use rand::SeedableRng;
use std::sync::atomic::{AtomicBool, Ordering};

const PD: PdId = PdId(1);
const STREAM: StreamId = StreamId { pd: PD, qpn: 7 };
const OTHER: StreamId = StreamId { pd: PD, qpn: 8 };
const ALL: Access = Access::REMOTE_READ
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_ATOMIC);

fn table() -> MrTable {
    MrTable::new(ChaCha20Rng::seed_from_u64(1))
}

/// 100 octets from address 1000 on.
fn region(table: &MrTable, access: Access) -> Keys {
    let region = Buffer::zeroed(100).unwrap().region();
    table.register(region, 1000, access, PD)
}

const WINDOWED: Access = Access::LOCAL_WRITE.union(Access::MW_BIND);

/// 50 octets from address 1010 on.
fn bind(kind: MwType, rkey: u32, keys: Keys) -> Bind {
    Bind {
        kind,
        rkey,
        lkey: keys.lkey,
        addr: 1010,
        length: 50,
        access: Access::REMOTE_WRITE,
        zero_based: false,
    }
}

fn access(
    table: &MrTable,
    stream: StreamId,
    rkey: u32,
    start: u64,
    length: u32,
    right: Access,
) -> Result<(), TaggedError> {
    let span = TaggedSpan {
        stag: STag::new(rkey),
        start: TaggedOffset::new(start),
        length,
    };
    table.remote(stream, span, right).map(|_| ())
}

fn write(
    table: &MrTable,
    stream: StreamId,
    rkey: u32,
    at: u64,
    len: u32,
) -> Result<(), TaggedError> {
    access(table, stream, rkey, at, len, Access::REMOTE_WRITE)
}

#[test]
fn a_window_is_narrower_than_its_region() {
    let table = table();
    let keys = region(&table, WINDOWED);
    for kind in [MwType::One, MwType::Two] {
        let mw = table.alloc_mw(PD, kind);
        assert_eq!(
            write(&table, STREAM, mw, 1010, 1),
            Err(TaggedError::InvalidStag)
        );
        assert_eq!(table.bind(STREAM, &bind(kind, mw, keys)), Ok(()));
        assert_eq!(write(&table, STREAM, mw, 1010, 50), Ok(()));
        assert_eq!(write(&table, STREAM, mw, 1060, 0), Ok(()));
        for (start, length) in [(1009, 1), (1010, 51), (1060, 1), (0, 1)] {
            let refused = write(&table, STREAM, mw, start, length);
            assert_eq!(refused, Err(TaggedError::BaseOrBounds), "{start}+{length}");
        }
        let read = access(&table, STREAM, mw, 1010, 1, Access::REMOTE_READ);
        assert_eq!(read, Err(TaggedError::Access));
        let other_domain = StreamId {
            pd: PdId(2),
            ..STREAM
        };
        assert_eq!(
            write(&table, other_domain, mw, 1010, 1),
            Err(TaggedError::NotAssociated)
        );
        let of_other_qp = match kind {
            MwType::One => Ok(()),
            MwType::Two => Err(TaggedError::NotAssociated),
        };
        assert_eq!(write(&table, OTHER, mw, 1010, 1), of_other_qp);
        // The region itself is as closed as it was.
        assert_eq!(
            write(&table, STREAM, keys.rkey, 1010, 1),
            Err(TaggedError::Access)
        );
        table.dealloc_mw(mw);
        assert_eq!(
            write(&table, STREAM, mw, 1010, 1),
            Err(TaggedError::InvalidStag)
        );
    }
    assert_eq!(table.try_deregister(keys), Ok(()));
}

#[test]
fn a_window_may_count_from_zero() {
    let table = table();
    let keys = region(&table, WINDOWED);
    let mw = table.alloc_mw(PD, MwType::Two);
    let zero_based = Bind {
        zero_based: true,
        ..bind(MwType::Two, mw, keys)
    };
    table.bind(STREAM, &zero_based).unwrap();
    assert_eq!(write(&table, STREAM, mw, 0, 50), Ok(()));
    assert_eq!(
        write(&table, STREAM, mw, 1, 50),
        Err(TaggedError::BaseOrBounds)
    );
    assert_eq!(
        write(&table, STREAM, mw, 1010, 1),
        Err(TaggedError::BaseOrBounds)
    );
}

#[test]
fn what_cannot_be_bound_changes_nothing() {
    let table = table();
    let keys = region(&table, WINDOWED);
    let closed = region(&table, Access::LOCAL_WRITE);
    let read_only = region(&table, Access::MW_BIND);
    let mw = table.alloc_mw(PD, MwType::Two);
    let good = bind(MwType::Two, mw, keys);
    let cases = [
        (Bind { rkey: !mw, ..good }, BindError::UnknownKey(!mw)),
        (
            Bind {
                kind: MwType::One,
                ..good
            },
            BindError::WrongType,
        ),
        (Bind { length: 0, ..good }, BindError::Empty),
        (Bind { lkey: mw, ..good }, BindError::UnknownRegion(mw)),
        (
            Bind {
                lkey: closed.lkey,
                ..good
            },
            BindError::Access,
        ),
        (
            Bind {
                lkey: read_only.lkey,
                ..good
            },
            BindError::Access,
        ),
        (
            Bind {
                access: Access::LOCAL_WRITE,
                ..good
            },
            BindError::Access,
        ),
        (Bind { addr: 999, ..good }, BindError::OutOfBounds),
        (Bind { length: 91, ..good }, BindError::OutOfBounds),
        (
            Bind {
                length: u64::MAX,
                ..good
            },
            BindError::OutOfBounds,
        ),
    ];
    for (bind, error) in cases {
        assert_eq!(table.bind(STREAM, &bind), Err(error));
    }
    let reading = Bind {
        access: Access::REMOTE_READ,
        lkey: read_only.lkey,
        ..good
    };
    assert_eq!(table.bind(STREAM, &reading), Ok(()));
    // The failed bindings did not count.
    assert_eq!(table.try_deregister(keys), Ok(()));
    assert_eq!(table.try_deregister(read_only), Err(Busy::Windows(1)));
    let elsewhere = StreamId {
        pd: PdId(2),
        ..STREAM
    };
    let mw = table.alloc_mw(PD, MwType::Two);
    assert_eq!(
        table.bind(
            elsewhere,
            &Bind {
                rkey: mw,
                ..reading
            }
        ),
        Err(BindError::UnknownKey(mw))
    );
    let theirs = table.alloc_mw(PdId(2), MwType::Two);
    assert_eq!(
        table.bind(
            elsewhere,
            &Bind {
                rkey: theirs,
                ..reading
            }
        ),
        Err(BindError::UnknownRegion(read_only.lkey))
    );
}

#[test]
fn windows_keep_their_region() {
    let table = table();
    let keys = region(&table, WINDOWED);
    let (one, two) = (
        table.alloc_mw(PD, MwType::One),
        table.alloc_mw(PD, MwType::Two),
    );
    table.bind(STREAM, &bind(MwType::One, one, keys)).unwrap();
    table.bind(STREAM, &bind(MwType::Two, two, keys)).unwrap();
    assert_eq!(table.try_deregister(keys), Err(Busy::Windows(2)));
    // Type 1 is bound anew, and emptied by a binding of no octets; its old key is dead.
    let next = increment(one);
    table.bind(STREAM, &bind(MwType::One, next, keys)).unwrap();
    assert_eq!(table.try_deregister(keys), Err(Busy::Windows(2)));
    assert_eq!(
        write(&table, STREAM, one, 1010, 1),
        Err(TaggedError::InvalidStag)
    );
    assert_eq!(write(&table, STREAM, next, 1010, 1), Ok(()));
    let empty = Bind {
        length: 0,
        ..bind(MwType::One, increment(next), keys)
    };
    table.bind(STREAM, &empty).unwrap();
    assert_eq!(
        write(&table, STREAM, next, 1010, 1),
        Err(TaggedError::InvalidStag)
    );
    assert_eq!(table.try_deregister(keys), Err(Busy::Windows(1)));
    // The program that does not ask closes them with the region.
    table.deregister(keys);
    assert_eq!(
        write(&table, STREAM, two, 1010, 1),
        Err(TaggedError::InvalidStag)
    );
    assert_eq!(table.local.read().len() + table.remote.read().len(), 0);
}

#[test]
fn type_2_is_invalidated_before_it_is_bound_again() {
    let table = table();
    let keys = region(&table, WINDOWED);
    let mw = table.alloc_mw(PD, MwType::Two);
    for by_peer in [false, true] {
        table.bind(STREAM, &bind(MwType::Two, mw, keys)).unwrap();
        let again = bind(MwType::Two, increment(mw), keys);
        assert_eq!(table.bind(STREAM, &again), Err(BindError::Bound));
        let stag = STag::new(mw);
        let elsewhere = table.invalidate(OTHER, stag, by_peer);
        assert_eq!(elsewhere, Err(TaggedError::NotAssociated));
        assert_eq!(table.invalidate(STREAM, stag, by_peer), Ok(()));
        let gone = table.invalidate(STREAM, stag, by_peer);
        assert_eq!(gone, Err(TaggedError::InvalidStag));
        assert_eq!(
            write(&table, STREAM, mw, 1010, 1),
            Err(TaggedError::InvalidStag)
        );
    }
    assert_eq!(table.try_deregister(keys), Ok(()));
    let keys = region(&table, WINDOWED);
    let one = table.alloc_mw(PD, MwType::One);
    table.bind(STREAM, &bind(MwType::One, one, keys)).unwrap();
    for by_peer in [false, true] {
        let refused = table.invalidate(STREAM, STag::new(one), by_peer);
        assert_eq!(refused, Err(TaggedError::Access));
    }
}

#[test]
fn a_queue_pair_takes_its_windows_with_it() {
    let table = table();
    let keys = region(&table, WINDOWED);
    let mut mws =
        [MwType::One, MwType::Two, MwType::Two].map(|kind| (kind, table.alloc_mw(PD, kind)));
    mws[2].1 = increment(mws[2].1);
    for ((kind, mw), stream) in mws.into_iter().zip([STREAM, STREAM, OTHER]) {
        table.bind(stream, &bind(kind, mw, keys)).unwrap();
    }
    table.close_windows_of(STREAM.qpn);
    let [one, gone, of_other] = mws.map(|(_, mw)| mw);
    assert_eq!(write(&table, STREAM, one, 1010, 1), Ok(()));
    assert_eq!(
        write(&table, STREAM, gone, 1010, 1),
        Err(TaggedError::InvalidStag)
    );
    assert_eq!(write(&table, OTHER, of_other, 1010, 1), Ok(()));
    assert_eq!(table.try_deregister(keys), Err(Busy::Windows(2)));
}

#[test]
fn a_registration_by_work_requests() {
    let table = table();
    let buffer = Buffer::zeroed(100).unwrap();
    let first = table.alloc_fast(PD);
    let rights = ALL | Access::REMOTE_INVALIDATE | Access::MW_BIND;
    let register = |rkey| table.register_fast(PD, rkey, rights);
    assert_eq!(register(first.rkey), Err(BindError::NotMapped));
    let mut rkey = first.rkey;
    for by_peer in [false, true] {
        rkey = increment(rkey);
        table.map(rkey, buffer.region(), 1000);
        assert_eq!(register(rkey), Ok(()));
        let sge = Sge {
            addr: 1090,
            length: 10,
            lkey: keys::with_index(keys::index(first.lkey), rkey),
        };
        assert!(table.local(PD, sge, true).is_ok());
        assert_eq!(write(&table, OTHER, rkey, 1000, 100), Ok(()));
        assert_eq!(
            write(&table, STREAM, rkey, 1000, 101),
            Err(TaggedError::BaseOrBounds)
        );
        let old = keys::with_index(keys::index(rkey), rkey.wrapping_sub(1));
        assert_eq!(
            write(&table, STREAM, old, 1000, 1),
            Err(TaggedError::InvalidStag)
        );
        assert_eq!(register(increment(rkey)), Err(BindError::Bound));
        // Windows keep it, like any region.
        let mw = table.alloc_mw(PD, MwType::Two);
        let keys = Keys {
            lkey: sge.lkey,
            rkey,
        };
        table.bind(STREAM, &bind(MwType::Two, mw, keys)).unwrap();
        let stag = STag::new(rkey);
        assert_eq!(
            table.invalidate(STREAM, stag, by_peer),
            Err(TaggedError::Access)
        );
        table.dealloc_mw(mw);
        assert_eq!(table.invalidate(STREAM, stag, by_peer), Ok(()));
        assert!(table.local(PD, sge, true).is_err());
        assert_eq!(
            write(&table, STREAM, rkey, 1000, 1),
            Err(TaggedError::InvalidStag)
        );
        assert_eq!(register(rkey), Err(BindError::NotMapped));
    }
    table.map(rkey, buffer.region(), 0);
    assert_eq!(
        table.register_fast(PdId(2), rkey, rights),
        Err(BindError::UnknownKey(rkey))
    );
    assert_eq!(table.register_fast(PD, rkey, Access::REMOTE_READ), Ok(()));
    assert_eq!(
        table.invalidate(STREAM, STag::new(rkey), true),
        Err(TaggedError::Access)
    );
    table.dealloc_fast(rkey);
    assert_eq!(table.local.read().len() + table.remote.read().len(), 0);
    assert_eq!(table.keyring.lock().slots.len(), 0);
}

#[test]
fn nothing_lands_through_a_window_after_it_was_closed() {
    let table = table();
    let buffer = Buffer::zeroed(64).unwrap();
    let keys = table.register(buffer.region(), 1000, WINDOWED, PD);
    let mw = table.alloc_mw(PD, MwType::Two);
    let stop = AtomicBool::new(false);
    let open = Bind {
        addr: 1000,
        length: 64,
        ..bind(MwType::Two, mw, keys)
    };
    for _ in 0..200 {
        table.bind(STREAM, &open).unwrap();
        stop.store(false, Ordering::Relaxed);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let span = TaggedSpan {
                    stag: STag::new(mw),
                    start: TaggedOffset::new(1000),
                    length: 64,
                };
                while !stop.load(Ordering::Relaxed) {
                    if let Ok(held) = table.remote(STREAM, span, Access::REMOTE_WRITE) {
                        held.slice(1000, 64).unwrap().place(&[1; 64]);
                    }
                }
            });
            table.invalidate(STREAM, STag::new(mw), true).unwrap();
            buffer.write(0, &[0; 64]);
            std::thread::yield_now();
            assert_eq!(buffer.to_vec(0, 64), [0; 64]);
            stop.store(true, Ordering::Relaxed);
        });
    }
}
