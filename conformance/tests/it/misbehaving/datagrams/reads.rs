//! RDMA Reads of a queue pair, as their target and as their requester.

use std::net::SocketAddr;
use std::ops::Range;
use std::time::{Duration, Instant};

use dgiwarp_conform::wire::datagram::{MOST as LONGEST, Segment, opcode};
use dgiwarp_conform::wire::ddp::{Place, ReadRequest, Terminate};
use serde_json::{Value, json};
use xtask::clock;

use super::device::{State, World};
use super::map::Map;
use super::out;
use super::pair::{MOST, Pair, done};
use crate::misbehaving::control::number;
use crate::misbehaving::memory::low;

/// The longest Read without a cookie.
const WITHOUT_COOKIE: u64 = 132;
/// Octets of one request; one is out at a time.
const CHUNK: u64 = 30_000;
/// `IBV_ACCESS_REMOTE_READ`.
const READ: u64 = 4;
/// Terminates per second.
const TERMINATES: u32 = 10;
/// Pause after which missing octets are asked for again.
const AGAIN: Duration = Duration::from_millis(120);
/// Requests that are out at a time.
const REQUESTS: usize = 16;

/// A Read of the pair's program.
pub(super) struct Read {
    id: u64,
    sink: u64,
    from: usize,
    stag: u32,
    size: u64,
    source: (u32, u64),
    map: Map,
    /// Octets that were asked for, from the beginning.
    asked: u64,
    /// The latest request, or response.
    moved: Option<Instant>,
    until: Instant,
}

impl Read {
    pub(super) fn new(state: &State, with: &Value, stag: u32) -> Option<Self> {
        let sink = number(with, "mr", 0);
        let memory = state.memories.get(&sink)?;
        let limit = Duration::from_millis(number(with, "limit_ms", 2000));
        Some(Self {
            id: number(with, "wr_id", 0),
            sink,
            from: usize::try_from(memory.margin + number(with, "offset", 0)).ok()?,
            stag,
            size: number(with, "length", 0),
            source: (low(number(with, "rkey", 0)), number(with, "remote", 0)),
            map: Map::default(),
            asked: 0,
            moved: None,
            until: clock::now() + limit,
        })
    }
}

/// Whether a Read waits for the peer's cookie.
pub(super) fn wants_cookie(world: &World, pair: &Pair) -> bool {
    let long = pair.reads.iter().any(|read| read.size > WITHOUT_COOKIE);
    long && !world.does("long-reads-without-cookie")
}

/// A Read ends in error, and its map is kept.
fn fail(world: &World, pair: &mut Pair, status: u64) {
    let Some(read) = pair.reads.pop_front() else {
        return;
    };
    pair.completions.push_back(json!({
        "ok": 1, "wr_id": read.id, "status": status, "opcode": 2, "length": 0, "flags": 0, "imm": 0, "source": 0,
    }));
    let map = if world.does("read-map-empty") {
        Map::default()
    } else if world.does("read-map-whole") {
        read.map.with(0..read.size, true).unwrap_or_default()
    } else {
        read.map
    };
    pair.failed.insert(read.id, (read.size, map));
}

/// A peer refuses a Read: the one that waits, if it is that.
pub(super) fn refused(
    world: &World,
    pair: &mut Pair,
    from: SocketAddr,
    request: ReadRequest,
) -> Option<()> {
    const REMOTE_ACCESS: u64 = 10;
    let read = pair.reads.front()?;
    let stag = read.stag == request.sink_stag || world.does("terminates-of-other-reads-taken");
    let peer = pair.peer == Some(from) || world.does("terminates-of-strangers-taken");
    if !stag || !peer {
        return None;
    }
    fail(world, pair, REMOTE_ACCESS);
    Some(())
}

/// Sends the next requests, if it is time for that, and ends what is over.
pub(super) fn go_on(world: &World, pair: &mut Pair) {
    const TIMEOUT: u64 = 12;
    let now = clock::now();
    while pair.reads.front().is_some_and(|read| now >= read.until) {
        fail(world, pair, TIMEOUT);
    }
    let held = wants_cookie(world, pair) && pair.cookie.is_none();
    let (Some(to), false) = (pair.peer, held) else {
        return;
    };
    let Some(read) = pair.reads.front_mut() else {
        return;
    };
    let missing = read.map.missing(0..read.asked);
    let empty = read.size == 0;
    let ranges: Vec<_> = match read.moved {
        None => {
            let end = read.size.min(CHUNK);
            one(0..end)
        }
        Some(_) if missing.is_empty() && read.asked < read.size => {
            let end = (read.asked + CHUNK).min(read.size);
            one(read.asked..end)
        }
        Some(moved) if now - moved < AGAIN => return,
        Some(_) if empty => one(0..0),
        Some(_) => missing.into_iter().take(REQUESTS).collect(),
    };
    read.moved = Some(now);
    read.asked = ranges
        .iter()
        .map(|range| range.end)
        .fold(read.asked, u64::max);
    let (stag, source) = (read.stag, read.source);
    for range in ranges {
        let request = ReadRequest {
            sink_stag: stag,
            sink_to: range.start,
            size: u32::try_from(range.end - range.start).unwrap(),
            source_stag: source.0,
            source_to: source.1 + range.start,
        };
        ask(world, pair, to, request);
    }
}

fn one(range: Range<u64>) -> Vec<Range<u64>> {
    std::iter::once(range).collect()
}

fn ask(world: &World, pair: &mut Pair, to: SocketAddr, request: ReadRequest) {
    let segment = Segment::read_request(pair.epoch, pair.read_msn, request);
    let step = 1 + u32::from(world.does("read-msn-skips"));
    pair.read_msn = pair.read_msn.wrapping_add(step);
    let segment = match pair.cookie {
        Some(cookie) => segment.with_cookie(cookie),
        None => segment,
    };
    out::send(world, pair, to, segment.into());
}

/// Takes a segment of a Response.
pub(super) fn response(
    world: &World,
    state: &mut State,
    pair: &mut Pair,
    from: SocketAddr,
    segment: &Segment,
) -> Result<(), &'static str> {
    let Place::Tagged { stag, to } = segment.place else {
        return Err("malformed");
    };
    let known = pair.peer == Some(from) || world.does("responses-of-strangers-taken");
    let read = pair.reads.front_mut();
    let Some(read) = read.filter(|read| read.stag == stag && known) else {
        return Err("bad-stag");
    };
    if segment.payload.is_empty() && read.size > 0 && !world.does("empty-response-ends-read") {
        return Err("malformed");
    }
    let mut payload = &segment.payload[..];
    let mut end = to.saturating_add(payload.len() as u64);
    if end > read.asked && to < read.asked && world.does("long-responses-cut") {
        end = read.asked;
        payload = &payload[..usize::try_from(end - to).unwrap()];
    }
    if end > read.asked {
        return Err("out-of-bounds");
    }
    if !payload.is_empty() && read.map.has(&(to..end)) && !world.does("duplicate-responses-placed")
    {
        return Err("duplicate");
    }
    let map = read.map.with(to..end, true).ok_or("map-full")?;
    if let Some(memory) = state.memories.get_mut(&read.sink) {
        let at = read.from + usize::try_from(to).unwrap();
        memory.octets[at..at + payload.len()].copy_from_slice(payload);
    }
    read.map = map;
    read.moved = Some(clock::now());
    if payload.is_empty() || read.map.octets() == read.size {
        let (id, size) = (read.id, usize::try_from(read.size).unwrap());
        pair.reads.pop_front();
        pair.completions.push_back(done(id, 2, size));
    }
    Ok(())
}

/// Answers a request, or names the counter of what forbids it.
pub(super) fn request(
    world: &World,
    state: &mut State,
    pair: &mut Pair,
    (from, is_group): (SocketAddr, bool),
    segment: &Segment,
) -> Result<(), &'static str> {
    let (Some(request), Place::Untagged { rsvd: epoch, .. }) =
        (ReadRequest::parse(&segment.payload), segment.place)
    else {
        return Err("malformed");
    };
    if is_group && !world.does("groups-answered") {
        return Err("not-well-known");
    }
    let size = u64::from(request.size);
    if request.size > LONGEST || request.sink_to.checked_add(size).is_none() {
        return Err("malformed");
    }
    let proved = segment.cookie == Some(pair.cookie_of(world, from, epoch))
        || segment.cookie.is_some() && world.does("cookies-unchecked");
    let served = segment.cookie.is_none() && world.does("reads-served-without-cookie");
    if !proved && !served && size > WITHOUT_COOKIE {
        return Err("unvalidated-read");
    }
    let place = (request.source_stag, request.source_to, size);
    let octets = if size == 0 {
        Ok(Vec::new())
    } else {
        state
            .octets_of(world, place, READ)
            .map(|octets| octets.to_vec())
    };
    match octets {
        Ok(octets) => answer(world, pair, from, request, &octets),
        Err(counter) => {
            if proved {
                terminate(world, pair, from, counter, request);
            }
            return Err(counter);
        }
    }
    Ok(())
}

fn answer(world: &World, pair: &mut Pair, from: SocketAddr, request: ReadRequest, octets: &[u8]) {
    let mut at = 0;
    loop {
        let end = (at + MOST).min(octets.len());
        let to = request.sink_to + at as u64;
        let last = end == octets.len();
        let mut payload = octets[at..end].to_vec();
        if let Some(first) = payload.first_mut()
            && world.does("response-with-other-octets")
        {
            *first ^= 1;
        }
        if last && !octets.is_empty() && world.does("response-too-long") {
            payload.push(7);
        }
        let mut stag = request.sink_stag;
        if world.does("response-to-other-stag") {
            stag ^= 0x100;
        }
        let marked = last && !world.does("response-without-last");
        let mut segment = Segment::read_response(stag, to, marked, &payload);
        if world.does("response-with-cookie") {
            segment = segment.with_cookie(1);
        }
        out::send(world, pair, from, segment.into());
        at = end;
        if last {
            return;
        }
    }
}

/// Tells a peer that proved its address why nothing comes.
fn terminate(world: &World, pair: &mut Pair, to: SocketAddr, counter: &str, request: ReadRequest) {
    let now = clock::now();
    if now - pair.terminates.0 >= Duration::from_secs(1) {
        pair.terminates = (now, 0);
    }
    pair.terminates.1 += 1;
    if pair.terminates.1 > TERMINATES && !world.does("terminates-without-limit") {
        return;
    }
    let mut terminate = Terminate {
        layer: 0,
        etype: 1,
        code: match counter {
            "bad-stag" => 0,
            "out-of-bounds" => 1,
            "no-access" => 2,
            _ => 3,
        },
        header_control: 0b001,
        reserved: 0,
        rest: request.to_bytes(),
    };
    if world.does("terminate-layer-3") {
        terminate.layer = 3;
    }
    if world.does("terminate-reserved") {
        terminate.reserved = 0x11;
    }
    if world.does("terminate-with-m") {
        terminate.header_control |= 0b100;
    }
    if world.does("terminate-about-nothing") {
        terminate.header_control = 0;
    }
    if world.does("terminate-cut") {
        terminate.rest.truncate(24);
    }
    if world.does("terminate-other-code") {
        terminate.code = 4;
    }
    let told = terminate.to_bytes();
    let mut segment = Segment::untagged(opcode::TERMINATE, pair.epoch, 2, 1, &told);
    if world.does("terminate-with-cookie") {
        segment = segment.with_cookie(1);
    }
    out::send(world, pair, to, segment.into());
}
