//! The command line of `rftp`.

#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use dgiwarp_cli::{Example, Program};
use dgiwarp_rftp::client::{Copy, Place, Scheme, Tls, run};
use dgiwarp_transfer_cli::{Carriage, Failed, Output, Sizes, StreamsArg, Writing};

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
        Example {
            line: "rftp cp ftp://ftp.example.org/pub/tree .",
            about: "From any FTP server; an interrupted copy goes on in the middle of a file, too.",
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
    /// Files or directories of this host, or `rftp://[USER[:PASSWORD]@]HOST[:PORT]/PATH`, or ftp:// for any FTP server
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
    /// Time for a reply of the server, and for progress of an FTP server's data connection
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u16).range(1..))]
    timeout: u16,
    /// FTP servers hash each file that was copied (HASH), for comparison; sessions of rftp:// are always verified
    #[arg(long)]
    verify: bool,
    /// TLS or nothing: for the control connection, and for an FTP server's data; of rftp:// the data is not encrypted
    #[arg(long)]
    tls: bool,
    /// Certificates that are trusted, or the server's own, in PEM form; without it those of this host's authorities
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    #[command(flatten)]
    writing: Writing,
    #[command(flatten)]
    streams: StreamsArg,
    #[command(flatten)]
    sizes: Sizes,
    #[command(flatten)]
    output: Output,
}

fn main() -> ExitCode {
    let cli: Cli = dgiwarp_cli::parse(&PROGRAM);
    let Command::Cp(cp) = cli.command;
    Failed::exit("rftp", order(&cp).and_then(|copy| run(&copy)))
}

fn order(cp: &Cp) -> Result<Copy, Failed> {
    let places: Result<Vec<_>, _> = cp.sources.iter().map(|it| Place::parse(it)).collect();
    let sources = places.map_err(Failed::Usage)?;
    let destination = Place::parse(&cp.destination).map_err(Failed::Usage)?;
    let is_ftps = |it: &Place| matches!(it, Place::There(url) if url.scheme == Scheme::Ftps);
    let wants_tls = cp.tls || sources.iter().chain([&destination]).any(is_ftps);
    if cp.ca.is_some() && !wants_tls {
        return Err(Failed::Usage("--ca is for --tls and ftps://".into()));
    }
    let tls = wants_tls.then(|| Tls::new(cp.ca.as_deref())).transpose();
    Ok(Copy {
        sources,
        destination,
        carriage: Carriage {
            tcp: cp.tcp,
            options: cp.sizes.options(),
            streams: cp.streams.streams,
        },
        active: cp.active,
        verify: cp.verify,
        tls: tls.map_err(Failed::Session)?,
        patience: Duration::from_secs(cp.timeout.into()),
        sink: cp.writing.options(),
        show: cp.output.show("rftp"),
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
