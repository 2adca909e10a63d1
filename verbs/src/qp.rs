//! Queue pairs: making, changing, asking, destroying. Posting is in [`crate::post`].

use crate::abi::{
    IBV_QP_DEST_QPN, IBV_QP_SQ_PSN, IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD, ibv_pd, ibv_qp,
    ibv_qp_attr, ibv_qp_cap, ibv_qp_init_attr,
};
use crate::context::Context;
use crate::cq::{Cq, queue};
use crate::ffi::{Facade, Object, errno_value, load, pointer, store};
use crate::inline::InlineRing;
use crate::memory::{Pd, domain};
use crate::qp_state::{Attributes, QpState, Service};
use crate::srq::{self, Srq};
use crate::{ah, context, errno, limits};
use dgiwarp::{Pairing, PostFailure, RcQp, RcQpAttr, RecvWr, UcQp, UcQpAttr, UdQp, UdQpAttr};
use nix::errno::Errno;
use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The stack's queue pair.
pub(crate) enum Transport {
    Ud(UdQp),
    Uc(UcQp),
    Rc(RcQp),
}

impl Transport {
    fn qpn(&self) -> u32 {
        match self {
            Self::Ud(qp) => qp.qpn().into(),
            Self::Uc(qp) => qp.qpn().into(),
            Self::Rc(qp) => qp.qpn(),
        }
    }

    fn service(&self) -> Service {
        match self {
            Self::Ud(_) => Service::UnreliableDatagram,
            Self::Uc(_) => Service::UnreliableConnected,
            Self::Rc(_) => Service::ReliableConnected,
        }
    }

    pub(crate) fn post_recv(&self, wr: RecvWr<'_>) -> Result<(), PostFailure> {
        match self {
            Self::Ud(qp) => qp.post_recv(&[wr]),
            Self::Uc(qp) => qp.post_recv(&[wr]),
            Self::Rc(qp) => qp.post_recv(&[wr]),
        }
    }

    pub(crate) fn flush(&self) {
        match self {
            Self::Ud(qp) => qp.flush(),
            Self::Uc(qp) => qp.flush(),
            Self::Rc(qp) => qp.flush(),
        }
    }
}

/// A queue pair.
pub(crate) struct Qp {
    // Before what it uses: dropping it ends every send and receive.
    pub(crate) qp: Transport,
    pub(crate) inline: InlineRing,
    attributes: Mutex<Attributes>,
    /// `attributes.state`, for posting, which takes no lock.
    state: AtomicU32,
    pub(crate) cap: ibv_qp_cap,
    /// Every send makes a completion, whatever its flags say.
    pub(crate) signal_all: bool,
    pub(crate) pd: Arc<Pd>,
    _send_cq: Arc<Cq>,
    _recv_cq: Arc<Cq>,
    _srq: Option<Arc<Srq>>,
}

impl Facade for Qp {
    type C = ibv_qp;
    const TAG: u32 = 0x6470_7071;
}

impl Qp {
    fn lock(&self) -> MutexGuard<'_, Attributes> {
        self.attributes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn attributes(&self) -> Attributes {
        Attributes {
            state: self.state(),
            ..*self.lock()
        }
    }

    pub(crate) fn state(&self) -> QpState {
        if let Transport::Rc(qp) = &self.qp
            && qp.is_over()
        {
            return QpState::Error;
        }
        QpState::from_code(self.state.load(Ordering::Acquire)).unwrap_or(QpState::Error)
    }

    /// `ibv_modify_qp`, all of it or nothing.
    fn modify(&self, context: &Context, attr: &ibv_qp_attr, mask: c_int) -> Result<QpState, Errno> {
        let mut attributes = self.lock();
        attributes.state = self.state();
        let after = attributes.modified(self.qp.service(), attr, mask)?;
        // The stack has no way yet to forget what was posted without completing it.
        if after.state == QpState::Reset && attributes.state != QpState::Reset {
            return Err(Errno::EOPNOTSUPP);
        }
        match &self.qp {
            Transport::Ud(qp) => qp.set_qkey(after.qkey),
            Transport::Uc(qp) if mask & IBV_QP_DEST_QPN != 0 => {
                let ah = ah::handle(context, &self.pd, &after.av)?;
                let qpn = u16::try_from(after.dest_qpn).map_err(|_| Errno::EINVAL)?;
                qp.connect(&ah, qpn).map_err(|_| Errno::EINVAL)?;
            }
            Transport::Uc(_) => {}
            Transport::Rc(qp) => self.connect(context, qp, &after, mask)?,
        }
        *attributes = after;
        self.state.store(after.state.code(), Ordering::Release);
        if after.state == QpState::Error {
            self.qp.flush();
        }
        Ok(after.state)
    }
}

impl Qp {
    /// The steps of a reliable queue pair that its connection follows. They fail for no reason of the network.
    fn connect(
        &self,
        context: &Context,
        qp: &RcQp,
        after: &Attributes,
        mask: c_int,
    ) -> Result<(), Errno> {
        if mask & IBV_QP_DEST_QPN != 0 {
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
            qp.start(after.sq_psn, ord, after.reliable.patience())
                .map_err(|_| Errno::EINVAL)?;
        }
        Ok(())
    }
}

/// The sizes that a queue pair gets for those asked for; more than the device has is `EINVAL`.
fn granted(asked: ibv_qp_cap) -> Result<ibv_qp_cap, Errno> {
    let within = |value: u32, max: c_int| {
        if value <= max.cast_unsigned() {
            Ok(value.max(1))
        } else {
            Err(Errno::EINVAL)
        }
    };
    if asked.max_inline_data > limits::MAX_INLINE {
        return Err(Errno::EINVAL);
    }
    Ok(ibv_qp_cap {
        max_send_wr: within(asked.max_send_wr, limits::MAX_QP_WR)?,
        max_recv_wr: within(asked.max_recv_wr, limits::MAX_QP_WR)?,
        max_send_sge: within(asked.max_send_sge, limits::MAX_SGE)?,
        max_recv_sge: within(asked.max_recv_sge, limits::MAX_SGE)?,
        max_inline_data: limits::MAX_INLINE,
    })
}

/// # Safety
/// The pointers in `init` are live objects or NULL.
unsafe fn create(domain: Arc<Pd>, init: &ibv_qp_init_attr) -> Result<Qp, Errno> {
    if !matches!(init.qp_type, IBV_QPT_UD | IBV_QPT_UC | IBV_QPT_RC) {
        return Err(Errno::EOPNOTSUPP);
    }
    let mut cap = granted(init.cap)?;
    // SAFETY: the caller's contract.
    let send_cq = unsafe { queue(init.send_cq) }?;
    // SAFETY: the caller's contract.
    let recv_cq = unsafe { queue(init.recv_cq) }?;
    // SAFETY: the caller's contract.
    let shared = unsafe { srq::shared(init.srq) }?;
    if shared.is_some() {
        // ibv_create_qp(3): the sizes of the receive queue are the shared one's.
        (cap.max_recv_wr, cap.max_recv_sge) = (0, 0);
    }
    let count = |value: u32| usize::try_from(value).map_err(|_| Errno::EINVAL);
    let max_send_wr = count(cap.max_send_wr)?;
    let max_recv_wr = count(cap.max_recv_wr.max(1))?;
    let max_sge = count(cap.max_send_sge.max(cap.max_recv_sge))?;
    let stack_srq = shared.as_ref().map(|shared| &shared.srq);
    let (cqs, pd) = ((&send_cq.cq, &recv_cq.cq), &domain.pd);
    let made = if init.qp_type == IBV_QPT_RC {
        let attr = RcQpAttr {
            max_send_wr,
            max_recv_wr,
            max_sge,
            srq: stack_srq,
            paired: true,
            ..RcQpAttr::new(cqs.0, cqs.1)
        };
        pd.create_rc_qp(&attr).map(Transport::Rc)
    } else if init.qp_type == IBV_QPT_UD {
        let attr = UdQpAttr {
            max_send_wr,
            max_recv_wr,
            max_sge,
            grh: true,
            srq: stack_srq,
            ..UdQpAttr::new(cqs.0, cqs.1)
        };
        pd.create_ud_qp(&attr).map(Transport::Ud)
    } else {
        let attr = UcQpAttr {
            max_send_wr,
            max_recv_wr,
            max_sge,
            srq: stack_srq,
            ..UcQpAttr::new(cqs.0, cqs.1)
        };
        pd.create_uc_qp(&attr).map(Transport::Uc)
    };
    Ok(Qp {
        qp: made.map_err(|error| errno::of_create(&error))?,
        inline: InlineRing::default(),
        attributes: Mutex::new(Attributes::RESET),
        state: AtomicU32::new(QpState::Reset.code()),
        cap,
        signal_all: init.sq_sig_all != 0,
        pd: domain,
        _send_cq: send_cq,
        _recv_cq: recv_cq,
        _srq: shared,
    })
}

pub(crate) unsafe extern "C" fn ibv_create_qp(
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> *mut ibv_qp {
    pointer(|| {
        // SAFETY: the program passes a live protection domain.
        let domain = unsafe { domain(pd) }?;
        // SAFETY: and valid attributes.
        let mut attr = unsafe { load(init) }?;
        // SAFETY: whose pointers are live objects.
        let qp = unsafe { create(domain, &attr) }?;
        attr.cap = qp.cap;
        // SAFETY: ibv_create_qp(3) writes the sizes granted into the program's struct.
        unsafe { store(init, attr) }?;
        let c = ibv_qp {
            // SAFETY: a live protection domain; this field never changes.
            context: unsafe { (*pd).context },
            qp_context: attr.qp_context,
            pd,
            send_cq: attr.send_cq,
            recv_cq: attr.recv_cq,
            srq: attr.srq,
            handle: qp.qp.qpn(),
            qp_num: qp.qp.qpn(),
            state: QpState::Reset.code(),
            qp_type: attr.qp_type,
            mutex: libc::PTHREAD_MUTEX_INITIALIZER,
            cond: libc::PTHREAD_COND_INITIALIZER,
            events_completed: 0,
        };
        Ok(Object::create(c, qp))
    })
}

pub(crate) unsafe extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    // SAFETY: the program passes a live queue pair and does not use it any more.
    errno_value(|| unsafe { Object::<Qp>::release(qp) }.map(drop))
}

pub(crate) unsafe extern "C" fn ibv_modify_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    mask: c_int,
) -> c_int {
    errno_value(|| {
        // SAFETY: the program passes a live queue pair.
        let state = unsafe { Object::<Qp>::state(qp) }?;
        // SAFETY: and attributes.
        let attr = unsafe { load(attr) }?;
        // SAFETY: a live queue pair; this field never changes.
        let context = unsafe { (*qp).context };
        // SAFETY: the context outlives its queue pairs.
        let context = unsafe { context::state(context) }?;
        let after = state.modify(context, &attr, mask)?;
        // SAFETY: a live queue pair; programs read this field, and only this function writes it.
        unsafe { (*qp).state = after.code() };
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn ibv_query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    _mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    errno_value(|| {
        // SAFETY: the program passes a live queue pair.
        let state = unsafe { Object::<Qp>::state(qp) }?;
        let now = state.attributes();
        let answer = ibv_qp_attr {
            qp_state: now.state.code(),
            cur_qp_state: now.state.code(),
            qkey: now.qkey,
            sq_psn: now.sq_psn,
            rq_psn: now.rq_psn,
            dest_qp_num: now.dest_qpn,
            path_mtu: now.path_mtu,
            qp_access_flags: now.access_flags,
            ah_attr: now.av,
            cap: state.cap,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_beyond_the_device_are_refused_and_none_is_zero() {
        let asked = ibv_qp_cap {
            max_send_wr: 10,
            max_recv_wr: 0,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let got = granted(asked).unwrap();
        assert_eq!(
            (got.max_send_wr, got.max_recv_wr, got.max_inline_data),
            (10, 1, limits::MAX_INLINE)
        );
        let over = |change: fn(&mut ibv_qp_cap)| {
            let mut cap = asked;
            change(&mut cap);
            granted(cap)
        };
        assert_eq!(over(|cap| cap.max_send_wr = 16_385), Err(Errno::EINVAL));
        assert_eq!(over(|cap| cap.max_recv_wr = u32::MAX), Err(Errno::EINVAL));
        assert_eq!(over(|cap| cap.max_send_sge = 17), Err(Errno::EINVAL));
        assert_eq!(
            over(|cap| cap.max_inline_data = limits::MAX_INLINE + 1),
            Err(Errno::EINVAL)
        );
    }
}
