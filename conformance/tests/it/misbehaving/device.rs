//! The device: who listens and connects, what it remembers, and how it is told to be wrong.

use std::collections::{BTreeMap, VecDeque};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use serde_json::{Value, json};

use super::memory::{self, Memories};
use super::out::Out;
use super::{agent, control, startup};

/// One device of a test: how it speaks, and the one thing that it does wrong.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setup {
    /// Name of the fault; none if empty.
    pub(super) fault: &'static str,
    /// Whether it asks for CRCs.
    pub(super) crc: bool,
    /// Whether it asks for Markers.
    pub(super) markers: bool,
    /// Revision of its Requests.
    pub(super) revision: u8,
}

/// A running device; dropping it ends it.
pub(super) struct Device {
    world: Arc<World>,
    /// Where it listens for iWARP.
    pub(super) port: u16,
    /// Where its agent listens.
    pub(super) control: u16,
}

/// All that its threads share.
pub(super) type World = super::world::World<Settings, State>;

/// Settings that never change.
pub(super) struct Settings {
    pub(super) setup: Setup,
    /// Number of the next Send of all connections.
    pub(super) sends: Arc<AtomicU32>,
}

/// Settings of the connections that are accepted next.
#[derive(Clone)]
pub(super) struct AcceptWith {
    pub(super) receives: u64,
    pub(super) octets: u64,
    pub(super) ird: u16,
    pub(super) ord: u16,
    pub(super) reject: bool,
    pub(super) private_data: Vec<u8>,
    pub(super) cqes: usize,
}

/// A work request of the device's program.
pub(super) struct Work {
    pub(super) id: u64,
    pub(super) with: Value,
    pub(super) sent: bool,
    pub(super) done: bool,
}

/// A Read or atomic operation that waits for its answer.
#[derive(Clone, Copy)]
pub(super) struct Asked {
    pub(super) work: u64,
    pub(super) stag: u32,
    pub(super) to: u64,
    pub(super) size: u64,
    pub(super) got: u64,
    pub(super) atomic: bool,
}

/// One connection.
pub(super) struct Connection {
    pub(super) out: Out,
    pub(super) ours: bool,
    pub(super) taken: bool,
    pub(super) room: u64,
    pub(super) octets: u64,
    pub(super) slots: u64,
    pub(super) receives: VecDeque<u64>,
    pub(super) completions: VecDeque<Value>,
    pub(super) cqes: usize,
    pub(super) events: VecDeque<u64>,
    pub(super) ord: u16,
    pub(super) ird: u16,
    pub(super) crc: bool,
    /// Whether FPDUs may be sent.
    pub(super) open: bool,
    /// Whether an RTR indication by a Send is due.
    pub(super) rtr_send: bool,
    pub(super) over: bool,
    /// Whether its completion queue was full.
    pub(super) overflowed: bool,
    /// Where a Write of several segments began, for a fault.
    pub(super) write_at: Option<u64>,
    pub(super) expected: [u32; 4],
    /// The Send that is arriving: its receive and octets.
    pub(super) arriving: Option<(u64, u64)>,
    pub(super) works: VecDeque<Work>,
    pub(super) asked: VecDeque<Asked>,
    pub(super) served: u32,
}

/// State that changes.
pub(super) struct State {
    pub(super) memories: Memories,
    pub(super) connections: BTreeMap<u64, Connection>,
    pub(super) accept_with: AcceptWith,
    pub(super) next: u64,
}

impl AcceptWith {
    pub(super) fn new() -> Self {
        Self {
            receives: 4,
            octets: 4096,
            ird: 4,
            ord: 4,
            reject: false,
            private_data: Vec::new(),
            cqes: 256,
        }
    }
}

impl State {
    /// A new number, for whatever.
    pub(super) fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// A new connection with its receives, which nobody may use yet.
    pub(super) fn connection(&mut self, out: Out, with: &AcceptWith, ours: bool) -> u64 {
        let room = self.number();
        let octets = with.receives * with.octets + 1;
        let like = json!({ "access": 1, "fill": 0xa5 });
        memory::register(&mut self.memories, room, octets, &like);
        let number = self.number();
        let connection = Connection {
            out,
            ours,
            taken: ours,
            room,
            octets: with.octets,
            slots: with.receives,
            receives: (0..with.receives).collect(),
            completions: VecDeque::new(),
            cqes: with.cqes,
            events: VecDeque::new(),
            ord: with.ord,
            ird: with.ird,
            crc: true,
            open: false,
            rtr_send: false,
            over: false,
            overflowed: false,
            write_at: None,
            expected: [1; 4],
            arriving: None,
            works: VecDeque::new(),
            asked: VecDeque::new(),
            served: 0,
        };
        self.connections.insert(number, connection);
        number
    }

    /// The agent's description of a connection.
    pub(super) fn about(&self, number: u64) -> Option<Value> {
        let connection = self.connections.get(&number)?;
        let memory = self.memories.get(&connection.room)?;
        Some(json!({
            "ok": 1, "conn": number, "room": connection.slots * connection.octets,
            "mr": connection.room, "rkey": memory.stag, "addr": memory.to,
        }))
    }

    /// Ends a connection: what is to be sent leaves first.
    pub(super) fn forget(&mut self, number: u64) {
        if let Some(mut connection) = self.connections.remove(&number) {
            connection.out.finish();
            self.memories.remove(&connection.room);
        }
    }
}

impl Device {
    /// A device at the loopback interface.
    pub(super) fn start(setup: Setup) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let control = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let at = control.local_addr().unwrap().port();
        let settings = Settings {
            setup,
            sends: Arc::new(AtomicU32::new(1)),
        };
        let state = State {
            memories: Memories::new(),
            connections: BTreeMap::new(),
            accept_with: AcceptWith::new(),
            next: 0,
        };
        let world = Arc::new(World::new(setup.fault, settings, state));
        listen(listener, &world, |stream, world| {
            startup::respond(stream, &world);
        });
        listen(control, &world, move |stream, world| {
            control::serve(&stream, |asked| agent::obey(&world, asked, port));
        });
        Self {
            world,
            port,
            control: at,
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.world.end();
        let numbers: Vec<_> = self.world.state().connections.keys().copied().collect();
        for number in numbers {
            self.world.state().forget(number);
        }
        for port in [self.port, self.control] {
            // The listener's thread sees that it is over.
            let _ = TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], port)));
        }
    }
}

/// Serves each who connects in a thread.
fn listen(
    listener: TcpListener,
    world: &Arc<World>,
    serve: impl Fn(TcpStream, Arc<World>) + Clone + Send + 'static,
) {
    let world = Arc::clone(world);
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            if world.is_over() {
                return;
            }
            let (world, serve) = (Arc::clone(&world), serve.clone());
            std::thread::spawn(move || serve(stream, world));
        }
    });
}
