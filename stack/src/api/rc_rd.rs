//! RC queue pairs on reliable datagrams.
//!
//! An RC queue pair of this kind is a reliable datagram queue pair with one peer and the errors of RC: the first ends the queue pair
//! (`rfc-notes/reliable-datagrams.md` §9.1).

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use dgiwarp_llp_udp::rd::Lives;

use crate::api::qp::rc::wqe;
use crate::driver::cm::rd_carrier::{Carrier, Connected};
use crate::driver::device::clock;
use crate::driver::udp::rd_qp::paired;
use crate::{
    Access, AddressHandle, DatagramConnectError, Error, Pd, PostError, PostFailure, QpAttr,
    QpCounters, RcQp, RcQpAttr, RcSendWr, RdQp, RdQpAttr, RecvWr, RnrLimits,
};
use dgiwarp_engine::connected::RcSendWqe;
use dgiwarp_engine::reliable::RdSendWqe;

mod connection;

/// Delay of a peer after RNR, unless the program sets one.
const RNR_DELAY: Duration = Duration::from_millis(1);
/// RNR retries without a limit.
const UNLIMITED_RETRIES: u8 = 7;
/// Silence of a peer that a program with unlimited retries endures: no clock reaches it.
const FOR_EVER: Duration = Duration::from_secs(1 << 32);

/// An RC queue pair on reliable datagrams. Its QPN is the UDP port of its socket; the programs exchange QPNs, addresses and PSNs as for
/// [paired](crate::RcQpAttr::paired) RC queue pairs over TCP, and [`connect`](Self::connect) and [`start`](Self::start) take those of the peer.
///
/// Work requests complete in the order of their posts. The first that fails ends the queue pair: it has its cause, all others and all
/// posted receives end with `Flushed`, and so do those of the peer. Dropping it destroys it, as with an [`RdQp`].
///
/// A [`ConnectionChannel`](crate::ConnectionChannel) can connect it instead: its messages go by reliable datagrams where the other end agrees, else over TCP, as those of an [`RcQp`].
#[derive(Debug)]
pub struct RcRdQp {
    qp: RdQp,
    carrier: Arc<Carrier>,
    /// The queue pair where messages go over TCP. It has the number and the receives.
    tcp: RcQp,
    /// The queue pair of the connection that carries events alone, once there is one.
    events: OnceLock<RcQp>,
}

impl RcRdQp {
    fn create(pd: &Pd, attr: &QpAttr<'_>) -> Result<Self, Error> {
        let rd = RdQpAttr::new(attr.clone());
        let qp = RdQp::create(pd, &rd, Some(Lives::default()))?;
        let tcp = RcQpAttr::from(attr.clone());
        let tcp = RcQp::create_beside(pd, &tcp, qp.qpn().into(), &qp.shared.recv_queue)?;
        Ok(Self {
            qp,
            carrier: Arc::default(),
            tcp,
            events: OnceLock::new(),
        })
    }

    /// The QPN: the UDP port.
    #[must_use]
    pub fn qpn(&self) -> u16 {
        self.qp.qpn()
    }

    /// Gives the queue pair its peer, once: a host, at the address that the peer sends from, the peer's QPN, and the PSN that the peer
    /// [starts](Self::start) with (`ibv_modify_qp(3)` to ready-to-receive). From now on the peer's messages are received. Nothing is exchanged with the peer.
    ///
    /// # Errors
    /// [`DatagramConnectError`].
    pub fn connect(
        &self,
        ah: &AddressHandle,
        qpn: u16,
        rq_psn: u32,
    ) -> Result<(), DatagramConnectError> {
        if ah.is_group() || ah.destination().is_unspecified() {
            return Err(DatagramConnectError::NotUnicast);
        }
        let peer = self.qp.peer(ah, qpn);
        let peer = peer.map_err(|_| DatagramConnectError::AddressFamily)?;
        let local = ah.source().unwrap_or_else(|| ah.route_source());
        let lives = Lives {
            own: 0,
            peer: rq_psn,
        };
        let is_first = self.qp.shared.run(|inner| {
            let is_first = inner.engine.connect(peer, Some(local));
            if is_first {
                inner.engine.set_lives(lives);
            }
            is_first
        });
        if !is_first {
            return Err(DatagramConnectError::Connected);
        }
        let route = ah.route().clone();
        *self.carrier.connected.write() = Some(Connected {
            route,
            peer,
            rq_psn,
        });
        self.carrier.agree();
        paired::enter(&self.qp.shared, ah.destination());
        Ok(())
    }

    /// The peer's address and QPN, once there is one. The QPN of one whose request was accepted is 0.
    #[must_use]
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.carrier.connected.read().as_ref()?.peer.socket_addr()
    }

    /// Sets what holds for work requests from now on (`ibv_modify_qp(3)` to ready-to-send): the PSN that the peer was given for this one, the Reads and
    /// atomics outstanding at most, of which there are 16, and the silence of the peer that ends the queue pair; `None` for none.
    pub fn start(&self, sq_psn: u32, ord: u16, patience: Option<Duration>) {
        let connected = self.carrier.connected.read();
        let peer = connected.as_ref().map_or(0, |it| it.rq_psn);
        self.qp.shared.run(|inner| {
            inner.engine.set_lives(Lives { own: sq_psn, peer });
            inner.engine.set_ord(ord);
            inner.engine.set_unreachable(patience.unwrap_or(FOR_EVER));
            // A peer that is ready is heard of, and with it that it is there.
            if let Some(connected) = &*connected {
                inner.engine.greet_peer(clock::now(), &connected.route);
                self.qp.shared.work(inner);
            }
        });
    }

    /// Sets the rights that the peer has with keys that grant them, as [`RcQp::allow`](crate::RcQp::allow).
    pub fn allow(&self, access: Access) {
        let all = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        self.qp.shared.run(|inner| inner.engine.deny(all - access));
        self.tcp.allow(access);
    }

    /// Sets the limits of messages that find no posted receive (`rnr_retry` and `min_rnr_timer` of `ibv_modify_qp(3)`). Without `peer_retries` the peer's own count for its messages.
    pub fn limit_rnr(&self, limits: RnrLimits) {
        self.tcp.limit_rnr(limits);
        self.qp.set_rnr_retries(limits.retries.map(u32::from));
        let delay = limits.timer.unwrap_or(RNR_DELAY);
        let of_peer = limits.peer_retries.filter(|it| *it < UNLIMITED_RETRIES);
        self.qp.shared.run(|inner| {
            inner.engine.set_rnr_delay(delay);
            inner.engine.limit_peer_retries(of_peer.map(u32::from));
        });
    }

    /// Whether a message of the peer raises [`AsyncEvent::CommunicationEstablished`](crate::AsyncEvent::CommunicationEstablished), once, as
    /// [`RcQp::await_first_message`](crate::RcQp::await_first_message).
    pub fn await_first_message(&self, awaits: bool) {
        self.qp
            .shared
            .run(|inner| inner.engine.await_first_message(awaits));
        self.tcp.await_first_message(awaits);
    }

    /// Posts send work requests, in order, as [`RcQp::post_send`](crate::RcQp::post_send).
    ///
    /// # Errors
    /// [`PostFailure`] has the number of accepted work requests, and the error of the next one: [`PostError::State`] without a peer.
    pub fn post_send(&self, wrs: &[RcSendWr<'_>]) -> Result<(), PostFailure> {
        if let Some(tcp) = self.tcp() {
            return tcp.post_send(wrs);
        }
        let connected = self.carrier.connected.read();
        let Some(connected) = &*connected else {
            return Err(PostFailure {
                accepted: 0,
                source: PostError::State,
            });
        };
        let wqes = wrs.iter().map(|wr| self.wqe(connected, wr));
        self.qp.shared.post(wqes)
    }

    /// Posts all of the work requests, in order, or none of them, as [`RcQp::post_send_all`](crate::RcQp::post_send_all).
    ///
    /// # Errors
    /// [`PostError`] of the first that cannot be accepted: [`PostError::State`] without a peer.
    pub fn post_send_all<'a>(
        &self,
        wrs: impl ExactSizeIterator<Item = Result<RcSendWr<'a>, PostError>> + Clone,
    ) -> Result<(), PostError> {
        if let Some(tcp) = self.tcp() {
            return tcp.post_send_all(wrs);
        }
        let connected = self.carrier.connected.read();
        let connected = connected.as_ref().ok_or(PostError::State)?;
        let wqes = wrs.map(|wr| self.wqe(connected, &wr?));
        self.qp.shared.post_all(wqes)
    }

    fn wqe(&self, connected: &Connected, wr: &RcSendWr<'_>) -> Result<RdSendWqe, PostError> {
        Ok(connected.wqe(wqe(wr, self.qp.max_sge)?))
    }

    /// Posts one work request that is made already.
    pub(crate) fn post_work(&self, send: RcSendWqe) -> Result<(), PostFailure> {
        if let Some(tcp) = self.tcp() {
            return tcp.shared.post(std::iter::once(Ok(send)));
        }
        let connected = self.carrier.connected.read();
        let wqe = connected.as_ref().map(|it| it.wqe(send));
        let wqe = wqe.ok_or(PostError::State);
        self.qp.shared.post(std::iter::once(wqe))
    }

    /// Posts receives, in order (`ibv_post_recv(3)`). Receives behind the end of the queue pair complete with `Flushed`.
    ///
    /// # Errors
    /// [`PostFailure`] has the number of accepted work requests, and the error of the next one.
    pub fn post_recv(&self, wrs: &[RecvWr<'_>]) -> Result<(), PostFailure> {
        if let Some(tcp) = self.tcp() {
            return tcp.post_recv(wrs);
        }
        let posted = self.qp.post_recv(wrs);
        if self.is_over() {
            self.qp.flush();
        }
        posted
    }

    /// Ends the queue pair, and flushes everything posted (`ibv_modify_qp(3)` to the error state), as the peer learns. Work requests that need no receive of the peer, or have
    /// one, get a second to be placed before. Receives that are posted later are flushed, too.
    pub fn flush(&self) {
        match self.tcp() {
            Some(tcp) => tcp.flush(),
            None => self.qp.shared.flush_behind_posted(),
        }
        if let Some(events) = self.events.get() {
            events.flush();
        }
    }

    /// Drops datagrams that arrive from now on, until [`start_receiving`](Self::start_receiving); the peer sends again what was dropped. A new queue pair receives.
    pub fn stop_receiving(&self) {
        self.qp.stop_receiving();
    }

    /// Handles datagrams that arrive from now on.
    pub fn start_receiving(&self) {
        self.qp.start_receiving();
    }

    /// Drains the send queue (`ibv_modify_qp(3)` to SQD), as [`RdQp::drain_sends`].
    pub fn drain_sends(&self, notify: bool) {
        match self.tcp() {
            Some(tcp) => tcp.drain_sends(notify),
            None => self.qp.drain_sends(notify),
        }
    }

    /// Ends a drain: work requests begin again.
    pub fn resume_sends(&self) {
        match self.tcp() {
            Some(tcp) => tcp.resume_sends(),
            None => self.qp.resume_sends(),
        }
    }

    /// Whether work requests are not complete that had begun when the drain began.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        match self.tcp() {
            Some(tcp) => tcp.is_draining(),
            None => self.qp.is_draining(),
        }
    }

    /// Resets the queue pair to one without a peer (`ibv_modify_qp(3)` to reset): posted work requests are discarded without completions, and completions that
    /// were not polled are gone. It keeps its QPN.
    pub fn reset(&self) {
        self.carrier.forget();
        self.qp.reset();
        self.tcp.reset();
        if let Some(events) = self.events.get() {
            events.reset();
        }
        self.close_windows();
    }

    /// Whether the queue pair is in error: a work request failed, or the peer did, or completions were lost.
    #[must_use]
    pub fn is_over(&self) -> bool {
        match self.tcp() {
            Some(tcp) => tcp.is_over(),
            None => self.qp.shared.is_over() || self.qp.has_failed(),
        }
    }

    /// Counters of the queue pair, as of [`RdQp::counters`].
    #[must_use]
    pub fn counters(&self) -> QpCounters {
        match self.tcp() {
            Some(tcp) => tcp.counters(),
            None => self.qp.counters(),
        }
    }

    /// The queue pair over TCP, unless messages go by datagrams.
    #[inline]
    fn tcp(&self) -> Option<&RcQp> {
        (!self.carrier.is_agreed()).then_some(&self.tcp)
    }

    fn close_windows(&self) {
        let mrs = &self.qp.pd().rnic.shared.mrs;
        mrs.close_windows_of(self.qpn().into());
    }
}

impl Connected {
    fn wqe(&self, send: RcSendWqe) -> RdSendWqe {
        RdSendWqe {
            send,
            peer: self.peer,
            route: self.route.clone(),
            qkey: 0,
        }
    }
}

impl Drop for RcRdQp {
    fn drop(&mut self) {
        self.close_windows();
    }
}

/// RC queue pairs on reliable datagrams, of a protection domain.
impl Pd {
    /// Makes an RC queue pair on reliable datagrams.
    ///
    /// # Errors
    /// As [`create_rd_qp`](Self::create_rd_qp).
    pub fn create_rc_rd_qp(&self, attr: &QpAttr<'_>) -> Result<RcRdQp, Error> {
        RcRdQp::create(self, attr)
    }
}
