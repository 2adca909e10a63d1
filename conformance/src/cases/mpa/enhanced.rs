//! E: enhanced startup, as the responder of a connection takes it (RFC 6581).

use crate::bench::{Bench, Broken, Offer};
use crate::cases::{Case, Family, case};
use crate::oracle::Outcome::{Accepted, Closed, Rejected};
use crate::oracle::{Came, Reaction, allow};
use crate::peer::Peer;
use crate::wire::ddp::{ReadRequest, Segment, opcode};
use crate::wire::startup::{self, C, Depths, NOT_NEGOTIATED, S, Startup};

const FRAME: &str = "RFC 6581 §6";
const DEPTHS: &str = "RFC 6581 §9.1";
const MODEL: &str = "RFC 6581 §9.2";
const INTEROP: &str = "RFC 6581 §10";
const RULES: &str = "RFC 5044 §7.1.2";

const F: Family = Family::Enhanced;

pub(in crate::cases) const CASES: &[Case] = &[
    case("E01", F, "bit S with revision 1", &[FRAME], e01),
    case("E02", F, "bit S without room for the depths", &[FRAME], e02),
    case("E03", F, "depths from 0 to the largest", &[DEPTHS], e03),
    case(
        "E04",
        F,
        "a depth of 0x3fff is answered by 0x3fff",
        &[DEPTHS],
        e04,
    ),
    case(
        "E05",
        F,
        "the Responder offers the reads that were asked for",
        &[DEPTHS],
        e05,
    )
    .should(),
    case(
        "E07",
        F,
        "without A the other control flags mean nothing",
        &[MODEL],
        e07,
    ),
    Case {
        version: 2,
        ..case(
            "E08",
            F,
            "peer-to-peer mode with each set of RTR indications",
            &[MODEL],
            e08,
        )
    },
    case(
        "E12",
        F,
        "a Request without S gets a Reply without S",
        &[INTEROP],
        e12,
    ),
    Case {
        // Programs may take it for an error of theirs and end; the agent does not.
        needs: crate::cases::Needs::Agent,
        may_crash: true,
        ..case(
            "E15",
            F,
            "the Initiator leaves before its RTR indication",
            &[MODEL],
            e15,
        )
    },
];

fn ask(bench: &Bench<'_>, offer: &Offer) -> Result<(Peer, Startup, Reaction), Broken> {
    let mut peer = bench.tcp()?;
    let request = offer.request();
    let reaction = peer.ask(&request);
    if let Some(reply) = reaction.startup() {
        peer.full_operation(&request, reply);
    }
    Ok((peer, request, reaction))
}

fn e01(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let mut frame = bench.offer().request();
    frame.revision = 1;
    frame.flags |= S;
    let mut peer = bench.tcp()?;
    let reaction = peer.ask(&frame);
    // Revision 1 reserves the bit; revision 2 forbids it there.
    let allowed = [
        allow(Accepted, "RFC 5044 §7.1.1"),
        allow(Rejected, RULES),
        allow(Closed, FRAME),
    ];
    bench.judge("S with revision 1", &peer, &reaction, &allowed);
    Ok(())
}

fn e02(bench: &mut Bench<'_>) -> Result<(), Broken> {
    for octets in 0..4 {
        let frame = Startup::new(startup::REQUEST, C | S, 2, &vec![0; octets]);
        let mut peer = bench.tcp()?;
        let reaction = peer.ask(&frame);
        let allowed = [allow(Closed, RULES), allow(Rejected, RULES)];
        bench.judge(
            format!("S and {octets} octets of private data"),
            &peer,
            &reaction,
            &allowed,
        );
    }
    Ok(())
}

const SOME: [u16; 5] = [0, 1, 4, 255, 0x3ffe];

/// Asks with these depths; the Reply's, if it accepts.
fn reply_to(bench: &mut Bench<'_>, depths: Depths) -> Result<(Peer, Option<Depths>), Broken> {
    let mut offer = bench.offer();
    offer.revision = 2;
    offer.depths = depths;
    let (peer, _, reaction) = ask(bench, &offer)?;
    let allowed = [allow(Accepted, DEPTHS), allow(Rejected, DEPTHS)];
    bench.judge(format!("asked with {depths}"), &peer, &reaction, &allowed);
    let depths = reaction
        .startup()
        .filter(|_| Accepted.is(&reaction))
        .and_then(Startup::depths);
    Ok((peer, depths))
}

fn e03(bench: &mut Bench<'_>) -> Result<(), Broken> {
    for ird in SOME {
        for ord in SOME {
            let (peer, reply) = reply_to(bench, Depths::client_server(ird, ord))?;
            let Some(reply) = reply else { continue };
            let what = format!("IRD {ird}, ORD {ord}");
            bench.require(
                what,
                reply.ord <= ird,
                reply,
                "the Responder's ORD is at most the Initiator's IRD",
                DEPTHS,
                Some(&peer),
            );
        }
    }
    Ok(())
}

fn e04(bench: &mut Bench<'_>) -> Result<(), Broken> {
    for (ird, ord) in [
        (NOT_NEGOTIATED, 4),
        (4, NOT_NEGOTIATED),
        (NOT_NEGOTIATED, NOT_NEGOTIATED),
    ] {
        let (peer, reply) = reply_to(bench, Depths::client_server(ird, ord))?;
        let Some(reply) = reply else { continue };
        let what = |name| format!("IRD {ird:#x}, ORD {ord:#x}: the Responder's {name}");
        if ird == NOT_NEGOTIATED {
            let same = reply.ord == NOT_NEGOTIATED;
            bench.require(
                what("ORD"),
                same,
                reply,
                "ORD 0x3fff to IRD 0x3fff",
                DEPTHS,
                Some(&peer),
            );
        }
        if ord == NOT_NEGOTIATED {
            let same = reply.ird == NOT_NEGOTIATED;
            bench.require(
                what("IRD"),
                same,
                reply,
                "IRD 0x3fff to ORD 0x3fff",
                DEPTHS,
                Some(&peer),
            );
        }
    }
    Ok(())
}

fn e05(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let (peer, reply) = reply_to(bench, Depths::client_server(1, 1))?;
    if let Some(reply) = reply {
        bench.require(
            "ORD 1",
            reply.ird >= 1,
            reply,
            "an IRD that is no less",
            DEPTHS,
            Some(&peer),
        );
    }
    Ok(())
}

fn e07(bench: &mut Bench<'_>) -> Result<(), Broken> {
    for flags in 0..8_u8 {
        let depths = Depths {
            send: flags & 1 != 0,
            write: flags & 2 != 0,
            read: flags & 4 != 0,
            ..Depths::client_server(4, 4)
        };
        let (peer, reply) = reply_to(bench, depths)?;
        let Some(reply) = reply else { continue };
        let clear = !(reply.peer_to_peer || reply.send || reply.write || reply.read);
        bench.require(
            format!("asked with {depths}"),
            clear,
            reply,
            "control flags none",
            MODEL,
            Some(&peer),
        );
    }
    Ok(())
}

/// Sends an RTR indication that the Reply has; its name. A Send is the last choice: it needs the device to know that it is none.
fn indicate(peer: &mut Peer, reply: Depths, both: bool, wanted: Depths) -> Option<&'static str> {
    let can = |theirs: bool, ours: bool| theirs && (ours || !both);
    if can(reply.write, wanted.write) {
        peer.segment(&Segment::tagged(opcode::WRITE, 0xdead_beef, 0x1234, &[]));
        Some("a Write")
    } else if can(reply.read, wanted.read) {
        peer.read_request(ReadRequest {
            sink_stag: 0xdead_beef,
            sink_to: 7,
            size: 0,
            source_stag: 0xdead_beef,
            source_to: 9,
        });
        Some("a Read")
    } else if can(reply.send, wanted.send) {
        peer.send_message(&[]);
        Some("a Send")
    } else {
        None
    }
}

fn e08(bench: &mut Bench<'_>) -> Result<(), Broken> {
    for flags in 1..8_u8 {
        let depths = Depths {
            peer_to_peer: true,
            send: flags & 1 != 0,
            write: flags & 2 != 0,
            read: flags & 4 != 0,
            ..Depths::client_server(4, 4)
        };
        let (mut peer, reply) = reply_to(bench, depths)?;
        let Some(reply) = reply else { continue };
        let what = format!("asked with {depths}");
        bench.require(
            format!("{what}: A"),
            reply.peer_to_peer,
            reply,
            "A is answered by A",
            MODEL,
            Some(&peer),
        );
        let some = reply.send || reply.write || reply.read;
        bench.require(
            format!("{what}: B, C, D"),
            some,
            reply,
            "at least one RTR indication",
            MODEL,
            Some(&peer),
        );
        // Only what both have is an indication; a device that is left without one is no part of this case.
        let Some(name) = indicate(&mut peer, reply, true, depths) else {
            indicate(&mut peer, reply, false, depths);
            // A device that leaves before this check is the subject of E15.
            peer.first_echo(&mut Vec::new());
            continue;
        };
        let reaction = with_answer_to_rtr(&mut peer, name);
        let basic = match name {
            "a Write" => Some((opcode::WRITE, "a Write of nothing is taken (see T00)")),
            "a Read" => Some((
                opcode::READ_REQUEST,
                "a Read of nothing is answered (see R00)",
            )),
            _ => None,
        };
        if let Some((code, rule)) = basic
            && !reaction.lives
            && !bench.takes_nothing(code)?
        {
            let what = format!("{what}: {name} as RTR indication");
            bench.cannot_judge(what, reaction.to_string(), rule, &peer);
            continue;
        }
        bench.require(
            format!("{what}: {name} as RTR indication"),
            reaction.lives,
            &reaction,
            "the connection is up",
            MODEL,
            Some(&peer),
        );
    }
    Ok(())
}

/// Reaction to an RTR indication; a Read's answer is part of it.
fn with_answer_to_rtr(peer: &mut Peer, name: &str) -> Reaction {
    let mut reaction = Reaction::default();
    if name == "a Read" {
        let mut came = peer.next_segment();
        if matches!(came, Came::Nothing) {
            // Some devices see the first FPDU only when another follows.
            peer.segment(&Segment::tagged(opcode::WRITE, 0, 0, &[]));
            came = peer.next_segment();
        }
        let answered = matches!(came, Came::Segment(..));
        reaction.came.push(came);
        if !answered {
            return reaction;
        }
    }
    reaction.lives = peer.first_echo(&mut reaction.came);
    reaction
}

fn e12(bench: &mut Bench<'_>) -> Result<(), Broken> {
    for revision in [1, 2] {
        let frame = Startup::new(startup::REQUEST, C, revision, b"four");
        let mut peer = bench.tcp()?;
        let reaction = peer.ask(&frame);
        let plain = reaction.startup().is_some_and(|reply| !reply.has(S));
        bench.require(
            format!("revision {revision} without S"),
            plain,
            &reaction,
            "a Reply without S",
            INTEROP,
            Some(&peer),
        );
    }
    Ok(())
}

fn e15(bench: &mut Bench<'_>) -> Result<(), Broken> {
    for number in 0..3 {
        let mut offer = bench.offer();
        offer.revision = 2;
        offer.depths = Depths {
            peer_to_peer: true,
            write: true,
            read: true,
            ..Depths::client_server(4, 4)
        };
        let (mut peer, _, _) = ask(bench, &offer)?;
        if number == 1 {
            peer.finish();
        } else {
            peer.reset();
        }
    }
    let peer = bench.open()?;
    bench.require(
        "after three that left",
        true,
        "a good connection",
        "good connections are accepted",
        MODEL,
        Some(&peer),
    );
    Ok(())
}
