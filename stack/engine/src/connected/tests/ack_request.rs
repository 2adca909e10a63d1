//! Acknowledgement requests (rfc-notes/rc-extensions.md).

use std::time::Duration;

use dgiwarp_ddp::{STag, TaggedOffset};

use super::detect_peer::{detected_pair, ids, settle, write_to};
use super::*;
use super::{End, Lower, now, over_each_llp};

over_each_llp! {
    unawaited_acknowledgements_ride_on_messages_or_come_late,
    a_request_follows_once_the_last_one_is_answered,
    a_request_for_all_waits_for_a_receive,
    the_room_of_a_full_send_queue_is_asked_for,
    a_request_finds_its_message_although_others_wait_for_receives,
    requests_before_a_refused_one_succeed,
}

/// ULPDU of a notice, octets.
const NOTICE: usize = 14;
/// ULPDU of a Send of 64 octets, octets.
const SEND: usize = 18 + 64;
/// ULPDU of a Write of 64 octets, octets.
const WRITE: usize = 14 + 64;

fn post(end: &mut End, wr_id: usize, signaled: bool) {
    let wr_id = wr_id as u64;
    let sges = [end.sge(0, 64)];
    let work = RcWork::Send { invalidate: None };
    end.post_as(wr_id, work, &sges, signaled);
}

/// A poll that finds nothing, long after messages were placed. Returns whether an acknowledgement leaves.
fn poll(end: &mut End) -> bool {
    let flushed = end.engine.flush_acks(now() + Duration::from_secs(1), true);
    end.work(|_, _, _| ());
    flushed
}

fn unawaited_acknowledgements_ride_on_messages_or_come_late(llp: Lower) {
    let (mut client, mut server) = detected_pair(llp);
    for round in 0..8 {
        server.post_recv(7, 0, 100);
        client.post_recv(7, 0, 100);
        post(&mut client, round, false);
        assert_eq!(
            client.waiting(),
            llp.octets(SEND) + llp.octets(NOTICE) * usize::from(round > 0)
        );
        client.carry_to(&mut server, 1 << 20);
        assert!(server.has_pending_acks() && !server.engine.is_ack_awaited());
        assert!(!poll(&mut server), "it may wait");
        // It rides on the answer.
        post(&mut server, round, false);
        assert_eq!(server.waiting(), llp.octets(SEND) + llp.octets(NOTICE));
        server.carry_to(&mut client, 1 << 20);
        assert_eq!(client.completed.retired, round + 1);
        assert!(!poll(&mut client));
    }
    assert!(client.completed.sent.is_empty());
    // Late it leaves alone.
    let late = client.engine.poll_timeout().unwrap();
    assert!(late > now() && late <= now() + Duration::from_millis(250));
    client.engine.handle_timeout(late - Duration::from_nanos(1));
    client.work(|_, _, _| ());
    assert_eq!(client.waiting(), 0, "too early");
    client.engine.handle_timeout(late);
    client.work(|_, _, _| ());
    settle(&mut client, &mut server, 50);
    assert_eq!(server.completed.retired, 8);
    assert_eq!(client.engine.poll_timeout(), None, "once");
}

fn a_request_follows_once_the_last_one_is_answered(llp: Lower) {
    for rest in [1, 2, 7] {
        let (mut client, mut server) = detected_pair(llp);
        for wr_id in 0..=rest {
            server.post_recv(7, 0, 100);
            post(&mut client, wr_id, wr_id == 0 || wr_id == rest);
        }
        // The first arrives alone, and the request with it is answered.
        let first = llp.octets(NOTICE) + llp.octets(SEND);
        let first = client.take(first);
        let others = client.take(usize::MAX);
        server.arrive(&first);
        assert!(poll(&mut server));
        server.carry_to(&mut client, 1 << 20);
        assert_eq!(ids(&client.completed.sent), [0]);
        server.arrive(&others);
        assert!(!poll(&mut server), "not requested");
        assert_eq!(client.waiting(), llp.octets(NOTICE), "a request alone");
        client.carry_to(&mut server, 3);
        assert!(poll(&mut server));
        server.carry_to(&mut client, 3);
        assert_eq!(ids(&client.completed.sent), [0, rest as u64]);
        assert_eq!(client.completed.retired, rest + 1);
        settle(&mut client, &mut server, 50);
        assert_eq!(client.waiting(), 0, "no more requests");
    }
}

fn a_request_for_all_waits_for_a_receive(llp: Lower) {
    let (mut client, mut server) = detected_pair(llp);
    for wr_id in 0..2 {
        post(&mut client, wr_id, false);
    }
    client.engine.request_all_acks();
    client.work(|_, _, _| ());
    client.carry_to(&mut server, 1 << 20);
    for wr_id in 0..2 {
        assert!(!poll(&mut server), "nothing is placed");
        server.post_recv(7, 0, 100);
        server.work(|engine, tables, completed| engine.receive_posted(now(), tables, completed));
        settle(&mut client, &mut server, 50);
        assert_eq!(client.completed.retired, wr_id + 1);
    }
}

fn the_room_of_a_full_send_queue_is_asked_for(llp: Lower) {
    for (most, crowd) in [(1, 1), (2, 1), (16, 8), (1000, 32)] {
        let (mut client, mut server) = detected_pair(llp);
        client.engine.limit_sends(most);
        let write = write_to(&server);
        let source = [client.sge(0, 64)];
        for number in 1..=crowd {
            let before = client.waiting();
            client.post_as(0, write, &source, false);
            let added = client.waiting() - before;
            let request = usize::from(number == crowd);
            assert_eq!(
                added,
                llp.octets(WRITE) + llp.octets(NOTICE) * request,
                "{number} of {most}"
            );
        }
        client.carry_to(&mut server, 1 << 20);
        assert!(poll(&mut server));
        server.carry_to(&mut client, 1 << 20);
        assert_eq!(client.completed.retired, crowd);
    }
}

fn a_request_finds_its_message_although_others_wait_for_receives(llp: Lower) {
    let (mut client, mut server) = detected_pair(llp);
    for wr_id in 0..3 {
        post(&mut client, wr_id, wr_id == 2);
    }
    client.carry_to(&mut server, 1 << 20);
    for placed in 1..=3 {
        server.post_recv(7, 0, 100);
        server.work(|engine, tables, completed| engine.receive_posted(now(), tables, completed));
        let flushed = server.waiting() > 0;
        assert_eq!(flushed, placed == 3, "{placed} placed");
    }
    server.carry_to(&mut client, 1 << 20);
    assert_eq!(ids(&client.completed.sent), [2]);
}

/// The acknowledgement of messages that were placed leaves in front of the Terminate, whatever was refused.
fn requests_before_a_refused_one_succeed(llp: Lower) {
    let wrong = (STag::new(0x0bad_0bad), TaggedOffset::new(0));
    let refused = [
        RcWork::Read {
            stag: wrong.0,
            start: wrong.1,
        },
        RcWork::Write {
            stag: wrong.0,
            start: wrong.1,
            immediate: None,
        },
    ];
    // The refused one may arrive with the hello, before the server's has left.
    let cases = refused.into_iter().flat_map(|it| [(it, true), (it, false)]);
    for (work, detected) in cases {
        let (mut client, mut server) = if detected {
            detected_pair(llp)
        } else {
            pair_over(llp, 4, [RcOptions::default(); 2])
        };
        server.post_recv(7, 0, 100);
        let target = write_to(&server);
        let sges = [client.sge(0, 64)];
        post(&mut client, 1, true);
        client.post(2, target, &sges, false);
        client.post(3, work, &sges, false);
        client.post(4, target, &sges, false);
        settle(&mut client, &mut server, 1 << 20);
        let outcomes: Vec<_> = client
            .completed
            .sent
            .iter()
            .map(|wc| (wc.wr_id, wc.status))
            .collect();
        let expected = [
            (1, WcStatus::Success),
            (2, WcStatus::Success),
            (3, WcStatus::RemoteAccess),
            (4, WcStatus::Flushed),
        ];
        assert_eq!(outcomes, expected);
    }
}
