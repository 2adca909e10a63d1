//! Runs of many seeds, and of those that once failed.

use std::time::{Duration, Instant};

use dgiwarp_rdmap::datagram::DropReason;

use super::scenario::{Scenario, Style};
use super::statistics::Statistics;
use super::verdict::Run;

/// Names the seed of the one run that is wanted.
const SEED: &str = "DGIWARP_SIM_SEED";

/// Segments that each of the four tests sends at least: five million together.
const SEGMENTS: u64 = 1_275_000;

/// How long the long run takes.
const SOAK: Duration = Duration::from_secs(600);

/// Seeds that failed once, with what they showed.
const REGRESSIONS: &[(u64, Style, &str)] = &[
    (
        2_000_001,
        Style::Lossy,
        "each copy of a plain Send is delivered",
    ),
    (
        3_000_000,
        Style::Harsh,
        "a message that is never sent takes a number",
    ),
];

#[expect(clippy::disallowed_methods, reason = "tests have a clock")]
fn origin() -> Instant {
    Instant::now()
}

/// Tells the seed when a run fails.
struct Announce(u64, Style);

impl Drop for Announce {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{:?}: rerun with {SEED}={}", self.1, self.0);
        }
    }
}

fn run(seed: u64, style: Style, statistics: &mut Statistics) {
    let _announce = Announce(seed, style);
    let run = Run::new(&Scenario::new(seed, style), origin());
    statistics.add(&run);
}

/// Runs seeds from `first` on until enough segments were sent, or the one seed that the environment names.
fn run_many(first: u64, style: Style) -> Option<Statistics> {
    let mut statistics = Statistics::default();
    if let Ok(seed) = std::env::var(SEED) {
        run(
            seed.parse().expect("a seed is a number"),
            style,
            &mut statistics,
        );
        println!("{style:?}: {statistics}");
        return None;
    }
    for seed in first.. {
        if statistics.segments >= SEGMENTS {
            break;
        }
        run(seed, style, &mut statistics);
    }
    println!("{style:?}, seeds from {first}: {statistics}");
    statistics.check();
    Some(statistics)
}

#[test]
fn what_arrives_in_order_counts() {
    run_many(1_000_000, Style::Orderly);
}

#[test]
fn lossy_networks() {
    run_many(2_000_000, Style::Lossy);
}

#[test]
fn harsh_networks() {
    run_many(3_000_000, Style::Harsh);
}

#[test]
fn more_harsh_networks() {
    let Some(statistics) = run_many(4_000_000, Style::Harsh) else {
        return;
    };
    for reason in [
        DropReason::BadCrc,
        DropReason::BadQkey,
        DropReason::NoReceive,
        DropReason::ReceiveTooShort,
        DropReason::ReassemblyFull,
        DropReason::ReassemblyTimeout,
        DropReason::ReassemblySuperseded,
        DropReason::WriteRecordOff,
        DropReason::BadStag,
        DropReason::NoAccess,
        DropReason::OutOfBounds,
        DropReason::Late,
        DropReason::Duplicate,
        DropReason::MapFull,
        DropReason::RecordDropped,
        DropReason::SegmentUnreported,
    ] {
        let times = statistics.dropped(reason);
        assert!(times > 100, "{reason} happens only {times} times");
    }
}

/// Segments that come when their numbers are far behind: §4.
#[test]
fn many_short_messages() {
    let mut statistics = Statistics::default();
    for seed in 5_000_020..5_000_024 {
        run(seed, Style::Chatty, &mut statistics);
    }
    println!("short messages: {statistics}");
    let late = statistics.dropped(DropReason::Late);
    assert!(late > 300, "only {late} are late");
}

#[test]
fn seeds_that_failed_once() {
    for &(seed, style, what) in REGRESSIONS {
        println!("{style:?} {seed}: {what}");
        run(seed, style, &mut Statistics::default());
    }
}

#[test]
fn the_same_seed_is_the_same_run() {
    for style in [Style::Orderly, Style::Lossy, Style::Harsh, Style::Chatty] {
        let once = || {
            let run = Run::new(&Scenario::new(9, style), origin());
            format!("{:?}", run.log())
        };
        assert!(once() == once());
    }
}

#[test]
#[ignore = "ten minutes of random seeds"]
fn soak_random_networks() {
    let start = origin();
    let mut statistics = Statistics::default();
    while start.elapsed() < SOAK {
        let seed = getrandom::u64().expect("the system has random numbers");
        for style in [Style::Orderly, Style::Lossy, Style::Harsh, Style::Chatty] {
            run(seed, style, &mut statistics);
        }
    }
    println!("random seeds: {statistics}");
}
