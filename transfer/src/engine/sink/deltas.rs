//! Files of which there is an old copy: signatures of its pieces go to the source before the ranges that are wanted.

use std::collections::BTreeMap;

use super::super::sink_job::{MAX_OPEN_PIECES, SinkJob};
use super::SinkEngine;
use crate::delta::pieces;
use crate::wire::{Frame, SIGNATURES_LIMIT, Signature, Signatures, Want};

/// Jobs of one file at a time.
const JOBS: u32 = 4;
/// Octets of a signature on the wire, about.
const SIGNATURE: u64 = 12;
/// Signatures are worth so much less than what is wanted.
const WORTH: u64 = 4;

/// Signatures of an old copy on their way.
#[derive(Debug)]
pub(super) struct Signing {
    /// Ranges that are wanted.
    ranges: Vec<(u64, u64)>,
    piece: u32,
    pieces: u32,
    /// First piece of the next job.
    next_job: u32,
    running: u32,
    /// First piece of the next frame.
    next_frame: u32,
    /// Results that wait for those before them, by their first piece.
    signed: BTreeMap<u32, Vec<Signature>>,
}

impl SinkEngine {
    /// Files that changed may come as deltas: both ends take them.
    #[must_use]
    pub fn with_deltas(mut self) -> Self {
        self.deltas = true;
        self
    }

    /// Wants ranges, in terms of an old copy of so many octets where that is worth its signatures.
    pub(super) fn want(&mut self, file: u32, ranges: Vec<(u64, u64)>, old: u64) {
        let wanted: u64 = ranges.iter().map(|(_, length)| length).sum();
        let worth = |pieces: u32| WORTH * SIGNATURE * u64::from(pieces) <= wanted;
        let plan = pieces(old, self.block).filter(|(_, pieces)| self.deltas && worth(*pieces));
        let receiving = self.files.get_mut(&file);
        let (Some((piece, pieces)), Some(receiving)) = (plan, receiving) else {
            let want = Frame::Want(Want { file, ranges });
            self.out.outgoing.push_back(want);
            return;
        };
        receiving.signing = Some(Signing {
            ranges,
            piece,
            pieces,
            next_job: 0,
            running: 0,
            next_frame: 0,
            signed: BTreeMap::new(),
        });
        self.waiting.push_back(file);
        self.sign_waiting();
    }

    /// Begins with files that wait until the source has room for their signatures.
    pub(super) fn sign_waiting(&mut self) {
        while let Some(&file) = self.waiting.front() {
            let receiving = self.files.get_mut(&file);
            if let Some(receiving) = receiving
                && let Some(signing) = &receiving.signing
            {
                if self.pieces + signing.pieces > MAX_OPEN_PIECES {
                    return;
                }
                self.pieces += signing.pieces;
                receiving.pieces = signing.pieces;
                self.sign(file);
            }
            self.waiting.pop_front();
        }
    }

    fn sign(&mut self, file: u32) {
        let receiving = self.files.get_mut(&file);
        let Some(signing) = receiving.and_then(|it| it.signing.as_mut()) else {
            return;
        };
        while signing.running < JOBS && signing.next_job < signing.pieces {
            let limit = u32::try_from(SIGNATURES_LIMIT).unwrap_or(1);
            let first = signing.next_job;
            let count = limit.min(signing.pieces - first);
            signing.next_job += count;
            signing.running += 1;
            let piece = signing.piece;
            self.out.jobs.push_back(SinkJob::Sign {
                file,
                piece,
                first,
                count,
            });
        }
    }

    /// Pieces were signed; fewer than were asked for where the old copy is shorter now.
    pub(super) fn take_signed(&mut self, file: u32, first: u32, signatures: Vec<Signature>) {
        let Some(receiving) = self.files.get_mut(&file) else {
            return;
        };
        let Some(signing) = &mut receiving.signing else {
            return;
        };
        signing.running = signing.running.saturating_sub(1);
        let count = |signatures: &[Signature]| u32::try_from(signatures.len()).unwrap_or(0);
        let asked = u32::try_from(SIGNATURES_LIMIT).unwrap_or(1);
        if count(&signatures) < asked.min(signing.pieces.saturating_sub(first)) {
            signing.pieces = first + count(&signatures);
        }
        signing.signed.insert(first, signatures);
        while let Some(signatures) = signing.signed.remove(&signing.next_frame)
            && !signatures.is_empty()
        {
            let first = signing.next_frame;
            signing.next_frame += count(&signatures);
            let piece = signing.piece;
            let frame = Frame::Signatures(Signatures {
                file,
                piece,
                first,
                signatures,
            });
            self.out.outgoing.push_back(frame);
        }
        if signing.next_frame < signing.pieces {
            self.sign(file);
            return;
        }
        let ranges = std::mem::take(&mut signing.ranges);
        receiving.signing = None;
        let want = Frame::Want(Want { file, ranges });
        self.out.outgoing.push_back(want);
    }
}
