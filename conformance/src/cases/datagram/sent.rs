//! Datagrams that the device itself sends.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::json;

use super::scene::{FILL, QKEY, Scene, WRITABLE, as_u32, as_u64};
use super::{Case, datagrams};
use crate::agent::Memory;
use crate::bench::{Bench, Broken};
use crate::dice::Dice;
use crate::station::Heard;
use crate::wire::datagram::{Datagram, Exchange, Extension, Segment, flag, opcode};
use crate::wire::ddp::{Place, Terminate};

const HEADERS: &str = "Datagram §2";
const EXTENSION: &str = "Datagram §3";
const SIZES: &str = "Datagram §8";

pub(super) const CASES: &[Case] = &[
    Case {
        version: 2,
        ..datagrams(
            "D20",
            "what the device sends: headers, numbers, epoch, segments",
            &[HEADERS, EXTENSION, SIZES, "Datagram §1.1", "Datagram §1.2"],
            d20,
        )
    },
    Case {
        version: 2,
        ..datagrams(
            "D25",
            "the device writes with the cookie that it asked for",
            &["Datagram §6"],
            d25,
        )
    },
    datagrams(
        "D26",
        "Terminates about messages of the device become entries of its error queue",
        &["Datagram §7.2"],
        d26,
    ),
];

/// `IBV_SEND_SIGNALED` and `IBV_SEND_SOLICITED`.
const SIGNALED: u32 = 2;
const SOLICITED: u32 = 4;
const SEND: u32 = 2;
const SEND_IMM: u32 = 3;
const WRITE: u32 = 0;
const WRITE_IMM: u32 = 1;
const STAG: u32 = 0x3c5a_9601;
const REMOTE: u64 = 0x7f00_0000_1000;
const IMMEDIATE: u32 = 0xcafe_f00d;
const ROOM: usize = 200_000;
/// Limit of every segment in octets (Datagram §8).
const LONGEST: usize = 65_000;

/// Memory of the device with octets that the tester knows, which it wrote there.
fn filled(
    bench: &mut Bench<'_>,
    scene: &mut Scene,
    dice: &mut Dice,
) -> Result<(Memory, Vec<u8>), Broken> {
    let memory = bench.agent()?.register(as_u64(ROOM), WRITABLE, FILL)?;
    let payload = dice.octets(ROOM);
    for (index, part) in payload.chunks(20_000).enumerate() {
        let message = scene.station.message(part.len());
        let to = memory.to + as_u64(index * 20_000);
        scene
            .station
            .send(Segment::write_record(memory.stag, to, message, part));
        if scene.record(bench)?.is_none() {
            return Err(Broken::Datagram(
                "a good Write-Record makes no record".to_owned(),
            ));
        }
    }
    Ok((memory, payload))
}

/// State of the sender, as its datagrams show it so far.
#[derive(Debug, Default)]
struct Sender {
    epoch: Option<u32>,
    number: Option<u32>,
    msn: Option<u32>,
}

/// Takes a message's segments; what is wrong with them.
fn message(
    scene: &mut Scene,
    sender: &mut Sender,
    payload: &[u8],
    with: (u32, u32),
) -> Vec<String> {
    let (operation, flags) = with;
    let mut wrong = Vec::new();
    let mut at = 0;
    let mut this: Option<Extension> = None;
    loop {
        let heard = scene.station.answer();
        let Some(segment) = heard.segment() else {
            wrong.push(heard.to_string());
            return wrong;
        };
        let end = at + segment.payload.len();
        if payload.get(at..end) != Some(&segment.payload) {
            wrong.push(format!("octets {at} to {end} are others"));
        }
        let datagram = Datagram::from(segment.clone()).to_bytes().len();
        if segment.control & 0x30 != 0 || segment.cookie.is_some() || datagram > LONGEST {
            wrong.push(segment.to_string());
        }
        match segment.extension {
            None => plain(segment, sender, with, &mut wrong),
            Some(extension) => {
                let first = *this.get_or_insert(extension);
                let same = Extension {
                    offset: first.offset,
                    ..extension
                } == first;
                if !same || extension.offset != as_u32(at) {
                    wrong.push(format!("{extension} after {first}"));
                }
                check(extension, segment, payload.len(), with, &mut wrong);
            }
        }
        at = end;
        if segment.is_last() {
            break;
        }
    }
    if at != payload.len() {
        wrong.push(format!("{at} octets"));
    }
    if let Some(extension) = this {
        let (epoch, number) = (extension.epoch, extension.number);
        if *sender.epoch.get_or_insert(epoch) != epoch {
            wrong.push(format!("epoch {epoch:#x}"));
        }
        if sender
            .number
            .is_some_and(|last| last.wrapping_add(1) != number)
        {
            wrong.push(format!("message {number:#x} after {:x?}", sender.number));
        }
        sender.number = Some(number);
    } else if operation != SEND {
        wrong.push("no extension".to_owned());
    }
    if flags & SOLICITED != 0
        && this.is_some_and(|extension| extension.flags & flag::SOLICITED == 0)
    {
        wrong.push("flag S is missing".to_owned());
    }
    wrong
}

/// A Send of one segment.
fn plain(
    segment: &Segment,
    sender: &mut Sender,
    (operation, flags): (u32, u32),
    wrong: &mut Vec<String>,
) {
    let wanted = if flags & SOLICITED == 0 {
        opcode::SEND
    } else {
        opcode::SEND_SE
    };
    let Place::Untagged { rsvd, msn, .. } = segment.place else {
        return wrong.push(segment.to_string());
    };
    if segment.opcode() != wanted || rsvd != QKEY || operation != SEND {
        wrong.push(segment.to_string());
    }
    if sender.msn.is_some_and(|last| last.wrapping_add(1) != msn) {
        wrong.push(format!("MSN {msn:#x} after {:x?}", sender.msn));
    }
    sender.msn = Some(msn);
}

fn check(
    extension: Extension,
    segment: &Segment,
    length: usize,
    (operation, _): (u32, u32),
    wrong: &mut Vec<String>,
) {
    let with_immediate = operation == SEND_IMM || operation == WRITE_IMM;
    // Verbs hand immediates over in network byte order.
    let immediate = if with_immediate { IMMEDIATE.to_be() } else { 0 };
    let flags = extension.flags & !flag::SOLICITED;
    if (flags, extension.immediate) != (u8::from(with_immediate), immediate)
        || extension.reserved != [0; 3]
        || extension.length != as_u32(length)
    {
        wrong.push(extension.to_string());
    }
    let place = match segment.place {
        Place::Tagged { stag, to } => {
            operation <= WRITE_IMM && (stag, to) == (STAG, REMOTE + u64::from(extension.offset))
        }
        Place::Untagged { rsvd, .. } => operation > WRITE_IMM && rsvd == QKEY,
    };
    let code = if operation <= WRITE_IMM {
        opcode::WRITE_RECORD
    } else {
        opcode::SEGMENTED_SEND
    };
    if !place || segment.opcode() != code {
        wrong.push(segment.to_string());
    }
}

fn d20(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let mut scene = Scene::new(bench, json!({}))?;
    let mut dice = Dice::new(bench.settings.seed, 20);
    let (memory, octets) = filled(bench, &mut scene, &mut dice)?;
    scene.point_here(bench)?;
    let mut sender = Sender::default();
    let mut wr_id = 0;
    for (name, operation, flags) in [
        ("Send", SEND, SIGNALED),
        ("Send, solicited", SEND, SIGNALED | SOLICITED),
        ("Send with immediate", SEND_IMM, SIGNALED),
        ("Write-Record", WRITE, SIGNALED),
        (
            "Write-Record with immediate, solicited",
            WRITE_IMM,
            SIGNALED | SOLICITED,
        ),
    ] {
        for length in [0, 1, 63, 1400, 4096, 100_000, ROOM] {
            wr_id += 1;
            let with = json!({
                "opcode": operation, "flags": flags, "mr": memory.id, "length": length, "wr_id": wr_id,
                "rkey": STAG, "remote": REMOTE, "imm": IMMEDIATE,
            });
            scene.post(bench, with)?;
            let wrong = message(
                &mut scene,
                &mut sender,
                &octets[..length],
                (operation, flags),
            );
            let wc = scene.await_one(bench)?;
            let done = wc
                .as_ref()
                .is_some_and(|wc| (wc.status, wc.wr_id) == (0, wr_id));
            let more = scene.station.at_once();
            bench.expect(
                format!("{name}, {length} octets"),
                wrong.is_empty() && done && matches!(more, Heard::Nothing),
                format!("wrong: {wrong:?}; {wc:?}; then {more}"),
                "the message, whole, numbered behind the one before, of one epoch, what is reserved zero",
                if operation == SEND { HEADERS } else { EXTENSION },
                &scene.station,
            );
        }
    }
    // Another queue pair is another source.
    let mut other = Scene::new(bench, json!({}))?;
    let mut second = Sender::default();
    other.point_here(bench)?;
    let with = json!({ "opcode": SEND_IMM, "mr": memory.id, "length": 10, "imm": IMMEDIATE });
    other.post(bench, with)?;
    let wrong = message(&mut other, &mut second, &octets[..10], (SEND_IMM, SIGNALED));
    bench.expect(
        "another queue pair",
        wrong.is_empty() && second.epoch != sender.epoch,
        format!(
            "{wrong:?}, epochs {:x?} and {:x?}",
            sender.epoch, second.epoch
        ),
        "another epoch",
        EXTENSION,
        &other.station,
    );
    Ok(())
}

fn d25(bench: &mut Bench<'_>) -> Result<(), Broken> {
    const COOKIE: u64 = 0x0dd_ba11;
    let mut scene = Scene::new(bench, json!({}))?;
    let memory = bench.agent()?.register(3000, WRITABLE, FILL)?;
    scene.point_here(bench)?;
    let address = scene.station.address().map_err(Broken::Connect)?;
    // The agent waits for the cookie, so another thread has to give it meanwhile: to each request, since the device repeats those that it got no answer to in time.
    let done = AtomicBool::new(false);
    let Scene { station, on, .. } = &mut scene;
    let with = json!({ "conn": on.id, "timeout_ms": bench.patience().answer.as_millis() });
    let (proved, asked) = std::thread::scope(|scope| {
        let giver = scope.spawn(|| {
            let mut asked = 0;
            while !done.load(Ordering::Relaxed) {
                let heard = station.next_within(Duration::from_millis(2));
                if let Heard::Datagram(Datagram::Exchange(request)) = heard
                    && request.kind == 1
                {
                    asked += 1;
                    station.send(Exchange::answer(request.epoch, request.nonce, COOKIE));
                }
            }
            asked
        });
        let proved = bench.agent().map(|agent| agent.call("prove", with));
        done.store(true, Ordering::Relaxed);
        (proved, giver.join().unwrap_or(0))
    });
    let proved = proved?;
    let with = json!({
        "opcode": WRITE, "mr": memory.id, "length": 3000, "rkey": STAG, "remote": REMOTE,
    });
    scene.post(bench, with)?;
    let (mut at, mut with_cookie) = (0, true);
    while at < 3000 {
        match scene.station.answer() {
            // A repeat that left before the answer came.
            Heard::Datagram(Datagram::Exchange(request)) if request.kind == 1 => {}
            heard => {
                let Some(segment) = heard.segment() else {
                    break;
                };
                at += segment.payload.len();
                with_cookie &=
                    segment.cookie == Some(COOKIE) && segment.payload.iter().all(|o| *o == FILL);
            }
        }
    }
    bench.expect(
        format!("a Write-Record to {address} after its cookie was asked for"),
        proved.is_ok() && at == 3000 && with_cookie,
        format!("{asked} cookie requests; {at} octets, with the cookie: {with_cookie}"),
        "every segment carries the cookie",
        "Datagram §6",
        &scene.station,
    );
    Ok(())
}

fn d26(bench: &mut Bench<'_>) -> Result<(), Broken> {
    const CLAUSE: &str = "Datagram §7.2";
    let mut scene = Scene::new(bench, json!({}))?;
    let memory = bench.agent()?.register(100, WRITABLE, FILL)?;
    scene.point_here(bench)?;
    let with = json!({
        "opcode": WRITE, "mr": memory.id, "length": 100, "rkey": STAG, "remote": REMOTE,
    });
    scene.post(bench, with)?;
    let heard = scene.station.answer();
    let Some(extension) = heard.segment().and_then(|segment| segment.extension) else {
        return Err(Broken::Datagram(format!(
            "instead of a Write-Record: {heard}"
        )));
    };
    scene.await_one(bench)?;
    let epoch = scene.station.epoch;
    let about = |extension: Extension, header_control| {
        let told = Terminate {
            layer: 0,
            etype: 1,
            code: 2,
            header_control,
            reserved: 0,
            rest: extension.to_bytes().to_vec(),
        };
        Segment::untagged(opcode::TERMINATE, epoch, 2, 1, &told.to_bytes())
    };
    let other = Extension {
        epoch: !extension.epoch,
        ..extension
    };
    let before = scene.counters(bench)?;
    scene.station.send(about(other, 0b010));
    let lives = scene.probe(bench)?;
    let counted = scene.counted(bench, &before)?;
    bench.expect(
        "about a message of another epoch",
        lives && counted == "unsolicited 1",
        counted,
        "`unsolicited` 1",
        CLAUSE,
        &scene.station,
    );
    let before = scene.counters(bench)?;
    for header_control in [0b000, 0b011] {
        scene.station.send(about(extension, header_control));
    }
    let lives = scene.probe(bench)?;
    let counted = scene.counted(bench, &before)?;
    bench.expect(
        "with D and R both clear, and both set",
        lives && counted == "malformed 2",
        counted,
        "`malformed` 2",
        CLAUSE,
        &scene.station,
    );
    scene.station.send(about(extension, 0b010));
    let lives = scene.probe(bench)?;
    let ask = json!({ "conn": scene.on.id });
    let entry = bench.agent()?.call("error", ask.clone());
    let right = entry.as_ref().is_ok_and(|entry| {
        let field = |name| entry[name].as_u64().unwrap_or(u64::MAX);
        ["layer", "type", "code"].map(field) == [0, 1, 2]
            && field("message") == u64::from(extension.number)
    });
    let more = bench.agent()?.call("error", ask);
    bench.expect(
        "about its message",
        lives && right && more.is_err(),
        format!("{entry:?}, then {more:?}"),
        "one entry, with the message's number and what the Terminate says",
        CLAUSE,
        &scene.station,
    );
    Ok(())
}
