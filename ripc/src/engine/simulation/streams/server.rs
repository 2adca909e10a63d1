//! A server of calls with streams.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use dgiwarp_sim::{Address, Network, Rng};
use rand::RngExt as _;

use super::link::{Link, Path, Segment, parse};
use super::{Executed, History, PART, Reader, Report, WINDOW, address, octet};
use crate::engine::call_streams::CallStreams;
use crate::engine::executions::{Begin, Executions};
use crate::wire::message::{Body, Direction, Kind, Message, WireItem};

/// Interval of the programs' steps.
const TICK: Duration = Duration::from_millis(3);

/// A connection, and the instance of its caller.
struct Peer {
    link: Link,
    instance: u64,
    connect: u64,
}

/// A call that is executed.
struct Running {
    connection: u64,
    node: usize,
    streams: Option<CallStreams>,
    reader: Reader,
    /// Octets after which it reads no more.
    reads: Option<u64>,
    stopped: bool,
    whole: bool,
    /// Octets that it sends; `None` where it ends its stream by the reply alone.
    sends: u64,
    sent: u64,
    finished: bool,
    /// Least time of its end; the end itself where it does not wait for its streams.
    end: Duration,
    early: bool,
    cancelled: bool,
}

pub(super) struct Server {
    pub(super) history: History,
    rng: Rng,
    instance: u64,
    executions: Executions<(u16, Report)>,
    /// By node.
    peers: BTreeMap<usize, Peer>,
    running: BTreeMap<(u64, u64), Running>,
    /// Connections whose loss is noticed at a time: number, instance of the caller.
    departing: Vec<(Duration, u64, u64)>,
    restarts: VecDeque<Duration>,
    breaks: VecDeque<Duration>,
    tick: Duration,
}

impl Server {
    pub(super) fn new(
        mut rng: Rng,
        restarts: VecDeque<Duration>,
        breaks: VecDeque<Duration>,
    ) -> Self {
        Self {
            history: History::default(),
            instance: rng.random(),
            rng,
            executions: Executions::new(),
            peers: BTreeMap::new(),
            running: BTreeMap::new(),
            departing: Vec::new(),
            restarts,
            breaks,
            tick: Duration::ZERO,
        }
    }

    /// Whether nothing is executed.
    pub(super) fn is_idle(&self) -> bool {
        self.running.is_empty()
    }

    pub(super) fn next(&self) -> Option<Duration> {
        let busy = self.peers.values().any(|it| !it.link.is_quiet());
        let times = self.restarts.front().into_iter().chain(&self.breaks);
        let times = times.copied().filter(|_| busy || !self.running.is_empty());
        let tick = (busy || !self.running.is_empty()).then_some(self.tick);
        times.chain(tick).min()
    }

    pub(super) fn handle(
        &mut self,
        now: Duration,
        from: Address,
        octets: &[u8],
        network: &mut Network,
    ) {
        let node = from.node.0;
        let (id, segment) = parse(octets);
        let path = Path {
            from: address(0),
            to: from,
        };
        if let Segment::Connect(instance) = segment {
            let known = self.peers.get(&node).map(|it| it.connect);
            if known.is_some_and(|it| it > id) {
                return;
            }
            if known != Some(id) {
                // The loss of the connection before may be noticed later than the new one.
                if let Some((id, instance)) = self.leave(node) {
                    let later = Duration::from_micros(self.rng.random_range(0..60_000));
                    self.departing.push((now + later, id, instance));
                }
                let link = Link::new(id ^ self.instance, path);
                let peer = Peer {
                    link,
                    instance,
                    connect: id,
                };
                self.peers.insert(node, peer);
                self.executions.connected(instance, now);
            }
            path.send(now, id, &Segment::Accept(self.instance), network);
            return;
        }
        let Some(peer) = self.peers.get_mut(&node).filter(|it| it.link.id == id) else {
            if segment != Segment::Reset {
                path.send(now, id, &Segment::Reset, network);
            }
            return;
        };
        match segment {
            Segment::Message(number, octets) => {
                let instance = peer.instance;
                for message in peer.link.receive(now, number, octets, network) {
                    let message = Message::parse(&message).unwrap();
                    self.take(now, node, id, instance, message, network);
                }
            }
            Segment::Ack(next) => peer.link.acknowledged(now, next, network),
            Segment::Reset => self.lost(node, now),
            Segment::Connect(_) | Segment::Accept(_) => {}
        }
        self.flush(now, network);
    }

    fn take(
        &mut self,
        now: Duration,
        node: usize,
        id: u64,
        caller: u64,
        message: Message,
        network: &mut Network,
    ) {
        let call = (caller, message.number);
        match message.kind {
            Kind::Call { floor, streams, .. } => {
                let new = || CallStreams::of_server(id, streams, WINDOW, WINDOW);
                match self.executions.begin(caller, message.number, floor) {
                    Begin::Execute => {
                        let running = self.begin(now, node, id, call, new());
                        self.running.insert(call, running);
                    }
                    Begin::Running => {
                        if let Some(running) = self.running.get_mut(&call) {
                            running.connection = id;
                            if running.streams.as_ref().is_some_and(CallStreams::may_move) {
                                running.streams = new();
                            }
                        }
                    }
                    Begin::Replay((status, report)) => {
                        self.reply(now, node, id, call, status, report, network)
                    }
                    Begin::ReplyLost => {
                        let none = Report {
                            read: 0,
                            whole: false,
                            sent: None,
                        };
                        self.reply(now, node, id, call, 10, none, network);
                    }
                    Begin::Over | Begin::Full => {}
                }
            }
            Kind::Cancel => {
                if let Some(running) = self.running.get_mut(&call) {
                    running.cancelled = true;
                    running.streams.iter_mut().for_each(CallStreams::end);
                }
            }
            Kind::Stream {
                direction: Direction::Up,
                end,
                octets,
            } => {
                if let Some(streams) = self.streams_of(call, id) {
                    streams.part(&octets, end).unwrap();
                }
            }
            Kind::Grant {
                direction: Direction::Down,
                stop,
                granted,
            } => {
                if let Some(streams) = self.streams_of(call, id) {
                    streams.grant(granted, stop);
                }
            }
            _ => panic!("a message of a server"),
        }
    }

    fn streams_of(&mut self, call: (u64, u64), id: u64) -> Option<&mut CallStreams> {
        let streams = self.running.get_mut(&call)?.streams.as_mut();
        streams.filter(|it| it.connection == id)
    }

    fn begin(
        &mut self,
        now: Duration,
        node: usize,
        id: u64,
        call: (u64, u64),
        streams: Option<CallStreams>,
    ) -> Running {
        let rng = &mut self.rng;
        let reads = rng.random_range(0..20_000);
        Running {
            connection: id,
            node,
            streams,
            reader: Reader::new(call, true),
            reads: rng.random_bool(0.15).then_some(reads),
            stopped: false,
            whole: false,
            sends: rng.random_range(0..25_000),
            sent: 0,
            finished: false,
            end: now + Duration::from_micros(rng.random_range(0..40_000)),
            early: rng.random_bool(0.1),
            cancelled: false,
        }
    }

    fn lost(&mut self, node: usize, now: Duration) {
        if let Some((id, instance)) = self.leave(node) {
            self.note_loss(id, instance, now);
        }
    }

    /// Takes the connection of a node away: its number, and the instance of the caller.
    fn leave(&mut self, node: usize) -> Option<(u64, u64)> {
        let peer = self.peers.get_mut(&node)?;
        let id = std::mem::take(&mut peer.link.id);
        (id != 0).then_some((id, peer.instance))
    }

    fn note_loss(&mut self, id: u64, instance: u64, now: Duration) {
        self.executions.disconnected(instance, now);
        for running in self.running.values_mut() {
            let streams = running.streams.as_mut();
            if let Some(streams) = streams.filter(|it| it.connection == id) {
                running.cancelled |= streams.is_needed();
                streams.end();
            }
        }
    }

    /// Sends parts and grants.
    fn flush(&mut self, now: Duration, network: &mut Network) {
        for ((_, number), running) in &mut self.running {
            let Some(streams) = &mut running.streams else {
                continue;
            };
            let Some(peer) = self.peers.get_mut(&running.node) else {
                continue;
            };
            while peer.link.id == streams.connection
                && peer.link.has_room()
                && let Some(step) = streams.step(PART)
            {
                let message = step.into_message(*number, Direction::Down);
                let mut octets = Vec::new();
                message.emit(&mut octets);
                peer.link.send(now, octets, network);
            }
        }
    }

    #[expect(clippy::too_many_arguments, reason = "a test")]
    fn reply(
        &mut self,
        now: Duration,
        node: usize,
        id: u64,
        (_, number): (u64, u64),
        status: u16,
        report: Report,
        network: &mut Network,
    ) {
        let body = Body {
            items: vec![WireItem::Inline(report.octets())],
            ..Body::default()
        };
        let message = Message {
            number,
            credit: 0,
            kind: Kind::Reply {
                status,
                refused: false,
                body,
            },
        };
        let mut octets = Vec::new();
        message.emit(&mut octets);
        if let Some(peer) = self.peers.get_mut(&node).filter(|it| it.link.id == id) {
            peer.link.send(now, octets, network);
        }
    }

    pub(super) fn wake(&mut self, now: Duration, network: &mut Network) {
        if self.restarts.front().is_some_and(|at| *at <= now) {
            self.restarts.pop_front();
            let calls: Vec<_> = self.running.keys().copied().collect();
            for call in calls {
                self.note(call, true);
            }
            self.instance = self.rng.random();
            self.executions = Executions::new();
            self.peers.clear();
            self.departing.clear();
        }
        if self.breaks.front().is_some_and(|at| *at <= now) {
            self.breaks.pop_front();
            let nodes: Vec<_> = self.peers.keys().copied().collect();
            if !nodes.is_empty() {
                let node = nodes[self.rng.random_range(0..nodes.len())];
                self.lost(node, now);
            }
        }
        if self.tick > now {
            return;
        }
        self.tick = now + TICK;
        for (_, id, instance) in self
            .departing
            .extract_if(.., |it| it.0 <= now)
            .collect::<Vec<_>>()
        {
            self.note_loss(id, instance, now);
        }
        let calls: Vec<_> = self.running.keys().copied().collect();
        for call in calls {
            self.step(now, call, network);
        }
        self.flush(now, network);
        for peer in self.peers.values().filter(|it| it.link.id != 0) {
            peer.link.again(now, network);
        }
    }

    /// A step of the program that executes a call.
    fn step(&mut self, now: Duration, call: (u64, u64), network: &mut Network) {
        let Some(running) = self.running.get_mut(&call) else {
            return;
        };
        let (mut has_read, mut has_sent) = (true, true);
        if let Some(streams) = &mut running.streams {
            if let Some(incoming) = &mut streams.incoming {
                if !running.stopped && self.rng.random_bool(0.5) {
                    let octets = incoming.read().unwrap_or_default();
                    if let Err(fault) = running.reader.read(&octets) {
                        self.history.faults.push(fault);
                    }
                    running.whole =
                        incoming.has_ended() && !streams.broken && incoming.read().is_none();
                    if running.reads.is_some_and(|it| it <= running.reader.count) && !running.whole
                    {
                        running.stopped = true;
                        incoming.stop();
                    }
                }
                has_read = running.whole || running.stopped;
            }
            if let Some(outgoing) = &mut streams.outgoing {
                let most = self.rng.random_range(0..3000);
                let until = running.sends.min(running.sent + most);
                let octets: Vec<_> = (running.sent..until)
                    .map(|at| octet(call, false, at))
                    .collect();
                match outgoing.push(&octets) {
                    Some(taken) => running.sent += taken as u64,
                    None if !running.finished => running.sends = running.sent,
                    None => {}
                }
                if running.sent == running.sends && !running.finished {
                    running.finished = !outgoing.is_over();
                    outgoing.finish();
                }
                has_sent = outgoing.is_flushed() && outgoing.is_over();
            }
        }
        if running.cancelled || (running.end <= now && (running.early || (has_read && has_sent))) {
            self.conclude(now, call, has_sent, network);
        }
    }

    /// Notes what an execution did.
    fn note(&mut self, call: (u64, u64), has_sent: bool) -> Option<(Running, Report)> {
        let running = self.running.remove(&call)?;
        let report = Report {
            read: running.reader.count,
            whole: running.whole,
            sent: (running.finished && has_sent).then_some(running.sent),
        };
        self.history.executions.push(Executed {
            server: self.instance,
            call,
            report,
        });
        Some((running, report))
    }

    fn conclude(&mut self, now: Duration, call: (u64, u64), has_sent: bool, network: &mut Network) {
        let Some((mut running, report)) = self.note(call, has_sent) else {
            return;
        };
        let mut status = if running.cancelled { 1 } else { 0 };
        let mut used = None;
        if let Some(streams) = &mut running.streams {
            streams.end();
            used = streams.used_on();
        }
        if used.is_some_and(|it| it != running.connection) {
            status = 10;
        }
        let octets = used.is_none().then_some(100);
        let (caller, number) = call;
        self.executions
            .finish(caller, number, &(status, report), octets);
        self.reply(
            now,
            running.node,
            running.connection,
            call,
            status,
            report,
            network,
        );
    }
}
