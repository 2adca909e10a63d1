//! The device's agent: what the tester asks of the program on it (README, "The agent's protocol").

use std::net::SocketAddr;
use std::sync::Arc;

use serde_json::{Value, json};

use super::control::{number, refused, time};
use super::device::{AcceptWith, Work, World};
use super::{memory, startup, works};

fn depth(of: &Value, name: &str, otherwise: u16) -> u16 {
    u16::try_from(number(of, name, otherwise.into())).unwrap_or(u16::MAX)
}

/// Obeys, and answers; `None` if the device cannot.
pub(super) fn obey(world: &Arc<World>, asked: &Value, port: u16) -> Option<Value> {
    let fine = || Some(json!({ "ok": 1 }));
    let id = number(asked, "conn", 0);
    match asked["op"].as_str()? {
        "hello" => fine(),
        "listen" => Some(json!({ "ok": 1, "port": port })),
        "clear" => {
            let mut state = world.state();
            let all: Vec<_> = state.connections.keys().copied().collect();
            for number in all {
                state.forget(number);
            }
            state.memories.clear();
            state.accept_with = AcceptWith::new();
            Some(json!({ "ok": 1, "fds": 10 }))
        }
        "accept_with" => accept_with(world, asked),
        "accepted" => {
            let found = world.wait(time(asked), |state| {
                let (number, connection) = state
                    .connections
                    .iter_mut()
                    .find(|(_, connection)| !connection.taken && !connection.ours)?;
                connection.taken = true;
                let number = *number;
                state.about(number)
            });
            Some(found.unwrap_or_else(|| refused("no connection was accepted")))
        }
        "skip_accepted" => {
            for connection in world.state().connections.values_mut() {
                connection.taken = true;
            }
            fine()
        }
        "connect" => {
            let to = SocketAddr::new(
                asked["address"].as_str()?.parse().ok()?,
                u16::try_from(number(asked, "port", 0)).ok()?,
            );
            let with = AcceptWith {
                ird: depth(asked, "ird", 4),
                ord: depth(asked, "ord", 4),
                private_data: private_data(asked),
                ..world.state().accept_with.clone()
            };
            let made = startup::request(world, to, with);
            world.state().about(made?)
        }
        "event" => {
            let event = world.wait(time(asked), |state| {
                state.connections.get_mut(&id)?.events.pop_front()
            });
            Some(event.map_or_else(
                || refused("no event"),
                |event| json!({ "ok": 1, "event": event, "status": 0 }),
            ))
        }
        "poll" => {
            let completion = world.wait(time(asked), |state| {
                state.connections.get_mut(&id)?.completions.pop_front()
            });
            Some(completion.unwrap_or_else(|| refused("no completion")))
        }
        "post_recv" => {
            let mut state = world.state();
            let connection = state.connections.get_mut(&id)?;
            connection.receives.push_back(number(asked, "slot", 0));
            fine()
        }
        "post_send" => post_send(world, asked, id),
        "destroy" => {
            world.state().forget(id);
            fine()
        }
        "disconnect" => {
            let mut state = world.state();
            let connection = state.connections.get_mut(&id)?;
            connection.over = true;
            connection.out.finish();
            works::flush(connection);
            fine()
        }
        _ => of_memory(world, asked, id),
    }
}

fn accept_with(world: &World, asked: &Value) -> Option<Value> {
    let mut state = world.state();
    let with = &mut state.accept_with;
    with.receives = number(asked, "receives", with.receives);
    with.octets = number(asked, "octets", with.octets);
    with.ird = depth(asked, "ird", with.ird);
    with.ord = depth(asked, "ord", with.ord);
    with.cqes = usize::try_from(number(asked, "cqes", with.cqes as u64)).ok()?;
    with.reject = number(asked, "reject", 0) == 1;
    with.private_data = private_data(asked);
    Some(json!({ "ok": 1 }))
}

fn private_data(asked: &Value) -> Vec<u8> {
    let digits = asked["private"].as_str().unwrap_or_default();
    (0..digits.len() / 2)
        .filter_map(|at| u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).ok())
        .collect()
}

fn post_send(world: &World, asked: &Value, id: u64) -> Option<Value> {
    const READ: u64 = 4;
    const LOCAL_WRITE: u64 = 1;
    let mut state = world.state();
    let memory = state.memories.get(&number(asked, "mr", 0));
    let readable = memory.is_some_and(|memory| memory.access & LOCAL_WRITE == 0);
    if number(asked, "opcode", 0) == READ && readable {
        return Some(refused("memory without the right to write"));
    }
    let mut connection = state.connections.remove(&id)?;
    let answer = if connection.over {
        connection.completions.push_back(json!({
            "ok": 1, "wr_id": number(asked, "wr_id", 0), "status": 5, "opcode": 0, "length": 0,
            "flags": 0, "imm": 0, "source": 0,
        }));
        json!({ "ok": 1 })
    } else if works::is_known(asked) {
        let work = Work {
            id: state.number(),
            with: asked.clone(),
            sent: false,
            done: false,
        };
        connection.works.push_back(work);
        works::go_on(world, &mut state, &mut connection);
        json!({ "ok": 1 })
    } else {
        refused("no such work request")
    };
    state.connections.insert(id, connection);
    drop(state);
    world.tell();
    Some(answer)
}

fn of_memory(world: &World, asked: &Value, id: u64) -> Option<Value> {
    let mut state = world.state();
    let new = state.number();
    if asked["op"] != "window" {
        let mut answer = memory::obey(&mut state.memories, new, asked)?;
        if asked["op"] == "reg_mr"
            && world.does("stags-in-a-row")
            && let Some(memory) = state.memories.get_mut(&new)
        {
            memory.stag = u32::try_from(new).ok()? << 8;
            answer["rkey"] = memory.stag.into();
        }
        return Some(answer);
    }
    let stag = u32::try_from(new & 0xff).ok()? << 8 | 0x7700_0001;
    let mr = number(asked, "mr", 0);
    state.memories.get_mut(&mr)?.window = Some((stag, id));
    Some(json!({ "ok": 1, "rkey": stag }))
}
