//! Files that a user asks for by name, in folders where others may leave links, FIFOs and files of their own.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use nix::libc;
use nix::unistd::geteuid;

/// A link is an error, and so is a FIFO that nobody reads.
const FLAGS: i32 = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;

/// Makes a new file of this user alone, for appending. Its name begins and ends so, and cannot be foreseen between. A folder that is not there is made.
pub(crate) fn make_in(folder: &Path, begin: &str, end: &str) -> io::Result<(PathBuf, File)> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)?;
    let mut random = [0; 8];
    getrandom::fill(&mut random).map_err(io::Error::other)?;
    let random = u64::from_ne_bytes(random);
    let path = folder.join(format!("{begin}{random:016x}{end}"));
    let file = OpenOptions::new()
        .append(true)
        .create_new(true)
        .mode(0o600)
        .custom_flags(FLAGS)
        .open(&path)?;
    Ok((path, file))
}

/// Opens a file for appending, which is made if it is not there.
///
/// # Errors
/// `PermissionDenied` for all but regular files of this user with one name.
pub(crate) fn append_to(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .custom_flags(FLAGS)
        .open(path)
        .map_err(explained)?;
    let found = file.metadata()?;
    if !found.is_file() {
        return Err(refused("it is no regular file"));
    }
    if found.uid() != geteuid().as_raw() {
        return Err(refused("it belongs to another user"));
    }
    if found.nlink() > 1 {
        return Err(refused("it has another name too (a hard link)"));
    }
    Ok(file)
}

fn refused(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, why)
}

/// The error of a file that is there and not opened, in words.
fn explained(error: io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(libc::ELOOP) => refused("it is a symbolic link"),
        Some(libc::ENXIO) => refused("it is no regular file"),
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::unix::fs::{PermissionsExt as _, chown, symlink};

    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use super::*;

    /// An empty folder, removed when it goes.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let name = format!("dgiwarp-own-file-{name}-{}", std::process::id());
            let folder = std::env::temp_dir().join(name);
            let _ = std::fs::remove_dir_all(&folder);
            std::fs::create_dir(&folder).unwrap();
            Self(folder)
        }

        fn file(&self, name: &str) -> PathBuf {
            let path = self.0.join(name);
            std::fs::write(&path, "of somebody").unwrap();
            path
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn mode(path: &Path) -> u32 {
        path.metadata().unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn a_new_file_has_a_name_of_its_own_and_is_closed_to_others() {
        let folder = Folder::new("new");
        let inside = folder.0.join("a/b");
        let made = [(); 2].map(|()| make_in(&inside, "qp-", ".pcapng").unwrap().0);
        assert_ne!(made[0], made[1]);
        for path in &made {
            let name = path.file_name().unwrap().to_str().unwrap();
            assert!(
                name.starts_with("qp-") && name.ends_with(".pcapng"),
                "{name}"
            );
            assert_eq!(mode(path), 0o600);
        }
        assert_eq!(mode(&inside), 0o700);
    }

    #[test]
    fn a_regular_file_of_this_user_is_appended_to() {
        let folder = Folder::new("append");
        let path = folder.0.join("statistics");
        for line in ["one\n", "two\n"] {
            append_to(&path)
                .unwrap()
                .write_all(line.as_bytes())
                .unwrap();
        }
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "one\ntwo\n");
        assert_eq!(mode(&path), 0o600);
    }

    #[test]
    fn what_another_user_may_have_left_is_refused_and_not_written() {
        let folder = Folder::new("refuse");
        let victim = folder.file("victim");
        let at = |name: &str| folder.0.join(name);
        symlink(&victim, at("link")).unwrap();
        symlink(at("nowhere"), at("dangling")).unwrap();
        mkfifo(&at("fifo"), Mode::S_IRWXU).unwrap();
        mkfifo(&at("read-fifo"), Mode::S_IRWXU).unwrap();
        let mut reader = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(at("read-fifo"))
            .unwrap();
        std::fs::hard_link(folder.file("linked"), at("second-name")).unwrap();
        let reason = |path: &Path| append_to(path).unwrap_err().to_string();
        for (name, expected) in [
            ("link", "it is a symbolic link"),
            ("dangling", "it is a symbolic link"),
            ("fifo", "it is no regular file"),
            ("read-fifo", "it is no regular file"),
            ("second-name", "it has another name too (a hard link)"),
        ] {
            assert_eq!(reason(&at(name)), expected, "{name}");
        }
        assert_eq!(reason(Path::new("/dev/null")), "it is no regular file");
        if geteuid().is_root() {
            let theirs = folder.file("theirs");
            chown(&theirs, Some(65_534), Some(65_534)).unwrap();
            assert_eq!(reason(&theirs), "it belongs to another user");
        }
        assert_eq!(std::fs::read_to_string(victim).unwrap(), "of somebody");
        assert!(!at("nowhere").exists());
        assert_eq!(reader.read(&mut [0]).unwrap_or(0), 0);
    }
}
