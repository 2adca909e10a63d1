use crate::{Malformed, Reason, Record, Snapshot, State, Table, VERSION, WORDS, Way};
use proptest::collection::vec;
use proptest::prelude::{
    ProptestConfig, Strategy, any, prop, prop_assert, prop_assert_eq, prop_oneof, proptest,
};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};

fn words() -> Vec<AtomicU64> {
    (0..WORDS).map(|_| AtomicU64::new(0)).collect()
}

/// The first octets, with some records.
fn octets(words: &[AtomicU64]) -> Vec<u8> {
    let words = words[..512].iter().map(|it| it.load(Ordering::Relaxed));
    words.flat_map(u64::to_ne_bytes).collect()
}

fn snapshot(words: &[AtomicU64]) -> Snapshot {
    let octets = octets(words);
    Snapshot::parse(&octets, &octets, &octets).unwrap()
}

fn addresses() -> impl Strategy<Value = Option<SocketAddr>> {
    let scoped = (any::<[u8; 16]>(), any::<u16>(), any::<u32>());
    let v6 = scoped.prop_map(|(ip, port, scope)| {
        let mapped = std::net::Ipv6Addr::from(ip);
        std::net::SocketAddrV6::new(mapped, port, 0, scope).into()
    });
    let v4 = any::<([u8; 4], u16)>().prop_map(SocketAddr::from);
    prop::option::of(prop_oneof![v4, v6])
}

fn records() -> impl Strategy<Value = Record> {
    let state = prop::sample::select(vec![
        State::Listen,
        State::Connecting,
        State::Established,
        State::Closing,
    ]);
    let way = prop::sample::select(vec![Way::Tcp, Way::Rsocket, Way::Rc, Way::Lane]);
    let numbers = (any::<u8>(), any::<u64>());
    (state, way, numbers, addresses(), addresses()).prop_map(
        |(state, way, (reason, inode), local, peer)| Record {
            state,
            way,
            reason,
            inode,
            local,
            peer,
            ..Record::default()
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn records_come_back_as_they_went(record in records(), sent in any::<u64>(), received in any::<u64>()) {
        let words = words();
        let table = Table::begin(&words, 1, 2).unwrap();
        table.publish(3, &record);
        table.add_sent(3, sent);
        table.add_received(3, received);
        prop_assert_eq!(snapshot(&words).records, vec![Record { sent, received, ..record }]);
        table.set_state(3, State::Closing);
        table.set_way(3, Way::Tcp, 7);
        let changed = Record { state: State::Closing, way: Way::Tcp, reason: 7, sent, received, ..record };
        prop_assert_eq!(snapshot(&words).records, vec![changed]);
        table.free(3);
        prop_assert_eq!(snapshot(&words).records, vec![]);
    }

    /// Octets of a stranger are no reason to panic, and give no text that a terminal would execute.
    #[test]
    fn any_octets_are_read(mut octets in vec(any::<u8>(), 0..12_000), begins in any::<bool>(), other in vec(any::<u8>(), 0..12_000)) {
        if begins && octets.len() >= 16 {
            octets[..8].copy_from_slice(b"dgiwSOCK");
            octets[8..16].copy_from_slice(&VERSION.to_ne_bytes());
        }
        for (before, after) in [(&octets, &octets), (&other, &octets), (&other, &other)] {
            let Ok(snapshot) = Snapshot::parse(before, &octets, after) else {
                continue;
            };
            prop_assert!(begins);
            prop_assert!(snapshot.records.len() + snapshot.changing <= octets.len() / 128);
            for record in &snapshot.records {
                let _ = (snapshot.reason_of(record), format!("{record:?}"));
            }
            let _ = snapshot.plain();
            for reason in &snapshot.reasons {
                prop_assert!(reason.text.bytes().all(|it| (b' '..=b'~').contains(&it)));
            }
        }
    }

    #[test]
    fn the_transport_is_asked_for_a_few_times(sizes in vec(1..2_000_000_u64, 1..200)) {
        let words = words();
        let table = Table::begin(&words, 1, 2).unwrap();
        let asked = sizes.iter().filter(|it| table.add_sent(0, **it).is_milestone()).count();
        let total: u64 = sizes.iter().sum();
        prop_assert_eq!(asked > 0, total >= 4096);
        prop_assert!(asked <= 4 * 64);
    }
}

#[test]
fn octets_of_another_kind_are_none() {
    let words = words();
    Table::begin(&words, 1, 2).unwrap();
    let whole = octets(&words);
    let parse = |octets: &[u8]| Snapshot::parse(octets, octets, octets);
    assert_eq!(
        parse(&whole[..2559]),
        Err(Malformed::TooShort { octets: 2559 })
    );
    assert_eq!(parse(&[7; 4096]), Err(Malformed::NoMagic));
    words[1].store(9, Ordering::Relaxed);
    assert_eq!(
        parse(&octets(&words)),
        Err(Malformed::Version { version: 9 })
    );
    assert!(Table::begin(&words[1..], 1, 2).is_none());
}

/// A record is left out where it changed between the first and the last copy, or was being written.
#[test]
fn records_that_change_are_left_out() {
    let words = words();
    let table = Table::begin(&words, 1, 2).unwrap();
    table.publish(0, &Record::default());
    table.publish(1, &Record::default());
    let before = octets(&words);
    table.set_state(1, State::Closing);
    let after = octets(&words);
    let found = Snapshot::parse(&before, &after, &after).unwrap();
    assert_eq!((found.records.len(), found.changing), (1, 1));
    words[320].fetch_add(1, Ordering::Relaxed);
    let writing = octets(&words);
    let found = Snapshot::parse(&writing, &writing, &writing).unwrap();
    assert_eq!((found.records.len(), found.changing), (1, 1));
}

#[test]
fn a_lane_is_one_once_it_is_found() {
    let words = words();
    let table = Table::begin(&words, 1, 2).unwrap();
    let record = Record {
        way: Way::Rc,
        ..Record::default()
    };
    table.publish(0, &record);
    assert!(!table.is_lane(0));
    table.set_lane(0);
    assert!(table.is_lane(0));
    assert_eq!(snapshot(&words).records[0].way, Way::Lane);
    table.publish(0, &record);
    assert_eq!(snapshot(&words).records[0].way, Way::Rc);
}

#[test]
fn reasons_are_counted_by_text() {
    let words = words();
    let table = Table::begin(&words, 1, 2).unwrap();
    let long = "x".repeat(100);
    assert_eq!(table.reason("a rule", 1), 1);
    assert_eq!(table.reason(&long, 0), 2);
    assert_eq!(table.reason("a rule", 1), 1);
    for n in 0..30 {
        table.reason(&format!("reason {n}\x1b[2J"), 1);
    }
    table.count_unrecorded();
    table.count_upgraded();
    let found = snapshot(&words);
    assert_eq!(
        found.reasons[0],
        Reason {
            text: "a rule".to_owned(),
            count: 2
        }
    );
    assert_eq!(found.reasons[1].text.len(), 88);
    assert_eq!(found.reasons[2].text, "reason 0?[2J");
    assert_eq!(
        found.reasons[23],
        Reason {
            text: "other reasons".to_owned(),
            count: 9
        }
    );
    assert_eq!(
        (found.plain(), found.unrecorded, found.upgraded),
        (32, 1, 1)
    );
    let of = |reason| {
        found.reason_of(&Record {
            reason,
            ..Record::default()
        })
    };
    assert_eq!((of(0), of(1), of(25)), (None, Some("a rule"), None));
}
