//! Creation of queue pairs: `ibv_create_qp(3)`, `ibv_create_qp_ex(3)`.

use crate::abi::{
    IBV_QP_CREATE_BLOCK_SELF_MCAST_LB, IBV_QP_INIT_ATTR_CREATE_FLAGS,
    IBV_QP_INIT_ATTR_MAX_TSO_HEADER, IBV_QP_INIT_ATTR_PD, IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
    IBV_QP_INIT_ATTR_XRCD, IBV_QP_OPEN_ATTR_CONTEXT, IBV_QP_OPEN_ATTR_NUM, IBV_QP_OPEN_ATTR_TYPE,
    IBV_QP_OPEN_ATTR_XRCD, IBV_QPT_UD, IBV_QPT_XRC_RECV, ibv_context, ibv_pd, ibv_qp, ibv_qp_cap,
    ibv_qp_ex, ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_qp_open_attr, ibv_xrcd,
};
use crate::cq::queue::{Cq, queue};
use crate::device::async_queue::{EventSource, Subject};
use crate::device::context::{self, Context};
use crate::device::limits;
use crate::ffi::{Object, errno, load, pointer};
use crate::mem::mr::{Pd, domain};
use crate::post::inline::InlineRing;
use crate::post::wr_builder::{SendOps, operations_of};
use crate::post::wr_calls;
use crate::qp::datagram_attr::DatagramAttr;
use crate::qp::queue_pair::{self, Qp, QpFace, Transport};
use crate::qp::rc_transport::{self, RcTransport};
use crate::qp::srq::Srq;
use crate::qp::state::{Attributes, QpState, Service};
use crate::qp::xrc::{Target, Xrcd};
use crate::qp::{qp_table, srq, xrc};
use dgiwarp::{QpAttr, RcQpAttr, RdQpAttr, UdQpAttr};
use nix::errno::Errno;
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex};

/// The granted sizes. Sizes beyond the device's are `EINVAL`.
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

/// Creates the stack's queue pair.
fn transport(
    service: Service,
    domain: &Pd,
    (send_cq, recv_cq): (&Cq, &Cq),
    shared: Option<&Srq>,
    cap: ibv_qp_cap,
    (datagram, carrier): (&DatagramAttr, RcTransport),
) -> Result<Transport, Errno> {
    let count = |value: u32| usize::try_from(value).map_err(|_| Errno::EINVAL);
    let qp = QpAttr {
        max_send_wr: count(cap.max_send_wr)?,
        max_recv_wr: count(cap.max_recv_wr.max(1))?,
        max_sge: count(cap.max_send_sge.max(cap.max_recv_sge))?,
        srq: shared.map(|shared| &shared.srq),
        ..QpAttr::new(&send_cq.cq, &recv_cq.cq)
    };
    let pd = &domain.pd;
    let made = match service {
        Service::XrcTarget => return Err(Errno::EINVAL),
        Service::ReliableConnected | Service::XrcInitiator => {
            if *datagram != DatagramAttr::default() {
                return Err(Errno::EOPNOTSUPP);
            }
            match carrier {
                RcTransport::Rd if service == Service::ReliableConnected => {
                    pd.create_rc_rd_qp(&qp).map(Transport::RcRd)
                }
                RcTransport::Tcp | RcTransport::Rd => {
                    let attr = RcQpAttr {
                        paired: true,
                        xrc_initiator: service == Service::XrcInitiator,
                        ..qp.into()
                    };
                    pd.create_rc_qp(&attr).map(Transport::Rc)
                }
            }
        }
        Service::ReliableDatagram => {
            let reliable = datagram.reliable.ok_or(Errno::EOPNOTSUPP)?;
            // Attributes of records and of Reads with a time limit are those of other types.
            let known = DatagramAttr {
                bind: datagram.bind,
                reliable: Some(reliable),
                ..DatagramAttr::default()
            };
            if *datagram != known {
                return Err(Errno::EOPNOTSUPP);
            }
            let defaults = RdQpAttr::new(qp);
            let attr = RdQpAttr {
                bind: datagram.bind,
                unreachable: reliable.unreachable.unwrap_or(defaults.unreachable),
                ..defaults
            };
            pd.create_rd_qp(&attr).map(Transport::Rd)
        }
        Service::UnreliableDatagram | Service::UnreliableConnected => {
            if datagram.reliable.is_some() {
                return Err(Errno::EOPNOTSUPP);
            }
            let attr = UdQpAttr {
                grh: true,
                bind: datagram.bind,
                record_slots: datagram.record_slots,
                record_completions: datagram.record_completions,
                segment_slots: datagram.segment_slots,
                record_timeout: datagram.record_timeout,
                reorder_window: datagram.reorder_window,
                read_timeout: datagram.read_timeout,
                max_rate: datagram.max_rate,
                ..qp.into()
            };
            if service == Service::UnreliableDatagram {
                pd.create_ud_qp(&attr).map(Transport::Ud)
            } else {
                pd.create_uc_qp(&attr).map(Transport::Uc)
            }
        }
    };
    let made = made.inspect(|made| made.follow(QpState::Reset, QpState::Reset));
    made.map_err(errno::of)
}

/// # Safety
/// The pointers in `init` are live objects or NULL.
unsafe fn create(
    context: &Context,
    domain: Arc<Pd>,
    init: &ibv_qp_init_attr,
    send_ops: Option<u64>,
    kind: (&DatagramAttr, RcTransport),
) -> Result<Qp, Errno> {
    let service = Service::of(init.qp_type)?;
    if send_ops.unwrap_or(0) & !operations_of(service) != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    let mut cap = granted(init.cap)?;
    // SAFETY: the caller's contract.
    let send_cq = unsafe { queue(init.send_cq) }?;
    let only_sends = service == Service::XrcInitiator;
    let recv_cq = if only_sends {
        None
    } else {
        // SAFETY: the caller's contract.
        Some(unsafe { queue(init.recv_cq) }?)
    };
    let shared = if only_sends {
        None
    } else {
        // SAFETY: the caller's contract.
        unsafe { srq::shared(init.srq) }?
    };
    if shared.is_some() || only_sends {
        // ibv_create_qp(3): with a shared receive queue, the sizes are the latter's.
        (cap.max_recv_wr, cap.max_recv_sge) = (0, 0);
    }
    // One `ibv_wr_complete` may fill the send queue.
    let longest = send_ops.map_or(1, |_| cap.max_send_wr);
    // A reliable queue pair has inline data in its send queue.
    let is_used = !service.is_reliable();
    let inline = InlineRing::new(is_used.then_some(&domain), cap.max_send_wr, longest)?;
    let qp = transport(
        service,
        &domain,
        (&send_cq, recv_cq.as_ref().unwrap_or(&send_cq)),
        shared.as_deref(),
        cap,
        kind,
    )?;
    let event_source = EventSource::new(&context.async_events, Subject::Qp(qp.qpn()));
    Ok(Qp {
        qp,
        inline,
        send_ops: send_ops.map(SendOps::new),
        attributes: Mutex::new(Attributes::RESET),
        state: AtomicU32::new(QpState::Reset.code()),
        cap,
        signal_all: init.sq_sig_all != 0,
        pd: domain,
        cqs: [Some(send_cq), recv_cq],
        srq: shared,
        _xrcd: None,
        event_source,
    })
}

/// The C struct, without operations of the extended API.
fn face(base: ibv_qp) -> QpFace {
    // SAFETY: nullable function pointers, raw pointers and integers, for which zero is a valid value.
    let mut face: QpFace = unsafe { std::mem::zeroed() };
    face.ex = ibv_qp_ex {
        qp_base: base,
        ..face.ex
    };
    face
}

/// Creates a queue pair and its C struct.
///
/// # Safety
/// `pd` is NULL or live, and the pointers in `init` are live objects or NULL.
unsafe fn make(
    pd: *mut ibv_pd,
    init: &ibv_qp_init_attr,
    send_ops: Option<u64>,
    kind: (&DatagramAttr, RcTransport),
) -> Result<(*mut ibv_qp, ibv_qp_cap), Errno> {
    // SAFETY: the caller's contract.
    let domain = unsafe { domain(pd) }?;
    // SAFETY: a live protection domain; this field never changes.
    let context = unsafe { (*pd).context };
    // SAFETY: the context outlives its protection domains.
    let device = unsafe { context::state(context) }?;
    // SAFETY: the caller's contract.
    let qp = unsafe { create(device, domain, init, send_ops, kind) }?;
    let cap = qp.cap;
    let made = object(context, pd, init, qp);
    // SAFETY: it was just made.
    unsafe { enter(made) }?;
    Ok((made, cap))
}

/// Makes the C struct of a queue pair.
fn object(
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    init: &ibv_qp_init_attr,
    qp: Qp,
) -> *mut ibv_qp {
    let base = ibv_qp {
        context,
        qp_context: init.qp_context,
        pd,
        send_cq: init.send_cq,
        recv_cq: init.recv_cq,
        srq: init.srq,
        handle: qp.qp.qpn(),
        qp_num: qp.qp.qpn(),
        state: qp.state().code(),
        qp_type: init.qp_type,
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        cond: libc::PTHREAD_COND_INITIALIZER,
        events_completed: 0,
    };
    let mut face = face(base);
    if qp.send_ops.is_some() {
        wr_calls::fill(&mut face.ex);
    }
    Object::create(face, qp).cast()
}

/// Enters a new queue pair into the tables of those that have events, and that rdma_cm can connect.
///
/// # Safety
/// `made` is live.
unsafe fn enter(made: *mut ibv_qp) -> Result<(), Errno> {
    // SAFETY: the caller's contract.
    let qp = unsafe { queue_pair::state(made) }?;
    qp.event_source.enter(made);
    if qp.qp.for_cm().is_some() {
        qp_table::enter(qp.qp.qpn(), made);
    }
    Ok(())
}

/// Makes a handle of an XRC target queue pair.
fn handle_of(
    c: *mut ibv_context,
    context: &Context,
    xrcd: Arc<Xrcd>,
    target: Arc<Target>,
    qp_context: *mut c_void,
) -> Result<*mut ibv_qp, Errno> {
    // SAFETY: a struct of integers and raw pointers, for which zero is a valid value.
    let nothing: ibv_qp_init_attr = unsafe { std::mem::zeroed() };
    let init = ibv_qp_init_attr {
        qp_context,
        qp_type: IBV_QPT_XRC_RECV,
        ..nothing
    };
    let event_source = EventSource::new(&context.async_events, Subject::Qp(target.rc.qpn()));
    let pd = Arc::clone(&target.pd);
    let qp = Qp {
        inline: InlineRing::new(None, 0, 1)?,
        send_ops: None,
        attributes: Mutex::new(Attributes::RESET),
        state: AtomicU32::new(QpState::Reset.code()),
        cap: nothing.cap,
        signal_all: false,
        pd,
        cqs: [None, None],
        srq: None,
        _xrcd: Some(xrcd),
        event_source,
        qp: Transport::XrcTarget(target),
    };
    Ok(object(c, ptr::null_mut(), &init, qp))
}

/// Creates an XRC target queue pair in the domain behind a pointer.
///
/// # Safety
/// `xrcd` is NULL or live.
unsafe fn create_target(
    xrcd: *mut ibv_xrcd,
    init: &ibv_qp_init_attr,
) -> Result<*mut ibv_qp, Errno> {
    // SAFETY: the caller's contract.
    let domain = unsafe { xrc::handle(xrcd) }?;
    // SAFETY: a live domain; this field never changes.
    let c = unsafe { (*xrcd).context };
    // SAFETY: the context outlives its domains.
    let context = unsafe { context::state(c) }?;
    let target = domain.create_target()?;
    let made = handle_of(c, context, domain, target, init.qp_context)?;
    // SAFETY: it was just made.
    unsafe { enter(made) }?;
    Ok(made)
}

/// Creates a queue pair with the attributes of `ibv_create_qp(3)`.
///
/// # Safety
/// As for `ibv_create_qp(3)`.
unsafe fn create_plain(
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
    carrier: RcTransport,
) -> Result<*mut ibv_qp, Errno> {
    // SAFETY: the program passes valid attributes.
    let attr = unsafe { load(init) }?;
    let kind = (&DatagramAttr::default(), carrier);
    // SAFETY: and a live protection domain; the pointers in the attributes are live objects.
    let (qp, cap) = unsafe { make(pd, &attr, None, kind) }?;
    // SAFETY: ibv_create_qp(3) writes the sizes granted into the program's struct.
    unsafe { (*init).cap = cap };
    Ok(qp)
}

pub(crate) unsafe extern "C" fn ibv_create_qp(
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> *mut ibv_qp {
    // SAFETY: the contract is the same.
    pointer(|| unsafe { create_plain(pd, init, rc_transport::present()) })
}

/// `ibv_create_qp_ex`. Only fields of the mask are read: the structs of older headers are shorter.
pub(crate) unsafe extern "C" fn create_qp_ex(
    _context: *mut ibv_context,
    init: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    let carrier = rc_transport::present();
    // SAFETY: the contract is the same.
    pointer(|| unsafe { create_extended(init, (&DatagramAttr::default(), carrier)) })
}

/// `ibv_create_qp_ex` with the attributes of `dgiwarpdv_create_qp`.
///
/// # Safety
/// As for `ibv_create_qp_ex(3)`.
pub(crate) unsafe fn create_extended(
    init: *mut ibv_qp_init_attr_ex,
    kind: (&DatagramAttr, RcTransport),
) -> Result<*mut ibv_qp, Errno> {
    const KNOWN: u32 = IBV_QP_INIT_ATTR_PD
        | IBV_QP_INIT_ATTR_CREATE_FLAGS
        | IBV_QP_INIT_ATTR_MAX_TSO_HEADER
        | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS
        | IBV_QP_INIT_ATTR_XRCD;
    // SAFETY: the struct begins with the plain one.
    let attr = unsafe { load(init.cast::<ibv_qp_init_attr>()) }?;
    // SAFETY: loaded above, so not NULL.
    let mask = unsafe { (*init).comp_mask };
    if mask & !KNOWN != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    if attr.qp_type == IBV_QPT_XRC_RECV {
        if mask & !IBV_QP_INIT_ATTR_PD != IBV_QP_INIT_ATTR_XRCD {
            return Err(Errno::EINVAL);
        }
        // SAFETY: the mask includes the field.
        let xrcd = unsafe { (*init).xrcd };
        // SAFETY: a live domain, or NULL.
        return unsafe { create_target(xrcd, &attr) };
    }
    if mask & IBV_QP_INIT_ATTR_PD == 0 {
        return Err(Errno::EINVAL);
    }
    let flags = if mask & IBV_QP_INIT_ATTR_CREATE_FLAGS == 0 {
        0
    } else {
        // SAFETY: the mask includes the field.
        unsafe { (*init).create_flags }
    };
    let keeps_out = flags == IBV_QP_CREATE_BLOCK_SELF_MCAST_LB;
    if flags != 0 && !(keeps_out && attr.qp_type == IBV_QPT_UD) {
        return Err(Errno::EOPNOTSUPP);
    }
    // SAFETY: the mask includes the field.
    if mask & IBV_QP_INIT_ATTR_MAX_TSO_HEADER != 0 && unsafe { (*init).max_tso_header } != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    let send_ops = (mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS != 0).then(|| {
        // SAFETY: the mask includes the field.
        unsafe { (*init).send_ops_flags }
    });
    // SAFETY: the mask includes the field.
    let pd = unsafe { (*init).pd };
    // SAFETY: the pointers in the attributes are live objects.
    let (qp, cap) = unsafe { make(pd, &attr, send_ops, kind) }?;
    // SAFETY: just made.
    if let (true, Transport::Ud(ud)) = (keeps_out, unsafe { &queue_pair::state(qp)?.qp }) {
        ud.set_multicast_loop(false).map_err(|error| {
            // SAFETY: just created, and unused.
            unsafe { queue_pair::ibv_destroy_qp(qp) };
            errno::of(error)
        })?;
    }
    // SAFETY: ibv_create_qp_ex(3) writes the sizes granted into the program's struct.
    unsafe { (*init).cap = cap };
    Ok(qp)
}

/// `ibv_open_qp`: another handle of a target queue pair. Events of the queue pair are reported with its first handle.
pub(crate) unsafe extern "C" fn open_qp(
    c: *mut ibv_context,
    attr: *mut ibv_qp_open_attr,
) -> *mut ibv_qp {
    const NEEDED: u32 = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
    pointer(|| {
        // SAFETY: the program passes an open context.
        let context = unsafe { context::state(c) }?;
        // SAFETY: and valid attributes.
        let attr = unsafe { load(attr) }?;
        if attr.comp_mask & !IBV_QP_OPEN_ATTR_CONTEXT != NEEDED || attr.qp_type != IBV_QPT_XRC_RECV
        {
            return Err(Errno::EINVAL);
        }
        // SAFETY: the program passes a live domain.
        let xrcd = unsafe { xrc::handle(attr.xrcd) }?;
        let target = xrcd.domain.target(attr.qp_num);
        let qp_context = if attr.comp_mask & IBV_QP_OPEN_ATTR_CONTEXT == 0 {
            ptr::null_mut()
        } else {
            attr.qp_context
        };
        handle_of(c, context, xrcd, target.ok_or(Errno::EINVAL)?, qp_context)
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
