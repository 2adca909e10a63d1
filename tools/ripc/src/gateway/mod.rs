//! Programs that speak gRPC over HTTP/2, on either side of RIPC. Calls and messages pass as octets: the mapping to RIPC is that of `dgiwarp-ripc-tonic`.

mod address;
mod attempt;
mod body;
mod clients;
mod server;

use std::net::SocketAddr;

use clap::Args;
use dgiwarp_ripc::{Config, Endpoint};
use dgiwarp_ripc_tonic::{SERVICE, Server};
use http::HeaderMap;
use http::header::CONTENT_TYPE;
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};

use self::address::Address;
use self::body::Sizes;
use crate::cli::{Cli, Where, bytes};
use crate::keys::ServerKeys;
use crate::{Failure, report_refused};

/// Window of a stream of HTTP/2, in octets.
const WINDOW: u32 = 64 << 10;
/// Most octets of the headers of a call. More than the 16 KiB that RIPC carries: it has a status of gRPC for these, and HTTP/2 has none.
const HEADERS: u32 = 64 << 10;
/// Longest message that is gathered before it is sent, in octets: the window of a stream has room for it.
const GATHERED: u32 = WINDOW;
/// As [`GATHERED`], where messages of RIPC may be sealed, and have to have it inside.
const GATHERED_SEALED: u32 = 1 << 10;

/// Calls of programs that speak HTTP/2.
#[derive(Debug, Args)]
pub(crate) struct Gateway {
    /// Address that programs connect to: unix:PATH, or an address and a port
    #[arg(long, value_name = "ADDRESS")]
    listen: Address,
    #[command(flatten)]
    at: Where,
    /// Service that carries gRPC; may be repeated: each has the calls of the gRPC service of its name, and the first one all others
    #[arg(long, default_value = SERVICE)]
    service: Vec<String>,
    #[command(flatten)]
    limits: Limits,
}

/// A program that serves gRPC.
#[derive(Debug, Args)]
pub(crate) struct ServeGrpc {
    /// Address of the program: unix:PATH, or an address and a port
    program: Address,
    /// Address and port to listen on
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "0.0.0.0:0")]
    listen: SocketAddr,
    /// Name of the service
    #[arg(long, default_value = SERVICE)]
    service: String,
    #[command(flatten)]
    keys: ServerKeys,
    #[command(flatten)]
    limits: Limits,
}

#[derive(Debug, Args)]
struct Limits {
    /// Longest gRPC message, in bytes, or with K, M or G: a longer one ends its call
    #[arg(long, value_name = "BYTES", default_value = "1G", value_parser = bytes)]
    longest: usize,
}

impl Limits {
    fn apply(&self, config: &mut Config) -> Sizes {
        let longest = u32::try_from(self.longest).unwrap_or(u32::MAX);
        config.limits.item = longest.into();
        let is_open = config.security.is_none();
        let gathered = if is_open { GATHERED } else { GATHERED_SEALED };
        Sizes { longest, gathered }
    }
}

/// Carries calls of programs that connect until the process is to end.
pub(crate) fn gateway(cli: &Cli, task: &Gateway) -> Result<(), Failure> {
    let mut config = cli.config();
    task.at.keys.apply(&mut config)?;
    let sizes = task.limits.apply(&mut config);
    let endpoint = Endpoint::open(config)?;
    let runtime = Runtime::new()?;
    runtime.block_on(async {
        let routes = clients::Routes::new(&endpoint, &task.at, &task.service, sizes)?;
        let listener = task.listen.listen().await;
        let listener =
            listener.map_err(|error| Failure::Text(format!("{}: {error}", task.listen)))?;
        println!("gRPC at {}", listener.address()?);
        let mut signals = [
            signal(SignalKind::interrupt())?,
            signal(SignalKind::terminate())?,
        ];
        let [interrupt, terminate] = &mut signals;
        tokio::select! {
            never = clients::serve(&listener, routes) => match never {},
            _ = interrupt.recv() => Ok(()),
            _ = terminate.recv() => Ok(()),
        }
    })
}

/// Serves the calls of a program that serves gRPC.
pub(crate) fn serve(cli: &Cli, task: &ServeGrpc) -> Result<(), Failure> {
    let mut config = cli.config();
    config.listen = Some(task.listen);
    task.keys.apply(&mut config)?;
    let sizes = task.limits.apply(&mut config);
    let endpoint = Endpoint::open(config)?;
    let runtime = Runtime::new()?;
    let program = server::Server::new(task.program.clone(), sizes);
    let services = Server::new().with_fallback(program);
    services.serve_as(&task.service, &endpoint, runtime.handle().clone())?;
    if let Some(address) = endpoint.local_addr() {
        println!("{} at {address}", task.service);
    }
    report_refused(&endpoint)
}

/// Whether a message of HTTP is of gRPC.
fn is_grpc(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).map(http::HeaderValue::as_bytes);
    let rest = kind.and_then(|kind| kind.strip_prefix(b"application/grpc"));
    rest.is_some_and(|rest| rest.first().is_none_or(|it| b"+;".contains(it)))
}
