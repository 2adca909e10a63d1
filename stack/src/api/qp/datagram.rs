//! UD and UC queue pairs: all that one is without regard to the number of its peers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use dgiwarp_llp_udp::{Peer, ShimConfig};
use dgiwarp_rdmap::datagram::RecordHandle;

use crate::PostFailure;
use crate::api::device::rnic::RnicShared;
use crate::api::device::statistics::{Counts as _, Entry};
use crate::driver::debug::instruments::Instruments;
use crate::driver::udp::ports::Ports;
use crate::driver::udp::qp::{UdShared, bind};
use crate::{
    AddressHandle, Cq, Error, ErrorEntry, Operation, Pd, PostError, QpCounters, RecordCompletions,
    RecordRef, RecordView, RecvWr, Sge, UdQpAttr,
};
use dgiwarp_engine::datagram::{Random, UdConfig, UdEngine, check_length};
use dgiwarp_engine::recv_queue::total_length;

/// Most records of a queue pair.
const MAX_RECORDS: usize = 1 << 16;
/// Upper bound of the memory of a record slot in the engine, in octets.
const RECORD_OCTETS: usize = 1024;
/// Furthest that a Write-Record may be behind: the window in which messages are remembered one by one ends there.
const MAX_REORDER_WINDOW: usize = 1023;
/// The common part of [`UdQp`](crate::UdQp) and [`UcQp`](crate::UcQp): socket, receive queue, records, error queue and counters.
#[derive(Debug)]
pub struct DatagramQp {
    pub(crate) shared: Arc<UdShared>,
    pub(super) pd: Pd,
    local: SocketAddr,
    max_sge: usize,
    record_slots: usize,
    segment_slots: usize,
    recv_cq: Cq,
    entry: Entry,
}

impl DatagramQp {
    /// A UD QP, or a UC QP.
    pub(super) fn create_on(
        pd: &Pd,
        attr: &UdQpAttr<'_>,
        connected: bool,
        ports: impl FnOnce() -> Result<Ports, Error>,
    ) -> Result<Self, Error> {
        attr.qp.check()?;
        for (what, value, min, max) in [
            ("record_slots", attr.record_slots, 0, MAX_RECORDS),
            ("segment_slots", attr.segment_slots, 1, MAX_RECORDS),
            (
                "reorder_window",
                attr.reorder_window as usize,
                1,
                MAX_REORDER_WINDOW,
            ),
        ] {
            Error::check_limit(what, value, min, max)?;
        }
        Error::check_memory("record slots", attr.record_slots * RECORD_OCTETS)?;
        let rnic = &pd.rnic.shared;
        let mut ports = ports()?;
        let local = ports
            .main()
            .local_addr()
            .map_err(Error::system("cannot read a socket's address"))?;
        let receive_buffer = ports
            .main()
            .granted_receive_buffer()
            .map_err(Error::system("cannot read a socket's receive buffer"))?;
        let parts = attr.qp.parts(local.port().into(), &rnic.mrs);
        let engine = UdEngine::new(UdConfig {
            qpn: local.port(),
            pd: pd.id,
            connected,
            qkey: attr.qkey,
            grh: attr.grh,
            max_recv_wr: parts.recv_queue.capacity(),
            record_slots: attr.record_slots,
            max_rate: match attr.max_rate {
                0 => rnic.config.max_rate,
                rate => rate,
            },
            segment_completions: attr.record_completions == RecordCompletions::PerSegment,
            send_copy: rnic.config.send_copy,
            record_timeout: attr.record_timeout.unwrap_or(rnic.config.record_timeout),
            reorder_window: attr.reorder_window,
            receive_buffer,
            read_timeout: attr.read_timeout.unwrap_or(rnic.config.read_timeout),
            random: random(rnic),
            shim: ShimConfig::Plain,
        });
        let segment_slots = match attr.record_completions {
            RecordCompletions::PerMessage => 0,
            RecordCompletions::PerSegment => attr.segment_slots,
        };
        let recv_cq = &attr.qp.recv_cq.shared;
        recv_cq.reserve(attr.record_slots, segment_slots)?;
        let instruments = Instruments::new(&rnic.config, local, rnic.next_datagram_qp());
        // A rate is about a network.
        if let Some(after) = recv_cq.background().shares_host_after()
            && attr.max_rate == 0
        {
            ports.share_host(after);
        }
        let started = UdShared::start(parts, engine, ports, instruments);
        let shared =
            started.inspect_err(|_| recv_cq.unreserve(attr.record_slots, segment_slots))?;
        let kind = if connected { "uc" } else { "ud" };
        let statistics = &pd.rnic.shared.statistics;
        let entry = statistics.begin(kind, local.port().into(), &shared);
        Ok(Self {
            shared,
            pd: pd.clone(),
            local,
            max_sge: attr.qp.max_sge,
            record_slots: attr.record_slots,
            segment_slots,
            recv_cq: attr.qp.recv_cq.clone(),
            entry,
        })
    }

    /// The QPN: the UDP port.
    #[must_use]
    pub fn qpn(&self) -> u16 {
        self.local.port()
    }

    /// The address and port that the socket is bound to.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// The protection domain.
    #[must_use]
    pub fn pd(&self) -> &Pd {
        &self.pd
    }

    /// The receive buffer that the kernel granted, in octets with its own overhead: a quarter of it in flight is
    /// never lost for lack of room.
    ///
    /// # Errors
    /// [`Error::System`] where the kernel does not report it.
    pub fn receive_buffer(&self) -> Result<usize, Error> {
        self.shared
            .granted_receive_buffer()
            .map_err(Error::system("cannot read a socket's receive buffer"))
    }

    /// How many octets a work request has, if its elements may be posted.
    #[inline]
    pub(super) fn check(&self, operation: Operation, sges: &[Sge]) -> Result<u32, PostError> {
        let length = total_length(sges, self.max_sge)?;
        if !check_length(operation, length) {
            return Err(PostError::TooLong);
        }
        Ok(length)
    }

    /// Whether a work request may have its octets in one element.
    #[inline]
    pub(super) fn takes_element(&self) -> bool {
        self.max_sge > 0
    }

    /// The peer at a QPN of a host, if it can be reached from this QP's socket.
    #[inline]
    pub(super) fn peer(&self, ah: &AddressHandle, qpn: u16) -> Result<Peer, PostError> {
        let qpn = if ah.is_group() {
            self.pd.rnic.shared.config.group_port
        } else {
            qpn
        };
        let to = match ah.destination() {
            IpAddr::V4(v4) => SocketAddr::from((v4, qpn)),
            IpAddr::V6(v6) => std::net::SocketAddrV6::new(v6, qpn, 0, ah.scope_id()).into(),
        };
        let reachable = match self.local {
            SocketAddr::V4(_) => to.is_ipv4(),
            SocketAddr::V6(local) => to.is_ipv6() || local.ip().is_unspecified(),
        };
        if !reachable {
            return Err(PostError::AddressFamily);
        }
        Ok(Peer::ip(to))
    }

    /// Gives a UC QP its peer. Returns whether it had none.
    pub(super) fn connect(&self, peer: Peer, local: IpAddr) -> bool {
        self.shared.connect_sole(peer, local)
    }

    /// Posts receives, in order (`ibv_post_recv(3)`).
    ///
    /// # Errors
    /// [`PostFailure`] has the number of accepted work requests, and the error of the next one.
    pub fn post_recv(&self, wrs: &[RecvWr<'_>]) -> Result<(), PostFailure> {
        self.shared.recv_queue.post_own(wrs)
    }

    /// A record that is not yet released, copied; [`with_record`](Self::with_record) reads it without a copy.
    #[must_use]
    pub fn record(&self, handle: RecordHandle) -> Option<RecordView> {
        self.with_record(handle, |record| record.to_view())
    }

    /// Reads a record that is not yet released, without a copy. Meanwhile the queue pair is locked, and `look` must not use it.
    pub fn with_record<R>(
        &self,
        handle: RecordHandle,
        look: impl FnOnce(RecordRef<'_>) -> R,
    ) -> Option<R> {
        self.shared
            .run(|inner| inner.engine.record(handle).map(RecordRef::new).map(look))
    }

    /// Gives the slot of a completed record back. Returns whether the handle named one.
    pub fn release_record(&self, handle: RecordHandle) -> bool {
        self.shared.run(|inner| inner.engine.release_record(handle))
    }

    /// Completes all open records with the octets that are valid now.
    pub fn complete_records(&self) {
        self.shared.run(|inner| {
            inner
                .engine
                .complete_now(self.shared.tables(), &mut self.shared.completions());
        });
    }

    /// Ends everything posted with a completion of status `Flushed`, as the error state of a queue pair does.
    pub fn flush(&self) {
        self.shared.run(|inner| {
            inner
                .engine
                .flush(self.shared.tables(), &mut self.shared.completions());
        });
    }

    /// Whether a message of the peer raises [`AsyncEvent::CommunicationEstablished`](crate::AsyncEvent::CommunicationEstablished), once: so it is in RTR, before the
    /// program lets the queue pair send (`ibv_modify_qp(3)`).
    pub fn await_first_message(&self, awaits: bool) {
        self.shared.await_first_message(awaits);
    }

    /// Drains the send queue (`ibv_modify_qp(3)` to SQD): a message that has begun and Reads under way end, and those that have not begun, or are posted
    /// from now on, wait for [`resume_sends`](Self::resume_sends). With `notify`, [`AsyncEvent::SqDrained`](crate::AsyncEvent::SqDrained) is raised when none is
    /// under way any more.
    pub fn drain_sends(&self, notify: bool) {
        self.shared.drain_sends(notify);
    }

    /// Ends a drain: work requests begin again.
    pub fn resume_sends(&self) {
        self.shared.resume_sends();
    }

    /// Whether a work request that had begun before a [drain](Self::drain_sends) is outstanding.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.shared.is_draining()
    }

    /// Whether a completion of it found its queue full: it was flushed then, and is in error until it is reset
    /// ([`AsyncEvent::QpFatal`](crate::AsyncEvent::QpFatal)).
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.shared.has_failed()
    }

    /// Makes it a new source of messages, without posted work requests, records and peers.
    pub(super) fn reset(&self) {
        let random = random(&self.pd.rnic.shared);
        self.shared.reset(random);
    }

    /// Drops datagrams that arrive from now on, until [`start_receiving`](Self::start_receiving), as a queue pair does that is not ready to receive
    /// (`ibv_modify_qp(3)`). A new queue pair receives.
    pub fn stop_receiving(&self) {
        self.shared.stop_receiving();
    }

    /// Handles datagrams that arrive from now on. If they were dropped until now, those that lie in the socket are dropped too: they may be of an earlier
    /// life of the queue pair.
    pub fn start_receiving(&self) {
        self.shared.start_receiving();
    }

    /// Changes how many octets may leave per second; 0 is no limit. See [`UdQpAttr::max_rate`].
    pub fn set_max_rate(&self, octets_per_second: u64) {
        self.shared.set_max_rate(octets_per_second);
    }

    /// The oldest entry of the error queue: Terminates of peers and ICMP errors about messages sent earlier. The queue keeps 256 entries. When it
    /// turns non-empty, [`AsyncEvent::ErrorQueue`](crate::AsyncEvent::ErrorQueue) is raised.
    #[must_use]
    pub fn poll_error(&self) -> Option<ErrorEntry> {
        self.shared.run(|inner| inner.engine.poll_error())
    }

    /// Counters of the queue pair.
    #[must_use]
    pub fn counters(&self) -> QpCounters {
        self.shared.counters()
    }
}

impl Drop for DatagramQp {
    fn drop(&mut self) {
        self.shared.close();
        let statistics = &self.pd.rnic.shared.statistics;
        statistics.end(&self.entry, &self.counters());
        let qpn = u32::from(self.qpn());
        self.pd
            .rnic
            .shared
            .background
            .events()
            .forget(|event| event.is_about(qpn));
        let recv_cq = &self.recv_cq.shared;
        recv_cq.unreserve(self.record_slots, self.segment_slots);
    }
}

/// Random values that distinguish a QP from all others.
fn random(rnic: &RnicShared) -> Random {
    let [record_generation] = rnic.draw();
    Random {
        seed: rnic.draw(),
        group_key: rnic.draw(),
        secret: rnic.draw(),
        record_generation,
    }
}

/// Binds where asked; else one socket for both protocols, or IPv4 alone where IPv6 is off.
pub(super) fn bind_any(address: Option<SocketAddr>, pd: &Pd) -> Result<Ports, Error> {
    let config = &pd.rnic.shared.config;
    match address {
        Some(address) => bind(address, config),
        None => bind((Ipv6Addr::UNSPECIFIED, 0).into(), config)
            .or_else(|_| bind((Ipv4Addr::UNSPECIFIED, 0).into(), config)),
    }
}
