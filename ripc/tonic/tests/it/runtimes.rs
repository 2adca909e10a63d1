//! Runtimes that drive endpoints: one thread or several, two at an endpoint, gone, held up, without I/O, and none.

use std::sync::mpsc;
use std::thread;

use dgiwarp_ripc::{CallOptions, MethodId, Payload};
use tokio::runtime::{Builder, Runtime};

use super::*;

fn one_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

fn two_threads() -> Runtime {
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(2).enable_all().build().unwrap()
}

fn server_on(runtime: &Runtime) -> Endpoint {
    let server = endpoint("127.0.0.1:0");
    let services = Server::new().add_service(limited(GreeterServer::new(Service::default())));
    services.serve(&server, runtime.handle().clone()).unwrap();
    server
}

fn channel_to(client: &Endpoint, server: &Endpoint) -> Channel {
    Channel::new(client, vec![server.local_addr().unwrap()])
}

/// Calls one after the other, and several at a time; handlers that wait are among them.
async fn calls(channel: Channel) {
    let mut client = GreeterClient::new(channel);
    for name in ["you", "wait 1", "you"] {
        let reply = client.hello(hello(name)).await.unwrap().into_inner();
        assert_eq!(reply.text, format!("Hello {name}!"));
    }
    let many: Vec<_> = (0..32)
        .map(|at| {
            let mut client = client.clone();
            tokio::spawn(async move {
                let name = if at % 4 == 0 { "wait 1" } else { "you" };
                client.hello(hello(name)).await.unwrap();
            })
        })
        .collect();
    for call in many {
        tokio::time::timeout(SOON, call).await.unwrap().unwrap();
    }
}

#[test]
fn both_ends_in_one_runtime() {
    for runtime in [one_thread(), two_threads()] {
        let server = server_on(&runtime);
        let client = Endpoint::open(Config::default().without_group()).unwrap();
        let channel = channel_to(&client, &server);
        runtime.block_on(calls(channel.clone()));
        assert!(client.has_driver() && server.has_driver());
        runtime.block_on(async { tokio::spawn(calls(channel)).await.unwrap() });
    }
}

#[test]
fn a_runtime_that_ends_is_followed_by_the_next_or_by_threads() {
    let servers = two_threads();
    let server = server_on(&servers);
    let client = Endpoint::open(Config::default().without_group()).unwrap();
    let channel = channel_to(&client, &server);
    let [first, second] = [one_thread(), one_thread()];
    first.block_on(calls(channel.clone()));
    assert!(client.has_driver());
    // The first has the driver, and does not run.
    second.block_on(calls(channel.clone()));
    drop(first);
    assert!(!client.has_driver());
    second.block_on(calls(channel.clone()));
    assert!(client.has_driver());
    drop(second);
    // Without a runtime, the test's thread polls the call.
    let mut client = GreeterClient::new(channel);
    let call = client.hello(hello("you"));
    let reply = futures_block_on(call).unwrap().into_inner();
    assert_eq!(reply.text, "Hello you!");
}

/// Polls a future in a thread of no runtime.
fn futures_block_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Arc::new(Unpark(thread::current())).into();
    let mut context = std::task::Context::from_waker(&waker);
    let mut future = std::pin::pin!(future);
    loop {
        if let std::task::Poll::Ready(ready) = future.as_mut().poll(&mut context) {
            return ready;
        }
        thread::park();
    }
}

#[test]
fn a_runtime_that_is_held_up_holds_up_no_other_user_of_the_endpoint() {
    let servers = two_threads();
    let server = server_on(&servers);
    server.serve("echo", |request| Ok(request.payload)).unwrap();
    let client = Endpoint::open(Config::default().without_group()).unwrap();
    let runtime = one_thread();
    runtime.block_on(calls(channel_to(&client, &server)));
    assert!(client.has_driver());
    let (release, released) = mpsc::channel::<()>();
    let holding = runtime.spawn(async move { released.recv_timeout(SOON).unwrap() });
    thread::scope(|scope| {
        scope.spawn(|| runtime.block_on(holding).unwrap());
        let address = server.local_addr().unwrap();
        let echo = client.client("echo".parse().unwrap(), vec![address]);
        let method = MethodId::named("echo");
        for _ in 0..10 {
            let options = CallOptions::timeout(SOON);
            let payload = Payload::short("x");
            assert!(echo.call(method, payload.clone(), &options).is_ok());
            // Nobody of this runtime polls for this one.
            let call = echo.call_async(method, payload, &options);
            assert!(futures_block_on(call).is_ok());
        }
        release.send(()).unwrap();
    });
}

#[test]
fn a_runtime_without_io_leaves_progress_to_threads() {
    let builder = || Builder::new_current_thread().enable_time().build().unwrap();
    let [servers, clients] = [builder(), builder()];
    let server = server_on(&servers);
    let client = Endpoint::open(Config::default().without_group()).unwrap();
    let channel = channel_to(&client, &server);
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    thread::scope(|scope| {
        scope.spawn(|| servers.block_on(stopped));
        clients.block_on(calls(channel));
        assert!(!client.has_driver());
        stop.send(()).unwrap();
    });
}

#[test]
fn a_call_that_holds_its_thread_ends_inside_of_the_runtime_that_drives() {
    let servers = two_threads();
    let server = server_on(&servers);
    server.serve("echo", |request| Ok(request.payload)).unwrap();
    let client = Endpoint::open(Config::default().without_group()).unwrap();
    let channel = channel_to(&client, &server);
    one_thread().block_on(async {
        calls(channel.clone()).await;
        let address = server.local_addr().unwrap();
        let echo = client.client("echo".parse().unwrap(), vec![address]);
        let options = CallOptions::timeout(SOON);
        for _ in 0..20 {
            let reply = echo.call(MethodId::named("echo"), Payload::short("x"), &options);
            assert_eq!(reply.unwrap().bytes(0), b"x");
        }
        calls(channel).await;
    });
}
