//! Who wants to know what was placed, and asks: rfc-notes/rc-extensions.md, acknowledgements.

use std::time::Duration;

use super::detect_peer_tests::{acquainted, ids, settle, write_to};
use super::tests::{End, now};
use super::*;

/// What an FPDU of a notice takes: length, header, CRC.
const NOTICE: usize = 20;
/// The same of a Send of 64 octets.
const SEND: usize = 88;
/// The same of a Write.
const WRITE: usize = 84;

fn post(end: &mut End, wr_id: usize, signaled: bool) {
    let wr_id = wr_id as u64;
    let sges = [end.sge(0, 64)];
    let work = RcWork::Send { invalidate: None };
    end.post_as(wr_id, work, &sges, signaled);
}

fn waiting(end: &End) -> usize {
    end.engine.poll_transmit(now()).len()
}

/// A look that finds nothing, long after something was placed.
fn look(end: &mut End) -> bool {
    let told = end.engine.tell_placed(now() + Duration::from_secs(1), true);
    end.work(|_, _, _| ());
    told
}

#[test]
fn nobody_is_told_of_what_nobody_waits_for() {
    let (mut client, mut server) = acquainted();
    for round in 0..8 {
        server.post_recv(7, 0, 100);
        client.post_recv(7, 0, 100);
        post(&mut client, round, false);
        assert_eq!(waiting(&client), SEND + NOTICE * usize::from(round > 0));
        client.carry_to(&mut server, 1 << 20);
        assert!(server.engine.owes_acknowledgement() && !server.engine.is_awaited());
        assert!(!look(&mut server), "it may wait");
        // It rides on the answer.
        post(&mut server, round, false);
        assert_eq!(waiting(&server), SEND + NOTICE);
        server.carry_to(&mut client, 1 << 20);
        assert_eq!(client.completed.retired, round + 1);
        assert!(!look(&mut client));
    }
    assert!(client.completed.sent.is_empty());
    // At some time it is told all the same.
    assert!(client.engine.tell_late());
    client.work(|_, _, _| ());
    settle(&mut client, &mut server, 50);
    assert_eq!(server.completed.retired, 8);
    assert!(!client.engine.tell_late(), "once");
}

#[test]
fn what_was_not_asked_about_is_asked_for_once_the_last_question_is_answered() {
    for rest in [1, 2, 7] {
        let (mut client, mut server) = acquainted();
        for wr_id in 0..=rest {
            server.post_recv(7, 0, 100);
            post(&mut client, wr_id, wr_id == 0 || wr_id == rest);
        }
        // The first arrives alone, and the question with it is answered.
        let first = NOTICE + SEND;
        let octets = client.engine.poll_transmit(now()).to_vec();
        client.work(|engine, _, completed| engine.transmitted(now(), octets.len(), completed));
        let arrive = |server: &mut End, octets: &[u8]| {
            server.work(|engine, tables, completed| {
                engine.handle_input(now(), octets, tables, completed);
            });
        };
        arrive(&mut server, &octets[..first]);
        assert!(look(&mut server));
        server.carry_to(&mut client, 1 << 20);
        assert_eq!(ids(&client.completed.sent), [0]);
        arrive(&mut server, &octets[first..]);
        assert!(!look(&mut server), "nobody asked");
        assert_eq!(waiting(&client), NOTICE, "a question alone");
        client.carry_to(&mut server, 3);
        assert!(look(&mut server));
        server.carry_to(&mut client, 3);
        assert_eq!(ids(&client.completed.sent), [0, rest as u64]);
        assert_eq!(client.completed.retired, rest + 1);
        settle(&mut client, &mut server, 50);
        assert_eq!(waiting(&client), 0, "no more questions");
    }
}

#[test]
fn a_question_of_all_waits_for_a_receive() {
    let (mut client, mut server) = acquainted();
    for wr_id in 0..2 {
        post(&mut client, wr_id, false);
    }
    client.engine.ask_for_all();
    client.work(|_, _, _| ());
    client.carry_to(&mut server, 1 << 20);
    for wr_id in 0..2 {
        assert!(!look(&mut server), "nothing is placed");
        server.post_recv(7, 0, 100);
        server.work(|engine, tables, completed| engine.resume(now(), tables, completed));
        settle(&mut client, &mut server, 50);
        assert_eq!(client.completed.retired, wr_id + 1);
    }
}

#[test]
fn the_room_of_a_full_send_queue_is_asked_for() {
    for (most, crowd) in [(1, 1), (2, 1), (16, 8), (1000, 32)] {
        let (mut client, mut server) = acquainted();
        client.engine.limit_sends(most);
        let write = write_to(&server);
        let source = [client.sge(0, 64)];
        for number in 1..=crowd {
            let before = waiting(&client);
            client.post_as(0, write, &source, false);
            let added = waiting(&client) - before;
            let asks = usize::from(number == crowd);
            assert_eq!(added, WRITE + NOTICE * asks, "{number} of {most}");
        }
        client.carry_to(&mut server, 1 << 20);
        assert!(look(&mut server));
        server.carry_to(&mut client, 1 << 20);
        assert_eq!(client.completed.retired, crowd);
    }
}

#[test]
fn a_question_finds_its_message_although_others_wait_for_receives() {
    let (mut client, mut server) = acquainted();
    for wr_id in 0..3 {
        post(&mut client, wr_id, wr_id == 2);
    }
    client.carry_to(&mut server, 1 << 20);
    for placed in 1..=3 {
        server.post_recv(7, 0, 100);
        server.work(|engine, tables, completed| engine.resume(now(), tables, completed));
        let told = waiting(&server) > 0;
        assert_eq!(told, placed == 3, "{placed} placed");
    }
    server.carry_to(&mut client, 1 << 20);
    assert_eq!(ids(&client.completed.sent), [2]);
}
