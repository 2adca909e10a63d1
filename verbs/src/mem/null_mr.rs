//! `ibv_alloc_null_mr(3)`: a region without memory.

use crate::abi::{ibv_mr, ibv_pd};
use crate::ffi::{errno, pointer};
use crate::mem::mr::{Mr, Registered, domain};
use dgiwarp::Access;
use std::ptr;

/// `ibv_alloc_null_mr`. As on hardware, only the local key is valid.
pub(crate) unsafe extern "C" fn alloc_null_mr(pd: *mut ibv_pd) -> *mut ibv_mr {
    pointer(|| {
        // SAFETY: the program passes a live protection domain.
        let domain = unsafe { domain(pd) }?;
        let mr = domain.pd.register_null().map_err(errno::of)?;
        let registered = Registered {
            mr: Some(mr),
            region: None,
            access: Access::LOCAL_WRITE,
            pd: domain,
            _owner: None,
        };
        // SAFETY: as above.
        Ok(unsafe { Mr::create(pd, (ptr::null_mut(), usize::MAX), registered) })
    })
}
