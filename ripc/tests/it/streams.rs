//! Streams of calls.

use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake};
use std::thread;

use dgiwarp_ripc::{CallOptions, Code, Reply, StreamCall};

use super::*;

/// A future without a runtime.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct Thread(thread::Thread);
    impl Wake for Thread {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Arc::new(Thread(thread::current())).into();
    let mut context = Context::from_waker(&waker);
    let mut future = std::pin::pin!(future);
    let end = std::time::Instant::now() + SOON;
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return value;
        }
        thread::park_timeout(SOON);
        assert!(std::time::Instant::now() < end, "nothing woke it");
    }
}

/// Sends back all of the caller's stream, then the reply.
fn echo(mut reply: Reply) {
    thread::spawn(move || {
        block_on(async {
            let mut receiver = reply.receiver().unwrap();
            let mut sender = reply.sender().unwrap();
            while let Some(octets) = receiver.receive().await {
                assert!(sender.send(&octets.unwrap()).await);
            }
            sender.finish();
            std::future::poll_fn(|context| sender.poll_flush(context)).await;
        });
        reply.send(Ok(Payload::short("all of it")));
    });
}

fn patient() -> CallOptions {
    CallOptions::timeout(SOON)
}

#[test]
fn octets_go_both_ways_at_once() {
    let mut small = server_config();
    small.limits.longest = 1024;
    small.limits.stream = 4096;
    for config in [server_config(), small] {
        let server = Endpoint::open(config).unwrap();
        server
            .serve_deferred("echo", |_, reply| echo(reply))
            .unwrap();
        let endpoint = Endpoint::open(Config::default().without_group()).unwrap();
        let client = client_of(&endpoint, &server, "echo");
        // Each call has streams of its own.
        let calls: Vec<_> = (0..3)
            .map(|_| block_on(client.open(ECHO, Payload::new(), &patient(), true)).unwrap())
            .collect();
        let sent = octets(1_500_000);
        let ends = calls.into_iter().map(|call| {
            let StreamCall {
                call,
                sender,
                mut receiver,
                ..
            } = call;
            let (mut sender, sent) = (sender.unwrap(), sent.clone());
            let sending = thread::spawn(move || {
                assert!(block_on(sender.send(&sent)));
                sender.finish();
                // Behind the end nothing is taken.
                assert!(!block_on(sender.send(&[1])));
            });
            thread::spawn(move || {
                let mut came = Vec::new();
                while let Some(octets) = block_on(receiver.receive()) {
                    came.extend(octets.unwrap());
                }
                sending.join().unwrap();
                (came, block_on(call).unwrap().bytes(0))
            })
        });
        for end in ends.collect::<Vec<_>>() {
            let (came, reply) = end.join().unwrap();
            assert!(came == sent);
            assert_eq!(reply, b"all of it");
        }
    }
}

#[test]
fn the_end_of_a_caller_breaks_its_stream_and_cancels_the_call() {
    let server = Endpoint::open(server_config()).unwrap();
    let (ended, end) = mpsc::channel();
    let handler = move |_, mut reply: Reply| {
        let ended = ended.clone();
        thread::spawn(move || {
            block_on(async {
                let mut receiver = reply.receiver().unwrap();
                assert!(reply.receiver().is_none());
                let first = receiver.receive().await.unwrap();
                assert!(first.is_ok());
                ended.send(()).unwrap();
                let last = receiver.receive().await.unwrap();
                assert!(last.is_err());
                std::future::poll_fn(|context| reply.poll_cancelled(context)).await;
                ended.send(()).unwrap();
            });
        });
    };
    server.serve_deferred("sink", handler).unwrap();
    for drops_endpoint in [true, false] {
        let endpoint = Endpoint::open(Config::default().without_group()).unwrap();
        let client = client_of(&endpoint, &server, "sink");
        let call = block_on(client.open(ECHO, Payload::new(), &patient(), true));
        let mut call = call.unwrap();
        let mut sender = call.sender.take().unwrap();
        assert!(block_on(sender.send(b"one")));
        block_on(std::future::poll_fn(|context| sender.poll_flush(context)));
        end.recv_timeout(SOON).unwrap();
        if drops_endpoint {
            endpoint.close(Duration::ZERO);
        } else {
            drop(call);
        }
        end.recv_timeout(SOON).unwrap();
        assert!(!block_on(sender.send(b"more")));
    }
}

#[test]
fn a_handler_without_streams_stops_the_caller() {
    let server = Endpoint::open(server_config()).unwrap();
    let held = Arc::new(Mutex::new(Vec::<Reply>::new()));
    let replies = Arc::clone(&held);
    let handler = move |_, mut reply: Reply| {
        drop(reply.receiver());
        replies.lock().unwrap().push(reply);
    };
    server.serve_deferred("deaf", handler).unwrap();
    let endpoint = Endpoint::open(Config::default().without_group()).unwrap();
    let client = client_of(&endpoint, &server, "deaf");
    let mut call = block_on(client.open(ECHO, Payload::new(), &patient(), true)).unwrap();
    let mut sender = call.sender.take().unwrap();
    assert!(!block_on(sender.send(&octets(1 << 20))));
    block_on(std::future::poll_fn(|context| sender.poll_stopped(context)));
    // The call goes on.
    let reply = held.lock().unwrap().pop().unwrap();
    reply.send(Ok(Payload::short("deaf")));
    assert_eq!(block_on(call.receiver.receive()), None);
    assert_eq!(block_on(call.call).unwrap().bytes(0), b"deaf");
}

#[test]
fn a_call_with_a_stream_goes_to_the_address_that_answers() {
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let closed = nobody.local_addr().unwrap();
    drop(nobody);
    let server = Endpoint::open(server_config()).unwrap();
    server
        .serve_deferred("echo", |_, reply| echo(reply))
        .unwrap();
    let endpoint = Endpoint::open(Config::default().without_group()).unwrap();
    let addresses = vec![closed, server.local_addr().unwrap()];
    let client = endpoint.client("echo".parse().unwrap(), addresses);
    let mut call = block_on(client.open(ECHO, Payload::new(), &patient(), true)).unwrap();
    call.sender.take().unwrap().finish();
    assert_eq!(block_on(call.receiver.receive()), None);
    assert!(block_on(call.call).is_ok());
    let nowhere = endpoint.client("echo".parse().unwrap(), vec![closed]);
    let failed = block_on(nowhere.open(ECHO, Payload::new(), &patient(), true));
    assert_eq!(failed.unwrap_err().code, Code::Unavailable);
}

#[test]
fn no_part_comes_before_its_call() {
    let mut small = server_config();
    small.limits.credit = 128 << 10;
    let server = Endpoint::open(small).unwrap();
    let held = Arc::new(Mutex::new(Vec::<Reply>::new()));
    let replies = Arc::clone(&held);
    let hold = move |_, reply| replies.lock().unwrap().push(reply);
    server.serve_deferred("held", hold).unwrap();
    server
        .serve_deferred("echo", |_, reply| echo(reply))
        .unwrap();
    let endpoint = Endpoint::open(Config::default().without_group()).unwrap();
    let holding = client_of(&endpoint, &server, "held");
    let client = client_of(&endpoint, &server, "echo");
    // They cost 21 times 6,200 and 4 times 176: the next call, of 176, waits for credit.
    let long = (0..21).map(|_| Payload::short(octets(6000)));
    let payloads = long.chain((0..4).map(|_| Payload::new()));
    let calls = payloads.map(|it| holding.begin(ECHO, it, &patient()).unwrap());
    let calls: Vec<_> = calls.collect();
    let streaming = thread::spawn(move || {
        let call = block_on(client.open(ECHO, Payload::new(), &patient(), true));
        let mut call = call.unwrap();
        let mut sender = call.sender.take().unwrap();
        assert!(block_on(sender.send(&octets(3000))));
        sender.finish();
        let mut came = Vec::new();
        while let Some(octets) = block_on(call.receiver.receive()) {
            came.extend(octets.unwrap());
        }
        came
    });
    thread::sleep(Duration::from_millis(200));
    let mut answered = 0;
    while answered < calls.len() {
        let replies = std::mem::take(&mut *held.lock().unwrap());
        answered += replies.len();
        for reply in replies {
            reply.send(Ok(Payload::new()));
        }
        thread::sleep(Duration::from_millis(1));
    }
    assert!(streaming.join().unwrap() == octets(3000));
    for call in calls {
        assert!(call.wait().is_ok());
    }
}
