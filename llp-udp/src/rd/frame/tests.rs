use super::*;
use proptest::prelude::*;

fn frames(octets: &[u8]) -> Vec<Result<Frame<'_, [u8]>, Malformed>> {
    Frames::new(PayloadSlice::new(octets)).collect()
}

const HELLO: Hello = Hello {
    retry: false,
    life: None,
    association: 1,
    credit: Credit {
        receives: 2,
        window: 3,
    },
    proof: 4,
    cookie: 5,
};

fn ack() -> impl Strategy<Value = Ack> {
    let range = (0u64..1 << 20, 0u64..1 << 20);
    (
        proptest::collection::vec(range, 1..=MAX_RANGES),
        any::<(u32, u32)>(),
        proptest::option::of(any::<(u32, u32, u32)>()),
        0u64..1 << 40,
    )
        .prop_map(|(steps, (delay, echo), ecn, base)| {
            let mut top = base + (1 << 30);
            let mut built: Option<Ack> = None;
            for (gap, length) in steps {
                let range = top - length..=top;
                top = top - length - 2 - gap;
                match &mut built {
                    None => built = Some(Ack::new(range, delay, echo)),
                    Some(ack) => assert!(ack.add(&range)),
                }
            }
            let mut ack = built.unwrap();
            ack.ecn = ecn.map(|(ect0, ect1, ce)| EcnCounts { ect0, ect1, ce });
            ack
        })
}

fn frame() -> impl Strategy<Value = Frame<'static, [u8]>> {
    static OCTETS: [u8; 64] = [7; 64];
    let segment = (any::<(bool, bool, u32, u32, u32, u16, u16)>(), 2usize..64).prop_map(
        |((last, receive, number, message, index, stream, after), length)| {
            let header = SegmentHeader {
                last,
                receive,
                number,
                message,
                index,
                stream,
                after,
            };
            Frame::Segment(header, PayloadSlice::new(&OCTETS[..length]))
        },
    );
    prop_oneof![
        (0u16..100).prop_map(Frame::Pad),
        segment,
        ack().prop_map(Frame::Ack),
        any::<(u32, u64)>().prop_map(|(next, map)| Frame::Placed(Placed { next, map })),
        any::<(u32, u32)>()
            .prop_map(|(receives, window)| Frame::Credit(Credit { receives, window })),
        any::<(u64, u32, u32)>().prop_map(|(packet, message, delay)| {
            Frame::NotReady(NotReady {
                packet,
                message,
                delay,
            })
        }),
        any::<(u32, u32)>()
            .prop_map(|(message, control)| Frame::Error(MessageError { message, control })),
        any::<(bool, Option<u32>, u32, u32, u32, u64, u64)>().prop_map(
            |(retry, life, association, receives, window, proof, cookie)| {
                Frame::Hello(Hello {
                    retry,
                    life: life.map(|life| life >> 8),
                    association,
                    credit: Credit { receives, window },
                    proof,
                    cookie,
                })
            }
        ),
        any::<u64>().prop_map(|data| Frame::Ping(Ping(data))),
        any::<u64>().prop_map(|data| Frame::Pong(Pong(data))),
        (0u32..7, any::<(u32, u64)>()).prop_map(|(code, (association, packet))| {
            let reason = match code {
                1 => CloseReason::Done,
                2 => CloseReason::Unknown,
                3 => CloseReason::Violation,
                4 => CloseReason::Failed,
                5 => CloseReason::Exited,
                other => CloseReason::Other(other),
            };
            Frame::Close(Close {
                reason,
                association,
                packet,
            })
        }),
    ]
}

proptest! {
    #[test]
    fn frames_survive_the_wire(sent in proptest::collection::vec(frame(), 0..8)) {
        let mut octets = Vec::new();
        for frame in &sent {
            frame.emit(&mut octets);
            prop_assert!(!frame.to_string().is_empty());
        }
        let parsed: Result<Vec<_>, _> = frames(&octets).into_iter().collect();
        prop_assert_eq!(parsed, Ok(sent));
    }

    /// Whatever arrives yields frames or one error, and nothing behind the error.
    #[test]
    fn random_octets_do_no_harm(octets in proptest::collection::vec(any::<u8>(), 0..400), kind in 0u8..12) {
        let mut octets = octets;
        if let [first, flags, high, low, ..] = octets.as_mut_slice() {
            *first = kind;
            *flags &= 1;
            *high = 0;
            *low &= 0x7f;
        }
        let parsed = frames(&octets);
        let errors = parsed.iter().filter(|frame| frame.is_err()).count();
        prop_assert!(errors <= 1);
        prop_assert!(parsed.iter().rev().skip(1).all(Result::is_ok));
        let mut again = Vec::new();
        for frame in parsed.iter().flatten() {
            frame.emit(&mut again);
        }
        prop_assert!(again.len() <= octets.len());
    }

    /// Every number of a range is in one range of the frame, in descending order.
    #[test]
    fn ranges_descend(ack in ack()) {
        let ranges: Vec<_> = ack.ranges().collect();
        prop_assert_eq!(ack.largest(), *ranges[0].end());
        prop_assert_eq!(ack.smallest(), *ranges[ranges.len() - 1].start());
        for pair in ranges.windows(2) {
            prop_assert!(pair[1].end() + 1 < *pair[0].start());
        }
        prop_assert!(ranges.iter().all(|range| !range.is_empty()));
    }
}

#[test]
fn a_range_joins_only_below_a_gap() {
    let mut ack = Ack::new(10..=12, 0, 0);
    assert!(!ack.add(&(9..=9)), "no number is missing");
    assert!(!ack.add(&(7..=11)));
    assert!(!ack.add(&(u64::MAX..=u64::MAX)));
    #[expect(clippy::reversed_empty_ranges, reason = "an empty range")]
    let empty = 8..=7;
    assert!(!ack.add(&empty));
    assert!(ack.add(&(8..=8)));
    assert_eq!((ack.largest(), ack.smallest()), (12, 8));
    let mut ack = Ack::new(100..=100, 0, 0);
    for number in 1..MAX_RANGES as u64 {
        let at = 100 - 2 * number;
        assert!(ack.add(&(at..=at)));
    }
    assert!(!ack.add(&(1..=1)), "32 ranges");
    assert_eq!(ack.ranges().count(), 32);
}

fn with_frame(kind: u8, flags: u8, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    emit_header(&mut out, kind, flags, u16::try_from(body.len()).unwrap());
    out.extend(body);
    out
}

#[test]
fn a_length_that_is_not_the_types_is_an_error() {
    let lengths: &[(u8, &[usize])] = &[
        (0x02, &[20, 28, 36, 20 + 31 * 8]),
        (0x03, &[12]),
        (0x04, &[8]),
        (0x05, &[16]),
        (0x06, &[8]),
        (0x07, &[32]),
        (0x08, &[8]),
        (0x09, &[8]),
        (0x0a, &[16]),
    ];
    for &(kind, valid) in lengths {
        for length in (0..40).chain([267, 268, 269, 276, 280, 300, 2000]) {
            let mut body = vec![0; length];
            if kind == 0x02
                && let [_, _, largest, ..] = body.as_mut_slice()
            {
                *largest = 1;
            }
            if kind == 0x07
                && let [version, ..] = body.as_mut_slice()
            {
                *version = VERSION;
            }
            let octets = with_frame(kind, 0, &body);
            let parsed = frames(&octets);
            assert_eq!(parsed.len(), 1);
            assert_eq!(
                parsed[0].is_ok(),
                valid.contains(&length),
                "{kind} of {length}: {:?}",
                parsed[0]
            );
            if !valid.contains(&length) {
                let length = u16::try_from(length).unwrap();
                assert_eq!(parsed[0], Err(Malformed::FrameLength { kind, length }));
            }
        }
    }
    // Counts of ECN are behind the ranges.
    let mut body = vec![0; 32 + 30 * 8];
    body[2] = 1;
    assert!(frames(&with_frame(0x02, 1, &body))[0].is_ok());
    assert!(frames(&with_frame(0x02, 1, &body[..20]))[0].is_err());
    for (length, valid) in [(15, false), (16, false), (17, false), (18, true)] {
        let octets = with_frame(0x01, 0, &vec![0; length]);
        assert_eq!(frames(&octets)[0].is_ok(), valid, "a segment of {length}");
    }
}

#[test]
fn frames_end_where_the_datagram_does() {
    assert!(frames(&[]).is_empty());
    for length in 1..4 {
        assert_eq!(
            frames(&[0, 0, 0][..length]),
            [Err(Malformed::FrameTooShort {
                needed: 4,
                left: length
            })]
        );
    }
    let octets = with_frame(0x04, 0, &[0; 8]);
    assert_eq!(
        frames(&octets[..11]),
        [Err(Malformed::FrameTooShort {
            needed: 12,
            left: 11
        })]
    );
    assert_eq!(frames(&[0, 0, 0, 0]), [Ok(Frame::Pad(0))]);
    assert_eq!(
        frames(&[0, 0, 0, 0, 0x0b, 0, 0, 0, 0, 0, 0, 0]),
        [Ok(Frame::Pad(0)), Err(Malformed::FrameType(0x0b))],
        "nothing behind an error"
    );
}

#[test]
fn ranges_stay_above_zero() {
    let body = |largest: u64, first: u32, more: &[u32]| {
        let mut body = largest.to_be_bytes().to_vec();
        body.extend([0; 8]);
        body.extend(first.to_be_bytes());
        more.iter().for_each(|it| body.extend(it.to_be_bytes()));
        with_frame(0x02, 0, &body)
    };
    assert!(frames(&body(5, 5, &[]))[0].is_ok());
    assert_eq!(frames(&body(5, 6, &[])), [Err(Malformed::Ranges(5))]);
    assert!(frames(&body(5, 1, &[0, 2]))[0].is_ok(), "5, 4 and 2 to 0");
    assert_eq!(frames(&body(5, 1, &[0, 3])), [Err(Malformed::Ranges(5))]);
    assert_eq!(frames(&body(5, 1, &[3, 0])), [Err(Malformed::Ranges(5))]);
    assert!(frames(&body(5, 1, &[2, 0]))[0].is_ok(), "5, 4 and 0");
}

#[test]
fn long_ranges_end_an_acknowledgement() {
    let mut octets = Vec::new();
    Ack::new(0..=1 << 40, 0, 0).emit(&mut octets);
    let Ok(Frame::Ack(ack)) = &frames(&octets)[0] else {
        panic!("an acknowledgement");
    };
    assert_eq!(
        (ack.largest(), ack.smallest()),
        (1 << 40, (1 << 40) - u64::from(u32::MAX))
    );
    for (second, kept) in [
        (7..=8, false),
        ((1 << 40) - (1 << 32) - 1..=(1 << 40) - (1 << 32) - 1, true),
        ((1 << 40) - (1 << 32) - 2..=(1 << 40) - (1 << 32) - 2, false),
        (1 << 33..=(1 << 40) - 5, false),
    ] {
        let mut sent = Ack::new(1 << 40..=1 << 40, 0, 0);
        assert!(sent.add(&second));
        let mut octets = Vec::new();
        sent.emit(&mut octets);
        let Ok(Frame::Ack(ack)) = &frames(&octets)[0] else {
            panic!("an acknowledgement");
        };
        assert_eq!(ack.ranges().count(), 1 + usize::from(kept), "{second:?}");
    }
}

#[test]
fn a_version_is_checked() {
    let mut octets = Vec::new();
    HELLO.emit(&mut octets);
    assert_eq!(octets.len(), HELLO_LEN);
    octets[4] = 2;
    assert_eq!(frames(&octets), [Err(Malformed::Version(2))]);
}

#[test]
fn padding_has_the_length_asked_for() {
    for (asked, octets) in [(0, 0), (3, 0), (4, 4), (5, 5), (100, 100)] {
        let mut out = vec![9];
        emit_pad(&mut out, asked);
        assert_eq!(out.len(), 1 + octets);
        assert!(out[1..].iter().skip(4).all(|it| *it == 0));
    }
}

/// §6.1: frames that nobody would miss elicit no acknowledgement.
#[test]
fn some_frames_elicit_an_acknowledgement() {
    let header = SegmentHeader {
        last: true,
        receive: true,
        number: 1,
        message: 2,
        index: 3,
        stream: 4,
        after: 5,
    };
    let not_ready = NotReady {
        packet: 1,
        message: 2,
        delay: 3,
    };
    let error = MessageError {
        message: 7,
        control: 0x0100_0000,
    };
    let mut ack = Ack::new(3..=4, 5, 6);
    ack.ecn = Some(EcnCounts {
        ect0: 1,
        ect1: 2,
        ce: 3,
    });
    let all: [(Frame<'_, [u8]>, bool, &str); 13] = [
        (Frame::Pad(3), false, "pad of 3 octets"),
        (
            Frame::Segment(header, PayloadSlice::new(&[0; 9])),
            true,
            "segment 1 message 2 index 3 stream 4 after 5 last receive of 9 octets",
        ),
        (
            Frame::Ack(ack),
            false,
            "acknowledgement 3-4 delay 5 µs ECN 1/2/3",
        ),
        (
            Frame::Placed(Placed { next: 3, map: 255 }),
            false,
            "placed before 3 and 0xff",
        ),
        (
            Frame::Credit(HELLO.credit),
            false,
            "credit of 2 receives, window 3",
        ),
        (
            Frame::NotReady(not_ready),
            false,
            "receiver not ready for message 2 in 1, 3 µs",
        ),
        (Frame::Error(error), true, "error 0x01000000 of message 7"),
        (
            Frame::Hello(HELLO),
            true,
            "hello association 0x00000001, credit of 2 receives, window 3",
        ),
        (
            Frame::Hello(Hello {
                retry: true,
                ..HELLO
            }),
            true,
            "hello retry association 0x00000001, credit of 2 receives, window 3",
        ),
        (
            Frame::Hello(Hello {
                life: Some(0x00ab_cdef),
                ..HELLO
            }),
            true,
            "hello association 0x00000001, credit of 2 receives, window 3, life 0xabcdef",
        ),
        (Frame::Ping(Ping(1)), true, "ping 0x0000000000000001"),
        (Frame::Pong(Pong(1)), false, "pong 0x0000000000000001"),
        (
            Frame::Close(Close::new(CloseReason::Done)),
            false,
            "close Done",
        ),
    ];
    for (frame, elicits, text) in all {
        assert_eq!(frame.elicits_ack(), elicits, "{frame}");
        assert_eq!(frame.to_string(), text);
    }
}

/// Frames beyond those that are kept are checked, too, and come in order.
#[test]
fn all_frames_of_a_datagram_are_checked() {
    let mut octets = Vec::new();
    for data in 1..=9 {
        Ping(data).emit(&mut octets);
    }
    let checked = CheckedFrames::<[u8]>::parse(octets[..].into()).unwrap();
    let rest: Vec<_> = checked.rest().collect();
    assert_eq!((checked.first.len(), rest.len()), (KEPT, 9 - KEPT));
    let all = checked.first.iter().chain(&rest);
    let in_order = all
        .zip(1..)
        .all(|(frame, data)| *frame == Frame::Ping(Ping(data)));
    assert!(in_order);
    assert!(checked.hello.is_none() && checked.close.is_none());
    let mut ended = octets.clone();
    Close {
        reason: CloseReason::Done,
        association: 1,
        packet: 2,
    }
    .emit(&mut ended);
    let checked = CheckedFrames::<[u8]>::parse(ended[..].into()).unwrap();
    assert_eq!(checked.close.map(|it| it.packet), Some(2));
    for behind in [0, KEPT, 9] {
        let mut bad = octets[..behind * 12].to_vec();
        bad.extend([0xee, 0, 0, 0]);
        bad.extend(&octets[behind * 12..]);
        let error = CheckedFrames::<[u8]>::parse(bad[..].into()).unwrap_err();
        assert_eq!(error, Malformed::FrameType(0xee));
    }
}

/// A hello behind another frame, kept or parsed again (§2).
#[test]
fn a_hello_is_the_first_frame_or_malformed() {
    let hello = Hello {
        retry: false,
        life: None,
        association: 1,
        credit: Credit::default(),
        proof: 0,
        cookie: 0,
    };
    for before in [0, 1, KEPT, KEPT + 3] {
        let mut octets = Vec::new();
        for _ in 0..before {
            Ping(1).emit(&mut octets);
        }
        hello.emit(&mut octets);
        let checked = CheckedFrames::<[u8]>::parse(octets[..].into());
        let expected = if before == 0 {
            Ok(Some(hello))
        } else {
            Err(Malformed::LateHello)
        };
        assert_eq!(checked.map(|it| it.hello), expected, "{before}");
    }
}
