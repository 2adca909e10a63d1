//! The source: which block is read and sent next.

mod deltas;
mod limit;
mod plan;

use std::collections::{BTreeMap, VecDeque};

use deltas::Old;

use super::source_job::{Delta, Next, SourceDone, SourceJob, SourceOut};
use super::source_packs::SourcePacks;
use super::{Event, Failure, MAX_REPEATS, Outgoing, Violation, block_length};
use crate::hash;
use crate::wire::{
    Block, Done, End, EndStatus, Entry, FileKind, Frame, Nack, PACKED, Remark, Removal, Status,
    Unreadable, Want, Window,
};

#[derive(Debug)]
struct Sending {
    size: u64,
    kind: FileKind,
    /// Ranges that are wanted and not yet read; `None` before WANT.
    wanted: Option<VecDeque<(u64, u64)>>,
    /// Blocks that are being read, or read and not pushed.
    moving: u32,
    /// Hashes by block, while all blocks are read in this session.
    hashes: Option<BTreeMap<u64, [u8; 32]>>,
    repeats: BTreeMap<u64, u32>,
    checking: bool,
    ended: bool,
    old: Old,
}

/// The last step of a session whose target is to become as the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Prune {
    /// It is not wanted, done, or not permitted: the source has entries that it could not read.
    No,
    Wanted,
    /// PRUNE has left.
    Asked,
}

#[derive(Debug)]
struct Filled {
    block: Block,
    local: u16,
}

/// State of the source in one session. Order of calls: [`handle_frame`](Self::handle_frame), [`handle_sent`](Self::handle_sent) and
/// [`handle_done`](Self::handle_done) as things happen; then [`poll_job`](Self::poll_job), [`poll_transmit`](Self::poll_transmit) and
/// [`poll_event`](Self::poll_event) until they are empty.
#[derive(Debug)]
pub struct SourceEngine {
    block: u32,
    window: Option<Window>,
    granted: VecDeque<u16>,
    is_granted: Vec<bool>,
    local_free: Vec<u16>,
    files: BTreeMap<u32, Sending>,
    /// Files with blocks to read, in order.
    ready: VecDeque<u32>,
    filled: VecDeque<Filled>,
    /// Jobs whose results are awaited.
    working: usize,
    /// Blocks whose octets have not left.
    leaving: usize,
    next_file: u32,
    asking: bool,
    /// A directory that waits until the files before it are finished.
    held: Option<Entry>,
    exhausted: bool,
    finish_sent: bool,
    finished: bool,
    /// Whether the sink is to remove what the source has not.
    prune: Prune,
    /// Whether the session began with a REQUEST: the sink learns of entries that are left out.
    ordered: bool,
    /// Where both ends pack small files.
    packs: Option<SourcePacks>,
    /// Both ends take deltas.
    deltas: bool,
    /// Pieces of old copies whose files are not finished.
    pieces: u32,
    out: SourceOut,
}

impl SourceEngine {
    /// A source with this block length and this many local slots. `packs`: both ends pack small files.
    #[must_use]
    pub fn new(block: u32, local_slots: u16, packs: bool) -> Self {
        Self {
            block,
            window: None,
            granted: VecDeque::new(),
            is_granted: Vec::new(),
            local_free: (0..local_slots).rev().collect(),
            files: BTreeMap::new(),
            ready: VecDeque::new(),
            filled: VecDeque::new(),
            working: 0,
            leaving: 0,
            next_file: 0,
            asking: false,
            held: None,
            exhausted: false,
            finish_sent: false,
            finished: false,
            prune: Prune::No,
            ordered: false,
            packs: packs.then(|| SourcePacks::new(block)),
            deltas: false,
            pieces: 0,
            out: SourceOut::default(),
        }
    }

    /// The sink is to remove what the source has not, unless the source cannot read all that it has.
    #[must_use]
    pub fn pruning(mut self) -> Self {
        self.prune = Prune::Wanted;
        self
    }

    /// The session began with a REQUEST.
    #[must_use]
    pub fn ordered(mut self) -> Self {
        self.ordered = true;
        self
    }

    /// Both ends keep extended attributes.
    #[must_use]
    pub fn with_attributes(mut self) -> Self {
        self.out.attributes.agree();
        self
    }

    /// The sink's window, once it is there.
    #[must_use]
    pub fn window(&self) -> Option<Window> {
        self.window
    }

    /// Whether the sink has finished all files.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.finished
    }

    /// The next job.
    pub fn poll_job(&mut self) -> Option<SourceJob> {
        if self.out.jobs.is_empty() {
            self.plan();
        }
        let job = self.out.jobs.pop_front()?;
        self.working += usize::from(job.has_result());
        Some(job)
    }

    /// The next frame.
    pub fn poll_transmit(&mut self) -> Option<Frame> {
        self.out.outgoing.pop_front()
    }

    /// The next block, for a stream that has room.
    pub fn poll_block(&mut self) -> Option<Outgoing> {
        while let Some(filled) = self.filled.front() {
            let file = filled.block.file;
            if file != PACKED && !self.files.contains_key(&file) {
                // The sink gave the file up.
                self.local_free.push(filled.local);
                self.filled.pop_front();
                continue;
            }
            let Some(slot) = self.granted.pop_front() else {
                break;
            };
            let Some(Filled { mut block, local }) = self.filled.pop_front() else {
                break;
            };
            if let Some(granted) = self.is_granted.get_mut(usize::from(slot)) {
                *granted = false;
            }
            block.slot = slot;
            self.leaving += 1;
            self.moved(block.file);
            return Some(Outgoing::Block { block, local });
        }
        None
    }

    /// A block did not come: its stream is gone. Its slot is still granted, and the octets are read again.
    pub fn handle_lost(&mut self, block: &Block) {
        let Block { file, offset, .. } = *block;
        if let Some(granted) = self.is_granted.get_mut(usize::from(block.slot)) {
            *granted = true;
            self.granted.push_front(block.slot);
        }
        if let (PACKED, Some(packs)) = (file, &mut self.packs) {
            packs.lost(offset);
        } else if let Some(sending) = self.files.get_mut(&file) {
            // A delta is shorter than its block.
            let length = block_length(sending.size, self.block, offset).unwrap_or(block.length);
            let wanted = sending.wanted.get_or_insert_default();
            wanted.push_front((offset, u64::from(length)));
            sending.old.copied.remove(&offset);
            self.ready.push_front(file);
        }
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.out.events.pop_front()
    }

    /// The octets of a local slot have left.
    pub fn handle_sent(&mut self, local: u16) {
        self.local_free.push(local);
        self.leaving = self.leaving.saturating_sub(1);
    }

    /// Takes a frame of the sink's.
    ///
    /// # Errors
    /// [`Violation`].
    pub fn handle_frame(&mut self, frame: Frame) -> Result<(), Violation> {
        match frame {
            Frame::Window(window) => self.take_window(window),
            Frame::Grant(grant) => grant
                .slots
                .iter()
                .try_for_each(|slot| self.take_slot(*slot)),
            Frame::Want(want) => self.take_want(&want),
            Frame::Ack(ack) => {
                self.take_ack(&ack);
                Ok(())
            }
            Frame::Nack(nack) => self.take_nack(nack),
            Frame::Done(done) => self.take_done(done),
            Frame::Signatures(signatures) => self.take_signatures(&signatures),
            Frame::Answer(answer) => match &mut self.packs {
                Some(packs) => packs.take_answer(&answer, &mut self.out),
                None => Err(Violation::Unexpected(15)),
            },
            Frame::Stored(stored) => match &mut self.packs {
                Some(packs) => packs.take_stored(&stored, &mut self.out),
                None => Err(Violation::Unexpected(16)),
            },
            Frame::Removed(removed) if self.prune == Prune::Asked => {
                if removed.last {
                    self.prune = Prune::No;
                }
                let event = |Removal { name, status, text }| Event::Removed { name, status, text };
                self.out
                    .events
                    .extend(removed.entries.into_iter().map(event));
                Ok(())
            }
            Frame::Remark(Remark { text }) => {
                self.out.attributes.take_remark()?;
                self.out.events.push_back(Event::Remark { text });
                Ok(())
            }
            Frame::Ping => Ok(()),
            Frame::Finish if self.finish_sent => {
                self.finished = true;
                Ok(())
            }
            Frame::Finish
            | Frame::Hello(_)
            | Frame::Offer(_)
            | Frame::Block(_)
            | Frame::End(_)
            | Frame::List(_)
            | Frame::Request(_)
            | Frame::Prune
            | Frame::Removed(_)
            | Frame::Unreadable(_)
            | Frame::Streams(_)
            | Frame::Left(_)
            | Frame::Abort(_)
            | Frame::Attributes(_)
            | Frame::KeyShare(_) => Err(Violation::Unexpected(frame.kind())),
        }
    }

    fn take_window(&mut self, window: Window) -> Result<(), Violation> {
        if self.window.is_some() {
            return Err(Violation::Unexpected(2));
        }
        let end = u64::from(window.slot_length) * u64::from(window.slots);
        if window.slot_length < self.block || window.address.checked_add(end).is_none() {
            return Err(Violation::Window(window.slot_length));
        }
        self.is_granted = vec![false; usize::from(window.slots)];
        self.window = Some(window);
        Ok(())
    }

    fn take_slot(&mut self, slot: u16) -> Result<(), Violation> {
        let granted = self.is_granted.get_mut(usize::from(slot));
        let granted = granted.ok_or(Violation::Slot(slot))?;
        if std::mem::replace(granted, true) {
            return Err(Violation::Slot(slot));
        }
        self.granted.push_back(slot);
        Ok(())
    }

    fn take_want(&mut self, want: &Want) -> Result<(), Violation> {
        let file = want.file;
        let sending = self.files.get_mut(&file).ok_or(Violation::File(file))?;
        if sending.wanted.is_some() || sending.kind != FileKind::File {
            return Err(Violation::Unexpected(5));
        }
        let block = u64::from(self.block);
        let (mut at, mut wanted) = (0, 0);
        for &(offset, length) in &want.ranges {
            let bad = Violation::Range { file, offset };
            let end = offset.checked_add(length).ok_or(bad)?;
            let whole = end == sending.size || end.is_multiple_of(block);
            let fits = offset >= at && length > 0 && end <= sending.size;
            if !fits || !whole || !offset.is_multiple_of(block) {
                return Err(bad);
            }
            at = end;
            wanted += length;
        }
        if wanted < sending.size {
            sending.hashes = None;
            let octets = sending.size - wanted;
            self.out.events.push_back(Event::Resumed { file, octets });
        }
        sending.wanted = Some(want.ranges.iter().copied().collect());
        sending.old.close();
        self.ready.push_back(file);
        self.settle(file);
        Ok(())
    }

    fn take_nack(&mut self, nack: Nack) -> Result<(), Violation> {
        let Nack {
            file,
            offset,
            length,
        } = nack;
        if let (PACKED, Some(packs)) = (file, &mut self.packs) {
            return packs.take_nack(offset, &mut self.out);
        }
        let sending = self.files.get_mut(&file).ok_or(Violation::File(file))?;
        let bad = Violation::Range { file, offset };
        if block_length(sending.size, self.block, offset) != Some(length) {
            return Err(bad);
        }
        let repeats = sending.repeats.entry(offset).or_default();
        *repeats += 1;
        if *repeats > MAX_REPEATS {
            return Err(bad);
        }
        sending.old.copied.remove(&offset);
        sending
            .wanted
            .get_or_insert_default()
            .push_front((offset, u64::from(length)));
        self.ready.push_front(file);
        self.out.events.push_back(Event::Repeated { file, offset });
        Ok(())
    }

    fn take_done(&mut self, done: Done) -> Result<(), Violation> {
        let file = done.file;
        if let Some(packs) = &mut self.packs
            && packs.remove(file)
        {
            self.out
                .jobs
                .push_back(SourceJob::Forget { files: vec![file] });
            self.out.finished(file, done.status, done.text);
            return Ok(());
        }
        let sending = self.files.remove(&file).ok_or(Violation::File(file))?;
        self.forget(&sending.old);
        self.ready.retain(|it| *it != file);
        self.out.jobs.push_back(SourceJob::Close { file });
        self.out.finished(file, done.status, done.text);
        Ok(())
    }

    /// Takes the result of a job.
    pub fn handle_done(&mut self, done: SourceDone) {
        self.working = self.working.saturating_sub(1);
        match done {
            SourceDone::Next(next) => {
                self.asking = false;
                match next {
                    Next::Entry(entry) => self.held = Some(entry),
                    Next::Unreadable { name, text } => self.unreadable(name, text),
                    Next::End => self.exhausted = true,
                }
            }
            SourceDone::Batch(found) => {
                self.asking = false;
                for next in found {
                    match next {
                        Next::Entry(entry) => {
                            if let Some(packs) = &mut self.packs {
                                packs.found(entry);
                            }
                        }
                        Next::Unreadable { name, text } => self.unreadable(name, text),
                        Next::End => self.exhausted = true,
                    }
                }
            }
            SourceDone::Packed {
                pack,
                local,
                length,
                hash,
            } => {
                let block = Block {
                    file: PACKED,
                    slot: 0,
                    offset: pack,
                    length,
                    delta: false,
                    hash,
                };
                self.filled.push_back(Filled { block, local });
            }
            SourceDone::Read {
                file,
                offset,
                length,
                local,
                result,
            } => {
                let read = |hash| Delta {
                    hash,
                    octets: length,
                    copied: 0,
                };
                self.take_read(file, offset, local, result.map(read));
            }
            SourceDone::Delta {
                file,
                offset,
                local,
                result,
            } => self.take_read(file, offset, local, result),
            SourceDone::Checked { file, result } => {
                let root = self.files.get(&file).and_then(|sending| {
                    let hashes = sending.hashes.as_ref()?;
                    let all: Vec<_> = hashes.values().copied().collect();
                    Some(hash::root(&all))
                });
                match result {
                    Ok(()) => self.end(file, EndStatus::Complete, root, String::new()),
                    Err(failure) => self.fail(file, failure),
                }
            }
        }
    }

    /// An entry is left out, whose name the sink does not learn: it must not remove it.
    fn unreadable(&mut self, name: String, text: String) {
        self.prune = Prune::No;
        if self.ordered {
            let unreadable = Unreadable {
                name: name.clone(),
                text: text.clone(),
            };
            let frame = Frame::Unreadable(unreadable);
            self.out.outgoing.push_back(frame);
        }
        self.out.events.push_back(Event::Unreadable { name, text });
    }

    fn take_read(&mut self, file: u32, offset: u64, local: u16, result: Result<Delta, Failure>) {
        let Some(sending) = self.files.get_mut(&file).filter(|it| it.moving > 0) else {
            self.local_free.push(local);
            return;
        };
        match result {
            Ok(Delta {
                hash,
                octets,
                copied,
            }) => {
                if let Some(hashes) = &mut sending.hashes {
                    hashes.insert(offset, hash);
                }
                if copied > 0 {
                    sending.old.copied.insert(offset, copied);
                }
                let block = Block {
                    file,
                    slot: 0,
                    offset,
                    length: octets,
                    delta: copied > 0,
                    hash,
                };
                self.filled.push_back(Filled { block, local });
            }
            Err(failure) => {
                self.local_free.push(local);
                sending.wanted = Some(VecDeque::new());
                self.fail(file, failure);
                self.moved(file);
            }
        }
    }

    fn fail(&mut self, file: u32, failure: Failure) {
        let status = match failure.status {
            Status::Changed => EndStatus::Changed,
            _ => EndStatus::Unreadable,
        };
        self.end(file, status, None, failure.text);
    }

    fn end(&mut self, file: u32, status: EndStatus, root: Option<[u8; 32]>, text: String) {
        let Some(sending) = self.files.get_mut(&file).filter(|it| !it.ended) else {
            return;
        };
        sending.ended = true;
        let end = End {
            file,
            status,
            root,
            text,
        };
        self.out.outgoing.push_back(Frame::End(end));
    }

    /// A block of the file was pushed or failed.
    fn moved(&mut self, file: u32) {
        if let Some(sending) = self.files.get_mut(&file) {
            sending.moving = sending.moving.saturating_sub(1);
        }
        self.settle(file);
    }

    /// Checks a file all of whose wanted blocks have left.
    fn settle(&mut self, file: u32) {
        let Some(sending) = self.files.get_mut(&file) else {
            return;
        };
        let empty = sending.wanted.as_ref().is_some_and(VecDeque::is_empty);
        if empty && sending.moving == 0 && !sending.ended && !sending.checking {
            sending.checking = true;
            self.out.jobs.push_back(SourceJob::Check { file });
        }
    }
}
