//! A queue pair: datagrams that come, and messages that its program posts.

use std::collections::{BTreeMap, VecDeque};
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dgiwarp_conform::wire::datagram::{
    Datagram, Dropped, Exchange, Extension, Segment, flag, opcode,
};
use dgiwarp_conform::wire::ddp::Place;
use serde_json::{Value, json};
use xtask::clock;

use super::device::{State, World, field, low, mixed};
use super::out;
use super::reads::{self, Read};

/// Octets of payload in one segment.
pub(super) const MOST: usize = 1400;
/// Octets of a receive before the payload.
const GRH: usize = 40;
/// `IBV_ACCESS_REMOTE_WRITE`.
const WRITE: u64 = 2;

/// `enum ibv_wr_opcode`.
mod wr {
    pub(super) const WRITE_IMM: u64 = 1;
    pub(super) const SEND: u64 = 2;
    pub(super) const SEND_IMM: u64 = 3;
    pub(super) const READ: u64 = 4;
}
const SOLICITED: u64 = 4;

/// One queue pair.
pub(super) struct Pair {
    pub(super) socket: UdpSocket,
    pub(super) port: u16,
    pub(super) qkey: u32,
    room: u64,
    octets: u64,
    pub(super) receives: VecDeque<u64>,
    pub(super) completions: VecDeque<Value>,
    pub(super) counters: BTreeMap<&'static str, u64>,
    pub(super) peer: Option<SocketAddr>,
    pub(super) epoch: u32,
    number: u32,
    msn: u32,
    pub(super) read_msn: u32,
    key: u64,
    /// The peer's cookie.
    pub(super) cookie: Option<u64>,
    /// Whether its program waits for that.
    pub(super) proving: bool,
    nonces: Vec<u64>,
    asked: Option<(Instant, Duration)>,
    pub(super) reads: VecDeque<Read>,
    /// Terminates since then.
    pub(super) terminates: (Instant, u32),
}

impl Pair {
    pub(super) fn new(
        state: &mut State,
        socket: UdpSocket,
        qkey: u32,
        (room, receives, octets): (u64, u64, u64),
    ) -> Self {
        let port = socket.local_addr().unwrap().port();
        Self {
            socket,
            port,
            qkey,
            room,
            octets,
            receives: (0..receives).collect(),
            completions: VecDeque::new(),
            counters: BTreeMap::new(),
            peer: None,
            epoch: low(state.random()),
            number: low(state.random()),
            msn: low(state.random()),
            read_msn: low(state.random()),
            key: state.random(),
            cookie: None,
            proving: false,
            nonces: Vec::new(),
            asked: None,
            reads: VecDeque::new(),
            terminates: (clock::now(), 0),
        }
    }

    pub(super) fn count(&mut self, name: &'static str) {
        *self.counters.entry(name).or_default() += 1;
    }

    /// The cookie of this peer.
    pub(super) fn cookie_of(&self, world: &World, peer: SocketAddr, epoch: u32) -> u64 {
        if world.does("one-cookie-for-all") {
            return self.key;
        }
        let of = u64::from(peer.port()) << 32 | u64::from(epoch);
        mixed(self.key ^ mixed(of))
    }
}

/// Takes what comes at one of the pair's sockets until the pair has gone.
pub(super) fn serve(world: &Arc<World>, id: u64, socket: &UdpSocket, is_group: bool) {
    let mut octets = vec![0; 65_536];
    loop {
        let came = socket.recv_from(&mut octets);
        let mut state = world.state();
        let Some(mut pair) = state.pairs.remove(&id) else {
            return;
        };
        if let Ok((count, from)) = came {
            take(
                world,
                &mut state,
                &mut pair,
                (from, is_group),
                &octets[..count],
            );
        }
        if !is_group {
            ask_again(world, &mut state, &mut pair);
            reads::go_on(world, &mut pair);
        }
        state.pairs.insert(id, pair);
        drop(state);
        world.tell();
    }
}

fn take(
    world: &World,
    state: &mut State,
    pair: &mut Pair,
    (from, is_group): (SocketAddr, bool),
    octets: &[u8],
) {
    match Datagram::parse(octets) {
        Ok(Datagram::Segment(segment)) => {
            match segment.opcode() {
                opcode::READ_REQUEST => {
                    return reads::request(world, state, pair, (from, is_group), &segment);
                }
                opcode::READ_RESPONSE => return reads::response(state, pair, from, &segment),
                _ => {}
            }
            let refused = match segment.opcode() {
                opcode::SEND | opcode::SEND_SE => send(state, pair, &segment),
                opcode::WRITE_RECORD => write_record(state, pair, from, &segment),
                opcode::TERMINATE => Err("unsolicited"),
                _ => Err("no-receive"),
            };
            if let Err(counter) = refused {
                pair.count(counter);
            }
        }
        Ok(Datagram::Exchange(asked)) if asked.kind == 1 => {
            if is_group && !world.does("cookies-for-groups") {
                return pair.count("not-well-known");
            }
            let cookie = pair.cookie_of(world, from, asked.epoch);
            let answer = Exchange::answer(asked.epoch, asked.nonce, cookie);
            out::send(world, pair, from, answer.into());
        }
        Ok(Datagram::Exchange(answer)) => {
            let asked = pair.nonces.contains(&answer.nonce) && answer.epoch == pair.epoch;
            if pair.peer == Some(from) && asked {
                pair.cookie = Some(answer.cookie);
            } else {
                pair.count("unsolicited");
            }
        }
        Ok(Datagram::Lookup(_)) => pair.count("unknown-format"),
        Err(dropped) => pair.count(match dropped {
            Dropped::BadCrc { .. } => "bad-crc",
            Dropped::UnknownFormat(_) => "unknown-format",
            Dropped::BadVersion { .. } => "bad-version",
            Dropped::UnexpectedOpcode(_) => "unexpected-opcode",
            Dropped::Malformed(_) => "malformed",
        }),
    }
}

fn send(state: &mut State, pair: &mut Pair, segment: &Segment) -> Result<(), &'static str> {
    let Place::Untagged { rsvd, .. } = segment.place else {
        return Err("malformed");
    };
    if rsvd != pair.qkey {
        return Err("bad-qkey");
    }
    let slot = *pair.receives.front().ok_or("no-receive")?;
    let from = usize::try_from(slot * pair.octets).unwrap() + GRH;
    let room = usize::try_from(pair.octets).unwrap() - GRH;
    if segment.payload.len() > room {
        return Err("receive-too-short");
    }
    pair.receives.pop_front();
    let memory = state.memories.get_mut(&pair.room).ok_or("no-receive")?;
    memory.octets[from..from + segment.payload.len()].copy_from_slice(&segment.payload);
    let length = GRH + segment.payload.len();
    pair.completions.push_back(done(slot, 128, length));
    Ok(())
}

/// A completion with success.
pub(super) fn done(id: u64, opcode: u64, length: usize) -> Value {
    json!({
        "ok": 1, "wr_id": id, "status": 0, "opcode": opcode, "length": length, "flags": 0, "imm": 0, "source": 0,
    })
}

/// Messages of one segment, which is what the cases have that it is for.
fn write_record(
    state: &mut State,
    pair: &mut Pair,
    from: SocketAddr,
    segment: &Segment,
) -> Result<(), &'static str> {
    let (Place::Tagged { stag, to }, Some(_), true) =
        (segment.place, segment.extension, segment.is_last())
    else {
        return Err("write-record-off");
    };
    let length = segment.payload.len();
    let there = state.octets_of((stag, to, length as u64), WRITE)?;
    there.copy_from_slice(&segment.payload);
    let record = state.number();
    state.records.insert(
        record,
        json!({
            "ok": 1, "addr": to, "rkey": stag, "length": length, "valid": length, "flags": 0, "imm": 0,
            "source": from.port(), "ranges": format!("0-{length}"),
        }),
    );
    pair.completions.push_back(done(record, 135, length));
    Ok(())
}

/// Asks the peer for its cookie while something waits for that.
fn ask_again(world: &World, state: &mut State, pair: &mut Pair) {
    let waits = pair.proving || reads::wants_cookie(world, pair);
    let Some(to) = pair.peer.filter(|_| waits && pair.cookie.is_none()) else {
        return;
    };
    let now = clock::now();
    let pause = match pair.asked {
        None => Duration::from_millis(20),
        Some((last, pause)) if now - last >= pause => (pause * 2).min(Duration::from_secs(1)),
        Some(_) => return,
    };
    pair.asked = Some((now, pause));
    let nonce = match pair.nonces.last() {
        Some(last) if world.does("nonce-repeated") => *last,
        _ => state.random(),
    };
    pair.nonces.push(nonce);
    let request = Exchange::request(pair.epoch, nonce);
    out::send(world, pair, to, request.into());
}

/// A work request of the pair's program.
pub(super) fn post(world: &World, id: u64, with: &Value) -> Option<()> {
    let mut state = world.state();
    let mut pair = state.pairs.remove(&id)?;
    if field(with, "opcode", 0) == wr::READ {
        let stag = if world.does("sink-stags-in-a-row") {
            0x5100 + u32::try_from(state.number() & 0xff).unwrap() % 16
        } else {
            low(state.random())
        };
        pair.reads.push_back(Read::new(&state, with, stag)?);
        ask_again(world, &mut state, &mut pair);
        reads::go_on(world, &mut pair);
    } else {
        message(world, &state, &mut pair, with)?;
    }
    state.pairs.insert(id, pair);
    Some(())
}

/// The segments of a message, and its completion.
fn message(world: &World, state: &State, pair: &mut Pair, with: &Value) -> Option<()> {
    let to = pair.peer?;
    let code = field(with, "opcode", 0);
    let memory = state.memories.get(&field(with, "mr", 0))?;
    let from = usize::try_from(memory.margin + field(with, "offset", 0)).ok()?;
    let length = usize::try_from(field(with, "length", 0)).ok()?;
    let octets = &memory.octets[from..from + length];
    let solicited = field(with, "flags", 2) & SOLICITED != 0;
    if code == wr::SEND && length <= MOST {
        let mut segment = Segment::send(pair.qkey, pair.msn, octets);
        if solicited {
            segment.control = 0x40 | opcode::SEND_SE;
        }
        pair.msn = pair
            .msn
            .wrapping_add(1 + u32::from(world.does("msn-skips")));
        out::send(world, pair, to, segment.into());
    } else {
        segments(world, pair, (to, with, solicited), octets);
    }
    let opcode = if code <= wr::WRITE_IMM { 1 } else { 0 };
    let completion = done(field(with, "wr_id", 0), opcode, length);
    if field(with, "flags", 2) & 2 != 0 {
        pair.completions.push_back(completion);
    }
    Some(())
}

fn segments(
    world: &World,
    pair: &mut Pair,
    (to, with, solicited): (SocketAddr, &Value, bool),
    octets: &[u8],
) {
    let code = field(with, "opcode", 0);
    let mut extension = Extension {
        epoch: pair.epoch,
        number: pair.number,
        length: u32::try_from(octets.len()).unwrap(),
        ..Extension::default()
    };
    pair.number = pair
        .number
        .wrapping_add(1 + u32::from(world.does("number-skips")));
    if matches!(code, wr::WRITE_IMM | wr::SEND_IMM) {
        extension.flags |= flag::IMMEDIATE;
        extension.immediate = u32::from_be(low(field(with, "imm", 0)));
    }
    if solicited {
        extension.flags |= flag::SOLICITED;
    }
    if world.does("epoch-changes") {
        extension.epoch ^= extension.number & 1;
    }
    let (stag, remote) = (low(field(with, "rkey", 0)), field(with, "remote", 0));
    let mut at = 0;
    loop {
        let most = if at == 0 && world.does("segments-of-two-lengths") {
            MOST - 400
        } else if world.does("datagram-too-long") {
            65_300
        } else {
            MOST
        };
        let end = (at + most).min(octets.len());
        extension.offset = u32::try_from(at).unwrap();
        let mut segment = if code <= wr::WRITE_IMM {
            Segment::write_record(stag, remote, extension, &octets[at..end])
        } else {
            Segment::segmented_send(pair.qkey, extension, &octets[at..end])
        };
        let forgets = world.does("writes-without-cookie");
        if let Some(cookie) = pair.cookie.filter(|_| !forgets) {
            segment = segment.with_cookie(cookie);
        }
        out::send(world, pair, to, segment.into());
        at = end;
        if at == octets.len() {
            return;
        }
    }
}
