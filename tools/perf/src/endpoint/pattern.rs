//! Contents of messages: a fixed pattern, and at the start of each segment an 8-byte stamp with
//! the position of the segment. By the stamp a receiver detects loss, and late
//! arrivals of an earlier round; the pattern is compared with `--check`.

use crate::error::{PerfError, Result};

/// Bytes of a stamp; shorter segments have none.
pub(crate) const STAMP: usize = 8;

/// Bits of a stamp that count bytes of a stream; the round is above them.
pub(crate) const POSITION_BITS: u32 = 48;

/// These bits.
pub(crate) const POSITION_MASK: u64 = (1 << POSITION_BITS) - 1;

/// Bits of a stamp that count bytes of one ping-pong message; its sequence is above them.
pub(crate) const OFFSET_BITS: u32 = 32;

/// The pattern's byte at `index`; neighbours differ, and so do equal places of 256-byte blocks.
fn byte(index: usize) -> u8 {
    let [low, middle, high, ..] = index.to_le_bytes();
    (low ^ middle.wrapping_mul(5) ^ high.wrapping_mul(17)).wrapping_mul(167)
}

/// The pattern for one chunk.
pub(crate) fn fill(length: usize) -> Vec<u8> {
    (0..length).map(byte).collect()
}

/// Stamps every segment of `chunk`: `first`, and `first` plus its offset for the later ones.
pub(crate) fn stamp(chunk: &mut [u8], segment: usize, first: u64) {
    let mut stamp = first;
    for piece in chunk.chunks_mut(segment) {
        if let Some(head) = piece.first_chunk_mut::<STAMP>() {
            *head = stamp.to_le_bytes();
        }
        stamp += widen(piece.len());
    }
}

/// The stamp of a segment; none if it is too short.
pub(crate) fn read_stamp(segment: &[u8]) -> Option<u64> {
    segment
        .first_chunk::<STAMP>()
        .map(|head| u64::from_le_bytes(*head))
}

/// The stamp just behind a run of segments that arrived in one piece; none without any stamp.
pub(crate) fn end_stamp(run: &[u8], segment: usize) -> Option<u64> {
    let last = run.len().checked_sub(1)? / segment * segment;
    let tail = run.get(last..)?;
    if let Some(stamp) = read_stamp(tail) {
        return Some(stamp + widen(tail.len()));
    }
    // A tail too short for a stamp follows the segment before it.
    let before = run.get(last.checked_sub(segment)?..last)?;
    Some(read_stamp(before)? + widen(segment + tail.len()))
}

/// The last octet of the message with this number, of messages in so many slots. Never 0, and never that of the message before in its slot.
pub(crate) fn tag(number: u64, slots: u64) -> u8 {
    let (lap, slot) = (number / slots, number % slots);
    u8::try_from((lap + 7 * slot) % 255).unwrap_or(0) + 1
}

/// Compares a message with the pattern, and its last octet with the tag of its number.
pub(crate) fn verify_tagged(message: &[u8], number: u64, tag: u8, pattern: &[u8]) -> Result<()> {
    let Some((&got, body)) = message.split_last() else {
        return Ok(());
    };
    verify_stream(body, 0, pattern)?;
    if got != tag {
        return Err(PerfError::Contents {
            position: number * widen(message.len()),
            offset: body.len(),
            got,
            want: tag,
        });
    }
    Ok(())
}

/// Compares a run of segments with the pattern; `offset_mask` takes the offset out of a stamp.
pub(crate) fn verify(run: &[u8], segment: usize, pattern: &[u8], offset_mask: u64) -> Result<()> {
    let mut expected = 0;
    for piece in run.chunks(segment) {
        let body = match read_stamp(piece) {
            Some(stamp) => {
                expected = stamp & offset_mask;
                piece.get(STAMP..).unwrap_or(&[])
            }
            None => piece,
        };
        let start = narrow(expected % widen(pattern.len()));
        let skipped = piece.len() - body.len();
        let want = pattern.get(start + skipped..start + piece.len());
        if want != Some(body) {
            return Err(mismatch(expected, skipped, body, want.unwrap_or(&[])));
        }
        expected += widen(piece.len());
    }
    Ok(())
}

/// Compares stream bytes without stamps, which start at `position`, with a repeated pattern.
pub(crate) fn verify_stream(run: &[u8], position: u64, pattern: &[u8]) -> Result<()> {
    let mut rest = run;
    let mut at = position;
    while !rest.is_empty() {
        let start = narrow(at % widen(pattern.len()));
        let length = rest.len().min(pattern.len() - start);
        let (piece, after) = rest.split_at(length);
        let want = pattern.get(start..start + length).unwrap_or(&[]);
        if piece != want {
            return Err(mismatch(at, 0, piece, want));
        }
        at += widen(length);
        rest = after;
    }
    Ok(())
}

fn mismatch(position: u64, skipped: usize, got: &[u8], want: &[u8]) -> PerfError {
    let at = got
        .iter()
        .zip(want)
        .position(|(got, want)| got != want)
        .unwrap_or_else(|| got.len().min(want.len()));
    PerfError::Contents {
        position,
        offset: skipped + at,
        got: got.get(at).copied().unwrap_or(0),
        want: want.get(at).copied().unwrap_or(0),
    }
}

/// A length as a stream offset.
pub(crate) fn widen(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}

/// A stream offset that lies inside a buffer.
pub(crate) fn narrow(offset: u64) -> usize {
    usize::try_from(offset).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MASK: u64 = (1 << POSITION_BITS) - 1;

    #[test]
    fn a_run_knows_where_it_ends() {
        let mut chunk = fill(100);
        stamp(&mut chunk, 30, 5000);
        assert_eq!(end_stamp(&chunk, 30), Some(5100));
        assert_eq!(end_stamp(&chunk[..60], 30), Some(5060));
        // Merged after the second segment was lost.
        let merged = [&chunk[..30], &chunk[60..90]].concat();
        assert_eq!(end_stamp(&merged, 30), Some(5090));
    }

    #[test]
    fn messages_behind_each_other_in_a_slot_have_other_tags() {
        for slots in [1, 2, 4096] {
            for number in 0..3 * 255 * slots {
                let (this, next) = (tag(number, slots), tag(number + slots, slots));
                assert!(this != 0 && this != next, "{number} of {slots}");
            }
        }
    }

    #[test]
    fn a_tagged_message_is_the_pattern_and_its_tag() {
        let pattern = fill(64);
        let mut message = pattern.clone();
        message[63] = 7;
        assert!(verify_tagged(&message, 5, 7, &pattern).is_ok());
        let wrong = verify_tagged(&message, 5, 8, &pattern);
        assert!(
            matches!(
                wrong,
                Err(PerfError::Contents {
                    position: 320,
                    offset: 63,
                    got: 7,
                    want: 8
                })
            ),
            "{wrong:?}"
        );
        message[1] ^= 1;
        assert!(verify_tagged(&message, 5, 7, &pattern).is_err());
    }

    #[test]
    fn a_tail_without_a_stamp_follows_its_neighbour() {
        let mut chunk = fill(65);
        stamp(&mut chunk, 30, 1000);
        assert_eq!(end_stamp(&chunk, 30), Some(1065));
        assert_eq!(end_stamp(&chunk[60..], 30), None);
        assert_eq!(end_stamp(&[], 30), None);
    }

    #[test]
    fn verify_accepts_what_was_sent_and_names_the_first_wrong_byte() {
        let pattern = fill(100);
        let mut chunk = pattern.clone();
        stamp(&mut chunk, 30, (7 << POSITION_BITS) | 300);
        verify(&chunk, 30, &pattern, MASK).unwrap();
        verify(&chunk[30..], 30, &pattern, MASK).unwrap();
        chunk[45] ^= 1;
        assert!(matches!(
            verify(&chunk, 30, &pattern, MASK),
            Err(PerfError::Contents {
                position: 330,
                offset: 15,
                ..
            })
        ));
    }

    #[test]
    fn verify_notices_a_segment_in_the_wrong_place() {
        let pattern = fill(90);
        let mut chunk = pattern.clone();
        stamp(&mut chunk, 30, 0);
        let mut swapped = chunk[30..60].to_vec();
        swapped[..STAMP].copy_from_slice(&chunk[..STAMP]);
        assert!(verify(&swapped, 30, &pattern, MASK).is_err());
    }

    #[test]
    fn a_stream_is_verified_across_the_end_of_the_pattern() {
        let pattern = fill(10);
        let stream: Vec<u8> = pattern.iter().cycle().take(35).copied().collect();
        verify_stream(&stream[4..], 4, &pattern).unwrap();
        assert!(matches!(
            verify_stream(&stream[4..], 5, &pattern),
            Err(PerfError::Contents { .. })
        ));
    }
}
