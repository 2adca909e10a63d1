//! Timers of incomplete messages, and their end with the QP.

use super::*;

/// §9: a Send has 200 ms from its first segment, a Write-Record 200 ms from its latest.
#[test]
fn the_next_timer_is_that_of_the_earliest_message() {
    let start = origin();
    let at = |milliseconds| start + Duration::from_millis(milliseconds);
    let mut ulp = Vecs::new(1000, &[300, 300]);
    let mut receiver = receiver(4);
    let record = write_record(1, 1000, 300);
    let [of_a, of_b] = [2, 1].map(|number| segmented_send(number, 200, 100));
    for (time, from, segment) in [
        (at(0), 'a', &record[0]),
        (at(50), 'a', &of_a[0]),
        (at(100), 'a', &record[1]),
        (at(120), 'b', &of_b[0]),
    ] {
        let handled = receiver.handle_segment(time, from, segment, &mut ulp);
        assert_eq!(handled, Ok(()));
        assert_eq!(receiver.poll_timeout(), Some(at(200)));
    }
    for (time, records, receives, next) in [
        (199, 0, 0, Some(200)),
        (200, 0, 0, Some(250)),
        (250, 0, 1, Some(300)),
        (300, 1, 1, Some(320)),
        (320, 1, 2, None),
    ] {
        receiver.handle_timeout(at(time), &mut ulp);
        assert_eq!(ulp.records.len(), records, "{time} ms");
        assert_eq!(ulp.posted.len(), receives, "{time} ms");
        assert_eq!(receiver.poll_timeout(), next.map(at), "{time} ms");
    }
    assert_eq!(ulp.counted, [DropReason::ReassemblyTimeout; 2]);
}

#[test]
fn the_end_of_a_qp_returns_its_receives() {
    let now = origin();
    let mut ulp = Vecs::new(0, &[300, 300]);
    let mut receiver = receiver(0);
    for from in ['a', 'b'] {
        let first = &segmented_send(1, 200, 100)[0];
        let handled = receiver.handle_segment(now, from, first, &mut ulp);
        assert_eq!(handled, Ok(()));
    }
    assert!(ulp.posted.is_empty());
    for _ in 0..2 {
        receiver.abandon_sends(&mut ulp);
        assert_eq!(ulp.posted.len(), 2);
    }
    assert!(ulp.completions.is_empty() && ulp.counted.is_empty());
}
