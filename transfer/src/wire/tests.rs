use super::*;
use proptest::prelude::*;

/// Examples of the specification: a line `NAME` and octets in hexadecimal, in code blocks that begin with `example`.
fn examples() -> Vec<(String, Vec<u8>)> {
    let text = include_str!("../../../rfc-notes/transfer.md");
    let mut found = Vec::new();
    for block in text.split("```example\n").skip(1) {
        let (block, _) = block.split_once("```").expect("the block ends");
        let (name, octets) = block.split_once('\n').expect("a name and octets");
        let digits: Vec<u8> = octets.bytes().filter(u8::is_ascii_hexdigit).collect();
        let (pairs, rest) = digits.as_chunks::<2>();
        assert!(rest.is_empty(), "{name}");
        let octet =
            |pair: &[u8; 2]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
        found.push((name.to_owned(), pairs.iter().map(octet).collect()));
    }
    found
}

fn frames() -> Vec<(&'static str, u32, Frame)> {
    let name = |name: &str| Entry {
        kind: FileKind::File,
        mode: 0o644,
        modified: (1_700_000_000, 500),
        size: 2_500_000,
        identity: [0x11; 16],
        name: name.as_bytes().to_vec(),
        target: Vec::new(),
        attributes: None,
    };
    let offset = 1 << 20;
    let length = 1 << 20;
    vec![
        (
            "HELLO",
            0,
            Frame::Hello(Hello {
                role: Role::Source,
                packs: true,
                streams: false,
                joins: false,
                deltas: false,
                encrypts: false,
                attributes: false,
                receives: 128,
                block: 1 << 20,
                token: [0xab; 16],
            }),
        ),
        (
            "WINDOW",
            1,
            Frame::Window(Window {
                stag: 0x1234_5678,
                slot_length: 1 << 20,
                address: 0x7f00_0000_0000,
                slots: 32,
            }),
        ),
        (
            "GRANT",
            1,
            Frame::Grant(Grant {
                slots: vec![0, 1, 31],
            }),
        ),
        (
            "OFFER",
            3,
            Frame::Offer(Offer {
                file: 0,
                entry: name("a/b"),
            }),
        ),
        (
            "WANT",
            2,
            Frame::Want(Want {
                file: 0,
                ranges: vec![(1 << 20, 1_451_424)],
            }),
        ),
        (
            "BLOCK",
            4,
            Frame::Block(Block {
                file: 0,
                slot: 31,
                offset,
                length,
                delta: false,
                hash: [0xcd; 32],
            }),
        ),
        (
            "ACK",
            3,
            Frame::Ack(Ack {
                level: Level::Placed,
                blocks: vec![(0, offset, length)],
            }),
        ),
        (
            "NACK",
            3,
            Frame::Nack(Nack {
                file: 0,
                offset,
                length,
            }),
        ),
        (
            "END",
            4,
            Frame::End(End {
                file: 0,
                status: EndStatus::Complete,
                root: Some([0xef; 32]),
                text: String::new(),
            }),
        ),
        (
            "DONE",
            5,
            Frame::Done(Done {
                file: 0,
                status: Status::NoSpace,
                text: "full".into(),
            }),
        ),
        (
            "KEY_SHARE",
            0,
            Frame::KeyShare(KeyShare {
                method: Method::Preshared,
                identity: 0x7bb3_e48d_e2a4_e046_d635_0b9c_a935_0b2f_u128.to_be_bytes(),
                share: vec![0x0a; 32],
            }),
        ),
        ("FINISH", 6, Frame::Finish),
        ("PING", 7, Frame::Ping),
        (
            "LIST",
            3,
            Frame::List(List {
                first: 1,
                entries: vec![listed(b"a/c", 5, b""), listed(b"l", 0, b"c")],
            }),
        ),
        (
            "ANSWER",
            3,
            Frame::Answer(Answers {
                first: 1,
                answers: vec![Answer::Wanted, Answer::Present],
            }),
        ),
        ("STORED", 4, Frame::Stored(Stored { files: vec![1] })),
        (
            "REQUEST",
            0,
            Frame::Request(Request {
                prune: true,
                dry_run: true,
                more: false,
                contents: false,
                wishes: vec![Wish::Path(b"a/b".to_vec()), Wish::Exclude(b"*.o".to_vec())],
            }),
        ),
        (
            "UNREADABLE",
            9,
            Frame::Unreadable(Unreadable {
                name: "a".into(),
                text: "no".into(),
            }),
        ),
        ("PRUNE", 9, Frame::Prune),
        (
            "REMOVED",
            9,
            Frame::Removed(Removed {
                last: true,
                entries: vec![Removal {
                    name: b"a".to_vec(),
                    status: Status::Permission,
                    text: "no".into(),
                }],
            }),
        ),
        (
            "STREAMS",
            1,
            Frame::Streams(Offering {
                streams: 15,
                key: [0x99; 16],
            }),
        ),
        (
            "LEFT",
            3,
            Frame::Left(Left {
                stream: 2,
                taken: 40,
            }),
        ),
        (
            "SIGNATURES",
            3,
            Frame::Signatures(Signatures {
                file: 0,
                piece: 4096,
                first: 0,
                signatures: vec![Signature {
                    weak: 0x0bad_cafe,
                    strong: [0xee; 8],
                }],
            }),
        ),
        (
            "ATTRIBUTES",
            3,
            Frame::Attributes(attributes().parts(3).swap_remove(0)),
        ),
        (
            "REMARK",
            3,
            Frame::Remark(Remark {
                text: "none".into(),
            }),
        ),
        (
            "ABORT",
            8,
            Frame::Abort(Abort {
                reason: Reason::Cancelled,
                text: "stop".into(),
            }),
        ),
    ]
}

#[test]
fn the_examples_of_the_specification_are_these_frames() {
    let examples = examples();
    let frames = frames();
    for (name, taken, frame) in &frames {
        let emitted = frame.emit(*taken);
        let (_, octets) = examples
            .iter()
            .find(|(it, _)| it == name)
            .unwrap_or_else(|| panic!("no example {name}: {}", hexadecimal(&emitted)));
        assert_eq!(hexadecimal(octets), hexadecimal(&emitted), "{name}");
        let (header, body) = octets.split_first_chunk::<HEADER>().unwrap();
        let header = Header::parse(header).unwrap();
        assert_eq!(header.taken, *taken);
        assert_eq!(Frame::parse(header.kind, body).as_ref(), Ok(frame));
    }
    assert_eq!(examples.len(), frames.len());
}

fn attributes() -> Attributes {
    let attribute = |name: &[u8], value: &[u8]| Attribute {
        name: name.to_vec(),
        value: value.to_vec(),
    };
    let all = vec![attribute(b"user.a", b"1"), attribute(b"user.b", b"")];
    Attributes::new(all).unwrap()
}

fn listed(name: &[u8], size: u64, target: &[u8]) -> Entry {
    Entry {
        kind: if target.is_empty() {
            FileKind::File
        } else {
            FileKind::Link
        },
        mode: 0o644,
        modified: (1_700_000_000, 500),
        size,
        identity: [0; 16],
        name: name.to_vec(),
        target: target.to_vec(),
        attributes: None,
    }
}

fn hexadecimal(octets: &[u8]) -> String {
    octets.iter().map(|it| format!("{it:02x}")).collect()
}

#[test]
fn other_versions_and_lengths_are_refused() {
    let header = Header {
        kind: 12,
        length: 0,
        taken: 0,
    }
    .emit();
    assert!(Header::parse(&header).is_ok());
    let with = |at: usize, octet: u8| {
        let mut header = header;
        header[at] = octet;
        Header::parse(&header)
    };
    assert_eq!(with(0, b'X'), Err(Malformed::Magic(*b"XG")));
    assert_eq!(with(2, 2), Err(Malformed::Version(2)));
    assert_eq!(with(6, 0x40), Err(Malformed::Length(0x4000)));
    assert_eq!(Frame::parse(99, &[]), Err(Malformed::Kind(99)));
    assert_eq!(
        Frame::parse(12, &[0]),
        Err(Malformed::Long {
            kind: 12,
            octets: 1
        })
    );
}

proptest! {
    #[test]
    fn any_body_is_a_frame_or_an_error(kind in 0_u8..29, body in proptest::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(frame) = Frame::parse(kind, &body) {
            // A text that is not UTF-8 and reserved octets may change, once.
            let emitted = frame.emit(0);
            prop_assert_eq!(Frame::parse(kind, &emitted[HEADER..]), Ok(frame));
        }
    }

    #[test]
    fn a_body_that_is_cut_is_no_longer_frame(at in 0_usize..200, which in 0_usize..26) {
        let (_, _, frame) = frames().swap_remove(which);
        let body = frame.emit(0)[HEADER..].to_vec();
        let cut = &body[..at.min(body.len())];
        // It returns; texts and lists may be shorter.
        let _ = Frame::parse(frame.kind(), cut);
    }
}

proptest! {
    /// Octets of a packed block are records, all of them, or an error.
    #[test]
    fn any_packed_block_is_records_or_an_error(block in proptest::collection::vec(prop_oneof![Just(0_u8), any::<u8>()], 0..200)) {
        if let Ok(records) = Record::parse_all(&block) {
            let octets: usize = records.iter().map(|it| RECORD + it.range.len()).sum();
            prop_assert_eq!(octets, block.len());
            prop_assert!(records.iter().all(|it| block.get(it.range.clone()).is_some()));
        }
    }

    #[test]
    fn records_are_found_where_they_were_put(sizes in proptest::collection::vec(0_usize..50, 0..8)) {
        let mut block = Vec::new();
        let mut expected = Vec::new();
        for (file, size) in (7_u32..).zip(sizes) {
            let status = [EndStatus::Complete, EndStatus::Changed, EndStatus::Unreadable][size % 3];
            block.extend(Record::header(file, status, u32::try_from(size).unwrap()));
            let range = block.len()..block.len() + size;
            block.resize(range.end, 0);
            expected.push(Record { file, status, range });
        }
        prop_assert_eq!(Record::parse_all(&block), Ok(expected));
    }
}
