//! RC QPs of rdma_cm whose messages go by reliable datagrams (`rfc-notes/reliable-datagrams.md` §9.2): the offer of an Initiator, and the ends of their
//! connections.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

use dgiwarp_llp_tcp_mpa::DatagramTerms;
use dgiwarp_llp_udp::Peer;
use dgiwarp_llp_udp::rd::Lives;
use parking_lot::{Mutex, RwLock};
use rustc_hash::FxHashMap;

use crate::ConnectionEvent;
use crate::driver::cm::connect::Caller;
use crate::driver::cm::events::CmQueue;
use crate::driver::device::clock;
use crate::driver::reactor::waker::Waker;
use crate::driver::tcp::qp::{ConnectTicket, RcShared};
use crate::driver::udp::rd_qp::RdShared;
use dgiwarp_engine::connected::DeferredDisconnect;
use dgiwarp_engine::types::Route;

/// The peer with its path.
#[derive(Debug)]
pub(crate) struct Connected {
    pub(crate) route: Route,
    /// Its port is 0 where the engine learns it.
    pub(crate) peer: Peer,
    pub(crate) rq_psn: u32,
}

/// State of an RC QP on reliable datagrams beside its engine.
#[derive(Debug, Default)]
pub(crate) struct Carrier {
    pub(crate) connected: RwLock<Option<Connected>>,
    /// Messages go by datagrams: both ends of a connection of rdma_cm agreed, or the programs exchanged QPNs.
    agreed: AtomicBool,
    /// The program of this end has disconnected.
    disconnects: AtomicBool,
}

impl Carrier {
    /// Whether messages go by datagrams.
    #[inline]
    pub(crate) fn is_agreed(&self) -> bool {
        self.agreed.load(Ordering::Acquire)
    }

    /// Messages go by datagrams from now on.
    pub(crate) fn agree(&self) {
        self.agreed.store(true, Ordering::Release);
    }

    /// The program of this end disconnects.
    pub(crate) fn disconnect(&self) {
        self.disconnects.store(true, Ordering::Release);
    }

    /// The QP is reset.
    pub(crate) fn forget(&self) {
        *self.connected.write() = None;
        self.agreed.store(false, Ordering::Release);
        self.disconnects.store(false, Ordering::Release);
    }
}

/// An RC QP that may be connected so that its messages go by reliable datagrams.
#[derive(Debug, Clone)]
pub(crate) struct Candidate {
    pub(crate) rd: Arc<RdShared>,
    pub(crate) carrier: Arc<Carrier>,
    /// QP of the connection that carries events and private data.
    pub(crate) events: Arc<RcShared>,
}

/// The offer of an Initiator.
#[derive(Debug)]
pub(crate) struct Offer {
    pub(crate) candidate: Candidate,
    pub(crate) ticket: ConnectTicket,
    /// Number of the QP of events.
    pub(crate) qpn: u32,
    pub(crate) route: Route,
}

impl Candidate {
    /// Connects the QP as Initiator, on the terms of the Responder. Its hello leaves at once.
    pub(crate) fn open(&self, terms: DatagramTerms, route: Route, ord: u16) {
        let to = match route.destination() {
            std::net::IpAddr::V4(v4) => SocketAddr::from((v4, terms.port)),
            std::net::IpAddr::V6(v6) => {
                std::net::SocketAddrV6::new(v6, terms.port, 0, route.scope_id()).into()
            }
        };
        let peer = Peer::ip(to);
        let lives = Lives {
            own: terms.initiator_psn,
            peer: terms.responder_psn,
        };
        let local = route.source().unwrap_or_else(|| route.route_source());
        self.rd.run(|inner| {
            inner.engine.connect(peer, Some(local));
            inner.engine.set_lives(lives);
            inner.engine.set_ord(ord);
            inner.engine.greet_peer(clock::now(), &route);
            self.rd.work(inner);
        });
        self.agree(peer, route, lives.peer);
    }

    /// Connects the QP as Responder on its own terms: the hello of the Initiator is awaited.
    pub(crate) fn await_peer(&self, terms: DatagramTerms, route: Route, ord: u16) {
        let host = route.destination();
        let lives = Lives {
            own: terms.responder_psn,
            peer: terms.initiator_psn,
        };
        self.rd.run(|inner| {
            inner.engine.await_peer(host);
            inner.engine.set_lives(lives);
            inner.engine.set_ord(ord);
        });
        self.agree(Peer::ip(SocketAddr::new(host, 0)), route, lives.peer);
    }

    fn agree(&self, peer: Peer, route: Route, rq_psn: u32) {
        *self.carrier.connected.write() = Some(Connected {
            route,
            peer,
            rq_psn,
        });
        self.carrier.agree();
        self.rd.start_receiving();
    }
}

impl Caller {
    /// The connection carries events alone, as the Responder accepts datagrams. Returns the QP that has the messages, if the offer stands.
    pub(crate) fn accept_terms(&mut self, terms: DatagramTerms, ord: u16) -> Option<Candidate> {
        let Offer {
            candidate,
            ticket,
            qpn,
            route,
        } = *self.offer.take()?;
        candidate.open(terms, route, ord);
        (self.qp, self.ticket, self.qpn) = (Arc::clone(&candidate.events), ticket, qpn);
        Some(candidate)
    }

    /// No connection comes of this: the QPs may be connected again.
    pub(crate) fn unclaim(&self) {
        self.qp.unclaim(self.ticket);
        if let Some(offer) = &self.offer {
            offer.candidate.events.unclaim(offer.ticket);
        }
    }
}

/// A connection with events alone, and the QP that has its messages.
#[derive(Debug)]
struct Watched {
    rd: Weak<RdShared>,
    events: Weak<RcShared>,
    carrier: Arc<Carrier>,
    /// The QP of messages ended before, and the connection is told.
    told: bool,
    /// The end of the connection, which is not reported yet.
    end: Option<ConnectionEvent>,
    /// All that arrived before it is placed, and the rest is flushed.
    flushed: bool,
    deferred: DeferredDisconnect,
}

/// Connections with events alone, by the numbers that the program gave them. The end of either QP ends the other; the event of the end comes behind the
/// completions from before.
#[derive(Debug)]
pub(crate) struct EventConnections {
    watched: Mutex<FxHashMap<u64, Watched>>,
    signal: Arc<EndSignal>,
    /// Connections at which those are forgotten whose QPs are gone.
    limit: Mutex<usize>,
}

/// Whether a QP has ended, and the thread that follows it.
#[derive(Debug)]
pub(crate) struct EndSignal {
    ended: AtomicBool,
    waker: Option<Arc<Waker>>,
}

impl EndSignal {
    /// A QP has ended.
    pub(crate) fn raise(&self) {
        self.ended.store(true, Ordering::Release);
        if let Some(waker) = &self.waker {
            waker.wake();
        }
    }
}

/// Work that an end makes, without the lock.
struct Due {
    context: u64,
    rd: Weak<RdShared>,
    events: Weak<RcShared>,
    flushed: bool,
    has_end: bool,
}

impl EventConnections {
    pub(crate) fn new(waker: Option<Arc<Waker>>) -> Self {
        Self {
            watched: Mutex::default(),
            signal: Arc::new(EndSignal {
                ended: AtomicBool::new(false),
                waker,
            }),
            limit: Mutex::new(64),
        }
    }

    /// Has the ends of both QPs follow each other.
    pub(crate) fn watch(&self, context: u64, candidate: &Candidate) {
        candidate.rd.signal_end(&self.signal);
        let mut watched = self.watched.lock();
        let mut limit = self.limit.lock();
        if watched.len() >= *limit {
            watched.retain(|_, it| it.end.is_some() || it.rd.strong_count() > 0);
            *limit = 2 * watched.len() + 64;
        }
        let this = Watched {
            rd: Arc::downgrade(&candidate.rd),
            events: Arc::downgrade(&candidate.events),
            carrier: Arc::clone(&candidate.carrier),
            told: false,
            end: None,
            flushed: false,
            deferred: DeferredDisconnect::default(),
        };
        watched.insert(context, this);
        drop((watched, limit));
        // It may have ended before.
        self.signal.raise();
    }

    /// Keeps the end of a connection with events alone. Any other event comes back.
    pub(crate) fn keep_end(&self, happened: ConnectionEvent) -> Option<ConnectionEvent> {
        let (ConnectionEvent::Disconnected { context, .. }
        | ConnectionEvent::Failed { context, .. }) = happened
        else {
            return Some(happened);
        };
        let mut watched = self.watched.lock();
        let Some(this) = watched.get_mut(&context) else {
            return Some(happened);
        };
        this.end = Some(happened);
        drop(watched);
        self.signal.raise();
        None
    }

    /// When [`progress`](Self::progress) looks again whether completions were taken.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let watched = self.watched.lock();
        let waiting = watched.values().filter(|it| it.end.is_some());
        waiting.filter_map(|it| it.deferred.deadline()).min()
    }

    /// Follows ends. Events that are due go to `queue`.
    pub(crate) fn progress(&self, queue: &CmQueue) {
        let now = clock::now();
        let timed = self.poll_timeout().is_some_and(|at| at <= now);
        if !self.signal.ended.swap(false, Ordering::AcqRel) && !timed {
            return;
        }
        for due in self.due() {
            let (rd, events) = (due.rd.upgrade(), due.events.upgrade());
            if !due.has_end {
                if let Some(events) = events {
                    events.disconnect();
                }
                continue;
            }
            if let Some(rd) = rd.as_ref().filter(|_| !due.flushed) {
                rd.end_behind_arrived();
            }
            let untaken = || rd.as_ref().is_some_and(|rd| rd.has_success());
            if let Some(event) = self.take_end(due.context, now, untaken) {
                queue.report(event);
            }
        }
    }

    /// Connections with work.
    fn due(&self) -> Vec<Due> {
        let mut watched = self.watched.lock();
        let due = watched.iter_mut().filter_map(|(context, it)| {
            let has_end = it.end.is_some();
            if !has_end {
                let ended = !it.told && it.rd.upgrade().is_some_and(|rd| rd.is_over());
                if !ended {
                    return None;
                }
                it.told = true;
            }
            let due = Due {
                context: *context,
                rd: Weak::clone(&it.rd),
                events: Weak::clone(&it.events),
                flushed: it.flushed,
                has_end,
            };
            it.flushed |= has_end;
            Some(due)
        });
        due.collect()
    }

    /// Takes the end of a connection that is to be reported now.
    fn take_end(
        &self,
        context: u64,
        now: Instant,
        untaken: impl FnOnce() -> bool,
    ) -> Option<ConnectionEvent> {
        let mut watched = self.watched.lock();
        let this = watched.get_mut(&context)?;
        let is_due = match this.end.as_ref()? {
            ConnectionEvent::Disconnected { end, .. } => {
                let disconnects = this.carrier.disconnects.load(Ordering::Acquire);
                this.deferred.is_due(now, *end, disconnects, untaken)
            }
            _ => true,
        };
        let ended = if is_due {
            watched.remove(&context)
        } else {
            None
        };
        ended.and_then(|it| it.end)
    }
}
