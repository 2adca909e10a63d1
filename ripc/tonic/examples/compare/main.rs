//! Round trips of tonic's own channel and of RIPC's, client and server in one process, by turns: medians of five turns of each. Calls are made by tasks of the
//! runtime: one at a time, eight at a time, and of 100 MiB. `compare http2` and `compare ripc` run one of both alone, for `perf stat`.

#[path = "../greeter/generated.rs"]
#[allow(warnings, clippy::all, reason = "it is generated")]
mod generated;

use std::time::{Duration, Instant};

use bytes::Bytes;
use dgiwarp_ripc::{Config, Endpoint};
use dgiwarp_ripc_tonic::{Channel, Server};
use generated::greeter_client::GreeterClient;
use generated::greeter_server::{Greeter, GreeterServer};
use generated::{HelloReply, HelloRequest};
use tonic::{Request, Response, Status, Streaming};

type Failure = Box<dyn std::error::Error>;

/// Bytes of a long message.
const LONG: usize = 100 << 20;
const TURNS: usize = 5;

struct Echo;

#[tonic::async_trait]
impl Greeter for Echo {
    async fn hello(&self, request: Request<HelloRequest>) -> Result<Response<HelloReply>, Status> {
        let HelloRequest { name, data } = request.into_inner();
        Ok(Response::new(HelloReply { text: name, data }))
    }

    type HelloOftenStream = tokio_stream::Empty<Result<HelloReply, Status>>;

    async fn hello_often(
        &self,
        _: Request<HelloRequest>,
    ) -> Result<Response<Self::HelloOftenStream>, Status> {
        Err(Status::unimplemented("not measured"))
    }

    async fn hello_all(
        &self,
        _: Request<Streaming<HelloRequest>>,
    ) -> Result<Response<HelloReply>, Status> {
        Err(Status::unimplemented("not measured"))
    }

    type HelloEachStream = tokio_stream::Empty<Result<HelloReply, Status>>;

    async fn hello_each(
        &self,
        _: Request<Streaming<HelloRequest>>,
    ) -> Result<Response<Self::HelloEachStream>, Status> {
        Err(Status::unimplemented("not measured"))
    }
}

/// Time of the process on all processors, by steps of 10 ms.
fn processor_time() -> Result<Duration, Failure> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let (_, fields) = stat.rsplit_once(") ").ok_or("no fields")?;
    let mut sum = 0;
    for field in fields.split(' ').skip(11).take(2) {
        sum += field.parse::<u64>()?;
    }
    Ok(Duration::from_millis(10 * sum))
}

/// Subject of a turn: bytes of a message, calls, and calls at a time.
#[derive(Debug, Clone, Copy)]
struct Kind {
    length: usize,
    count: u32,
    at_a_time: u32,
}

const KINDS: [Kind; 3] = [
    Kind {
        length: 64,
        count: 5000,
        at_a_time: 1,
    },
    Kind {
        length: 64,
        count: 20_000,
        at_a_time: 8,
    },
    Kind {
        length: LONG,
        count: 3,
        at_a_time: 1,
    },
];

/// Time of one call, and processor time.
macro_rules! turn {
    ($client:expr, $kind:expr) => {{
        let Kind {
            length,
            count,
            at_a_time,
        } = $kind;
        let request = HelloRequest {
            name: String::new(),
            data: Bytes::from(vec![7; length]),
        };
        let (begun, used) = (Instant::now(), processor_time()?);
        let tasks: Vec<_> = (0..at_a_time)
            .map(|_| {
                let (mut client, request) = ($client.clone(), request.clone());
                tokio::spawn(async move {
                    for _ in 0..count / at_a_time {
                        let reply = client.hello(request.clone()).await?;
                        assert_eq!(reply.into_inner().data.len(), length);
                    }
                    Ok::<_, Status>(())
                })
            })
            .collect();
        for task in tasks {
            task.await??;
        }
        let used = processor_time()?.saturating_sub(used);
        (begun.elapsed() / count, used / count)
    }};
}

fn median(mut times: Vec<(Duration, Duration)>) -> (Duration, Duration) {
    times.sort_unstable();
    let wall = times[times.len() / 2].0;
    times.sort_unstable_by_key(|it| it.1);
    (wall, times[times.len() / 2].1)
}

#[tokio::main]
#[expect(clippy::disallowed_methods, reason = "it measures")]
async fn main() -> Result<(), Failure> {
    let most = LONG + 1024;
    let service = || GreeterServer::new(Echo).max_decoding_message_size(most);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let uri = format!("http://{}", listener.local_addr()?);
    let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
    let http2 = tonic::transport::Server::builder().add_service(service());
    tokio::spawn(http2.serve_with_incoming(incoming));
    let channel = tonic::transport::Endpoint::from_shared(uri)?
        .connect()
        .await?;
    let http2 = GreeterClient::new(channel).max_decoding_message_size(most);

    let server = Endpoint::open(Config::listening("127.0.0.1:0".parse()?))?;
    let services = Server::new().add_service(service());
    services.serve(&server, tokio::runtime::Handle::current())?;
    let address = server.local_addr().ok_or("it does not listen")?;
    let endpoint = Endpoint::open(Config::default())?;
    let channel = Channel::new(&endpoint, vec![address]).with_room(most);
    let short = Channel::new(&endpoint, vec![address]);
    let long = GreeterClient::new(channel).max_decoding_message_size(most);
    let ripc = GreeterClient::new(short);

    let only = std::env::args().nth(1);
    let runs = |name: &str| only.as_deref().is_none_or(|only| only == name);
    for kind in KINDS {
        let (mut theirs, mut ours) = (Vec::new(), Vec::new());
        for _ in 0..TURNS {
            if runs("http2") {
                theirs.push(turn!(http2, kind));
            }
            if runs("ripc") {
                ours.push(if kind.length == LONG {
                    turn!(long, kind)
                } else {
                    turn!(ripc, kind)
                });
            }
        }
        let Kind {
            length, at_a_time, ..
        } = kind;
        let name = format!("{length} bytes, {at_a_time} at a time");
        for (transport, times) in [("HTTP/2", &theirs), ("RIPC", &ours)] {
            if !times.is_empty() {
                let (time, used) = median(times.clone());
                println!("{name}: {transport} {time:?}, {used:?} of processors");
            }
        }
        if theirs.is_empty() || ours.is_empty() {
            continue;
        }
        let (theirs, ours) = (median(theirs), median(ours));
        let ratio = |a: Duration, b: Duration| a.as_secs_f64() / b.as_secs_f64().max(1e-9);
        let (time, used) = (ratio(ours.0, theirs.0), ratio(ours.1, theirs.1));
        println!("{name}: time {time:.2} of HTTP/2, processors {used:.2}");
    }
    Ok(())
}
