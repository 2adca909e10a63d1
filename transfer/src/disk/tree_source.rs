//! Files and trees as a source.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use nix::fcntl::OFlag;

use super::root::is_unchanged;
use super::{Metadata, Root, failure};
use crate::engine::{Failure, Next};
use crate::session::Source;
use crate::wire::{FileKind, NAME_LIMIT, Status};

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
}

#[derive(Debug)]
struct Walk {
    /// Last first.
    todo: Vec<Item>,
    /// Deepest last.
    directories: Vec<(Metadata, PathBuf)>,
}

#[derive(Debug)]
struct Opened {
    file: File,
    metadata: Metadata,
    name: PathBuf,
}

impl TreeSource {
    /// A source of these.
    #[must_use]
    pub fn new(mut items: Vec<Item>) -> Self {
        items.reverse();
        let directories = Vec::new();
        let todo = items;
        Self {
            walk: Mutex::new(Walk { todo, directories }),
            files: Mutex::default(),
        }
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
                let opened = Opened {
                    file: octets,
                    metadata,
                    name: item.path.clone(),
                };
                let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
                files.insert(file, Arc::new(opened));
                Ok(Next::Entry(metadata.entry(FileKind::File, name)))
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
    fn enter(&mut self, item: &Item, metadata: Metadata) -> Result<(), Failure> {
        let list = item.root.list(&item.path);
        let list = list.map_err(|error| failure(&item.path.display().to_string(), &error))?;
        self.directories.push((metadata, item.name.clone()));
        for (name, _) in list.into_iter().rev() {
            self.todo.push(Item {
                root: Arc::clone(&item.root),
                path: join(&item.path, Path::new(&name)),
                name: join(&item.name, Path::new(&name)),
            });
        }
        Ok(())
    }
}

/// Joins without a separator at an end.
fn join(path: &Path, name: &Path) -> PathBuf {
    if path.as_os_str().is_empty() {
        name.to_owned()
    } else {
        path.join(name)
    }
}

impl Source for TreeSource {
    fn next(&self, file: u32) -> Next {
        let mut walk = self.walk.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let Some(item) = walk.todo.pop() else {
                let Some((metadata, name)) = walk.directories.pop() else {
                    return Next::End;
                };
                let name = name.into_os_string().into_vec();
                return Next::Entry(metadata.entry(FileKind::Directory, name));
            };
            let found = item.root.link_metadata(&item.path);
            let found = found.map_err(|error| failure(&item.path.display().to_string(), &error));
            let next = found.and_then(|metadata| {
                if metadata.kind() == Some(FileKind::Directory) {
                    walk.enter(&item, metadata).map(|()| None)
                } else {
                    self.open(file, &item, &metadata).map(Some)
                }
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
