//! Round trips of tonic's own channel and of RIPC's, client and server in one process, by turns: medians of five turns of each.

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

/// Time of one call of `count`, and processor time.
macro_rules! turn {
    ($client:expr, $length:expr, $count:expr) => {{
        let request = HelloRequest {
            name: String::new(),
            data: Bytes::from(vec![7; $length]),
        };
        let (begun, used) = (Instant::now(), processor_time()?);
        for _ in 0..$count {
            let reply = $client.hello(request.clone()).await?;
            assert_eq!(reply.into_inner().data.len(), $length);
        }
        let used = processor_time()?.saturating_sub(used);
        (begun.elapsed() / $count, used / $count)
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
    let mut http2 = GreeterClient::new(channel).max_decoding_message_size(most);

    let server = Endpoint::open(Config::listening("127.0.0.1:0".parse()?))?;
    let services = Server::new().add_service(service());
    services.serve(&server, tokio::runtime::Handle::current())?;
    let address = server.local_addr().ok_or("it does not listen")?;
    let endpoint = Endpoint::open(Config::default())?;
    let channel = Channel::new(&endpoint, vec![address]).with_room(most);
    let short = Channel::new(&endpoint, vec![address]);
    let mut long = GreeterClient::new(channel).max_decoding_message_size(most);
    let mut ripc = GreeterClient::new(short);

    for (length, count) in [(64, 5000), (LONG, 3)] {
        let (mut theirs, mut ours) = (Vec::new(), Vec::new());
        for _ in 0..TURNS {
            theirs.push(turn!(http2, length, count));
            ours.push(if length == LONG {
                turn!(long, length, count)
            } else {
                turn!(ripc, length, count)
            });
        }
        let (theirs, ours) = (median(theirs), median(ours));
        println!(
            "{length} bytes: HTTP/2 {:?}, {:?} of processors",
            theirs.0, theirs.1
        );
        println!(
            "{length} bytes: RIPC {:?}, {:?} of processors",
            ours.0, ours.1
        );
        let ratio = |a: Duration, b: Duration| a.as_secs_f64() / b.as_secs_f64().max(1e-9);
        let (time, used) = (ratio(ours.0, theirs.0), ratio(ours.1, theirs.1));
        println!("{length} bytes: time {time:.2} of HTTP/2, processors {used:.2}");
    }
    Ok(())
}
