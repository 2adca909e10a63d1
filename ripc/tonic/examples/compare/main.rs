//! Round trips of tonic's own channel, of RIPC's, of a typed service of RIPC, and of short messages of tarpc over TCP, client and server in one process, by turns: medians of five turns of each, and the least and the most time.
//! Calls are made by tasks of the runtime, which has a thread for each processor: one at a time, eight at a time, and of 100 MiB. HTTP/2's times of short calls one at a time differ by ten times
//! between runs, RIPC's by less than three: times say more than the ratio. `compare http2`, `compare ripc`, `compare typed` and `compare tarpc` run one of them alone, for `perf stat`; with `short` or `long` behind it,
//! short or long messages alone.

#[path = "../greeter/generated.rs"]
#[allow(warnings, clippy::all, reason = "it is generated")]
mod generated;

use std::pin::pin;
use std::time::{Duration, Instant};

use bytes::Bytes;
use dgiwarp_ripc::{Config, Endpoint};
use dgiwarp_ripc_service::{Blob, CallOptions, Context, service};
use dgiwarp_ripc_tonic::{Channel, Server};
use generated::greeter_client::GreeterClient;
use generated::greeter_server::{Greeter, GreeterServer};
use generated::{HelloReply, HelloRequest};
use tarpc::tokio_serde::formats::Bincode;
use tokio_stream::StreamExt as _;
use tonic::{Request, Response, Status, Streaming};

type Failure = Box<dyn std::error::Error>;

/// Bytes of a long message.
const LONG: usize = 100 << 20;
const TURNS: usize = 5;

#[derive(Clone)]
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

/// A typed service with the call of the other one.
#[service]
trait Typed {
    async fn hello(
        &self,
        context: Context,
        name: String,
        data: Blob,
    ) -> Result<(String, Blob), dgiwarp_ripc_service::Status>;
}

impl Typed for Echo {
    async fn hello(
        &self,
        _: Context,
        name: String,
        data: Blob,
    ) -> Result<(String, Blob), dgiwarp_ripc_service::Status> {
        Ok((name, data))
    }
}

/// The call as a service of tarpc.
#[tarpc::service]
trait Far {
    async fn hello(name: String, data: Vec<u8>) -> (String, Vec<u8>);
}

impl Far for Echo {
    async fn hello(
        self,
        _: tarpc::context::Context,
        name: String,
        data: Vec<u8>,
    ) -> (String, Vec<u8>) {
        (name, data)
    }
}

/// A client of tarpc and its server, over TCP.
async fn tarpc_client() -> Result<FarClient, Failure> {
    use tarpc::serde_transport::tcp;
    use tarpc::server::{BaseChannel, Channel as _};

    let mut incoming = tcp::listen("127.0.0.1:0", Bincode::default).await?;
    let address = incoming.local_addr();
    let (transport, accepted) =
        tokio::join!(tcp::connect(address, Bincode::default), incoming.next());
    let server = BaseChannel::with_defaults(accepted.ok_or("no connection")??);
    tokio::spawn(async move {
        let mut calls = pin!(server.execute(Far::serve(Echo)));
        while let Some(call) = calls.next().await {
            tokio::spawn(call);
        }
    });
    Ok(FarClient::new(tarpc::client::Config::default(), transport?).spawn())
}

impl Caller for FarClient {
    type Request = Vec<u8>;

    fn request(&self, length: usize) -> Result<Vec<u8>, Failure> {
        Ok(vec![7; length])
    }

    async fn call(&mut self, request: Vec<u8>) -> Result<usize, String> {
        let context = tarpc::context::current();
        let reply = self.hello(context, String::new(), request).await;
        reply.map(|it| it.1.len()).map_err(|it| it.to_string())
    }
}

/// Makes a call, of tonic, tarpc or typed.
trait Caller: Clone + Send + 'static {
    type Request: Clone + Send + Sync;
    /// Makes the request.
    fn request(&self, length: usize) -> Result<Self::Request, Failure>;
    /// Makes the call; returns the length of the data of its reply.
    fn call(
        &mut self,
        request: Self::Request,
    ) -> impl Future<Output = Result<usize, String>> + Send;
}

impl Caller for (TypedClient, Endpoint) {
    type Request = Blob;

    fn request(&self, length: usize) -> Result<Blob, Failure> {
        if length < LONG {
            return Ok(vec![7; length].into());
        }
        let block = self.1.block(length)?;
        for at in (0..length).step_by(1 << 20) {
            block.write(at, &vec![7; (1 << 20).min(length - at)])?;
        }
        Ok(block.into())
    }

    async fn call(&mut self, request: Blob) -> Result<usize, String> {
        let reply = self.0.hello(String::new(), request).await;
        reply.map(|it| it.1.len()).map_err(|it| it.to_string())
    }
}

impl<T> Caller for GreeterClient<T>
where
    T: tonic::client::GrpcService<tonic::body::Body> + Clone + Send + 'static,
    T::Error: Into<tonic::codegen::StdError>,
    T::Future: Send,
    T::ResponseBody: http_body::Body<Data = Bytes> + Send + 'static,
    <T::ResponseBody as http_body::Body>::Error: Into<tonic::codegen::StdError> + Send,
{
    type Request = HelloRequest;

    fn request(&self, length: usize) -> Result<HelloRequest, Failure> {
        let name = String::new();
        let data = Bytes::from(vec![7; length]);
        Ok(HelloRequest { name, data })
    }

    async fn call(&mut self, request: HelloRequest) -> Result<usize, String> {
        let reply = self.hello(request).await.map_err(|it| it.to_string())?;
        Ok(reply.into_inner().data.len())
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
#[expect(clippy::disallowed_methods, reason = "it measures")]
async fn turn(client: &impl Caller, kind: Kind) -> Result<(Duration, Duration), Failure> {
    let Kind {
        length,
        count,
        at_a_time,
    } = kind;
    let request = client.request(length)?;
    let (begun, used) = (Instant::now(), processor_time()?);
    let tasks: Vec<_> = (0..at_a_time)
        .map(|_| {
            let (mut client, request) = (client.clone(), request.clone());
            tokio::spawn(async move {
                for _ in 0..count / at_a_time {
                    assert_eq!(client.call(request.clone()).await?, length);
                }
                Ok::<_, String>(())
            })
        })
        .collect();
    for task in tasks {
        task.await??;
    }
    let used = processor_time()?.saturating_sub(used);
    Ok((begun.elapsed() / count, used / count))
}

fn median(mut times: Vec<(Duration, Duration)>) -> (Duration, Duration) {
    times.sort_unstable();
    let wall = times[times.len() / 2].0;
    times.sort_unstable_by_key(|it| it.1);
    (wall, times[times.len() / 2].1)
}

#[tokio::main]
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
    Typed::serve(Echo, &server, tokio::runtime::Handle::current())?;
    let address = server.local_addr().ok_or("it does not listen")?;
    let endpoint = Endpoint::open(Config::default())?;
    let channel = Channel::new(&endpoint, vec![address]).with_room(most);
    let short = Channel::new(&endpoint, vec![address]);
    let long = GreeterClient::new(channel).max_decoding_message_size(most);
    let ripc = GreeterClient::new(short);

    let typed = TypedClient::new(&endpoint, vec![address]);
    let mut options = CallOptions::default();
    options.timeout = None;
    let typed = typed.with_options(options.clone());
    let typed_long = (
        typed.clone().with_options(options.and_room(LONG)),
        endpoint.clone(),
    );
    let typed = (typed, endpoint.clone());

    let tarpc = tarpc_client().await?;

    let mut arguments = std::env::args().skip(1);
    let (only, lengths) = (arguments.next(), arguments.next());
    let runs = |name: &str| {
        only.as_deref()
            .is_none_or(|only| only == name || only == "all")
    };
    for kind in KINDS {
        let is_long = kind.length == LONG;
        let of = if is_long { "long" } else { "short" };
        if lengths.as_deref().is_some_and(|it| it != of) {
            continue;
        }
        let mut times = [const { Vec::new() }; 4];
        for _ in 0..TURNS {
            if runs("http2") {
                times[0].push(turn(&http2, kind).await?);
            }
            if runs("ripc") {
                let client = if is_long { &long } else { &ripc };
                times[1].push(turn(client, kind).await?);
            }
            if runs("typed") {
                let client = if is_long { &typed_long } else { &typed };
                times[2].push(turn(client, kind).await?);
            }
            // Its messages are at most 8 MiB long.
            if runs("tarpc") && !is_long {
                times[3].push(turn(&tarpc, kind).await?);
            }
        }
        report(kind, &times);
    }
    let status = std::fs::read_to_string("/proc/self/status")?;
    let peak = status.lines().find(|it| it.starts_with("VmHWM"));
    println!("both ends: {}", peak.unwrap_or_default());
    Ok(())
}

fn report(kind: Kind, times: &[Vec<(Duration, Duration)>; 4]) {
    let name = format!("{} bytes, {} at a time", kind.length, kind.at_a_time);
    let ratio = |a: Duration, b: Duration| a.as_secs_f64() / b.as_secs_f64().max(1e-9);
    for (transport, measured) in ["HTTP/2", "RIPC", "typed", "tarpc"].into_iter().zip(times) {
        if measured.is_empty() {
            continue;
        }
        let (time, used) = median(measured.clone());
        let walls = || measured.iter().map(|it| it.0);
        let (least, most) = (
            walls().min().unwrap_or_default(),
            walls().max().unwrap_or_default(),
        );
        print!("{name}: {transport} {time:?} ({least:?} to {most:?}), {used:?} of processors");
        if transport == "HTTP/2" || times[0].is_empty() {
            println!();
            continue;
        }
        let http2 = median(times[0].clone());
        let (time, used) = (ratio(time, http2.0), ratio(used, http2.1));
        println!("; {time:.2} and {used:.2} of HTTP/2");
    }
}
