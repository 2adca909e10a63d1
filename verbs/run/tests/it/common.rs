//! Common parts of the tests with Debian's files: reporting what was skipped, finding the files, and running programs
//! that talk to each other ([`session`]) in a place made for it ([`scene`]).

pub(crate) mod each;
pub(crate) mod linked;
pub(crate) mod scene;
pub(crate) mod session;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use xtask::debian::PACKAGES;
pub(crate) use xtask::skips::skip;

/// The wrapper under test.
pub(crate) const RUN: &str = env!("CARGO_BIN_EXE_dgiwarp-run");

/// Whether a program is in `PATH`; if not, the test is skipped. The test command installs its package.
pub(crate) fn have(test: &str, program: &str, package: &str) -> bool {
    assert!(
        PACKAGES.iter().any(|it| it.name == package),
        "{package} is not among the packages of the test command"
    );
    let found = std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())
        .any(|directory| directory.join(program).is_file());
    if !found {
        skip(
            test,
            &format!("{program} is missing (Debian package {package})"),
        );
    }
    found
}

/// The shared library that was built with this test.
pub(crate) fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let library = test.parent().unwrap().join("libdgiwarp_verbs.so");
    assert!(library.is_file(), "{} was not built", library.display());
    library
}

/// A library of the distribution, by its soname; `None` skips the test.
pub(crate) fn system_library(test: &str, soname: &str) -> Option<PathBuf> {
    let places = [
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib/aarch64-linux-gnu",
        "/usr/lib64",
        "/usr/lib",
    ];
    let found = places
        .iter()
        .map(|place| Path::new(place).join(soname))
        .find(|path| path.is_file());
    if found.is_none() {
        skip(test, &format!("{soname} of the distribution is missing"));
    }
    found
}

/// A script of `tests/python`.
pub(crate) fn script(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python");
    folder.join(name)
}

/// A directory of this test process alone, below cargo's directory for such.
pub(crate) fn scratch(name: &str) -> PathBuf {
    let path =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    std::fs::create_dir_all(&path).unwrap();
    path
}

/// Headers that the programs of `tests/c` share.
const HEADERS: &str = concat!("-I", env!("CARGO_MANIFEST_DIR"), "/tests/c");

/// Compiles a C program; `None` skips the test if there is no compiler or header.
pub(crate) fn compile(
    test: &str,
    directory: &Path,
    source: &str,
    arguments: &[&str],
) -> Option<PathBuf> {
    if !have(test, "cc", "gcc") {
        return None;
    }
    if !Path::new("/usr/include/infiniband/verbs.h").is_file() {
        skip(
            test,
            "infiniband/verbs.h is missing (Debian packages libibverbs-dev, librdmacm-dev)",
        );
        return None;
    }
    let file = directory.join(format!("{test}.c"));
    let program = directory.join(test);
    std::fs::write(&file, source).unwrap();
    let output = Command::new("cc")
        .arg("-o")
        .arg(&program)
        .arg(&file)
        .arg(HEADERS)
        .args(arguments)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Some(program)
}

/// Runs a command to its end and expects success.
pub(crate) fn succeed(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}
