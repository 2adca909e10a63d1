//! Queue pairs: `ibv_modify_qp(3)`, `ibv_query_qp(3)`, `ibv_destroy_qp(3)`.

use crate::abi::{
    IBV_QP_ACCESS_FLAGS, IBV_QP_DEST_QPN, IBV_QP_EN_SQD_ASYNC_NOTIFY, IBV_QP_MIN_RNR_TIMER,
    IBV_QP_RNR_RETRY, IBV_QP_SQ_PSN, Unset, ibv_qp, ibv_qp_attr, ibv_qp_cap, ibv_qp_ex,
    ibv_qp_init_attr,
};
use crate::cq::queue::Cq;
use crate::device::async_queue::EventSource;
use crate::device::context;
use crate::device::context::Context;
use crate::device::persona::{self, Persona};
use crate::ffi::{Facade, Object, check_memory, errno_value, load, store};
use crate::mem::mr::{self, Pd};
use crate::post::inline::InlineRing;
use crate::post::wr_builder::SendOps;
use crate::qp::cm_qp::CmQp;
use crate::qp::rc_transport::RcTransport;
use crate::qp::srq::Srq;
use crate::qp::state::{Attributes, QpState, Service};
use crate::qp::xrc::{Target, Xrcd};
use crate::qp::{ah, qp_table, rc_rd};
use dgiwarp::{
    AsyncEvent, Pairing, PostFailure, RcQp, RcRdQp, RdQp, RecvWr, RnrLimits, UcQp, UdQp,
};
use nix::errno::Errno;
use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Peer number of `rdma_init_qp_attr(3)`, which no queue pair has: rdma_cm connects the queue pair, and the program's
/// transitions change the reported attributes only.
pub(crate) const CM_PEER: u32 = 1;

/// The stack's queue pair.
pub(crate) enum Transport {
    Ud(UdQp),
    Uc(UcQp),
    /// Reliable datagram.
    Rd(RdQp),
    /// Reliable connected, or XRC initiator.
    Rc(RcQp),
    /// Reliable connected, on reliable datagrams.
    RcRd(RcRdQp),
    XrcTarget(Arc<Target>),
}

impl Transport {
    pub(crate) fn qpn(&self) -> u32 {
        match self {
            Self::Ud(qp) => qp.qpn().into(),
            Self::Uc(qp) => qp.qpn().into(),
            Self::Rd(qp) => qp.qpn().into(),
            Self::Rc(qp) => qp.qpn(),
            Self::RcRd(qp) => qp.qpn().into(),
            Self::XrcTarget(target) => target.rc.qpn(),
        }
    }

    pub(crate) fn service(&self) -> Service {
        match self {
            Self::Ud(_) => Service::UnreliableDatagram,
            Self::Uc(_) => Service::UnreliableConnected,
            Self::Rd(_) => Service::ReliableDatagram,
            Self::Rc(qp) if qp.is_xrc_initiator() => Service::XrcInitiator,
            Self::Rc(_) | Self::RcRd(_) => Service::ReliableConnected,
            Self::XrcTarget(_) => Service::XrcTarget,
        }
    }

    /// The stack's queue pair, if rdma_cm can connect it.
    pub(crate) fn for_cm(&self) -> Option<CmQp<'_>> {
        match self {
            Self::Rc(qp) => Some(CmQp::Tcp(qp)),
            Self::XrcTarget(target) => Some(CmQp::Tcp(&target.rc)),
            Self::RcRd(qp) => Some(CmQp::Either(qp)),
            Self::Ud(_) | Self::Uc(_) | Self::Rd(_) => None,
        }
    }

    pub(crate) fn post_recv(&self, wrs: &[RecvWr<'_>]) -> Result<(), PostFailure> {
        match self {
            Self::Ud(qp) => qp.post_recv(wrs),
            Self::Uc(qp) => qp.post_recv(wrs),
            Self::Rd(qp) => qp.post_recv(wrs),
            Self::Rc(qp) => qp.post_recv(wrs),
            Self::RcRd(qp) => qp.post_recv(wrs),
            Self::XrcTarget(target) => target.rc.post_recv(wrs),
        }
    }

    fn reset(&self) {
        match self {
            Self::Ud(qp) => qp.reset(),
            Self::Uc(qp) => qp.reset(),
            Self::Rd(qp) => qp.reset(),
            Self::Rc(qp) => qp.reset(),
            Self::RcRd(qp) => qp.reset(),
            Self::XrcTarget(target) => target.rc.reset(),
        }
    }

    /// Follows a change of the state: datagrams are received by a queue pair that is ready to receive or to send.
    pub(crate) fn follow(&self, before: QpState, after: QpState) {
        let receives = QpState::receives;
        let awaits = after == QpState::ReadyToReceive;
        if awaits || before == QpState::ReadyToReceive {
            self.await_first_message(awaits);
        }
        match self {
            Self::Ud(qp) if receives(after) && !receives(before) => qp.start_receiving(),
            Self::Uc(qp) if receives(after) && !receives(before) => qp.start_receiving(),
            Self::Rd(qp) if receives(after) && !receives(before) => qp.start_receiving(),
            Self::RcRd(qp) if receives(after) && !receives(before) => qp.start_receiving(),
            Self::Ud(qp) if !receives(after) => qp.stop_receiving(),
            Self::Uc(qp) if !receives(after) => qp.stop_receiving(),
            Self::Rd(qp) if !receives(after) => qp.stop_receiving(),
            Self::RcRd(qp) if !receives(after) => qp.stop_receiving(),
            Self::Ud(_)
            | Self::Uc(_)
            | Self::Rd(_)
            | Self::Rc(_)
            | Self::RcRd(_)
            | Self::XrcTarget(_) => {}
        }
    }

    /// Whether the first message of the peer raises `IBV_EVENT_COMM_EST`, which datagram queue pairs do not have.
    fn await_first_message(&self, awaits: bool) {
        match self {
            Self::Ud(_) | Self::Rd(_) => {}
            Self::Uc(qp) => qp.await_first_message(awaits),
            Self::Rc(qp) => qp.await_first_message(awaits),
            Self::RcRd(qp) => qp.await_first_message(awaits),
            Self::XrcTarget(target) => target.rc.await_first_message(awaits),
        }
    }

    /// Lets no send work request begin. With `notify` an event follows when none is under way.
    fn drain_sends(&self, notify: bool) {
        match self {
            Self::Ud(qp) => qp.drain_sends(notify),
            Self::Uc(qp) => qp.drain_sends(notify),
            Self::Rd(qp) => qp.drain_sends(notify),
            Self::Rc(qp) => qp.drain_sends(notify),
            Self::RcRd(qp) => qp.drain_sends(notify),
            Self::XrcTarget(target) => target.rc.drain_sends(notify),
        }
    }

    fn resume_sends(&self) {
        match self {
            Self::Ud(qp) => qp.resume_sends(),
            Self::Uc(qp) => qp.resume_sends(),
            Self::Rd(qp) => qp.resume_sends(),
            Self::Rc(qp) => qp.resume_sends(),
            Self::RcRd(qp) => qp.resume_sends(),
            Self::XrcTarget(target) => target.rc.resume_sends(),
        }
    }

    fn is_draining(&self) -> bool {
        match self {
            Self::Ud(qp) => qp.is_draining(),
            Self::Uc(qp) => qp.is_draining(),
            Self::Rd(qp) => qp.is_draining(),
            Self::Rc(qp) => qp.is_draining(),
            Self::RcRd(qp) => qp.is_draining(),
            Self::XrcTarget(target) => target.rc.is_draining(),
        }
    }

    /// Ends all that is posted, in the error state. Datagrams that are posted from now on do not leave, until the queue pair is reset.
    pub(crate) fn flush(&self) {
        match self {
            Self::Ud(qp) => {
                qp.drain_sends(false);
                qp.flush();
            }
            Self::Uc(qp) => {
                qp.drain_sends(false);
                qp.flush();
            }
            Self::Rd(qp) => {
                qp.drain_sends(false);
                qp.flush();
            }
            Self::Rc(qp) => qp.flush(),
            Self::RcRd(qp) => qp.flush(),
            Self::XrcTarget(target) => target.rc.flush(),
        }
    }
}

/// A queue pair.
pub(crate) struct Qp {
    // First, so that it is dropped before the objects that it uses.
    pub(crate) qp: Transport,
    pub(crate) inline: InlineRing,
    /// Of a queue pair created with `IBV_QP_INIT_ATTR_SEND_OPS_FLAGS`.
    pub(crate) send_ops: Option<SendOps>,
    /// Unused by XRC targets, whose handles share theirs.
    pub(crate) attributes: Mutex<Attributes>,
    /// `attributes.state` for posting, which takes no lock. Unused by XRC targets.
    pub(crate) state: AtomicU32,
    pub(crate) cap: ibv_qp_cap,
    /// `sq_sig_all`: every send has a completion.
    pub(crate) signal_all: bool,
    pub(crate) pd: Arc<Pd>,
    /// Completion queues of sends and receives, as far as it has any.
    pub(crate) cqs: [Option<Arc<Cq>>; 2],
    pub(crate) srq: Option<Arc<Srq>>,
    /// The domain handle of an XRC target.
    pub(crate) _xrcd: Option<Arc<Xrcd>>,
    pub(crate) event_source: EventSource,
}

/// The C struct, as long as the longest of any header: programs may use any queue pair as an `ibv_qp_ex`, and newer
/// headers have one operation more.
#[repr(C)]
pub(crate) struct QpFace {
    pub(crate) ex: ibv_qp_ex,
    pub(crate) _wr_flush: Unset,
}

impl Facade for Qp {
    type C = QpFace;
    const TAG: u32 = 0x6470_7071;
}

/// The queue pair behind a pointer.
///
/// # Safety
/// `qp` is NULL or a live queue pair that stays alive for `'a`.
pub(crate) unsafe fn state<'a>(qp: *mut ibv_qp) -> Result<&'a Qp, Errno> {
    // SAFETY: the caller's contract is the same; the public struct is the first field of the face.
    unsafe { Object::<Qp>::state(qp.cast()) }
}

/// The context of a queue pair.
///
/// # Safety
/// `qp` is a live queue pair, whose context lives for `'a`.
pub(crate) unsafe fn context_of<'a>(qp: *mut ibv_qp) -> Result<&'a Context, Errno> {
    // SAFETY: the caller's contract; this field never changes.
    let context = unsafe { (*qp).context };
    // SAFETY: a context outlives its queue pairs.
    unsafe { context::state(context) }
}

impl Qp {
    fn lock(&self) -> MutexGuard<'_, Attributes> {
        let attributes = match &self.qp {
            Transport::XrcTarget(target) => &target.attributes,
            Transport::Ud(_)
            | Transport::Uc(_)
            | Transport::Rd(_)
            | Transport::Rc(_)
            | Transport::RcRd(_) => &self.attributes,
        };
        attributes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_state(&self, state: QpState) {
        let place = match &self.qp {
            Transport::XrcTarget(target) => &target.state,
            Transport::Ud(_)
            | Transport::Uc(_)
            | Transport::Rd(_)
            | Transport::Rc(_)
            | Transport::RcRd(_) => &self.state,
        };
        place.store(state.code(), Ordering::Release);
    }

    pub(crate) fn attributes(&self) -> Attributes {
        Attributes {
            state: self.state(),
            ..*self.lock()
        }
    }

    #[inline]
    pub(crate) fn state(&self) -> QpState {
        let mut state = &self.state;
        let has_ended = match &self.qp {
            Transport::Rc(qp) => qp.is_over(),
            Transport::RcRd(qp) => qp.is_over(),
            Transport::Ud(qp) => qp.has_failed(),
            Transport::Uc(qp) => qp.has_failed(),
            Transport::Rd(qp) => qp.has_failed(),
            Transport::XrcTarget(target) => {
                state = &target.state;
                target.rc.is_over()
            }
        };
        if has_ended {
            return QpState::Error;
        }
        QpState::from_code(state.load(Ordering::Acquire)).unwrap_or(QpState::Error)
    }

    /// Destroys the queue pair and removes its completions from the queues: the program may have freed the objects of
    /// their `wr_id`.
    fn destroy(self) {
        let qpn = self.qp.qpn();
        let cqs = self.cqs.clone();
        drop(self);
        for cq in cqs.into_iter().flatten() {
            cq.cq.forget(qpn);
        }
    }

    /// `ibv_modify_qp`: all changes or none.
    fn modify(&self, context: &Context, attr: &ibv_qp_attr, mask: c_int) -> Result<QpState, Errno> {
        let mut attributes = self.lock();
        attributes.state = self.state();
        let after = attributes.modified(self.qp.service(), attr, mask)?;
        if after.state == QpState::Reset && attributes.state != QpState::Reset {
            self.qp.follow(attributes.state, after.state);
            self.qp.reset();
        }
        match &self.qp {
            Transport::Ud(qp) => qp.set_qkey(after.qkey),
            Transport::Uc(qp) if mask & IBV_QP_DEST_QPN != 0 => {
                let ah = ah::handle(context, &self.pd, &after.av)?;
                let qpn = u16::try_from(after.dest_qpn).map_err(|_| Errno::EINVAL)?;
                qp.connect(&ah, qpn).map_err(|_| Errno::EINVAL)?;
            }
            Transport::Uc(_) => {}
            Transport::Rd(qp) => {
                qp.set_qkey(after.qkey);
                if mask & IBV_QP_RNR_RETRY != 0 {
                    qp.set_rnr_retries(after.reliable.rnr_retries().map(u32::from));
                }
            }
            Transport::Rc(qp) => self.connect(context, qp, &after, mask)?,
            Transport::RcRd(qp) => rc_rd::connect(context, (qp, &self.pd), &after, mask)?,
            Transport::XrcTarget(target) => self.connect(context, &target.rc, &after, mask)?,
        }
        let before = attributes.state;
        self.qp.follow(before, after.state);
        *attributes = after;
        self.set_state(after.state);
        match (before, after.state) {
            (QpState::ReadyToSend, QpState::SendQueueDrained) => {
                let asked = mask & IBV_QP_EN_SQD_ASYNC_NOTIFY != 0;
                self.qp.drain_sends(asked && attr.en_sqd_async_notify != 0);
            }
            (QpState::SendQueueDrained, QpState::ReadyToSend) => self.qp.resume_sends(),
            _ => {}
        }
        if after.state == QpState::Error {
            self.qp.flush();
            // A queue pair without a connection too. The stack raises it once.
            if self.srq.is_some() {
                let qpn = self.qp.qpn();
                self.event_source.raise(AsyncEvent::LastWqeReached { qpn });
            }
        }
        Ok(after.state)
    }
}

impl Qp {
    /// Changes attributes for a transition that rdma_cm makes.
    ///
    /// # Safety
    /// `c` is the program's pointer to this queue pair, in a call of the program.
    pub(crate) unsafe fn change_by_cm(&self, c: *mut ibv_qp, change: impl FnOnce(&mut Attributes)) {
        let mut attributes = self.lock();
        change(&mut attributes);
        self.set_state(attributes.state);
        // SAFETY: the caller's contract; programs read this field.
        unsafe { (*c).state = self.state().code() };
    }

    /// Transitions of a reliable queue pair that concern its connection. Errors of the network do not fail them.
    fn connect(
        &self,
        context: &Context,
        qp: &RcQp,
        after: &Attributes,
        mask: c_int,
    ) -> Result<(), Errno> {
        if mask & IBV_QP_ACCESS_FLAGS != 0 {
            qp.allow(mr::remote_access(after.access_flags));
        }
        // An RNIC has no RNR retries.
        if mask & (IBV_QP_RNR_RETRY | IBV_QP_MIN_RNR_TIMER) != 0
            && persona::present() != Persona::Iwarp
        {
            // `rnr_retry` comes with RTS.
            let has_retries = after.state != QpState::ReadyToReceive;
            qp.limit_rnr(RnrLimits {
                retries: after.reliable.rnr_retries().filter(|_| has_retries),
                timer: Some(after.reliable.rnr_timer()),
                peer_retries: None,
            });
        }
        if after.dest_qpn == CM_PEER {
            if mask & IBV_QP_SQ_PSN != 0 {
                qp.open();
            }
            return Ok(());
        }
        if mask & IBV_QP_DEST_QPN != 0 {
            rc_rd::check_peer(after.dest_qpn, RcTransport::Tcp)?;
            let (to, source) = ah::ends(context, &after.av)?;
            let pairing = Pairing {
                peer: to.address,
                scope_id: to.scope,
                peer_qpn: after.dest_qpn,
                source,
                rq_psn: after.rq_psn,
                ird: after.reliable.max_dest_rd_atomic.into(),
            };
            qp.pair(&pairing).map_err(|_| Errno::EINVAL)?;
        }
        if mask & IBV_QP_SQ_PSN != 0 {
            let ord = after.reliable.max_rd_atomic.into();
            qp.start(after.sq_psn, ord, after.reliable.retry_time())
                .map_err(|_| Errno::EINVAL)?;
        }
        Ok(())
    }
}

pub(crate) unsafe extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    errno_value(|| {
        // SAFETY: the program passes a queue pair that no other thread destroys.
        unsafe { Object::<Qp>::live(qp.cast()) }?
            .event_source
            .leave();
        qp_table::leave(qp);
        // SAFETY: and does not use it any more.
        unsafe { Object::<Qp>::release(qp.cast()) }.map(Qp::destroy)
    })
}

pub(crate) unsafe extern "C" fn ibv_modify_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    mask: c_int,
) -> c_int {
    errno_value(|| {
        // SAFETY: the program passes a live queue pair.
        let state = unsafe { state(qp) }?;
        // SAFETY: and attributes.
        let attr = unsafe { load(attr) }?;
        if mask & IBV_QP_DEST_QPN != 0 {
            // A connection follows, partly in the background.
            check_memory()?;
        }
        // SAFETY: a live queue pair.
        let context = unsafe { context_of(qp) }?;
        let after = state.modify(context, &attr, mask)?;
        // SAFETY: a live queue pair; programs read this field, and only this function writes it.
        unsafe { (*qp).state = after.code() };
        Ok(())
    })
}

/// State that a query reports. Queue pairs of an RNIC have no RESET: they begin as idle, which verbs call INIT.
fn shown(state: QpState, persona: Persona) -> QpState {
    match (state, persona) {
        (QpState::Reset, Persona::Iwarp) => QpState::Init,
        (state, _) => state,
    }
}

pub(crate) unsafe extern "C" fn ibv_query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    _mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    errno_value(|| {
        // SAFETY: the program passes a live queue pair.
        let state = unsafe { state(qp) }?;
        let now = state.attributes();
        let shown = shown(now.state, persona::present()).code();
        let answer = ibv_qp_attr {
            qp_state: shown,
            cur_qp_state: shown,
            qkey: now.qkey,
            sq_psn: now.sq_psn,
            rq_psn: now.rq_psn,
            dest_qp_num: now.dest_qpn,
            path_mtu: now.path_mtu,
            qp_access_flags: now.access_flags,
            ah_attr: now.av,
            cap: state.cap,
            sq_draining: (now.state == QpState::SendQueueDrained && state.qp.is_draining()).into(),
            pkey_index: now.pkey_index,
            port_num: now.port,
            timeout: now.reliable.timeout,
            retry_cnt: now.reliable.retry_cnt,
            rnr_retry: now.reliable.rnr_retry,
            min_rnr_timer: now.reliable.min_rnr_timer,
            max_rd_atomic: now.reliable.max_rd_atomic,
            max_dest_rd_atomic: now.reliable.max_dest_rd_atomic,
            ..ibv_qp_attr::default()
        };
        // SAFETY: a live queue pair; the fields read never change.
        let c = unsafe { &*qp };
        let made = ibv_qp_init_attr {
            qp_context: c.qp_context,
            send_cq: c.send_cq,
            recv_cq: c.recv_cq,
            srq: c.srq,
            cap: state.cap,
            qp_type: c.qp_type,
            sq_sig_all: c_int::from(state.signal_all),
        };
        // SAFETY: the program passes room for both.
        unsafe { store(attr, answer) }?;
        // SAFETY: as above.
        unsafe { store(init, made) }
    })
}
