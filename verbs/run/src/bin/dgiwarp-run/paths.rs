//! The directory that `/dev/infiniband` and `/sys/class/infiniband` of the program are in.

use crate::library::{self, LibraryError};
use dgiwarp_verbs::sysfs::{self, Node};
use std::ffi::OsStr;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// File name of the library that redirects paths, as cargo builds it.
const LIBRARY: &str = "libdgiwarp_paths.so";

/// Creates the directory and returns the path under which the redirecting library is to be preloaded: the library takes
/// the directory from it.
pub(crate) fn preload() -> Result<PathBuf, LibraryError> {
    let library = library::find(LIBRARY)?;
    library::below_a_base(|base| make(base, &library, &sysfs::tree()))
}

/// One directory for each content, never changed once it is there: programs with other addresses, in other network
/// namespaces, have others.
fn make(base: &Path, library: &Path, tree: &[(String, Node)]) -> io::Result<PathBuf> {
    let mut hasher = DefaultHasher::new();
    (library, tree).hash(&mut hasher);
    let name = format!("paths-{:016x}", hasher.finish());
    let directory = base.join(&name);
    if !directory.is_dir() {
        // Under another name first, so that a second dgiwarp-run never finds half of it.
        let fresh = base.join(format!("{name}.{}", std::process::id()));
        write(&fresh, library, tree)?;
        if fs::rename(&fresh, &directory).is_err() && directory.is_dir() {
            // Another one was quicker.
            fs::remove_dir_all(&fresh)?;
        }
    }
    library::private_directory(&directory)?;
    Ok(directory.join(LIBRARY))
}

fn write(directory: &Path, library: &Path, tree: &[(String, Node)]) -> io::Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => library::private_directory(directory)?,
    }
    symlink(library, directory.join(LIBRARY))?;
    for (path, node) in tree {
        let path = directory.join(OsStr::new(path));
        fs::create_dir_all(path.parent().unwrap_or(directory))?;
        match node {
            Node::File(text) => fs::write(path, format!("{text}\n"))?,
            Node::Link(target) => symlink(target, path)?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_made_once_for_each_content() {
        let base = std::env::temp_dir().join(format!("dgiwarp-run-paths-{}", std::process::id()));
        library::private_directory(&base).unwrap();
        let file = |text: &str| vec![("a/b".to_owned(), Node::File(text.to_owned()))];
        let library = Path::new("/nonexistent/library");
        let first = make(&base, library, &file("one")).unwrap();
        assert_eq!(make(&base, library, &file("one")).unwrap(), first);
        let second = make(&base, library, &file("two")).unwrap();
        assert_ne!(first, second);
        assert_eq!(fs::read_dir(&base).unwrap().count(), 2);
        let text = fs::read_to_string(second.with_file_name("a/b")).unwrap();
        assert_eq!(text, "two\n");
        assert_eq!(fs::read_link(second).unwrap(), library);
        fs::remove_dir_all(&base).unwrap();
    }
}
