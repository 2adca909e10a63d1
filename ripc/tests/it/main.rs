//! Endpoints on real sockets.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::disallowed_methods, reason = "tests wait until a deadline")]

mod calls;
mod driver;
mod hostile;
mod instances;
mod long;
mod messages;
mod resolver;
mod secure;
mod strangers;
mod streams;
mod tokens;
mod urgency;

use std::time::Duration;

use dgiwarp_ripc::{Client, Config, Endpoint, MethodId, Payload, Request, Status};

/// Generous: tests run on loaded machines.
const SOON: Duration = Duration::from_secs(60);

const ECHO: MethodId = MethodId::named("echo");

fn server_config() -> Config {
    Config::listening("127.0.0.1:0".parse().unwrap()).without_group()
}

/// A server of `service` on the loopback interface.
fn serve(
    config: Config,
    service: &str,
    handler: impl Fn(Request) -> Result<Payload, Status> + Send + Sync + 'static,
) -> Endpoint {
    let server = Endpoint::open(config).unwrap();
    server.serve(service, handler).unwrap();
    server
}

fn client_of(client: &Endpoint, server: &Endpoint, service: &str) -> Client {
    let address = server.local_addr().unwrap();
    client.client(service.parse().unwrap(), vec![address])
}

/// Octets that differ from place to place.
fn octets(length: usize) -> Vec<u8> {
    (0..length)
        .map(|at| (at * 7 + at / 251).to_le_bytes()[0])
        .collect()
}
