//! A file that is not whole: its octets, its journal, and the name that it gets.

use std::ffi::{OsStr, OsString};
use std::fs::{File, TryLockError};
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::sync::{Mutex, PoisonError};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, FallocateFlags, OFlag, fallocate, openat, renameat};
use nix::sys::stat::{Mode, fchmod, fstatat, futimens, mode_t};
use nix::sys::statfs::{TMPFS_MAGIC, fstatfs};
use nix::sys::time::TimeSpec;
use nix::unistd::{UnlinkatFlags, fsync, unlinkat};

use super::Metadata;
use crate::journal;
use crate::wire::{Attributes, Entry};

/// Suffix of a file that is not whole, behind `.` and its name.
pub(super) const PART: &str = ".rftp-part";
/// Suffix of its journal.
pub(super) const JOURNAL: &str = ".rftp-journal";
/// Longest name that a suffix is put behind; a longer one is replaced by its hash.
const LONG_NAME: usize = 255 - 1 - JOURNAL.len();
/// Journals longer than this are not read: the file begins anew. 64 GiB in blocks of 1 KiB have it.
const MAX_JOURNAL: u64 = 3 << 30;

#[derive(Debug)]
pub(super) struct Partial {
    pub(super) dir: OwnedFd,
    pub(super) name: OsString,
    pub(super) entry: Entry,
    pub(super) file: File,
    pub(super) journal: Option<Mutex<File>>,
    pub(super) shown: String,
    /// The file that has the name so far, and its octets when it was opened.
    pub(super) old: Option<(File, u64)>,
}

impl Partial {
    /// Removes the partial file and its journal.
    pub(super) fn discard(&self) {
        for name in hidden(&self.name) {
            // Left over, it does no harm.
            let _ = remove(&self.dir, &name);
        }
    }

    pub(super) fn finish(&self, durable: bool) -> io::Result<()> {
        describe(&self.file, &self.entry)?;
        if durable {
            let attributes = self.entry.attributes.as_ref();
            if attributes.is_none_or(Attributes::is_empty) {
                self.file.sync_data()?;
            } else {
                self.file.sync_all()?;
            }
        }
        let [part, notes] = hidden(&self.name);
        renameat(
            &self.dir,
            part.as_os_str(),
            &self.dir,
            self.name.as_os_str(),
        )?;
        if durable {
            fsync(&self.dir)?;
        }
        if self.journal.is_some() {
            remove(&self.dir, &notes)?;
        }
        Ok(())
    }

    pub(super) fn note(&self, blocks: &[(u64, [u8; 32])], durable: bool) -> io::Result<()> {
        let Some(journal) = &self.journal else {
            return Ok(());
        };
        if durable {
            self.file.sync_data()?;
        }
        let mut records = Vec::with_capacity(blocks.len() * journal::RECORD);
        for (index, hash) in blocks {
            records.extend(journal::record(*index, hash));
        }
        let mut journal = journal.lock().unwrap_or_else(PoisonError::into_inner);
        journal.write_all(&records)?;
        if durable { journal.sync_data() } else { Ok(()) }
    }
}

/// Names of a partial file and its journal.
pub(super) fn hidden(name: &OsStr) -> [OsString; 2] {
    [PART, JOURNAL].map(|suffix| {
        let mut hidden = OsString::from(".");
        if name.len() > LONG_NAME {
            let hash = blake3::hash(name.as_bytes()).to_hex();
            hidden.push(&hash.as_str()[..32]);
        } else {
            hidden.push(name);
        }
        hidden.push(suffix);
        hidden
    })
}

pub(super) fn open_own(dir: &OwnedFd, name: &OsStr) -> io::Result<File> {
    let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let opened = openat(
        dir,
        name,
        flags | OFlag::O_NONBLOCK,
        Mode::from_bits_truncate(0o600),
    )?;
    let file = File::from(opened);
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(Errno::EEXIST.into())
    }
}

/// Opens a file that serves as old copy; `None` where there is none that can be read.
pub(super) fn open_old(dir: &OwnedFd, name: &OsStr) -> Option<(File, u64)> {
    let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK;
    let file = File::from(openat(dir, name, flags, Mode::empty()).ok()?);
    let metadata = file.metadata().ok()?;
    metadata.is_file().then_some((file, metadata.len()))
}

/// Opens a partial file that no other session has. One that got its name, or was removed, between opening and locking is another file's now.
pub(super) fn open_locked(dir: &OwnedFd, name: &OsStr) -> io::Result<File> {
    loop {
        let file = open_own(dir, name)?;
        file.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => Errno::EWOULDBLOCK.into(),
            TryLockError::Error(error) => error,
        })?;
        let ours = Metadata::of(&file)?.identity();
        match fstatat(dir, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(stat) if Metadata::from(stat).identity() == ours => return Ok(file),
            Ok(_) | Err(Errno::ENOENT) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

pub(super) fn read_journal(file: &File) -> io::Result<Vec<u8>> {
    let length = file.metadata()?.len();
    if length > MAX_JOURNAL {
        return Ok(Vec::new());
    }
    let mut octets = vec![0; usize::try_from(length).unwrap_or(0)];
    file.read_exact_at(&mut octets, 0)?;
    Ok(octets)
}

/// Takes space for the file, so that a full disk is found before anything is sent. In memory (`tmpfs(5)`) that takes as long as to write it all, and the file would
/// lie in no better order for it: there it is enough that there is space.
pub(super) fn allocate(file: &File, size: u64) -> io::Result<()> {
    let system = fstatfs(file)?;
    if system.filesystem_type() == TMPFS_MAGIC {
        // A file system without a limit has no blocks.
        let limit = (system.blocks() > 0).then(|| system.blocks_available());
        let octets = u64::try_from(system.block_size()).unwrap_or(1);
        return match limit {
            Some(blocks) if blocks.saturating_mul(octets) < size => Err(Errno::ENOSPC.into()),
            Some(_) | None => file.set_len(size),
        };
    }
    let length = i64::try_from(size).map_err(|_| Errno::EFBIG)?;
    match fallocate(file, FallocateFlags::empty(), 0, length) {
        Ok(()) => Ok(()),
        Err(Errno::EOPNOTSUPP | Errno::ENOSYS) => file.set_len(size),
        Err(error) => Err(error.into()),
    }
}

pub(super) fn remove(dir: &OwnedFd, name: &OsStr) -> io::Result<()> {
    match unlinkat(dir, name, UnlinkatFlags::NoRemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

pub(super) fn time(entry: &Entry) -> TimeSpec {
    TimeSpec::new(entry.modified.0, i64::from(entry.modified.1))
}

/// Permissions, without those that change a user, and times.
pub(super) fn describe(file: &File, entry: &Entry) -> io::Result<()> {
    fchmod(
        file,
        Mode::from_bits_truncate(mode_t::from(entry.mode) & 0o777),
    )?;
    let time = time(entry);
    Ok(futimens(file, &time, &time)?)
}
