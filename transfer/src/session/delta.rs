//! Jobs of files of which the sink has an old copy.

use super::{Sink, Source};
use crate::carrier::Pool;
use crate::delta::{Index, measure, sign};
use crate::engine::{Delta, Failure};
use crate::hash;
use crate::wire::{Part, Signature};

/// Octets of an old copy that are read at a time, where its pieces are shorter.
const READ: usize = 1 << 20;

/// A block of a file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub(super) file: u32,
    pub(super) offset: u64,
    pub(super) length: u32,
    /// Whether it is all of the file.
    pub(super) whole: bool,
}

/// Reads a block and fills a slot with its parts, or with itself where they are not shorter.
pub(super) fn search(
    source: &dyn Source,
    pool: &Pool,
    place: Place,
    (local, size): (u16, u64),
    index: &Index,
    scratch: &mut Vec<u8>,
) -> Result<Delta, Failure> {
    let beyond = u64::from(index.piece()) - 1;
    let from = place.offset.saturating_sub(beyond);
    let length = place.length as usize;
    let before = usize::try_from(place.offset - from).unwrap_or(0);
    let behind = beyond.min(size.saturating_sub(place.offset + u64::from(place.length)));
    let behind = usize::try_from(behind).unwrap_or(0);
    scratch.resize(before + length + behind, 0);
    source.read(place.file, from, scratch)?;
    let range = before..before + length;
    let block = scratch.get(range.clone()).unwrap_or_default();
    let hash = hash::block(place.offset, place.whole, block);
    let parts = index.search(scratch, range.clone());
    let (octets, copied) = measure(&parts);
    if copied == 0 || octets >= length {
        pool.fill_whole(local, scratch.get_mut(range).unwrap_or_default());
        let (octets, copied) = (place.length, 0);
        return Ok(Delta {
            hash,
            octets,
            copied,
        });
    }
    let mut records = Vec::with_capacity(octets);
    for part in &parts {
        part.emit(scratch, &mut records);
    }
    pool.fill_whole(local, &mut records);
    Ok(Delta {
        hash,
        octets: u32::try_from(octets).unwrap_or(place.length),
        copied,
    })
}

/// Signs pieces of an old copy, as far as it can be read.
pub(super) fn sign_pieces(
    sink: &dyn Sink,
    (file, piece): (u32, u32),
    (first, count): (u32, u32),
    scratch: &mut Vec<u8>,
) -> Vec<Signature> {
    let piece_octets = piece as usize;
    let at_a_time = (READ / piece_octets).max(1);
    let mut signatures = Vec::new();
    let mut left = count as usize;
    let mut offset = u64::from(first) * u64::from(piece);
    while left > 0 {
        let pieces = left.min(at_a_time);
        scratch.resize(pieces * piece_octets, 0);
        if sink.read_old_copy(file, offset, scratch).is_err() {
            break;
        }
        signatures.extend(sign(scratch, piece));
        offset += scratch.len() as u64;
        left -= pieces;
    }
    signatures
}

/// Puts a block together of the octets in a slot and of the old copy, and writes it if it has its hash. Returns whether it has, and how much of it is copied.
pub(super) fn patch(
    sink: &dyn Sink,
    pool: &Pool,
    place: Place,
    (slot, octets): (u16, u32),
    hash: &[u8; 32],
    scratch: &mut Vec<u8>,
) -> (Result<bool, Failure>, u32) {
    let mut records = vec![0; octets as usize];
    if !pool.take_whole(slot, &mut records) {
        return (Ok(false), 0);
    }
    let Ok(parts) = Part::parse_all(&records, place.length) else {
        return (Ok(false), 0);
    };
    scratch.resize(place.length as usize, 0);
    let mut rest = &mut scratch[..];
    let mut copied = 0;
    for part in &parts {
        let length = usize::try_from(part.length()).unwrap_or(usize::MAX);
        let Some((octets, behind)) = rest.split_at_mut_checked(length) else {
            return (Ok(false), 0);
        };
        match part {
            Part::Literal(range) => {
                let literal = records.get(range.clone()).unwrap_or_default();
                octets.copy_from_slice(literal);
            }
            Part::Copy { offset, length } => {
                // It may be shorter by now: the block comes again, whole.
                if sink.read_old_copy(place.file, *offset, octets).is_err() {
                    return (Ok(false), 0);
                }
                copied += length;
            }
        }
        rest = behind;
    }
    if hash::block(place.offset, place.whole, scratch) != *hash {
        return (Ok(false), 0);
    }
    let written = sink.write(place.file, place.offset, scratch);
    (written.map(|()| true), copied)
}
