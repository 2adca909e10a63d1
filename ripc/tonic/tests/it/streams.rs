//! Calls with streams, and methods that are not there.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use tokio_stream::wrappers::ReceiverStream;

use super::*;

/// Octets between a program that sends and one that does not read, at most: credit, what both ends keep, and a message at each.
const BETWEEN: usize = 2 << 20;

fn request(name: &str, at: usize, length: usize) -> HelloRequest {
    HelloRequest {
        name: name.to_owned(),
        data: pattern(at, length),
    }
}

fn requests(count: usize, length: usize) -> impl Stream<Item = HelloRequest> + Send + 'static {
    tokio_stream::iter((0..count).map(move |at| request(&at.to_string(), at, length)))
}

/// All of a stream as a program sees it, with its end.
async fn all(response: Result<Response<Streaming<HelloReply>>, Status>) -> Vec<String> {
    let status = |status: &Status| {
        let reason = status.metadata().get("reason");
        let (code, text, details) = (status.code(), status.message(), status.details());
        format!("{code:?} {text:?} {details:?} {reason:?}")
    };
    let response = match response {
        Ok(response) => response,
        Err(failed) => return vec![format!("no stream: {}", status(&failed))],
    };
    let mut seen = vec![format!("{:?}", response.metadata().get("a-text"))];
    let mut replies = response.into_inner();
    loop {
        match replies.message().await {
            Ok(Some(reply)) => {
                let at: usize = reply.text.parse().unwrap_or(0);
                let whole = reply.data == pattern(at, reply.data.len());
                seen.push(format!("{} {} {whole}", reply.text, reply.data.len()));
            }
            Ok(None) => {
                let trailers = replies.trailers().await.unwrap();
                seen.push(format!("end, {:?}", trailers.map(|it| it.len())));
                return seen;
            }
            Err(failed) => {
                seen.push(status(&failed));
                return seen;
            }
        }
    }
}

async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, future).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_of_the_server_come_whole_and_in_order() {
    let (http2, ripc) = on_both!(service, client, {
        let mut seen = Vec::new();
        for name in [
            "count 0 0",
            "count 1 10",
            "count 2 0",
            "count 3000 100",
            "count 300 9000",
            "count 4 3000017",
            "fail-behind 0 0",
            "fail-behind 1 5000",
            "fail-behind 700 1000",
            "fail",
        ] {
            seen.push(soon(all(client.hello_often(hello(name)).await)).await);
        }
        seen
    });
    assert_eq!(ripc, http2);
    assert_eq!(ripc[5][4], "3 3000017 true");
    assert_eq!(ripc[5].len(), 6);
    assert!(ripc[8][701].starts_with("DataLoss"), "{}", ripc[8][701]);
    assert!(ripc[9][0].starts_with("no stream: DataLoss"));
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_of_the_client_come_whole_and_in_order() {
    let (http2, ripc) = on_both!(service, client, {
        let mut seen = Vec::new();
        for (count, length) in [
            (0, 0),
            (1, 0),
            (2, 7),
            (3000, 100),
            (200, 9000),
            (4, 3_000_017),
        ] {
            let reply = soon(client.hello_all(requests(count, length))).await;
            seen.push(reply.unwrap().into_inner().text);
        }
        // One message, and the end later.
        let (sender, one) = tokio::sync::mpsc::channel(1);
        sender.send(request("later", 0, 5)).await.unwrap();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(50)).await;
            drop(sender);
        });
        let reply = soon(client.hello_all(ReceiverStream::new(one))).await;
        seen.push(reply.unwrap().into_inner().text);
        let failing = requests(5, 10).chain(tokio_stream::once(request("fail", 0, 0)));
        let failed = soon(client.hello_all(failing)).await.unwrap_err();
        seen.push(format!(
            "{:?} {:?}",
            failed.code(),
            failed.metadata().get("reason")
        ));
        seen
    });
    assert_eq!(ripc, http2);
    assert!(ripc[3].starts_with("3000 "), "{}", ripc[3]);
    assert!(ripc[7].starts_with("DataLoss Some"), "{}", ripc[7]);
}

#[tokio::test(flavor = "multi_thread")]
async fn both_directions_go_at_once() {
    let (http2, ripc) = on_both!(service, client, {
        let mut seen = Vec::new();
        for (count, length) in [(0, 0), (1, 1), (2000, 300), (5, 2_000_003)] {
            seen.push(soon(all(client.hello_each(requests(count, length)).await)).await);
        }
        let failing = requests(50, 10).chain(tokio_stream::once(request("fail", 0, 0)));
        seen.push(soon(all(client.hello_each(failing).await)).await);
        // Each request is sent once the reply to that before has come.
        let (sender, requests) = tokio::sync::mpsc::channel(1);
        sender.send(request("0", 0, 10)).await.unwrap();
        let mut replies = soon(client.hello_each(ReceiverStream::new(requests)))
            .await
            .unwrap()
            .into_inner();
        let mut turns = Vec::new();
        for turn in 1..200 {
            turns.push(soon(replies.message()).await.unwrap().unwrap().text);
            sender
                .send(request(&turn.to_string(), 0, 10))
                .await
                .unwrap();
        }
        drop(sender);
        turns.push(soon(replies.message()).await.unwrap().unwrap().text);
        assert!(soon(replies.message()).await.unwrap().is_none());
        seen.push(turns);
        seen
    });
    assert_eq!(ripc, http2);
    assert_eq!(ripc[2].len(), 2002);
    assert_eq!(ripc[5][199], "199");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_reader_stops_the_server() {
    let service = Service::default();
    let (_server, channel) = over_ripc(&service);
    let mut client = GreeterClient::new(channel);
    let (count, length) = (3000, 10_000);
    let name = format!("count {count} {length}");
    let mut replies = soon(client.hello_often(hello(&name)))
        .await
        .unwrap()
        .into_inner();
    for _ in 0..3 {
        soon(replies.message()).await.unwrap().unwrap();
    }
    // Time in which a server that nothing stops makes all of them.
    tokio::time::sleep(Duration::from_millis(700)).await;
    let produced = service.0.produced.load(Ordering::SeqCst);
    assert!(produced * length < BETWEEN, "{produced}");
    // Other calls on the connection go on.
    assert!(soon(client.hello(hello("you"))).await.is_ok());
    let mut more = 0;
    while soon(replies.message()).await.unwrap().is_some() {
        more += 1;
    }
    assert_eq!(more, count - 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_server_stops_the_client() {
    let service = Service::default();
    let (_server, channel) = over_ripc(&service);
    let mut client = GreeterClient::new(channel);
    let (count, length) = (3000, 10_000);
    let produced = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&produced);
    let first = tokio_stream::once(request("hold", 0, 0));
    let requests = first.chain(tokio_stream::iter(0..count).map(move |at| {
        counter.fetch_add(1, Ordering::SeqCst);
        request("", at, length)
    }));
    let mut other = client.clone();
    let call = tokio::spawn(async move { other.hello_all(requests).await });
    begun(&service.0.begun, 1).await;
    tokio::time::sleep(Duration::from_millis(700)).await;
    let sent = produced.load(Ordering::SeqCst);
    assert!(sent * length < BETWEEN, "{sent}");
    assert!(soon(client.hello(hello("you"))).await.is_ok());
    service.0.release.notify_one();
    let reply = soon(call).await.unwrap().unwrap().into_inner();
    assert!(reply.text.starts_with("3001 "), "{}", reply.text);
}

#[tokio::test(flavor = "multi_thread")]
async fn dropping_either_end_ends_the_other() {
    on_both!(service, client, {
        // The client drops the replies of a server that has more, of one that waits, and before the first one.
        for (at, name) in ["count 100000000 1000", "hang-behind 3 10"]
            .iter()
            .enumerate()
        {
            let replies = soon(client.hello_often(hello(name))).await.unwrap();
            let mut replies = replies.into_inner();
            soon(replies.message()).await.unwrap().unwrap();
            drop(replies);
            begun(&service.0.dropped, at + 1).await;
        }
        let mut other = client.clone();
        let call = tokio::spawn(async move {
            let open = tokio_stream::once(request("", 0, 0)).chain(tokio_stream::pending());
            other.hello_all(open).await
        });
        begun(&service.0.begun, 3).await;
        call.abort();
        begun(&service.0.dropped, 3).await;
        // The server has enough: the client has its reply, and its stream is dropped.
        let (sender, requests) = tokio::sync::mpsc::channel(1);
        for name in ["a", "b", "enough"] {
            let requests = request(name, 0, 10);
            if name == "a" {
                sender.send(requests).await.unwrap();
                continue;
            }
            let sender = sender.clone();
            tokio::spawn(async move { sender.send(requests).await });
        }
        let reply = soon(client.hello_all(ReceiverStream::new(requests))).await;
        assert!(reply.is_ok());
        soon(sender.closed()).await;
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deadline_ends_a_stream() {
    let service = Service::default();
    let (_server, channel) = over_ripc(&service);
    let mut client = GreeterClient::new(channel);
    // The deadline is not spent on the connection.
    assert!(soon(client.hello(hello("you"))).await.is_ok());
    let mut request = hello("hang-behind 3 10");
    request.set_timeout(Duration::from_secs(1));
    let seen = soon(all(client.hello_often(request).await)).await;
    assert!(
        seen.last().unwrap().starts_with("DeadlineExceeded"),
        "{seen:?}"
    );
    begun(&service.0.dropped, 2).await;
}

/// A future without a runtime.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct Thread(std::thread::Thread);
    impl std::task::Wake for Thread {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Arc::new(Thread(std::thread::current())).into();
    let mut context = std::task::Context::from_waker(&waker);
    let mut future = std::pin::pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            std::task::Poll::Ready(value) => return value,
            std::task::Poll::Pending => std::thread::park_timeout(SOON),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_need_no_runtime_at_the_client() {
    let service = Service::default();
    let (_server, channel) = over_ripc(&service);
    let client = std::thread::spawn(move || {
        let mut client = GreeterClient::new(channel);
        block_on(async {
            let seen = all(client.hello_each(requests(500, 1000)).await).await;
            assert_eq!(seen.len(), 502);
            let reply = client.hello_all(requests(500, 1000)).await.unwrap();
            assert!(reply.into_inner().text.starts_with("500 "));
        });
    });
    let joined = tokio::task::spawn_blocking(move || client.join());
    soon(joined).await.unwrap().unwrap();
}

/// Variable of the environment of the server's process.
const SERVER: &str = "DGIWARP_TEST_SERVER";

/// A server in a process of its own, which runs until it is killed.
#[tokio::test(flavor = "multi_thread")]
async fn server_process() {
    if std::env::var_os(SERVER).is_none() {
        return;
    }
    let server = endpoint("127.0.0.1:0");
    let services = Server::new().add_service(GreeterServer::new(Service::default()));
    let runtime = tokio::runtime::Handle::current();
    services.serve(&server, runtime).unwrap();
    println!("\naddress {}", server.local_addr().unwrap());
    tokio::time::sleep(2 * SOON).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_and_streams_of_a_killed_server_end() {
    let program = std::env::current_exe().unwrap();
    let server = Command::new(program)
        .args(["streams::server_process", "--exact", "--nocapture"])
        .env(SERVER, "1")
        .stdout(Stdio::piped())
        .spawn();
    let mut server = server.unwrap();
    let mut lines = BufReader::new(server.stdout.take().unwrap()).lines();
    let address = lines
        .find_map(|line| Some(line.unwrap().strip_prefix("address ")?.parse().unwrap()))
        .unwrap();
    let endpoint = Endpoint::open(Config::default().without_group()).unwrap();
    let client = GreeterClient::new(Channel::new(&endpoint, vec![address]));
    let mut one = client.clone();
    let mut replies = soon(one.hello_often(hello("hang-behind 3 10")))
        .await
        .unwrap()
        .into_inner();
    for _ in 0..3 {
        soon(replies.message()).await.unwrap().unwrap();
    }
    let (mut two, mut three) = (client.clone(), client);
    let unary = tokio::spawn(async move { two.hello(hello("sleep long")).await });
    let (sender, requests) = tokio::sync::mpsc::channel(1);
    let upward = tokio::spawn(async move { three.hello_all(ReceiverStream::new(requests)).await });
    for _ in 0..3 {
        sender.send(request("", 0, 10)).await.unwrap();
    }
    server.kill().unwrap();
    server.wait().unwrap();
    let status = soon(replies.message()).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    for ended in [unary, upward] {
        let status = soon(ended).await.unwrap().unwrap_err();
        assert_eq!(status.code(), Code::Unavailable, "{status}");
    }
    soon(sender.closed()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn services_are_found_by_their_names() {
    #[derive(Clone)]
    struct Named(GreeterServer<Service>);
    impl tonic::server::NamedService for Named {
        const NAME: &'static str = "other.Greeter";
    }
    impl tower_service::Service<http::Request<tonic::body::Body>> for Named {
        type Response = http::Response<tonic::body::Body>;
        type Error = std::convert::Infallible;
        type Future = <GreeterServer<Service> as tower_service::Service<
            http::Request<tonic::body::Body>,
        >>::Future;
        fn poll_ready(
            &mut self,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Result<(), Self::Error>> {
            std::task::Poll::Ready(Ok(()))
        }
        fn call(&mut self, request: http::Request<tonic::body::Body>) -> Self::Future {
            let path = request.uri().path().to_owned();
            assert!(path.starts_with("/other.Greeter/"), "{path}");
            self.0.call(request)
        }
    }
    let server = endpoint("127.0.0.1:0");
    let runtime = tokio::runtime::Handle::current();
    let named = Named(GreeterServer::new(Service::default()));
    let services = Server::new().add_service(named);
    services.clone().serve(&server, runtime.clone()).unwrap();
    assert!(services.serve(&server, runtime).is_err());
    let client = Endpoint::open(Config::default().without_group()).unwrap();
    let channel = Channel::new(&client, vec![server.local_addr().unwrap()]);
    // Not the greeter's own name.
    let mut client = GreeterClient::new(channel);
    let status = client.hello(hello("you")).await.unwrap_err();
    assert_eq!(status.code(), Code::Unimplemented, "{status}");
    assert!(status.message().contains("greeter.v1.Greeter"), "{status}");
}
