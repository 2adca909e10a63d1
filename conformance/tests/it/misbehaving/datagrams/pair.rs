//! A queue pair: datagrams that come, and messages that its program posts.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dgiwarp_conform::wire::datagram::{
    About, Datagram, Dropped, Exchange, Extension, Segment, about, flag, format, opcode, sealed,
};
use dgiwarp_conform::wire::ddp::Terminate;
use serde_json::{Value, json};
use xtask::clock;

use super::device::{State, World};
use super::map::{Map, Source};
use super::out;
use super::reads::{self, Read};
use super::records::{self, Open};
use super::sends::{self, Partial};
use crate::misbehaving::control::number;
use crate::misbehaving::memory::{low, mixed};

/// Octets of payload in one segment.
pub(super) const MOST: usize = 1400;

/// Address of a source, its epoch, and the number of a message.
pub(super) type Key = (SocketAddr, u32, u32);

/// Which of a queue pair's sockets a datagram came to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// The one of its own address.
    Own,
    /// The one of all hosts.
    All,
    /// The one of a group.
    Group(Ipv4Addr),
}

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
    pub(super) uc: bool,
    pub(super) room: u64,
    pub(super) octets: u64,
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
    /// Reads that failed: octets, and what is there of them.
    pub(super) failed: BTreeMap<u64, (u64, Map)>,
    /// Terminates since then.
    pub(super) terminates: (Instant, u32),
    /// Entries of the error queue.
    pub(super) errors: VecDeque<Value>,
    pub(super) groups: BTreeSet<Ipv4Addr>,
    pub(super) sources: BTreeMap<(SocketAddr, u32), Source>,
    /// Sender and MSN of the plain Send that came last.
    pub(super) last_msn: Option<(SocketAddr, u32)>,
    pub(super) partial: BTreeMap<Key, Partial>,
    /// Write-Records and UC Writes of which octets are missing.
    pub(super) open: BTreeMap<Key, Open>,
    /// Records that were not given back.
    pub(super) records: BTreeMap<u64, Value>,
    pub(super) takes_records: bool,
    /// Places for records.
    pub(super) slots: usize,
    pub(super) window: u32,
    pub(super) record_time: Duration,
}

impl Pair {
    pub(super) fn new(
        state: &mut State,
        socket: UdpSocket,
        with: &Value,
        (room, receives, octets): (u64, u64, u64),
    ) -> Self {
        let port = socket.local_addr().unwrap().port();
        let uc = number(with, "uc", 0) == 1;
        // A program that asks for nothing gets what is usual.
        let or = |name, usual| match number(with, name, 0) {
            0 => usual,
            asked => asked,
        };
        Self {
            socket,
            port,
            qkey: if uc { 0 } else { low(number(with, "qkey", 0)) },
            uc,
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
            failed: BTreeMap::new(),
            terminates: (clock::now(), 0),
            errors: VecDeque::new(),
            groups: BTreeSet::new(),
            sources: BTreeMap::new(),
            last_msn: None,
            partial: BTreeMap::new(),
            open: BTreeMap::new(),
            records: BTreeMap::new(),
            takes_records: number(with, "records", 1) == 1,
            slots: usize::try_from(or("slots", 256)).unwrap(),
            window: low(or("window", 64)),
            record_time: Duration::from_millis(or("record_ms", 200)),
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

/// Takes what comes at one of the pair's sockets until the pair has gone, or has left the group.
pub(super) fn serve(world: &Arc<World>, id: u64, socket: &UdpSocket, way: Way) {
    let mut octets = vec![0; 65_536];
    loop {
        let came = socket.recv_from(&mut octets);
        let mut state = world.state();
        let gone = match (way, state.pairs.get(&id)) {
            (_, None) => true,
            (Way::Group(group), Some(pair)) => !pair.groups.contains(&group),
            (Way::Own | Way::All, Some(_)) => false,
        };
        if gone {
            return;
        }
        let Some(mut pair) = state.pairs.remove(&id) else {
            return;
        };
        if let Ok((count, from)) = came {
            let refused = take(
                world,
                &mut state,
                &mut pair,
                (from, way != Way::Own),
                &octets[..count],
            );
            if let Err(counter) = refused {
                pair.count(counter);
            }
        }
        if way == Way::Own {
            ask_again(world, &mut state, &mut pair);
            reads::go_on(world, &mut pair);
            records::time_out(world, &mut state, &mut pair);
        }
        state.pairs.insert(id, pair);
        drop(state);
        world.tell();
    }
}

/// Faults of a device that takes what every receiver drops.
fn lenient(world: &World, octets: &[u8], dropped: &Dropped) -> Option<Datagram> {
    let mut octets = octets.to_vec();
    octets.truncate(octets.len().checked_sub(4)?);
    let first = octets.first_mut()?;
    match dropped {
        Dropped::BadCrc { .. } if world.does("crc-unchecked") => {}
        Dropped::UnknownFormat(4..) if world.does("formats-ignored") => *first &= !0x3c,
        Dropped::BadVersion { .. } if world.does("versions-unchecked") => {
            *first = *first & !3 | 1;
            if let Some(control) = octets.get_mut(1) {
                *control = *control & 0x3f | 0x40;
            }
        }
        Dropped::UnexpectedOpcode(_) if world.does("opcodes-unchecked") => {
            *octets.get_mut(1)? = 0x40 | opcode::SEND;
        }
        _ => return None,
    }
    Datagram::parse(&sealed(octets)).ok()
}

/// Takes a datagram, or names the counter of what forbids it.
fn take(
    world: &World,
    state: &mut State,
    pair: &mut Pair,
    (from, is_group): (SocketAddr, bool),
    octets: &[u8],
) -> Result<(), &'static str> {
    let datagram = match Datagram::parse(octets) {
        Ok(datagram) => datagram,
        Err(dropped) => lenient(world, octets, &dropped).ok_or_else(|| match dropped {
            Dropped::BadCrc { .. } => "bad-crc",
            Dropped::UnknownFormat(_) => "unknown-format",
            Dropped::BadVersion { .. } => "bad-version",
            Dropped::UnexpectedOpcode(_) => "unexpected-opcode",
            // The format is 4, and the rest is nothing of the kind.
            Dropped::Malformed(_)
                if octets
                    .first()
                    .is_some_and(|it| it >> 2 & 0xf == format::RELIABLE) =>
            {
                "unknown-format"
            }
            Dropped::Malformed(_) => "malformed",
        })?,
    };
    if pair.uc && pair.peer != Some(from) && !world.does("uc-peer-unchecked") {
        return Err("wrong-peer");
    }
    match datagram {
        Datagram::Segment(segment) => take_segment(world, state, pair, (from, is_group), &segment),
        Datagram::Exchange(exchange) => {
            if pair.uc && !world.does("uc-reads-served") {
                return Err("unexpected-opcode");
            }
            take_exchange(world, pair, (from, is_group), exchange)
        }
        Datagram::Lookup(_) | Datagram::Reliable(_) => Err("unknown-format"),
    }
}

fn take_segment(
    world: &World,
    state: &mut State,
    pair: &mut Pair,
    (from, is_group): (SocketAddr, bool),
    segment: &Segment,
) -> Result<(), &'static str> {
    let is_read = matches!(
        segment.opcode(),
        opcode::READ_REQUEST | opcode::READ_RESPONSE
    );
    if pair.uc && is_read && !world.does("uc-reads-served") {
        return Err("unexpected-opcode");
    }
    match (segment.opcode(), segment.extension) {
        (opcode::READ_REQUEST, _) => reads::request(world, state, pair, (from, is_group), segment),
        (opcode::READ_RESPONSE, _) => reads::response(world, state, pair, from, segment),
        (opcode::SEND | opcode::SEND_SE, _) => sends::plain(world, state, pair, from, segment),
        (opcode::SEGMENTED_SEND, Some(extension)) => {
            sends::segmented(world, state, pair, from, (segment, extension))
        }
        (opcode::WRITE_RECORD, _) => records::take(world, state, pair, (from, is_group), segment),
        (opcode::TERMINATE, _) => terminate(world, pair, from, segment),
        _ => Err("unexpected-opcode"),
    }
}

fn take_exchange(
    world: &World,
    pair: &mut Pair,
    (from, is_group): (SocketAddr, bool),
    exchange: Exchange,
) -> Result<(), &'static str> {
    if exchange.kind == 1 {
        if is_group && !world.does("cookies-for-groups") {
            return Err("not-well-known");
        }
        let cookie = pair.cookie_of(world, from, exchange.epoch);
        let answer = Exchange::answer(exchange.epoch, exchange.nonce, cookie);
        out::send(world, pair, from, answer.into());
        return Ok(());
    }
    let asked = pair.nonces.contains(&exchange.nonce) && exchange.epoch == pair.epoch;
    if pair.peer != Some(from) || !asked {
        return Err("unsolicited");
    }
    pair.cookie = Some(exchange.cookie);
    Ok(())
}

/// Takes a Terminate: a Read ends, a message becomes an entry of the error queue.
fn terminate(
    world: &World,
    pair: &mut Pair,
    from: SocketAddr,
    segment: &Segment,
) -> Result<(), &'static str> {
    let told = Terminate::parse(&segment.payload).ok_or("malformed")?;
    match about(&told) {
        Some(About::Request(request)) => {
            reads::refused(world, pair, from, request).ok_or("unsolicited")
        }
        Some(About::Message(extension)) => {
            if extension.epoch != pair.epoch && !world.does("errors-of-any-epoch") {
                return Err("unsolicited");
            }
            let number = if world.does("error-without-number") {
                0
            } else {
                extension.number
            };
            let entry = json!({
                "ok": 1, "reason": 1, "message": number, "layer": told.layer, "type": told.etype, "code": told.code,
            });
            if world.does("errors-twice") {
                pair.errors.push_back(entry.clone());
            }
            pair.errors.push_back(entry);
            Ok(())
        }
        None => Err("malformed"),
    }
}

/// A completion with success.
pub(super) fn done(id: u64, opcode: u64, length: usize) -> Value {
    json!({
        "ok": 1, "wr_id": id, "status": 0, "opcode": opcode, "length": length, "flags": 0, "imm": 0, "source": 0,
    })
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
    if number(with, "opcode", 0) == wr::READ {
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
    let code = number(with, "opcode", 0);
    let memory = state.memories.get(&number(with, "mr", 0))?;
    let from = usize::try_from(memory.margin + number(with, "offset", 0)).ok()?;
    let length = usize::try_from(number(with, "length", 0)).ok()?;
    let octets = &memory.octets[from..from + length];
    let solicited = number(with, "flags", 2) & SOLICITED != 0;
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
    let completion = done(number(with, "wr_id", 0), opcode, length);
    if number(with, "flags", 2) & 2 != 0 {
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
    let code = number(with, "opcode", 0);
    let mut extension = Extension {
        epoch: pair.epoch,
        number: pair.number,
        length: u32::try_from(octets.len()).unwrap(),
        ..Extension::default()
    };
    pair.number = pair.number.wrapping_add(if world.does("number-stays") {
        0
    } else {
        1 + u32::from(world.does("number-skips"))
    });
    if matches!(code, wr::WRITE_IMM | wr::SEND_IMM) {
        extension.flags |= flag::IMMEDIATE;
        extension.immediate = u32::from_be(low(number(with, "imm", 0)));
    }
    if solicited {
        extension.flags |= flag::SOLICITED;
    }
    // Of every other Send.
    if code > wr::WRITE_IMM && world.does("epoch-changes") {
        extension.epoch ^= extension.number & 1;
    }
    let (stag, remote) = (low(number(with, "rkey", 0)), number(with, "remote", 0));
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
