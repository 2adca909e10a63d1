//! `ripc`: lists, calls, pings and measures services of RIPC, serves files, and carries calls of gRPC programs.

#![forbid(unsafe_code)]

mod bench;
mod cli;
mod files;
mod gateway;
mod keys;
mod sockets;

use std::io::{self, Read as _, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use dgiwarp_ripc::{CallOptions, Client, Code, Endpoint, Payload, StaticFile, Status};

use cli::{Cli, Task, Where};

/// A failure, as the program reports it.
#[derive(Debug)]
pub(crate) enum Failure {
    /// A call.
    Status(Status),
    /// Something else.
    Text(String),
}

impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Text(error.to_string())
    }
}

const EXIT_FAILED: u8 = 1;
/// Time between two reports of refused connections.
const REPORT: Duration = Duration::from_millis(250);
/// Exit status of a call with a status is 64 and its code.
const EXIT_STATUS: u8 = 64;

fn main() -> ExitCode {
    let cli = cli::parse();
    match run(&cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Status(status)) => {
            eprintln!("ripc: {status}");
            let code = u8::try_from(status.code.number()).unwrap_or(u8::MAX - EXIT_STATUS);
            ExitCode::from(EXIT_STATUS + code)
        }
        Err(Failure::Text(text)) => {
            eprintln!("ripc: {text}");
            ExitCode::from(EXIT_FAILED)
        }
    }
}

fn run(cli: &Cli) -> Result<(), Failure> {
    match &cli.task {
        Task::List { time } => list(cli, *time),
        Task::Call {
            at,
            service,
            method,
            argument,
            room,
            timeout,
            urgency,
        } => {
            let endpoint = cli.caller(&at.keys)?;
            let client = client(&endpoint, at, service)?;
            let mut options = CallOptions::timeout(*timeout).and_urgency(*urgency);
            if *room > 0 {
                options = options.and_room(*room);
            }
            let payload = match argument.as_deref() {
                None => Payload::new(),
                Some("-") => {
                    let mut octets = Vec::new();
                    io::stdin().read_to_end(&mut octets)?;
                    Payload::short(octets)
                }
                Some(text) => Payload::short(text),
            };
            let reply = client.call(cli::method(method), payload, &options);
            let reply = reply.map_err(Failure::Status)?;
            let mut out = io::stdout().lock();
            for item in &reply.items {
                write_item(&mut out, item)?;
            }
            Ok(out.flush()?)
        }
        Task::Ping {
            at,
            service,
            count,
            interval,
            urgency,
        } => {
            let options = CallOptions::default().and_urgency(*urgency);
            ping(cli, at, service, *count, *interval, &options)
        }
        Task::ServeFiles {
            folder,
            listen,
            service,
            keys,
        } => files::serve(cli, folder, *listen, service, keys),
        Task::Gateway(task) => gateway::gateway(cli, task),
        Task::ServeGrpc(task) => gateway::serve(cli, task),
        Task::Keygen(task) => keys::keygen(task),
        Task::Token(task) => keys::token(task),
        Task::Bench(task) => bench::run(task),
    }
}

/// Writes an item, a long one in pieces.
fn write_item(out: &mut impl io::Write, item: &dgiwarp_ripc::Item) -> Result<(), Failure> {
    match item {
        dgiwarp_ripc::Item::Short(octets) => out.write_all(octets)?,
        dgiwarp_ripc::Item::Long(block) => {
            let mut piece = vec![0; 1 << 16];
            let mut at = 0;
            while at < block.len() {
                let length = piece.len().min(block.len() - at);
                block.read(at, &mut piece[..length])?;
                out.write_all(&piece[..length])?;
                at += length;
            }
        }
    }
    Ok(())
}

/// A client of a service: at an address, from a file, or of the group.
pub(crate) fn client(endpoint: &Endpoint, at: &Where, service: &str) -> Result<Client, Failure> {
    let name: dgiwarp_ripc::ServiceName = service.parse()?;
    if let Some(file) = &at.file {
        let addresses = StaticFile::read(file)?.addresses(name.id);
        if addresses.is_empty() {
            return Err(Failure::Text(format!(
                "{} has no service {service}",
                file.display()
            )));
        }
        return Ok(endpoint.client(name, addresses));
    }
    if !at.at.is_empty() {
        return Ok(endpoint.client(name, at.at.clone()));
    }
    let found = endpoint.resolve(service, at.resolve)?;
    found.ok_or_else(|| Failure::Text(format!("no endpoint of the group serves {service}")))
}

/// Reports connections that a server refused, until the process ends.
pub(crate) fn report_refused(endpoint: &Endpoint) -> ! {
    loop {
        for refused in endpoint.take_refused() {
            eprintln!("ripc: {} was refused: {}", refused.peer, refused.reason);
        }
        cli::pause(REPORT);
    }
}

fn list(cli: &Cli, time: Duration) -> Result<(), Failure> {
    let endpoint = cli.endpoint()?;
    let mut lines = Vec::new();
    for found in endpoint.list(time)? {
        for service in found.services {
            lines.push(format!(
                "{service:<24} {:<24} {:016x}",
                found.address.to_string(),
                found.instance
            ));
        }
    }
    lines.sort_unstable();
    for line in lines {
        println!("{line}");
    }
    Ok(())
}

/// Calls of a method that no service has: any answer of the server shows that it is there.
fn ping(
    cli: &Cli,
    at: &Where,
    service: &str,
    count: u32,
    interval: Duration,
    options: &CallOptions,
) -> Result<(), Failure> {
    let endpoint = cli.caller(&at.keys)?;
    let client = client(&endpoint, at, service)?;
    let mut answered = 0;
    let mut last = None;
    for number in 1..=count {
        let begun = bench::now();
        let result = client.call(cli::PING, Payload::new(), options);
        let took = begun.elapsed();
        match result.map_err(|status| (status.code, status)) {
            Ok(_) | Err((Code::Unimplemented, _)) => {
                answered += 1;
                println!("{service}: {number}, {:.1} µs", took.as_secs_f64() * 1e6);
            }
            Err((_, status)) => {
                println!("{service}: {number}, {status}");
                last = Some(status);
            }
        }
        if number < count {
            cli::pause(interval);
        }
    }
    println!("{answered} of {count} answered");
    match last {
        Some(status) if answered == 0 => Err(Failure::Status(status)),
        Some(_) | None => Ok(()),
    }
}
