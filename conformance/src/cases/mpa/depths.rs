//! How many Reads and atomics at a time, in which order, and devices that negotiate nothing.

use std::time::Duration;

use serde_json::json;

use crate::agent::{Completion, Connection, Memory, access};
use crate::bench::{Bench, Broken};
use crate::cases::calling::{
    ESTABLISHED, accept, answer_rtr, called, calling, event, first, reply, reply_with,
};
use crate::cases::{Case, Family, agent_case, responder};
use crate::oracle::Outcome::GoesOn;
use crate::oracle::{Came, Reaction, allow};
use crate::peer::Peer;
use crate::wire::ddp::{AtomicRequest, ReadRequest, Segment, opcode, word};
use crate::wire::startup::{REPLY, S, Startup};

const ORDER: &str = "RFC 5040 §5.5";
const READ: &str = "RFC 5040 §5.2.1";
const DEPTHS: &str = "RFC 6581 §9.1";
const MODEL: &str = "RFC 6581 §9.2";
const INTEROP: &str = "RFC 6581 §10";
const ATOMICS: &str = "RFC 7306 §5.2.2";

pub(in crate::cases) const CASES: &[Case] = &[
    Case {
        version: 2,
        ..agent_case(
            "R40",
            Family::Rdmap,
            "as many Reads as were agreed on, and the order of completions",
            &[READ, ORDER, "RFC 5040 §5.2.2", "RFC 5040 §6.1"],
            r40,
        )
    },
    Case {
        version: 2,
        ..agent_case(
            "A07",
            Family::Extensions,
            "atomics and Reads share the depths",
            &[ATOMICS, "RFC 7306 §5.2.1", "RFC 7306 §5.4"],
            a07,
        )
    },
    Case {
        version: 2,
        ..responder(
            "E40",
            Family::Enhanced,
            "depths of 0x3FFF in the Reply, and flag A of its Request",
            &[DEPTHS, MODEL],
            e40,
        )
    },
    responder(
        "E11",
        Family::Enhanced,
        "a peer that closes upon an enhanced Request",
        &[INTEROP],
        e11,
    ),
    responder(
        "E41",
        Family::Enhanced,
        "a device that wants nothing enhanced uses no enhanced format",
        &[INTEROP],
        e41,
    ),
];

const SOON: Duration = Duration::from_secs(10);
const FILL: u8 = 0x22;
const SINK: u32 = 0x5117_0000;
/// Depth on which good startups here agree.
const DEPTH: usize = 4;
/// Octets of each Read that the device's program posts.
const READ_SIZE: u32 = 16;

fn memory(bench: &mut Bench<'_>) -> Result<Memory, Broken> {
    let rights =
        access::LOCAL_WRITE | access::REMOTE_READ | access::REMOTE_WRITE | access::REMOTE_ATOMIC;
    if let Ok(memory) = bench.agent()?.register(4096, rights, FILL) {
        return Ok(memory);
    }
    let fewer = rights & !access::REMOTE_ATOMIC;
    Ok(bench.agent()?.register(4096, fewer, FILL)?)
}

fn read_of(memory: Memory, index: u32) -> ReadRequest {
    ReadRequest {
        sink_stag: SINK | index,
        sink_to: u64::from(index) * 16,
        size: 16,
        source_stag: memory.stag,
        source_to: memory.to,
    }
}

/// Whether it asks for what [`in_turn`] posts; another size may be one that no answer can have.
fn is_as_posted(segment: &Segment) -> bool {
    segment.opcode() != opcode::READ_REQUEST
        || ReadRequest::parse(&segment.payload).is_some_and(|request| request.size == READ_SIZE)
}

/// Answers a Read Request or an Atomic Request.
fn answer(peer: &mut Peer, segment: &Segment, response: u32) {
    if segment.opcode() == opcode::ATOMIC_REQUEST {
        let identifier = word(&segment.payload, 4).unwrap_or_default();
        let octets = [&identifier.to_be_bytes()[..], &[0, 0, 0, 0, 0, 0, 0, 9]].concat();
        peer.segment(&Segment::untagged(
            opcode::ATOMIC_RESPONSE,
            3,
            response,
            &octets,
        ));
    } else if let Some(request) = ReadRequest::parse(&segment.payload) {
        let octets = [0x77; READ_SIZE as usize];
        let segment = Segment::tagged(
            opcode::READ_RESPONSE,
            request.sink_stag,
            request.sink_to,
            &octets,
        );
        peer.segment(&segment);
    }
}

/// Posts operations, answers what comes of them, and notes how many there were at a time and in which order they completed.
fn in_turn(
    bench: &mut Bench<'_>,
    what: &str,
    peer: &mut Peer,
    on: Connection,
    memory: Memory,
    operations: &[u64],
) -> Result<(), Broken> {
    for (index, operation) in operations.iter().enumerate() {
        let post = json!({
            "opcode": operation, "mr": memory.id, "offset": 16 * index, "length": if *operation == 6 { 8 } else { READ_SIZE },
            "wr_id": index, "rkey": 0x0102_0304, "remote": 0x2000 + 16 * index, "compare": 1,
        });
        bench.agent()?.post(on, post)?;
    }
    let answered = operations
        .iter()
        .filter(|operation| **operation != 2)
        .count();
    let (mut at_most, mut numbers, mut sends, mut atomics) = (0, Vec::new(), 0, 0);
    while numbers.len() < answered {
        let now = peer.burst();
        if now.is_empty() {
            break;
        }
        let requests: Vec<_> = now
            .iter()
            .filter(|segment| segment.opcode() != opcode::SEND)
            .collect();
        sends += now.len() - requests.len();
        at_most = at_most.max(requests.len());
        if let Some(other) = requests.iter().find(|request| !is_as_posted(request)) {
            let rule = "Read Requests ask for what was posted (see R06)";
            bench.cannot_judge(what, other.to_string(), rule, peer);
            return Ok(());
        }
        for request in requests {
            if request.opcode() == opcode::ATOMIC_REQUEST {
                atomics += 1;
            }
            answer(peer, request, atomics);
            numbers.push(request.place);
        }
    }
    let all_sends = operations.len() - answered;
    while sends < all_sends {
        let now = peer.burst();
        if now.is_empty() {
            break;
        }
        sends += now.len();
    }
    while let Came::Segment(segment, _) = peer.quiet() {
        sends += usize::from(!segment.is_empty_write());
    }
    let msn = |place: &crate::wire::ddp::Place| match place {
        crate::wire::ddp::Place::Untagged { msn, .. } => *msn,
        crate::wire::ddp::Place::Tagged { .. } => 0,
    };
    let ordered = numbers
        .windows(2)
        .all(|pair| msn(&pair[1]) == msn(&pair[0]) + 1);
    bench.require(
        format!("{what}: at a time"),
        at_most <= DEPTH && numbers.len() == answered && ordered && sends == all_sends,
        format!(
            "{at_most} at most, {} Requests, {sends} Sends",
            numbers.len()
        ),
        "no more Requests than were agreed on, numbered in order",
        READ,
        Some(peer),
    );
    let mut completions: Vec<Completion> = Vec::new();
    while completions.len() < operations.len() {
        match bench.agent()?.poll(on, SOON) {
            Ok(wc) => completions.push(wc),
            Err(_) => break,
        }
    }
    let order: Vec<_> = completions.iter().map(|wc| (wc.wr_id, wc.status)).collect();
    let wanted: Vec<_> = (0..operations.len())
        .map(|index| (u64::try_from(index).unwrap_or(0), 0))
        .collect();
    bench.require(
        format!("{what}: completions"),
        order == wanted,
        format!("{order:?}"),
        "in the order in which they were posted",
        ORDER,
        Some(peer),
    );
    Ok(())
}

fn r40(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let memory = memory(bench)?;
    let (mut peer, on) = bench.open_served()?;
    in_turn(bench, "ten Reads", &mut peer, on, memory, &[4; 10])?;
    let (mut peer, on) = bench.open_served()?;
    in_turn(
        bench,
        "Reads and Sends",
        &mut peer,
        on,
        memory,
        &[4, 2, 4, 2, 2, 4, 4, 2, 4, 2],
    )?;
    // The other way round: as many as were agreed on find room, and are answered in order.
    let mut peer = bench.open()?;
    for _ in 0..4 {
        let requests: Vec<_> = (0..DEPTH)
            .map(|index| read_of(memory, u32::try_from(index).unwrap_or(0)))
            .collect();
        let mut octets = Vec::new();
        for request in &requests {
            let segment =
                Segment::untagged(opcode::READ_REQUEST, 1, peer.read_msn, &request.to_bytes());
            peer.read_msn += 1;
            octets.extend(peer.framer.fpdu(&segment.to_bytes()));
        }
        peer.send(&octets);
        let mut came = Vec::new();
        for request in &requests {
            let next = peer.next_segment();
            let right = matches!(&next, Came::Segment(segment, _)
                if segment.place == (crate::wire::ddp::Place::Tagged { stag: request.sink_stag, to: request.sink_to })
                    && segment.payload.len() == 16);
            came.push((right, next.to_string()));
        }
        bench.require(
            "four Read Requests at once",
            came.iter().all(|(right, _)| *right),
            format!("{came:?}"),
            "four Responses in order",
            "RFC 5040 §6.1",
            Some(&peer),
        );
    }
    Ok(())
}

fn a07(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let memory = memory(bench)?;
    let (mut peer, on) = bench.open_served()?;
    let add = json!({ "opcode": 6, "mr": memory.id, "length": 8, "wr_id": 99, "rkey": 1, "remote": 0x2000, "compare": 1 });
    if bench.agent()?.post(on, add).is_err() {
        return Err(Broken::Skip("the device does not know atomics"));
    }
    let came = peer.next_segment();
    let Came::Segment(segment, _) = &came else {
        return Err(Broken::First(format!(
            "instead of an Atomic Request: {came}"
        )));
    };
    answer(&mut peer, segment, 1);
    bench.agent()?.poll(on, SOON)?;
    let (mut peer, on) = bench.open_served()?;
    in_turn(
        bench,
        "atomics and Reads",
        &mut peer,
        on,
        memory,
        &[6, 4, 6, 4, 4, 6, 6, 4, 6, 6],
    )?;
    // As the one that answers.
    let mut peer = bench.open()?;
    for round in 0..4 {
        let mut octets = Vec::new();
        for index in 0..4 {
            let segment = if index % 2 == round % 2 {
                let request = AtomicRequest {
                    identifier: 100 + index,
                    stag: memory.stag,
                    to: memory.to + 1024,
                    data: 1,
                    ..AtomicRequest::default()
                };
                Segment::untagged(
                    opcode::ATOMIC_REQUEST,
                    1,
                    peer.read_msn,
                    &request.to_bytes(),
                )
            } else {
                let request = read_of(memory, index).to_bytes();
                Segment::untagged(opcode::READ_REQUEST, 1, peer.read_msn, &request)
            };
            peer.read_msn += 1;
            octets.extend(peer.framer.fpdu(&segment.to_bytes()));
        }
        peer.send(&octets);
        let mut came = Vec::new();
        for index in 0..4 {
            let next = peer.next_segment();
            let right = matches!(&next, Came::Segment(segment, _) if if index % 2 == round % 2 {
                segment.opcode() == opcode::ATOMIC_RESPONSE && word(&segment.payload, 0) == Some(100 + index)
            } else {
                segment.opcode() == opcode::READ_RESPONSE && segment.payload.len() == 16
            });
            came.push((right, next.to_string()));
        }
        bench.require(
            "two atomics and two Reads at once",
            came.iter().all(|(right, _)| *right),
            format!("{came:?}"),
            "four Responses, in the order of the Requests",
            ATOMICS,
            Some(&peer),
        );
    }
    Ok(())
}

fn e40(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let memory = memory(bench)?;
    for (what, ird, ord) in [
        ("IRD", true, false),
        ("ORD", false, true),
        ("both", true, true),
    ] {
        let (mut peer, on, request) = called(bench)?;
        let Some(depths) = request.depths() else {
            return Err(Broken::Skip("the device does not ask for enhanced startup"));
        };
        bench.require(
            "the control flags of its Request",
            depths.peer_to_peer == (depths.send || depths.write || depths.read),
            depths,
            "flag A clear, and then the others too, or set with one of them",
            MODEL,
            Some(&peer),
        );
        let reply = reply_with(bench.settings, &request, |depths| {
            if ird {
                depths.ird = 0x3fff;
            }
            if ord {
                depths.ord = 0x3fff;
            }
        });
        peer.send(&reply.to_bytes());
        let came = first(bench, &mut peer, on, &request, &reply)?;
        let mut reaction = Reaction {
            came: vec![came],
            lives: false,
        };
        answer_rtr(&mut peer, &mut reaction);
        reaction.lives = peer.echo(&mut reaction.came);
        bench.judge(
            format!("{what} of 0x3fff"),
            &peer,
            &reaction,
            &[allow(GoesOn, DEPTHS)],
        );
        if reaction.lives {
            if reply.depths().is_some_and(|depths| depths.peer_to_peer) {
                event(bench, on)?;
            } else {
                // Completion of the first FPDU, which the device had to send.
                bench.agent()?.poll(on, SOON)?;
            }
            in_turn(
                bench,
                &format!("{what} of 0x3fff"),
                &mut peer,
                on,
                memory,
                &[4; 6],
            )?;
        }
    }
    Ok(())
}

/// A second Request, or the event instead.
type Second = Result<(Peer, Startup), Option<u64>>;

/// A second Request, after TCP was closed upon the first; or what the device's program was told.
fn again(bench: &mut Bench<'_>) -> Result<(Connection, Second), Broken> {
    let (listener, connection) = calling(bench)?;
    let (peer, request) = accept(bench, &listener)?;
    if !request.has(S) {
        return Ok((connection, Ok((peer, request))));
    }
    drop(peer);
    match accept(bench, &listener) {
        Ok(second) => Ok((connection, Ok(second))),
        Err(_) => Ok((connection, Err(event(bench, connection)?))),
    }
}

fn e11(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let (connection, second) = again(bench)?;
    match second {
        Ok((mut peer, request)) => {
            let reply = reply(bench.settings, &request);
            peer.send(&reply.to_bytes());
            let came = first(bench, &mut peer, connection, &request, &reply)?;
            let mut reaction = Reaction {
                came: vec![came],
                lives: false,
            };
            answer_rtr(&mut peer, &mut reaction);
            reaction.lives = peer.echo(&mut reaction.came);
            bench.judge("it asks again", &peer, &reaction, &[allow(GoesOn, INTEROP)]);
        }
        Err(event) => {
            bench.require(
                "it does not ask again",
                event.is_some_and(|event| event != ESTABLISHED),
                format!("event {event:?}"),
                "its program is told",
                INTEROP,
                None,
            );
        }
    }
    Ok(())
}

fn e41(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let (connection, second) = again(bench)?;
    let Ok((mut peer, request)) = second else {
        return Err(Broken::Skip("the device always asks for enhanced startup"));
    };
    bench.require(
        "its Request",
        !request.has(S) && request.revision == 1,
        &request,
        "revision 1 and bit S clear",
        INTEROP,
        Some(&peer),
    );
    // The answer is nothing enhanced either, with private data that would be depths.
    let reply = Startup::new(REPLY, bench.settings.flags(), request.revision, &[0xff; 4]);
    peer.send(&reply.to_bytes());
    let came = first(bench, &mut peer, connection, &request, &reply)?;
    let mut reaction = Reaction {
        came: vec![came],
        lives: false,
    };
    reaction.lives = peer.echo(&mut reaction.came);
    bench.judge(
        "a Reply that is not enhanced, with four octets of private data",
        &peer,
        &reaction,
        &[allow(GoesOn, INTEROP)],
    );
    Ok(())
}
