//! The command line of `rftp`.

#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use dgiwarp_cli::{Example, Program};
use dgiwarp_rftp::client::{Copy, Place, Scheme, Tls, Url, run, shell};
use dgiwarp_transfer::Options;
use dgiwarp_transfer_cli::{
    Carriage, Encryption, Failed, Output, Sizes, StreamsArg, Writing, XattrsArg,
};

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
        Example {
            line: "rftp open ftp.example.org",
            about: "Commands from standard input: ls, cd, get, put; help lists them.",
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
    /// Take commands from standard input, one a line, as ftp(1) does: get, put, ls, cd; help lists them
    Open(Open),
}

#[derive(Debug, clap::Args)]
struct Open {
    /// A server's URL as of cp, or HOST alone for ftp://HOST
    #[arg(value_name = "URL")]
    url: Option<OsString>,
    #[command(flatten)]
    how: How,
}

#[derive(Debug, clap::Args)]
struct Cp {
    /// Files or directories of this host, or `rftp://[USER[:PASSWORD]@]HOST[:PORT]/PATH`, or ftp:// for any FTP server
    #[arg(required = true, value_name = "SOURCE")]
    sources: Vec<OsString>,
    /// Where to; into it if it is a directory, ends with / or there are several sources
    #[arg(value_name = "DESTINATION")]
    destination: OsString,
    #[command(flatten)]
    how: How,
}

/// Options of copies.
#[derive(Debug, clap::Args)]
struct How {
    /// Data over a TCP connection instead of a queue pair
    #[arg(long)]
    tcp: bool,
    /// The server connects to this host for the data
    #[arg(long)]
    active: bool,
    /// Of files that changed, send what the receiving end's old copies have not
    #[arg(long)]
    delta: bool,
    #[command(flatten)]
    xattrs: XattrsArg,
    /// Time for a reply of the server, and for progress of an FTP server's data connection
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u16).range(1..))]
    timeout: u16,
    /// FTP servers hash each file that was copied (HASH), for comparison; sessions of rftp:// are always verified
    #[arg(long)]
    verify: bool,
    /// TLS or nothing: for the control connection and an FTP server's data; the data of rftp:// are encrypted with keys of their own
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
    let done = match cli.command {
        Command::Cp(cp) => order(&cp).and_then(|copy| run(&copy)),
        Command::Open(open) => converse(&open),
    };
    Failed::exit("rftp", done)
}

fn converse(open: &Open) -> Result<(), Failed> {
    let url = open.url.as_ref().map(|it| Url::of_host(it)).transpose();
    let urls = url.map_err(Failed::Usage)?.map(Place::There);
    let here = Place::Here(".".into());
    let order = copy(urls.into_iter().collect(), here, &open.how)?;
    shell(&order, &mut std::io::stdin().lock())
}

fn order(cp: &Cp) -> Result<Copy, Failed> {
    let places: Result<Vec<_>, _> = cp.sources.iter().map(|it| Place::parse(it)).collect();
    let sources = places.map_err(Failed::Usage)?;
    let destination = Place::parse(&cp.destination).map_err(Failed::Usage)?;
    copy(sources, destination, &cp.how)
}

fn copy(sources: Vec<Place>, destination: Place, how: &How) -> Result<Copy, Failed> {
    let is_ftps = |it: &Place| matches!(it, Place::There(url) if url.scheme == Scheme::Ftps);
    let wants_tls = how.tls || sources.iter().chain([&destination]).any(is_ftps);
    if how.ca.is_some() && !wants_tls {
        return Err(Failed::Usage("--ca is for --tls and ftps://".into()));
    }
    let tls = wants_tls.then(|| Tls::new(how.ca.as_deref())).transpose();
    Ok(Copy {
        sources,
        destination,
        carriage: Carriage {
            tcp: how.tcp,
            options: Options {
                deltas: how.delta,
                attributes: !how.xattrs.no_xattrs,
                ..how.sizes.options()
            },
            streams: how.streams.streams,
            encryption: Encryption::Auto,
        },
        active: how.active,
        verify: how.verify,
        tls: tls.map_err(Failed::Session)?,
        patience: Duration::from_secs(how.timeout.into()),
        sink: how.writing.options(),
        show: how.output.show("rftp"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
        let cli = Cli::try_parse_from(["rftp", "cp", "a", "b", "rftp://h/"]).unwrap();
        let Command::Cp(cp) = cli.command else {
            panic!("no cp");
        };
        let copy = order(&cp).unwrap();
        assert_eq!(copy.sources.len(), 2);
        assert!(matches!(copy.destination, Place::There(_)));
        assert!(Cli::try_parse_from(["rftp", "cp", "a"]).is_err());
    }
}
