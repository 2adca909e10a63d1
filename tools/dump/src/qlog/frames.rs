//! Frames of reliable datagrams under the names of QUIC's.

use dgiwarp_conform::wire::reliable::{Ack, Frame, SegmentFrame};
use serde_json::{Value, json};

/// A frame. Octets of a message go `before` those of a segment.
pub(super) fn value(frame: &Frame, before: impl FnOnce(&SegmentFrame) -> u64) -> Value {
    match frame {
        Frame::Pad(length) => json!({ "frame_type": "padding", "payload_length": length }),
        Frame::Segment(segment) => json!({
            "frame_type": "stream",
            "stream_id": segment.message,
            "offset": before(segment),
            "length": segment.octets.len(),
            "fin": segment.last,
        }),
        Frame::Ack(ack) => of_ack(ack),
        Frame::Placed { next, map } => other(0x03, "placed", json!({ "next": next, "map": map })),
        Frame::Credit { receives, window } => {
            json!({ "frame_type": "max_data", "maximum": window, "receives": receives })
        }
        Frame::Rnr {
            packet,
            message,
            delay,
        } => {
            let fields =
                json!({ "packet_number": packet, "stream_id": message, "delay_us": delay });
            other(0x05, "rnr", fields)
        }
        Frame::Error { message, control } => {
            let fields = json!({ "stream_id": message, "error_code": control });
            other(0x06, "error", fields)
        }
        Frame::Hello(hello) => json!({
            "frame_type": "crypto",
            "offset": 0,
            "length": 32,
            "association": hello.association,
            "retry": hello.retry,
            "receives": hello.receives,
            "maximum": hello.window,
        }),
        Frame::Ping(data) => json!({ "frame_type": "ping", "data": hex(*data) }),
        Frame::Pong(data) => json!({ "frame_type": "path_response", "data": hex(*data) }),
        Frame::Close { reason, .. } => json!({
            "frame_type": "connection_close",
            "error_code": reason,
        }),
    }
}

/// A frame that QUIC has not, with its type and `fields` of its own.
fn other(kind: u8, name: &str, mut fields: Value) -> Value {
    fields["frame_type"] = "unknown".into();
    fields["raw_frame_type"] = kind.into();
    fields["name"] = name.into();
    fields
}

fn hex(data: u64) -> String {
    format!("{data:016x}")
}

fn of_ack(ack: &Ack) -> Value {
    let mut ranges = ack.ranges.clone();
    ranges.sort_unstable();
    let mut value = json!({
        "frame_type": "ack",
        "ack_delay": f64::from(ack.delay) / 1e3,
        "acked_ranges": ranges,
    });
    if let Some([ect0, ect1, ce]) = ack.counts {
        value["ect0"] = ect0.into();
        value["ect1"] = ect1.into();
        value["ce"] = ce.into();
    }
    value
}
