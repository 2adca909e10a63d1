//! Peers of HTTP/2 that keep to no rules, or to no gRPC, on both sides.

use std::convert::Infallible;
use std::future::{Ready, poll_fn, ready};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use dgiwarp_ripc::{Config, Endpoint};
use dgiwarp_ripc_tonic::{Channel, Server as Services};
use h2::Reason;
use h2::client::SendRequest;
use http::{Request, Response, StatusCode};
use tokio::runtime::Handle;
use tokio::time::timeout;
use tonic::body::Body;
use tonic::{Code, Status};
use tower_service::Service;

use super::{SOON, Server, ripc};

/// Time of a gateway for the first octets of a connection.
const PREFACE_TIME: Duration = Duration::from_secs(10);

/// Responds with the messages of the request.
#[derive(Clone)]
struct Echo;

impl Service<Request<Body>> for Echo {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        ready(Ok(Response::new(request.into_body())))
    }
}

/// A gateway to a service of this process.
struct Gateway {
    process: Server,
    address: SocketAddr,
    _endpoint: Endpoint,
}

impl Gateway {
    fn start() -> Self {
        let config = Config::listening("127.0.0.1:0".parse().unwrap());
        let endpoint = Endpoint::open(config.without_group()).unwrap();
        let services = Services::new().with_fallback(Echo);
        services.serve(&endpoint, Handle::current()).unwrap();
        let at = endpoint.local_addr().unwrap().to_string();
        let mut command = ripc();
        command.args(["gateway", "--listen", "127.0.0.1:0", "--at", &at]);
        let process = Server::spawn(command.args(["--interface", "127.0.0.1"]));
        let address = process.address.parse().unwrap();
        Self {
            process,
            address,
            _endpoint: endpoint,
        }
    }

    async fn connect(&self) -> SendRequest<Bytes> {
        let stream = tokio::net::TcpStream::connect(self.address).await.unwrap();
        // Responses that a test does not read hold up no other one.
        let (sender, connection) = h2::client::Builder::new()
            .initial_connection_window_size(16 << 20)
            .handshake(stream)
            .await
            .unwrap();
        tokio::spawn(async move {
            let _ = connection.await;
        });
        sender
    }

    fn sockets(&self) -> usize {
        let folder = format!("/proc/{}/fd", self.process.child.id());
        let files = std::fs::read_dir(folder).unwrap().flatten();
        let links = files.flat_map(|file| std::fs::read_link(file.path()));
        links
            .filter(|it| it.to_string_lossy().starts_with("socket:"))
            .count()
    }

    /// Calls as others do, and sees that nothing is left of those before.
    async fn serves(&self, sockets: usize) {
        let sender = self.connect().await;
        let (status, octets) = timeout(SOON, call(sender, "application/grpc", b"\0\0\0\0\x01x"))
            .await
            .unwrap();
        assert_eq!(
            (status, &octets[..]),
            (StatusCode::OK, &b"\0\0\0\0\x01x"[..])
        );
        let closed = async {
            while self.sockets() > sockets {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(SOON, closed).await.unwrap();
        let resident = self.process.memory("VmHWM:");
        assert!(resident < 150 << 10, "{resident} KiB");
    }
}

fn post(kind: &str) -> Request<()> {
    let request = Request::post("http://localhost/test.Octets/Echo");
    let request = request.header("content-type", kind);
    request.header("te", "trailers").body(()).unwrap()
}

async fn call(
    sender: SendRequest<Bytes>,
    kind: &str,
    octets: &'static [u8],
) -> (StatusCode, Vec<u8>) {
    let mut sender = sender.ready().await.unwrap();
    let (response, mut body) = sender.send_request(post(kind), false).unwrap();
    body.send_data(Bytes::from_static(octets), true).unwrap();
    let (head, mut body) = response.await.unwrap().into_parts();
    let mut octets = Vec::new();
    while let Some(more) = body.data().await {
        octets.extend(more.unwrap());
    }
    (head.status, octets)
}

#[tokio::test(flavor = "multi_thread")]
async fn octets_of_other_protocols_end_their_connection_alone() {
    let gateway = Gateway::start();
    gateway.serves(usize::MAX).await;
    let sockets = gateway.sockets();
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let behind = |octets: &[u8]| [preface, octets].concat();
    for octets in [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec(),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 and on for more than a preface".to_vec(),
        vec![0xff; 100_000],
        // Frames of no kind, of a wrong length, too long, and on a stream of its own.
        behind(&[0xff; 1000]),
        behind(b"\x00\x00\x05\x04\x00\x00\x00\x00\x00abcde"),
        behind(b"\xff\xff\xff\x00\x00\x00\x00\x00\x01"),
        behind(b"\x00\x00\x01\x00\x00\x00\x00\x00\x01a"),
    ] {
        let mut stream = TcpStream::connect(gateway.address).unwrap();
        stream.set_read_timeout(Some(PREFACE_TIME)).unwrap();
        // It may be closed in the middle.
        let _ = stream.write_all(&octets);
        let mut rest = Vec::new();
        let ended = stream.read_to_end(&mut rest);
        let open = |error: &std::io::Error| error.kind() == std::io::ErrorKind::WouldBlock;
        assert!(!ended.is_err_and(|error| open(&error)), "{octets:?}");
    }
    gateway.serves(sockets).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_of_another_kind_than_grpc_are_refused() {
    let gateway = Gateway::start();
    let sender = gateway.connect().await;
    for kind in ["application/json", "application/grpcx", ""] {
        let (status, _) = call(sender.clone(), kind, b"{}").await;
        assert_eq!(status, StatusCode::UNSUPPORTED_MEDIA_TYPE, "{kind}");
    }
    for kind in [
        "application/grpc",
        "application/grpc+proto",
        "application/grpc;a=b",
    ] {
        let (status, octets) = call(sender.clone(), kind, b"\0\0\0\0\0").await;
        assert_eq!((status, octets), (StatusCode::OK, vec![0; 5]), "{kind}");
    }
    let get = Request::get("http://localhost/").body(()).unwrap();
    let mut sender = sender.ready().await.unwrap();
    let (response, _) = sender.send_request(get, true).unwrap();
    let status = response.await.unwrap().status();
    assert_eq!(status, StatusCode::UNSUPPORTED_MEDIA_TYPE);
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_without_a_beginning_leave_their_places_to_others() {
    let gateway = Gateway::start();
    gateway.serves(usize::MAX).await;
    let sockets = gateway.sockets();
    // More than there are places for.
    let silent: Vec<_> = (0..300)
        .map(|at| {
            let mut stream = TcpStream::connect(gateway.address).unwrap();
            stream
                .write_all(&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..at % 24])
                .unwrap();
            stream
        })
        .collect();
    gateway.serves(usize::MAX).await;
    drop(silent);
    gateway.serves(sockets).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_that_are_reset_at_once_leave_nothing() {
    let gateway = Gateway::start();
    gateway.serves(usize::MAX).await;
    let sockets = gateway.sockets();
    for _ in 0..5 {
        let mut sender = gateway.connect().await;
        for _ in 0..10_000 {
            // The gateway ends the connection at some point.
            let Ok(ready) = sender.ready().await else {
                break;
            };
            sender = ready;
            let Ok((_, mut body)) = sender.send_request(post("application/grpc"), false) else {
                break;
            };
            body.send_reset(Reason::CANCEL);
        }
    }
    gateway.serves(sockets).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_that_are_announced_and_never_come_take_no_memory() {
    let gateway = Gateway::start();
    gateway.serves(usize::MAX).await;
    let sockets = gateway.sockets();
    let mut connections = Vec::new();
    for _ in 0..10 {
        let mut sender = gateway.connect().await;
        for _ in 0..100 {
            sender = sender.ready().await.unwrap();
            let (response, mut body) = sender
                .send_request(post("application/grpc"), false)
                .unwrap();
            // Of 1 GiB, and a little of it.
            let octets = [b"\0\x40\0\0\0".to_vec(), vec![7; 10_000]].concat();
            body.send_data(octets.into(), false).unwrap();
            connections.push((sender.clone(), response, body));
        }
    }
    // All have begun where one behind them is over.
    let (status, _) = call(connections[0].0.clone(), "application/grpc", b"\0\0\0\0\0").await;
    assert_eq!(status, StatusCode::OK);
    gateway.serves(usize::MAX).await;
    drop(connections);
    gateway.serves(sockets).await;
}

/// The result of a call of a program at this address, over RIPC.
async fn called(program: SocketAddr, time: &str) -> Result<(), Status> {
    let mut command = ripc();
    command.args(["serve-grpc", &program.to_string()]);
    command.args(["--listen", "127.0.0.1:0", "--interface", "127.0.0.1"]);
    let service = Server::spawn(&mut command);
    let endpoint = Endpoint::open(Config::default().without_group()).unwrap();
    let mut channel = Channel::new(&endpoint, vec![service.address.parse().unwrap()]);
    let (head, ()) = post("application/grpc").into_parts();
    let mut request = Request::from_parts(head, Body::empty());
    let headers = request.headers_mut();
    headers.insert("grpc-timeout", time.parse().unwrap());
    let Ok(response) = timeout(SOON, channel.call(request)).await.unwrap();
    Status::from_header_map(response.headers()).map_or(Ok(()), Err)
}

#[tokio::test(flavor = "multi_thread")]
async fn programs_that_speak_no_http2_are_not_available() {
    for octets in [&b""[..], b"HTTP/1.1 400 Bad Request\r\n\r\n", &[0xff; 1000]] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let answering = std::thread::spawn(move || {
            // A call that was not taken is sent once more.
            for _ in 0..2 {
                let mut stream = listener.accept().unwrap().0;
                stream.write_all(octets).unwrap();
                let _ = stream.read(&mut [0; 24]);
            }
        });
        let status = called(address, "50S").await.unwrap_err();
        assert_eq!(status.code(), Code::Unavailable, "{octets:?} {status}");
        // It may have been accepted once.
        let _ = TcpStream::connect(address);
        answering.join().unwrap();
    }
    // It accepts, and is silent.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let status = called(listener.local_addr().unwrap(), "500m").await;
    assert_eq!(status.unwrap_err().code(), Code::DeadlineExceeded);
}

#[tokio::test(flavor = "multi_thread")]
async fn responses_without_grpc_have_the_status_of_http() {
    type Respond = h2::server::SendResponse<Bytes>;
    type Answer = Box<dyn Fn(Respond) + Send>;
    let http = |status: u16, kind: &'static str| {
        move |mut respond: Respond| {
            let response = Response::builder()
                .status(status)
                .header("content-type", kind);
            respond
                .send_response(response.body(()).unwrap(), true)
                .unwrap();
        }
    };
    let reset = |reason: Reason| move |mut respond: Respond| respond.send_reset(reason);
    let kinds: Vec<(Answer, Option<Code>)> = vec![
        (Box::new(http(200, "application/grpc")), None),
        (Box::new(http(200, "text/html")), Some(Code::Unknown)),
        (
            Box::new(http(404, "application/grpc")),
            Some(Code::Unimplemented),
        ),
        (Box::new(http(503, "text/html")), Some(Code::Unavailable)),
        (
            Box::new(http(401, "text/html")),
            Some(Code::Unauthenticated),
        ),
        (
            Box::new(reset(Reason::REFUSED_STREAM)),
            Some(Code::Unavailable),
        ),
        (
            Box::new(reset(Reason::ENHANCE_YOUR_CALM)),
            Some(Code::ResourceExhausted),
        ),
        (Box::new(reset(Reason::CANCEL)), Some(Code::Cancelled)),
        (
            Box::new(reset(Reason::INTERNAL_ERROR)),
            Some(Code::Internal),
        ),
    ];
    for (at, (kind, code)) in kinds.into_iter().enumerate() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let serving = tokio::spawn(async move {
            let stream = listener.accept().await.unwrap().0;
            let mut connection = h2::server::handshake(stream).await.unwrap();
            let (_, respond) = connection.accept().await.unwrap().unwrap();
            kind(respond);
            let _ = poll_fn(|context| connection.poll_closed(context)).await;
        });
        let result = called(address, "50S").await;
        assert_eq!(result.err().map(|it| it.code()), code, "{at}");
        serving.abort();
    }
}
