//! Names of the Unix sockets at which two queue pairs meet: abstract within a network namespace, files of a directory beyond it.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nix::fcntl::{AT_FDCWD, AtFlags};
use nix::unistd::{AccessFlags, faccessat, geteuid};
use socket2::{Domain, SockAddr, Socket, Type};

use crate::driver::device::fds;

/// Bits of a token.
pub(super) const TOKEN_BITS: u32 = 120;
/// Begin of the name of a file.
const PREFIX: &str = "dgiwarp-1-";
/// Longest path of a directory, octets: a name of `sun_path` ends with a zero.
pub(crate) const MAX_DIRECTORY: usize = 64;
/// Age of a file whose meeting is long over, and whose process had no time to remove it.
const STALE: Duration = Duration::from_secs(60);

/// Where a peer looks for the name of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Its address is one of this network namespace.
    Namespace,
    /// It may share the directory.
    Directory,
}

/// The names of a device.
#[derive(Debug, Clone, Default)]
pub(crate) struct Names {
    directory: Option<Arc<Path>>,
}

/// The file of a socket, which goes with this.
#[derive(Debug)]
pub(super) struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        // The directory may be gone.
        let _ = fs::remove_file(&self.0);
    }
}

/// The part of a name that a token makes.
fn digits(token: u128) -> String {
    let mut digits = String::new();
    let width = usize::try_from(TOKEN_BITS / 4).unwrap_or(30);
    let _ = write!(digits, "{token:0width$x}");
    digits
}

/// The abstract name of a token.
fn abstract_name(token: u128) -> String {
    format!("\0dgiwarp/1/{}", digits(token))
}

fn socket() -> io::Result<Socket> {
    let socket = fds::adopt(Socket::new(Domain::UNIX, Type::SEQPACKET, None)?);
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Checks that this user can make files in a directory, and that nobody else but its owner and root can take them out.
fn check(directory: &Path) -> io::Result<()> {
    let refused = |why| Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    if !directory.is_absolute() {
        return refused("it is not an absolute path");
    }
    if directory.as_os_str().len() > MAX_DIRECTORY {
        return refused("its path has more than 64 octets");
    }
    let found = fs::metadata(directory)?;
    if !found.is_dir() {
        return Err(io::ErrorKind::NotADirectory.into());
    }
    faccessat(
        AT_FDCWD,
        directory,
        AccessFlags::W_OK | AccessFlags::X_OK,
        AtFlags::AT_EACCESS,
    )?;
    if found.mode() & 0o1000 != 0 {
        return Ok(());
    }
    if ![0, geteuid().as_raw()].contains(&found.uid()) {
        return refused("it belongs to another user and is not sticky");
    }
    if found.mode() & 0o022 != 0 {
        return refused("others may write to it and it is not sticky");
    }
    Ok(())
}

/// Removes what killed processes of this user left.
fn sweep(directory: &Path) {
    let Ok(entries) = fs::read_dir(directory) else {
        return;
    };
    let is_left = |entry: &fs::DirEntry| {
        entry.metadata().is_ok_and(|found| {
            entry.file_name().as_bytes().starts_with(PREFIX.as_bytes())
                && found.file_type().is_socket()
                && found.uid() == geteuid().as_raw()
                && (found.modified().ok())
                    .and_then(|at| at.elapsed().ok())
                    .is_some_and(|age| age > STALE)
        })
    };
    for entry in entries.flatten().filter(is_left) {
        let _ = fs::remove_file(entry.path());
    }
}

impl Names {
    /// Names of this network namespace, and those of a directory that containers have in common. One that is not fit for that is left out, with a warning.
    pub(crate) fn new(directory: Option<&Path>) -> Self {
        let Some(directory) = directory else {
            return Self::default();
        };
        if let Err(error) = check(directory) {
            tracing::warn!(path = %directory.display(), %error, "DGIWARP_HOST_DIR cannot be used: going on without");
            return Self::default();
        }
        sweep(directory);
        Self {
            directory: Some(directory.into()),
        }
    }

    /// How a peer may be reached whose address is one of this network namespace or not.
    pub(crate) fn reach(&self, is_local: bool) -> Option<Reach> {
        match (is_local, &self.directory) {
            (true, _) => Some(Reach::Namespace),
            (false, Some(_)) => Some(Reach::Directory),
            (false, None) => None,
        }
    }

    fn file(&self, token: u128) -> Option<PathBuf> {
        let name = format!("{PREFIX}{}", digits(token));
        Some(self.directory.as_ref()?.join(OsStr::new(&name)))
    }

    /// Listens at the name of a token.
    pub(super) fn listen(
        &self,
        token: u128,
        reach: Reach,
    ) -> io::Result<(Socket, Option<SocketFile>)> {
        let socket = socket()?;
        let file = match reach {
            Reach::Namespace => {
                socket.bind(&SockAddr::unix(abstract_name(token))?)?;
                None
            }
            Reach::Directory => {
                let path = self.file(token).ok_or(io::ErrorKind::NotFound)?;
                socket.bind(&SockAddr::unix(&path)?)?;
                Some(SocketFile(path))
            }
        };
        socket.listen(1)?;
        Ok((socket, file))
    }

    /// Connects to the name of a token: to the file, if there is one, else to the abstract name.
    pub(super) fn connect(&self, token: u128) -> io::Result<Socket> {
        let socket = socket()?;
        if let Some(path) = self.file(token)
            && socket.connect(&SockAddr::unix(path)?).is_ok()
        {
            return Ok(socket);
        }
        socket.connect(&SockAddr::unix(abstract_name(token))?)?;
        Ok(socket)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{File, Permissions};
    use std::mem::ManuallyDrop;
    use std::os::unix::fs::PermissionsExt as _;
    use std::time::UNIX_EPOCH;

    use nix::sys::stat::{UtimensatFlags, utimensat};
    use nix::sys::time::TimeSpec;

    use super::*;

    const TOKEN: u128 = 0x0012_3456_789a_bcde_fedc_ba98_7654_3210;

    fn listen(names: &Names) -> (Socket, Option<SocketFile>) {
        names.listen(TOKEN, Reach::Directory).unwrap()
    }

    fn is_fit(directory: &Path, mode: u32) -> bool {
        fs::set_permissions(directory, Permissions::from_mode(mode)).unwrap();
        Names::new(Some(directory)).directory.is_some()
    }

    /// The examples of the specification.
    #[test]
    fn names_are_as_specified() {
        let expected = "\0dgiwarp/1/123456789abcdefedcba9876543210";
        assert_eq!(abstract_name(TOKEN), expected);
        assert_eq!(abstract_name(5).len(), expected.len());
        let names = Names::new(Some(Path::new("/")));
        let file = names.file(TOKEN).unwrap();
        let expected = "/dgiwarp-1-123456789abcdefedcba9876543210";
        assert_eq!(file, Path::new(expected));
        assert_eq!(Names::default().file(TOKEN), None);
    }

    #[test]
    fn a_directory_in_which_others_could_replace_files_is_not_used() {
        let directory = tempfile::tempdir_in("/tmp").unwrap();
        for (mode, fit) in [
            (0o700, true),
            (0o755, true),
            (0o777, false),
            (0o720, false),
            (0o1777, true),
        ] {
            assert_eq!(is_fit(directory.path(), mode), fit, "{mode:o}");
        }
        let file = directory.path().join("file");
        File::create(&file).unwrap();
        for unfit in [&*file, Path::new("tests"), &directory.path().join("none")] {
            assert!(Names::new(Some(unfit)).directory.is_none(), "{unfit:?}");
        }
        let long = directory.path().join("a".repeat(MAX_DIRECTORY));
        fs::create_dir(&long).unwrap();
        assert!(Names::new(Some(&long)).directory.is_none());
    }

    #[test]
    fn the_longest_directory_has_room_for_a_name() {
        let directory = tempfile::tempdir_in("/tmp").unwrap();
        let taken = directory.path().as_os_str().len() + 1;
        let path = directory.path().join("a".repeat(MAX_DIRECTORY - taken));
        fs::create_dir(&path).unwrap();
        let names = Names::new(Some(&path));
        let (_socket, _file) = listen(&names);
        names.connect(TOKEN).unwrap();
    }

    #[test]
    fn a_file_goes_with_its_meeting_and_old_ones_are_swept() {
        let directory = tempfile::tempdir_in("/tmp").unwrap();
        let names = Names::new(Some(directory.path()));
        let left = || fs::read_dir(directory.path()).unwrap().count();
        let (socket, file) = listen(&names);
        assert_eq!(left(), 1);
        drop(file);
        assert_eq!(left(), 0);
        assert!(names.connect(TOKEN).is_err());
        drop(socket);
        // As a killed process leaves it.
        let (_socket, file) = listen(&names);
        let left_over = ManuallyDrop::new(file.unwrap());
        let path = &left_over.0;
        let _new = Names::new(Some(directory.path()));
        assert_eq!(left(), 1);
        let long_ago = TimeSpec::new(0, 0);
        let itself = UtimensatFlags::NoFollowSymlink;
        utimensat(AT_FDCWD, path, &long_ago, &long_ago, itself).unwrap();
        // Of another kind.
        let other = directory.path().join(format!("{PREFIX}other"));
        let file = File::create(other).unwrap();
        file.set_modified(UNIX_EPOCH).unwrap();
        let _new = Names::new(Some(directory.path()));
        assert_eq!(left(), 1);
        assert!(!path.exists());
    }

    /// An end with the directory and one without it meet where both are in one network namespace.
    #[test]
    fn a_name_of_the_namespace_is_found_by_ends_with_a_directory() {
        let directory = tempfile::tempdir_in("/tmp").unwrap();
        let with = Names::new(Some(directory.path()));
        let without = Names::default();
        let reach = without.reach(true).unwrap();
        let (_socket, file) = without.listen(TOKEN + 1, reach).unwrap();
        assert!(file.is_none());
        with.connect(TOKEN + 1).unwrap();
        assert_eq!(without.reach(false), None);
        assert_eq!(with.reach(false), Some(Reach::Directory));
    }
}
