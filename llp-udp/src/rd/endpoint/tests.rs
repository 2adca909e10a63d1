//! Two ends and datagrams by hand: addresses that are not validated, lengths of paths, datagrams of former lives.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use super::*;
use crate::rd::congestion::Algorithm;
use crate::rd::envelope;
use crate::rd::frame::{CloseReason, Frame, Frames};

mod attributes;
mod lives;
mod opening;
mod repeats;

const CLIENT: u16 = 1;
const SERVER: u16 = 2;

fn peer(port: u16) -> Peer {
    Peer::ip(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
}

/// An end, its address, and the tokens that were placed at it.
struct End {
    port: u16,
    endpoint: Endpoint,
    now: Instant,
    placed: usize,
}

impl End {
    fn new(port: u16, now: Instant, change: impl FnOnce(&mut RdConfig)) -> Self {
        let mut config = RdConfig::new(now, port.into(), [port.into(), 9]);
        change(&mut config);
        Self {
            port,
            endpoint: Endpoint::new(config),
            now,
            placed: 0,
        }
    }

    /// Posts a message of some segments, each of `length` octets, on a path of an Ethernet.
    fn post(&mut self, to: u16, segments: u32, length: u16) {
        self.post_on(1472, to, segments, length);
    }

    /// Posts a message on a path with datagrams of so many octets.
    fn post_on(&mut self, path: u16, to: u16, segments: u32, length: u16) {
        let post = Post {
            token: 1,
            segments,
            length,
            last_length: length,
            trailer: None,
            stream: None,
            receive: false,
        };
        self.endpoint.post(self.now, peer(to), path, post);
    }

    /// The datagrams that leave now for an end.
    fn transmit(&mut self, to: u16) -> Vec<Vec<u8>> {
        let mut datagrams = Vec::new();
        let mut out = Vec::new();
        let mut write = |_, _, _: &SegmentHeader, segment: &mut [u8]| segment.fill(7);
        while let Some(of) = self.endpoint.poll_transmit(self.now, &mut out, &mut write) {
            let datagram = std::mem::take(&mut out);
            if of == peer(to) {
                datagrams.push(datagram);
            }
            assert!(datagrams.len() < 10_000, "datagrams without end");
        }
        datagrams
    }

    fn receive(&mut self, from: u16, datagram: &[u8]) -> Result<(), Dropped> {
        let placed = &mut self.placed;
        let octets = PayloadSlice::<[u8]>::new(datagram);
        let ecn = Ecn::NotEct;
        self.endpoint
            .handle_input(self.now, peer(from), ecn, octets, &mut |_, _, _, _| {
                *placed += 1;
                Verdict::Placed
            })
    }

    /// Hands the datagrams that leave now to another end.
    fn carry(&mut self, to: &mut Self) {
        for datagram in self.transmit(to.port) {
            to.receive(self.port, &datagram).unwrap();
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "any instant serves as the origin"
)]
fn origin() -> Instant {
    Instant::now()
}

fn ends(change: impl Fn(&mut RdConfig)) -> (End, End) {
    let now = origin();
    let end = |port| End::new(port, now, &change);
    (end(CLIENT), end(SERVER))
}

/// A message and its acknowledgement: each end has the other's identifier.
fn acquaint(client: &mut End, server: &mut End) {
    client.post(SERVER, 1, 64);
    client.carry(server);
    server.now += Duration::from_millis(2);
    client.now = server.now;
    server.carry(client);
}

/// A peer whose address is validated.
fn neighbour(port: u16, server: &mut End) -> End {
    let mut peer = End::new(port, server.now, |_| ());
    acquaint(&mut peer, server);
    peer.post(SERVER, 1, 64);
    peer.carry(server);
    peer
}

/// The window that an end grants a peer from now on, if it changes.
fn granted(end: &mut End, to: u16) -> Option<u32> {
    let windows = frames(&end.transmit(to), |frame| match frame {
        Frame::Credit(credit) => Some(credit.window),
        _ => None,
    });
    windows.last().copied()
}

/// All frames of datagrams, by the name that `choose` has for them.
fn frames<T>(datagrams: &[Vec<u8>], choose: impl Fn(Frame<'_, [u8]>) -> Option<T>) -> Vec<T> {
    let mut all = Vec::new();
    for datagram in datagrams {
        let (_, frames) = Envelope::open::<[u8]>(datagram[..].into()).unwrap();
        all.extend(Frames::new(frames).filter_map(|frame| choose(frame.unwrap())));
    }
    all
}

fn octets(datagrams: &[Vec<u8>]) -> usize {
    datagrams.iter().map(Vec::len).sum()
}

/// A peer whose address is not validated gets three times what came from it, and all of it once it is.
#[test]
fn an_address_that_is_not_validated_gets_three_times_what_came_from_it() {
    let (mut client, mut server) = ends(|_| ());
    client.post(SERVER, 1, 64);
    let question = client.transmit(SERVER);
    server.receive(CLIENT, &question[0]).unwrap();
    server.post(CLIENT, 8, 1000);
    let first = server.transmit(CLIENT);
    assert!(!first.is_empty());
    let sent = octets(&first);
    assert!(sent <= 3 * octets(&question), "{sent} octets");
    for datagram in &first {
        client.receive(SERVER, datagram).unwrap();
    }
    client.now += Duration::from_millis(2);
    server.now = client.now;
    client.carry(&mut server);
    assert!(octets(&server.transmit(CLIENT)) > 3 * octets(&question));
}

/// The end of an association is silent where its CLOSE would be more than that.
#[test]
fn a_close_keeps_to_three_times_what_came() {
    for spent in [true, false] {
        let (mut client, mut server) = ends(|_| ());
        client.post(SERVER, 1, 64);
        let question = client.transmit(SERVER);
        server.receive(CLIENT, &question[0]).unwrap();
        let share = 3 * octets(&question);
        let mut sent = 0;
        if spent {
            // Messages of which each takes some, until nothing fits.
            for _ in 0..20 {
                server.post(CLIENT, 1, 40);
                server.now += Duration::from_millis(100);
                server.endpoint.handle_timeout(server.now);
                sent += octets(&server.transmit(CLIENT));
            }
            assert!(sent + 48 > share, "{sent} of {share}");
        }
        server.endpoint.close(server.now, peer(CLIENT));
        let close = octets(&server.transmit(CLIENT));
        assert!(sent + close <= share, "{sent} and {close} of {share}");
        assert_eq!(close == 0, spent);
    }
}

/// The end of an association acknowledges what arrived: a message that is placed does not fail because its acknowledgement waited or was lost.
#[test]
fn a_close_acknowledges_what_arrived() {
    let (mut client, mut server) = ends(|config| config.polls = true);
    client.post(SERVER, 1, 64);
    client.carry(&mut server);
    server.post(CLIENT, 1, 64);
    server.carry(&mut client);
    // All that the client sends from now on is lost, but for the last one.
    client.endpoint.close(client.now, peer(SERVER));
    let closes = client.transmit(SERVER);
    assert_eq!(closes.len(), CLOSES);
    server.receive(CLIENT, &closes[CLOSES - 1]).unwrap();
    // Copies that come late are no datagrams of an association, and have no answer.
    assert!(server.receive(CLIENT, &closes[0]).is_err());
    assert_eq!(server.transmit(CLIENT), Vec::<Vec<u8>>::new());
    let mut completed = false;
    while let Some(event) = server.endpoint.poll_event() {
        completed |= matches!(event, Event::Completed { .. });
        assert!(!matches!(event, Event::Failed { .. }), "{event:?}");
    }
    assert!(completed);
}

/// Without an acknowledgement that is owed one CLOSE will do, and it reaches each of many peers.
#[test]
fn each_peer_gets_a_close() {
    let (mut client, _) = ends(|_| ());
    for port in 100..300 {
        let (_, mut server) = ends(|_| ());
        server.port = port;
        client.post(port, 1, 64);
        client.carry(&mut server);
        server.now += Duration::from_millis(2);
        client.now = server.now;
        server.carry(&mut client);
    }
    assert_eq!(client.endpoint.associations(), 200);
    client.now += Duration::from_millis(2);
    client.endpoint.handle_timeout(client.now);
    client.transmit(0);
    client.endpoint.close_all(client.now);
    let mut out = Vec::new();
    let mut write = |_, _, _: &SegmentHeader, _: &mut [u8]| ();
    let mut count = 0;
    while client
        .endpoint
        .poll_transmit(client.now, &mut out, &mut write)
        .is_some()
    {
        count += 1;
    }
    assert_eq!((count, client.endpoint.associations()), (200, 0));
}

/// Peers that are not validated have a limit of their own; the next one is asked for its cookie. Peers that are validated and those that
/// this end opened associations with do not count.
#[test]
fn peers_that_are_not_validated_have_a_limit() {
    let (mut client, mut server) = ends(|config| config.unvalidated = 2);
    for port in 10..20 {
        server.post(port, 1, 64);
    }
    let stranger = |port: u16, server: &mut End| {
        let mut stranger = End::new(port, server.now, |_| ());
        stranger.post(SERVER, 1, 64);
        server.receive(port, &stranger.transmit(SERVER)[0])
    };
    for port in [30, 31] {
        assert_eq!(stranger(port, &mut server), Ok(()));
    }
    assert_eq!(stranger(32, &mut server), Err(Dropped::NotValidated));
    client.post(SERVER, 1, 64);
    let hello = client.transmit(SERVER);
    assert_eq!(
        server.receive(CLIENT, &hello[0]),
        Err(Dropped::NotValidated)
    );
    // With the cookie of the answer nothing is missing.
    let placed = server.placed;
    let retry = server.transmit(CLIENT).pop().unwrap();
    client.receive(SERVER, &retry).unwrap();
    client.carry(&mut server);
    assert_eq!(server.placed, placed + 1);
    assert_eq!(stranger(33, &mut server), Err(Dropped::NotValidated));
    // One of the two ends: there is room for one.
    server.endpoint.close(server.now, peer(30));
    assert_eq!(stranger(34, &mut server), Ok(()));
    assert_eq!(stranger(35, &mut server), Err(Dropped::NotValidated));
}

/// A peer that answers is validated, and does not count any more.
#[test]
fn a_peer_that_answers_is_validated() {
    let (mut client, mut server) = ends(|config| config.unvalidated = 1);
    for port in 10..13 {
        let mut stranger = End::new(port, client.now, |_| ());
        stranger.post(SERVER, 1, 64);
        stranger.carry(&mut server);
        server.now += Duration::from_millis(2);
        stranger.now = server.now;
        server.carry(&mut stranger);
        stranger.post(SERVER, 1, 64);
        stranger.carry(&mut server);
    }
    client.now = server.now;
    client.post(SERVER, 1, 64);
    client.carry(&mut server);
    assert_eq!(server.endpoint.associations(), 4);
}

/// Datagrams have the length of their path, that of the latest post, and the first window is ten of them.
#[test]
fn datagrams_have_the_length_of_their_path() {
    let (mut client, _) = ends(|_| ());
    assert_eq!(client.endpoint.datagram(peer(SERVER)), None);
    for path in [600, 9000, 700] {
        client.post_on(path, SERVER, 30, 500);
        assert_eq!(client.endpoint.datagram(peer(SERVER)), Some(path));
    }
    let datagrams = client.transmit(SERVER);
    assert!(datagrams.iter().all(|it| it.len() <= 700));
    assert_eq!(octets(&datagrams) / 1000, 14, "14,720 octets, the least");
    let (mut client, _) = ends(|_| ());
    client.post_on(9000, SERVER, 30, 8900);
    let sent = octets(&client.transmit(SERVER));
    assert!((80_000..=90_000).contains(&sent), "{sent}");
}

/// Peers that send at once share the window, and each has two datagrams of its own length.
#[test]
fn a_share_of_the_window_takes_two_datagrams() {
    const WINDOW: u32 = 20_000;
    let (_, mut server) = ends(|config| config.window = WINDOW);
    let paths = [1472, 1472, 9000, 1472, 1472, 1472, 1472, 1472];
    let mut peers = [10, 11, 12, 13, 14, 15, 16, 17].map(|port| {
        server.now += Duration::from_secs(1);
        neighbour(port, &mut server)
    });
    server.now += Duration::from_secs(1);
    for ((peer, path), count) in peers.iter_mut().zip(paths).zip(1..) {
        peer.now = server.now;
        peer.post_on(path, SERVER, 1, path - 100);
        let sent = peer.transmit(SERVER);
        server.receive(peer.port, &sent[0]).unwrap();
        server.now += Duration::from_millis(11);
        let least = 2 * u32::try_from(sent[0].len().max(1472)).unwrap();
        // The first one has all of it.
        let share = (WINDOW / count).max(least);
        let told = (count > 1).then_some(share);
        assert_eq!(granted(&mut server, peer.port), told, "{count}");
    }
}

/// The peer acknowledges the last datagram of a window at once, whichever window ends there: nothing else leaves before.
#[test]
fn the_last_datagram_of_a_window_is_eager() {
    let eager = |datagrams: &[Vec<u8>]| -> Vec<bool> {
        let open = |it: &Vec<u8>| Envelope::open::<[u8]>(it[..].into()).unwrap().0.eager;
        datagrams.iter().map(open).collect()
    };
    for (grant, algorithm) in [
        (8_000, Algorithm::Cubic),
        (1 << 20, Algorithm::Cubic),
        (1 << 20, Algorithm::Delay),
    ] {
        let (mut client, mut server) = ends(|config| {
            config.window = grant;
            config.algorithm = algorithm;
        });
        acquaint(&mut client, &mut server);
        client.post(SERVER, 200, 1400);
        let mut windows = 0;
        loop {
            // All that pacing lets leave. No time passes at the peer, whose delayed acknowledgements do not become due.
            let mut datagrams = Vec::new();
            for _ in 0..40 {
                client.now += Duration::from_micros(100);
                client.endpoint.handle_timeout(client.now);
                datagrams.append(&mut client.transmit(SERVER));
            }
            let eager = eager(&datagrams);
            let Some((last, others)) = eager.split_last() else {
                break;
            };
            assert!(*last, "{algorithm:?}: {eager:?}");
            assert!(!others.contains(&true), "{algorithm:?}: {eager:?}");
            for datagram in &datagrams {
                server.receive(CLIENT, datagram).unwrap();
            }
            server.carry(&mut client);
            windows += 1;
        }
        assert!(windows > 2, "{algorithm:?}: {windows}");
        assert_eq!(server.placed, 201, "{algorithm:?}");
    }
}

/// The window takes a datagram also where datagrams become longer than it was.
#[test]
fn datagrams_longer_than_the_window_leave() {
    for algorithm in [Algorithm::Cubic, Algorithm::Delay] {
        let (mut client, mut server) = ends(|config| config.algorithm = algorithm);
        acquaint(&mut client, &mut server);
        client.post_on(16_512, SERVER, 4, 16_400);
        let longest = client.transmit(SERVER).iter().map(Vec::len).max();
        assert!(longest > Some(16_400), "{algorithm:?}: {longest:?}");
    }
}

/// Datagrams that left before the first answer have neither identifier nor hello: they belong to the association of the hello before them,
/// and to none once the peer has our identifier.
#[test]
fn datagrams_before_the_first_answer_follow_a_hello() {
    let (mut client, mut server) = ends(|_| ());
    client.post(SERVER, 6, 1400);
    let mut datagrams = client.transmit(SERVER);
    assert!(datagrams.len() >= 4, "{}", datagrams.len());
    let no_hello = Err(Dropped::NoHello);
    assert_eq!(server.receive(CLIENT, &datagrams[1]), no_hello);
    server.receive(CLIENT, &datagrams[0]).unwrap();
    assert_eq!(
        server.receive(SERVER, &datagrams[1]),
        no_hello,
        "of another"
    );
    server.receive(CLIENT, &datagrams[1]).unwrap();
    assert!(server.placed >= 1);
    // Another life of its queue pair.
    let mut other = datagrams[2].clone();
    let end = other.len() - 4;
    other.truncate(end);
    other[23] ^= 1;
    envelope::seal(&mut other, 0);
    assert_eq!(server.receive(CLIENT, &other), no_hello);
    server.receive(CLIENT, &datagrams[2]).unwrap();
    let late = datagrams.remove(3);
    server.now += Duration::from_millis(2);
    client.now = server.now;
    server.carry(&mut client);
    client.post(SERVER, 1, 64);
    client.carry(&mut server);
    assert_eq!(server.receive(CLIENT, &late), no_hello);
}

/// A close without identifier is believed where it names a datagram that is in flight.
#[test]
fn a_close_names_a_datagram_in_flight() {
    let (mut client, mut server) = ends(|_| ());
    acquaint(&mut client, &mut server);
    client.post(SERVER, 1, 64);
    let datagram = client.transmit(SERVER).remove(0);
    // The server's end has another life, and knows nothing of it.
    let mut other = End::new(SERVER, server.now, |config| config.epoch = 77);
    let (sent, _) = Envelope::open::<[u8]>(datagram[..].into()).unwrap();
    let unknown = Dropped::UnknownAssociation(sent.association);
    assert_eq!(other.receive(CLIENT, &datagram), Err(unknown));
    let answer = other.transmit(CLIENT).remove(0);
    for (packet, reason) in [
        (sent.number + 1, CloseReason::Unknown),
        (sent.number, CloseReason::Done),
    ] {
        let mut forged = answer[..envelope::LEN].to_vec();
        Close {
            reason,
            association: sent.association,
            packet,
        }
        .emit(&mut forged);
        envelope::seal(&mut forged, 0);
        assert_eq!(client.receive(SERVER, &forged), Err(unknown));
        assert_eq!(client.receive(9, &answer), Err(unknown));
    }
    assert_eq!(client.endpoint.associations(), 1);
    client.receive(SERVER, &answer).unwrap();
    assert_eq!(client.endpoint.associations(), 0);
}

/// An end that always finds input never releases what it holds, and answers each message with one of its own.
#[test]
fn a_list_of_those_that_hold_acknowledgements_does_not_grow() {
    let (mut client, mut server) = ends(|config| config.polls = true);
    acquaint(&mut client, &mut server);
    for _ in 0..1000 {
        client.post(SERVER, 1, 64);
        client.carry(&mut server);
        server.post(CLIENT, 1, 64);
        server.carry(&mut client);
        assert_eq!(client.transmit(SERVER), Vec::<Vec<u8>>::new());
        client.now += Duration::from_micros(100);
        server.now = client.now;
    }
    assert_eq!((client.placed, server.placed), (1000, 1001));
    assert!(client.endpoint.holds());
    assert_eq!(client.endpoint.held.len(), 1);
    client.endpoint.close(client.now, peer(SERVER));
    assert!(!client.endpoint.holds());
    assert_eq!(client.endpoint.held.len(), 0);
}

/// Numbers near the end of their range, which the next one would leave.
#[test]
fn packet_numbers_have_an_end() {
    for (number, over) in [(1 << 62, false), ((1 << 62) + 1, true), (u64::MAX, true)] {
        let (mut client, mut server) = ends(|_| ());
        client.post(SERVER, 1, 64);
        let mut datagram = client.transmit(SERVER).remove(0);
        datagram.truncate(datagram.len() - 4);
        datagram[8..16].copy_from_slice(&u64::to_be_bytes(number));
        envelope::seal(&mut datagram, 0);
        server.receive(CLIENT, &datagram).unwrap();
        assert_eq!(
            server.endpoint.associations(),
            usize::from(!over),
            "{number}"
        );
        assert_eq!(server.placed, usize::from(!over));
    }
}

/// The delay of acknowledgements that a probe timeout allows for is the one that the peer shows.
#[test]
fn a_probe_follows_soon_where_the_peer_acknowledges_at_once() {
    let (mut client, mut server) = ends(|_| ());
    let half = Duration::from_micros(100);
    let mut timeouts = Vec::new();
    for _ in 0..64 {
        client.post(SERVER, 1, 64);
        let sent = client.now;
        let datagrams = client.transmit(SERVER);
        timeouts.push(client.endpoint.poll_timeout().unwrap() - sent);
        server.now = sent + half;
        for datagram in datagrams {
            server.receive(CLIENT, &datagram).unwrap();
        }
        client.now = server.now + half;
        server.carry(&mut client);
    }
    assert!(timeouts[1] > Duration::from_millis(1), "{timeouts:?}");
    assert!(timeouts[63] < 3 * (half + half), "{timeouts:?}");
}

/// Time in which an end runs its timers alone. Returns the instants at which datagrams left, up to the end of its association.
fn alone(end: &mut End, to: u16) -> Vec<Instant> {
    let mut sent = Vec::new();
    for _ in 0..1000 {
        if end.endpoint.associations() == 0 {
            return sent;
        }
        end.now = end.endpoint.poll_timeout().unwrap().max(end.now);
        end.endpoint.handle_timeout(end.now);
        sent.extend(end.transmit(to).iter().map(|_| end.now));
    }
    panic!("the association does not end");
}

/// A message that nobody acknowledges, and its datagram.
fn unanswered(client: &mut End) -> Vec<u8> {
    client.post(SERVER, 1, 64);
    client.transmit(SERVER).remove(0)
}

/// A port that nobody has: the peer is probed at once and a few times more, and lost in a quarter of a second if it stays silent.
#[test]
fn a_peer_whose_port_is_unreachable_is_lost_soon() {
    for quoted in [24, 92] {
        let (mut client, mut server) = ends(|_| ());
        acquaint(&mut client, &mut server);
        let datagram = unanswered(&mut client);
        let began = client.now;
        let error = &datagram[..quoted];
        client
            .endpoint
            .handle_port_unreachable(began, peer(SERVER), error);
        // Others about the same datagram change nothing.
        client
            .endpoint
            .handle_port_unreachable(began, peer(SERVER), error);
        assert_eq!(client.transmit(SERVER).len(), 1, "a probe at once");
        let probes = alone(&mut client, SERVER).len();
        assert!((3..12).contains(&probes), "{probes}");
        assert_eq!(client.now - began, Duration::from_millis(250));
        let mut events = std::iter::from_fn(|| client.endpoint.poll_event());
        let last = events.by_ref().last();
        let lost = Event::Ended {
            peer: peer(SERVER),
            cause: Cause::Unreachable,
        };
        assert_eq!(last, Some(lost));
    }
}

/// Errors that quote what this end never sent, or sent to another address or long ago, or too little, are forged or nothing can be learned of them.
#[test]
fn only_errors_about_datagrams_of_the_association_count() {
    let changes: [fn(&mut Vec<u8>); 6] = [
        |quoted| quoted.truncate(23),
        |quoted| quoted[0] = 0x41,
        // Association, a number that was not sent, and one of long ago; epoch.
        |quoted| quoted[4] ^= 1,
        |quoted| quoted[14] = 9,
        |quoted| quoted[8..16].copy_from_slice(&[0; 8]),
        |quoted| quoted[20] ^= 1,
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let (mut client, mut server) = ends(|_| ());
        let messages = if number == 4 { 1100 } else { 1 };
        for _ in 0..messages {
            acquaint(&mut client, &mut server);
        }
        let mut quoted = unanswered(&mut client);
        change(&mut quoted);
        let began = client.now;
        let to = [peer(SERVER), peer(SERVER + 1)];
        for (to, quoted) in to.into_iter().zip([quoted, unanswered(&mut client)]) {
            client.endpoint.handle_port_unreachable(began, to, &quoted);
        }
        alone(&mut client, SERVER);
        let silence = client.now - began;
        assert!(silence >= Duration::from_secs(4), "{number}: {silence:?}");
    }
}

/// A peer that answers the probe is there: a forged error costs two datagrams.
#[test]
fn a_peer_in_doubt_that_answers_stays() {
    let (mut client, mut server) = ends(|_| ());
    acquaint(&mut client, &mut server);
    let datagram = unanswered(&mut client);
    client
        .endpoint
        .handle_port_unreachable(client.now, peer(SERVER), &datagram);
    client.carry(&mut server);
    server.carry(&mut client);
    client.now += Duration::from_secs(1);
    client.endpoint.handle_timeout(client.now);
    assert_eq!(client.endpoint.associations(), 1);
    // Silence counts as ever.
    unanswered(&mut client);
    let began = client.now;
    alone(&mut client, SERVER);
    assert_eq!(client.now - began, Duration::from_secs(4));
}

/// A peer that was never heard of may be about to begin: an opener waits for it as long as ever.
#[test]
fn an_opener_waits_for_a_port_that_comes() {
    let (mut client, _) = ends(|_| ());
    let datagram = unanswered(&mut client);
    let began = client.now;
    client
        .endpoint
        .handle_port_unreachable(began, peer(SERVER), &datagram);
    alone(&mut client, SERVER);
    assert_eq!(client.now - began, Duration::from_secs(4));
}
