//! Files and trees as a sink: partial files with a journal, renamed when they are whole.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, renameat};
use nix::sys::stat::{UtimensatFlags, fstatat, utimensat};
use nix::unistd::{fsync, symlinkat};

use super::attributes::{self, Changed, Unsupported};
use super::partial::{
    Partial, allocate, describe, hidden, open_locked, open_old, open_own, read_journal, remove,
    time,
};
use super::prune::Prune;
use super::staging::{Parents, Staging, Whole};
use super::{Filter, Metadata, Root, failure};
use crate::engine::{Begun, Failure};
use crate::journal;
use crate::session::{Short, Sink, Unpacker};
use crate::wire::{Answer, Attributes, Entry, FileKind, Removal, Status};

/// Directories that are synchronized one by one; the file system as a whole for more.
const FEW_DIRECTORIES: usize = 4;

/// Handling of files that come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TreeSinkOptions {
    /// Data is on the disk before its block is noted in the journal and before a file gets its name. Without it a crash of the host, not of a program, may leave
    /// files with wrong octets. Default yes.
    pub durable: bool,
    /// Files of the same size and time are written all the same. Default no.
    pub rewrite: bool,
}

impl Default for TreeSinkOptions {
    fn default() -> Self {
        Self {
            durable: true,
            rewrite: false,
        }
    }
}

/// Files and trees beneath a root. A file is written as `.NAME.rftp-part` with a journal `.NAME.rftp-journal` beside it and gets its name when all of it is
/// there and its hash is right; one that another session left is gone on with.
#[derive(Debug)]
pub struct TreeSink {
    root: Arc<Root>,
    target: PathBuf,
    options: TreeSinkOptions,
    /// Names that came, where others are removed.
    prune: Option<Prune>,
    /// Nothing is changed.
    dry: bool,
    files: Mutex<BTreeMap<u32, Arc<Partial>>>,
    /// Short files without a name; none before the first came.
    staging: Mutex<Option<Arc<Staging>>>,
    /// Where files go without their extended attributes.
    unsupported: Unsupported,
}

impl TreeSink {
    /// A sink whose entries go to `target` beneath the root: an entry without a name is the target itself.
    #[must_use]
    pub fn new(root: Arc<Root>, target: PathBuf, options: TreeSinkOptions) -> Self {
        Self {
            root,
            target,
            options,
            prune: None,
            dry: false,
            files: Mutex::default(),
            staging: Mutex::default(),
            unsupported: Unsupported::default(),
        }
    }

    /// The target becomes as the source: what is in the way of an entry is removed, and at the end what did not come and the filter does not leave out. It takes
    /// [`Options::prune`](crate::Options::prune) too.
    #[must_use]
    pub fn mirror(mut self, filter: Filter) -> Self {
        self.prune = Some(Prune::new(filter));
        self
    }

    /// Changes nothing: entries are reported as they would be.
    #[must_use]
    pub fn dry_run(mut self) -> Self {
        self.dry = true;
        self
    }

    /// An entry came.
    fn note(&self, entry: &Entry) {
        let Some(prune) = &self.prune else { return };
        prune.note(&entry.name);
        if !self.dry {
            let name = Path::new(OsStr::from_bytes(&entry.name));
            prune.clear(&self.root, &self.target, name, entry.kind);
        }
    }

    /// The status that an entry would have.
    fn foresee(&self, path: &Path, entry: &Entry) -> Status {
        let there = self.root.link_metadata(path).ok();
        let there = there.filter(|it| it.kind() == Some(entry.kind));
        let is_like = there.is_some_and(|there| match entry.kind {
            FileKind::Directory => true,
            FileKind::Link => self
                .root
                .read_link(path)
                .is_ok_and(|it| it.as_bytes() == entry.target),
            FileKind::File => {
                let opened = || self.root.open_regular(path, OFlag::O_NOFOLLOW).ok();
                self.is_like(&there, entry)
                    && has_attributes(opened().as_ref().map(|it| &it.0), entry)
            }
        });
        if is_like {
            Status::Present
        } else {
            Status::Stored
        }
    }

    /// Whether a file need not come again.
    fn is_like(&self, there: &Metadata, entry: &Entry) -> bool {
        let like = there.size() == entry.size && there.modified() == entry.modified;
        like && there.kind() == Some(FileKind::File) && !self.options.rewrite
    }

    /// Gives a file or directory the extended attributes of its entry; returns whether it has them.
    fn set_attributes(&self, file: &File, entry: &Entry, shown: &str) -> io::Result<bool> {
        let Some(wanted) = &entry.attributes else {
            return Ok(true);
        };
        let is_set = attributes::set(file, wanted)?;
        if !is_set {
            self.unsupported.note(shown);
        }
        Ok(is_set)
    }

    fn path(&self, entry: &Entry) -> PathBuf {
        let name = Path::new(OsStr::from_bytes(&entry.name));
        if name.as_os_str().is_empty() {
            self.target.clone()
        } else if self.target.as_os_str().is_empty() || name.has_root() {
            // A name with a root is refused by the root.
            name.to_owned()
        } else {
            self.target.join(name)
        }
    }

    fn partial(&self, file: u32) -> Result<Arc<Partial>, Failure> {
        let files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let partial = files.get(&file).map(Arc::clone);
        partial.ok_or_else(|| Failure::new(Status::Failed, "the file is closed"))
    }

    fn take(&self, file: u32) -> Option<Arc<Partial>> {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        files.remove(&file)
    }

    fn parent<'a>(&self, path: &'a Path) -> io::Result<(OwnedFd, &'a OsStr)> {
        match self.root.parent(path) {
            Err(error) if error.raw_os_error() == Some(Errno::ENOENT as i32) => {
                self.root
                    .create_dirs(path.parent().unwrap_or_else(|| Path::new("")))?;
                self.root.parent(path)
            }
            other => other,
        }
    }

    fn directory(&self, path: &Path, entry: &Entry) -> io::Result<()> {
        self.root.create_dirs(path)?;
        let dir = self
            .root
            .open_at(path, OFlag::O_RDONLY | OFlag::O_DIRECTORY, 0)?;
        self.set_attributes(&dir, entry, &path.display().to_string())?;
        describe(&dir, entry)
    }

    fn link(&self, path: &Path, entry: &Entry) -> io::Result<Status> {
        let (dir, name) = self.parent(path)?;
        if self
            .root
            .read_link(path)
            .is_ok_and(|it| it.as_bytes() == entry.target)
        {
            return Ok(Status::Present);
        }
        let [part, _] = hidden(name);
        remove(&dir, &part)?;
        symlinkat(OsStr::from_bytes(&entry.target), &dir, part.as_os_str())?;
        let time = time(entry);
        let no_follow = UtimensatFlags::NoFollowSymlink;
        utimensat(&dir, part.as_os_str(), &time, &time, no_follow)?;
        let renamed = renameat(&dir, part.as_os_str(), &dir, name);
        if renamed.is_err() {
            remove(&dir, &part)?;
        }
        renamed?;
        Ok(Status::Stored)
    }

    fn file(&self, path: &Path, entry: &Entry, block: u32) -> io::Result<(Begun, Option<Partial>)> {
        let (dir, name) = self.parent(path)?;
        if let Ok(stat) = fstatat(&dir, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
            let there = Metadata::from(stat);
            if there.kind() == Some(FileKind::Directory) {
                return Err(Errno::EISDIR.into());
            }
            let mut changed = Changed::default();
            if let Some(status) = self.is_there((&dir, name), entry, path, &mut changed)? {
                changed.sync()?;
                return Ok((Begun::Finished(status), None));
            }
        }
        let [part, notes] = hidden(name);
        let file = open_locked(&dir, &part)?;
        let size = file.metadata()?.len();
        let small = entry.size <= u64::from(block);
        let mut blocks = BTreeMap::new();
        let mut notes_file = None;
        if small {
            remove(&dir, &notes)?;
        } else {
            let mut octets = open_own(&dir, &notes)?;
            let header = journal::header(entry, block);
            let found = if size == entry.size {
                read_journal(&octets)?
            } else {
                Vec::new()
            };
            if let Some((found, whole)) = journal::replay(&found, &header) {
                octets.set_len(whole as u64)?;
                io::Seek::seek(&mut octets, io::SeekFrom::End(0))?;
                blocks = found;
            } else {
                octets.set_len(0)?;
                octets.write_all(&header)?;
            }
            notes_file = Some(Mutex::new(octets));
        }
        if blocks.is_empty() {
            file.set_len(0)?;
        }
        let old = (!small).then(|| open_old(&dir, name)).flatten();
        let partial = Partial {
            dir,
            name: name.to_owned(),
            entry: entry.clone(),
            file,
            journal: notes_file,
            shown: path.display().to_string(),
            old,
        };
        let fresh = blocks.is_empty();
        // Attributes may have no room either: all that is known before the first block.
        let allocated = match fresh && !small {
            true => allocate(&partial.file, entry.size),
            false => Ok(()),
        };
        allocated
            .and_then(|()| self.set_attributes(&partial.file, entry, &partial.shown))
            .inspect_err(|_| {
                if fresh {
                    partial.discard();
                }
            })?;
        Ok((Begun::Partial(blocks), Some(partial)))
    }
}

impl TreeSink {
    fn staging(&self) -> io::Result<Arc<Staging>> {
        let mut staging = self.staging.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(staging) = &*staging {
            return Ok(Arc::clone(staging));
        }
        self.root.create_dirs(&self.target)?;
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY;
        let folder = self.root.open_at(&self.target, flags, 0)?;
        let made = Arc::new(Staging::new(folder)?);
        *staging = Some(Arc::clone(&made));
        Ok(made)
    }

    /// Makes a directory or link, or finds whether a file is wanted.
    fn check(
        &self,
        entry: &Entry,
        parents: &mut Parents,
        changed: &mut Changed,
    ) -> Result<Answer, Failure> {
        let path = self.path(entry);
        self.note(entry);
        let checked = match entry.kind {
            FileKind::Directory => self.directory(&path, entry).map(|()| Answer::Stored),
            FileKind::Link => self.link(&path, entry).map(|status| match status {
                Status::Present => Answer::Present,
                _ => Answer::Stored,
            }),
            FileKind::File => self.wants(&path, entry, parents, changed),
        };
        checked.map_err(|error| failure(&path.display().to_string(), &error))
    }

    fn wants(
        &self,
        path: &Path,
        entry: &Entry,
        parents: &mut Parents,
        changed: &mut Changed,
    ) -> io::Result<Answer> {
        let find = |path: &Path| match self.root.parent(path) {
            Ok((dir, _)) => Ok(Some(Arc::new(dir))),
            Err(error) if error.raw_os_error() == Some(Errno::ENOENT as i32) => Ok(None),
            Err(error) => Err(error),
        };
        let dir = parents.of(path, find)?;
        let name = path.file_name().ok_or(Errno::EISDIR)?;
        let there = dir.map(|dir| self.is_there((&dir, name), entry, path, changed));
        Ok(match there.transpose()?.flatten() {
            Some(Status::Present) => Answer::Present,
            Some(_) => Answer::Stored,
            None => Answer::Wanted,
        })
    }

    /// The status of a file of this size and time that is there, and need not come again: one with other attributes gets those of its entry.
    fn is_there(
        &self,
        (dir, name): (&OwnedFd, &OsStr),
        entry: &Entry,
        path: &Path,
        changed: &mut Changed,
    ) -> io::Result<Option<Status>> {
        let found = fstatat(dir, name, AtFlags::AT_SYMLINK_NOFOLLOW).map(Metadata::from);
        if !found.is_ok_and(|there| self.is_like(&there, entry)) {
            return Ok(None);
        }
        if entry.attributes.is_none() {
            return Ok(Some(Status::Present));
        }
        let opened = open_old(dir, name).map(|(file, _)| file);
        let Some(file) = opened else {
            let is_like = has_attributes(None, entry);
            return Ok(is_like.then_some(Status::Present));
        };
        // Between both calls it may have become another one.
        if !self.is_like(&Metadata::of(&file)?, entry) {
            return Ok(None);
        }
        if has_attributes(Some(&file), entry) {
            return Ok(Some(Status::Present));
        }
        if !self.set_attributes(&file, entry, &path.display().to_string())? {
            return Ok(Some(Status::Present));
        }
        if self.options.durable {
            changed.add(file)?;
        }
        Ok(Some(Status::Stored))
    }

    fn stage(&self, short: &Short<'_>, parents: &mut Parents) -> Result<(), Failure> {
        let path = self.path(short.entry);
        let mut stage = || {
            let find = |path: &Path| Ok(Some(Arc::new(self.parent(path)?.0)));
            let dir = parents.of(&path, find)?.ok_or(Errno::ENOENT)?;
            let name = path.file_name().ok_or(Errno::EISDIR)?;
            let staging = self.staging()?;
            let shown = path.display().to_string();
            staging.write(short.file, short.octets, |file| {
                self.set_attributes(file, short.entry, &shown)?;
                describe(file, short.entry)
            })?;
            let whole = Whole {
                dir,
                name: name.to_owned(),
                entry: short.entry.clone(),
                shown,
            };
            if self.options.durable {
                staging.keep(short.file, whole);
                return Ok(());
            }
            self.give_name(&staging, short.file, &whole)
        };
        stage().map_err(|error: io::Error| failure(&path.display().to_string(), &error))
    }

    /// Renames a staged file. A directory of another file system gets a copy, by way of a partial file.
    fn give_name(&self, staging: &Staging, file: u32, whole: &Whole) -> io::Result<()> {
        let renamed = staging.rename(file, &whole.dir, &whole.name);
        if !renamed
            .as_ref()
            .is_err_and(|error| error.raw_os_error() == Some(Errno::EXDEV as i32))
        {
            return renamed;
        }
        let octets = staging.take(file)?;
        let [part, _] = hidden(&whole.name);
        let partial = Partial {
            dir: whole.dir.try_clone()?,
            name: whole.name.clone(),
            entry: whole.entry.clone(),
            file: open_locked(&whole.dir, &part)?,
            journal: None,
            shown: whole.shown.clone(),
            old: None,
        };
        let written = partial
            .file
            .set_len(0)
            .and_then(|()| partial.file.write_all_at(&octets, 0))
            .and_then(|()| self.set_attributes(&partial.file, &partial.entry, &partial.shown))
            .and_then(|_| partial.finish(self.options.durable));
        written.inspect_err(|_| partial.discard())
    }
}

impl Unpacker for TreeSink {
    fn list(&self, entries: &[Entry]) -> Vec<Result<Answer, Failure>> {
        let (mut parents, mut changed) = (Parents::default(), Changed::default());
        let check = |entry| self.check(entry, &mut parents, &mut changed);
        let answers: Vec<_> = entries.iter().map(check).collect();
        let Err(error) = changed.sync() else {
            return answers;
        };
        let failed = failure("extended attributes", &error);
        let is_changed = |entry: &Entry, answer: &Result<Answer, Failure>| {
            entry.kind == FileKind::File && *answer == Ok(Answer::Stored)
        };
        let answers = entries.iter().zip(answers);
        let fail = |(entry, answer)| match is_changed(entry, &answer) {
            true => Err(failed.clone()),
            false => answer,
        };
        answers.map(fail).collect()
    }

    fn store(&self, files: &[Short<'_>]) -> Vec<Result<(), Failure>> {
        let mut parents = Parents::default();
        files
            .iter()
            .map(|short| self.stage(short, &mut parents))
            .collect()
    }

    fn commit(&self, files: &[u32]) -> Vec<Result<(), Failure>> {
        let staging = match self.staging() {
            Ok(staging) if self.options.durable => staging,
            // They have their names.
            Ok(_) => return files.iter().map(|_| Ok(())).collect(),
            Err(error) => {
                let failed = failure("short files", &error);
                return files.iter().map(|_| Err(failed.clone())).collect();
            }
        };
        if let Err(error) = staging.sync() {
            let failed = failure("short files", &error);
            return files.iter().map(|_| Err(failed.clone())).collect();
        }
        let mut dirs: Vec<Arc<OwnedFd>> = Vec::new();
        let mut name = |file: u32| {
            let whole = staging.whole(file);
            let whole = whole.ok_or_else(|| Failure::new(Status::Failed, "the file is closed"))?;
            let named = self.give_name(&staging, file, &whole);
            named.map_err(|error| failure(&whole.shown, &error))?;
            if !dirs.iter().any(|dir| Arc::ptr_eq(dir, &whole.dir)) {
                dirs.push(Arc::clone(&whole.dir));
            }
            Ok(())
        };
        let results: Vec<_> = files.iter().map(|file| name(*file)).collect();
        let synced = if dirs.len() <= FEW_DIRECTORIES {
            dirs.iter().try_for_each(|dir| Ok(fsync(&**dir)?))
        } else {
            staging.sync()
        };
        match synced {
            Ok(()) => results,
            Err(error) => {
                let failed = failure("short files", &error);
                let fail = |result: Result<(), Failure>| result.and_then(|()| Err(failed.clone()));
                results.into_iter().map(fail).collect()
            }
        }
    }
}

impl Sink for TreeSink {
    fn unpacker(&self) -> Option<&dyn Unpacker> {
        (!self.dry).then_some(self)
    }

    fn has_attributes(&self) -> bool {
        true
    }

    fn remark(&self) -> Option<String> {
        self.unsupported.take()
    }

    fn prune(&self) -> Vec<Removal> {
        let prune = self.prune.as_ref();
        prune.map_or_else(Vec::new, |it| {
            it.remove_others(&self.root, &self.target, self.dry)
        })
    }

    fn begin(&self, file: u32, entry: &Entry, block: u32) -> Result<Begun, Failure> {
        let path = self.path(entry);
        let shown = path.display().to_string();
        let named = |error: io::Error| failure(&shown, &error);
        self.note(entry);
        if self.dry {
            return Ok(Begun::Finished(self.foresee(&path, entry)));
        }
        match entry.kind {
            FileKind::Directory => {
                self.directory(&path, entry).map_err(named)?;
                Ok(Begun::Finished(Status::Stored))
            }
            FileKind::Link => Ok(Begun::Finished(self.link(&path, entry).map_err(named)?)),
            FileKind::File => {
                let (begun, partial) = self.file(&path, entry, block).map_err(named)?;
                if let Some(partial) = partial {
                    let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
                    files.insert(file, Arc::new(partial));
                }
                Ok(begun)
            }
        }
    }

    fn write(&self, file: u32, offset: u64, octets: &[u8]) -> Result<(), Failure> {
        let partial = self.partial(file)?;
        let written = partial.file.write_all_at(octets, offset);
        written.map_err(|error| failure(&partial.shown, &error))
    }

    fn old_copy(&self, file: u32) -> Option<u64> {
        let partial = self.partial(file).ok()?;
        partial.old.as_ref().map(|(_, octets)| *octets)
    }

    fn read_old_copy(&self, file: u32, offset: u64, octets: &mut [u8]) -> Result<(), Failure> {
        let partial = self.partial(file)?;
        let failed = || Failure::new(Status::Failed, "there is no old copy");
        let (old, _) = partial.old.as_ref().ok_or_else(failed)?;
        let read = old.read_exact_at(octets, offset);
        read.map_err(|error| failure(&partial.shown, &error))
    }

    fn sync(&self, file: u32, blocks: &[(u64, [u8; 32])]) -> Result<(), Failure> {
        let partial = self.partial(file)?;
        let noted = partial.note(blocks, self.options.durable);
        noted.map_err(|error| failure(&partial.shown, &error))
    }

    fn finish(&self, file: u32, _root: &[u8; 32]) -> Result<(), Failure> {
        let Some(partial) = self.take(file) else {
            return Err(Failure::new(Status::Failed, "the file is closed"));
        };
        let finished = partial.finish(self.options.durable);
        finished.map_err(|error| {
            partial.discard();
            failure(&partial.shown, &error)
        })
    }

    fn abandon(&self, file: u32, keep: bool) {
        let Some(partial) = self.take(file) else {
            return;
        };
        let noted = |journal: &Mutex<File>| {
            let journal = journal.lock().unwrap_or_else(PoisonError::into_inner);
            journal
                .metadata()
                .is_ok_and(|it| it.len() > journal::HEADER as u64)
        };
        if !keep || !partial.journal.as_ref().is_some_and(noted) {
            partial.discard();
        }
    }
}

/// Whether a file has the extended attributes of its entry, if it is to have some; one that cannot be opened counts as one without.
fn has_attributes(file: Option<&File>, entry: &Entry) -> bool {
    let Some(wanted) = &entry.attributes else {
        return true;
    };
    let there = file.map_or_else(|| Ok(Attributes::default()), attributes::read);
    there.is_ok_and(|there| there == *wanted)
}

/// Files that no job ended: the session ended while they were begun.
impl Drop for TreeSink {
    fn drop(&mut self) {
        let files = self.files.get_mut().unwrap_or_else(PoisonError::into_inner);
        let files: Vec<_> = files.keys().copied().collect();
        for file in files {
            self.abandon(file, true);
        }
    }
}
