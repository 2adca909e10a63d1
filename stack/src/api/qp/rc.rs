//! Connected queue pairs: iWARP over TCP.
//!
//! The order is that of rdma_cm: make the queue pair, post receives, then connect or accept. [`RcQp::connect`] and
//! [`RcListener::accept`] wait in the calling thread, bounded by [`MpaConfig::startup_timeout`]; a
//! [`ConnectionChannel`](crate::ConnectionChannel) does the same for any number of connections without waiting.

mod mapped;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use dgiwarp_ddp::{STag, TaggedOffset};
use dgiwarp_rdmap::wire::AtomicOperation;

use crate::api::device::statistics::{Counts as _, Entry};
use crate::api::qp::qpn::Qpn;
use crate::driver::cm::connect::Cm;
use crate::driver::cm::oob_connect::{self, OobConnections};
use crate::driver::cm::rd_carrier::Caller;
use crate::driver::qp::core::QpParts;
use crate::driver::tcp::qp::RcShared;
use crate::driver::udp::rd_qp::paired;
use crate::{
    Access, ConnectError, ConnectionEvent, ConnectionPort, Error, Established, MpaConfig, MwType,
    Pairing, Pd, PostError, PostFailure, QpCounters, RcQpAttr, RecvWr, RnrLimits, Sge, ShortData,
};
use dgiwarp_engine::cm::oob::Start;
use dgiwarp_engine::connected::{
    InlineOctets, MemoryWork, RcData, RcEnd, RcSendWqe, RcWork, ShortWr,
};
use dgiwarp_engine::mr::Bind;
use dgiwarp_engine::recv_queue::{RecvQueue, copy_sges, total_length};
use dgiwarp_engine::xrc::XrcRole;

/// Operation of a send work request of a connected QP. Keys and addresses are the peer's, except for `LocalInvalidate`, `BindMw` and `RegisterMr`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RcOperation {
    /// Send to the peer's receive queue (RFC 5040 §5.3).
    Send {
        /// A key of the peer's that it has to invalidate before it delivers the message. The peer must have registered that with
        /// [`Access::REMOTE_INVALIDATE`](crate::Access::REMOTE_INVALIDATE), else the connection ends.
        invalidate: Option<u32>,
    },
    /// Send with 32 bits that come with the message. No RFC has it: only a peer that is dgiwarp too takes it
    /// ([`RcOptions::hello`](crate::RcOptions::hello)). With another one posting it fails with [`PostError::NoImmediates`]; posted before the peer is detected, it
    /// waits for the hello up to two seconds, and with another one it then ends the connection.
    SendImmediate {
        /// The 32 bits.
        immediate: u32,
    },
    /// Write to the peer's memory (RFC 5040 §5.1).
    Write {
        /// The remote key of the target region.
        rkey: u32,
        /// The target address in that region's address space.
        remote_addr: u64,
        /// 32 bits that come after the octets and take a receive of the peer's (RFC 7306 §6).
        immediate: Option<u32>,
    },
    /// Read the peer's memory into ours (RFC 5040 §5.2).
    Read {
        /// The remote key of the source region.
        rkey: u32,
        /// The source address in that region's address space.
        remote_addr: u64,
    },
    /// Change eight octets of the peer's memory and get their former value, in our byte order (RFC 7306 §5). The local memory is eight octets.
    Atomic {
        /// The remote key of the region.
        rkey: u32,
        /// The address in that region's address space, a multiple of 8.
        remote_addr: u64,
        /// Operation of the atomic.
        operation: AtomicOperation,
    },
    /// Take a key of ours from the peers: of a region, of a window of type 2 bound on this QP, or of a fast registration, whose local key goes
    /// with it. Anything else ends the connection, as does a fast registration with windows bound to it.
    LocalInvalidate {
        /// The remote key.
        rkey: u32,
    },
    /// Open a window of type 2 to the peer (`IBV_WR_BIND_MW`). Work requests posted behind this one may send the key to the peer. A binding that cannot be
    /// ends the connection.
    BindMw {
        /// The window's new key: its upper 24 bits are those of [`Mw::rkey`](crate::Mw::rkey), the others are the program's choice.
        rkey: u32,
        /// The local key of the region, which was registered with [`Access::MW_BIND`](crate::Access::MW_BIND).
        lkey: u32,
        /// The first octet, in the region's address space.
        addr: u64,
        /// Octets, at least one.
        length: u64,
        /// Any of [`Access::REMOTE_READ`](crate::Access::REMOTE_READ), [`Access::REMOTE_WRITE`](crate::Access::REMOTE_WRITE) and
        /// [`Access::REMOTE_ATOMIC`](crate::Access::REMOTE_ATOMIC); the latter two need a region with [`Access::LOCAL_WRITE`](crate::Access::LOCAL_WRITE).
        access: Access,
        /// Whether the peer counts addresses from the window's first octet; else it uses those of the region.
        zero_based: bool,
    },
    /// Register the memory that a [`FastMr`](crate::FastMr) was given. Work requests posted behind this one may use it. A registration that cannot be ends
    /// the connection.
    RegisterMr {
        /// The new key: its upper 24 bits are those of [`FastMr::rkey`](crate::FastMr::rkey), the others are the program's choice.
        rkey: u32,
        /// As for [`Pd::register`](crate::Pd::register).
        access: Access,
    },
}

/// A send work request of a connected QP (`ibv_send_wr`).
#[derive(Debug, Clone, Copy)]
pub struct RcSendWr<'a> {
    /// Returned in the completion.
    pub wr_id: u64,
    /// Operation.
    pub operation: RcOperation,
    /// Local memory in this order: payload, which must stay unchanged until the completion, or the place of the answer.
    pub sges: &'a [Sge],
    /// Octets to send instead, at most [`MAX_INLINE_DATA`], which are copied now. Only for Send and Write, and with empty `sges`.
    pub inline: &'a [u8],
    /// Whether success makes a completion; errors always do.
    pub signaled: bool,
    /// Whether the receiver raises a solicited event.
    pub solicited: bool,
    /// Whether this waits until the Reads and atomics posted before are complete.
    pub fence: bool,
    /// Number of the peer's shared receive queue ([`Srq::number`](crate::Srq::number)); only that of an XRC initiator counts.
    pub remote_srqn: u32,
}

impl<'a> RcSendWr<'a> {
    /// A work request with a completion, neither solicited nor fenced.
    #[must_use]
    pub const fn new(wr_id: u64, operation: RcOperation, sges: &'a [Sge]) -> Self {
        Self {
            wr_id,
            operation,
            sges,
            inline: &[],
            signaled: true,
            solicited: false,
            fence: false,
            remote_srqn: 0,
        }
    }

    /// A Send with a completion.
    #[must_use]
    pub const fn send(wr_id: u64, sges: &'a [Sge]) -> Self {
        Self::new(wr_id, RcOperation::Send { invalidate: None }, sges)
    }
}

/// Most octets of a work request's inline data.
pub const MAX_INLINE_DATA: usize = dgiwarp_engine::connected::MAX_INLINE;

/// Octets that an atomic operation works on.
const OPERAND: u32 = 8;

/// A connected queue pair.
///
/// ```
/// use std::time::Duration;
/// use dgiwarp::{
///     Access, Buffer, Config, MpaConfig, RcListener, RcOperation, RcQpAttr, RcSendWr, ReadDepths, Rnic, WcOpcode,
/// };
///
/// let rnic = Rnic::open(Config::default())?;
/// let pd = rnic.alloc_pd();
/// let cq = rnic.create_cq(64)?;
/// let mpa = MpaConfig::default();
///
/// // One side lets its peer read 4096 octets, and serves that without doing anything.
/// let served = Buffer::zeroed(4096)?;
/// served.write(0, b"to be read");
/// let source = pd.register(served.region(), Access::REMOTE_READ)?;
/// let server = pd.create_rc_qp(&RcQpAttr::new(&cq, &cq))?;
/// let listener = RcListener::bind("127.0.0.1:0".parse()?, mpa.clone())?;
/// let address = listener.local_addr();
/// let accepting = std::thread::spawn(move || -> Result<_, dgiwarp::ConnectError> {
///     let request = listener.accept(Duration::from_secs(5))?.expect("a peer connects");
///     request.accept(&server, ReadDepths { ird: 4, ord: 4 }, b"")?;
///     Ok(server)
/// });
///
/// // The other side connects and reads.
/// let client = pd.create_rc_qp(&RcQpAttr::new(&cq, &cq))?;
/// client.connect(address, &mpa, b"")?;
/// let memory = Buffer::zeroed(10)?;
/// let sink = pd.register(memory.region(), Access::LOCAL_WRITE)?;
/// let read = RcOperation::Read { rkey: source.rkey(), remote_addr: source.addr() };
/// client.post_send(&[RcSendWr::new(1, read, &[sink.sge(..)])])?;
/// let wc = cq.wait(Duration::from_secs(5))?.expect("the Read completes");
/// assert_eq!(wc.opcode, WcOpcode::RdmaRead);
/// assert_eq!(memory.to_vec(0, 10), b"to be read");
/// # drop((client, accepting.join().unwrap()?));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Dropping it ends posted work requests without completions, and closes the connection in the background: their octets still leave, up to a
/// mebibyte that TCP has not taken, and has a second for it; the peer has two for closing its half. The last handle of the device waits for
/// this up to 200 ms. Work requests of a paired QP that wait for its connection have half a second from [`start`](Self::start) to leave, which the drop waits for.
#[derive(Debug)]
pub struct RcQp {
    pub(crate) shared: Arc<RcShared>,
    pd: Pd,
    qpn: Qpn,
    oob_connections: Option<Arc<OobConnections>>,
    max_sge: usize,
    /// `None` beside a queue pair of the same number, which has the entry.
    entry: Option<Entry>,
}

impl RcQp {
    fn create(pd: &Pd, attr: &RcQpAttr<'_>) -> Result<Self, Error> {
        let role = if attr.xrc_initiator {
            XrcRole::Initiator
        } else {
            XrcRole::None
        };
        Self::create_as(pd, attr, role)
    }

    pub(crate) fn create_as(pd: &Pd, attr: &RcQpAttr<'_>, role: XrcRole) -> Result<Self, Error> {
        attr.qp.check()?;
        let rnic = &pd.rnic.shared;
        let oob_connections = attr.paired.then(|| rnic.oob_connections()).transpose()?;
        let qpn = match &oob_connections {
            Some(oob_connections) => oob_connections.reserve()?,
            None => Qpn::draw().ok_or_else(Error::no_qpn)?,
        };
        let number = qpn.get();
        let parts = attr.qp.parts(number, &rnic.mrs);
        let mut this = Self::create_of(pd, attr, role, oob_connections, (qpn, parts))?;
        this.entry = Some(rnic.statistics.begin("rc", number, &this.shared));
        Ok(this)
    }

    /// Makes the TCP end of a queue pair that has another, too: with its number and its receives.
    pub(crate) fn create_beside(
        pd: &Pd,
        attr: &RcQpAttr<'_>,
        number: u32,
        receives: &Arc<RecvQueue>,
    ) -> Result<Self, Error> {
        let qpn = Qpn::take(number).ok_or_else(Error::no_qpn)?;
        let mut parts = attr.qp.parts(number, &pd.rnic.shared.mrs);
        parts.recv_queue = Arc::clone(receives);
        let this = Self::create_of(pd, attr, XrcRole::None, None, (qpn, parts))?;
        pd.rnic.shared.statistics.begin_other(&this.shared);
        Ok(this)
    }

    fn create_of(
        pd: &Pd,
        attr: &RcQpAttr<'_>,
        role: XrcRole,
        oob_connections: Option<Arc<OobConnections>>,
        (qpn, mut parts): (Qpn, QpParts),
    ) -> Result<Self, Error> {
        let rnic = &pd.rnic.shared;
        if let XrcRole::Initiator = role {
            rnic.link_xrcds(&attr.qp.send_cq.shared)?;
        }
        let number = qpn.get();
        if !matches!(role, XrcRole::None) {
            // Neither an initiator nor a target has receives of its own.
            parts.recv_queue = Arc::new(RecvQueue::new(0, attr.qp.max_sge));
        }
        let options = attr.options.unwrap_or(rnic.config.rc);
        let patience = rnic.config.connection_timeout;
        let shared = RcShared::create(parts, patience, options, role)?;
        if let Some(oob_connections) = &oob_connections {
            // A connection in the background could not return this error later; other connects do.
            shared
                .keep_place()
                .map_err(Error::system("no descriptor is left for a connection"))?;
            oob_connections.enter(number, pd.id, &shared);
        }
        Ok(Self {
            shared,
            pd: pd.clone(),
            qpn,
            oob_connections,
            entry: None,
            max_sge: attr.qp.max_sge,
        })
    }

    /// Our number for it.
    #[must_use]
    pub fn qpn(&self) -> u32 {
        self.qpn.get()
    }

    /// Whether it was made with [`RcQpAttr::xrc_initiator`].
    #[must_use]
    pub fn is_xrc_initiator(&self) -> bool {
        matches!(self.shared.unlocked.xrc, XrcRole::Initiator)
    }

    /// The protection domain.
    #[must_use]
    pub fn pd(&self) -> &Pd {
        &self.pd
    }

    /// Connects to a listener, as MPA Initiator. [`MpaConfig::emss`] is replaced by TCP's maximum segment size, and
    /// [`MpaConfig::rtr`] loses the zero-length Send, which is not done here.
    ///
    /// # Errors
    /// [`ConnectError`]; the queue pair may then be used for another attempt.
    pub fn connect(
        &self,
        to: SocketAddr,
        mpa: &MpaConfig,
        private_data: &[u8],
    ) -> Result<Established, ConnectError> {
        let cm = Cm::new(None, Some(&self.pd.rnic)).map_err(ConnectError::Device)?;
        self.begin_connect(&cm, None, to, mpa, private_data, 0)?;
        match cm.wait(None) {
            Some(ConnectionEvent::Established { established, .. }) => Ok(established),
            Some(ConnectionEvent::Rejected { rejection, .. }) => {
                Err(ConnectError::Rejected(rejection))
            }
            Some(ConnectionEvent::Failed { error, .. }) => Err(error),
            Some(
                ConnectionEvent::Request { .. }
                | ConnectionEvent::Disconnected { .. }
                | ConnectionEvent::TimewaitExit { .. },
            )
            | None => unreachable!("the first that happens to an attempt, and it has a deadline"),
        }
    }

    /// Begins to connect; the result is an event with `context`.
    pub(crate) fn begin_connect(
        &self,
        cm: &Cm,
        from: Option<ConnectionPort>,
        to: SocketAddr,
        mpa: &MpaConfig,
        private_data: &[u8],
        context: u64,
    ) -> Result<(), ConnectError> {
        let ticket = self.shared.claim().ok_or(ConnectError::State)?;
        let caller = Caller {
            qp: Arc::clone(&self.shared),
            ticket,
            qpn: self.qpn(),
            pd: self.pd.id,
            context,
            offer: None,
        };
        cm.connect(caller, from, to, mpa, private_data)
    }

    /// Gives a QP that was made to be [paired](RcQpAttr::paired) its peer, once (`ibv_modify_qp(3)` to ready-to-receive). The connection is
    /// made in the background, whichever end is ready first; nothing is reported of failed attempts.
    ///
    /// # Errors
    /// [`ConnectError::State`] if the QP was not made for this, has its peer already, or is or was connected otherwise.
    pub fn pair(&self, pairing: &Pairing) -> Result<(), ConnectError> {
        let oob_connections = self.oob_connections.as_ref().ok_or(ConnectError::State)?;
        let ticket = self.shared.claim().ok_or(ConnectError::State)?;
        oob_connections.pair(self.qpn(), ticket, *pairing);
        self.pd.rnic.shared.background.wake();
        Ok(())
    }

    /// Lets work requests be posted to a paired QP (`ibv_modify_qp(3)` to ready-to-send); those before the connection is there wait for it.
    /// `sq_psn` is the number that the peer has as its [`Pairing::rq_psn`], `ord` the Reads and atomics outstanding at most. If
    /// work requests wait longer than `patience`, the first ends with [`WcStatus::RetryExceeded`](crate::WcStatus::RetryExceeded) and the QP is in error; `None` has them
    /// wait for ever.
    ///
    /// # Errors
    /// [`ConnectError::State`] if the QP was not made to be paired.
    pub fn start(
        &self,
        sq_psn: u32,
        ord: u16,
        patience: Option<Duration>,
    ) -> Result<(), ConnectError> {
        let oob_connections = self.oob_connections.as_ref().ok_or(ConnectError::State)?;
        let start = Start {
            sq_psn,
            ord,
            patience,
        };
        oob_connections.start(self.qpn(), start);
        self.shared.open();
        self.pd.rnic.shared.background.wake();
        Ok(())
    }

    /// Lets work requests be posted before there is a connection: they wait for it. For a QP that a [`ConnectionChannel`](crate::ConnectionChannel) is going to
    /// connect and whose program counts on posting (`ibv_modify_qp(3)` to ready-to-send before `rdma_accept(3)`).
    pub fn open(&self) {
        self.shared.open();
    }

    /// Sets the rights that the peer has with keys that grant them (`qp_access_flags` of `ibv_modify_qp(3)`): any of
    /// [`Access::REMOTE_READ`], [`Access::REMOTE_WRITE`] and [`Access::REMOTE_ATOMIC`]; the others end the connection as a key without the right does. At
    /// first it may do all.
    pub fn allow(&self, access: Access) {
        let all = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        self.shared.deny(all - access);
    }

    /// Sets the limits of messages that find no posted receive (`rnr_retry` and `min_rnr_timer` of `ibv_modify_qp(3)`). They hold between two dgiwarp peers; with
    /// other peers messages wait in TCP. A reset takes them back.
    pub fn limit_rnr(&self, limits: RnrLimits) {
        self.shared.limit_rnr(limits);
    }

    /// Ends the connection, if there is one, and flushes everything posted (`ibv_modify_qp(3)` to the error state). Messages that
    /// have arrived are delivered before. Receives that are posted later are flushed, too. Work requests of a paired QP that wait for its connection have half a
    /// second from [`start`](Self::start) to leave.
    pub fn flush(&self) {
        self.let_leave();
        self.shared.flush();
    }

    /// Has the disconnect event of this QP's connection come behind the messages that the peer's host has sent to [paired](RcQpAttr::paired) QPs of this process: they are received first, and the
    /// event waits up to a second for the program to take their completions. For a connection that carries events and private data alone, beside paired QPs with the messages
    /// (`rdma_connect(3)` without a queue pair).
    pub fn disconnect_behind_paired(&self) {
        self.shared.follow(has_untaken_of);
    }

    fn let_leave(&self) {
        if let Some(oob_connections) = &self.oob_connections {
            oob_connections.let_leave(&self.shared);
        }
    }

    /// Whether a message of the peer raises [`AsyncEvent::CommunicationEstablished`](crate::AsyncEvent::CommunicationEstablished), once: so it is in RTR, before the
    /// program lets the queue pair send (`ibv_modify_qp(3)`).
    pub fn await_first_message(&self, awaits: bool) {
        self.shared.await_first_message(awaits);
    }

    /// Drains the send queue (`ibv_modify_qp(3)` to SQD): work requests that have begun end, and those that have not, or are posted from now on, wait for
    /// [`resume_sends`](Self::resume_sends). With `notify`, [`AsyncEvent::SqDrained`](crate::AsyncEvent::SqDrained) is raised when none is under way any more.
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

    /// Resets the QP (`ibv_modify_qp(3)` to reset): posted work requests are discarded without completions, completions that
    /// were not polled are gone, the connection is closed in the background, and the QP may be connected again.
    pub fn reset(&self) {
        if let Some(oob_connections) = &self.oob_connections {
            oob_connections.reset(self.qpn());
        }
        self.shared.reset();
        self.pd.rnic.shared.mrs.close_windows_of(self.qpn());
    }

    /// Whether the QP is in error: its connection is over, or did not come up in time.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.shared.is_over()
    }

    /// Posts send work requests, in order, and hands as much of them to TCP as it takes now (`ibv_post_send(3)`). Never blocks. Work requests of the
    /// side that accepted leave once the other side has sent something. All complete in this order.
    ///
    /// # Errors
    /// [`PostFailure`] has the number of accepted work requests, and the error of the next one.
    #[inline]
    pub fn post_send(&self, wrs: &[RcSendWr<'_>]) -> Result<(), PostFailure> {
        let next = |number: usize| short(wrs.get(number)?, self.max_sge);
        let posted = self.shared.post_short(wrs.len(), next);
        if posted > 0 && posted == wrs.len() {
            return Ok(());
        }
        self.post_others(wrs, posted)
    }

    /// Posts work requests behind the first `posted`, which are not for short messages.
    #[inline(never)]
    fn post_others(&self, wrs: &[RcSendWr<'_>], posted: usize) -> Result<(), PostFailure> {
        let others = wrs[posted..].iter().map(|wr| self.wqe(wr));
        self.shared.post(others).map_err(|failure| PostFailure {
            accepted: posted + failure.accepted,
            ..failure
        })
    }

    /// Posts all of the work requests, in order, or none of them (`ibv_wr_complete(3)`). One that its maker could not make refuses all. Where there are several,
    /// each is made twice.
    ///
    /// # Errors
    /// [`PostError`] of the first that cannot be accepted.
    pub fn post_send_all<'a>(
        &self,
        wrs: impl ExactSizeIterator<Item = Result<RcSendWr<'a>, PostError>> + Clone,
    ) -> Result<(), PostError> {
        self.shared.post_all(wrs.map(|wr| self.wqe(&wr?)))
    }

    fn wqe(&self, wr: &RcSendWr<'_>) -> Result<RcSendWqe, PostError> {
        if matches!(wr.operation, RcOperation::SendImmediate { .. })
            && self.shared.peer_refuses_immediates()
        {
            return Err(PostError::NoImmediates);
        }
        wqe(wr, self.max_sge)
    }

    /// Posts receives, in order (`ibv_post_recv(3)`). A message that finds none waits for it, or ends the
    /// connection: [`RcOptions::no_receive`](crate::RcOptions::no_receive). Receives behind the end complete with `Flushed`.
    ///
    /// # Errors
    /// [`PostFailure`] has the number of accepted work requests, and the error of the next one.
    pub fn post_recv(&self, wrs: &[RecvWr<'_>]) -> Result<(), PostFailure> {
        let posted = self.shared.recv_queue.post_own(wrs);
        if self.shared.is_over() {
            self.shared.flush();
        }
        posted
    }

    /// Begins to close the connection gracefully: posted work requests get up to a second to leave, and a peer of our own kind a moment to place it;
    /// then TCP's end follows, and everything still posted completes with `Flushed`. Does not wait for any of this.
    pub fn disconnect(&self) {
        self.shared.disconnect();
    }

    /// Why the connection is over, if it is.
    #[must_use]
    pub fn end(&self) -> Option<RcEnd> {
        self.shared.end()
    }

    /// Our address and TCP port, once connected.
    #[must_use]
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.shared.local_addr()
    }

    /// Whether messages of the peer come through memory that both share, so that a poll finds them without a system call.
    #[must_use]
    pub fn receives_from_memory(&self) -> bool {
        self.shared.receives_from_memory()
    }

    /// Counters of the queue pair.
    #[must_use]
    pub fn counters(&self) -> QpCounters {
        self.shared.counters()
    }
}

/// Receives the messages of a host to paired queue pairs of either transport, and returns whether completions of theirs lie in a completion queue.
fn has_untaken_of(host: IpAddr) -> bool {
    let by_tcp = oob_connect::has_untaken_of(host);
    paired::has_untaken_of(host) || by_tcp
}

/// A work request that may be one for a short message.
#[inline]
fn short<'a>(wr: &RcSendWr<'a>, max_sge: usize) -> Option<ShortWr<'a>> {
    let is_message = matches!(
        wr.operation,
        RcOperation::Send { .. }
            | RcOperation::Write {
                immediate: None,
                ..
            }
    );
    let data = match (wr.sges, wr.inline) {
        ([], inline) if inline.len() <= MAX_INLINE_DATA => ShortData::Inline(inline),
        ([sge], []) if sge.length > 0 && max_sge > 0 => ShortData::Sge(*sge),
        _ => return None,
    };
    (is_message && !wr.fence).then(|| ShortWr {
        wr_id: wr.wr_id,
        work: work(wr.operation),
        data,
        signaled: wr.signaled,
        solicited: wr.solicited,
    })
}

/// The work request, with its elements and inline data copied.
pub(crate) fn wqe(wr: &RcSendWr<'_>, max_sge: usize) -> Result<RcSendWqe, PostError> {
    let sends = matches!(
        wr.operation,
        RcOperation::Send { .. } | RcOperation::SendImmediate { .. } | RcOperation::Write { .. }
    );
    let memory = matches!(
        wr.operation,
        RcOperation::LocalInvalidate { .. }
            | RcOperation::BindMw { .. }
            | RcOperation::RegisterMr { .. }
    );
    if memory && !wr.sges.is_empty() {
        return Err(PostError::Malformed);
    }
    let length = if wr.inline.is_empty() {
        total_length(wr.sges, max_sge)?
    } else if sends && wr.sges.is_empty() {
        if wr.inline.len() > MAX_INLINE_DATA {
            return Err(PostError::TooLong);
        }
        u32::try_from(wr.inline.len()).map_err(|_| PostError::TooLong)?
    } else {
        return Err(PostError::Malformed);
    };
    if matches!(wr.operation, RcOperation::Atomic { .. }) && length != OPERAND {
        return Err(PostError::Malformed);
    }
    let work = work(wr.operation);
    let with = |data| RcSendWqe {
        wr_id: wr.wr_id,
        work,
        data,
        length,
        signaled: wr.signaled,
        solicited: wr.solicited,
        fence: wr.fence,
        remote_srqn: wr.remote_srqn,
    };
    // Apart, so that the room for inline data is copied only with inline data.
    if wr.inline.is_empty() {
        return Ok(with(RcData::Sges(copy_sges(wr.sges))));
    }
    Ok(with(RcData::Inline(InlineOctets::from_slice(wr.inline))))
}

#[inline]
fn work(operation: RcOperation) -> RcWork {
    match operation {
        RcOperation::Send { invalidate } => RcWork::Send {
            invalidate: invalidate.map(STag::new),
        },
        RcOperation::SendImmediate { immediate } => RcWork::SendImmediate { immediate },
        RcOperation::Write {
            rkey,
            remote_addr,
            immediate,
        } => RcWork::Write {
            stag: STag::new(rkey),
            start: TaggedOffset::new(remote_addr),
            immediate,
        },
        RcOperation::Read { rkey, remote_addr } => RcWork::Read {
            stag: STag::new(rkey),
            start: TaggedOffset::new(remote_addr),
        },
        RcOperation::Atomic {
            rkey,
            remote_addr,
            operation,
        } => RcWork::Atomic {
            stag: STag::new(rkey),
            start: TaggedOffset::new(remote_addr),
            operation,
        },
        RcOperation::LocalInvalidate { rkey } => RcWork::Memory(MemoryWork::LocalInvalidate {
            stag: STag::new(rkey),
        }),
        RcOperation::BindMw {
            rkey,
            lkey,
            addr,
            length,
            access,
            zero_based,
        } => RcWork::Memory(MemoryWork::BindMw(Bind {
            kind: MwType::Two,
            rkey,
            lkey,
            addr,
            length,
            access,
            zero_based,
        })),
        RcOperation::RegisterMr { rkey, access } => {
            RcWork::Memory(MemoryWork::RegisterMr { rkey, access })
        }
    }
}

impl Drop for RcQp {
    fn drop(&mut self) {
        self.let_leave();
        if let Some(oob_connections) = &self.oob_connections {
            oob_connections.forget(self.qpn());
        }
        self.shared.close();
        self.pd.rnic.shared.mrs.close_windows_of(self.qpn());
        let statistics = &self.pd.rnic.shared.statistics;
        match &self.entry {
            Some(entry) => statistics.end(entry, &self.counters()),
            None => statistics.end_other(&self.counters()),
        }
    }
}

/// Connected queue pairs of a protection domain.
impl Pd {
    /// Makes a queue pair for one connection.
    ///
    /// # Errors
    /// [`Error::Limit`] for sizes outside the device's.
    pub fn create_rc_qp(&self, attr: &RcQpAttr<'_>) -> Result<RcQp, Error> {
        RcQp::create(self, attr)
    }
}
