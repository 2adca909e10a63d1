//! Redirected paths and their targets.

use std::ffi::{CStr, CString, OsStr, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::OnceLock;

/// Beginnings of the paths that are redirected. The second has a name that more than one directory begins with
/// (`infiniband_verbs`, `infiniband_mad`): all of them are about devices that the program shall not see.
const REDIRECTED: [&[u8]; 2] = [b"/dev/infiniband", b"/sys/class/infiniband"];

/// `PATH_MAX` of the kernel: a path with its terminating zero.
const PATH_MAX: usize = 4096;

/// A path with the directory in front of it.
pub(crate) struct Redirected {
    bytes: [u8; PATH_MAX],
    length: usize,
}

impl Redirected {
    /// The path as a C string.
    pub(crate) fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_with_nul(self.bytes.get(..=self.length).unwrap_or_default())
            .unwrap_or_default()
    }
}

/// The target of a redirected path; `None` for other paths.
pub(crate) fn redirected(path: &CStr) -> Option<Redirected> {
    let path = path.to_bytes();
    if !is_redirected(path) {
        return None;
    }
    below(directory()?.to_bytes(), path)
}

fn is_redirected(path: &[u8]) -> bool {
    REDIRECTED.iter().any(|beginning| {
        path.strip_prefix(*beginning)
            .is_some_and(|rest| matches!(rest, [] | [b'/' | b'_', ..]))
    })
}

/// A path below a directory; `None` if it is too long, and then it does not exist.
fn below(directory: &[u8], path: &[u8]) -> Option<Redirected> {
    let length = directory.len() + path.len();
    let mut bytes = [0; PATH_MAX];
    // One more octet, for the zero.
    bytes.get(length)?;
    let (head, tail) = bytes.get_mut(..length)?.split_at_mut(directory.len());
    head.copy_from_slice(directory);
    tail.copy_from_slice(path);
    Some(Redirected { bytes, length })
}

/// A path without the directory, for the results of `realpath` and `getcwd`; `None` if it does not lie there.
pub(crate) fn shown(path: &CStr) -> Option<&CStr> {
    let rest = path
        .to_bytes_with_nul()
        .strip_prefix(directory()?.to_bytes())?;
    let rest = CStr::from_bytes_with_nul(rest).ok()?;
    is_redirected(rest.to_bytes()).then_some(rest)
}

/// The path that a working directory stands for if it lies in the directory above all that is redirected.
pub(crate) fn outside(now: &CStr) -> Option<&CStr> {
    let rest = now
        .to_bytes_with_nul()
        .strip_prefix(directory()?.to_bytes())?;
    match rest {
        [0] => Some(c"/"),
        [b'/', ..] if !is_redirected(rest.strip_suffix(b"\0")?) => {
            CStr::from_bytes_with_nul(rest).ok()
        }
        _ => None,
    }
}

/// The directory that this library was loaded from.
fn directory() -> Option<&'static CStr> {
    static DIRECTORY: OnceLock<Option<CString>> = OnceLock::new();
    DIRECTORY.get_or_init(loaded_from).as_deref()
}

fn loaded_from() -> Option<CString> {
    let own: *const c_void = (loaded_from as fn() -> Option<CString>) as *const c_void;
    // SAFETY: `Dl_info` is four pointers, for which zero is a valid value.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: finds the library of an address and writes to `info`.
    let found = unsafe { libc::dladdr(own, &raw mut info) };
    if found == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: dladdr gives a C string that lives as long as the library.
    let file = unsafe { CStr::from_ptr(info.dli_fname) };
    let directory = Path::new(OsStr::from_bytes(file.to_bytes())).parent()?;
    CString::new(directory.as_os_str().as_bytes()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_redirected_and_nothing_else() {
        for path in [
            "/dev/infiniband",
            "/dev/infiniband/uverbs0",
            "/sys/class/infiniband/",
            "/sys/class/infiniband/dgiwarp0/ports/1/gids/0",
            "/sys/class/infiniband_verbs/abi_version",
        ] {
            assert!(is_redirected(path.as_bytes()), "{path}");
        }
        for path in [
            "",
            "/",
            "/dev",
            "/dev/infinibandits",
            "/dev/null",
            "/sys/class/net",
            "sys/class/infiniband",
            "/a/sys/class/infiniband",
        ] {
            assert!(!is_redirected(path.as_bytes()), "{path}");
        }
    }

    #[test]
    fn a_path_of_any_length_is_redirected_whole_or_not_at_all() {
        let directory = b"/run/dgiwarp";
        for length in [0, 1, PATH_MAX - 14, PATH_MAX - 13] {
            let path = vec![b'x'; length];
            let whole = [directory, path.as_slice()].concat();
            assert_eq!(
                below(directory, &path).unwrap().as_c_str().to_bytes(),
                whole
            );
        }
        for length in [PATH_MAX - 12, PATH_MAX, 3 * PATH_MAX] {
            assert!(below(directory, &vec![b'x'; length]).is_none());
        }
    }

    #[test]
    fn what_lies_below_the_directory_is_shown_without_it() {
        let directory = directory().unwrap().to_bytes();
        let path = b"/sys/class/infiniband/dgiwarp0";
        let redirected = redirected(c"/sys/class/infiniband/dgiwarp0").unwrap();
        assert_eq!(redirected.as_c_str().to_bytes(), [directory, path].concat());
        assert_eq!(
            shown(redirected.as_c_str()),
            Some(c"/sys/class/infiniband/dgiwarp0")
        );
        assert_eq!(shown(c"/sys/class/infiniband/dgiwarp0"), None);
        let at = |path: &[u8]| CString::new([directory, path].concat()).unwrap();
        assert_eq!(outside(&at(b"")), Some(c"/"));
        assert_eq!(outside(&at(b"/sys/class")), Some(c"/sys/class"));
        assert_eq!(outside(&at(path)), None);
        assert_eq!(outside(&at(b"other")), None, "a neighbour of the directory");
        assert_eq!(outside(c"/sys/class"), None);
        assert_eq!(shown(&at(b"/other")), None);
        assert_eq!(
            shown(&at(b"/sys/class/infiniband")),
            Some(c"/sys/class/infiniband")
        );
    }
}
