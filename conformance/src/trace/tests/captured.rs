//! Effects of a capture, and of TCP, are no faults of either end.

use super::super::Unjudged;
use super::talk::{Talk, packets};
use super::{ETHERNET, judged};

fn random(seed: u64) -> impl FnMut(usize) -> usize {
    // Marsaglia's xorshift: what tests want to come again.
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move |below| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state % u64::try_from(below).unwrap()).unwrap()
    }
}

#[test]
fn a_good_conversation_has_no_findings() {
    for (markers, crc) in [(false, true), (true, true), (false, false), (true, false)] {
        let talk = Talk::good().with_flags(markers, crc);
        let came = judged(ETHERNET, &talk.packets());
        assert!(
            came.broken.is_empty() && came.unjudged.is_empty(),
            "{came:?}"
        );
        assert_eq!(
            (came.startups, came.fpdus, came.iwarp),
            (2, talk.said.len(), 1)
        );
    }
}

#[test]
fn any_cuts_repetitions_and_order_of_segments_give_the_same() {
    let talk = Talk::good().with_flags(true, true);
    for seed in 0..200 {
        let mut random = random(seed);
        let mut pieces = Vec::new();
        for (way, octets) in talk.pieces() {
            let mut rest = &octets[..];
            while !rest.is_empty() {
                let (now, later) = rest.split_at(1 + random(rest.len()));
                pieces.push((way, now.to_vec()));
                rest = later;
            }
        }
        let whole = packets(&pieces, [u32::MAX - 100, 5]);
        let mut captured = Vec::new();
        for packet in &whole {
            captured.push(packet.clone());
            if random(4) == 0 {
                captured.push(whole[random(captured.len().min(whole.len()))].clone());
            }
        }
        // Neighbours of one direction change places: TCP sorts that out.
        for at in 3..captured.len() - 2 {
            let same = captured[at][26..30] == captured[at + 1][26..30];
            if same && random(3) == 0 {
                captured.swap(at, at + 1);
            }
        }
        let came = judged(ETHERNET, &captured);
        assert!(
            came.broken.is_empty() && came.unjudged.is_empty(),
            "seed {seed}: {came:?}"
        );
        assert_eq!(came.fpdus, talk.said.len(), "seed {seed}");
    }
}

#[test]
fn packets_that_are_not_there_accuse_nobody() {
    for (markers, crc) in [(false, true), (true, true), (false, false)] {
        let talk = Talk::good().with_flags(markers, crc);
        let whole = talk.packets();
        for missing in 0..whole.len() {
            for more in missing..whole.len() {
                let mut captured = whole.clone();
                captured.remove(more);
                if missing != more {
                    captured.remove(missing);
                }
                let came = judged(ETHERNET, &captured);
                assert!(
                    came.broken.is_empty(),
                    "without {missing} and {more}: {came:?}"
                );
            }
        }
        // Behind a gap FPDUs are found again, if they have CRCs.
        let mut captured = whole.clone();
        captured.remove(6);
        let came = judged(ETHERNET, &captured);
        assert!(
            came.unjudged
                .iter()
                .any(|why| matches!(why, Unjudged::Gap { .. })),
            "{came:?}"
        );
        if crc {
            assert_eq!(came.fpdus, talk.said.len() - 1, "{came:?}");
        }
    }
}

/// Without CRCs lengths and queues lead on: only so much is missing as takes to be sure.
#[test]
fn behind_a_gap_without_crcs_lengths_and_queues_lead_on() {
    for markers in [false, true] {
        let talk = Talk::good().with_flags(markers, false);
        let mut captured = talk.packets();
        captured.remove(6);
        let came = judged(ETHERNET, &captured);
        assert!(came.broken.is_empty(), "{came:?}");
        assert_eq!(came.fpdus, talk.said.len() - 1, "{came:?}");
        // A fault behind it is found.
        let mut talk = talk.clone();
        talk.said[super::talk::at::IMMEDIATE].ulpdu.push(0);
        let mut captured = talk.packets();
        captured.remove(6);
        let came = judged(ETHERNET, &captured);
        assert_eq!(came.rules(), ["immediate-size"], "{came:?}");
        // One FPDU by itself is not enough.
        let mut captured = talk.packets();
        captured.remove(16);
        let came = judged(ETHERNET, &captured);
        assert!(came.unjudged.contains(&Unjudged::LostFraming), "{came:?}");
    }
}

/// An Initiator that had octets of the Responder, which are not in the file, may have had the Reply.
#[test]
fn a_reply_that_is_not_in_the_file_was_there() {
    let whole = Talk::good().packets();
    for without in 1..4 {
        let mut captured = whole.clone();
        // The Reply, and TCP's handshake before it.
        captured.drain(4 - without..4);
        let came = judged(ETHERNET, &captured);
        assert!(came.broken.is_empty(), "{without}: {came:?}");
    }
}

#[test]
fn a_connection_that_was_there_before_is_found() {
    let talk = Talk::good();
    let whole = talk.packets();
    // Neither SYNs nor startup; then, the middle of an FPDU too.
    for first in [4, 5, 6, 9] {
        let came = judged(ETHERNET, &whole[first..]);
        assert!(came.broken.is_empty(), "{came:?}");
        assert_eq!(
            (came.fpdus, came.iwarp),
            (talk.said.len() + 4 - first, 1),
            "{came:?}"
        );
    }
    let mut pieces = talk.pieces();
    pieces[3].1.drain(..7);
    let came = judged(ETHERNET, &packets(&pieces[3..], [9, 9])[2..]);
    assert!(came.broken.is_empty(), "{came:?}");
    assert!(came.unjudged.contains(&Unjudged::Joined {
        octets: pieces[3].1.len() as u64
    }));
}

#[test]
fn other_traffic_is_no_rdma_traffic() {
    let pieces = [
        (0, b"GET / HTTP/1.1\r\n\r\n".repeat(40)),
        (1, b"HTTP/1.1 200 OK\r\n\r\n".repeat(3000)),
    ];
    for first in [0, 2] {
        let came = judged(ETHERNET, &packets(&pieces, [0, 0])[first..]);
        assert_eq!(
            (came.iwarp, came.broken.len(), came.unjudged.len()),
            (0, 0, 0),
            "{came:?}"
        );
    }
    // Somebody asks a web server for iWARP.
    let pieces = [
        Talk::good().pieces()[0].clone(),
        (1, b"HTTP/1.1 400 Bad Request\r\n".to_vec()),
    ];
    let came = judged(ETHERNET, &packets(&pieces, [0, 0]));
    assert_eq!(
        (came.broken.len(), came.unjudged),
        (0, vec![Unjudged::NotMpa])
    );
}

#[test]
fn every_kind_of_link_is_read() {
    let whole = Talk::good().packets();
    let inner = |packet: &Vec<u8>| packet[14..].to_vec();
    let with = |header: &[u8]| -> Vec<Vec<u8>> {
        whole
            .iter()
            .map(|packet| [header, &inner(packet)].concat())
            .collect()
    };
    let mut sll = [0; 16];
    sll[14] = 8;
    let mut sll2 = [0; 20];
    sll2[0] = 8;
    let links: [(u32, Vec<Vec<u8>>); 8] = [
        (0, with(&[2, 0, 0, 0])),
        (108, with(&[0, 0, 0, 2])),
        (101, with(&[])),
        (12, with(&[])),
        (228, with(&[])),
        (113, with(&sll)),
        (276, with(&sll2)),
        (1, with(&[&[2; 12][..], &[0x81, 0, 0, 7, 8, 0]].concat())),
    ];
    for (link, packets) in links {
        let came = judged(link, &packets);
        assert_eq!(
            (came.startups, came.fpdus),
            (2, 16),
            "link {link}: {came:?}"
        );
    }
    assert_eq!(judged(147, &whole).startups, 0, "a kind that nobody knows");
}

#[test]
fn hostile_packets_end_nothing() {
    let whole = Talk::good().with_flags(true, true).packets();
    for seed in 0..3000 {
        let mut random = random(seed);
        let mut captured = whole.clone();
        for _ in 0..1 + random(6) {
            let at = random(captured.len());
            let packet = &mut captured[at];
            let octet = random(packet.len());
            match random(3) {
                0 => packet[octet] = u8::try_from(random(256)).unwrap(),
                1 => packet.truncate(octet),
                _ => packet[octet] ^= 1 << random(8),
            }
            if packet.is_empty() {
                packet.push(0);
            }
        }
        let _ = judged(ETHERNET, &captured);
    }
}
