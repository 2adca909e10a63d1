//! The device: its memory, queue pairs and services, and the agent that its tester asks.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use xtask::clock;

use super::pair::{self, Pair};
use super::service::{self, Service};

/// A running device; dropping it ends it.
pub(super) struct Device {
    world: Arc<World>,
    /// Where its agent listens.
    pub(super) control: u16,
}

/// All that its threads share.
pub(super) struct World {
    fault: &'static str,
    state: Mutex<State>,
    changed: Condvar,
}

/// Registered memory.
pub(super) struct Memory {
    pub(super) stag: u32,
    pub(super) to: u64,
    pub(super) length: u64,
    pub(super) margin: u64,
    pub(super) octets: Vec<u8>,
    pub(super) access: u64,
    pub(super) domain: u64,
}

/// State that changes.
pub(super) struct State {
    pub(super) memories: BTreeMap<u64, Memory>,
    pub(super) pairs: BTreeMap<u64, Pair>,
    pub(super) records: BTreeMap<u64, Value>,
    pub(super) service: Option<Service>,
    next: u64,
    over: bool,
}

/// A number that looks random and is not.
pub(super) fn mixed(number: u64) -> u64 {
    let mixed = number.wrapping_add(11).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed ^ mixed >> 32
}

/// The lower half.
pub(super) fn low(number: u64) -> u32 {
    u32::try_from(number & 0xffff_ffff).unwrap()
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

    fn register(&mut self, length: u64, with: &Value) -> u64 {
        let number = self.number();
        let margin = field(with, "margin", 0);
        let all = usize::try_from(length + 2 * margin).unwrap();
        let fill = u8::try_from(field(with, "fill", 0)).unwrap();
        let memory = Memory {
            stag: low(self.random()) | 0x10,
            to: 0x5000_0000_0000 + (number << 28),
            length,
            margin,
            octets: vec![fill; all],
            access: field(with, "access", 0),
            domain: field(with, "pd", 0),
        };
        self.memories.insert(number, memory);
        number
    }

    /// These octets of the memory with an STag, or the counter of what forbids them.
    pub(super) fn octets_of(
        &mut self,
        (stag, to, size): (u32, u64, u64),
        right: u64,
    ) -> Result<&mut [u8], &'static str> {
        let found = self.memories.values_mut().find(|one| one.stag == stag);
        let memory = found.ok_or("bad-stag")?;
        if memory.domain != 0 {
            return Err("bad-pd");
        }
        if memory.access & right != right {
            return Err("no-access");
        }
        let end = to.checked_add(size).ok_or("out-of-bounds")?;
        if to < memory.to || end > memory.to + memory.length {
            return Err("out-of-bounds");
        }
        let from = usize::try_from(to - memory.to + memory.margin).unwrap();
        let size = usize::try_from(size).unwrap();
        Ok(&mut memory.octets[from..from + size])
    }
}

impl World {
    /// Whether it has this fault.
    pub(super) fn does(&self, fault: &str) -> bool {
        self.fault == fault
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells who waits.
    pub(super) fn tell(&self) {
        self.changed.notify_all();
    }

    /// Waits until there is something, or the time is over.
    fn wait<T>(&self, with: &Value, mut look: impl FnMut(&mut State) -> Option<T>) -> Option<T> {
        let until = clock::now() + Duration::from_millis(field(with, "timeout_ms", 0));
        let mut state = self.state();
        loop {
            if let Some(found) = look(&mut state) {
                return Some(found);
            }
            let left = until.saturating_duration_since(clock::now());
            if left.is_zero() || state.over {
                return None;
            }
            let waited = self.changed.wait_timeout(state, left);
            (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Device {
    /// A device at the loopback interface.
    pub(super) fn start(fault: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let control = listener.local_addr().unwrap().port();
        let world = Arc::new(World {
            fault,
            state: Mutex::new(State {
                memories: BTreeMap::new(),
                pairs: BTreeMap::new(),
                records: BTreeMap::new(),
                service: None,
                next: 0,
                over: false,
            }),
            changed: Condvar::new(),
        });
        let shared = Arc::clone(&world);
        std::thread::spawn(move || {
            // One tester at a time.
            for stream in listener.incoming().map_while(Result::ok) {
                if shared.state().over {
                    return;
                }
                serve(&stream, &shared);
            }
        });
        Self { world, control }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        {
            let mut state = self.world.state();
            state.over = true;
            state.pairs.clear();
            state.service = None;
        }
        self.world.tell();
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

/// A number in an object, or the one that it is otherwise.
pub(super) fn field(of: &Value, name: &str, otherwise: u64) -> u64 {
    of[name].as_u64().unwrap_or(otherwise)
}

fn refused(why: &str) -> Value {
    json!({ "ok": 0, "error": why })
}

fn serve(mut stream: &TcpStream, world: &Arc<World>) {
    let _ = stream.set_nodelay(true);
    for line in BufReader::new(stream).lines().map_while(Result::ok) {
        let Ok(asked) = serde_json::from_str::<Value>(&line) else {
            return;
        };
        let mut answer = obey(world, &asked)
            .unwrap_or_else(|| refused("not on this device"))
            .to_string();
        answer.push('\n');
        if stream.write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}

fn obey(world: &Arc<World>, asked: &Value) -> Option<Value> {
    let fine = || Some(json!({ "ok": 1 }));
    let id = field(asked, "conn", 0);
    match asked["op"].as_str()? {
        "hello" | "skip_accepted" | "records_now" => fine(),
        "clear" => {
            let mut state = world.state();
            state.pairs.clear();
            state.memories.clear();
            state.records.clear();
            state.service = None;
            Some(json!({ "ok": 1, "fds": 10 }))
        }
        "ud_open" => open(world, asked),
        "ud_to" => {
            let to = SocketAddr::new(
                asked["address"].as_str()?.parse().ok()?,
                u16::try_from(field(asked, "qpn", 0)).ok()?,
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
            pair.receives.push_back(field(asked, "slot", 0));
            fine()
        }
        "poll" => {
            let completion = world.wait(asked, |state| {
                state.pairs.get_mut(&id)?.completions.pop_front()
            });
            Some(completion.unwrap_or_else(|| refused("no completion")))
        }
        "record" => {
            let record = field(asked, "record", 0);
            let there = world.state().records.remove(&record);
            Some(there.unwrap_or_else(|| refused("no such record")))
        }
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
            let proved = world.wait(asked, |state| {
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
        _ => memory(world, asked),
    }
}

fn memory(world: &World, asked: &Value) -> Option<Value> {
    let mut state = world.state();
    let mr = field(asked, "mr", 0);
    match asked["op"].as_str()? {
        "reg_mr" => {
            let made = state.register(field(asked, "length", 0), asked);
            let memory = state.memories.get(&made)?;
            Some(json!({ "ok": 1, "mr": made, "rkey": memory.stag, "addr": memory.to }))
        }
        "dereg_mr" => {
            state.memories.remove(&mr)?;
            Some(json!({ "ok": 1 }))
        }
        "peek" => {
            let memory = state.memories.get(&mr)?;
            let from = usize::try_from(field(asked, "offset", 0)).ok()?;
            let length = usize::try_from(field(asked, "length", 0)).ok()?;
            let octets = memory.octets.get(from..from + length)?;
            let hex = dgiwarp_conform::wire::hex(octets, octets.len());
            Some(json!({ "ok": 1, "hex": hex }))
        }
        _ => None,
    }
}

/// A queue pair: one socket for itself, and one for what goes to all hosts.
fn open(world: &Arc<World>, asked: &Value) -> Option<Value> {
    let own = socket(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
    let port = own.local_addr().ok()?.port();
    let group = socket(SocketAddr::from(([127, 255, 255, 255], port)))?;
    let (receives, octets) = (field(asked, "receives", 0), field(asked, "octets", 0));
    let mut state = world.state();
    let room = state.register(receives * octets, &json!({ "access": 1, "fill": 0xa5 }));
    let id = state.number();
    let pair = Pair::new(
        &mut state,
        own.try_clone().ok()?,
        low(field(asked, "qkey", 0)),
        (room, receives, octets),
    );
    state.pairs.insert(id, pair);
    let memory = state.memories.get(&room)?;
    let answer = json!({
        "ok": 1, "conn": id, "qpn": port, "room": receives * octets, "mr": room, "rkey": memory.stag, "addr": memory.to,
    });
    for (socket, is_group) in [(own, false), (group, true)] {
        let world = Arc::clone(world);
        std::thread::spawn(move || pair::serve(&world, id, &socket, is_group));
    }
    Some(answer)
}
