//! Lanes between two mappings of one arena, and arenas and words that nobody should send.

use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};

use proptest::prelude::*;

use super::*;
use crate::{Buffer, Framed, Piece, Placeable};
use dgiwarp_codec::Payload;
use dgiwarp_codec::crc::crc32c_append;

/// Offset of the words of lane 0, and words of a lane.
const LANE_0: usize = 0x400;
const HEAD: usize = 0;
const RING: usize = 8;
const START: usize = 0x80;
const END: usize = 0x88;
const TAIL: usize = 0x100;
/// Offset of the ring of lane 0.
const RINGS: usize = 0x2000;

/// Both ends of an arena, and a mapping of it for a peer that does as it likes.
struct Pair {
    ours: (LaneOutput, LaneInput),
    theirs: (LaneOutput, LaneInput),
    fd: OwnedFd,
}

fn open(fd: &OwnedFd) -> Result<Arena, ArenaError> {
    OfferedArena::check(fd.as_fd())?.open()
}

fn pair(ring_logarithm: u32) -> Pair {
    let (made, fd) = Arena::create(ring_logarithm).unwrap();
    let taken = open(&fd).unwrap();
    Pair {
        ours: made.lanes(ArenaEnd::Maker),
        theirs: taken.lanes(ArenaEnd::Taker),
        fd,
    }
}

/// Writes a word as a process does that has the descriptor.
fn scribble(fd: &OwnedFd, offset: usize, octets: &[u8]) {
    use std::os::unix::fs::FileExt;
    let file = std::fs::File::from(fd.try_clone().unwrap());
    file.write_all_at(octets, offset as u64).unwrap();
}

fn peek(fd: &OwnedFd, offset: usize, len: usize) -> Vec<u8> {
    use std::os::unix::fs::FileExt;
    let mut octets = vec![0; len];
    let file = std::fs::File::from(fd.try_clone().unwrap());
    file.read_exact_at(&mut octets, offset as u64).unwrap();
    octets
}

proptest! {
    /// Records come out as they went in, in order, each whole or not at all, in rings that grow while they are empty.
    #[test]
    fn a_lane_is_a_queue_of_records(steps in prop::collection::vec((any::<bool>(), 1u16..9000, 1u16..9000), 1..60)) {
        let mut pair = pair(14);
        let mut sent = std::collections::VecDeque::new();
        let mut into = vec![0; 65_536];
        for (sends, octets, stride) in steps {
            if sends {
                let record = Record { octets: octets.into(), stride: stride.min(octets) };
                let octets: Vec<u8> = (0u8..251).cycle().skip(sent.len()).take(octets.into()).collect();
                let (front, back) = octets.split_at(octets.len() / 3);
                let pieces = [Piece::Bytes(front), Piece::Bytes(back)];
                let mut written = pair.ours.0.write_record(record, &pieces).unwrap();
                if !written {
                    pair.ours.0.want_room(record.octets_in_lane()).unwrap();
                    prop_assert!(pair.ours.0.growth().is_none_or(|_| sent.is_empty()));
                    if pair.ours.0.growth().is_some() {
                        prop_assert!(pair.ours.0.grow(true));
                        written = pair.ours.0.write_record(record, &pieces).unwrap();
                        prop_assert!(written);
                    }
                }
                if written {
                    sent.push_back((record, octets));
                }
            } else {
                let next = pair.theirs.1.next_record(into.len()).unwrap();
                let expected = sent.pop_front();
                prop_assert_eq!(next, expected.as_ref().map(|it| it.0));
                if let Some((record, octets)) = expected {
                    prop_assert!(!pair.theirs.1.take_record(record, &mut into));
                    prop_assert_eq!(&into[..octets.len()], &octets[..]);
                }
            }
        }
    }

    /// Whatever a peer publishes as a record is refused, or lies within what it has published.
    #[test]
    fn records_that_nobody_should_send_are_refused(published in 1u64..64, octets in any::<u32>(), stride in any::<u16>(), small in any::<bool>()) {
        let mut pair = pair(12);
        let (octets, stride) = if small { (octets % 64, stride % 64) } else { (octets, stride) };
        scribble(&pair.fd, RINGS, &octets.to_le_bytes());
        scribble(&pair.fd, RINGS + 4, &stride.to_le_bytes());
        scribble(&pair.fd, LANE_0 + HEAD, &published.to_le_bytes());
        let mut into = [0; 32];
        let next = pair.theirs.1.next_record(into.len());
        let fits = u64::from(octets) + 8 <= published && (1..=32).contains(&octets) && (1..=octets).contains(&u32::from(stride));
        match next {
            Ok(Some(record)) => {
                prop_assert!(fits);
                prop_assert_eq!((record.octets, record.stride), (octets, stride));
                let _ = pair.theirs.1.take_record(record, &mut into);
            }
            Err(LaneCorrupt::Record { .. }) => prop_assert!(!fits),
            other => prop_assert!(false, "{other:?}"),
        }
    }

    /// The stream is a queue of octets, however it is cut and taken, and no end has more than fits.
    #[test]
    fn a_lane_is_a_queue_of_octets(steps in prop::collection::vec((0..5u8, 0usize..6000), 1..60)) {
        let mut pair = pair(12);
        let (mut sent, mut received) = (0usize, 0usize);
        let octet = |at: usize| u8::try_from(at % 251).unwrap();
        for (step, len) in steps {
            if step < 2 {
                let octets: Vec<u8> = (sent..sent + len).map(octet).collect();
                let region = Buffer::zeroed(len).unwrap();
                region.write(0, &octets);
                let region = region.region();
                let half = len / 2;
                let pieces = [
                    Piece::Bytes(&octets[..half]),
                    Piece::Region(region.slice(half, len - half).unwrap()),
                ];
                let taken = pair.ours.0.write(&pieces).unwrap();
                prop_assert_eq!(taken, len.min(4096 - (sent - received)));
                sent += taken;
            } else if step == 2 {
                let is_there = len <= sent - received;
                let held = pair.theirs.1.holds(len).unwrap();
                prop_assert_eq!(held, (is_there || len <= 2048).then_some(is_there));
                if is_there {
                    let at = len / 3;
                    let part = pair.theirs.1.part(at, len - at);
                    prop_assert_eq!(Payload::len(&part), len - at);
                    let to = Buffer::zeroed(len).unwrap();
                    let region = to.region();
                    // In two pieces, so that one begins inside.
                    let second = (len - at) / 2;
                    part.place(second, &region.slice(at + second, len - at - second).unwrap());
                    part.place(0, &region.slice(at, second).unwrap());
                    let expected: Vec<u8> = (received + at..received + len).map(octet).collect();
                    prop_assert_eq!(&to.to_vec(at, len - at), &expected);
                    let crc = Payload::crc(&part, second, len - at - second, 7);
                    prop_assert_eq!(crc, crc32c_append(7, &expected[second..]));
                    pair.theirs.1.release(len);
                    received += len;
                }
            } else if step == 3 {
                prop_assert_eq!(pair.theirs.1.available(), Ok(sent - received));
                let front = pair.theirs.1.front();
                prop_assert_eq!(front.len(), (sent - received).min(4096 - received % 4096));
                let mut octets = vec![0; front.len()];
                front.copy_to(&mut octets);
                let expected: Vec<u8> = (received..received + octets.len()).map(octet).collect();
                prop_assert_eq!(front.first_chunk::<20>(), expected.first_chunk().copied());
                prop_assert_eq!(&octets, &expected);
                let released = len.min(octets.len());
                pair.theirs.1.release(released);
                received += released;
            } else {
                let mut octets = vec![0; len];
                let (taken, _) = pair.theirs.1.read(&mut octets).unwrap();
                prop_assert_eq!(taken, len.min(sent - received));
                let expected: Vec<u8> = (received..received + taken).map(octet).collect();
                prop_assert_eq!(&octets[..taken], &expected[..]);
                received += taken;
            }
        }
    }
}

/// The CRC of a long part, which crosses the end of the ring.
#[test]
fn the_crc_of_a_part_is_that_of_its_octets() {
    let mut pair = pair(16);
    let sent = |pair: &mut Pair, len: usize| {
        let octets: Vec<u8> = (0..len).map(|at| u8::try_from(at % 253).unwrap()).collect();
        let pieces = [Piece::Bytes(&octets)];
        while pair.ours.0.write(&pieces) == Ok(0) {
            assert!(pair.ours.0.grow(true));
        }
        octets
    };
    sent(&mut pair, 60_000);
    assert_eq!(pair.theirs.1.holds(60_000), Ok(Some(true)));
    pair.theirs.1.release(60_000);
    let octets = sent(&mut pair, 20_000);
    assert_eq!(pair.theirs.1.holds(20_000), Ok(Some(true)));
    let part = pair.theirs.1.part(0, 20_000);
    let crc = Payload::crc(&part, 100, 19_000, 9);
    assert_eq!(crc, crc32c_append(9, &octets[100..19_100]));
}

/// Pieces begin and end anywhere in what is published at a time.
#[test]
fn long_pieces_arrive_as_they_were() {
    let mut pair = pair(18);
    let octets: Vec<u8> = (0..90_000usize)
        .map(|at| u8::try_from(at % 249).unwrap())
        .collect();
    let (first, rest) = octets.split_at(20_000);
    let (second, third) = rest.split_at(9000);
    let pieces = [first, second, third].map(Piece::Bytes);
    assert_eq!(pair.ours.0.write(&pieces), Ok(0));
    assert!(pair.ours.0.grow(true));
    assert_eq!(pair.ours.0.write(&pieces), Ok(90_000));
    let mut received = vec![0; 100_000];
    assert_eq!(pair.theirs.1.read(&mut received), Ok((90_000, false)));
    assert_eq!(received[..90_000], octets);
}

#[test]
fn both_directions_are_lanes_of_their_own() {
    let mut pair = pair(16);
    let mut octets = [0; 16];
    assert_eq!(pair.ours.0.write(&[Piece::Bytes(b"to them")]), Ok(7));
    assert_eq!(pair.theirs.0.write(&[Piece::Bytes(b"to us")]), Ok(5));
    assert_eq!(pair.theirs.1.read(&mut octets), Ok((7, false)));
    assert_eq!(&octets[..7], b"to them");
    assert_eq!(pair.ours.1.read(&mut octets), Ok((5, false)));
    assert_eq!(&octets[..5], b"to us");
    assert_eq!(pair.ours.1.read(&mut octets), Ok((0, false)));
}

/// A long message goes through a ring that grows, while both ends copy.
#[test]
fn two_threads_keep_order() {
    let pair = pair(16);
    let (mut output, mut input) = (pair.ours.0, pair.theirs.1);
    const OCTETS: usize = 3 << 20;
    let octet = |at: usize| u8::try_from(at % 241).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let octets: Vec<u8> = (0..OCTETS).map(octet).collect();
            let mut sent = 0;
            while sent < OCTETS {
                let end = OCTETS.min(sent + 50_000);
                sent += output.write(&[Piece::Bytes(&octets[sent..end])]).unwrap();
                if output.growth().is_some() {
                    assert!(output.grow(true));
                }
                std::thread::yield_now();
            }
        });
        let mut received = 0;
        let mut octets = vec![0; 40_000];
        while received < OCTETS {
            let (taken, _) = input.read(&mut octets).unwrap();
            let right = octets[..taken].iter().enumerate();
            assert!(
                right
                    .into_iter()
                    .all(|(at, it)| *it == octet(received + at))
            );
            received += taken;
            std::thread::yield_now();
        }
    });
}

fn blocks(fd: &OwnedFd) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let file = std::fs::File::from(fd.try_clone().unwrap());
    file.metadata().unwrap().blocks() * 512
}

/// Memory is that of what lanes carry at a time, and no octet is lost while a ring grows.
#[test]
fn a_ring_grows_when_it_is_empty() {
    let mut pair = pair(20);
    assert_eq!(blocks(&pair.fd), 3 * 4096);
    let mut octets = vec![0; 70_000];
    for _ in 0..10_000 {
        assert_eq!(pair.ours.0.write(&[Piece::Bytes(&[7; 64])]), Ok(64));
        assert_eq!(pair.theirs.1.read(&mut octets), Ok((64, false)));
    }
    assert_eq!(blocks(&pair.fd), 3 * 4096, "a pair that says little");
    assert_eq!(pair.ours.0.write(&[Piece::Bytes(&[1; 3000])]), Ok(3000));
    assert_eq!(pair.ours.0.growth(), None, "all fitted");
    // One that does not fit waits until the ring is empty.
    assert_eq!(pair.ours.0.write(&[Piece::Bytes(&[2; 20_000])]), Ok(0));
    assert_eq!(pair.ours.0.write(&[Piece::Bytes(&[2; 8])]), Ok(0));
    assert_eq!(
        (pair.ours.0.growth(), pair.ours.0.wait_for_room()),
        (None, Ok(false))
    );
    assert_eq!(pair.theirs.1.read(&mut octets[..2999]), Ok((2999, true)));
    assert_eq!(pair.ours.0.wait_for_room(), Ok(false));
    assert_eq!(pair.theirs.1.read(&mut octets), Ok((1, true)));
    assert_eq!(pair.ours.0.write(&[Piece::Bytes(&[2; 20_000])]), Ok(0));
    assert_eq!(pair.ours.0.growth(), Some(32_768 - 4096));
    assert!(pair.ours.0.grow(true));
    assert_eq!(pair.ours.0.write(&[Piece::Bytes(&[2; 20_000])]), Ok(20_000));
    assert_eq!(pair.theirs.1.read(&mut octets), Ok((20_000, false)));
    assert!(octets[..20_000].iter().all(|it| *it == 2));
    assert_eq!(blocks(&pair.fd), 2 * 4096 + 32_768);
    // Without memory it stays, and takes what fits.
    assert_eq!(pair.ours.0.write(&[Piece::Bytes(&[3; 70_000])]), Ok(0));
    assert!(!pair.ours.0.grow(false));
    assert_eq!(pair.ours.0.write(&[Piece::Bytes(&[3; 70_000])]), Ok(32_768));
    assert_eq!(pair.theirs.1.read(&mut octets), Ok((32_768, false)));
    assert_eq!(pair.ours.0.growth(), None);
}

#[test]
fn bells_are_taken_once_and_only_when_they_are_wanted() {
    let mut pair = pair(12);
    // A new arena is armed: its ends sleep.
    assert!(pair.theirs.1.is_armed());
    pair.ours.0.write(&[Piece::Bytes(&[1; 4000])]).unwrap();
    assert!(pair.ours.0.takes_bell() && !pair.ours.0.takes_bell());
    assert!(!pair.theirs.1.is_armed());
    assert_eq!(pair.theirs.1.arm(), Ok(true), "octets are there");
    pair.theirs.1.disarm();
    assert!(!pair.ours.0.takes_bell());
    // Room: half of the ring has to be free.
    assert_eq!(pair.ours.0.wait_for_room(), Ok(false));
    let mut octets = [0; 1900];
    assert_eq!(pair.theirs.1.read(&mut octets), Ok((1900, false)));
    assert_eq!(pair.theirs.1.read(&mut octets), Ok((1900, true)));
    assert_eq!(pair.theirs.1.read(&mut octets), Ok((200, false)));
    assert_eq!(pair.ours.0.wait_for_room(), Ok(true));
    assert_eq!(pair.theirs.1.arm(), Ok(false));
}

/// Half of the ring is room, or all of it where the ring is to grow.
#[test]
fn room_is_half_of_the_ring() {
    let mut pair = pair(13);
    let (output, input) = (&mut pair.ours.0, &mut pair.theirs.1);
    let mut octets = [0; 4096];
    for (len, has_room) in [(2048, true), (1, false)] {
        assert_eq!(output.write(&[Piece::Bytes(&octets[..len])]), Ok(len));
        assert_eq!(output.has_room(), Ok(has_room));
    }
    input.read(&mut octets[..1]).unwrap();
    assert_eq!(output.has_room(), Ok(true));
    assert_eq!(output.write(&[Piece::Bytes(&octets)]), Ok(0));
    assert_eq!(output.has_room(), Ok(false));
    input.read(&mut octets[..2047]).unwrap();
    assert_eq!(output.has_room(), Ok(false));
    input.read(&mut octets).unwrap();
    assert_eq!(output.has_room(), Ok(true));
    assert!(format!("{output:?} {input:?}").contains("head: 2049"));
}

#[test]
fn marks_are_where_the_lane_begins_and_ends() {
    let mut pair = pair(12);
    assert_eq!(pair.theirs.1.started(), None);
    pair.ours.0.start(0);
    assert_eq!(pair.theirs.1.started(), Some(0));
    pair.ours.0.write(&[Piece::Bytes(b"last")]).unwrap();
    pair.ours.0.finish(9);
    assert_eq!(pair.theirs.1.finished(), Ok(None), "octets are left");
    assert_eq!(pair.theirs.1.resumes(), Ok(Some(9)));
    pair.theirs.1.read(&mut [0; 4]).unwrap();
    // The marks are those that were found first.
    scribble(&pair.fd, LANE_0 + END, &[0; 8]);
    scribble(&pair.fd, LANE_0 + START, &8u64.to_le_bytes());
    assert_eq!(pair.theirs.1.finished(), Ok(Some(9)));
    assert_eq!(pair.theirs.1.started(), Some(0));
}

/// Words of the other end that cannot be.
#[test]
fn impossible_words_are_found() {
    let mut first = pair(12);
    // Lane 0 is the maker's output.
    scribble(&first.fd, LANE_0 + HEAD, &4097u64.to_le_bytes());
    let beyond = LaneCorrupt::Head {
        head: 4097,
        tail: 0,
        size: 4096,
    };
    assert_eq!(first.theirs.1.read(&mut [0; 8]), Err(beyond));
    assert_eq!(first.theirs.1.arm(), Err(beyond));
    let mut second = pair(12);
    second.ours.0.write(&[Piece::Bytes(&[0; 4096])]).unwrap();
    scribble(&second.fd, LANE_0 + TAIL, &5000u64.to_le_bytes());
    let more = LaneCorrupt::Tail {
        head: 4096,
        tail: 5000,
    };
    assert_eq!(second.ours.0.write(&[Piece::Bytes(&[0])]), Err(more));
    assert_eq!(second.ours.0.wait_for_room(), Err(more));
    // A ring that is shorter than before, or longer than the arena's.
    for logarithm in [11u32, 13, u32::MAX] {
        let mut other = pair(12);
        scribble(&other.fd, LANE_0 + RING, &logarithm.to_le_bytes());
        let wrong = LaneCorrupt::Ring { logarithm };
        assert_eq!(other.theirs.1.read(&mut [0; 8]), Err(wrong));
    }
    let mut third = pair(12);
    third.ours.0.write(&[Piece::Bytes(&[0; 10])]).unwrap();
    scribble(&third.fd, LANE_0 + END, &12u64.to_le_bytes());
    let end = LaneCorrupt::End { end: 11, tail: 0 };
    assert_eq!(third.theirs.1.finished(), Err(end));
    // An end within what is published, without the octet that follows.
    scribble(&third.fd, LANE_0 + END, &11u64.to_le_bytes());
    let end = LaneCorrupt::End { end: 10, tail: 0 };
    assert_eq!(third.theirs.1.resumes(), Err(end));
    // Back is as impossible as beyond.
    third.theirs.1.read(&mut [0; 10]).unwrap();
    scribble(&third.fd, LANE_0 + HEAD, &9u64.to_le_bytes());
    assert!(third.theirs.1.read(&mut [0; 8]).is_err());
}

#[test]
fn arenas_that_could_fail_later_are_refused() {
    let (_, fd) = Arena::create(12).unwrap();
    // Another version, and another size of the rings than the file has.
    for (offset, octets) in [(8, 2u32), (8, 4), (12, 13), (12, 40), (12, 21), (16, 1)] {
        let (_, fd) = Arena::create(12).unwrap();
        scribble(&fd, offset, &octets.to_le_bytes());
        assert!(open(&fd).is_err(), "{octets} at {offset}");
    }
    // A file without seals could shrink.
    let mut file = tempfile();
    file.write_all(&peek(&fd, 0, RINGS + 2 * 4096)).unwrap();
    assert!(OfferedArena::check(file.as_fd()).is_err());
    // The seals hold.
    let sealed = std::fs::File::from(fd);
    assert!(sealed.set_len(4096).is_err() && sealed.set_len(1 << 20).is_err());
    assert!(Arena::create(11).is_err() && Arena::create(21).is_err());
}

fn tempfile() -> std::fs::File {
    // SAFETY: a name that ends with zero.
    let fd = unsafe { libc::memfd_create(c"test".as_ptr(), libc::MFD_CLOEXEC) };
    assert!(fd >= 0);
    // SAFETY: a new descriptor without another owner.
    unsafe { <std::fs::File as std::os::fd::FromRawFd>::from_raw_fd(fd) }
}

/// The examples of the specification are what an arena holds after the calls that they name.
#[test]
fn the_examples_of_the_specification_hold() {
    let specification = include_str!("../../../rfc-notes/same-host.md");
    let mut pair = pair(16);
    pair.ours.0.start(4096);
    assert_eq!(pair.ours.0.write(&[Piece::Bytes(&[b'o'; 5000])]), Ok(0));
    assert!(pair.ours.0.grow(true));
    pair.ours.0.write(&[Piece::Bytes(b"octets")]).unwrap();
    assert!(pair.ours.0.takes_bell());
    pair.theirs.1.read(&mut [0; 4]).unwrap();
    pair.theirs.1.arm().unwrap();
    pair.ours.0.finish(4100);
    pair.ours.0.report_placed(3);
    assert_eq!((pair.theirs.1.placed(), pair.ours.1.placed()), (3, 0));
    let mut seen = 0;
    for block in specification.split("```arena\n").skip(1) {
        let (block, _) = block.split_once("```").unwrap();
        for line in block.lines() {
            let (offset, rest) = line.split_once("  ").unwrap();
            let digits = rest.split("   ").next().unwrap();
            let offset = usize::from_str_radix(offset.trim_start_matches("0x"), 16).unwrap();
            let expected: Vec<u8> = digits
                .split(' ')
                .map(|it| u8::from_str_radix(it, 16).unwrap())
                .collect();
            assert_eq!(peek(&pair.fd, offset, expected.len()), expected, "{line}");
            seen += 1;
        }
    }
    assert_eq!(seen, 12);
}

/// Pieces go as a whole or not at all, also over the end of the ring, and what is peeked stays until it is released.
#[test]
fn whole_messages_are_peeked_before_they_are_released() {
    let mut pair = pair(13);
    let mut into = [0; 4096];
    for round in 0..50u8 {
        let pieces = [Piece::Bytes(&[round; 2]), Piece::Bytes(&[!round; 1500])];
        assert_eq!(pair.ours.0.write_whole(&pieces), Ok(Some(1502)));
        assert_eq!(pair.ours.0.write_whole(&pieces), Ok(Some(1502)));
        assert_eq!(pair.ours.0.write_whole(&pieces), Ok(None), "4096 octets");
        for _ in 0..2 {
            assert_eq!(pair.theirs.1.peek(&mut into[..1000]), Ok(1000));
            let len = pair.theirs.1.peek(&mut into).unwrap();
            assert!(len >= 1502);
            assert_eq!(into[..2], [round; 2]);
            assert_eq!(into[2..1502], [!round; 1500]);
            assert!(!pair.theirs.1.release(1502));
        }
        assert_eq!(pair.theirs.1.peek(&mut into), Ok(0));
    }
    // The ring has not grown, and does once something is written otherwise.
    assert_eq!(
        pair.ours.0.write_whole(&[Piece::Bytes(&[0; 5000])]),
        Ok(None)
    );
    assert_eq!(pair.ours.0.growth(), None);
    assert_eq!(pair.ours.0.write(&[Piece::Bytes(&[0; 5000])]), Ok(0));
    assert_eq!(pair.ours.0.write_whole(&[Piece::Bytes(&[0])]), Ok(None));
    assert!(pair.ours.0.grow(true));
    assert_eq!(
        pair.ours.0.write_whole(&[Piece::Bytes(&[7; 5000])]),
        Ok(Some(5000))
    );
    assert_eq!(pair.theirs.1.peek(&mut into), Ok(4096));
    assert_eq!(into, [7; 4096]);
}

/// A payload with octets around it goes as its pieces do, wherever in the ring it begins and however short it is.
#[test]
fn framed_payloads_are_their_pieces() {
    const FRONT: usize = 20;
    let mut pair = pair(13);
    let mut into = [0; 100];
    for round in 0..2000usize {
        // Octets of before, which are not zero.
        assert_eq!(pair.ours.0.write(&[Piece::Bytes(&[0xff; 7])]), Ok(7));
        assert_eq!(pair.theirs.1.read(&mut into[..7]).unwrap().0, 7);
        let front_len = [FRONT, 16, 3][round % 3];
        let mut front = [0; FRONT];
        front[..front_len].fill(7);
        let payload = [9; 40];
        let framed = Framed {
            front,
            front_len,
            payload: Piece::Bytes(&payload[..round % 41]),
            zeroes: round % 9,
        };
        let pieces = [
            &front[..front_len],
            &payload[..round % 41],
            &[0; 8][..round % 9],
        ];
        let octets = pieces.concat();
        assert_eq!(framed.octets(), octets.len());
        assert_eq!(pair.ours.0.write_framed(&framed), Ok(Some(octets.len())));
        assert_eq!(pair.theirs.1.read(&mut into).unwrap().0, octets.len());
        assert!(into[..octets.len()] == octets, "round {round}");
    }
    let full = Framed {
        front: [0; FRONT],
        front_len: FRONT,
        payload: Piece::Bytes(&[0; 4090]),
        zeroes: 4,
    };
    assert_eq!(pair.ours.0.write_framed(&full), Ok(None), "4096 octets");
}

/// One descriptor comes with its message, and a message may have none.
#[test]
fn a_descriptor_is_handed_over() {
    let (ours, theirs) = std::os::unix::net::UnixDatagram::pair().unwrap();
    let (_, fd) = Arena::create(12).unwrap();
    send_with_descriptor(ours.as_fd(), b"offer", fd.as_fd()).unwrap();
    let mut octets = [0; 16];
    let (len, got) = receive_with_descriptor(theirs.as_fd(), &mut octets).unwrap();
    assert_eq!(&octets[..len], b"offer");
    assert!(open(&got.unwrap()).is_ok());
    ours.send(b"nothing").unwrap();
    let (len, got) = receive_with_descriptor(theirs.as_fd(), &mut octets).unwrap();
    assert!(len == 7 && got.is_none());
    assert!(receive_with_descriptor(theirs.as_fd(), &mut octets).is_err());
}
