//! Jobs of both ends, as threads do them.

use super::delta::{Place, patch, search, sign_pieces};
use super::pack;
use super::{Sink, Source};
use crate::carrier::Pool;
use crate::engine::{Failure, SinkDone, SinkJob, SourceDone, SourceJob};
use crate::hash::BlockHasher;

/// Octets that are hashed and copied at a time; they stay in the processor's cache.
const PIECE: usize = 128 << 10;

pub(super) fn read(
    source: &dyn Source,
    pool: &Pool,
    job: SourceJob,
    scratch: &mut Vec<u8>,
) -> Option<SourceDone> {
    match job {
        SourceJob::Next { file } => Some(SourceDone::Next(source.next(file))),
        SourceJob::Read {
            file,
            offset,
            length,
            local,
            whole,
        } => {
            let hasher = BlockHasher::new(offset, whole);
            let read = |done, octets: &mut [u8]| source.read(file, offset + done as u64, octets);
            let length_in_memory = length as usize;
            let result = if pool.is_protected() {
                scratch.resize(length_in_memory, 0);
                let hash = hash_in_place(hasher, scratch, read);
                hash.inspect(|_| pool.fill_whole(local, scratch))
            } else if pool.is_mapped() {
                let mut outside = pool.outside(local);
                hash_in_place(hasher, outside.begin(length_in_memory), read)
            } else {
                scratch.resize(PIECE, 0);
                hash_pieces(hasher, length_in_memory, scratch, |done, octets| {
                    let result = read(done, octets);
                    pool.fill(local, done, octets);
                    result
                })
            };
            Some(SourceDone::Read {
                file,
                offset,
                length,
                local,
                result,
            })
        }
        SourceJob::Delta {
            file,
            offset,
            length,
            local,
            whole,
            size,
            index,
        } => {
            let place = Place {
                file,
                offset,
                length,
                whole,
            };
            let result = search(source, pool, place, (local, size), &index, scratch);
            Some(SourceDone::Delta {
                file,
                offset,
                local,
                result,
            })
        }
        SourceJob::Check { file } => Some(SourceDone::Checked {
            file,
            result: source.check(file),
        }),
        SourceJob::Close { file } => {
            source.close(file);
            None
        }
        SourceJob::Batch { first, short } => {
            let packer = source.packer();
            let found =
                packer.map_or_else(|| vec![source.next(first)], |it| it.batch(first, short));
            Some(SourceDone::Batch(found))
        }
        SourceJob::Pack { pack, files, local } => {
            let packer = source.packer()?;
            Some(pack::pack(packer, pool, (pack, local), &files, scratch))
        }
        SourceJob::Forget { files } => {
            source.packer()?.forget(&files);
            None
        }
    }
}

/// Moves a block in pieces and returns its hash. `move_piece` fills a piece that begins so many octets into the block, and hands it on.
fn hash_pieces(
    mut hasher: BlockHasher,
    length: usize,
    scratch: &mut [u8],
    mut move_piece: impl FnMut(usize, &mut [u8]) -> Result<(), Failure>,
) -> Result<[u8; 32], Failure> {
    let mut done = 0;
    while done < length {
        let piece = (length - done).min(scratch.len());
        let octets = &mut scratch[..piece];
        move_piece(done, octets)?;
        hasher.update(octets);
        done += piece;
    }
    Ok(hasher.finish())
}

/// Moves a block that is all in memory, in pieces, and returns its hash. `move_piece` fills or takes a piece that begins so many octets into the block.
fn hash_in_place(
    mut hasher: BlockHasher,
    block: &mut [u8],
    mut move_piece: impl FnMut(usize, &mut [u8]) -> Result<(), Failure>,
) -> Result<[u8; 32], Failure> {
    for (index, piece) in block.chunks_mut(PIECE).enumerate() {
        move_piece(index * PIECE, piece)?;
        hasher.update(piece);
    }
    Ok(hasher.finish())
}

pub(super) fn write(
    sink: &dyn Sink,
    pool: &Pool,
    block: u32,
    job: SinkJob,
    scratch: &mut Vec<u8>,
) -> Option<SinkDone> {
    match job {
        SinkJob::Begin { file, entry } => {
            let result = sink.begin(file, &entry, block);
            let old = sink.old_copy(file).unwrap_or(0);
            Some(SinkDone::Begun { file, result, old })
        }
        SinkJob::Write {
            file,
            offset,
            length,
            slot,
            hash,
            whole,
        } => {
            let hasher = BlockHasher::new(offset, whole);
            let result = if pool.is_protected() {
                scratch.resize(length as usize, 0);
                let authentic = pool.take_whole(slot, scratch);
                let write =
                    |done, octets: &mut [u8]| sink.write(file, offset + done as u64, octets);
                let hash = authentic.then(|| hash_in_place(hasher, scratch, write));
                hash.transpose()
            } else {
                scratch.resize(PIECE, 0);
                hash_pieces(hasher, length as usize, scratch, |done, octets| {
                    // The peer may write here at any time: the octets that are hashed are those that are written.
                    pool.buffer.read(pool.start(slot) + done, octets);
                    sink.write(file, offset + done as u64, octets)
                })
                .map(Some)
            };
            Some(SinkDone::Written {
                file,
                offset,
                length,
                slot,
                hash,
                result: result.map(|it| it == Some(hash)),
                copied: 0,
            })
        }
        SinkJob::Sign {
            file,
            piece,
            first,
            count,
        } => {
            let signatures = sign_pieces(sink, (file, piece), (first, count), scratch);
            Some(SinkDone::Signed {
                file,
                first,
                signatures,
            })
        }
        SinkJob::Patch {
            file,
            offset,
            length,
            slot,
            octets,
            hash,
            whole,
        } => {
            let place = Place {
                file,
                offset,
                length,
                whole,
            };
            let (result, copied) = patch(sink, pool, place, (slot, octets), &hash, scratch);
            Some(SinkDone::Written {
                file,
                offset,
                length,
                slot,
                hash,
                result,
                copied,
            })
        }
        SinkJob::Sync { file, blocks } => {
            let result = sink.sync(file, &blocks);
            let blocks = blocks.iter().map(|(index, _)| *index).collect();
            Some(SinkDone::Synced {
                file,
                blocks,
                result,
            })
        }
        SinkJob::Finish { file, root } => {
            let result = sink.finish(file, &root);
            Some(SinkDone::Finished { file, result })
        }
        SinkJob::Abandon { file, keep } => {
            sink.abandon(file, keep);
            None
        }
        SinkJob::List { first, entries } => {
            let answers = sink.unpacker()?.list(&entries);
            Some(SinkDone::Listed { first, answers })
        }
        SinkJob::Unpack {
            pack,
            slot,
            length,
            hash,
        } => Some(pack::unpack(pool, pack, slot, length, hash)),
        SinkJob::Store {
            slot,
            files,
            octets,
        } => Some(pack::store(sink.unpacker()?, slot, &files, &octets)),
        SinkJob::Commit { files } => {
            let results = sink.unpacker()?.commit(&files);
            let results = files.into_iter().zip(results).collect();
            Some(SinkDone::Committed { results })
        }
        SinkJob::Prune => Some(SinkDone::Pruned(sink.prune())),
    }
}
