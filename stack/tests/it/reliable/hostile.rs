//! Peers that lie, forge and flood, with datagrams of their own: each harms itself alone (`rfc-notes/reliable-datagrams.md` §8).

use std::net::{Ipv4Addr, UdpSocket};
use std::time::Duration;

use dgiwarp::{Config, ErrorReason, WcStatus};

use super::end::{End, ROOM, octets_of};
use super::stranger::{
    CREDIT, ERROR, Got, HELLO, SEGMENT, Stranger, ack, datagram, frame, hello, placed, send, words,
};
use crate::common::node::SOON;
use crate::common::{now, wait_until};

const A_WHILE: Duration = Duration::from_millis(150);

/// A good pair, which the hostile one is not to disturb.
struct Good {
    end: End,
    peer: End,
    sent: usize,
}

impl Good {
    fn new() -> Self {
        Self {
            end: End::new(Config::default(), 16),
            peer: End::new(Config::default(), 0),
            sent: 0,
        }
    }

    fn port(&self) -> u16 {
        self.end.qp.qpn()
    }

    /// A message of the peer arrives, and completes.
    fn works(&mut self) {
        self.peer.post(self.sent, self.port(), 3000).unwrap();
        let wc = self.end.wait();
        assert_eq!(wc.status, WcStatus::Success);
        assert_eq!(self.end.received(&wc), octets_of(self.sent, 3000));
        self.end.post_recv(wc.wr_id);
        assert_eq!(self.peer.wait().status, WcStatus::Success);
        self.sent += 1;
    }
}

/// The first datagrams of an end that opens an association with the stranger; the identifier that it drew.
fn opened(end: &End, stranger: &Stranger, length: usize) -> (u32, Vec<Got>) {
    end.post(0, stranger.port(), length).unwrap();
    let mut got = Vec::new();
    wait_until(SOON, "a first datagram", || {
        got.extend(stranger.receive(end.qp.qpn()));
        !got.is_empty()
    });
    let id = got[0].hello().expect("a hello comes first");
    assert_eq!(got[0].association, 0);
    (id, got)
}

/// An acknowledgement of what was not sent ends the association, as a violation, and nothing else.
#[test]
fn an_optimistic_acknowledgement_is_found_out() {
    for beyond in [frame(2, 0, &words(&[0, 100_000, 0, 0, 0])), placed(9000)] {
        let mut good = Good::new();
        let victim = End::new(Config::default(), 0);
        let mut stranger = Stranger::new(7);
        let (id, _) = opened(&victim, &stranger, ROOM);
        let port = victim.qp.qpn();
        let mine = hello(stranger.id, u32::MAX / 4, u32::MAX / 4);
        stranger.send(port, id, true, &[mine, beyond]);
        let wc = victim.wait();
        assert_eq!(wc.status, WcStatus::BadResponse);
        let error = victim.qp.poll_error().unwrap();
        assert_eq!(error.reason, ErrorReason::Violation);
        assert_eq!(error.peer.port(), stranger.port());
        let reasons = stranger.gather(port, A_WHILE);
        assert!(reasons.iter().any(|got| got.close_reason() == Some(3)));
        assert_eq!(victim.qp.peers(), 0);
        good.works();
    }
}

/// A number is skipped now and then: acknowledging all that was seen and a little more is found out, too.
#[test]
fn an_acknowledgement_of_a_skipped_number_is_found_out() {
    let victim = End::new(Config::default(), 0);
    let mut stranger = Stranger::new(8);
    let (id, first) = opened(&victim, &stranger, 100);
    let port = victim.qp.qpn();
    let (mut largest, mut segments) = (0, 0);
    let mut got = first;
    let begun = now();
    let mut posted = 1;
    // It acknowledges every number up to the largest, whether it came or not.
    let status = loop {
        assert!(begun.elapsed() < SOON);
        for it in std::mem::take(&mut got) {
            largest = largest.max(it.number);
            segments = segments.max(segments + u32::try_from(it.of(SEGMENT).count()).unwrap());
        }
        let mine = hello(stranger.id, u32::MAX / 4, u32::MAX / 4);
        let first = u32::try_from(largest).unwrap();
        stranger.send(port, id, true, &[mine, ack(largest, first)]);
        while let Some(wc) = victim.poll() {
            if wc.status != WcStatus::Success {
                break;
            }
        }
        if let Some(error) = victim.qp.poll_error() {
            break error.reason;
        }
        if victim.post(posted, stranger.port(), 64).is_ok() {
            posted += 1;
        }
        got.extend(stranger.receive(port));
    };
    assert_eq!(status, ErrorReason::Violation);
    assert!(largest < 2 * 512 + 2, "{largest}");
}

/// Credit and window without bound let no more leave at once than congestion control does; none at all stop nothing for good.
#[test]
fn credit_is_no_reason_to_flood() {
    for (receives, window) in [(u32::MAX / 4, u32::MAX), (0, 0)] {
        let victim = End::new(Config::default(), 0);
        let mut stranger = Stranger::new(9);
        let (id, mut got) = opened(&victim, &stranger, ROOM);
        let port = victim.qp.qpn();
        for number in 1..40 {
            let _ = victim.post(number, stranger.port(), ROOM);
        }
        let mine = hello(stranger.id, receives, window);
        let credit = frame(CREDIT, 0, &words(&[receives, window]));
        stranger.send(port, id, true, &[mine, credit]);
        got.extend(stranger.gather(port, A_WHILE));
        let octets: usize = got
            .iter()
            .filter(|it| it.of(SEGMENT).next().is_some())
            .map(|it| it.octets)
            .sum();
        // Without an acknowledgement: the first window, ten datagrams of a path within a host, and a probe at each PTO.
        assert!(octets <= (10 + 20) * 16_512, "{octets}");
    }
}

/// CLOSE and ERROR of somebody who does not know the identifiers change nothing, from wherever they come.
#[test]
fn forged_ends_are_ignored() {
    let mut good = Good::new();
    good.works();
    let mut stranger = Stranger::new(10);
    let ports = [good.end.qp.qpn(), good.peer.qp.qpn()];
    for guess in 0..200u32 {
        for port in ports {
            for reason in 1..5 {
                let close = frame(10, 0, &words(&[reason, guess, 0, guess % 4]));
                stranger.send(port, guess, false, std::slice::from_ref(&close));
                stranger.send(port, 0, false, &[close]);
            }
            let error = frame(ERROR, 0, &words(&[guess % 8, 0x0100_0000]));
            stranger.send(port, guess, false, &[error]);
        }
        if guess % 20 == 0 {
            good.works();
        }
    }
    good.works();
    assert_eq!(good.peer.qp.poll_error(), None);
    assert_eq!(good.end.qp.poll_error(), None);
    assert_eq!(good.peer.qp.peers(), 1);
}

/// An address that is not validated gets at most three times the octets that came from there.
#[test]
fn nothing_is_amplified() {
    let good = Good::new();
    let port = good.port();
    // A request for much, as first datagram.
    let remote = good.end.remote(0);
    let mut read = words(&[0, 0, 0, 0]);
    read.extend([0x41, 0x41]);
    read.extend(words(&[0, 1, 1, 0]));
    let [high, low] = [remote.1 >> 32, remote.1 & 0xffff_ffff].map(|it| u32::try_from(it).unwrap());
    read.extend(words(&[1, 0, 0, 20_000, remote.0, high, low]));
    let read = frame(SEGMENT, 1, &read);
    for frames in [
        vec![hello(77, 16, 65_536)],
        vec![hello(77, 16, 65_536), send(0, 0, 0, b"hello")],
        vec![hello(77, 16, 65_536), read],
        vec![send(0, 0, 0, b"hello")],
        vec![frame(10, 0, &words(&[2, 77, 0, 0]))],
        vec![frame(8, 0, &words(&[1, 2]))],
        Vec::new(),
    ] {
        let is_hello = frames.first().is_some_and(|frame| frame[0] == HELLO);
        for association in [0, 0x1234_5678] {
            let mut stranger = Stranger::new(11);
            let sent = stranger.send(port, association, is_hello, &frames);
            let octets: usize = stranger
                .gather(port, A_WHILE)
                .iter()
                .map(|got| got.octets)
                .sum();
            assert!(octets <= 3 * sent, "{octets} for {sent}: {frames:?}");
            // A first datagram is answered, whatever follows its HELLO.
            assert!(octets > 0 || !is_hello || association != 0);
        }
        while good.end.poll().is_some() {}
    }
}

/// Segments far ahead, in disorder and without an end: what does not fit the windows is dropped, and the rest of the queue pair works.
#[test]
fn floods_of_reordered_segments_are_bounded() {
    let mut good = Good::new();
    let port = good.port();
    let mut stranger = Stranger::new(12);
    stranger.send(port, 0, true, &[hello(stranger.id, 16, 65_536)]);
    let mut got = Vec::new();
    wait_until(SOON, "a response", || {
        got.extend(stranger.receive(port));
        !got.is_empty()
    });
    let id = got[0].hello().unwrap();
    let mut state = 3u32;
    for round in 0..1500u32 {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        // Each is the second of its message: none is ever whole, and none takes a receive.
        let mut body = words(&[state % 40_000 + 1, state % 9000, 1]);
        body.extend([0, 0, 0, 0]);
        body.extend([0x01, 0x40]);
        body.extend(words(&[0x1234, 0, round]));
        body.extend([7; 16]);
        stranger.send(port, id, false, &[frame(SEGMENT, 0, &body)]);
        if round % 300 == 0 {
            good.works();
        }
    }
    good.works();
    // It may have ended its own association; an honest one of the same address begins anew.
    assert!(good.end.qp.peers() <= 2);
}

/// HELLOs of other lives, from the address of a peer with an association, only bring requests for a cookie.
#[test]
fn restarts_have_to_be_proven() {
    let mut good = Good::new();
    let port = good.port();
    let mut stranger = Stranger::new(13);
    let first = [hello(stranger.id, 16, 65_536), send(0, 0, 0, b"first")];
    stranger.send(port, 0, true, &first);
    let wc = good.end.wait();
    assert_eq!(
        (wc.byte_len, good.end.received(&wc)),
        (5, b"first".to_vec())
    );
    good.end.post_recv(wc.wr_id);
    let mut got = Vec::new();
    wait_until(SOON, "a response", || {
        got.extend(stranger.receive(port));
        !got.is_empty()
    });
    let id = got[0].hello().unwrap();
    for storm in 0..300u32 {
        let forged = datagram(
            (0, 0, 0x5000 + storm),
            true,
            &[hello(0x6000 + storm, 16, 65_536), send(0, 0, 0, b"forged")],
        );
        let to = (Ipv4Addr::LOCALHOST, port);
        stranger.socket.send_to(&forged, to).unwrap();
    }
    let answers = stranger.gather(port, A_WHILE);
    let retries = answers.iter().flat_map(|got| &got.frames);
    assert!(
        retries
            .clone()
            .any(|(kind, flags, _)| *kind == HELLO && flags & 1 == 1)
    );
    // The association is what it was: the next message of it arrives, and none of the forged ones.
    stranger.send(port, id, false, &[send(1, 1, 1, b"second")]);
    let wc = good.end.wait();
    assert_eq!(
        (wc.byte_len, good.end.received(&wc)),
        (6, b"second".to_vec())
    );
    good.end.post_recv(wc.wr_id);
    good.works();
}

/// HELLOs from very many addresses: associations that are not validated are bounded, and a good peer that comes then is served.
#[test]
fn openers_without_proof_are_bounded() {
    let end = End::new(Config::default(), 16);
    let port = end.qp.qpn();
    for number in 0..1100u32 {
        let [.., high, low] = number.to_be_bytes();
        let address = Ipv4Addr::new(127, 9, high, low);
        let socket = UdpSocket::bind((address, 0)).unwrap();
        let first = datagram((0, 0, number), true, &[hello(number + 1, 16, 65_536)]);
        socket.send_to(&first, (Ipv4Addr::LOCALHOST, port)).unwrap();
        if number % 16 == 0 {
            while end.poll().is_some() {}
        }
    }
    wait_until(SOON, "associations", || {
        while end.poll().is_some() {}
        end.qp.peers() > 500
    });
    assert!(end.qp.peers() <= 1024, "{}", end.qp.peers());
    let peer = End::new(Config::default(), 0);
    peer.post(0, port, 3000).unwrap();
    assert_eq!(end.wait().byte_len, 3000);
    assert_eq!(peer.wait().status, WcStatus::Success);
}
