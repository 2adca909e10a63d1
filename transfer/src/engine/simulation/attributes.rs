//! Extended attributes: each entry comes with its own, and a peer that sends others as it likes gets no memory for them.

use super::*;
use crate::engine::MAX_ATTRIBUTES;
use crate::wire::{
    ATTRIBUTES_LIMIT, Attribute, Attributes, AttributesPart, Done, Remark, VALUE_LIMIT,
};

/// Attributes of an entry: none, or up to several frames of them.
pub(super) fn attributes_of(file: u32) -> Attributes {
    let lengths: &[usize] = match file % 4 {
        0 => &[],
        1 => &[3],
        2 => &[0, 700, 1],
        _ => &[10, 20_000],
    };
    of_lengths(file, lengths)
}

/// An entry that came has its attributes, where both ends keep them.
pub(super) fn check(file: u32, entry: &Entry, kept: bool) {
    assert_eq!(entry.attributes, kept.then(|| attributes_of(file)));
}

impl Run {
    pub(super) fn keep_attributes(mut self) -> Self {
        self.source = self.source.with_attributes();
        self.sink = self.sink.with_attributes();
        self
    }
}

fn of_lengths(file: u32, lengths: &[usize]) -> Attributes {
    let all = lengths.iter().enumerate().map(|(at, length)| Attribute {
        name: format!("user.{at}").into_bytes(),
        value: file
            .to_be_bytes()
            .into_iter()
            .cycle()
            .take(*length)
            .collect(),
    });
    Attributes::new(all.collect()).unwrap()
}

fn sink() -> SinkEngine {
    let window = Window {
        stag: 0,
        slot_length: BLOCK,
        address: 0,
        slots: SLOTS,
    };
    SinkEngine::new(BLOCK, window, true).with_attributes()
}

fn part(file: u32, following: u32, octets: &[u8]) -> Frame {
    let octets = octets.to_vec();
    Frame::Attributes(AttributesPart {
        file,
        following,
        octets,
    })
}

fn offer(file: u32) -> Frame {
    let entry = entry(file, 0);
    Frame::Offer(Offer { file, entry })
}

/// Frames of a session, the last of which is a violation.
fn refused(frames: impl IntoIterator<Item = Frame>) -> Violation {
    let mut sink = sink();
    let mut frames = frames.into_iter().peekable();
    while let Some(frame) = frames.next() {
        let kind = frame.kind();
        match sink.handle_frame(frame) {
            Ok(()) => assert!(frames.peek().is_some(), "the last frame was taken"),
            Err(violation) => {
                assert!(
                    frames.peek().is_none(),
                    "{violation} before the last: {kind}"
                );
                return violation;
            }
        }
    }
    panic!("no violation")
}

#[test]
fn attributes_are_in_order_and_whole_before_their_entry() {
    let whole = attributes_of(1).emit();
    let all = |file| part(file, 0, &whole);
    let bad = Violation::Attributes;
    // Of an entry that is there already, of an earlier one, or twice.
    assert_eq!(refused([offer(0), all(0)]), bad(0));
    assert_eq!(refused([all(4), all(3)]), bad(3));
    assert_eq!(refused([all(4), all(4)]), bad(4));
    // Not whole when the entry comes, or those of another one begin.
    let (first, second) = whole.split_at(4);
    let left = u32::try_from(second.len()).unwrap();
    assert_eq!(refused([part(0, left, first), offer(0)]), bad(0));
    assert_eq!(refused([part(0, left, first), all(1)]), bad(1));
    let list = Frame::List(List {
        first: 0,
        entries: vec![entry(0, 1)],
    });
    assert_eq!(refused([part(0, left, first), list]), bad(0));
    // Counts that do not fit each other, or the sequence.
    assert_eq!(refused([part(0, left, first), part(0, 1, second)]), bad(0));
    assert_eq!(refused([part(0, 0, first)]), bad(0));
    assert_eq!(refused([part(0, u32::MAX, first)]), bad(0));
    // Of a namespace that changes rights.
    let name = b"security.capability";
    let mut forged = vec![u8::try_from(name.len()).unwrap(), 0, 0, 0, 0, 0, 0, 1];
    forged.extend(name);
    forged.push(1);
    assert_eq!(refused([part(0, 0, &forged)]), bad(0));
    let mut sink = sink();
    assert_eq!(sink.handle_frame(part(0, left, first)), Ok(()));
    assert_eq!(sink.handle_frame(part(0, 0, second)), Ok(()));
    assert_eq!(sink.handle_frame(offer(0)), Ok(()));
    let begun = std::iter::from_fn(|| sink.poll_job()).last();
    let Some(SinkJob::Begin { entry, .. }) = begun else {
        panic!("{begun:?}")
    };
    assert_eq!(entry.attributes, Some(attributes_of(1)));
}

#[test]
fn attributes_take_bounded_memory_at_a_sink() {
    let octets = u32::try_from(ATTRIBUTES_LIMIT).unwrap();
    assert_eq!(
        refused([part(0, octets, &[0])]),
        Violation::Attributes(0),
        "more than an entry may have"
    );
    let large = of_lengths(0, &[VALUE_LIMIT; 15]);
    let fit = u32::try_from(MAX_ATTRIBUTES / large.octets()).unwrap();
    let frames = |file| large.parts(file).into_iter().map(Frame::Attributes);
    let all = (0..fit).flat_map(frames);
    // The first part of those that are too many counts all of them.
    let frames = all.chain(frames(fit).take(1));
    assert_eq!(refused(frames), Violation::Attributes(fit));
    let small = of_lengths(0, &[0]).emit();
    let count = u32::try_from(MAX_LISTED).unwrap();
    let frames = (0..=count).map(|file| part(file, 0, &small));
    assert_eq!(refused(frames), Violation::Attributes(count));
}

/// Octets of attributes that leave a source now, and its offers and lists.
fn leaving(source: &mut SourceEngine, given: &mut u32) -> (usize, Vec<u32>) {
    let (mut octets, mut files) = (0, Vec::new());
    loop {
        if let Some(job) = source.poll_job() {
            let next = |file| {
                if file >= 12 {
                    return Next::End;
                }
                let mut entry = entry(file, 10);
                entry.attributes = Some(of_lengths(file, &[VALUE_LIMIT; 15]));
                Next::Entry(entry)
            };
            match job {
                SourceJob::Next { file } => source.handle_done(SourceDone::Next(next(file))),
                SourceJob::Batch { .. } => {
                    source.handle_done(SourceDone::Batch(vec![next(*given)]));
                    *given += 1;
                }
                _ => {}
            }
            continue;
        }
        match source.poll_transmit() {
            Some(Frame::Attributes(part)) => octets += part.octets.len(),
            Some(Frame::Offer(offer)) => files.push(offer.file),
            Some(Frame::List(list)) => {
                files.extend((list.first..).take(list.entries.len()));
            }
            Some(_) => {}
            None => return (octets, files),
        }
    }
}

#[test]
fn a_source_waits_until_the_sink_has_room_for_attributes() {
    for packs in [false, true] {
        let mut source = SourceEngine::new(BLOCK, SLOTS, packs).with_attributes();
        let (mut given, mut unfinished, mut finished, mut came) = (0, 0, 0, Vec::new());
        while came.len() < 12 {
            let (octets, files) = leaving(&mut source, &mut given);
            unfinished += octets;
            assert!(unfinished <= MAX_ATTRIBUTES, "{unfinished}");
            assert!(!files.is_empty(), "no entry though others are finished");
            came.extend(files);
            // One is finished, so that the next has room.
            let one = of_lengths(0, &[VALUE_LIMIT; 15]).octets();
            assert!(came.len() == 12 || unfinished + one > MAX_ATTRIBUTES);
            let done = Done {
                file: came[finished],
                status: Status::Stored,
                text: String::new(),
            };
            source.handle_frame(Frame::Done(done)).unwrap();
            unfinished -= one;
            finished += 1;
        }
        assert!(came.into_iter().eq(0..12));
    }
}

/// An older peer gets none of the frames that it does not take, and none are taken from it.
#[test]
fn frames_of_attributes_are_for_sessions_that_keep_them() {
    let mut run = Run::new(true);
    let whole = attributes_of(1).emit();
    let came = run.sink.handle_frame(part(0, 0, &whole));
    assert_eq!(came, Err(Violation::Unexpected(25)));
    let remark = || {
        let text = "none".into();
        Frame::Remark(Remark { text })
    };
    assert_eq!(
        run.source.handle_frame(remark()),
        Err(Violation::Unexpected(26))
    );
    run.sink.remark("none".into());
    let frames: Vec<_> = std::iter::from_fn(|| run.sink.poll_transmit()).collect();
    assert!(frames.iter().all(|it| it.kind() != 26), "{frames:?}");
    // Of a peer that keeps them a few, both ways.
    let mut source = SourceEngine::new(BLOCK, SLOTS, true).with_attributes();
    for _ in 0..8 {
        assert_eq!(source.handle_frame(remark()), Ok(()));
    }
    let more = source.handle_frame(remark());
    assert_eq!(more, Err(Violation::Unexpected(26)));
    let mut sink = sink();
    (0..20).for_each(|_| sink.remark("none".into()));
    let frames = std::iter::from_fn(|| sink.poll_transmit());
    assert_eq!(frames.filter(|it| it.kind() == 26).count(), 8);
}

/// A listed file is *stored* without its octets where its attributes alone were others, and where both ends keep them.
#[test]
fn an_answer_may_say_that_the_attributes_alone_were_set() {
    for kept in [true, false] {
        let mut source = SourceEngine::new(BLOCK, SLOTS, true);
        if kept {
            source = source.with_attributes();
        }
        let Some(SourceJob::Batch { .. }) = source.poll_job() else {
            panic!("no entry is looked for");
        };
        source.handle_done(SourceDone::Batch(vec![Next::Entry(entry(0, 10))]));
        while source.poll_job().is_some() {}
        let answers = vec![Answer::Stored];
        let answered = source.handle_frame(Frame::Answer(Answers { first: 0, answers }));
        let expected = if kept {
            Ok(())
        } else {
            Err(Violation::Unexpected(15))
        };
        assert_eq!(answered, expected);
    }
}
