use super::*;
use crate::{Buffer, check_mapped};
use proptest::prelude::*;
use std::sync::atomic::AtomicBool;

#[test]
fn a_slice_never_reaches_outside_its_region() {
    let region = Buffer::zeroed(64).unwrap().region();
    assert!(region.slice(0, 64).is_ok());
    assert!(region.slice(64, 0).is_ok());
    for (offset, len) in [(0, 65), (64, 1), (65, 0), (usize::MAX, 1), (1, usize::MAX)] {
        assert_eq!(
            region.slice(offset, len).unwrap_err(),
            OutOfBounds {
                offset,
                len,
                region_len: 64
            }
        );
    }
    let inner = region.slice(16, 16).unwrap();
    assert!(inner.subslice(8, 9).is_err());
}

#[test]
fn only_what_has_no_bytes_is_empty() {
    for len in [0, 1, 8] {
        let buffer = Buffer::zeroed(len).unwrap();
        let region = buffer.region();
        let slice = region.slice(0, len).unwrap();
        assert_eq!((buffer.len(), region.len(), slice.len()), (len, len, len));
        assert_eq!(Payload::len(&slice), len);
        let empty = len == 0;
        assert_eq!((buffer.is_empty(), region.is_empty()), (empty, empty));
        assert_eq!(
            (slice.is_empty(), Payload::is_empty(&slice)),
            (empty, empty)
        );
    }
}

#[test]
fn a_buffer_is_unmapped_with_its_last_owner() {
    // Nothing else in a test fills a range of this length.
    let len = 1 << 30;
    let buffer = Buffer::zeroed(len).unwrap();
    let region = buffer.region();
    let address = usize::try_from(region.address()).unwrap();
    drop(buffer);
    assert!(check_mapped(address, len, true).is_ok());
    drop(region);
    assert!(check_mapped(address, len, true).is_err());
}

#[test]
fn a_part_is_a_region_by_itself() {
    let buffer = Buffer::zeroed(64).unwrap();
    let part = buffer.region().part(16, 8).unwrap();
    assert_eq!(
        (part.len(), part.address()),
        (8, buffer.region().address() + 16)
    );
    part.slice(0, 8).unwrap().place(&[7; 8]);
    assert!(part.slice(0, 9).is_err() && part.part(1, 8).is_err());
    assert!(buffer.region().part(64, 1).is_err());
    let expected: Vec<u8> = (0..64)
        .map(|i| if (16..24).contains(&i) { 7 } else { 0 })
        .collect();
    assert_eq!(buffer.to_vec(0, 64), expected);
    drop(buffer);
    assert_eq!(
        part.slice(7, 1).unwrap().load(),
        7,
        "the part keeps its memory"
    );
}

/// Programs wait for the last byte of what a peer writes. A second thread waits for it and then
/// looks at all others, at every alignment and at lengths around the copy routines' thresholds.
#[test]
fn last_byte_last() {
    const LENGTHS: [usize; 12] = [2, 7, 8, 9, 31, 33, 64, 100, 255, 1024, 4096, 8191];
    // Copies of a page are those that a plain copy was seen to end early, a few in a thousand.
    fn rounds(len: usize) -> impl Iterator<Item = u8> {
        let count = if len >= 4096 { 20_000 } else { 200 };
        (1..=250u8).cycle().take(count)
    }
    let buffer = Buffer::zeroed(16384).unwrap();
    let region = buffer.region();
    let failed = AtomicBool::new(false);
    for len in LENGTHS {
        let start = 1 + len % 8;
        let turn = AtomicU8::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut seen = vec![0; len];
                for round in rounds(len) {
                    // Mostly without giving the core away: what is looked for lasts a fraction of a microsecond.
                    let mut spins = 0u32;
                    while buffer.load(start + len - 1) != round {
                        std::hint::spin_loop();
                        spins += 1;
                        if spins.is_multiple_of(20_000) {
                            std::thread::yield_now();
                        }
                    }
                    buffer.read(start, &mut seen);
                    if seen.iter().any(|&byte| byte != round) {
                        failed.store(true, Ordering::Relaxed);
                    }
                    turn.store(round, Ordering::Release);
                }
            });
            for round in rounds(len) {
                region.slice(start, len).unwrap().place(&vec![round; len]);
                while turn.load(Ordering::Acquire) != round {
                    std::thread::yield_now();
                }
            }
        });
    }
    assert!(
        !failed.load(Ordering::Relaxed),
        "a last byte was seen before another"
    );
}

#[test]
fn atomics_want_eight_aligned_bytes() {
    let region = Buffer::zeroed(32).unwrap().region();
    let word = region.slice(8, 8).unwrap();
    assert_eq!(word.fetch_add(5), Ok(0));
    assert_eq!(word.compare_swap(4, 9), Ok(5));
    assert_eq!(word.compare_swap(5, 9), Ok(5));
    assert_eq!(word.fetch_add(0), Ok(9));
    assert!(matches!(
        region.slice(4, 8).unwrap().fetch_add(1),
        Err(AtomicError::Misaligned(_))
    ));
    assert_eq!(
        region.slice(8, 4).unwrap().fetch_add(1),
        Err(AtomicError::Length(4))
    );
}

proptest! {
    /// Placement writes its own bytes and no others.
    #[test]
    fn placement_of_a_region_allows_overlap(from in 0usize..64, to in 0usize..64, len in 0usize..64) {
        let buffer = Buffer::zeroed(128).unwrap();
        let mut octets: Vec<u8> = (0..128).collect();
        buffer.write(0, &octets);
        let region = buffer.region();
        let (source, sink) = (region.slice(from, len).unwrap(), region.slice(to, len).unwrap());
        sink.place_region(&source);
        octets.copy_within(from..from + len, to);
        let mut found = [0; 128];
        buffer.read(0, &mut found);
        prop_assert_eq!(&octets[..], &found[..]);
    }

    #[test]
    fn placement_stays_inside(offset in 0usize..300, bytes in proptest::collection::vec(1u8.., 0..300)) {
        let buffer = Buffer::zeroed(700).unwrap();
        buffer.region().slice(offset, bytes.len()).unwrap().place(&bytes);
        let mut expected = vec![0; 700];
        expected[offset..offset + bytes.len()].copy_from_slice(&bytes);
        prop_assert_eq!(buffer.to_vec(0, 700), expected);
    }

    #[test]
    fn crc_in_place_equals_crc_of_the_copy(offset in 0usize..100, len in 0usize..400, start: u32) {
        let buffer = Buffer::zeroed(600).unwrap();
        let pattern: Vec<u8> = (0..600u32).map(|i| i.to_le_bytes()[0] ^ 0x5a).collect();
        buffer.write(0, &pattern);
        let region = buffer.region();
        let slice = region.slice(50, 500).unwrap();
        let mut copy = vec![0; len];
        let copied = slice.copy_crc(offset, &mut copy, start);
        prop_assert_eq!(slice.crc(offset, len, start), copied);
        prop_assert_eq!(&copy[..], &pattern[50 + offset..50 + offset + len]);
    }
}
