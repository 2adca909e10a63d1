//! Vectors from RFC 5044's figures, and laws over cut points.

use super::*;
use crate::error::Error;
use dgiwarp_codec::crc;
use proptest::prelude::*;

/// The ULPDU of figures 5 and 6: a DDP Send of 24 zeros.
fn figure_ulpdu(msn: u8) -> Vec<u8> {
    let mut ulpdu = vec![0x41, 0x43, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, msn, 0, 0, 0, 0];
    ulpdu.resize(42, 0);
    ulpdu
}

fn frame_all(crc: bool, markers: bool, ulpdus: &[Vec<u8>]) -> Vec<u8> {
    let mut framer = Framer::new(crc, markers);
    let mut out = Vec::new();
    for ulpdu in ulpdus {
        let (header, payload) = ulpdu.split_at(ulpdu.len().min(14));
        framer.frame(&mut out, header, payload);
    }
    out
}

/// Deframes `stream` cut at the given lengths, the rest in one piece.
fn deframe(crc: bool, markers: bool, stream: &[u8], cuts: &[usize]) -> Result<Vec<Vec<u8>>, Error> {
    let mut deframer = Deframer::new(crc, markers);
    let mut ulpdus = Vec::new();
    let mut rest = stream;
    for cut in cuts.iter().copied().chain([usize::MAX]) {
        let (mut now, later) = rest.split_at(cut.min(rest.len()));
        while !now.is_empty() {
            if let Some(ulpdu) = deframer.next(&mut now)? {
                ulpdus.push(ulpdu.to_vec());
            }
        }
        rest = later;
    }
    assert_eq!(deframer.unfinished(), 0);
    Ok(ulpdus)
}

/// Deframes as a caller that reads unfinished FPDUs to their place and lends memory, some of it dirty. Also gives how many octets
/// were moved.
fn deframe_in_place(
    crc: bool,
    markers: bool,
    stream: &[u8],
    cuts: &[usize],
) -> Result<(Vec<Vec<u8>>, u64), Error> {
    let mut deframer = Deframer::new(crc, markers);
    let mut spare = vec![0xee; LONGEST_FPDU];
    let mut ulpdus = Vec::new();
    let mut rest = stream;
    for cut in cuts.iter().copied().chain([usize::MAX]) {
        let (mut now, later) = rest.split_at(cut.min(rest.len()));
        let room = deframer.room();
        let (placed, behind) = now.split_at(room.len().min(now.len()));
        room[..placed.len()].copy_from_slice(placed);
        deframer.filled(placed.len());
        now = behind;
        spare = deframer.lend(spare);
        while !now.is_empty() || deframer.is_complete() {
            if let Some(ulpdu) = deframer.next(&mut now)? {
                ulpdus.push(ulpdu.to_vec());
            }
        }
        if let Some(memory) = deframer.reclaim() {
            spare = memory;
        }
        rest = later;
    }
    assert_eq!(deframer.unfinished(), 0);
    Ok((ulpdus, deframer.kept()))
}

#[test]
fn only_what_ends_an_input_is_moved() {
    let ulpdus: Vec<_> = (0..4u8).map(|i| vec![i; 20_000]).collect();
    let stream = frame_all(true, false, &ulpdus);
    let fpdu = stream.len() / 4;
    // Two inputs end after 300 octets of an FPDU. One ends inside a length, so that nobody knew how long the room had to be.
    let cuts = [fpdu + 300, fpdu, fpdu - 299];
    let (found, kept) = deframe_in_place(true, false, &stream, &cuts).unwrap();
    assert_eq!(found, ulpdus);
    assert_eq!(kept, 300 + 300 + fpdu as u64);
    let (_, kept) = deframe_in_place(true, false, &stream, &[fpdu, 2 * fpdu]).unwrap();
    assert_eq!(kept, 0);
}

#[test]
fn reading_long_fpdus_ends_where_they_end() {
    let read = |len| {
        let mut deframer = Deframer::new(false, false);
        assert_eq!(deframer.good_length(100_000), 100_000);
        let stream = frame_all(false, false, &[vec![1; len]]);
        deframer.next(&mut &stream[..]).unwrap();
        deframer.good_length(100_000)
    };
    assert_eq!(read(10_002), 9 * 10_008);
    assert_eq!(read(65_535), 65_544);
    assert_eq!(read(1442), 100_000);
    // FPDUs of 4,096 octets are long, of 4,092 they are not.
    assert_eq!(read(4090), 24 * 4096);
    assert_eq!(read(4086), 100_000);
    let mut deframer = Deframer::new(false, false);
    let stream = frame_all(false, false, &[vec![1; 10_002]]);
    deframer.next(&mut &stream[..]).unwrap();
    assert_eq!(deframer.good_length(10_007), 10_007);
    assert_eq!(deframer.good_length(10_008), 10_008);
}

/// A message of 256 KiB: its last FPDU is shorter, and the next message is like it.
#[test]
fn the_shorter_last_fpdu_of_a_message_changes_no_reading() {
    let mut deframer = Deframer::new(false, false);
    let mut take = |len: usize| {
        let stream = frame_all(false, false, &[vec![1; len]]);
        deframer.next(&mut &stream[..]).unwrap();
        deframer.good_length(272 << 10)
    };
    for len in [52_482, 52_482, 52_482, 52_482, 52_226] {
        assert_eq!(take(len), 5 * 52_488);
    }
    assert_eq!(take(52_500), 5 * 52_508);
    // Less than seven eighths is another kind of message.
    assert_eq!(take(40_002), 6 * 40_008);
}

#[test]
fn octets_of_unfinished_fpdus_are_counted() {
    for markers in [false, true] {
        let stream = frame_all(true, markers, &[vec![1; 20], vec![2; 30]]);
        let first = if markers { 4 + 28 } else { 28 };
        let mut deframer = Deframer::new(true, markers);
        for at in 0..first - 1 {
            assert_eq!(deframer.next(&mut &stream[at..=at]), Ok(None));
            assert!(!deframer.is_complete());
            // A whole Marker is not counted, a part of one is.
            let expected = match (markers, at) {
                (true, 0..3) => at + 1,
                (true, _) => at + 1 - 4,
                (false, _) => at + 1,
            };
            assert_eq!(deframer.unfinished(), expected, "{at}");
        }
        let last = deframer.next(&mut &stream[first - 1..first]);
        assert_eq!(last, Ok(Some(&[1; 20][..])));
        assert_eq!(deframer.unfinished(), 0);
        assert_eq!(deframer.kept(), 28);
    }
}

#[test]
fn room_is_given_up_to_the_end_of_an_unfinished_fpdu() {
    let stream = frame_all(true, false, &[vec![1; 20]]);
    let mut deframer = Deframer::new(true, false);
    assert!(deframer.room().is_empty());
    deframer.next(&mut &stream[..1]).unwrap();
    assert!(deframer.room().is_empty(), "the length is incomplete");
    deframer.next(&mut &stream[1..5]).unwrap();
    assert_eq!(deframer.room().len(), stream.len() - 5);
    assert_eq!(deframer.reclaim(), None);
    assert_eq!(deframer.lend(vec![7; 9]), [7; 9]);
    deframer.room().copy_from_slice(&stream[5..]);
    deframer.filled(usize::MAX);
    assert!(deframer.is_complete());
    assert_eq!(deframer.next(&mut &[][..]), Ok(Some(&[1; 20][..])));
    assert!(!deframer.is_complete());
    assert!(deframer.reclaim().is_some());
    assert_eq!(deframer.reclaim(), None);
    assert!(deframer.lend(vec![7; 9]).is_empty());
    let mut marked = Deframer::new(true, true);
    let stream = frame_all(true, true, &[vec![1; 20]]);
    marked.next(&mut &stream[..10]).unwrap();
    assert!(marked.room().is_empty());
}

/// RFC 5044 §4.4 figure 5: the first FPDU of a stream with Markers.
#[test]
fn figure_5() {
    let ulpdu = figure_ulpdu(1);
    let out = frame_all(true, true, std::slice::from_ref(&ulpdu));
    let mut expected = vec![0, 0, 0, 0, 0x00, 0x2a];
    expected.extend_from_slice(&ulpdu);
    expected.extend_from_slice(&[0x52, 0x23, 0x99, 0x83]);
    assert_eq!(out, expected);
    assert_eq!(deframe(true, true, &out, &[]), Ok(vec![ulpdu]));
}

/// RFC 5044 §4.4 figure 6: a second FPDU that starts at octet 492 and has the Marker of
/// octet 512 inside.
#[test]
fn figure_6() {
    // With the Marker before it, a first FPDU of 488 octets ends at octet 492.
    let ulpdus = [vec![7; 482], figure_ulpdu(2)];
    let out = frame_all(true, true, &ulpdus);
    let (_, second) = out.split_at(492);
    let mut expected = vec![0x00, 0x2a];
    expected.extend_from_slice(&ulpdus[1][..18]);
    expected.extend_from_slice(&[0, 0, 0, 0x14]);
    expected.extend_from_slice(&[0; 24]);
    expected.extend_from_slice(&[0x84, 0x92, 0x58, 0x98]);
    assert_eq!(second, expected);
    assert_eq!(deframe(true, true, &out, &[]), Ok(ulpdus.to_vec()));
}

/// RFC 5044 §4.3 figure 4: a Marker twelve octets into an FPDU with two octets of pad.
#[test]
fn figure_4() {
    let ulpdu: Vec<u8> = (1..=16).collect();
    // The Marker of octet 512 falls 12 octets into an FPDU that starts at 500.
    let out = frame_all(false, true, &[vec![9; 490], ulpdu.clone()]);
    let (_, second) = out.split_at(500);
    let mut expected = vec![0x00, 0x10];
    expected.extend_from_slice(&ulpdu[..10]);
    expected.extend_from_slice(&[0, 0, 0x00, 0x0c]);
    expected.extend_from_slice(&ulpdu[10..]);
    expected.extend_from_slice(&[0, 0, 0, 0, 0, 0]);
    assert_eq!(second, expected);
}

/// RFC 5044 §4.3: a Marker exactly between FPDUs is 0 and counts for the FPDU that follows;
/// §4.4: one between PAD and CRC counts for the FPDU that it is in.
#[test]
fn markers_at_the_ends_of_fpdus() {
    // Marker, then an FPDU of 508 octets: it ends where the next Marker stands.
    let between = frame_all(true, true, &[vec![1; 502], vec![2; 2]]);
    assert_eq!(between[512..520], [0, 0, 0, 0, 0, 2, 2, 2]);
    assert_eq!(
        between[520..524],
        crc::to_wire(crc::crc32c(&between[512..520]))
    );
    // An FPDU of 512 octets: its CRC stands right after the Marker.
    let before_crc = frame_all(true, true, &[vec![1; 506]]);
    assert_eq!(before_crc[512..516], [0, 0, 0x01, 0xfc]);
    assert_eq!(
        before_crc[516..],
        crc::to_wire(crc::crc32c(&before_crc[..516]))
    );
    // Several in one FPDU point to the same place.
    let long = frame_all(true, true, &[vec![1; 2000]]);
    for (at, pointer) in [(0, 0), (512, 508), (1024, 1020), (1536, 1532)] {
        assert_eq!(long[at..at + 4], u32::to_be_bytes(pointer));
    }
}

/// Where octets are in the memory of one host from some octet on, FPDUs that begin behind it have no CRC, and the unfinished one has.
#[test]
fn crcs_end_at_an_fpdu() {
    for markers in [false, true] {
        let mut framer = Framer::new(true, markers);
        let mut stream = Vec::new();
        framer.frame(&mut stream, &figure_ulpdu(1), &[][..]);
        let first = stream.len();
        framer.omit_crc();
        framer.frame(&mut stream, &figure_ulpdu(2), &[][..]);
        assert_eq!(stream[stream.len() - 4..], [0; 4]);
        for cut in 0..=first {
            let mut deframer = Deframer::new(true, markers);
            let mut input = &stream[..cut];
            let mut found = Vec::new();
            while let Some(ulpdu) = deframer.next(&mut input).unwrap() {
                found.push(ulpdu.to_vec());
            }
            deframer.omit_crc();
            let mut input = &stream[cut..];
            while let Some(ulpdu) = deframer.next(&mut input).unwrap() {
                found.push(ulpdu.to_vec());
            }
            assert_eq!(found, [figure_ulpdu(1), figure_ulpdu(2)], "{cut}");
            if cut == 0 {
                continue;
            }
            // The FPDU in which the change comes is checked.
            let mut wrong = stream.clone();
            wrong[first - 1] ^= 1;
            let mut deframer = Deframer::new(true, markers);
            let before = deframer.next(&mut &wrong[..cut]).map(drop);
            deframer.omit_crc();
            let behind = deframer.next(&mut &wrong[cut..]).map(drop);
            assert!(before.and(behind).is_err(), "{cut}");
        }
    }
}

/// RFC 5044 §4.1: any pad is accepted if the CRC covers it; without CRCs the field is not
/// checked.
#[test]
fn pad_and_crc_field() {
    let mut odd = frame_all(true, false, &[vec![5; 3]]);
    assert_eq!(odd.len(), 12);
    odd[5..8].fill(0xff);
    let field = crc::to_wire(crc::crc32c(&odd[..8]));
    odd[8..].copy_from_slice(&field);
    assert_eq!(deframe(true, false, &odd, &[]), Ok(vec![vec![5; 3]]));
    odd[8] ^= 1;
    assert!(matches!(
        deframe(true, false, &odd, &[]),
        Err(Error::Crc { .. })
    ));
    assert_eq!(deframe(false, false, &odd, &[]), Ok(vec![vec![5; 3]]));
}

/// RFC 5044 §8: code 3 only where the CRC is valid; §4.2: the pointer's two low bits and the
/// reserved field are ignored.
#[test]
fn wrong_markers() {
    let with_marker = |marker: [u8; 4], good_crc: bool| {
        let mut out = frame_all(true, true, &[vec![1; 600]]);
        out[512..516].copy_from_slice(&marker);
        if good_crc {
            let at = out.len() - 4;
            let field = crc::to_wire(crc::crc32c(&out[..at]));
            out[at..].copy_from_slice(&field);
        }
        deframe(true, true, &out, &[])
    };
    assert_eq!(with_marker([0, 0, 1, 0xfc], true), Ok(vec![vec![1; 600]]));
    assert_eq!(with_marker([9, 9, 1, 0xff], true), Ok(vec![vec![1; 600]]));
    let wrong = Error::Marker {
        found: 0x1f8,
        expected: 0x1fc,
    };
    assert_eq!(with_marker([0, 0, 1, 0xf8], true), Err(wrong));
    assert!(matches!(
        with_marker([0, 0, 1, 0xf8], false),
        Err(Error::Crc { .. })
    ));
}

#[test]
fn the_longest_ulpdu_passes() {
    let long = vec![vec![3; 65_535], vec![], vec![4]];
    for markers in [false, true] {
        let out = frame_all(true, markers, &long);
        assert_eq!(
            deframe(true, markers, &out, &[1, 1, 1, 70_000]),
            Ok(long.clone())
        );
    }
    // RFC 5044 §4: length, ULPDU, pad and CRC.
    assert_eq!(LONGEST_FPDU, 2 + 65_535 + 3 + 4);
    assert_eq!(frame_all(true, false, &long[..1]).len(), LONGEST_FPDU);
}

fn ulpdus() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let len = prop_oneof![0usize..40, 470usize..520, 1400usize..1500, Just(5000)];
    let one = (len, any::<u8>()).prop_map(|(len, first)| {
        let mut octet = first;
        std::iter::repeat_with(|| {
            octet = octet.wrapping_mul(5).wrapping_add(1);
            octet
        })
        .take(len)
        .collect()
    });
    proptest::collection::vec(one, 0..12)
}

proptest! {
    #[test]
    fn any_cut_gives_the_same_ulpdus(
        ulpdus in ulpdus(),
        crc in any::<bool>(),
        markers in any::<bool>(),
        cuts in proptest::collection::vec(prop_oneof![1usize..9, 1usize..2000], 0..200),
    ) {
        let stream = frame_all(crc, markers, &ulpdus);
        prop_assert_eq!(stream.len() % 4, 0);
        let placed = deframe_in_place(crc, markers, &stream, &cuts);
        prop_assert_eq!(placed.map(|(found, _)| found), Ok(ulpdus.clone()));
        prop_assert_eq!(deframe(crc, markers, &stream, &cuts), Ok(ulpdus));
    }

    #[test]
    fn any_flipped_bit_is_found(
        ulpdus in ulpdus().prop_filter("not empty", |u| !u.is_empty()),
        markers in any::<bool>(),
        at in any::<prop::sample::Index>(),
        bit in 0u8..8,
    ) {
        let mut stream = frame_all(true, markers, &ulpdus);
        let at = at.index(stream.len());
        stream[at] ^= 1 << bit;
        let mut deframer = Deframer::new(true, markers);
        let mut rest = &stream[..];
        let mut good = 0;
        let failed = loop {
            if rest.is_empty() {
                break false;
            }
            match deframer.next(&mut rest) {
                Ok(Some(ulpdu)) => {
                    prop_assert_eq!(ulpdu, &ulpdus[good][..]);
                    good += 1;
                }
                Ok(None) => {}
                Err(_) => break true,
            }
        };
        // A flipped length may also make the last FPDU look unfinished.
        prop_assert!(failed || deframer.unfinished() > 0);
        prop_assert!(good < ulpdus.len());
    }

    #[test]
    fn any_bytes_return(
        bytes in proptest::collection::vec(any::<u8>(), 0..3000),
        crc in any::<bool>(),
        markers in any::<bool>(),
    ) {
        let mut deframer = Deframer::new(crc, markers);
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let before = rest.len();
            match deframer.next(&mut rest) {
                Ok(ulpdu) => prop_assert!(ulpdu.is_none_or(|u| u.len() <= bytes.len())),
                Err(_) => break,
            }
            prop_assert!(rest.len() < before);
        }
    }
}
