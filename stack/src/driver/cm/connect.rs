//! Connection management: establishment and end of connections as events of one queue.
//!
//! A [`Cm`] runs MPA startups, links established connections to their QPs, and queues events for the program. A waiting program
//! makes progress, or the background thread where the `Cm` was given to that.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::num::NonZeroU16;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Weak};
use std::time::Instant;

use dgiwarp_llp_tcp_mpa::{Error as MpaError, Established, Event, Negotiation, Rejection};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use socket2::Socket;

use crate::driver::cm::event_connections::EventConnections;
use crate::driver::cm::events::{CmQueue, IncomingRequest, PendingEstablished};
use crate::driver::cm::held::{Held, HeldConnections};
use crate::driver::cm::port_queries::{Asked, MovedListener, PortQueries};
use crate::driver::cm::rd_carrier::{Caller, Candidate};
use crate::driver::cm::timewait::Timewait;
use crate::driver::device::clock;
use crate::driver::reactor::event_queue::EventQueue;
use crate::driver::reactor::io_set::IoId;
use crate::driver::reactor::waker::Task;
use crate::driver::tcp::mpa_startup::{
    AfterTcp, Failure, ListenerId, MpaStartups, Outcome, StartupResult,
};
use crate::driver::tcp::port::Moved;
use crate::driver::tcp::qp::{RcShared, Startup};
use crate::driver::tcp::socket as tcp;
use crate::{
    Access, ConnectError, ConnectionEvent, ConnectionPort, ConnectionSink, Error, MpaConfig,
    PortOptions, RcRequest, Rnic,
};
use dgiwarp_engine::cm::connect::{AttemptFailure, Attempts, NextAttempt, RTR_WITHIN};
use dgiwarp_engine::cm::ports::{Found, PortMemory};
use dgiwarp_engine::connected::RcConfig;

/// Most accepted connections that are received on before a request is reported, so that strangers' silent ones cost each request little.
const MAX_ORDERED: usize = 64;

/// Connections and their events.
#[derive(Debug)]
pub(crate) struct Cm {
    startups: MpaStartups,
    /// `None` where connections are neither begun nor moved.
    ports: Option<PortQueries>,
    callers: Mutex<Callers>,
    /// Hosts, and QPs that accepted a connection of theirs whose establishment may not be reported yet: the latest [`MAX_ORDERED`], oldest first. Locked while
    /// a request is reported or accepted, so that the order of events is that of the peers' actions.
    accepted: Mutex<VecDeque<(IpAddr, Weak<RcShared>)>>,
    queue: Arc<CmQueue>,
    held: HeldConnections,
}

#[derive(Debug, Default)]
struct Callers {
    next: u64,
    waiting: FxHashMap<u64, Box<Calling>>,
    /// Attempts that were refused, each with the time of the next.
    refused: Vec<(Instant, Box<Calling>)>,
    memory: PortMemory,
}

/// An attempt to connect, and what is needed for another.
#[derive(Debug)]
struct Calling {
    caller: Caller,
    from: Option<(SocketAddr, PortOptions)>,
    /// The address that the program named.
    to: SocketAddr,
    /// Number of the latest attempt.
    attempt: u64,
    /// The query that was sent to the port.
    query: Option<IoId>,
    /// A query about the port had a result.
    answered: bool,
    attempts: Attempts,
    private_data: Vec<u8>,
}

impl Cm {
    /// Connection management; for a device, it also begins connections and moves listeners.
    pub(crate) fn new(
        sink: Option<Arc<dyn ConnectionSink>>,
        rnic: Option<&Rnic>,
    ) -> Result<Arc<Self>, Error> {
        let startups = MpaStartups::new()?;
        let ports = rnic.map(PortQueries::new).transpose()?;
        if let Some(ports) = &ports {
            let polled = startups.poll_with(ports.fd());
            polled.map_err(Error::system("cannot poll an epoll set"))?;
        }
        Ok(Arc::new(Self {
            startups,
            ports,
            callers: Mutex::default(),
            accepted: Mutex::default(),
            queue: Arc::new(CmQueue {
                events: EventQueue::new()?,
                sink,
                timewait: Timewait::default(),
                event_connections: EventConnections::new(
                    rnic.map(|rnic| Arc::clone(rnic.shared.background.waker())),
                ),
            }),
            held: HeldConnections::default(),
        }))
    }

    /// Connections that wait for their program.
    pub(crate) fn held(&self) -> &HeldConnections {
        &self.held
    }

    /// Begins to send on a connection that waited for its program.
    pub(crate) fn establish(&self, context: u64) {
        if let Some(held) = self.held.release(context) {
            self.link_held(held);
        }
    }

    /// A QP that was destroyed or flushed meanwhile is not linked, and TCP ends.
    fn link_held(&self, held: Held) {
        let Held {
            mut caller,
            peer,
            outcome,
            ..
        } = held;
        match link(&mut caller, peer, outcome) {
            Ok(_) => caller.qp.report_end(&self.queue, caller.context),
            Err(_) => caller.unclaim(),
        }
    }

    /// Ends of connections, some time later.
    pub(crate) fn timewait(&self) -> &Timewait {
        &self.queue.timewait
    }

    /// Readable while [`take`](Self::take) returns an event.
    pub(crate) fn event_fd(&self) -> BorrowedFd<'_> {
        self.queue.events.as_fd()
    }

    /// Begins to connect a QP that was claimed for it.
    pub(crate) fn connect(
        &self,
        caller: Caller,
        from: Option<ConnectionPort>,
        to: SocketAddr,
        mpa: &MpaConfig,
        private_data: &[u8],
    ) -> Result<(), ConnectError> {
        let calling = Box::new(Calling {
            caller,
            from: from.as_ref().map(|it| (it.local_addr(), it.options)),
            to,
            attempt: 0,
            query: None,
            answered: false,
            attempts: Attempts::new(clock::now(), mpa),
            private_data: private_data.to_vec(),
        });
        let socket = from.map(|it| it.socket);
        self.begin(calling, socket, None)
            .map_err(|(error, calling)| {
                self.give_up(&calling);
                error.into()
            })
    }

    /// Begins an attempt, at the TCP port to which the listener has moved if that was found.
    fn begin(
        &self,
        mut calling: Box<Calling>,
        from: Option<Socket>,
        moved: Option<NonZeroU16>,
    ) -> Result<(), (io::Error, Box<Calling>)> {
        let mut callers = self.callers.lock();
        let id = callers.next;
        callers.next += 1;
        calling.attempt = id;
        let (moved, after) = match moved {
            Some(_) => (moved, AfterTcp::Request),
            None => self.query(&callers.memory, &mut calling),
        };
        let mut to = calling.to;
        if let Some(port) = moved {
            to.set_port(port.get());
        }
        // Under the lock, so that its outcome finds the caller.
        let mpa = calling.attempts.config().clone();
        let private_data = calling.private_data.as_slice();
        match self
            .startups
            .connect(from, to, (mpa, after), private_data, id)
        {
            Ok(()) => {
                callers.waiting.insert(id, calling);
                Ok(())
            }
            Err(error) => Err((error, calling)),
        }
    }

    /// Queries the port of an attempt, unless that is known. Returns the TCP port that the listener has moved to, and whether the MPA Request waits for that.
    fn query(&self, memory: &PortMemory, calling: &mut Calling) -> (Option<NonZeroU16>, AfterTcp) {
        let Some(ports) = self.ports.as_ref().filter(|ports| ports.asks()) else {
            return (None, AfterTcp::Request);
        };
        let out = calling.query.take();
        if let Some(query) = out.filter(|query| ports.hand_over(*query, calling.attempt)) {
            calling.query = Some(query);
            return (None, AfterTcp::Hold);
        }
        let after = if memory.waits(clock::now(), calling.to) {
            AfterTcp::Hold
        } else {
            AfterTcp::Request
        };
        let from = calling.from.map(|(from, _)| from);
        match ports.ask(from, calling.to, calling.attempt) {
            Ok(Asked::Pending(query)) => {
                calling.query = Some(query);
                (None, after)
            }
            Ok(Asked::Over(found)) => {
                calling.answered = true;
                match found {
                    Found::Moved(port) => (Some(port), AfterTcp::Request),
                    Found::Here => (None, AfterTcp::Request),
                }
            }
            // Without a descriptor for it the connection is made as before.
            Err(_) => (None, AfterTcp::Request),
        }
    }

    /// A query has its result.
    fn found(&self, attempt: u64, found: Found) {
        let mut callers = self.callers.lock();
        match found {
            Found::Here => {
                if let Some(calling) = callers.waiting.get_mut(&attempt) {
                    calling.answered = true;
                    drop(callers);
                    self.startups.release(attempt);
                }
            }
            Found::Moved(port) => {
                let mut waiting = callers.waiting.remove(&attempt);
                if waiting.is_none() {
                    let mut refused = callers
                        .refused
                        .extract_if(.., |(_, calling)| calling.attempt == attempt);
                    waiting = refused.next().map(|(_, calling)| calling);
                }
                drop(callers);
                self.startups.abandon(attempt);
                if let Some(calling) = waiting
                    && let Err(calling) = self.call_again(calling, Some(port))
                {
                    self.failed(&calling, ConnectError::Tcp(refused()));
                }
            }
        }
    }

    /// An attempt has failed. Gives back the caller where there is no other.
    fn call_after(
        &self,
        failure: AttemptFailure,
        mut calling: Box<Calling>,
    ) -> Result<(), Box<Calling>> {
        match calling.attempts.failed(clock::now(), failure) {
            NextAttempt::Now => self.call_again(calling, None),
            NextAttempt::At(at) => {
                self.callers.lock().refused.push((at, calling));
                Ok(())
            }
            NextAttempt::Never => Err(calling),
        }
    }

    /// Begins another attempt. Gives back the caller where no time is left.
    fn call_again(
        &self,
        mut calling: Box<Calling>,
        moved: Option<NonZeroU16>,
    ) -> Result<(), Box<Calling>> {
        if !calling.attempts.begin_again(clock::now()) {
            return Err(calling);
        }
        let from = match calling.from.map(|(on, options)| tcp::bind(on, options)) {
            Some(Ok(socket)) => Some(socket),
            Some(Err(_)) => return Err(calling),
            None => None,
        };
        self.begin(calling, from, moved)
            .map_err(|(_, calling)| calling)
    }

    /// Ends a caller's attempts.
    fn give_up(&self, calling: &Calling) {
        if let (Some(ports), Some(query)) = (&self.ports, calling.query) {
            ports.end(query);
        }
        calling.caller.unclaim();
    }

    /// Begins the repeated attempts that are due.
    fn call_refused(&self) {
        let due: Vec<_> = {
            let mut callers = self.callers.lock();
            if callers.refused.is_empty() {
                return;
            }
            let now = clock::now();
            callers
                .refused
                .extract_if(.., |(at, _)| *at <= now)
                .collect()
        };
        for (_, calling) in due {
            if let Err(calling) = self.call_again(calling, None) {
                self.failed(&calling, ConnectError::Tcp(refused()));
            }
        }
    }

    /// Gives up the attempts of one context.
    pub(crate) fn cancel(&self, context: u64) {
        if let Some(held) = self.held.release(context) {
            held.caller.unclaim();
        }
        let mut callers = self.callers.lock();
        let theirs: Vec<u64> = callers
            .waiting
            .iter()
            .filter(|(_, calling)| calling.caller.context == context)
            .map(|(id, _)| *id)
            .collect();
        for id in theirs {
            if let Some(calling) = callers.waiting.remove(&id) {
                self.give_up(&calling);
            }
            self.startups.abandon(id);
        }
        let refused = callers
            .refused
            .extract_if(.., |(_, calling)| calling.caller.context == context);
        for (_, calling) in refused {
            self.give_up(&calling);
        }
    }

    /// Reads a rejected connection to its end.
    pub(crate) fn linger(&self, stream: TcpStream) -> io::Result<()> {
        self.startups.linger(stream)
    }

    pub(crate) fn listen(
        &self,
        listener: TcpListener,
        mpa: MpaConfig,
        context: u64,
    ) -> Result<ListenerId, Error> {
        self.startups
            .listen(listener, mpa, context)
            .map_err(Error::system("cannot watch a socket"))
    }

    pub(crate) fn unlisten(&self, listener: ListenerId) {
        self.startups.unlisten(listener);
    }

    /// Reports the end of a connection that a request led to.
    pub(crate) fn watch(&self, qp: &RcShared, context: u64) {
        qp.report_end(&self.queue, context);
    }

    /// Has the ends of a connection with events alone, and of the QP that has its messages, follow each other.
    pub(crate) fn watch_both(&self, context: u64, candidate: &Candidate) {
        let Candidate {
            rd,
            carrier,
            events,
        } = candidate;
        let watched = &self.queue.event_connections;
        watched.watch(context, (rd, events), carrier.disconnects());
    }

    /// Accepts a connection with `accept`, and reports its establishment and its end.
    pub(crate) fn accept_reported(
        &self,
        qp: &Arc<RcShared>,
        peer: SocketAddr,
        context: u64,
        accept: impl FnOnce() -> Result<Negotiation, ConnectError>,
    ) -> Result<Negotiation, ConnectError> {
        let mut accepted = self.accepted.lock();
        let negotiation = accept()?;
        let pending = PendingEstablished {
            established: Established {
                negotiation,
                send_rtr: None,
                private_data: Vec::new(),
                datagrams: None,
            },
            peer,
            until: clock::now() + RTR_WITHIN,
        };
        if qp.report_established(&self.queue, context, pending) {
            if accepted.len() == MAX_ORDERED {
                accepted.pop_front();
            }
            accepted.push_back((peer.ip(), Arc::downgrade(qp)));
        }
        Ok(negotiation)
    }

    /// Reports a request; as a failure also where the peer has left again. An Initiator that makes its connections one after the other has sent the first FPDU of
    /// the one before: the establishment of that one comes first.
    fn report_arrived(&self, mut over: StartupResult) {
        if matches!(&over.outcome, Outcome::Mpa { stream, .. } if tcp::has_ended(stream)) {
            over.outcome = Outcome::Failed(Failure::Mpa(MpaError::ClosedInStartup));
        }
        let mut accepted = self.accepted.lock();
        accepted.retain(|(host, qp)| {
            *host != over.peer.ip() || qp.upgrade().is_some_and(|qp| qp.awaits_first_fpdu())
        });
        self.queue.push(arrived(over));
    }

    /// An attempt to connect is over.
    fn called(&self, over: StartupResult) {
        let Some(mut calling) = self.callers.lock().waiting.remove(&over.context) else {
            return;
        };
        self.remember(&calling, &over);
        let again = match over.outcome.attempt_failure() {
            Some(failure) => self.call_after(failure, calling),
            None => Err(calling),
        };
        match again {
            Ok(()) => return,
            Err(unchanged) => calling = unchanged,
        }
        if let (Some(ports), Some(query)) = (&self.ports, calling.query.take()) {
            ports.end(query);
        }
        let (context, peer) = (calling.caller.context, over.peer);
        let Calling { mut caller, to, .. } = *calling;
        if let Some(established) = self.held.wants(context, &over.outcome) {
            self.held.put(caller, peer, over.outcome);
            return self.queue.push(ConnectionEvent::Established {
                context,
                established,
            });
        }
        let happened = match link(&mut caller, peer, over.outcome) {
            Ok(Ok((established, candidate))) => {
                if let Some(candidate) = candidate {
                    self.watch_both(context, &candidate);
                }
                self.queue.push(ConnectionEvent::Established {
                    context,
                    established,
                });
                // Only now, so that Disconnected is queued behind Established.
                caller.qp.report_end(&self.queue, context);
                return;
            }
            Ok(Err(rejection)) => ConnectionEvent::Rejected { context, rejection },
            Err(error) => ConnectionEvent::Failed {
                context,
                peer: to,
                error,
            },
        };
        caller.unclaim();
        self.queue.push(happened);
    }

    /// Remembers whether the port that the program named spoke MPA without an answer to its query.
    fn remember(&self, calling: &Calling, over: &StartupResult) {
        let mut callers = self.callers.lock();
        match over.outcome {
            Outcome::Mpa { .. } if over.peer == calling.to && !calling.answered => {
                callers.memory.was_silent(clock::now(), calling.to);
            }
            Outcome::Mpa { .. } | Outcome::Failed(_) => callers.memory.forget(calling.to),
        }
    }

    /// Reports a failed attempt.
    fn failed(&self, calling: &Calling, error: ConnectError) {
        self.give_up(calling);
        self.queue.push(ConnectionEvent::Failed {
            context: calling.caller.context,
            peer: calling.to,
            error,
        });
    }

    /// Answers queries for a listener that has moved away from the port `named`.
    pub(crate) fn answer_for(&self, named: SocketAddr, moved: Moved) -> io::Result<MovedListener> {
        let ports = self.ports.as_ref().ok_or(io::ErrorKind::Unsupported)?;
        ports.answer_for(named, moved)
    }

    /// Ends the answers for a listener.
    pub(crate) fn forget(&self, listener: &MovedListener) {
        if let Some(ports) = &self.ports {
            ports.forget(listener);
        }
    }

    /// Gives a UDP port up for a service of the device. Returns whether it was taken for port queries.
    pub(crate) fn give_up_queries(&self, port: u16) -> bool {
        let ports = self.ports.as_ref();
        ports.is_some_and(|ports| ports.give_up(port))
    }

    /// Lets a listener listen at another socket.
    pub(crate) fn replace(&self, listener: ListenerId, by: TcpListener) -> io::Result<()> {
        self.startups.replace(listener, by)
    }

    /// Takes the oldest event.
    pub(crate) fn take(&self) -> Option<ConnectionEvent> {
        self.queue.events.take()
    }

    /// Takes the oldest event; until `deadline` it waits for one and drives the connections.
    pub(crate) fn wait(&self, deadline: Option<Instant>) -> Option<ConnectionEvent> {
        self.take()
            .or_else(|| self.queue.events.wait(self, deadline))
    }
}

impl Task for Cm {
    fn work_fd(&self) -> BorrowedFd<'_> {
        self.startups.fd()
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let callers = self.callers.lock();
        let refused = callers.refused.iter().map(|(at, _)| *at);
        let queries = self.ports.as_ref().and_then(PortQueries::poll_timeout);
        refused
            .chain(self.startups.poll_timeout())
            .chain(queries)
            .chain(self.timewait().poll_timeout())
            .chain(self.held.poll_timeout())
            .chain(self.queue.event_connections.poll_timeout())
            .min()
    }

    fn progress(&self) {
        self.call_refused();
        while let Some(context) = self.timewait().take_due() {
            self.queue.push(ConnectionEvent::TimewaitExit { context });
        }
        while let Some(held) = self.held.take_due() {
            self.link_held(held);
        }
        self.queue
            .event_connections
            .progress(|event| self.queue.report(event));
        if let Some(ports) = &self.ports {
            for (attempt, found) in ports.progress() {
                self.found(attempt, found);
            }
        }
        self.startups.progress();
        while let Some(over) = self.startups.take() {
            if over.inbound {
                self.report_arrived(over);
            } else {
                self.called(over);
            }
        }
    }
}

/// Error of TCP for a peer that does not listen.
fn refused() -> io::Error {
    io::Error::from_raw_os_error(nix::libc::ECONNREFUSED)
}

/// Establishment of a connection, and the QP that has its messages where they go by reliable datagrams.
type Linked = (Established, Option<Candidate>);

/// Links a QP with the connection that is up.
fn link(
    caller: &mut Caller,
    peer: SocketAddr,
    outcome: Outcome,
) -> Result<Result<Linked, Rejection>, ConnectError> {
    let (event, connection, stream, rest) = match outcome {
        Outcome::Mpa {
            event,
            connection,
            stream,
            rest,
        } => (event, connection, stream, rest),
        Outcome::Failed(failure) => return Err(failure.into()),
    };
    match event {
        Event::Established(established) => {
            let ord = established.negotiation.depths.ord;
            let terms = established.datagrams;
            let candidate = terms.and_then(|terms| caller.accept_terms(terms, ord));
            let startup = Startup {
                send_rtr: established.send_rtr,
                rest: &rest,
            };
            let config = RcConfig {
                qpn: caller.qpn,
                pd: caller.pd,
                peer,
                options: caller.qp.unlocked.options,
                paired: false,
                denied: Access::empty(),
            };
            let ticket = caller.ticket;
            caller
                .qp
                .link(ticket, config, *connection, stream.into(), startup)?;
            Ok(Ok((established, candidate)))
        }
        Event::Rejected(rejection) => Ok(Err(rejection)),
        Event::Request(_) | Event::Failed(_) | Event::PeerClosed => {
            unreachable!("not outcomes of an Initiator's startup")
        }
    }
}

/// Event of a listener's startup: a request, or a failure.
fn arrived(over: StartupResult) -> ConnectionEvent {
    let (context, peer) = (over.context, over.peer);
    match over.outcome {
        Outcome::Mpa {
            event: Event::Request(request),
            connection,
            stream,
            ..
        } => ConnectionEvent::Request {
            context,
            request: RcRequest {
                incoming: IncomingRequest {
                    stream,
                    peer,
                    connection,
                    request,
                },
            },
        },
        Outcome::Mpa { .. } => unreachable!("not an outcome of a Responder before its answer"),
        Outcome::Failed(failure) => ConnectionEvent::Failed {
            context,
            peer,
            error: failure.into(),
        },
    }
}

impl From<Failure> for ConnectError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Tcp(error) => Self::Tcp(error),
            Failure::Mpa(error) => Self::Mpa(error),
            Failure::Config(error) => Self::Config(error),
        }
    }
}
