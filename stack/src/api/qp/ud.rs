//! Datagram queue pairs.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use dgiwarp_llp_udp::{Peer, ShimConfig};
use dgiwarp_rdmap::datagram::RecordHandle;

use crate::PostFailure;
use crate::api::device::rnic::RnicShared;
use crate::api::device::statistics::{Counts as _, Entry};
use crate::driver::debug::instruments::Instruments;
use crate::driver::qp::core::QpParts;
use crate::driver::udp::ports::Ports;
use crate::driver::udp::qp::{UdShared, bind};
use crate::{
    AddressHandle, Cq, Error, ErrorEntry, MAX_SGE, Operation, Pd, PostError, QpCounters, ReadMap,
    RecordCompletions, RecordRef, RecordView, RecvWr, SendWr, Sge, Srq,
};
use dgiwarp_engine::datagram::{Random, SendWqe, UdConfig, UdEngine, check_length};
use dgiwarp_engine::recv_queue::{RecvQueue, copy_sges, total_length};

/// Most work requests of a queue.
const MAX_WR: usize = 1 << 16;
/// Most records of a queue pair.
const MAX_RECORDS: usize = 1 << 16;
/// Upper bound of the memory of a record slot in the engine, in octets.
const RECORD_OCTETS: usize = 1024;
/// Furthest that a Write-Record may be behind: the window in which messages are remembered one by one ends there.
const MAX_REORDER_WINDOW: usize = 1023;
/// Default of the reorder window, in message numbers.
const DEFAULT_REORDER_WINDOW: u32 = 64;

/// Attributes of a datagram queue pair, UD or UC (`ibv_qp_init_attr`).
#[derive(Debug, Clone)]
pub struct UdQpAttr<'a> {
    /// Where completions of posted sends go.
    pub send_cq: &'a Cq,
    /// Where completions of receives and records go.
    pub recv_cq: &'a Cq,
    /// Address and UDP port to bind; the port is the QPN. `None`: all addresses, a port of the system's choice.
    pub bind: Option<SocketAddr>,
    /// Sends outstanding at most, 1 to 65,536. Default 256.
    pub max_send_wr: usize,
    /// Receives posted at most, 1 to 65,536. Default 256.
    pub max_recv_wr: usize,
    /// Scatter/gather elements per work request, 1 to [`MAX_SGE`]. Default 4.
    pub max_sge: usize,
    /// A queue to take receives from instead of one of this QP's own; then `max_recv_wr` does not count, and receives are posted there.
    /// Default none.
    pub srq: Option<&'a Srq>,
    /// Q_Key that received Sends must carry. Default 0.
    pub qkey: u32,
    /// Records of Write-Records kept at most, 0 to 65,536; 0, the default, does not take any.
    pub record_slots: usize,
    /// Completions that records make. Default [`PerMessage`](RecordCompletions::PerMessage).
    pub record_completions: RecordCompletions,
    /// Slots of the completion queue set aside for segments of records, 1 to 65,536, where [`PerSegment`](RecordCompletions::PerSegment) asks for their
    /// completions; QPs of one completion queue share them. Default 1024.
    pub segment_slots: usize,
    /// A record is closed when nothing was placed for this long. `None`, the default, takes [`Config::record_timeout`](crate::Config::record_timeout).
    pub record_timeout: Option<Duration>,
    /// How many messages a Write-Record may be behind the latest of its source before its record is closed, 1 to 1023. Default 64.
    pub reorder_window: u32,
    /// The time that Reads may take which name none. `None`, the default, takes [`Config::read_timeout`](crate::Config::read_timeout).
    pub read_timeout: Option<Duration>,
    /// Octets that may leave per second, headers included; 0, the default, is [`Config::max_rate`](crate::Config::max_rate). Sends and Write-Records
    /// have no feedback: one that is longer than the receiver's buffer arrives whole only if the sender keeps to a rate that the receiver keeps
    /// up with. A receiver gives a Send 200 ms from its first segment on, so a rate of less than five times its length per second loses it.
    pub max_rate: u64,
    /// Whether receives begin with 40 octets for a GRH. Default no.
    pub grh: bool,
}

impl<'a> UdQpAttr<'a> {
    /// The defaults with these completion queues.
    #[must_use]
    pub fn new(send_cq: &'a Cq, recv_cq: &'a Cq) -> Self {
        Self {
            send_cq,
            recv_cq,
            bind: None,
            max_send_wr: 256,
            max_recv_wr: 256,
            max_sge: 4,
            srq: None,
            qkey: 0,
            record_slots: 0,
            record_completions: RecordCompletions::PerMessage,
            segment_slots: 1024,
            record_timeout: None,
            reorder_window: DEFAULT_REORDER_WINDOW,
            read_timeout: None,
            max_rate: 0,
            grh: false,
        }
    }
}

/// A datagram queue pair. Its QPN is the UDP port of its socket. Dropping it destroys it: sends that the network
/// has not taken yet get up to a second, Reads end with `Flushed`, and posted receives end without a completion.
#[derive(Debug)]
pub struct UdQp {
    pub(crate) shared: Arc<UdShared>,
    pd: Pd,
    local: SocketAddr,
    max_sge: usize,
    record_slots: usize,
    segment_slots: usize,
    recv_cq: Cq,
    entry: Entry,
}

impl UdQp {
    pub(crate) fn create(pd: &Pd, attr: &UdQpAttr<'_>) -> Result<Self, Error> {
        Self::create_as(pd, attr, false)
    }

    /// A UD QP, or the datagram QP inside a UC QP.
    pub(crate) fn create_as(pd: &Pd, attr: &UdQpAttr<'_>, connected: bool) -> Result<Self, Error> {
        Self::create_on(pd, attr, connected, || bind_any(attr.bind, pd))
    }

    pub(crate) fn create_on(
        pd: &Pd,
        attr: &UdQpAttr<'_>,
        connected: bool,
        ports: impl FnOnce() -> Result<Ports, Error>,
    ) -> Result<Self, Error> {
        for (what, value, min, max) in [
            ("max_send_wr", attr.max_send_wr, 1, MAX_WR),
            ("max_recv_wr", attr.max_recv_wr, 1, MAX_WR),
            ("max_sge", attr.max_sge, 1, MAX_SGE),
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
        let recv_queue = match attr.srq {
            Some(srq) => Arc::clone(&srq.queue),
            None => Arc::new(RecvQueue::new(attr.max_recv_wr, attr.max_sge)),
        };
        let rnic = &pd.rnic.shared;
        let ports = ports()?;
        let local = ports
            .main()
            .local_addr()
            .map_err(Error::system("cannot read a socket's address"))?;
        let receive_buffer = ports
            .main()
            .granted_receive_buffer()
            .map_err(Error::system("cannot read a socket's receive buffer"))?;
        let engine = UdEngine::new(UdConfig {
            qpn: local.port(),
            pd: pd.id,
            connected,
            qkey: attr.qkey,
            grh: attr.grh,
            max_recv_wr: recv_queue.capacity(),
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
        let recv_cq = &attr.recv_cq.shared;
        recv_cq.reserve(attr.record_slots, segment_slots)?;
        let parts = QpParts {
            qpn: local.port().into(),
            max_send_wr: attr.max_send_wr,
            recv_queue,
            send_cq: Arc::clone(&attr.send_cq.shared),
            recv_cq: Arc::clone(&attr.recv_cq.shared),
            mrs: Arc::clone(&rnic.mrs),
        };
        let instruments = Instruments::new(&rnic.config, local, rnic.next_datagram_qp());
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
            max_sge: attr.max_sge,
            record_slots: attr.record_slots,
            segment_slots,
            recv_cq: attr.recv_cq.clone(),
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

    /// Posts sends, in order, and hands as much of them to the network as it takes now (`ibv_post_send(3)`). Messages of one
    /// length to one peer, posted together, travel as trains. Never blocks.
    ///
    /// # Errors
    /// [`PostFailure`] has the number of accepted work requests, and the error of the next one.
    pub fn post_send(&self, wrs: &[SendWr<'_>]) -> Result<(), PostFailure> {
        self.shared.post(wrs.iter().map(|wr| self.wqe(wr)))
    }

    /// Posts all of the sends, in order, or none of them (`ibv_wr_complete(3)`). One that its maker could not make refuses all. Where there are several,
    /// each is made twice.
    ///
    /// # Errors
    /// [`PostError`] of the first that cannot be accepted.
    pub fn post_send_all<'a>(
        &self,
        wrs: impl ExactSizeIterator<Item = Result<SendWr<'a>, PostError>> + Clone,
    ) -> Result<(), PostError> {
        self.shared.post_all(wrs.map(|wr| self.wqe(&wr?)))
    }

    #[inline]
    fn wqe(&self, wr: &SendWr<'_>) -> Result<SendWqe, PostError> {
        let length = self.check(wr.operation, wr.sges)?;
        if matches!(wr.operation, Operation::Read { .. }) && wr.destination.ah.is_group() {
            return Err(PostError::Group);
        }
        Ok(SendWqe {
            wr_id: wr.wr_id,
            operation: wr.operation,
            route: wr.destination.ah.route().clone(),
            peer: self.peer(&wr.destination.ah, wr.destination.qpn)?,
            qkey: wr.destination.qkey,
            sges: copy_sges(wr.sges),
            length,
            signaled: wr.signaled,
            solicited: wr.solicited,
            unrecorded: false,
        })
    }

    /// How many octets a work request has, if its elements may be posted.
    #[inline]
    pub(crate) fn check(&self, operation: Operation, sges: &[Sge]) -> Result<u32, PostError> {
        let length = total_length(sges, self.max_sge)?;
        if !check_length(operation, length) {
            return Err(PostError::TooLong);
        }
        Ok(length)
    }

    /// The peer at a QPN of a host, if it can be reached from this QP's socket.
    #[inline]
    pub(crate) fn peer(&self, ah: &AddressHandle, qpn: u16) -> Result<Peer, PostError> {
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
    pub(crate) fn connect(&self, peer: Peer, local: IpAddr) -> bool {
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

    /// Reads a record that is not yet released, without a copy. Meanwhile the queue pair stands still, and `look` must not use it.
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

    /// Valid octets of a posted Read that failed, once; of several with this number the latest. The latest 256 failures are kept.
    #[must_use]
    pub fn take_read_map(&self, wr_id: u64) -> Option<ReadMap> {
        let failed = self
            .shared
            .run(|inner| inner.engine.take_failed_read(wr_id))?;
        Some(ReadMap {
            length: failed.length,
            ranges: failed.map.ranges().to_vec(),
        })
    }

    /// Ends everything posted with a completion of status `Flushed`, as the error state of a queue pair does.
    pub fn flush(&self) {
        self.shared.run(|inner| {
            inner
                .engine
                .flush(self.shared.tables(), &mut self.shared.completions());
        });
    }

    /// Whether a completion of it found its queue full: it was flushed then, and is in error until it is reset
    /// ([`AsyncEvent::QpFatal`](crate::AsyncEvent::QpFatal)).
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.shared.has_failed()
    }

    /// Resets the queue pair (`ibv_modify_qp(3)` to reset): posted work requests are discarded without completions, but for receives
    /// that queue pairs share, completions that were not polled are gone, and so are records. It keeps its QPN, attributes, groups and
    /// counters. Peers see another source of messages.
    pub fn reset(&self) {
        let random = random(&self.pd.rnic.shared);
        self.shared.reset(random);
    }

    /// The Q_Key that received Sends must carry.
    #[must_use]
    pub fn qkey(&self) -> u32 {
        self.shared.run(|inner| inner.engine.qkey())
    }

    /// Changes the Q_Key for datagrams that arrive from now on.
    pub fn set_qkey(&self, qkey: u32) {
        self.shared.run(|inner| inner.engine.set_qkey(qkey));
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

impl Drop for UdQp {
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
fn bind_any(address: Option<SocketAddr>, pd: &Pd) -> Result<Ports, Error> {
    let config = &pd.rnic.shared.config;
    match address {
        Some(address) => bind(address, config),
        None => bind((Ipv6Addr::UNSPECIFIED, 0).into(), config)
            .or_else(|_| bind((Ipv4Addr::UNSPECIFIED, 0).into(), config)),
    }
}

/// Datagram queue pairs of a protection domain.
impl Pd {
    /// Makes a datagram queue pair.
    ///
    /// # Errors
    /// [`Error::Bind`] where the port is taken or the address is not ours, [`Error::Limit`] for sizes
    /// outside the device's limits, [`Error::System`] where descriptors are exhausted.
    pub fn create_ud_qp(&self, attr: &UdQpAttr<'_>) -> Result<UdQp, Error> {
        UdQp::create(self, attr)
    }
}
