//! Files and trees as a source.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use nix::fcntl::OFlag;

use super::attributes;
use super::filter::join;
use super::root::is_unchanged;
use super::{Filter, Metadata, Root, failure};
use crate::engine::{Failure, Next};
use crate::session::{Packer, Source};
use crate::wire::{Attributes, FileKind, NAME_LIMIT, Status};

/// Entries that are found at a time.
const BATCH: usize = 256;

/// A file or tree to send.
#[derive(Debug, Clone)]
pub struct Item {
    /// Root that it is beneath.
    pub root: Arc<Root>,
    /// Path beneath the root; empty: the root itself.
    pub path: PathBuf,
    /// Name beneath the sink's target; empty: the target itself.
    pub name: PathBuf,
}

impl Item {
    /// A path of this host, under its last component beneath the sink's target, or, not `into`, as the target itself.
    ///
    /// # Errors
    /// Errors of `realpath(3)` and `open(2)`.
    pub fn of(path: &Path, into: bool) -> io::Result<Self> {
        let real = fs::canonicalize(path)?;
        let (folder, last) = match (real.parent(), real.file_name()) {
            (Some(folder), Some(last)) => (folder, PathBuf::from(last)),
            _ => (real.as_path(), PathBuf::new()),
        };
        // `.` and the like have the name that they stand for.
        let name = path.file_name().map_or_else(|| last.clone(), PathBuf::from);
        Ok(Self {
            root: Arc::new(Root::open(folder)?),
            path: last,
            name: if into { name } else { PathBuf::new() },
        })
    }
}

/// Files and trees, in the order of their items; directories follow all files, so that their times are right at the end.
#[derive(Debug)]
pub struct TreeSource {
    walk: Mutex<Walk>,
    files: Mutex<BTreeMap<u32, Arc<Opened>>>,
    shorts: Mutex<BTreeMap<u32, Arc<Described>>>,
    /// Entries are to have their extended attributes.
    attributes: AtomicBool,
}

#[derive(Debug)]
struct Walk {
    /// Last first, with the description that the directory's list had.
    todo: Vec<(Item, Option<Metadata>)>,
    /// Deepest last.
    directories: Vec<(Metadata, PathBuf, Option<Attributes>)>,
    filter: Filter,
}

#[derive(Debug)]
struct Opened {
    file: File,
    metadata: Metadata,
    name: PathBuf,
}

/// A short file that is opened when it is sent.
#[derive(Debug)]
struct Described {
    item: Item,
    metadata: Metadata,
}

impl TreeSource {
    /// A source of these.
    #[must_use]
    pub fn new(mut items: Vec<Item>) -> Self {
        items.reverse();
        let directories = Vec::new();
        let todo = items.into_iter().map(|item| (item, None)).collect();
        Self {
            walk: Mutex::new(Walk {
                todo,
                directories,
                filter: Filter::none(),
            }),
            files: Mutex::default(),
            shorts: Mutex::default(),
            attributes: AtomicBool::new(false),
        }
    }

    /// Leaves out entries of directories whose names a filter leaves out.
    #[must_use]
    pub fn filtered(mut self, filter: Filter) -> Self {
        let walk = self.walk.get_mut().unwrap_or_else(PoisonError::into_inner);
        walk.filter = filter;
        self
    }

    fn opened(&self, file: u32) -> Result<Arc<Opened>, Failure> {
        let files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let opened = files.get(&file).map(Arc::clone);
        opened.ok_or_else(|| Failure::new(Status::Unreadable, "the file is closed"))
    }

    fn open(&self, file: u32, item: &Item, metadata: &Metadata) -> Result<Next, Failure> {
        let what = item.path.display().to_string();
        let unreadable = |error: &io::Error| Failure {
            status: Status::Unreadable,
            ..failure(&what, error)
        };
        let name = item.name.as_os_str().as_bytes().to_vec();
        if name.len() > NAME_LIMIT {
            return Err(Failure::new(
                Status::Name,
                format!("{what}: the name is too long"),
            ));
        }
        match metadata.kind() {
            Some(FileKind::File) => {
                let opened = item.root.open_regular(&item.path, OFlag::O_NOFOLLOW);
                let (octets, metadata) = opened.map_err(|error| unreadable(&error))?;
                let attributes = self.attributes_of(&octets);
                let attributes = attributes.map_err(|error| unreadable(&error))?;
                let opened = Opened {
                    file: octets,
                    metadata,
                    name: item.path.clone(),
                };
                let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
                files.insert(file, Arc::new(opened));
                let mut entry = metadata.entry(FileKind::File, name);
                entry.attributes = attributes;
                Ok(Next::Entry(entry))
            }
            Some(FileKind::Link) => {
                let target = item.root.read_link(&item.path);
                let target = target.map_err(|error| unreadable(&error))?.into_vec();
                if target.len() + name.len() > NAME_LIMIT {
                    let text = format!("{what}: the link's target is too long");
                    return Err(Failure::new(Status::Name, text));
                }
                let mut entry = metadata.entry(FileKind::Link, name);
                entry.target = target;
                Ok(Next::Entry(entry))
            }
            Some(FileKind::Directory) | None => Err(Failure::new(
                Status::Unreadable,
                format!("{what}: neither file nor directory nor link"),
            )),
        }
    }
}

impl Walk {
    /// Puts the entries of a directory on the list.
    fn enter(
        &mut self,
        item: &Item,
        metadata: Metadata,
        attributes: Option<Attributes>,
    ) -> Result<(), Failure> {
        let list = item.root.list(&item.path);
        let list = list.map_err(|error| failure(&item.path.display().to_string(), &error))?;
        self.directories
            .push((metadata, item.name.clone(), attributes));
        for (name, metadata) in list.into_iter().rev() {
            let item = Item {
                root: Arc::clone(&item.root),
                path: join(&item.path, &name),
                name: join(&item.name, &name),
            };
            let directory = metadata.kind() == Some(FileKind::Directory);
            if self.filter.leaves_out(&item.name, directory) {
                continue;
            }
            self.todo.push((item, Some(metadata)));
        }
        Ok(())
    }
}

impl TreeSource {
    /// The next entry. A file of up to `short` octets is described and not opened.
    fn step(&self, walk: &mut Walk, file: u32, short: Option<u32>) -> Next {
        loop {
            let Some((item, known)) = walk.todo.pop() else {
                let Some((metadata, name, attributes)) = walk.directories.pop() else {
                    return Next::End;
                };
                let name = name.into_os_string().into_vec();
                let mut entry = metadata.entry(FileKind::Directory, name);
                entry.attributes = attributes;
                return Next::Entry(entry);
            };
            let found = match known {
                Some(metadata) => Ok(metadata),
                None => item.root.link_metadata(&item.path),
            };
            let found = found.map_err(|error| failure(&item.path.display().to_string(), &error));
            let next = found.and_then(|metadata| match metadata.kind() {
                Some(FileKind::Directory) => {
                    let attributes = self.attributes_at(&item, OFlag::O_DIRECTORY)?;
                    walk.enter(&item, metadata, attributes).map(|()| None)
                }
                Some(FileKind::File) if is_short(&item, &metadata, short) => {
                    self.describe(file, &item, metadata).map(Some)
                }
                _ => self.open(file, &item, &metadata).map(Some),
            });
            match next {
                Ok(Some(next)) => return next,
                Ok(None) => {}
                Err(failure) => {
                    return Next::Unreadable {
                        name: item.path.display().to_string(),
                        text: failure.text,
                    };
                }
            }
        }
    }

    /// Extended attributes of what is at a place, where they are to be sent.
    fn attributes_at(&self, item: &Item, more: OFlag) -> Result<Option<Attributes>, Failure> {
        if !self.attributes.load(Ordering::Relaxed) {
            return Ok(None);
        }
        // A pipe without a writer would block.
        let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW | more;
        let opened = item.root.open_at(&item.path, flags, 0);
        let attributes = opened.and_then(|file| self.attributes_of(&file));
        attributes.map_err(|error| Failure {
            status: Status::Unreadable,
            ..failure(&item.path.display().to_string(), &error)
        })
    }

    fn attributes_of(&self, file: &File) -> io::Result<Option<Attributes>> {
        let kept = self.attributes.load(Ordering::Relaxed);
        kept.then(|| attributes::read(file)).transpose()
    }

    fn describe(&self, file: u32, item: &Item, metadata: Metadata) -> Result<Next, Failure> {
        let attributes = self.attributes_at(item, OFlag::empty())?;
        let name = item.name.as_os_str().as_bytes().to_vec();
        let item = item.clone();
        let mut shorts = self.shorts.lock().unwrap_or_else(PoisonError::into_inner);
        shorts.insert(file, Arc::new(Described { item, metadata }));
        let mut entry = metadata.entry(FileKind::File, name);
        entry.attributes = attributes;
        Ok(Next::Entry(entry))
    }
}

/// Whether a file is one that is not opened before it is sent. A single file, without a name below the target, is.
fn is_short(item: &Item, metadata: &Metadata, short: Option<u32>) -> bool {
    let name = item.name.as_os_str().len();
    short.is_some_and(|short| metadata.size() <= u64::from(short)) && name > 0 && name <= NAME_LIMIT
}

impl Packer for TreeSource {
    fn batch(&self, first: u32, short: u32) -> Vec<Next> {
        let mut walk = self.walk.lock().unwrap_or_else(PoisonError::into_inner);
        let mut found = Vec::new();
        let mut file = first;
        while found.len() < BATCH {
            let next = self.step(&mut walk, file, Some(short));
            let is_opened = match &next {
                Next::Entry(entry) => {
                    file = file.wrapping_add(1);
                    entry.kind == FileKind::File && entry.size > u64::from(short)
                }
                Next::Unreadable { .. } => false,
                Next::End => true,
            };
            found.push(next);
            // Descriptors are few: one that is open is offered before others are found.
            if is_opened {
                break;
            }
        }
        found
    }

    fn load(&self, file: u32, octets: &mut [u8]) -> Result<(), Failure> {
        let shorts = self.shorts.lock().unwrap_or_else(PoisonError::into_inner);
        let described = shorts.get(&file).map(Arc::clone);
        drop(shorts);
        let described =
            described.ok_or_else(|| Failure::new(Status::Unreadable, "the file is closed"))?;
        let Described { item, metadata } = &*described;
        let named = |text: &str| format!("{}: {text}", item.path.display());
        let unreadable = |error: &io::Error| Failure {
            status: Status::Unreadable,
            ..failure(&item.path.display().to_string(), error)
        };
        // A pipe without a writer would block.
        let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW;
        let opened = item.root.open_at(&item.path, flags, 0);
        let opened = opened.map_err(|error| unreadable(&error))?;
        match opened.read_exact_at(octets, 0) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                let text = named("became shorter while it was read");
                return Err(Failure::new(Status::Changed, text));
            }
            Err(error) => return Err(unreadable(&error)),
        }
        let now = Metadata::of(&opened).map_err(|error| unreadable(&error))?;
        if is_unchanged(metadata, &now) {
            return Ok(());
        }
        let text = named("changed while it was read");
        Err(Failure::new(Status::Changed, text))
    }

    fn forget(&self, files: &[u32]) {
        let mut shorts = self.shorts.lock().unwrap_or_else(PoisonError::into_inner);
        for file in files {
            shorts.remove(file);
        }
    }
}

impl Source for TreeSource {
    fn next(&self, file: u32) -> Next {
        let mut walk = self.walk.lock().unwrap_or_else(PoisonError::into_inner);
        self.step(&mut walk, file, None)
    }

    fn has_attributes(&self) -> bool {
        true
    }

    fn keep_attributes(&self) {
        self.attributes.store(true, Ordering::Relaxed);
    }

    fn packer(&self) -> Option<&dyn Packer> {
        Some(self)
    }

    fn read(&self, file: u32, offset: u64, octets: &mut [u8]) -> Result<(), Failure> {
        let opened = self.opened(file)?;
        let what = opened.name.display().to_string();
        match opened.file.read_exact_at(octets, offset) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(Failure::new(
                Status::Changed,
                format!("{what}: became shorter while it was read"),
            )),
            Err(error) => Err(Failure {
                status: Status::Unreadable,
                ..failure(&what, &error)
            }),
        }
    }

    fn check(&self, file: u32) -> Result<(), Failure> {
        let opened = self.opened(file)?;
        let what = opened.name.display();
        let now = Metadata::of(&opened.file).map_err(|error| failure(&what.to_string(), &error))?;
        if is_unchanged(&opened.metadata, &now) {
            return Ok(());
        }
        let text = format!("{what}: changed while it was read");
        Err(Failure::new(Status::Changed, text))
    }

    fn close(&self, file: u32) {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        files.remove(&file);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// A short file that is another one when it is read than when it was listed.
    #[test]
    fn a_short_file_that_changed_is_not_sent() {
        let folder = tempfile::tempdir().unwrap();
        let names = ["grown", "link", "same", "shrunk", "touched"];
        for name in names {
            fs::write(folder.path().join(name), "abc").unwrap();
        }
        let item = Item::of(folder.path(), true).unwrap();
        let source = TreeSource::new(vec![item]);
        let found = source.batch(5, 100);
        let is_file = |it: &&Next| matches!(it, Next::Entry(it) if it.kind == FileKind::File);
        assert_eq!(found.iter().filter(is_file).count(), names.len());
        fs::write(folder.path().join("grown"), "abcd").unwrap();
        fs::write(folder.path().join("shrunk"), "ab").unwrap();
        fs::remove_file(folder.path().join("link")).unwrap();
        symlink("same", folder.path().join("link")).unwrap();
        let touched = File::open(folder.path().join("touched")).unwrap();
        touched.set_modified(std::time::UNIX_EPOCH).unwrap();
        let mut octets = [0; 3];
        let mut load = |file| source.load(file, &mut octets).map_err(|it| it.status);
        assert_eq!(load(5), Err(Status::Changed));
        assert_eq!(load(6), Err(Status::Unreadable));
        assert_eq!(load(7), Ok(()));
        assert_eq!(load(8), Err(Status::Changed));
        assert_eq!(load(9), Err(Status::Changed));
        source.forget(&[7]);
        assert_eq!(load(7), Err(Status::Unreadable));
    }
}
