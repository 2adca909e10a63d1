//! Ends of a connected QP: flush, disconnect, reset, destruction. Nothing here waits.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use dgiwarp_llp_tcp_mpa::TcpEnd;

use crate::driver::cm::events::CmQueue;
use crate::driver::device::clock;
use crate::driver::qp::staging;
use crate::driver::reactor::member::Received;
use crate::driver::tcp::lingering::LingeringSocket;
use crate::driver::tcp::qp::{From, Link, RcInner, RcShared};
use crate::{ConnectionEvent, RnrLimits, WcStatus};
use dgiwarp_engine::connected::{self, GracefulClose, GracefulStep, Outstanding, RcEnd, Taken};
use dgiwarp_engine::cq_ring::Unheard;
use dgiwarp_engine::sq_drain::SqDrain;

/// Reads of what has arrived when a QP is taken out of service.
const LAST_READS: usize = 64;
/// Octets of FPDUs that are made for TCP to take after their QP is gone. Work requests beyond are lost, as on InfiniBand all are.
const MAX_REST: usize = 1 << 20;

/// Rest of the send queue at an end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rest {
    /// Posted work requests leave as far as they can.
    All,
    /// Only octets that are framed leave.
    Framed,
}

impl Link {
    /// The FIN to a plain peer, such as Linux's siw, waits for TCP's acknowledgements.
    pub(super) fn choose_close(&mut self) {
        if self.engine.has_plain_peer() {
            self.tcp_close.close_behind_acks();
        }
    }
}

impl RcShared {
    /// Checks for the end of the stream, while nothing is read.
    pub(super) fn look_for_end(&self, link: &mut Link) -> Received {
        if !link.tcp_close.is_polled() {
            return Received::Nothing;
        }
        link.pipe.silence();
        self.note_lane(link);
        let Some(end) = link.pipe.end() else {
            return Received::Nothing;
        };
        // Octets before it may lie in the socket: they are read when there is room, and so is the end.
        if end == TcpEnd::Lost {
            link.tcp_close.unreachable();
        }
        self.end_stream(link, end);
        Received::Everything
    }

    /// Reports the end of the connection to `queue`.
    pub(crate) fn report_end(&self, queue: &Arc<CmQueue>, context: u64) {
        self.run(|inner| {
            let ended = inner
                .link
                .as_ref()
                .filter(|link| link.tcp_close.has_begun());
            match ended.and_then(|link| link.engine.end()) {
                Some(end) => queue.push(ConnectionEvent::Disconnected { context, end }),
                None => inner.listener = Some((Arc::clone(queue), context)),
            }
        });
    }

    /// There will be no connection: the first work request that waits ends with `status`, all others and the receives are flushed.
    pub(crate) fn give_up(&self, status: WcStatus) {
        self.open();
        self.run(|inner| {
            if inner.link.is_none() && !inner.given_up {
                self.give_up_locked(inner, status);
            }
        });
    }

    fn give_up_locked(&self, inner: &mut RcInner, status: WcStatus) {
        inner.given_up = true;
        self.unlocked.over.store(true, Ordering::Release);
        self.flush_waiting(inner, status);
    }

    pub(crate) fn flush_waiting(&self, inner: &mut RcInner, mut status: WcStatus) {
        let mut completions = self.completions();
        for wqe in inner.waiting.drain(..) {
            wqe.complete(self.qpn, status, &mut completions);
            status = WcStatus::Flushed;
        }
        connected::flush_receives(&self.recv_queue, self.qpn, &mut completions);
    }

    /// Puts the QP into its error state: posted work requests are flushed, and the connection ends.
    pub(crate) fn flush(&self) {
        self.run(|inner| self.flush_locked(inner));
    }

    pub(super) fn flush_locked(&self, inner: &mut RcInner) {
        self.open();
        if self.closing.load(Ordering::Acquire) {
            return;
        }
        let Some(link) = &mut inner.link else {
            self.give_up_locked(inner, WcStatus::Flushed);
            return;
        };
        self.receive_last(link);
        link.engine.close(self.tables(), &mut self.completions());
        self.transmit(link);
        // An engine that was over before has flushed the work requests of then.
        connected::flush_receives(&self.recv_queue, self.qpn, &mut self.completions());
        self.wind_down(inner);
    }

    /// Why the connection is over, if it is.
    pub(crate) fn end(&self) -> Option<RcEnd> {
        self.run(|inner| inner.link.as_ref().and_then(|link| link.engine.end()))
    }

    /// Ends the connection gracefully: posted work requests have a bounded time to leave and to be placed, then our half of TCP is closed. The remaining
    /// ones complete as flushed.
    pub(crate) fn disconnect(&self) {
        self.run(|inner| {
            if let Some(link) = &mut inner.link {
                link.graceful_close
                    .get_or_insert_with(|| GracefulClose::new(clock::now()));
            }
            self.work(inner);
        });
    }

    /// Continues a graceful close.
    pub(crate) fn continue_graceful_close(&self, inner: &mut RcInner) {
        let Some(link) = &mut inner.link else {
            return;
        };
        let Some(graceful_close) = &mut link.graceful_close else {
            return;
        };
        let now = clock::now();
        let outstanding = Outstanding {
            is_up: link.engine.end().is_none() && link.tcp_close.may_send(),
            unsent: link.engine.has_unsent(now) || link.engine.awaits_first_fpdus(),
            unplaced: !link.paused && link.engine.awaits_placement(),
        };
        match graceful_close.poll(now, outstanding) {
            GracefulStep::Wait => {}
            GracefulStep::RequestAcks => {
                link.engine.request_all_acks();
                self.transmit(link);
            }
            GracefulStep::Close => {
                link.graceful_close = None;
                self.receive_last(link);
                link.engine.close(self.tables(), &mut self.completions());
                self.transmit(link);
                self.wind_down(inner);
            }
        }
    }

    /// Places and acknowledges octets that have arrived: a NIC would have done so already.
    pub(super) fn receive_last(&self, link: &mut Link) {
        for _ in 0..LAST_READS {
            if self.receive_locked(link, From::All) == Received::Nothing {
                break;
            }
        }
    }

    /// The connection is lost, as a send reported. Octets that arrived before can still be read, and are placed.
    pub(super) fn receive_before_loss(&self, link: &mut Link) {
        link.tcp_close.unreachable();
        // The RNR queue is not delivered any more.
        if !link.paused {
            self.receive_last(link);
        }
    }

    /// Takes the QP out of service. Posted work requests complete no more, but leave as far as they can; its connection is closed in the background.
    pub(crate) fn close(&self) {
        self.run(|inner| {
            self.closing.store(true, Ordering::Release);
            // Events from now on are of no use to the thread that destroys the QP.
            Self::raise_deferred_disconnect(inner);
            inner.listener = None;
            inner.pending_established = None;
            self.work(inner);
            if let Some(link) = &mut inner.link {
                self.receive_last(link);
            }
            self.let_go(inner, Rest::All, true);
        });
        self.detach();
    }

    /// Resets the QP: posted work requests are discarded without completions, and its connection is closed in the background.
    pub(crate) fn reset(&self) {
        self.renew(|inner| {
            // From now on no earlier attempt may connect this QP.
            self.unlocked.life.fetch_add(1, Ordering::AcqRel);
            self.open.store(false, Ordering::Release);
            Self::raise_deferred_disconnect(inner);
            inner.listener = None;
            inner.pending_established = None;
            if let Some(link) = &mut inner.link {
                self.receive_last(link);
            }
            self.let_go(inner, Rest::Framed, true);
            inner.given_up = false;
            inner.sq_drain = SqDrain::Off;
            inner.awaits_first_message = false;
            inner.rnr_limits = RnrLimits::default();
            drop(self.recv_queue.drain());
            for flag in [
                &self.unlocked.receive_posted,
                &self.unlocked.refuses_immediates,
                &self.unlocked.has_pending_acks,
                &self.unlocked.over,
            ] {
                flag.store(false, Ordering::Release);
            }
        });
        self.unlocked.claimed.store(false, Ordering::Release);
    }

    /// Ends posted work requests without completions, and lets the connection, if there is one, linger without the QP.
    pub(super) fn let_go(&self, inner: &mut RcInner, rest: Rest, bye: bool) {
        inner.waiting.clear();
        let Some(mut link) = inner.link.take() else {
            return;
        };
        self.poll_set.unwatch(link.pipe.as_fd());
        self.unlocked.in_lane.store(false, Ordering::Release);
        self.leave_meeting(&link);
        self.end_one_sided(&mut link);
        // The rest goes as that of any connection.
        link.pipe.leave_lane();
        link.choose_close();
        let octets = self.rest(&mut link, rest, bye);
        // Receives of a shared receive queue are not lost with one of its QPs.
        let unfinished = link.engine.abandon();
        if let Some(wqe) = unfinished
            && self.recv_queue.is_shared()
        {
            self.recv_queue.give_back(wqe);
        }
        let mut counters = link.counters();
        counters.octets_kept = 0;
        inner.past.get_or_insert_default().add(&counters);
        self.background().linger(LingeringSocket {
            pipe: link.pipe,
            octets,
            tcp_close: link.tcp_close,
        });
    }

    /// The last FPDUs, as far as TCP does not take them now.
    fn rest(&self, link: &mut Link, rest: Rest, bye: bool) -> Vec<u8> {
        let mut octets = Vec::new();
        let now = clock::now();
        let engine = &mut link.engine;
        engine.copy_all(true);
        staging::put_back_of_stream(engine.lend(staging::take_for_stream()));
        let mut last = false;
        while link.tcp_close.may_send() {
            if !last && rest == Rest::All && octets.len() < MAX_REST {
                engine.make_fpdus(now, self.tables(), &mut Unheard);
            }
            let made = engine.poll_transmit(now);
            if made.is_empty() {
                if last {
                    break;
                }
                last = true;
                engine.send_last_notices(bye);
                continue;
            }
            let taken = if octets.is_empty() {
                link.pipe.send(made)
            } else {
                Taken::WouldBlock
            };
            match taken {
                Taken::Octets(len) => engine.transmitted(now, len, &mut Unheard),
                Taken::WouldBlock => {
                    octets.extend_from_slice(made);
                    let len = made.len();
                    engine.transmitted(now, len, &mut Unheard);
                }
                Taken::Lost => link.tcp_close.lost(),
            }
        }
        if let Some(room) = engine.reclaim() {
            staging::put_back_of_stream(room);
        }
        octets
    }
}
