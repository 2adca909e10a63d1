//! Options of sanitizers and valgrind in the program's environment, for all processes that it starts.
//!
//! AddressSanitizer ends a program whose first library is not its runtime, and here preloaded libraries are first. To preload the runtime before them would put it into
//! every process that the program starts, where it reports leaks of shells. The order has no effect here: none of our functions is one that allocates, and those for
//! paths call the next ones, which are the runtime's. So the check goes.
//!
//! ThreadSanitizer and Helgrind do not see our synchronization: their suppressions name our library.

use crate::library::{self, LibraryError, is_plain};
use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Suppressions of ThreadSanitizer.
const TSAN: (&str, &[u8]) = ("tsan", include_bytes!("../../suppressions/tsan.supp"));
/// Suppressions of Helgrind and DRD.
const VALGRIND: (&str, &[u8]) = (
    "valgrind",
    include_bytes!("../../suppressions/valgrind.supp"),
);
/// Suppressions of an installation, beside the folder of its programs.
const INSTALLED: &str = "../share/dgiwarp/suppressions";

/// Check of AddressSanitizer that its runtime is the first library.
const ORDER: &str = "verify_asan_link_order";
/// Option of ThreadSanitizer, and of valgrind behind two hyphens.
const SUPPRESSIONS: &str = "suppressions=";

/// Variables with the user's options and ours.
///
/// # Errors
/// There is no place for a file of suppressions; then only AddressSanitizer has its option.
pub(crate) fn options() -> (Vec<(&'static str, OsString)>, Result<(), LibraryError>) {
    let present = |name| env::var_os(name).unwrap_or_default();
    let mut options = vec![("ASAN_OPTIONS", address(&present("ASAN_OPTIONS")))];
    let mut add_suppressions = || {
        options.push(("TSAN_OPTIONS", thread(&present("TSAN_OPTIONS"))?));
        options.push(("VALGRIND_OPTS", valgrind(&present("VALGRIND_OPTS"))?));
        Ok(())
    };
    let added = add_suppressions();
    (options, added)
}

/// The last of contradicting options counts, so the user's are last.
fn address(present: &OsStr) -> OsString {
    if flag(present.as_bytes(), ORDER.as_bytes()).is_some() {
        return present.to_owned();
    }
    join(&format!("{ORDER}=0"), ":", present)
}

/// Of several files ThreadSanitizer reads the last, so a file of the user's goes into one with ours.
fn thread(present: &OsStr) -> Result<OsString, LibraryError> {
    let option = |file: PathBuf| format!("{SUPPRESSIONS}'{}'", file.display());
    let Some(name) = flag(
        present.as_bytes(),
        SUPPRESSIONS.trim_end_matches('=').as_bytes(),
    ) else {
        return Ok(join(&option(ours(TSAN)?), ":", present));
    };
    // A file that cannot be read is ThreadSanitizer's to report.
    let Ok(mut text) = fs::read(Path::new(OsStr::from_bytes(name))) else {
        return Ok(present.to_owned());
    };
    // An outer dgiwarp-run has put our suppressions there already.
    if text.starts_with(TSAN.1) {
        return Ok(present.to_owned());
    }
    text.splice(0..0, TSAN.1.iter().copied());
    let both = written(TSAN.0, &text)?;
    let mut all = present.to_owned();
    all.push(":");
    all.push(option(both));
    Ok(all)
}

/// Valgrind takes any number of files.
fn valgrind(present: &OsStr) -> Result<OsString, LibraryError> {
    let option = format!("--{SUPPRESSIONS}{}", ours(VALGRIND)?.display());
    let is_there = present
        .as_bytes()
        .split(u8::is_ascii_whitespace)
        .any(|word| word == option.as_bytes());
    Ok(if is_there {
        present.to_owned()
    } else {
        join(&option, " ", present)
    })
}

fn join(option: &str, separator: &str, present: &OsStr) -> OsString {
    let mut all = OsString::from(option);
    if !present.is_empty() {
        all.push(separator);
        all.push(present);
    }
    all
}

/// The last value of a sanitizer's flag, by the rules of its parser: flags end at blanks, commas and colons, values may be quoted.
fn flag<'a>(mut options: &'a [u8], wanted: &[u8]) -> Option<&'a [u8]> {
    const ENDS: &[u8] = b" ,:\n\t\r";
    let mut found = None;
    while let Some(equals) = options.iter().position(|byte| *byte == b'=') {
        let (name, value) = options.split_at(equals);
        let name = name.rsplit(|byte| ENDS.contains(byte)).next();
        let value = value.get(1..).unwrap_or_default();
        let (value, rest) = match value.split_first() {
            Some((quote @ (b'\'' | b'"'), quoted)) => cut(quoted, |byte| byte == *quote),
            _ => cut(value, |byte| ENDS.contains(&byte)),
        };
        if name == Some(wanted) {
            found = Some(value);
        }
        options = rest;
    }
    found
}

/// The parts before and behind the first byte of a kind.
fn cut(bytes: &[u8], is_end: impl Fn(u8) -> bool) -> (&[u8], &[u8]) {
    let mut parts = bytes.splitn(2, |byte| is_end(*byte));
    let before = parts.next().unwrap_or_default();
    (before, parts.next().unwrap_or_default())
}

/// The file of an installation, or one in a directory of this user.
fn ours((name, text): (&str, &[u8])) -> Result<PathBuf, LibraryError> {
    let installed = env::current_exe()
        .and_then(fs::canonicalize)
        .and_then(|program| {
            let folder = program.parent().unwrap_or_else(|| Path::new("/"));
            fs::canonicalize(folder.join(INSTALLED).join(format!("{name}.supp")))
        });
    match installed {
        Ok(file) if is_plain(&file) => Ok(file),
        Ok(_) | Err(_) => written(name, text),
    }
}

/// A file with this text, which never changes once it is there.
fn written(name: &str, text: &[u8]) -> Result<PathBuf, LibraryError> {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    let name = format!("{name}-{:016x}.supp", hasher.finish());
    library::below_a_base(|base| write(&base.join(&name), text))
}

fn write(file: &Path, text: &[u8]) -> io::Result<PathBuf> {
    if !fs::read(file).is_ok_and(|present| present == text) {
        // Under another name first, so that no program reads half of it.
        let mut fresh = file.as_os_str().to_owned().into_vec();
        fresh.extend(format!(".{}", std::process::id()).bytes());
        let fresh = PathBuf::from(OsString::from_vec(fresh));
        fs::write(&fresh, text)?;
        fs::rename(&fresh, file)?;
    }
    Ok(file.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_found_as_sanitizers_find_them() {
        for (options, value) in [
            ("", None),
            ("a=1:b=2", None),
            ("suppressions=x", Some("x")),
            ("suppressions=x:suppressions=/y,z=1", Some("/y")),
            ("z=1 suppressions='a b:c' y=2", Some("a b:c")),
            ("log_path=\"suppressions=no\":q=1", None),
            ("report_suppressions=x", None),
            ("suppressions=", Some("")),
        ] {
            let found = flag(options.as_bytes(), b"suppressions");
            assert_eq!(found, value.map(str::as_bytes), "{options}");
        }
    }

    #[test]
    fn options_of_the_user_stay_and_count() {
        for (present, all) in [
            ("", "verify_asan_link_order=0"),
            ("a=1", "verify_asan_link_order=0:a=1"),
            ("verify_asan_link_order=1", "verify_asan_link_order=1"),
            (
                "verify_asan_link_order=0:a=1",
                "verify_asan_link_order=0:a=1",
            ),
        ] {
            assert_eq!(address(OsStr::new(present)), all);
        }
        let once = valgrind(OsStr::new("-q")).unwrap();
        assert!(once.to_str().unwrap().ends_with(" -q"));
        assert_eq!(valgrind(&once).unwrap(), once);
        let missing = "suppressions=/nonexistent/dgiwarp:a=1";
        assert_eq!(thread(OsStr::new(missing)).unwrap(), missing);
    }

    #[test]
    fn suppressions_of_the_user_are_in_one_file_with_ours() {
        let base = env::temp_dir().join(format!("dgiwarp-run-tsan-{}", std::process::id()));
        fs::write(&base, "race:user\n").unwrap();
        let present = OsString::from(format!("suppressions={}", base.display()));
        let all = thread(&present).unwrap();
        fs::remove_file(&base).unwrap();
        let file = Path::new(OsStr::from_bytes(
            flag(all.as_bytes(), b"suppressions").unwrap(),
        ));
        let text = fs::read(file).unwrap();
        assert_eq!(text, [TSAN.1, b"race:user\n"].concat());
        assert_eq!(thread(&all).unwrap(), all);
        fs::remove_file(file).unwrap();
    }
}
