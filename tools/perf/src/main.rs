//! `dgiwarp-perf`: latency, bandwidth and message rate of dgiwarp beside raw sockets, measured
//! in turns in the same pinned run.
//!
//! Without a command it starts its own server process and sweeps everything; `server` and
//! `client` measure between two machines. The client decides everything: it sends the server one
//! request per step over a control connection ([`session`]), opens an endpoint on both sides
//! ([`endpoint`]), and runs the rounds of each group of members in turns ([`run`]). One table lists all
//! operations ([`catalog`]). Three commands describe groups: single measurements ([`single`]), latencies of
//! other people's programs ([`programs`]), and every quantity with a bar ([`suite`]).

#![forbid(unsafe_code)]

mod catalog;
mod cli;
mod endpoint;
mod error;
mod machine;
mod measure;
mod programs;
mod report;
mod run;
mod session;
mod single;
mod stats;
mod suite;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::process::ExitCode;

use crate::cli::{Cli, Command, ServerArgs};
use crate::error::{EXIT_OK, PerfError, Result};

fn main() -> ExitCode {
    let cli: Cli = dgiwarp_cli::parse(&cli::PROGRAM);
    let outcome = match cli.command {
        None if cli.suite && cli.run.list => {
            print!("{}", suite::quantities::list());
            Ok(())
        }
        None if cli.suite => suite::run(&cli),
        _ if cli.run.list => {
            print!("{}", catalog::list());
            Ok(())
        }
        Some(Command::Client(client)) if client.run.list => {
            print!("{}", catalog::list());
            Ok(())
        }
        Some(Command::Server(server)) => serve(&server),
        Some(Command::Client(client)) => single::remote(&client),
        Some(Command::Part) => suite::part::run(),
        Some(Command::Crowd) => run::scale::run_crowd(),
        Some(Command::Programs(args)) => programs::run(&args),
        None => single::local(&cli.run),
    };
    match outcome {
        Ok(()) => ExitCode::from(EXIT_OK),
        Err(error) => {
            eprintln!("dgiwarp-perf: {error}");
            ExitCode::from(error.exit_status())
        }
    }
}

/// Listens on all addresses of both families by default.
fn serve(args: &ServerArgs) -> Result<()> {
    if args.child {
        session::server::follow_parent()?;
    }
    if !args.child {
        endpoint::ours::memory::limit(args.memory);
    }
    let any = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
    match session::server::serve(args.bind.unwrap_or(any), args) {
        // IPv6 may be switched off.
        Err(PerfError::Io { source, .. })
            if args.bind.is_none()
                && matches!(
                    source.raw_os_error(),
                    Some(nix::libc::EAFNOSUPPORT | nix::libc::EADDRNOTAVAIL)
                ) =>
        {
            session::server::serve(IpAddr::V4(Ipv4Addr::UNSPECIFIED), args)
        }
        outcome => outcome,
    }
}
