//! Files of which the sink has an old copy: its signatures, and blocks in terms of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::super::sink_job::MAX_OPEN_PIECES;
use super::super::{Event, Violation};
use super::SourceEngine;
use crate::delta::{Index, is_piece};
use crate::wire::{Ack, Level, Signature, Signatures};

/// An old copy of one file.
#[derive(Debug, Default)]
pub(super) struct Old {
    piece: u32,
    /// Signatures that came, until all are there.
    signatures: Vec<Signature>,
    /// How many came.
    pieces: u32,
    pub(super) index: Option<Arc<Index>>,
    /// Octets of blocks on their way that are copies, by offset.
    pub(super) copied: BTreeMap<u64, u32>,
}

impl Old {
    /// All signatures are there.
    pub(super) fn close(&mut self) {
        let signatures = std::mem::take(&mut self.signatures);
        if !signatures.is_empty() {
            self.index = Some(Arc::new(Index::new(self.piece, &signatures)));
        }
    }
}

impl SourceEngine {
    /// Files that changed may go as deltas: both ends take them.
    #[must_use]
    pub fn with_deltas(mut self) -> Self {
        self.deltas = true;
        self
    }

    pub(super) fn take_signatures(&mut self, come: &Signatures) -> Result<(), Violation> {
        let file = come.file;
        if !self.deltas {
            return Err(Violation::Unexpected(23));
        }
        let sending = self.files.get_mut(&file).ok_or(Violation::File(file))?;
        if sending.wanted.is_some() {
            return Err(Violation::Unexpected(23));
        }
        let bad = Violation::Signatures(file);
        let count = u32::try_from(come.signatures.len()).map_err(|_| bad)?;
        let old = &mut sending.old;
        let follows = old.pieces == come.first && (old.pieces == 0 || old.piece == come.piece);
        let pieces = self.pieces + count;
        if !is_piece(come.piece, self.block) || !follows || pieces > MAX_OPEN_PIECES {
            return Err(bad);
        }
        self.pieces = pieces;
        old.pieces += count;
        old.piece = come.piece;
        old.signatures.extend(&come.signatures);
        Ok(())
    }

    /// A file is finished.
    pub(super) fn forget(&mut self, old: &Old) {
        self.pieces = self.pieces.saturating_sub(old.pieces);
    }

    pub(super) fn take_ack(&mut self, ack: &Ack) {
        if ack.level != Level::Placed {
            return;
        }
        for &(file, offset, length) in &ack.blocks {
            let octets = u64::from(length);
            self.out.events.push_back(Event::Placed { file, octets });
            let sending = self.files.get_mut(&file);
            if let Some(octets) = sending.and_then(|it| it.old.copied.remove(&offset)) {
                let octets = u64::from(octets);
                self.out.events.push_back(Event::Copied { file, octets });
            }
        }
    }
}
