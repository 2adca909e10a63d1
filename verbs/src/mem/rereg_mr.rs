//! `ibv_rereg_mr(3)` and `ibv_advise_mr(3)`.

use crate::abi::{
    IBV_ACCESS_ON_DEMAND, IBV_ACCESS_ZERO_BASED, IBV_REREG_MR_CHANGE_ACCESS,
    IBV_REREG_MR_CHANGE_PD, IBV_REREG_MR_CHANGE_TRANSLATION, ibv_mr, ibv_pd, ibv_sge,
};
use crate::ffi::{Object, entry, errno, errno_value, thread_order};
use crate::mem::mr::{Mr, Pd, access, domain, mapped, on_demand};
use dgiwarp::Sge;
use nix::errno::Errno;
use std::ffi::{c_int, c_uint, c_void};
use std::slice;
use std::sync::Arc;

/// `IBV_REREG_MR_ERR_INPUT`: wrong arguments, the region is unchanged.
const ERR_INPUT: c_int = -1;
/// `IBV_REREG_MR_ERR_CMD`: the change failed. The region is unchanged, which programs may not rely on.
const ERR_COMMAND: c_int = -4;

/// Arguments of `ibv_rereg_mr`.
struct Change {
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_uint,
}

impl Change {
    fn has(&self, flag: c_int) -> bool {
        self.flags & flag != 0
    }

    fn check(&self) -> Result<(), Errno> {
        const ALL: c_int =
            IBV_REREG_MR_CHANGE_TRANSLATION | IBV_REREG_MR_CHANGE_PD | IBV_REREG_MR_CHANGE_ACCESS;
        let nowhere = self.addr.is_null() || self.length == 0;
        let wrong = self.flags & !ALL != 0
            || self.flags == 0
            || (self.has(IBV_REREG_MR_CHANGE_TRANSLATION) && nowhere)
            || (self.has(IBV_REREG_MR_CHANGE_PD) && self.pd.is_null())
            || (!self.has(IBV_REREG_MR_CHANGE_ACCESS) && self.access != 0);
        if wrong { Err(Errno::EINVAL) } else { Ok(()) }
    }

    /// # Safety
    /// `c` is a live region with the state `state`; with the flags for it, `pd` is live and the memory stays mapped.
    unsafe fn carry_out(&self, c: *mut ibv_mr, state: &Mr) -> Result<(), Errno> {
        let mut present = state.lock();
        let present = &mut *present;
        let mr = present.mr.as_mut().ok_or(Errno::EINVAL)?;
        let old = present.region.as_ref().ok_or(Errno::EINVAL)?;
        let pd: Arc<Pd> = if self.has(IBV_REREG_MR_CHANGE_PD) {
            // SAFETY: the caller's contract.
            unsafe { domain(self.pd) }?
        } else {
            Arc::clone(&present.pd)
        };
        let access = if self.has(IBV_REREG_MR_CHANGE_ACCESS) {
            access(self.access)?
        } else {
            present.access
        };
        let moves = self.has(IBV_REREG_MR_CHANGE_TRANSLATION);
        let (addr, length) = if moves {
            (self.addr, self.length)
        } else {
            // SAFETY: a live region; only this call changes these fields, and the program calls it from one thread.
            let face = unsafe { c.as_ref() }.ok_or(Errno::EINVAL)?;
            (face.addr, face.length)
        };
        let is_on_demand = if self.has(IBV_REREG_MR_CHANGE_ACCESS) {
            self.access & IBV_ACCESS_ON_DEMAND != 0
        } else {
            old.is_on_demand()
        };
        let region = if is_on_demand {
            // SAFETY: the caller's contract.
            unsafe { on_demand(addr, length) }?
        } else {
            // With new rights, the memory may have to be writable although it stays.
            // SAFETY: the caller's contract.
            unsafe { mapped(addr, length, access) }?
        };
        let iova = match (moves, self.access & IBV_ACCESS_ZERO_BASED != 0) {
            (true, true) => 0,
            (true, false) => region.address(),
            (false, _) => mr.addr(),
        };
        mr.reregister(&pd.pd, region.clone(), iova, access)
            .map_err(errno::of)?;
        thread_order::registered(old, false);
        thread_order::registered(&region, true);
        // SAFETY: a live region, whose fields this call is to change.
        let face = unsafe { c.as_mut() }.ok_or(Errno::EINVAL)?;
        (face.addr, face.length) = (addr, length);
        (face.lkey, face.rkey) = (mr.lkey(), mr.rkey());
        if self.has(IBV_REREG_MR_CHANGE_PD) {
            face.pd = self.pd;
        }
        (present.region, present.access, present.pd) = (Some(region), access, pd);
        Ok(())
    }
}

/// 0, or a code of the man page.
pub(crate) unsafe extern "C" fn ibv_rereg_mr(
    mr: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    entry(ERR_COMMAND, || {
        let change = Change {
            flags,
            pd,
            addr,
            length,
            access: access.cast_unsigned(),
        };
        // SAFETY: the program passes a live region.
        let state = unsafe { Object::<Mr>::state(mr) };
        let state = match change.check().and(state) {
            Ok(state) => state,
            Err(errno) => {
                errno.set();
                return ERR_INPUT;
            }
        };
        // SAFETY: and a live protection domain and mapped memory for the flags of the change.
        unsafe { change.carry_out(mr, state) }.map_or_else(
            |errno| {
                errno.set();
                ERR_COMMAND
            },
            |()| 0,
        )
    })
}

/// `IBV_ADVISE_MR_FLAG_FLUSH`: return when the advice is carried out, which is always so.
const FLUSH: u32 = 1;

/// `enum ib_uverbs_advise_mr_advice`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Advice {
    Prefetch,
    PrefetchToWrite,
    PrefetchWhatIsThere,
}

impl Advice {
    fn of(code: c_uint) -> Result<Self, Errno> {
        match code {
            0 => Ok(Self::Prefetch),
            1 => Ok(Self::PrefetchToWrite),
            2 => Ok(Self::PrefetchWhatIsThere),
            _ => Err(Errno::EOPNOTSUPP),
        }
    }

    /// Brings the pages of an element into memory.
    fn follow(self, pd: &Pd, sge: Sge) -> Result<(), Errno> {
        let start = pd.pd.locate(sge, false).ok_or(Errno::EFAULT)?;
        let how = match self {
            Self::PrefetchWhatIsThere => return Ok(()),
            Self::Prefetch => libc::MADV_POPULATE_READ,
            Self::PrefetchToWrite if pd.pd.locate(sge, true).is_none() => return Err(Errno::EPERM),
            Self::PrefetchToWrite => libc::MADV_POPULATE_WRITE,
        };
        // SAFETY: sysconf has no preconditions.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        let page = usize::try_from(page).map_err(|_| Errno::EIO)?;
        let start = usize::try_from(start).map_err(|_| Errno::EFAULT)?;
        let length = usize::try_from(sge.length).map_err(|_| Errno::EFAULT)?;
        let first = start / page * page;
        let at = std::ptr::with_exposed_provenance_mut::<c_void>(first);
        // SAFETY: populating changes no contents; what is not mapped is an error of the call.
        match unsafe { libc::madvise(at, length + (start - first), how) } {
            0 => Ok(()),
            // Kernels before 5.14 do not support it, and advice is optional.
            _ if Errno::last() == Errno::EINVAL => Ok(()),
            _ => Err(Errno::EFAULT),
        }
    }
}

/// `ibv_advise_mr`, for regions of all kinds, because memory is not pinned.
pub(crate) unsafe extern "C" fn advise_mr(
    pd: *mut ibv_pd,
    advice: c_uint,
    flags: u32,
    list: *mut ibv_sge,
    count: u32,
) -> c_int {
    errno_value(|| {
        // SAFETY: the program passes a live protection domain.
        let domain = unsafe { domain(pd) }?;
        let advice = Advice::of(advice)?;
        let count = usize::try_from(count).map_err(|_| Errno::EINVAL)?;
        if flags & !FLUSH != 0 || list.is_null() || count == 0 {
            return Err(Errno::EINVAL);
        }
        // SAFETY: not NULL, so a list of `count` elements.
        let list = unsafe { slice::from_raw_parts(list.cast_const(), count) };
        list.iter()
            .try_for_each(|sge| advice.follow(&domain, Sge::from(*sge)))
    })
}
