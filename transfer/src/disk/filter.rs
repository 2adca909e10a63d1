//! Patterns of names that are left out of a transfer.

use std::ffi::OsStr;
use std::path::Path;

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};

/// Patterns at most.
const PATTERNS: usize = 1024;
/// Octets of all patterns at most; their automata take memory.
const OCTETS: usize = 16 << 10;

/// Names that are left out: those that an excluding pattern matches and no including one. A pattern without `/` matches the last component of a name, another
/// one the whole name beneath the target; a `/` at its end restricts it to directories. `*` and `?` match no `/`, `**` does.
#[derive(Debug, Clone)]
pub struct Filter {
    exclude: Patterns,
    include: Patterns,
}

#[derive(Debug, Clone)]
struct Patterns {
    any: GlobSet,
    directories: GlobSet,
}

impl Filter {
    /// A filter.
    ///
    /// # Errors
    /// The reason, for a pattern that is none, or too many.
    pub fn new(exclude: &[String], include: &[String]) -> Result<Self, String> {
        let all = || exclude.iter().chain(include);
        let octets: usize = all().map(String::len).sum();
        if all().count() > PATTERNS || octets > OCTETS {
            return Err(format!(
                "more than {PATTERNS} patterns, or more than {OCTETS} bytes of them"
            ));
        }
        Ok(Self {
            exclude: Patterns::new(exclude)?,
            include: Patterns::new(include)?,
        })
    }

    /// A filter that leaves nothing out.
    #[must_use]
    pub fn none() -> Self {
        let none = || Patterns {
            any: GlobSet::empty(),
            directories: GlobSet::empty(),
        };
        Self {
            exclude: none(),
            include: none(),
        }
    }

    /// Whether a name beneath the target is left out.
    #[must_use]
    pub fn leaves_out(&self, name: &Path, is_directory: bool) -> bool {
        self.exclude.match_it(name, is_directory) && !self.include.match_it(name, is_directory)
    }
}

impl Patterns {
    fn new(patterns: &[String]) -> Result<Self, String> {
        let (mut any, mut directories) = (GlobSetBuilder::new(), GlobSetBuilder::new());
        for pattern in patterns {
            let (text, set) = match pattern.strip_suffix('/') {
                Some(text) => (text, &mut directories),
                None => (pattern.as_str(), &mut any),
            };
            let text = match text.strip_prefix('/') {
                Some(anchored) => anchored.to_owned(),
                None if text.contains('/') => text.to_owned(),
                None => format!("**/{text}"),
            };
            let glob = GlobBuilder::new(&text).literal_separator(true).build();
            set.add(glob.map_err(|error| format!("{pattern}: {error}"))?);
        }
        let build = |set: GlobSetBuilder| set.build().map_err(|error| error.to_string());
        Ok(Self {
            any: build(any)?,
            directories: build(directories)?,
        })
    }

    fn match_it(&self, name: &Path, is_directory: bool) -> bool {
        self.any.is_match(name) || is_directory && self.directories.is_match(name)
    }
}

/// Joins without a separator at an end.
pub(super) fn join(path: &Path, name: &OsStr) -> std::path::PathBuf {
    if path.as_os_str().is_empty() {
        name.into()
    } else {
        path.join(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_components_or_whole_names() {
        let texts = |texts: &[&str]| texts.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>();
        let exclude = texts(&["*.o", "cache/", "/top", "a/*.c", "deep/**"]);
        let filter = Filter::new(&exclude, &texts(&["keep.o"])).unwrap();
        for (name, directory, out) in [
            ("x.o", false, true),
            ("a/b/x.o", true, true),
            ("a/keep.o", false, false),
            ("cache", false, false),
            ("a/cache", true, true),
            ("top", false, true),
            ("a/top", false, false),
            ("a/x.c", false, true),
            ("a/b/x.c", false, false),
            ("b/a/x.c", false, false),
            ("deep/er/x", false, true),
            ("deep", true, false),
        ] {
            assert_eq!(filter.leaves_out(Path::new(name), directory), out, "{name}");
        }
        assert!(Filter::new(&texts(&["[a"]), &[]).is_err());
        assert!(Filter::new(&texts(&["x"; 1025]), &[]).is_err());
        assert!(!Filter::none().leaves_out(Path::new("x"), true));
    }
}
