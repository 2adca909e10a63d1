//! Shared receive queues.

use crate::abi::{
    IBV_SRQ_INIT_ATTR_CQ, IBV_SRQ_INIT_ATTR_PD, IBV_SRQ_INIT_ATTR_TYPE, IBV_SRQ_INIT_ATTR_XRCD,
    IBV_SRQ_LIMIT, IBV_SRQ_MAX_WR, IBV_SRQT_BASIC, IBV_SRQT_XRC, ibv_context, ibv_pd, ibv_srq,
    ibv_srq_attr, ibv_srq_init_attr, ibv_srq_init_attr_ex,
};
use crate::cq::queue::Cq;
use crate::device::async_queue::{EventSource, Subject};
use crate::device::{context, limits};
use crate::ffi::{Facade, Object, errno, errno_value, load, pointer, store};
use crate::mem::mr::{Pd, domain};
use crate::qp::xrc::{self, Xrcd};
use dgiwarp::SrqAttr;
use nix::errno::Errno;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// A shared receive queue, shared with its queue pairs.
pub(crate) struct Srq {
    pub(crate) srq: dgiwarp::Srq,
    attr: ibv_srq_attr,
    /// Last limit of the program; the stack disarms it when it is reached.
    limit: AtomicU32,
    pub(crate) event_source: EventSource,
    /// Domain handle and completion queue of an XRC queue.
    _xrc: Option<(Arc<Xrcd>, Arc<Cq>)>,
    _pd: Arc<Pd>,
}

impl Srq {
    /// Number in the device.
    fn number(&self) -> u32 {
        self.srq.number()
    }
}

impl Facade for Arc<Srq> {
    type C = ibv_srq;
    const TAG: u32 = 0x6471_7273;
}

/// The shared receive queue behind a pointer, or `None` for NULL.
///
/// # Safety
/// `srq` is NULL or a live shared receive queue.
pub(crate) unsafe fn shared(srq: *mut ibv_srq) -> Result<Option<Arc<Srq>>, Errno> {
    if srq.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's contract is the same.
    unsafe { Object::<Arc<Srq>>::state(srq) }.cloned().map(Some)
}

/// The granted sizes. Sizes beyond the device's are `EINVAL`.
fn granted(asked: ibv_srq_attr) -> Result<ibv_srq_attr, Errno> {
    let fits = asked.max_wr <= limits::MAX_QP_WR.cast_unsigned()
        && asked.max_sge <= limits::MAX_SGE.cast_unsigned();
    fits.then_some(ibv_srq_attr {
        max_wr: asked.max_wr.max(1),
        max_sge: asked.max_sge.max(1),
        srq_limit: 0,
    })
    .ok_or(Errno::EINVAL)
}

/// Creates a queue and its C struct. The granted sizes are written to `init`.
///
/// # Safety
/// `pd` is NULL or live, `init` NULL or valid.
unsafe fn create(
    pd: *mut ibv_pd,
    init: *mut ibv_srq_init_attr,
    xrc: Option<(Arc<Xrcd>, Arc<Cq>)>,
) -> Result<*mut ibv_srq, Errno> {
    // SAFETY: the caller's contract.
    let domain = unsafe { domain(pd) }?;
    // SAFETY: a live protection domain; this field never changes.
    let context = unsafe { (*pd).context };
    // SAFETY: the context outlives its protection domains.
    let device = unsafe { context::state(context) }?;
    // SAFETY: the caller's contract.
    let mut asked = unsafe { load(init) }?;
    let attr = granted(asked.attr)?;
    let size = |value: u32| usize::try_from(value).map_err(|_| Errno::EINVAL);
    let sizes = SrqAttr {
        max_wr: size(attr.max_wr)?,
        max_sge: size(attr.max_sge)?,
    };
    let made = match &xrc {
        None => domain.pd.create_srq(&sizes),
        Some((xrcd, cq)) => domain.pd.create_xrc_srq(&sizes, &xrcd.domain.xrcd, &cq.cq),
    };
    let srq = made.map_err(errno::of)?;
    let srq = Arc::new(Srq {
        event_source: EventSource::new(&device.async_events, Subject::Srq(srq.id())),
        srq,
        attr,
        limit: AtomicU32::new(0),
        _xrc: xrc,
        _pd: domain,
    });
    asked.attr = attr;
    // SAFETY: the caller's contract.
    unsafe { store(init, asked) }?;
    let c = ibv_srq {
        context,
        srq_context: asked.srq_context,
        pd,
        handle: srq.number(),
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        cond: libc::PTHREAD_COND_INITIALIZER,
        events_completed: 0,
    };
    let pointer = Object::create(c, Arc::clone(&srq));
    srq.event_source.enter(pointer);
    Ok(pointer)
}

pub(crate) unsafe extern "C" fn ibv_create_srq(
    pd: *mut ibv_pd,
    init: *mut ibv_srq_init_attr,
) -> *mut ibv_srq {
    // SAFETY: the program passes a live protection domain and valid attributes.
    pointer(|| unsafe { create(pd, init, None) })
}

/// `ibv_create_srq_ex`: basic and XRC queues. Only fields of the mask are read: the structs of older headers are shorter.
pub(crate) unsafe extern "C" fn create_srq_ex(
    _context: *mut ibv_context,
    init: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    pointer(|| {
        // SAFETY: the struct begins with the plain one.
        unsafe { load(init.cast::<ibv_srq_init_attr>()) }?;
        // SAFETY: loaded above, so not NULL.
        let mask = unsafe { (*init).comp_mask };
        let kind = if mask & IBV_SRQ_INIT_ATTR_TYPE == 0 {
            IBV_SRQT_BASIC
        } else {
            // SAFETY: the mask includes the field.
            unsafe { (*init).srq_type }
        };
        if kind == IBV_SRQT_XRC {
            const XRC: u32 = IBV_SRQ_INIT_ATTR_TYPE
                | IBV_SRQ_INIT_ATTR_PD
                | IBV_SRQ_INIT_ATTR_XRCD
                | IBV_SRQ_INIT_ATTR_CQ;
            if mask != XRC {
                return Err(Errno::EINVAL);
            }
            // SAFETY: the mask includes the fields, whose pointers are live.
            let parts = unsafe { xrc::srq_parts(init) }?;
            // SAFETY: a live protection domain, and attributes that begin with the plain ones.
            return unsafe { create(parts.pd, init.cast(), Some((parts.xrcd, parts.cq))) };
        }
        if kind != IBV_SRQT_BASIC || mask & !(IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD) != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        if mask & IBV_SRQ_INIT_ATTR_PD == 0 {
            return Err(Errno::EINVAL);
        }
        // SAFETY: the mask includes the field.
        let pd = unsafe { (*init).pd };
        // SAFETY: a live protection domain, and attributes that begin with the plain ones.
        unsafe { create(pd, init.cast(), None) }
    })
}

/// `ibv_get_srq_num`.
pub(crate) unsafe extern "C" fn get_srq_num(srq: *mut ibv_srq, number: *mut u32) -> c_int {
    errno_value(|| {
        // SAFETY: the program passes a live shared receive queue.
        let srq = unsafe { Object::<Arc<Srq>>::state(srq) }?;
        // SAFETY: and room for the number.
        unsafe { store(number, srq.number()) }
    })
}

pub(crate) unsafe extern "C" fn ibv_modify_srq(
    srq: *mut ibv_srq,
    attr: *mut ibv_srq_attr,
    mask: c_int,
) -> c_int {
    errno_value(|| {
        // SAFETY: the program passes a live shared receive queue.
        let srq = unsafe { Object::<Arc<Srq>>::state(srq) }?;
        // SAFETY: and attributes.
        let attr = unsafe { load(attr) }?;
        if mask & !(IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT) != 0 {
            return Err(Errno::EINVAL);
        }
        // ibv_modify_srq(3): resizing is for devices with IBV_DEVICE_SRQ_RESIZE, which this one does not report.
        if mask & IBV_SRQ_MAX_WR != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        if mask & IBV_SRQ_LIMIT != 0 {
            let limit = usize::try_from(attr.srq_limit).map_err(|_| Errno::EINVAL)?;
            let armed = srq.srq.arm_limit(limit);
            armed.map_err(errno::of)?;
            srq.limit.store(attr.srq_limit, Ordering::Relaxed);
        }
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn ibv_query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    errno_value(|| {
        // SAFETY: the program passes a live shared receive queue.
        let srq = unsafe { Object::<Arc<Srq>>::state(srq) }?;
        let now = ibv_srq_attr {
            srq_limit: srq.limit.load(Ordering::Relaxed),
            ..srq.attr
        };
        // SAFETY: and room for the result.
        unsafe { store(attr, now) }
    })
}

pub(crate) unsafe extern "C" fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int {
    errno_value(|| {
        // SAFETY: the program passes a shared receive queue that no other thread destroys.
        let state = unsafe { Object::<Arc<Srq>>::live(srq) }?;
        if Arc::strong_count(state) > 1 {
            return Err(Errno::EBUSY);
        }
        state.event_source.leave();
        // SAFETY: and does not use it any more.
        unsafe { Object::<Arc<Srq>>::release(srq) }.map(drop)
    })
}
