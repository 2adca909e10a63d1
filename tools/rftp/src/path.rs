//! Paths of commands: relative to the working directory, `/` is the root. Links are the root's business.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};

/// The path beneath the root that a name means in a directory. `..` of the root is the root.
pub(crate) fn resolve(directory: &Path, name: &[u8]) -> PathBuf {
    let name = Path::new(OsStr::from_bytes(name));
    let mut path = if name.has_root() {
        PathBuf::new()
    } else {
        directory.to_owned()
    };
    for component in name.components() {
        match component {
            Component::Normal(it) => path.push(it),
            Component::ParentDir => {
                path.pop();
            }
            Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
        }
    }
    path
}

/// As clients have it, with a `/` before it.
pub(crate) fn shown(path: &Path) -> Vec<u8> {
    let mut out = vec![b'/'];
    out.extend(path.as_os_str().as_bytes());
    out
}

/// Whether a name is one of a pattern with `*` and `?`.
pub(crate) fn matches(pattern: &[u8], name: &[u8]) -> bool {
    // Where the last star was, and how far its text went: linear in both for each star.
    let (mut p, mut n, mut star) = (0, 0, None);
    while n < name.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(it) if *it == b'?' || *it == name[n] => (p, n) = (p + 1, n + 1),
            _ => match star {
                Some((at, from)) => {
                    star = Some((at, from + 1));
                    (p, n) = (at + 1, from + 1);
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|it| *it == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_beneath_the_root() {
        let at = |name: &str| resolve(Path::new("a/b"), name.as_bytes());
        assert_eq!(at("c"), Path::new("a/b/c"));
        assert_eq!(at("../c/./"), Path::new("a/c"));
        assert_eq!(at("../../../../etc"), Path::new("etc"));
        assert_eq!(at("/x//y"), Path::new("x/y"));
        assert_eq!(at("/"), Path::new(""));
        assert_eq!(shown(Path::new("a")), b"/a");
    }

    #[test]
    fn patterns_match_as_in_a_shell() {
        for (pattern, name, is) in [
            ("*", "", true),
            ("*.txt", "a.txt", true),
            ("*.txt", "a.txt.gz", false),
            ("a?c*", "abcd", true),
            ("a*b*c", "axxbxxbxc", true),
            ("a*b*c", "axxbxxbx", false),
            ("abc", "abcd", false),
        ] {
            assert_eq!(
                matches(pattern.as_bytes(), name.as_bytes()),
                is,
                "{pattern} {name}"
            );
        }
    }
}
