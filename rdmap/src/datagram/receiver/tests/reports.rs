//! Reports beside records: their segments, and a full ring.

use super::*;

#[test]
fn each_segment_is_reported_where_that_is_asked_for() {
    let now = origin();
    let mut ulp = Vecs::new(1000, &[]);
    ulp.segment_room = 5;
    let mut receiver = Subject::new(ReceiverConfig {
        record_slots: 4,
        segment_completions: true,
        ..ReceiverConfig::default()
    });
    let mut handle =
        |segment: &[u8], ulp: &mut Vecs| receiver.handle_segment(now, 'a', segment, ulp);
    let mut message = write_record(1, 1000, 300);
    message.swap(1, 3);
    for segment in &message {
        assert!(ulp.records.is_empty());
        handle(segment, &mut ulp).unwrap();
        assert!(handle(segment, &mut ulp).is_err());
    }
    let (record, _) = ulp.records[0];
    let reported = [(0, 300), (900, 100), (600, 300), (300, 300)];
    let expected = reported.map(|(offset, length)| (record, offset, length));
    assert_eq!(ulp.segments, expected);
    // One of one segment, and one that finds no room for the report.
    for number in [2, 3] {
        handle(&write_record(number, 10, 10)[0], &mut ulp).unwrap();
    }
    assert_eq!(ulp.segments[4..], [(ulp.records[1].0, 0, 10)]);
    assert_eq!(ulp.counted, [DropReason::SegmentUnreported]);
    assert_eq!(ulp.records.len(), 3);
}

#[test]
fn a_full_ring_is_told_once_until_a_slot_is_free() {
    let now = origin();
    let mut ulp = Vecs::new(1000, &[]);
    let mut receiver = receiver(1);
    let write = |receiver: &mut Subject, ulp: &mut Vecs, number, payload| {
        let segment = &write_record(number, 100, payload)[0];
        receiver.handle_segment(now, 'a', segment, ulp).unwrap();
        ulp.rings_full
    };
    assert_eq!(write(&mut receiver, &mut ulp, 1, 100), 0);
    assert_eq!(write(&mut receiver, &mut ulp, 2, 100), 1);
    // A handle of no record frees no slot.
    assert!(!receiver.release(RecordHandle::from_u64(u64::MAX)));
    assert_eq!(write(&mut receiver, &mut ulp, 3, 60), 1);
    let handle = ulp.records[0].0;
    assert!(receiver.release(handle));
    assert!(!receiver.release(handle));
    assert_eq!(write(&mut receiver, &mut ulp, 4, 60), 1);
    assert_eq!(write(&mut receiver, &mut ulp, 5, 100), 2);
    assert!(ulp.segments.is_empty(), "nobody asked for segments");
}
