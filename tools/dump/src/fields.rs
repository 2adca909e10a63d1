//! Fields of frames, under the names that the RFCs and the specification of the datagram mapping have for them.

use dgiwarp_conform::trace::{SeenDatagram, SeenFpdu};
use dgiwarp_conform::wire::datagram::{
    Datagram, Exchange, Extension, Lookup, Segment as DatagramSegment, opcode as datagram_opcode,
};
use dgiwarp_conform::wire::ddp::{Place, ReadRequest, Segment, Terminate, opcode, word};
use dgiwarp_conform::wire::hex;
use dgiwarp_conform::wire::reliable::{Frame, Reliable, SegmentFrame, flag};
use dgiwarp_conform::wire::startup::{C, M, R, S, Startup};

/// Most octets of a payload that are shown as a field.
const MOST: usize = 64;

/// Names and values, in the order of the frame.
pub(crate) type Fields = Vec<(&'static str, String)>;

fn bit(is: bool) -> String {
    u8::from(is).to_string()
}

fn x(value: impl Into<u64>) -> String {
    format!("{:#x}", value.into())
}

/// A startup frame (RFC 5044 §7.1.1, RFC 6581 §9).
pub(crate) fn of_startup(frame: &Startup) -> Fields {
    let mut fields = vec![
        ("Key", String::from_utf8_lossy(&frame.key).into_owned()),
        ("M", bit(frame.has(M))),
        ("C", bit(frame.has(C))),
        ("R", bit(frame.has(R))),
        ("S", bit(frame.has(S))),
        ("Res", x(frame.flags & 0xf)),
        ("Rev", frame.revision.to_string()),
        ("PD_Length", frame.pd_length.to_string()),
    ];
    let mut data = &frame.private_data[..];
    if let Some(depths) = frame.depths() {
        data = data.get(4..).unwrap_or(&[]);
        fields.extend([
            ("A", bit(depths.peer_to_peer)),
            ("B", bit(depths.send)),
            ("IRD", depths.ird.to_string()),
            ("C (RTR)", bit(depths.write)),
            ("D", bit(depths.read)),
            ("ORD", depths.ord.to_string()),
        ]);
    }
    fields.push(("Private Data", hex(data, MOST)));
    fields
}

/// An FPDU (RFC 5044 §4.1) with its DDP segment and RDMAP message.
pub(crate) fn of_fpdu(seen: &SeenFpdu<'_>) -> Fields {
    let mut fields = vec![
        ("Stream Offset", seen.offset.to_string()),
        ("ULPDU_Length", seen.fpdu.ulpdu.len().to_string()),
        ("CRC", super::text::crc(seen).to_owned()),
    ];
    if let Some(segment) = seen.segment {
        fields.extend(controls(segment.ddp, segment.rdmap));
        fields.push(("Rsvd", x(segment.ddp >> 2 & 0xf)));
        fields.extend(place(segment.place, "RsvdULP"));
        fields.extend(payload(segment));
    }
    fields
}

/// The control octets (RFC 5041 §4.1, RFC 5040 §4.1).
fn controls(ddp: u8, rdmap: u8) -> Fields {
    vec![
        ("T", bit(ddp & 0x80 != 0)),
        ("L", bit(ddp & 0x40 != 0)),
        ("DV", (ddp & 3).to_string()),
        ("RV", (rdmap >> 6).to_string()),
        ("Rsv", (rdmap >> 4 & 3).to_string()),
        ("Opcode", (rdmap & 0xf).to_string()),
    ]
}

fn place(place: Place, word: &'static str) -> Fields {
    match place {
        Place::Tagged { stag, to } => vec![("STag", x(stag)), ("TO", x(to))],
        Place::Untagged { rsvd, qn, msn, mo } => vec![
            (word, x(rsvd)),
            ("QN", qn.to_string()),
            ("MSN", msn.to_string()),
            ("MO", mo.to_string()),
        ],
    }
}

fn payload(segment: &Segment) -> Fields {
    let octets = &segment.payload;
    match segment.opcode() {
        opcode::READ_REQUEST => read_request(octets),
        opcode::TERMINATE => terminate(octets),
        opcode::ATOMIC_REQUEST => atomic(octets),
        opcode::ATOMIC_RESPONSE => vec![
            ("Original Request Identifier", word_at(octets, 0)),
            ("Original Remote Data Value", long_at(octets, 4)),
        ],
        opcode::IMMEDIATE | opcode::IMMEDIATE_SE => vec![("Immediate Data", hex(octets, MOST))],
        _ => vec![
            ("Payload Length", octets.len().to_string()),
            ("Payload", hex(octets, MOST)),
        ],
    }
}

/// RFC 5040 §4.4.
fn read_request(octets: &[u8]) -> Fields {
    let Some(request) = ReadRequest::parse(octets) else {
        return vec![("Payload", hex(octets, MOST))];
    };
    vec![
        ("Data Sink STag", x(request.sink_stag)),
        ("Data Sink Tagged Offset", x(request.sink_to)),
        ("RDMA Read Message Size", request.size.to_string()),
        ("Data Source STag", x(request.source_stag)),
        ("Data Source Tagged Offset", x(request.source_to)),
    ]
}

/// RFC 5040 §4.8.
fn terminate(octets: &[u8]) -> Fields {
    let Some(terminate) = Terminate::parse(octets) else {
        return vec![("Payload", hex(octets, MOST))];
    };
    let control = terminate.header_control;
    vec![
        ("Layer", terminate.layer.to_string()),
        ("EType", terminate.etype.to_string()),
        ("Error Code", format!("{:#04x}", terminate.code)),
        ("M", bit(control & 4 != 0)),
        ("D", bit(control & 2 != 0)),
        ("R", bit(control & 1 != 0)),
        ("Terminated Headers", hex(&terminate.rest, MOST)),
    ]
}

/// RFC 7306 §5.2.1.
fn atomic(octets: &[u8]) -> Fields {
    vec![
        ("AOpCode", word_at(octets, 0)),
        ("Request Identifier", word_at(octets, 4)),
        ("Remote STag", word_at(octets, 8)),
        ("Remote Tagged Offset", long_at(octets, 12)),
        ("Add or Swap Data", long_at(octets, 20)),
        ("Add or Swap Mask", long_at(octets, 28)),
        ("Compare Data", long_at(octets, 36)),
        ("Compare Mask", long_at(octets, 44)),
    ]
}

fn word_at(octets: &[u8], at: usize) -> String {
    word(octets, at).map_or_else(String::new, x)
}

fn long_at(octets: &[u8], at: usize) -> String {
    let two = word(octets, at).zip(word(octets, at + 4));
    two.map_or_else(String::new, |(high, low)| {
        x(u64::from(high) << 32 | u64::from(low))
    })
}

/// A datagram of the mapping to UDP.
pub(crate) fn of_datagram(seen: &SeenDatagram<'_>) -> Fields {
    let mut fields = vec![("UDP Payload Length", seen.octets.len().to_string())];
    if seen.train.1 > 1 {
        fields.push(("Train", format!("{} of {}", seen.train.0, seen.train.1)));
    }
    match seen.parsed {
        Ok(Datagram::Segment(segment)) => fields.extend(of_segment(segment)),
        Ok(Datagram::Exchange(exchange)) => fields.extend(of_exchange(exchange)),
        Ok(Datagram::Lookup(lookup)) => fields.extend(of_lookup(lookup)),
        Ok(Datagram::Reliable(reliable)) => fields.extend(of_reliable(reliable)),
        Err(dropped) => fields.push(("Dropped", dropped.to_string())),
    }
    fields
}

fn of_segment(segment: &DatagramSegment) -> Fields {
    let mut fields = controls(segment.first, segment.control);
    fields.push(("Format", (segment.first >> 2 & 0xf).to_string()));
    let on_queue_0 = matches!(segment.place, Place::Untagged { qn: 0, .. });
    fields.extend(place(
        segment.place,
        if on_queue_0 { "Q_Key" } else { "Epoch" },
    ));
    if let Some(extension) = segment.extension {
        fields.extend(of_extension(extension));
    }
    if let Some(cookie) = segment.cookie {
        fields.push(("Cookie", x(cookie)));
    }
    let octets = &segment.payload;
    fields.extend(match segment.opcode() {
        datagram_opcode::READ_REQUEST => read_request(octets),
        datagram_opcode::TERMINATE => terminate(octets),
        _ => vec![
            ("Payload Length", octets.len().to_string()),
            ("Payload", hex(octets, MOST)),
        ],
    });
    fields
}

fn of_extension(extension: Extension) -> Fields {
    vec![
        ("Flags", x(extension.flags)),
        ("Epoch", x(extension.epoch)),
        ("Message Number", x(extension.number)),
        ("Message Length", extension.length.to_string()),
        ("Message Offset", extension.offset.to_string()),
        ("Immediate", x(extension.immediate)),
    ]
}

fn of_exchange(exchange: &Exchange) -> Fields {
    vec![
        ("Type", exchange.kind.to_string()),
        ("Epoch", x(exchange.epoch)),
        ("Nonce", x(exchange.nonce)),
        ("Cookie", x(exchange.cookie)),
    ]
}

fn of_lookup(lookup: &Lookup) -> Fields {
    vec![
        ("Type", lookup.kind.to_string()),
        ("Status", lookup.status.to_string()),
        ("Transaction", x(lookup.transaction)),
        ("Port", lookup.port.to_string()),
        ("QPN", x(lookup.qpn)),
        ("Q_Key", x(lookup.qkey)),
        ("Private Data", hex(&lookup.private_data, MOST)),
    ]
}

/// A reliable datagram: its envelope, then its frames, whose fields may come several times.
fn of_reliable(reliable: &Reliable) -> Fields {
    let mut fields = vec![
        ("Format", "4".to_owned()),
        ("Eager", bit(reliable.flags & flag::EAGER != 0)),
        ("Hello", bit(reliable.flags & flag::HELLO != 0)),
        ("Association", x(reliable.association)),
        ("Packet Number", reliable.number.to_string()),
        ("Time", reliable.time.to_string()),
        ("Epoch", x(reliable.epoch)),
    ];
    fields.extend(reliable.frames.iter().flat_map(of_frame));
    fields
}

fn of_frame(frame: &Frame) -> Fields {
    match frame {
        Frame::Pad(length) => vec![("PAD", length.to_string())],
        Frame::Segment(it) => of_segment_frame(it),
        Frame::Ack(it) => {
            let ranges: Vec<_> = (it.ranges.iter())
                .map(|(from, to)| format!("{from}-{to}"))
                .collect();
            let mut fields = vec![
                ("ACK Ranges", ranges.join(" ")),
                ("ACK Delay", it.delay.to_string()),
                ("ACK Echo", it.echo.to_string()),
            ];
            if let Some([ect0, ect1, ce]) = it.counts {
                fields.push(("ACK Counts", format!("{ect0} {ect1} {ce}")));
            }
            fields
        }
        Frame::Placed { next, map } => {
            vec![("PLACED Next", next.to_string()), ("PLACED Map", x(*map))]
        }
        Frame::Credit { receives, window } => vec![
            ("CREDIT Receives", receives.to_string()),
            ("CREDIT Window", window.to_string()),
        ],
        Frame::Rnr {
            packet,
            message,
            delay,
        } => vec![
            ("RNR Packet Number", packet.to_string()),
            ("RNR Message Number", message.to_string()),
            ("RNR Delay", delay.to_string()),
        ],
        Frame::Error { message, control } => vec![
            ("ERROR Message Number", message.to_string()),
            ("ERROR Terminate Control", x(*control)),
        ],
        Frame::Hello(it) => vec![
            ("HELLO Retry", bit(it.retry)),
            ("HELLO Features", x(it.features)),
            ("HELLO Association", x(it.association)),
            ("HELLO Receives", it.receives.to_string()),
            ("HELLO Window", it.window.to_string()),
            ("HELLO Proof", x(it.proof)),
            ("HELLO Cookie", x(it.cookie)),
        ],
        Frame::Ping(data) => vec![("PING", x(*data))],
        Frame::Pong(data) => vec![("PONG", x(*data))],
        Frame::Close {
            reason,
            association,
            packet,
        } => vec![
            ("CLOSE Reason", reason.to_string()),
            ("CLOSE Association", x(*association)),
            ("CLOSE Packet Number", packet.to_string()),
        ],
    }
}

fn of_segment_frame(it: &SegmentFrame) -> Fields {
    let mut fields = vec![
        ("SEGMENT Last", bit(it.last)),
        ("SEGMENT Receive", bit(it.receive)),
        ("SEGMENT Number", it.number.to_string()),
        ("SEGMENT Message Number", it.message.to_string()),
        ("SEGMENT Index", it.index.to_string()),
        ("SEGMENT Stream", it.stream.to_string()),
        ("SEGMENT After", it.after.to_string()),
    ];
    match Segment::parse(&it.octets) {
        Some(segment) => {
            fields.extend(controls(segment.ddp, segment.rdmap));
            fields.extend(place(segment.place, "Q_Key"));
            fields.extend(payload(&segment));
        }
        None => fields.push(("Payload", hex(&it.octets, MOST))),
    }
    fields
}
