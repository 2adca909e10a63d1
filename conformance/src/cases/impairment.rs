//! N: what networks do to connections. Loss and order are TCP's affair; octets that trickle, windows that close, silence, resets and
//! ends in every state are the device's.

use std::time::Duration;

use serde_json::json;

use super::calling::{ESTABLISHED, called, event, reply};
use super::{Case, Family, agent_case, responder};
use crate::agent::{AgentError, Connection, Memory, access};
use crate::bench::{Bench, Broken};
use crate::clock;
use crate::dice::Dice;
use crate::oracle::Outcome::GoesOn;
use crate::oracle::{Came, allow};
use crate::peer::Peer;
use crate::wire::ddp::{ReadRequest, Segment, opcode};
use crate::wire::hex;

const F: Family = Family::Impairment;
const TEARDOWN: &str = "RFC 5040 §6.2";
const END: &str = "RFC 5044 §7.2";
const FRAMES: &str = "RFC 5044 §6";
const ORDER: &str = "RFC 5040 §5.5";
const STARTUP: &str = "RFC 5044 §7.1.2";

pub(super) const CASES: &[Case] = &[
    agent_case(
        "N01",
        F,
        "octets that trickle, and windows that close",
        &[FRAMES, ORDER],
        n01,
    ),
    agent_case("N02", F, "a reset in every state", &[TEARDOWN], n02).may_crash(),
    responder(
        "N03",
        F,
        "a reset or an end while the device connects",
        &[STARTUP, TEARDOWN],
        n03,
    ),
    agent_case(
        "N04",
        F,
        "silence, between FPDUs and within them",
        &[FRAMES, TEARDOWN],
        n04,
    ),
    agent_case(
        "N05",
        F,
        "the end of the peer's half of the stream in every state",
        &[END, TEARDOWN],
        n05,
    )
    .may_crash(),
];

const SOON: Duration = Duration::from_secs(10);
/// `RDMA_CM_EVENT_DISCONNECTED`.
const DISCONNECTED: u64 = 10;
/// Receives of each connection here.
const RECEIVES: u32 = 4;
/// `IBV_WC_RECV`.
const RECV: u64 = 128;
const ROOM: usize = 200_000;
/// Sends that are more than TCP takes by itself.
const SENDS: usize = 30;
/// The receive buffer of a peer with a small window.
const WINDOW: usize = 32_768;

/// Memory for everything.
fn memory(bench: &mut Bench<'_>) -> Result<Memory, Broken> {
    let rights = access::LOCAL_WRITE | access::REMOTE_WRITE | access::REMOTE_READ;
    let room = u64::try_from(ROOM).unwrap_or(0);
    Ok(bench.agent()?.register(room, rights, 0x44)?)
}

fn open(bench: &mut Bench<'_>) -> Result<(Peer, Connection), Broken> {
    bench.agent()?.accept_with(RECEIVES, 4096, 4, 4)?;
    bench.open_served()
}

fn n01(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let mut dice = Dice::new(bench.settings.seed, 101);
    for (what, length, most) in [
        ("one octet", 1500, 1),
        ("up to 9 octets", 8000, 9),
        ("up to 300 octets", 60_000, 300),
    ] {
        let memory = memory(bench)?;
        let (mut peer, on) = open(bench)?;
        let payload = dice.octets(length);
        let write = Segment::tagged(opcode::WRITE, memory.stag, memory.to, &payload);
        let send = Segment::untagged(opcode::SEND, 0, peer.send_msn, &payload[..64]);
        peer.send_msn += 1;
        let mut octets = peer.framer.fpdu(&write.to_bytes());
        octets.extend(peer.framer.fpdu(&send.to_bytes()));
        let mut cuts = Vec::new();
        let mut at = 0;
        while at < octets.len() {
            at += 1 + dice.below(most);
            cuts.push(at);
        }
        peer.send_cut(&octets, &cuts);
        let wc = bench.agent()?.poll(on, SOON);
        let there =
            bench
                .agent()?
                .peek(memory, memory.margin, u64::try_from(length).unwrap_or(0))?;
        let good = wc
            .as_ref()
            .is_ok_and(|wc| (wc.status, wc.opcode, wc.length) == (0, RECV, 64));
        bench.require(
            format!("a Write of {length} octets and a Send, {what} at a time"),
            good && there == payload,
            format!("{wc:?}, {}", hex(&there, 8)),
            "the Send arrives, and all of the Write was placed before",
            FRAMES,
            Some(&peer),
        );
    }
    slow_reader(bench)
}

/// The tester's window is small, and it does not read for a while, again and again: all that the device has to say arrives in the end.
fn slow_reader(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let memory = memory(bench)?;
    let (mut peer, on) = open(bench)?;
    peer.small_window(WINDOW);
    let size = u32::try_from(ROOM).unwrap_or(0);
    for wr_id in 1..=SENDS {
        let send = json!({ "opcode": 2, "mr": memory.id, "length": size, "wr_id": wr_id });
        bench.agent()?.post(on, send)?;
    }
    peer.read_request(ReadRequest {
        sink_stag: 0x5117_0000,
        sink_to: 0,
        size,
        source_stag: memory.stag,
        source_to: memory.to,
    });
    let (mut sent, mut read, mut stalls) = (0, 0, 0);
    let mut wrong = String::new();
    while sent < SENDS * ROOM || read < ROOM {
        if stalls < 10 {
            stalls += 1;
            clock::pause(Duration::from_millis(100));
        }
        let came = peer.next_segment();
        let Came::Segment(segment, fpdu) = &came else {
            wrong = came.to_string();
            break;
        };
        if !peer.crc_fits(fpdu) || segment.payload.iter().any(|octet| *octet != 0x44) {
            wrong = segment.to_string();
            break;
        }
        if segment.opcode() == opcode::SEND {
            sent += segment.payload.len();
        } else {
            read += segment.payload.len();
        }
    }
    let mut done = 0;
    while done < SENDS && bench.agent()?.poll(on, SOON).is_ok_and(|wc| wc.status == 0) {
        done += 1;
    }
    bench.require(
        "thirty Sends and a Read Response to a peer with a small window that stalls",
        (sent, read, done) == (SENDS * ROOM, ROOM, SENDS),
        format!("{sent} and {read} octets; {wrong}; {done} Sends complete"),
        "all of it, and all Sends complete",
        ORDER,
        Some(&peer),
    );
    let reaction = peer.reaction();
    bench.judge("afterwards", &peer, &reaction, &[allow(GoesOn, TEARDOWN)]);
    Ok(())
}

/// Activity of a connection at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nothing was sent since startup.
    Started,
    /// FPDUs went both ways.
    Idle,
    /// So many octets of a Write's FPDU were sent.
    Within(usize),
    /// Two Sends arrived before.
    AfterSends,
    /// The device waits for the Responses to two Reads.
    Reading,
    /// The device's Sends do not fit the peer's window.
    Sending,
    /// The device answers a long Read, and nobody listens.
    Answering,
}

const STATES: [State; 9] = [
    State::Started,
    State::Idle,
    State::Within(1),
    State::Within(9),
    State::Within(700),
    State::AfterSends,
    State::Reading,
    State::Sending,
    State::Answering,
];

/// A connection in a state.
struct Reached {
    peer: Peer,
    on: Connection,
    /// How many work requests of the device have to complete besides its receives.
    posted: usize,
    /// Missing octets of an FPDU that was begun.
    rest: Vec<u8>,
}

fn reach(bench: &mut Bench<'_>, state: State, memory: Memory) -> Result<Reached, Broken> {
    let (mut peer, on) = if state == State::Started {
        bench.agent()?.accept_with(RECEIVES, 4096, 4, 4)?;
        bench.agent()?.call("skip_accepted", json!({}))?;
        let offer = bench.offer();
        let peer = bench.started(&offer)?;
        (peer, bench.agent()?.accepted()?)
    } else {
        open(bench)?
    };
    let size = u32::try_from(ROOM).unwrap_or(0);
    let (mut posted, mut rest) = (0, Vec::new());
    match state {
        State::Started | State::Idle => {}
        State::Within(count) => {
            let write = Segment::tagged(opcode::WRITE, memory.stag, memory.to, &[1; 1000]);
            let octets = peer.framer.fpdu(&write.to_bytes());
            peer.send(&octets[..count]);
            rest = octets[count..].to_vec();
        }
        State::AfterSends => {
            peer.send_message(b"the first");
            peer.send_message(b"the second");
        }
        State::Reading => {
            for wr_id in [100, 101] {
                let read = json!({
                    "opcode": 4, "mr": memory.id, "length": 1000, "wr_id": wr_id, "rkey": 1, "remote": 0x2000,
                });
                bench.agent()?.post(on, read)?;
            }
            posted = 2;
            // The Requests are out.
            peer.next_segment();
            peer.next_segment();
        }
        State::Sending => {
            peer.small_window(WINDOW);
            for wr_id in 100..112 {
                let send = json!({ "opcode": 2, "mr": memory.id, "length": size, "wr_id": wr_id });
                bench.agent()?.post(on, send)?;
            }
            posted = 12;
        }
        State::Answering => {
            peer.small_window(WINDOW);
            for number in 0..4 {
                peer.read_request(ReadRequest {
                    sink_stag: number,
                    sink_to: 0,
                    size,
                    source_stag: memory.stag,
                    source_to: memory.to,
                });
            }
        }
    }
    Ok(Reached {
        peer,
        on,
        posted,
        rest,
    })
}

/// Report of the end to a device's program.
#[derive(Debug, Default)]
struct Learnt {
    events: Vec<u64>,
    good: usize,
    bad: usize,
}

/// Takes events until the connection's end, and completions until all are there or none comes any more.
fn learn(bench: &mut Bench<'_>, on: Connection, of: usize) -> Result<Learnt, Broken> {
    let mut learnt = Learnt::default();
    while learnt.events.last() != Some(&DISCONNECTED) {
        match bench.agent()?.event(on, SOON) {
            Ok((event, _)) => learnt.events.push(event),
            Err(AgentError::Refused { .. }) => break,
            Err(error) => return Err(error.into()),
        }
    }
    // Programs answer the event with a disconnection of their own; some devices flush work requests only then.
    match bench.agent()?.call("disconnect", json!({ "conn": on.id })) {
        Ok(_) | Err(AgentError::Refused { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    while learnt.good + learnt.bad < of {
        match bench.agent()?.poll(on, SOON) {
            Ok(wc) if wc.status == 0 => learnt.good += 1,
            Ok(_) => learnt.bad += 1,
            Err(AgentError::Refused { .. }) => break,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(learnt)
}

/// Notes whether the device's program learnt of the end, and of what became of each work request.
fn told(
    bench: &mut Bench<'_>,
    what: &str,
    on: Connection,
    posted: usize,
    good: usize,
) -> Result<(), Broken> {
    let of = posted + usize::try_from(RECEIVES).unwrap_or(0);
    let learnt = learn(bench, on, of)?;
    let disconnected = learnt.events.contains(&DISCONNECTED);
    // Sends that TCP took before are as good as sent.
    let right = learnt.good + learnt.bad == of && learnt.good >= good && disconnected;
    bench.require(
        what,
        right,
        format!("{learnt:?}"),
        &format!("the end is told, and {of} work requests complete, {good} of them well"),
        TEARDOWN,
        None,
    );
    bench.agent()?.destroy(on)?;
    Ok(())
}

fn n02(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let memory = memory(bench)?;
    // In startup the device's program knows nothing yet; what counts is that the device goes on.
    let request = bench.offer().request().to_bytes();
    for count in [0, 1, 19, request.len() - 1, request.len()] {
        let mut peer = bench.tcp()?;
        if count > 0 {
            peer.send(&request[..count]);
        }
        peer.reset();
        let mut peer = bench.open()?;
        let reaction = peer.reaction();
        let what =
            format!("a connection after one that was reset behind {count} octets of its Request");
        bench.judge(what, &peer, &reaction, &[allow(GoesOn, TEARDOWN)]);
    }
    for state in STATES {
        let Reached {
            peer, on, posted, ..
        } = reach(bench, state, memory)?;
        peer.reset();
        // A reset may overtake what came before it.
        told(bench, &format!("reset: {state:?}"), on, posted, 0)?;
    }
    Ok(())
}

fn n03(bench: &mut Bench<'_>) -> Result<(), Broken> {
    for (what, count, reset) in [
        ("a reset in place of a Reply", 0, true),
        ("an end in place of a Reply", 0, false),
        ("a reset behind half a Reply", 15, true),
        ("an end behind half a Reply", 15, false),
        ("a reset behind all but its last octet", usize::MAX, true),
        ("an end behind all but its last octet", usize::MAX, false),
    ] {
        let (mut peer, on, request) = called(bench)?;
        let octets = reply(bench.settings, &request).to_bytes();
        let count = count.min(octets.len() - 1);
        if count > 0 {
            peer.send(&octets[..count]);
        }
        if reset {
            peer.reset();
        } else {
            peer.finish();
        }
        // With nothing of a Reply it may ask again in a way that older peers know; nobody listens there any more.
        let event = event(bench, on)?;
        bench.require(
            what,
            event.is_some_and(|event| event != ESTABLISHED),
            format!("event {event:?}"),
            "the device's program is told that there is no connection",
            STARTUP,
            None,
        );
        bench.agent()?.destroy(on)?;
    }
    Ok(())
}

fn n04(bench: &mut Bench<'_>) -> Result<(), Broken> {
    const SILENCE: Duration = Duration::from_secs(2);
    let memory = memory(bench)?;
    // All at the same time, so that it takes no longer than one.
    let mut all = Vec::new();
    for state in [
        State::Idle,
        State::Within(1),
        State::Within(9),
        State::Within(700),
    ] {
        all.push((state, reach(bench, state, memory)?));
    }
    clock::pause(SILENCE);
    for (state, reached) in all {
        let Reached {
            mut peer, on, rest, ..
        } = reached;
        let what = format!("two seconds of silence, {state:?}");
        if !rest.is_empty() {
            peer.send(&rest);
        }
        peer.send_message(b"after the silence");
        let wc = bench.agent()?.poll(on, SOON);
        let good = wc
            .as_ref()
            .is_ok_and(|wc| wc.status == 0 && wc.length == 17);
        bench.require(
            what.clone(),
            good,
            format!("{wc:?}"),
            "a Send arrives",
            FRAMES,
            Some(&peer),
        );
        let reaction = peer.reaction();
        bench.judge(what, &peer, &reaction, &[allow(GoesOn, TEARDOWN)]);
    }
    Ok(())
}

fn n05(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let memory = memory(bench)?;
    let request = bench.offer().request().to_bytes();
    for count in [0, 1, 19, request.len() - 1] {
        let mut peer = bench.tcp()?;
        if count > 0 {
            peer.send(&request[..count]);
        }
        peer.finish();
        let came = peer.startup();
        bench.require(
            format!("an end behind {count} octets of a Request"),
            matches!(came, Came::End | Came::Reset),
            &came,
            "the device ends its half too",
            STARTUP,
            Some(&peer),
        );
    }
    for state in STATES {
        let Reached {
            mut peer,
            on,
            posted,
            ..
        } = reach(bench, state, memory)?;
        peer.finish();

        let what = format!("end: {state:?}");
        // The device may still send anything; it has to end.
        let ended = loop {
            match peer.next_fpdu() {
                Came::Segment(..) | Came::Short(_) => {}
                came => break came,
            }
        };
        bench.require(
            what.clone(),
            matches!(ended, Came::End | Came::Reset | Came::Torn(_)),
            &ended,
            "the device's half ends too",
            END,
            Some(&peer),
        );
        // Messages from before the end are not lost.
        let good = if state == State::AfterSends { 2 } else { 0 };
        told(bench, &what, on, posted, good)?;
    }
    Ok(())
}
