//! Files of which the sink has an old copy, which may change while they move.

use super::*;
use crate::delta::{Index, measure};
use crate::engine::{Delta, MAX_OPEN_PIECES};
use crate::wire::{Hello, Part, SIGNATURES_LIMIT, Signature, Signatures};

/// The source's work: what is in the slot, and the result.
pub(super) fn search(
    content: &[u8],
    (offset, length): (u64, u32),
    whole: bool,
    index: &Index,
) -> (Vec<u8>, Delta) {
    let start = usize::try_from(offset).unwrap();
    let end = start + length as usize;
    let beyond = index.piece() as usize - 1;
    let from = start.saturating_sub(beyond);
    let window = &content[from..(end + beyond).min(content.len())];
    let parts = index.search(window, start - from..end - from);
    let hash = hash::block(offset, whole, &content[start..end]);
    let (octets, copied) = measure(&parts);
    if copied == 0 || octets >= length as usize {
        let (octets, copied) = (length, 0);
        return (
            content[start..end].to_vec(),
            Delta {
                hash,
                octets,
                copied,
            },
        );
    }
    let mut records = Vec::new();
    for part in &parts {
        part.emit(window, &mut records);
    }
    let octets = u32::try_from(records.len()).unwrap();
    (
        records,
        Delta {
            hash,
            octets,
            copied,
        },
    )
}

/// The sink's work: the block, if it can be put together.
pub(super) fn patch(old: &[u8], records: &[u8], length: u32) -> Option<Vec<u8>> {
    let mut octets = Vec::new();
    for part in Part::parse_all(records, length).ok()? {
        octets.extend_from_slice(match part {
            Part::Literal(range) => &records[range],
            Part::Copy { offset, length } => {
                let start = usize::try_from(offset).ok()?;
                old.get(start..start.checked_add(length as usize)?)?
            }
        });
    }
    Some(octets)
}

/// Another state of a file.
fn changed(rng: &mut ChaCha8Rng, content: &[u8]) -> Vec<u8> {
    let mut old = content.to_vec();
    for _ in 0..rng.random_range(0..4) {
        let at = rng.random_range(0..=old.len());
        match rng.random_range(0..3) {
            0 => old.truncate(at),
            1 => drop(old.splice(at..at, [7; 100])),
            _ => drop(old.splice(at..(at + 30).min(old.len()), [9; 30])),
        }
    }
    old
}

impl World {
    /// A world whose sink has old copies of nearly all files.
    fn with_old(seed: u64, corrupt_one_in: u32) -> Self {
        let mut world = Self::new(seed, corrupt_one_in);
        world.deltas = true;
        let files = (0..).zip(world.files.clone());
        for (file, content) in files.take(world.files.len()) {
            if world.rng.random_ratio(9, 10) {
                let old = changed(&mut world.rng, &content);
                world.old.insert(file, old);
            }
        }
        world
    }
}

#[test]
fn files_arrive_whole_in_terms_of_old_copies() {
    let (mut sent, mut total) = (0, 0);
    for seed in 0..40 {
        let mut world = World::with_old(seed, if seed % 4 == 0 { 10 } else { 0 });
        world.kill_one_in = if seed % 5 == 0 { 400 } else { 0 };
        assert!(world.run(FOR_EVER), "seed {seed}");
        world.check();
        if world.corrupt_one_in + world.kill_one_in == 0 {
            sent += world.sent;
            total += world.total();
        }
    }
    assert!(sent * 2 < total, "{sent} of {total}");
}

/// Octets that are copied were checked: a block whose old copy is another one by now comes again, whole.
#[test]
fn old_copies_that_change_meanwhile_do_no_harm() {
    let mut repeated = 0;
    for seed in 0..40 {
        let mut world = World::with_old(seed, 0);
        world.change_one_in = 20;
        assert!(world.run(FOR_EVER), "seed {seed}");
        world.check();
        repeated += world.repeated;
    }
    assert!(repeated > 100, "{repeated} blocks came again");
}

#[test]
fn deltas_go_on_where_a_crash_left_them() {
    let mut resumed = 0;
    for seed in 0..40 {
        let mut world = World::with_old(seed, 0);
        let steps = world.rng.random_range(1..20_000);
        for crash in 0..4 {
            let there: usize = world.disk.noted.values().map(BTreeMap::len).sum();
            resumed += there * usize::from(crash == 3);
            if world.run(if crash < 3 { steps } else { FOR_EVER }) {
                break;
            }
        }
        world.check();
    }
    assert!(resumed > 0);
}

/// A peer of before gets neither signatures nor deltas.
#[test]
fn an_end_without_deltas_gets_whole_blocks() {
    for seed in 0..10 {
        let mut world = World::with_old(seed, 0);
        world.deltas = false;
        assert!(world.run(FOR_EVER), "seed {seed}");
        world.check();
        assert_eq!(world.sent, world.total());
    }
    let hello = |abilities: u8| {
        let mut body = [0; 24];
        body[..4].copy_from_slice(&[1, abilities, 0, 128]);
        Frame::parse(1, &body).unwrap()
    };
    let Frame::Hello(Hello { deltas, .. }) = hello(7) else {
        panic!()
    };
    assert!(!deltas);
}

fn offered(run: &mut Run, size: u64) {
    run.source
        .handle_done(SourceDone::Next(Next::Entry(entry(0, size))));
    while run.source.poll_job().is_some() {}
    while run.source.poll_transmit().is_some() {}
}

fn signatures(file: u32, piece: u32, first: u32, count: usize) -> Frame {
    let signature = Signature {
        weak: 1,
        strong: [1; 8],
    };
    let signatures = vec![signature; count];
    Frame::Signatures(Signatures {
        file,
        piece,
        first,
        signatures,
    })
}

#[test]
fn signatures_are_checked_and_bounded() {
    let bad = Err(Violation::Signatures(0));
    let mut run = Run::new(false);
    offered(&mut run, 100_000);
    let unexpected = Err(Violation::Unexpected(23));
    let come = |run: &mut Run, frame| run.source.handle_frame(frame);
    assert_eq!(come(&mut run, signatures(0, 256, 0, 1)), unexpected);
    assert_eq!(run.sink.handle_frame(signatures(0, 256, 0, 1)), unexpected);
    let begun = || {
        let mut run = Run::with(false, false, true);
        offered(&mut run, 100_000);
        run
    };
    for (frame, answer) in [
        (signatures(7, 256, 0, 1), Err(Violation::File(7))),
        (signatures(0, 255, 0, 1), bad),
        (signatures(0, 0, 0, 1), bad),
        (signatures(0, 512, 0, 1), bad),
        (signatures(0, 256, 1, 1), bad),
        (signatures(0, 256, 0, 600), Ok(())),
    ] {
        assert_eq!(come(&mut begun(), frame), answer);
    }
    let mut run = begun();
    let mut first = 0;
    let answer = loop {
        let answer = come(&mut run, signatures(0, 256, first, SIGNATURES_LIMIT));
        if answer.is_err() {
            break answer;
        }
        first += u32::try_from(SIGNATURES_LIMIT).unwrap();
        assert!(first <= MAX_OPEN_PIECES);
    };
    assert_eq!(answer, bad);
    // They come before WANT, which is what they are for.
    let mut run = begun();
    let ranges = vec![(0, 100_000)];
    come(&mut run, Frame::Want(crate::wire::Want { file: 0, ranges })).unwrap();
    assert_eq!(come(&mut run, signatures(0, 256, 0, 1)), unexpected);
}

/// A sink takes deltas of files of which it gave signatures, and gives no more of them than a source takes.
#[test]
fn deltas_are_for_files_with_signatures() {
    let delta = |file, length| Block {
        file,
        slot: 0,
        offset: 0,
        length,
        delta: true,
        hash: [0; 32],
    };
    let begin = |run: &mut Run, file, old| {
        let entry = entry(file, 1 << 40);
        run.sink
            .handle_frame(Frame::Offer(Offer { file, entry }))
            .unwrap();
        let result = Ok(Begun::Partial(BTreeMap::new()));
        run.sink
            .handle_done(SinkDone::Begun { file, result, old })
            .unwrap();
    };
    let bad = Err(Violation::Range { file: 0, offset: 0 });
    for (old, length, answer) in [
        (0, 20, bad),
        (BLOCK.into(), 0, bad),
        (BLOCK.into(), BLOCK, bad),
        (BLOCK.into(), 20, Ok(())),
    ] {
        let mut run = Run::with(false, false, true);
        begin(&mut run, 0, old);
        while run.sink.poll_transmit().is_some() {}
        let sent = run.sink.handle_frame(Frame::Block(delta(0, length)));
        assert_eq!(sent, answer, "{old} {length}");
    }
    let mut run = Run::with(true, false, true);
    while run.sink.poll_transmit().is_some() {}
    let packed = run.sink.handle_frame(Frame::Block(delta(PACKED, 20)));
    assert_eq!(packed, Err(Violation::File(PACKED)));
    // 2^27 octets have 2^19 pieces: two at a time.
    let mut run = Run::with(false, false, true);
    (0..3).for_each(|file| begin(&mut run, file, 1 << 27));
    let signed = |run: &mut Run| {
        let jobs = std::iter::from_fn(|| run.sink.poll_job());
        let file = |job| match job {
            SinkJob::Sign { file, .. } => Some(file),
            _ => None,
        };
        jobs.filter_map(file)
            .collect::<std::collections::BTreeSet<_>>()
    };
    assert_eq!(signed(&mut run), [0, 1].into());
    // The first one is shorter by now, and fails.
    let signatures = Vec::new();
    let first = 0;
    let (file, status) = (0, EndStatus::Changed);
    run.sink
        .handle_done(SinkDone::Signed {
            file,
            first,
            signatures,
        })
        .unwrap();
    assert!(std::iter::from_fn(|| run.sink.poll_transmit()).any(|it| matches!(it, Frame::Want(_))));
    let (root, text) = (None, String::new());
    run.sink
        .handle_frame(Frame::End(crate::wire::End {
            file,
            status,
            root,
            text,
        }))
        .unwrap();
    assert_eq!(signed(&mut run), [2].into());
}
