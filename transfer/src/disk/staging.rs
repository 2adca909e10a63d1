//! A directory of a session for short files that have no name yet, beside the files that it receives: a rename is all that they lack.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat, renameat};
use nix::sys::stat::{Mode, fstatat, mkdirat};
use nix::unistd::{UnlinkatFlags, syncfs, unlinkat};

use super::Metadata;
use crate::wire::Entry;

/// First octets of the directory's name.
pub(super) const PREFIX: &str = ".rftp-pack-";

/// Directories of one process.
static NEXT: AtomicU32 = AtomicU32::new(0);

/// Files of one session. The lock of the directory is held as long as the session lasts; one without a lock was left by a crash, and is removed.
#[derive(Debug)]
pub(super) struct Staging {
    /// The directory in which it is.
    folder: File,
    name: OsString,
    dir: File,
    kept: Mutex<BTreeMap<u32, Whole>>,
}

/// The place where a file belongs.
#[derive(Debug, Clone)]
pub(super) struct Whole {
    pub(super) dir: Arc<OwnedFd>,
    pub(super) name: OsString,
    pub(super) entry: Entry,
    pub(super) shown: String,
}

/// The directory of the last path: files of one directory follow one another.
#[derive(Debug, Default)]
pub(super) struct Parents {
    last: Option<(PathBuf, Option<Arc<OwnedFd>>)>,
}

impl Parents {
    /// The directory that a path is in, by `find` where it is another than before.
    pub(super) fn of(
        &mut self,
        path: &Path,
        find: impl FnOnce(&Path) -> io::Result<Option<Arc<OwnedFd>>>,
    ) -> io::Result<Option<Arc<OwnedFd>>> {
        let parent = path.parent().unwrap_or_else(|| Path::new(""));
        if let Some((last, dir)) = &self.last
            && last.as_os_str() == parent.as_os_str()
        {
            return Ok(dir.clone());
        }
        let dir = find(path)?;
        self.last = Some((parent.to_owned(), dir.clone()));
        Ok(dir)
    }
}

impl Staging {
    /// Makes a directory, and removes those that crashes left.
    pub(super) fn new(folder: File) -> io::Result<Self> {
        remove_left_over(&folder)?;
        loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let name = OsString::from(format!("{PREFIX}{}-{number}", process::id()));
            match mkdirat(&folder, name.as_os_str(), Mode::S_IRWXU) {
                Ok(()) => {}
                Err(Errno::EEXIST) => continue,
                Err(error) => return Err(error.into()),
            }
            if let Some(dir) = lock(&folder, &name)? {
                let kept = Mutex::default();
                return Ok(Self {
                    folder,
                    name,
                    dir,
                    kept,
                });
            }
        }
    }

    /// Writes a file, which nothing else names.
    pub(super) fn write(
        &self,
        file: u32,
        octets: &[u8],
        describe: impl FnOnce(&File) -> io::Result<()>,
    ) -> io::Result<()> {
        let name = file.to_string();
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_CLOEXEC;
        let mode = Mode::S_IRUSR | Mode::S_IWUSR;
        let mut written = File::from(openat(&self.dir, name.as_str(), flags, mode)?);
        let done = written.write_all(octets).and_then(|()| describe(&written));
        done.inspect_err(|_| self.remove(file))
    }

    /// Keeps the place of a file until [`whole`](Self::whole).
    pub(super) fn keep(&self, file: u32, whole: Whole) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.insert(file, whole);
    }

    pub(super) fn whole(&self, file: u32) -> Option<Whole> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.remove(&file)
    }

    /// Has the file system write all that it has, these files among it.
    pub(super) fn sync(&self) -> io::Result<()> {
        Ok(syncfs(&self.dir)?)
    }

    /// Gives a file its name. It is removed where that fails, except with `EXDEV`.
    pub(super) fn rename(&self, file: u32, to: &OwnedFd, name: &OsStr) -> io::Result<()> {
        let from = file.to_string();
        match renameat(&self.dir, from.as_str(), to, name) {
            Ok(()) => Ok(()),
            Err(Errno::EXDEV) => Err(Errno::EXDEV.into()),
            Err(error) => {
                self.remove(file);
                Err(error.into())
            }
        }
    }

    /// Takes the octets of a file out.
    pub(super) fn take(&self, file: u32) -> io::Result<Vec<u8>> {
        let name = file.to_string();
        let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC;
        let mut octets = Vec::new();
        let mut staged = File::from(openat(&self.dir, name.as_str(), flags, Mode::empty())?);
        staged.read_to_end(&mut octets)?;
        self.remove(file);
        Ok(octets)
    }

    fn remove(&self, file: u32) {
        let name = file.to_string();
        // Left over, it is removed with the directory.
        let _ = unlinkat(&self.dir, name.as_str(), UnlinkatFlags::NoRemoveDir);
    }
}

/// Files that got no name are removed.
impl Drop for Staging {
    fn drop(&mut self) {
        // A failure leaves them for a later session.
        let _ = empty(&self.dir);
        let _ = unlinkat(
            &self.folder,
            self.name.as_os_str(),
            UnlinkatFlags::RemoveDir,
        );
    }
}

/// Opens and locks a directory; `None` where another session has it, or removed it between.
fn lock(folder: &File, name: &OsStr) -> io::Result<Option<File>> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let dir = match openat(folder, name, flags, Mode::empty()) {
        Ok(dir) => File::from(dir),
        Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    if dir.try_lock().is_err() {
        return Ok(None);
    }
    let ours = Metadata::of(&dir)?.identity();
    let there = fstatat(folder, name, AtFlags::AT_SYMLINK_NOFOLLOW).map(Metadata::from);
    Ok(there.is_ok_and(|it| it.identity() == ours).then_some(dir))
}

fn remove_left_over(folder: &File) -> io::Result<()> {
    for name in names(folder)? {
        if !name.as_bytes().starts_with(PREFIX.as_bytes()) {
            continue;
        }
        // Another user's is left alone.
        if let Ok(Some(dir)) = lock(folder, &name) {
            let _ = empty(&dir);
            let _ = unlinkat(folder, name.as_os_str(), UnlinkatFlags::RemoveDir);
        }
    }
    Ok(())
}

fn empty(dir: &File) -> io::Result<()> {
    for name in names(dir)? {
        unlinkat(dir, name.as_os_str(), UnlinkatFlags::NoRemoveDir)?;
    }
    Ok(())
}

/// Names in a directory.
fn names(dir: &File) -> io::Result<Vec<OsString>> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let again = openat(dir, ".", flags, Mode::empty())?;
    let mut names = Vec::new();
    for entry in Dir::from_fd(again)? {
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name != "." && name != ".." {
            names.push(name.to_owned());
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn open(path: &Path) -> File {
        File::open(path).unwrap()
    }

    #[test]
    fn directories_that_a_crash_left_are_removed_and_those_of_others_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let left = folder.path().join(".rftp-pack-1-99");
        fs::create_dir(&left).unwrap();
        fs::write(left.join("7"), "left").unwrap();
        let first = Staging::new(open(folder.path())).unwrap();
        assert!(!left.exists());
        first.write(7, b"seven", |_| Ok(())).unwrap();
        let second = Staging::new(open(folder.path())).unwrap();
        second.write(7, b"7", |_| Ok(())).unwrap();
        assert_eq!(first.take(7).unwrap(), b"seven");
        let to = OwnedFd::from(open(folder.path()));
        second.rename(7, &to, OsStr::new("named")).unwrap();
        drop((first, second));
        let names: Vec<_> = fs::read_dir(folder.path()).unwrap().collect();
        assert_eq!(names.len(), 1, "{names:?}");
        assert_eq!(fs::read(folder.path().join("named")).unwrap(), b"7");
    }
}
