//! The examples of Datagram §12 are the test vectors.

use std::collections::BTreeMap;

use super::*;
use crate::wire::hex;

const NOTE: &str = include_str!("../../../../rfc-notes/datagram-mapping.md");

struct Example {
    name: String,
    fields: BTreeMap<String, String>,
    octets: Vec<u8>,
}

impl Example {
    fn text(&self, key: &str) -> &str {
        self.fields
            .get(key)
            .unwrap_or_else(|| panic!("{} has no {key}", self.name))
    }

    fn number(&self, key: &str) -> u64 {
        let text = self.text(key);
        text.strip_prefix("0x").map_or_else(
            || text.parse().unwrap(),
            |digits| u64::from_str_radix(digits, 16).unwrap(),
        )
    }

    fn word(&self, key: &str) -> u32 {
        self.number(key).try_into().unwrap()
    }
}

fn examples() -> Vec<Example> {
    let blocks = NOTE.split("```example ").skip(1);
    blocks
        .map(|block| {
            let block = block.split("```").next().unwrap();
            let mut lines = block.lines();
            let name = lines.next().unwrap().to_owned();
            let fields = lines.next().unwrap().split(' ').map(|field| {
                let (key, value) = field.split_once('=').unwrap();
                (key.to_owned(), value.to_owned())
            });
            let fields = fields.collect();
            let octets = lines.flat_map(str::split_whitespace);
            Example {
                name,
                fields,
                octets: octets.map(|o| u8::from_str_radix(o, 16).unwrap()).collect(),
            }
        })
        .collect()
}

#[test]
fn every_example_reads_and_builds() {
    let all = examples();
    assert!(all.len() >= 19, "{} examples", all.len());
    for example in &all {
        let name = &example.name;
        let datagram =
            Datagram::parse(&example.octets).unwrap_or_else(|why| panic!("{name}: {why}"));
        assert_eq!(
            hex(&datagram.to_bytes(), 300),
            hex(&example.octets, 300),
            "{name}"
        );
        match &datagram {
            Datagram::Segment(segment) => fields_of_segment(example, segment),
            Datagram::Exchange(exchange) => {
                let seen = [
                    u64::from(exchange.kind),
                    exchange.epoch.into(),
                    exchange.nonce,
                    exchange.cookie,
                ];
                assert_eq!(
                    seen,
                    ["type", "epoch", "nonce", "cookie"].map(|key| example.number(key)),
                    "{name}"
                );
            }
            Datagram::Lookup(lookup) => {
                let seen = [
                    lookup.kind.into(),
                    lookup.status.into(),
                    lookup.transaction,
                    lookup.port.into(),
                ];
                assert_eq!(
                    seen,
                    ["type", "status", "transaction", "port"].map(|key| example.number(key)),
                    "{name}"
                );
                assert_eq!(
                    (lookup.qpn, lookup.qkey),
                    (example.word("qpn"), example.word("qkey")),
                    "{name}"
                );
                assert_eq!(
                    hex(&lookup.private_data, 300),
                    example.text("payload"),
                    "{name}"
                );
            }
            Datagram::Reliable(_) => panic!("{name} is of another document"),
        }
    }
}

fn fields_of_segment(example: &Example, segment: &Segment) {
    let name = &example.name;
    if let Some(extension) = segment.extension {
        let keys = ["flags", "epoch", "number", "length", "offset", "immediate"];
        let seen = [
            extension.flags.into(),
            extension.epoch,
            extension.number,
            extension.length,
            extension.offset,
            extension.immediate,
        ];
        assert_eq!(seen, keys.map(|key| example.word(key)), "{name}");
    }
    if let (Place::Tagged { stag, to }, opcode::WRITE_RECORD) = (segment.place, segment.opcode()) {
        assert_eq!(
            (stag, to),
            (example.word("stag"), example.number("to")),
            "{name}"
        );
    }
    if let Some(cookie) = segment.cookie {
        assert_eq!(cookie, example.number("cookie"), "{name}");
    }
    let request =
        ReadRequest::parse(&segment.payload).filter(|_| segment.opcode() == opcode::READ_REQUEST);
    let told = segment.terminate();
    let asked = match told.as_ref().and_then(about) {
        Some(About::Request(request)) => Some(request),
        Some(About::Message(extension)) => {
            assert_eq!(extension.epoch, example.word("message-epoch"), "{name}");
            assert_eq!(extension.number, example.word("number"), "{name}");
            None
        }
        None => request,
    };
    if let Some(asked) = asked {
        let seen = [
            asked.sink_stag.into(),
            asked.sink_to,
            asked.size.into(),
            asked.source_stag.into(),
            asked.source_to,
        ];
        let keys = ["sink-stag", "sink-to", "size", "source-stag", "source-to"];
        assert_eq!(seen, keys.map(|key| example.number(key)), "{name}");
    } else if told.is_none() {
        assert_eq!(
            hex(&segment.payload, 300),
            example.text("payload"),
            "{name}"
        );
    }
    if let Some(told) = told {
        let cause = u32::from(told.layer) << 16 | u32::from(told.etype) << 8 | u32::from(told.code);
        assert_eq!(cause, example.word("cause"), "{name}");
    }
}

/// The names of what is wrong, as they come out when one field of a good datagram is changed.
#[test]
fn what_must_be_dropped_is() {
    type Change = fn(&mut Segment);
    let extension = Extension {
        epoch: 1,
        number: 9,
        length: 8,
        offset: 4,
        ..Extension::default()
    };
    let write = Segment::write_record(5, 0x1000, extension, b"last");
    let send = Segment::segmented_send(5, extension, b"last");
    let rows: [(&Segment, &str, Change); 15] = [
        (&write, "unknown-format", |s| s.first |= 0x10),
        (&write, "bad-version", |s| s.first ^= 3),
        (&write, "bad-version", |s| s.control ^= 0x80),
        (&write, "unexpected-opcode", |s| s.control = 0x40),
        (&send, "malformed: T", |s| s.control = 0x4c),
        (&write, "malformed: L", |s| s.first ^= 0x40),
        (&write, "malformed: octets beyond", |s| s.payload.push(0)),
        (&write, "malformed: no payload", |s| {
            s.payload.clear();
            s.first ^= 0x40;
        }),
        (&write, "malformed: shorter", |s| {
            s.extension = None;
            s.payload.clear();
        }),
        (&write, "malformed: tagged", |s| {
            s.place = Place::Tagged { stag: 5, to: 3 }
        }),
        (&write, "malformed: tagged", |s| {
            s.place = Place::Tagged {
                stag: 5,
                to: u64::MAX - 3,
            }
        }),
        (&write, "malformed: a message longer", |s| {
            s.extension.as_mut().unwrap().length = MOST + 1
        }),
        (&send, "malformed: another queue", |s| {
            s.place = Place::Untagged {
                rsvd: 5,
                qn: 1,
                msn: 9,
                mo: 4,
            }
        }),
        (&send, "malformed: MSN", |s| {
            s.place = Place::Untagged {
                rsvd: 5,
                qn: 0,
                msn: 8,
                mo: 4,
            }
        }),
        (&send, "malformed: MSN", |s| {
            s.place = Place::Untagged {
                rsvd: 5,
                qn: 0,
                msn: 9,
                mo: 0,
            }
        }),
    ];
    for (good, name, change) in rows {
        let mut segment = good.clone();
        assert!(Datagram::parse(&Datagram::from(segment.clone()).to_bytes()).is_ok());
        change(&mut segment);
        let dropped = Datagram::parse(&Datagram::from(segment).to_bytes())
            .unwrap_err()
            .to_string();
        assert!(dropped.starts_with(name), "{name}: {dropped}");
    }
    let mut octets = Datagram::from(write).to_bytes();
    octets[20] ^= 1;
    assert!(matches!(
        Datagram::parse(&octets),
        Err(Dropped::BadCrc { .. })
    ));
}

/// Every prefix of every example, with a right CRC and without, is read or refused; without its whole header it is refused.
#[test]
fn no_octets_are_too_few() {
    for example in examples() {
        let name = &example.name;
        let body = &example.octets[..example.octets.len() - 4];
        let payload = match Datagram::parse(&example.octets).unwrap() {
            Datagram::Segment(segment) => segment.payload.len(),
            Datagram::Exchange(_) => 0,
            Datagram::Lookup(lookup) => lookup.private_data.len() + lookup.fill.len(),
            Datagram::Reliable(_) => panic!("{name} is of another document"),
        };
        for end in 0..body.len() {
            let _ = Datagram::parse(&body[..end]);
            let whole = Datagram::parse(&sealed(body[..end].to_vec()));
            assert!(
                whole.is_err() || end >= body.len() - payload,
                "{name}, {end}"
            );
        }
    }
}
