use super::*;
use crate::wire::ReadRequest;
use proptest::prelude::*;

const PAYLOAD: u32 = 40;

fn any_extension() -> impl Strategy<Value = Extension> {
    let length = prop_oneof![Just(PAYLOAD), PAYLOAD..MAX_SEND];
    let numbers = (any::<u32>(), any::<u32>(), length);
    (numbers, any::<Option<u32>>(), any::<bool>()).prop_map(
        |((epoch, number, length), immediate, solicited)| Extension {
            flags: Flags::empty()
                .with(Flags::IMMEDIATE, immediate.is_some())
                .with(Flags::SOLICITED, solicited),
            epoch,
            number,
            length,
            offset: 0,
            immediate: immediate.unwrap_or(0),
        },
    )
}

fn any_template() -> impl Strategy<Value = Template> {
    prop_oneof![
        (any::<u32>(), any::<u32>(), any::<bool>()).prop_map(|(qkey, msn, solicited)| {
            Template::Send {
                qkey,
                msn: Msn::new(msn),
                solicited,
            }
        }),
        (any::<u32>(), any_extension())
            .prop_map(|(qkey, extension)| Template::SegmentedSend { qkey, extension }),
        (any::<u32>(), any::<u64>(), any_extension()).prop_map(|(stag, base, extension)| {
            let highest = u64::MAX - u64::from(extension.length);
            Template::WriteRecord {
                stag: STag::new(stag),
                base: TaggedOffset::new(base.min(highest)),
                extension,
            }
        }),
    ]
}

/// The segment of a message at `offset`, or near it.
fn cut(template: &Template, offset: u32) -> Segment {
    let length = match template {
        Template::Send { .. } => PAYLOAD,
        Template::SegmentedSend { extension, .. } | Template::WriteRecord { extension, .. } => {
            extension.length
        }
    };
    let offset = offset % (length - PAYLOAD + 1);
    Segment {
        offset,
        length: PAYLOAD,
        last: offset + PAYLOAD == length,
    }
}

fn expected<'a>(template: &Template, segment: Segment, payload: &'a [u8]) -> Parsed<'a, [u8]> {
    let payload = PayloadSlice::new(payload);
    match *template {
        Template::Send {
            qkey, solicited, ..
        } => Parsed::Send {
            qkey,
            solicited,
            payload,
        },
        Template::SegmentedSend { qkey, extension } => Parsed::SegmentedSend {
            qkey,
            extension: at(extension, segment),
            payload,
        },
        Template::WriteRecord {
            stag,
            base,
            extension,
        } => Parsed::WriteRecord(WriteSegment {
            stag,
            tagged_offset: base.checked_add(segment.offset.into()).unwrap(),
            base,
            extension: at(extension, segment),
            payload,
        }),
    }
}

const HUNDRED: Extension = Extension {
    flags: Flags::empty(),
    epoch: 1,
    number: 5,
    length: 100,
    offset: 0,
    immediate: 0,
};

/// A segment with a payload of zeros.
fn emitted(template: Template, segment: Segment) -> Vec<u8> {
    let mut octets = vec![0; MAX_HEADER];
    let header = template.emit(segment, &mut octets);
    octets.truncate(header);
    octets.resize(header + segment.length as usize, 0);
    octets
}

/// §2, §3: MSN and MO repeat number and offset of the extension, and flag W belongs to tagged messages.
#[test]
fn the_headers_of_a_segmented_send_agree() {
    let segment = Segment {
        offset: 20,
        length: 40,
        last: false,
    };
    let send = |extension| emitted(Template::SegmentedSend { qkey: 1, extension }, segment);
    let good = send(HUNDRED);
    assert!(parse(&good[..], false).is_ok());
    // The last octets of MSN and MO.
    for position in [13, 17] {
        let mut octets = good.clone();
        octets[position] ^= 1;
        assert_eq!(parse(&octets[..], false), Err(DropReason::Malformed));
    }
    let written = send(Extension {
        flags: Flags::WRITE,
        ..HUNDRED
    });
    assert_eq!(parse(&written[..], false), Err(DropReason::Malformed));
}

/// §1: a Send has at most 2^24 octets.
#[test]
fn a_segment_of_a_send_that_is_too_long_is_malformed() {
    let segment = Segment {
        offset: 20,
        length: 40,
        last: false,
    };
    for (length, fits) in [(MAX_SEND, true), (MAX_SEND + 1, false)] {
        let extension = Extension { length, ..HUNDRED };
        let send = emitted(Template::SegmentedSend { qkey: 1, extension }, segment);
        assert_eq!(parse(&send[..], false).is_ok(), fits, "{length}");
    }
}

/// §3: only a message of nothing has an empty segment.
#[test]
fn an_empty_segment_is_alone() {
    for (length, last) in [(0, true), (100, false)] {
        let write = Template::WriteRecord {
            stag: STag::new(1),
            base: TaggedOffset::new(0),
            extension: Extension { length, ..HUNDRED },
        };
        let empty = Segment {
            offset: 0,
            length: 0,
            last,
        };
        let octets = emitted(write, empty);
        assert_eq!(parse(&octets[..], false).is_ok(), length == 0);
    }
}

/// §7.1: a Read has at most 2^30 octets. RFC 5040 §4.2: nothing follows the header of its request.
#[test]
fn a_read_request_has_its_length_and_asks_for_no_more_than_the_limit() {
    let octets = |size| {
        let request = ReadRequest {
            sink_stag: STag::new(1),
            sink_offset: TaggedOffset::new(0),
            size,
            source_stag: STag::new(2),
            source_offset: TaggedOffset::new(0),
        };
        read::emit_request(&request, 1, None, Msn::FIRST)
            .octets
            .to_vec()
    };
    assert!(parse(&octets(1 << 30)[..], false).is_ok());
    let longer = [octets(1), vec![0]].concat();
    for refused in [octets((1 << 30) + 1), longer] {
        assert_eq!(parse(&refused[..], false), Err(DropReason::Malformed));
    }
}

proptest! {
    /// Emitted segments are parsed as they were meant, with or without a cookie.
    #[test]
    fn parse_of_emit_is_identity(
        template in any_template(),
        offset: u32,
        payload in proptest::collection::vec(any::<u8>(), PAYLOAD as usize),
        cookie: [u8; 8],
    ) {
        let segment = cut(&template, offset);
        let mut octets = vec![0; MAX_HEADER];
        let header = template.emit(segment, &mut octets);
        prop_assert_eq!(header, template.header_len());
        octets.truncate(header);
        octets.extend_from_slice(&payload);
        let parsed = parse(&octets[..], false);
        prop_assert_eq!(parsed, Ok(expected(&template, segment, &payload)));
        let with_cookie = [&octets[..header], &cookie, &payload].concat();
        let parsed = parse(&with_cookie[..], true);
        prop_assert_eq!(parsed, Ok(expected(&template, segment, &payload)));
        let prefix = Prefix::new(template, Some(Cookie::new(u64::from_be_bytes(cookie))));
        let mut octets = vec![0; MAX_HEADER];
        let length = prefix.emit(segment, &mut octets);
        prop_assert_eq!(length, prefix.length());
        prop_assert_eq!(&octets[..length], &with_cookie[..length]);
    }

    /// Any octets return, and what comes back lies where the segment's headers may place it.
    #[test]
    fn any_octets_return(
        first: u8,
        opcode in prop_oneof![Just(0x4c_u8), Just(0x4d), Just(0x43), any::<u8>()],
        rest in proptest::collection::vec(prop_oneof![Just(0u8), any::<u8>()], 0..100),
        with_cookie: bool,
    ) {
        for with_cookie in [false, true] {
            let _ = parse(&rest[..], with_cookie);
        }
        let octets = [&[first, opcode], &rest[..]].concat();
        let (extension, payload) = match parse(&octets[..], with_cookie) {
            Ok(Parsed::SegmentedSend { extension, payload, .. }) => (extension, payload),
            Ok(Parsed::WriteRecord(WriteSegment { tagged_offset, base, extension, payload, .. })) => {
                prop_assert_eq!(base.checked_add(extension.offset.into()), Some(tagged_offset));
                prop_assert!(base.checked_add(extension.length.into()).is_some());
                (extension, payload)
            }
            Ok(Parsed::Send { .. } | Parsed::Read(_)) | Err(_) => return Ok(()),
        };
        let end = u64::from(extension.offset) + payload.len() as u64;
        prop_assert!(end <= u64::from(extension.length));
        prop_assert_eq!(first & 0x40 != 0, end == u64::from(extension.length));
    }
}
