//! Captures of the Linux kernel's siw as regression tests.
//!
//! Every file in `conformance/interop/captures` is reassembled and decoded FPDU by FPDU, and
//! compared with its row in the table of the README there. Its ULPDUs are taken apart into DDP segments and RDMAP messages. Then each end of each connection
//! is taken by a [`Connection`] of ours, which has to say what siw said and understand what
//! it heard.

mod edited;
mod findings;
mod lint;
mod messages;
mod table;
mod trace;

use dgiwarp_codec::crc::{crc32c, to_wire};
use dgiwarp_llp_tcp_mpa::framing::Deframer;
use dgiwarp_llp_tcp_mpa::startup::{FrameKind, StartupFrame, StartupReader};
use dgiwarp_llp_tcp_mpa::{
    Config, Connection, Event, FrameError, ReadDepth, ReadDepths, Revision, RtrSet,
};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::Instant;
use trace::Stream;

/// When everything happens: nothing here takes time.
static NOW: LazyLock<Instant> = LazyLock::new(now);

#[expect(
    clippy::disallowed_methods,
    reason = "an instant cannot be made otherwise"
)]
fn now() -> Instant {
    Instant::now()
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("interop/captures")
}

/// One connection of a capture, decoded.
struct Decoded {
    request: StartupFrame,
    reply: StartupFrame,
    crc: bool,
    from_initiator: Vec<Vec<u8>>,
    from_responder: Vec<Vec<u8>>,
}

fn startup_frame(kind: FrameKind, stream: &[u8]) -> Result<(StartupFrame, &[u8]), FrameError> {
    let mut rest = stream;
    let frame = StartupReader::new(kind)
        .read(&mut rest)?
        .expect("the frame is complete");
    Ok((frame, rest))
}

fn ulpdus(crc: bool, stream: &[u8]) -> Vec<Vec<u8>> {
    let mut deframer = Deframer::new(crc, false);
    let mut rest = stream;
    let mut ulpdus = Vec::new();
    while !rest.is_empty() {
        ulpdus.extend(
            deframer
                .next(&mut rest)
                .expect("good FPDUs")
                .map(<[u8]>::to_vec),
        );
    }
    assert_eq!(deframer.unfinished(), 0, "the stream ends inside an FPDU");
    ulpdus
}

/// The operation of a ULPDU: the low four bits of the RDMAP control octet, which follows the
/// DDP control octet in both DDP formats (RFC 5040 §4.1).
fn operation(ulpdu: &[u8]) -> &'static str {
    match ulpdu[1] & 0x0f {
        0 => "Write",
        1 => "Read Request",
        2 => "Read Response",
        3 => "Send",
        7 => "Terminate",
        other => panic!("opcode {other} is in no capture"),
    }
}

fn decode(stream: &Stream) -> Decoded {
    let (request, ours) = startup_frame(FrameKind::Request, &stream.from_initiator).unwrap();
    let (reply, theirs) = startup_frame(FrameKind::Reply, &stream.from_responder).unwrap();
    let crc = request.crc || reply.crc;
    Decoded {
        from_initiator: ulpdus(crc, ours),
        from_responder: ulpdus(crc, theirs),
        request,
        reply,
        crc,
    }
}

#[test]
fn every_capture_has_a_row() {
    let files: BTreeSet<String> = std::fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".pcap"))
        .collect();
    let rows: BTreeSet<String> = table::rows(&folder())
        .into_iter()
        .map(|row| row.file)
        .collect();
    assert_eq!(files, rows);
    assert!(rows.len() >= 31);
}

#[test]
fn counts_are_those_of_the_table() {
    for row in table::rows(&folder()) {
        let mut replies = 0;
        let (mut fpdus, mut good_crc) = (0, 0);
        let mut operations = BTreeMap::<String, usize>::new();
        let streams = trace::streams(&folder().join(&row.file));
        for stream in &streams {
            if stream.from_responder.is_empty() {
                continue;
            }
            replies += 1;
            let decoded = decode(stream);
            for ulpdu in decoded.from_initiator.iter().chain(&decoded.from_responder) {
                fpdus += 1;
                good_crc += usize::from(decoded.crc);
                *operations.entry(operation(ulpdu).to_owned()).or_default() += 1;
            }
        }
        let seen = table::Row {
            file: row.file.clone(),
            requests: streams.len(),
            replies,
            fpdus,
            good_crc,
            operations,
        };
        assert_eq!(seen, row);
    }
}

/// siw answers a Request of revision 3 by closing; so do we.
#[test]
fn revision_3_is_refused() {
    let [stream] = &trace::streams(&folder().join("probe-rev3.pcap"))[..] else {
        panic!()
    };
    assert!(stream.from_responder.is_empty());
    let mut server = Connection::responder(*NOW, Config::default());
    assert!(feed(&mut server, &stream.from_initiator).is_empty());
    let expected = Event::Failed(FrameError::Revision(3).into());
    assert_eq!(server.poll_event(), Some(expected));
}

/// Gives a stream to one end in pieces of 11 octets.
fn feed(to: &mut Connection, stream: &[u8]) -> Vec<Vec<u8>> {
    let mut ulpdus = Vec::new();
    for piece in stream.chunks(11) {
        let mut rest = piece;
        while !rest.is_empty() {
            ulpdus.extend(to.handle_input(*NOW, &mut rest).map(<[u8]>::to_vec));
        }
    }
    ulpdus
}

fn depth(of: Option<ReadDepth>) -> u16 {
    match of {
        Some(ReadDepth::Limit(n)) => n,
        Some(ReadDepth::LeftToUlp) => panic!("siw always negotiates"),
        None => 0,
    }
}

fn depths(frame: &StartupFrame) -> ReadDepths {
    ReadDepths {
        ird: depth(frame.enhanced.map(|e| e.ird)),
        ord: depth(frame.enhanced.map(|e| e.ord)),
    }
}

/// The bytes of FPDUs that our framer makes of these ULPDUs.
fn send_all(from: &mut Connection, ulpdus: &[Vec<u8>]) -> Vec<u8> {
    from.set_emss(u16::MAX);
    for ulpdu in ulpdus {
        from.send_ulpdu(&ulpdu[..1], &ulpdu[1..]).unwrap();
    }
    from.poll_transmit(*NOW).to_vec()
}

/// FPDUs as siw would have sent them with a zero pad: it sends what lies in its buffer
/// (RFC 5044 §4.1 demands zeros). Also gives the number of pads that were not zero.
fn with_zero_pads(crc: bool, fpdus: &[u8]) -> (Vec<u8>, usize) {
    let mut out = fpdus.to_vec();
    let (mut at, mut changed) = (0, 0);
    while at < out.len() {
        let length = usize::from(u16::from_be_bytes([out[at], out[at + 1]]));
        let pad = at + 2 + length;
        let end = pad.next_multiple_of(4);
        if out[pad..end].iter().any(|&octet| octet != 0) {
            changed += 1;
            out[pad..end].fill(0);
            if crc {
                let field = to_wire(crc32c(&out[at..end]));
                out[end..end + 4].copy_from_slice(&field);
            }
        }
        at = end + 4;
    }
    (out, changed)
}

fn take(from: &mut Connection) -> Vec<u8> {
    let bytes = from.poll_transmit(*NOW).to_vec();
    from.transmitted(bytes.len());
    bytes
}

/// Our Initiator in the place of the captured one: the same octets out, the same ULPDUs in.
/// Gives the number of pads that siw did not zero.
fn as_initiator(file: &str, stream: &Stream, decoded: &Decoded) -> usize {
    let request = &decoded.request;
    if request.revision == Revision::Two && request.enhanced.is_none() {
        // Revision 2 without the S bit is something that we answer, but do not ask.
        return 0;
    }
    let peer_to_peer = request.enhanced.and_then(|e| e.peer_to_peer);
    let config = Config {
        revision: request.revision,
        crc: request.crc.into(),
        markers: request.markers,
        depths: depths(request),
        peer_to_peer: peer_to_peer.is_some(),
        rtr: peer_to_peer.unwrap_or(RtrSet::NONE),
        ..Config::default()
    };
    let mut client = Connection::initiator(*NOW, config, &request.private_data).unwrap();
    let sent = take(&mut client);
    let mut captured = stream.from_initiator[..sent.len()].to_vec();
    // siw's own flag for long FPDUs sits in the reserved bits.
    captured[16] &= 0xf0;
    assert_eq!(sent, captured, "{file}: request");
    let received = feed(&mut client, &stream.from_responder);
    if decoded.reply.reject {
        assert!(
            matches!(client.poll_event(), Some(Event::Rejected(_))),
            "{file}"
        );
        return 0;
    }
    match client.poll_event() {
        Some(Event::Established(e)) => {
            assert_eq!(e.negotiation.crc, decoded.crc, "{file}");
            assert_eq!(e.send_rtr.is_some(), peer_to_peer.is_some(), "{file}");
        }
        // The probe that offers Send alone is offered a Write.
        Some(Event::Failed(error)) if file == "probe-rev2-p2p-send.pcap" => {
            assert_eq!(error.code().get(), 7);
            return 0;
        }
        other => panic!("{file}: {other:?}"),
    }
    assert_eq!(received, decoded.from_responder, "{file}");
    let fpdus = send_all(&mut client, &decoded.from_initiator);
    let (captured, nonzero_pads) =
        with_zero_pads(decoded.crc, &stream.from_initiator[sent.len()..]);
    assert!(fpdus == captured, "{file}: FPDUs");
    nonzero_pads
}

/// Our Responder in the place of the captured one.
fn as_responder(file: &str, stream: &Stream, decoded: &Decoded) -> usize {
    let config = Config {
        crc: (decoded.reply.crc && !decoded.request.crc).into(),
        rtr: decoded
            .reply
            .enhanced
            .and_then(|e| e.peer_to_peer)
            .unwrap_or(RtrSet::ALL),
        ..Config::default()
    };
    let mut server = Connection::responder(*NOW, config);
    let (request, fpdus) = stream.from_initiator.split_at(decoded.request.emit().len());
    assert!(feed(&mut server, request).is_empty());
    let Some(Event::Request(seen)) = server.poll_event() else {
        panic!("{file}")
    };
    assert_eq!(seen.private_data, decoded.request.private_data, "{file}");
    if decoded.reply.reject {
        server
            .reject(depths(&decoded.reply), &decoded.reply.private_data)
            .unwrap();
        let reply = take(&mut server);
        assert_eq!(reply, stream.from_responder, "{file}: rejection");
        return 0;
    }
    server
        .accept(depths(&decoded.reply), &decoded.reply.private_data)
        .unwrap();
    let sent = take(&mut server);
    let mut captured = stream.from_responder[..sent.len()].to_vec();
    captured[16] &= 0xf0;
    assert_eq!(sent, captured, "{file}: reply");
    assert_eq!(feed(&mut server, fpdus), decoded.from_initiator, "{file}");
    if decoded.from_responder.is_empty() {
        return 0;
    }
    let fpdus = send_all(&mut server, &decoded.from_responder);
    let (captured, nonzero_pads) =
        with_zero_pads(decoded.crc, &stream.from_responder[sent.len()..]);
    assert!(fpdus == captured, "{file}: FPDUs");
    nonzero_pads
}

#[test]
fn our_ends_in_the_place_of_the_captured_ones() {
    let (mut connections, mut fpdus, mut nonzero_pads) = (0, 0, 0);
    for row in table::rows(&folder()) {
        for stream in trace::streams(&folder().join(&row.file)) {
            if stream.from_responder.is_empty() {
                continue;
            }
            let decoded = decode(&stream);
            nonzero_pads += as_initiator(&row.file, &stream, &decoded);
            nonzero_pads += as_responder(&row.file, &stream, &decoded);
            fpdus += decoded.from_initiator.len() + decoded.from_responder.len();
            connections += 1;
        }
    }
    assert_eq!((connections, fpdus), (39, 547));
    // All others are the same octet for octet.
    assert_eq!(nonzero_pads, 18);
}

/// RFC 5041 and 5040: segments are in order and complete, message numbers without gaps, and each Read Response is what was asked for.
#[test]
fn every_ulpdu_belongs_to_a_message() {
    let (mut messages, mut octets, mut unanswered) = (0, 0, 0);
    let mut terminates = Vec::new();
    for row in table::rows(&folder()) {
        for stream in trace::streams(&folder().join(&row.file)) {
            if stream.from_responder.is_empty() {
                continue;
            }
            let decoded = decode(&stream);
            let initiator = messages::Sent::of(&decoded.from_initiator);
            let responder = messages::Sent::of(&decoded.from_responder);
            unanswered += initiator.unanswered(&responder) + responder.unanswered(&initiator);
            for sent in [initiator, responder] {
                messages += sent.messages;
                octets += sent.octets;
                terminates.extend(sent.terminates);
            }
        }
    }
    // 51 of the 547 FPDUs are further segments of longer messages.
    assert_eq!((messages, octets, unanswered), (496, 210_574, 0));
    // rping-terminate.pcap: the Response is longer than the sink, as siw sees it.
    assert_eq!(terminates, [(1, 1, 1)]);
}
