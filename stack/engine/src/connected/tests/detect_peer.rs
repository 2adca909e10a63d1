//! Two dgiwarp peers: hellos, placed completions, and the RNR queue.

use std::time::Duration;

use dgiwarp_ddp::{STag, TaggedOffset};
use dgiwarp_memory::Access;
use dgiwarp_rdmap::stream::Peer;

use super::super::rnr_queue::LIMIT;
use super::*;
use super::{End, Lower, PD, PLAIN, now, over_each_llp, pair_over};
use crate::types::{Completion, NoReceive, RcOptions};

over_each_llp! {
    the_first_message_each_way_is_the_hello,
    the_hello_comes_before_the_response_to_what_came_with_the_peers,
    a_plain_initiator_gets_no_hello_and_a_quiet_responder_is_plain,
    a_send_and_a_write_complete_when_they_were_placed_and_not_before,
    acknowledgements_ride_on_answers,
    a_stream_is_acknowledged_now_and_then_with_one_request_at_a_time,
    an_answer_proves_what_left_before_the_request_was_placed,
    completion_is_local_where_either_wants_it_so,
    completions_wait_for_the_hello_for_a_while,
    a_lost_connection_gives_no_success_for_what_was_not_placed,
    messages_wait_for_receives_in_order_while_answers_pass,
    what_waits_is_bounded,
    waiting_for_a_receive_has_its_limit,
    a_send_carries_an_immediate_to_our_own_kind,
    a_plain_peer_gets_no_send_with_immediate,
}

/// Carries octets both ways until nothing is left.
pub(super) fn settle(a: &mut End, b: &mut End, piece: usize) {
    while !(a.engine.poll_transmit(now()).is_empty() && b.engine.poll_transmit(now()).is_empty()) {
        a.carry_to(b, piece);
        b.carry_to(a, piece);
    }
}

/// Two dgiwarp peers that have detected each other.
pub(super) fn detected_pair(llp: Lower) -> (End, End) {
    let (mut client, mut server) = pair_over(llp, 4, [RcOptions::default(); 2]);
    client.work(|_, _, _| ());
    settle(&mut client, &mut server, 100);
    for end in [&client, &server] {
        assert!(matches!(
            end.engine.stream.dgiwarp_ext().peer(),
            Peer::Dgiwarp(_)
        ));
    }
    (client, server)
}

pub(super) fn send(end: &mut End, wr_id: u64, length: u32) {
    let sges = [end.sge(0, length)];
    let work = RcWork::Send { invalidate: None };
    end.post(wr_id, work, &sges, false);
}

pub(super) fn write_to(target: &End) -> RcWork {
    let region = target.memory.region();
    let keys = target.mrs.register(region, 0, Access::REMOTE_WRITE, PD);
    RcWork::Write {
        stag: STag::new(keys.rkey),
        start: TaggedOffset::new(8000),
        immediate: None,
    }
}

pub(super) fn ids(wcs: &[Wc]) -> Vec<u64> {
    assert!(
        wcs.iter().all(|wc| wc.status == WcStatus::Success),
        "{wcs:?}"
    );
    wcs.iter().map(|wc| wc.wr_id).collect()
}

/// Sends pending acknowledgements, as a poll that finds nothing does.
fn flush(end: &mut End) {
    assert!(end.engine.flush_acks(now(), true));
    end.work(|_, _, _| ());
}

fn the_first_message_each_way_is_the_hello(llp: Lower) {
    let (mut client, mut server) = pair_over(llp, 1, [RcOptions::default(); 2]);
    server.work(|_, _, _| ());
    assert!(server.engine.poll_transmit(now()).is_empty());
    client.work(|_, _, _| ());
    // Behind MPA's length: the control octets, and the STag.
    let stag = if llp == Lower::Mpa { 4..8 } else { 2..6 };
    assert_eq!(client.waiting(), llp.octets(14));
    assert_eq!(client.engine.poll_transmit(now())[stag.clone()], *b"DGiW");
    client.carry_to(&mut server, 3);
    assert_eq!(server.engine.poll_transmit(now())[stag], *b"DGiW");
    server.carry_to(&mut client, 3);
    assert!(client.engine.poll_transmit(now()).is_empty());
}

/// A Read that arrives with the Initiator's first message is answered while that input is handled.
fn the_hello_comes_before_the_response_to_what_came_with_the_peers(llp: Lower) {
    let (mut client, mut server) = pair_over(llp, 1, [RcOptions::default(); 2]);
    server.memory.write(0, &[7; 10]);
    let keys = server
        .mrs
        .register(server.memory.region(), 0, Access::REMOTE_READ, PD);
    let read = RcWork::Read {
        stag: STag::new(keys.rkey),
        start: TaggedOffset::new(0),
    };
    client.post(1, read, &[client.sge(100, 10)], false);
    client.carry_to(&mut server, usize::MAX);
    let stag = if llp == Lower::Mpa { 4..8 } else { 2..6 };
    assert_eq!(server.engine.poll_transmit(now())[stag], *b"DGiW");
    settle(&mut client, &mut server, 100);
    assert_eq!(ids(&client.completed.sent), [1]);
    assert_eq!(client.memory.to_vec(100, 10), [7; 10]);
    for end in [&client, &server] {
        let peer = end.engine.stream.dgiwarp_ext().peer();
        assert!(matches!(peer, Peer::Dgiwarp(_)));
    }
}

/// FPDUs of 16 KiB at most, where segments are not as long.
#[test]
fn fpdus_to_a_dgiwarp_peer_fill_several_segments() {
    for (options, long) in [(RcOptions::default(), true), (PLAIN, false)] {
        let (mut client, mut server) = pair_over(Lower::Mpa, 1, [options, options]);
        client.engine.follow_path(1448, None);
        assert_eq!(client.engine.llp.mulpdu(), 1442);
        client.work(|_, _, _| ());
        client.carry_to(&mut server, usize::MAX);
        server.carry_to(&mut client, usize::MAX);
        for (emss, chosen, one, several) in [
            (1448, None, 1442, 11 * 1448 - 6),
            (8948, None, 8942, 8942),
            (65_483, None, 64_768, 64_768),
            (0, None, 128, 128),
            (1448, Some(1442), 1442, 1442),
        ] {
            client.engine.follow_path(emss, chosen);
            let expected = if long { several } else { one };
            assert_eq!(client.engine.llp.mulpdu(), expected, "{emss}");
        }
    }
}

fn a_plain_initiator_gets_no_hello_and_a_quiet_responder_is_plain(llp: Lower) {
    for options in [[PLAIN, RcOptions::default()], [RcOptions::default(), PLAIN]] {
        let (mut client, mut server) = pair_over(llp, 1, options);
        server.post_recv(1, 0, 100);
        client.post_recv(2, 0, 100);
        send(&mut client, 3, 10);
        send(&mut server, 4, 10);
        settle(&mut client, &mut server, 50);
        for (end, options) in [(&client, options[0]), (&server, options[1])] {
            assert_eq!(end.completed.received.len(), 1);
            assert_eq!(end.engine.stream.dgiwarp_ext().peer(), Peer::Plain);
            assert_eq!(end.completed.sent.len(), 1, "{options:?}");
        }
        let fpdus = server.engine.counters().segments_sent;
        assert_eq!(fpdus, 1, "the Send and nothing else");
    }
}

fn a_send_and_a_write_complete_when_they_were_placed_and_not_before(llp: Lower) {
    for piece in [1, 7, 1 << 20] {
        let (mut client, mut server) = detected_pair(llp);
        server.post_recv(9, 0, 4000);
        client.memory.write(0, &[7; 4000]);
        send(&mut client, 1, 4000);
        let source = [client.sge(0, 4000)];
        let write = write_to(&server);
        client.post(2, write, &source, false);
        client.carry_to(&mut server, piece);
        assert_eq!(server.memory.to_vec(8000, 4000), [7; 4000]);
        assert!(client.completed.sent.is_empty(), "nothing came back yet");
        assert!(server.engine.poll_transmit(now()).is_empty());
        flush(&mut server);
        server.carry_to(&mut client, piece);
        assert_eq!(ids(&client.completed.sent), [1, 2]);
        assert_eq!(client.completed.retired, 2);
    }
}

fn acknowledgements_ride_on_answers(llp: Lower) {
    let (mut client, mut server) = detected_pair(llp);
    for round in 0..10 {
        server.post_recv(9, 0, 100);
        client.post_recv(9, 0, 100);
        send(&mut client, round, 64);
        // The Send, and the request behind it.
        assert_eq!(client.waiting(), llp.octets(82) + llp.octets(14));
        client.carry_to(&mut server, 1 << 20);
        assert!(server.engine.poll_transmit(now()).is_empty(), "not alone");
        send(&mut server, round, 64);
        assert_eq!(server.waiting(), llp.octets(82) + llp.octets(14));
        server.carry_to(&mut client, 1 << 20);
        assert_eq!(ids(&client.completed.sent), Vec::from_iter(0..=round));
    }
    assert_eq!(
        server.completed.sent.len(),
        9,
        "the last is not acknowledged"
    );
}

fn a_stream_is_acknowledged_now_and_then_with_one_request_at_a_time(llp: Lower) {
    let (mut client, mut server) = detected_pair(llp);
    let before = server.engine.counters().segments_sent;
    let write = write_to(&server);
    for wr_id in 0..1000 {
        let source = [client.sge(0, 64)];
        client.post(wr_id, write, &source, false);
        client.carry_to(&mut server, 1 << 20);
        server.carry_to(&mut client, 1 << 20);
    }
    let sent = server.engine.counters().segments_sent - before;
    assert_eq!(sent, 1000 / 64, "the requests are for the next poll");
    assert_eq!(client.completed.sent.len(), 960);
    // Large ones are acknowledged one by one.
    let source = [client.sge(0, 8000)];
    for _ in 0..40 {
        client.post(0, write, &source, false);
        client.carry_to(&mut server, 1 << 20);
        server.carry_to(&mut client, 1 << 20);
    }
    let more = server.engine.counters().segments_sent - before - sent;
    assert_eq!(more, 1, "320,000 octets");
}

fn an_answer_proves_what_left_before_the_request_was_placed(llp: Lower) {
    let (mut client, mut server) = detected_pair(llp);
    let write = write_to(&server);
    let keys = server
        .mrs
        .register(server.memory.region(), 0, Access::REMOTE_READ, PD);
    let source = [client.sge(0, 64)];
    client.post(1, write, &source, false);
    let read = RcWork::Read {
        stag: STag::new(keys.rkey),
        start: TaggedOffset::new(0),
    };
    client.post(2, read, &source, false);
    client.post(3, write, &source, false);
    client.carry_to(&mut server, 64);
    // The acknowledgement in front of the response is lost.
    server.take(llp.octets(14));
    assert_eq!(server.waiting(), llp.octets(14 + 64));
    client.arrive(&server.take(usize::MAX));
    assert_eq!(ids(&client.completed.sent), [1, 2]);
}

fn completion_is_local_where_either_wants_it_so(llp: Lower) {
    let local = RcOptions {
        completion: Completion::Local,
        ..RcOptions::default()
    };
    let (mut client, mut server) = pair_over(llp, 1, [local, RcOptions::default()]);
    client.work(|_, _, _| ());
    settle(&mut client, &mut server, 100);
    server.post_recv(9, 0, 100);
    send(&mut client, 1, 64);
    assert_eq!(client.waiting(), llp.octets(82), "no request");
    client.carry_to(&mut server, 100);
    assert_eq!(ids(&client.completed.sent), [1]);
    assert!(!server.has_pending_acks(), "not wanted");
}

/// A peer of whom nothing is known gets some time to say who it is.
fn completions_wait_for_the_hello_for_a_while(llp: Lower) {
    let (mut client, mut server) = pair_over(llp, 1, [RcOptions::default(), PLAIN]);
    server.post_recv(9, 0, 100);
    let start = now();
    send(&mut client, 1, 64);
    client.carry_to(&mut server, 100);
    assert!(client.completed.sent.is_empty());
    let until = start + Duration::from_secs(1);
    let mut due = 0;
    while let Some(at) = client.engine.poll_timeout().filter(|at| *at < until) {
        client.engine.handle_timeout(at);
        client.work(|_, _, _| ());
        due += 1;
        if !client.completed.sent.is_empty() {
            assert!(at >= start + Duration::from_millis(100));
            break;
        }
        client.carry_to(&mut server, 100);
    }
    assert_eq!((ids(&client.completed.sent), due < 10), (vec![1], true));
}

fn a_lost_connection_gives_no_success_for_what_was_not_placed(llp: Lower) {
    let (mut client, mut server) = detected_pair(llp);
    server.post_recv(9, 0, 100);
    for wr_id in 0..3 {
        send(&mut client, wr_id, 64);
    }
    client.carry_to(&mut server, 100);
    client.work(|engine, tables, completed| {
        engine.handle_end(now(), TcpEnd::Lost, tables, completed);
    });
    let statuses: Vec<_> = client.completed.sent.iter().map(|wc| wc.status).collect();
    let flushed = WcStatus::Flushed;
    assert_eq!(statuses, [WcStatus::RetryExceeded, flushed, flushed]);
}

pub(super) fn resume(end: &mut End) {
    end.work(|engine, tables, completed| engine.receive_posted(now(), tables, completed));
}

fn messages_wait_for_receives_in_order_while_answers_pass(llp: Lower) {
    for piece in [1, 13, 1 << 20] {
        let (mut client, mut server) = detected_pair(llp);
        let keys = client
            .mrs
            .register(client.memory.region(), 0, Access::REMOTE_READ, PD);
        client.memory.write(0, &[5; 3000]);
        send(&mut client, 1, 3000);
        client.memory.write(0, &[6; 3000]);
        send(&mut client, 2, 10);
        let write = write_to(&server);
        let source = [client.sge(0, 100)];
        client.post(3, write, &source, false);
        client.carry_to(&mut server, piece);
        assert_eq!(server.engine.end(), None);
        assert_eq!(
            server.memory.to_vec(8000, 100),
            [0; 100],
            "behind the Sends"
        );

        // The server reads and writes meanwhile, and is answered.
        let read = RcWork::Read {
            stag: STag::new(keys.rkey),
            start: TaggedOffset::new(0),
        };
        let sink = [server.sge(12_000, 100)];
        server.post(7, read, &sink, false);
        settle(&mut client, &mut server, piece);
        assert_eq!(ids(&server.completed.sent), [7]);
        assert_eq!(server.memory.to_vec(12_000, 100), [6; 100]);
        assert!(client.completed.sent.is_empty(), "none of it was placed");
        assert!(server.completed.received.is_empty());

        server.post_recv(10, 0, 3000);
        resume(&mut server);
        assert_eq!(server.memory.to_vec(0, 3000), [5; 3000]);
        settle(&mut client, &mut server, piece);
        assert_eq!(ids(&client.completed.sent), [1]);
        server.post_recv(11, 4000, 3000);
        resume(&mut server);
        settle(&mut client, &mut server, piece);
        assert_eq!(ids(&client.completed.sent), [1, 2, 3]);
        assert_eq!(ids(&server.completed.received), [10, 11]);
        assert_eq!(server.memory.to_vec(8000, 100), [6; 100]);
        assert!(server.engine.rnr_queue.is_empty());
    }
}

fn what_waits_is_bounded(llp: Lower) {
    let (mut client, mut server) = detected_pair(llp);
    for wr_id in 0..40 {
        send(&mut client, wr_id, 16_000);
    }
    let mut received = 0;
    loop {
        let room = server.engine.rnr_room().min(10_000);
        let octets = client.take(room);
        if octets.is_empty() {
            break;
        }
        received += octets.iter().map(Vec::len).sum::<usize>();
        server.arrive(&octets);
    }
    assert!(!client.engine.poll_transmit(now()).is_empty());
    assert!(
        (LIMIT - 2000..LIMIT + 2000).contains(&received),
        "{received}"
    );
    assert!(server.engine.counters().parked > 100);
    for wr_id in 0..40 {
        server.post_recv(wr_id, 0, 16_000);
        resume(&mut server);
        settle(&mut client, &mut server, 1 << 20);
    }
    assert_eq!(ids(&client.completed.sent), Vec::from_iter(0..40));
}

fn waiting_for_a_receive_has_its_limit(llp: Lower) {
    let limit = Duration::from_millis(300);
    let options = RcOptions {
        receive_timeout: Some(limit),
        ..RcOptions::default()
    };
    let (mut client, mut server) = pair_over(llp, 1, [options; 2]);
    client.work(|_, _, _| ());
    settle(&mut client, &mut server, 100);
    let start = now();
    send(&mut client, 1, 64);
    client.carry_to(&mut server, 100);
    let due = server.engine.poll_timeout().unwrap();
    assert!(due >= start + limit);
    server.engine.handle_timeout(start);
    server.work(|_, _, _| ());
    assert_eq!(server.engine.end(), None);
    server.engine.handle_timeout(due);
    server.work(|_, _, _| ());
    assert!(matches!(server.engine.end(), Some(RcEnd::Stream(_))));
    server.carry_to(&mut client, 100);
    let status = client.completed.sent[0].status;
    assert_eq!(status, WcStatus::RnrRetryExceeded);
    assert!(options.no_receive == NoReceive::Wait);
}

fn a_send_carries_an_immediate_to_our_own_kind(llp: Lower) {
    let work = RcWork::SendImmediate { immediate: 0xbeef };
    let (mut client, mut server) = pair_over(llp, 1, [RcOptions::default(); 2]);
    server.post_recv(9, 0, 100);
    server.post_recv(10, 0, 100);
    let sges = [client.sge(0, 10)];
    client.post(1, work, &sges, false);
    send(&mut client, 2, 10);
    // Only the hello until the peer's was received.
    assert_eq!(client.waiting(), llp.octets(14));
    settle(&mut client, &mut server, 9);
    let received = &server.completed.received;
    assert_eq!(ids(received), [9, 10]);
    let found = [0, 1].map(|i: usize| (received[i].opcode, received[i].immediate));
    let recv = crate::types::WcOpcode::Recv;
    assert_eq!(found, [(recv, Some(0xbeef)), (recv, None)]);
    flush(&mut server);
    settle(&mut client, &mut server, 9);
    assert_eq!(ids(&client.completed.sent), [1, 2]);
}

fn a_plain_peer_gets_no_send_with_immediate(llp: Lower) {
    let options = [RcOptions::default(), PLAIN];
    let (mut client, mut server) = pair_over(llp, 1, options);
    let sges = [client.sge(0, 10)];
    client.post(1, RcWork::SendImmediate { immediate: 5 }, &sges, false);
    client.carry_to(&mut server, 100);
    let due = now() + Duration::from_secs(3);
    client.engine.handle_timeout(due);
    client.work(|_, _, _| ());
    assert_eq!(client.completed.sent[0].status, WcStatus::General);
    assert_eq!(client.engine.end(), Some(RcEnd::NoImmediates));
    assert!(client.engine.peer_refuses_immediates());
}
