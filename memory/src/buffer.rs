//! Memory that safe Rust code owns and may register.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::Region;
use crate::mapping::{Mapping, memory_file};

/// Page-aligned memory, zeroed at creation, that can be registered and stays mapped as long as any
/// [`Region`] of it exists.
///
/// ```
/// let buffer = dgiwarp_memory::Buffer::zeroed(4096)?;
/// buffer.write(100, b"payload");
/// let mut out = [0; 7];
/// buffer.read(100, &mut out);
/// assert_eq!(&out, b"payload");
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Buffer {
    region: Region,
}

impl Buffer {
    /// Maps `len` zero bytes. Pages take memory when they are first written.
    ///
    /// # Errors
    /// Error of `mmap(2)`, in practice `ENOMEM`.
    pub fn zeroed(len: usize) -> io::Result<Self> {
        let mapping = Arc::new(Mapping::zeroed(len)?);
        Ok(Self {
            region: Region::from_mapping(mapping),
        })
    }

    /// Maps `len` zero bytes of a new memory file, which peers on this host may map as well where a connection grants it to them: they write it without
    /// a system call. `adopt` may give the file's descriptor another number; it is open as long as the memory is mapped. A child that forks off shares the memory.
    ///
    /// # Errors
    /// Errors of `memfd_create(2)`, `ftruncate(2)` and `mmap(2)`: `EMFILE` without a descriptor, `EFBIG` beyond `RLIMIT_FSIZE`, `ENOMEM`, `ENOSYS`.
    pub fn in_memory_file(len: usize, adopt: impl FnOnce(OwnedFd) -> OwnedFd) -> io::Result<Self> {
        let file = adopt(memory_file(c"dgiwarp-buffer", len.max(1))?);
        let mapping = Arc::new(Mapping::of_memory_file(file, len)?);
        Ok(Self {
            region: Region::from_mapping(mapping),
        })
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.region.len()
    }

    /// Whether the buffer has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether it is that of a [memory file](Self::in_memory_file).
    #[must_use]
    pub fn is_in_memory_file(&self) -> bool {
        self.region.memory_file().is_some()
    }

    /// Memory of the buffer, for registration.
    #[must_use]
    pub fn region(&self) -> Region {
        self.region.clone()
    }

    /// Copies `bytes` to `offset`.
    ///
    /// # Panics
    /// If they do not fit.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        self.region
            .slice(offset, bytes.len())
            .expect("the caller keeps within the buffer")
            .place(bytes);
    }

    /// Copies bytes from `offset` out into `bytes`.
    ///
    /// # Panics
    /// If `bytes` reaches past the end of the buffer.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) {
        self.region
            .slice(offset, bytes.len())
            .expect("the caller keeps within the buffer")
            .copy_to(bytes);
    }

    /// One byte, loaded now: for programs that poll memory for a peer's write.
    ///
    /// # Panics
    /// If `offset` is outside the buffer.
    #[must_use]
    pub fn load(&self, offset: usize) -> u8 {
        self.region
            .slice(offset, 1)
            .expect("the caller keeps within the buffer")
            .load()
    }

    /// The bytes at `offset`, copied into a new vector.
    ///
    /// # Panics
    /// If they reach past the end of the buffer.
    #[must_use]
    pub fn to_vec(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.read(offset, &mut bytes);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MappedError, check_mapped};

    #[test]
    fn a_buffer_has_its_length() {
        for len in [0, 1, 4097] {
            let buffer = Buffer::zeroed(len).unwrap();
            assert_eq!((buffer.len(), buffer.is_empty()), (len, len == 0));
            let region = buffer.region();
            assert_eq!((region.len(), region.is_empty()), (len, len == 0));
            let slice = region.slice(0, len).unwrap();
            assert_eq!((slice.len(), slice.is_empty()), (len, len == 0));
        }
    }

    #[test]
    fn memory_is_unmapped_when_its_last_region_goes() {
        // Longer than any mapping that another test could get at this address.
        let len = 256 << 20;
        let buffer = Buffer::zeroed(len).unwrap();
        let region = buffer.region();
        let address = usize::try_from(region.address()).unwrap();
        drop(buffer);
        assert!(check_mapped(address, len, true).is_ok());
        drop(region);
        let unmapped = check_mapped(address, len, true);
        assert!(matches!(unmapped, Err(MappedError::Hole { .. })));
    }

    #[test]
    fn bytes_are_written_and_read_where_they_are() {
        let buffer = Buffer::zeroed(10).unwrap();
        buffer.write(3, &[7, 8, 9]);
        let loaded: Vec<u8> = (0..10).map(|offset| buffer.load(offset)).collect();
        assert_eq!(loaded, [0, 0, 0, 7, 8, 9, 0, 0, 0, 0]);
        assert_eq!(buffer.to_vec(2, 3), [0, 7, 8]);
        let mut read = [1; 2];
        buffer.read(4, &mut read);
        assert_eq!(read, [8, 9]);
    }
}
