//! Work requests of the device's program: what is sent for each, and their completions in order.

use dgiwarp_conform::wire::ddp::{AtomicRequest, ReadRequest, opcode};
use serde_json::{Value, json};

use super::device::{Asked, Connection, State, Work, World};
use super::stream;

/// `enum ibv_wr_opcode`.
mod wr {
    pub(super) const WRITE: u64 = 0;
    pub(super) const WRITE_IMM: u64 = 1;
    pub(super) const SEND: u64 = 2;
    pub(super) const SEND_IMM: u64 = 3;
    pub(super) const READ: u64 = 4;
    pub(super) const CMP_SWP: u64 = 5;
    pub(super) const FETCH_ADD: u64 = 6;
    pub(super) const SEND_INV: u64 = 9;
}
const FENCE: u64 = 1;
const SIGNALED: u64 = 2;
const SOLICITED: u64 = 4;

fn field(of: &Value, name: &str) -> u64 {
    of[name].as_u64().unwrap_or(0)
}

fn flags(of: &Value) -> u64 {
    of["flags"].as_u64().unwrap_or(SIGNALED)
}

/// Sends all that may be sent now.
pub(super) fn go_on(world: &World, state: &mut State, connection: &mut Connection) {
    if connection.over || !connection.open && !world.does("send-before-the-first-fpdu") {
        return;
    }
    let mut works = std::mem::take(&mut connection.works);
    for work in works.iter_mut().filter(|work| !work.sent) {
        let code = field(&work.with, "opcode");
        let asks = matches!(code, wr::READ | wr::CMP_SWP | wr::FETCH_ADD);
        let busy = connection.asked.len();
        let full =
            asks && busy >= usize::from(connection.ord) && !world.does("reads-beyond-the-depth");
        if full || flags(&work.with) & FENCE != 0 && busy > 0 {
            break;
        }
        work.sent = true;
        work.done = !asks;
        one(world, state, connection, work, code);
    }
    connection.works = works;
    tidy(connection);
}

fn one(world: &World, state: &mut State, connection: &mut Connection, work: &Work, code: u64) {
    let with = &work.with;
    let length = usize::try_from(field(with, "length")).unwrap();
    let memory = state.memories.get(&field(with, "mr"));
    let from = memory.map_or(0, |memory| memory.margin + field(with, "offset"));
    let from = usize::try_from(from).unwrap();
    let data = memory.map_or_else(Vec::new, |memory| {
        memory.octets[from..from + length].to_vec()
    });
    let sink = memory.map_or((1, 0), |memory| {
        (memory.stag, memory.to + field(with, "offset"))
    });
    let stag = u32::try_from(field(with, "rkey")).unwrap();
    let remote = field(with, "remote");
    let solicited = flags(with) & SOLICITED != 0;
    let out = &mut connection.out;
    match code {
        wr::WRITE | wr::WRITE_IMM => {
            let late = code == wr::WRITE_IMM && world.does("immediate-before-write");
            if !late {
                out.tagged(opcode::WRITE, stag, remote, &data);
            }
            if code == wr::WRITE_IMM {
                let number = u32::try_from(field(with, "imm")).unwrap();
                let mut eight = number.to_le_bytes().to_vec();
                eight.extend([0; 4]);
                if world.does("immediate-of-4") {
                    eight.truncate(4);
                }
                let opcode = if solicited {
                    opcode::IMMEDIATE_SE
                } else {
                    opcode::IMMEDIATE
                };
                out.untagged(opcode, 0, 0, &eight);
            }
            if late {
                out.tagged(opcode::WRITE, stag, remote, &data);
            }
        }
        wr::SEND => {
            let opcode = if solicited {
                opcode::SEND_SE
            } else {
                opcode::SEND
            };
            out.untagged(opcode, 0, 0, &data);
        }
        wr::SEND_INV => {
            let opcode = if solicited {
                opcode::SEND_SE_INVALIDATE
            } else {
                opcode::SEND_INVALIDATE
            };
            let stag = if world.does("invalidate-stag-missing") {
                0
            } else {
                stag
            };
            out.untagged(opcode, 0, stag, &data);
        }
        wr::READ => {
            let request = ReadRequest {
                sink_stag: sink.0,
                sink_to: sink.1,
                size: u32::try_from(length).unwrap(),
                source_stag: stag,
                source_to: remote,
            };
            let mut octets = request.to_bytes();
            if world.does("read-request-little-endian") {
                for range in [0..4, 4..12, 12..16, 16..20, 20..28] {
                    octets[range].reverse();
                }
            }
            if world.does("read-request-of-32") {
                octets.extend([0; 4]);
            }
            connection.asked.push_back(Asked {
                work: work.id,
                stag: sink.0,
                to: sink.1,
                size: length as u64,
                got: 0,
                atomic: false,
            });
            out.untagged(opcode::READ_REQUEST, 1, 0, &octets);
        }
        wr::CMP_SWP | wr::FETCH_ADD => {
            let add = code == wr::FETCH_ADD;
            let request = AtomicRequest {
                operation: match (add, world.does("atomic-request-operation-5")) {
                    (_, true) => 5,
                    (true, _) => 0,
                    (false, _) => 2,
                },
                identifier: u32::try_from(work.id & 0xffff).unwrap(),
                stag,
                to: remote,
                data: field(
                    with,
                    if add || world.does("compare-swap-fields-swapped") {
                        "compare"
                    } else {
                        "swap"
                    },
                ),
                mask: if add { 0 } else { u64::MAX },
                compare: if add { 0 } else { field(with, "compare") },
                compare_mask: if add { 0 } else { u64::MAX },
            };
            connection.asked.push_back(Asked {
                work: work.id,
                stag: sink.0,
                to: sink.1,
                size: 8,
                got: 0,
                atomic: true,
            });
            let mut octets = request.to_bytes();
            if world.does("atomic-operands-little-endian") {
                for at in [20, 28, 36, 44] {
                    octets[at..at + 8].reverse();
                }
            }
            out.untagged(opcode::ATOMIC_REQUEST, 1, 0, &octets);
        }
        _ => {}
    }
}

/// A Read or an atomic operation has its answer.
pub(super) fn done(connection: &mut Connection, id: u64) {
    if let Some(work) = connection
        .works
        .iter_mut()
        .find(|work| work.id == id && work.sent)
    {
        work.done = true;
    }
    tidy(connection);
}

/// Completes what is done, in order.
fn tidy(connection: &mut Connection) {
    while let Some(work) = connection.works.front().filter(|work| work.done) {
        let with = &work.with;
        let opcode = match field(with, "opcode") {
            wr::WRITE | wr::WRITE_IMM => 1,
            wr::READ => 2,
            wr::CMP_SWP => 3,
            wr::FETCH_ADD => 4,
            _ => 0,
        };
        let length = field(with, "length");
        let completion = json!({
            "ok": 1, "wr_id": field(with, "wr_id"), "status": 0, "opcode": opcode, "length": length,
            "flags": 0, "imm": 0, "source": 0,
        });
        let signaled = flags(with) & SIGNALED != 0;
        connection.works.pop_front();
        if signaled {
            stream::complete(connection, completion);
        }
    }
}

/// All that is left fails.
pub(super) fn flush(connection: &mut Connection) {
    let failed = |id: u64, status: u64| {
        json!({
            "ok": 1, "wr_id": id, "status": status, "opcode": 0, "length": 0, "flags": 0, "imm": 0,
            "source": 0,
        })
    };
    let works = std::mem::take(&mut connection.works);
    let receives = std::mem::take(&mut connection.receives);
    connection.asked.clear();
    let all = works
        .iter()
        .map(|work| field(&work.with, "wr_id"))
        .chain(connection.arriving.take().map(|(slot, _)| slot))
        .chain(receives);
    for id in all {
        connection.completions.push_back(failed(id, 5));
    }
}

/// Whether the verbs have such a work request.
pub(super) fn is_known(with: &Value) -> bool {
    field(with, "opcode") != wr::SEND_IMM && field(with, "opcode") <= wr::SEND_INV
}
