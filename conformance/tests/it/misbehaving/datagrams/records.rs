//! Write-Records and the Writes of UC queue pairs, as their target.

use std::net::SocketAddr;
use std::time::Instant;

use dgiwarp_conform::wire::datagram::{Extension, Segment, flag};
use dgiwarp_conform::wire::ddp::Place;
use serde_json::json;
use xtask::clock;

use super::device::{State, World};
use super::map::{Map, Source};
use super::pair::{Key, Pair, done};
use crate::misbehaving::memory::Memory;

/// `IBV_ACCESS_REMOTE_WRITE`.
const WRITE: u64 = 2;
/// `IBV_WC_DRIVER1`: a record is closed.
const RECORD: u64 = 135;
/// `IBV_WC_RECV_RDMA_WITH_IMM`.
const WITH_IMMEDIATE: u64 = 129;

/// A message of which octets are missing.
pub(super) struct Open {
    port: u16,
    base: u64,
    stag: u32,
    extension: Extension,
    map: Map,
    touched: Instant,
}

/// A segment in its message.
struct Part<'a> {
    key: Key,
    port: u16,
    base: u64,
    stag: u32,
    extension: Extension,
    payload: &'a [u8],
}

impl Part<'_> {
    fn is_uc(&self) -> bool {
        self.extension.flags & flag::WRITE != 0
    }

    fn is_whole(&self) -> bool {
        self.payload.len() as u64 == u64::from(self.extension.length)
    }

    fn range(&self) -> core::ops::Range<u64> {
        let start = u64::from(self.extension.offset);
        start..start + self.payload.len() as u64
    }
}

/// Takes a segment, or names the counter of what forbids it.
pub(super) fn take(
    world: &World,
    state: &mut State,
    pair: &mut Pair,
    (from, is_group): (SocketAddr, bool),
    segment: &Segment,
) -> Result<(), &'static str> {
    let (Place::Tagged { stag, to }, Some(extension)) = (segment.place, segment.extension) else {
        return Err("malformed");
    };
    let part = Part {
        key: (
            source_of(world, from),
            epoch_of(world, &extension),
            extension.number,
        ),
        port: from.port(),
        base: to.wrapping_sub(extension.offset.into()),
        stag,
        extension,
        payload: &segment.payload,
    };
    if part.is_uc() && !pair.uc && !world.does("uc-writes-at-ud") {
        return Err("unexpected-opcode");
    }
    if !part.is_uc() && !pair.takes_records && !world.does("records-where-off") {
        return Err("write-record-off");
    }
    if extension.reserved != [0; 3] && world.does("extension-reserved-refused") {
        return Err("malformed");
    }
    let proved = segment.cookie.is_some_and(|cookie| {
        let right = pair.cookie_of(world, from, extension.epoch);
        let bits = if world.does("half-of-a-cookie-checked") {
            0xffff_ffff
        } else {
            u64::MAX
        };
        (cookie ^ right) & bits == 0
    });
    check(world, state, (from, is_group, proved), &part)?;
    let window = (!part.is_uc()).then_some(pair.window);
    let window = window.filter(|_| !world.does("reorder-window-ignored"));
    let wraps = !world.does("numbers-without-wrap");
    let (peer, epoch, number) = part.key;
    let source = pair
        .sources
        .entry((peer, epoch))
        .or_insert_with(|| Source::new(number));
    if source.is_late(number, window, wraps) {
        if world.does("late-writes-placed") {
            put(world, state, &part, &Map::default());
        }
        return Err("late");
    }
    let result = place(world, state, pair, &part);
    if result.is_ok() {
        if let Some(source) = pair.sources.get_mut(&(peer, epoch)) {
            source.saw(number, wraps);
        }
        too_old(world, state, pair, (peer, epoch));
    }
    result
}

/// The source's address, as far as it counts.
pub(super) fn source_of(world: &World, from: SocketAddr) -> SocketAddr {
    let port = if world.does("source-without-port") {
        0
    } else {
        from.port()
    };
    SocketAddr::new(from.ip(), port)
}

/// The source's epoch, as far as it counts.
pub(super) fn epoch_of(world: &World, extension: &Extension) -> u32 {
    if world.does("source-without-epoch") {
        0
    } else {
        extension.epoch
    }
}

/// The checks of memory (Datagram §5, steps 3 to 7).
fn check(
    world: &World,
    state: &State,
    (from, is_group, proved): (SocketAddr, bool, bool),
    part: &Part<'_>,
) -> Result<(), &'static str> {
    let mut all = state.memories.values();
    let found = all.find(|one| one.stag == part.stag && one.valid);
    let memory = found.ok_or("bad-stag")?;
    if memory.domain != 0 && !world.does("domain-of-writes-unchecked") {
        return Err("bad-pd");
    }
    if memory.access & WRITE != WRITE && !world.does("access-of-writes-unchecked") {
        return Err("no-access");
    }
    if memory.only.is_some_and(|only| only != from) && !world.does("only-peer-unchecked") {
        return Err("wrong-peer");
    }
    if memory.cookie && !proved && !world.does("cookie-of-memory-unchecked") {
        return Err("bad-cookie");
    }
    if is_group && !memory.well_known && !world.does("groups-write-anywhere") {
        return Err("not-well-known");
    }
    let (mut start, mut length) = (part.base, u64::from(part.extension.length));
    if world.does("bounds-of-segments-alone") {
        start += u64::from(part.extension.offset);
        length = part.payload.len() as u64;
    }
    let inside = start >= memory.to
        && start
            .checked_add(length)
            .is_some_and(|end| end <= memory.to + memory.length);
    let empty = part.extension.length == 0 && world.does("empty-writes-unchecked");
    let beyond = world.does("end-of-writes-unchecked")
        && start >= memory.to
        && start <= memory.to + memory.length;
    if inside || empty || beyond {
        Ok(())
    } else {
        Err("out-of-bounds")
    }
}

/// Writes the octets that are not there yet.
fn put(world: &World, state: &mut State, part: &Part<'_>, map: &Map) {
    let found = state
        .memories
        .values_mut()
        .find(|one| one.stag == part.stag && one.valid);
    let Some(memory) = found else {
        return;
    };
    let all = part.range();
    let parts = if world.does("duplicates-written") {
        vec![all.clone()]
    } else {
        map.missing(all.clone())
    };
    for range in parts {
        let from = usize::try_from(range.start - all.start).unwrap();
        let to = usize::try_from(range.end - all.start).unwrap();
        let at = if world.does("offsets-of-writes-ignored") {
            part.base
        } else {
            part.base + range.start
        };
        octets(memory, at, &part.payload[from..to]);
    }
}

/// Writes octets of a region, and of the margin behind it, no more.
fn octets(memory: &mut Memory, at: u64, payload: &[u8]) {
    let at = usize::try_from(at - memory.to + memory.margin).unwrap();
    let end = (at + payload.len()).min(memory.octets.len());
    if at < end {
        memory.octets[at..end].copy_from_slice(&payload[..end - at]);
    }
}

fn place(
    world: &World,
    state: &mut State,
    pair: &mut Pair,
    part: &Part<'_>,
) -> Result<(), &'static str> {
    let open = pair.open.remove(&part.key);
    let Some(mut open) = open else {
        return first(world, state, pair, part);
    };
    let result = more(world, state, pair, part, &mut open);
    if pair.sources[&(part.key.0, part.key.1)].is_late(part.key.2, None, true) {
        return result;
    }
    pair.open.insert(part.key, open);
    result
}

/// A further segment of an open message, which is closed if that was all.
fn more(
    world: &World,
    state: &mut State,
    pair: &mut Pair,
    part: &Part<'_>,
    open: &mut Open,
) -> Result<(), &'static str> {
    if open.map.has(&part.range()) {
        if world.does("duplicates-written") {
            put(world, state, part, &open.map);
        }
        return Err("duplicate");
    }
    let limited = !world.does("map-without-limit");
    let Some(map) = open.map.with(part.range(), limited) else {
        if world.does("map-full-placed") {
            put(world, state, part, &open.map);
        }
        return Err("map-full");
    };
    let complete = map.octets() == u64::from(part.extension.length);
    let early = part.is_uc() && world.does("uc-immediate-early");
    if complete || early {
        // A receive has to be there before anything is placed.
        if let Err(counter) = receive(world, pair, part) {
            close_number(pair, part.key);
            return Err(counter);
        }
    }
    put(world, state, part, &open.map);
    open.map = map;
    open.touched = clock::now();
    if complete {
        finish(world, state, pair, part.key, open);
    }
    Ok(())
}

/// The first segment of a message.
fn first(
    world: &World,
    state: &mut State,
    pair: &mut Pair,
    part: &Part<'_>,
) -> Result<(), &'static str> {
    let map = Map::default().with(part.range(), true).ok_or("map-full")?;
    let open = Open {
        port: part.port,
        base: part.base,
        stag: part.stag,
        extension: part.extension,
        map,
        touched: clock::now(),
    };
    let none = Map::default();
    if part.is_uc() {
        if part.is_whole() {
            if let Err(counter) = receive(world, pair, part) {
                close_number(pair, part.key);
                return Err(counter);
            }
            put(world, state, part, &none);
            finish(world, state, pair, part.key, &open);
        } else {
            put(world, state, part, &none);
            pair.open.insert(part.key, open);
        }
        return Ok(());
    }
    let opened = pair.open.len();
    let used = opened + pair.records.len();
    let most = if world.does("open-records-take-all") {
        pair.slots
    } else {
        (pair.slots * 3).div_ceil(4)
    };
    let full = used >= pair.slots && !world.does("ring-without-limit");
    if full || !part.is_whole() && opened >= most {
        if !world.does("full-ring-drops") {
            put(world, state, part, &none);
        }
        pair.count("record-dropped");
        return Ok(());
    }
    put(world, state, part, &none);
    if part.is_whole() {
        finish(world, state, pair, part.key, &open);
    } else {
        pair.open.insert(part.key, open);
    }
    Ok(())
}

/// Takes the receive of a UC Write with an immediate.
fn receive(world: &World, pair: &mut Pair, part: &Part<'_>) -> Result<(), &'static str> {
    if !part.is_uc() || part.extension.flags & flag::IMMEDIATE == 0 {
        return Ok(());
    }
    let slot = if world.does("uc-immediate-keeps-receive") {
        pair.receives.front().copied()
    } else {
        pair.receives.pop_front()
    };
    let slot = slot.ok_or("no-receive")?;
    let length = usize::try_from(part.extension.length).unwrap();
    let mut completion = done(slot, WITH_IMMEDIATE, length);
    completion["source"] = part.port.into();
    completion["flags"] = 2.into();
    completion["imm"] = part.extension.immediate.to_be().into();
    pair.completions.push_back(completion);
    Ok(())
}

fn close_number(pair: &mut Pair, (peer, epoch, number): Key) {
    if let Some(source) = pair.sources.get_mut(&(peer, epoch)) {
        source.close(number);
    }
}

/// Closes a message: a record of what there is of it, unless it is a UC Write.
fn finish(world: &World, state: &mut State, pair: &mut Pair, key: Key, open: &Open) {
    close_number(pair, key);
    let extension = open.extension;
    let is_uc = extension.flags & flag::WRITE != 0;
    if is_uc && !world.does("uc-writes-make-records") {
        return;
    }
    let valid = if world.does("records-say-all") {
        u64::from(extension.length)
    } else {
        open.map.octets()
    };
    let immediate =
        extension.flags & flag::IMMEDIATE != 0 && !world.does("record-without-immediate");
    let record = state.number();
    pair.records.insert(
        record,
        json!({
            "ok": 1, "addr": open.base, "rkey": open.stag, "length": extension.length, "valid": valid,
            "flags": u8::from(immediate), "imm": if immediate { extension.immediate.to_be() } else { 0 },
            "source": open.port, "ranges": open.map.text(),
        }),
    );
    let mut completion = done(record, RECORD, usize::try_from(valid).unwrap());
    completion["source"] = open.port.into();
    pair.completions.push_back(completion);
}

/// Closes those for which this holds.
fn close(world: &World, state: &mut State, pair: &mut Pair, which: impl Fn(&Key, &Open) -> bool) {
    let keys: Vec<_> = pair
        .open
        .iter()
        .filter(|(key, open)| which(key, open))
        .map(|(key, _)| *key)
        .collect();
    for key in keys {
        if let Some(open) = pair.open.remove(&key) {
            if open.extension.flags & flag::WRITE != 0 {
                pair.count("incomplete-write");
            }
            finish(world, state, pair, key, &open);
        }
    }
}

/// Closes messages of a source that are behind its window.
fn too_old(world: &World, state: &mut State, pair: &mut Pair, source: (SocketAddr, u32)) {
    if world.does("reorder-window-ignored") {
        return;
    }
    let window = pair.window + u32::from(world.does("reorder-window-one-more"));
    let wraps = !world.does("numbers-without-wrap");
    let old: Vec<_> = pair
        .open
        .keys()
        .filter(|(peer, epoch, number)| {
            (*peer, *epoch) == source
                && pair.sources[&source]
                    .behind(*number, wraps)
                    .is_some_and(|behind| behind > window)
        })
        .copied()
        .collect();
    close(world, state, pair, |key, _| old.contains(key));
}

/// Closes messages for which nothing came in time.
pub(super) fn time_out(world: &World, state: &mut State, pair: &mut Pair) {
    let (now, limit) = (clock::now(), pair.record_time);
    if !world.does("records-without-timeout") {
        close(world, state, pair, |_, open| now - open.touched >= limit);
    }
}

/// The program demands all records.
pub(super) fn now(world: &World, state: &mut State, pair: &mut Pair) {
    close(world, state, pair, |_, open| {
        open.extension.flags & flag::WRITE == 0
    });
}
