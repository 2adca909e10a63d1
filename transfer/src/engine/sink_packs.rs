//! Short files at the sink: listed entries, records of packed blocks, and when files get their names.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use super::sink_job::{SinkDone, SinkJob, SinkOut, Unpacked};
use super::{Event, Failure, MAX_LISTED, MAX_REPEATS, Violation};
use crate::wire::{
    Answer, Answers, Block, EndStatus, Entry, FRAME_LIMIT, FileKind, Frame, HEADER, List, Nack,
    PACKED, RECORD, Record, Status, Stored,
};

/// Files of one STORED at most.
const BATCH: usize = (FRAME_LIMIT - HEADER) / 4;

/// State of listed entries.
#[derive(Debug)]
pub(super) struct SinkPacks {
    block: u32,
    listed: BTreeMap<u32, Listed>,
    /// Lists that wait for the one before them: directories come in the order in which their times are set.
    lists: VecDeque<List>,
    listing: bool,
    /// Files that are stored and have no name yet.
    unnamed: Vec<u32>,
    committing: bool,
    /// Corrupt blocks in a row.
    repeats: u32,
}

#[derive(Debug)]
enum Listed {
    /// It is being checked.
    Checked(Entry),
    /// Its octets have not come.
    Wanted(Entry),
    /// It is being stored, or waits for its name.
    Stored { octets: u64 },
}

impl SinkPacks {
    pub(super) fn new(block: u32) -> Self {
        Self {
            block,
            listed: BTreeMap::new(),
            lists: VecDeque::new(),
            listing: false,
            unnamed: Vec::new(),
            committing: false,
            repeats: 0,
        }
    }

    /// Whether all entries are finished.
    pub(super) fn is_empty(&self) -> bool {
        self.listed.is_empty()
    }

    /// Takes a list; returns the number behind it.
    pub(super) fn take_list(
        &mut self,
        mut list: List,
        out: &mut SinkOut,
    ) -> Result<u32, Violation> {
        if self.listed.len() + list.entries.len() > MAX_LISTED {
            return Err(Violation::Open);
        }
        let room = u64::from(self.block).saturating_sub(RECORD as u64);
        let mut file = list.first;
        for entry in &mut list.entries {
            out.attributes.complete(file, entry)?;
            if file == PACKED || entry.size > room {
                let offset = entry.size;
                return Err(Violation::Range { file, offset });
            }
            let checked = Listed::Checked(entry.clone());
            self.listed.insert(file, checked);
            let entry = entry.clone();
            out.events.push_back(Event::Offered { file, entry });
            file = file.wrapping_add(1);
        }
        self.lists.push_back(list);
        self.check_next(out);
        Ok(file)
    }

    fn check_next(&mut self, out: &mut SinkOut) {
        if self.listing {
            return;
        }
        let Some(List { first, entries }) = self.lists.pop_front() else {
            return;
        };
        self.listing = true;
        out.jobs.push_back(SinkJob::List { first, entries });
    }

    /// Takes a packed block, in a slot that was granted.
    pub(super) fn take_block(&self, block: &Block, out: &mut SinkOut) -> Result<(), Violation> {
        let Block { offset, length, .. } = *block;
        if length == 0 || length > self.block {
            let file = PACKED;
            return Err(Violation::Range { file, offset });
        }
        out.jobs.push_back(SinkJob::Unpack {
            pack: offset,
            slot: block.slot,
            length,
            hash: block.hash,
        });
        Ok(())
    }

    /// Takes the result of a job; returns a slot that is free.
    pub(super) fn handle_done(
        &mut self,
        done: SinkDone,
        out: &mut SinkOut,
    ) -> Result<Option<u16>, Violation> {
        match done {
            SinkDone::Listed { first, answers } => {
                self.answer(first, answers, out);
                Ok(None)
            }
            SinkDone::Unpacked { pack, slot, result } => self.unpacked(pack, slot, result, out),
            SinkDone::Stored { slot, results } => {
                for (file, result) in results {
                    match result {
                        Ok(()) => self.unnamed.push(file),
                        Err(failure) => self.fail(file, failure, out),
                    }
                }
                self.commit(out);
                Ok(Some(slot))
            }
            SinkDone::Committed { results } => {
                self.committing = false;
                self.committed(results, out);
                self.commit(out);
                Ok(None)
            }
            SinkDone::Begun { .. }
            | SinkDone::Signed { .. }
            | SinkDone::Written { .. }
            | SinkDone::Synced { .. }
            | SinkDone::Finished { .. }
            | SinkDone::Pruned(_) => Ok(None),
        }
    }

    fn answer(&mut self, first: u32, answers: Vec<Result<Answer, Failure>>, out: &mut SinkOut) {
        self.listing = false;
        let simple = |answer: &Result<Answer, Failure>| *answer.as_ref().unwrap_or(&Answer::Failed);
        let frame = Answers {
            first,
            answers: answers.iter().map(simple).collect(),
        };
        out.outgoing.push_back(Frame::Answer(frame));
        for (index, answer) in (0_u32..).zip(answers) {
            let file = first.wrapping_add(index);
            let status = match answer {
                Ok(Answer::Wanted) => {
                    if let Some(Listed::Checked(entry)) = self.listed.remove(&file) {
                        self.listed.insert(file, Listed::Wanted(entry));
                    }
                    continue;
                }
                Ok(Answer::Present) => Status::Present,
                Ok(Answer::Stored) => Status::Stored,
                Ok(Answer::Failed) => {
                    self.fail(file, Failure::new(Status::Failed, "failed"), out);
                    continue;
                }
                Err(failure) => {
                    self.fail(file, failure, out);
                    continue;
                }
            };
            self.listed.remove(&file);
            out.finished(file, status, String::new());
        }
        self.check_next(out);
    }

    fn unpacked(
        &mut self,
        pack: u64,
        slot: u16,
        result: Option<Unpacked>,
        out: &mut SinkOut,
    ) -> Result<Option<u16>, Violation> {
        let bad = Violation::Range {
            file: PACKED,
            offset: pack,
        };
        let Some((octets, records)) = result else {
            self.repeats += 1;
            if self.repeats > MAX_REPEATS {
                return Err(bad);
            }
            let (file, offset) = (PACKED, pack);
            let length = 0;
            out.outgoing.push_back(Frame::Nack(Nack {
                file,
                offset,
                length,
            }));
            out.events.push_back(Event::Repeated { file, offset });
            return Ok(Some(slot));
        };
        self.repeats = 0;
        let mut files = Vec::new();
        for record in records.map_err(|_| bad)? {
            if let Some(file) = self.record(record, &octets, out)? {
                files.push(file);
            }
        }
        if files.is_empty() {
            return Ok(Some(slot));
        }
        out.jobs.push_back(SinkJob::Store {
            slot,
            files,
            octets,
        });
        Ok(None)
    }

    /// Checks a record; returns the file to be stored.
    fn record(
        &mut self,
        record: Record,
        octets: &[u8],
        out: &mut SinkOut,
    ) -> Result<Option<(u32, Entry, Range<usize>)>, Violation> {
        let Record {
            file,
            status,
            range,
        } = record;
        let listed = self.listed.get_mut(&file).ok_or(Violation::File(file))?;
        let offset = range.start as u64;
        let bad = Violation::Range { file, offset };
        let stored = Listed::Stored {
            octets: range.len() as u64,
        };
        let entry = match std::mem::replace(listed, stored) {
            Listed::Wanted(entry) if entry.kind == FileKind::File => entry,
            _ => return Err(bad),
        };
        let status = match status {
            EndStatus::Complete if entry.size == range.len() as u64 => {
                return Ok(Some((file, entry, range)));
            }
            EndStatus::Complete => return Err(bad),
            EndStatus::Changed => Status::Changed,
            EndStatus::Unreadable => Status::Unreadable,
        };
        let text = octets.get(range).unwrap_or_default();
        let text = String::from_utf8_lossy(text);
        let text = text.replace(|it: char| it.is_control(), "\u{fffd}");
        self.fail(file, Failure::new(status, text), out);
        Ok(None)
    }

    /// Names all files that are stored, as soon as those before them have theirs: one synchronization serves many.
    fn commit(&mut self, out: &mut SinkOut) {
        if self.committing || self.unnamed.is_empty() {
            return;
        }
        self.committing = true;
        let files = std::mem::take(&mut self.unnamed);
        out.jobs.push_back(SinkJob::Commit { files });
    }

    fn committed(&mut self, results: Vec<(u32, Result<(), Failure>)>, out: &mut SinkOut) {
        let mut files = Vec::new();
        for (file, result) in results {
            if let Err(failure) = result {
                self.fail(file, failure, out);
                continue;
            }
            if let Some(Listed::Stored { octets }) = self.listed.remove(&file) {
                out.events.push_back(Event::Placed { file, octets });
            }
            out.finished(file, Status::Stored, String::new());
            files.push(file);
        }
        for files in files.chunks(BATCH) {
            let files = files.to_vec();
            out.outgoing.push_back(Frame::Stored(Stored { files }));
        }
    }

    fn fail(&mut self, file: u32, failure: Failure, out: &mut SinkOut) {
        self.listed.remove(&file);
        out.done(file, failure.status, failure.text);
    }

    /// The session is over: files that are stored get their names.
    pub(super) fn abandon(&mut self) -> Option<SinkJob> {
        let files = std::mem::take(&mut self.unnamed);
        (!files.is_empty()).then_some(SinkJob::Commit { files })
    }
}
