//! Grants, and their revocation with the regions.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use dgiwarp_ddp::placement::TaggedSpan;
use dgiwarp_ddp::{STag, TaggedOffset};
use dgiwarp_memory::{Buffer, Region};
use parking_lot::Mutex;
use rand::SeedableRng;
use rand_chacha::ChaCha20Rng;

use crate::mr::*;
use crate::types::MwType;

const PD: PdId = PdId(1);
const STREAM: StreamId = StreamId { pd: PD, qpn: 7 };
const RIGHTS: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);

fn table() -> MrTable {
    MrTable::new(ChaCha20Rng::seed_from_u64(1))
}

fn region() -> Region {
    Buffer::zeroed(100).unwrap().region()
}

/// The terms of an STag for the stream, if it may be granted.
fn terms(table: &MrTable, stag: u32, denied: Access) -> Option<RegionTerms> {
    terms_of(table, STREAM, stag, denied)
}

fn terms_of(table: &MrTable, stream: StreamId, stag: u32, denied: Access) -> Option<RegionTerms> {
    let mut found = None;
    table.grant(stream, STag::new(stag), denied, |terms, may| {
        found = may().then_some(*terms);
    });
    found
}

/// A connection that notes which grants it revokes.
#[derive(Debug, Default)]
struct Connection {
    revoked: Mutex<Vec<u32>>,
    /// The peer does not end its copy.
    is_stuck: AtomicBool,
    calls: AtomicU32,
}

impl Grantor for Connection {
    fn revoke(&self, stag: u32) -> bool {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.revoked.lock().push(stag);
        !self.is_stuck.load(Ordering::Relaxed)
    }
}

fn connection(table: &MrTable) -> Arc<Connection> {
    let connection = Arc::<Connection>::default();
    table.add_grantor(Arc::<Connection>::clone(&connection));
    connection
}

#[test]
fn a_grant_has_what_the_peer_may_use_and_no_more() {
    let table = table();
    let region = region();
    let address = region.address();
    let access = Access::LOCAL_WRITE | RIGHTS | Access::REMOTE_ATOMIC;
    let keys = table.register(region.clone(), 1000, access, PD);
    let all = RegionTerms {
        stag: keys.rkey,
        access: RIGHTS,
        start: 1000,
        length: 100,
        address,
        file: None,
    };
    assert_eq!(terms(&table, keys.rkey, Access::empty()), Some(all));
    let read = RegionTerms {
        access: Access::REMOTE_READ,
        ..all
    };
    assert_eq!(terms(&table, keys.rkey, Access::REMOTE_WRITE), Some(read));
    assert_eq!(terms(&table, keys.rkey, RIGHTS), None);
    assert_eq!(terms(&table, keys.rkey ^ 1, Access::empty()), None);
    let stranger = StreamId {
        pd: PdId(2),
        qpn: 7,
    };
    assert_eq!(terms_of(&table, stranger, keys.rkey, Access::empty()), None);
    let local = table.register(region, 0, Access::LOCAL_WRITE, PD);
    assert_eq!(terms(&table, local.rkey, Access::empty()), None);
}

/// Keys that change without a deregistration, restrictions to datagrams, and pages that come and go are no grants' business.
#[test]
fn windows_restricted_regions_and_pages_on_demand_are_not_granted() {
    let table = table();
    let access = Access::LOCAL_WRITE | RIGHTS | Access::MW_BIND;
    let keys = table.register(region(), 0, access, PD);
    let rkey = table.alloc_mw(PD, MwType::Two);
    let bind = Bind {
        kind: MwType::Two,
        rkey,
        lkey: keys.lkey,
        addr: 0,
        length: 50,
        access: RIGHTS,
        zero_based: false,
    };
    table.bind(STREAM, &bind).unwrap();
    assert_eq!(terms(&table, rkey, Access::empty()), None);
    let fast = table.alloc_fast(PD);
    table.map(fast.rkey, region(), 0);
    table.register_fast(PD, fast.rkey, RIGHTS).unwrap();
    assert_eq!(terms(&table, fast.rkey, Access::empty()), None);
    let restricted = Terms {
        iova: 0,
        access: RIGHTS,
        pd: PD,
        only_from: None,
        cookie: true,
        well_known: None,
    };
    let restricted = table.register_with(region(), restricted).unwrap();
    assert_eq!(terms(&table, restricted.rkey, Access::empty()), None);
}

/// Ends of the right to use a region, each of which revokes its grants at all connections before it is over.
#[test]
fn grants_end_with_what_they_are_of() {
    type End = fn(&MrTable, Keys);
    let ends: [End; 4] = [
        |table, keys| table.try_deregister(keys).unwrap(),
        |table, keys| table.deregister(keys),
        |table, keys| {
            let terms = Terms {
                iova: 0,
                access: RIGHTS,
                pd: PD,
                only_from: None,
                cookie: false,
                well_known: None,
            };
            table.reregister(keys, region(), terms).map(drop).unwrap();
        },
        |table, keys| {
            let stag = STag::new(keys.rkey);
            table.invalidate(STREAM, stag, true).unwrap();
        },
    ];
    for (number, end) in ends.into_iter().enumerate() {
        let table = table();
        let connections = [connection(&table), connection(&table)];
        let access = RIGHTS | Access::REMOTE_INVALIDATE;
        let keys = table.register(region(), 0, access, PD);
        let other = table.register(region(), 0, access, PD);
        assert!(terms(&table, keys.rkey, Access::empty()).is_some());
        let before = table.revocations();
        end(&table, keys);
        assert_ne!(table.revocations(), before);
        for connection in &connections {
            assert_eq!(*connection.revoked.lock(), [keys.rkey], "end {number}");
        }
        // One that was never granted concerns nobody.
        end(&table, other);
        assert_eq!(connections[0].calls.load(Ordering::Relaxed), 1);
    }
}

/// No grant is made any more once the end has begun, and a new registration has grants of its own.
#[test]
fn a_region_that_ends_is_granted_no_more() {
    let table = table();
    let keys = table.register(region(), 0, RIGHTS, PD);
    let closed = table.local.read().get(&keys.lkey).cloned().unwrap();
    table.grant(STREAM, STag::new(keys.rkey), Access::empty(), |_, may| {
        assert!(may());
        // Another thread begins the end, while this one is about to grant.
        table.grantors.close(&closed.granted, keys.rkey).unwrap();
        assert!(!may());
    });
    drop(closed);
    assert_eq!(terms(&table, keys.rkey, Access::empty()), None);
    let terms_of_new = Terms {
        iova: 5,
        access: RIGHTS,
        pd: PD,
        only_from: None,
        cookie: false,
        well_known: None,
    };
    let keys = table.reregister(keys, region(), terms_of_new).unwrap();
    let granted = terms(&table, keys.rkey, Access::empty()).unwrap();
    assert_eq!(granted.start, 5);
}

/// A peer that does not end its copy leaves the region registered, to be tried again; a handle that is dropped leaves its memory mapped.
#[test]
fn a_copy_that_does_not_end_keeps_the_region() {
    let table = table();
    let (stuck, other) = (connection(&table), connection(&table));
    let keys = table.register(region(), 0, RIGHTS, PD);
    assert!(terms(&table, keys.rkey, Access::empty()).is_some());
    stuck.is_stuck.store(true, Ordering::Relaxed);
    assert_eq!(table.try_deregister(keys), Err(Busy::PeerCopies));
    let span = TaggedSpan {
        stag: STag::new(keys.rkey),
        start: TaggedOffset::new(0),
        length: 100,
    };
    let found = table.remote(STREAM, span, Access::REMOTE_READ);
    assert!(found.is_ok(), "the peer may use it by the lane");
    drop(found);
    assert_eq!(terms(&table, keys.rkey, Access::empty()), None);
    stuck.is_stuck.store(false, Ordering::Relaxed);
    assert_eq!(table.try_deregister(keys), Ok(()));
    assert_eq!(*other.revoked.lock(), [keys.rkey]);
    let keys = table.register(region(), 0, RIGHTS, PD);
    assert!(terms(&table, keys.rkey, Access::empty()).is_some());
    stuck.is_stuck.store(true, Ordering::Relaxed);
    table.deregister(keys);
    let gone = table.remote(
        STREAM,
        TaggedSpan {
            stag: STag::new(keys.rkey),
            ..span
        },
        RIGHTS,
    );
    assert!(gone.is_err());
}

/// A connection that goes is not asked, and those that come take its place.
#[test]
fn connections_come_and_go() {
    let table = table();
    let connections: Vec<_> = (0..3).map(|_| connection(&table)).collect();
    let keys = table.register(region(), 0, RIGHTS, PD);
    assert!(terms(&table, keys.rkey, Access::empty()).is_some());
    let gone: Arc<dyn Grantor> = Arc::<Connection>::clone(&connections[1]);
    table.remove_grantor(&gone);
    let late = connection(&table);
    table.deregister(keys);
    let asked = |it: &Connection| it.calls.load(Ordering::Relaxed);
    assert_eq!([0, 1, 2].map(|at| asked(&connections[at])), [1, 0, 1]);
    assert_eq!(asked(&late), 1);
}
