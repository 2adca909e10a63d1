//! Protection domains and memory regions.

use crate::abi::{
    IBV_ACCESS_HUGETLB, IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_MW_BIND, IBV_ACCESS_ON_DEMAND,
    IBV_ACCESS_OPTIONAL_RANGE, IBV_ACCESS_REMOTE_ATOMIC, IBV_ACCESS_REMOTE_READ,
    IBV_ACCESS_REMOTE_WRITE, IBV_ACCESS_ZERO_BASED, ibv_context, ibv_mr, ibv_pd,
};
use crate::device::context::{self, Context};
use crate::ffi::{Facade, Object, errno_value, pointer, thread_order};
use crate::mem::allocator::Allocators;
use crate::mem::td::ThreadDomain;
use dgiwarp::MrOptions;
use dgiwarp_memory::{Access, MappedError, Region, check_mapped};
use nix::errno::Errno;
use std::ffi::{c_int, c_uint, c_void};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// A protection domain, shared with its queue pairs, regions and address handles.
pub(crate) struct Pd {
    pub(crate) pd: dgiwarp::Pd,
    /// Protection domain and thread domain of a parent domain, in use as long as it exists.
    pub(crate) parts: Option<(Arc<Self>, Option<Arc<ThreadDomain>>)>,
    /// Allocators of a parent domain.
    pub(crate) allocators: OnceLock<Allocators>,
}

impl Pd {
    /// A protection domain without parts.
    pub(crate) fn new(pd: dgiwarp::Pd) -> Self {
        Self {
            pd,
            parts: None,
            allocators: OnceLock::new(),
        }
    }
}

impl Facade for Arc<Pd> {
    type C = ibv_pd;
    const TAG: u32 = 0x6470_6d70;
}

/// A registered region. Dropping it deregisters it, and waits until no placement is in flight.
pub(crate) struct Mr {
    registered: Mutex<Registered>,
}

/// Present attributes of a region.
pub(crate) struct Registered {
    /// `None` only while the region is deregistered.
    pub(crate) mr: Option<dgiwarp::Mr>,
    /// The program's memory; `None` where it is not the program's, so that `ibv_rereg_mr(3)` refuses the region.
    pub(crate) region: Option<Region>,
    pub(crate) access: Access,
    pub(crate) pd: Arc<Pd>,
    /// Owner of the memory where it is not the program's: in use as long as the region exists.
    pub(crate) _owner: Option<Arc<dyn Send + Sync>>,
}

impl Mr {
    /// The program's handle of a region.
    ///
    /// # Safety
    /// `pd` is a live protection domain.
    pub(crate) unsafe fn create(
        pd: *mut ibv_pd,
        (addr, length): (*mut c_void, usize),
        registered: Registered,
    ) -> *mut ibv_mr {
        let keys = registered.mr.as_ref().map(|mr| (mr.lkey(), mr.rkey()));
        let (lkey, rkey) = keys.unwrap_or_default();
        let c = ibv_mr {
            // SAFETY: the caller's contract; this field never changes.
            context: unsafe { (*pd).context },
            pd,
            addr,
            length,
            handle: 0,
            lkey,
            rkey,
        };
        let registered = Mutex::new(registered);
        Object::create(c, Self { registered })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Registered> {
        self.registered
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `body` on the stack's region.
    pub(crate) fn with<T>(&self, body: impl FnOnce(&dgiwarp::Mr) -> T) -> Result<T, Errno> {
        self.lock().mr.as_ref().map(body).ok_or(Errno::EINVAL)
    }

    /// Deregisters the region unless memory windows are bound to it.
    fn deregister(&self) -> Result<(), Errno> {
        let mut registered = self.lock();
        match registered.mr.take().map(dgiwarp::Mr::deregister) {
            Some(Err(busy)) => {
                registered.mr = Some(busy.mr);
                Err(Errno::EBUSY)
            }
            Some(Ok(())) => {
                if let Some(region) = &registered.region {
                    thread_order::registered(region, false);
                }
                Ok(())
            }
            None => Err(Errno::EINVAL),
        }
    }
}

impl Facade for Mr {
    type C = ibv_mr;
    const TAG: u32 = 0x6470_726d;
}

/// The protection domain behind a pointer.
///
/// # Safety
/// `pd` is NULL or a live protection domain.
pub(crate) unsafe fn domain(pd: *mut ibv_pd) -> Result<Arc<Pd>, Errno> {
    // SAFETY: the caller's contract is the same.
    unsafe { Object::<Arc<Pd>>::state(pd) }.cloned()
}

/// The context of a protection domain.
///
/// # Safety
/// `pd` is a live protection domain, whose context lives for `'a`.
pub(crate) unsafe fn context_of<'a>(pd: *mut ibv_pd) -> Result<&'a Context, Errno> {
    // SAFETY: the caller's contract; this field never changes.
    let context = unsafe { (*pd).context };
    // SAFETY: a context outlives its protection domains.
    unsafe { context::state(context) }
}

pub(crate) unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    pointer(|| {
        // SAFETY: the program passes an open context.
        let state = unsafe { context::state(context) }?;
        let pd = Pd::new(state.rnic.alloc_pd());
        Ok(Object::create(ibv_pd { context, handle: 0 }, Arc::new(pd)))
    })
}

pub(crate) unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    errno_value(|| {
        // SAFETY: the program passes a live protection domain.
        if Arc::strong_count(unsafe { Object::<Arc<Pd>>::live(pd) }?) > 1 {
            return Err(Errno::EBUSY);
        }
        // SAFETY: and does not use it any more.
        unsafe { Object::<Arc<Pd>>::release(pd) }.map(drop)
    })
}

/// Rights of access flags.
pub(crate) fn access(flags: c_uint) -> Result<Access, Errno> {
    // Hints: huge pages and relaxed ordering have no effect. The other two are properties of the memory.
    let others = IBV_ACCESS_HUGETLB | IBV_ACCESS_ZERO_BASED | IBV_ACCESS_ON_DEMAND;
    let flags = flags & !(IBV_ACCESS_OPTIONAL_RANGE | others);
    let known = [
        (IBV_ACCESS_LOCAL_WRITE, Access::LOCAL_WRITE),
        (IBV_ACCESS_REMOTE_WRITE, Access::REMOTE_WRITE),
        (IBV_ACCESS_REMOTE_READ, Access::REMOTE_READ),
        (IBV_ACCESS_REMOTE_ATOMIC, Access::REMOTE_ATOMIC),
        (IBV_ACCESS_MW_BIND, Access::MW_BIND),
    ];
    if flags & !known.iter().fold(0, |all, (flag, _)| all | flag) != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    // ibv_reg_mr(3): remote write and atomic access need local write access too.
    let writes = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
    if flags & writes != 0 && flags & IBV_ACCESS_LOCAL_WRITE == 0 {
        return Err(Errno::EINVAL);
    }
    Ok(known
        .iter()
        .filter(|(flag, _)| flags & flag != 0)
        .map(|(_, right)| *right)
        .collect())
}

/// Remote rights among the access flags of a queue pair.
pub(crate) fn remote_access(flags: c_uint) -> Access {
    [
        (IBV_ACCESS_REMOTE_WRITE, Access::REMOTE_WRITE),
        (IBV_ACCESS_REMOTE_READ, Access::REMOTE_READ),
        (IBV_ACCESS_REMOTE_ATOMIC, Access::REMOTE_ATOMIC),
    ]
    .into_iter()
    .filter(|(flag, _)| flags & flag != 0)
    .map(|(_, right)| right)
    .collect()
}

fn mapped_errno(error: &MappedError) -> Errno {
    match error {
        MappedError::Hole { .. } => Errno::ENOMEM,
        MappedError::Protection { .. } => Errno::EFAULT,
    }
}

/// Memory of the program, checked to be mapped and to allow the access.
///
/// # Safety
/// The memory stays mapped as long as it is registered.
pub(crate) unsafe fn mapped(
    addr: *mut c_void,
    length: usize,
    access: Access,
) -> Result<Region, Errno> {
    let start = NonNull::new(addr.cast::<u8>()).ok_or(Errno::EINVAL)?;
    if length == 0 {
        return Err(Errno::EINVAL);
    }
    let writable = access.contains(Access::LOCAL_WRITE);
    check_mapped(start.addr().get(), length, writable).map_err(|error| mapped_errno(&error))?;
    // SAFETY: mapped, as just checked, and by the caller's contract as long as the region exists.
    Ok(unsafe { Region::from_raw_parts(start, length) })
}

/// Addresses that a process can have, without the first page.
const USER: std::ops::Range<usize> = 4096..(1 << 47) - 4096;

/// Memory of the program whose pages come on demand: they need not be mapped yet. NULL with a length of `SIZE_MAX` is the whole address space.
///
/// # Safety
/// No Rust code refers to memory of this range that a peer or a work request names.
pub(crate) unsafe fn on_demand(addr: *mut c_void, length: usize) -> Result<Region, Errno> {
    let start = match (addr.addr(), length) {
        (0, usize::MAX) => USER.start,
        (0, _) | (_, 0) => return Err(Errno::EINVAL),
        (start, _) => start,
    };
    let length = if addr.is_null() { USER.len() } else { length };
    if start.checked_add(length).is_none() {
        return Err(Errno::EINVAL);
    }
    let start = std::ptr::with_exposed_provenance_mut(start);
    let start = NonNull::new(start).ok_or(Errno::EINVAL)?;
    // SAFETY: does not wrap; the rest is the caller's contract.
    Ok(unsafe { Region::on_demand(start, length) })
}

/// Registers memory. `options` has what the other parameters do not.
///
/// # Safety
/// As for `ibv_reg_mr(3)`: `pd` is live, and the memory stays mapped until the region is deregistered.
pub(crate) unsafe fn register(
    pd: *mut ibv_pd,
    (addr, length): (*mut c_void, usize),
    iova: u64,
    flags: c_uint,
    options: MrOptions,
) -> Result<*mut ibv_mr, Errno> {
    // SAFETY: the caller's contract.
    let domain = unsafe { domain(pd) }?;
    let access = access(flags)?;
    let region = if flags & IBV_ACCESS_ON_DEMAND == 0 {
        // SAFETY: the caller's contract.
        unsafe { mapped(addr, length, access) }?
    } else {
        // SAFETY: the caller's contract.
        unsafe { on_demand(addr, length) }?
    };
    let iova = match (addr.is_null(), flags & IBV_ACCESS_ZERO_BASED == 0) {
        (false, true) => iova,
        (false, false) => 0,
        // The whole address space has the addresses that it has.
        (true, true) if iova == 0 => region.address(),
        (true, _) => return Err(Errno::EINVAL),
    };
    let options = MrOptions {
        access,
        iova: Some(iova),
        ..options
    };
    let mr = domain
        .pd
        .register_with(region.clone(), options)
        .map_err(crate::ffi::errno::of)?;
    thread_order::registered(&region, true);
    let registered = Registered {
        mr: Some(mr),
        region: Some(region),
        access,
        pd: domain,
        _owner: None,
    };
    // SAFETY: the caller's contract.
    Ok(unsafe { Mr::create(pd, (addr, length), registered) })
}

pub(crate) unsafe extern "C" fn ibv_reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    flags: c_int,
) -> *mut ibv_mr {
    // SAFETY: the contract is the same; the default IOVA is the address.
    unsafe { ibv_reg_mr_iova(pd, addr, length, addr.addr() as u64, flags) }
}

pub(crate) unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    flags: c_int,
) -> *mut ibv_mr {
    // SAFETY: the contract is the same.
    unsafe { ibv_reg_mr_iova2(pd, addr, length, iova, flags.cast_unsigned()) }
}

pub(crate) unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    flags: c_uint,
) -> *mut ibv_mr {
    let plain = MrOptions::new(Access::empty());
    // SAFETY: this is `ibv_reg_mr(3)`.
    pointer(|| unsafe { register(pd, (addr, length), iova, flags, plain) })
}

pub(crate) unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    errno_value(|| {
        // SAFETY: the program passes a live region.
        unsafe { Object::<Mr>::live(mr) }?.deregister()?;
        // SAFETY: and does not use it any more.
        unsafe { Object::<Mr>::release(mr) }.map(drop)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remote_writers_need_local_write_access() {
        assert_eq!(access(IBV_ACCESS_REMOTE_WRITE), Err(Errno::EINVAL));
        assert_eq!(access(IBV_ACCESS_REMOTE_ATOMIC), Err(Errno::EINVAL));
        let both = access(IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_LOCAL_WRITE);
        assert_eq!(both, Ok(Access::REMOTE_WRITE | Access::LOCAL_WRITE));
        assert_eq!(access(0), Ok(Access::empty()));
    }

    #[test]
    fn hints_are_accepted_and_unsupported_rights_are_not() {
        assert_eq!(
            access(IBV_ACCESS_HUGETLB | (1 << 20) | (1 << 29)),
            Ok(Access::empty())
        );
        assert_eq!(access(IBV_ACCESS_ON_DEMAND), Ok(Access::empty()));
        assert_eq!(access(1 << 8), Err(Errno::EOPNOTSUPP));
    }
}
