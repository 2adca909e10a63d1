//! The device's agent: what the tester asks of the program on it (README, "The agent's protocol").

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::device::{AcceptWith, Work, World};
use super::{startup, works};

fn number(of: &Value, name: &str, otherwise: u64) -> u64 {
    of[name].as_u64().unwrap_or(otherwise)
}

fn depth(of: &Value, name: &str, otherwise: u16) -> u16 {
    u16::try_from(number(of, name, otherwise.into())).unwrap_or(u16::MAX)
}

fn time(of: &Value) -> Duration {
    Duration::from_millis(number(of, "timeout_ms", 0))
}

fn refused(why: &str) -> Value {
    json!({ "ok": 0, "error": why })
}

/// Serves a tester.
pub(super) fn serve(stream: TcpStream, world: &Arc<World>, port: u16) {
    let _ = stream.set_nodelay(true);
    let Ok(mut out) = stream.try_clone() else {
        return;
    };
    for line in BufReader::new(stream).lines().map_while(Result::ok) {
        let Ok(asked) = serde_json::from_str::<Value>(&line) else {
            return;
        };
        let mut answer = obey(world, &asked, port)
            .unwrap_or_else(|| refused("nothing"))
            .to_string();
        answer.push('\n');
        if out.write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}

fn obey(world: &Arc<World>, asked: &Value, port: u16) -> Option<Value> {
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
        _ => memory(world, asked, id),
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

fn memory(world: &World, asked: &Value, id: u64) -> Option<Value> {
    let mut state = world.state();
    let mr = number(asked, "mr", 0);
    match asked["op"].as_str()? {
        "reg_mr" => {
            let fill = u8::try_from(number(asked, "fill", 0)).ok()?;
            let made = state.register(
                number(asked, "length", 0),
                number(asked, "access", 0),
                fill,
                number(asked, "margin", 0),
                number(asked, "pd", 0),
            );
            let memory = state.memories.get(&made)?;
            Some(json!({ "ok": 1, "mr": made, "rkey": memory.stag, "addr": memory.to }))
        }
        "dereg_mr" => {
            state.memories.get_mut(&mr)?.valid = false;
            Some(json!({ "ok": 1 }))
        }
        "peek" => {
            let memory = state.memories.get(&mr)?;
            let from = usize::try_from(number(asked, "offset", 0)).ok()?;
            let length = usize::try_from(number(asked, "length", 0)).ok()?;
            let octets = memory.octets.get(from..from + length)?;
            let hex = dgiwarp_conform::wire::hex(octets, octets.len());
            Some(json!({ "ok": 1, "hex": hex }))
        }
        "window" => {
            let stag = u32::try_from(state.number() & 0xff).ok()? << 8 | 0x7700_0001;
            state.memories.get_mut(&mr)?.window = Some((stag, id));
            Some(json!({ "ok": 1, "rkey": stag }))
        }
        _ => Some(refused("not on this device")),
    }
}
