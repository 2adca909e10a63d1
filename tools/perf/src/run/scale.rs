//! Cost of a message, and memory, with many peers: one side here, all peers in another process (the [`crowd`]).
//!
//! Messages of 64 octets go to the peers by turns, one post for each, few of them under way, and come back. The
//! cost is the time spent in the calls that post and that find something, on either side, without the waits for the
//! other side. No peer gets a connected socket, few or many.

mod crowd;
mod raw;
mod side;

use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::thread::{self, ScopedJoinHandle};
use std::time::Duration;

use dgiwarp::{Config, Rnic, SameHostMode};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde::{Deserialize, Serialize};

pub(crate) use crowd::run as run_crowd;

use crate::catalog::Transport;
use crate::endpoint::ours::stack;
use crate::error::{IoContext, PerfError, Result};
use crate::machine::clock;
use crate::machine::footprint::Footprint;
use crate::machine::host::{Cpus, Side};
use crate::machine::interrupt::Interrupt;
use crate::run::figures::Figures;
use crate::session::process::{Process, own_program};
use crate::stats::float;
use raw::Sockets;
use side::{Calls, Cost, One};

/// Descriptors of a process beside one for each peer.
const SPARE_DESCRIPTORS: u64 = 500;
/// Messages of a round: at least so many, and at least this many for each peer.
const MESSAGES: (u64, u64) = (4000, 2);
/// Time without messages before memory is measured.
const REST: Duration = Duration::from_secs(2);
/// Without an answer for this long a message is lost.
const LOST: Duration = Duration::from_millis(500);
/// Messages under way.
const WINDOW: u64 = 8;

/// One point of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Scale {
    /// Over what: UD has one queue pair for all peers, RC one for each; sockets likewise.
    pub(crate) transport: Transport,
    /// Peers that there are.
    pub(crate) all: u32,
    /// Peers that take turns.
    pub(crate) peers: u32,
    /// The peers' side counts, whose queue pairs share one completion queue.
    pub(crate) theirs: bool,
    /// Beside them, one peer is gone and another never polls.
    pub(crate) disturbed: bool,
    /// Threads with a queue pair and two peers each, if there are any.
    pub(crate) threads: u32,
}

/// The agreement of both processes.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Plan {
    transport: Transport,
    count: u32,
}

/// Both sides, connected.
pub(crate) struct Stage {
    /// Ends first, so that it does not see the other side leave.
    crowd: Crowd,
    one: Speaker,
    transport: Transport,
    /// Of the process of the peers; UD queue pairs there are named by them.
    ports: Vec<u16>,
    rnic: Rnic,
    before: Footprint,
    /// Measured once all peers have had a message.
    memory: Option<Footprint>,
    /// Ports of a peer that is gone, and of one that never polls.
    gone: u16,
    silent: UdpSocket,
}

/// The side that exchanges messages with all peers.
enum Speaker {
    Stack(Box<One>),
    Raw(Sockets),
}

impl Speaker {
    fn send(&self, peer: u64, calls: &mut Calls) -> Result<()> {
        match self {
            Self::Stack(one) => one.send(peer, calls),
            Self::Raw(sockets) => sockets.send(peer, calls),
        }
    }

    fn poll(&mut self, calls: &mut Calls) -> Result<u64> {
        match self {
            Self::Stack(one) => one.poll(calls),
            Self::Raw(sockets) => sockets.poll(calls),
        }
    }

    fn disturb(&self, ports: [u16; 2]) -> Result<()> {
        match self {
            Self::Stack(one) => one.disturb(ports),
            Self::Raw(_) => Ok(()),
        }
    }
}

/// The process of all peers.
struct Crowd {
    _process: Process,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Stage {
    /// Starts the crowd and connects all of it.
    pub(crate) fn open(transport: Transport, count: u32, cpus: &Cpus) -> Result<Self> {
        raise_descriptors(u64::from(count))?;
        let _ = cpus.place(Side::Server)?;
        let crowd = Crowd::start(&Plan { transport, count });
        let _ = cpus.place(Side::Client)?;
        let mut crowd = crowd?;
        let ports: Vec<u16> = crowd.say()?;
        let before = Footprint::now();
        let rnic = Rnic::open(device()).map_err(stack("open the device"))?;
        let one = match transport.is_raw() {
            false => Speaker::Stack(Box::new(One::open(&rnic, transport, count, &ports)?)),
            true => Speaker::Raw(Sockets::one(transport, count, &ports)?),
        };
        let _connected: Cost = crowd.say()?;
        let any = |what| UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).during(what);
        let port = |socket: &UdpSocket| socket.local_addr().during("read a local port");
        let gone = port(&any("bind a UDP socket")?)?.port();
        Ok(Self {
            one,
            crowd,
            transport,
            ports,
            rnic,
            before,
            memory: None,
            gone,
            silent: any("bind a UDP socket")?,
        })
    }

    /// One round of one point.
    pub(crate) fn run(&mut self, scale: Scale, interrupt: &Interrupt) -> Result<Figures> {
        let peers = u64::from(scale.peers);
        let messages = MESSAGES.0.max(peers * MESSAGES.1);
        self.crowd.ask("begin")?;
        let _: Cost = self.crowd.say()?;
        let silent = self.silent.local_addr().during("read a local port")?;
        let disturbing = scale.disturbed.then_some([self.gone, silent.port()]);
        let mine = match scale.threads {
            0 => self.exchange(messages, peers, disturbing, interrupt)?,
            threads => self.threads(threads)?,
        };
        self.crowd.ask("end")?;
        let theirs: Cost = self.crowd.say()?;
        if scale.peers == scale.all && self.memory.is_none() {
            self.rest()?;
            self.memory = Some(Footprint::now().since(self.before));
        }
        let cost = if scale.theirs { theirs } else { mine };
        let per_peer = |bytes: u64| float(bytes) / 1024.0 / f64::from(scale.all);
        let ends = match self.transport.uses_datagrams() {
            // The sockets are the peers'.
            true => 1.0,
            false => 2.0,
        };
        Ok(Figures {
            us: cost.us,
            user_kib: self.memory.map(|memory| per_peer(memory.user).max(1e-6)),
            kernel_kib: self.memory.map(|memory| per_peer(memory.kernel) / ends),
            arrived: Some(float(mine.answered) / float(messages)),
            ..Figures::default()
        })
    }

    /// Lets nothing happen until memory that idle peers do not need is given back.
    fn rest(&mut self) -> Result<()> {
        let since = clock::now();
        while clock::now() - since < REST {
            self.one.poll(&mut Calls::default())?;
        }
        Ok(())
    }

    /// Each thread has two peers and one message under way. Waiting is no cost.
    fn threads(&self, threads: u32) -> Result<Cost> {
        let each = |ports: &[u16]| -> Result<Calls> {
            let mut one = One::open(&self.rnic, self.transport, 2, ports)?;
            let mut calls = Calls::default();
            for number in 0..MESSAGES.0 {
                one.send(number % 2, &mut calls)?;
                let since = clock::now();
                while one.poll(&mut calls)? == 0 && clock::now() - since < LOST {}
            }
            Ok(calls)
        };
        let outcomes: Vec<_> = thread::scope(|scope| {
            let pairs = self.ports.chunks(2).take(index(threads));
            let started: Vec<_> = pairs
                .map(|ports| scope.spawn(move || each(ports)))
                .collect();
            let ended = started.into_iter().map(ScopedJoinHandle::join);
            ended.collect()
        });
        let mut all = Calls::default();
        for outcome in outcomes {
            all.join(&outcome.unwrap_or(Err(PerfError::PeerGone))?);
        }
        Ok(all.cost())
    }

    /// Messages to the peers by turns, and their answers.
    fn exchange(
        &mut self,
        messages: u64,
        peers: u64,
        disturbing: Option<[u16; 2]>,
        interrupt: &Interrupt,
    ) -> Result<Cost> {
        let mut calls = Calls::default();
        let (mut sent, mut open) = (0, 0);
        let mut since = clock::now();
        while sent < messages || open > 0 {
            if sent < messages && open < WINDOW {
                if let Some(ports) = disturbing
                    && sent.is_multiple_of(peers.max(16))
                {
                    self.one.disturb(ports)?;
                }
                self.one.send(sent % peers, &mut calls)?;
                sent += 1;
                open += 1;
                continue;
            }
            let answers = self.one.poll(&mut calls)?;
            if answers > 0 {
                open = open.saturating_sub(answers);
                since = clock::now();
            } else if clock::now() - since > LOST {
                interrupt.check()?;
                open = 0;
                since = clock::now();
            }
        }
        Ok(calls.cost())
    }
}

impl Crowd {
    fn start(plan: &Plan) -> Result<Self> {
        let child = Command::new(own_program()?)
            .arg("crowd")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let mut child = child.during("start the peers' process")?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let mut crowd = Self {
            _process: Process(child),
            stdin,
            stdout: BufReader::new(stdout.ok_or(PerfError::PeerGone)?),
        };
        let plan =
            serde_json::to_string(plan).map_err(|error| PerfError::Protocol(error.to_string()))?;
        crowd.ask(&plan)?;
        Ok(crowd)
    }

    fn ask(&mut self, line: &str) -> Result<()> {
        let stdin = self.stdin.as_mut().ok_or(PerfError::PeerGone)?;
        stdin
            .write_all(format!("{line}\n").as_bytes())
            .during("send a command to the peers' process")
    }

    fn say<T: serde::de::DeserializeOwned>(&mut self) -> Result<T> {
        let mut line = String::new();
        self.stdout
            .read_line(&mut line)
            .during("read from the peers' process")?;
        if line.is_empty() {
            return Err(PerfError::PeerFailed("the peers' process ended".to_owned()));
        }
        serde_json::from_str(&line).map_err(|error| PerfError::Protocol(error.to_string()))
    }
}

/// A descriptor for each peer, and some more, beside those that are open.
fn raise_descriptors(peers: u64) -> Result<()> {
    let open = std::fs::read_dir("/proc/self/fd").during("count descriptors")?;
    let needed = crate::endpoint::pattern::widen(open.count()) + peers + SPARE_DESCRIPTORS;
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).during("read the descriptor limit")?;
    if soft >= needed {
        return Ok(());
    }
    let wanted = hard.max(needed);
    setrlimit(Resource::RLIMIT_NOFILE, wanted, wanted).map_err(|_| {
        PerfError::PeerFailed(format!(
            "{needed} descriptors are needed, and {hard} are allowed (ulimit -Hn)"
        ))
    })
}

/// Few peers use the same socket as many do.
fn device() -> Config {
    let mut config = Config::default();
    config.same_host = SameHostMode::Off;
    config.peer_sockets = 0;
    config
}

/// The address of both sides.
const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Octets of a message.
const SIZE: usize = 64;

/// Peers as an index.
fn index(peers: u32) -> usize {
    crate::endpoint::pattern::narrow(u64::from(peers))
}
