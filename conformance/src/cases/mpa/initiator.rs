//! M and E again, with the device as the initiator: its agent connects to the tester.

use serde_json::json;

use super::BETWEEN;
use crate::agent::{Connection, access};
use crate::bench::{Bench, Broken};
use crate::cases::calling::{ESTABLISHED, answer_rtr, called, event, first, reply, reply_with};
use crate::cases::more::sends;
use crate::cases::{Case, Family, responder};
use crate::clock;
use crate::oracle::Outcome::{AnyTerminate, Closed, GoesOn, Terminate};
use crate::oracle::{Allowed, Came, Reaction, allow};
use crate::peer::Peer;
use crate::wire::ddp::{ReadRequest, Segment, opcode};
use crate::wire::startup::{self, Depths, M, MOST_PRIVATE_DATA, R, S, Startup};

const FRAME: &str = "RFC 5044 §7.1.1";
const RULES: &str = "RFC 5044 §7.1.2";
const ENHANCED: &str = "RFC 6581 §6";
const DEPTHS: &str = "RFC 6581 §9.1";
const MODEL: &str = "RFC 6581 §9.2";
const MARKERS: &str = "RFC 5044 §4.3";

pub(in crate::cases) const CASES: &[Case] = &[
    responder(
        "M20",
        Family::Startup,
        "the device's Request",
        &[FRAME, ENHANCED, MODEL],
        m20,
    ),
    responder("M21", Family::Startup, "improper Replies", &[RULES], m21),
    responder("M22", Family::Startup, "a rejecting Reply", &[RULES], m22),
    Case {
        version: 2,
        ..responder(
            "M23",
            Family::Startup,
            "reserved bits of a Reply are not looked at",
            &[FRAME],
            m23,
        )
    },
    Case {
        version: 2,
        ..responder(
            "M24",
            Family::Startup,
            "a Reply octet by octet",
            &[FRAME],
            m24,
        )
    },
    Case {
        may_crash: true,
        ..responder(
            "M25",
            Family::Startup,
            "a Reply with too much private data",
            &[RULES],
            m25,
        )
    },
    Case {
        version: 2,
        ..responder(
            "K20",
            Family::Crc,
            "a Responder that wants Markers gets them",
            &[MARKERS],
            k20,
        )
    },
    responder(
        "E20",
        Family::Enhanced,
        "the RTR indication is one that both have",
        &[MODEL],
        e20,
    ),
    responder(
        "E21",
        Family::Enhanced,
        "no RTR indication that both have",
        &[MODEL, "RFC 6581 §8"],
        e21,
    ),
    Case {
        version: 2,
        ..responder(
            "E22",
            Family::Enhanced,
            "a Responder that wants more reads than there is room for",
            &[DEPTHS, "RFC 6581 §8"],
            e22,
        )
    },
    Case {
        version: 2,
        ..responder(
            "E25",
            Family::Enhanced,
            "no more Reads at a time than the Reply allows",
            &[DEPTHS],
            e25,
        )
    },
];

/// Read Requests in one piece, more than a device of usual depths takes, and the octets that each asks for.
const READS: u32 = 256;
const READ: u32 = 16_384;
/// Sink STag of the tester's Reads.
const SINK: u32 = 0x5151_0022;
/// `RDMA_CM_EVENT_REJECTED`.
const REJECTED: u64 = 8;

/// Notes whether the connection works after this Reply. Where it does not after a good one either, nothing can be told.
fn works(
    bench: &mut Bench<'_>,
    what: &str,
    send: &dyn Fn(&mut Peer, &[u8]),
    change: &dyn Fn(&mut Startup),
    clause: &'static str,
) -> Result<(), Broken> {
    let (peer, reaction) = replied(bench, send, change)?;
    if !reaction.lives {
        let plain = |peer: &mut Peer, reply: &[u8]| peer.send(reply);
        let (good, control) = replied(bench, &plain, &|_| ())?;
        if !control.lives {
            let rule = "the connection goes on after a good Reply";
            bench.cannot_judge(what, control.to_string(), rule, &good);
            return Ok(());
        }
    }
    bench.judge(what, &peer, &reaction, &[allow(GoesOn, clause)]);
    Ok(())
}

/// Reaction of the device, as the Initiator, to a Reply.
fn replied(
    bench: &mut Bench<'_>,
    send: &dyn Fn(&mut Peer, &[u8]),
    change: &dyn Fn(&mut Startup),
) -> Result<(Peer, Reaction), Broken> {
    let (mut peer, on, request) = called(bench)?;
    let mut reply = reply(bench.settings, &request);
    change(&mut reply);
    send(&mut peer, &reply.to_bytes());
    let mut reaction = Reaction::default();
    let came = first(bench, &mut peer, on, &request, &reply)?;
    let up = matches!(came, Came::Segment(..));
    reaction.came.push(came);
    if up {
        answer_rtr(&mut peer, &mut reaction);
        reaction.lives = peer.echo(&mut reaction.came);
    }
    Ok((peer, reaction))
}

fn m20(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let (peer, _, request) = called(bench)?;
    let peer = Some(&peer);
    bench.require(
        "its key",
        request.key == startup::REQUEST,
        &request,
        "the key of a Request",
        FRAME,
        peer,
    );
    bench.require(
        "its reserved bits",
        request.flags & 0x0f == 0,
        &request,
        "zero",
        FRAME,
        peer,
    );
    bench.require(
        "its bit R",
        !request.has(R),
        &request,
        "zero in a Request",
        FRAME,
        peer,
    );
    let length = usize::from(request.pd_length) <= MOST_PRIVATE_DATA;
    bench.require(
        "its PD_Length",
        length,
        &request,
        "at most 512",
        FRAME,
        peer,
    );
    let revision = if request.has(S) {
        request.revision >= 2
    } else {
        request.revision >= 1
    };
    bench.require(
        "its revision",
        revision,
        &request,
        "1, or at least 2 with bit S",
        ENHANCED,
        peer,
    );
    if request.has(S) {
        let depths = request.depths();
        bench.require(
            "its depths",
            depths.is_some(),
            &request,
            "four octets at least",
            ENHANCED,
            peer,
        );
        let flags = depths.is_none_or(|d| d.peer_to_peer == (d.send || d.write || d.read));
        bench.require(
            "its control flags",
            flags,
            &request,
            "B, C or D with A, none without",
            MODEL,
            peer,
        );
    }
    Ok(())
}

fn m21(bench: &mut Bench<'_>) -> Result<(), Broken> {
    type Change = fn(&mut Startup);
    let rows: [(&str, Change); 3] = [
        ("the key of a Request", |frame| frame.key = startup::REQUEST),
        ("a wrong first octet", |frame| frame.key[0] ^= 0x20),
        ("a wrong last octet", |frame| frame.key[15] ^= 0x20),
    ];
    for (name, change) in rows {
        let (mut peer, on, request) = called(bench)?;
        let mut frame = reply(bench.settings, &request);
        change(&mut frame);
        peer.send(&frame.to_bytes());
        over(bench, name, &mut peer, on)?;
    }
    let (mut peer, on, request) = called(bench)?;
    let octets = reply(bench.settings, &request).to_bytes();
    peer.send(&octets[..octets.len() - 1]);
    peer.finish();
    over(bench, "cut off by the end of the stream", &mut peer, on)
}

fn m25(bench: &mut Bench<'_>) -> Result<(), Broken> {
    for length in [513, 65_535] {
        let (mut peer, on, request) = called(bench)?;
        let mut frame = reply(bench.settings, &request);
        frame.private_data.resize(length, 0);
        frame.pd_length = u16::try_from(length).unwrap_or(u16::MAX);
        peer.send(&frame.to_bytes());
        over(bench, &format!("PD_Length {length}"), &mut peer, on)?;
    }
    Ok(())
}

/// Notes that the device closes, and that its program learns of no connection.
fn over(bench: &mut Bench<'_>, what: &str, peer: &mut Peer, on: Connection) -> Result<(), Broken> {
    let mut reaction = Reaction::default();
    loop {
        let came = peer.next_fpdu();
        let more = matches!(came, Came::Segment(..) | Came::Short(_));
        reaction.came.push(came);
        if !more {
            break;
        }
    }
    // The error has a code, which may be told.
    let allowed = [
        allow(Closed, RULES),
        allow(Terminate(2, 0, 4), "RFC 5044 §8"),
    ];
    bench.judge(what, peer, &reaction, &allowed);
    bench.require(
        format!("{what}: TCP"),
        reaction.ended(),
        &reaction,
        "is closed",
        RULES,
        Some(peer),
    );
    let event = event(bench, on)?;
    let told = event.is_some_and(|event| event != ESTABLISHED);
    bench.require(
        format!("{what}: the device's program"),
        told,
        format!("event {event:?}"),
        "an error",
        RULES,
        Some(peer),
    );
    Ok(())
}

fn m22(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let (mut peer, on, request) = called(bench)?;
    let mut frame = reply(bench.settings, &request);
    frame.flags |= R;
    peer.send(&frame.to_bytes());
    let event = event(bench, on)?;
    bench.require(
        "the device's program",
        event == Some(REJECTED),
        format!("event {event:?}"),
        "is told of the rejection",
        RULES,
        Some(&peer),
    );
    let came = peer.quiet();
    let silent = !matches!(came, Came::Segment(..) | Came::Short(_));
    bench.require("behind it", silent, &came, "no FPDU", RULES, Some(&peer));
    Ok(())
}

fn m23(bench: &mut Bench<'_>) -> Result<(), Broken> {
    for bits in [1, 8, 0xf] {
        works(
            bench,
            &format!("reserved bits {bits:#x}"),
            &|peer, reply| peer.send(reply),
            &|frame| frame.flags |= bits,
            FRAME,
        )?;
    }
    Ok(())
}

fn m24(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let octets = |peer: &mut Peer, reply: &[u8]| {
        let cuts: Vec<_> = (1..24).collect();
        peer.send_cut(reply, &cuts);
    };
    let what = "each octet in a TCP segment of its own";
    works(bench, what, &octets, &|_| (), FRAME)?;
    // A device that is not slower than this sees the first piece alone.
    let between = bench.patience().quiet.max(BETWEEN);
    let pieces = |peer: &mut Peer, reply: &[u8]| {
        peer.send(&reply[..10]);
        clock::pause(between);
        peer.send(&reply[10..]);
    };
    let what = "in two pieces, with a moment between";
    works(bench, what, &pieces, &|_| (), FRAME)
}

fn k20(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let (mut peer, on, request) = called(bench)?;
    let mut reply = reply(bench.settings, &request);
    reply.flags |= M;
    peer.send(&reply.to_bytes());
    let came = first(bench, &mut peer, on, &request, &reply)?;
    let right =
        matches!(&came, Came::Segment(_, fpdu) if fpdu.markers_are_right && peer.crc_fits(fpdu));
    bench.require(
        "the first FPDU",
        right,
        &came,
        "a Marker of zeros before it",
        MARKERS,
        Some(&peer),
    );
    if !right {
        return Ok(());
    }
    let memory = bench.agent()?.register(8192, access::LOCAL_WRITE, 0x44)?;
    if reply.depths().is_some_and(|depths| depths.peer_to_peer) {
        event(bench, on)?;
    }
    bench
        .agent()?
        .post(on, json!({ "opcode": 2, "mr": memory.id, "length": 8000 }))?;
    let mut octets = 0;
    while octets < 8000 {
        let came = peer.next_segment();
        match &came {
            Came::Segment(segment, fpdu) if fpdu.markers_are_right && peer.crc_fits(fpdu) => {
                octets += segment.payload.len()
            }
            Came::Nothing if !sends(bench)? => {
                let (what, seen) = ("a Send of 8000 octets", came.to_string());
                bench.cannot_judge(what, seen, "a long Send comes (see R14)", &peer);
                return Ok(());
            }
            _ => {
                bench.require(
                    "a Send of 8000 octets",
                    false,
                    &came,
                    "a Marker every 512 octets",
                    MARKERS,
                    Some(&peer),
                );
                return Ok(());
            }
        }
    }
    bench.require(
        "a Send of 8000 octets",
        true,
        "Markers that point to their FPDUs",
        "a Marker every 512 octets",
        MARKERS,
        Some(&peer),
    );
    Ok(())
}

/// The device's depths, if it asks for peer-to-peer mode.
fn peer_to_peer(request: &Startup) -> Result<Depths, Broken> {
    let depths = request.depths().filter(|depths| depths.peer_to_peer);
    depths.ok_or(Broken::Skip(
        "the device does not ask for peer-to-peer mode",
    ))
}

fn e20(bench: &mut Bench<'_>) -> Result<(), Broken> {
    for (name, code, size) in [
        ("a Write", opcode::WRITE, 0),
        ("a Read", opcode::READ_REQUEST, 28),
        ("a Send", opcode::SEND, 0),
    ] {
        let (mut peer, on, request) = called(bench)?;
        let asked = peer_to_peer(&request)?;
        let offered = match code {
            opcode::WRITE => asked.write,
            opcode::READ_REQUEST => asked.read,
            _ => asked.send,
        };
        if !offered {
            continue;
        }
        let reply = reply_with(bench.settings, &request, |depths| {
            depths.write = code == opcode::WRITE;
            depths.read = code == opcode::READ_REQUEST;
            depths.send = code == opcode::SEND;
        });
        peer.send(&reply.to_bytes());
        let came = first(bench, &mut peer, on, &request, &reply)?;
        let right = matches!(&came, Came::Segment(segment, _) if segment.opcode() == code && segment.payload.len() == size);
        bench.require(
            name,
            right,
            &came,
            "it and nothing else comes first",
            MODEL,
            Some(&peer),
        );
    }
    Ok(())
}

fn e21(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let (mut peer, on, request) = called(bench)?;
    let asked = peer_to_peer(&request)?;
    if asked.send && asked.write && asked.read {
        return Err(Broken::Skip("the device has all RTR indications"));
    }
    let reply = reply_with(bench.settings, &request, |depths| {
        depths.send = !asked.send;
        depths.write = !asked.write;
        depths.read = !asked.read;
    });
    peer.send(&reply.to_bytes());
    refuses(
        bench,
        "only what the device did not offer",
        &mut peer,
        on,
        &request,
        &reply,
        &[allow(Terminate(2, 0, 7), MODEL)],
    )?;
    Ok(())
}

fn e22(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let (mut peer, on, request) = called(bench)?;
    if request.depths().is_none() {
        return Err(Broken::Skip("the device does not ask for enhanced startup"));
    }
    let reply = reply_with(bench.settings, &request, |depths| depths.ord = 0x3ffe);
    peer.send(&reply.to_bytes());
    // A device with as much room may use it.
    let allowed = [allow(Terminate(2, 0, 6), DEPTHS), allow(GoesOn, DEPTHS)];
    let goes_on = refuses(
        bench,
        "ORD 16382",
        &mut peer,
        on,
        &request,
        &reply,
        &allowed,
    )?;
    if goes_on {
        room_for_many(bench, &mut peer)?;
    }
    Ok(())
}

/// A device that goes on with an ORD takes as many Read Requests at a time, or at least these, for more octets than a device that answers early
/// has room to send.
fn room_for_many(bench: &mut Bench<'_>, peer: &mut Peer) -> Result<(), Broken> {
    let memory = bench
        .agent()?
        .register(READ.into(), access::REMOTE_READ, 0)?;
    let mut octets = Vec::new();
    for _ in 0..READS {
        let request = ReadRequest {
            sink_stag: SINK,
            sink_to: 0,
            size: READ,
            source_stag: memory.stag,
            source_to: memory.to,
        };
        let number = peer.read_msn;
        peer.read_msn = number.wrapping_add(1);
        let read = Segment::untagged(opcode::READ_REQUEST, 1, number, &request.to_bytes());
        octets.extend(peer.framer.fpdu(&read.to_bytes()));
    }
    peer.send(&octets);
    let mut answered = 0;
    let seen = loop {
        match peer.next_segment() {
            Came::Segment(segment, _) if segment.opcode() == opcode::READ_RESPONSE => {
                answered += u32::from(segment.is_last());
                if answered == READS {
                    break "an answer to each".to_owned();
                }
            }
            came => break format!("{answered} answers, then {came}"),
        }
    };
    bench.require(
        "256 Read Requests at a time",
        answered == READS,
        seen,
        "an answer to each",
        DEPTHS,
        Some(peer),
    );
    Ok(())
}

/// Notes what the device does with a Reply that it need not go along with; whether the connection works.
fn refuses(
    bench: &mut Bench<'_>,
    what: &str,
    peer: &mut Peer,
    on: Connection,
    request: &Startup,
    reply: &Startup,
    allowed: &[Allowed],
) -> Result<bool, Broken> {
    let mut reaction = Reaction::default();
    let came = first(bench, peer, on, request, reply)?;
    let terminated = AnyTerminate.is(&Reaction {
        came: vec![came.clone()],
        lives: false,
    });
    let up = matches!(came, Came::Segment(..)) && !terminated;
    reaction.came.push(came);
    if up {
        answer_rtr(peer, &mut reaction);
        reaction.lives = peer.echo(&mut reaction.came);
    }
    bench.judge(what, peer, &reaction, allowed);
    Ok(reaction.lives)
}

fn e25(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let (mut peer, on, request) = called(bench)?;
    if request.depths().is_none() {
        return Err(Broken::Skip("the device does not ask for enhanced startup"));
    }
    let reply = reply_with(bench.settings, &request, |depths| depths.ird = 1);
    peer.send(&reply.to_bytes());
    let came = first(bench, &mut peer, on, &request, &reply)?;
    if !matches!(came, Came::Segment(..)) {
        let plain = |peer: &mut Peer, reply: &[u8]| peer.send(reply);
        let (good, control) = replied(bench, &plain, &|_| ())?;
        if !control.lives {
            let rule = "the connection goes on after a good Reply";
            bench.cannot_judge("a Reply with IRD 1", control.to_string(), rule, &good);
            return Ok(());
        }
        bench.require(
            "a Reply with IRD 1",
            false,
            &came,
            "the connection is up",
            DEPTHS,
            Some(&peer),
        );
        return Ok(());
    }
    let rights = access::LOCAL_WRITE | access::REMOTE_WRITE;
    let memory = bench.agent()?.register(64, rights, 0)?;
    if reply.depths().is_some_and(|depths| depths.peer_to_peer) {
        event(bench, on)?;
    }
    for number in 0..4 {
        let post = json!({ "opcode": 4, "mr": memory.id, "length": 8, "wr_id": number, "rkey": 1, "remote": 0x2000 });
        bench.agent()?.post(on, post)?;
    }
    let came = peer.burst();
    let requests = came
        .iter()
        .filter(|segment| segment.opcode() == opcode::READ_REQUEST)
        .count();
    bench.require(
        "four Reads",
        requests == 1,
        format!("{requests} Requests before any Response"),
        "one",
        DEPTHS,
        Some(&peer),
    );
    Ok(())
}
