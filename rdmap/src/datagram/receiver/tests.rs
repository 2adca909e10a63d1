mod reports;
mod timers;
mod uc;

use super::*;
use crate::datagram::segment::Template;
use crate::datagram::test_octets::{Arrived, parse};
use crate::wire::Flags;
use dgiwarp_codec::PayloadSlice;
use dgiwarp_ddp::placement::TaggedSpan;
use dgiwarp_ddp::{Msn, Segmenter};
use dgiwarp_ddp::{STag, TaggedOffset};
use proptest::prelude::*;
use std::collections::VecDeque;

const STAG: STag = STag::new(0xfeed_0001);
const BASE: u64 = 0x1000;
const QKEY: u32 = 0x1111_1111;

/// Memory and queues as plain vectors; every byte outside what a test allows stays 0.
struct Vecs {
    region: Vec<u8>,
    posted: VecDeque<(u32, usize)>,
    received: Vec<Vec<u8>>,
    completions: Vec<(u32, Delivery<char>)>,
    records: Vec<(RecordHandle, Record<char>)>,
    /// Segments that were reported: handle, offset and length.
    segments: Vec<(RecordHandle, u32, u32)>,
    /// How many more may be.
    segment_room: usize,
    rings_full: usize,
    counted: Vec<DropReason>,
}

impl Vecs {
    fn new(region: usize, receives: &[usize]) -> Self {
        Self {
            region: vec![0; region],
            posted: (0..).zip(receives.iter().copied()).collect(),
            received: receives.iter().map(|&length| vec![0; length]).collect(),
            completions: Vec::new(),
            records: Vec::new(),
            segments: Vec::new(),
            segment_room: usize::MAX,
            rings_full: 0,
            counted: Vec::new(),
        }
    }
}

impl Ulp<char> for Vecs {
    type Receive = (u32, usize);
    type Payload = [u8];

    fn check_write(&self, origin: Origin<char>, span: TaggedSpan) -> Result<(), DropReason> {
        if span.stag != STAG {
            return Err(DropReason::BadStag);
        }
        if origin.to_group {
            return Err(DropReason::NotWellKnown);
        }
        let start = span
            .start
            .get()
            .checked_sub(BASE)
            .ok_or(DropReason::OutOfBounds)?;
        let end = start
            .checked_add(span.length.into())
            .ok_or(DropReason::OutOfBounds)?;
        if end > self.region.len() as u64 {
            return Err(DropReason::OutOfBounds);
        }
        Ok(())
    }

    fn place_write(
        &mut self,
        origin: Origin<char>,
        stag: STag,
        start: TaggedOffset,
        payload: PayloadSlice<'_, [u8]>,
    ) -> Result<(), DropReason> {
        let length = u32::try_from(payload.len()).unwrap();
        let span = TaggedSpan {
            stag,
            start,
            length,
        };
        self.check_write(origin, span)?;
        let start = usize::try_from(start.get() - BASE).unwrap();
        self.region[start..start + payload.len()].copy_from_slice(payload.octets());
        Ok(())
    }

    fn take_receive(&mut self, length: u32) -> Result<Self::Receive, TakeError> {
        let &(_, room) = self.posted.front().ok_or(TakeError::Empty)?;
        if room < length as usize {
            return Err(TakeError::TooShort);
        }
        self.posted.pop_front().ok_or(TakeError::Empty)
    }

    fn place_untagged(
        &mut self,
        receive: &Self::Receive,
        offset: u32,
        payload: PayloadSlice<'_, [u8]>,
    ) -> Result<(), PlaceFailed> {
        let offset = offset as usize;
        self.received[receive.0 as usize][offset..offset + payload.len()]
            .copy_from_slice(payload.octets());
        Ok(())
    }

    fn deliver(&mut self, receive: Self::Receive, delivery: Delivery<char>) {
        self.completions.push((receive.0, delivery));
    }

    fn fail(&mut self, _receive: Self::Receive) {
        unreachable!("vectors are always there");
    }

    fn give_back(&mut self, receive: Self::Receive) {
        self.posted.push_front(receive);
    }

    fn deliver_record(&mut self, handle: RecordHandle, record: &Record<char>) {
        self.records.push((handle, record.clone()));
    }

    fn deliver_segment(
        &mut self,
        handle: RecordHandle,
        record: &Record<char>,
        offset: u32,
        length: u32,
    ) -> bool {
        assert!(record.map.contains(offset, offset + length));
        let has_room = self.segments.len() < self.segment_room;
        if has_room {
            self.segments.push((handle, offset, length));
        }
        has_room
    }

    fn record_ring_full(&mut self) {
        self.rings_full += 1;
    }

    fn count(&mut self, reason: DropReason) {
        self.counted.push(reason);
    }
}

type Subject = Receiver<char, (u32, usize)>;

/// Receives octets whose format stands in the first one.
trait HandleSegment {
    fn handle_segment(
        &mut self,
        now: Instant,
        origin: impl Into<Origin<char>>,
        octets: &[u8],
        upper: &mut Vecs,
    ) -> Result<(), DropReason>;
}

impl HandleSegment for Subject {
    fn handle_segment(
        &mut self,
        now: Instant,
        origin: impl Into<Origin<char>>,
        octets: &[u8],
        upper: &mut Vecs,
    ) -> Result<(), DropReason> {
        match parse(octets)? {
            Arrived::Segment(parsed) => self.handle_parsed(now, &origin.into(), &parsed, upper),
            Arrived::Exchange(_) => Err(DropReason::UnexpectedOpcode),
        }
    }
}

fn receiver(record_slots: usize) -> Subject {
    Receiver::new(ReceiverConfig {
        qkey: QKEY,
        record_slots,
        max_assemblies: 2,
        ..ReceiverConfig::default()
    })
}

#[expect(
    clippy::disallowed_methods,
    reason = "any instant serves as the origin"
)]
fn origin() -> Instant {
    Instant::now()
}

fn extension(number: u32, length: u32) -> Extension {
    Extension {
        flags: Flags::empty(),
        epoch: 7,
        number,
        length,
        offset: 0,
        immediate: 0,
    }
}

/// The segments of a message whose octet i is `salt` + i, never 0.
fn segments(template: Template, length: u32, payload: u32, salt: u8) -> Vec<Vec<u8>> {
    let mut segmenter = Segmenter::new(length);
    let mut out = Vec::new();
    while let Some(segment) = segmenter.peek(payload) {
        let mut bytes = vec![0; template.header_len()];
        template.emit(segment, &mut bytes);
        bytes.extend((segment.offset..segment.offset + segment.length).map(|i| octet(i, salt)));
        segmenter.advance(segment);
        out.push(bytes);
    }
    out
}

fn octet(i: u32, salt: u8) -> u8 {
    (i.to_le_bytes()[0] ^ salt).max(1)
}

fn write_record(number: u32, length: u32, payload: u32) -> Vec<Vec<u8>> {
    let template = Template::WriteRecord {
        stag: STAG,
        base: TaggedOffset::new(BASE),
        extension: extension(number, length),
    };
    segments(template, length, payload, 0x5a)
}

fn segmented_send(number: u32, length: u32, payload: u32) -> Vec<Vec<u8>> {
    let template = Template::SegmentedSend {
        qkey: QKEY,
        extension: extension(number, length),
    };
    segments(template, length, payload, 0xa5)
}

#[test]
fn losing_any_one_segment_costs_only_its_bytes() {
    for lost in 0..20u32 {
        let mut ulp = Vecs::new(2000, &[]);
        let mut receiver = receiver(4);
        let now = origin();
        for (i, segment) in (0..).zip(write_record(1, 2000, 100)) {
            if i != lost {
                receiver
                    .handle_segment(now, 'a', &segment, &mut ulp)
                    .unwrap();
            }
        }
        assert!(ulp.records.is_empty());
        receiver.handle_timeout(now + Duration::from_millis(200), &mut ulp);
        let (_, record) = &ulp.records[0];
        assert_eq!(record.map.octets(), 1900, "segment {lost} lost");
        assert!(!record.map.contains(100 * lost, 100 * lost + 1));
    }
}

#[test]
fn a_late_segment_never_touches_memory() {
    let mut ulp = Vecs::new(1000, &[]);
    let mut receiver = receiver(4);
    let now = origin();
    let message = write_record(9, 1000, 250);
    for segment in &message {
        receiver
            .handle_segment(now, 'a', segment, &mut ulp)
            .unwrap();
    }
    assert_eq!(ulp.records.len(), 1);
    ulp.region.fill(0);
    for segment in &message {
        assert_eq!(
            receiver.handle_segment(now, 'a', segment, &mut ulp),
            Err(DropReason::Late)
        );
    }
    assert!(ulp.region.iter().all(|&byte| byte == 0));
}

#[test]
fn a_record_is_closed_when_its_source_is_too_far_ahead() {
    let mut ulp = Vecs::new(1000, &[]);
    let mut receiver = receiver(8);
    let now = origin();
    let slow = write_record(100, 1000, 500);
    receiver
        .handle_segment(now, 'a', &slow[0], &mut ulp)
        .unwrap();
    receiver
        .handle_segment(now, 'a', &write_record(164, 10, 10)[0], &mut ulp)
        .unwrap();
    assert_eq!(ulp.records.len(), 1, "64 ahead closes nothing else");
    receiver
        .handle_segment(now, 'a', &write_record(165, 10, 10)[0], &mut ulp)
        .unwrap();
    assert_eq!(ulp.records.len(), 3);
    assert_eq!(ulp.records[1].1.map.ranges(), &[(0, 500)]);
    assert_eq!(
        receiver.handle_segment(now, 'a', &slow[1], &mut ulp),
        Err(DropReason::Late)
    );
}

/// Messages that are begun and never ended leave room for the records of messages of one segment.
#[test]
fn open_records_leave_a_quarter_of_the_ring() {
    let mut ulp = Vecs::new(1000, &[]);
    let mut receiver = receiver(8);
    let now = origin();
    for number in 0..8 {
        let begun = write_record(number, 500, 250);
        receiver
            .handle_segment(now, 'a', &begun[0], &mut ulp)
            .unwrap();
    }
    assert_eq!(ulp.counted, [DropReason::RecordDropped; 2]);
    for number in 8..10 {
        let whole = write_record(number, 10, 10);
        receiver
            .handle_segment(now, 'b', &whole[0], &mut ulp)
            .unwrap();
    }
    assert_eq!(ulp.records.len(), 2);
    assert_eq!(ulp.counted.len(), 2);
}

#[test]
fn a_full_ring_places_and_drops_the_record_only() {
    let mut ulp = Vecs::new(1000, &[]);
    let mut receiver = receiver(1);
    let now = origin();
    receiver
        .handle_segment(now, 'a', &write_record(1, 10, 10)[0], &mut ulp)
        .unwrap();
    let second = write_record(2, 500, 500);
    receiver
        .handle_segment(now, 'a', &second[0], &mut ulp)
        .unwrap();
    assert_eq!(ulp.region[499], octet(499, 0x5a));
    assert_eq!(ulp.counted, [DropReason::RecordDropped]);
    let (handle, _) = ulp.records[0];
    assert!(receiver.release(handle));
    assert!(!receiver.release(handle), "a handle is released once");
    assert!(receiver.record(handle).is_none());
    receiver
        .handle_segment(now, 'a', &write_record(3, 10, 10)[0], &mut ulp)
        .unwrap();
    assert_eq!(ulp.records.len(), 2);
}

#[test]
fn every_check_before_placement_names_its_reason() {
    let now = origin();
    let good = write_record(1, 100, 100).remove(0);
    let with = |position: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[position] = value;
        bytes
    };
    let cases = [
        (with(0, 0xd1), DropReason::UnknownFormat),
        (with(0, 0xc2), DropReason::BadVersion),
        (with(0, 0x81), DropReason::Malformed), // L clear on the last segment
        (with(0, 0x41), DropReason::Malformed), // T clear
        (with(1, 0x8c), DropReason::BadVersion),
        (with(1, 0x4e), DropReason::UnexpectedOpcode),
        (with(1, 0x40), DropReason::UnexpectedOpcode), // RDMA Write
        (with(2, 0), DropReason::BadStag),
        (with(6, 0xff), DropReason::OutOfBounds),
        (with(12, 0), DropReason::OutOfBounds), // before the region
        (with(28, 1), DropReason::Malformed),   // length no longer matches L
        (good[..20].to_vec(), DropReason::Malformed),
        (good[..1].to_vec(), DropReason::Malformed),
        (Vec::new(), DropReason::Malformed),
    ];
    for (bytes, reason) in cases {
        let mut ulp = Vecs::new(1000, &[]);
        let mut receiver = receiver(4);
        assert_eq!(
            receiver.handle_segment(now, 'a', &bytes, &mut ulp),
            Err(reason),
            "{bytes:02x?}"
        );
        assert!(ulp.region.iter().all(|&byte| byte == 0));
        assert!(ulp.records.is_empty() && receiver.poll_timeout().is_none());
    }
    let mut ulp = Vecs::new(1000, &[]);
    assert_eq!(
        receiver(0).handle_segment(now, 'a', &good, &mut ulp),
        Err(DropReason::WriteRecordOff)
    );
}

#[test]
fn a_send_takes_the_head_of_the_queue_or_nothing() {
    let mut ulp = Vecs::new(0, &[4, 100]);
    let mut receiver = receiver(0);
    let now = origin();
    let send = |length, qkey| {
        let template = Template::Send {
            qkey,
            msn: Msn::new(1),
            solicited: true,
        };
        segments(template, length, 1000, 0x33).remove(0)
    };
    let mut handle = |bytes: &[u8]| receiver.handle_segment(now, 'b', bytes, &mut ulp);
    assert_eq!(handle(&send(5, QKEY)), Err(DropReason::ReceiveTooShort));
    assert_eq!(handle(&send(4, 0)), Err(DropReason::BadQkey));
    assert_eq!(handle(&send(4, QKEY)), Ok(()));
    assert_eq!(handle(&send(0, QKEY)), Ok(()));
    assert_eq!(handle(&send(0, QKEY)), Err(DropReason::NoReceive));
    let (wr, delivery) = ulp.completions[0];
    assert_eq!((wr, delivery.length, delivery.solicited), (0, 4, true));
    assert_eq!(ulp.completions[1].1.length, 0);
}

#[test]
fn an_incomplete_send_gives_its_receive_back_to_the_head() {
    let mut ulp = Vecs::new(0, &[1000, 1000]);
    let mut receiver = receiver(0);
    let now = origin();
    let message = segmented_send(5, 1000, 300);
    receiver
        .handle_segment(now, 'a', &message[2], &mut ulp)
        .unwrap();
    assert_eq!(ulp.posted.len(), 1);
    let deadline = receiver.poll_timeout().unwrap();
    assert_eq!(deadline, now + Duration::from_millis(200));
    receiver.handle_timeout(deadline, &mut ulp);
    assert_eq!(ulp.posted.front(), Some(&(0, 1000)));
    assert_eq!(ulp.counted, [DropReason::ReassemblyTimeout]);
    assert_eq!(
        receiver.handle_segment(deadline, 'a', &message[0], &mut ulp),
        Err(DropReason::Late)
    );
}

#[test]
fn incomplete_sends_are_bounded_per_queue_and_source() {
    let mut ulp = Vecs::new(0, &[100; 10]);
    let mut receiver = Subject::new(ReceiverConfig {
        qkey: QKEY,
        max_assemblies: 3,
        ..ReceiverConfig::default()
    });
    let now = origin();
    let mut first = |from, number| {
        let message = segmented_send(number, 100, 60);
        receiver.handle_segment(now, from, &message[0], &mut ulp)
    };
    assert_eq!(first('a', 2), Ok(()));
    assert_eq!(first('a', 3), Ok(()));
    assert_eq!(first('a', 1), Err(DropReason::ReassemblyFull));
    assert_eq!(first('b', 1), Ok(()));
    assert_eq!(first('c', 1), Err(DropReason::ReassemblyFull));
}

/// §7: losing a segment of each of several messages does not cost the messages after them.
#[test]
fn an_incomplete_send_gives_way_to_a_newer_one_of_its_source_alone() {
    let mut ulp = Vecs::new(0, &[100; 4]);
    let mut receiver = Subject::new(ReceiverConfig {
        qkey: QKEY,
        max_assemblies: 3,
        ..ReceiverConfig::default()
    });
    let now = origin();
    let mut segment = |from: char, number, index: usize| {
        let message = segmented_send(number, 100, 60);
        receiver.handle_segment(now, from, &message[index], &mut ulp)
    };
    segment('b', 7, 0).unwrap();
    segment('a', 1, 0).unwrap();
    segment('a', 2, 0).unwrap();
    segment('a', 3, 0).unwrap();
    assert_eq!(segment('a', 1, 1), Err(DropReason::Late));
    segment('a', 3, 1).unwrap();
    segment('a', 2, 1).unwrap();
    segment('b', 7, 1).unwrap();
    assert_eq!(ulp.counted, [DropReason::ReassemblySuperseded]);
    assert_eq!(ulp.completions.len(), 3);
    assert_eq!(ulp.posted.len(), 1, "its receive was given back");
}

/// A Send of one segment, here with an immediate, completes whatever is incomplete beside it, once.
#[test]
fn a_send_of_one_segment_is_not_bounded_by_incomplete_ones() {
    let mut ulp = Vecs::new(0, &[100; 4]);
    let mut receiver = Subject::new(ReceiverConfig {
        qkey: QKEY,
        max_assemblies: 2,
        ..ReceiverConfig::default()
    });
    let now = origin();
    for number in [1, 2] {
        let message = segmented_send(number, 100, 60);
        receiver
            .handle_segment(now, 'a', &message[0], &mut ulp)
            .unwrap();
    }
    let whole = &segmented_send(3, 50, 60)[0];
    receiver.handle_segment(now, 'a', whole, &mut ulp).unwrap();
    assert_eq!(
        receiver.handle_segment(now, 'a', whole, &mut ulp),
        Err(DropReason::Late)
    );
    assert_eq!(ulp.completions.len(), 1);
    let received = &ulp.received[2];
    assert!((0..50).all(|i| received[i as usize] == octet(i, 0xa5)));
    assert!(ulp.counted.is_empty());
}

proptest! {
    /// Whatever a network does to the segments of several messages, each octet that a record calls valid
    /// is in memory, and a record's map is exactly what arrived.
    #[test]
    fn the_map_is_what_arrived(
        length in 1u32..3000,
        payload in 1u32..400,
        arrivals in proptest::collection::vec(any::<prop::sample::Index>(), 0..80),
    ) {
        let now = origin();
        let mut ulp = Vecs::new(3000, &[3000]);
        let mut receiver = receiver(4);
        let message = write_record(3, length, payload);
        let send = segmented_send(4, length, payload);
        let mut arrived = vec![false; length as usize];
        let mut send_arrived = vec![false; send.len()];
        for index in arrivals {
            let i = index.index(message.len());
            let before = ulp.records.len();
            let room_full = ulp.records.is_empty() && before == 0;
            let result = receiver.handle_segment(now, 'a', &message[i], &mut ulp);
            if result.is_ok() && room_full {
                let start = i * payload as usize;
                let end = (start + payload as usize).min(length as usize);
                arrived[start..end].fill(true);
            }
            let _ = receiver.handle_segment(now, 'a', &send[i], &mut ulp);
            send_arrived[i] = true;
        }
        receiver.complete_now(&mut ulp);
        let any = arrived.iter().any(|&bit| bit);
        prop_assert_eq!(ulp.records.len(), usize::from(any));
        for (position, &bit) in arrived.iter().enumerate() {
            let i = u32::try_from(position).unwrap();
            prop_assert_eq!(ulp.region[position], if bit { octet(i, 0x5a) } else { 0 });
            prop_assert_eq!(any && ulp.records[0].1.map.contains(i, i + 1), bit);
        }
        if send_arrived.iter().all(|&bit| bit) && send.len() <= 64 {
            prop_assert_eq!(ulp.completions.len(), 1);
            prop_assert!((0..length).all(|i| ulp.received[0][i as usize] == octet(i, 0xa5)));
        }
    }

    /// No bytes make the receiver panic, or write outside the region or a receive.
    #[test]
    fn arbitrary_bytes_are_harmless(
        mut datagrams in proptest::collection::vec((proptest::collection::vec(any::<u8>(), 0..120), any::<bool>()), 0..20),
    ) {
        let now = origin();
        let mut ulp = Vecs::new(64, &[64, 64]);
        let mut receiver = receiver(2);
        for (bytes, plausible) in &mut datagrams {
            if *plausible && bytes.len() > 20 {
                // Enough right bits that the deeper checks are reached.
                bytes[0] = if bytes[0] & 1 == 0 { 0xc1 } else { 0x81 };
                bytes[1] = 0x4c;
                bytes[2..6].copy_from_slice(&STAG.get().to_be_bytes());
                let offset = BASE + u64::from(bytes[13] % 80);
                bytes[6..14].copy_from_slice(&offset.to_be_bytes());
            }
            let _ = receiver.handle_segment(now, 'z', bytes, &mut ulp);
        }
        receiver.handle_timeout(now + Duration::from_secs(1), &mut ulp);
    }
}

/// §5 steps 5 and 6 hold for each segment, also where a record is open already.
#[test]
fn later_segments_of_a_record_are_checked_for_their_own_origin() {
    let (mut receiver, mut ulp) = (receiver(4), Vecs::new(100, &[]));
    let message = write_record(1, 30, 10);
    let now = origin();
    let to_group = Origin {
        to_group: true,
        ..'a'.into()
    };
    assert_eq!(
        receiver.handle_segment(now, to_group, &message[0], &mut ulp),
        Err(DropReason::NotWellKnown)
    );
    assert_eq!(receiver.poll_timeout(), None, "no state was made");
    receiver
        .handle_segment(now, 'a', &message[0], &mut ulp)
        .unwrap();
    assert_eq!(
        receiver.handle_segment(now, to_group, &message[1], &mut ulp),
        Err(DropReason::NotWellKnown)
    );
    assert_eq!(ulp.region[10..], [0; 90]);
}
