//! XRC domains, and what is in them: `ibv_open_xrcd(3)`.
//!
//! A domain belongs to one context of one process: another process that opens the same file gets a domain of its own, as programs do
//! that only find their own objects in it.

use crate::abi::{
    IBV_XRCD_INIT_ATTR_FD, IBV_XRCD_INIT_ATTR_OFLAGS, ibv_context, ibv_cq, ibv_pd,
    ibv_srq_init_attr, ibv_srq_init_attr_ex, ibv_xrcd, ibv_xrcd_init_attr,
};
use crate::cq::queue::{Cq, queue};
use crate::device::context::{self, Context};
use crate::ffi::fork::ProcessTable;
use crate::ffi::{Facade, Object, errno, errno_value, load, pointer};
use crate::mem::mr::{Pd, domain};
use crate::qp::state::Attributes;
use dgiwarp::RcQp;
use nix::errno::Errno;
use nix::sys::stat::fstat;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint};
use std::mem::offset_of;
use std::os::fd::BorrowedFd;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// `fd` of a domain without a file.
const NO_FILE: c_int = -1;

/// Device and inode of a file.
type Inode = (u64, u64);

/// The domains that have files, by the address of their context.
static XRCDS: ProcessTable<BTreeMap<(usize, Inode), Weak<Domain>>> =
    ProcessTable::new(BTreeMap::new());

/// A domain, which several handles may share.
pub(crate) struct Domain {
    pub(crate) xrcd: dgiwarp::Xrcd,
    /// Target queue pairs by number.
    targets: Mutex<BTreeMap<u32, Weak<Target>>>,
}

impl Domain {
    fn new(context: &Context) -> Result<Arc<Self>, Errno> {
        let xrcd = context.rnic.open_xrcd().map_err(errno::of)?;
        Ok(Arc::new(Self {
            xrcd,
            targets: Mutex::default(),
        }))
    }

    /// The target queue pair of a number.
    pub(crate) fn target(&self, qpn: u32) -> Option<Arc<Target>> {
        self.targets().get(&qpn)?.upgrade()
    }

    fn targets(&self) -> MutexGuard<'_, BTreeMap<u32, Weak<Target>>> {
        self.targets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A handle of a domain, shared with the queue pairs and shared receive queues that were made with it.
pub(crate) struct Xrcd {
    pub(crate) domain: Arc<Domain>,
}

impl Facade for Arc<Xrcd> {
    type C = ibv_xrcd;
    const TAG: u32 = 0x6478_7263;
}

/// A target queue pair, shared by its handles. Each belongs to a domain handle.
pub(crate) struct Target {
    pub(crate) rc: RcQp,
    pub(crate) attributes: Mutex<Attributes>,
    /// As `Qp::state`.
    pub(crate) state: AtomicU32,
    /// Protection domain of memory that no shared receive queue was named for.
    pub(crate) pd: Arc<Pd>,
}

/// The domain handle behind a pointer.
///
/// # Safety
/// `xrcd` is NULL or a live XRC domain.
pub(crate) unsafe fn handle(xrcd: *mut ibv_xrcd) -> Result<Arc<Xrcd>, Errno> {
    // SAFETY: the caller's contract is the same.
    unsafe { Object::<Arc<Xrcd>>::state(xrcd) }.cloned()
}

impl Xrcd {
    /// Makes a target queue pair in RESET.
    pub(crate) fn create_target(&self) -> Result<Arc<Target>, Errno> {
        let rc = self.domain.xrcd.create_target(true).map_err(errno::of)?;
        let qpn = rc.qpn();
        let target = Arc::new(Target {
            pd: Arc::new(Pd::new(rc.pd().clone())),
            rc,
            attributes: Mutex::new(Attributes::RESET),
            state: AtomicU32::new(Attributes::RESET.state.code()),
        });
        let mut targets = self.domain.targets();
        targets.retain(|_, target| target.strong_count() > 0);
        targets.insert(qpn, Arc::downgrade(&target));
        Ok(target)
    }
}

/// The domain of a file: an open one, or a new one if the flags have `O_CREAT`. `O_EXCL` wants a new one.
fn open(context: &Context, fd: c_int, flags: c_int) -> Result<Arc<Domain>, Errno> {
    if !context.rnic.config().rc.hello {
        // Only dgiwarp peers have XRC.
        return Err(Errno::EOPNOTSUPP);
    }
    if fd == NO_FILE {
        return Domain::new(context);
    }
    if fd < 0 {
        return Err(Errno::EBADF);
    }
    // SAFETY: a number that is no open descriptor makes the one call that uses it fail with EBADF.
    let file = fstat(unsafe { BorrowedFd::borrow_raw(fd) })?;
    let key = (
        std::ptr::from_ref(context).addr(),
        (file.st_dev, file.st_ino),
    );
    let mut xrcds = XRCDS.lock();
    xrcds.retain(|_, domain| domain.strong_count() > 0);
    match xrcds.get(&key).and_then(Weak::upgrade) {
        Some(_) if flags & libc::O_EXCL != 0 => Err(Errno::EINVAL),
        Some(domain) => Ok(domain),
        None if flags & libc::O_CREAT == 0 => Err(Errno::EAGAIN),
        None => {
            let domain = Domain::new(context)?;
            xrcds.insert(key, Arc::downgrade(&domain));
            Ok(domain)
        }
    }
}

/// `ibv_open_xrcd`.
pub(crate) unsafe extern "C" fn open_xrcd(
    c: *mut ibv_context,
    attr: *mut ibv_xrcd_init_attr,
) -> *mut ibv_xrcd {
    pointer(|| {
        // SAFETY: the program passes an open context.
        let context = unsafe { context::state(c) }?;
        // SAFETY: and valid attributes.
        let attr = unsafe { load(attr) }?;
        // ibv_open_xrcd(3): both are mandatory.
        if attr.comp_mask != IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS
            || attr.oflags & !(libc::O_CREAT | libc::O_EXCL) != 0
        {
            return Err(Errno::EINVAL);
        }
        let domain = open(context, attr.fd, attr.oflags)?;
        let face = ibv_xrcd { context: c };
        Ok(Object::create(face, Arc::new(Xrcd { domain })))
    })
}

/// `ibv_close_xrcd`.
pub(crate) unsafe extern "C" fn close_xrcd(xrcd: *mut ibv_xrcd) -> c_int {
    errno_value(|| {
        // SAFETY: the program passes a domain that no other thread closes.
        let state = unsafe { Object::<Arc<Xrcd>>::live(xrcd) }?;
        // Queue pairs and shared receive queues refer to it.
        if Arc::strong_count(state) > 1 {
            return Err(Errno::EBUSY);
        }
        // SAFETY: and does not use it any more.
        unsafe { Object::<Arc<Xrcd>>::release(xrcd) }.map(drop)
    })
}

/// Domain handle and completion queue that an XRC shared receive queue has, with its protection domain.
pub(crate) struct SrqParts {
    pub(crate) pd: *mut ibv_pd,
    pub(crate) xrcd: Arc<Xrcd>,
    pub(crate) cq: Arc<Cq>,
}

/// `ibv_srq_init_attr_ex` as headers without tag matching have it.
#[repr(C)]
struct SrqInit {
    _basic: ibv_srq_init_attr,
    _comp_mask: u32,
    _srq_type: c_uint,
    pd: *mut ibv_pd,
    xrcd: *mut ibv_xrcd,
    cq: *mut ibv_cq,
}

const _: () = assert!(offset_of!(SrqInit, cq) == offset_of!(ibv_srq_init_attr_ex, cq));

/// The parts of an XRC shared receive queue.
///
/// # Safety
/// `init` is valid and has the fields up to `cq`, whose pointers are live or NULL.
pub(crate) unsafe fn srq_parts(init: *const ibv_srq_init_attr_ex) -> Result<SrqParts, Errno> {
    // SAFETY: the caller's contract; only fields up to `cq` are read through it.
    let init = unsafe { &*init.cast::<SrqInit>() };
    // SAFETY: the caller's contract.
    unsafe { domain(init.pd) }?;
    Ok(SrqParts {
        pd: init.pd,
        // SAFETY: as above.
        xrcd: unsafe { handle(init.xrcd) }?,
        // SAFETY: as above.
        cq: unsafe { queue(init.cq) }?,
    })
}
