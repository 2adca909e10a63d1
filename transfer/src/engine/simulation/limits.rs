//! The part of the pipeline for which the others wait, as either engine finds it.

use super::*;
use crate::engine::{Limit, Next};
use crate::wire::{Grant, Want};

const SIZE: u64 = 20 * BLOCK as u64;

fn window() -> Window {
    Window {
        stag: 0,
        slot_length: BLOCK,
        address: 0,
        slots: SLOTS,
    }
}

/// Ends all jobs of a source; returns how many there were.
fn work(source: &mut SourceEngine) -> usize {
    let mut count = 0;
    while let Some(job) = source.poll_job() {
        count += 1;
        match job {
            SourceJob::Next { .. } => source.handle_done(SourceDone::Next(Next::End)),
            SourceJob::Read {
                file,
                offset,
                length,
                local,
                ..
            } => source.handle_done(SourceDone::Read {
                file,
                offset,
                length,
                local,
                result: Ok([0; 32]),
            }),
            other => panic!("{other:?}"),
        }
    }
    count
}

#[test]
fn a_source_waits_for_its_files_the_path_or_the_peer() {
    let mut source = SourceEngine::new(BLOCK, 4, false);
    let Some(SourceJob::Next { file }) = source.poll_job() else {
        panic!("no entry is looked for");
    };
    assert_eq!(source.limit(0), Limit::Files);
    let next = Next::Entry(entry(0, SIZE));
    assert_eq!(file, 0);
    source.handle_done(SourceDone::Next(next));
    work(&mut source);
    // The offer is with the sink, which has not answered.
    assert_eq!(source.limit(0), Limit::Peer);
    source.handle_frame(Frame::Window(window())).unwrap();
    let ranges = vec![(0, SIZE)];
    let want = Frame::Want(Want { file: 0, ranges });
    source.handle_frame(want).unwrap();
    let jobs: Vec<_> = std::iter::from_fn(|| source.poll_job()).collect();
    assert_eq!((jobs.len(), source.limit(0)), (4, Limit::Files));
    for job in jobs {
        let SourceJob::Read { offset, local, .. } = job else {
            panic!("{job:?}");
        };
        source.handle_done(SourceDone::Read {
            file: 0,
            offset,
            length: BLOCK,
            local,
            result: Ok([0; 32]),
        });
    }
    // All are read, and there is no slot: full at the peer, or on their way to it.
    assert_eq!(source.limit(0), Limit::Peer);
    assert_eq!(source.limit(usize::from(SLOTS)), Limit::Network);
    let slots = (0..SLOTS).collect();
    source.handle_frame(Frame::Grant(Grant { slots })).unwrap();
    assert_eq!(source.limit(0), Limit::Network);
    let left: Vec<_> = std::iter::from_fn(|| source.poll_block()).collect();
    assert_eq!((left.len(), source.limit(4)), (4, Limit::Network));
    for outgoing in left {
        let Outgoing::Block { local, .. } = outgoing else {
            panic!("{outgoing:?}");
        };
        source.handle_sent(local);
    }
    assert_eq!(work(&mut source), 4);
}

#[test]
fn a_sink_waits_for_its_files_or_for_blocks() {
    let mut sink = SinkEngine::new(BLOCK, window(), false);
    while sink.poll_transmit().is_some() {}
    assert_eq!(sink.limit(), Limit::Peer);
    let entry = entry(0, SIZE);
    sink.handle_frame(Frame::Offer(Offer { file: 0, entry }))
        .unwrap();
    assert!(matches!(sink.poll_job(), Some(SinkJob::Begin { .. })));
    assert_eq!(sink.limit(), Limit::Files);
    let result = Ok(Begun::Partial(BTreeMap::new()));
    let begun = SinkDone::Begun {
        file: 0,
        result,
        old: 0,
    };
    sink.handle_done(begun).unwrap();
    while sink.poll_transmit().is_some() {}
    assert_eq!(sink.limit(), Limit::Peer);
    for (slot, expected) in [
        (0, Limit::Peer),
        (1, Limit::Files),
        (2, Limit::Files),
        (3, Limit::Files),
    ] {
        let block = Block {
            file: 0,
            slot,
            offset: u64::from(slot) * u64::from(BLOCK),
            length: BLOCK,
            delta: false,
            hash: [0; 32],
        };
        sink.handle_frame(Frame::Block(block)).unwrap();
        assert!(matches!(sink.poll_job(), Some(SinkJob::Write { .. })));
        assert_eq!(sink.limit(), expected, "{slot}");
    }
    for slot in 0..SLOTS {
        let written = SinkDone::Written {
            file: 0,
            offset: u64::from(slot) * u64::from(BLOCK),
            length: BLOCK,
            slot,
            hash: [0; 32],
            result: Ok(true),
            copied: 0,
        };
        sink.handle_done(written).unwrap();
    }
    while sink.poll_transmit().is_some() {}
    assert_eq!(sink.limit(), Limit::Peer);
}
