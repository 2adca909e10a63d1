//! Attributes that the caller sets, and what an end reports.

use super::*;
use crate::rd::frame::{Frame, NotReady};

const SECOND: Duration = Duration::from_secs(1);

fn close_reasons(datagrams: &[Vec<u8>]) -> Vec<CloseReason> {
    frames(datagrams, |frame| match frame {
        Frame::Close(close) => Some(close.reason),
        _ => None,
    })
}

impl End {
    /// Handles a datagram whose segments find no receive.
    fn refuse(&mut self, from: u16, datagram: &[u8]) {
        let octets = PayloadSlice::<[u8]>::new(datagram);
        let refuse = &mut |_, _: &SegmentHeader, _, _: PayloadSlice<'_, [u8]>| Verdict::NotReady;
        self.endpoint
            .handle_input(self.now, peer(from), Ecn::NotEct, octets, refuse)
            .unwrap();
    }

    fn events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.endpoint.poll_event()).collect()
    }

    /// Lets timers expire up to an instant.
    fn expire_until(&mut self, end: Instant) {
        for _ in 0..100 {
            if self.now >= end {
                return;
            }
            self.expire();
            self.transmit(0);
        }
        panic!("timers without end");
    }

    /// Lets time pass until a timer is due, and handles it.
    fn expire(&mut self) {
        self.now = self.endpoint.poll_timeout().unwrap().max(self.now);
        self.endpoint.handle_timeout(self.now);
    }
}

#[test]
fn rnr_has_the_delay_and_the_retries_that_were_set() {
    let (mut client, mut server) = ends(|_| ());
    acquaint(&mut client, &mut server);
    client.endpoint.set_rnr_retries(Some(0));
    server.endpoint.set_rnr_delay(Duration::from_micros(12_345));
    client.post(SERVER, 1, 64);
    client.events();
    for datagram in client.transmit(SERVER) {
        server.refuse(CLIENT, &datagram);
    }
    let answer = server.transmit(CLIENT);
    let delays: Vec<u32> = frames(&answer, |frame| match frame {
        Frame::NotReady(NotReady { delay, .. }) => Some(delay),
        _ => None,
    });
    assert_eq!(delays, [12_345]);
    for datagram in answer {
        client.receive(SERVER, &datagram).unwrap();
    }
    let failed = Event::Failed {
        peer: peer(SERVER),
        token: 1,
        cause: Cause::RnrRetries,
    };
    assert!(client.events().contains(&failed));
}

#[test]
fn an_end_that_accepts_no_more_serves_those_it_has() {
    let (mut client, mut server) = ends(|_| ());
    acquaint(&mut client, &mut server);
    server.endpoint.stop_accepting();
    let mut other = End::new(3, server.now, |_| ());
    other.post(SERVER, 1, 64);
    let hello = other.transmit(SERVER).remove(0);
    let refused = server.receive(3, &hello);
    assert!(matches!(refused, Err(Dropped::Late(_))), "{refused:?}");
    client.post(SERVER, 1, 64);
    client.carry(&mut server);
    assert_eq!(server.placed, 2);
    server.endpoint.renew(server.now, 77, [5, 6]);
    assert_eq!(server.receive(3, &hello), Ok(()));
}

#[test]
fn a_silent_peer_is_lost_after_the_time_that_was_set() {
    for silence in [SECOND, 9 * SECOND] {
        let (mut client, mut server) = ends(|_| ());
        acquaint(&mut client, &mut server);
        client.endpoint.set_unreachable(silence);
        let began = client.now;
        unanswered(&mut client);
        alone(&mut client, SERVER);
        assert_eq!(client.now - began, silence);
        // Nobody hears its end.
        assert_eq!(client.transmit(SERVER), Vec::<Vec<u8>>::new());
    }
}

#[test]
fn a_peer_is_greeted_without_a_message_and_once() {
    let (mut client, mut server) = ends(|_| ());
    client.endpoint.greet_peer(client.now, peer(SERVER), 1400);
    let hello = client.transmit(SERVER);
    assert_eq!(hello.len(), 1);
    assert_eq!(client.endpoint.datagram(peer(SERVER)), Some(1400));
    server.receive(CLIENT, &hello[0]).unwrap();
    assert_eq!(server.endpoint.associations(), 1);
    client.endpoint.greet_peer(client.now, peer(SERVER), 1000);
    assert_eq!(client.endpoint.associations(), 1);
    assert_eq!(client.endpoint.datagram(peer(SERVER)), Some(1400));
    assert_eq!(client.transmit(SERVER), Vec::<Vec<u8>>::new());
}

/// A peer that was greeted in vain has all the time from the first message on; further messages give it no more.
#[test]
fn silence_of_a_greeted_peer_counts_from_the_first_message() {
    let (mut client, _) = ends(|_| ());
    let began = client.now;
    client.endpoint.greet_peer(client.now, peer(SERVER), 1472);
    client.transmit(SERVER);
    client.expire_until(began + 3 * SECOND);
    let posted = client.now;
    client.post(SERVER, 1, 64);
    client.transmit(SERVER);
    client.expire_until(posted + 2 * SECOND);
    client.post(SERVER, 1, 64);
    alone(&mut client, SERVER);
    assert_eq!(client.now - posted, 4 * SECOND);
}

#[test]
fn the_silence_of_a_known_peer_counts_from_the_first_datagram_that_it_does_not_answer() {
    let (mut client, mut server) = ends(|_| ());
    acquaint(&mut client, &mut server);
    client.carry(&mut server);
    client.endpoint.await_responses(peer(SERVER), true);
    client.transmit(SERVER);
    let began = (0..10).find_map(|_| {
        client.expire();
        let probed = !client.transmit(SERVER).is_empty();
        probed.then_some(client.now)
    });
    let began = began.unwrap();
    client.now += SECOND;
    client.post(SERVER, 1, 64);
    client.transmit(SERVER);
    alone(&mut client, SERVER);
    assert_eq!(client.now - began, 4 * SECOND);
}

#[test]
fn the_state_of_a_path_is_that_of_its_association() {
    let (mut client, mut server) = ends(|_| ());
    assert_eq!(client.endpoint.path_state(peer(SERVER)), None);
    client.post(SERVER, 1, 64);
    let state = client.endpoint.path_state(peer(SERVER)).unwrap();
    let expected = PathState {
        window: Some(14_720),
        in_flight: 0,
        smoothed_rtt: Duration::from_millis(10),
        minimum_rtt: None,
        lost: None,
    };
    assert_eq!(state, expected);
    let sent = client.transmit(SERVER);
    let in_flight = client.endpoint.path_state(peer(SERVER)).unwrap().in_flight;
    assert_eq!(in_flight, sent[0].len() as u64);
    server.receive(CLIENT, &sent[0]).unwrap();
    client.now += Duration::from_millis(3);
    server.carry(&mut client);
    let state = client.endpoint.path_state(peer(SERVER)).unwrap();
    assert_eq!(state.minimum_rtt, Some(Duration::from_millis(3)));
    assert_eq!(
        (state.smoothed_rtt, state.in_flight),
        (Duration::from_millis(3), 0)
    );
    let (mut client, _) = ends(|config| config.algorithm = Algorithm::FixedRate(1000));
    client.post(SERVER, 1, 64);
    let state = client.endpoint.path_state(peer(SERVER)).unwrap();
    assert_eq!(state.window, None);
}

/// §3.9, §4.6: the reason of each end, and how often it is repeated where nothing of this end will follow.
#[test]
fn closes_have_their_reason() {
    let lives = Lives { own: 1, peer: 1 };
    type EndOf = fn(&mut End);
    let cases: [(EndOf, Option<Lives>, &[CloseReason]); 5] = [
        (
            |end| end.endpoint.close(end.now, peer(SERVER)),
            None,
            &[CloseReason::Done],
        ),
        (
            |end| end.endpoint.fail(end.now, peer(SERVER)),
            None,
            &[CloseReason::Failed],
        ),
        (
            |end| end.endpoint.leave_all(end.now),
            None,
            &[CloseReason::Exited; CLOSES],
        ),
        (
            |end| end.endpoint.close_all(end.now),
            Some(lives),
            &[CloseReason::Done; CLOSES],
        ),
        (
            |end| {
                let idle = end.endpoint.config.idle;
                end.now += idle;
                end.endpoint.handle_timeout(end.now);
            },
            None,
            &[CloseReason::Done],
        ),
    ];
    for (close, lives, expected) in cases {
        let (mut client, mut server) = ends(|config| config.connection = lives);
        acquaint(&mut client, &mut server);
        client.now += Duration::from_millis(2);
        client.endpoint.handle_timeout(client.now);
        client.carry(&mut server);
        server.now = client.now + Duration::from_millis(2);
        client.now = server.now;
        server.carry(&mut client);
        client.transmit(SERVER);
        close(&mut client);
        assert_eq!(close_reasons(&client.transmit(SERVER)), expected);
        assert_eq!(client.endpoint.associations(), 0);
    }
}

#[test]
fn answers_outside_associations_are_64_at_most() {
    let (mut client, mut server) = ends(|_| ());
    acquaint(&mut client, &mut server);
    let datagram = unanswered(&mut client);
    let mut other = End::new(SERVER, server.now, |config| config.epoch = 77);
    for _ in 0..100 {
        assert!(other.receive(CLIENT, &datagram).is_err());
    }
    assert_eq!(other.transmit(CLIENT).len(), 64);
}

/// §3.9: an answer to a datagram of an unknown association is no longer than the datagram.
#[test]
fn an_unknown_association_is_answered_where_the_datagram_has_the_octets() {
    for (padding, answers) in [(19, 0), (20, 1)] {
        let (_, mut server) = ends(|_| ());
        let mut datagram = Vec::new();
        Envelope {
            eager: false,
            hello: false,
            association: 0x1234,
            number: 5,
            time: 0,
            epoch: 3,
        }
        .emit(&mut datagram);
        crate::rd::frame::emit_pad(&mut datagram, padding);
        envelope::seal(&mut datagram, 0);
        let unknown = Err(Dropped::UnknownAssociation(0x1234));
        assert_eq!(server.receive(CLIENT, &datagram), unknown);
        let answer = server.transmit(CLIENT);
        assert_eq!(answer.len(), answers);
        assert!(answer.iter().all(|it| it.len() <= datagram.len()));
    }
}

#[test]
fn acknowledgements_are_held_while_the_caller_polls_and_released_once() {
    let (mut client, mut server) = ends(|config| config.polls = true);
    acquaint(&mut client, &mut server);
    assert!(!server.endpoint.holds(), "nothing waits");
    assert!(!server.endpoint.set_polls(false));
    assert!(!server.endpoint.set_polls(true));
    client.post(SERVER, 1, 64);
    client.carry(&mut server);
    assert_eq!(server.transmit(CLIENT), Vec::<Vec<u8>>::new());
    assert!(server.endpoint.holds());
    assert!(!server.endpoint.set_polls(true), "more input is looked for");
    assert_eq!(server.transmit(CLIENT), Vec::<Vec<u8>>::new());
    assert!(server.endpoint.set_polls(false));
    assert_eq!(server.transmit(CLIENT).len(), 1);
    assert!(!server.endpoint.holds());
    assert!(!server.endpoint.set_polls(false), "nothing is held");
    assert_eq!(server.endpoint.held.len(), 0);
    // Without polling nothing is held at any time.
    client.post(SERVER, 1, 64);
    client.carry(&mut server);
    server.transmit(CLIENT);
    assert!(!server.endpoint.holds());
    assert_eq!(server.endpoint.held.len(), 0);
}

/// §6.4: peers that sent segments in this period of 100 ms, or in the one before if these were more.
#[test]
fn the_window_is_divided_among_those_that_sent_lately() {
    // Microseconds at which one peer after the other sends, and their windows in octets.
    for (times, expected) in [
        (&[0, 0][..], &[120_000, 60_000][..]),
        (&[0, 10_000, 20_000], &[120_000, 60_000, 40_000]),
        (&[0, 99_999], &[120_000, 60_000]),
        (&[0, 100_000], &[120_000, 120_000]),
        (&[0, 50_000, 100_000], &[120_000, 60_000, 60_000]),
        (&[0, 50_000, 199_999], &[120_000, 60_000, 60_000]),
        (&[0, 50_000, 200_000], &[120_000, 60_000, 120_000]),
    ] {
        let (_, mut server) = ends(|config| config.window = 120_000);
        let mut peers: Vec<End> = (10..)
            .zip(times)
            .map(|(port, _)| {
                server.now += Duration::from_secs(1);
                neighbour(port, &mut server)
            })
            .collect();
        let began = server.now + Duration::from_secs(1);
        let mut windows = Vec::new();
        for (peer, time) in peers.iter_mut().zip(times) {
            server.now = began + Duration::from_micros(*time);
            peer.now = server.now;
            // Twice: in the first turn it may not be told yet, in the second it is not counted again.
            let granted: Vec<_> = (0..2)
                .filter_map(|_| {
                    peer.post(SERVER, 1, 64);
                    peer.carry(&mut server);
                    granted(&mut server, peer.port)
                })
                .collect();
            windows.push(granted.last().copied());
        }
        let known: Vec<_> = windows.iter().map(|it| it.unwrap_or(120_000)).collect();
        assert_eq!(known, expected, "{times:?}");
    }
}

/// §6.4: invented addresses take nothing of the window from others.
#[test]
fn peers_whose_addresses_are_not_validated_share_no_window() {
    let (_, mut server) = ends(|config| config.window = 120_000);
    let mut peer = neighbour(10, &mut server);
    server.now += Duration::from_secs(1);
    for port in 100..120 {
        let mut stranger = End::new(port, server.now, |_| ());
        stranger.post(SERVER, 1, 64);
        stranger.carry(&mut server);
    }
    peer.now = server.now;
    peer.post(SERVER, 1, 64);
    peer.carry(&mut server);
    assert_eq!(granted(&mut server, 10), None);
}

/// §6.4: the window of a long path grows where it is used up, to the share of what all such peers may have.
#[test]
fn the_larger_window_of_long_paths_is_divided_as_well() {
    for (others, expected) in [(0, 21_000), (1, 10_500), (2, 7000)] {
        let (mut client, mut server) = ends(|config| {
            config.window = 12_000;
            config.long_window = 21_000;
            // Nothing is paced.
            config.algorithm = Algorithm::FixedRate(1_000_000_000);
        });
        let round = Duration::from_millis(20);
        client.post(SERVER, 1, 64);
        client.now += round;
        client.carry(&mut server);
        // A sample for the server.
        server.now = client.now;
        server.post(CLIENT, 1, 64);
        server.now += round;
        client.now = server.now + round;
        server.carry(&mut client);
        server.now = client.now;
        client.carry(&mut server);
        let mut others: Vec<End> = (0..others)
            .map(|port| neighbour(100 + port, &mut server))
            .collect();
        let mut window = None;
        for _ in 0..8 {
            for other in &mut others {
                other.now = server.now;
                other.post(SERVER, 1, 64);
                other.carry(&mut server);
            }
            client.post(SERVER, 6, 1400);
            client.now += round;
            client.endpoint.handle_timeout(client.now);
            let datagrams = client.transmit(SERVER);
            server.now = client.now;
            for datagram in datagrams {
                server.receive(CLIENT, &datagram).unwrap();
            }
            server.now += round / 10;
            server.endpoint.handle_timeout(server.now);
            client.now = server.now;
            for datagram in server.transmit(CLIENT) {
                client.receive(SERVER, &datagram).unwrap();
                let (_, frames) = Envelope::open::<[u8]>(datagram[..].into()).unwrap();
                let credit = Frames::new(frames).find_map(|frame| match frame.unwrap() {
                    Frame::Credit(credit) => Some(credit.window),
                    _ => None,
                });
                window = credit.or(window);
            }
        }
        assert_eq!(window, Some(expected));
    }
}

/// An error about the address that a peer moved to is about that peer, and one about its former address is not.
#[test]
fn errors_about_the_address_that_a_peer_moved_to_count() {
    for (about, doubted) in [(11, true), (CLIENT, false)] {
        let (mut client, mut server) = ends(|_| ());
        acquaint(&mut client, &mut server);
        client.carry(&mut server);
        move_to(&mut client, &mut server, 11);
        server.post(CLIENT, 1, 64);
        let datagram = server.transmit(11).remove(0);
        let began = server.now;
        server
            .endpoint
            .handle_port_unreachable(server.now, peer(about), &datagram);
        alone(&mut server, 11);
        assert_eq!(server.now - began < SECOND, doubted);
    }
}

/// The client goes on at another port, which the server has proven.
fn move_to(client: &mut End, server: &mut End, port: u16) {
    client.port = port;
    client.post(SERVER, 1, 64);
    client.carry(server);
    server.now += Duration::from_millis(2);
    client.now = server.now;
    server.endpoint.handle_timeout(server.now);
    server.carry(client);
    client.carry(server);
    let moved = Event::Moved {
        peer: peer(CLIENT),
        to: peer(port),
    };
    assert!(server.events().contains(&moved));
}

/// The peer keeps the identity of its first address; the address between is free for others.
#[test]
fn an_association_is_found_by_its_first_and_its_present_address() {
    let (mut client, mut server) = ends(|_| ());
    acquaint(&mut client, &mut server);
    client.carry(&mut server);
    let at = server.endpoint.table.by_peer(peer(CLIENT));
    for port in [11, 12, CLIENT] {
        move_to(&mut client, &mut server, port);
        let found = [CLIENT, 11, 12].map(|it| server.endpoint.table.by_peer(peer(it)));
        let expected = [CLIENT, 11, 12].map(|it| at.filter(|_| it == CLIENT || it == port));
        assert_eq!(found, expected, "{port}");
    }
    // The address of another peer stays that peer's, as long as it is there, and this one's end frees its own.
    let mut other = End::new(11, server.now, |_| ());
    acquaint_as(&mut other, &mut server);
    let others = server.endpoint.table.by_peer(peer(11));
    assert!(others.is_some() && others != at);
    server
        .endpoint
        .table
        .moved(at.unwrap(), peer(CLIENT), peer(11));
    assert_eq!(server.endpoint.table.by_peer(peer(11)), others);
    server.endpoint.table.moved(at.unwrap(), peer(11), peer(12));
    assert_eq!(server.endpoint.table.by_peer(peer(11)), others);
    assert_eq!(server.endpoint.table.by_peer(peer(12)), at);
    let table = &mut server.endpoint.table;
    table.moved(at.unwrap(), peer(12), peer(11));
    table.get_mut(at.unwrap()).unwrap().address = peer(11);
    assert!(table.remove(at.unwrap()).is_some());
    let found = [CLIENT, 11, 12].map(|it| table.by_peer(peer(it)));
    assert_eq!(found, [None, others, None]);
}

#[test]
fn a_request_is_refused_behind_its_acknowledgement_or_the_association_fails() {
    let (mut client, mut server) = ends(|_| ());
    acquaint(&mut client, &mut server);
    server.endpoint.refuse(server.now, peer(CLIENT), 0, 7);
    server.carry(&mut client);
    let refused = Event::Refused {
        peer: peer(SERVER),
        message: 0,
        control: 7,
    };
    assert_eq!(client.events().last(), Some(&refused));
    // Too many that the peer does not acknowledge.
    for message in 0..32 {
        server.endpoint.refuse(server.now, peer(CLIENT), message, 7);
    }
    assert_eq!(server.endpoint.associations(), 0);
    let closes = close_reasons(&server.transmit(CLIENT));
    assert!(closes.contains(&CloseReason::Failed), "{closes:?}");
}

/// Its messages fail; the next one opens an association anew.
#[test]
fn messages_of_an_association_that_ends_are_flushed() {
    let (mut client, mut server) = ends(|_| ());
    acquaint(&mut client, &mut server);
    client.post(SERVER, 1, 64);
    client.events();
    client.endpoint.close(client.now, peer(SERVER));
    let cause = Cause::Flushed;
    let failed = Event::Failed {
        peer: peer(SERVER),
        token: 1,
        cause,
    };
    let ended = Event::Ended {
        peer: peer(SERVER),
        cause,
    };
    assert_eq!(client.events(), [failed, ended]);
    client.transmit(SERVER);
    client.post(SERVER, 1, 64);
    assert_eq!(client.transmit(SERVER).len(), 1);
}

fn acquaint_as(client: &mut End, server: &mut End) {
    client.post(SERVER, 1, 64);
    client.carry(server);
}
