//! The nodes of the simulation: the protocol's tables and what a driver does with them.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use dgiwarp_sim::{Address, Datagram, Network, Node, NodeId, Rng};
use rand::RngExt as _;

use super::{History, Plan, reply_of};
use crate::engine::calls::{Calls, Expired, Lost, Replied, Sending};
use crate::engine::executions::{Begin, Executions};
use crate::engine::urgency::Urgency;
use crate::wire::message::{Body, Kind, Message, Streams, WireItem};

const SERVER: Address = Address {
    node: NodeId(0),
    port: 1,
};
/// Interval at which a caller sends again what is not answered.
const AGAIN: Duration = Duration::from_millis(20);

/// End of a call as its program sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    Reply(u64),
    NotExecuted,
    MaybeExecuted,
    /// The program itself ended before.
    Crashed,
}

pub(super) enum Party {
    Server(Server),
    Caller(Caller),
}

impl Node for Party {
    fn handle_datagram(&mut self, now: Duration, datagram: Datagram, network: &mut Network) {
        let (to, rest) = datagram.octets.split_first_chunk::<8>().unwrap();
        let (from, message) = rest.split_first_chunk::<8>().unwrap();
        let (to, from) = (u64::from_be_bytes(*to), u64::from_be_bytes(*from));
        let message = (!message.is_empty()).then(|| Message::parse(message).unwrap());
        match self {
            Self::Server(server) => {
                server.handle(now, datagram.from, to, from, message, network);
            }
            Self::Caller(caller) => caller.handle(now, to, from, message, network),
        }
        network.recycle(datagram);
    }

    fn handle_wake(&mut self, now: Duration, network: &mut Network) {
        match self {
            Self::Server(server) => server.wake(now, network),
            Self::Caller(caller) => caller.wake(now, network),
        }
    }

    fn poll_wake(&self) -> Option<Duration> {
        match self {
            Self::Server(server) => server.next(),
            Self::Caller(caller) => caller.next(),
        }
    }
}

fn send(
    now: Duration,
    (from, instance): (Address, u64),
    (to, peer): (Address, u64),
    message: Option<&Message>,
    network: &mut Network,
) {
    let mut octets = Vec::new();
    octets.extend(peer.to_be_bytes());
    octets.extend(instance.to_be_bytes());
    if let Some(message) = message {
        message.emit(&mut octets);
    }
    network.send(now, from, to, &octets).unwrap();
}

/// A server that answers each call after a random time, and restarts.
pub(super) struct Server {
    pub(super) history: History,
    rng: Rng,
    instance: u64,
    /// Ranges of numbers that are kept of a caller.
    ranges: usize,
    executions: Executions<u64>,
    /// End, caller's address and instance, number.
    running: Vec<(Duration, Address, u64, u64)>,
    restarts: VecDeque<Duration>,
}

impl Server {
    pub(super) fn new(mut rng: Rng, restarts: VecDeque<Duration>) -> Self {
        // So few that numbers are not told apart any more now and then.
        let ranges = rng.random_range(1..=16);
        Self {
            history: History::default(),
            instance: rng.random(),
            rng,
            ranges,
            executions: Executions::with_ranges(ranges),
            running: Vec::new(),
            restarts,
        }
    }

    fn handle(
        &mut self,
        now: Duration,
        source: Address,
        to: u64,
        from: u64,
        message: Option<Message>,
        network: &mut Network,
    ) {
        let own = (SERVER, self.instance);
        if to != self.instance {
            // The caller connects: a hello, or the end of a connection to an instance that is gone.
            self.executions.connected(from, now);
            send(now, own, (source, from), None, network);
            return;
        }
        let Some(message) = message else { return };
        if let Kind::Call { floor, .. } = message.kind {
            match self.executions.begin(from, message.number, floor) {
                Begin::Execute => {
                    let entry = (self.instance, from, message.number);
                    self.history.executions.push(entry);
                    // Some stay open while many others come and go.
                    let most = if self.rng.random_bool(0.02) {
                        3_000_000
                    } else {
                        60_000
                    };
                    let takes = Duration::from_micros(self.rng.random_range(0..most));
                    let entry = (now + takes, source, from, message.number);
                    self.running.push(entry);
                }
                Begin::Replay(content) => {
                    let content = Some(content);
                    reply(now, own, (source, from), message.number, content, network);
                }
                Begin::ReplyLost => {
                    reply(now, own, (source, from), message.number, None, network);
                }
                Begin::Running | Begin::Over | Begin::Full => {}
            }
        }
    }

    fn next(&self) -> Option<Duration> {
        let running = self.running.iter().map(|it| it.0);
        running.chain(self.restarts.front().copied()).min()
    }

    fn wake(&mut self, now: Duration, network: &mut Network) {
        if self.restarts.front().is_some_and(|at| *at <= now) {
            self.restarts.pop_front();
            self.instance = self.rng.random();
            self.executions = Executions::with_ranges(self.ranges);
            self.running.clear();
        }
        let own = (SERVER, self.instance);
        let (over, running) = std::mem::take(&mut self.running)
            .into_iter()
            .partition(|(end, ..)| *end <= now);
        self.running = running;
        let over: Vec<_> = over;
        for (_, source, caller, number) in over {
            let content = reply_of(caller, number);
            // One in eight is too long to be kept.
            let octets = (!content.is_multiple_of(8)).then_some(100);
            self.executions.finish(caller, number, &content, octets);
            reply(now, own, (source, caller), number, Some(content), network);
        }
    }
}

fn reply(
    now: Duration,
    own: (Address, u64),
    peer: (Address, u64),
    number: u64,
    content: Option<u64>,
    network: &mut Network,
) {
    let octets = content.map(|content| content.to_be_bytes().to_vec());
    let body = Body {
        items: octets.map(WireItem::Inline).into_iter().collect(),
        ..Body::default()
    };
    let status = if content.is_some() { 0 } else { 10 };
    let message = Message {
        number,
        credit: 0,
        kind: Kind::Reply {
            status,
            refused: false,
            body,
        },
    };
    send(now, own, peer, Some(&message), network);
}

/// A caller with some calls at a time, some of which it cancels, and with restarts.
pub(super) struct Caller {
    pub(super) history: History,
    address: Address,
    rng: Rng,
    instance: u64,
    server: Option<u64>,
    calls: Calls,
    pending: BTreeMap<u64, Pending>,
    left: usize,
    at_a_time: usize,
    again: Duration,
    restarts: VecDeque<Duration>,
}

struct Pending {
    cancel: Option<Duration>,
}

impl Caller {
    pub(super) fn new(
        node: usize,
        mut rng: Rng,
        calls: usize,
        restarts: VecDeque<Duration>,
    ) -> Self {
        Self {
            history: History::default(),
            address: Address {
                node: NodeId(node),
                port: 1,
            },
            instance: rng.random(),
            at_a_time: rng.random_range(1..=32),
            rng,
            server: None,
            calls: Calls::new(),
            pending: BTreeMap::new(),
            left: calls,
            again: Duration::ZERO,
            restarts,
        }
    }

    fn end(&mut self, number: u64, end: Ending) {
        self.pending.remove(&number);
        let call = self.history.calls.get_mut(&(self.instance, number));
        call.unwrap().1.push(end);
    }

    fn handle(
        &mut self,
        now: Duration,
        to: u64,
        from: u64,
        message: Option<Message>,
        network: &mut Network,
    ) {
        if to != self.instance {
            return;
        }
        let Some(message) = message else {
            // A hello: the connection to any other instance is over.
            if self.server != Some(from) {
                self.server = Some(from);
                let numbers: Vec<_> = self.pending.keys().copied().collect();
                for number in numbers {
                    self.lost(number, now);
                    self.transmit(number, now, network);
                }
            }
            return;
        };
        // Old datagrams of a connection that is over.
        if self.server != Some(from) {
            return;
        }
        if let Kind::Reply { body, .. } = message.kind {
            let end = match body.items.as_slice() {
                [WireItem::Inline(octets)] => {
                    Ending::Reply(u64::from_be_bytes(octets.as_slice().try_into().unwrap()))
                }
                _ => Ending::MaybeExecuted,
            };
            match self.calls.reply(message.number) {
                Replied::Deliver => self.end(message.number, end),
                Replied::Abandoned | Replied::Unknown => {}
            }
            self.begin(now, network);
        }
    }

    fn lost(&mut self, number: u64, now: Duration) {
        match self.calls.lost(number, now, true) {
            Lost::Retry | Lost::Abandoned => {}
            Lost::Fail { sent: true } => self.end(number, Ending::MaybeExecuted),
            Lost::Fail { sent: false } => self.end(number, Ending::NotExecuted),
        }
    }

    fn transmit(&mut self, number: u64, now: Duration, network: &mut Network) {
        let Some(server) = self.server else { return };
        if !self.pending.contains_key(&number) {
            return;
        }
        match self.calls.send(number, now, server) {
            Sending::Go { timeout } => {
                let kind = Kind::Call {
                    streams: Streams::default(),
                    urgency: Urgency::DEFAULT,
                    service: 1,
                    method: 1,
                    timeout,
                    floor: self.calls.floor(),
                    body: Body::default(),
                };
                let message = Message {
                    number,
                    credit: 0,
                    kind,
                };
                let own = (self.address, self.instance);
                send(now, own, (SERVER, server), Some(&message), network);
            }
            Sending::OtherInstance => self.end(number, Ending::MaybeExecuted),
            Sending::Late | Sending::Over => {}
        }
    }

    fn begin(&mut self, now: Duration, network: &mut Network) {
        while self.left > 0 && self.pending.len() < self.at_a_time {
            self.left -= 1;
            let idempotent = self.rng.random_bool(0.2);
            let deadline = now + Duration::from_millis(self.rng.random_range(50..400));
            let deadline = self.rng.random_bool(0.5).then_some(deadline);
            let cancel = now + Duration::from_millis(self.rng.random_range(1..100));
            let cancel = self.rng.random_bool(0.05).then_some(cancel);
            let number = self.calls.begin(now, deadline, idempotent);
            let entry = (Plan { idempotent }, Vec::new());
            self.history.calls.insert((self.instance, number), entry);
            self.pending.insert(number, Pending { cancel });
            self.transmit(number, now, network);
        }
    }

    fn next(&self) -> Option<Duration> {
        if self.left == 0 && self.pending.is_empty() {
            return None;
        }
        let cancels = self.pending.values().filter_map(|it| it.cancel);
        let times = cancels.chain(self.restarts.front().copied());
        times
            .chain(self.calls.poll_timeout())
            .chain([self.again])
            .min()
    }

    fn wake(&mut self, now: Duration, network: &mut Network) {
        if self.restarts.front().is_some_and(|at| *at <= now) {
            self.restarts.pop_front();
            let numbers: Vec<_> = self.pending.keys().copied().collect();
            for number in numbers {
                self.end(number, Ending::Crashed);
            }
            self.instance = self.rng.random();
            self.server = None;
            self.calls = Calls::new();
        }
        for expired in self.calls.expire(now) {
            match expired {
                Expired::Deadline { number, sent } => {
                    let end = if sent {
                        Ending::MaybeExecuted
                    } else {
                        Ending::NotExecuted
                    };
                    self.end(number, end);
                }
                Expired::Withdraw { .. } => {}
            }
        }
        let due = |it: &Pending| it.cancel.is_some_and(|at| at <= now);
        let cancelled = self.pending.iter().filter(|(_, it)| due(it));
        let cancelled: Vec<_> = cancelled.map(|(number, _)| *number).collect();
        for number in cancelled {
            let end = if self.calls.cancel(number, now) {
                Ending::MaybeExecuted
            } else {
                Ending::NotExecuted
            };
            self.end(number, end);
        }
        if self.again <= now {
            self.again = now + AGAIN;
            if self.server.is_none() || self.rng.random_bool(0.05) {
                let own = (self.address, self.instance);
                send(now, own, (SERVER, 0), None, network);
            }
            let numbers: Vec<_> = self.pending.keys().copied().collect();
            for number in numbers {
                self.transmit(number, now, network);
            }
        }
        self.begin(now, network);
    }
}
