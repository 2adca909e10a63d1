//! The device: who listens and connects, what it remembers, and how it is told to be wrong.

use std::collections::{BTreeMap, VecDeque};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use xtask::clock;

use super::out::Out;
use super::{agent, startup};

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
pub(super) struct World {
    pub(super) setup: Setup,
    state: Mutex<State>,
    changed: Condvar,
    /// Number of the next Send of all connections.
    pub(super) sends: Arc<AtomicU32>,
}

/// Registered memory, or what was.
pub(super) struct Memory {
    pub(super) stag: u32,
    pub(super) to: u64,
    pub(super) margin: u64,
    pub(super) length: u64,
    pub(super) octets: Vec<u8>,
    pub(super) access: u64,
    pub(super) domain: u64,
    pub(super) valid: bool,
    /// The window over it: STag and connection.
    pub(super) window: Option<(u32, u64)>,
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
    pub(super) expected: [u32; 4],
    /// The Send that is arriving: its receive and octets.
    pub(super) arriving: Option<(u64, u64)>,
    pub(super) works: VecDeque<Work>,
    pub(super) asked: VecDeque<Asked>,
    pub(super) served: u32,
}

/// State that changes.
pub(super) struct State {
    pub(super) memories: BTreeMap<u64, Memory>,
    pub(super) connections: BTreeMap<u64, Connection>,
    pub(super) accept_with: AcceptWith,
    pub(super) next: u64,
    over: bool,
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

impl World {
    /// Whether it has this fault.
    pub(super) fn does(&self, fault: &str) -> bool {
        self.setup.fault.split(", ").any(|one| one == fault)
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells who waits.
    pub(super) fn tell(&self) {
        self.changed.notify_all();
    }

    /// Waits until there is something, or the time is over.
    pub(super) fn wait<T>(
        &self,
        time: Duration,
        mut look: impl FnMut(&mut State) -> Option<T>,
    ) -> Option<T> {
        let until = clock::now() + time;
        let mut state = self.state();
        loop {
            if let Some(found) = look(&mut state) {
                return Some(found);
            }
            let left = until.saturating_duration_since(clock::now());
            if left.is_zero() || state.over {
                return None;
            }
            let (next, _) = self
                .changed
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner);
            state = next;
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.state().over
    }
}

impl State {
    /// A new number, for whatever.
    pub(super) fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Registers memory; its number.
    pub(super) fn register(
        &mut self,
        length: u64,
        access: u64,
        fill: u8,
        margin: u64,
        domain: u64,
    ) -> u64 {
        let number = self.number();
        let all = usize::try_from(length + 2 * margin).unwrap();
        // Neighbours in number are far from one another.
        let mixed = number.wrapping_add(7).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mixed = (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let stag = u32::try_from((mixed ^ mixed >> 32) & 0xffff_ffff).unwrap() | 0x10;
        let memory = Memory {
            stag,
            to: 0x5000_0000_0000 + (number << 28),
            margin,
            length,
            octets: vec![fill; all],
            access,
            domain,
            valid: true,
            window: None,
        };
        self.memories.insert(number, memory);
        number
    }

    /// A new connection with its receives, which nobody may use yet.
    pub(super) fn connection(&mut self, out: Out, with: &AcceptWith, ours: bool) -> u64 {
        let room = self.register(with.receives * with.octets + 1, 1, 0xa5, 0, 0);
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
        let world = Arc::new(World {
            setup,
            state: Mutex::new(State {
                memories: BTreeMap::new(),
                connections: BTreeMap::new(),
                accept_with: AcceptWith::new(),
                next: 0,
                over: false,
            }),
            changed: Condvar::new(),
            sends: Arc::new(AtomicU32::new(1)),
        });
        listen(listener, &world, |stream, world| {
            startup::respond(stream, &world);
        });
        listen(control, &world, move |stream, world| {
            agent::serve(stream, &world, port);
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
        let numbers: Vec<_> = {
            let mut state = self.world.state();
            state.over = true;
            state.connections.keys().copied().collect()
        };
        self.world.tell();
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
