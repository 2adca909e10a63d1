//! Regions of files: memory that is shared with all who have the file, such as a DMA buffer or a memfd.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;

use crate::Region;
use crate::mapping::Mapping;

/// File system of DMA buffers: `DMA_BUF_MAGIC` of `linux/magic.h`.
const DMA_BUF: libc::c_long = 0x444d_4142;

/// A file, or a range of it, cannot be a region.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The range is empty, wraps, or reaches behind the end of the file (`EINVAL`).
    #[error("{len} bytes at offset {offset} are not inside the file")]
    Range {
        /// Start of the range in the file, in bytes.
        offset: u64,
        /// Length of the range in bytes.
        len: usize,
    },
    /// The kernel does not map what the descriptor refers to, such as a pipe or the memory of some devices (`EOPNOTSUPP`).
    #[error("the descriptor cannot be mapped into memory")]
    NotMappable,
    /// A system call failed: `EBADF` for a number that is no descriptor, `EACCES` and `EPERM` for one that may not be read or written.
    #[error("cannot map the descriptor: {0}")]
    System(#[from] io::Error),
}

impl Region {
    /// A region of `len` bytes at `offset` of a file. The file is mapped as long as the region, a clone or a part of it exists; the descriptor may
    /// be closed.
    ///
    /// Any file may be cut shorter, which would end a process that accesses its mapping. Therefore pages come on demand
    /// ([`on_demand`](Self::on_demand)), unless the file keeps its size: a DMA buffer, and a memfd that is sealed against it (`F_SEAL_SHRINK`), whose accesses are plain.
    ///
    /// # Errors
    /// [`FileError`]; the docs of its variants name the errno that `ibv_reg_dmabuf_mr(3)` reports.
    pub fn of_file(
        file: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        write: bool,
    ) -> Result<Self, FileError> {
        let range = FileError::Range { offset, len };
        let attributes = Attributes::of(file)?;
        let Some(end) = offset.checked_add(len as u64).filter(|_| len > 0) else {
            return Err(range);
        };
        if attributes.size.is_some_and(|size| end > size) {
            return Err(range);
        }
        let page = attributes.page;
        let skip = offset % page;
        let whole = (skip + len as u64).checked_next_multiple_of(page);
        let (Some(Ok(whole)), Ok(start), Ok(skip)) = (
            whole.map(usize::try_from),
            libc::off_t::try_from(offset - skip),
            usize::try_from(skip),
        ) else {
            return Err(range);
        };
        let mapping = Mapping::shared(file, start, whole, write).map_err(|error| {
            match error.raw_os_error() {
                Some(libc::ENODEV) => FileError::NotMappable,
                // The range is inside of it: its device has no mappings.
                Some(libc::EINVAL) if attributes.is_dma_buf => FileError::NotMappable,
                _ => FileError::System(error),
            }
        })?;
        let part = Self::from_mapping(Arc::new(mapping)).part(skip, len);
        let region = part.expect("the mapping is that of the range");
        Ok(if attributes.keeps_its_size {
            region
        } else {
            region.with_pages_on_demand()
        })
    }
}

/// Attributes of a file that matter to its mapping.
#[derive(Debug, Clone, Copy)]
struct Attributes {
    /// Bytes; `None` for files without a size of their own.
    size: Option<u64>,
    /// Bytes that start and length of a mapping are multiples of.
    page: u64,
    is_dma_buf: bool,
    keeps_its_size: bool,
}

impl Attributes {
    fn of(file: BorrowedFd<'_>) -> io::Result<Self> {
        let fd = file.as_raw_fd();
        // Before the size, which is the least one from then on. Files without seals report an error.
        // SAFETY: reads a number of the file.
        let seals = unsafe { libc::fcntl(fd, libc::F_GET_SEALS) };
        let sealed = seals >= 0 && seals & libc::F_SEAL_SHRINK != 0;
        // SAFETY: the kernel writes a `stat` or fails.
        let status = filled(|to| unsafe { libc::fstat(fd, to) })?;
        // SAFETY: the kernel writes a `statfs` or fails.
        let system = filled(|to| unsafe { libc::fstatfs(fd, to) })?;
        let is_dma_buf = system.f_type == DMA_BUF;
        let size = if is_dma_buf {
            // SAFETY: a DMA buffer has no position: this returns its size.
            Some(unsafe { libc::lseek(fd, 0, libc::SEEK_END) })
        } else {
            (status.st_mode & libc::S_IFMT == libc::S_IFREG).then_some(status.st_size)
        };
        let huge = (system.f_type == libc::HUGETLBFS_MAGIC).then_some(system.f_bsize);
        // SAFETY: has no preconditions.
        let page = huge.unwrap_or_else(|| unsafe { libc::sysconf(libc::_SC_PAGESIZE) });
        Ok(Self {
            size: size.and_then(|size| size.try_into().ok()),
            page: page.try_into().map_err(io::Error::other)?,
            is_dma_buf,
            keeps_its_size: is_dma_buf || sealed,
        })
    }
}

/// The structure that a system call fills, or its error.
fn filled<T>(call: impl FnOnce(*mut T) -> libc::c_int) -> io::Result<T> {
    let mut value = MaybeUninit::zeroed();
    if call(value.as_mut_ptr()) != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call has succeeded, so the kernel has written the value.
    Ok(unsafe { value.assume_init() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{Read, Seek, SeekFrom, Write};
    use std::os::fd::{AsFd, FromRawFd};

    /// A memfd with these octets.
    fn memfd(octets: &[u8]) -> File {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: a terminated name.
        let fd = unsafe { libc::memfd_create(c"region".as_ptr(), flags) };
        assert!(fd >= 0);
        // SAFETY: a new descriptor without another owner.
        let mut file = unsafe { File::from_raw_fd(fd) };
        file.write_all(octets).unwrap();
        file
    }

    fn seal(file: &File, seals: libc::c_int) {
        // SAFETY: changes what later calls may do with the file.
        let status = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) };
        assert_eq!(status, 0);
    }

    fn octets(count: usize) -> Vec<u8> {
        (0..=250).cycle().take(count).collect()
    }

    fn copy(region: &Region, at: usize, len: usize) -> Vec<u8> {
        let mut out = vec![0xee; len];
        region.slice(at, len).unwrap().copy_to(&mut out);
        out
    }

    #[test]
    fn a_region_is_the_range_of_the_file_and_outlives_its_descriptor() {
        for sealed in [false, true] {
            let mut file = memfd(&octets(20_000));
            if sealed {
                seal(&file, libc::F_SEAL_SHRINK);
            }
            let region = Region::of_file(file.as_fd(), 5001, 9000, true).unwrap();
            assert_eq!(region.is_on_demand(), !sealed);
            assert_eq!((region.len(), region.address() % 4096), (9000, 5001 % 4096));
            assert_eq!(copy(&region, 0, 9000), octets(20_000)[5001..14_001]);
            region.slice(8990, 10).unwrap().place(b"placed by ");
            let mut found = [0; 10];
            file.seek(SeekFrom::Start(13_991)).unwrap();
            file.read_exact(&mut found).unwrap();
            assert_eq!(&found, b"placed by ");
            drop(file);
            assert_eq!(copy(&region.part(8990, 10).unwrap(), 0, 6), b"placed");
        }
    }

    /// Accesses behind the end of a mapped file would raise SIGBUS.
    #[test]
    fn a_file_that_is_cut_takes_nothing_and_gives_zeros_until_it_is_long_again() {
        let file = memfd(&octets(3 * 4096));
        let region = Region::of_file(file.as_fd(), 0, 3 * 4096, true).unwrap();
        file.set_len(4096).unwrap();
        assert!(region.reach(0, 4096, true) && !region.reach(4000, 97, false));
        assert!(!region.reach(8192, 1, true));
        region.slice(8192, 3).unwrap().place(b"abc");
        assert_eq!(copy(&region, 8192, 3), [0; 3]);
        assert_eq!(copy(&region, 0, 4096), octets(4096));
        file.set_len(3 * 4096).unwrap();
        assert!(region.reach(0, 3 * 4096, true));
        region.slice(8192, 3).unwrap().place(b"abc");
        assert_eq!(copy(&region, 8192, 3), b"abc");
    }

    #[test]
    fn ranges_descriptors_and_rights_that_do_not_fit_are_refused() {
        let file = memfd(&octets(8192));
        for (offset, len) in [
            (0, 0),
            (0, 8193),
            (8192, 1),
            (1 << 62, 4096),
            (u64::MAX, 1),
            (u64::MAX - 1, usize::MAX),
        ] {
            let result = Region::of_file(file.as_fd(), offset, len, true);
            assert!(matches!(result, Err(FileError::Range { .. })), "{offset}");
        }
        let (end, _other) = io::pipe().unwrap();
        let result = Region::of_file(end.as_fd(), 0, 4096, false);
        assert!(matches!(result, Err(FileError::NotMappable)), "{result:?}");
        let errno = |result| match result {
            Err(FileError::System(error)) => error.raw_os_error(),
            _ => None,
        };
        let name = format!("/proc/self/fd/{}", file.as_raw_fd());
        let reader = File::open(name).unwrap();
        let result = Region::of_file(reader.as_fd(), 0, 8192, true);
        assert_eq!(errno(result), Some(libc::EACCES));
        let region = Region::of_file(reader.as_fd(), 0, 8192, false).unwrap();
        assert!(region.reach(0, 8192, false) && !region.reach(0, 1, true));
        assert_eq!(copy(&region, 1, 8000), octets(8192)[1..8001]);
        seal(&file, libc::F_SEAL_WRITE);
        let result = Region::of_file(file.as_fd(), 0, 8192, true);
        assert_eq!(errno(result), Some(libc::EPERM));
    }
}
