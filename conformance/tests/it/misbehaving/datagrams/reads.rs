//! RDMA Reads of a queue pair, as their target and as their requester.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use dgiwarp_conform::wire::datagram::{MOST as LONGEST, Segment, opcode};
use dgiwarp_conform::wire::ddp::{Place, ReadRequest, Terminate};
use serde_json::{Value, json};
use xtask::clock;

use super::device::{State, World, field, low};
use super::out;
use super::pair::{MOST, Pair, done};

/// The longest Read without a cookie.
const WITHOUT_COOKIE: u64 = 132;
/// Octets of one request; one is out at a time.
const CHUNK: u64 = 30_000;
/// `IBV_ACCESS_REMOTE_READ`.
const READ: u64 = 4;
/// Terminates per second.
const TERMINATES: u32 = 10;

/// A Read of the pair's program.
pub(super) struct Read {
    id: u64,
    sink: u64,
    from: usize,
    stag: u32,
    size: u64,
    source: (u32, u64),
    got: u64,
    /// Octets that were asked for; none before the first request.
    asked: Option<u64>,
    until: Instant,
}

impl Read {
    pub(super) fn new(state: &State, with: &Value, stag: u32) -> Option<Self> {
        let sink = field(with, "mr", 0);
        let memory = state.memories.get(&sink)?;
        let limit = Duration::from_millis(field(with, "limit_ms", 2000));
        Some(Self {
            id: field(with, "wr_id", 0),
            sink,
            from: usize::try_from(memory.margin + field(with, "offset", 0)).ok()?,
            stag,
            size: field(with, "length", 0),
            source: (low(field(with, "rkey", 0)), field(with, "remote", 0)),
            got: 0,
            asked: None,
            until: clock::now() + limit,
        })
    }
}

/// Whether a Read waits for the peer's cookie.
pub(super) fn wants_cookie(world: &World, pair: &Pair) -> bool {
    let long = pair.reads.iter().any(|read| read.size > WITHOUT_COOKIE);
    long && !world.does("long-reads-without-cookie")
}

/// Sends the next request, if it is time for that, and ends what is over.
pub(super) fn go_on(world: &World, pair: &mut Pair) {
    let now = clock::now();
    while pair.reads.front().is_some_and(|read| now >= read.until)
        && let Some(read) = pair.reads.pop_front()
    {
        pair.completions.push_back(json!({
            "ok": 1, "wr_id": read.id, "status": 12, "opcode": 2, "length": 0, "flags": 0, "imm": 0, "source": 0,
        }));
    }
    let cookie = pair.cookie;
    let held = wants_cookie(world, pair) && cookie.is_none();
    let (Some(to), false) = (pair.peer, held) else {
        return;
    };
    let Some(read) = pair.reads.front_mut() else {
        return;
    };
    if read
        .asked
        .is_some_and(|asked| asked > read.got || asked == read.size)
    {
        return;
    }
    let size = (read.size - read.got).min(CHUNK);
    read.asked = Some(read.got + size);
    let request = ReadRequest {
        sink_stag: read.stag,
        sink_to: read.got,
        size: u32::try_from(size).unwrap(),
        source_stag: read.source.0,
        source_to: read.source.1 + read.got,
    };
    let segment = Segment::read_request(pair.epoch, pair.read_msn, request);
    let step = 1 + u32::from(world.does("read-msn-skips"));
    pair.read_msn = pair.read_msn.wrapping_add(step);
    let segment = match cookie {
        Some(cookie) => segment.with_cookie(cookie),
        None => segment,
    };
    out::send(world, pair, to, segment.into());
}

/// Takes a segment of a Response.
pub(super) fn response(state: &mut State, pair: &mut Pair, from: SocketAddr, segment: &Segment) {
    let Place::Tagged { stag, to } = segment.place else {
        return pair.count("malformed");
    };
    let peer = pair.peer;
    let read = pair.reads.front_mut();
    let Some(read) = read.filter(|read| read.stag == stag && peer == Some(from)) else {
        return pair.count("bad-stag");
    };
    let end = to.saturating_add(segment.payload.len() as u64);
    if to != read.got || end > read.size {
        return pair.count("out-of-bounds");
    }
    if let Some(memory) = state.memories.get_mut(&read.sink) {
        let at = read.from + usize::try_from(to).unwrap();
        memory.octets[at..at + segment.payload.len()].copy_from_slice(&segment.payload);
    }
    read.got = end;
    if end == read.size {
        let (id, size) = (read.id, usize::try_from(read.size).unwrap());
        pair.reads.pop_front();
        pair.completions.push_back(done(id, 2, size));
    }
}

/// Answers a request, or drops it.
pub(super) fn request(
    world: &World,
    state: &mut State,
    pair: &mut Pair,
    (from, is_group): (SocketAddr, bool),
    segment: &Segment,
) {
    let (Some(request), Place::Untagged { rsvd: epoch, .. }) =
        (ReadRequest::parse(&segment.payload), segment.place)
    else {
        return pair.count("malformed");
    };
    if is_group {
        return pair.count("not-well-known");
    }
    let size = u64::from(request.size);
    if request.size > LONGEST || request.sink_to.checked_add(size).is_none() {
        return pair.count("malformed");
    }
    let proved = segment.cookie == Some(pair.cookie_of(world, from, epoch))
        || segment.cookie.is_some() && world.does("cookies-unchecked");
    let served = segment.cookie.is_none() && world.does("reads-served-without-cookie");
    if !proved && !served && size > WITHOUT_COOKIE {
        return pair.count("unvalidated-read");
    }
    let place = (request.source_stag, request.source_to, size);
    let octets = if size == 0 {
        Ok(Vec::new())
    } else {
        state.octets_of(place, READ).map(|octets| octets.to_vec())
    };
    match octets {
        Ok(octets) => answer(world, pair, from, request, &octets),
        Err(counter) => {
            pair.count(counter);
            if proved {
                terminate(world, pair, from, counter, request);
            }
        }
    }
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
