//! Segments of strangers.

use super::segment::{About, TerminateReport};
use super::*;
use crate::datagram::Cookie;
use crate::datagram::{CookieExchange, ExchangeKind};
use crate::wire::{Extension, Flags, ReadRequest};
use dgiwarp_ddp::Msn;

fn request(size: u32) -> ReadRequest {
    ReadRequest {
        sink_stag: STag::new(1),
        sink_offset: TaggedOffset::new(0),
        size,
        source_stag: SOURCE,
        source_offset: TaggedOffset::new(0),
    }
}

fn ask(
    responder: &mut Responder<char, u8>,
    from: char,
    cookie: Option<Cookie>,
    request: ReadRequest,
) -> Result<(), DropReason> {
    let octets = segment::emit_request(&request, EPOCH, cookie, Msn::new(0))
        .octets
        .len()
        + 4;
    responder.handle_request(
        origin(),
        (from, VIA),
        (EPOCH, cookie),
        request,
        octets,
        |_, _| Ok(()),
    )
}

fn cookie(responder: &mut Responder<char, u8>, from: char) -> Cookie {
    let asked = CookieExchange {
        kind: ExchangeKind::Request,
        epoch: EPOCH,
        nonce: 9,
        cookie: Cookie::new(0),
    };
    responder.handle_exchange((from, VIA), &asked).unwrap();
    let reply = responder.reply(Class::Unvalidated).unwrap().segment;
    responder.replied(Class::Unvalidated);
    assert_eq!(reply.octets.len(), asked.emit().octets.len());
    match parse(&emit(&reply)) {
        Ok(Arrived::Exchange(answer)) => {
            assert_eq!((answer.kind, answer.nonce), (ExchangeKind::Answer, 9));
            answer.cookie
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn without_a_cookie_no_more_than_three_times_the_request() {
    let mut responder = responder(2);
    // 50 octets of request; a response has 18 beside its payload.
    assert_eq!(ask(&mut responder, 'a', None, request(132)), Ok(()));
    let refused = Err(DropReason::UnvalidatedRead);
    assert_eq!(ask(&mut responder, 'a', None, request(133)), refused);
    let made_up = Some(Cookie::new(77));
    assert_eq!(ask(&mut responder, 'a', made_up, request(5000)), refused);
    let own = Some(cookie(&mut responder, 'a'));
    assert_eq!(ask(&mut responder, 'a', own, request(5000)), Ok(()));
    assert_eq!(ask(&mut responder, 'b', own, request(5000)), refused);
}

/// RFC 5041 §4.2: T, L, the queue number and the message offset are checked, each by itself.
#[test]
fn a_request_is_one_untagged_segment_on_its_queue() {
    let whole = segment::emit_request(&request(10), EPOCH, None, Msn::new(0)).octets;
    assert!(parse(&whole).is_ok());
    for (at, bits) in [(0, 0x80), (0, 0x40), (9, 3), (17, 1)] {
        let mut changed = whole.clone();
        changed[at] ^= bits;
        assert_eq!(parse(&changed), Err(DropReason::Malformed), "octet {at}");
    }
}

#[test]
fn queues_are_bounded_and_turns_go_round() {
    let mut responder = responder(2);
    let cookies = ['a', 'b'].map(|from| Some(cookie(&mut responder, from)));
    for (from, cookie) in ['a', 'b'].into_iter().zip(cookies) {
        for size in 1..=16 {
            assert_eq!(ask(&mut responder, from, cookie, request(size)), Ok(()));
        }
        let again = ask(&mut responder, from, cookie, request(3));
        assert_eq!(again, Err(DropReason::Duplicate));
        let more = ask(&mut responder, from, cookie, request(17));
        assert_eq!(more, Err(DropReason::ReadQueueFull));
    }
    let mut served = Vec::new();
    while let Some((peer, requests)) = responder.turn(Class::Validated) {
        served.push((peer, requests[0].request.size));
        responder.commit(Class::Validated, 1, 0);
    }
    let expected: Vec<_> = (1..=16)
        .flat_map(|size| [('a', size), ('b', size)])
        .collect();
    assert_eq!(served, expected);
}

#[test]
fn what_is_left_of_a_request_keeps_its_place() {
    let mut responder = responder(2);
    let own = Some(cookie(&mut responder, 'a'));
    ask(&mut responder, 'a', own, request(5000)).unwrap();
    responder.commit(Class::Validated, 0, 3000);
    let (_, requests) = responder.turn(Class::Validated).unwrap();
    assert_eq!(requests[0].request, request(5000).after(3000).unwrap());
}

fn exchange(nonce: u64) -> CookieExchange {
    CookieExchange {
        kind: ExchangeKind::Request,
        epoch: EPOCH,
        nonce,
        cookie: Cookie::new(0),
    }
}

#[test]
fn strangers_have_few_places_and_none_of_those_with_cookies() {
    let mut responder = responder(2);
    let strangers = || (0..3000).filter_map(char::from_u32);
    let mut taken = 0;
    for from in strangers() {
        let asked = ask(&mut responder, from, None, request(1));
        taken += usize::from(asked.is_ok());
    }
    assert_eq!(taken, 128);
    let mut exchanges = 0;
    for from in strangers() {
        let asked = responder.handle_exchange((from, VIA), &exchange(1));
        exchanges += usize::from(asked.is_ok());
    }
    assert_eq!(exchanges, 128);
    let secret = secret(2);
    for known in (0..1024).filter_map(|it| char::from_u32(0x10_0000 + it)) {
        let own = Some(secret.cookie(5, &known, EPOCH));
        assert_eq!(ask(&mut responder, known, own, request(1)), Ok(()));
    }
    let known = '\u{10ffff}';
    let own = Some(secret.cookie(5, &known, EPOCH));
    let full = Err(DropReason::NoSourceSlot);
    assert_eq!(ask(&mut responder, known, own, request(1)), full);
    let count = |responder: &mut Responder<char, u8>, class| {
        let served = std::iter::from_fn(|| {
            let (peer, _) = responder.turn(class)?;
            responder.commit(class, 1, 0);
            Some(peer)
        });
        served.count()
    };
    assert_eq!(count(&mut responder, Class::Validated), 1024);
    assert_eq!(count(&mut responder, Class::Unvalidated), 128);
}

/// A forged request takes no place of the requester whose address it bears.
#[test]
fn forged_requests_leave_room_for_those_with_the_cookie() {
    let mut responder = responder(2);
    let own = Some(cookie(&mut responder, 'a'));
    for size in 1..=16 {
        assert_eq!(ask(&mut responder, 'a', None, request(size)), Ok(()));
    }
    let full = Err(DropReason::ReadQueueFull);
    assert_eq!(ask(&mut responder, 'a', None, request(17)), full);
    for size in 1..=16 {
        assert_eq!(ask(&mut responder, 'a', own, request(size)), Ok(()));
    }
    assert_eq!(ask(&mut responder, 'a', own, request(17)), full);
}

/// A refused request costs no check of memory.
#[test]
fn a_stranger_without_a_place_has_nothing_checked() {
    let mut responder = responder(2);
    for from in (0..128).filter_map(char::from_u32) {
        ask(&mut responder, from, None, request(1)).unwrap();
    }
    let refused = responder.handle_request(
        origin(),
        ('\u{10ffff}', VIA),
        (EPOCH, None),
        request(1),
        50,
        |_, _| panic!("no place, no check"),
    );
    assert_eq!(refused, Err(DropReason::NoSourceSlot));
}

/// However many cookies one address requests, the next address waits for one of them.
#[test]
fn cookie_requests_take_turns_by_address() {
    let mut responder = responder(2);
    for nonce in 0..4 {
        let asked = responder.handle_exchange(('a', VIA), &exchange(nonce));
        assert_eq!(asked, Ok(()));
    }
    let more = responder.handle_exchange(('a', VIA), &exchange(4));
    assert_eq!(more, Err(DropReason::ReadQueueFull));
    responder.handle_exchange(('b', VIA), &exchange(5)).unwrap();
    let served: Vec<_> = std::iter::from_fn(|| {
        let reply = responder.reply(Class::Unvalidated)?;
        responder.replied(Class::Unvalidated);
        Some(reply.peer)
    })
    .collect();
    assert_eq!(served, ['a', 'b', 'a', 'a', 'a']);
    assert!(!responder.has_output(Class::Unvalidated));
}

#[test]
fn a_report_is_never_longer_than_its_cause_and_never_frequent() {
    let mut responder = responder(2);
    let now = origin();
    let extension = Extension {
        flags: Flags::empty(),
        epoch: 1,
        number: 2,
        length: 3,
        offset: 0,
        immediate: 0,
    };
    // 18 of header, 4 of control, 24 of extension, 4 of CRC.
    for (octets, told) in [(49, false), (50, true)] {
        let about = About::Message(extension);
        responder.report(now, ('a', VIA), octets, Cause::INVALID_STAG, about);
        let reply = responder.reply(Class::Validated);
        assert_eq!(reply.is_some(), told, "{octets} octets");
    }
    let reply = responder.reply(Class::Validated).unwrap().segment;
    let expected = TerminateReport {
        cause: Cause::INVALID_STAG,
        about: About::Message(extension),
    };
    assert_eq!(
        parse(&emit(&reply)),
        Ok(Arrived::Segment(Parsed::Read(ReadSegment::Terminate(
            expected
        ))))
    );
    let own = Some(cookie_after_replies(&mut responder));
    for _ in 0..50 {
        let refused =
            responder.handle_request(now, ('a', VIA), (EPOCH, own), request(9), 58, |_, _| {
                Err(DropReason::NoAccess)
            });
        assert_eq!(refused, Err(DropReason::NoAccess));
    }
    let mut told = 0;
    while responder.reply(Class::Validated).is_some() {
        told += 1;
        responder.replied(Class::Validated);
    }
    assert_eq!(told, 9, "ten a second, one before");
}

fn cookie_after_replies(responder: &mut Responder<char, u8>) -> Cookie {
    responder.replied(Class::Validated);
    cookie(responder, 'a')
}

#[test]
fn without_proof_of_its_address_nobody_is_told_of_errors() {
    let mut responder = responder(2);
    let refused = responder.handle_request(
        origin(),
        ('a', VIA),
        (EPOCH, Some(Cookie::new(1))),
        request(9),
        58,
        |_, _| Err(DropReason::BadStag),
    );
    assert_eq!(refused, Err(DropReason::BadStag));
    for class in Class::ALL {
        assert_eq!(responder.reply(class), None);
    }
}

#[test]
fn only_what_was_asked_is_taken() {
    let mut pair = Pair::new(4 << 20, vec![Fate::Lose]);
    pair.read(0, 100, millis(1000));
    let outgoing = pair.poll_request().unwrap();
    let octets = emit(&outgoing.segment);
    let Ok(Arrived::Segment(Parsed::Read(ReadSegment::Request { request, .. }))) = parse(&octets)
    else {
        panic!("a small Read asks at once");
    };
    let now = pair.now;
    let mut respond = |from, stag, at: u64, octets: usize| {
        let at = (stag, TaggedOffset::new(at));
        pair.requester.handle_response(
            now,
            from,
            at,
            vec![9; octets][..].into(),
            &mut pair.sink,
            &mut pair.associations,
        )
    };
    let stag = request.sink_stag;
    assert_eq!(respond('x', stag, 0, 10), Err(DropReason::BadStag));
    let other = STag::new(stag.get() ^ 1);
    assert_eq!(respond(TARGET, other, 0, 10), Err(DropReason::BadStag));
    for (at, octets) in [(100, 1), (0, 101), (u64::MAX, 1), (1 << 32, 1)] {
        let refused = respond(TARGET, stag, at, octets);
        assert_eq!(refused, Err(DropReason::OutOfBounds));
    }
    assert_eq!(respond(TARGET, stag, 0, 0), Err(DropReason::Malformed));
    assert_eq!(respond(TARGET, stag, 5, 10), Ok(()));
    assert_eq!(respond(TARGET, stag, 6, 9), Err(DropReason::Duplicate));
    let stray = TerminateReport {
        cause: Cause::ACCESS,
        about: About::Request(ReadRequest {
            sink_stag: other,
            ..request
        }),
    };
    let sink = &mut pair.sink;
    let unsolicited = Err(DropReason::Unsolicited);
    assert_eq!(
        pair.requester
            .handle_terminate(TARGET, &stray, sink, &mut pair.associations),
        unsolicited
    );
    let answer = CookieExchange {
        kind: ExchangeKind::Answer,
        epoch: EPOCH,
        nonce: 1,
        cookie: Cookie::new(2),
    };
    assert_eq!(pair.answered(TARGET, &answer), unsolicited);
    let (_, end, map) = {
        pair.requester.flush(&mut pair.sink, &mut pair.associations);
        &pair.sink.ended[0]
    };
    assert_eq!((*end, &map[..]), (ReadEnd::Flushed, &[(5, 15)][..]));
}

proptest! {
    /// Whatever arrives, nothing panics, and what is placed lies in the Read's memory (the sink's indexing checks it).
    #[test]
    fn random_octets_do_no_harm(
        segments in proptest::collection::vec(
            (any::<bool>(), 0u8..3, 0u8..16, proptest::collection::vec(any::<u8>(), 0..80)),
            0..60,
        ),
    ) {
        let mut pair = Pair::new(4 << 20, Vec::new());
        pair.read(0, 5000, millis(100));
        for (to_target, format, opcode, rest) in segments {
            let mut bytes = vec![0xc1 | format << 2, 0x40 | opcode];
            bytes.extend_from_slice(&rest);
            let to = if to_target { TARGET } else { REQUESTER };
            for first in [bytes[0], bytes[0] & 0x7f] {
                bytes[0] = first;
                if let Ok(Arrived::Segment(Parsed::Read(_)) | Arrived::Exchange(_)) = parse(&bytes) {
                    pair.handle(to, &bytes);
                }
            }
            pair.transmit();
        }
        prop_assert!(pair.answered <= 3 * pair.asked);
    }
}
