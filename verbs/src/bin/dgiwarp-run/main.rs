//! Runs a verbs program on the dgiwarp device: `dgiwarp-run PROGRAM [ARGUMENT…]`.
//!
//! The program is not changed and not copied. Its dynamic linker is told to take `libibverbs.so.1` and `librdmacm.so.1`
//! from a private directory that holds two symbolic links to dgiwarp's library, and then this process becomes it.
//! Another library shows it the device below `/dev/infiniband` and `/sys/class/infiniband`.

mod library;
mod packages;
mod paths;
mod program;

use std::env;
use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

const USAGE: &str = "\
Usage: dgiwarp-run PROGRAM [ARGUMENT...]
       dgiwarp-run             show the device and programs to try
       dgiwarp-run --help | --version

Runs an unmodified program that uses libibverbs or librdmacm on the dgiwarp software RNIC.
";

/// As a shell has it: the program cannot be run.
const EXIT_NOT_RUNNABLE: u8 = 126;
/// As a shell has it: the program was not found.
const EXIT_NOT_FOUND: u8 = 127;

fn main() -> ExitCode {
    let mut arguments: Vec<OsString> = env::args_os().skip(1).collect();
    if arguments.first().is_some_and(|first| first == "--") {
        arguments.remove(0);
    }
    let Some((program, rest)) = arguments.split_first() else {
        return show(&introduction());
    };
    match program.to_str() {
        Some("-h" | "--help") => show(USAGE),
        Some("-V" | "--version") => show(concat!("dgiwarp-run ", env!("CARGO_PKG_VERSION"), "\n")),
        Some(option) if option.starts_with('-') => {
            eprint!("dgiwarp-run: unknown option {option}\n{USAGE}");
            ExitCode::from(2)
        }
        Some(_) | None => run(program, rest),
    }
}

/// Prints to standard output; a reader that went away is no failure.
fn show(text: &str) -> ExitCode {
    let _ = std::io::stdout().write_all(text.as_bytes());
    ExitCode::SUCCESS
}

fn introduction() -> String {
    format!(
        "{}\nPrograms to try (Debian packages ibverbs-utils, rdmacm-utils):\n\
         \x20 dgiwarp-run ibv_devinfo -v\n\
         \x20 dgiwarp-run ibv_rc_pingpong -g 0 &  dgiwarp-run ibv_rc_pingpong -g 0 localhost\n\
         \x20 dgiwarp-run rping -s -a 127.0.0.1 -C 5 &  dgiwarp-run rping -c -a 127.0.0.1 -C 5 -v\n",
        dgiwarp_verbs::describe::device()
    )
}

/// Becomes the program; returns only if that is impossible.
fn run(program: &OsStr, arguments: &[OsString]) -> ExitCode {
    let path = match program::find(program) {
        Ok(path) => path,
        Err(error) => {
            eprintln!("dgiwarp-run: {error}");
            if let Some(package) = program.to_str().and_then(packages::package_of) {
                eprintln!(
                    "dgiwarp-run: on Debian it is in package {package}: apt install {package}"
                );
            }
            return ExitCode::from(EXIT_NOT_FOUND);
        }
    };
    if let Err(error) = program::check(&path) {
        eprintln!("dgiwarp-run: cannot run {}: {error}", path.display());
        return ExitCode::from(EXIT_NOT_RUNNABLE);
    }
    let links = match library::links() {
        Ok(links) => links,
        Err(error) => {
            eprintln!("dgiwarp-run: {error}");
            return ExitCode::from(EXIT_NOT_RUNNABLE);
        }
    };
    let mut preload = library::NAMES.map(|name| links.join(name)).to_vec();
    match paths::preload() {
        Ok(paths) => preload.push(paths),
        // Few programs need it.
        Err(error) => eprintln!(
            "dgiwarp-run: the program finds no device below /dev and /sys, only in the library: {error}"
        ),
    }
    let error = Command::new(&path)
        .arg0(program)
        .args(arguments)
        .env("LD_LIBRARY_PATH", search_path(&links))
        .env("LD_PRELOAD", preloaded(&preload))
        .exec();
    eprintln!("dgiwarp-run: cannot run {}: {error}", path.display());
    ExitCode::from(EXIT_NOT_RUNNABLE)
}

/// `LD_LIBRARY_PATH` with our folder first: it may have another library of the same name.
fn search_path(links: &Path) -> OsString {
    let mut value = links.as_os_str().to_owned();
    let present = env::var_os("LD_LIBRARY_PATH").filter(|present| !present.is_empty());
    if let Some(present) = present {
        value.push(":");
        value.push(present);
    }
    value
}

/// `LD_PRELOAD` with our libraries, for programs whose RPATH goes before the search path.
///
/// What the user preloads stays in front of them: it may be there to look at the calls, and some of it (a sanitizer's
/// runtime) insists on being first. Only libraries with our names are left out, such as those of an outer
/// `dgiwarp-run`.
fn preloaded(ours: &[PathBuf]) -> OsString {
    let present = env::var_os("LD_PRELOAD").unwrap_or_default();
    let names: Vec<_> = ours.iter().filter_map(|path| path.file_name()).collect();
    let others = present
        .as_bytes()
        .split(|byte| matches!(byte, b':' | b' '))
        .map(|entry| Path::new(OsStr::from_bytes(entry)))
        .filter(|entry| entry.file_name().is_some_and(|name| !names.contains(&name)));
    let all: Vec<_> = others
        .chain(ours.iter().map(PathBuf::as_path))
        .map(Path::as_os_str)
        .collect();
    all.join(OsStr::new(":"))
}
