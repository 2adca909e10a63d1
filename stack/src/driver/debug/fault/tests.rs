use std::net::SocketAddr;

use dgiwarp_llp_udp::Peer;
use proptest::prelude::*;

use crate::driver::debug::fault::*;

/// Writes down what becomes of each datagram.
#[derive(Debug, Default, PartialEq, Eq)]
struct Log {
    delivered: Vec<Vec<u8>>,
    lost: usize,
}

impl Deliver for Log {
    fn deliver(&mut self, arrival: Arrival<'_>) {
        assert_eq!(
            arrival.stride,
            arrival.octets.len(),
            "one datagram at a time"
        );
        self.delivered.push(arrival.octets.to_vec());
    }

    fn lose(&mut self, _arrival: Arrival<'_>, _loss: Loss) {
        self.lost += 1;
    }
}

fn arrival(octets: &[u8], stride: usize) -> Arrival<'_> {
    Arrival {
        by_memory: false,
        from: Peer::ip(SocketAddr::from(([127, 0, 0, 1], 7))),
        to: None,
        to_group: false,
        octets,
        stride,
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "any instant serves as the origin"
)]
fn origin() -> Instant {
    Instant::now()
}

/// Datagrams of four octets, numbered, one each 10 microseconds, and then a minute of nothing.
fn run(fault: &Fault, order: u64, count: u32) -> (Log, FaultCounts) {
    let mut faults = Faults::new(fault, order);
    let mut log = Log::default();
    let mut now = origin();
    for number in 0..count {
        now += Duration::from_micros(10);
        faults.take(now, arrival(&number.to_be_bytes(), 4), &mut log);
    }
    while let Some(due) = faults.poll_timeout() {
        assert!(due > now, "what is due does not stay");
        now = due;
        faults.handle_timeout(now, &mut log);
    }
    (log, faults.counts())
}

fn numbers(log: &Log) -> Vec<u32> {
    let number = |octets: &Vec<u8>| u32::from_be_bytes(octets.as_slice().try_into().unwrap());
    log.delivered.iter().map(number).collect()
}

/// Five standard deviations of a binomial distribution of 100,000 draws around a tenth are 474.
fn about_a_tenth(count: u64) -> bool {
    (9_500..=10_500).contains(&count)
}

#[test]
fn each_fault_happens_as_often_as_asked() {
    let each = Fault {
        drop: 0.1,
        dup: 0.1,
        reorder: 0.1,
        corrupt: 0.1,
        ..Fault::default()
    };
    for (seed, order) in [(0, 0), (0, 1), (1, 0)] {
        let (log, counts) = run(&Fault { seed, ..each }, order, 100_000);
        assert!(about_a_tenth(counts.dropped), "{counts:?}");
        assert_eq!(counts.dropped, log.lost as u64);
        // The others happen to what was not lost.
        for count in [counts.duplicated, counts.reordered, counts.corrupted] {
            assert!(about_a_tenth(count * 10 / 9), "{counts:?}");
        }
        let arrived = 100_000 - counts.dropped + counts.duplicated;
        assert_eq!(log.delivered.len() as u64, arrived);
        assert_eq!((counts.delayed, counts.overflowed), (0, 0));
    }
}

#[test]
fn the_same_seed_and_order_make_the_same_faults() {
    let fault = Fault {
        drop: 0.2,
        dup: 0.2,
        reorder: 0.2,
        corrupt: 0.2,
        delay: Duration::from_millis(1),
        seed: 42,
    };
    assert_eq!(run(&fault, 3, 1000), run(&fault, 3, 1000));
    assert_ne!(run(&fault, 3, 1000), run(&fault, 4, 1000));
    let other = Fault { seed: 43, ..fault };
    assert_ne!(run(&fault, 3, 1000), run(&other, 3, 1000));
}

#[test]
fn a_train_is_a_row_of_datagrams() {
    let fault = Fault {
        drop: 0.3,
        reorder: 0.3,
        ..Fault::default()
    };
    let (one_by_one, _) = run(&fault, 0, 64);
    let octets: Vec<u8> = (0..64u32).flat_map(u32::to_be_bytes).collect();
    let mut faults = Faults::new(&fault, 0);
    let mut log = Log::default();
    let now = origin();
    faults.take(now, arrival(&octets, 4), &mut log);
    faults.handle_timeout(now + ASIDE_FOR, &mut log);
    assert_eq!(log, one_by_one);
}

#[test]
fn a_corrupted_datagram_differs_in_one_bit() {
    let fault = Fault {
        corrupt: 1.0,
        ..Fault::default()
    };
    let (log, _) = run(&fault, 0, 1000);
    for (sent, arrived) in (0u32..).zip(numbers(&log)) {
        assert_eq!((sent ^ arrived).count_ones(), 1);
    }
    let mut faults = Faults::new(&fault, 0);
    faults.take(origin(), arrival(&[], 0), &mut Log::default());
}

#[test]
fn a_datagram_set_aside_waits_at_most_for_eight_others_or_ten_milliseconds() {
    let fault = Fault {
        reorder: 0.2,
        ..Fault::default()
    };
    let (log, counts) = run(&fault, 0, 10_000);
    let arrived = numbers(&log);
    let mut late = 0;
    for (position, number) in arrived.iter().enumerate() {
        let before = arrived[..position]
            .iter()
            .filter(|other| *other > number)
            .count();
        assert!(before <= 8, "{number} was overtaken by {before}");
        late += u64::from(before > 0);
    }
    // Two neighbours that are both set aside may keep their order.
    assert!(
        late > counts.reordered * 3 / 4 && late <= counts.reordered,
        "{late} of {counts:?}"
    );

    let mut faults = Faults::new(
        &Fault {
            reorder: 1.0,
            ..fault
        },
        0,
    );
    let (now, mut log) = (origin(), Log::default());
    faults.take(now, arrival(b"only", 4), &mut log);
    assert_eq!(faults.poll_timeout(), Some(now + ASIDE_FOR));
    faults.handle_timeout(now + ASIDE_FOR - Duration::from_nanos(1), &mut log);
    assert!(log.delivered.is_empty());
    faults.handle_timeout(now + ASIDE_FOR, &mut log);
    assert_eq!(log.delivered, [b"only"]);
    assert_eq!(faults.poll_timeout(), None);
}

#[test]
fn all_are_delayed_and_too_many_are_lost() {
    let delay = Duration::from_millis(500);
    let fault = Fault {
        delay,
        ..Fault::default()
    };
    let mut faults = Faults::new(&fault, 0);
    let (now, mut log) = (origin(), Log::default());
    for number in 0..20_000u32 {
        faults.take(now, arrival(&number.to_be_bytes(), 4), &mut log);
    }
    let counts = faults.counts();
    assert_eq!((counts.delayed, counts.overflowed), (16_384, 3616));
    assert_eq!(log.lost, 3616);
    faults.handle_timeout(now + delay - Duration::from_nanos(1), &mut log);
    assert!(log.delivered.is_empty());
    faults.handle_timeout(now + delay, &mut log);
    assert_eq!(numbers(&log), (0..16_384).collect::<Vec<_>>());

    let large = vec![0; 1 << 20];
    for _ in 0..20 {
        faults.take(now, arrival(&large, large.len()), &mut log);
    }
    assert_eq!(
        faults.counts().overflowed,
        3616 + 4,
        "octets are bounded too"
    );
}

proptest! {
    /// Whatever happens but loss and corruption, each datagram arrives, as often as it should.
    #[test]
    fn nothing_is_lost_by_reordering_duplication_and_delay(
        dup in 0.0..=1.0f64,
        reorder in 0.0..=1.0f64,
        delay in 0..3u64,
        seed: u64,
    ) {
        let delay = Duration::from_millis(delay);
        let fault = Fault { dup, reorder, delay, seed, ..Fault::default() };
        let (log, counts) = run(&fault, 0, 500);
        let mut arrived = numbers(&log);
        prop_assert_eq!(arrived.len() as u64, 500 + counts.duplicated);
        arrived.sort_unstable();
        arrived.dedup();
        prop_assert_eq!(arrived, (0..500).collect::<Vec<_>>());
    }
}
