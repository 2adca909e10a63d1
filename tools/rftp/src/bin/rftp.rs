//! The command line of `rftp`.

#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use dgiwarp_cli::{Example, Program};
use dgiwarp_rftp::client::{Copy, Failed, Place, run};
use dgiwarp_transfer::Options;

const PROGRAM: Program = Program {
    examples: &[
        Example {
            line: "rftp cp results rftp://host/",
            about: "Copies a file or tree into the server's root.",
        },
        Example {
            line: "rftp cp rftp://host/results/day-1 .",
            about: "Fetches it. The same command after an interruption goes on where that was.",
        },
        Example {
            line: "rftp cp --tcp a b rftp://ann:secret@host:2122/in/",
            about: "Two files, as a user, over plain TCP.",
        },
    ],
    sections: &[(
        "Exit status",
        "0 everything is there; 1 something is not, with the reason on standard error; 2 usage.",
    )],
    see_also: &["rftpd(1)", "dgiwarp(7)"],
    ..Program::EMPTY
};

/// Copies files and trees over RDMA or TCP.
#[derive(Debug, Parser)]
#[command(name = "rftp", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Copy files and trees: to a server, or from servers
    ///
    /// Files of the same size and time are not copied again. One that was interrupted goes on where it was, as long as its source is unchanged. A file is
    /// under its name when all of it is there.
    Cp(Cp),
}

#[derive(Debug, clap::Args)]
struct Cp {
    /// Files or directories of this host, or `rftp://[USER[:PASSWORD]@]HOST[:PORT]/PATH`
    #[arg(required = true, value_name = "SOURCE")]
    sources: Vec<OsString>,
    /// Where to; into it if it is a directory, ends with / or there are several sources
    #[arg(value_name = "DESTINATION")]
    destination: OsString,
    /// Data over a TCP connection instead of a queue pair
    #[arg(long)]
    tcp: bool,
    /// The server connects to this host for the data
    #[arg(long)]
    active: bool,
    /// Fetch files of the same size and time again
    #[arg(long)]
    rewrite: bool,
    /// Do not synchronize fetched files to the disk
    #[arg(long)]
    no_sync: bool,
    /// Octets of a block: a power of two from 1024 to 67108864; the smaller of both ends' holds
    #[arg(long, value_name = "OCTETS", default_value_t = 1 << 20)]
    block: u32,
    /// Blocks of memory, 2 to 4096
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u16).range(2..=4096))]
    slots: u16,
    /// Threads that read or write files, 1 to 64
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=64))]
    threads: u8,
    /// No progress and no summary
    #[arg(short, long)]
    quiet: bool,
    /// A line for each file
    #[arg(short, long)]
    verbose: bool,
}

fn main() -> ExitCode {
    let cli: Cli = dgiwarp_cli::parse(&PROGRAM);
    let Command::Cp(cp) = cli.command;
    let done = order(&cp).and_then(|copy| run(&copy));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failed) => {
            eprintln!("rftp: {failed}");
            let usage = matches!(failed, Failed::Usage(_));
            ExitCode::from(if usage { 2 } else { 1 })
        }
    }
}

fn order(cp: &Cp) -> Result<Copy, Failed> {
    let places: Result<Vec<_>, _> = cp.sources.iter().map(|it| Place::parse(it)).collect();
    Ok(Copy {
        sources: places.map_err(Failed::Usage)?,
        destination: Place::parse(&cp.destination).map_err(Failed::Usage)?,
        tcp: cp.tcp,
        active: cp.active,
        rewrite: cp.rewrite,
        durable: !cp.no_sync,
        options: Options {
            block: cp.block,
            slots: cp.slots,
            threads: usize::from(cp.threads),
            ..Options::default()
        },
        quiet: cp.quiet,
        verbose: cp.verbose,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
        let Command::Cp(cp) = Cli::try_parse_from(["rftp", "cp", "a", "b", "rftp://h/"])
            .unwrap()
            .command;
        let copy = order(&cp).unwrap();
        assert_eq!(copy.sources.len(), 2);
        assert!(matches!(copy.destination, Place::There(_)));
        assert!(Cli::try_parse_from(["rftp", "cp", "a"]).is_err());
    }
}
