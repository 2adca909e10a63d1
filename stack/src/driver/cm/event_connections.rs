//! Connections of rdma_cm beside which messages go by reliable datagrams (`rfc-notes/reliable-datagrams.md` §9.2): the end of either QP is that of the other.

use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use crate::ConnectionEvent;
use crate::driver::device::clock;
use crate::driver::reactor::waker::Waker;
use dgiwarp_engine::connected::{DeferredDisconnect, RcEnd};

/// The QP that has the messages of a connection.
pub(crate) trait Messages: Debug + Send + Sync {
    /// Has the end of the connection raise a signal.
    fn signal_end(&self, signal: &Arc<EndSignal>);
    /// Whether it has ended.
    fn is_over(&self) -> bool;
    /// Places what has arrived, and ends it; receives stay behind an `orderly` end.
    fn end_behind_arrived(&self, orderly: bool);
    /// Whether completions of messages lie in the completion queues.
    fn has_success(&self) -> bool;
}

/// The QP of a connection with events alone.
pub(crate) trait Events: Debug + Send + Sync {
    /// Ends the connection in order.
    fn disconnect(&self);
}

/// A connection with events alone, and the QP that has its messages.
#[derive(Debug)]
struct Watched {
    rd: Weak<dyn Messages>,
    events: Weak<dyn Events>,
    /// The program of this end has disconnected.
    disconnects: Arc<AtomicBool>,
    /// The QP of messages ended before, and the connection is told.
    told: bool,
    /// The end of the connection, which is not reported yet.
    end: Option<ConnectionEvent>,
    /// All that arrived before it is placed, and the rest is flushed.
    flushed: bool,
    deferred: DeferredDisconnect,
}

impl Watched {
    /// Whether the peer ended the connection in order, and the program of this end has not.
    fn ends_in_order(&self) -> bool {
        let of_peer = matches!(
            self.end,
            Some(ConnectionEvent::Disconnected {
                end: RcEnd::PeerClosed | RcEnd::PeerLeft,
                ..
            })
        );
        of_peer && !self.disconnects.load(Ordering::Acquire)
    }
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
    rd: Weak<dyn Messages>,
    events: Weak<dyn Events>,
    flushed: bool,
    has_end: bool,
    /// The peer's program ended it.
    orderly: bool,
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
    pub(crate) fn watch<R: Messages + 'static, E: Events + 'static>(
        &self,
        context: u64,
        (rd, events): (&Arc<R>, &Arc<E>),
        disconnects: &Arc<AtomicBool>,
    ) {
        rd.signal_end(&self.signal);
        let mut watched = self.watched.lock();
        let mut limit = self.limit.lock();
        if watched.len() >= *limit {
            watched.retain(|_, it| it.end.is_some() || it.rd.strong_count() > 0);
            *limit = 2 * watched.len() + 64;
        }
        let rd: Weak<dyn Messages> = Arc::<R>::downgrade(rd);
        let events: Weak<dyn Events> = Arc::<E>::downgrade(events);
        let this = Watched {
            rd,
            events,
            disconnects: Arc::clone(disconnects),
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

    /// Follows ends. Events that are due go to `report`.
    pub(crate) fn progress(&self, mut report: impl FnMut(ConnectionEvent)) {
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
                rd.end_behind_arrived(due.orderly);
                // The program of this end may have disconnected before.
                if let Some(events) = events.filter(|_| !due.orderly) {
                    events.disconnect();
                }
            }
            let untaken = || rd.as_ref().is_some_and(|rd| rd.has_success());
            if let Some(event) = self.take_end(due.context, now, untaken) {
                report(event);
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
                orderly: it.ends_in_order(),
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
                let disconnects = this.disconnects.load(Ordering::Acquire);
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
