//! UC Writes and the one peer of a UC QP.

use super::*;
use crate::datagram::open_writes::MAX_OPEN_WRITES;

const IMMEDIATE: u32 = 0xcafe_f00d;

fn config() -> ReceiverConfig {
    ReceiverConfig {
        max_assemblies: 2,
        ..ReceiverConfig::default()
    }
}

/// A UC receiver whose peer is `'p'`.
fn connected() -> Subject {
    let mut receiver = Subject::new_connected(config());
    assert!(receiver.connect('p'));
    receiver
}

fn flags(immediate: bool) -> Flags {
    let with = Flags::IMMEDIATE.union(Flags::SOLICITED);
    Flags::WRITE.with(with, immediate)
}

/// The segments of a UC Write of message `number` to the start of the region, octet i as `octet(i, 0x5a)`.
fn write(number: u32, length: u32, payload: u32, immediate: bool) -> Vec<Vec<u8>> {
    let template = Template::WriteRecord {
        stag: STAG,
        base: TaggedOffset::new(BASE),
        extension: Extension {
            flags: flags(immediate),
            immediate: if immediate { IMMEDIATE } else { 0 },
            ..extension(number, length)
        },
    };
    segments(template, length, payload, 0x5a)
}

fn expected(length: u32) -> Vec<u8> {
    (0..length).map(|i| octet(i, 0x5a)).collect()
}

#[test]
fn only_the_peer_is_heard_and_nobody_before_there_is_one() {
    let mut ulp = Vecs::new(100, &[]);
    let now = origin();
    let mut receiver = Subject::new_connected(config());
    let message = write(1, 100, 100, false).remove(0);
    let mut from =
        |receiver: &mut Subject, who| receiver.handle_segment(now, who, &message, &mut ulp);
    assert_eq!(from(&mut receiver, 'p'), Err(DropReason::WrongPeer));
    assert!(receiver.connect('p'));
    assert!(!receiver.connect('q'), "a peer is fixed");
    assert_eq!(from(&mut receiver, 'q'), Err(DropReason::WrongPeer));
    assert_eq!(from(&mut receiver, 'p'), Ok(()));
    assert_eq!(ulp.region, expected(100));
    let mut datagram_qp = Subject::new(config());
    assert!(!datagram_qp.connect('p'), "a UD QP has no peer");
}

#[test]
fn a_ud_qp_takes_no_uc_write() {
    let mut ulp = Vecs::new(100, &[]);
    let mut receiver = receiver(4);
    let message = write(1, 100, 100, false).remove(0);
    assert_eq!(
        receiver.handle_segment(origin(), 'p', &message, &mut ulp),
        Err(DropReason::UnexpectedOpcode)
    );
    assert_eq!(ulp.region, [0; 100]);
}

#[test]
fn write_records_need_slots_on_uc_too() {
    let mut ulp = Vecs::new(100, &[]);
    let now = origin();
    let message = write_record(1, 100, 100).remove(0);
    let mut receiver = connected();
    assert_eq!(
        receiver.handle_segment(now, 'p', &message, &mut ulp),
        Err(DropReason::WriteRecordOff)
    );
    let mut receiver = Subject::new_connected(ReceiverConfig {
        record_slots: 1,
        ..config()
    });
    receiver.connect('p');
    assert_eq!(
        receiver.handle_segment(now, 'p', &message, &mut ulp),
        Ok(())
    );
    assert_eq!(ulp.records.len(), 1);
}

/// §4: an incomplete Write is closed when it is farther behind than messages are reordered.
#[test]
fn an_incomplete_write_beyond_the_reorder_window_is_given_up() {
    let window = config().reorder_window;
    let mut ulp = Vecs::new(1000, &[]);
    let mut receiver = connected();
    let now = origin();
    let first = write(1, 1000, 500, false).remove(0);
    assert_eq!(receiver.handle_segment(now, 'p', &first, &mut ulp), Ok(()));
    for (behind, given_up) in [(window, 0), (window + 1, 1)] {
        let other = write(1 + behind, 100, 100, false).remove(0);
        assert_eq!(receiver.handle_segment(now, 'p', &other, &mut ulp), Ok(()));
        let counted = ulp.counted.iter();
        let incomplete = counted.filter(|it| **it == DropReason::IncompleteWrite);
        assert_eq!(incomplete.count(), given_up, "{behind} behind");
    }
}

#[test]
fn a_write_without_immediate_leaves_no_trace_but_its_octets() {
    for payload in [1000, 300] {
        let mut ulp = Vecs::new(1000, &[10]);
        let mut receiver = connected();
        let now = origin();
        for segment in write(1, 1000, payload, false) {
            let handled = receiver.handle_segment(now, 'p', &segment, &mut ulp);
            assert_eq!(handled, Ok(()));
        }
        assert_eq!(ulp.region, expected(1000));
        receiver.handle_timeout(now + Duration::from_secs(1), &mut ulp);
        assert!(ulp.completions.is_empty() && ulp.records.is_empty());
        assert!(ulp.counted.is_empty());
        assert_eq!(ulp.posted.len(), 1);
        ulp.region.fill(0);
        for segment in write(1, 1000, payload, false) {
            let handled = receiver.handle_segment(now, 'p', &segment, &mut ulp);
            assert_eq!(handled, Err(DropReason::Late));
        }
        assert_eq!(ulp.region, [0; 1000]);
    }
}

#[test]
fn an_immediate_consumes_a_receive_when_all_octets_are_there() {
    let mut ulp = Vecs::new(1000, &[0, 50]);
    let mut receiver = connected();
    let now = origin();
    let mut message = write(1, 1000, 300, true);
    message.reverse();
    for (arrived, segment) in (1..).zip(&message) {
        assert!(ulp.completions.is_empty());
        let handled = receiver.handle_segment(now, 'p', segment, &mut ulp);
        assert_eq!(handled, Ok(()));
        let again = receiver.handle_segment(now, 'p', segment, &mut ulp);
        let reason = if arrived < 4 {
            DropReason::Duplicate
        } else {
            DropReason::Late
        };
        assert_eq!(again, Err(reason));
    }
    assert_eq!(ulp.region, expected(1000));
    let delivery = Delivery {
        source: 'p',
        length: 1000,
        immediate: Some(IMMEDIATE),
        solicited: true,
        written: true,
    };
    assert_eq!(ulp.completions, [(0, delivery)]);
    // An empty one, and one of one segment.
    for (number, length) in [(2, 0), (3, 200)] {
        let segment = write(number, length, 300, true).remove(0);
        let handled = receiver.handle_segment(now, 'p', &segment, &mut ulp);
        let posted = number == 2;
        assert_eq!(handled.is_ok(), posted);
    }
    assert_eq!(ulp.completions[1].1.length, 0);
}

#[test]
fn without_a_receive_the_completing_segment_is_dropped() {
    for payload in [1000, 300] {
        let mut ulp = Vecs::new(1000, &[]);
        let mut receiver = connected();
        let now = origin();
        let mut message = write(1, 1000, payload, true);
        let last = message.pop().unwrap();
        for segment in &message {
            let handled = receiver.handle_segment(now, 'p', segment, &mut ulp);
            assert_eq!(handled, Ok(()));
        }
        assert_eq!(
            receiver.handle_segment(now, 'p', &last, &mut ulp),
            Err(DropReason::NoReceive)
        );
        assert_eq!(ulp.region[999], 0);
        // It is over: a receive that comes later is not for a copy of it.
        ulp.posted.push_back((0, 0));
        assert_eq!(
            receiver.handle_segment(now, 'p', &last, &mut ulp),
            Err(DropReason::Late)
        );
        assert!(ulp.completions.is_empty() && ulp.counted.is_empty());
    }
}

#[test]
fn an_incomplete_write_is_counted_and_consumes_nothing() {
    let mut ulp = Vecs::new(1000, &[0]);
    let mut receiver = connected();
    let now = origin();
    let message = write(1, 1000, 300, true);
    let later = now + Duration::from_millis(150);
    for (at, segment) in [(now, &message[0]), (later, &message[2])] {
        let handled = receiver.handle_segment(at, 'p', segment, &mut ulp);
        assert_eq!(handled, Ok(()));
    }
    // Counted from the last segment that was placed.
    let due = later + Duration::from_millis(200);
    receiver.handle_timeout(now + Duration::from_millis(200), &mut ulp);
    assert!(ulp.counted.is_empty());
    assert_eq!(receiver.poll_timeout(), Some(due));
    receiver.handle_timeout(due, &mut ulp);
    assert_eq!(ulp.counted, [DropReason::IncompleteWrite]);
    assert_eq!(receiver.poll_timeout(), None);
    assert_eq!(
        receiver.handle_segment(due, 'p', &message[1], &mut ulp),
        Err(DropReason::Late)
    );
    assert!(ulp.completions.is_empty());
    assert_eq!(ulp.posted.len(), 1);
}

#[test]
fn writes_far_behind_and_too_many_writes_give_way() {
    let mut ulp = Vecs::new(1000, &[]);
    let mut receiver = connected();
    let now = origin();
    let mut first = |number, epoch: u8, at| {
        let mut segment = write(number, 1000, 600, false).remove(0);
        segment[21] = epoch;
        let handled = receiver.handle_segment(at, 'p', &segment, &mut ulp);
        assert_eq!(handled, Ok(()));
        ulp.counted.len()
    };
    for number in 0..=64 {
        assert_eq!(first(number, 1, now), 0);
    }
    assert_eq!(first(65, 1, now), 1, "number 0 is more than 64 behind");
    // The peer restarts: those of its former life give way one by one.
    let later = now + Duration::from_millis(10);
    for (number, given_up) in (0..65).zip(2..) {
        assert_eq!(first(number, 2, later), given_up);
    }
    assert_eq!(ulp.counted.len(), 1 + MAX_OPEN_WRITES);
}

#[test]
fn a_write_that_contradicts_itself_is_malformed() {
    let mut ulp = Vecs::new(1000, &[]);
    let mut receiver = connected();
    let now = origin();
    let one = write(1, 1000, 300, false);
    let other = write(1, 900, 300, false);
    let mut handle = |segment: &[u8]| receiver.handle_segment(now, 'p', segment, &mut ulp);
    assert_eq!(handle(&one[0]), Ok(()));
    assert_eq!(handle(&other[1]), Err(DropReason::Malformed));
}

/// A segment that may not be placed is no part of the message, also if it would be the last one.
#[test]
fn a_refused_segment_leaves_the_message_open() {
    let mut ulp = Vecs::new(1000, &[0]);
    let mut receiver = connected();
    let now = origin();
    let refused = Origin {
        to_group: true,
        ..Origin::from('p')
    };
    for segment in write(1, 1000, 600, true) {
        let handled = receiver.handle_segment(now, refused, &segment, &mut ulp);
        assert_eq!(handled, Err(DropReason::NotWellKnown));
        let handled = receiver.handle_segment(now, 'p', &segment, &mut ulp);
        assert_eq!(handled, Ok(()));
    }
    assert_eq!(ulp.region, expected(1000));
    assert_eq!((ulp.completions.len(), ulp.posted.len()), (1, 0));
    let first = write(2, 1000, 600, true).remove(0);
    receiver.handle_segment(now, 'p', &first, &mut ulp).unwrap();
    ulp.posted.push_back((0, 0));
    let last = write(2, 1000, 600, true).remove(1);
    let handled = receiver.handle_segment(now, refused, &last, &mut ulp);
    assert_eq!(handled, Err(DropReason::NotWellKnown));
    assert_eq!(ulp.posted.len(), 1, "its receive goes back");
    let handled = receiver.handle_segment(now, 'p', &last, &mut ulp);
    assert_eq!(handled, Ok(()));
    assert_eq!((ulp.completions.len(), ulp.posted.len()), (2, 0));
}

#[test]
fn a_restarted_peer_is_heard_at_once() {
    let mut ulp = Vecs::new(10, &[]);
    let mut receiver = connected();
    let now = origin();
    let mut segment = write(5000, 10, 10, false).remove(0);
    assert_eq!(
        receiver.handle_segment(now, 'p', &segment, &mut ulp),
        Ok(())
    );
    segment = write(1, 10, 10, false).remove(0);
    assert_eq!(
        receiver.handle_segment(now, 'p', &segment, &mut ulp),
        Err(DropReason::Late)
    );
    segment[18] ^= 0xff;
    assert_eq!(
        receiver.handle_segment(now, 'p', &segment, &mut ulp),
        Ok(())
    );
}

proptest! {
    /// No octets of the peer make the receiver panic, write outside the region, or hold more Writes than it may.
    #[test]
    fn arbitrary_octets_of_the_peer_are_harmless(
        datagrams in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 38..120), 0..200),
    ) {
        let now = origin();
        let mut ulp = Vecs::new(64, &[64, 64]);
        let mut receiver = connected();
        for mut bytes in datagrams {
            // Enough right bits that most reach the deeper checks: few numbers and epochs, lengths that fit.
            bytes[0] = 0x81 | (bytes[0] & 0x40);
            bytes[1] = 0x4c;
            bytes[2..6].copy_from_slice(&STAG.get().to_be_bytes());
            let offset = bytes[33] % 64;
            bytes[6..14].copy_from_slice(&(BASE + u64::from(offset)).to_be_bytes());
            bytes[14] = 0x04 | (bytes[14] & 0x03);
            bytes[18..21].fill(0);
            bytes[21] %= 2;
            bytes[22..25].fill(0);
            bytes[26..30].copy_from_slice(&64u32.to_be_bytes());
            bytes[30..34].copy_from_slice(&u32::from(offset).to_be_bytes());
            bytes.truncate(38 + usize::from(64 - offset).min(bytes.len() - 38));
            if bytes.len() < 38 + usize::from(64 - offset) {
                bytes[0] &= !0x40;
            } else {
                bytes[0] |= 0x40;
            }
            let _ = receiver.handle_segment(now, 'p', &bytes, &mut ulp);
            prop_assert!(receiver.writes.last_placed().count() <= MAX_OPEN_WRITES);
        }
        receiver.handle_timeout(now + Duration::from_secs(1), &mut ulp);
        prop_assert_eq!(receiver.writes.last_placed().count(), 0);
        prop_assert_eq!(receiver.poll_timeout(), None);
    }

    /// However the segments of a few Writes arrive, each completes once, when its octets are all in memory.
    #[test]
    fn a_write_completes_once_and_whole(
        length in 1u32..2000,
        payload in 50u32..400,
        arrivals in proptest::collection::vec((0usize..3, any::<prop::sample::Index>()), 0..60),
    ) {
        let now = origin();
        let mut ulp = Vecs::new(2000, &[0, 0, 0]);
        let mut receiver = connected();
        let messages: Vec<_> = (0..3).map(|number| write(number, length, payload, true)).collect();
        let mut missing = messages.clone();
        for (message, index) in arrivals {
            let segment = index.get(&messages[message]);
            let _ = receiver.handle_segment(now, 'p', segment, &mut ulp);
            missing[message].retain(|other| other != segment);
            let complete = missing.iter().filter(|segments| segments.is_empty()).count();
            prop_assert_eq!(ulp.completions.len(), complete);
            if complete > 0 {
                prop_assert_eq!(&ulp.region[..length as usize], &expected(length)[..]);
            }
        }
    }
}
