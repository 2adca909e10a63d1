//! The first completion with an error is that of the reason: work requests before it complete, and requests before it are answered.

use dgiwarp_ddp::error::TaggedError;
use dgiwarp_ddp::{STag, TaggedOffset};
use dgiwarp_memory::Access;

use crate::connected::tests::detect_peer::{detected_pair, resume, settle};
use crate::connected::tests::end::peer::{PROMISED, runs_timers};
use crate::connected::tests::*;

over_each_llp! {
    a_local_error_comes_behind_the_work_requests_before_it,
    a_local_error_waits_for_unsignaled_work_requests,
    a_local_error_with_a_plain_peer_waits_for_tcp,
    the_peer_is_answered_before_a_local_error_ends_the_connection,
    another_end_may_come_before_a_local_error,
    the_reason_of_the_peer_stays_where_the_connection_is_lost,
    memory_that_goes_away_amid_a_message_ends_at_once,
    a_dgiwarp_peer_has_its_answers_before_the_terminate,
    a_dgiwarp_peer_that_takes_no_answers_has_a_deadline,
    a_plain_peer_has_the_terminate_at_once,
    a_terminate_names_a_write,
    a_terminate_names_a_message,
}

const BAD_KEY: Sge = Sge {
    addr: 0,
    length: 8,
    lkey: 0x0bad_0bad,
};

/// Registers all of an end's memory for its peer. Returns the key and the first offset.
fn open(end: &End) -> (STag, TaggedOffset) {
    let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
    let keys = end.mrs.register(end.memory.region(), 0, access, PD);
    (STag::new(keys.rkey), TaggedOffset::new(0))
}

fn read((stag, start): (STag, TaggedOffset)) -> RcWork {
    RcWork::Read { stag, start }
}

fn write((stag, start): (STag, TaggedOffset), offset: u64, immediate: Option<u32>) -> RcWork {
    RcWork::Write {
        stag,
        start: TaggedOffset::new(start.get() + offset),
        immediate,
    }
}

fn outcomes(wcs: &[Wc]) -> Vec<(u64, WcStatus)> {
    wcs.iter().map(|wc| (wc.wr_id, wc.status)).collect()
}

const DONE: WcStatus = WcStatus::Success;

fn a_local_error_comes_behind_the_work_requests_before_it(llp: Lower) {
    let (mut client, mut server) = detected_pair(llp);
    let memory = open(&server);
    server.post_recv(10, 0, 100);
    client.post_send(1, &[client.sge(0, 100)]);
    client.post(2, read(memory), &[client.sge(0, 50)], false);
    client.post_send(3, &[BAD_KEY]);
    client.post_send(4, &[client.sge(0, 100)]);
    assert_eq!(client.engine.end(), None);
    settle(&mut client, &mut server, 1000);
    let expected = [
        (1, DONE),
        (2, DONE),
        (3, WcStatus::LocalProtection),
        (4, WcStatus::Flushed),
    ];
    assert_eq!(outcomes(&client.completed.sent), expected);
    assert_eq!(outcomes(&server.completed.received), [(10, DONE)]);
    assert_eq!(client.engine.end(), Some(RcEnd::LocalProtection));
    assert!(server.engine.end().is_some(), "it has the Terminate");
}

fn a_local_error_waits_for_unsignaled_work_requests(llp: Lower) {
    let (mut client, mut server) = detected_pair(llp);
    let work = RcWork::Send { invalidate: None };
    let sges = [client.sge(0, 100)];
    client.engine.limit_sends(64);
    client.post_as(1, work, &sges, false);
    client.post_as(2, work, &[BAD_KEY], false);
    client.post_as(3, work, &sges, false);
    client.carry_to(&mut server, 1000);
    let is_requested = server.engine.stream.dgiwarp_ext().is_ack_requested();
    assert!(is_requested, "nothing else would have it acknowledged soon");
    settle(&mut client, &mut server, 1000);
    assert_eq!(client.engine.end(), None, "the message waits for a receive");
    server.post_recv(10, 0, 100);
    resume(&mut server);
    settle(&mut client, &mut server, 1000);
    let expected = [(2, WcStatus::LocalProtection), (3, WcStatus::Flushed)];
    assert_eq!(outcomes(&client.completed.sent), expected);
    assert_eq!(outcomes(&server.completed.received), [(10, DONE)]);
}

fn a_local_error_with_a_plain_peer_waits_for_tcp(llp: Lower) {
    let (mut client, mut server) = pair(llp);
    server.post_recv(10, 0, 100);
    client.post_send(1, &[client.sge(0, 100)]);
    client.post_send(2, &[BAD_KEY]);
    assert_eq!(client.engine.end(), None);
    client.carry_to(&mut server, 1000);
    let expected = [(1, DONE), (2, WcStatus::LocalProtection)];
    assert_eq!(outcomes(&client.completed.sent), expected);
    assert_eq!(outcomes(&server.completed.received), [(10, DONE)]);
}

fn the_peer_is_answered_before_a_local_error_ends_the_connection(llp: Lower) {
    let (mut client, mut server) = detected_pair(llp);
    let memory = open(&client);
    client.post_send(1, &[client.sge(0, 100)]);
    client.post_send(2, &[BAD_KEY]);
    settle(&mut client, &mut server, 1000);
    // The server's program reads before it posts a receive.
    server.post(3, read(memory), &[server.sge(0, 16_000)], false);
    settle(&mut client, &mut server, 1000);
    assert_eq!(outcomes(&server.completed.sent), [(3, DONE)]);
    server.post_recv(10, 0, 100);
    resume(&mut server);
    settle(&mut client, &mut server, 1000);
    let expected = [(1, DONE), (2, WcStatus::LocalProtection)];
    assert_eq!(outcomes(&client.completed.sent), expected);
}

fn another_end_may_come_before_a_local_error(llp: Lower) {
    let (mut client, mut server) = detected_pair(llp);
    client.post_send(1, &[client.sge(0, 100)]);
    client.post_send(2, &[BAD_KEY]);
    settle(&mut client, &mut server, 1000);
    assert_eq!(client.engine.end(), None);
    client.work(|engine, tables, completed| {
        engine.handle_end(now(), TcpEnd::Lost, tables, completed);
    });
    let expected = [(1, WcStatus::RetryExceeded), (2, WcStatus::Flushed)];
    assert_eq!(outcomes(&client.completed.sent), expected);
}

fn the_reason_of_the_peer_stays_where_the_connection_is_lost(llp: Lower) {
    let (mut client, mut server) = detected_pair(llp);
    let memory = post_reads(&mut client, &server);
    client.post(5, write(memory, 16_300, None), &[client.sge(0, 100)], false);
    client.carry_to(&mut server, 1 << 20);
    assert_eq!(server.engine.end(), None);
    server.work(|engine, tables, completed| {
        engine.handle_end(now(), TcpEnd::Lost, tables, completed);
    });
    let error = StreamError::from(TaggedError::BaseOrBounds);
    assert_eq!(server.engine.end(), Some(RcEnd::Stream(error)));
}

fn memory_that_goes_away_amid_a_message_ends_at_once(llp: Lower) {
    let (mut client, _) = detected_pair(llp);
    let sges = [client.sge(0, 16_000)];
    for wr_id in 1..=9 {
        client.post_send(wr_id, &sges);
    }
    assert!(client.engine.sending.is_some(), "the window cuts a message");
    client.mrs.deregister(client.keys);
    client.take(usize::MAX);
    assert_eq!(client.engine.end(), Some(RcEnd::LocalProtection));
}

/// Posts Reads 1 to 4, whose responses are longer than the window.
fn post_reads(client: &mut End, server: &End) -> (STag, TaggedOffset) {
    let memory = open(server);
    for wr_id in 1..=4 {
        client.post(wr_id, read(memory), &[client.sge(0, 16_384)], false);
    }
    memory
}

fn a_dgiwarp_peer_has_its_answers_before_the_terminate(llp: Lower) {
    let (mut client, mut server) = detected_pair(llp);
    let memory = post_reads(&mut client, &server);
    let sges = [client.sge(0, 100)];
    client.post(5, write(memory, 16_300, None), &sges, false);
    client.post(6, write(memory, 0, None), &sges, false);
    client.carry_to(&mut server, 1 << 20);
    assert_eq!(server.engine.end(), None);
    settle(&mut client, &mut server, 1000);
    let expected = [
        (1, DONE),
        (2, DONE),
        (3, DONE),
        (4, DONE),
        (5, WcStatus::RemoteAccess),
        (6, WcStatus::Flushed),
    ];
    assert_eq!(outcomes(&client.completed.sent), expected);
    assert!(server.engine.end().is_some());
}

fn a_dgiwarp_peer_that_takes_no_answers_has_a_deadline(llp: Lower) {
    let (mut client, mut server) = detected_pair(llp);
    let memory = post_reads(&mut client, &server);
    client.post(5, write(memory, 16_300, None), &[client.sge(0, 100)], false);
    server.post_recv(10, 0, 100);
    let began = now();
    client.carry_to(&mut server, 1 << 20);
    assert_eq!(server.engine.end(), None);
    let until = server.engine.poll_timeout().expect("a deadline");
    assert!(until > began && until < began + PROMISED);
    runs_timers(&mut server, until - Duration::from_millis(1));
    assert_eq!(server.engine.end(), None);
    assert_eq!(server.engine.poll_timeout(), Some(until));
    runs_timers(&mut server, until);
    assert!(matches!(server.engine.end(), Some(RcEnd::Stream(_))));
    assert_eq!(
        outcomes(&server.completed.received),
        [(10, WcStatus::Flushed)]
    );
}

fn a_plain_peer_has_the_terminate_at_once(llp: Lower) {
    let (mut client, mut server) = pair_over(llp, 4, [PLAIN; 2]);
    let memory = post_reads(&mut client, &server);
    client.post(5, write(memory, 16_300, None), &[client.sge(0, 100)], false);
    client.carry_to(&mut server, 1 << 20);
    assert!(server.engine.end().is_some());
    settle(&mut client, &mut server, 1000);
    let last = &outcomes(&client.completed.sent)[3..];
    assert_eq!(last, [(4, WcStatus::Flushed), (5, WcStatus::RemoteAccess)]);
}

/// A client whose Read has no answer, and its server, which gets nothing of it.
fn with_an_unanswered_read(llp: Lower) -> (End, End, (STag, TaggedOffset)) {
    let (mut client, server) = detected_pair(llp);
    let memory = open(&server);
    client.post(1, read(memory), &[client.sge(0, 8)], false);
    (client, server, memory)
}

/// The server terminates because of this segment.
fn terminate(client: &mut End, server: &mut End, segment: &[u8]) {
    let error = StreamError::from(TaggedError::BaseOrBounds);
    client.take(usize::MAX);
    server.work(|engine, tables, completed| {
        engine.stream.fail_at(error, segment);
        engine.finish(RcEnd::Stream(error), None, tables, completed);
    });
    server.carry_to(client, 1000);
}

/// Outcomes of work requests 1 to 4, of which only one is blamed.
fn only(blamed: u64) -> Vec<(u64, WcStatus)> {
    let status = |wr_id| {
        if wr_id == blamed {
            WcStatus::RemoteAccess
        } else {
            WcStatus::Flushed
        }
    };
    (1..=4).map(|wr_id| (wr_id, status(wr_id))).collect()
}

fn a_terminate_names_a_write(llp: Lower) {
    // Offsets of the segment, and the Write that it is of. One that is of none is held against the oldest.
    for (offset, blamed) in [(150, 2), (300, 3), (350, 3), (16_300, 4), (900, 1)] {
        let (mut client, mut server, memory) = with_an_unanswered_read(llp);
        let sges = [client.sge(0, 100)];
        for (wr_id, offset) in [(2, 100), (3, 300), (4, 16_300)] {
            client.post(wr_id, write(memory, offset, None), &sges, false);
        }
        let mut segment = vec![0xc1, 0x40];
        segment.extend(memory.0.get().to_be_bytes());
        segment.extend(u64::to_be_bytes(offset));
        terminate(&mut client, &mut server, &segment);
        assert_eq!(outcomes(&client.completed.sent), only(blamed), "{offset}");
    }
}

fn a_terminate_names_a_message(llp: Lower) {
    // The immediate of a Write is a message, too.
    for (msn, blamed) in [(1, 2), (2, 3), (3, 4), (4, 1), (0, 1)] {
        let (mut client, mut server, memory) = with_an_unanswered_read(llp);
        let sges = [client.sge(0, 100)];
        client.post_send(2, &sges);
        client.post(3, write(memory, 0, Some(7)), &sges, false);
        client.post_send(4, &sges);
        let mut segment = vec![0x41, 0x43, 0, 0, 0, 0];
        for word in [0, msn, 0] {
            segment.extend(u32::to_be_bytes(word));
        }
        terminate(&mut client, &mut server, &segment);
        assert_eq!(outcomes(&client.completed.sent), only(blamed), "{msn}");
    }
}
