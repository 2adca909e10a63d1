//! M: MPA's startup frames, as the responder of a connection takes them.

use serde_json::json;

use super::BETWEEN;
use crate::agent::access;
use crate::bench::{Bench, Broken};
use crate::cases::{Case, Family, agent_case, case};
use crate::oracle::Outcome::{Accepted, Closed, Rejected};
use crate::oracle::{Allowed, Came, allow};
use crate::peer::Peer;
use crate::wire::ddp::opcode;
use crate::wire::startup::{self, Depths, MOST_PRIVATE_DATA, Startup};

const RULES: &str = "RFC 5044 §7.1.2";
const FRAME: &str = "RFC 5044 §7.1.1";
const ENHANCED: &str = "RFC 6581 §6";
const INTEROP: &str = "RFC 6581 §10";

const F: Family = Family::Startup;

pub(in crate::cases) const CASES: &[Case] = &[
    case(
        "M01",
        F,
        "a good Request is answered by a good Reply",
        &[FRAME, ENHANCED],
        m01,
    ),
    case(
        "M02",
        F,
        "a wrong octet in the key closes the connection",
        &[RULES],
        m02,
    ),
    case("M03", F, "revisions that nobody has", &[FRAME], m03),
    case(
        "M04",
        F,
        "reserved bits are not looked at, and are zero in the Reply",
        &[FRAME],
        m04,
    ),
    case(
        "M05",
        F,
        "private data of all lengths",
        &[FRAME, RULES],
        m05,
    ),
    case("M06", F, "a Request that is cut off", &[RULES], m06).may_crash(),
    case("M07", F, "a Reply instead of a Request", &[RULES], m07),
    case("M09", F, "an FPDU right behind the Request", &[RULES], m09),
    case(
        "M10",
        F,
        "no FPDU before the Initiator's first",
        &[RULES],
        m10,
    ),
    case(
        "M11",
        F,
        "the end or a reset after each octet of a Request",
        &[RULES],
        m11,
    )
    .may_crash(),
    case("M12", F, "malformed Requests, many times", &[RULES], m12).may_crash(),
    case(
        "M13",
        F,
        "half-open connections do not keep others out",
        &[RULES],
        m13,
    )
    .should(),
    case("M14", F, "a Request octet by octet", &[FRAME], m14),
    agent_case(
        "M15",
        F,
        "what the device's program sends waits for the Initiator's first FPDU",
        &[RULES],
        m15,
    ),
];

const IMPROPER: &[Allowed] = &[allow(Closed, RULES)];

fn send_and_judge(
    bench: &mut Bench<'_>,
    what: String,
    octets: &[u8],
    allowed: &[Allowed],
) -> Result<(), Broken> {
    let mut peer = bench.tcp()?;
    peer.send(octets);
    let reaction = peer.answer_to_startup();
    bench.judge(what, &peer, &reaction, allowed);
    Ok(())
}

fn m01(bench: &mut Bench<'_>) -> Result<(), Broken> {
    for revision in [1, 2] {
        for flags in [0, startup::C] {
            let mut offer = bench.offer();
            offer.revision = revision;
            offer.flags = flags;
            let request = offer.request();
            let mut peer = bench.tcp()?;
            let reaction = peer.ask(&request);
            let what = format!("revision {revision}, flags {:#04x}", request.flags);
            let clause = if revision == 1 { INTEROP } else { FRAME };
            // A device that knows revision 1 only takes an enhanced Request for an improper one.
            let closed = (revision == 2).then_some(allow(Closed, INTEROP));
            let allowed: Vec<_> = [allow(Accepted, clause), allow(Rejected, RULES)]
                .into_iter()
                .chain(closed)
                .collect();
            bench.judge(&what, &peer, &reaction, &allowed);
            if let Some(reply) = reaction.startup() {
                well_formed(bench, &what, &request, reply, &peer);
            }
        }
    }
    Ok(())
}

/// Rules for any Reply.
fn well_formed(bench: &mut Bench<'_>, what: &str, request: &Startup, reply: &Startup, peer: &Peer) {
    let what = |rule| format!("{what}: {rule}");
    let key = reply.key == startup::REPLY;
    bench.require(
        what("key"),
        key,
        reply,
        "the key of a Reply",
        FRAME,
        Some(peer),
    );
    let reserved = reply.flags & 0x0f == 0;
    bench.require(
        what("reserved bits"),
        reserved,
        reply,
        "reserved bits are zero",
        FRAME,
        Some(peer),
    );
    let length = usize::from(reply.pd_length) <= MOST_PRIVATE_DATA;
    bench.require(
        what("PD_Length"),
        length,
        reply,
        "at most 512 octets of private data",
        FRAME,
        Some(peer),
    );
    let same = request.has(startup::S) == reply.has(startup::S);
    bench.require(
        what("S"),
        same,
        reply,
        "an enhanced Reply to an enhanced Request, and only there",
        INTEROP,
        Some(peer),
    );
    let revision = match request.revision {
        1 => reply.revision == 1,
        _ => (1..=request.revision).contains(&reply.revision),
    };
    bench.require(
        what("revision"),
        revision,
        reply,
        "a revision that the Initiator knows",
        FRAME,
        Some(peer),
    );
    if reply.has(startup::S) {
        let depths = reply.depths().is_some() && reply.revision >= 2;
        bench.require(
            what("depths"),
            depths,
            reply,
            "revision 2 or higher, and four octets of depths",
            ENHANCED,
            Some(peer),
        );
    }
}

fn m02(bench: &mut Bench<'_>) -> Result<(), Broken> {
    for octet in 0..16 {
        let mut frame = bench.offer().request();
        frame.key[octet] ^= 0x20;
        send_and_judge(
            bench,
            format!("octet {octet} of the key is wrong"),
            &frame.to_bytes(),
            IMPROPER,
        )?;
    }
    Ok(())
}

fn m03(bench: &mut Bench<'_>) -> Result<(), Broken> {
    // A device that can interoperate with a revision may; any other closes.
    let allowed = [
        allow(Closed, FRAME),
        allow(Accepted, FRAME),
        allow(Rejected, FRAME),
    ];
    for revision in [0, 3, 4, 0x7f, 0x80, 255] {
        let mut frame = bench.offer().request();
        frame.revision = revision;
        send_and_judge(
            bench,
            format!("revision {revision}"),
            &frame.to_bytes(),
            &allowed,
        )?;
    }
    Ok(())
}

fn m04(bench: &mut Bench<'_>) -> Result<(), Broken> {
    for bits in [1, 2, 4, 8, 0xf] {
        let mut frame = bench.offer().request();
        frame.flags |= bits;
        let mut peer = bench.tcp()?;
        let reaction = peer.ask(&frame);
        let what = format!("reserved bits {bits:#x}");
        bench.judge(
            &what,
            &peer,
            &reaction,
            &[allow(Accepted, FRAME), allow(Rejected, RULES)],
        );
        if let Some(reply) = reaction.startup() {
            well_formed(bench, &what, &frame, reply, &peer);
        }
    }
    Ok(())
}

fn m05(bench: &mut Bench<'_>) -> Result<(), Broken> {
    // With revision 2 the first four octets are the depths.
    let (flags, revision, depths) = match bench.settings.revision {
        1 => (startup::C, 1, Vec::new()),
        _ => {
            let depths = Depths::client_server(4, 4).to_bytes();
            (startup::C | startup::S, 2, depths.to_vec())
        }
    };
    for length in [4, 5, 255, 256, 257, 511, 512, 513, 514, 1024, 4096, 65535] {
        let mut data = depths.clone();
        data.resize(length, 0x5a);
        let frame = Startup::new(startup::REQUEST, flags, revision, &data);
        let accepted = [allow(Accepted, FRAME), allow(Rejected, RULES)];
        // 256 octets are what the common programming interface can hand over: a buffer too small for more makes the frame
        // improper.
        let either = [accepted[0], accepted[1], allow(Closed, RULES)];
        let allowed: &[Allowed] = match length {
            0..=256 => &accepted,
            257..=512 => &either,
            _ => IMPROPER,
        };
        send_and_judge(
            bench,
            format!("{length} octets of private data"),
            &frame.to_bytes(),
            allowed,
        )?;
    }
    for (length, there) in [(513, 0), (65535, 0), (65535, 512)] {
        let mut frame = Startup::new(startup::REQUEST, startup::C, 1, &vec![0; there]);
        frame.pd_length = length;
        let mut peer = bench.tcp()?;
        peer.send(&frame.to_bytes());
        let reaction = peer.answer_to_startup();
        // A device that waits for the announced octets before judging them closes when the time is up, which is no part
        // of this case.
        let waits = matches!(reaction.came.as_slice(), [Came::Nothing]);
        let what = format!("PD_Length {length} with {there} octets there");
        let refused = waits || reaction.ended() && reaction.startup().is_none();
        bench.require(what, refused, &reaction, "no Reply", RULES, Some(&peer));
    }
    Ok(())
}

fn m06(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let mut frame = bench.offer().request();
    frame.pd_length += 10;
    let mut peer = bench.tcp()?;
    peer.send(&frame.to_bytes());
    peer.finish();
    let reaction = peer.answer_to_startup();
    bench.judge(
        "ten octets are missing when the stream ends",
        &peer,
        &reaction,
        IMPROPER,
    );
    Ok(())
}

fn m07(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let mut frame = bench.offer().request();
    frame.key = startup::REPLY;
    send_and_judge(
        bench,
        "the key of a Reply".to_owned(),
        &frame.to_bytes(),
        IMPROPER,
    )
}

fn m09(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let request = bench.offer().request();
    let mut octets = request.to_bytes();
    octets.extend([0; 8]);
    // Octets behind the frame may be seen as part of it or left for later.
    let allowed = [
        allow(Closed, RULES),
        allow(Accepted, RULES),
        allow(Rejected, RULES),
    ];
    send_and_judge(
        bench,
        "eight octets behind the Request".to_owned(),
        &octets,
        &allowed,
    )
}

fn m10(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let mut peer = bench.started(&bench.offer())?;
    let came = peer.quiet();
    let silent = matches!(came, Came::Nothing);
    bench.require(
        "after the Reply",
        silent,
        &came,
        "nothing before the Initiator's first FPDU",
        RULES,
        Some(&peer),
    );
    Ok(())
}

fn m11(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let octets = bench.offer().request().to_bytes();
    for end in 0..octets.len() {
        let mut peer = bench.tcp()?;
        peer.send(&octets[..end]);
        peer.finish();
        let reaction = peer.answer_to_startup();
        bench.judge(
            format!("the end after {end} octets"),
            &peer,
            &reaction,
            IMPROPER,
        );
        let mut peer = bench.tcp()?;
        peer.send(&octets[..end]);
        peer.reset();
    }
    alive(bench, "after all of them")
}

fn m12(bench: &mut Bench<'_>) -> Result<(), Broken> {
    for number in 0..bench.settings.many {
        let mut frame = bench.offer().request();
        match number % 4 {
            0 => frame.key[15] = 0,
            1 => frame.pd_length = 1000,
            2 => frame.key = startup::REPLY,
            _ => {
                frame.private_data.truncate(2);
                frame.pd_length = 2;
            }
        }
        let mut peer = bench.tcp()?;
        peer.send(&frame.to_bytes());
        if number % 3 == 0 {
            peer.reset();
        } else {
            peer.finish();
            let reaction = peer.answer_to_startup();
            if reaction.startup().is_some() || !reaction.ended() {
                bench.judge(
                    format!("malformed Request {number}"),
                    &peer,
                    &reaction,
                    IMPROPER,
                );
            }
        }
    }
    alive(bench, "after many malformed Requests")
}

/// Whether the device still takes connections.
fn alive(bench: &mut Bench<'_>, when: &str) -> Result<(), Broken> {
    let peer = bench.open()?;
    bench.require(
        when,
        true,
        "a good connection",
        "good connections are accepted",
        RULES,
        Some(&peer),
    );
    Ok(())
}

fn m13(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let halves: Result<Vec<_>, _> = (0..16)
        .map(|_| {
            let mut peer = bench.tcp()?;
            peer.send(b"M");
            Ok::<_, Broken>(peer)
        })
        .collect();
    let seen = match (halves, bench.open()) {
        (Ok(_), Ok(_)) => "a good connection".to_owned(),
        (Err(broken), _) | (_, Err(broken)) => broken.to_string(),
    };
    let holds = seen == "a good connection";
    bench.require(
        "while 16 connections are half-open",
        holds,
        seen,
        "good connections are accepted",
        RULES,
        None,
    );
    Ok(())
}

fn m14(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let request = bench.offer().request().to_bytes();
    let mut peer = bench.tcp()?;
    let cuts: Vec<_> = (1..request.len()).collect();
    peer.send_cut(&request, &cuts);
    let reaction = peer.answer_to_startup();
    bench.judge(
        "each octet in a TCP segment of its own",
        &peer,
        &reaction,
        &[allow(Accepted, FRAME)],
    );
    // A device that is not slower than this sees the first piece alone.
    let mut peer = bench.tcp()?;
    peer.send(&request[..10]);
    crate::clock::pause(bench.patience().quiet.max(BETWEEN));
    peer.send(&request[10..]);
    let reaction = peer.answer_to_startup();
    let what = "in two pieces, with a moment between";
    bench.judge(what, &peer, &reaction, &[allow(Accepted, FRAME)]);
    Ok(())
}

fn m15(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let memory = bench.agent()?.register(64, access::LOCAL_WRITE, 0x15)?;
    bench.agent()?.call("skip_accepted", json!({}))?;
    let mut peer = bench.started(&bench.offer())?;
    let on = bench.agent()?.accepted()?;
    let post = json!({ "opcode": 2, "mr": memory.id, "length": 4, "wr_id": 1 });
    if bench.agent()?.post(on, post).is_err() {
        return Err(Broken::Skip("the device's program cannot send so early"));
    }
    let came = peer.quiet();
    let silent = matches!(came, Came::Nothing);
    bench.require(
        "a Send that is posted before the first FPDU",
        silent,
        &came,
        "nothing before the Initiator's first FPDU",
        RULES,
        Some(&peer),
    );
    if !silent {
        return Ok(());
    }
    peer.ask_echo();
    let mut sends = 0;
    let mut came = peer.next_segment();
    while let Came::Segment(segment, _) = &came {
        sends += u32::from(segment.opcode() == opcode::SEND);
        if sends > 0 {
            break;
        }
        came = peer.next_segment();
    }
    bench.require(
        "behind it",
        sends == 1,
        &came,
        "the Send",
        RULES,
        Some(&peer),
    );
    Ok(())
}
