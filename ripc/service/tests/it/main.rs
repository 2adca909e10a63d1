//! Typed services on real sockets.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use dgiwarp_ripc::{Item, MethodId, Payload};
use dgiwarp_ripc_service::{
    Blob, CallOptions, Code, Config, Context, Endpoint, Handle, LoadBalancing, Metadata, Status,
    Urgency, service,
};
use serde::{Deserialize, Serialize};

/// Generous: tests run on loaded machines.
const SOON: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
enum Shape {
    Point,
    Circle { radius: f64 },
    Polygon(Vec<(i32, i32)>),
}

#[service]
trait Shapes {
    async fn echo(
        &self,
        context: Context,
        shape: Shape,
        times: u8,
        by_name: BTreeMap<String, Option<Shape>>,
    ) -> Result<(Vec<Shape>, BTreeMap<String, Option<Shape>>), Status>;
    async fn about(&self, context: Context) -> Result<(bool, bool, Option<Vec<u8>>), Status>;
    async fn urgency(&self, context: Context) -> Result<u8, Status>;
    async fn fail(&self, context: Context, code: u16) -> Result<(), Status>;
    async fn hold(&self, context: Context) -> Result<(), Status>;
    async fn panic(&self, context: Context, later: bool) -> Result<(), Status>;
    async fn bytes(&self, context: Context, data: Vec<u8>) -> Result<Vec<u8>, Status>;
    async fn swap(
        &self,
        context: Context,
        one: Blob,
        other: Option<Blob>,
    ) -> Result<Vec<Blob>, Status>;
    /// Names of the macro's own are free to be used.
    async fn names(
        &self,
        call: Context,
        service: u8,
        context: u8,
        result: u8,
        caller: u8,
        r#type: u8,
    ) -> Result<u8, Status>;
}

#[derive(Debug, Default)]
struct Counts {
    begun: AtomicUsize,
    dropped: AtomicUsize,
}

#[derive(Debug, Clone, Default)]
struct Service(Arc<Counts>);

struct Dropped(Arc<Counts>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.dropped.fetch_add(1, Ordering::SeqCst);
    }
}

impl Shapes for Service {
    async fn echo(
        &self,
        _: Context,
        shape: Shape,
        times: u8,
        by_name: BTreeMap<String, Option<Shape>>,
    ) -> Result<(Vec<Shape>, BTreeMap<String, Option<Shape>>), Status> {
        tokio::task::yield_now().await;
        Ok((vec![shape; times.into()], by_name))
    }

    async fn about(&self, context: Context) -> Result<(bool, bool, Option<Vec<u8>>), Status> {
        let value = context.metadata.get("trace").map(<[u8]>::to_vec);
        let is_local = context.caller.ip().is_loopback();
        Ok((is_local, context.deadline.is_some(), value))
    }

    async fn urgency(&self, context: Context) -> Result<u8, Status> {
        Ok(context.urgency.level())
    }

    async fn fail(&self, _: Context, code: u16) -> Result<(), Status> {
        let code = match code {
            5 => Code::NotFound,
            _ => Code::DataLoss,
        };
        Err(Status::new(code, "on purpose"))
    }

    async fn hold(&self, _: Context) -> Result<(), Status> {
        let _dropped = Dropped(Arc::clone(&self.0));
        self.0.begun.fetch_add(1, Ordering::SeqCst);
        std::future::pending().await
    }

    async fn panic(&self, _: Context, later: bool) -> Result<(), Status> {
        if later {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("on purpose");
    }

    async fn bytes(&self, _: Context, data: Vec<u8>) -> Result<Vec<u8>, Status> {
        Ok(data)
    }

    async fn swap(&self, _: Context, one: Blob, other: Option<Blob>) -> Result<Vec<Blob>, Status> {
        Ok(other.into_iter().chain([one]).collect())
    }

    async fn names(
        &self,
        _: Context,
        service: u8,
        context: u8,
        result: u8,
        caller: u8,
        r#type: u8,
    ) -> Result<u8, Status> {
        Ok(service + context + result + caller + r#type)
    }
}

fn endpoint(listen: &str) -> Endpoint {
    let config = Config::listening(listen.parse().unwrap());
    Endpoint::open(config.without_group()).unwrap()
}

fn both(service: &Service) -> (Endpoint, ShapesClient) {
    let server = endpoint("127.0.0.1:0");
    service.clone().serve(&server, Handle::current()).unwrap();
    let address = server.local_addr().unwrap();
    let client = ShapesClient::new(
        &Endpoint::open(Config::default().without_group()).unwrap(),
        vec![address],
    );
    let options = CallOptions::timeout(SOON);
    (server, client.with_options(options))
}

async fn reach(count: &AtomicUsize, number: usize) {
    let reached = async {
        while count.load(Ordering::SeqCst) < number {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(SOON, reached).await.unwrap();
}

#[tokio::test]
async fn values_of_all_kinds_go_and_come() {
    let (_server, client) = both(&Service::default());
    let polygon = Shape::Polygon(vec![(-1, 2), (i32::MAX, i32::MIN)]);
    let by_name: BTreeMap<_, _> = [
        ("a".to_owned(), Some(Shape::Circle { radius: 0.5 })),
        ("ü".to_owned(), None),
    ]
    .into();
    for shape in [Shape::Point, polygon] {
        let (shapes, names) = client
            .echo(shape.clone(), 3, by_name.clone())
            .await
            .unwrap();
        assert_eq!((shapes, &names), (vec![shape; 3], &by_name));
    }
    assert_eq!(client.names(1, 2, 4, 8, 16).await, Ok(31));
    // More than a message takes.
    let long: Vec<_> = (0..3_000_000_usize).map(|at| at.to_le_bytes()[1]).collect();
    assert!(client.bytes(long.clone()).await.unwrap() == long);
}

#[tokio::test]
async fn blobs_move_as_they_are() {
    let (server, client) = both(&Service::default());
    let memory = Endpoint::open(Config::default().without_group()).unwrap();
    let octets: Vec<_> = (0..3_000_000_usize).map(|at| at.to_le_bytes()[1]).collect();
    let block = memory.block(octets.len()).unwrap();
    block.write(0, &octets).unwrap();
    let room = CallOptions::timeout(SOON).and_room(octets.len());
    for client in [client.clone(), client.with_options(room)] {
        let (long, short) = (Blob::from(block.clone()), Blob::from(b"short".to_vec()));
        let swapped = client.swap(long, Some(short)).await.unwrap();
        let [short, long] = <[Blob; 2]>::try_from(swapped).unwrap();
        assert!(matches!(long.item(), Item::Long(_)));
        assert_eq!(short.into_vec(), b"short");
        assert!(long.into_vec() == octets);
    }
    let alone = client_of_blobs(&memory, &server)
        .swap(Vec::new().into(), None)
        .await
        .unwrap();
    assert!(alone.len() == 1 && alone[0].is_empty());
}

fn client_of_blobs(endpoint: &Endpoint, server: &Endpoint) -> ShapesClient {
    ShapesClient::new(endpoint, vec![server.local_addr().unwrap()])
}

#[tokio::test]
async fn handlers_have_the_urgency_of_their_calls() {
    let (_server, client) = both(&Service::default());
    assert_eq!(client.urgency().await, Ok(3));
    let options = CallOptions::timeout(SOON).and_urgency(Urgency::MOST);
    let client = client.with_options(options);
    assert_eq!(client.urgency().await, Ok(0));
}

#[tokio::test]
async fn handlers_know_their_calls() {
    let (_server, client) = both(&Service::default());
    assert_eq!(client.about().await, Ok((true, true, None)));
    let mut metadata = Metadata::new();
    assert!(metadata.insert("trace", b"17"));
    let mut options = CallOptions::default();
    options.timeout = None;
    let client = client.with_options(options).with_metadata(metadata);
    assert_eq!(
        client.about().await,
        Ok((true, false, Some(b"17".to_vec())))
    );
}

#[tokio::test]
async fn calls_spread_over_the_instances_of_a_service() {
    let service = Service::default();
    let servers = [endpoint("127.0.0.1:0"), endpoint("127.0.0.1:0")];
    let idle = Service::default();
    service
        .clone()
        .serve(&servers[0], Handle::current())
        .unwrap();
    idle.clone().serve(&servers[1], Handle::current()).unwrap();
    let addresses = servers.iter().map(|it| it.local_addr().unwrap()).collect();
    let caller = Endpoint::open(Config::default().without_group()).unwrap();
    let client = ShapesClient::balanced(&caller, addresses, LoadBalancing::LeastOutstanding)
        .with_options(CallOptions::timeout(SOON));
    let both = [client.clone(), client].map(|it| tokio::spawn(async move { it.hold().await }));
    reach(&service.0.begun, 1).await;
    reach(&idle.0.begun, 1).await;
    for call in both {
        call.abort();
    }
}

#[tokio::test]
async fn failures_have_their_status() {
    let (_server, client) = both(&Service::default());
    let failed = client.fail(5).await.unwrap_err();
    assert_eq!(
        (failed.code, failed.text.as_str()),
        (Code::NotFound, "on purpose")
    );
    for later in [false, true] {
        let failed = client.panic(later).await.unwrap_err();
        assert_eq!(failed.code, Code::Internal, "{failed}");
    }
    assert_eq!(client.bytes(vec![1]).await, Ok(vec![1]));
}

#[tokio::test]
async fn a_call_that_is_given_up_ends_its_handler() {
    let service = Service::default();
    let (_server, client) = both(&service);
    let (Service(counts), other) = (&service, client.clone());
    let pending = tokio::spawn(async move { other.hold().await });
    reach(&counts.begun, 1).await;
    pending.abort();
    reach(&counts.dropped, 1).await;
    let hasty = CallOptions::timeout(Duration::from_millis(300));
    let failed = client.with_options(hasty).hold().await.unwrap_err();
    assert_eq!(failed.code, Code::DeadlineExceeded);
    reach(&counts.dropped, counts.begun.load(Ordering::SeqCst)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_to_a_lost_server_fail_and_those_to_its_successor_do_not() {
    let service = Service::default();
    let (server, client) = both(&service);
    let address = server.local_addr().unwrap();
    let other = client.clone();
    let pending = tokio::spawn(async move { other.hold().await });
    reach(&service.0.begun, 1).await;
    // The connections of a process that is killed end so.
    let _ = tokio::task::spawn_blocking(move || {
        server.close(Duration::ZERO);
        drop(server);
    })
    .await;
    let lost = tokio::time::timeout(SOON, pending).await.unwrap();
    assert_eq!(lost.unwrap().unwrap_err().code, Code::Unavailable);
    let failed = client.fail(5).await.unwrap_err();
    assert_eq!(failed.code, Code::Unavailable, "{failed}");
    let again = endpoint(&address.to_string());
    Service::default().serve(&again, Handle::current()).unwrap();
    assert_eq!(client.bytes(vec![7]).await, Ok(vec![7]));
}

/// `Shapes` as a later version might have it: a method more, and another argument of one.
mod later {
    use super::*;

    #[service(name = "Shapes")]
    pub(super) trait LaterShapes {
        async fn area(&self, context: Context, shape: Shape) -> Result<f64, Status>;
        async fn fail(&self, context: Context, code: u16, text: String) -> Result<(), Status>;
        async fn bytes(&self, context: Context, data: Vec<u8>) -> Result<String, Status>;
        async fn about(&self, context: Context) -> Result<(), Status>;
    }
}

#[tokio::test]
async fn callers_of_another_version_get_a_status() {
    let (server, _) = both(&Service::default());
    let address = server.local_addr().unwrap();
    let client = Endpoint::open(Config::default().without_group()).unwrap();
    let later = later::LaterShapesClient::new(&client, vec![address]);
    let failed = later.area(Shape::Point).await.unwrap_err();
    assert_eq!(failed.code, Code::Unimplemented, "{failed}");
    assert!(failed.text.contains("no such method"), "{failed}");
    let failed = later.fail(5, "text".to_owned()).await.unwrap_err();
    assert_eq!(failed.code, Code::InvalidArgument, "{failed}");
    let failed = later.bytes(vec![0xff]).await.unwrap_err();
    assert_eq!(failed.code, Code::Internal, "{failed}");
    // More than was expected.
    let failed = later.about().await.unwrap_err();
    assert!(failed.text.contains("too many"), "{failed}");
}

#[tokio::test]
async fn octets_that_are_no_arguments_get_a_status() {
    let (server, _) = both(&Service::default());
    let raw = Endpoint::open(Config::default().without_group()).unwrap();
    let service = "Shapes".parse().unwrap();
    let client = raw.client(service, vec![server.local_addr().unwrap()]);
    let options = CallOptions::timeout(SOON);
    let method = MethodId::named("bytes");
    for payload in [
        Payload::new(),
        Payload::short([]),
        Payload::short([5, 1]),
        Payload::short([0xff; 11]),
        Payload::short([1, 1, 1]),
        Payload::short([0]).and_short([0]),
    ] {
        let failed = client.call_async(method, payload, &options).await;
        assert_eq!(failed.unwrap_err().code, Code::InvalidArgument);
    }
    let reply = client
        .call_async(method, Payload::short([1, 9]), &options)
        .await;
    assert_eq!(reply.unwrap().bytes(0), [1, 9]);
}
