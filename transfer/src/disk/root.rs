//! A directory that no name leaves: every path is resolved by the kernel with `RESOLVE_BENEATH` (`openat2(2)`, Linux 5.6).

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, OpenHow, ResolveFlag, openat, openat2, readlinkat, renameat};
use nix::sys::stat::{FileStat, Mode, fstat, fstatat, mkdirat};
use nix::unistd::{UnlinkatFlags, symlinkat, unlinkat};

use crate::wire::{Entry, FileKind};

/// A directory and everything beneath it. Paths are relative; one with `..`, with a root or a symbolic link that leads out is refused.
#[derive(Debug)]
pub struct Root {
    dir: OwnedFd,
}

/// Description of a file (`stat(2)`).
#[derive(Debug, Clone, Copy)]
pub struct Metadata {
    stat: FileStat,
}

impl From<FileStat> for Metadata {
    fn from(stat: FileStat) -> Self {
        Self { stat }
    }
}

impl Metadata {
    pub(super) fn of(file: &File) -> io::Result<Self> {
        let stat = fstat(file)?;
        Ok(Self { stat })
    }

    /// Kind; `None` for devices, pipes and sockets.
    #[must_use]
    pub fn kind(&self) -> Option<FileKind> {
        const FORMAT: u32 = 0o170_000;
        match self.stat.st_mode & FORMAT {
            0o100_000 => Some(FileKind::File),
            0o040_000 => Some(FileKind::Directory),
            0o120_000 => Some(FileKind::Link),
            _ => None,
        }
    }

    /// Octets.
    #[must_use]
    pub fn size(&self) -> u64 {
        u64::try_from(self.stat.st_size).unwrap_or(0)
    }

    /// Permission bits.
    #[must_use]
    pub fn mode(&self) -> u16 {
        u16::try_from(self.stat.st_mode & 0o7777).unwrap_or(0)
    }

    /// Time of the last change: seconds since 1970, and nanoseconds.
    #[must_use]
    pub fn modified(&self) -> (i64, u32) {
        let nanoseconds = u32::try_from(self.stat.st_mtime_nsec).unwrap_or(0);
        (self.stat.st_mtime, nanoseconds)
    }

    /// Hard links.
    #[must_use]
    #[allow(
        clippy::useless_conversion,
        reason = "32 bits on aarch64, 64 on x86-64"
    )]
    pub fn links(&self) -> u64 {
        self.stat.st_nlink.into()
    }

    /// Number that is the file's as long as it exists, of octets.
    #[must_use]
    pub fn identity(&self) -> [u8; 16] {
        let mut octets = [0; 16];
        octets[..8].copy_from_slice(&self.stat.st_dev.to_be_bytes());
        octets[8..].copy_from_slice(&self.stat.st_ino.to_be_bytes());
        octets
    }

    /// Description for an offer under a name.
    #[must_use]
    pub fn entry(&self, kind: FileKind, name: Vec<u8>) -> Entry {
        Entry {
            kind,
            mode: self.mode(),
            modified: self.modified(),
            size: if kind == FileKind::File {
                self.size()
            } else {
                0
            },
            identity: self.identity(),
            name,
            target: Vec::new(),
            attributes: None,
        }
    }
}

/// Whether two descriptions are of one state of one file.
pub(super) fn is_unchanged(was: &Metadata, is: &Metadata) -> bool {
    was.identity() == is.identity() && was.size() == is.size() && was.modified() == is.modified()
}

impl Root {
    /// Opens a directory.
    ///
    /// # Errors
    /// Errors of `open(2)`.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let dir = openat(nix::fcntl::AT_FDCWD, path, flags, Mode::empty())?;
        Ok(Self { dir })
    }

    /// Opens a path beneath. An empty one is the root itself.
    ///
    /// # Errors
    /// Errors of `openat2(2)`; `EXDEV` for one that leaves.
    pub fn open_at(&self, path: &Path, flags: OFlag, mode: u32) -> io::Result<File> {
        let path = checked(path)?;
        let path = if path.as_os_str().is_empty() {
            Path::new(".")
        } else {
            path
        };
        let how = OpenHow::new()
            .flags(flags | OFlag::O_CLOEXEC)
            .mode(if flags.contains(OFlag::O_CREAT) {
                Mode::from_bits_truncate(mode)
            } else {
                // openat2(2) refuses a mode that has no meaning.
                Mode::empty()
            })
            .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS);
        Ok(File::from(openat2(&self.dir, path, how)?))
    }

    /// Opens a regular file for reading; anything else is refused with `EINVAL`, a directory with `EISDIR`. A link is followed where it stays beneath.
    ///
    /// # Errors
    /// Errors of `openat2(2)`.
    pub fn open_file(&self, path: &Path) -> io::Result<(File, Metadata)> {
        self.open_regular(path, OFlag::empty())
    }

    pub(super) fn open_regular(&self, path: &Path, more: OFlag) -> io::Result<(File, Metadata)> {
        // A pipe without a writer would block.
        let file = self.open_at(path, OFlag::O_RDONLY | OFlag::O_NONBLOCK | more, 0)?;
        let metadata = Metadata::of(&file)?;
        match metadata.kind() {
            Some(FileKind::File) => Ok((file, metadata)),
            Some(FileKind::Directory) => Err(Errno::EISDIR.into()),
            Some(FileKind::Link) | None => Err(Errno::EINVAL.into()),
        }
    }

    /// The directory that a path is in, and the last component; for the root itself `EISDIR`.
    pub(super) fn parent<'a>(&self, path: &'a Path) -> io::Result<(OwnedFd, &'a OsStr)> {
        let path = checked(path)?;
        let name = path.file_name().ok_or(Errno::EISDIR)?;
        let parent = path.parent().unwrap_or_else(|| Path::new(""));
        // It is synchronized too, which a descriptor of a path alone cannot be.
        let dir = self.open_at(parent, OFlag::O_RDONLY | OFlag::O_DIRECTORY, 0)?;
        Ok((dir.into(), name))
    }

    /// Description of what a path names, behind a link that stays beneath.
    ///
    /// # Errors
    /// Errors of `openat2(2)`.
    pub fn metadata(&self, path: &Path) -> io::Result<Metadata> {
        Metadata::of(&self.open_at(path, OFlag::O_PATH, 0)?)
    }

    /// Description of the last component itself, which may be a link.
    ///
    /// # Errors
    /// Errors of `openat2(2)`.
    pub fn link_metadata(&self, path: &Path) -> io::Result<Metadata> {
        Metadata::of(&self.open_at(path, OFlag::O_PATH | OFlag::O_NOFOLLOW, 0)?)
    }

    /// Target of a link.
    ///
    /// # Errors
    /// Errors of `readlink(2)`.
    pub fn read_link(&self, path: &Path) -> io::Result<OsString> {
        let (dir, name) = self.parent(path)?;
        Ok(readlinkat(&dir, name)?)
    }

    /// Names and descriptions in a directory, sorted by name, links not followed.
    ///
    /// # Errors
    /// Errors of `openat2(2)` and `getdents(2)`.
    pub fn list(&self, path: &Path) -> io::Result<Vec<(OsString, Metadata)>> {
        let file = self.open_at(path, OFlag::O_RDONLY | OFlag::O_DIRECTORY, 0)?;
        let dir = Dir::from_fd(file.try_clone()?.into())?;
        let mut found = Vec::new();
        for entry in dir {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." {
                continue;
            }
            match fstatat(&file, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
                Ok(stat) => found.push((name.to_owned(), Metadata { stat })),
                // Removed meanwhile.
                Err(Errno::ENOENT) => {}
                Err(error) => return Err(error.into()),
            }
        }
        found.sort_by(|(one, _), (other, _)| one.cmp(other));
        Ok(found)
    }

    /// Checks that a path is a directory that may be listed.
    ///
    /// # Errors
    /// Errors of `openat2(2)`.
    pub fn list_check(&self, path: &Path) -> io::Result<()> {
        self.open_at(path, OFlag::O_RDONLY | OFlag::O_DIRECTORY, 0)
            .map(drop)
    }

    /// Makes a directory.
    ///
    /// # Errors
    /// Errors of `mkdir(2)`.
    pub fn create_dir(&self, path: &Path) -> io::Result<()> {
        let (dir, name) = self.parent(path)?;
        Ok(mkdirat(&dir, name, Mode::from_bits_truncate(0o777))?)
    }

    /// Makes a directory and those above it that are missing.
    ///
    /// # Errors
    /// Errors of `mkdir(2)`; `ENOTDIR` where something else is in the way.
    pub fn create_dirs(&self, path: &Path) -> io::Result<()> {
        let mut at = PathBuf::new();
        let is_there = |at: &Path| {
            self.open_at(at, OFlag::O_PATH | OFlag::O_DIRECTORY, 0)
                .map(drop)
        };
        if is_there(path).is_ok() {
            return Ok(());
        }
        for component in checked(path)?.components() {
            at.push(component);
            match self.create_dir(&at) {
                Ok(()) => {}
                Err(error) if error.raw_os_error() == Some(Errno::EEXIST as i32) => is_there(&at)?,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Makes a symbolic link. Its target is not checked: nothing here follows one that leaves.
    ///
    /// # Errors
    /// Errors of `symlink(2)`.
    pub fn create_link(&self, path: &Path, target: &[u8]) -> io::Result<()> {
        let (dir, name) = self.parent(path)?;
        Ok(symlinkat(OsStr::from_bytes(target), &dir, name)?)
    }

    /// Removes a file or link.
    ///
    /// # Errors
    /// Errors of `unlink(2)`.
    pub fn remove_file(&self, path: &Path) -> io::Result<()> {
        let (dir, name) = self.parent(path)?;
        Ok(unlinkat(&dir, name, UnlinkatFlags::NoRemoveDir)?)
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// Errors of `rmdir(2)`.
    pub fn remove_dir(&self, path: &Path) -> io::Result<()> {
        let (dir, name) = self.parent(path)?;
        Ok(unlinkat(&dir, name, UnlinkatFlags::RemoveDir)?)
    }

    /// Renames within the root.
    ///
    /// # Errors
    /// Errors of `rename(2)`.
    pub fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let (from_dir, from) = self.parent(from)?;
        let (to_dir, to) = self.parent(to)?;
        Ok(renameat(&from_dir, from, &to_dir, to)?)
    }
}

/// The directory, for `poll(2)` and the like.
impl AsFd for Root {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.dir.as_fd()
    }
}

/// A path without root, `..` and octets that no name has.
fn checked(path: &Path) -> io::Result<&Path> {
    let plain = |it| matches!(it, Component::Normal(_));
    if !path.components().all(plain) {
        return Err(Errno::EXDEV.into());
    }
    if path.as_os_str().as_bytes().contains(&0) {
        return Err(Errno::EILSEQ.into());
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn no_name_leaves_the_root() {
        let folder = tempfile::tempdir().unwrap();
        let inside = folder.path().join("root");
        fs::create_dir(&inside).unwrap();
        fs::write(folder.path().join("secret"), "s").unwrap();
        fs::write(inside.join("mine"), "m").unwrap();
        symlink("../secret", inside.join("out")).unwrap();
        symlink(folder.path(), inside.join("away")).unwrap();
        symlink("mine", inside.join("in")).unwrap();
        let root = Root::open(&inside).unwrap();
        for name in [
            "../secret",
            "/etc/passwd",
            "a/../../secret",
            "out",
            "away/secret",
            "x\0y",
        ] {
            let path = Path::new(name);
            assert!(root.open_file(path).is_err(), "{name}");
            assert!(root.metadata(path).is_err(), "{name}");
            assert!(
                root.rename(Path::new("mine"), path).is_err() || name == "out",
                "{name}"
            );
            fs::write(inside.join("mine"), "m").unwrap();
        }
        assert!(root.create_dirs(Path::new("away/new")).is_err());
        assert!(root.remove_file(Path::new("away/secret")).is_err());
        assert_eq!(root.open_file(Path::new("in")).unwrap().1.size(), 1);
        assert_eq!(fs::read(folder.path().join("secret")).unwrap(), b"s");
    }
}
