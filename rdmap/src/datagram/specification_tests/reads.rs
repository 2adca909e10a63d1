//! The examples that belong to Reads.

use dgiwarp_ddp::{Msn, STag, TaggedOffset};

use super::Example;
use crate::datagram::read::segment::{self, About, ReadSegment, TerminateReport};
use crate::datagram::test_octets::emit as with_format;
use crate::datagram::{Cookie, CookieExchange, ExchangeKind};
use crate::wire::{Cause, Extension, ReadRequest};

fn request(example: &Example) -> ReadRequest {
    ReadRequest {
        sink_stag: STag::new(example.word("sink-stag")),
        sink_offset: TaggedOffset::new(example.number("sink-to")),
        size: example.word("size"),
        source_stag: STag::new(example.word("source-stag")),
        source_offset: TaggedOffset::new(example.number("source-to")),
    }
}

fn exchange(example: &Example) -> Vec<u8> {
    let exchange = CookieExchange {
        kind: match example.number("type") {
            1 => ExchangeKind::Request,
            2 => ExchangeKind::Answer,
            other => panic!("type {other} in the specification"),
        },
        epoch: example.word("epoch"),
        nonce: example.number("nonce"),
        cookie: Cookie::new(example.number("cookie")),
    };
    with_format(&exchange.emit())
}

fn msn(example: &Example) -> Msn {
    Msn::new(example.word("msn"))
}

/// The segment that an example's fields describe, if it belongs to Reads.
pub(super) fn encode(example: &Example) -> Option<Vec<u8>> {
    let parsed = match example.fields["opcode"].as_str() {
        "read-request" => ReadSegment::Request {
            epoch: example.word("epoch"),
            cookie: (example.fields["cookie"] != "none")
                .then(|| Cookie::new(example.number("cookie"))),
            request: request(example),
        },
        "read-response" => {
            let payload = example.payload();
            let stag = STag::new(example.word("sink-stag"));
            let to = TaggedOffset::new(example.number("sink-to"));
            let last = example.number("last") == 1;
            let header = segment::emit_response_header(stag, to, last);
            return Some([&header[..], &payload].concat());
        }
        "cookie" => return Some(exchange(example)),
        "terminate" => {
            let [_, layer, error_type, code] = example.word("cause").to_be_bytes();
            let about = match example.fields["about"].as_str() {
                "request" => About::Request(request(example)),
                "message" => About::Message(Extension {
                    epoch: example.word("message-epoch"),
                    ..example.extension()
                }),
                other => panic!("{other} in the specification"),
            };
            ReadSegment::Terminate(TerminateReport {
                cause: Cause {
                    layer,
                    error_type,
                    code,
                },
                about,
            })
        }
        _ => return None,
    };
    Some(emit(&parsed, example))
}

/// Emits what was parsed again; fields that receivers ignore are the example's.
pub(super) fn emit(parsed: &ReadSegment<'_, [u8]>, example: &Example) -> Vec<u8> {
    match parsed {
        ReadSegment::Request {
            epoch,
            cookie,
            request,
        } => with_format(&segment::emit_request(
            request,
            *epoch,
            *cookie,
            msn(example),
        )),
        ReadSegment::Response {
            stag,
            tagged_offset,
            last,
            payload,
        } => {
            let header = segment::emit_response_header(*stag, *tagged_offset, *last);
            [&header[..], payload.octets()].concat()
        }
        ReadSegment::Terminate(report) => with_format(&segment::emit_terminate(
            report,
            example.word("epoch"),
            msn(example),
        )),
    }
}
