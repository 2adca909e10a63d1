//! The sink: which slots are granted, which blocks are whole, when a file is.

mod deltas;
mod limit;
mod missing;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use deltas::Signing;
use missing::missing;

use super::sink_job::{Begun, SinkDone, SinkJob, SinkOut};
use super::sink_packs::SinkPacks;
use super::{Event, Failure, MAX_OPEN, MAX_REPEATS, Violation, block_length, blocks};
use crate::hash;
use crate::wire::{
    Ack, Block, End, EndStatus, FileKind, Frame, Grant, Level, List, Nack, Offer, PACKED, Remark,
    Status, Unreadable, Window,
};

/// Octets after which blocks are made durable and noted in the journal.
const SYNC_OCTETS: u64 = 64 << 20;
/// Blocks of one ACK, and slots of one GRANT, at most.
const BATCH: usize = 256;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Slot {
    Granted,
    Filled,
}

/// Removal of what the source has not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Prune {
    /// Not agreed, or done.
    No,
    Agreed,
    Removing,
}

#[derive(Debug)]
struct Receiving {
    size: u64,
    whole_hashes: BTreeMap<u64, [u8; 32]>,
    begun: bool,
    /// Blocks that are being written.
    writing: BTreeSet<u64>,
    repeats: BTreeMap<u64, u32>,
    /// Blocks that were asked for again and have not come.
    repeated: BTreeSet<u64>,
    unsynced: Vec<(u64, [u8; 32])>,
    syncing: bool,
    end: Option<End>,
    finishing: bool,
    failed: Option<Failure>,
    /// Signatures of the old copy, before the source learns what is wanted.
    signing: Option<Signing>,
    /// Pieces of the old copy of which the source has signatures.
    pieces: u32,
}

/// State of the sink in one session. Order of calls as for [`SourceEngine`](super::SourceEngine).
#[derive(Debug)]
pub struct SinkEngine {
    block: u32,
    slots: Vec<Slot>,
    free: Vec<u16>,
    /// Jobs whose results are awaited.
    working: usize,
    files: BTreeMap<u32, Receiving>,
    next_file: u32,
    placed: Vec<(u32, u64, u32)>,
    durable: Vec<(u32, u64, u32)>,
    finish_received: bool,
    finished: bool,
    prune: Prune,
    /// Whether the session began with a REQUEST.
    ordered: bool,
    /// Whether the session has or had several streams: blocks may come behind their END.
    joined: bool,
    /// Where both ends pack small files.
    packs: Option<SinkPacks>,
    /// Both ends take deltas.
    deltas: bool,
    /// Pieces of old copies whose files are not finished.
    pieces: u32,
    /// Files whose signatures wait for those of others.
    waiting: VecDeque<u32>,
    out: SinkOut,
}

impl SinkEngine {
    /// A sink with this block length, and slots in this window, all of which it grants at once. `packs`: both ends pack small files.
    #[must_use]
    pub fn new(block: u32, window: Window, packs: bool) -> Self {
        let mut out = SinkOut::default();
        out.outgoing.push_back(Frame::Window(window));
        Self {
            block,
            slots: vec![Slot::Filled; usize::from(window.slots)],
            free: (0..window.slots).collect(),
            working: 0,
            files: BTreeMap::new(),
            next_file: 0,
            placed: Vec::new(),
            durable: Vec::new(),
            finish_received: false,
            finished: false,
            prune: Prune::No,
            ordered: false,
            joined: false,
            packs: packs.then(|| SinkPacks::new(block)),
            deltas: false,
            pieces: 0,
            waiting: VecDeque::new(),
            out,
        }
    }

    /// The source may have what it has not removed.
    #[must_use]
    pub fn pruning(mut self) -> Self {
        self.prune = Prune::Agreed;
        self
    }

    /// Both ends keep extended attributes.
    #[must_use]
    pub fn with_attributes(mut self) -> Self {
        self.out.attributes.agree();
        self
    }

    /// People of both ends are to read a text, which is no failure.
    pub fn remark(&mut self, text: String) {
        if self.out.attributes.may_remark() {
            let frame = Remark { text: text.clone() };
            self.out.outgoing.push_back(Frame::Remark(frame));
        }
        self.out.events.push_back(Event::Remark { text });
    }

    /// Another stream joined.
    pub fn set_joined(&mut self) {
        self.joined = true;
    }

    /// The session began with a REQUEST.
    #[must_use]
    pub fn ordered(mut self) -> Self {
        self.ordered = true;
        self
    }

    /// Whether the source has no further files and all are finished.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.finished
    }

    /// The next job.
    pub fn poll_job(&mut self) -> Option<SinkJob> {
        let job = self.out.jobs.pop_front()?;
        self.working += usize::from(job.has_result());
        Some(job)
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.out.events.pop_front()
    }

    /// The next frame.
    pub fn poll_transmit(&mut self) -> Option<Frame> {
        if let Some(frame) = self.out.outgoing.pop_front() {
            return Some(frame);
        }
        for (level, blocks) in [
            (Level::Placed, &mut self.placed),
            (Level::Durable, &mut self.durable),
        ] {
            if !blocks.is_empty() {
                let blocks = blocks.drain(..blocks.len().min(BATCH)).collect();
                return Some(Frame::Ack(Ack { level, blocks }));
            }
        }
        if self.free.is_empty() {
            return None;
        }
        let slots: Vec<_> = self.free.drain(..self.free.len().min(BATCH)).collect();
        for slot in &slots {
            self.slots[usize::from(*slot)] = Slot::Granted;
        }
        Some(Frame::Grant(Grant { slots }))
    }

    /// Takes a frame of the source's.
    ///
    /// # Errors
    /// [`Violation`].
    pub fn handle_frame(&mut self, frame: Frame) -> Result<(), Violation> {
        match frame {
            Frame::Offer(offer) => self.take_offer(offer),
            Frame::Block(block) => self.take_block(&block),
            Frame::End(end) => self.take_end(end),
            Frame::List(list) => self.take_list(list),
            Frame::Attributes(part) => self.out.attributes.take(&part, self.next_file),
            Frame::Prune if self.prune == Prune::Agreed => {
                let packed = self.packs.as_ref().is_none_or(SinkPacks::is_empty);
                if !self.files.is_empty() || !packed {
                    return Err(Violation::Unexpected(18));
                }
                self.prune = Prune::Removing;
                self.out.jobs.push_back(SinkJob::Prune);
                Ok(())
            }
            Frame::Finish if !self.finish_received && self.prune != Prune::Removing => {
                self.finish_received = true;
                self.conclude();
                Ok(())
            }
            Frame::Unreadable(Unreadable { name, text }) if self.ordered => {
                self.out.events.push_back(Event::Unreadable { name, text });
                Ok(())
            }
            Frame::Ping => Ok(()),
            Frame::Finish
            | Frame::Hello(_)
            | Frame::Window(_)
            | Frame::Grant(_)
            | Frame::Want(_)
            | Frame::Ack(_)
            | Frame::Nack(_)
            | Frame::Done(_)
            | Frame::Answer(_)
            | Frame::Stored(_)
            | Frame::Request(_)
            | Frame::Prune
            | Frame::Removed(_)
            | Frame::Unreadable(_)
            | Frame::Streams(_)
            | Frame::Left(_)
            | Frame::Signatures(_)
            | Frame::Abort(_)
            | Frame::Remark(_)
            | Frame::KeyShare(_) => Err(Violation::Unexpected(frame.kind())),
        }
    }

    fn take_offer(&mut self, offer: Offer) -> Result<(), Violation> {
        let Offer { file, mut entry } = offer;
        if file != self.next_file {
            return Err(Violation::File(file));
        }
        if self.finish_received {
            return Err(Violation::Unexpected(4));
        }
        if self.files.len() >= MAX_OPEN {
            return Err(Violation::Open);
        }
        self.out.attributes.complete(file, &mut entry)?;
        self.next_file = self.next_file.wrapping_add(1);
        let receiving = Receiving {
            size: if entry.kind == FileKind::File {
                entry.size
            } else {
                0
            },
            whole_hashes: BTreeMap::new(),
            begun: false,
            writing: BTreeSet::new(),
            repeats: BTreeMap::new(),
            repeated: BTreeSet::new(),
            unsynced: Vec::new(),
            syncing: false,
            end: None,
            finishing: false,
            failed: None,
            signing: None,
            pieces: 0,
        };
        self.files.insert(file, receiving);
        let offered = entry.clone();
        self.out.events.push_back(Event::Offered {
            file,
            entry: offered,
        });
        self.out.jobs.push_back(SinkJob::Begin { file, entry });
        Ok(())
    }

    fn take_list(&mut self, list: List) -> Result<(), Violation> {
        let packs = self.packs.as_mut().ok_or(Violation::Unexpected(14))?;
        if list.first != self.next_file {
            return Err(Violation::File(list.first));
        }
        if self.finish_received {
            return Err(Violation::Unexpected(14));
        }
        self.next_file = packs.take_list(list, &mut self.out)?;
        Ok(())
    }

    fn take_block(&mut self, block: &Block) -> Result<(), Violation> {
        let Block { file, offset, .. } = *block;
        let state = self.slots.get_mut(usize::from(block.slot));
        let state = state.ok_or(Violation::Slot(block.slot))?;
        if *state != Slot::Granted {
            return Err(Violation::Slot(block.slot));
        }
        *state = Slot::Filled;
        if let (PACKED, false, Some(packs)) = (file, block.delta, &mut self.packs) {
            return packs.take_block(block, &mut self.out);
        }
        if file >= self.next_file {
            return Err(Violation::File(file));
        }
        let receiving = self.files.get_mut(&file).filter(|it| it.failed.is_none());
        let Some(receiving) = receiving else {
            // The source has not got the DONE yet.
            self.free.push(block.slot);
            return Ok(());
        };
        let bad = Violation::Range { file, offset };
        let length = block_length(receiving.size, self.block, offset).ok_or(bad)?;
        let is_block = if block.delta {
            receiving.pieces > 0 && (1..length).contains(&block.length)
        } else {
            block.length == length
        };
        let index = offset / u64::from(self.block);
        let is_new = !receiving.whole_hashes.contains_key(&index)
            && !receiving.writing.contains(&index)
            && receiving.begun
            && !receiving.finishing;
        if !is_block || !is_new {
            return Err(bad);
        }
        receiving.writing.insert(index);
        receiving.repeated.remove(&index);
        let (slot, hash) = (block.slot, block.hash);
        let whole = u64::from(length) == receiving.size;
        self.out.jobs.push_back(if block.delta {
            SinkJob::Patch {
                file,
                offset,
                length,
                slot,
                octets: block.length,
                hash,
                whole,
            }
        } else {
            SinkJob::Write {
                file,
                offset,
                length,
                slot,
                hash,
                whole,
            }
        });
        Ok(())
    }

    fn take_end(&mut self, end: End) -> Result<(), Violation> {
        let file = end.file;
        if file >= self.next_file {
            return Err(Violation::File(file));
        }
        let Some(receiving) = self.files.get_mut(&file) else {
            return Ok(());
        };
        if receiving.end.is_some() || !receiving.begun {
            return Err(Violation::Unexpected(9));
        }
        let failed = match end.status {
            EndStatus::Complete => None,
            EndStatus::Changed => Some(Status::Changed),
            EndStatus::Unreadable => Some(Status::Unreadable),
        };
        if let Some(status) = failed {
            let text = end.text.clone();
            receiving.failed.get_or_insert(Failure { status, text });
        } else if receiving.failed.is_none() {
            let there = receiving.whole_hashes.len() + receiving.writing.len();
            let all = there + receiving.repeated.len();
            if !self.joined && (all as u64) < blocks(receiving.size, self.block) {
                let offset = receiving.size;
                return Err(Violation::Range { file, offset });
            }
        }
        receiving.end = Some(end);
        self.settle(file);
        Ok(())
    }

    /// Takes the result of a job.
    ///
    /// # Errors
    /// [`Violation::Range`] if the source sends one block with a wrong hash again and again.
    pub fn handle_done(&mut self, done: SinkDone) -> Result<(), Violation> {
        self.working = self.working.saturating_sub(1);
        match done {
            SinkDone::Begun { file, result, old } => self.take_begun(file, result, old),
            SinkDone::Signed {
                file,
                first,
                signatures,
            } => self.take_signed(file, first, signatures),
            SinkDone::Written {
                file,
                offset,
                length,
                slot,
                hash,
                result,
                copied,
            } => {
                self.free.push(slot);
                self.take_written(file, (offset, length), hash, result)?;
                if copied > 0 && self.files.contains_key(&file) {
                    let octets = u64::from(copied);
                    self.out.events.push_back(Event::Copied { file, octets });
                }
            }
            SinkDone::Synced {
                file,
                blocks,
                result,
            } => {
                let Some(receiving) = self.files.get_mut(&file) else {
                    return Ok(());
                };
                receiving.syncing = false;
                match result {
                    Ok(()) => {
                        let (block, size) = (self.block, receiving.size);
                        let acks = blocks.iter().filter_map(|index| {
                            let offset = index * u64::from(block);
                            Some((file, offset, block_length(size, block, offset)?))
                        });
                        self.durable.extend(acks);
                    }
                    Err(failure) => {
                        receiving.failed.get_or_insert(failure);
                    }
                }
                self.settle(file);
            }
            SinkDone::Finished { file, result } => {
                let (status, text) = match result {
                    Ok(()) => (Status::Stored, String::new()),
                    Err(failure) => (failure.status, failure.text),
                };
                self.report(file, status, text);
            }
            SinkDone::Listed { .. }
            | SinkDone::Unpacked { .. }
            | SinkDone::Stored { .. }
            | SinkDone::Committed { .. } => {
                if let Some(packs) = &mut self.packs {
                    let freed = packs.handle_done(done, &mut self.out)?;
                    self.free.extend(freed);
                }
                self.conclude();
            }
            SinkDone::Pruned(removals) => {
                self.prune = Prune::No;
                self.out.removed(removals);
            }
        }
        Ok(())
    }

    fn take_begun(&mut self, file: u32, result: Result<Begun, Failure>, old: u64) {
        let block = u64::from(self.block);
        let Some(receiving) = self.files.get_mut(&file) else {
            return;
        };
        match result {
            Err(failure) => self.report(file, failure.status, failure.text),
            Ok(Begun::Finished(status)) => self.report(file, status, String::new()),
            Ok(Begun::Partial(hashes)) => {
                receiving.begun = true;
                let mut hashes = hashes;
                let ranges = missing(receiving.size, self.block, &mut hashes);
                receiving.whole_hashes = hashes;
                let wanted: u64 = ranges.iter().map(|(_, length)| length).sum();
                if wanted < receiving.size {
                    let octets = receiving.size - wanted;
                    self.out.events.push_back(Event::Resumed { file, octets });
                }
                debug_assert!(
                    ranges
                        .iter()
                        .all(|(offset, _)| offset.is_multiple_of(block))
                );
                self.want(file, ranges, old);
            }
        }
    }

    fn take_written(
        &mut self,
        file: u32,
        (offset, length): (u64, u32),
        hash: [u8; 32],
        result: Result<bool, Failure>,
    ) -> Result<(), Violation> {
        let block = u64::from(self.block);
        let Some(receiving) = self.files.get_mut(&file) else {
            return Ok(());
        };
        let index = offset / block;
        receiving.writing.remove(&index);
        match result {
            Ok(true) => {
                receiving.whole_hashes.insert(index, hash);
                receiving.unsynced.push((index, hash));
                self.placed.push((file, offset, length));
                let octets = u64::from(length);
                self.out.events.push_back(Event::Placed { file, octets });
            }
            Ok(false) => {
                let repeats = receiving.repeats.entry(index).or_default();
                *repeats += 1;
                if *repeats > MAX_REPEATS {
                    return Err(Violation::Range { file, offset });
                }
                if receiving.failed.is_none() {
                    receiving.repeated.insert(index);
                    let nack = Nack {
                        file,
                        offset,
                        length,
                    };
                    self.out.outgoing.push_back(Frame::Nack(nack));
                    self.out.events.push_back(Event::Repeated { file, offset });
                }
            }
            Err(failure) => {
                receiving.failed.get_or_insert(failure);
            }
        }
        self.settle(file);
        Ok(())
    }

    /// Begins the next step of a file, if one is due.
    fn settle(&mut self, file: u32) {
        let block = self.block;
        let Some(receiving) = self.files.get_mut(&file) else {
            return;
        };
        if !receiving.writing.is_empty() || receiving.syncing || receiving.finishing {
            self.sync_if_due(file);
            return;
        }
        if let Some(failure) = receiving.failed.clone() {
            let keep = !matches!(failure.status, Status::Changed | Status::Corrupt);
            self.out.jobs.push_back(SinkJob::Abandon { file, keep });
            self.report(file, failure.status, failure.text);
            return;
        }
        let all = receiving.whole_hashes.len() as u64 == blocks(receiving.size, block);
        let (true, Some(end)) = (all, &receiving.end) else {
            self.sync_if_due(file);
            return;
        };
        let hashes: Vec<_> = receiving.whole_hashes.values().copied().collect();
        let root = hash::root(&hashes);
        if end.root.is_some_and(|given| given != root) {
            let text = "the hash is not that of the source's file";
            receiving.failed = Some(Failure::new(Status::Corrupt, text));
            self.settle(file);
            return;
        }
        receiving.finishing = true;
        self.out.jobs.push_back(SinkJob::Finish { file, root });
    }

    fn sync_if_due(&mut self, file: u32) {
        let block = u64::from(self.block);
        let Some(receiving) = self.files.get_mut(&file) else {
            return;
        };
        let due = receiving.unsynced.len() as u64 * block >= SYNC_OCTETS;
        if due && !receiving.syncing && !receiving.finishing {
            receiving.syncing = true;
            let blocks = std::mem::take(&mut receiving.unsynced);
            self.out.jobs.push_back(SinkJob::Sync { file, blocks });
        }
    }

    fn report(&mut self, file: u32, status: Status, text: String) {
        if let Some(receiving) = self.files.remove(&file) {
            self.pieces -= receiving.pieces;
        }
        self.out.done(file, status, text);
        self.sign_waiting();
        self.conclude();
    }

    fn conclude(&mut self) {
        let packed = self.packs.as_ref().is_none_or(SinkPacks::is_empty);
        if self.finish_received && self.files.is_empty() && packed && !self.finished {
            self.finished = true;
            self.out.outgoing.push_back(Frame::Finish);
        }
    }

    /// Gives all open files up, as the session is over: jobs that keep what is there. Results of jobs before do not matter any more.
    pub fn abandon(&mut self) -> Vec<SinkJob> {
        let mut jobs: Vec<_> = self
            .packs
            .as_mut()
            .and_then(SinkPacks::abandon)
            .into_iter()
            .collect();
        for (file, receiving) in std::mem::take(&mut self.files) {
            if receiving.begun && !receiving.finishing {
                let blocks = receiving.unsynced;
                if !blocks.is_empty() {
                    jobs.push(SinkJob::Sync { file, blocks });
                }
                jobs.push(SinkJob::Abandon { file, keep: true });
            }
        }
        jobs
    }
}
