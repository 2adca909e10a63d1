//! `cargo xtask install` and `cargo xtask uninstall`: the tree of [`crate::dist`] below a prefix, and away again.
//!
//! A list of the installed files, `share/dgiwarp/installed` below the prefix, has a line for each file, and for each folder that
//! was not there before. So exactly that is removed, and nothing of anybody else's. The list is written before the first file is.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Component, Path, PathBuf};

use thiserror::Error;

/// The list of what was installed, below the prefix.
pub const LIST: &str = "share/dgiwarp/installed";

/// Files of this process that are not finished begin so.
const UNFINISHED: &str = ".dgiwarp-";

/// Why nothing, or not all, was installed or removed.
#[derive(Debug, Error)]
pub enum InstallError {
    /// This user may not write there.
    #[error(
        "cannot write to {}: {reason}\nchoose a folder of your own with --prefix, such as --prefix ~/.local, or do this as root", .folder.display()
    )]
    NotWritable {
        /// The folder, or the first one above it that exists.
        folder: PathBuf,
        /// Error of the system.
        reason: io::Error,
    },
    /// It would have no place in the list of another folder.
    #[error("the prefix {} is not an absolute path", .0.display())]
    Relative(PathBuf),
    /// Somebody else's file is where one of ours belongs.
    #[error("{} is there already and was not installed by this command; nothing was changed", .0.display())]
    Occupied(PathBuf),
    /// There is no list.
    #[error("nothing was installed by this command below {}: there is no {}", .0.display(), .0.join(LIST).display())]
    NotInstalled(PathBuf),
    /// The list names something that it cannot have.
    #[error("line {line} of {} is not understood; nothing was changed", .list.display())]
    Malformed {
        /// The list.
        list: PathBuf,
        /// Number of the line, from 1.
        line: usize,
    },
    /// A file or folder.
    #[error("{}: {reason}", .path.display())]
    Io {
        /// Which.
        path: PathBuf,
        /// Error of the system.
        reason: io::Error,
    },
}

type Result<T> = std::result::Result<T, InstallError>;

/// Where an installation is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    root: PathBuf,
}

impl Place {
    /// The folder `prefix`; below `destdir`, for those who make packages of it.
    ///
    /// # Errors
    /// The prefix is not absolute.
    pub fn new(prefix: &Path, destdir: Option<&Path>) -> Result<Self> {
        if !prefix.is_absolute() {
            return Err(InstallError::Relative(prefix.to_owned()));
        }
        let root = match destdir.filter(|it| !it.as_os_str().is_empty()) {
            None => prefix.to_owned(),
            Some(destdir) => destdir.join(prefix.strip_prefix("/").unwrap_or(prefix)),
        };
        Ok(Self { root })
    }

    /// The folder itself.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Whether this user can write there, before much time goes into what is to be written.
    ///
    /// # Errors
    /// It cannot.
    pub fn check(&self) -> Result<()> {
        let there = |path: &&Path| path.symlink_metadata().is_ok();
        let folder = self.root.ancestors().find(there).unwrap_or(&self.root);
        // Rights alone do not tell of file systems that nobody can write to.
        tempfile::Builder::new()
            .prefix(UNFINISHED)
            .tempfile_in(folder)
            .map(drop)
            .map_err(|reason| InstallError::NotWritable {
                folder: folder.to_owned(),
                reason,
            })
    }

    /// Installs a tree. Files of an earlier installation that the tree does not have go away.
    ///
    /// # Errors
    /// [`InstallError::Occupied`], before anything is changed, or a file cannot be written.
    pub fn install(&self, tree: &Path) -> Result<usize> {
        let files = contents(tree)?;
        let old = match self.list() {
            Err(InstallError::NotInstalled(_)) => List::default(),
            list => list?,
        };
        let foreign = files.iter().find(|file| {
            !old.files.contains(*file) && self.root.join(file).symlink_metadata().is_ok()
        });
        if let Some(file) = foreign {
            return Err(InstallError::Occupied(self.root.join(file)));
        }
        let mut new = List {
            files: files.iter().cloned().collect(),
            folders: old.folders.clone(),
        };
        for folder in folders(&new.files) {
            if self.root.join(&folder).symlink_metadata().is_err() {
                new.folders.insert(folder);
            }
        }
        self.write_list(&new)?;
        for file in &files {
            self.put(tree, file)?;
        }
        for file in old.files.difference(&new.files) {
            remove(&self.root.join(file))?;
        }
        Ok(files.len())
    }

    /// Removes what is in the list, and the folders of the list that are empty then.
    ///
    /// # Errors
    /// [`InstallError::NotInstalled`], or a file cannot be removed.
    pub fn uninstall(&self) -> Result<usize> {
        let list = self.list()?;
        self.check()?;
        for file in &list.files {
            remove(&self.root.join(file))?;
        }
        remove(&self.root.join(LIST))?;
        // The contents of a folder come after the folder.
        for folder in list.folders.iter().rev() {
            let path = self.root.join(folder);
            match fs::remove_dir(&path) {
                Err(reason)
                    if !matches!(
                        reason.kind(),
                        io::ErrorKind::NotFound | io::ErrorKind::DirectoryNotEmpty
                    ) =>
                {
                    return Err(InstallError::Io { path, reason });
                }
                Ok(()) | Err(_) => {}
            }
        }
        Ok(list.files.len())
    }

    /// Puts one file in its place. It is complete when it gets its name, and who uses an older one keeps that.
    fn put(&self, tree: &Path, file: &Path) -> Result<()> {
        let (from, to) = (tree.join(file), self.root.join(file));
        let folder = to.parent().unwrap_or(&self.root);
        make_folder(folder)?;
        let name = to.file_name().unwrap_or_default().to_string_lossy();
        let fresh = folder.join(format!("{UNFINISHED}{}-{name}", std::process::id()));
        let copied = if from.is_symlink() {
            fs::read_link(&from).and_then(|target| symlink(target, &fresh))
        } else {
            fs::copy(&from, &fresh).map(drop)
        };
        copied
            .and_then(|()| fs::rename(&fresh, &to))
            .map_err(|reason| {
                let _ = fs::remove_file(&fresh);
                InstallError::Io { path: to, reason }
            })
    }

    fn list(&self) -> Result<List> {
        let path = self.root.join(LIST);
        match fs::read_to_string(&path) {
            Ok(text) => {
                List::parse(&text).map_err(|line| InstallError::Malformed { list: path, line })
            }
            Err(reason) if reason.kind() == io::ErrorKind::NotFound => {
                Err(InstallError::NotInstalled(self.root.clone()))
            }
            Err(reason) => Err(InstallError::Io { path, reason }),
        }
    }

    fn write_list(&self, list: &List) -> Result<()> {
        let path = self.root.join(LIST);
        make_folder(path.parent().unwrap_or(&self.root))?;
        fs::write(&path, list.to_string()).map_err(|reason| InstallError::Io { path, reason })
    }
}

/// The value of `DESTDIR`, as with `make install`.
#[must_use]
pub fn destdir() -> Option<PathBuf> {
    env::var_os("DESTDIR").map(PathBuf::from)
}

/// Installed files and folders, as paths below the prefix. The prefix itself is the empty path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct List {
    files: BTreeSet<PathBuf>,
    folders: BTreeSet<PathBuf>,
}

impl List {
    /// The number of the first line that is wrong is the error.
    fn parse(text: &str) -> std::result::Result<Self, usize> {
        let mut list = Self::default();
        for (number, line) in (1..).zip(text.lines()) {
            let (kind, path) = line.split_once(' ').ok_or(number)?;
            let path = PathBuf::from(path);
            let stays_below = path
                .components()
                .all(|component| matches!(component, Component::Normal(_)));
            match kind {
                "file" if stays_below && !path.as_os_str().is_empty() => list.files.insert(path),
                "folder" if stays_below => list.folders.insert(path),
                _ => return Err(number),
            };
        }
        Ok(list)
    }
}

impl std::fmt::Display for List {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for folder in &self.folders {
            writeln!(f, "folder {}", folder.display())?;
        }
        for file in &self.files {
            writeln!(f, "file {}", file.display())?;
        }
        Ok(())
    }
}

/// Files and links of a tree, as paths below it, sorted.
fn contents(tree: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut waiting = vec![PathBuf::new()];
    while let Some(folder) = waiting.pop() {
        let path = tree.join(&folder);
        let io = |reason| InstallError::Io {
            path: path.clone(),
            reason,
        };
        for entry in fs::read_dir(&path).map_err(io)? {
            let entry = entry.map_err(io)?;
            let name = folder.join(entry.file_name());
            if entry.file_type().map_err(io)?.is_dir() {
                waiting.push(name);
            } else {
                found.push(name);
            }
        }
    }
    found.sort();
    Ok(found)
}

/// All folders that files, and the list of them, lie in.
fn folders(files: &BTreeSet<PathBuf>) -> BTreeSet<PathBuf> {
    let all = files.iter().map(PathBuf::as_path);
    all.chain([Path::new(LIST)])
        .flat_map(|file| file.ancestors().skip(1))
        .map(Path::to_owned)
        .collect()
}

/// Everybody may look into the folders, whatever the user's mask is.
fn make_folder(folder: &Path) -> Result<()> {
    let missing: Vec<_> = folder
        .ancestors()
        .take_while(|path| path.symlink_metadata().is_err())
        .collect();
    for path in missing.into_iter().rev() {
        fs::create_dir(path)
            .and_then(|()| fs::set_permissions(path, PermissionsExt::from_mode(0o755)))
            .map_err(|reason| InstallError::Io {
                path: path.to_owned(),
                reason,
            })?;
    }
    Ok(())
}

/// Removes a file that may be gone already.
fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(reason) if reason.kind() != io::ErrorKind::NotFound => Err(InstallError::Io {
            path: path.to_owned(),
            reason,
        }),
        Ok(()) | Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests;
