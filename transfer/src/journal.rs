//! The journal beside a partial file: blocks that are whole and durable (`rfc-notes/transfer.md` §7).
//!
//! ```text
//! header  "DGJ1" 4 | block 4 | size 8 | seconds 8 | nanoseconds 4 | identity 16 | CRC32c 4
//! record  index 8 | hash 32 | CRC32c 4, repeated
//! ```

use std::collections::BTreeMap;

use dgiwarp_codec::crc::crc32c;

use crate::wire::Entry;

/// Octets of the header.
pub const HEADER: usize = 48;
/// Octets of a record.
pub const RECORD: usize = 44;

const MAGIC: [u8; 4] = *b"DGJ1";

/// Header for a file that comes in blocks of this length. A journal with another header belongs to another file or state of it.
#[must_use]
pub fn header(entry: &Entry, block: u32) -> [u8; HEADER] {
    let mut out = [0; HEADER];
    out[..4].copy_from_slice(&MAGIC);
    out[4..8].copy_from_slice(&block.to_be_bytes());
    out[8..16].copy_from_slice(&entry.size.to_be_bytes());
    out[16..24].copy_from_slice(&entry.modified.0.to_be_bytes());
    out[24..28].copy_from_slice(&entry.modified.1.to_be_bytes());
    out[28..44].copy_from_slice(&entry.identity);
    let crc = crc32c(&out[..44]);
    out[44..].copy_from_slice(&crc.to_be_bytes());
    out
}

/// A record for one block.
#[must_use]
pub fn record(index: u64, hash: &[u8; 32]) -> [u8; RECORD] {
    let mut out = [0; RECORD];
    out[..8].copy_from_slice(&index.to_be_bytes());
    out[8..40].copy_from_slice(hash);
    let crc = crc32c(&out[..40]);
    out[40..].copy_from_slice(&crc.to_be_bytes());
    out
}

/// Blocks that a journal has for a file with this header, and the octets of it that are whole: what follows was cut by a crash. `None` for another header.
#[must_use]
pub fn replay(octets: &[u8], header: &[u8; HEADER]) -> Option<(BTreeMap<u64, [u8; 32]>, usize)> {
    let records = octets.strip_prefix(header.as_slice())?;
    let (records, _) = records.as_chunks::<RECORD>();
    let mut blocks = BTreeMap::new();
    let mut whole = HEADER;
    for octets in records {
        let [i0, i1, i2, i3, i4, i5, i6, i7, rest @ ..] = octets;
        let index = u64::from_be_bytes([*i0, *i1, *i2, *i3, *i4, *i5, *i6, *i7]);
        let Some((hash, _)) = rest.split_first_chunk::<32>() else {
            break;
        };
        if record(index, hash) != *octets {
            break;
        }
        blocks.insert(index, *hash);
        whole += RECORD;
    }
    Some((blocks, whole))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::FileKind;
    use proptest::prelude::*;

    fn entry(size: u64) -> Entry {
        Entry {
            kind: FileKind::File,
            mode: 0o644,
            modified: (1, 2),
            size,
            identity: [7; 16],
            name: b"x".to_vec(),
            target: Vec::new(),
            attributes: None,
        }
    }

    proptest! {
        /// A crash cuts a journal anywhere, and may leave anything behind the cut.
        #[test]
        fn a_cut_journal_has_the_records_before_the_cut(count in 0_u64..20, cut in 0_usize..1000, junk: Vec<u8>) {
            let head = header(&entry(9), 1024);
            let mut all = head.to_vec();
            for index in 0..count {
                all.extend(record(index, &[index.to_be_bytes()[7]; 32]));
            }
            let cut = cut.min(all.len());
            let mut octets = all[..cut].to_vec();
            octets.extend(&junk);
            match replay(&octets, &head) {
                Some((blocks, whole)) => {
                    let least = (cut.saturating_sub(HEADER) / RECORD) as u64;
                    prop_assert!(blocks.len() as u64 >= least);
                    prop_assert_eq!(whole, HEADER + blocks.len() * RECORD);
                    prop_assert!(blocks.iter().all(|(index, hash)| hash[0] == index.to_be_bytes()[7]));
                }
                None => prop_assert!(cut < HEADER),
            }
            prop_assert!(replay(&octets, &header(&entry(10), 1024)).is_none());
        }
    }
}
