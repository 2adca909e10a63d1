//! Memory windows: `ibv_alloc_mw(3)`.

use crate::abi::{
    IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_ATOMIC, IBV_ACCESS_REMOTE_READ,
    IBV_ACCESS_REMOTE_WRITE, IBV_ACCESS_ZERO_BASED, IBV_MW_TYPE_1, IBV_MW_TYPE_2, ibv_mr, ibv_mw,
    ibv_mw_bind_info, ibv_pd,
};
use crate::ffi::{Facade, Object, errno_value, load, pointer};
use crate::mem::mr::{Mr, Pd, domain};
use dgiwarp::{Access, MwType, RcOperation};
use nix::errno::Errno;
use std::ffi::{c_int, c_uint};
use std::sync::Arc;

/// A memory window.
pub(crate) struct Window {
    pub(crate) mw: dgiwarp::Mw,
    _pd: Arc<Pd>,
}

impl Facade for Window {
    type C = ibv_mw;
    const TAG: u32 = 0x6471_776d;
}

/// Rights of a window, and whether it is zero-based. Programs may name local rights, which the region has.
pub(crate) fn rights(flags: c_uint) -> Result<(Access, bool), Errno> {
    let known = [
        (IBV_ACCESS_REMOTE_WRITE, Access::REMOTE_WRITE),
        (IBV_ACCESS_REMOTE_READ, Access::REMOTE_READ),
        (IBV_ACCESS_REMOTE_ATOMIC, Access::REMOTE_ATOMIC),
    ];
    let all = known.iter().fold(
        IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ZERO_BASED,
        |all, (flag, _)| all | flag,
    );
    if flags & !all != 0 {
        return Err(Errno::EINVAL);
    }
    let given = known.iter().filter(|(flag, _)| flags & flag != 0);
    Ok((
        given.map(|(_, right)| *right).collect(),
        flags & IBV_ACCESS_ZERO_BASED != 0,
    ))
}

/// `ibv_alloc_mw`.
pub(crate) unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, kind: c_uint) -> *mut ibv_mw {
    pointer(|| {
        // SAFETY: the program passes a live protection domain.
        let domain = unsafe { domain(pd) }?;
        let mw_type = match kind {
            IBV_MW_TYPE_1 => MwType::One,
            IBV_MW_TYPE_2 => MwType::Two,
            _ => return Err(Errno::EINVAL),
        };
        let mw = domain.pd.alloc_mw(mw_type);
        let c = ibv_mw {
            // SAFETY: a live protection domain; this field never changes.
            context: unsafe { (*pd).context },
            pd,
            rkey: mw.rkey(),
            handle: 0,
            kind,
        };
        Ok(Object::create(c, Window { mw, _pd: domain }))
    })
}

/// `ibv_dealloc_mw`.
pub(crate) unsafe extern "C" fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    // SAFETY: the program passes a live window and does not use it any more.
    errno_value(|| unsafe { Object::<Window>::release(mw) }.map(drop))
}

/// The work request that binds a window of type 2.
///
/// # Safety
/// `mw` is NULL or a live window, `info` NULL or a valid description that names a live region or none.
pub(crate) unsafe fn binding(
    mw: *mut ibv_mw,
    rkey: u32,
    info: *const ibv_mw_bind_info,
) -> Result<RcOperation, Errno> {
    // SAFETY: the caller's contract.
    let window = unsafe { Object::<Window>::state(mw) }?;
    // SAFETY: the caller's contract.
    let info = unsafe { load(info) }?;
    // SAFETY: the caller's contract.
    unsafe { Object::<Mr>::state(info.mr) }?;
    // The program chooses the lower eight bits of the key; the others identify the window.
    if window.mw.kind() != MwType::Two || (rkey ^ window.mw.rkey()) >> 8 != 0 {
        return Err(Errno::EINVAL);
    }
    let (access, zero_based) = rights(info.mw_access_flags)?;
    Ok(RcOperation::BindMw {
        rkey,
        // SAFETY: a live region, as was just found.
        lkey: unsafe { lkey(info.mr) },
        addr: info.addr,
        length: info.length,
        access,
        zero_based,
    })
}

/// # Safety
/// `mr` is a live region.
unsafe fn lkey(mr: *mut ibv_mr) -> u32 {
    // SAFETY: the caller's contract.
    unsafe { (*mr).lkey }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::IBV_ACCESS_MW_BIND;

    #[test]
    fn windows_give_remote_rights_only() {
        let both = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_ZERO_BASED;
        assert_eq!(rights(both), Ok((Access::REMOTE_WRITE, true)));
        assert_eq!(rights(0), Ok((Access::empty(), false)));
        assert_eq!(rights(IBV_ACCESS_LOCAL_WRITE), Ok((Access::empty(), false)));
        assert_eq!(rights(IBV_ACCESS_MW_BIND), Err(Errno::EINVAL));
    }
}
