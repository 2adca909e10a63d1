//! Checks the code against `rfc-notes/datagram-mapping.md`: its examples byte for byte, its table of drop reasons.

mod reads;

use std::collections::HashMap;

use dgiwarp_codec::crc;
use dgiwarp_ddp::{Msn, STag, Segment, TaggedOffset};

use super::Cookie;
use super::DropReason;
use super::read::segment::Layout;
use super::segment::{MAX_HEADER, Parsed, Prefix, Template, WriteSegment};
use super::test_octets::{Arrived, emit, mark, parse};
use crate::wire::{Extension, Flags};

const SPECIFICATION: &str = include_str!("../../../rfc-notes/datagram-mapping.md");

struct Example {
    name: String,
    fields: HashMap<String, String>,
    datagram: Vec<u8>,
}

impl Example {
    fn number(&self, field: &str) -> u64 {
        let text = &self.fields[field];
        match text.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).unwrap(),
            None => text.parse().unwrap(),
        }
    }

    fn word(&self, field: &str) -> u32 {
        u32::try_from(self.number(field)).unwrap()
    }

    fn payload(&self) -> Vec<u8> {
        bytes(&self.fields["payload"])
    }

    fn extension(&self) -> Extension {
        let flags = self.number("flags");
        Extension {
            flags: Flags::empty()
                .with(Flags::IMMEDIATE, flags & 1 != 0)
                .with(Flags::SOLICITED, flags & 2 != 0)
                .with(Flags::WRITE, flags & 4 != 0),
            epoch: self.word("epoch"),
            number: self.word("number"),
            length: self.word("length"),
            offset: self.word("offset"),
            immediate: self.word("immediate"),
        }
    }
}

fn bytes(hex: &str) -> Vec<u8> {
    let digits: String = hex.split_whitespace().collect();
    (0..digits.len())
        .step_by(2)
        .map(|i| u8::from_str_radix(&digits[i..i + 2], 16).unwrap())
        .collect()
}

fn examples() -> Vec<Example> {
    SPECIFICATION
        .split("```example ")
        .skip(1)
        .map(|block| {
            let (block, _) = block.split_once("```").unwrap();
            let mut lines = block.lines();
            let name = lines.next().unwrap().to_owned();
            let fields = lines
                .next()
                .unwrap()
                .split(' ')
                .filter_map(|field| field.split_once('='))
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .collect();
            let datagram = bytes(&lines.collect::<Vec<_>>().join(" "));
            Example {
                name,
                fields,
                datagram,
            }
        })
        // Examples of format 3 belong to SIDR.
        .filter(|example| !example.name.starts_with("service-"))
        .collect()
}

/// Octets that the encoder makes of an example's fields.
fn encode(example: &Example) -> Vec<u8> {
    let mut datagram = match reads::encode(example) {
        Some(segment) => segment,
        None => encode_message(example),
    };
    let crc = crc::to_wire(crc::crc32c(&datagram));
    datagram.extend_from_slice(&crc);
    datagram
}

fn encode_message(example: &Example) -> Vec<u8> {
    let payload = example.payload();
    let (template, offset, length) = match example.fields["opcode"].as_str() {
        "send" => {
            let template = Template::Send {
                qkey: example.word("qkey"),
                msn: Msn::new(example.word("msn")),
                solicited: example.number("solicited") == 1,
            };
            (template, 0, payload.len())
        }
        "segmented-send" => {
            let extension = example.extension();
            let template = Template::SegmentedSend {
                qkey: example.word("qkey"),
                extension,
            };
            (template, extension.offset, extension.length as usize)
        }
        "write-record" => {
            let extension = example.extension();
            let base = example.number("to") - u64::from(extension.offset);
            let template = Template::WriteRecord {
                stag: STag::new(example.word("stag")),
                base: TaggedOffset::new(base),
                extension,
            };
            (template, extension.offset, extension.length as usize)
        }
        other => panic!("unknown opcode {other} in the specification"),
    };
    let segment = Segment {
        offset,
        length: u32::try_from(payload.len()).unwrap(),
        last: offset as usize + payload.len() == length,
    };
    let mut datagram = vec![0; MAX_HEADER];
    let cookie = example.fields.get("cookie");
    let cookie = cookie.map(|_| Cookie::new(example.number("cookie")));
    let prefix = Prefix::new(template, cookie);
    let header = prefix.emit(segment, &mut datagram);
    assert_eq!(header, prefix.length());
    datagram.truncate(header);
    if prefix.has_cookie() {
        mark(Layout::WithCookie, &mut datagram);
    }
    datagram.extend_from_slice(&payload);
    datagram
}

#[test]
fn examples_of_the_specification_are_what_we_emit() {
    let examples = examples();
    assert!(examples.len() >= 6, "the specification lost its examples");
    for example in examples {
        assert_eq!(encode(&example), example.datagram, "{}", example.name);
    }
}

#[test]
fn examples_of_the_specification_are_what_we_parse() {
    for example in examples() {
        let (segment, crc) = example.datagram.split_last_chunk::<4>().unwrap();
        assert_eq!(
            crc::from_wire(*crc),
            crc::crc32c(segment),
            "{}",
            example.name
        );
        let parsed = match parse(segment).unwrap() {
            Arrived::Segment(parsed) => parsed,
            Arrived::Exchange(exchange) => {
                assert_eq!(emit(&exchange.emit()), segment, "{}", example.name);
                continue;
            }
        };
        let (opcode, payload) = match parsed {
            Parsed::Send {
                qkey,
                solicited,
                payload,
            } => {
                assert_eq!(qkey, example.word("qkey"));
                assert_eq!(u64::from(solicited), example.number("solicited"));
                ("send", payload)
            }
            Parsed::SegmentedSend {
                qkey,
                extension,
                payload,
            } => {
                assert_eq!(qkey, example.word("qkey"));
                assert_eq!(extension, example.extension());
                ("segmented-send", payload)
            }
            Parsed::WriteRecord(WriteSegment {
                stag,
                tagged_offset,
                base,
                extension,
                payload,
            }) => {
                assert_eq!(stag.get(), example.word("stag"));
                assert_eq!(tagged_offset.get(), example.number("to"));
                assert_eq!(
                    base.get() + u64::from(extension.offset),
                    tagged_offset.get()
                );
                assert_eq!(extension, example.extension());
                ("write-record", payload)
            }
            Parsed::Read(parsed) => {
                assert_eq!(reads::emit(&parsed, &example), segment, "{}", example.name);
                continue;
            }
        };
        assert_eq!(opcode, example.fields["opcode"]);
        assert_eq!(payload.octets(), example.payload());
    }
}

/// Every reason that we count stands in the specification's table.
#[test]
fn drop_reasons_are_those_of_the_specification() {
    for reason in DropReason::ALL {
        let cell = format!("| `{}` |", reason.name());
        assert!(SPECIFICATION.contains(&cell), "{reason} is not specified");
    }
}
