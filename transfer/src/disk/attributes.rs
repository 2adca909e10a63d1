//! Extended attributes of the namespace `user.` (`xattr(7)`), by descriptors: no path is resolved for them.

use std::error::Error;
use std::ffi::CString;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::sync::{Mutex, PoisonError};

use nix::sys::stat::{Mode, fchmod, fstat};
use nix::unistd::syncfs;
use rustix::fs::{XattrFlags, fgetxattr, flistxattr, flistxattr_query, fremovexattr, fsetxattr};
use rustix::io::Errno;

use crate::engine::Failure;
use crate::wire::{ATTRIBUTES_LIMIT, Attribute, Attributes, NAMESPACE, Status, VALUE_LIMIT};

/// Octets of the names of a file's attributes at most, as the kernel has it.
const LIST_LIMIT: usize = 64 << 10;

/// An attribute that cannot be set.
#[derive(Debug)]
pub(super) struct NotSet {
    name: Vec<u8>,
    octets: usize,
    errno: Errno,
}

impl NotSet {
    pub(super) fn failure(&self, what: &str) -> Failure {
        let (status, text) = match self.errno {
            Errno::NOSPC | Errno::DQUOT | Errno::TOOBIG | Errno::RANGE => {
                (Status::NoSpace, "no space")
            }
            Errno::ACCESS | Errno::PERM | Errno::ROFS => (Status::Permission, "not permitted"),
            _ => (Status::Failed, "failed"),
        };
        Failure::new(status, format!("{what}: {text} for the {self}"))
    }
}

impl fmt::Display for NotSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, octets) = (self.name.escape_ascii(), self.octets);
        let error = io::Error::from(self.errno);
        write!(f, "extended attribute {name} of {octets} octets ({error})")
    }
}

impl Error for NotSet {}

/// Attributes of a file or directory that is open for reading. A file system without them has none.
pub(super) fn read(file: &File) -> io::Result<Attributes> {
    let mut found = Vec::new();
    let mut octets = 0;
    for name in names(file)? {
        let Some(value) = value(file, &name)? else {
            continue;
        };
        let name = name.into_bytes();
        octets += name.len() + value.len();
        if octets > ATTRIBUTES_LIMIT {
            break;
        }
        found.push(Attribute { name, value });
    }
    let attributes = (octets <= ATTRIBUTES_LIMIT).then(|| Attributes::new(found));
    let too_many = || io::Error::other("its extended attributes have more than a mebibyte");
    attributes.flatten().ok_or_else(too_many)
}

/// Gives a file or directory these attributes alone; `false` where the file system has none, though there are some to set.
pub(super) fn set(file: &File, wanted: &Attributes) -> io::Result<bool> {
    match change(file, wanted) {
        Err(NotSet {
            errno: Errno::ACCESS,
            ..
        }) => {}
        done => return outcome(done),
    }
    // Attributes are written with the right to write, whatever the descriptor: the owner of a file without it takes it for the time.
    let stat = fstat(file)?;
    let mode = Mode::from_bits_truncate(stat.st_mode & 0o7777);
    if mode.contains(Mode::S_IWUSR) {
        return outcome(change(file, wanted));
    }
    fchmod(file, mode | Mode::S_IWUSR)?;
    let done = change(file, wanted);
    fchmod(file, mode)?;
    outcome(done)
}

fn outcome(done: Result<(), NotSet>) -> io::Result<bool> {
    match done {
        Ok(()) => Ok(true),
        Err(not_set) if not_set.errno == Errno::OPNOTSUPP => Ok(false),
        Err(not_set) => Err(io::Error::other(not_set)),
    }
}

fn change(file: &File, wanted: &Attributes) -> Result<(), NotSet> {
    let not_set = |name: &[u8], octets, errno| NotSet {
        name: name.to_vec(),
        octets,
        errno,
    };
    let there = names(file).map_err(|error| not_set(NAMESPACE, 0, errno(&error)))?;
    for name in &there {
        if wanted.get(name.as_bytes()).is_none() {
            match fremovexattr(file, name.as_c_str()) {
                Ok(()) | Err(Errno::NODATA) => {}
                Err(errno) => return Err(not_set(name.as_bytes(), 0, errno)),
            }
        }
    }
    for Attribute {
        name,
        value: octets,
    } in wanted.iter()
    {
        let is_there = there.iter().any(|it| it.as_bytes() == name);
        let text = CString::new(name.as_slice());
        let text = text.map_err(|_| not_set(name, octets.len(), Errno::INVAL))?;
        if is_there && value(file, &text).is_ok_and(|it| it.as_ref() == Some(octets)) {
            continue;
        }
        let set = fsetxattr(file, text.as_c_str(), octets, XattrFlags::empty());
        set.map_err(|errno| not_set(name, octets.len(), errno))?;
    }
    Ok(())
}

fn errno(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

/// Names of the namespace that a file has.
fn names(file: &File) -> io::Result<Vec<CString>> {
    // Most files have none: no memory for these.
    match flistxattr_query(file) {
        Ok(0) | Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
        Ok(_) => {}
        Err(errno) => return Err(errno.into()),
    }
    let mut list = vec![0; LIST_LIMIT];
    let octets = flistxattr(file, &mut list[..])?;
    let names = list[..octets].split(|octet| *octet == 0);
    let own = names.filter(|name| name.starts_with(NAMESPACE) && name.len() > NAMESPACE.len());
    Ok(own.filter_map(|name| CString::new(name).ok()).collect())
}

/// Value of an attribute; `None` where it was removed meanwhile.
fn value(file: &File, name: &CString) -> io::Result<Option<Vec<u8>>> {
    // Most are short; the whole limit is taken for the others alone.
    for room in [256, VALUE_LIMIT] {
        let mut value = vec![0; room];
        match fgetxattr(file, name.as_c_str(), &mut value[..]) {
            Ok(octets) => {
                value.truncate(octets);
                return Ok(Some(value));
            }
            Err(Errno::RANGE) => {}
            Err(Errno::NODATA) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        }
    }
    Err(Errno::TOOBIG.into())
}

/// Files that are synchronized one by one; their file systems as a whole for more.
const FEW: usize = 4;

/// Files that got attributes in place and are not synchronized.
#[derive(Debug, Default)]
pub(super) struct Changed {
    /// A few of them, and one of each other file system.
    files: Vec<(u64, File)>,
    count: usize,
}

impl Changed {
    pub(super) fn add(&mut self, file: File) -> io::Result<()> {
        let system = file.metadata()?.dev();
        self.count += 1;
        if self.count <= FEW || self.files.iter().all(|(it, _)| *it != system) {
            self.files.push((system, file));
        }
        Ok(())
    }

    /// Makes the attributes durable.
    pub(super) fn sync(&self) -> io::Result<()> {
        let mut files = self.files.iter();
        if self.count <= FEW {
            return files.try_for_each(|(_, file)| file.sync_all());
        }
        files.try_for_each(|(_, file)| Ok(syncfs(file)?))
    }
}

/// The text about a file system without attributes, which people get once for all files.
#[derive(Debug, Default)]
pub(super) struct Unsupported(Mutex<State>);

#[derive(Debug, Default)]
enum State {
    #[default]
    No,
    Due(String),
    Given,
}

impl Unsupported {
    /// An entry of this name goes without its attributes.
    pub(super) fn note(&self, shown: &str) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*state, State::No) {
            *state = State::Due(format!(
                "{shown}: its extended attributes are not kept, and those of others on this file system, which has none"
            ));
        }
    }

    /// The text, once.
    pub(super) fn take(&self) -> Option<String> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !matches!(*state, State::Due(_)) {
            return None;
        }
        match std::mem::replace(&mut *state, State::Given) {
            State::Due(text) => Some(text),
            State::No | State::Given => None,
        }
    }
}
