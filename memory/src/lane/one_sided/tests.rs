//! Grants between two mappings of one arena, and a peer that writes whatever it likes into its words.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::thread;

use proptest::prelude::*;

use super::*;
use crate::lane::{Arena, ArenaEnd, OfferedArena};

/// Token of the arenas.
const TOKEN: u128 = 0x0011_2233_4455_6677_8899_aabb_ccdd_eeff;
/// Offsets of the words of both ends in an arena.
const OURS: u64 = 0x1000;
const THEIRS: u64 = 0x1800;
/// Offsets of words of an end, and octets of a grant.
const COPYING: usize = 0;
const PROOF_AT: u64 = 0x80;
const GRANTS: usize = 0x100;
const GRANT: usize = 64;
/// Offsets of the words of both lanes, and of their receivers' programs: the maker receives in lane 1.
const LANE_0: u64 = 0x400;
const LANE_1: u64 = 0x800;
const POLLS: u64 = 0x200;
const PUBLICATIONS: u64 = 0x204;
/// Address of what is granted in tests that copy nothing.
const ADDRESS: u64 = 0x7000_0000;

/// Both ends of an arena, the maker's first.
struct Ends {
    ours: (Grants, PeerGrants),
    theirs: (Grants, PeerGrants),
    file: File,
}

fn ends() -> Ends {
    let (made, fd) = Arena::create(12).unwrap();
    let taken = OfferedArena::check(fd.as_fd()).unwrap().open().unwrap();
    Ends {
        ours: made.grants(ArenaEnd::Maker, TOKEN),
        theirs: taken.grants(ArenaEnd::Taker, TOKEN),
        file: fd.into(),
    }
}

/// A region of 256 octets, readable and writable.
fn terms(stag: u32) -> GrantTerms {
    GrantTerms {
        stag,
        read: true,
        write: true,
        start: 0x1000,
        length: 0x100,
        address: ADDRESS + u64::from(stag) * 0x1000,
        file: None,
    }
}

fn grant(ends: &Ends, terms: &GrantTerms) {
    assert!(ends.ours.0.grant(terms, || true));
}

/// Address of the first octet of a region, where the peer finds a grant.
fn found(ends: &mut Ends, stag: u32) -> Option<u64> {
    let granted = ends.theirs.1.find(stag, 0x1000, 1, false)?;
    ends.theirs.1.copy(granted, |address| address)
}

fn never() -> bool {
    panic!("no copy is under way");
}

#[test]
fn a_grant_reaches_from_its_first_octet_to_its_last() {
    let mut ends = ends();
    grant(&ends, &terms(7));
    let last = GrantTerms {
        start: u64::MAX - 0x10,
        length: 0x10,
        ..terms(8)
    };
    grant(&ends, &last);
    let all = GrantTerms {
        start: 0,
        length: u64::MAX,
        address: u64::MAX - 4,
        ..terms(9)
    };
    grant(&ends, &all);
    let (first, last) = (terms(7).address, terms(8).address);
    for (stag, start, length, address) in [
        (7, 0x1000, 0x100, Some(first)),
        (7, 0x1000, 0, Some(first)),
        (7, 0x10ff, 1, Some(first + 0xff)),
        (7, 0x1100, 0, Some(first + 0x100)),
        (7, 0x1100, 1, None),
        (7, 0x1101, 0, None),
        (7, 0x1001, 0x100, None),
        (7, 0xfff, 1, None),
        (7, 0, 0, None),
        (7, 0x1000, u32::MAX, None),
        (7, u64::MAX, u32::MAX, None),
        (8, u64::MAX - 8, 8, Some(last + 8)),
        (8, u64::MAX - 8, 9, None),
        (8, u64::MAX, u32::MAX, None),
        (9, 4, 1, Some(u64::MAX)),
        // An address, or an end, beyond the last one.
        (9, 5, 1, None),
        (9, u64::MAX, 1, None),
        (10, 0x1000, 1, None),
        (0, 0, 0, None),
    ] {
        let found = ends.theirs.1.find(stag, start, length, false);
        let found = found.map(|it| it.address);
        assert_eq!(found, address, "{length} octets at {start:#x} of {stag}");
    }
    assert!(ends.ours.1.find(7, 0x1000, 1, false).is_none());
}

#[test]
fn a_grant_is_for_reading_or_writing_or_both() {
    let mut ends = ends();
    for (stag, read, write) in [
        (1, true, false),
        (2, false, true),
        (3, true, true),
        (4, false, false),
    ] {
        let terms = GrantTerms {
            read,
            write,
            ..terms(stag)
        };
        grant(&ends, &terms);
        let mut finds = |write| ends.theirs.1.find(stag, 0x1000, 1, write).is_some();
        assert_eq!((finds(false), finds(true)), (read, write));
    }
}

#[test]
fn both_ends_grant() {
    let mut ends = ends();
    grant(&ends, &terms(1));
    assert!(ends.theirs.0.grant(&terms(2), || true));
    assert!(ends.theirs.1.find(2, 0x1000, 1, true).is_none());
    assert!(ends.ours.1.find(1, 0x1000, 1, true).is_none());
    let ours = ends.theirs.1.find(1, 0x1000, 1, true).unwrap();
    let theirs = ends.ours.1.find(2, 0x1000, 1, true).unwrap();
    // Both copy at the same time.
    let addresses = ends.theirs.1.copy(ours, |first| {
        let second = ends.ours.1.copy(theirs, |second| second);
        (first, second)
    });
    assert_eq!(addresses, Some((terms(1).address, Some(terms(2).address))));
}

#[test]
fn a_revoked_grant_is_used_no_more() {
    let mut ends = ends();
    for stag in 1..=4 {
        grant(&ends, &terms(stag));
    }
    assert!(ends.ours.0.revoke(Some(2), never));
    // A grant that is not there is revoked, and no place is one of STag 0.
    assert!(ends.ours.0.revoke(Some(9), never));
    assert!(ends.ours.0.revoke(Some(0), never));
    let all = [1, 2, 3, 4].map(|stag| found(&mut ends, stag).is_some());
    assert_eq!(all, [true, false, true, true]);
    assert!(ends.ours.0.revoke(None, never));
    let all = [1, 2, 3, 4].map(|stag| found(&mut ends, stag).is_some());
    assert_eq!(all, [false; 4]);
    // The grants of the other end are its own.
    assert!(ends.theirs.0.grant(&terms(1), || true));
    assert!(ends.ours.0.revoke(None, never));
    assert!(ends.ours.1.find(1, 0x1000, 1, true).is_some());
    assert!(ends.theirs.0.revoke(None, never));
}

#[test]
fn a_revocation_waits_for_the_copy_that_is_under_way() {
    let mut ends = ends();
    grant(&ends, &terms(1));
    grant(&ends, &terms(2));
    let granted = ends.theirs.1.find(2, 0x1000, 1, true).unwrap();
    let ours = &ends.ours.0;
    let copied = ends.theirs.1.copy(granted, |_| {
        for stag in [Some(2), None] {
            let mut waits = 0;
            let revoked = ours.revoke(stag, || {
                waits += 1;
                waits < 3
            });
            assert_eq!((revoked, waits), (false, 3));
        }
        // Copies with others do not matter, and those were revoked.
        assert!(ours.grant(&terms(3), || true));
        assert!(ours.revoke(Some(1), never) && ours.revoke(Some(3), never));
    });
    assert_eq!(copied, Some(()));
    assert!(ends.ours.0.revoke(Some(2), never));
    assert!(ends.theirs.1.copy(granted, |_| ()).is_none());
}

#[test]
fn a_revocation_is_over_behind_the_copy_of_another_thread() {
    let mut ends = ends();
    grant(&ends, &terms(1));
    let granted = ends.theirs.1.find(1, 0x1000, 1, true).unwrap();
    let (waits, is_copied) = (AtomicBool::new(false), AtomicBool::new(false));
    let ours = &ends.ours.0;
    thread::scope(|scope| {
        let copied = ends.theirs.1.copy(granted, |_| {
            let revoker = scope.spawn(|| {
                let revoked = ours.revoke(Some(1), || {
                    waits.store(true, Ordering::Release);
                    thread::yield_now();
                    true
                });
                assert!(revoked && is_copied.load(Ordering::Acquire));
            });
            while !waits.load(Ordering::Acquire) && !revoker.is_finished() {
                thread::yield_now();
            }
            is_copied.store(true, Ordering::Release);
        });
        assert!(copied.is_some());
    });
}

/// A place whose copy goes on is not used, and its STag is not granted, until its revocation is over.
#[test]
fn a_place_is_free_when_its_copy_is_over() {
    let mut ends = ends();
    for stag in 1..=28 {
        grant(&ends, &terms(stag));
    }
    let granted = ends.theirs.1.find(5, 0x1000, 1, true).unwrap();
    let ours = &ends.ours.0;
    ends.theirs.1.copy(granted, |_| {
        assert!(!ours.revoke(Some(5), || false));
        assert!(!ours.grant(&terms(29), || true));
        assert!(!ours.grant(&terms(5), || true), "it is not published");
    });
    // Others go on.
    assert!(!ours.grant(&terms(29), || true));
    assert!(ours.revoke(Some(5), never));
    grant(&ends, &terms(29));
    assert!(found(&mut ends, 29).is_some() && found(&mut ends, 5).is_none());
}

/// One copy is under way at most: all other places are free at once.
#[test]
fn all_other_places_are_free_where_one_copy_goes_on() {
    let mut ends = ends();
    for stag in 1..=28 {
        grant(&ends, &terms(stag));
    }
    let granted = ends.theirs.1.find(5, 0x1000, 1, true).unwrap();
    let ours = &ends.ours.0;
    ends.theirs.1.copy(granted, |_| {
        assert!(!ours.revoke(None, || false));
        for stag in 31..=57 {
            assert!(ours.grant(&terms(stag), || true), "{stag}");
        }
        assert!(!ours.grant(&terms(58), || true));
    });
    assert_eq!(found(&mut ends, 35), Some(terms(35).address));
}

/// A second thread revokes the same grant, and its place has another one before the first thread goes on.
#[test]
fn a_grant_outlives_the_revocations_of_the_one_before() {
    let mut ends = ends();
    grant(&ends, &terms(1));
    let own = ends.theirs.1.pages.clone();
    let copying = &own.own().copying.0;
    copying.store(1, Ordering::Relaxed);
    let ours = &ends.ours.0;
    let revoked = ours.revoke(Some(1), || {
        copying.store(0, Ordering::Relaxed);
        assert!(ours.revoke(Some(1), never));
        assert!(ours.grant(&terms(2), || true));
        true
    });
    assert!(revoked);
    grant(&ends, &terms(3));
    for stag in [2, 3] {
        assert_eq!(found(&mut ends, stag), Some(terms(stag).address));
    }
    assert!(ends.ours.0.revoke(Some(2), never));
    let all = [2, 3].map(|stag| found(&mut ends, stag).is_some());
    assert_eq!(all, [false, true]);
}

#[test]
fn a_grant_of_before_is_not_the_one_in_its_place() {
    let mut ends = ends();
    grant(&ends, &terms(1));
    let stale = ends.theirs.1.find(1, 0x1000, 1, true).unwrap();
    assert!(ends.ours.0.revoke(Some(1), never));
    let moved = GrantTerms {
        address: 0x1234_0000,
        ..terms(1)
    };
    grant(&ends, &moved);
    let fresh = ends.theirs.1.find(1, 0x1000, 1, true).unwrap();
    assert_eq!(fresh.index, stale.index);
    assert!(ends.theirs.1.copy(stale, |_| ()).is_none());
    // The new one stays known.
    assert_eq!(found(&mut ends, 1), Some(0x1234_0000));
    assert!(ends.theirs.1.copy(fresh, |_| ()).is_some());
}

/// Revocations publish nothing: the copying end finds them when it copies, and looks no further.
#[test]
fn a_copy_that_is_refused_leaves_no_word() {
    let mut ends = ends();
    grant(&ends, &terms(1));
    let granted = ends.theirs.1.find(1, 0x1000, 1, true).unwrap();
    assert!(ends.ours.0.revoke(None, never));
    assert!(ends.theirs.1.find(1, 0x1000, 1, true).is_some());
    let refused = ends.theirs.1.copy(granted, |_| ());
    assert!(refused.is_none());
    assert!(ends.theirs.1.find(1, 0x1000, 1, true).is_none());
    assert_eq!(word(&ends.file, THEIRS, COPYING), 0);
}

#[test]
fn the_table_has_28_places() {
    let mut ends = ends();
    for stag in 1..=28 {
        grant(&ends, &terms(stag));
    }
    let refused = ends.ours.0.grant(&terms(29), || panic!("no place is left"));
    assert!(!refused);
    // A region that has a grant is not granted again.
    let again = ends.ours.0.grant(&terms(28), || panic!("it is granted"));
    assert!(again);
    for stag in 1..=28 {
        assert_eq!(found(&mut ends, stag), Some(terms(stag).address));
    }
    assert!(ends.ours.0.revoke(Some(13), never));
    grant(&ends, &terms(29));
    assert!(!ends.ours.0.grant(&terms(30), || true));
    assert_eq!(found(&mut ends, 29), Some(terms(29).address));
}

#[test]
fn nothing_is_granted_that_is_not_wanted() {
    let mut ends = ends();
    let before = words(&ends.file, OURS);
    assert!(!ends.ours.0.grant(&terms(1), || false));
    // No region has STag 0.
    assert!(!ends.ours.0.grant(&terms(0), || true));
    assert_eq!(words(&ends.file, OURS), before);
    assert!(found(&mut ends, 1).is_none() && found(&mut ends, 0).is_none());
    grant(&ends, &terms(1));
    assert!(found(&mut ends, 1).is_some());
}

#[test]
fn polls_are_those_of_the_peer() {
    let ends = ends();
    for _ in 0..3 {
        ends.ours.1.note_poll();
    }
    ends.theirs.1.note_poll();
    assert_eq!((ends.theirs.1.polls(), ends.ours.1.polls()), (3, 1));
    // The count goes on behind its greatest.
    let octets = u32::MAX.to_ne_bytes();
    ends.file.write_all_at(&octets, LANE_0 + POLLS).unwrap();
    ends.theirs.1.note_poll();
    assert_eq!((ends.theirs.1.polls(), ends.ours.1.polls()), (3, 0));
}

#[test]
fn the_proof_is_the_token_in_memory_of_the_peer() {
    let (made, fd) = Arena::create(12).unwrap();
    let taken = OfferedArena::check(fd.as_fd()).unwrap().open().unwrap();
    let own = PeerMemory::open(std::process::id()).unwrap();
    let (grants, before) = made.grants(ArenaEnd::Maker, TOKEN);
    let theirs = taken.grants(ArenaEnd::Taker, TOKEN);
    // An end says where it is with its first grant.
    assert!(!before.are_of(&own) && !theirs.1.are_of(&own));
    assert!(grants.grant(&terms(1), || true) && theirs.0.grant(&terms(1), || true));
    assert!(before.are_of(&own) && theirs.1.are_of(&own));
    // Another arena's token.
    let other = PeerGrants::new(theirs.1.pages.clone(), TOKEN + 1);
    assert!(!other.are_of(&own));
    let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
    let memory = PeerMemory::open(child.id()).unwrap();
    assert!(!theirs.1.are_of(&memory) && !before.are_of(&memory));
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!theirs.1.are_of(&memory));
    // Elsewhere in memory of the peer, and where nothing is.
    let file = File::from(fd);
    for wrong in [0, 8, u64::MAX, grants.pages.own.as_ptr() as u64] {
        file.write_all_at(&wrong.to_ne_bytes(), OURS + PROOF_AT)
            .unwrap();
        assert!(!theirs.1.are_of(&own), "{wrong:#x}");
    }
}

/// Memory that a child process maps at the same address is not that of this process.
#[test]
fn a_process_that_has_not_the_token_is_another_one() {
    let ends = ends();
    let mut child = Command::new("sh")
        .args(["-c", "read x"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let memory = PeerMemory::open(child.id()).unwrap();
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", child.id())).unwrap();
    let first = maps.split('-').next().unwrap();
    let address = u64::from_str_radix(first, 16).unwrap();
    let mut octets = [0; PROOF];
    assert!(memory.read_bytes(address, &mut octets));
    // It says that the token is where it has other octets.
    ends.file
        .write_all_at(&address.to_ne_bytes(), THEIRS + PROOF_AT)
        .unwrap();
    assert!(!ends.ours.1.are_of(&memory));
    let token = u128::from_be_bytes(octets);
    assert!(PeerGrants::new(ends.ours.1.pages.clone(), token).are_of(&memory));
    drop(child.stdin.take());
    child.wait().unwrap();
}

/// Octets of the words of an end.
fn words(file: &File, end: u64) -> Vec<u8> {
    let mut octets = vec![0; PAGE_OCTETS];
    file.read_exact_at(&mut octets, end).unwrap();
    octets
}

/// A word of an end.
fn word(file: &File, end: u64, offset: usize) -> u32 {
    let octets = words(file, end);
    u32::from_ne_bytes(octets[offset..offset + 4].try_into().unwrap())
}

/// Memory for the words is taken from the beginning of their page, at either end, before they are written.
#[test]
fn memory_for_words_is_taken_with_the_first_grant() {
    use std::os::unix::fs::MetadataExt;
    let taken = |file: &File| file.metadata().unwrap().blocks() * 512;
    for end in [ArenaEnd::Maker, ArenaEnd::Taker] {
        let (arena, fd) = Arena::create(12).unwrap();
        let file = File::from(fd);
        let (grants, _) = arena.grants(end, TOKEN);
        grants.grant(&terms(1), || false);
        assert_eq!(taken(&file), 3 * 4096, "{end:?}");
        grants.pages.take_memory().unwrap();
        assert_eq!(taken(&file), 4 * 4096, "{end:?}");
        assert!(grants.grant(&terms(1), || true));
        assert_eq!(taken(&file), 4 * 4096, "{end:?}");
    }
}

/// The example of the specification is what an arena holds after the calls that it names.
#[test]
fn the_example_of_grants_in_the_specification_holds() {
    let specification = include_str!("../../../../rfc-notes/same-host.md");
    let mut ends = ends();
    grant(&ends, &terms(1));
    grant(&ends, &terms(2));
    let example = GrantTerms {
        stag: 0x1122_3344,
        start: 0x1000,
        length: 4096,
        address: 0x7f00_0000_1000,
        file: Some(MemoryFile {
            fd: 5,
            offset: 0x40,
        }),
        ..terms(3)
    };
    grant(&ends, &example);
    let granted = ends.theirs.1.find(0x1122_3344, 0x1000, 4096, true).unwrap();
    let seen = ends.theirs.1.copy(granted, |_| {
        let mut seen = 0;
        let (_, block) = specification.split_once("```arena-words\n").unwrap();
        let (block, _) = block.split_once("```").unwrap();
        for line in block.lines() {
            let (offset, rest) = line.split_once("  ").unwrap();
            let digits = rest.split("   ").next().unwrap();
            let offset = u64::from_str_radix(offset.trim_start_matches("0x"), 16).unwrap();
            let octet = |it| u8::from_str_radix(it, 16).unwrap();
            let expected: Vec<u8> = digits.split(' ').map(octet).collect();
            let mut octets = vec![0; expected.len()];
            ends.file.read_exact_at(&mut octets, offset).unwrap();
            assert_eq!(octets, expected, "{line}");
            seen += 1;
        }
        seen
    });
    assert_eq!(seen, Some(9));
    assert_eq!(granted.file(), Some((example.file.unwrap(), 4096)));
    // The address of the token.
    let proof = ends.ours.0.proof.as_ptr().expose_provenance() as u64;
    assert_eq!(words(&ends.file, OURS)[0x80..0x88], proof.to_ne_bytes());
}

/// A word as a peer writes it that means harm: often one that fits.
fn any_word() -> impl Strategy<Value = u32> {
    prop_oneof![4 => 0u32..5, 1 => any::<u32>(), 1 => Just(u32::MAX)]
}

fn any_long_word() -> impl Strategy<Value = u64> {
    prop_oneof![4 => 0u64..0x30, 2 => any::<u64>(), 2 => (0u64..0x30).prop_map(|it| u64::MAX - it)]
}

/// The octets of an end's words.
fn any_words() -> impl Strategy<Value = Vec<u8>> {
    let numbers = (any_word(), any_word(), any_word(), any_word());
    let places = (
        any_long_word(),
        any_long_word(),
        any_long_word(),
        any_long_word(),
    );
    let grants = prop::collection::vec((numbers, places), MOST);
    let beginning = prop::collection::vec(any_word(), GRANTS / 4);
    (prop_oneof![0u32..32, any::<u32>()], beginning, grants).prop_map(
        |(copying, beginning, grants)| {
            let mut octets = Vec::with_capacity(PAGE_OCTETS);
            beginning
                .iter()
                .for_each(|it| octets.extend(it.to_ne_bytes()));
            octets[..4].copy_from_slice(&copying.to_ne_bytes());
            for ((generation, stag, rights, file), (start, length, address, offset)) in grants {
                let numbers = [generation, stag, rights, file].map(u32::to_ne_bytes);
                octets.extend(numbers.concat());
                let rest = [start, length, address, offset, 0, 0].map(u64::to_ne_bytes);
                octets.extend(rest.concat());
            }
            octets
        },
    )
}

/// Number of up to 8 octets at an offset.
fn number(octets: &[u8], at: usize, len: usize) -> u64 {
    let mut number = [0; 8];
    number[..len].copy_from_slice(&octets[at..at + len]);
    u64::from_ne_bytes(number)
}

/// Whether an address is that of these octets by a grant among a peer's words.
fn is_granted(
    words: &[u8],
    granted: &Granted,
    (stag, start, length, write): (u32, u64, u32, bool),
) -> bool {
    let at = GRANTS + GRANT * granted.index as usize;
    let first = number(words, at + 0x10, 8);
    let octets = number(words, at + 0x18, 8);
    let address = number(words, at + 0x20, 8);
    let right = if write { 2 } else { 1 };
    let file = number(words, at + 0xc, 4).checked_sub(1).map(|fd| {
        let fd = u32::try_from(fd).unwrap();
        let offset = number(words, at + 0x28, 8);
        (MemoryFile { fd, offset }, octets)
    });
    // Sums of these do not overflow.
    let (from, to) = (u128::from(start), u128::from(start) + u128::from(length));
    let moved = (u128::from(address) + from).checked_sub(first.into());
    number(words, at, 4) == u64::from(granted.generation)
        && granted.generation % 2 == 1
        && number(words, at + 4, 4) == u64::from(stag)
        && number(words, at + 8, 4) & right != 0
        && start >= first
        && to <= u128::from(first) + u128::from(octets)
        && moved == Some(granted.address.into())
        && granted.offset == start - first
        && granted.file == file
}

proptest! {
    /// Whatever a peer writes, an address is that of octets which it has granted, copies begin with grants that hold, and each call returns.
    #[test]
    fn words_of_a_peer_reach_only_what_it_grants(
        first in any_words(),
        second in any_words(),
        changes in any::<bool>(),
        scribbles_ours in prop::option::of(any_words()),
        queries in prop::collection::vec((any_word(), any_long_word(), prop_oneof![0u32..0x30, any::<u32>()], any::<bool>()), 1..40),
    ) {
        let mut ends = ends();
        for stag in 1..=3 {
            grant(&ends, &terms(stag));
        }
        // A false peer writes the words of both ends.
        if let Some(words) = scribbles_ours {
            ends.file.write_all_at(&words, OURS).unwrap();
        }
        ends.file.write_all_at(&first, THEIRS).unwrap();
        ends.file.write_all_at(&[1, 2, 3, 4], LANE_0 + PUBLICATIONS).unwrap();
        for query in queries {
            let (stag, start, length, write) = query;
            let granted = ends.ours.1.find(stag, start, length, write);
            let Some(granted) = granted else { continue };
            prop_assert!(is_granted(&first, &granted, query));
            if changes {
                ends.file.write_all_at(&second, THEIRS).unwrap();
            }
            let now = if changes { &second } else { &first };
            let at = GRANTS + GRANT * granted.index as usize;
            let holds = number(now, at, 4) == u64::from(granted.generation);
            let copied = ends.ours.1.copy(granted, |address| address);
            prop_assert_eq!(copied, holds.then_some(granted.address));
            ends.file.write_all_at(&first, THEIRS).unwrap();
        }
        // STags 1 to 3 of this end have the first places.
        let copying = number(&first, 0, 4);
        for (stag, places) in [(Some(2), 2..=2), (None, 1..=3)] {
            let mut waits = 0;
            let revoked = ends.ours.0.revoke(stag, || {
                waits += 1;
                waits < 5
            });
            let copies = places.contains(&copying);
            prop_assert_eq!((revoked, waits), (!copies, if copies { 5 } else { 0 }));
        }
        ends.file.write_all_at(&second, OURS).unwrap();
        ends.file.write_all_at(&[0xff; 8], LANE_1 + POLLS).unwrap();
        ends.ours.0.grant(&terms(4), || true);
        ends.ours.0.revoke(None, || false);
        ends.ours.1.note_poll();
    }
}
