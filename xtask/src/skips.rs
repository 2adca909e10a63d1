//! How a test that lacks something on this machine says so.
//!
//! A test decides at run time what it can do. One that must skip calls [`skip`] and returns; the line goes to standard
//! error and, under `cargo xtask test`, to the file named by `XTASK_SKIPS`, from which the report is made.
//!
//! ```
//! # fn have_tun() -> bool { true }
//! # fn test_that_needs_it() {
//! if !have_tun() {
//!     return xtask::skips::skip("test_that_needs_it", "no /dev/net/tun here");
//! }
//! # }
//! ```

use std::env;
use std::fs::OpenOptions;
use std::io::Write as _;

use crate::lab::LabError;

/// Names the file to which skipped tests append their line.
pub const VARIABLE: &str = "XTASK_SKIPS";

/// Reports that the test `name` is skipped, and why.
///
/// # Panics
/// If the file of `XTASK_SKIPS` cannot be written: a skip that nobody sees would count as a pass.
pub fn skip(name: &str, reason: &str) {
    let line = format!("{name}: {}", reason.replace('\n', " "));
    eprintln!("SKIP {line}");
    if let Some(path) = env::var_os(VARIABLE) {
        // One write per line: several test programs and threads append.
        let written = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)
            .and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()));
        if let Err(error) = written {
            panic!(
                "cannot note the skipped test {name} in {}: {error}",
                path.display()
            );
        }
    }
}

/// A part of the lab that the test `name` needs; `None` skips the test, where this machine cannot make the part.
///
/// # Panics
/// On errors of what should have worked, and as [`skip`].
pub fn made<T>(name: &str, needed: Result<T, LabError>) -> Option<T> {
    match needed {
        Ok(made) => Some(made),
        Err(
            error @ (LabError::NoNamespaces { .. }
            | LabError::NoTun { .. }
            | LabError::MissingProgram { .. }),
        ) => {
            skip(name, &error.to_string());
            None
        }
        Err(error) => panic!("{name}: {error}"),
    }
}

/// The lines of such a file: test name and reason.
#[must_use]
pub fn parse(text: &str) -> Vec<(String, String)> {
    text.lines()
        .filter(|line| !line.trim().is_empty())
        .map(|line| {
            let (name, reason) = line.split_once(": ").unwrap_or((line, "no reason given"));
            (name.trim().to_owned(), reason.trim().to_owned())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_become_names_and_reasons() {
        assert_eq!(
            parse("siw: no /dev/net/tun: no module\n\nbare\n"),
            [
                ("siw".to_owned(), "no /dev/net/tun: no module".to_owned()),
                ("bare".to_owned(), "no reason given".to_owned()),
            ]
        );
    }
}
