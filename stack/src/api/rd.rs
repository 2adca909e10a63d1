//! Reliable datagram queue pairs.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use dgiwarp_llp_udp::Peer;
use dgiwarp_llp_udp::rd::{Lives, RdConfig, Scope};

use crate::api::device::statistics::{Counts as _, Entry};
use crate::api::qp::rc::wqe;
use crate::driver::debug::instruments::Instruments;
use crate::driver::device::clock;
use crate::driver::udp::qp;
use crate::driver::udp::rd_qp::RdShared;
use crate::{
    Access, AddressHandle, Destination, Error, ErrorEntry, Pd, PostError, PostFailure, QpAttr,
    QpCounters, RcSendWr, RecvWr,
};
use dgiwarp_engine::connected::RcWork;
use dgiwarp_engine::reliable::{RdEngine, RdQpConfig, RdSendWqe};

/// Longest datagram of which every path of an Ethernet takes the IPv4 packet.
const DATAGRAM: u16 = 1472;
/// Window that all senders share, unless the receive buffer is small.
const WINDOW: usize = 1 << 20;

/// Attributes of a reliable datagram queue pair.
#[derive(Debug, Clone)]
pub struct RdQpAttr<'a> {
    /// Completion queues, sizes and shared receive queue.
    pub qp: QpAttr<'a>,
    /// Address and UDP port to bind; the port is the QPN. `None`: all addresses, a port of the system's choice.
    pub bind: Option<SocketAddr>,
    /// Q_Key that received Sends must carry. Default 0.
    pub qkey: u32,
    /// Silence of a peer, with messages to it not placed, after which these fail with [`WcStatus::RetryExceeded`](crate::WcStatus::RetryExceeded). Default 4 s.
    pub unreachable: Duration,
    /// How often a message may find no receive at its peer before it fails with [`WcStatus::RnrRetryExceeded`](crate::WcStatus::RnrRetryExceeded). `None`, the
    /// default, for no limit.
    pub rnr_retries: Option<u32>,
}

impl<'a> RdQpAttr<'a> {
    /// The defaults with these completion queues.
    #[must_use]
    pub const fn new(qp: QpAttr<'a>) -> Self {
        Self {
            qp,
            bind: None,
            qkey: 0,
            unreachable: Duration::from_secs(4),
            rnr_retries: None,
        }
    }
}

/// A send work request of a reliable datagram queue pair: that of a connected one, and its destination.
#[derive(Debug, Clone)]
pub struct RdSendWr<'a> {
    /// Peer. Its Q_Key is for Sends that invalidate nothing.
    pub destination: Destination,
    /// The work request. Of the operations, those on local keys are refused with [`PostError::Unsupported`]. With
    /// [`fence`](RcSendWr::fence) it waits for the Reads and atomics to this peer alone.
    pub wr: RcSendWr<'a>,
}

/// A reliable datagram queue pair (RD): Sends, Writes, Reads and atomics to any number of peers from one UDP port, each carried out exactly once, and those
/// to one peer in the order of their posts, whatever the network loses (`rfc-notes/reliable-datagrams.md`). Both ends have to be of this kind.
///
/// A Send or Write completes when it is placed at its peer, a Read or atomic when the answer is placed here; completions of work requests to one peer are in
/// the order of their posts. A failure, as that of a peer that is gone, fails all work requests to this peer in that order: the first
/// with its cause, the others with `Flushed`, which may or may not have been carried out. Work requests to other peers go on, and so do later ones to this
/// peer. Up to 16 Reads and atomics to one peer are under way; others, and what is posted behind them to this peer, wait.
///
/// Peers write, read and change memory that was registered with the right to: keys as for connected queue pairs, in the queue pair's protection domain.
///
/// Dropping it destroys it: posted work requests get up to a second to be carried out, and posted receives end without a completion.
#[derive(Debug)]
pub struct RdQp {
    pub(crate) shared: Arc<RdShared>,
    pd: Pd,
    local: SocketAddr,
    pub(crate) max_sge: usize,
    entry: Entry,
}

impl RdQp {
    /// Makes a queue pair with any number of peers, or an RC queue pair's.
    pub(crate) fn create(
        pd: &Pd,
        attr: &RdQpAttr<'_>,
        connection: Option<Lives>,
    ) -> Result<Self, Error> {
        attr.qp.check()?;
        let rnic = &pd.rnic.shared;
        let bind = |address| qp::bind(address, &rnic.config);
        let mut ports = match attr.bind {
            Some(address) => bind(address),
            None => bind((Ipv6Addr::UNSPECIFIED, 0).into())
                .or_else(|_| bind((Ipv4Addr::UNSPECIFIED, 0).into())),
        }?;
        let local = ports
            .main()
            .local_addr()
            .map_err(Error::system("cannot read a socket's address"))?;
        let granted = ports
            .main()
            .granted_receive_buffer()
            .map_err(Error::system("cannot read a socket's receive buffer"))?;
        let (epoch, key) = rnic.draw_identity();
        let engine = RdEngine::new(RdQpConfig {
            qpn: local.port(),
            pd: pd.id,
            qkey: attr.qkey,
            denied: Access::empty(),
            rd: RdConfig {
                window: u32::try_from(WINDOW.min(granted / 4)).unwrap_or(u32::MAX),
                receives: 0,
                rnr_retries: attr.rnr_retries,
                datagram: DATAGRAM,
                unreachable: attr.unreachable,
                scope: connection.map_or(Scope::Peer, |_| Scope::Message),
                connection,
                ..RdConfig::new(clock::now(), epoch, key)
            },
        });
        let instruments = Instruments::new(&rnic.config, local, rnic.next_datagram_qp());
        let parts = attr.qp.parts(local.port().into(), &rnic.mrs);
        if let Some(after) = rnic.background.shares_host_after() {
            ports.share_host(after);
        }
        let shared = RdShared::start(parts, engine, ports, instruments)?;
        let kind = connection.map_or("rd", |_| "rc");
        let entry = rnic.statistics.begin(kind, local.port().into(), &shared);
        Ok(Self {
            shared,
            pd: pd.clone(),
            local,
            max_sge: attr.qp.max_sge,
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

    /// The receive buffer that the kernel granted, in octets with its own overhead.
    ///
    /// # Errors
    /// [`Error::System`] where the kernel does not report it.
    pub fn receive_buffer(&self) -> Result<usize, Error> {
        self.shared
            .granted_receive_buffer()
            .map_err(Error::system("cannot read a socket's receive buffer"))
    }

    /// Posts work requests, in order (`ibv_post_send(3)`); each has its peer. Never blocks.
    ///
    /// # Errors
    /// [`PostFailure`] has the number of accepted work requests, and the error of the next one: [`PostError::Unsupported`] for operations on local keys,
    /// [`PostError::Group`] for the handle of a group, and those of [`RcQp::post_send`](crate::RcQp::post_send).
    pub fn post_send(&self, wrs: &[RdSendWr<'_>]) -> Result<(), PostFailure> {
        self.shared.post(wrs.iter().map(|wr| self.wqe(wr)))
    }

    /// Posts all of the work requests, in order, or none of them (`ibv_wr_complete(3)`). One that its maker could not make refuses all. Where there are several,
    /// each is made twice.
    ///
    /// # Errors
    /// [`PostError`] of the first that cannot be accepted.
    pub fn post_send_all<'a>(
        &self,
        wrs: impl ExactSizeIterator<Item = Result<RdSendWr<'a>, PostError>> + Clone,
    ) -> Result<(), PostError> {
        self.shared.post_all(wrs.map(|wr| self.wqe(&wr?)))
    }

    fn wqe(&self, wr: &RdSendWr<'_>) -> Result<RdSendWqe, PostError> {
        let send = wqe(&wr.wr, self.max_sge)?;
        if matches!(send.work, RcWork::Memory(_)) {
            return Err(PostError::Unsupported);
        }
        let ah = &wr.destination.ah;
        Ok(RdSendWqe {
            send,
            peer: self.peer(ah, wr.destination.qpn)?,
            route: ah.route().clone(),
            qkey: wr.destination.qkey,
        })
    }

    /// The peer behind an address handle.
    pub(crate) fn peer(&self, ah: &AddressHandle, qpn: u16) -> Result<Peer, PostError> {
        if ah.is_group() {
            return Err(PostError::Group);
        }
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

    /// Posts receives, in order (`ibv_post_recv(3)`).
    ///
    /// # Errors
    /// [`PostFailure`] has the number of accepted work requests, and the error of the next one.
    pub fn post_recv(&self, wrs: &[RecvWr<'_>]) -> Result<(), PostFailure> {
        self.shared.post_recv(wrs)
    }

    /// Changes the Q_Key that Sends have to carry which arrive from now on.
    pub fn set_qkey(&self, qkey: u32) {
        self.shared.run(|inner| inner.engine.set_qkey(qkey));
    }

    /// Sets how often a message may find no receive at its peer, as [`RdQpAttr::rnr_retries`] does.
    pub fn set_rnr_retries(&self, retries: Option<u32>) {
        self.shared
            .run(|inner| inner.engine.set_rnr_retries(retries));
    }

    /// Takes the oldest entry of the error queue: failures of peers, and of messages with their numbers. It holds 256; later ones are counted and lost. When it
    /// turns non-empty, [`AsyncEvent::ErrorQueue`](crate::AsyncEvent::ErrorQueue) is raised.
    #[must_use]
    pub fn poll_error(&self) -> Option<ErrorEntry> {
        self.shared.run(|inner| inner.engine.poll_error())
    }

    /// Resets the queue pair (`ibv_modify_qp(3)` to reset): posted work requests are discarded without completions, but for receives that queue pairs share, and
    /// completions that were not polled are gone. Associations with peers are closed. It keeps its QPN, attributes and counters.
    pub fn reset(&self) {
        let (epoch, key) = self.pd.rnic.shared.draw_identity();
        self.shared.reset(epoch, key);
    }

    /// Drops datagrams that arrive from now on, until [`start_receiving`](Self::start_receiving), as a queue pair does that is not ready to receive
    /// (`ibv_modify_qp(3)`). A new queue pair receives.
    pub fn stop_receiving(&self) {
        self.shared.stop_receiving();
    }

    /// Handles datagrams that arrive from now on.
    pub fn start_receiving(&self) {
        self.shared.start_receiving();
    }

    /// Lets no posted send begin (SQD): those that have begun complete. With `notify`, [`AsyncEvent::SqDrained`](crate::AsyncEvent::SqDrained) follows then.
    pub fn drain_sends(&self, notify: bool) {
        self.shared.drain_sends(notify);
    }

    /// Ends a drain: posted sends begin again.
    pub fn resume_sends(&self) {
        self.shared.resume_sends();
    }

    /// Whether sends are not complete that had begun when the drain began.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.shared
            .run(|inner| inner.engine.sq_drain().is_draining())
    }

    /// Ends everything posted with a completion of status `Flushed`, as the error state of a queue pair does, and all associations with peers.
    pub fn flush(&self) {
        self.shared.flush();
    }

    /// Whether a completion of it found its queue full: it was flushed then
    /// ([`AsyncEvent::QpFatal`](crate::AsyncEvent::QpFatal)).
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.shared.has_failed()
    }

    /// Peers that it has an association with: those with traffic within the last minute.
    #[must_use]
    pub fn peers(&self) -> usize {
        self.shared.run(|inner| inner.engine.associations())
    }

    /// Counters of the queue pair. Segments are datagrams here, and their octets include all that UDP carries.
    #[must_use]
    pub fn counters(&self) -> QpCounters {
        self.shared.counters()
    }
}

impl Drop for RdQp {
    fn drop(&mut self) {
        self.shared.close();
        let rnic = &self.pd.rnic.shared;
        rnic.statistics.end(&self.entry, &self.counters());
        let qpn = u32::from(self.qpn());
        rnic.background.events().forget(|event| event.is_about(qpn));
    }
}

/// Reliable datagram queue pairs of a protection domain.
impl Pd {
    /// Makes a reliable datagram queue pair.
    ///
    /// # Errors
    /// [`Error::Bind`] where the port is taken or the address is not ours, [`Error::Limit`] for sizes
    /// outside the device's limits, [`Error::System`] where descriptors are exhausted.
    pub fn create_rd_qp(&self, attr: &RdQpAttr<'_>) -> Result<RdQp, Error> {
        RdQp::create(self, attr, None)
    }
}
