//! `ibv_reg_dmabuf_mr(3)`: regions of DMA buffers, and of every other descriptor that can be mapped, such as a memfd.

use crate::abi::{
    IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_OPTIONAL_RANGE, IBV_ACCESS_REMOTE_ATOMIC,
    IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_WRITE, ibv_mr, ibv_pd,
};
use crate::ffi::{errno, pointer};
use crate::mem::mr::{Mr, Registered, access, domain};
use dgiwarp::MrOptions;
use dgiwarp_memory::{Access, FileError, Region};
use nix::errno::Errno;
use std::ffi::{c_int, c_uint};
use std::os::fd::BorrowedFd;
use std::ptr;

/// Access flags that the man page lists.
const FLAGS: c_uint = IBV_ACCESS_LOCAL_WRITE
    | IBV_ACCESS_REMOTE_WRITE
    | IBV_ACCESS_REMOTE_READ
    | IBV_ACCESS_REMOTE_ATOMIC
    | IBV_ACCESS_OPTIONAL_RANGE;

/// Offset in the file and IOVA are equal in these bits.
const IN_PAGE: u64 = 4095;

fn errno_of(error: &FileError) -> Errno {
    match error {
        FileError::Range { .. } => Errno::EINVAL,
        FileError::NotMappable => Errno::EOPNOTSUPP,
        FileError::System(error) => errno::of_io(error),
    }
}

/// `ibv_reg_dmabuf_mr`. The program may close the descriptor.
pub(crate) unsafe extern "C" fn ibv_reg_dmabuf_mr(
    pd: *mut ibv_pd,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    flags: c_int,
) -> *mut ibv_mr {
    pointer(|| {
        // SAFETY: the program passes a live protection domain.
        let domain = unsafe { domain(pd) }?;
        let flags = flags.cast_unsigned();
        if flags & !FLAGS != 0 || (offset ^ iova) & IN_PAGE != 0 {
            return Err(Errno::EINVAL);
        }
        let access = access(flags)?;
        if fd < 0 {
            return Err(Errno::EBADF);
        }
        // SAFETY: only system calls use it, which refuse a number that is no descriptor.
        let file = unsafe { BorrowedFd::borrow_raw(fd) };
        let writable = access.contains(Access::LOCAL_WRITE);
        let region = Region::of_file(file, offset, length, writable);
        let options = MrOptions {
            iova: Some(iova),
            ..MrOptions::new(access)
        };
        let mr = domain
            .pd
            .register_with(region.map_err(|error| errno_of(&error))?, options)
            .map_err(errno::of)?;
        let registered = Registered {
            mr: Some(mr),
            region: None,
            access,
            pd: domain,
            _owner: None,
        };
        let offset = usize::try_from(offset).map_err(|_| Errno::EINVAL)?;
        // libibverbs reports the offset as address.
        let addr = ptr::without_provenance_mut(offset);
        // SAFETY: as above.
        Ok(unsafe { Mr::create(pd, (addr, length), registered) })
    })
}
