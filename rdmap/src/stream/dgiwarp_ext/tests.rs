//! Tests of the dgiwarp extension.

use super::*;

fn arrives(end: &mut DgiwarpExt, header: &Header) -> bool {
    let header: [u8; 14] = header[..].try_into().unwrap();
    let (parsed, rest) = TaggedHeader::parse(&header).unwrap();
    assert!(rest.is_empty());
    end.handle_notice(parsed.stag, parsed.tagged_offset)
}

const WANTS: Capabilities = Capabilities::WANTS_ACKNOWLEDGEMENTS;

/// rfc-notes/rc-extensions.md, the examples there.
#[test]
fn notices_look_as_specified() {
    let both = WANTS.with(Capabilities::TAKES_IMMEDIATES);
    let mut end = DgiwarpExt::new(Some(both.with(Capabilities::REQUESTS_ACKS)));
    let hello = end.hello().unwrap();
    assert_eq!(hello[..], *b"\xc1\x40DGiW\x00\x01\x00\x00\x00\x00\x00\x07");
    end.count_sent();
    end.count_placed();
    end.count_placed();
    assert_eq!(
        end.acknowledge(None)[..],
        *b"\xc1\x40DGiA\0\0\0\0\0\0\0\x02"
    );
    assert_eq!(
        end.acknowledge(Some(AckRequest::Next))[..],
        *b"\xc1\x40DGiA\x80\0\0\0\0\0\0\x02"
    );
    let all = end.acknowledge(Some(AckRequest::All));
    assert_eq!(all[..], *b"\xc1\x40DGiA\x40\0\0\0\0\0\0\x02");
    let immediate = DgiwarpExt::immediate(0x0102_0304);
    assert_eq!(immediate[..], *b"\xc1\x40DGiI\0\0\0\0\x01\x02\x03\x04");
    let number = DgiwarpExt::srq_number(0x0001_0203);
    assert_eq!(number[..], *b"\xc1\x40DGiX\0\0\0\0\0\x01\x02\x03");
    end.set_rnr_retries(3);
    assert_eq!(end.rnr_limit()[..], *b"\xc1\x40DGiR\0\0\0\0\0\0\0\x03");
    let mut target = DgiwarpExt::new(Some(Capabilities::XRC_TARGET));
    let hello = target.hello().unwrap();
    assert_eq!(hello[..], *b"\xc1\x40DGiW\x00\x01\x00\x00\x00\x00\x00\x10");
}

/// A limit is sent once, when it differs from the one that the peer has, and only to a peer that takes it.
#[test]
fn an_rnr_limit_is_sent_when_it_changes() {
    for (theirs, takes) in [(Capabilities::TAKES_RNR_LIMITS, true), (WANTS, false)] {
        let mut end = DgiwarpExt::new(Some(WANTS));
        end.set_rnr_retries(2);
        assert!(!end.is_rnr_limit_due(), "the peer is not detected");
        end.handle_notice(HELLO, TaggedOffset::new(1 << 48 | theirs.0));
        assert_eq!(end.is_rnr_limit_due(), takes);
    }
    let mut end = with_dgiwarp_peer();
    end.peer = Peer::Dgiwarp(Capabilities::TAKES_RNR_LIMITS);
    let mut peer = with_dgiwarp_peer();
    end.set_rnr_retries(UNLIMITED_RETRIES);
    assert!(!end.is_rnr_limit_due(), "none is what the peer begins with");
    for retries in [0, 6, 7] {
        assert_ne!(peer.peer_rnr_retries(), retries);
        end.set_rnr_retries(retries);
        assert!(end.is_rnr_limit_due());
        assert!(arrives(&mut peer, &end.rnr_limit()));
        assert_eq!(peer.peer_rnr_retries(), retries);
        end.set_rnr_retries(retries);
        assert!(!end.is_rnr_limit_due());
    }
    end.set_rnr_retries(200);
    assert!(!end.is_rnr_limit_due(), "more is no limit");
    // Reserved bits are ignored, and an unknown peer's notice is.
    assert!(peer.handle_notice(RNR_LIMIT, TaggedOffset::new(u64::MAX - 2)));
    assert_eq!(peer.peer_rnr_retries(), 5);
    let mut unknown = DgiwarpExt::new(Some(WANTS));
    assert!(unknown.handle_notice(RNR_LIMIT, TaggedOffset::new(0)));
    assert_eq!(unknown.peer_rnr_retries(), UNLIMITED_RETRIES);
}

/// Other ends, and targets of unknown or plain peers, take the notice without effect.
#[test]
fn only_a_target_takes_numbers_of_queues() {
    let target = Capabilities::XRC_TARGET;
    for (ours, greeted, taken) in [
        (target, true, Some(5)),
        (target, false, None),
        (WANTS, true, None),
    ] {
        let mut end = DgiwarpExt::new(Some(ours));
        if greeted {
            end.handle_notice(HELLO, TaggedOffset::new(1 << 48 | target.0));
            assert!(end.peer_is_xrc_target());
        }
        assert!(arrives(&mut end, &DgiwarpExt::srq_number(5)));
        assert_eq!(end.take_srq_number(), taken, "{ours:?} {greeted}");
        assert_eq!(end.take_srq_number(), None);
    }
    let mut end = DgiwarpExt::new(Some(WANTS));
    assert!(!end.peer_is_xrc_target());
    end.handle_notice(HELLO, TaggedOffset::new(1 << 48 | WANTS.0));
    assert!(!end.peer_is_xrc_target());
}

#[test]
fn capabilities_are_sets() {
    let all = [
        WANTS,
        Capabilities::TAKES_IMMEDIATES,
        Capabilities::REQUESTS_ACKS,
        Capabilities::XRC_TARGET,
    ];
    for one in all {
        for other in all {
            assert_eq!(one.contain(other), one == other);
            assert!(one.with(other).contain(one) && one.with(other).contain(other));
        }
    }
    // The next two share no bit with the first.
    let two = all[1].with(all[2]);
    assert!(!two.contain(WANTS) && !two.contain(WANTS.with(all[1])));
    assert_eq!(two.with(two), two);
}

/// Neither RTR indications nor their answers decide about the peer.
#[test]
fn only_other_messages_exclude_a_hello() {
    let tagged = |opcode| tagged_header(opcode, STag::new(1), TaggedOffset::new(0), true);
    let read = |size| {
        let request = ReadRequest {
            sink_stag: STag::new(1),
            sink_offset: TaggedOffset::new(0),
            size,
            source_stag: STag::new(2),
            source_offset: TaggedOffset::new(0),
        };
        let ulpdu: Vec<u8> = untagged(Opcode::ReadRequest, &request.emit());
        ulpdu
    };
    let with_octet = |header: Header| [&header[..], &[0]].concat();
    for (ulpdu, excludes) in [
        (tagged(Opcode::Write).to_vec(), false),
        (with_octet(tagged(Opcode::Write)), true),
        (tagged(Opcode::ReadResponse).to_vec(), false),
        (with_octet(tagged(Opcode::ReadResponse)), true),
        (read(0), false),
        (read(1), true),
        (read(0)[..40].to_vec(), true),
        (untagged(Opcode::Terminate, &[]), false),
        (untagged(Opcode::Send, &[]), true),
        (untagged(Opcode::AtomicResponse, &[]), true),
        (vec![], true),
        (vec![0x41], true),
        (vec![0xc1], false),
    ] {
        let mut end = DgiwarpExt::new(Some(WANTS));
        end.detect_peer(&ulpdu);
        assert_eq!(end.peer() == Peer::Plain, excludes, "{ulpdu:x?}");
        let mut end = with_dgiwarp_peer();
        end.detect_peer(&ulpdu);
        assert_eq!(end.peer(), Peer::Dgiwarp(WANTS), "decided");
    }
}

fn untagged(opcode: Opcode, body: &[u8]) -> Vec<u8> {
    let ulpdu: arrayvec::ArrayVec<u8, 64> =
        super::super::message::short(opcode, dgiwarp_ddp::Msn::FIRST, body);
    ulpdu.to_vec()
}

#[test]
fn the_stags_of_notices_are_reserved() {
    for (name, reserved) in [
        (b"DGiW", true),
        (b"DGiA", true),
        (b"DGiI", true),
        (b"DGiB", true),
        (b"DGiR", true),
        (b"DGiC", false),
    ] {
        let stag = STag::new(u32::from_be_bytes(*name));
        assert_eq!(DgiwarpExt::is_notice(stag), reserved);
        let mut end = with_dgiwarp_peer();
        assert_eq!(end.handle_notice(stag, TaggedOffset::new(0)), reserved);
    }
}

#[test]
fn an_immediate_is_taken_once_and_from_dgiwarp_peers_alone() {
    let mut end = with_dgiwarp_peer();
    end.handle_notice(IMMEDIATE, TaggedOffset::new(0xffff_ffff_0102_0304));
    assert_eq!(end.take_immediate(), Some(0x0102_0304));
    assert_eq!(end.take_immediate(), None);
    let mut unknown = DgiwarpExt::new(Some(WANTS));
    unknown.handle_notice(IMMEDIATE, TaggedOffset::new(1));
    unknown.handle_notice(BYE, TaggedOffset::new(0));
    assert_eq!(unknown.take_immediate(), None);
    assert!(!unknown.peer_sent_bye() && !end.peer_sent_bye());
}

#[test]
fn an_end_without_capabilities_is_owed_nothing() {
    for (capabilities, pending) in [(Capabilities::TAKES_IMMEDIATES, 0), (WANTS, 2)] {
        let mut end = DgiwarpExt::new(Some(WANTS));
        end.handle_notice(HELLO, TaggedOffset::new(1 << 48 | capabilities.0));
        assert_eq!(end.peer(), Peer::Dgiwarp(capabilities));
        assert!(!end.peer_requests_acks() && !end.is_ack_awaited());
        end.count_placed();
        end.acknowledge(None);
        end.count_placed();
        end.count_placed();
        assert_eq!(end.pending_acks(), pending);
        assert_eq!(end.is_ack_awaited(), pending > 0);
    }
    let mut end = DgiwarpExt::new(Some(WANTS));
    let requests = WANTS.with(Capabilities::REQUESTS_ACKS);
    end.handle_notice(HELLO, TaggedOffset::new(1 << 48 | requests.0));
    assert!(end.peer_requests_acks());
    // A request about all is open although nothing is pending, and answered nevertheless.
    end.handle_notice(ACKNOWLEDGEMENT, TaggedOffset::new(REQUESTS_ALL));
    assert!(end.is_ack_requested() && !end.is_ack_awaited());
    end.count_placed();
    assert!(end.is_ack_awaited());
}

#[test]
fn hellos_go_both_ways_and_come_first() {
    let (mut client, mut server) = (DgiwarpExt::new(Some(WANTS)), DgiwarpExt::new(Some(WANTS)));
    assert!(client.is_hello_due(true) && !server.is_hello_due(false));
    let hello = client.hello().unwrap();
    assert!(!client.is_hello_due(true));
    assert!(arrives(&mut server, &hello));
    assert_eq!(server.peer(), Peer::Dgiwarp(WANTS));
    assert!(server.is_hello_due(false));
    let answer = server.hello().unwrap();
    client.detect_peer(&[0x41]);
    assert_eq!(client.peer(), Peer::Plain);
    assert!(arrives(&mut client, &answer));
    assert_eq!(client.peer(), Peer::Plain, "too late");
}

#[test]
fn a_plain_end_takes_no_notice() {
    let mut plain = DgiwarpExt::new(None);
    assert_eq!((plain.hello(), plain.peer()), (None, Peer::Plain));
    let hello = DgiwarpExt::new(Some(WANTS)).hello().unwrap();
    assert!(!arrives(&mut plain, &hello));
    assert_eq!((plain.pending_acks(), plain.peer()), (0, Peer::Plain));
}

#[test]
fn an_unknown_version_is_no_hello() {
    let mut end = DgiwarpExt::new(Some(WANTS));
    assert!(end.handle_notice(HELLO, TaggedOffset::new(2 << 48)));
    assert_eq!(end.peer(), Peer::Unknown);
    end.detect_peer(&[0x41]);
    assert_eq!(end.peer(), Peer::Plain);
}

fn with_dgiwarp_peer() -> DgiwarpExt {
    let mut end = DgiwarpExt::new(Some(WANTS));
    end.handle_notice(HELLO, TaggedOffset::new(1 << 48 | WANTS.0));
    end
}

#[test]
fn a_bye_is_for_dgiwarp_peers() {
    let unknown = DgiwarpExt::new(Some(WANTS));
    assert_eq!(unknown.bye(), None);
    let (leaving, mut staying) = (with_dgiwarp_peer(), with_dgiwarp_peer());
    let bye = leaving.bye().unwrap();
    assert_eq!(bye[..], *b"\xc1\x40DGiB\0\0\0\0\0\0\0\0");
    assert!(arrives(&mut staying, &bye) && staying.peer_sent_bye());
}

#[test]
fn counts_go_forward_only_and_no_further_than_what_was_sent() {
    let mut end = with_dgiwarp_peer();
    for _ in 0..5 {
        end.count_sent();
    }
    for (count, expected) in [(3, 3), (2, 3), (6, 3), (LOW, 3), (5, 5), (0, 5)] {
        assert!(end.handle_notice(ACKNOWLEDGEMENT, TaggedOffset::new(count)));
        assert_eq!(end.acknowledged(), expected, "{count}");
    }
    // 48 bits of the count travel.
    let mut end = with_dgiwarp_peer();
    end.sent = LOW + 3;
    end.acknowledged = LOW;
    end.handle_notice(ACKNOWLEDGEMENT, TaggedOffset::new(1));
    assert_eq!(end.acknowledged(), LOW + 2);
}

#[test]
fn one_request_is_open_at_a_time() {
    let mut end = with_dgiwarp_peer();
    assert!(end.may_request_ack());
    end.acknowledge(Some(AckRequest::Next));
    end.count_sent();
    end.count_sent();
    assert!(!end.may_request_ack(), "a request is open");
    end.set_acknowledged(1);
    assert!(end.may_request_ack());
    end.acknowledge(Some(AckRequest::Next));
    end.set_acknowledged(2);
    assert!(!end.may_request_ack(), "the request is about the next one");
    end.count_sent();
    end.set_acknowledged(3);
    assert!(end.may_request_ack());
    end.count_sent();
    end.acknowledge(Some(AckRequest::All));
    assert!(!end.may_request_ack());
    end.set_acknowledged(4);
    assert!(end.may_request_ack());
}

#[test]
fn what_set_acknowledged_is_owed_until_it_is_told() {
    let mut end = with_dgiwarp_peer();
    end.count_placed();
    assert_eq!((end.pending_acks(), end.is_ack_requested()), (1, false));
    end.handle_notice(ACKNOWLEDGEMENT, TaggedOffset::new(REQUESTS_NEXT));
    assert!(!end.is_ack_requested(), "the request is about the next one");
    end.acknowledge(None);
    assert_eq!(end.pending_acks(), 0);
    end.count_placed();
    assert_eq!((end.pending_acks(), end.is_ack_requested()), (1, true));
    end.acknowledge(None);
    assert_eq!((end.pending_acks(), end.is_ack_requested()), (0, false));
}

#[test]
fn a_request_is_about_all_that_arrived_even_in_the_rnr_queue() {
    for (bit, open_for) in [(REQUESTS_ALL, 3), (REQUESTS_NEXT, 4)] {
        let mut end = with_dgiwarp_peer();
        end.count_placed();
        end.set_in_rnr_queue(2);
        end.handle_notice(ACKNOWLEDGEMENT, TaggedOffset::new(bit));
        end.acknowledge(None);
        // Two that wait, the next one, and another one.
        for placed in 2..=5 {
            end.count_placed();
            let requested = end.is_ack_requested();
            let expected = match bit {
                REQUESTS_ALL => placed <= open_for,
                _ => placed == open_for,
            };
            assert_eq!(requested, expected, "{placed}");
            end.acknowledge(None);
        }
    }
}

#[test]
fn a_peer_that_requests_waits_for_no_other_acknowledgement() {
    let mut end = DgiwarpExt::new(Some(WANTS));
    let request = WANTS.with(Capabilities::REQUESTS_ACKS);
    end.handle_notice(HELLO, TaggedOffset::new(1 << 48 | request.0));
    end.count_placed();
    assert_eq!((end.pending_acks(), end.is_ack_awaited()), (1, false));
    let mut end = with_dgiwarp_peer();
    end.count_placed();
    assert_eq!((end.pending_acks(), end.is_ack_awaited()), (1, true));
}

/// The example of rfc-notes/same-host.md: both halves, in any order, and only where both ends have the capability.
#[test]
fn a_token_has_two_halves() {
    const DGIWARP_TOKEN: u128 = 0x0012_3456_789a_bcde_fedc_ba98_7654_3210;
    let notices = DgiwarpExt::token(DGIWARP_TOKEN);
    let specification = include_str!("../../../../rfc-notes/same-host.md");
    let mut end = DgiwarpExt::new(Some(WANTS));
    end.add_capabilities(Capabilities::SAME_HOST);
    let theirs = WANTS.with(Capabilities::SAME_HOST);
    let hello = |capabilities: Capabilities| TaggedOffset::new(1 << 48 | capabilities.0);
    end.handle_notice(HELLO, hello(theirs));
    assert!(end.may_meet());
    let mut plain = DgiwarpExt::new(Some(WANTS));
    plain.handle_notice(HELLO, hello(theirs));
    assert!(!plain.may_meet());
    for (notice, at) in notices.iter().zip([0, 1]).rev() {
        let (header, _) = TaggedHeader::parse(notice).unwrap();
        let digits = format!("{:016x}", header.tagged_offset.get());
        let line = format!("c1 40  44 47 69 48  {} {}", &digits[..1], &digits[1..]);
        assert!(specification.contains(&line), "{line}");
        assert_eq!(end.take_token(), None, "half {at} is missing");
        assert!(end.handle_notice(header.stag, header.tagged_offset));
        assert!(plain.handle_notice(header.stag, header.tagged_offset));
    }
    assert_eq!(end.take_token(), Some(DGIWARP_TOKEN));
    assert_eq!((end.take_token(), plain.take_token()), (None, None));
    // Another half has no meaning.
    assert!(end.handle_notice(TOKEN, TaggedOffset::new(u64::MAX)));
    assert_eq!(end.take_token(), None);
}
