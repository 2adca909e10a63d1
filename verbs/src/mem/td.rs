//! Thread domains and parent domains: `ibv_alloc_td(3)`, `ibv_alloc_parent_domain(3)`.
//!
//! A thread domain allows a device to omit locks. Objects of this device keep their locks, which cost little without
//! contention: a thread domain has no effect.

use crate::abi::{
    IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS, IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT, ibv_context,
    ibv_parent_domain_init_attr, ibv_pd, ibv_td, ibv_td_init_attr,
};
use crate::device::context;
use crate::ffi::{CPointer, Facade, Object, errno_value, load, pointer};
use crate::mem::allocator::Allocators;
use crate::mem::mr::{Pd, domain};
use nix::errno::Errno;
use std::ffi::c_int;
use std::ptr;
use std::sync::{Arc, OnceLock};

/// A thread domain, shared with its parent domains.
pub(crate) struct ThreadDomain;

impl Facade for Arc<ThreadDomain> {
    type C = ibv_td;
    const TAG: u32 = 0x6470_6474;
}

/// `ibv_alloc_td`.
pub(crate) unsafe extern "C" fn alloc_td(
    context: *mut ibv_context,
    init: *mut ibv_td_init_attr,
) -> *mut ibv_td {
    pointer(|| {
        // SAFETY: the program passes an open context.
        unsafe { context::state(context) }?;
        // SAFETY: and attributes.
        if unsafe { load(init) }?.comp_mask != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        Ok(Object::create(ibv_td { context }, Arc::new(ThreadDomain)))
    })
}

/// `ibv_dealloc_td`.
pub(crate) unsafe extern "C" fn dealloc_td(td: *mut ibv_td) -> c_int {
    errno_value(|| {
        // SAFETY: the program passes a live thread domain.
        if Arc::strong_count(unsafe { Object::<Arc<ThreadDomain>>::live(td) }?) > 1 {
            return Err(Errno::EBUSY);
        }
        // SAFETY: and does not use it any more.
        unsafe { Object::<Arc<ThreadDomain>>::release(td) }.map(drop)
    })
}

/// The functions of the mask, for the domain that gets its pointer later.
fn allocators(attr: &ibv_parent_domain_init_attr) -> Result<Option<Allocators>, Errno> {
    const KNOWN: u32 =
        IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT;
    if attr.comp_mask & !KNOWN != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    if attr.comp_mask & IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS == 0 {
        return Ok(None);
    }
    let (alloc, free) = attr.alloc.zip(attr.free).ok_or(Errno::EINVAL)?;
    let context = if attr.comp_mask & IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT == 0 {
        ptr::null_mut()
    } else {
        attr.pd_context
    };
    Ok(Some(Allocators {
        pd: CPointer(ptr::null_mut()),
        context: CPointer(context),
        alloc,
        free,
    }))
}

/// `ibv_alloc_parent_domain`. The program's allocators are called for the memory of queue pairs that the device registers:
/// the inline data of datagram and unreliable connected ones. All other queues are structures of this library.
pub(crate) unsafe extern "C" fn alloc_parent_domain(
    context: *mut ibv_context,
    init: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    pointer(|| {
        // SAFETY: the program passes an open context.
        unsafe { context::state(context) }?;
        // SAFETY: and attributes.
        let attr = unsafe { load(init) }?;
        let allocators = allocators(&attr)?;
        // SAFETY: with a live protection domain.
        let domain = unsafe { domain(attr.pd) }?;
        let td = if attr.td.is_null() {
            None
        } else {
            // SAFETY: not NULL, so a live thread domain.
            Some(Arc::clone(unsafe {
                Object::<Arc<ThreadDomain>>::state(attr.td)
            }?))
        };
        let parent = Pd {
            pd: domain.pd.clone(),
            parts: Some((domain, td)),
            allocators: OnceLock::new(),
        };
        let parent = Arc::new(parent);
        let pd = Object::create(ibv_pd { context, handle: 0 }, Arc::clone(&parent));
        if let Some(allocators) = allocators {
            let _ = parent.allocators.set(Allocators {
                pd: CPointer(pd),
                ..allocators
            });
        }
        Ok(pd)
    })
}
