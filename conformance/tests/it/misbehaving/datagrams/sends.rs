//! Sends of one segment and of several, as their target.

use std::net::SocketAddr;

use dgiwarp_conform::wire::datagram::{Extension, Segment, flag, opcode};
use dgiwarp_conform::wire::ddp::Place;

use super::device::{State, World};
use super::map::{Map, Source};
use super::pair::{Pair, done};
use super::records::{epoch_of, source_of};

/// Octets of a UD queue pair's receive before the payload.
const GRH: usize = 40;
/// `IBV_WC_RECV`.
const RECV: u64 = 128;
/// The longest plain Send of a device that does not know UDP's limit.
const LONG: usize = 65_000;

/// A Segmented Send of which octets are missing: its receive, and what is there.
pub(super) struct Partial {
    slot: u64,
    map: Map,
}

fn header(pair: &Pair) -> usize {
    if pair.uc { 0 } else { GRH }
}

/// Octets of payload that a receive has room for.
fn room(pair: &Pair) -> usize {
    usize::try_from(pair.octets).unwrap() - header(pair)
}

/// Puts octets into a receive.
fn put(state: &mut State, pair: &Pair, (slot, offset): (u64, usize), payload: &[u8]) {
    let at = usize::try_from(slot * pair.octets).unwrap() + header(pair) + offset;
    if let Some(memory) = state.memories.get_mut(&pair.room)
        && let Some(there) = memory.octets.get_mut(at..at + payload.len())
    {
        there.copy_from_slice(payload);
    }
}

fn complete(
    pair: &mut Pair,
    (slot, length): (u64, usize),
    from: SocketAddr,
    immediate: Option<u32>,
) {
    let mut completion = done(slot, RECV, header(pair) + length);
    completion["source"] = from.port().into();
    if let Some(value) = immediate {
        completion["flags"] = 2.into();
        completion["imm"] = value.to_be().into();
    }
    pair.completions.push_back(completion);
}

/// Takes a Send of one segment.
pub(super) fn plain(
    world: &World,
    state: &mut State,
    pair: &mut Pair,
    from: SocketAddr,
    segment: &Segment,
) -> Result<(), &'static str> {
    let Place::Untagged { rsvd, msn, .. } = segment.place else {
        return Err("malformed");
    };
    if rsvd != pair.qkey && !world.does("qkey-unchecked") {
        return Err("bad-qkey");
    }
    if segment.control & 0x30 != 0 && world.does("reserved-of-sends-refused") {
        return Err("malformed");
    }
    if segment.opcode() == opcode::SEND_SE && world.does("solicited-sends-refused") {
        return Err("unexpected-opcode");
    }
    if pair.last_msn == Some((from, msn)) && world.does("msn-of-sends-checked") {
        return Err("late");
    }
    let slot = *pair.receives.front().ok_or("no-receive")?;
    let mut payload = &segment.payload[..];
    if payload.len() > room(pair) {
        if !world.does("long-sends-cut") {
            return Err("receive-too-short");
        }
        payload = &payload[..room(pair)];
    }
    if payload.len() > LONG && world.does("sends-of-64k-dropped") {
        return Err("malformed");
    }
    pair.receives.pop_front();
    pair.last_msn = Some((from, msn));
    put(state, pair, (slot, 0), payload);
    complete(pair, (slot, payload.len()), from, None);
    Ok(())
}

/// Takes a segment of a Segmented Send. The limits of messages that are incomplete, and of time, are nothing that a case asks for.
pub(super) fn segmented(
    world: &World,
    state: &mut State,
    pair: &mut Pair,
    from: SocketAddr,
    (segment, extension): (&Segment, Extension),
) -> Result<(), &'static str> {
    let Place::Untagged { rsvd, .. } = segment.place else {
        return Err("malformed");
    };
    if rsvd != pair.qkey {
        return Err("bad-qkey");
    }
    if extension.flags & flag::WRITE != 0 {
        return Err("malformed");
    }
    if extension.reserved != [0; 3] && world.does("extension-reserved-refused") {
        return Err("malformed");
    }
    let source = (source_of(world, from), epoch_of(world, &extension));
    let (number, wraps) = (extension.number, !world.does("numbers-without-wrap"));
    let late = pair
        .sources
        .get(&source)
        .is_some_and(|source| source.is_late(number, None, wraps));
    let short = pair
        .sources
        .get(&source)
        .and_then(|source| source.behind(number, wraps))
        .is_some_and(|behind| behind >= 512);
    if late && !world.does("late-sends-taken") || short && world.does("closed-window-of-512") {
        return Err("late");
    }
    let length = usize::try_from(extension.length).unwrap();
    if length > room(pair) {
        return Err("receive-too-short");
    }
    let key = (source.0, source.1, number);
    let start = u64::from(extension.offset);
    let range = start..start + segment.payload.len() as u64;
    let in_order = |map: &Map| map.octets() == start;
    let mut partial = match pair.partial.remove(&key) {
        Some(partial) => partial,
        None => Partial {
            slot: pair.receives.pop_front().ok_or("no-receive")?,
            map: Map::default(),
        },
    };
    let disordered = !in_order(&partial.map) && world.does("segments-in-order-only");
    let there = !range.is_empty() && partial.map.has(&range);
    let map = partial.map.with(range.clone(), true);
    let (Some(map), false, false) = (map, there, disordered) else {
        pair.partial.insert(key, partial);
        return Err(if there { "duplicate" } else { "map-full" });
    };
    pair.sources
        .entry(source)
        .or_insert_with(|| Source::new(number))
        .saw(number, wraps);
    let offset = usize::try_from(start).unwrap();
    put(state, pair, (partial.slot, offset), &segment.payload);
    partial.map = map;
    if partial.map.octets() < u64::from(extension.length) {
        pair.partial.insert(key, partial);
        return Ok(());
    }
    if let Some(source) = pair.sources.get_mut(&source) {
        source.close(number);
    }
    let flagged = extension.flags & flag::IMMEDIATE != 0;
    let reported = flagged && !world.does("immediate-unreported")
        || !flagged && world.does("immediate-without-flag-reported");
    let immediate = reported.then_some(extension.immediate);
    complete(pair, (partial.slot, length), from, immediate);
    Ok(())
}
