//! Writes of RC QPs under loss and reordering: a program that polls memory sees their octets in the order of the posts.

use rand::RngExt as _;

use super::connection::pair;
use super::*;
use dgiwarp_ddp::{STag, TaggedOffset};

/// Memory that Writes go to, one behind the other: between that of receives and that of Sends.
const TARGET: usize = 170_000;
const LENGTH: usize = 350_000;

/// The next Write, to `at` of the other end's memory, which this end's memory has, too.
fn write(ends: &mut [End; 2], wr_id: u64, at: usize, length: u32, immediate: Option<u32>) {
    write_to(ends, wr_id, (at, at), length, immediate);
}

fn write_to(
    ends: &mut [End; 2],
    wr_id: u64,
    (from, at): (usize, usize),
    length: u32,
    immediate: Option<u32>,
) {
    let start = TaggedOffset::new(u64::try_from(at).unwrap());
    let stag = STag::new(ends[1].keys.rkey);
    let sges = [Sge {
        addr: u64::try_from(from).unwrap(),
        length,
        lkey: ends[0].lkey,
    }];
    let work = RcWork::Write {
        stag,
        start,
        immediate,
    };
    ends[0].post(
        wr_id,
        (2, 0),
        work,
        RcData::Sges(SgeList::from_slice(&sges)),
    );
}

/// Whether the octets of all Writes up to some place are there, and none behind it.
fn is_prefix(memory: &[u8]) -> bool {
    let placed = memory.iter().take_while(|octet| **octet != 0).count();
    memory[placed..].iter().all(|octet| *octet == 0)
}

/// Posts Writes, Sends and Reads, and passes datagrams on out of order and with losses. After each datagram the memory has all octets up to some place.
fn run(seed: u64) {
    let mut random = ChaCha20Rng::seed_from_u64(seed);
    let mut now = origin();
    let mut ends = pair(now, 5, 20);
    ends[0].memory.write(TARGET, &vec![1; LENGTH]);
    let (mut last, mut posts) = (TARGET, 0);
    let loss = random.random_range(0..30);
    let mut waiting: Vec<(usize, Peer, Vec<u8>)> = Vec::new();
    for round in 0..100_000_u32 {
        while posts < 120 && ends[0].engine.outstanding() < 20 {
            let kind = random.random_range(0..8);
            let length = [1, 40, 1400, 2900, 4300][random.random_range(0..5_usize)];
            match kind {
                0 if posts % 4 == 0 => ends[0].send(posts, 2, 0, 10),
                1 => {
                    let sges = [Sge {
                        addr: 1 << 19,
                        length: 3000,
                        lkey: ends[0].lkey,
                    }];
                    let work = RcWork::Read {
                        stag: STag::new(ends[1].keys.rkey),
                        start: TaggedOffset::new(1 << 19),
                    };
                    let data = RcData::Sges(SgeList::from_slice(&sges));
                    ends[0].post(posts, (2, 0), work, data);
                }
                2 if posts % 4 == 2 => {
                    write(&mut ends, posts, last, length, Some(9));
                    last += usize::try_from(length).unwrap();
                }
                _ => {
                    write(&mut ends, posts, last, length, None);
                    last += usize::try_from(length).unwrap();
                }
            }
            posts += 1;
        }
        for (from, end) in ends.iter_mut().enumerate() {
            end.pump(now);
            while let Some((_, datagram)) = end.wire.0.pop_front() {
                if random.random_range(0..100) >= loss {
                    waiting.push((1 - from, end.address, datagram));
                }
            }
        }
        for _ in 0..random.random_range(0..4) {
            if waiting.is_empty() {
                break;
            }
            // Mostly the oldest, now and then any other.
            let which = if random.random_range(0..3) == 0 {
                random.random_range(0..waiting.len())
            } else {
                0
            };
            let (to, from, datagram) = waiting.remove(which);
            ends[to].take(now, from, &datagram);
            let memory = ends[1].memory.to_vec(TARGET, last - TARGET);
            assert!(is_prefix(&memory), "seed {seed}, round {round}");
        }
        now += MS / 20;
        if posts == 120 && ends[0].engine.outstanding() == 0 && waiting.is_empty() {
            break;
        }
    }
    let sent = ends[0].sent();
    assert_eq!(sent.len(), 120, "seed {seed}");
    assert!(sent.iter().all(|(_, status)| *status == OK), "{sent:?}");
    assert!(
        ends[1]
            .memory
            .to_vec(TARGET, last - TARGET)
            .iter()
            .all(|it| *it == 1)
    );
    let received = ends[1].received();
    assert!(received.iter().all(|wc| wc.status == OK), "{received:?}");
}

#[test]
fn octets_of_writes_are_seen_in_the_order_of_the_posts() {
    (0..20).for_each(run);
}

/// The rights of a segment that is held are checked when it is placed, and its message fails as one that came in order.
#[test]
fn a_write_that_comes_early_and_has_no_right_fails_in_its_turn() {
    for immediate in [None, Some(1)] {
        let mut now = origin();
        let mut ends = pair(now, 5, 20);
        ends[0].memory.write(TARGET, &[1; 9000]);
        // An association, so that messages leave at once.
        ends[0].send(0, 2, 0, 10);
        talk(&mut now, 50 * MS, &mut ends, |_| false);
        write(&mut ends, 1, TARGET, 1000, None);
        write_to(&mut ends, 2, (TARGET, 2 << 20), 1000, immediate);
        write(&mut ends, 3, TARGET + 2000, 1000, None);
        // The first Write is lost, and what follows comes.
        let mut count = 0;
        talk(&mut now, 300 * MS, &mut ends, |to| {
            count += u32::from(to == 2);
            to == 2 && count == 1
        });
        let statuses: Vec<_> = ends[0].sent();
        let expected = [
            (0, OK),
            (1, OK),
            (2, WcStatus::RemoteAccess),
            (3, WcStatus::Flushed),
        ];
        assert_eq!(statuses, expected, "{immediate:?}");
        let memory = ends[1].memory.to_vec(TARGET, 9000);
        assert_eq!(memory.iter().filter(|it| **it == 1).count(), 1000);
        assert!(ends.iter().all(|end| end.engine.is_over()));
    }
}

/// Several short Writes are in one datagram: one that fills a gap, and those behind it.
#[test]
fn of_writes_to_the_same_octets_the_latest_wins() {
    const WRITES: u8 = 200;
    for seed in 0..20 {
        let mut random = ChaCha20Rng::seed_from_u64(seed);
        let mut now = origin();
        let mut ends = pair(now, 5, 4);
        ends[0].send(0, 2, 0, 10);
        talk(&mut now, 50 * MS, &mut ends, |_| false);
        for number in 1..=WRITES {
            let at = usize::from(number);
            let from = TARGET + 8 * at;
            ends[0].memory.write(from, &[number; 8]);
            write_to(&mut ends, number.into(), (from, TARGET + at), 8, None);
            if random.random_range(0..4) == 0 {
                ends[0].pump(now);
            }
        }
        let mut latest = 0;
        for _ in 0..4000 {
            ends[0].pump(now);
            let mut datagrams = std::mem::take(&mut ends[0].wire.0);
            while !datagrams.is_empty() {
                let which = random.random_range(0..datagrams.len().min(3));
                let (_, datagram) = datagrams.remove(which).unwrap();
                if random.random_range(0..4) > 0 {
                    ends[1].take(now, address(1), &datagram);
                    let memory = ends[1].memory.to_vec(TARGET, 240);
                    let placed = memory.iter().copied().max().unwrap();
                    assert!(placed >= latest, "seed {seed}: {placed} behind {latest}");
                    latest = placed;
                    // As after the Writes up to this one, in order.
                    let end = usize::from(latest) + if latest > 0 { 8 } else { 0 };
                    for (at, octet) in (0..).zip(memory) {
                        let expected = if usize::from(at) < end {
                            at.min(latest)
                        } else {
                            0
                        };
                        assert_eq!(octet, expected, "seed {seed}: octet {at} behind {latest}");
                    }
                }
            }
            ends[1].pump(now);
            while let Some((_, datagram)) = ends[1].wire.0.pop_front() {
                ends[0].take(now, address(2), &datagram);
            }
            now += MS / 10;
        }
        assert_eq!(latest, WRITES, "seed {seed}");
    }
}

/// Two Writes that were lost come again in one datagram, the one between them before it: none is overtaken within the datagram either.
#[test]
fn a_write_that_waits_is_placed_between_two_of_one_datagram() {
    let mut now = origin();
    let mut ends = pair(now, 5, 4);
    ends[0].send(0, 2, 0, 10);
    talk(&mut now, 50 * MS, &mut ends, |_| false);
    // The first three go to one place.
    for number in 1..=12 {
        let at = if number <= 3 {
            0
        } else {
            100 * usize::from(number)
        };
        let from = TARGET + 8 * usize::from(number);
        ends[0].memory.write(from, &[number; 8]);
        write_to(&mut ends, number.into(), (from, TARGET + at), 8, None);
        ends[0].pump(now);
        now += MS / 10;
    }
    let mut count = 0;
    let mut seen = vec![0];
    for _ in 0..2000 {
        ends[0].pump(now);
        while let Some((_, datagram)) = ends[0].wire.0.pop_front() {
            count += 1;
            if count != 1 && count != 3 {
                ends[1].take(now, address(1), &datagram);
                seen.push(ends[1].memory.to_vec(TARGET, 1)[0]);
            }
        }
        ends[1].pump(now);
        while let Some((_, datagram)) = ends[1].wire.0.pop_front() {
            ends[0].take(now, address(2), &datagram);
        }
        now += MS / 10;
    }
    assert_eq!(ends[0].sent().len(), 13);
    seen.dedup();
    assert_eq!(seen, [0, 3], "both came in one datagram");
}
