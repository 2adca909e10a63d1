//! The examples of `rfc-notes/ripc.md` are what this code emits and parses.

use super::hello::{Hello, Refusal, emit_noise, parse_noise};
use super::message::{Body, Direction, Kind, Message, Streams, Window, WireItem};
use super::resolve::{Answer, Query};
use super::token::Claims;
use super::{VERSION, metadata::Metadata};
use crate::engine::urgency::Urgency;
use crate::{MethodId, ServiceId};

const SPECIFICATION: &str = include_str!("../../../rfc-notes/ripc.md");

/// Octets of the example with this name.
pub(crate) fn example(name: &str) -> Vec<u8> {
    let begin = format!("\n```{name}\n");
    let (_, rest) = SPECIFICATION.split_once(&begin).expect(name);
    let (text, _) = rest.split_once("```").unwrap();
    let digits: Vec<_> = text.chars().filter(|c| !c.is_whitespace()).collect();
    let pairs = digits.chunks(2).map(|pair| pair.iter().collect::<String>());
    pairs
        .map(|pair| u8::from_str_radix(&pair, 16).unwrap())
        .collect()
}

fn check(name: &str, message: &Message) {
    let mut bytes = Vec::new();
    message.emit(&mut bytes);
    assert_eq!(bytes, example(name), "{name}");
    assert_eq!(Message::parse(&bytes).as_ref(), Ok(message), "{name}");
}

#[test]
fn handshake() {
    let hello = Hello {
        version: VERSION,
        handshake: false,
        sealed: false,
        instance: 0x0123_4567_89ab_cdef,
        longest: 8192,
        stream: 128 << 10,
        credit: 1 << 20,
    };
    assert_eq!(hello.emit(), example("hello"));
    assert_eq!(Hello::parse(&example("hello")), Ok(hello));
    assert_eq!(Refusal::Version.emit(), example("reject"));
    assert_eq!(
        Refusal::parse(&example("reject")),
        Ok((1, Refusal::Version))
    );
    for (at, wrong) in [(0, 0), (5, 0), (17, 0xff), (18, 0)] {
        let mut bytes = example("hello");
        bytes[at] = wrong;
        assert!(Hello::parse(&bytes).is_err(), "{at}");
    }
    for refusal in [
        Refusal::Malformed,
        Refusal::NoRoom,
        Refusal::HandshakeRequired,
        Refusal::HandshakeFailed,
        Refusal::UnknownKey,
    ] {
        assert_eq!(Refusal::parse(&refusal.emit()), Ok((1, refusal)));
    }
    assert!(Refusal::parse(b"RIPC\0\x01\0\x07").is_err());
    let mut nobody = example("hello");
    nobody[8..16].fill(0);
    assert!(Hello::parse(&nobody).is_err());
}

#[test]
fn handshake_messages() {
    for (name, length) in [("handshake-request", 96), ("handshake-reply", 80)] {
        let octets = example(name);
        let hello = Hello::parse(&octets).unwrap();
        assert!(hello.handshake);
        assert_eq!(hello.sealed, length == 80);
        let mut again = hello.emit();
        let message = parse_noise(&octets, length).unwrap();
        emit_noise(&mut again, message);
        assert_eq!(again, octets, "{name}");
        assert!(parse_noise(&octets, length + 1).is_err());
        for end in 0..octets.len() {
            assert!(parse_noise(&octets[..end], length).is_err(), "{end}");
        }
    }
    // Without the handshake nothing is sealed.
    let mut hello = example("hello");
    hello[7] = 2;
    assert!(!Hello::parse(&hello).unwrap().sealed);
}

#[test]
fn tokens() {
    let octets = example("token");
    let (claims, covered, hash) = Claims::parse(&octets).unwrap();
    assert_eq!(claims.service, ServiceId::named("kv").number());
    assert_eq!(claims.methods, [MethodId::named("get").number()]);
    assert_eq!(claims.end, 2_000_000_000);
    assert_eq!(claims.emit(), covered);
    assert_eq!([covered, &hash[..]].concat(), octets);
    let message = Message {
        number: 0,
        credit: 1 << 20,
        kind: Kind::Token(octets),
    };
    check("token-message", &message);
}

#[test]
fn calls_and_replies() {
    let body = |item| Body {
        items: vec![item],
        ..Body::default()
    };
    let kind = Kind::Call {
        streams: Streams::default(),
        urgency: Urgency::DEFAULT,
        service: ServiceId::named("kv").number(),
        method: MethodId::named("get").number(),
        timeout: 2_000_000,
        floor: 3,
        body: body(WireItem::Inline(b"key".to_vec())),
    };
    let with = |credit, kind| Message {
        number: 5,
        credit,
        kind,
    };
    check("call", &with(1 << 20, kind));
    let written = WireItem::Written {
        window: 7,
        length: 65_536,
    };
    let kind = Kind::Reply {
        status: 0,
        refused: false,
        body: body(written),
    };
    check("reply", &with((1 << 20) + 75 + 128, kind));
    let kind = Kind::Reply {
        status: 14,
        refused: true,
        body: body(WireItem::Inline(b"busy".to_vec())),
    };
    check("refusal", &with((1 << 20) + 75 + 128, kind));
    check("cancel", &with(1 << 20, Kind::Cancel));
    let kind = Kind::Call {
        streams: Streams {
            down: true,
            up: false,
        },
        urgency: Urgency::MOST,
        service: ServiceId::named("kv").number(),
        method: MethodId::named("get").number(),
        timeout: 0,
        floor: 5,
        body: Body::default(),
    };
    check("urgent-call", &with(1 << 20, kind));
}

#[test]
fn messages() {
    let mut metadata = Metadata::new();
    assert!(metadata.insert("a", b"b"));
    let body = Body {
        windows: vec![Window {
            number: 9,
            key: 0x1122_3344,
            address: 0x7f00_0000_1000,
            length: 4096,
        }],
        items: vec![WireItem::Offered {
            key: 0x5566_7788,
            address: 0x7f00_0000_2000,
            length: 9000,
        }],
        metadata: metadata.emit(),
    };
    let with = |kind| Message {
        number: 6,
        credit: 1 << 20,
        kind,
    };
    check(
        "message",
        &with(Kind::Message {
            urgency: Urgency::DEFAULT,
            to: 4,
            from: 17,
            body,
        }),
    );
    let done = Kind::Done {
        status: 0,
        of_reply: false,
    };
    check("done", &with(done));
}

#[test]
fn queries() {
    let service = ServiceId::named("kv").number();
    let query = Query {
        number: 0x1122_3344_5566_7788,
        service,
        known: Vec::new(),
    };
    // A query has no port.
    assert_eq!(query.emit(), example("query"));
    assert_eq!(Query::parse(&example("query")).as_ref(), Ok(&query));
    let again = Query {
        known: vec![(0x0123_4567_89ab_cdef, 1)],
        ..query
    };
    assert_eq!(again.emit(), example("query-again"));
    assert_eq!(Query::parse(&example("query-again")), Ok(again));
    let answer = Answer {
        number: 0x1122_3344_5566_7788,
        instance: 0x0123_4567_89ab_cdef,
        port: 7000,
        services: vec![(service, "kv".to_owned())],
    };
    assert_eq!(answer.emit(), [example("answer")]);
    assert_eq!(Answer::parse(&example("answer")), Ok(answer));
}

#[test]
fn streams() {
    let with = |kind| Message {
        number: 5,
        credit: 1 << 20,
        kind,
    };
    let kind = Kind::Call {
        streams: Streams {
            down: true,
            up: true,
        },
        urgency: Urgency::DEFAULT,
        service: ServiceId::named("kv").number(),
        method: MethodId::named("get").number(),
        timeout: 0,
        floor: 5,
        body: Body::default(),
    };
    check("stream-call", &with(kind));
    let part = |direction, end, octets: &[u8]| Kind::Stream {
        direction,
        end,
        octets: octets.to_vec(),
    };
    check("stream", &with(part(Direction::Up, false, b"one")));
    check("stream-end", &with(part(Direction::Down, true, b"")));
    let grant = |stop, granted| Kind::Grant {
        direction: Direction::Up,
        stop,
        granted,
    };
    check("grant", &with(grant(false, 196_608)));
    check("stop", &with(grant(true, 196_608)));
}
