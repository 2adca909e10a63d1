//! Everything of an endpoint that its lock protects, and sending.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use dgiwarp::{ConnectionChannel, Cq, MpaConfig, Srq};
use rustc_hash::FxHashMap;

use super::config::Limits;
use super::items::lower::{Lowered, lower};
use super::peer::{Out, Parts, Peer, Subject};
use super::secure::rights::{Rights, present};
use super::service::{Answer, Inbox, Jobs, Route, Service};
use super::stream::{Stream, StreamId};
use crate::engine::calls::{Calls, Expired, Fate, Lost, Sending};
use crate::engine::executions::Executions;
use crate::engine::urgency::{Next, Queue, Urgency};
use crate::engine::windows::Granted;
use crate::memory::{Block, Pool};
use crate::names::{MethodId, ServiceId};
use crate::payload::Payload;
use crate::status::{Code, Status};
use crate::wire::hello::Hello;
use crate::wire::message::{Body, Kind, Message};

/// Completions of the queue that an endpoint begins with.
pub(crate) const CQ_DEPTH: usize = 1024;

/// A connection.
pub(crate) type Connection = Peer<Then>;

/// Step behind a transfer.
#[derive(Debug)]
pub(crate) enum Then {
    /// The items are written: their message follows.
    Post(Message),
    /// The items are read. Their octets count against the limit of all peers.
    Deliver(Box<Inbound>, u64),
}

/// A message whose items are there, or will be.
#[derive(Debug)]
pub(crate) struct Inbound {
    pub(crate) about: About,
    pub(crate) payload: Payload,
    /// Some of it was offered, and is read: the peer waits for DONE.
    pub(crate) read: bool,
}

/// Subject of an [`Inbound`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum About {
    Call {
        caller: u64,
        number: u64,
    },
    Reply {
        number: u64,
        status: u16,
    },
    Message {
        number: u64,
        urgency: Urgency,
        to: u64,
        from: u64,
        cost: u64,
    },
}

/// A call of this endpoint that the program waits for.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) connection: u64,
    pub(crate) target: SocketAddr,
    pub(crate) service: ServiceId,
    pub(crate) method: MethodId,
    pub(crate) urgency: Urgency,
    pub(crate) payload: Arc<Payload>,
    /// Lengths of the windows for the reply, in octets.
    pub(crate) rooms: Vec<usize>,
    /// Nobody waits any more.
    pub(crate) detached: bool,
    pub(crate) fate: Fate,
    pub(crate) result: Option<Result<Payload, Status>>,
    /// Task that waits for the result.
    pub(crate) waker: Option<Waker>,
}

/// A message whose items wait for room to be read.
#[derive(Debug)]
pub(crate) struct Unread {
    pub(crate) connection: u64,
    pub(crate) about: About,
    pub(crate) body: Body,
}

/// Objects of the device that all connections share.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) cq: Cq,
    pub(crate) srq: Srq,
    pub(crate) channel: ConnectionChannel,
    pub(crate) mpa: MpaConfig,
    pub(crate) hello: Hello,
}

/// State of an endpoint.
#[derive(Debug)]
pub(crate) struct State {
    /// Completions that the queue holds.
    pub(crate) cq_depth: usize,
    pub(crate) device: Device,
    pub(crate) limits: Limits,
    pub(crate) rights: Rights,
    pub(crate) pool: Arc<Pool>,
    pub(crate) calls: Calls,
    pub(crate) pending: FxHashMap<u64, Pending>,
    pub(crate) executions: Executions<Arc<Answer>>,
    /// Calls that are executed, by caller and number.
    pub(crate) routes: FxHashMap<(u64, u64), Route>,
    pub(crate) streams: FxHashMap<StreamId, Stream>,
    pub(crate) peers: BTreeMap<u64, Connection>,
    pub(crate) by_qpn: FxHashMap<u32, u64>,
    pub(crate) by_target: FxHashMap<SocketAddr, u64>,
    pub(crate) next_connection: u64,
    pub(crate) services: FxHashMap<ServiceId, Service>,
    pub(crate) inboxes: FxHashMap<ServiceId, Inbox>,
    /// Memory of the program's for long items of MESSAGEs that are read, the first that fits.
    pub(crate) places: VecDeque<Block>,
    /// Connections on which MESSAGEs of a service came.
    pub(crate) learned: FxHashMap<ServiceId, u64>,
    pub(crate) jobs: Jobs,
    /// Handlers that run.
    pub(crate) running: usize,
    /// Calls that were begun and whose handlers reply later.
    pub(crate) deferred: usize,
    /// Tasks to be woken once the lock is free.
    pub(crate) woken: Vec<Waker>,
    /// Octets being read, of all peers.
    pub(crate) reading: u64,
    pub(crate) unread: Queue<Unread>,
    pub(crate) going_away: bool,
    pub(crate) closed: bool,
    /// Something has happened that a waiting thread may wait for.
    pub(crate) stirred: bool,
}

impl State {
    pub(crate) fn new(device: Device, limits: Limits, rights: Rights, pool: Arc<Pool>) -> Self {
        Self {
            cq_depth: CQ_DEPTH,
            device,
            limits,
            rights,
            pool,
            calls: Calls::new(),
            pending: FxHashMap::default(),
            executions: Executions::new(),
            routes: FxHashMap::default(),
            streams: FxHashMap::default(),
            peers: BTreeMap::new(),
            by_qpn: FxHashMap::default(),
            by_target: FxHashMap::default(),
            next_connection: 1,
            services: FxHashMap::default(),
            inboxes: FxHashMap::default(),
            places: VecDeque::new(),
            learned: FxHashMap::default(),
            jobs: Jobs::default(),
            running: 0,
            deferred: 0,
            woken: Vec::new(),
            reading: 0,
            unread: Queue::default(),
            going_away: false,
            closed: false,
            stirred: false,
        }
    }

    /// Sends what may be sent on a connection.
    pub(crate) fn flush(&mut self, key: u64, now: Duration) {
        // The first message waits for credit.
        let mut blocked = false;
        while let Some(peer) = self.peers.get_mut(&key) {
            if !peer.has_room() {
                return;
            }
            if let Some(message) = peer.controls.pop_front() {
                // It costs nothing.
                let _ = peer.post(message, false);
                continue;
            }
            match peer.outbox.next(blocked) {
                Some(Next::Message {
                    urgency,
                    leaves,
                    message: Out::Ready(message),
                }) => {
                    let call = matches!(message.kind, Kind::Call { .. }).then_some(message.number);
                    if let Err(message) = peer.post(message, leaves) {
                        peer.outbox.put_back(urgency, Out::Ready(message));
                        blocked = true;
                    } else {
                        peer.outbox.sent(urgency);
                        if let Some(number) = call {
                            self.streams_sent(number);
                        }
                    }
                }
                Some(Next::Message {
                    urgency, message, ..
                }) => self.lower_message(key, urgency, message, now),
                Some(Next::Stream(id)) => self.flush_stream(key, id),
                // The peer may wait for credit as well.
                None if peer.credit.is_due() => peer.control(0, Kind::Credit),
                None => return,
            }
        }
    }

    /// Makes a message of what waits to be sent, and puts its items in their place.
    fn lower_message(&mut self, key: u64, urgency: Urgency, out: Out, now: Duration) {
        let Some(peer) = self.peers.get_mut(&key) else {
            return;
        };
        match out {
            Out::Ready(message) => peer.outbox.put_back(urgency, Out::Ready(message)),
            Out::Call(number) => self.begin_call(key, number, now),
            Out::Reply {
                number,
                status,
                refused,
                payload,
                consumes,
            } => {
                let mut granted = peer.granted_for.remove(&number).unwrap_or_default();
                peer.credit.consume(consumes);
                let lowered = lower(
                    peer,
                    &self.pool,
                    Subject::Reply(number),
                    &payload,
                    0,
                    &mut granted,
                );
                let (status, lowered) = match lowered {
                    Ok(lowered) => (status, lowered),
                    Err(failure) => (failure.code.number(), Lowered::text(&failure.text)),
                };
                lowered.send(peer, number, urgency, |body| Kind::Reply {
                    status,
                    refused,
                    body,
                });
            }
            Out::Message {
                number,
                to,
                from,
                payload,
                windows,
            } => {
                let mut granted = std::mem::take(&mut peer.granted);
                let subject = Subject::Message(number);
                let count = if peer.seals_all() { 0 } else { windows.len() };
                let lowered = lower(peer, &self.pool, subject, &payload, count, &mut granted);
                peer.granted = granted;
                if let Ok(mut lowered) = lowered {
                    let windows = windows.into_iter().take(count);
                    let windows = windows.filter_map(|block| peer.grant(block, None));
                    lowered.body.windows = windows.collect();
                    lowered.send(peer, number, urgency, |body| Kind::Message {
                        urgency,
                        to,
                        from,
                        body,
                    });
                    present(&self.rights, peer, ServiceId::of_wire(to));
                }
            }
        }
    }

    fn begin_call(&mut self, key: u64, number: u64, now: Duration) {
        if self.lacks_streams(key, number) {
            self.calls.reply(number);
            let text = "the peer takes no streams";
            return self.end(number, Err(Status::new(Code::Unimplemented, text)));
        }
        let streams = self.streams_on(key, number);
        let Some(peer) = self.peers.get_mut(&key) else {
            return;
        };
        let timeout = match self.calls.send(number, now, peer.instance) {
            Sending::Go { timeout } => timeout,
            Sending::OtherInstance => {
                let text = "the server was started again: the call may have been executed";
                return self.end(number, Err(Status::new(Code::Unavailable, text)));
            }
            Sending::Late | Sending::Over => return,
        };
        let Some(pending) = self.pending.get(&number) else {
            return;
        };
        let payload = Arc::clone(&pending.payload);
        // Where all messages are sealed, the reply has its items inside.
        let granted = if peer.seals_all() {
            0
        } else {
            pending.rooms.len()
        };
        let rooms = pending.rooms.iter().take(granted);
        let windows = rooms.filter_map(|room| self.pool.window(key, *room).ok());
        let windows: Vec<_> = windows
            .filter_map(|block| peer.grant(block, Some(number)))
            .collect();
        let subject = Subject::Call(number);
        let none = &mut Granted::default();
        let lowered = lower(peer, &self.pool, subject, &payload, windows.len(), none);
        match lowered {
            Ok(mut lowered) => {
                lowered.body.windows = windows;
                let (service, method) = (pending.service.number(), pending.method.number());
                let (urgency, floor) = (pending.urgency, self.calls.floor());
                lowered.send(peer, number, urgency, |body| Kind::Call {
                    streams,
                    urgency,
                    service,
                    method,
                    timeout,
                    floor,
                    body,
                });
                present(&self.rights, peer, pending.service);
            }
            Err(status) => {
                self.calls.reply(number);
                self.end(number, Err(status));
            }
        }
    }

    /// Gives the program the result of a call.
    pub(crate) fn end(&mut self, number: u64, result: Result<Payload, Status>) {
        self.end_streams(StreamId { caller: 0, number });
        let Some(pending) = self.pending.get_mut(&number) else {
            return;
        };
        if pending.detached {
            self.pending.remove(&number);
            return;
        }
        if pending.result.is_none() {
            pending.result = Some(result);
            self.woken.extend(pending.waker.take());
        }
        self.stirred = true;
    }

    /// Withdraws windows and offers of a call.
    pub(crate) fn withdraw(&mut self, connection: u64, number: u64) {
        if let Some(peer) = self.peers.get_mut(&connection) {
            drop(peer.own.withdraw(number));
            peer.offers.remove(&Subject::Call(number));
        }
    }

    /// Cancels a call on the program's behalf.
    pub(crate) fn cancel(&mut self, number: u64, now: Duration) {
        let connection = self.pending.get(&number).map(|it| it.connection);
        let Some(connection) = connection else {
            return;
        };
        if self.calls.cancel(number, now) {
            self.send_cancel(connection, number, now);
        }
        self.end(
            number,
            Err(Status::new(Code::Cancelled, "cancelled by the caller")),
        );
    }

    fn send_cancel(&mut self, connection: u64, number: u64, now: Duration) {
        if let Some(peer) = self.peers.get_mut(&connection) {
            // Behind its CALL.
            let message = Message {
                number,
                credit: 0,
                kind: Kind::Cancel,
            };
            let urgency = self.pending.get(&number).map(|it| it.urgency);
            peer.outbox
                .push(urgency.unwrap_or_default(), Out::Ready(message));
            self.flush(connection, now);
        }
    }

    /// Ends what is over at `now`.
    pub(crate) fn expire(&mut self, now: Duration) {
        if self.calls.poll_timeout().is_none_or(|at| at > now) {
            return;
        }
        for expired in self.calls.expire(now) {
            match expired {
                Expired::Deadline { number, sent } => {
                    let connection = self.pending.get(&number).map_or(0, |it| it.connection);
                    if sent {
                        self.send_cancel(connection, number, now);
                    } else if let Some(pending) = self.pending.get_mut(&number) {
                        pending.fate = Fate::Unsent;
                    }
                    let text = if sent {
                        "no reply in time: the call may have been executed"
                    } else {
                        "no connection in time: the call was not sent"
                    };
                    self.end(number, Err(Status::new(Code::DeadlineExceeded, text)));
                }
                Expired::Withdraw { number } => {
                    let keys: Vec<_> = self.peers.keys().copied().collect();
                    for key in keys {
                        self.withdraw(key, number);
                    }
                }
            }
        }
    }

    /// Ends a connection. Calls on it are made again where they may be.
    pub(crate) fn close(&mut self, key: u64, may_retry: bool, reason: &str, now: Duration) {
        self.close_as(key, may_retry, Code::Unavailable, reason, now);
    }

    /// As [`close`](Self::close), with the code of calls that end with it.
    pub(crate) fn close_as(
        &mut self,
        key: u64,
        may_retry: bool,
        code: Code,
        reason: &str,
        now: Duration,
    ) {
        let Some(peer) = self.peers.remove(&key) else {
            return;
        };
        tracing::debug!(address = %peer.address, reason, "a connection is over");
        self.by_qpn.remove(&peer.qp.qpn());
        self.rights.unconfirmed.remove(key);
        if let Some(target) = peer.target
            && self.by_target.get(&target) == Some(&key)
        {
            self.by_target.remove(&target);
        }
        self.learned.retain(|_, connection| *connection != key);
        if peer.target.is_none() {
            self.executions.disconnected(peer.instance, now);
        }
        let mut lost = Vec::new();
        for transfer in &peer.transfers {
            if let Then::Deliver(inbound, octets) = &transfer.then {
                self.reading -= octets;
                lost.push(inbound.about);
            }
        }
        let unread = self.unread.remove(|it| it.connection == key);
        lost.extend(unread.into_iter().map(|it| it.about));
        for about in lost {
            self.lose(about);
        }
        // Its memory is taken from the peer before anybody uses it again.
        drop(peer);
        self.pool.forget(key);
        self.stirred = true;
        self.break_streams(key);
        let on_it = self.pending.iter().filter(|(_, it)| it.connection == key);
        let mut numbers: Vec<_> = on_it.map(|(number, _)| *number).collect();
        numbers.sort_unstable();
        for number in numbers {
            let may_retry = may_retry && !self.is_streaming(number);
            match self.calls.lost(number, now, may_retry) {
                Lost::Retry => self.send_again(number, now),
                Lost::Fail { sent } => {
                    let fate = if sent {
                        "the call may have been executed"
                    } else {
                        "the call was not sent"
                    };
                    if let Some(pending) = self.pending.get_mut(&number) {
                        pending.fate = if sent { Fate::Lost } else { Fate::Unsent };
                    }
                    let status = Status::new(code, format!("{reason}: {fate}"));
                    self.end(number, Err(status));
                }
                // Read, and not whole: `lose` has ended it. Or given up by the program.
                Lost::Abandoned => self.end(
                    number,
                    Err(Status::new(Code::Aborted, "the reply was lost")),
                ),
            }
        }
    }

    fn lose(&mut self, about: About) {
        match about {
            About::Call { caller, number } => {
                self.executions.abort(caller, number);
                self.routes.remove(&(caller, number));
            }
            About::Reply { number, .. } => self.end(
                number,
                Err(Status::new(Code::Aborted, "the reply was lost")),
            ),
            About::Message { .. } => {}
        }
    }

    fn send_again(&mut self, number: u64, now: Duration) {
        let Some(pending) = self.pending.get_mut(&number) else {
            return;
        };
        let (target, urgency) = (pending.target, pending.urgency);
        match self.connection_to(target, now) {
            Ok(key) => {
                if let Some(pending) = self.pending.get_mut(&number) {
                    pending.connection = key;
                }
                if let Some(peer) = self.peers.get_mut(&key) {
                    peer.outbox.push(urgency, Out::Call(number));
                }
                self.flush(key, now);
            }
            Err(status) => {
                self.calls.reply(number);
                if let Some(pending) = self.pending.get_mut(&number) {
                    pending.fate = Fate::Lost;
                }
                self.end(number, Err(status));
            }
        }
    }

    /// The connection to an address, which is made where there is none.
    pub(crate) fn connection_to(
        &mut self,
        target: SocketAddr,
        now: Duration,
    ) -> Result<u64, Status> {
        if let Some(key) = self.by_target.get(&target) {
            return Ok(*key);
        }
        let (data, initiator) = self.rights.greet(&self.device.hello, target)?;
        let unavailable = |error: &dyn std::fmt::Display| {
            Status::new(
                Code::Unavailable,
                format!("no connection to {target}: {error}"),
            )
        };
        let key = self
            .new_peer(target, now)
            .map_err(|error| unavailable(&error))?;
        if let Some(peer) = self.peers.get_mut(&key) {
            peer.target = Some(target);
            peer.initiator = initiator;
            let device = &self.device;
            let begun = device
                .channel
                .connect(&peer.qp, target, &device.mpa, &data, key);
            if let Err(error) = begun {
                self.by_qpn.remove(&peer.qp.qpn());
                self.peers.remove(&key);
                return Err(unavailable(&error));
            }
        }
        self.by_target.insert(target, key);
        Ok(key)
    }

    /// Makes the objects of a connection.
    pub(crate) fn new_peer(
        &mut self,
        address: SocketAddr,
        now: Duration,
    ) -> Result<u64, dgiwarp::Error> {
        let device = &self.device;
        if self.peers.len() >= self.limits.peers {
            return Err(dgiwarp::Error::Limit {
                what: "number of peers",
                value: self.peers.len() + 1,
                min: 0,
                max: self.limits.peers,
            });
        }
        // Completions of a connection: its messages with slots, one for 16 of the others, its pieces.
        let depth = 1024 + (self.peers.len() + 1).next_power_of_two() * 64;
        if depth > self.cq_depth {
            device.cq.resize(depth)?;
            self.cq_depth = depth;
        }
        let parts = Parts {
            rnic: device.channel.rnic(),
            cq: &device.cq,
            srq: &device.srq,
        };
        let (longest, credit) = (self.limits.longest, self.limits.credit);
        let peer = Peer::new(&parts, address, longest, credit, now)?;
        let key = self.next_connection;
        self.next_connection += 1;
        self.by_qpn.insert(peer.qp.qpn(), key);
        self.peers.insert(key, peer);
        Ok(key)
    }
}
