//! Wires in virtual time.

use super::*;
use crate::{GilbertElliott, Loss, Reordering};
use proptest::prelude::*;

const PACKETS: u64 = 20_000;

fn config() -> LinkConfig {
    LinkConfig {
        delay: Duration::from_millis(5),
        ..LinkConfig::default()
    }
}

/// Sends numbered packets of `length` octets, one each `every`, and returns what arrives, with its time.
fn run(wire: &mut Wire, packets: u64, length: usize, every: Duration) -> Vec<(Duration, Vec<u8>)> {
    let mut arrived = Vec::new();
    let mut take = |wire: &mut Wire, now: Option<Duration>| {
        while let Some(at) = wire.next_arrival() {
            let Some(packet) = wire.deliver(now.unwrap_or(at)) else {
                break;
            };
            arrived.push((at, packet.clone()));
            wire.recycle(packet);
        }
    };
    let mut octets = vec![0; length];
    for number in 0..packets {
        let now = every * u32::try_from(number).unwrap();
        take(wire, Some(now));
        // Behind the header of IPv4, from where corruption begins.
        octets[0] = 0x45;
        octets[1] = 2;
        octets[2..10].copy_from_slice(&number.to_be_bytes());
        wire.accept(now, &octets);
    }
    take(wire, None);
    arrived
}

fn number(packet: &[u8]) -> u64 {
    u64::from_be_bytes(packet[2..10].try_into().unwrap())
}

fn numbers(arrived: &[(Duration, Vec<u8>)]) -> Vec<u64> {
    arrived.iter().map(|(_, packet)| number(packet)).collect()
}

fn near(seen: u64, expected: u64) -> bool {
    seen.abs_diff(expected) <= expected / 10
}

#[test]
fn a_perfect_wire_delays_and_changes_nothing() {
    let mut wire = Wire::new(config(), 1, 0);
    let arrived = run(&mut wire, 100, 60, Duration::from_micros(10));
    assert_eq!(numbers(&arrived), (0..100).collect::<Vec<_>>());
    for (at, packet) in &arrived {
        let sent = Duration::from_micros(10) * u32::try_from(number(packet)).unwrap();
        assert_eq!(*at - sent, Duration::from_millis(5));
        assert_eq!(packet[10..], [0; 50]);
    }
    let expected = WireCounts {
        packets: 100,
        delivered: 100,
        ..WireCounts::default()
    };
    assert_eq!(wire.counts(), expected);
    assert_eq!(wire.next_arrival(), None);
    assert_eq!((wire.in_flight(), wire.octets), (0, 0));
}

#[test]
fn a_packet_does_not_arrive_early() {
    let mut wire = Wire::new(config(), 1, 0);
    wire.accept(Duration::from_millis(1), &[0x45]);
    let at = wire.next_arrival().unwrap();
    assert_eq!(at, Duration::from_millis(6));
    assert_eq!(wire.deliver(at - Duration::from_nanos(1)), None);
    assert_eq!(wire.deliver(at), Some(vec![0x45]));
}

#[test]
fn faults_come_out_at_their_rates_and_are_counted() {
    let mut wire = Wire::new(
        LinkConfig {
            loss: Loss::Independent(0.1),
            duplication: 0.1,
            reordering: Reordering {
                probability: 0.2,
                by: Duration::from_millis(1),
            },
            corruption: 0.1,
            ..config()
        },
        1,
        0,
    );
    let arrived = run(&mut wire, PACKETS, 60, Duration::from_micros(10));
    let counts = wire.counts();
    assert_eq!(counts.packets, PACKETS);
    assert!(near(counts.lost, PACKETS / 10), "{counts:?}");
    let passed = PACKETS - counts.lost;
    assert!(near(counts.duplicated, passed / 10), "{counts:?}");
    assert_eq!(counts.delivered, passed + counts.duplicated);
    assert!(near(counts.corrupted, counts.delivered / 10), "{counts:?}");
    // Nearly each copy that is held up is overtaken.
    assert!(near(counts.reordered, counts.delivered / 5), "{counts:?}");

    // The counts are those of the packets themselves.
    let changed = |packet: &[u8]| packet[20..].iter().any(|&octet| octet != 0);
    let corrupted = arrived.iter().filter(|(_, packet)| changed(packet)).count();
    assert_eq!(counts.corrupted, u64::try_from(corrupted).unwrap());
    let mut latest = 0;
    let mut behind = 0;
    for number in numbers(&arrived) {
        behind += u64::from(number < latest);
        latest = latest.max(number);
    }
    assert_eq!(counts.reordered, behind);
    let mut distinct = numbers(&arrived);
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(u64::try_from(distinct.len()).unwrap(), passed);
}

#[test]
fn bursts_have_their_rate_and_length() {
    let loss = Loss::Bursts(GilbertElliott::bursts(0.1, 10.0));
    let mut wire = Wire::new(LinkConfig { loss, ..config() }, 3, 0);
    let arrived = numbers(&run(&mut wire, PACKETS, 60, Duration::from_micros(10)));
    let bursts = arrived
        .windows(2)
        .filter(|pair| pair[1] > pair[0] + 1)
        .count();
    let lost = wire.counts().lost;
    assert!(lost.abs_diff(PACKETS / 10) < PACKETS / 50, "{lost}");
    let length = lost / u64::try_from(bursts).unwrap();
    assert!((8..=12).contains(&length), "{length}");
}

#[test]
fn jitter_alone_keeps_the_order_and_reordering_does_not() {
    for (probability, ordered) in [(0.0, true), (0.2, false)] {
        let mut wire = Wire::new(
            LinkConfig {
                jitter: Duration::from_millis(4),
                reordering: Reordering {
                    probability,
                    by: Duration::from_millis(1),
                },
                ..config()
            },
            1,
            0,
        );
        let arrived = numbers(&run(&mut wire, 5000, 60, Duration::from_micros(10)));
        assert_eq!(arrived.is_sorted(), ordered);
        // A packet that is held up overtakes none.
        assert!(near(
            wire.counts().reordered,
            if ordered { 0 } else { 1000 }
        ));
    }
}

#[test]
fn a_queue_bounds_delay_and_memory_and_the_rate_comes_out() {
    let (queue, length) = (50_000, 1000);
    let mut wire = Wire::new(
        LinkConfig {
            rate: Some(1_000_000),
            queue,
            ..config()
        },
        1,
        0,
    );
    // Ten times the rate.
    let every = Duration::from_micros(100);
    let arrived = run(&mut wire, PACKETS, length, every);
    let longest = Duration::from_millis(5 + 50 + 1);
    let mut delays = arrived
        .iter()
        .map(|(at, packet)| *at - every * u32::try_from(number(packet)).unwrap());
    assert!(delays.all(|delay| delay <= longest));
    assert!(
        wire.spare.len() <= longest.as_millis() as usize + 1,
        "{}",
        wire.spare.len()
    );
    let counts = wire.counts();
    assert_eq!(counts.delivered + counts.overflowed, PACKETS);
    let took = arrived.last().unwrap().0 - arrived[0].0;
    let rate = (arrived.len() - 1) as f64 * length as f64 / took.as_secs_f64();
    assert!((rate - 1_000_000.0).abs() < 1000.0, "{rate}");
    // ECT(0) stays where no threshold is set.
    assert!(arrived.iter().all(|(_, packet)| packet[1] == 2));
    assert_eq!(counts.marked, 0);
}

#[test]
fn a_long_queue_marks_instead_of_growing() {
    let mut wire = Wire::new(
        LinkConfig {
            rate: Some(1_000_000),
            mark: 9_500,
            ..config()
        },
        1,
        0,
    );
    let arrived = run(&mut wire, 100, 1000, Duration::ZERO);
    let marked = arrived.iter().filter(|(_, packet)| packet[1] == 3).count();
    assert_eq!(marked, 90);
    assert_eq!(wire.counts().marked, 90);
}

#[test]
fn what_is_on_its_way_is_bounded_without_a_queue() {
    let mut wire = Wire::new(config(), 1, 0);
    let packet = vec![0x45; 65_000];
    let most = MOST_IN_FLIGHT / (packet.len() + OVERHEAD);
    for _ in 0..most + 10 {
        wire.accept(Duration::ZERO, &packet);
    }
    assert_eq!(wire.counts().overflowed, 10);
    assert!(wire.octets <= MOST_IN_FLIGHT);
    while wire.deliver(Duration::MAX).is_some() {}
    wire.accept(Duration::ZERO, &packet);
    assert_eq!(wire.counts().overflowed, 10);
}

proptest! {
    /// The nth packet has the fate of its seed, however fast packets come and whether the queue is full.
    #[test]
    fn fates_are_those_of_the_seed(seed: u64, bursts: bool) {
        let loss = if bursts {
            Loss::Bursts(GilbertElliott::bursts(0.2, 3.0))
        } else {
            Loss::Independent(0.2)
        };
        let config = LinkConfig {
            rate: Some(1_000_000),
            queue: 20_000,
            jitter: Duration::from_micros(100),
            loss,
            duplication: 0.1,
            reordering: Reordering { probability: 0.2, by: Duration::from_millis(1) },
            corruption: 0.2,
            ..config()
        };
        let run = |every, direction| {
            let mut wire = Wire::new(config, seed, direction);
            let mut arrived = run(&mut wire, 300, 1000, every);
            arrived.sort_by_key(|(at, packet)| (number(packet), *at));
            (wire.counts(), arrived)
        };
        let slow = run(Duration::from_millis(2), 0);
        prop_assert_eq!(&run(Duration::from_millis(2), 0), &slow);
        prop_assert_ne!(&run(Duration::from_millis(2), 1), &slow);
        prop_assert_eq!(slow.0.overflowed, 0);
        let fast = run(Duration::from_micros(10), 0);
        prop_assert!(fast.0.overflowed > 100);
        // The packets that the queue let through are those of the slow run, copy for copy and bit for bit.
        let of = |arrived: &[(Duration, Vec<u8>)], wanted: u64| {
            let mut copies: Vec<_> = arrived.iter().filter(|(_, packet)| number(packet) == wanted).map(|(_, packet)| packet.clone()).collect();
            copies.sort();
            copies
        };
        for wanted in 0..300 {
            let copies = of(&fast.1, wanted);
            prop_assert!(copies.is_empty() || copies == of(&slow.1, wanted));
        }
    }
}
