//! The device: its memory, queue pairs and services, and the agent that its tester asks.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::pair::{self, Pair, Way};
use super::service::{self, Service};
use super::{groups, records};
use crate::misbehaving::control::{self, number, refused, time};
use crate::misbehaving::memory::{self, Memories, mixed};

/// A running device; dropping it ends it.
pub(super) struct Device {
    world: Arc<World>,
    /// Where its agent listens.
    pub(super) control: u16,
}

/// All that its threads share.
pub(super) type World = crate::misbehaving::world::World<(), State>;

/// State that changes.
pub(super) struct State {
    pub(super) memories: Memories,
    pub(super) pairs: BTreeMap<u64, Pair>,
    pub(super) service: Option<Service>,
    next: u64,
}

impl State {
    /// A new number, for whatever.
    pub(super) fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    pub(super) fn random(&mut self) -> u64 {
        let number = self.number();
        mixed(number)
    }

    /// These octets of the memory with an STag, or the counter of what forbids them.
    pub(super) fn octets_of(
        &mut self,
        world: &World,
        (stag, to, size): (u32, u64, u64),
        right: u64,
    ) -> Result<&mut [u8], &'static str> {
        let found = self
            .memories
            .values_mut()
            .find(|one| one.stag == stag && one.valid);
        let memory = found.ok_or("bad-stag")?;
        if memory.domain != 0 && !world.does("domain-of-reads-unchecked") {
            return Err("bad-pd");
        }
        if memory.access & right != right && !world.does("access-of-reads-unchecked") {
            return Err("no-access");
        }
        let end = to.checked_add(size).ok_or("out-of-bounds")?;
        let spare = if world.does("margin-of-reads-unchecked") {
            memory.margin
        } else {
            0
        };
        if to < memory.to || end > memory.to + memory.length + spare {
            return Err("out-of-bounds");
        }
        let from = usize::try_from(to - memory.to + memory.margin).unwrap();
        let size = usize::try_from(size).unwrap();
        Ok(&mut memory.octets[from..from + size])
    }
}

impl Device {
    /// A device at the loopback interface.
    pub(super) fn start(fault: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let control = listener.local_addr().unwrap().port();
        let state = State {
            memories: Memories::new(),
            pairs: BTreeMap::new(),
            service: None,
            next: 0,
        };
        let world = Arc::new(World::new(fault, (), state));
        let shared = Arc::clone(&world);
        std::thread::spawn(move || {
            // One tester at a time.
            for stream in listener.incoming().map_while(Result::ok) {
                if shared.is_over() {
                    return;
                }
                control::serve(&stream, |asked| obey(&shared, asked));
            }
        });
        Self { world, control }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.world.end();
        {
            let mut state = self.world.state();
            state.pairs.clear();
            state.service = None;
        }
        // The listener's thread sees that it is over.
        let _ = TcpStream::connect(SocketAddr::from((Ipv4Addr::LOCALHOST, self.control)));
    }
}

/// A socket that does not lose what comes at once, and that does not wait for long.
pub(super) fn socket(at: SocketAddr) -> Option<UdpSocket> {
    let socket = UdpSocket::bind(at).ok()?;
    let _ = socket2::SockRef::from(&socket).set_recv_buffer_size(4 << 20);
    socket
        .set_read_timeout(Some(Duration::from_millis(10)))
        .ok()?;
    Some(socket)
}

fn obey(world: &Arc<World>, asked: &Value) -> Option<Value> {
    let fine = || Some(json!({ "ok": 1 }));
    let id = number(asked, "conn", 0);
    match asked["op"].as_str()? {
        "hello" | "skip_accepted" => fine(),
        "clear" => {
            let mut state = world.state();
            state.pairs.clear();
            state.memories.clear();
            state.service = None;
            Some(json!({ "ok": 1, "fds": 10 }))
        }
        "ud_open" => open(world, asked),
        "ud_to" => {
            let to = SocketAddr::new(
                asked["address"].as_str()?.parse().ok()?,
                u16::try_from(number(asked, "qpn", 0)).ok()?,
            );
            world.state().pairs.get_mut(&id)?.peer = Some(to);
            fine()
        }
        "post_send" => {
            pair::post(world, id, asked)?;
            world.tell();
            fine()
        }
        "post_recv" => {
            let mut state = world.state();
            let pair = state.pairs.get_mut(&id)?;
            pair.receives.push_back(number(asked, "slot", 0));
            fine()
        }
        "poll" => {
            let completion = world.wait(time(asked), |state| {
                state.pairs.get_mut(&id)?.completions.pop_front()
            });
            Some(completion.unwrap_or_else(|| refused("no completion")))
        }
        "records_now" | "record" | "read_map" | "error" => told(world, asked, id),
        "join" => groups::join(world, id, asked["address"].as_str()?.parse().ok()?),
        "leave" => groups::leave(world, id, asked["address"].as_str()?.parse().ok()?),
        "counters" => {
            let state = world.state();
            let mut all = json!({ "ok": 1 });
            for (name, count) in &state.pairs.get(&id)?.counters {
                all[*name] = (*count).into();
            }
            Some(all)
        }
        "prove" => {
            world.state().pairs.get_mut(&id)?.proving = true;
            let proved = world.wait(time(asked), |state| {
                let pair = state.pairs.get_mut(&id)?;
                pair.cookie.map(|_| pair.proving = false)
            });
            proved.map_or_else(|| Some(refused("no cookie")), |()| fine())
        }
        "ud_service" => service::open(world, asked, id),
        "ud_answer" => service::answer(world),
        "destroy" => {
            world.state().pairs.remove(&id);
            fine()
        }
        _ => {
            let mut state = world.state();
            let new = state.number();
            memory::obey(&mut state.memories, new, asked)
        }
    }
}

/// Answers about records, failed Reads and errors of a queue pair.
fn told(world: &World, asked: &Value, id: u64) -> Option<Value> {
    let mut state = world.state();
    let mut pair = state.pairs.remove(&id)?;
    let answer = match asked["op"].as_str()? {
        "records_now" => {
            records::now(world, &mut state, &mut pair);
            Some(json!({ "ok": 1 }))
        }
        "record" => {
            let record = number(asked, "record", 0);
            if number(asked, "keep", 0) == 1 {
                pair.records.get(&record).cloned()
            } else {
                pair.records.remove(&record)
            }
        }
        "read_map" => {
            let failed = pair.failed.remove(&number(asked, "wr_id", 0));
            failed.map(|(length, map)| json!({ "ok": 1, "length": length, "ranges": map.text() }))
        }
        _ => pair.errors.pop_front(),
    };
    state.pairs.insert(id, pair);
    Some(answer.unwrap_or_else(|| refused("nothing of that kind")))
}

/// A queue pair: one socket for itself, and one for what goes to all hosts.
fn open(world: &Arc<World>, asked: &Value) -> Option<Value> {
    let own = socket(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
    let port = own.local_addr().ok()?.port();
    let group = socket(SocketAddr::from(([127, 255, 255, 255], port)))?;
    let (receives, octets) = (number(asked, "receives", 0), number(asked, "octets", 0));
    let mut state = world.state();
    let room = state.number();
    let like = json!({ "access": 1, "fill": 0xa5 });
    memory::register(&mut state.memories, room, receives * octets, &like);
    let id = state.number();
    let pair = Pair::new(
        &mut state,
        own.try_clone().ok()?,
        asked,
        (room, receives, octets),
    );
    state.pairs.insert(id, pair);
    let memory = state.memories.get(&room)?;
    let answer = json!({
        "ok": 1, "conn": id, "qpn": port, "room": receives * octets, "mr": room, "rkey": memory.stag, "addr": memory.to,
    });
    for (socket, way) in [(own, Way::Own), (group, Way::All)] {
        let world = Arc::clone(world);
        std::thread::spawn(move || pair::serve(&world, id, &socket, way));
    }
    Some(answer)
}
