//! Rules of both engines, one by one.

use super::*;

/// A peer that counts what was not sent, or lets the only stream go.
#[test]
fn counts_of_streams_that_are_gone_are_checked() {
    let left = |stream, taken| Left { stream, taken };
    let mut run = Run::new(false);
    let streams = &mut run.streams[0];
    assert_eq!(
        streams.handle_left(left(0, 0)),
        Err(Violation::Taken(0)),
        "the last stream"
    );
    run.join();
    let streams = &mut run.streams[0];
    assert_eq!(streams.handle_left(left(1, 7)), Err(Violation::Taken(7)));
    // One that never came here is answered, and its number is not used again.
    let streams = &mut Run::new(false).streams[0];
    assert_eq!(streams.handle_left(left(9, 0)), Ok(()));
    assert_eq!(streams.next_number(), Some(10));
    let block = || None;
    let sent = streams.poll_transmit(0, Duration::ZERO, block);
    assert_eq!(sent, Some((0, Outgoing::Frame(Frame::Left(left(9, 0))))));
}

/// Streams beyond those that are used are kept without blocks; the one that carries control frames is not given up.
#[test]
fn blocks_leave_on_streams_that_are_used() {
    let mut run = Run::new(false);
    (0..2).for_each(|_| run.join());
    let streams = &mut run.streams[0];
    for number in 1..3 {
        streams.greet(number, RECEIVES).unwrap_or_default();
        streams.set_open(number);
    }
    let block = Block {
        file: 0,
        slot: 0,
        offset: 0,
        length: BLOCK,
        delta: false,
        hash: [0; 32],
    };
    let carries = |streams: &mut Streams, number| {
        let block = || Some(Outgoing::Block { block, local: 0 });
        let sent = streams.poll_transmit(number, Duration::ZERO, block);
        sent.is_some_and(|(_, it)| matches!(it, Outgoing::Block { .. }))
    };
    // HELLOs go first.
    assert_eq!([1, 2].map(|number| carries(streams, number)), [false; 2]);
    for (used, expected) in [
        (16, [true; 3]),
        (2, [true, true, false]),
        (0, [true, false, false]),
    ] {
        streams.set_used(used);
        let all = [0, 1, 2].map(|number| carries(streams, number));
        assert_eq!(all, expected, "{used}");
    }
    assert_eq!(streams.dispensable(), Some(2));
    assert!(streams.leave(2) && streams.leave(1));
    assert_eq!(streams.dispensable(), None);
}

#[test]
fn a_failed_file_does_not_stop_the_others() {
    let window = Window {
        stag: 0,
        slot_length: BLOCK,
        address: 0,
        slots: SLOTS,
    };
    let mut sink = SinkEngine::new(BLOCK, window, false);
    sink.handle_frame(Frame::Offer(Offer {
        file: 0,
        entry: entry(0, 3000),
    }))
    .unwrap();
    let result = Ok(Begun::Partial(BTreeMap::new()));
    sink.handle_done(SinkDone::Begun {
        file: 0,
        result,
        old: 0,
    })
    .unwrap();
    while sink.poll_transmit().is_some() {}
    let block = Block {
        file: 0,
        slot: 1,
        offset: 0,
        length: BLOCK,
        delta: false,
        hash: [1; 32],
    };
    sink.handle_frame(Frame::Block(block)).unwrap();
    let failure = Failure::new(Status::NoSpace, "full");
    let written = SinkDone::Written {
        file: 0,
        offset: 0,
        length: BLOCK,
        slot: 1,
        hash: [1; 32],
        result: Err(failure),
        copied: 0,
    };
    sink.handle_done(written).unwrap();
    let Some(Frame::Done(done)) = sink.poll_transmit() else {
        panic!("no DONE")
    };
    assert_eq!((done.file, done.status), (0, Status::NoSpace));
    // A block that was on its way gives its slot back.
    let late = Block {
        slot: 2,
        offset: 1024,
        ..block
    };
    sink.handle_frame(Frame::Block(late)).unwrap();
    let Some(Frame::Grant(grant)) = sink.poll_transmit() else {
        panic!("no GRANT")
    };
    assert_eq!(grant.slots, [1, 2]);
    assert_eq!(
        sink.handle_frame(Frame::Block(Block {
            slot: 1,
            file: 7,
            ..block
        })),
        Err(Violation::File(7))
    );
}

fn sink_with_a_listed_file(size: u64) -> SinkEngine {
    let window = Window {
        stag: 0,
        slot_length: BLOCK,
        address: 0,
        slots: SLOTS,
    };
    let mut sink = SinkEngine::new(BLOCK, window, true);
    let entries = vec![entry(0, size)];
    sink.handle_frame(Frame::List(List { first: 0, entries }))
        .unwrap();
    let answers = vec![Ok(Answer::Wanted)];
    sink.handle_done(SinkDone::Listed { first: 0, answers })
        .unwrap();
    while sink.poll_transmit().is_some() {}
    sink
}

/// The result of a packed block with one record.
fn unpacked(file: u32, length: usize) -> SinkDone {
    let octets = vec![0; RECORD + length];
    let record = Record {
        file,
        status: EndStatus::Complete,
        range: RECORD..octets.len(),
    };
    SinkDone::Unpacked {
        pack: 0,
        slot: 0,
        result: Some((Arc::new(octets), Ok(vec![record]))),
    }
}

#[test]
fn records_are_checked_before_they_are_stored() {
    let mut sink = sink_with_a_listed_file(5);
    while sink.poll_job().is_some() {}
    let bad = |file, offset| Err(Violation::Range { file, offset });
    assert_eq!(sink.handle_done(unpacked(7, 5)), Err(Violation::File(7)));
    assert_eq!(sink.handle_done(unpacked(0, 5)), Ok(()));
    assert!(matches!(sink.poll_job(), Some(SinkJob::Store { .. })));
    // It came already.
    assert_eq!(sink.handle_done(unpacked(0, 5)), bad(0, RECORD as u64));
    let mut sink = sink_with_a_listed_file(5);
    assert_eq!(sink.handle_done(unpacked(0, 4)), bad(0, RECORD as u64));
    for length in [0, BLOCK + 1] {
        let block = Block {
            file: PACKED,
            slot: 1,
            offset: 3,
            length,
            delta: false,
            hash: [0; 32],
        };
        let mut sink = sink_with_a_listed_file(5);
        assert_eq!(sink.handle_frame(Frame::Block(block)), bad(PACKED, 3));
    }
}

#[test]
fn lists_are_bounded_and_in_order() {
    let list = |first, count, size| {
        let entries = vec![entry(0, size); count];
        Frame::List(List { first, entries })
    };
    let mut sink = sink_with_a_listed_file(5);
    let too_long = u64::from(BLOCK) - 11;
    assert_eq!(
        sink.handle_frame(list(1, 1, too_long)),
        Err(Violation::Range {
            file: 1,
            offset: too_long
        })
    );
    let mut sink = sink_with_a_listed_file(5);
    assert_eq!(sink.handle_frame(list(2, 1, 1)), Err(Violation::File(2)));
    assert_eq!(sink.handle_frame(list(1, MAX_LISTED - 1, 1)), Ok(()));
    let next = u32::try_from(MAX_LISTED).unwrap();
    assert_eq!(sink.handle_frame(list(next, 1, 1)), Err(Violation::Open));
}

/// PRUNE is for sessions that agreed on it, once, and when all is finished.
#[test]
fn nothing_is_removed_before_its_time() {
    let unexpected = Err(Violation::Unexpected(18));
    let mut sink = sink_with_a_listed_file(5);
    assert_eq!(sink.handle_frame(Frame::Prune), unexpected);
    let mut sink = sink_with_a_listed_file(5).pruning();
    assert_eq!(sink.handle_frame(Frame::Prune), unexpected);
    let mut run = Run::of(false, true);
    assert_eq!(run.sink.handle_frame(Frame::Prune), Ok(()));
    assert_eq!(run.sink.handle_frame(Frame::Prune), unexpected);
    // Its answer comes first.
    let finish = run.sink.handle_frame(Frame::Finish);
    assert_eq!(finish, Err(Violation::Unexpected(11)));
    let removed = Frame::Removed(crate::wire::Removed {
        last: true,
        entries: Vec::new(),
    });
    let answered = run.source.handle_frame(removed);
    assert_eq!(answered, Err(Violation::Unexpected(19)));
}

/// An older peer gets none of the frames that it does not take.
#[test]
fn frames_of_packed_files_are_for_sessions_that_pack() {
    let mut run = Run::new(false);
    let entries = vec![entry(0, 1)];
    let list = Frame::List(List { first: 0, entries });
    assert_eq!(run.sink.handle_frame(list), Err(Violation::Unexpected(14)));
    let answers = vec![Answer::Wanted];
    let answer = Frame::Answer(Answers { first: 0, answers });
    assert_eq!(
        run.source.handle_frame(answer),
        Err(Violation::Unexpected(15))
    );
}

/// A peer that sends anything at any time causes violations, but neither panics nor memory without bound.
#[test]
fn any_frame_at_any_time_is_an_error_or_harmless() {
    let violations = |seed| {
        let mut world = World::new(seed, 0);
        let mut run = Run::new(world.packs);
        if world.attributes {
            run = run.keep_attributes();
        }
        let mut errors = 0;
        for _ in 0..2000 {
            if run.step(&mut world).is_err() {
                return errors + 1;
            }
            if world.rng.random_ratio(1, 50) {
                let rng = &mut world.rng;
                let file = rng.random_range(0..8);
                let frame = match rng.random_range(0..11) {
                    0 => Frame::Block(Block {
                        file,
                        slot: rng.random_range(0..2 * SLOTS),
                        offset: rng.random_range(0..4) * 512,
                        length: rng.random_range(0..2 * BLOCK),
                        delta: rng.random(),
                        hash: [0; 32],
                    }),
                    1 => Frame::Offer(Offer {
                        file,
                        entry: entry(file, rng.random()),
                    }),
                    2 => Frame::Finish,
                    3 => Frame::Want(crate::wire::Want {
                        file,
                        ranges: vec![(rng.random_range(0..4) * 512, rng.random())],
                    }),
                    4 => Frame::Grant(crate::wire::Grant {
                        slots: vec![rng.random_range(0..9)],
                    }),
                    5 => Frame::List(List {
                        first: rng.random_range(0..3) * file,
                        entries: vec![entry(file, rng.random_range(0..2000)); 3],
                    }),
                    6 => Frame::Answer(Answers {
                        first: file,
                        answers: vec![Answer::Wanted, Answer::Stored],
                    }),
                    7 => Frame::Stored(Stored {
                        files: vec![file, file + 1],
                    }),
                    8 => Frame::Nack(Nack {
                        file: PACKED,
                        offset: rng.random_range(0..4),
                        length: 0,
                    }),
                    9 => Frame::Attributes(crate::wire::AttributesPart {
                        file: rng.random_range(0..3) * file,
                        following: rng.random_range(0..3),
                        octets: vec![6; rng.random_range(1..20)],
                    }),
                    _ => Frame::End(crate::wire::End {
                        file,
                        status: EndStatus::Complete,
                        root: Some([0; 32]),
                        text: String::new(),
                    }),
                };
                errors += u32::from(run.sink.handle_frame(frame.clone()).is_err());
                errors += u32::from(run.source.handle_frame(frame).is_err());
                // A violation ends a session: from here on nothing is promised but to survive.
                run.sink_jobs.clear();
                return errors;
            }
        }
        errors
    };
    let errors: u32 = (0..500).map(violations).sum();
    assert!(errors > 500, "{errors} violations");
}
