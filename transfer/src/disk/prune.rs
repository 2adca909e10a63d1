//! A target that becomes as its source: entries that the source has not are removed.

use std::collections::HashSet;
use std::io;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::stat::futimens;
use nix::sys::time::TimeSpec;

use super::filter::join;
use super::partial::{JOURNAL, PART};
use super::{Filter, Metadata, Root, failure, staging};
use crate::wire::{FileKind, NAME_LIMIT, Removal, Status};

/// Names that are remembered at most: 16 octets each.
const NAMES: usize = 1 << 24;

/// Names that came, and the removal of others.
#[derive(Debug)]
pub(super) struct Prune {
    filter: Filter,
    /// Hashes of names beneath the target: `None` if they were too many.
    seen: Mutex<Option<HashSet<u128>>>,
}

/// Work of one removal.
struct Walk<'a> {
    root: &'a Root,
    filter: &'a Filter,
    dry: bool,
    removals: Vec<Removal>,
}

impl Prune {
    pub(super) fn new(filter: Filter) -> Self {
        let seen = Mutex::new(Some(HashSet::new()));
        Self { filter, seen }
    }

    /// An entry of this name came.
    pub(super) fn note(&self, name: &[u8]) {
        let mut guard = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(seen) = guard.as_mut() {
            seen.insert(hash(name));
            if seen.len() > NAMES {
                *guard = None;
            }
        }
    }

    /// Removes what is in the way of an entry: a directory at the place of a file or link, something else at that of a directory or above it.
    pub(super) fn clear(&self, root: &Root, target: &Path, name: &Path, kind: FileKind) {
        let Some(parent) = name.parent() else {
            return;
        };
        let mut at = target.to_owned();
        for component in parent.components() {
            at.push(component);
            if !clear_for_directory(root, &at) {
                return;
            }
        }
        let path = join(target, name.as_os_str());
        if kind == FileKind::Directory {
            clear_for_directory(root, &path);
        } else if root.link_metadata(&path).is_ok_and(|it| is_directory(&it)) {
            let mut walk = Walk {
                root,
                filter: &self.filter,
                dry: false,
                removals: Vec::new(),
            };
            walk.remove(&path, name, true);
        }
    }

    /// Removes entries beneath the target that did not come and that the filter does not leave out.
    pub(super) fn remove_others(&self, root: &Root, target: &Path, dry: bool) -> Vec<Removal> {
        let mut walk = Walk {
            root,
            filter: &self.filter,
            dry,
            removals: Vec::new(),
        };
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(seen) = seen.as_ref() else {
            walk.failed(Path::new(""), &Errno::E2BIG.into());
            return walk.removals;
        };
        if root.link_metadata(target).is_ok_and(|it| is_directory(&it)) {
            walk.keep(target, Path::new(""), seen);
        }
        walk.removals
    }
}

impl Walk<'_> {
    /// Removes entries of a directory that came.
    fn keep(&mut self, path: &Path, name: &Path, seen: &HashSet<u128>) {
        let list = match self.root.list(path) {
            Ok(list) => list,
            Err(error) => return self.failed(name, &error),
        };
        let before = self.removals.len();
        let dated = self.root.link_metadata(path);
        for (entry, metadata) in list {
            let (path, name) = (join(path, &entry), join(name, &entry));
            let directory = is_directory(&metadata);
            if seen.contains(&hash(name.as_os_str().as_bytes())) {
                if directory {
                    self.keep(&path, &name, seen);
                }
            } else if !self.is_kept(&name, directory) {
                self.remove(&path, &name, directory);
            }
        }
        if self.removals.len() > before {
            let restored = dated.and_then(|dated| self.restore(path, &dated));
            if let Err(error) = restored {
                self.failed(name, &error);
            }
        }
    }

    /// Gives a directory the time that it had before entries of it were removed.
    fn restore(&self, path: &Path, dated: &Metadata) -> io::Result<()> {
        if self.dry {
            return Ok(());
        }
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY;
        let dir = self.root.open_at(path, flags, 0)?;
        let (seconds, nanoseconds) = dated.modified();
        let time = TimeSpec::new(seconds, i64::from(nanoseconds));
        Ok(futimens(&dir, &time, &time)?)
    }

    /// Whether an entry stays though it did not come: it is left out, or another session writes it.
    fn is_kept(&self, name: &Path, directory: bool) -> bool {
        let last = name.file_name().unwrap_or_default().as_bytes();
        let is_part = last.ends_with(PART.as_bytes()) || last.ends_with(JOURNAL.as_bytes());
        last.starts_with(b".") && is_part
            || last.starts_with(staging::PREFIX.as_bytes())
            || self.filter.leaves_out(name, directory)
    }

    /// Removes an entry with all that is in it; returns whether nothing of it stays.
    fn remove(&mut self, path: &Path, name: &Path, directory: bool) -> bool {
        let mut whole = true;
        if directory {
            let list = match self.root.list(path) {
                Ok(list) => list,
                Err(error) => {
                    self.failed(name, &error);
                    return false;
                }
            };
            for (entry, metadata) in list {
                let (path, name) = (join(path, &entry), join(name, &entry));
                let directory = is_directory(&metadata);
                whole &= !self.is_kept(&name, directory) && self.remove(&path, &name, directory);
            }
        }
        if !whole {
            return false;
        }
        let removed = match (self.dry, directory) {
            (true, _) => Ok(()),
            (false, true) => self.root.remove_dir(path),
            (false, false) => self.root.remove_file(path),
        };
        match removed {
            Ok(()) => {
                let text = String::new();
                self.report(name, Status::Stored, text);
                true
            }
            Err(error) => {
                self.failed(name, &error);
                false
            }
        }
    }

    fn failed(&mut self, name: &Path, error: &io::Error) {
        let failure = failure(&name.display().to_string(), error);
        self.report(name, failure.status, failure.text);
    }

    fn report(&mut self, name: &Path, status: Status, text: String) {
        let mut name = name.to_owned().into_os_string().into_vec();
        // The kernel has longer paths only by way of descriptors.
        name.truncate(NAME_LIMIT);
        self.removals.push(Removal { name, status, text });
    }
}

/// Removes something that is no directory from the place of one; returns whether there is something now.
fn clear_for_directory(root: &Root, path: &Path) -> bool {
    match root.link_metadata(path) {
        Ok(there) if is_directory(&there) => true,
        // A failure shows itself when the directory is made.
        Ok(_) => root.remove_file(path).is_err(),
        Err(_) => false,
    }
}

fn is_directory(metadata: &Metadata) -> bool {
    metadata.kind() == Some(FileKind::Directory)
}

fn hash(name: &[u8]) -> u128 {
    let hash = blake3::hash(name);
    let octets = hash.as_bytes().iter().take(16);
    octets.fold(0, |all, it| all << 8 | u128::from(*it))
}
