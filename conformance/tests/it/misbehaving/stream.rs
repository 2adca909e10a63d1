//! A connection in full operation: FPDUs that come, and what each does.

use std::io::Read;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use dgiwarp_codec::crc;
use dgiwarp_conform::wire::ddp::{AtomicRequest, Place, ReadRequest, Segment, opcode, word};
use dgiwarp_conform::wire::framing::{Deframer, Fpdu};
use serde_json::json;

use super::device::{Connection, State, World};
use super::memory::Memory;
use super::works;

/// Layer, type and code of a Terminate, and whether the Read Request's header goes with it.
type Refusal = ((u8, u8, u8), bool);

const LIMIT: Duration = Duration::from_secs(60);
/// Rights as `enum ibv_access_flags` has them.
const WRITE: u64 = 2;
const READ: u64 = 4;
const ATOMIC: u64 = 8;

/// Serves a connection until it ends.
pub(super) fn run(world: &Arc<World>, number: u64, mut stream: TcpStream, markers: bool) {
    let _ = stream.set_read_timeout(Some(LIMIT));
    let mut deframer = Deframer::new(markers);
    let mut unread: Vec<u8> = Vec::new();
    let mut octets = vec![0; 65536];
    loop {
        let count = match stream.read(&mut octets) {
            Ok(0) | Err(_) => break,
            Ok(count) => count,
        };
        unread.extend(&octets[..count]);
        let mut state = world.state();
        if state
            .connections
            .get(&number)
            .is_none_or(|connection| connection.over)
        {
            unread.clear();
            continue;
        }
        let complement = world.does("pad-complement-expected");
        let mut next = |unread: &[u8]| {
            if complement {
                other_pad(unread)
            } else {
                deframer.take(unread)
            }
        };
        while let Some(fpdu) = next(&unread) {
            unread.drain(..fpdu.octets);
            take(world, &mut state, number, &fpdu);
            if state
                .connections
                .get(&number)
                .is_none_or(|connection| connection.over)
            {
                while world.does("goes-on-behind-error")
                    && let Some(fpdu) = next(&unread)
                {
                    unread.drain(..fpdu.octets);
                    place_early(world, &mut state, number, &fpdu.ulpdu);
                }
                unread.clear();
                break;
            }
        }
        if !unread.is_empty()
            && world.does("fpdu-in-one-piece")
            && let Some(connection) = state.connections.get_mut(&number)
        {
            // It takes what is there for all that there is.
            connection.over = true;
            connection.out.finish();
            works::flush(connection);
        }
        drop(state);
        world.tell();
    }
    ended(world, number);
}

/// The next FPDU, by a device that takes the complement of each pad for its length.
fn other_pad(octets: &[u8]) -> Option<Fpdu> {
    let (length, rest) = octets.split_first_chunk()?;
    let length = usize::from(u16::from_be_bytes(*length));
    let all = 2 + length + (2 + length) % 4 + 4;
    octets.get(..all).map(|_| Fpdu {
        ulpdu: rest[..length].to_vec(),
        crc_is_right: octets[all - 4..all] == crc::to_wire(crc::crc32c(&octets[..all - 4])),
        crc_is_zero: false,
        pad_is_zero: true,
        markers_are_right: true,
        octets: all,
    })
}

/// The peer's half has ended, or all of it.
fn ended(world: &World, number: u64) {
    let mut state = world.state();
    if let Some(connection) = state.connections.get_mut(&number) {
        connection.over = true;
        connection.out.finish();
        if !world.does("errors-untold") {
            works::flush(connection);
            connection.events.push_back(10);
        }
        if !connection.taken {
            state.forget(number);
        }
    }
    drop(state);
    world.tell();
}

fn take(world: &World, state: &mut State, number: u64, fpdu: &Fpdu) {
    let Some(mut connection) = state.connections.remove(&number) else {
        return;
    };
    let looks = if connection.crc {
        !world.does("crc-unchecked")
    } else {
        world.does("crc-checked-though-off")
    };
    if looks && !fpdu.crc_is_right && world.does("places-before-crc") {
        place_early(world, state, number, &fpdu.ulpdu);
    }
    let other_fault = !fpdu.pad_is_zero && world.does("pad-checked")
        || fpdu.ulpdu.len() > 32_767 && world.does("long-fpdus-refused");
    let refusal = if looks && !fpdu.crc_is_right || other_fault {
        Some(((2, 0, 2), false))
    } else {
        let segment = Segment::parse(&fpdu.ulpdu);
        match segment {
            Some(segment) => act(world, state, number, &mut connection, &segment).err(),
            None => Some(((1, 0, 0), false)),
        }
    };
    if let Some((code, read)) = refusal {
        if !world.does("silent-after-error") {
            let about = (code.0 < 2 && code != (1, 0, 0)).then_some(&fpdu.ulpdu[..]);
            connection.out.terminate(code, about, read);
        }
        connection.over = true;
        if !world.does("errors-untold") {
            works::flush(&mut connection);
        }
    } else if connection.over && connection.overflowed && world.does("overflow-ends-all") {
        for other in state.connections.values_mut() {
            other.over = true;
            other.out.finish();
        }
    } else if !connection.open && !connection.over {
        connection.open = true;
        works::go_on(world, state, &mut connection);
    } else {
        works::go_on(world, state, &mut connection);
    }
    state.connections.insert(number, connection);
}

/// Places a Write whose FPDU, or one before it, is bad.
fn place_early(world: &World, state: &mut State, number: u64, ulpdu: &[u8]) {
    if let Some(segment) = Segment::parse(ulpdu)
        && let Place::Tagged { stag, to } = segment.place
        && segment.opcode() == opcode::WRITE
    {
        // It is refused in any case.
        let _ = write(world, state, number, (stag, to), &segment.payload);
    }
}

fn act(
    world: &World,
    state: &mut State,
    number: u64,
    connection: &mut Connection,
    segment: &Segment,
) -> Result<(), Refusal> {
    let mut segment = segment.clone();
    if world.does("every-segment-is-last") {
        segment.ddp |= 0x40;
    }
    let segment = &segment;
    let code = segment.opcode();
    let tagged = matches!(segment.place, Place::Tagged { .. });
    let any = world.does("versions-unchecked");
    if segment.ddp & 3 != 1 && !any {
        return Err((
            (1, if tagged { 1 } else { 2 }, if tagged { 4 } else { 6 }),
            false,
        ));
    }
    if segment.rdmap >> 6 != 1 && !any {
        return Err(((0, 2, 5), false));
    }
    if code > 11 && world.does("unknown-opcodes-ignored") {
        return Ok(());
    }
    let reserved = segment.ddp & 0x3c != 0 || segment.rdmap & 0x30 != 0;
    if reserved && world.does("reserved-bits-of-segments-refused") {
        return Err(((0, 2, 0xff), false));
    }
    if code == opcode::SEND_SE && world.does("solicited-sends-refused") {
        return Err(((0, 2, 6), false));
    }
    if tagged != matches!(code, opcode::WRITE | opcode::READ_RESPONSE) || code > 11 {
        if code <= 11 && world.does("buffer-models-unchecked") {
            return Ok(());
        }
        return Err(((0, 2, 6), false));
    }
    match segment.place {
        Place::Tagged { stag, to } if code == opcode::WRITE => {
            let first = connection.write_at.take().unwrap_or(to);
            let more = !segment.is_last() && world.does("writes-land-at-start");
            connection.write_at = more.then_some(first);
            write(world, state, number, (stag, first), &segment.payload)?;
            if !segment.payload.is_empty() && world.does("writes-delivered") {
                delivered(connection, segment.payload.len());
            }
            Ok(())
        }
        Place::Tagged { stag, to } => response(world, state, connection, segment, (stag, to)),
        Place::Untagged { rsvd, qn, msn, mo } => {
            let mut qn = usize::try_from(qn).unwrap();
            if qn > 3 {
                if !world.does("queues-unchecked") {
                    return Err(((1, 2, 1), false));
                }
                qn = 0;
            }
            let right = match code {
                opcode::READ_REQUEST | opcode::ATOMIC_REQUEST => 1,
                opcode::TERMINATE => 2,
                opcode::ATOMIC_RESPONSE => 3,
                _ => 0,
            };
            if qn != right {
                return Err(((1, 2, 1), false));
            }
            if msn != connection.expected[qn] && !world.does("msn-unchecked") {
                return Err(((1, 2, 3), false));
            }
            if segment.is_last() {
                connection.expected[qn] = connection.expected[qn].wrapping_add(1);
            }
            match qn {
                0 => send(world, state, number, connection, segment, (rsvd, mo)),
                1 => request(world, state, number, connection, segment, mo),
                2 => {
                    connection.over = true;
                    if !world.does("terminated-left-open") {
                        connection.out.finish();
                    }
                    if !world.does("errors-untold") {
                        works::flush(connection);
                    }
                    Ok(())
                }
                _ => atomic_response(world, state, connection, segment),
            }
        }
    }
}

/// The memory of an STag, if a peer of this connection may use these octets of it: its number.
fn find(
    world: &World,
    state: &State,
    number: u64,
    (stag, to, size): (u32, u64, u64),
    right: u64,
) -> Result<u64, u8> {
    let found = state.memories.iter().find(|(_, memory)| {
        memory.stag == stag || memory.window.is_some_and(|(window, _)| window == stag)
    });
    let usable = world.does("deregistered-usable");
    let Some((id, memory)) = found.filter(|(_, memory)| memory.valid || usable) else {
        return Err(0);
    };
    let window = memory.window.filter(|(window, _)| *window == stag);
    let other = window.is_some_and(|(_, owner)| owner != number);
    if (memory.domain != 0 || other) && !world.does("other-domains-served") {
        return Err(2);
    }
    if to.checked_add(size).is_none() {
        return Err(3);
    }
    let end = memory.to + memory.length;
    let beyond = if right == WRITE && world.does("write-end-unchecked") {
        to > end
    } else {
        to + size > end
    };
    if to < memory.to || beyond {
        return Err(1);
    }
    let granted = if window.is_some() {
        WRITE | READ
    } else {
        memory.access
    };
    if granted & right != right && !world.does("no-access-control") {
        return Err(4);
    }
    Ok(*id)
}

/// Octets of memory, which are there.
fn octets_of(state: &mut State, id: u64, to: u64, size: usize) -> &mut [u8] {
    let memory = state.memories.get_mut(&id).unwrap();
    let from = usize::try_from(to - memory.to + memory.margin).unwrap();
    let end = (from + size).min(memory.octets.len());
    &mut memory.octets[from.min(end)..end]
}

fn write(
    world: &World,
    state: &mut State,
    number: u64,
    (stag, to): (u32, u64),
    payload: &[u8],
) -> Result<(), Refusal> {
    if payload.is_empty() && !world.does("write-of-nothing-validated") {
        return Ok(());
    }
    let place = (stag, to, payload.len() as u64);
    if to.checked_add(place.2).is_none() && world.does("wrapping-writes-ignored") {
        return Ok(());
    }
    if world.does("bad-writes-placed-in-part") {
        let there = |memory: &&mut Memory| memory.stag == stag && memory.valid;
        if let Some(memory) = state.memories.values_mut().find(there)
            && let Some(at) = to.checked_sub(memory.to)
            && at < memory.length
            && at + place.2 > memory.length
        {
            let (from, end) = (memory.margin + at, memory.margin + memory.length);
            let range = usize::try_from(from).unwrap()..usize::try_from(end).unwrap();
            let count = range.len();
            memory.octets[range].copy_from_slice(&payload[..count]);
        }
    }
    match find(world, state, number, place, WRITE) {
        Ok(id) => {
            let there = octets_of(state, id, to, payload.len());
            let count = there.len();
            there.copy_from_slice(&payload[..count]);
            Ok(())
        }
        Err(4) => Err(((1, 1, 0), false)),
        Err(code) => Err(((1, 1, code), false)),
    }
}

fn send(
    world: &World,
    state: &mut State,
    number: u64,
    connection: &mut Connection,
    segment: &Segment,
    (rsvd, mo): (u32, u32),
) -> Result<(), Refusal> {
    let code = segment.opcode();
    let immediate = matches!(code, opcode::IMMEDIATE | opcode::IMMEDIATE_SE);
    if immediate && segment.payload.len() != 8 && !world.does("immediate-of-any-length") {
        return Err(((0, 2, 0xff), false));
    }
    if std::mem::take(&mut connection.rtr_send)
        && segment.payload.is_empty()
        && !world.does("rtr-send-is-delivered")
    {
        return Ok(());
    }
    let empty = segment.payload.is_empty() && segment.is_last() && connection.arriving.is_none();
    if empty && world.does("empty-sends-ignored") {
        return Ok(());
    }
    let keeps = immediate && world.does("immediate-takes-no-receive");
    let (slot, got) = match connection.arriving.take() {
        Some(arriving) => arriving,
        None => match connection.receives.pop_front() {
            Some(slot) => (slot, 0),
            None if world.does("no-receive-ignored") => return Ok(()),
            None => return Err(((1, 2, 2), false)),
        },
    };
    if keeps {
        connection.receives.push_front(slot);
    }
    let length = segment.payload.len() as u64;
    if u64::from(mo) != got && !world.does("mo-unchecked") {
        return Err(((1, 2, 4), false));
    }
    if !immediate {
        if u64::from(mo) + length > connection.octets {
            return Err(((1, 2, 5), false));
        }
        let room = state.memories.get(&connection.room).unwrap().to;
        let to = room + slot * connection.octets + u64::from(mo);
        octets_of(state, connection.room, to, segment.payload.len())
            .copy_from_slice(&segment.payload);
    }
    if !segment.is_last() {
        connection.arriving = Some((slot, got + length));
        return Ok(());
    }
    let mut flags = 0;
    let mut number_in_it = 0;
    let invalidates = matches!(code, opcode::SEND_INVALIDATE | opcode::SEND_SE_INVALIDATE);
    if invalidates && !world.does("invalidate-ignored") {
        invalidate(world, state, number, rsvd)?;
    }
    if invalidates {
        flags = 8;
        number_in_it = rsvd;
    }
    if immediate {
        flags = 2;
        number_in_it = u32::from_le_bytes(*segment.payload.first_chunk().unwrap_or(&[0; 4]));
    }
    let opcode_of = 128;
    let length = if immediate { 0 } else { got + length };
    complete(
        connection,
        json!({
            "ok": 1, "wr_id": slot, "status": 0, "opcode": opcode_of, "length": length,
            "flags": flags, "imm": number_in_it, "source": 0,
        }),
    );
    Ok(())
}

/// A completion of what no program should see.
fn delivered(connection: &mut Connection, length: usize) {
    if let Some(slot) = connection.receives.pop_front() {
        complete(
            connection,
            json!({
                "ok": 1, "wr_id": slot, "status": 0, "opcode": 128, "length": length, "flags": 0, "imm": 0, "source": 0,
            }),
        );
    }
}

/// A completion, if there is room for it.
pub(super) fn complete(connection: &mut Connection, completion: serde_json::Value) {
    if connection.completions.len() < connection.cqes {
        connection.completions.push_back(completion);
    } else {
        connection.out.terminate((0, 0, 0), None, false);
        connection.over = true;
        connection.overflowed = true;
    }
}

fn invalidate(world: &World, state: &mut State, number: u64, stag: u32) -> Result<(), Refusal> {
    let refused = Err(((0, 1, 9), false));
    let stag = if world.does("invalidates-other-stag") {
        stag >> 8
    } else {
        stag
    };
    let found = state
        .memories
        .values_mut()
        .find(|memory| memory.window.is_some_and(|(window, _)| window == stag));
    match found {
        Some(memory) if memory.window.is_some_and(|(_, owner)| owner == number) => {
            memory.window = None;
            Ok(())
        }
        _ => refused,
    }
}

fn request(
    world: &World,
    state: &mut State,
    number: u64,
    connection: &mut Connection,
    segment: &Segment,
    mo: u32,
) -> Result<(), Refusal> {
    if mo != 0 {
        return Err(((1, 2, 4), false));
    }
    if segment.opcode() == opcode::ATOMIC_REQUEST {
        return atomic(world, state, number, connection, segment);
    }
    let length = segment.payload.len();
    if length > 28 {
        return Err(((1, 2, 5), false));
    }
    let Some(request) = ReadRequest::parse(&segment.payload) else {
        return Err(((0, 2, 0xff), false));
    };
    if !segment.is_last() {
        return Err(((0, 2, 0xff), false));
    }
    if request.size == 0 && world.does("read-of-nothing-unanswered") {
        return Ok(());
    }
    let mut data = Vec::new();
    if request.size > 0 || world.does("read-of-nothing-validated") {
        let place = (
            request.source_stag,
            request.source_to,
            u64::from(request.size),
        );
        match find(world, state, number, place, READ) {
            Ok(id) => {
                let size = usize::try_from(request.size).unwrap();
                data = octets_of(state, id, request.source_to, size).to_vec();
                data.resize(size, 0);
            }
            Err(_) if request.size <= 65_536 && world.does("reads-unchecked") => {
                data = vec![0x5a; usize::try_from(request.size).unwrap()];
            }
            Err(code) => {
                // The figure's order differs from DDP's.
                let code = match code {
                    4 => 2,
                    2 => 3,
                    3 => 4,
                    code => code,
                };
                return Err(((0, 1, code), true));
            }
        }
        if request
            .sink_to
            .checked_add(u64::from(request.size))
            .is_none()
        {
            return Err(((0, 1, 4), true));
        }
    }
    connection.served += 1;
    if !data.is_empty() && world.does("reads-delivered") {
        delivered(connection, data.len());
    }
    let busy = |other: &mut Connection| other.out.waiting() > 100_000;
    if world.does("reads-share-one-queue") && state.connections.values_mut().any(busy) {
        return Err(((1, 2, 2), false));
    }
    if world.does("responses-swapped") {
        // The first of each two waits for the second.
        match connection.out.kept.take() {
            None if request.size > 0 => {
                connection.out.kept = Some((request.sink_stag, request.sink_to, data));
                return Ok(());
            }
            None => {}
            Some((stag, to, earlier)) => {
                let code = opcode::READ_RESPONSE;
                connection
                    .out
                    .tagged(code, request.sink_stag, request.sink_to, &data);
                connection.out.tagged(code, stag, to, &earlier);
                return Ok(());
            }
        }
    }
    connection.out.tagged(
        opcode::READ_RESPONSE,
        request.sink_stag,
        request.sink_to,
        &data,
    );
    // The peer may have read what the thread that wrote it has not counted yet.
    if connection.out.unwritten() > usize::from(connection.ird) + 2 {
        connection.out.abort();
        connection.over = true;
    }
    Ok(())
}

fn atomic(
    world: &World,
    state: &mut State,
    number: u64,
    connection: &mut Connection,
    segment: &Segment,
) -> Result<(), Refusal> {
    let octets = &segment.payload;
    if octets.len() != 52 {
        return Err(((0, 2, 0xff), false));
    }
    let long =
        |at| u64::from(word(octets, at).unwrap()) << 32 | u64::from(word(octets, at + 4).unwrap());
    let short = |at| word(octets, at).unwrap();
    let request = AtomicRequest {
        operation: short(0) & 0xf,
        identifier: short(4),
        stag: short(8),
        to: long(12),
        data: long(20),
        mask: long(28),
        compare: long(36),
        compare_mask: long(44),
    };
    if !matches!(request.operation, 0 | 2) && !world.does("atomic-operations-unchecked") {
        return Err(((0, 2, 6), false));
    }
    if !request.to.is_multiple_of(8) && !world.does("atomics-unaligned") {
        return Err(((0, 2, 7), false));
    }
    let place = (request.stag, request.to, 8);
    let id = match find(world, state, number, place, ATOMIC) {
        Ok(id) => id,
        Err(code) => {
            let code = match code {
                4 => 2,
                2 => 3,
                3 => 4,
                code => code,
            };
            return Err(((0, 1, code), false));
        }
    };
    let there = octets_of(state, id, request.to, 8);
    let before = u64::from_le_bytes(there.try_into().unwrap_or([0; 8]));
    let after = if request.operation == 0 {
        if world.does("fetch-add-ignores-mask") {
            before.wrapping_add(request.data)
        } else {
            masked_add(before, request.data, request.mask)
        }
    } else {
        let same = (before ^ request.compare) & request.compare_mask == 0;
        if same || world.does("compare-swap-always-swaps") {
            before & !request.mask | request.data & request.mask
        } else {
            before
        }
    };
    if there.len() == 8 {
        there.copy_from_slice(&after.to_le_bytes());
    }
    if world.does("atomics-delivered") {
        delivered(connection, 8);
    }
    if world.does("atomics-of-16") {
        octets_of(state, id, request.to + 8, 8).fill(0);
    }
    let (mut identifier, mut value) = (request.identifier, before);
    match world.with.setup.fault {
        "atomic-response-other-identifier" => identifier ^= 1,
        "atomic-response-new-value" => value = after,
        _ => {}
    }
    let mut answer = identifier.to_be_bytes().to_vec();
    answer.extend(value.to_be_bytes());
    if world.does("atomic-response-of-16") {
        answer.extend([0; 4]);
    }
    connection
        .out
        .untagged(opcode::ATOMIC_RESPONSE, 3, 0, &answer);
    Ok(())
}

/// Adds in fields: a set bit of the mask is a field's highest, beyond which nothing is carried (RFC 7306 §5.1.1).
fn masked_add(a: u64, b: u64, mask: u64) -> u64 {
    let mut sum = 0;
    let mut carry = 0;
    for bit in 0..64 {
        let all = (a >> bit & 1) + (b >> bit & 1) + carry;
        sum |= (all & 1) << bit;
        carry = if mask >> bit & 1 == 1 { 0 } else { all >> 1 };
    }
    sum
}

fn response(
    world: &World,
    state: &mut State,
    connection: &mut Connection,
    segment: &Segment,
    (stag, to): (u32, u64),
) -> Result<(), Refusal> {
    let length = segment.payload.len() as u64;
    let front = connection.asked.front_mut().filter(|asked| !asked.atomic);
    let Some(asked) = front else {
        return Err(((1, 1, 0), false));
    };
    if asked.size > 0 || length > 0 {
        if stag != asked.stag && !world.does("response-stag-unchecked") {
            return Err(((1, 1, 0), false));
        }
        let right = to == asked.to.wrapping_add(asked.got) && asked.got + length <= asked.size;
        if !right || segment.is_last() && asked.got + length < asked.size {
            return Err(((1, 1, 1), false));
        }
        asked.got += length;
        let id = state
            .memories
            .iter()
            .find(|(_, memory)| memory.stag == stag)
            .map(|(id, _)| *id);
        if let Some(id) = id {
            octets_of(state, id, to, segment.payload.len()).copy_from_slice(&segment.payload);
        }
    }
    if segment.is_last()
        && let Some(asked) = connection.asked.pop_front()
    {
        works::done(connection, asked.work);
    }
    Ok(())
}

fn atomic_response(
    world: &World,
    state: &mut State,
    connection: &mut Connection,
    segment: &Segment,
) -> Result<(), Refusal> {
    let asked = connection.asked.pop_front().filter(|asked| asked.atomic);
    let (Some(asked), 12) = (asked, segment.payload.len()) else {
        return Err(((0, 2, 0xff), false));
    };
    let mut value = segment.payload[4..].to_vec();
    if !world.does("atomic-result-in-wire-order") {
        value.reverse();
    }
    let id = state
        .memories
        .iter()
        .find(|(_, memory)| memory.stag == asked.stag)
        .map(|(id, _)| *id);
    if let Some(id) = id {
        octets_of(state, id, asked.to, 8).copy_from_slice(&value);
    }
    works::done(connection, asked.work);
    Ok(())
}
