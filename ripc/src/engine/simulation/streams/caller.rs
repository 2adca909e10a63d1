//! A caller with some calls at a time.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use dgiwarp_sim::{Address, Network, Rng};
use rand::RngExt as _;

use super::link::{Link, Path, Segment, parse};
use super::{Called, Ending, History, PART, Reader, Report, WINDOW, address, octet};
use crate::engine::call_streams::CallStreams;
use crate::engine::calls::{Calls, Expired, Lost, Replied, Sending};
use crate::engine::urgency::Urgency;
use crate::wire::message::{Body, Direction, Kind, Message, Streams, WireItem};

/// Interval of the program's steps.
const TICK: Duration = Duration::from_millis(3);

/// A call whose end the program does not have.
struct Pending {
    streams: Option<CallStreams>,
    reader: Reader,
    /// Octets after which it reads no more.
    reads: Option<u64>,
    cancel: Option<Duration>,
}

pub(super) struct Caller {
    pub(super) history: History,
    address: Address,
    rng: Rng,
    instance: u64,
    /// Number of the connection that is made or up.
    connect: u64,
    /// The connection, and the instance of the server.
    link: Option<(Link, u64)>,
    calls: Calls,
    pending: BTreeMap<u64, Pending>,
    left: usize,
    at_a_time: usize,
    restarts: VecDeque<Duration>,
    breaks: VecDeque<Duration>,
    tick: Duration,
}

impl Caller {
    pub(super) fn new(
        node: usize,
        mut rng: Rng,
        calls: usize,
        restarts: VecDeque<Duration>,
        breaks: VecDeque<Duration>,
    ) -> Self {
        Self {
            history: History::default(),
            address: address(node),
            instance: rng.random(),
            // No other caller's connection has its number.
            connect: (node as u64) << 32,
            link: None,
            at_a_time: rng.random_range(1..=12),
            rng,
            calls: Calls::new(),
            pending: BTreeMap::new(),
            left: calls,
            restarts,
            breaks,
            tick: Duration::ZERO,
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.pending.is_empty() && self.left == 0
    }

    fn path(&self) -> Path {
        Path {
            from: self.address,
            to: address(0),
        }
    }

    fn call(&mut self, number: u64) -> &mut Called {
        self.history
            .calls
            .get_mut(&(self.instance, number))
            .unwrap()
    }

    pub(super) fn next(&self) -> Option<Duration> {
        let quiet = self.link.as_ref().is_none_or(|(link, _)| link.is_quiet());
        (!self.is_idle() || !quiet).then_some(self.tick)
    }

    /// Reads what has come, and ends the call.
    fn end(&mut self, number: u64, end: Ending) {
        if let Some(mut pending) = self.pending.remove(&number) {
            let mut whole = false;
            if let Some(streams) = &mut pending.streams {
                streams.end();
                if let Some(incoming) = &mut streams.incoming {
                    whole = !streams.broken;
                    let octets = incoming.read().unwrap_or_default();
                    let fault = pending.reader.read(&octets).err();
                    self.history.faults.extend(fault);
                }
            }
            let call = self.call(number);
            call.read = pending.reader.count;
            call.whole = whole && !call.stopped;
        }
        self.call(number).ends.push(end);
    }

    pub(super) fn handle(&mut self, now: Duration, octets: &[u8], network: &mut Network) {
        let (id, segment) = parse(octets);
        if let Segment::Accept(server) = segment {
            if id == self.connect && self.link.is_none() {
                self.link = Some((Link::new(id ^ server, self.path()), server));
                let numbers: Vec<_> = self.pending.keys().copied().collect();
                for number in numbers {
                    self.transmit(number, now, network);
                }
            }
            return;
        }
        let Some((link, _)) = self.link.as_mut().filter(|(link, _)| link.id == id) else {
            if segment != Segment::Reset {
                self.path().send(now, id, &Segment::Reset, network);
            }
            return;
        };
        match segment {
            Segment::Message(number, octets) => {
                for message in link.receive(now, number, octets, network) {
                    self.take(id, Message::parse(&message).unwrap());
                }
            }
            Segment::Ack(next) => link.acknowledged(now, next, network),
            Segment::Reset => self.lost(now, network),
            Segment::Connect(_) | Segment::Accept(_) => {}
        }
        self.flush(now, network);
    }

    fn take(&mut self, id: u64, message: Message) {
        let number = message.number;
        let pending = self.pending.get_mut(&number);
        let streams = pending.and_then(|it| it.streams.as_mut());
        let streams = streams.filter(|it| it.connection == id);
        match message.kind {
            Kind::Reply { status, body, .. } => {
                let end = match body.items.as_slice() {
                    [WireItem::Inline(octets)] if status == 0 => {
                        Ending::Reply(Report::parse(octets))
                    }
                    _ => Ending::MaybeExecuted,
                };
                if self.calls.reply(number) == Replied::Deliver {
                    self.end(number, end);
                }
            }
            Kind::Stream {
                direction: Direction::Down,
                end,
                octets,
            } => {
                if let Some(streams) = streams {
                    streams.part(&octets, end).unwrap();
                }
            }
            Kind::Grant {
                direction: Direction::Up,
                stop,
                granted,
            } => {
                if let Some(streams) = streams {
                    streams.grant(granted, stop);
                }
            }
            _ => panic!("a message of a caller"),
        }
    }

    fn lost(&mut self, now: Duration, network: &mut Network) {
        self.link = None;
        self.connect += 1;
        let numbers: Vec<_> = self.pending.keys().copied().collect();
        for number in numbers {
            let streams = self.pending.get(&number).and_then(|it| it.streams.as_ref());
            let may_retry = !streams.is_some_and(CallStreams::is_bound);
            match self.calls.lost(number, now, may_retry) {
                Lost::Retry | Lost::Abandoned => {}
                Lost::Fail { sent: true } => self.end(number, Ending::MaybeExecuted),
                Lost::Fail { sent: false } => self.end(number, Ending::NotExecuted),
            }
        }
        let connect = Segment::Connect(self.instance);
        self.path().send(now, self.connect, &connect, network);
    }

    fn send(&mut self, now: Duration, number: u64, kind: Kind, network: &mut Network) {
        let message = Message {
            number,
            credit: 0,
            kind,
        };
        let mut octets = Vec::new();
        message.emit(&mut octets);
        if let Some((link, _)) = &mut self.link {
            link.send(now, octets, network);
        }
    }

    fn transmit(&mut self, number: u64, now: Duration, network: &mut Network) {
        let Some((id, server)) = self.link.as_ref().map(|(link, server)| (link.id, *server)) else {
            return;
        };
        let Some(pending) = self.pending.get_mut(&number) else {
            return;
        };
        let streams = pending.streams.as_mut();
        let streams = streams.map_or_else(Streams::default, |it| it.send_on(id, WINDOW));
        match self.calls.send(number, now, server) {
            Sending::Go { timeout } => {
                let kind = Kind::Call {
                    streams,
                    urgency: Urgency::DEFAULT,
                    service: 1,
                    method: 1,
                    timeout,
                    floor: self.calls.floor(),
                    body: Body::default(),
                };
                self.send(now, number, kind, network);
                let pending = self.pending.get_mut(&number);
                if let Some(of_call) = pending.and_then(|it| it.streams.as_mut()) {
                    if of_call.opened && streams.up {
                        let fault = format!("call {number} is sent again, with its stream");
                        self.history.faults.push(fault);
                    }
                    of_call.opened = true;
                }
            }
            Sending::OtherInstance => self.end(number, Ending::MaybeExecuted),
            Sending::Late | Sending::Over => {}
        }
    }

    fn begin(&mut self, now: Duration, network: &mut Network) {
        while self.left > 0 && self.pending.len() < self.at_a_time {
            self.left -= 1;
            let rng = &mut self.rng;
            let streams = Streams {
                down: rng.random_bool(0.6),
                up: rng.random_bool(0.5),
            };
            let after = |milliseconds| now + Duration::from_millis(milliseconds);
            let idempotent = rng.random_bool(0.2);
            let deadline = after(rng.random_range(100..800));
            let deadline = rng.random_bool(0.3).then_some(deadline);
            let cancel = after(rng.random_range(1..300));
            let cancel = rng.random_bool(0.08).then_some(cancel);
            let number = self.calls.begin(now, deadline, idempotent);
            let call = (self.instance, number);
            let reads = rng.random_range(0..20_000);
            let called = Called {
                idempotent,
                up: streams.up.then(|| rng.random_range(0..25_000)),
                ..Called::default()
            };
            self.history.calls.insert(call, called);
            let has_streams = streams.up || streams.down;
            let pending = Pending {
                streams: has_streams.then(|| CallStreams::of_caller(0, streams, WINDOW)),
                reader: Reader::new(call, false),
                reads: rng.random_bool(0.1).then_some(reads),
                cancel,
            };
            self.pending.insert(number, pending);
            self.transmit(number, now, network);
        }
    }

    /// Sends parts and grants.
    fn flush(&mut self, now: Duration, network: &mut Network) {
        let Some((link, _)) = &mut self.link else {
            return;
        };
        for (number, pending) in &mut self.pending {
            let Some(streams) = pending.streams.as_mut().filter(|it| it.opened) else {
                continue;
            };
            while streams.connection == link.id
                && link.has_room()
                && let Some(step) = streams.step(PART)
            {
                let message = step.into_message(*number, Direction::Up);
                let mut octets = Vec::new();
                message.emit(&mut octets);
                link.send(now, octets, network);
            }
        }
    }

    pub(super) fn wake(&mut self, now: Duration, network: &mut Network) {
        if self.restarts.front().is_some_and(|at| *at <= now) {
            self.restarts.pop_front();
            let numbers: Vec<_> = self.pending.keys().copied().collect();
            for number in numbers {
                self.end(number, Ending::Crashed);
            }
            self.instance = self.rng.random();
            self.calls = Calls::new();
            self.lost(now, network);
        }
        if self.breaks.front().is_some_and(|at| *at <= now) {
            self.breaks.pop_front();
            self.lost(now, network);
        }
        self.tick = now + TICK;
        self.expire(now, network);
        let numbers: Vec<_> = self.pending.keys().copied().collect();
        for number in numbers {
            self.step(number);
        }
        self.begin(now, network);
        self.flush(now, network);
        match &self.link {
            Some((link, _)) => link.again(now, network),
            None => {
                let connect = Segment::Connect(self.instance);
                self.path().send(now, self.connect, &connect, network);
            }
        }
    }

    fn expire(&mut self, now: Duration, network: &mut Network) {
        for expired in self.calls.expire(now) {
            if let Expired::Deadline { number, sent } = expired {
                self.give_up(number, sent, now, network);
            }
        }
        let due = |it: &Pending| it.cancel.is_some_and(|at| at <= now);
        let cancelled = self.pending.iter().filter(|(_, it)| due(it));
        let cancelled: Vec<_> = cancelled.map(|(number, _)| *number).collect();
        for number in cancelled {
            let sent = self.calls.cancel(number, now);
            self.give_up(number, sent, now, network);
        }
    }

    fn give_up(&mut self, number: u64, sent: bool, now: Duration, network: &mut Network) {
        if sent {
            self.send(now, number, Kind::Cancel, network);
            // Parts may follow.
            self.flush(now, network);
            self.end(number, Ending::MaybeExecuted);
        } else {
            self.end(number, Ending::NotExecuted);
        }
    }

    /// A step of the program that waits for a call.
    fn step(&mut self, number: u64) {
        let Some(pending) = self.pending.get_mut(&number) else {
            return;
        };
        let Some(streams) = &mut pending.streams else {
            return;
        };
        let id = (self.instance, number);
        let called = self.history.calls.get_mut(&id).unwrap();
        if let Some(outgoing) = streams.outgoing.as_mut().filter(|_| streams.opened) {
            let total = called.up.unwrap_or_default();
            let until = total.min(called.pushed + self.rng.random_range(0..3000));
            let octets: Vec<_> = (called.pushed..until)
                .map(|at| octet(id, true, at))
                .collect();
            called.pushed += outgoing.push(&octets).unwrap_or_default() as u64;
            if called.pushed == total {
                outgoing.finish();
            }
        }
        if let Some(incoming) = &mut streams.incoming
            && !called.stopped
            && self.rng.random_bool(0.5)
        {
            let octets = incoming.read().unwrap_or_default();
            let fault = pending.reader.read(&octets).err();
            self.history.faults.extend(fault);
            if pending.reads.is_some_and(|it| it <= pending.reader.count) {
                called.stopped = true;
                incoming.stop();
            }
        }
    }
}
