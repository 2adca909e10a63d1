//! Order of a source's work: what is listed, offered, read and packed next.

use std::collections::BTreeMap;

use super::super::source_packs::SourcePacks;
use super::super::{MAX_OPEN, SourceJob, blocks};
use super::{Old, Prune, Sending, SourceEngine};
use crate::wire::{FileKind, Frame, Offer};

impl SourceEngine {
    pub(super) fn plan(&mut self) {
        self.list();
        self.offer();
        if !self.asking && !self.exhausted {
            self.ask();
        }
        let packed = self.packs.as_ref().is_none_or(SourcePacks::is_empty);
        let over = self.exhausted && self.held.is_none() && self.files.is_empty() && packed;
        if over && self.prune == Prune::Wanted {
            self.prune = Prune::Asked;
            self.out.outgoing.push_back(Frame::Prune);
        }
        if over && self.prune == Prune::No && !self.finish_sent {
            self.finish_sent = true;
            self.out.outgoing.push_back(Frame::Finish);
        }
        self.read();
        self.pack();
    }

    /// Lists entries, and offers those among them that are not listed.
    fn list(&mut self) {
        loop {
            let Some(packs) = &mut self.packs else {
                return;
            };
            let files = self.files.values();
            let is_busy = files.into_iter().any(|it| it.kind != FileKind::Directory);
            self.next_file = packs.list(self.next_file, is_busy, &mut self.out);
            if self.files.len() >= MAX_OPEN {
                return;
            }
            self.held = packs.next_offered();
            if self.held.is_none() {
                return;
            }
            self.offer();
        }
    }

    fn ask(&mut self) {
        if let Some(packs) = &self.packs {
            if packs.wants_more() {
                self.asking = true;
                let first = self.next_file.wrapping_add(packs.waiting());
                let short = packs.short();
                self.out.jobs.push_back(SourceJob::Batch { first, short });
            }
        } else if self.held.is_none() && self.files.len() < MAX_OPEN {
            self.asking = true;
            let file = self.next_file;
            self.out.jobs.push_back(SourceJob::Next { file });
        }
    }

    /// Packs wanted files while there are local slots.
    fn pack(&mut self) {
        // Entries that follow may fill a block that is not full yet, unless they wait themselves.
        let more = self.asking || !self.exhausted;
        let Some(packs) = &mut self.packs else {
            return;
        };
        while let Some(local) = self.local_free.pop() {
            let Some((pack, files)) = packs.next_pack(more) else {
                self.local_free.push(local);
                return;
            };
            self.out
                .jobs
                .push_back(SourceJob::Pack { pack, files, local });
        }
    }

    /// Offers the entry that was found. Files in a directory change its time: a directory waits for them.
    fn offer(&mut self) {
        let Some(entry) = &self.held else { return };
        let is_directory = entry.kind == FileKind::Directory;
        let waits = self.files.values().any(|it| it.kind != FileKind::Directory);
        if is_directory && waits || !self.out.attributes.has_room(entry) {
            return;
        }
        let Some(mut entry) = self.held.take() else {
            return;
        };
        let file = self.next_file;
        self.next_file = self.next_file.wrapping_add(1);
        let all = blocks(entry.size, self.block);
        let sending = Sending {
            size: entry.size,
            kind: entry.kind,
            wanted: None,
            moving: 0,
            // A root of more blocks would cost memory without bound; the sink computes one anyway.
            hashes: (all <= 1 << 20).then(BTreeMap::new),
            repeats: BTreeMap::new(),
            checking: false,
            ended: false,
            old: Old::default(),
        };
        self.files.insert(file, sending);
        self.out.offered(file, &mut entry);
        let offer = Frame::Offer(Offer { file, entry });
        self.out.outgoing.push_back(offer);
    }

    fn read(&mut self) {
        while let Some(&file) = self.ready.front() {
            let Some(sending) = self.files.get_mut(&file) else {
                self.ready.pop_front();
                continue;
            };
            let wanted = sending.wanted.get_or_insert_default();
            let Some((offset, left)) = wanted.front_mut() else {
                self.ready.pop_front();
                continue;
            };
            let Some(local) = self.local_free.pop() else {
                return;
            };
            let length = u32::try_from(*left).unwrap_or(self.block).min(self.block);
            let whole = u64::from(length) == sending.size;
            let at = *offset;
            *offset += u64::from(length);
            *left -= u64::from(length);
            if *left == 0 {
                wanted.pop_front();
            }
            sending.moving += 1;
            // A block that is asked for again comes whole: the old copy may be another one by now.
            let index = sending.old.index.clone();
            let index = index.filter(|_| !sending.repeats.contains_key(&at));
            self.out.jobs.push_back(match index {
                Some(index) => SourceJob::Delta {
                    file,
                    offset: at,
                    length,
                    local,
                    whole,
                    size: sending.size,
                    index,
                },
                None => SourceJob::Read {
                    file,
                    offset: at,
                    length,
                    local,
                    whole,
                },
            });
        }
    }
}
