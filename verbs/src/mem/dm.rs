//! Device memory: `ibv_alloc_dm(3)`. Software has none of its own; it is memory of the process that only the device's keys and copies
//! reach.

use crate::abi::{IBV_ACCESS_ZERO_BASED, ibv_alloc_dm_attr, ibv_context, ibv_dm, ibv_mr, ibv_pd};
use crate::device::{context, limits};
use crate::ffi::{Facade, Object, errno, errno_value, load, pointer};
use crate::mem::mr::{Mr, Registered, access, domain};
use dgiwarp::{Buffer, MrOptions};
use nix::errno::Errno;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{ptr, slice};

/// Offsets and lengths of copies are multiples of this many octets, as those of hardware.
const GRANULE: u64 = 4;
/// Alignment of every buffer, as a power of two: that of a page.
const LOG_ALIGNMENT: u32 = 12;

/// Octets of device memory that the process has allocated.
static IN_USE: AtomicUsize = AtomicUsize::new(0);

/// A device memory buffer, shared with its regions.
pub(crate) struct DeviceMemory {
    buffer: Buffer,
}

impl Facade for Arc<DeviceMemory> {
    type C = ibv_dm;
    const TAG: u32 = 0x6470_6d64;
}

impl DeviceMemory {
    fn allocate(length: usize) -> Result<Self, Errno> {
        let left = |used: usize| {
            let sum = used.checked_add(length)?;
            (sum <= limits::MAX_DM).then_some(sum)
        };
        IN_USE
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, left)
            .map_err(|_| Errno::ENOMEM)?;
        match Buffer::zeroed(length) {
            Ok(buffer) => Ok(Self { buffer }),
            Err(error) => {
                IN_USE.fetch_sub(length, Ordering::AcqRel);
                Err(errno::of_io(&error))
            }
        }
    }

    /// Start of a copy inside the buffer.
    fn start(&self, offset: u64, length: usize) -> Result<usize, Errno> {
        if !offset.is_multiple_of(GRANULE) || !(length as u64).is_multiple_of(GRANULE) {
            return Err(Errno::EINVAL);
        }
        let start = usize::try_from(offset).map_err(|_| Errno::EFAULT)?;
        match start.checked_add(length) {
            Some(end) if end <= self.buffer.len() => Ok(start),
            _ => Err(Errno::EFAULT),
        }
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        IN_USE.fetch_sub(self.buffer.len(), Ordering::AcqRel);
    }
}

/// `ibv_alloc_dm`.
pub(crate) unsafe extern "C" fn alloc_dm(
    context: *mut ibv_context,
    attr: *mut ibv_alloc_dm_attr,
) -> *mut ibv_dm {
    pointer(|| {
        // SAFETY: the program passes an open context. The memory is the process's, so that a forked child may have some.
        unsafe { context::expect_any(context) }?;
        // SAFETY: and attributes.
        let attr = unsafe { load(attr) }?;
        if attr.comp_mask != 0
            || attr.log_align_req > LOG_ALIGNMENT
            || !(1..=limits::MAX_DM).contains(&attr.length)
        {
            return Err(Errno::EINVAL);
        }
        let memory = Arc::new(DeviceMemory::allocate(attr.length)?);
        let c = ibv_dm {
            context,
            memcpy_to_dm: Some(memcpy_to_dm),
            memcpy_from_dm: Some(memcpy_from_dm),
            comp_mask: 0,
            handle: 0,
        };
        Ok(Object::create(c, memory))
    })
}

/// `ibv_free_dm`.
pub(crate) unsafe extern "C" fn free_dm(dm: *mut ibv_dm) -> c_int {
    errno_value(|| {
        // SAFETY: the program passes a buffer that no other thread frees.
        if Arc::strong_count(unsafe { Object::<Arc<DeviceMemory>>::live(dm) }?) > 1 {
            return Err(Errno::EBUSY);
        }
        // SAFETY: and does not use it any more.
        unsafe { Object::<Arc<DeviceMemory>>::release(dm) }.map(drop)
    })
}

unsafe extern "C" fn memcpy_to_dm(
    dm: *mut ibv_dm,
    offset: u64,
    from: *const c_void,
    length: usize,
) -> c_int {
    errno_value(|| {
        // SAFETY: the program passes live device memory.
        let memory = unsafe { Object::<Arc<DeviceMemory>>::state(dm) }?;
        let start = memory.start(offset, length)?;
        if from.is_null() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: and that many octets.
        let octets = unsafe { slice::from_raw_parts(from.cast::<u8>(), length) };
        memory.buffer.write(start, octets);
        Ok(())
    })
}

unsafe extern "C" fn memcpy_from_dm(
    to: *mut c_void,
    dm: *mut ibv_dm,
    offset: u64,
    length: usize,
) -> c_int {
    errno_value(|| {
        // SAFETY: the program passes live device memory.
        let memory = unsafe { Object::<Arc<DeviceMemory>>::state(dm) }?;
        let start = memory.start(offset, length)?;
        if to.is_null() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: and room for that many octets.
        let octets = unsafe { slice::from_raw_parts_mut(to.cast::<u8>(), length) };
        memory.buffer.read(start, octets);
        Ok(())
    })
}

/// `ibv_reg_dm_mr`: a zero-based region.
pub(crate) unsafe extern "C" fn reg_dm_mr(
    pd: *mut ibv_pd,
    dm: *mut ibv_dm,
    offset: u64,
    length: usize,
    flags: c_uint,
) -> *mut ibv_mr {
    pointer(|| {
        // SAFETY: the program passes a live protection domain.
        let domain = unsafe { domain(pd) }?;
        // SAFETY: and live device memory.
        let memory = Arc::clone(unsafe { Object::<Arc<DeviceMemory>>::state(dm) }?);
        let access = access(flags)?;
        if flags & IBV_ACCESS_ZERO_BASED == 0 {
            return Err(Errno::EINVAL);
        }
        let offset = usize::try_from(offset).map_err(|_| Errno::EINVAL)?;
        let part = memory.buffer.region().part(offset, length);
        let options = MrOptions {
            iova: Some(0),
            ..MrOptions::new(access)
        };
        let registered = domain
            .pd
            .register_with(part.map_err(|_| Errno::EINVAL)?, options);
        let mr = registered.map_err(errno::of)?;
        let registered = Registered {
            mr: Some(mr),
            region: None,
            access,
            pd: domain,
            _owner: Some(memory),
        };
        // SAFETY: as above.
        Ok(unsafe { Mr::create(pd, (ptr::null_mut(), length), registered) })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_stay_inside_and_on_multiples_of_four() {
        let memory = DeviceMemory::allocate(100).unwrap();
        for (offset, length) in [(0, 100), (96, 4), (100, 0), (0, 0)] {
            assert_eq!(
                memory.start(offset, length),
                Ok(usize::try_from(offset).unwrap())
            );
        }
        for (offset, length) in [(1, 4), (4, 3), (98, 2)] {
            assert_eq!(memory.start(offset, length), Err(Errno::EINVAL));
        }
        for (offset, length) in [(100, 4), (104, 0), (0, 104), (u64::MAX - 3, 8)] {
            assert_eq!(memory.start(offset, length), Err(Errno::EFAULT));
        }
    }
}
