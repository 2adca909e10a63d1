//! A generated client and service, over HTTP/2 and over RIPC: the tests of `both` run on each.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod both;
mod lost;
mod relay;
mod runtimes;
mod secure;
mod streams;

#[path = "../../examples/greeter/generated.rs"]
#[allow(warnings, clippy::all, reason = "it is generated")]
mod generated;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use dgiwarp_ripc::{Config, Endpoint};
use dgiwarp_ripc_tonic::{Channel, Server};
use generated::greeter_client::GreeterClient;
use generated::greeter_server::{Greeter, GreeterServer};
use generated::{HelloReply, HelloRequest};
use tokio_stream::{Stream, StreamExt};
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::{Code, Request, Response, Status, Streaming};

/// Generous: tests run on loaded machines.
const SOON: Duration = Duration::from_secs(60);

/// Handlers that are dropped or end.
#[derive(Debug, Default)]
struct Counts {
    begun: AtomicUsize,
    dropped: AtomicUsize,
    /// Messages of streams that were made.
    produced: AtomicUsize,
    /// Lets a handler go on that holds.
    release: tokio::sync::Notify,
}

#[derive(Debug, Clone, Default)]
struct Service(Arc<Counts>);

struct Dropped(Arc<Counts>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.dropped.fetch_add(1, Ordering::SeqCst);
    }
}

#[tonic::async_trait]
impl Greeter for Service {
    async fn hello(&self, request: Request<HelloRequest>) -> Result<Response<HelloReply>, Status> {
        self.0.begun.fetch_add(1, Ordering::SeqCst);
        let _dropped = Dropped(Arc::clone(&self.0));
        let (metadata, extensions, message) = request.into_parts();
        let urgency = extensions.get::<dgiwarp_ripc::Urgency>().copied();
        match message.name.split_once(' ') {
            Some(("fail", code)) => {
                let mut with = MetadataMap::new();
                with.insert("reason", "on-purpose".parse().unwrap());
                with.insert_bin("reason-bin", MetadataValue::from_bytes(&[0, 255, 10]));
                let code = Code::from(code.parse::<i32>().unwrap());
                let details = vec![1, 0, 2].into();
                return Err(Status::with_details_and_metadata(
                    code,
                    "no: ü%\n",
                    details,
                    with,
                ));
            }
            Some(("urgency", _)) => {
                let level = urgency.map_or(99, dgiwarp_ripc::Urgency::level);
                return Ok(Response::new(HelloReply {
                    text: level.to_string(),
                    data: message.data,
                }));
            }
            Some(("sleep", "long")) => tokio::time::sleep(SOON).await,
            Some(("panic", _)) => panic!("on purpose"),
            Some(("panic-later", _)) => {
                tokio::time::sleep(Duration::from_millis(5)).await;
                panic!("on purpose");
            }
            Some(("wait", milliseconds)) => {
                tokio::time::sleep(Duration::from_millis(milliseconds.parse().unwrap())).await;
            }
            _ => {}
        }
        let text = format!("Hello {}!", message.name);
        let mut response = Response::new(HelloReply {
            text,
            data: message.data,
        });
        for name in ["a-text", "a-bin"] {
            for value in metadata.as_ref().get_all(name) {
                let name: http::HeaderName = name.parse().unwrap();
                let mut headers = response.metadata().clone().into_headers();
                headers.append(name, value.clone());
                *response.metadata_mut() = MetadataMap::from_headers(headers);
            }
        }
        Ok(response)
    }

    type HelloOftenStream =
        std::pin::Pin<Box<dyn Stream<Item = Result<HelloReply, Status>> + Send>>;

    async fn hello_often(
        &self,
        request: Request<HelloRequest>,
    ) -> Result<Response<Self::HelloOftenStream>, Status> {
        let name = request.into_inner().name;
        let words: Vec<_> = name.split(' ').collect();
        let number = |at: usize| words.get(at).map_or(0, |it| it.parse().unwrap());
        let (count, length) = (number(1), number(2));
        let counts = Arc::clone(&self.0);
        counts.begun.fetch_add(1, Ordering::SeqCst);
        let dropped = Dropped(Arc::clone(&counts));
        let replies = tokio_stream::iter(0..count).map(move |at| {
            let _ = &dropped;
            counts.produced.fetch_add(1, Ordering::SeqCst);
            Ok(HelloReply {
                text: at.to_string(),
                data: pattern(at, length),
            })
        });
        let stream: Self::HelloOftenStream = match words[0] {
            "count" => Box::pin(replies),
            "fail-behind" => Box::pin(replies.chain(tokio_stream::once(Err(failure())))),
            "hang-behind" => Box::pin(replies.chain(tokio_stream::pending())),
            _ => return Err(failure()),
        };
        let mut response = Response::new(stream);
        let metadata = response.metadata_mut();
        metadata.insert("a-text", "of a stream".parse().unwrap());
        Ok(response)
    }

    async fn hello_all(
        &self,
        request: Request<Streaming<HelloRequest>>,
    ) -> Result<Response<HelloReply>, Status> {
        self.0.begun.fetch_add(1, Ordering::SeqCst);
        let _dropped = Dropped(Arc::clone(&self.0));
        let mut requests = request.into_inner();
        let (mut count, mut sum) = (0_usize, 0_u64);
        while let Some(request) = requests.message().await? {
            match request.name.as_str() {
                "enough" => break,
                "fail" => return Err(failure()),
                "hold" => self.0.release.notified().await,
                _ => {}
            }
            count += 1;
            let octets = request.data.iter().enumerate();
            let weighed = octets.map(|(at, it)| (at as u64 + 1) * u64::from(*it));
            sum = sum.wrapping_mul(31).wrapping_add(weighed.sum());
        }
        Ok(Response::new(HelloReply {
            text: format!("{count} {sum}"),
            ..HelloReply::default()
        }))
    }

    type HelloEachStream = Self::HelloOftenStream;

    async fn hello_each(
        &self,
        request: Request<Streaming<HelloRequest>>,
    ) -> Result<Response<Self::HelloEachStream>, Status> {
        self.0.begun.fetch_add(1, Ordering::SeqCst);
        let dropped = Dropped(Arc::clone(&self.0));
        let replies = request.into_inner().map(move |request| {
            let _ = &dropped;
            let HelloRequest { name, data } = request?;
            if name == "fail" {
                return Err(failure());
            }
            Ok(HelloReply { text: name, data })
        });
        Ok(Response::new(Box::pin(replies)))
    }
}

/// A failure with all that a status has.
fn failure() -> Status {
    let mut with = MetadataMap::new();
    with.insert("reason", "on-purpose".parse().unwrap());
    let details = vec![1, 0, 2].into();
    Status::with_details_and_metadata(Code::DataLoss, "no: ü%\n", details, with)
}

/// Octets of message `at`.
fn pattern(at: usize, length: usize) -> bytes::Bytes {
    let octets = (0..length).map(|it| ((it * 7 + it / 251 + at) % 256).to_le_bytes()[0]);
    octets.collect::<Vec<_>>().into()
}

fn endpoint(listen: &str) -> Endpoint {
    let config = Config::listening(listen.parse().unwrap());
    Endpoint::open(config.without_group()).unwrap()
}

/// A server on RIPC, and a channel to it.
fn over_ripc(service: &Service) -> (Endpoint, Channel) {
    let server = endpoint("127.0.0.1:0");
    let services = Server::new().add_service(limited(GreeterServer::new(service.clone())));
    services
        .serve(&server, tokio::runtime::Handle::current())
        .unwrap();
    let client = Endpoint::open(Config::default().without_group()).unwrap();
    let channel = Channel::new(&client, vec![server.local_addr().unwrap()]);
    (server, channel)
}

/// With a limit of messages, and compression for clients that take it.
fn limited(server: GreeterServer<Service>) -> GreeterServer<Service> {
    let gzip = tonic::codec::CompressionEncoding::Gzip;
    let server = server.accept_compressed(gzip).send_compressed(gzip);
    server.max_decoding_message_size(4 << 20)
}

/// A channel of tonic's own to a server of its own.
async fn over_http2(service: &Service) -> tonic::transport::Channel {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
    let server = limited(GreeterServer::new(service.clone()));
    let server = tonic::transport::Server::builder().add_service(server);
    tokio::spawn(server.serve_with_incoming(incoming));
    let uri = format!("http://{address}");
    let endpoint = tonic::transport::Endpoint::from_shared(uri).unwrap();
    endpoint.connect().await.unwrap()
}

fn hello(name: &str) -> Request<HelloRequest> {
    Request::new(HelloRequest {
        name: name.to_owned(),
        data: Default::default(),
    })
}

async fn begun(counts: &AtomicUsize, count: usize) {
    let reached = async {
        while counts.load(Ordering::SeqCst) < count {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(SOON, reached).await.unwrap();
}

/// A client on each of the two transports.
macro_rules! on_both {
    ($service:ident, $client:ident, $body:block) => {{
        let http2 = async {
            let $service = Service::default();
            let channel = over_http2(&$service).await;
            #[allow(unused_mut, reason = "not all tests call more than once")]
            let mut $client = GreeterClient::new(channel);
            $body
        }
        .await;
        let ripc = async {
            let $service = Service::default();
            let (_server, channel) = over_ripc(&$service);
            #[allow(unused_mut, reason = "not all tests call more than once")]
            let mut $client = GreeterClient::new(channel);
            $body
        }
        .await;
        (http2, ripc)
    }};
}
use on_both;
