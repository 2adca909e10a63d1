//! Messages of peers.

use std::sync::Arc;
use std::time::Duration;

use dgiwarp::{Wc, WcOpcode, WcStatus};

use super::peer::{GOING_AWAY, Out, Subject, TooManyPings};
use super::secure::sealed::{BadSeal, Secure, read};
use super::service::{Answer, Cancellation, Incoming, Job, Request, Route};
use super::state::{About, Inbound, State, Then};
use super::stream::StreamId;
use super::work_id::WorkId;
use crate::engine::calls::{Fate, Replied};
use crate::engine::credit::{Overdrawn, cost};
use crate::engine::executions::Begin;
use crate::engine::streams::BadPart;
use crate::engine::urgency::{Admission, Urgency, admit};
use crate::engine::windows::{BadWindow, check_windows};
use crate::names::{MethodId, ServiceId};
use crate::payload::Payload;
use crate::status::{Code, Status};
use crate::wire::FormatError;
use crate::wire::message::{Body, Kind, Streams, WireItem};
use crate::wire::metadata::Metadata;

/// Fault of a peer that ends its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Violation {
    #[error("malformed message: {0}")]
    Format(#[from] FormatError),
    #[error(transparent)]
    Credit(#[from] Overdrawn),
    #[error(transparent)]
    Window(#[from] BadWindow),
    #[error(transparent)]
    Stream(#[from] BadPart),
    #[error(transparent)]
    Seal(#[from] BadSeal),
    #[error(transparent)]
    Pings(#[from] TooManyPings),
}

/// Time of now, and the way from it to the clock of programs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    pub(crate) start: std::time::Instant,
    pub(crate) now: Duration,
}

impl State {
    /// Takes a completion that is no receive.
    pub(crate) fn complete(&mut self, wc: &Wc, clock: Clock) {
        let Some(key) = self.by_qpn.get(&wc.qpn).copied() else {
            return;
        };
        if wc.status != WcStatus::Success {
            let reason = format!("the connection failed ({})", wc.status);
            return self.close(key, true, &reason, clock.now);
        }
        let Some(peer) = self.peers.get_mut(&key) else {
            return;
        };
        match WorkId::parse(wc.wr_id) {
            Some(WorkId::Send { count }) => peer.sent(count),
            Some(WorkId::Piece { transfer }) => {
                let done = peer.piece_done(transfer);
                if wc.opcode == WcOpcode::RdmaRead {
                    peer.last_heard = clock.now;
                }
                match done.map(|it| (it.memory, it.urgency, it.then)) {
                    Some((memory, urgency, Then::Post(message))) => {
                        drop(memory);
                        peer.outbox.put_back(urgency, Out::Ready(message));
                    }
                    Some((memory, _, Then::Deliver(inbound, octets))) => {
                        drop(memory);
                        self.reading -= octets;
                        self.deliver(key, *inbound, clock);
                        self.read_more(clock);
                    }
                    None => {}
                }
            }
            Some(WorkId::Receive { .. }) | None => {}
        }
        self.flush(key, clock.now);
    }

    /// Takes a message.
    pub(crate) fn receive(&mut self, qpn: u32, bytes: &[u8], clock: Clock) {
        let Some(key) = self.by_qpn.get(&qpn).copied() else {
            return;
        };
        match self.handle(key, bytes, clock) {
            Ok(()) => self.flush(key, clock.now),
            Err(violation) => {
                if let Some(peer) = self.peers.get(&key) {
                    tracing::warn!(address = %peer.address, %violation, "a peer breaks the protocol");
                    let is_sealed = matches!(violation, Violation::Seal(_));
                    if is_sealed || peer.secure.as_ref().is_some_and(|it| it.awaits) {
                        self.rights.note(peer.address, &violation);
                    }
                }
                let reason = format!("the peer broke the protocol ({violation})");
                self.close(key, false, &reason, clock.now);
            }
        }
    }

    fn handle(&mut self, key: u64, bytes: &[u8], clock: Clock) -> Result<(), Violation> {
        let Some(peer) = self.peers.get_mut(&key) else {
            return Ok(());
        };
        peer.last_heard = clock.now;
        peer.pinged = None;
        let (message, length) = read(peer.secure.as_mut(), bytes)??;
        peer.credit.granted(message.credit);
        let cost = cost(length);
        if message.is_charged() {
            peer.credit.received(cost)?;
        }
        let number = message.number;
        match message.kind {
            Kind::Call {
                streams,
                urgency,
                service,
                method,
                timeout,
                floor,
                body,
            } => {
                let deadline = Duration::from_micros(timeout.into());
                let route = Route {
                    connection: key,
                    cost,
                    service: ServiceId::of_wire(service),
                    method: MethodId::new(method),
                    urgency,
                    deadline: (timeout > 0).then(|| clock.now + deadline),
                    cancelled: Arc::new(Cancellation::default()),
                };
                self.call(number, floor, route, streams, body, clock)
            }
            Kind::Reply {
                status,
                refused,
                body,
            } => {
                let pending = self.pending.get_mut(&number);
                if let Some(pending) = pending.filter(|it| refused && it.connection == key) {
                    pending.fate = Fate::Refused;
                }
                self.reply(key, number, status, body, cost, clock)
            }
            Kind::Message {
                urgency,
                to,
                from,
                body,
            } => {
                let about = About::Message {
                    number,
                    urgency,
                    to,
                    from,
                    cost,
                };
                check_windows(&body, |window, length| peer.own.check(window, length, None))?;
                peer.granted.add(&body.windows);
                let to = ServiceId::of_wire(to);
                let permitted = self.permit(key, to, None);
                if from != 0 && permitted.is_ok() {
                    self.learned.insert(ServiceId::of_wire(from), key);
                }
                if !self.inboxes.contains_key(&to) {
                    self.refuse(key, about, Code::Unimplemented, "no such service", clock);
                    Ok(())
                } else if let Err(status) = permitted {
                    self.refuse(key, about, status.code, &status.text, clock);
                    Ok(())
                } else {
                    self.take_items(key, about, body, clock)
                }
            }
            Kind::Confirm => {
                self.confirmed(key);
                Ok(())
            }
            Kind::Token(octets) => {
                self.take_token(key, &octets);
                Ok(())
            }
            Kind::Cancel => {
                self.cancelled(key, number, clock);
                Ok(())
            }
            Kind::Done { status, of_reply } => {
                let subject = if of_reply {
                    Subject::Reply(number)
                } else {
                    Subject::Message(number)
                };
                peer.offers.remove(&subject);
                if status != 0 {
                    let status = Code::of_wire(status);
                    tracing::debug!(address = %peer.address, %status, "a message was refused");
                }
                self.stirred = true;
                Ok(())
            }
            Kind::Ping => Ok(peer.pong(number)?),
            Kind::Pong if number == GOING_AWAY => {
                peer.going_away = None;
                self.stirred = true;
                Ok(())
            }
            Kind::Credit | Kind::Pong => Ok(()),
            kind @ (Kind::Stream { .. } | Kind::Grant { .. }) => {
                Ok(self.of_stream(key, number, kind)?)
            }
            Kind::GoAway => {
                self.by_target.retain(|_, connection| *connection != key);
                Ok(())
            }
        }
    }

    fn call(
        &mut self,
        number: u64,
        floor: u64,
        route: Route,
        streams: Streams,
        body: Body,
        clock: Clock,
    ) -> Result<(), Violation> {
        let key = route.connection;
        let Some(peer) = self.peers.get_mut(&key) else {
            return Ok(());
        };
        // No window is for the items of a CALL.
        check_windows(&body, |window, _| Err(BadWindow::Unknown(window)))?;
        Metadata::parse(&body.metadata)?;
        let caller = peer.instance;
        if let Err(status) = self.permit(key, route.service, Some(route.method)) {
            self.answer_status(number, &route, false, status);
            return Ok(());
        }
        let Some(peer) = self.peers.get_mut(&key) else {
            return Ok(());
        };
        let begun = self.executions.begin(caller, number, floor);
        if begun_is_new(&begun) && !body.windows.is_empty() {
            let granted = peer.granted_for.entry(number).or_default();
            granted.add(&body.windows);
        }
        match begun {
            Begin::Over => {
                peer.credit.consume(route.cost);
                peer.granted_for.remove(&number);
            }
            Begin::Running => {
                let cost = route.cost;
                match self.routes.get_mut(&(caller, number)) {
                    // The reply goes to the latest connection.
                    Some(running) if running.connection != key => {
                        running.connection = key;
                        running.cost = cost;
                        self.move_theirs(key, caller, number, streams);
                    }
                    Some(_) | None => peer.credit.consume(cost),
                }
            }
            Begin::Replay(answer) => {
                let reply = answer.reply(number, route.cost);
                peer.outbox.push(route.urgency, reply);
            }
            Begin::ReplyLost => {
                let text = "the call was executed, and its reply is not kept";
                self.answer_at_once(number, &route, Code::Aborted, text);
            }
            Begin::Full => {
                let text = "too many calls of this caller are executed";
                self.answer_at_once(number, &route, Code::ResourceExhausted, text);
            }
            Begin::Execute => {
                let about = About::Call { caller, number };
                let (service, urgency) = (route.service, route.urgency);
                self.routes.insert((caller, number), route);
                self.open_theirs(key, caller, number, streams);
                if self.going_away {
                    let text = "the endpoint is going away: the call was not executed";
                    self.finish(caller, number, &Status::new(Code::Unavailable, text), clock);
                } else if !self.services.contains_key(&service) {
                    let text = format!("no service {service} here");
                    self.finish(
                        caller,
                        number,
                        &Status::new(Code::Unimplemented, text),
                        clock,
                    );
                } else if self.admit(urgency, clock) {
                    return self.take_items(key, about, body, clock);
                } else {
                    self.refuse_for_room(caller, number, clock);
                }
            }
        }
        Ok(())
    }

    /// Whether there is room for a call. One that waits and is less urgent may be refused in its place.
    fn admit(&mut self, urgency: Urgency, clock: Clock) -> bool {
        let (limit, jobs) = (self.limits.waiting, &mut self.jobs);
        match admit(urgency, limit, self.deferred, |it| jobs.count(it)) {
            Admission::Take => true,
            Admission::Refuse => false,
            Admission::Displace(urgency) => {
                if let Some(job) = jobs.remove_newest(urgency) {
                    self.refuse_for_room(job.caller, job.number, clock);
                }
                true
            }
        }
    }

    fn refuse_for_room(&mut self, caller: u64, number: u64, clock: Clock) {
        let text = "too many calls wait: the call was not executed";
        let status = Status::new(Code::ResourceExhausted, text);
        self.finish(caller, number, &status, clock);
    }

    fn answer_at_once(&mut self, number: u64, route: &Route, code: Code, text: &str) {
        self.answer_status(
            number,
            route,
            code != Code::Aborted,
            Status::new(code, text),
        );
    }

    fn answer_status(&mut self, number: u64, route: &Route, refused: bool, status: Status) {
        if let Some(peer) = self.peers.get_mut(&route.connection) {
            let answer = Answer {
                status: status.code.number(),
                refused,
                payload: Arc::new(Payload::short(status.text)),
            };
            peer.outbox
                .push(route.urgency, answer.reply(number, route.cost));
        }
    }

    /// Ends a call that is not executed.
    fn finish(&mut self, caller: u64, number: u64, status: &Status, clock: Clock) {
        self.conclude(caller, number, Err(status.clone()), true, clock);
    }

    /// Takes the result of a call of a peer, and sends its reply.
    pub(crate) fn answer(
        &mut self,
        caller: u64,
        number: u64,
        result: Result<Payload, Status>,
        clock: Clock,
    ) {
        self.conclude(caller, number, result, false, clock);
    }

    fn conclude(
        &mut self,
        caller: u64,
        number: u64,
        result: Result<Payload, Status>,
        refused: bool,
        clock: Clock,
    ) {
        let Some(route) = self.routes.remove(&(caller, number)) else {
            return;
        };
        let (status, payload) = match result {
            Ok(payload) if payload.fits() => (Code::Ok, payload),
            Ok(_) => (
                Code::Internal,
                Payload::short("the reply has too many items"),
            ),
            Err(status) => (status.code, Payload::short(status.text)),
        };
        let used = self.close_theirs(caller, number);
        let (status, payload) = match used {
            Some(connection) if connection != route.connection => {
                let text = "a stream of the call was lost with its connection";
                (Code::Aborted, Payload::short(text))
            }
            _ => (status, payload),
        };
        let answer = Arc::new(Answer {
            status: status.number(),
            refused,
            payload: Arc::new(payload),
        });
        let can_be_kept = used.is_none() && !answer.payload.has_long();
        let octets = can_be_kept.then(|| answer.payload.short_octets() + 256);
        self.executions.finish(caller, number, &answer, octets);
        if let Some(peer) = self.peers.get_mut(&route.connection) {
            peer.outbox
                .push(route.urgency, answer.reply(number, route.cost));
            self.flush(route.connection, clock.now);
        }
    }

    fn cancelled(&mut self, key: u64, number: u64, clock: Clock) {
        let Some(caller) = self.peers.get(&key).map(|peer| peer.instance) else {
            return;
        };
        let Some(route) = self.routes.get(&(caller, number)) else {
            return;
        };
        self.woken.extend(route.cancelled.set());
        self.end_streams(StreamId { caller, number });
        if self.jobs.remove(caller, number) {
            let status = Status::new(Code::Cancelled, "cancelled before it began");
            self.finish(caller, number, &status, clock);
        }
    }

    fn reply(
        &mut self,
        key: u64,
        number: u64,
        status: u16,
        body: Body,
        cost: u64,
        clock: Clock,
    ) -> Result<(), Violation> {
        let Some(peer) = self.peers.get_mut(&key) else {
            return Ok(());
        };
        check_windows(&body, |window, length| {
            peer.own.check(window, length, Some(number))
        })
        .or_else(|bad| {
            // One that comes after its windows were withdrawn is too late, and not wrong.
            let is_open = self
                .pending
                .get(&number)
                .is_some_and(|it| it.connection == key);
            if is_open { Err(bad) } else { Ok(()) }
        })?;
        Metadata::parse(&body.metadata)?;
        peer.credit.consume(cost);
        peer.offers.remove(&Subject::Call(number));
        let about = About::Reply { number, status };
        match self.calls.reply(number) {
            Replied::Deliver => self.take_items(key, about, body, clock),
            Replied::Abandoned | Replied::Unknown => {
                let offers = |item: &WireItem| matches!(item, WireItem::Offered { .. });
                if body.items.iter().any(offers) {
                    self.done(key, number, Code::Cancelled, true);
                }
                self.withdraw(key, number);
                Ok(())
            }
        }
    }

    fn done(&mut self, key: u64, number: u64, status: Code, of_reply: bool) {
        if let Some(peer) = self.peers.get_mut(&key) {
            let status = status.number();
            peer.control(number, Kind::Done { status, of_reply });
        }
    }

    /// Refuses the items of a message.
    pub(super) fn refuse(&mut self, key: u64, about: About, code: Code, text: &str, clock: Clock) {
        match about {
            About::Call { caller, number } => {
                self.finish(caller, number, &Status::new(code, text), clock);
            }
            About::Reply { number, .. } => {
                self.done(key, number, code, true);
                self.withdraw(key, number);
                self.end(number, Err(Status::new(code, text)));
            }
            About::Message { number, cost, .. } => {
                self.done(key, number, code, false);
                if let Some(peer) = self.peers.get_mut(&key) {
                    peer.credit.consume(cost);
                }
            }
        }
    }

    /// Gives the program a message that is whole.
    pub(super) fn deliver(&mut self, key: u64, inbound: Inbound, clock: Clock) {
        match inbound.about {
            About::Call { caller, number } => {
                let Some(route) = self.routes.get(&(caller, number)) else {
                    return;
                };
                let Some(service) = self.services.get(&route.service).cloned() else {
                    return;
                };
                let Some(peer) = self.peers.get(&key) else {
                    return;
                };
                let request = Request {
                    service: route.service,
                    method: route.method,
                    payload: inbound.payload,
                    caller: peer.address,
                    client: peer.secure.as_ref().map(Secure::peer),
                    urgency: route.urgency,
                    deadline: route.deadline.map(|at| clock.start + at),
                    cancelled: Arc::clone(&route.cancelled),
                };
                self.jobs.add(Job {
                    caller,
                    number,
                    service,
                    request,
                });
            }
            About::Reply { number, status } => {
                if inbound.read {
                    self.done(key, number, Code::Ok, true);
                }
                self.withdraw(key, number);
                let result = match Code::of_wire(status) {
                    Code::Ok => Ok(inbound.payload),
                    code => {
                        let text = inbound.payload.bytes(0);
                        Err(Status::new(code, String::from_utf8_lossy(&text)))
                    }
                };
                self.end(number, result);
            }
            About::Message {
                number,
                urgency,
                to,
                from,
                cost,
            } => {
                if inbound.read {
                    self.done(key, number, Code::Ok, false);
                }
                if let Some(inbox) = self.inboxes.get_mut(&ServiceId::of_wire(to)) {
                    let from = ServiceId::of_wire(from);
                    let incoming = Incoming {
                        from,
                        payload: inbound.payload,
                    };
                    inbox.messages.push(urgency, (key, cost, incoming));
                    self.stirred = true;
                }
            }
        }
    }
}

fn begun_is_new<R>(begun: &Begin<R>) -> bool {
    !matches!(begun, Begin::Over)
}
