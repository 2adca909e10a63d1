//! Runs a verbs program on the dgiwarp device: `dgiwarp-run PROGRAM [ARGUMENT…]`.
//!
//! The program is neither changed nor copied. The dynamic linker takes `libibverbs.so.1` and `librdmacm.so.1` from a
//! private directory with two symbolic links to dgiwarp's library, and a second library redirects `/dev/infiniband` and
//! `/sys/class/infiniband`. This process then executes the program.

#![forbid(unsafe_code)]

mod library;
mod packages;
mod paths;
mod program;
mod sanitizers;

use std::env;
use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use clap::{Parser, ValueHint};
use dgiwarp_cli::{Example, Program};

/// Run an unmodified program that uses libibverbs or librdmacm on the dgiwarp software RNIC
///
/// Without a program: show the device and programs to try.
#[derive(Debug, Parser)]
#[command(name = "dgiwarp-run", version)]
#[command(override_usage = "dgiwarp-run [--sockets] [PROGRAM [ARGUMENT]...]")]
struct Cli {
    /// TCP and UDP sockets of the program become rsockets where the peer has them too; the program needs no library of RDMA
    #[arg(long)]
    sockets: bool,

    /// The program, a path or a name in PATH, and its arguments
    #[arg(value_name = "PROGRAM", trailing_var_arg = true, value_hint = ValueHint::CommandWithArguments)]
    command: Vec<OsString>,
}

const PROGRAM: Program = Program {
    examples: &[
        Example {
            line: "dgiwarp-run ibv_devinfo -v",
            about: "Show the device as a verbs program sees it.",
        },
        Example {
            line: "dgiwarp-run ibv_rc_pingpong -g 0 &\ndgiwarp-run ibv_rc_pingpong -g 0 localhost",
            about: "Two programs that exchange messages on this machine.",
        },
        Example {
            line: "dgiwarp-run rping -s &                     (on one machine)\n\
                   dgiwarp-run rping -c -a ADDRESS -C 10 -v   (on the other)",
            about: "The same over rdma_cm, which works with any iWARP device at the other end.",
        },
        Example {
            line: "DGIWARP_FAULT=drop=0.01,seed=7 dgiwarp-run ./program",
            about: "Run a program of your own while one datagram in a hundred is lost.",
        },
        Example {
            line: "dgiwarp-run --sockets redis-server &\ndgiwarp-run --sockets redis-cli ping",
            about: "Programs of TCP or UDP sockets over RDMA; plain clients are served too.",
        },
    ],
    sections: &[(
        "Exit status",
        "That of the program; 126 if it cannot be run, 127 if it was not found, 2 for an unknown option.",
    )],
    see_also: &["dgiwarp(7)", "dgiwarp-info(1)", "dgiwarp-ss(1)", "ld.so(8)"],
    ..Program::EMPTY
};

/// Exit status of shells for a program that cannot be run.
const EXIT_NOT_RUNNABLE: u8 = 126;
/// Exit status of shells for a program that was not found.
const EXIT_NOT_FOUND: u8 = 127;

fn main() -> ExitCode {
    let cli: Cli = dgiwarp_cli::parse(&PROGRAM);
    match cli.command.split_first() {
        None => show(&introduction()),
        Some((program, arguments)) => run(program, arguments, cli.sockets),
    }
}

/// Prints to standard output; a closed pipe is no failure.
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

/// Executes the program; returns only on failure.
fn run(program: &OsStr, arguments: &[OsString], sockets: bool) -> ExitCode {
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
    if sockets {
        // Before the library of paths, whose `bind` and `listen` it calls.
        match library::find(library::SOCKETS) {
            Ok(library) => preload.push(library),
            Err(error) => {
                eprintln!("dgiwarp-run: {error}");
                return ExitCode::from(EXIT_NOT_RUNNABLE);
            }
        }
    }
    match paths::preload() {
        Ok(paths) => preload.push(paths),
        // Few programs read these paths.
        Err(error) => eprintln!(
            "dgiwarp-run: the program finds no device below /dev and /sys, only in the library: {error}"
        ),
    }
    let (options, suppressed) = sanitizers::options();
    if let Err(error) = suppressed {
        eprintln!("dgiwarp-run: ThreadSanitizer and Helgrind report races that are none: {error}");
    }
    let error = Command::new(&path)
        .arg0(program)
        .args(arguments)
        .env("LD_LIBRARY_PATH", search_path(&links))
        .env("LD_PRELOAD", preloaded(&preload))
        .envs(options)
        .exec();
    eprintln!("dgiwarp-run: cannot run {}: {error}", path.display());
    ExitCode::from(EXIT_NOT_RUNNABLE)
}

/// `LD_LIBRARY_PATH` with our directory first: another may have a library of the same name.
fn search_path(links: &Path) -> OsString {
    let mut value = links.as_os_str().to_owned();
    let present = env::var_os("LD_LIBRARY_PATH").filter(|present| !present.is_empty());
    if let Some(present) = present {
        value.push(":");
        value.push(present);
    }
    value
}

/// `LD_PRELOAD` with our libraries, for programs whose RPATH precedes the search path.
///
/// Libraries of the user stay in front: some of them observe calls, and some (a sanitizer's runtime for an interpreter) have to be first.
/// Libraries with our names are left out, such as those of an outer `dgiwarp-run`.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn command(line: &str) -> Result<Vec<OsString>, clap::Error> {
        Cli::try_parse_from(line.split(' ')).map(|cli| cli.command)
    }

    #[test]
    fn everything_from_the_program_on_is_the_program_s() {
        dgiwarp_cli::command::<Cli>(&PROGRAM).debug_assert();
        assert_eq!(command("dgiwarp-run").unwrap(), [""; 0]);
        for line in ["rping --help", "x -V", "x -- -y --", "x --generate z"] {
            let words: Vec<_> = line.split(' ').collect();
            assert_eq!(command(&format!("dgiwarp-run {line}")).unwrap(), words);
        }
        assert_eq!(
            command("dgiwarp-run -- -odd --help").unwrap(),
            ["-odd", "--help"]
        );
        assert_eq!(
            command("dgiwarp-run --sockets x --sockets").unwrap(),
            ["x", "--sockets"]
        );
        assert!(command("dgiwarp-run --unknown rping").is_err());
        assert!(PROGRAM.examples.len() >= 3);
    }
}
