//! Jobs of packed blocks.

use std::sync::Arc;

use super::{Packer, Short, Unpacker};
use crate::carrier::Pool;
use crate::engine::{Failure, SinkDone, SourceDone};
use crate::hash::BlockHasher;
use crate::wire::{EndStatus, Entry, Malformed, RECORD, Record, Status};

/// Reads files into a slot as records.
pub(super) fn pack(
    packer: &dyn Packer,
    pool: &Pool,
    (pack, local): (u64, u16),
    files: &[(u32, u32)],
    scratch: &mut Vec<u8>,
) -> SourceDone {
    let planned: usize = files.iter().map(|(_, size)| RECORD + *size as usize).sum();
    // Room for the texts of failures.
    let mut room = (pool.block_length() as usize).saturating_sub(planned);
    scratch.clear();
    for &(file, size) in files {
        let start = scratch.len();
        let header = Record::header(file, EndStatus::Complete, size);
        scratch.extend(header);
        scratch.resize(start + RECORD + size as usize, 0);
        let Some(octets) = scratch.get_mut(start + RECORD..) else {
            continue;
        };
        if let Err(failure) = packer.load(file, octets) {
            scratch.truncate(start);
            room += size as usize;
            let text = text(&failure, room);
            room -= text.len();
            let status = match failure.status {
                Status::Changed => EndStatus::Changed,
                _ => EndStatus::Unreadable,
            };
            let length = u32::try_from(text.len()).unwrap_or(0);
            scratch.extend(Record::header(file, status, length));
            scratch.extend(text);
        }
    }
    let mut hasher = BlockHasher::new(0, true);
    hasher.update(scratch);
    pool.fill_whole(local, scratch);
    SourceDone::Packed {
        pack,
        local,
        length: u32::try_from(scratch.len()).unwrap_or(0),
        hash: hasher.finish(),
    }
}

/// Text of a failure, cut at a character to what there is room for.
fn text(failure: &Failure, room: usize) -> &[u8] {
    let text = &failure.text;
    let mut end = text.len().min(room).min(crate::wire::TEXT_LIMIT);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text.as_bytes()[..end]
}

/// Copies a packed block out of its slot and finds its records.
pub(super) fn unpack(pool: &Pool, pack: u64, slot: u16, length: u32, hash: [u8; 32]) -> SinkDone {
    let mut octets = vec![0; length as usize];
    let authentic = pool.take_whole(slot, &mut octets);
    let mut hasher = BlockHasher::new(0, true);
    hasher.update(&octets);
    let result = (authentic && hasher.finish() == hash).then(|| {
        let records: Result<_, Malformed> = Record::parse_all(&octets);
        (Arc::new(octets), records)
    });
    SinkDone::Unpacked { pack, slot, result }
}

/// Writes files of a packed block.
pub(super) fn store(
    unpacker: &dyn Unpacker,
    slot: u16,
    files: &[(u32, Entry, std::ops::Range<usize>)],
    octets: &[u8],
) -> SinkDone {
    let shorts: Vec<_> = files
        .iter()
        .map(|(file, entry, range)| Short {
            file: *file,
            entry,
            octets: octets.get(range.clone()).unwrap_or_default(),
        })
        .collect();
    let results = unpacker.store(&shorts);
    let results = files.iter().map(|it| it.0).zip(results).collect();
    SinkDone::Stored { slot, results }
}
