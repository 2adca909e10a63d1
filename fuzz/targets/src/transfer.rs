//! Transfers of files: formats, and the decisions of either end whose peer sends frames as it likes.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use dgiwarp_transfer::engine::{
    Begun, Delta, Failure, Link, MAX_ATTRIBUTES, MAX_LISTED, MAX_OPEN, Next, Outgoing, SinkDone,
    SinkEngine, SinkJob, SourceDone, SourceEngine, SourceJob, Streams,
};
use dgiwarp_transfer::journal;
use dgiwarp_transfer::wire::{
    Answer, Attribute, Attributes, EndStatus, Entry, FRAME_LIMIT, FileKind, Frame, HEADER, Header,
    Record, Signature, Status, Window,
};

/// Length of blocks.
const BLOCK: u32 = 1024;
/// Slots of the sink.
const SLOTS: u16 = 4;
/// Local slots of the source.
const LOCALS: u16 = 3;
/// Frames of a peer that one input has at most.
const FRAMES: usize = 200;

/// Gives the octets to every parser, and as frames of a peer to a sink and to a source.
pub fn transfer(data: &[u8]) {
    frames(data);
    records(data);
    let Some((&choices, data)) = data.split_first() else {
        return;
    };
    if choices & 1 == 0 {
        sink(choices, data);
    } else {
        source(choices, data);
    }
}

/// Frames that parse are emitted, and parsed to equal ones.
fn frames(data: &[u8]) {
    if let Some((&kind, body)) = data.split_first()
        && let Ok(frame) = Frame::parse(kind, body)
    {
        let emitted = frame.emit(7);
        // Octets of a text that are no characters are replaced by one, which is longer.
        let has_text = matches!(
            &frame,
            Frame::End(_)
                | Frame::Done(_)
                | Frame::Abort(_)
                | Frame::Removed(_)
                | Frame::Unreadable(_)
                | Frame::Remark(_)
        );
        if has_text && emitted.len() > FRAME_LIMIT {
            return;
        }
        let (header, body) = emitted.split_at(HEADER);
        let header = header.first_chunk().map(Header::parse);
        let Some(Ok(header)) = header else {
            panic!("the header of {frame:?} is none");
        };
        assert_eq!((header.length as usize, header.taken), (body.len(), 7));
        let again = Frame::parse(header.kind, body);
        if has_text {
            assert!(again.is_ok_and(|it| it.kind() == frame.kind()));
        } else {
            assert_eq!(again, Ok(frame));
        }
    }
}

/// Records of packed blocks and journals lie within their octets.
fn records(data: &[u8]) {
    if let Ok(records) = Record::parse_all(data) {
        assert!(records.len() <= data.len());
    }
    let header = journal::header(&entry(2, 10 * u64::from(BLOCK)), BLOCK);
    for octets in [data.to_vec(), [&header[..], data].concat()] {
        if let Some((blocks, whole)) = journal::replay(&octets, &header) {
            assert!(whole <= octets.len() && blocks.len() * journal::RECORD <= whole);
        }
    }
}

fn entry(file: u32, size: u64) -> Entry {
    Entry {
        kind: FileKind::File,
        mode: 0o644,
        modified: (i64::from(file), 0),
        size,
        identity: [0; 16],
        name: file.to_string().into_bytes(),
        target: Vec::new(),
        attributes: None,
    }
}

/// Jobs that end in a turn, from either end of the queue, each with whether it went well.
fn ended<J>(jobs: &mut VecDeque<J>, turn: u8) -> Vec<(J, bool)> {
    let next = |index| {
        let job = if turn & 8 == 0 {
            jobs.pop_front()
        } else {
            jobs.pop_back()
        };
        Some((job?, (turn >> 4) & 3 != index & 3))
    };
    (0..turn & 7).map_while(next).collect()
}

/// The frames of a peer, one behind the other: how jobs end before it, its kind, the length of its body, and its count of frames.
struct Script<'a> {
    data: &'a [u8],
    left: usize,
}

impl Script<'_> {
    /// The next frame, with the octet for jobs and the count.
    fn next(&mut self, path: &Path) -> Option<(u8, u32, Frame)> {
        self.left = self.left.checked_sub(1)?;
        let ([turn, kind, l0, l1, taken], rest) = self.data.split_first_chunk()?;
        let length = usize::from(u16::from_be_bytes([*l0, *l1]));
        let (body, rest) = rest.split_at_checked(length)?;
        self.data = rest;
        let frame = Frame::parse(*kind, body).ok()?;
        // Mostly a count of all that was sent, so that the session goes on.
        let taken = if *taken < 0xf0 {
            path.sent
        } else {
            (*taken).into()
        };
        Some((*turn, taken, frame))
    }
}

/// The connection of an end: frames are counted, and no more leave than the peer has receives for.
struct Path {
    streams: Streams,
    sent: u32,
}

impl Path {
    fn new() -> Self {
        let streams = Streams::new(Duration::ZERO, 128);
        Self { streams, sent: 0 }
    }

    fn send(&mut self, mut block: impl FnMut() -> Option<Outgoing>) -> Vec<Outgoing> {
        let mut left = Vec::new();
        while let Some((_, outgoing)) = self.streams.poll_transmit(0, Duration::ZERO, &mut block) {
            self.sent += 1;
            left.push(outgoing);
        }
        let taken = self.streams.link(0).map_or(0, Link::peer_taken);
        assert!(self.sent.wrapping_sub(taken) <= 16);
        left
    }
}

/// A sink whose jobs end in any order.
fn sink(choices: u8, data: &[u8]) {
    let window = Window {
        stag: 1,
        slot_length: BLOCK,
        address: 0x1000,
        slots: SLOTS,
    };
    let mut engine = SinkEngine::new(BLOCK, window, choices & 2 != 0);
    if choices & 4 != 0 {
        engine = engine.with_deltas();
    }
    if choices & 8 != 0 {
        engine = engine.pruning().ordered();
    }
    if choices & 16 != 0 {
        engine = engine.with_attributes();
    }
    let (mut path, mut jobs) = (Path::new(), VecDeque::new());
    let mut script = Script { data, left: FRAMES };
    // Slots that the peer may write.
    let mut granted = [false; SLOTS as usize];
    while let Some((turn, taken, frame)) = script.next(&path) {
        jobs.extend(std::iter::from_fn(|| engine.poll_job()));
        for (job, is_good) in ended(&mut jobs, turn) {
            if let Some(done) = sink_done(job, is_good)
                && engine.handle_done(done).is_err()
            {
                return end_sink(engine);
            }
        }
        jobs.extend(std::iter::from_fn(|| engine.poll_job()));
        let open = jobs.iter().filter(|it| matches!(it, SinkJob::Begin { .. }));
        assert!(open.count() <= MAX_OPEN);
        let attributes = jobs.iter().filter_map(|it| match it {
            SinkJob::Begin { entry, .. } => entry.attributes.as_ref(),
            _ => None,
        });
        assert!(attributes.map(Attributes::octets).sum::<usize>() <= MAX_ATTRIBUTES);
        let writes = jobs.iter().filter_map(|it| match it {
            SinkJob::Write { slot, .. } | SinkJob::Patch { slot, .. } => Some(*slot),
            _ => None,
        });
        for slot in writes {
            assert!(!granted[usize::from(slot)], "a slot is in two hands");
        }
        if path.streams.handle_input(0, Duration::ZERO, taken).is_err() {
            return end_sink(engine);
        }
        let block = match &frame {
            Frame::Block(block) => Some(usize::from(block.slot)),
            _ => None,
        };
        if engine.handle_frame(frame).is_err() {
            return end_sink(engine);
        }
        if let Some(slot) = block {
            assert!(granted[slot], "a slot was filled that was not granted");
            granted[slot] = false;
        }
        while let Some(frame) = engine.poll_transmit() {
            if let Frame::Grant(grant) = &frame {
                for slot in &grant.slots {
                    assert!(!std::mem::replace(&mut granted[usize::from(*slot)], true));
                }
            }
            path.streams.push(frame);
        }
        path.send(|| None);
        while engine.poll_event().is_some() {}
    }
    end_sink(engine);
}

fn end_sink(mut engine: SinkEngine) {
    let left = engine.abandon();
    assert!(left.len() <= 3 * MAX_OPEN + MAX_LISTED);
}

fn failure() -> Failure {
    Failure::new(Status::Failed, "as the input says")
}

fn sink_done(job: SinkJob, is_good: bool) -> Option<SinkDone> {
    let result = if is_good { Ok(()) } else { Err(failure()) };
    Some(match job {
        SinkJob::Begin { file, entry } => SinkDone::Begun {
            file,
            result: match result {
                Ok(()) if entry.kind == FileKind::File => Ok(Begun::Partial(BTreeMap::new())),
                Ok(()) => Ok(Begun::Finished(Status::Stored)),
                Err(failure) => Err(failure),
            },
            old: u64::from(file & 1) * 3 * u64::from(BLOCK),
        },
        SinkJob::Write {
            file,
            offset,
            length,
            slot,
            hash,
            ..
        }
        | SinkJob::Patch {
            file,
            offset,
            length,
            slot,
            hash,
            ..
        } => SinkDone::Written {
            file,
            offset,
            length,
            slot,
            hash,
            result: Ok(is_good),
            copied: 0,
        },
        SinkJob::Sign {
            file, first, count, ..
        } => {
            let signature = Signature {
                weak: 0,
                strong: [0; 8],
            };
            let count = if is_good { count as usize } else { 0 };
            SinkDone::Signed {
                file,
                first,
                signatures: vec![signature; count],
            }
        }
        SinkJob::Sync { file, blocks } => SinkDone::Synced {
            file,
            blocks: blocks.into_iter().map(|(index, _)| index).collect(),
            result,
        },
        SinkJob::Finish { file, .. } => SinkDone::Finished { file, result },
        SinkJob::List { first, entries } => SinkDone::Listed {
            first,
            answers: entries
                .iter()
                .map(|_| result.clone().map(|()| Answer::Wanted))
                .collect(),
        },
        SinkJob::Unpack {
            pack,
            slot,
            hash,
            length,
        } => {
            // One file, as the hash says, in a block that may have it.
            let size = u32::from(hash[1]).min(length);
            let mut octets = Record::header(hash[0].into(), EndStatus::Complete, size).to_vec();
            octets.resize(octets.len() + size as usize, 0);
            let records = Record::parse_all(&octets);
            SinkDone::Unpacked {
                pack,
                slot,
                result: is_good.then(|| (Arc::new(octets), records)),
            }
        }
        SinkJob::Store { slot, files, .. } => SinkDone::Stored {
            slot,
            results: files
                .into_iter()
                .map(|(file, _, _)| (file, result.clone()))
                .collect(),
        },
        SinkJob::Commit { files } => SinkDone::Committed {
            results: files
                .into_iter()
                .map(|file| (file, result.clone()))
                .collect(),
        },
        SinkJob::Prune => SinkDone::Pruned(Vec::new()),
        SinkJob::Abandon { .. } => return None,
    })
}

/// A source whose jobs end in any order.
fn source(choices: u8, data: &[u8]) {
    let mut engine = SourceEngine::new(BLOCK, LOCALS, choices & 2 != 0);
    if choices & 4 != 0 {
        engine = engine.with_deltas();
    }
    if choices & 8 != 0 {
        engine = engine.pruning().ordered();
    }
    if choices & 16 != 0 {
        engine = engine.with_attributes();
    }
    let (mut path, mut jobs) = (Path::new(), VecDeque::new());
    let mut script = Script { data, left: FRAMES };
    let mut granted = Vec::new();
    while let Some((turn, taken, frame)) = script.next(&path) {
        jobs.extend(std::iter::from_fn(|| engine.poll_job()));
        for (job, is_good) in ended(&mut jobs, turn) {
            if let Some(done) = source_done(job, is_good) {
                engine.handle_done(done);
            }
        }
        if path.streams.handle_input(0, Duration::ZERO, taken).is_err() {
            return;
        }
        match &frame {
            Frame::Window(window) => granted.resize(window.slots.into(), false),
            Frame::Grant(grant) => {
                for slot in &grant.slots {
                    if let Some(granted) = granted.get_mut(usize::from(*slot)) {
                        *granted = true;
                    }
                }
            }
            _ => {}
        }
        if engine.handle_frame(frame).is_err() {
            return;
        }
        jobs.extend(std::iter::from_fn(|| engine.poll_job()));
        let locals: Vec<_> = jobs.iter().filter_map(local).collect();
        let distinct: BTreeSet<_> = locals.iter().collect();
        assert_eq!(distinct.len(), locals.len(), "a slot is in two hands");
        while let Some(frame) = engine.poll_transmit() {
            path.streams.push(frame);
        }
        if engine.window().is_some() {
            path.streams.set_open(0);
        }
        let left = path.send(|| {
            // The window is that of stream 0, on which alone blocks leave here.
            engine.poll_block()
        });
        for outgoing in left {
            if let Outgoing::Block { block, local } = outgoing {
                let slot = usize::from(block.slot);
                assert!(std::mem::take(&mut granted[slot]), "a slot was not granted");
                assert!(local < LOCALS && !locals.contains(&local));
                engine.handle_sent(local);
            }
        }
        while engine.poll_event().is_some() {}
    }
}

fn local(job: &SourceJob) -> Option<u16> {
    match job {
        SourceJob::Read { local, .. }
        | SourceJob::Delta { local, .. }
        | SourceJob::Pack { local, .. } => Some(*local),
        _ => None,
    }
}

/// Entries of a source: a few files of several lengths.
fn found(file: u32) -> Next {
    match file {
        0..8 => {
            let sizes = [0, 1, 3000, 1024, 70_000, 512, 1500, 20];
            let mut entry = entry(file, sizes[file as usize]);
            let attribute = Attribute {
                name: b"user.a".to_vec(),
                value: vec![7; 1000 * file as usize],
            };
            entry.attributes = Attributes::new(vec![attribute]);
            Next::Entry(entry)
        }
        _ => Next::End,
    }
}

fn source_done(job: SourceJob, is_good: bool) -> Option<SourceDone> {
    let result = if is_good { Ok(()) } else { Err(failure()) };
    Some(match job {
        SourceJob::Next { file } => SourceDone::Next(found(file)),
        SourceJob::Batch { first, .. } => SourceDone::Batch(vec![found(first)]),
        SourceJob::Read {
            file,
            offset,
            length,
            local,
            ..
        } => SourceDone::Read {
            file,
            offset,
            length,
            local,
            result: result.map(|()| [0; 32]),
        },
        SourceJob::Delta {
            file,
            offset,
            length,
            local,
            ..
        } => SourceDone::Delta {
            file,
            offset,
            local,
            result: result.map(|()| Delta {
                hash: [0; 32],
                octets: length,
                copied: 0,
            }),
        },
        SourceJob::Check { file } => SourceDone::Checked { file, result },
        SourceJob::Pack { pack, local, .. } => SourceDone::Packed {
            pack,
            local,
            length: 12,
            hash: [0; 32],
        },
        SourceJob::Close { .. } | SourceJob::Forget { .. } => return None,
    })
}
