//! dgiwarp's library, and the directory with its names.
//!
//! All names have to be symbolic links to one file: the dynamic linker recognises a loaded file, so the program gets
//! one library with one device. Copies would be two separate libraries.

use nix::unistd::geteuid;
use std::env;
use std::fs::{self, DirBuilder};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use thiserror::Error;

/// File name of the library as cargo builds it.
const LIBRARY: &str = "libdgiwarp_verbs.so";
/// File name of the library that makes rsockets of TCP sockets.
pub(crate) const SOCKETS: &str = "libdgiwarp_sockets.so";
/// sonames of the libraries that programs are linked to.
pub(crate) const NAMES: [&str; 3] = ["libibverbs.so.1", "librdmacm.so.1", "libefa.so.1"];

/// Error: the library cannot be provided.
#[derive(Debug, Error)]
pub(crate) enum LibraryError {
    /// The own path is unknown.
    #[error("cannot find out where dgiwarp-run is: {0}")]
    OwnPath(#[source] io::Error),
    /// The library is not beside this program.
    #[error(
        "{file} is neither in {directory} nor in its deps nor in ../lib/dgiwarp; build it with: cargo build -p dgiwarp-run"
    )]
    Missing {
        /// File name.
        file: &'static str,
        /// Directory of this program.
        directory: PathBuf,
    },
    /// No directory for the links.
    #[error("no directory for the library's links: {} is not a directory of this user alone ({reason})", .directory.display())]
    NoDirectory {
        /// Last candidate.
        directory: PathBuf,
        /// Error of the last candidate.
        reason: String,
    },
}

/// A directory with all names.
///
/// An installed `../lib/dgiwarp` with all is used as it is. Otherwise the links are created in
/// `$XDG_RUNTIME_DIR/dgiwarp`, or without one in `dgiwarp-UID` (or `.1`, `.2` of it) below the temporary directory. The
/// directory has to belong to the user and be closed to others: a writer could replace the library.
pub(crate) fn links() -> Result<PathBuf, LibraryError> {
    let library = find(LIBRARY)?;
    if let Some(directory) = library.parent()
        && NAMES.iter().all(|name| {
            fs::canonicalize(directory.join(name)).is_ok_and(|target| target == library)
        })
    {
        return Ok(directory.to_owned());
    }
    below_a_base(|base| links_below(base, &library))
}

/// Runs `make` in the first private directory in which it succeeds.
pub(crate) fn below_a_base<T>(make: impl Fn(&Path) -> io::Result<T>) -> Result<T, LibraryError> {
    let mut last = None;
    for base in bases() {
        match private_directory(&base).and_then(|()| make(&base)) {
            Ok(made) => return Ok(made),
            Err(error) => last = Some((base, error)),
        }
    }
    let (directory, error) =
        last.unwrap_or_else(|| (env::temp_dir(), io::Error::other("no candidate")));
    Err(LibraryError::NoDirectory {
        directory,
        reason: error.to_string(),
    })
}

/// The newest library of a name in the places of cargo and of an installation: `cargo build` writes it beside this
/// program, `cargo test` to `deps`.
pub(crate) fn find(file: &'static str) -> Result<PathBuf, LibraryError> {
    let program = env::current_exe()
        .and_then(fs::canonicalize)
        .map_err(LibraryError::OwnPath)?;
    let directory = program
        .parent()
        .unwrap_or_else(|| Path::new("/"))
        .to_owned();
    let places = [
        directory.clone(),
        directory.join("deps"),
        directory.join("../lib/dgiwarp"),
    ];
    let found = places
        .iter()
        .filter_map(|place| fs::canonicalize(place.join(file)).ok());
    found
        .max_by_key(|path| modified(path))
        .ok_or(LibraryError::Missing { file, directory })
}

fn modified(path: &Path) -> SystemTime {
    fs::metadata(path)
        .and_then(|metadata| metadata.modified())
        .unwrap_or(SystemTime::UNIX_EPOCH)
}

/// The dynamic linker separates paths by colons, semicolons and blanks, without quoting; valgrind options by blanks.
pub(crate) fn is_plain(path: &Path) -> bool {
    path.is_absolute()
        && path
            .to_str()
            .is_some_and(|path| !path.contains([':', ';', ' ', '\t', '\n', '$']))
}

fn bases() -> Vec<PathBuf> {
    let runtime =
        env::var_os("XDG_RUNTIME_DIR").map(|directory| PathBuf::from(directory).join("dgiwarp"));
    // More than one name: in a user namespace the first directory may belong to another user.
    let uid = geteuid();
    let names = [
        format!("dgiwarp-{uid}"),
        format!("dgiwarp-{uid}.1"),
        format!("dgiwarp-{uid}.2"),
    ];
    let temporary = [env::temp_dir(), PathBuf::from("/tmp")];
    let temporary = temporary
        .iter()
        .flat_map(|folder| names.iter().map(|name| folder.join(name)));
    runtime
        .into_iter()
        .chain(temporary)
        .filter(|path| is_plain(path))
        .collect()
}

/// One directory per library: two builds do not share links.
fn links_below(base: &Path, library: &Path) -> io::Result<PathBuf> {
    let mut hasher = DefaultHasher::new();
    library.hash(&mut hasher);
    let directory = base.join(format!("{:016x}", hasher.finish()));
    private_directory(&directory)?;
    for name in NAMES {
        let link = directory.join(name);
        if fs::read_link(&link).is_ok_and(|target| target == library) {
            continue;
        }
        // Created under another name and renamed: a concurrent dgiwarp-run always finds the link.
        let fresh = directory.join(format!("{name}.{}", std::process::id()));
        match fs::remove_file(&fresh) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => symlink(library, &fresh)?,
        }
        fs::rename(&fresh, &link)?;
    }
    Ok(directory)
}

/// Creates a directory for this user alone, or checks that one is.
pub(crate) fn private_directory(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        Ok(()) | Err(_) => {}
    }
    // Without following links: a link of another user to a directory of ours could be changed later.
    let metadata = fs::symlink_metadata(path)?;
    let ours =
        metadata.is_dir() && metadata.uid() == geteuid().as_raw() && metadata.mode() & 0o077 == 0;
    if ours {
        Ok(())
    } else {
        Err(io::Error::other("owner or mode"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn scratch(name: &str) -> PathBuf {
        let path = env::temp_dir().join(format!("dgiwarp-run-test-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        path
    }

    #[test]
    fn links_are_made_once_and_follow_the_library() {
        let base = scratch("links");
        private_directory(&base).unwrap();
        for library in [
            "/nonexistent/a.so",
            "/nonexistent/b.so",
            "/nonexistent/a.so",
        ] {
            let directory = links_below(&base, Path::new(library)).unwrap();
            for name in NAMES {
                assert_eq!(
                    fs::read_link(directory.join(name)).unwrap(),
                    Path::new(library)
                );
            }
        }
        assert_eq!(fs::read_dir(&base).unwrap().count(), 2);
        fs::remove_dir_all(&base).unwrap();
    }

    #[test]
    fn a_directory_that_others_can_enter_is_refused() {
        let base = scratch("open");
        private_directory(&base).unwrap();
        fs::set_permissions(&base, PermissionsExt::from_mode(0o755)).unwrap();
        assert!(private_directory(&base).is_err());
        fs::remove_dir(&base).unwrap();
        symlink("/", &base).unwrap();
        assert!(private_directory(&base).is_err());
        fs::remove_file(&base).unwrap();
    }

    #[test]
    fn paths_that_the_dynamic_linker_would_cut_are_not_used() {
        assert!(is_plain(Path::new("/run/user/1000/dgiwarp")));
        for path in ["/a b", "/a:b", "/a;b", "/$ORIGIN", "relative"] {
            assert!(!is_plain(Path::new(path)), "{path}");
        }
    }
}
