//! A requester and a responder, and a link between them that loses, doubles and reorders.

mod hostile;
mod loss;
mod requests;

use super::segment::{self, ReadSegment};
use super::*;
use crate::datagram::segment::Parsed;
use crate::datagram::test_octets::{Arrived, emit, parse};
use crate::datagram::{
    AssociationConfig, Associations, CookieExchange, DropReason, ExchangeKind, PlaceFailed, Secret,
};
use crate::wire::Cause;
use dgiwarp_codec::PayloadSlice;
use dgiwarp_ddp::{RangeMap, STag, TaggedOffset};
use proptest::prelude::*;
use std::time::{Duration, Instant};

const EPOCH: u32 = 0x0a0b_0c0d;
const SOURCE: STag = STag::new(0x5151_5151);
const REQUESTER: char = 'r';
const TARGET: char = 't';
const VIA: u8 = 1;
const SEGMENT: u32 = 1000;

#[expect(
    clippy::disallowed_methods,
    reason = "any instant serves as the origin"
)]
fn origin() -> Instant {
    Instant::now()
}

fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// A Read, how it ended, and what of it was valid.
type Ended = (usize, ReadEnd, Vec<(u32, u32)>);

/// Sink of a Read: its memory, and its end.
#[derive(Default)]
struct Sink {
    memory: Vec<Vec<u8>>,
    ended: Vec<Ended>,
    gone: bool,
}

impl ReadSink<usize> for Sink {
    type Payload = [u8];

    fn place_read(
        &mut self,
        read: &usize,
        offset: u32,
        payload: PayloadSlice<'_, [u8]>,
    ) -> Result<(), PlaceFailed> {
        if self.gone {
            return Err(PlaceFailed);
        }
        let start = offset as usize;
        self.memory[*read][start..start + payload.len()].copy_from_slice(payload.octets());
        Ok(())
    }

    fn finish(&mut self, read: usize, end: ReadEnd, map: &mut RangeMap) {
        self.ended.push((read, end, map.ranges().to_vec()));
    }
}

/// Fault of the link on the next segment, by number: lose it, double it, or hold it back this many steps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    Pass,
    Lose,
    Double,
    Hold(u8),
}

struct Pair {
    now: Instant,
    associations: Associations<char, u8>,
    requester: Requester<char, u8, usize>,
    responder: Responder<char, u8>,
    sink: Sink,
    source: Vec<u8>,
    /// Octets of it that may be read.
    readable: usize,
    fates: Vec<Fate>,
    sent: usize,
    /// On the way: when it arrives, who gets it.
    link: Vec<(Instant, char, Vec<u8>)>,
    delay: Duration,
    /// Octets from and to a requester without a valid cookie.
    asked: usize,
    answered: usize,
    drops: Vec<DropReason>,
}

fn secret(key: u64) -> Secret {
    Secret::new([key, 7])
}

fn responder(key: u64) -> Responder<char, u8> {
    Responder::new(ResponderConfig {
        qpn: 5,
        epoch: EPOCH + 1,
        secret: secret(key),
        msn: u32::MAX,
        overhead: 4,
    })
}

impl Pair {
    fn new(receive_buffer: usize, fates: Vec<Fate>) -> Self {
        let config = RequesterConfig {
            secret: secret(1),
            msn: u32::MAX,
            overhead: 4,
        };
        let associations = Associations::new(AssociationConfig {
            epoch: EPOCH,
            group_key: [0; 4],
            number: 0,
            secret: secret(1),
        });
        let source: Vec<u8> = (0..1usize << 20)
            .map(|i| (i * 7 + i / 256).to_le_bytes()[0])
            .collect();
        Self {
            now: origin(),
            associations,
            requester: Requester::new(config, Limits::of_receive_buffer(receive_buffer)),
            responder: responder(2),
            sink: Sink::default(),
            readable: source.len(),
            source,
            fates,
            sent: 0,
            link: Vec::new(),
            delay: millis(1),
            asked: 0,
            answered: 0,
            drops: Vec::new(),
        }
    }

    fn read(&mut self, offset: usize, length: usize, timeout: Duration) -> usize {
        let read = self.sink.memory.len();
        self.sink.memory.push(vec![0; length]);
        let work = ReadWork {
            peer: TARGET,
            via: VIA,
            source_stag: SOURCE,
            source_offset: TaggedOffset::new(offset as u64),
            length: u32::try_from(length).unwrap(),
            segment: SEGMENT,
            deadline: self.now + timeout,
        };
        self.requester
            .submit(self.now, work, read, &mut self.associations);
        read
    }

    fn put(&mut self, to: char, segment: &[u8]) {
        let fate = match self.fates.len() {
            0 => Fate::Pass,
            len => self.fates[self.sent % len],
        };
        self.sent += 1;
        let at = self.now + self.delay;
        match fate {
            Fate::Lose => {}
            Fate::Pass => self.link.push((at, to, segment.to_vec())),
            Fate::Double => {
                self.link.push((at, to, segment.to_vec()));
                self.link.push((at + millis(3), to, segment.to_vec()));
            }
            Fate::Hold(steps) => {
                let at = at + millis(steps.into());
                self.link.push((at, to, segment.to_vec()));
            }
        }
    }

    fn check(&self, request: &crate::wire::ReadRequest) -> Result<(), DropReason> {
        let end = request.source_offset.get().checked_add(request.size.into());
        if request.source_stag != SOURCE {
            return Err(DropReason::BadStag);
        }
        match end {
            Some(end) if end <= self.readable as u64 => Ok(()),
            Some(_) | None => Err(DropReason::OutOfBounds),
        }
    }

    fn poll_request(&mut self) -> Option<segment::Outgoing<char, u8>> {
        let expected = self.requester.has_transmit() || self.associations.has_transmit();
        let outgoing = self
            .requester
            .poll_transmit(self.now, &mut self.associations);
        assert!(expected || outgoing.is_none());
        outgoing
    }

    fn answered(&mut self, from: char, answer: &CookieExchange) -> Result<(), DropReason> {
        let ended = self.associations.handle_answer(self.now, from, answer)?;
        self.requester.resume(ended);
        Ok(())
    }

    fn transmit(&mut self) {
        while let Some(outgoing) = self.poll_request() {
            assert_eq!((outgoing.peer, outgoing.via), (TARGET, VIA));
            self.put(TARGET, &emit(&outgoing.segment));
        }
        for class in Class::ALL {
            let has_reply = self.responder.reply(class).is_some();
            let has_output = has_reply || self.responder.turn(class).is_some();
            assert_eq!(self.responder.has_output(class), has_output);
            while let Some(reply) = self.responder.reply(class) {
                let segment = emit(&reply.segment);
                self.responder.replied(class);
                self.put(REQUESTER, &segment);
            }
            self.respond(class);
        }
    }

    fn respond(&mut self, class: Class) {
        while let Some((to, requests)) = self.responder.turn(class) {
            assert_eq!(to, REQUESTER);
            let pending = requests[0];
            let request = pending.request;
            if request.size > 0
                && let Err(error) = self.check(&request)
            {
                self.responder.refuse(class, self.now, error);
                continue;
            }
            // A train of at most 5 segments.
            let octets = request.size.min(5 * SEGMENT);
            for start in (0..octets.max(1)).step_by(SEGMENT as usize) {
                let end = (start + SEGMENT).min(octets);
                let offset = request.sink_offset.checked_add(start.into()).unwrap();
                let last = end == request.size;
                let header = segment::emit_response_header(request.sink_stag, offset, last);
                let from = usize::try_from(request.source_offset.get()).unwrap();
                let payload = &self.source[from + start as usize..from + end as usize];
                let datagram = [&header[..], payload].concat();
                if class == Class::Unvalidated {
                    self.answered += datagram.len() + 4;
                }
                self.put(REQUESTER, &datagram);
            }
            let whole = octets == request.size;
            let (finished, partly) = if whole { (1, 0) } else { (0, octets) };
            self.responder.commit(class, finished, partly);
        }
    }

    fn handle(&mut self, to: char, bytes: &[u8]) {
        let arrived = parse(bytes).unwrap();
        let from = if to == TARGET { REQUESTER } else { TARGET };
        let now = self.now;
        let segment = match arrived {
            Arrived::Segment(Parsed::Read(segment)) => segment,
            Arrived::Exchange(exchange) => {
                let handled = match exchange.kind {
                    ExchangeKind::Request => self.responder.handle_exchange((from, VIA), &exchange),
                    ExchangeKind::Answer => self.answered(from, &exchange),
                };
                self.drops.extend(handled.err());
                return;
            }
            Arrived::Segment(other) => panic!("nobody sent {other:?}"),
        };
        let handled = match segment {
            ReadSegment::Request {
                epoch,
                cookie,
                request,
            } => {
                let octets = bytes.len() + 4;
                if !self.responder.is_valid(from, epoch, cookie) {
                    self.asked += octets;
                }
                let checked = self.check(&request);
                let from = (from, VIA);
                self.responder.handle_request(
                    now,
                    from,
                    (epoch, cookie),
                    request,
                    octets,
                    |_, _| checked,
                )
            }
            ReadSegment::Response {
                stag,
                tagged_offset,
                payload,
                ..
            } => {
                let at = (stag, tagged_offset);
                self.requester.handle_response(
                    now,
                    from,
                    at,
                    payload,
                    &mut self.sink,
                    &mut self.associations,
                )
            }
            ReadSegment::Terminate(report) => self.requester.handle_terminate(
                from,
                &report,
                &mut self.sink,
                &mut self.associations,
            ),
        };
        self.drops.extend(handled.err());
    }

    /// Lets a millisecond pass.
    fn step(&mut self) {
        self.transmit();
        self.now += millis(1);
        let now = self.now;
        let mut arrived: Vec<_> = self.link.extract_if(.., |(at, ..)| *at <= now).collect();
        arrived.sort_by_key(|(at, ..)| *at);
        for (_, to, bytes) in arrived {
            self.handle(to, &bytes);
        }
        if self.associations.handle_timeout(now) {
            self.requester
                .handle_timeout(now, &mut self.sink, &mut self.associations);
        }
    }

    fn run(&mut self, time: Duration) {
        let until = self.now + time;
        while self.now < until && !self.requester.is_idle() {
            self.step();
        }
    }
}

#[test]
fn reads_of_all_sizes_arrive() {
    for length in [
        0, 1, 131, 132, 133, 999, 1000, 1001, 64_999, 65_536, 262_144, 700_001,
    ] {
        let mut pair = Pair::new(4 << 20, Vec::new());
        let read = pair.read(3, length, millis(2000));
        pair.run(millis(2000));
        let valid: Vec<_> = (length > 0)
            .then_some((0, u32::try_from(length).unwrap()))
            .into_iter()
            .collect();
        assert_eq!(
            pair.sink.ended,
            [(read, ReadEnd::Complete, valid)],
            "{length} octets"
        );
        assert_eq!(pair.sink.memory[read], pair.source[3..3 + length]);
        assert_eq!(pair.requester.octets_in_flight(), 0);
        assert_eq!(pair.requester.counts().1, 0, "nothing was asked for twice");
        assert!(pair.drops.is_empty(), "{:?}", pair.drops);
    }
}

#[test]
fn many_reads_share_the_window_and_come_in_turn() {
    let mut pair = Pair::new(400_000, Vec::new());
    for read in 0..40 {
        pair.read(read * 20_000, 20_000, millis(5000));
    }
    let mut most = 0;
    while !pair.requester.is_idle() {
        pair.step();
        most = most.max(pair.requester.octets_in_flight());
    }
    // A quarter of the receive buffer at first, half of it where responses take no longer for it (§8).
    assert!((50_000..=200_000).contains(&most), "{most} in flight");
    assert_eq!(pair.sink.ended.len(), 40);
    assert!(pair.sink.ended.iter().all(|end| end.1 == ReadEnd::Complete));
    assert!(pair.drops.is_empty(), "{:?}", pair.drops);
}

#[test]
fn a_stock_receive_buffer_bounds_the_datagrams_in_flight() {
    let mut pair = Pair::new(16_384, Vec::new());
    for read in 0..100 {
        pair.read(read, 10, millis(5000));
    }
    pair.transmit();
    assert_eq!(pair.link.len(), 16, "one datagram for each 1024 octets");
    pair.run(millis(5000));
    assert_eq!(pair.sink.ended.len(), 100);
}

#[test]
fn a_wrong_stag_or_range_ends_the_read_at_once() {
    for (readable, length, cause) in [
        (0, 5000, Cause::BASE_OR_BOUNDS),
        (4999, 5000, Cause::BASE_OR_BOUNDS),
        // Small ones go without a cookie at first; with it the target may tell.
        (0, 8, Cause::BASE_OR_BOUNDS),
    ] {
        let mut pair = Pair::new(4 << 20, Vec::new());
        pair.readable = readable;
        pair.read(0, length, millis(2000));
        pair.run(millis(100));
        assert_eq!(pair.sink.ended.len(), 1, "{length} octets");
        assert_eq!(pair.sink.ended[0].1, ReadEnd::Refused(cause));
    }
}

#[test]
fn a_region_that_goes_ends_the_read() {
    let mut pair = Pair::new(4 << 20, Vec::new());
    pair.read(0, 500_000, millis(2000));
    for _ in 0..5 {
        pair.step();
    }
    assert!(pair.requester.octets_in_flight() > 0);
    pair.readable = 0;
    pair.run(millis(100));
    let (_, end, map) = &pair.sink.ended[0];
    assert_eq!(*end, ReadEnd::Refused(Cause::BASE_OR_BOUNDS));
    assert!(!map.is_empty());
}

#[test]
fn a_silent_target_costs_no_more_than_the_deadline() {
    let mut pair = Pair::new(4 << 20, vec![Fate::Lose]);
    let started = pair.now;
    pair.read(0, 100, millis(300));
    pair.read(0, 5000, millis(200));
    pair.associations.note_error(TARGET, 111);
    pair.run(millis(1000));
    assert_eq!(
        pair.sink.ended,
        [
            (1, ReadEnd::TimedOut(Some(111)), vec![]),
            (0, ReadEnd::TimedOut(Some(111)), vec![])
        ]
    );
    assert_eq!(pair.now - started, millis(300));
    // The small one at 20, 60, 140 and 300 ms, and cookies at 0, 20, 60, 140 and 300.
    assert!((6..=9).contains(&pair.sent), "{} segments", pair.sent);
    assert_eq!(pair.associations.poll_timeout(), None);
}

#[test]
fn a_restarted_target_gets_a_new_cookie_request() {
    let mut pair = Pair::new(4 << 20, Vec::new());
    pair.read(0, 5000, millis(2000));
    pair.run(millis(100));
    pair.responder = responder(3);
    pair.read(0, 5000, millis(2000));
    pair.run(millis(500));
    assert_eq!(pair.sink.ended.len(), 2);
    assert!(pair.sink.ended.iter().all(|end| end.1 == ReadEnd::Complete));
    assert!(pair.drops.contains(&DropReason::UnvalidatedRead));
}

#[test]
fn a_cookie_that_comes_late_is_kept() {
    let mut pair = Pair::new(4 << 20, Vec::new());
    pair.delay = millis(30);
    pair.read(0, 5000, millis(40));
    pair.run(millis(40));
    assert_eq!(pair.sink.ended[0].1, ReadEnd::TimedOut(None));
    for _ in 0..100 {
        pair.step();
    }
    // The first of two answers was taken.
    assert_eq!(pair.drops, [DropReason::Unsolicited]);
    let sent = pair.sent;
    pair.read(0, 500, millis(1000));
    pair.run(millis(1000));
    assert_eq!(pair.sink.ended[1].1, ReadEnd::Complete);
    assert_eq!(pair.sent - sent, 2, "one request, one response");
}

#[test]
fn a_long_path_is_not_asked_again_and_again() {
    let mut pair = Pair::new(4 << 20, Vec::new());
    pair.delay = millis(100);
    pair.read(0, 1_000_000, millis(9000));
    pair.run(millis(9000));
    assert_eq!(pair.sink.ended[0].1, ReadEnd::Complete);
    assert_eq!(pair.requester.counts().1, 0, "the cookie's time tells");
}

#[test]
fn a_lost_chunk_is_asked_for_again_when_two_later_ones_are_there() {
    // Segment 0 and 1 are the cookie; 2, the first request, is lost.
    let mut fates = vec![Fate::Pass; 4096];
    fates[2] = Fate::Lose;
    let mut pair = Pair::new(4 << 20, fates);
    let started = pair.now;
    pair.read(0, 600_000, millis(2000));
    pair.run(millis(2000));
    assert_eq!(pair.sink.ended[0].1, ReadEnd::Complete);
    assert_eq!(pair.requester.counts().1, 1);
    assert!(pair.now - started < millis(20), "no timer was needed");
}

#[test]
fn a_lost_response_is_repeated_while_its_request_is_open() {
    let mut pair = Pair::new(4 << 20, Vec::new());
    pair.read(0, 500, millis(1000));
    pair.run(millis(1000));
    // The request, then its responses: the second one is lost, and behind the sixth one nothing arrives for long.
    let mut fates = vec![Fate::Hold(200); 64];
    for at in [0, 1, 3, 4, 5, 6] {
        fates[(pair.sent + at) % 64] = Fate::Pass;
    }
    fates[(pair.sent + 2) % 64] = Fate::Lose;
    pair.fates = fates;
    pair.read(0, 30_000, millis(1000));
    let begun = pair.now;
    while pair.requester.counts().1 == 0 && pair.now < begun + millis(1000) {
        pair.step();
    }
    assert_eq!(pair.now - begun, millis(3), "no timer was needed");
    pair.run(millis(2000));
    assert_eq!(pair.sink.ended[1].1, ReadEnd::Complete);
}

#[test]
fn late_responses_touch_nothing() {
    let mut pair = Pair::new(4 << 20, Vec::new());
    pair.delay = millis(40);
    pair.read(0, 100, millis(30));
    pair.run(millis(30));
    assert_eq!(pair.sink.ended[0].1, ReadEnd::TimedOut(None));
    for _ in 0..100 {
        pair.step();
    }
    assert_eq!(pair.sink.memory[0], [0; 100]);
    assert!(pair.drops.contains(&DropReason::BadStag));
}

#[test]
fn memory_that_goes_ends_the_read() {
    let mut pair = Pair::new(4 << 20, Vec::new());
    pair.sink.gone = true;
    pair.read(0, 5000, millis(1000));
    pair.run(millis(1000));
    assert_eq!(pair.sink.ended[0].1, ReadEnd::LocalProtection);
    pair.read(0, 5000, millis(1000));
    pair.read(0, 0, millis(1000));
    pair.requester.flush(&mut pair.sink, &mut pair.associations);
    assert_eq!(pair.sink.ended[2].1, ReadEnd::Flushed);
    assert!(pair.requester.is_idle());
}

fn fates() -> impl Strategy<Value = Vec<Fate>> {
    let fate = prop_oneof![
        6 => Just(Fate::Pass),
        2 => Just(Fate::Lose),
        1 => Just(Fate::Double),
        1 => (1u8..60).prop_map(Fate::Hold),
    ];
    // An odd number, so that a repeat does not always meet the same fate.
    proptest::collection::vec(fate, 201..=201)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// However bad the link, a Read ends complete or at its deadline, its map says exactly what was placed, and nothing else was.
    #[test]
    fn the_map_is_what_the_link_let_through(
        fates in fates(),
        lengths in proptest::collection::vec((0usize..1000, 0usize..300_000), 1..6),
        timeout in 5u64..400,
        receive_buffer in 4_000usize..2_000_000,
    ) {
        let mut pair = Pair::new(receive_buffer, fates);
        let started = pair.now;
        for (offset, length) in &lengths {
            pair.read(*offset, *length, millis(timeout));
        }
        pair.run(millis(10_000));
        prop_assert!(pair.now - started <= millis(timeout));
        // Segments still on the way must not be placed any more.
        let before = pair.sink.memory.clone();
        for _ in 0..100 {
            pair.step();
        }
        prop_assert_eq!(&before, &pair.sink.memory);
        prop_assert_eq!(pair.sink.ended.len(), lengths.len());
        for (read, end, map) in &pair.sink.ended {
            let (offset, length) = lengths[*read];
            let mut expected = vec![0; length];
            for (start, end) in map {
                let (start, end) = (*start as usize, *end as usize);
                expected[start..end].copy_from_slice(&pair.source[offset + start..offset + end]);
            }
            prop_assert_eq!(&pair.sink.memory[*read], &expected);
            let whole = length == 0 || map[..] == [(0, u32::try_from(length).unwrap())];
            match end {
                ReadEnd::Complete => prop_assert!(whole),
                ReadEnd::TimedOut(None) => prop_assert!(!whole || length == 0),
                other => prop_assert!(false, "{:?}", other),
            }
        }
        prop_assert_eq!(pair.requester.octets_in_flight(), 0);
        prop_assert!(pair.answered <= 3 * pair.asked);
    }

    /// With time enough every Read is complete in the end.
    #[test]
    fn loss_is_made_good(fates in fates(), length in 0usize..200_000) {
        let mut pair = Pair::new(400_000, fates);
        pair.read(0, length, Duration::from_secs(600));
        pair.run(Duration::from_secs(600));
        prop_assert_eq!(pair.sink.ended[0].1, ReadEnd::Complete);
        prop_assert_eq!(&pair.sink.memory[0][..], &pair.source[..length]);
    }
}
