//! Endpoints that an event loop of the program drives, beside threads that wait, and loops that are late or gone.

use std::os::fd::AsFd;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread, ThreadId};
use std::time::{Duration, Instant};

use dgiwarp_ripc::{CallOptions, Driver, Endpoint, Payload, Reply, Request, Status, Turned};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::{Config, ECHO, SOON, client_of, octets, serve, server_config};

fn patient() -> CallOptions {
    CallOptions::timeout(SOON)
}

/// A server of `echo` whose handler replies at once.
fn serve_deferred(handler: impl Fn(Request, Reply) + Send + Sync + 'static) -> Endpoint {
    let server = Endpoint::open(server_config()).unwrap();
    server.serve_deferred("echo", handler).unwrap();
    server
}

fn echo(request: Request, reply: Reply) {
    reply.send(Ok(request.payload));
}

/// Turns of several drivers in one thread, until all endpoints are closed or `ended`.
fn run(drivers: &mut [Driver], ended: &AtomicBool) {
    while !ended.load(Ordering::Relaxed) {
        let turns: Vec<_> = drivers.iter_mut().map(Driver::turn).collect();
        if turns.contains(&Turned::Again) {
            continue;
        }
        if turns.iter().all(|turned| *turned == Turned::Closed) {
            return;
        }
        let fds = drivers.iter().zip(turns);
        let fds = fds.filter(|(_, turned)| *turned == Turned::Idle);
        let mut fds: Vec<_> = fds
            .map(|(driver, _)| PollFd::new(driver.as_fd(), PollFlags::POLLIN))
            .collect();
        poll(
            &mut fds,
            PollTimeout::try_from(Duration::from_secs(20)).unwrap(),
        )
        .unwrap();
    }
}

fn driver_of(endpoint: &Endpoint) -> Driver {
    endpoint.driver().unwrap().expect("no other drives it")
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Polls a future until it is ready, as a runtime of one task.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let deadline = Instant::now() + SOON;
    loop {
        if let Poll::Ready(ready) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return ready;
        }
        assert!(Instant::now() < deadline, "not ready in time");
        thread::park_timeout(SOON);
    }
}

fn call(client: &dgiwarp_ripc::Client, payload: Payload) -> Result<Payload, Status> {
    block_on(client.call_async(ECHO, payload, &patient()))
}

#[test]
fn handlers_run_in_the_loop_and_awaited_calls_end() {
    let threads = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&threads);
    let server = serve_deferred(move |request, reply| {
        seen.lock().unwrap().push(thread::current().id());
        echo(request, reply);
    });
    let endpoint = Endpoint::open(Config::default().without_group()).unwrap();
    let client = client_of(&endpoint, &server, "echo");
    let mut drivers = [&endpoint, &server].map(driver_of);
    let (report, id) = mpsc::channel::<ThreadId>();
    let looping = thread::spawn(move || {
        report.send(thread::current().id()).unwrap();
        run(&mut drivers, &AtomicBool::new(false));
    });
    let id = id.recv().unwrap();
    for round in 0..300 {
        // Some are long, and are read.
        let sent = octets(if round % 50 == 0 { 100_000 } else { round });
        let reply = call(&client, Payload::short(sent.clone())).unwrap();
        assert!(reply.bytes(0) == sent, "{round}");
    }
    // Where the loop is not given a processor in time, threads take its place.
    let inside = threads.lock().unwrap();
    let inside = inside.iter().filter(|it| **it == id).count();
    assert!(inside >= 150, "{inside} of 300 in the loop");
    drop(client);
    endpoint.close(Duration::ZERO);
    server.close(Duration::ZERO);
    looping.join().unwrap();
}

#[test]
fn threads_that_wait_and_handlers_that_hold_their_thread_go_beside_a_loop() {
    let server = serve(server_config(), "echo", |request| Ok(request.payload));
    let deferred = AtomicUsize::new(0);
    server
        .serve_deferred("deferred", move |request, reply| {
            deferred.fetch_add(1, Ordering::Relaxed);
            echo(request, reply);
        })
        .unwrap();
    let endpoint = Endpoint::open(Config::default().without_group()).unwrap();
    let mut drivers = [&endpoint, &server].map(driver_of);
    let looping = thread::spawn(move || run(&mut drivers, &AtomicBool::new(false)));
    thread::scope(|scope| {
        for service in ["echo", "deferred", "echo", "deferred"] {
            let client = client_of(&endpoint, &server, service);
            scope.spawn(move || {
                for round in 0..150 {
                    let sent = octets(round * 10);
                    let payload = Payload::short(sent.clone());
                    let reply = if round % 2 == 0 {
                        client.call(ECHO, payload, &patient())
                    } else {
                        call(&client, payload)
                    };
                    assert!(reply.unwrap().bytes(0) == sent);
                }
            });
        }
    });
    endpoint.close(Duration::ZERO);
    server.close(Duration::ZERO);
    looping.join().unwrap();
}

/// Calls awaited and waited for.
fn exchange(endpoint: &Endpoint, server: &Endpoint) {
    let client = client_of(endpoint, server, "echo");
    for round in 0..20 {
        let sent = octets(round);
        let payload = Payload::short(sent.clone());
        assert!(call(&client, payload.clone()).unwrap().bytes(0) == sent);
        let reply = client.call(ECHO, payload, &patient());
        assert!(reply.unwrap().bytes(0) == sent);
    }
}

#[test]
fn a_loop_that_never_comes_is_replaced() {
    let server = serve_deferred(echo);
    let endpoint = Endpoint::open(Config::default().without_group()).unwrap();
    let _drivers = [&endpoint, &server].map(driver_of);
    exchange(&endpoint, &server);
}

#[test]
fn a_loop_that_stops_is_replaced_until_it_comes_again() {
    let server = serve_deferred(echo);
    let endpoint = Endpoint::open(Config::default().without_group()).unwrap();
    let mut drivers = [&endpoint, &server].map(driver_of);
    for _ in 0..3 {
        for driver in &mut drivers {
            while driver.turn() == Turned::Again {}
        }
        exchange(&endpoint, &server);
    }
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| run(&mut drivers, &ended));
        exchange(&endpoint, &server);
        ended.store(true, Ordering::Relaxed);
        // Wakes the loop.
        exchange(&endpoint, &server);
    });
}

#[test]
fn a_handler_that_holds_the_loop_holds_up_no_other_call() {
    let (release, released) = mpsc::channel::<()>();
    let released = Mutex::new(released);
    let first = AtomicBool::new(true);
    let server = serve_deferred(move |request, reply| {
        // It breaks its promise to return without waiting.
        if first.swap(false, Ordering::SeqCst) {
            released.lock().unwrap().recv_timeout(SOON).unwrap();
        }
        echo(request, reply);
    });
    let mut drivers = [driver_of(&server)];
    let looping = thread::spawn(move || run(&mut drivers, &AtomicBool::new(false)));
    let endpoint = Endpoint::open(Config::default().without_group()).unwrap();
    let client = client_of(&endpoint, &server, "echo");
    let held = client.begin(ECHO, Payload::short("held"), &patient());
    let held = held.unwrap();
    for _ in 0..10 {
        let reply = client.call(ECHO, Payload::short("other"), &patient());
        assert_eq!(reply.unwrap().bytes(0), b"other");
    }
    assert!(!held.is_ready());
    release.send(()).unwrap();
    assert_eq!(held.wait().unwrap().bytes(0), b"held");
    server.close(Duration::ZERO);
    looping.join().unwrap();
}

#[test]
fn an_endpoint_has_one_driver_at_a_time_and_threads_without() {
    let server = serve_deferred(echo);
    let endpoint = Endpoint::open(Config::default().without_group()).unwrap();
    assert!(!endpoint.has_driver());
    for _ in 0..3 {
        let mut drivers = [&endpoint, &server].map(driver_of);
        assert!(endpoint.has_driver() && endpoint.driver().unwrap().is_none());
        for driver in &mut drivers {
            while driver.turn() == Turned::Again {}
        }
        // Begun while the loops are there, and ended when they are gone.
        let client = client_of(&endpoint, &server, "echo");
        let begun = client.begin(ECHO, Payload::short("x"), &patient()).unwrap();
        drop(drivers);
        assert!(!endpoint.has_driver());
        assert_eq!(block_on(begun).unwrap().bytes(0), b"x");
        exchange(&endpoint, &server);
    }
}

#[test]
fn a_driver_ends_with_its_endpoint() {
    let endpoint = Endpoint::open(Config::default().without_group()).unwrap();
    let mut drivers = [driver_of(&endpoint)];
    let (report, reported) = mpsc::channel();
    let looping = thread::spawn(move || {
        while drivers[0].turn() == Turned::Again {}
        report.send(()).unwrap();
        run(&mut drivers, &AtomicBool::new(false));
        drivers[0].turn()
    });
    reported.recv().unwrap();
    let begun = Instant::now();
    drop(endpoint);
    assert_eq!(looping.join().unwrap(), Turned::Closed);
    assert!(
        begun.elapsed() < Duration::from_secs(15),
        "it was not woken"
    );
}
