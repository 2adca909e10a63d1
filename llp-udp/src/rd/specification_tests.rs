//! The examples of `rfc-notes/reliable-datagrams.md`, octet by octet, and its table of frames.

use std::collections::HashMap;

use dgiwarp_codec::PayloadSlice;

use super::envelope::{self, Envelope};
use super::frame::{
    Ack, Close, CloseReason, Credit, EcnCounts, Frame, Frames, Hello, MessageError, NotReady, Ping,
    Placed, Pong, SegmentHeader,
};

const SPECIFICATION: &str = include_str!("../../../rfc-notes/reliable-datagrams.md");

fn octets(hex: &str) -> Vec<u8> {
    let digits: String = hex.split_whitespace().collect();
    (0..digits.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap())
        .collect()
}

struct Fields(HashMap<String, String>);

impl Fields {
    fn of(line: &str) -> Self {
        let pairs = line.split(' ').filter_map(|field| field.split_once('='));
        Self(
            pairs
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .collect(),
        )
    }

    fn number(&self, field: &str) -> u64 {
        let text = &self.0[field];
        match text.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).unwrap(),
            None => text.parse().unwrap(),
        }
    }

    fn word(&self, field: &str) -> u32 {
        u32::try_from(self.number(field)).unwrap()
    }

    fn is(&self, field: &str) -> bool {
        self.number(field) == 1
    }

    fn emit(&self, name: &str, out: &mut Vec<u8>) {
        let short = |field| u16::try_from(self.number(field)).unwrap();
        let credit = |prefix: &str| Credit {
            receives: self.word(&format!("{prefix}receives")),
            window: self.word(&format!("{prefix}window")),
        };
        match name {
            "envelope" => Envelope {
                eager: self.is("eager"),
                hello: self.is("hello"),
                association: self.word("association"),
                number: self.number("number"),
                time: self.word("time"),
                epoch: self.word("epoch"),
            }
            .emit(out),
            "segment" => {
                let segment = octets(&self.0["segment"]);
                SegmentHeader {
                    last: self.is("last"),
                    receive: self.is("receive"),
                    number: self.word("number"),
                    message: self.word("message"),
                    index: self.word("index"),
                    stream: short("stream"),
                    after: short("after"),
                }
                .emit(out, u16::try_from(segment.len()).unwrap());
                out.extend(segment);
            }
            "ack" => self.ack().emit(out),
            "placed" => Placed {
                next: self.word("next"),
                map: self.number("map"),
            }
            .emit(out),
            "credit" => credit("").emit(out),
            "not-ready" => NotReady {
                packet: self.number("packet"),
                message: self.word("message"),
                delay: self.word("delay"),
            }
            .emit(out),
            "error" => MessageError {
                message: self.word("message"),
                control: self.word("control"),
            }
            .emit(out),
            "hello" => Hello {
                retry: self.is("retry"),
                life: self.0.contains_key("life").then(|| self.word("life")),
                association: self.word("association"),
                credit: credit(""),
                proof: self.number("proof"),
                cookie: self.number("cookie"),
            }
            .emit(out),
            "ping" => Ping(self.number("data")).emit(out),
            "pong" => Pong(self.number("data")).emit(out),
            "close" => Close {
                reason: match self.word("reason") {
                    2 => CloseReason::Unknown,
                    1 => CloseReason::Done,
                    other => CloseReason::Other(other),
                },
                association: self.word("association"),
                packet: self.number("packet"),
            }
            .emit(out),
            other => panic!("{other} is no frame"),
        }
    }

    fn ack(&self) -> Ack {
        let mut ranges = self.0["ranges"].split(',').map(|range| {
            let (from, to) = range.split_once('-').unwrap();
            from.parse().unwrap()..=to.parse().unwrap()
        });
        let (delay, echo) = (self.word("delay"), self.word("echo"));
        let mut ack = Ack::new(ranges.next().unwrap(), delay, echo);
        assert!(ranges.all(|range| ack.add(&range)));
        ack.ecn = self.0.contains_key("ce").then(|| EcnCounts {
            ect0: self.word("ect0"),
            ect1: self.word("ect1"),
            ce: self.word("ce"),
        });
        ack
    }
}

/// Name, lines of fields and datagram of each example.
fn examples() -> Vec<(String, Vec<String>, Vec<u8>)> {
    let blocks = SPECIFICATION.split("```example ").skip(1);
    blocks
        .map(|block| {
            let (block, _) = block.split_once("```").unwrap();
            let mut lines = block.lines();
            let name = lines.next().unwrap().to_owned();
            let (fields, hex): (Vec<&str>, Vec<&str>) = lines.partition(|line| line.contains('='));
            let fields = fields.into_iter().map(ToOwned::to_owned).collect();
            (name, fields, octets(&hex.join(" ")))
        })
        .collect()
}

#[test]
fn examples_are_emitted_octet_by_octet() {
    let examples = examples();
    assert!(examples.len() >= 8, "{}", examples.len());
    let mut frames = Vec::new();
    for (name, lines, datagram) in &examples {
        let mut out = Vec::new();
        for line in lines {
            let (frame, fields) = line.split_once(' ').unwrap();
            Fields::of(fields).emit(frame, &mut out);
            frames.push(frame);
        }
        envelope::seal(&mut out, 0);
        let hex = |octets: &[u8]| {
            octets
                .iter()
                .map(|it| format!("{it:02x} "))
                .collect::<String>()
        };
        assert_eq!(hex(&out), hex(datagram), "{name}");
    }
    for name in [
        "segment",
        "ack",
        "placed",
        "credit",
        "not-ready",
        "error",
        "hello",
        "ping",
        "pong",
        "close",
    ] {
        assert!(frames.contains(&name), "no example of {name}");
    }
}

#[test]
fn examples_parse() {
    for (name, lines, datagram) in examples() {
        let (_, frames) = Envelope::open::<[u8]>(PayloadSlice::new(&datagram)).unwrap();
        let frames: Vec<Frame<'_, [u8]>> = Frames::new(frames).collect::<Result<_, _>>().unwrap();
        assert_eq!(frames.len() + 1, lines.len(), "{name}");
    }
}

/// The table of §3 against the types that frames are emitted with.
#[test]
fn the_table_of_frames_has_every_type() {
    let row = |kind: u8, name: &str| {
        let begin = format!("| 0x{kind:02x} | {name} |");
        assert!(SPECIFICATION.contains(&begin), "{begin}");
    };
    for (kind, name) in (0u8..).zip([
        "PAD", "SEGMENT", "ACK", "PLACED", "CREDIT", "RNR", "ERROR", "HELLO", "PING", "PONG",
        "CLOSE",
    ]) {
        row(kind, name);
    }
}
