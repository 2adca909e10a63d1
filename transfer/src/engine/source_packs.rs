//! Short files at the source: which entries are listed, and which files go into the next packed block.

use std::collections::{BTreeMap, VecDeque};

use super::source_job::{SourceJob, SourceOut};
use super::{Event, MAX_LISTED, MAX_REPEATS, Violation};
use crate::wire::{
    Answer, Answers, Entry, FRAME_LIMIT, FileKind, Frame, HEADER, List, PACKED, RECORD, Status,
    Stored,
};

/// Entries that are found before others are asked for.
const AHEAD: usize = 512;

/// State of listed entries.
#[derive(Debug)]
pub(super) struct SourcePacks {
    block: u32,
    /// Entries in order that are neither listed nor offered.
    found: VecDeque<Entry>,
    listed: BTreeMap<u32, Listed>,
    /// Listed entries that are no directories.
    others: usize,
    /// Listed entries without an answer.
    unanswered: usize,
    /// Files that are wanted, with their sizes.
    wanted: VecDeque<(u32, u32)>,
    /// Packed blocks with the files that are not finished.
    flying: BTreeMap<u64, Vec<u32>>,
    next_pack: u64,
}

#[derive(Debug)]
struct Listed {
    kind: FileKind,
    size: u32,
    answered: bool,
    pack: Option<u64>,
    repeats: u32,
}

impl SourcePacks {
    pub(super) fn new(block: u32) -> Self {
        Self {
            block,
            found: VecDeque::new(),
            listed: BTreeMap::new(),
            others: 0,
            unanswered: 0,
            wanted: VecDeque::new(),
            flying: BTreeMap::new(),
            next_pack: 0,
        }
    }

    /// Longest file that is packed.
    pub(super) fn short(&self) -> u32 {
        self.block / 2
    }

    /// Whether nothing waits or is unfinished.
    pub(super) fn is_empty(&self) -> bool {
        self.found.is_empty() && self.listed.is_empty()
    }

    /// Entries that are neither listed nor offered.
    pub(super) fn waiting(&self) -> u32 {
        u32::try_from(self.found.len()).unwrap_or(u32::MAX)
    }

    /// Whether entries may be looked for. One that is opened already is offered first: descriptors are few.
    pub(super) fn wants_more(&self) -> bool {
        let listed = self.found.back().is_none_or(|it| self.is_listed(it));
        self.found.len() < AHEAD && listed
    }

    pub(super) fn found(&mut self, entry: Entry) {
        self.found.push_back(entry);
    }

    /// A file without a name of its own is offered: the sink's target is no directory then.
    fn is_listed(&self, entry: &Entry) -> bool {
        match entry.kind {
            FileKind::File => entry.size <= u64::from(self.short()) && !entry.name.is_empty(),
            FileKind::Directory => true,
            FileKind::Link => !entry.name.is_empty(),
        }
    }

    /// The next entry, if it is one that is offered.
    pub(super) fn next_offered(&mut self) -> Option<Entry> {
        let next = self.found.pop_front()?;
        if self.is_listed(&next) {
            self.found.push_front(next);
            return None;
        }
        Some(next)
    }

    /// Lists what may be listed, from this number; returns the next number. A directory waits for all files, `busy` for those that are offered.
    pub(super) fn list(&mut self, first: u32, busy: bool, out: &mut SourceOut) -> u32 {
        let mut next = first;
        let mut list = List {
            first,
            entries: Vec::new(),
        };
        let mut octets = HEADER + 4;
        while self.listed.len() < MAX_LISTED
            && let Some(mut entry) = self.found.pop_front()
        {
            let is_directory = entry.kind == FileKind::Directory;
            let waits = is_directory && (busy || self.others > 0);
            if !self.is_listed(&entry) || waits || !out.attributes.has_room(&entry) {
                self.found.push_front(entry);
                break;
            }
            if octets + List::octets_of(&entry) > FRAME_LIMIT {
                send(out, &mut list, next);
                octets = HEADER + 4;
            }
            octets += List::octets_of(&entry);
            let listed = Listed {
                kind: entry.kind,
                size: u32::try_from(entry.size).unwrap_or(u32::MAX),
                answered: false,
                pack: None,
                repeats: 0,
            };
            self.listed.insert(next, listed);
            self.others += usize::from(!is_directory);
            self.unanswered += 1;
            out.offered(next, &mut entry);
            list.entries.push(entry);
            next = next.wrapping_add(1);
        }
        send(out, &mut list, next);
        next
    }

    pub(super) fn take_answer(
        &mut self,
        answers: &Answers,
        out: &mut SourceOut,
    ) -> Result<(), Violation> {
        let mut files = Vec::new();
        for (index, answer) in (0_u32..).zip(&answers.answers) {
            let file = answers.first.wrapping_add(index);
            let listed = self.listed.get_mut(&file).ok_or(Violation::File(file))?;
            if std::mem::replace(&mut listed.answered, true) {
                return Err(Violation::Unexpected(15));
            }
            self.unanswered -= 1;
            let status = match answer {
                // DONE follows.
                Answer::Failed => continue,
                Answer::Wanted if listed.kind == FileKind::File => {
                    self.wanted.push_back((file, listed.size));
                    continue;
                }
                Answer::Wanted => return Err(Violation::Unexpected(15)),
                Answer::Stored => Status::Stored,
                Answer::Present => Status::Present,
            };
            // Only its attributes were others.
            let is_stored = status == Status::Stored && !out.attributes.is_agreed();
            if is_stored && listed.kind == FileKind::File {
                return Err(Violation::Unexpected(15));
            }
            self.remove(file);
            files.push(file);
            out.finished(file, status, String::new());
        }
        if !files.is_empty() {
            out.jobs.push_back(SourceJob::Forget { files });
        }
        Ok(())
    }

    pub(super) fn take_stored(
        &mut self,
        stored: &Stored,
        out: &mut SourceOut,
    ) -> Result<(), Violation> {
        for &file in &stored.files {
            let listed = self.listed.get(&file).ok_or(Violation::File(file))?;
            if listed.pack.is_none() {
                return Err(Violation::Unexpected(16));
            }
            let octets = u64::from(listed.size);
            self.remove(file);
            out.events.push_back(Event::Placed { file, octets });
            out.finished(file, Status::Stored, String::new());
        }
        let files = stored.files.clone();
        out.jobs.push_back(SourceJob::Forget { files });
        Ok(())
    }

    /// A packed block was corrupt: its files go again.
    pub(super) fn take_nack(&mut self, pack: u64, out: &mut SourceOut) -> Result<(), Violation> {
        let bad = Violation::Range {
            file: PACKED,
            offset: pack,
        };
        let files = self.flying.remove(&pack).ok_or(bad)?;
        for file in files.into_iter().rev() {
            let listed = self.listed.get_mut(&file).ok_or(bad)?;
            listed.pack = None;
            listed.repeats += 1;
            if listed.repeats > MAX_REPEATS {
                return Err(bad);
            }
            self.wanted.push_front((file, listed.size));
        }
        let (file, offset) = (PACKED, pack);
        out.events.push_back(Event::Repeated { file, offset });
        Ok(())
    }

    /// A packed block did not come: its files go again.
    pub(super) fn lost(&mut self, pack: u64) {
        for file in self.flying.remove(&pack).into_iter().flatten().rev() {
            if let Some(listed) = self.listed.get_mut(&file) {
                listed.pack = None;
                self.wanted.push_front((file, listed.size));
            }
        }
    }

    /// An entry is finished; returns whether it was listed.
    pub(super) fn remove(&mut self, file: u32) -> bool {
        let Some(listed) = self.listed.remove(&file) else {
            return false;
        };
        self.others -= usize::from(listed.kind != FileKind::Directory);
        self.unanswered -= usize::from(!listed.answered);
        if let Some(pack) = listed.pack
            && let Some(files) = self.flying.get_mut(&pack)
        {
            files.retain(|it| *it != file);
            if files.is_empty() {
                self.flying.remove(&pack);
            }
        }
        true
    }

    /// Files of the next packed block. One that is not full leaves if nothing may fill it, or none is on its way (as by Nagle's rule): `more` entries are
    /// being looked for.
    pub(super) fn next_pack(&mut self, more: bool) -> Option<(u64, Vec<(u32, u32)>)> {
        // Files that the sink gave up meanwhile.
        while let Some((file, _)) = self.wanted.front()
            && !self.listed.contains_key(file)
        {
            self.wanted.pop_front();
        }
        let room = self.block as usize;
        let mut octets = 0;
        let mut count = 0;
        for (_, size) in &self.wanted {
            let record = RECORD + *size as usize;
            if octets + record > room {
                break;
            }
            octets += record;
            count += 1;
        }
        let is_full = count < self.wanted.len();
        let waits = more && self.found.is_empty() || self.unanswered > 0;
        if count == 0 || !is_full && waits && !self.flying.is_empty() {
            return None;
        }
        let files: Vec<_> = self
            .wanted
            .drain(..count)
            .filter(|(file, _)| self.listed.contains_key(file))
            .collect();
        let pack = self.next_pack;
        self.next_pack += 1;
        for (file, _) in &files {
            if let Some(listed) = self.listed.get_mut(file) {
                listed.pack = Some(pack);
            }
        }
        let numbers = files.iter().map(|(file, _)| *file).collect();
        self.flying.insert(pack, numbers);
        Some((pack, files))
    }
}

/// Sends the list and begins another.
fn send(out: &mut SourceOut, list: &mut List, next: u32) {
    let rest = List {
        first: next,
        entries: Vec::new(),
    };
    let list = std::mem::replace(list, rest);
    if !list.entries.is_empty() {
        out.outgoing.push_back(Frame::List(list));
    }
}
