//! Calls: replies, deadlines, cancellation, overload, and servers that are not there.

use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use dgiwarp_ripc::{CallOptions, Code, Endpoint, MethodId, Payload, PendingCall, Status};

use super::{Config, ECHO, SOON, client_of, octets, serve, server_config};

fn patient() -> CallOptions {
    CallOptions::timeout(SOON)
}

#[test]
fn payloads_of_all_lengths_come_back() {
    let server = serve(server_config(), "echo", |request| {
        let mut payload = request.payload;
        assert!(payload.metadata.insert("seen", b"yes"));
        Ok(payload)
    });
    let endpoint = Endpoint::open(Config::default().without_group()).unwrap();
    let echo = client_of(&endpoint, &server, "echo");
    for length in [
        0,
        1,
        100,
        200,
        256,
        257,
        1400,
        8000,
        8100,
        8192,
        20_000,
        3 << 20,
    ] {
        let sent = octets(length);
        let mut payload = Payload::short(sent.clone()).and_short("second");
        assert!(payload.metadata.insert("name", b"value"));
        let reply = echo.call(ECHO, payload, &patient()).unwrap();
        assert!(reply.bytes(0) == sent, "{length}");
        assert_eq!(reply.bytes(1), b"second");
        assert_eq!(reply.metadata.get("name"), Some(&b"value"[..]));
        assert_eq!(reply.metadata.get("seen"), Some(&b"yes"[..]));
    }
}

#[test]
fn many_threads_call_at_a_time() {
    let server = serve(server_config(), "echo", |request| Ok(request.payload));
    let endpoint = Endpoint::open(Config::default().without_group()).unwrap();
    let threads: Vec<_> = (0..8_u8)
        .map(|thread| {
            let echo = client_of(&endpoint, &server, "echo");
            thread::spawn(move || {
                for round in 0..200_u8 {
                    let length = usize::from(round) * 100;
                    let sent = [thread, round].into_iter().chain(octets(length));
                    let sent: Vec<_> = sent.collect();
                    let reply = echo.call(ECHO, Payload::short(sent.clone()), &patient());
                    assert!(reply.unwrap().bytes(0) == sent);
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
}

#[test]
fn a_call_that_stays_open_holds_up_no_later_ones() {
    let (end, ended) = mpsc::channel::<()>();
    let ended = Mutex::new(ended);
    let wait = MethodId::named("wait");
    let server = serve(server_config(), "echo", move |request| {
        if request.method == wait {
            let _ = ended.lock().unwrap().recv();
        }
        Ok(request.payload)
    });
    let endpoint = Endpoint::open(Config::default().without_group()).unwrap();
    let echo = client_of(&endpoint, &server, "echo");
    let open = echo
        .begin(wait, Payload::short("open"), &patient())
        .unwrap();
    for number in 0..5000_u32 {
        let sent = number.to_be_bytes();
        let reply = echo.call(ECHO, Payload::short(sent), &patient()).unwrap();
        assert_eq!(reply.bytes(0), sent);
    }
    assert!(!open.is_ready());
    end.send(()).unwrap();
    assert_eq!(open.wait().unwrap().bytes(0), b"open");
}

#[test]
fn errors_of_the_service_and_of_the_endpoint_have_their_codes() {
    let server = serve(server_config(), "strange", |request| {
        match request.method.number() {
            1 => Err(Status::new(Code::NotFound, "no such key")),
            2 => panic!("on purpose"),
            _ => Ok((0..65).fold(Payload::new(), |payload, _| payload.and_short("x"))),
        }
    });
    let endpoint = Endpoint::open(Config::default().without_group()).unwrap();
    let strange = client_of(&endpoint, &server, "strange");
    let call = |method| strange.call(MethodId::new(method), Payload::new(), &patient());
    assert_eq!(
        call(1).unwrap_err(),
        Status::new(Code::NotFound, "no such key")
    );
    assert_eq!(call(2).unwrap_err().code, Code::Internal);
    assert_eq!(call(3).unwrap_err().code, Code::Internal);
    let other = client_of(&endpoint, &server, "other");
    let status = other.call(ECHO, Payload::new(), &patient()).unwrap_err();
    assert_eq!(status.code, Code::Unimplemented);
    let many = (0..65).fold(Payload::new(), |payload, _| payload.and_short("x"));
    let status = strange.call(ECHO, many, &patient()).unwrap_err();
    assert_eq!(status.code, Code::InvalidArgument);
    let nowhere = endpoint.client("strange".parse().unwrap(), Vec::new());
    let status = nowhere.call(ECHO, Payload::new(), &patient()).unwrap_err();
    assert_eq!(status.code, Code::NotFound);
}

#[test]
fn an_address_where_nobody_listens_fails_at_once_and_the_next_one_serves() {
    let server = serve(server_config(), "echo", |request| Ok(request.payload));
    // A port that was free a moment ago.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let nobody = free.local_addr().unwrap();
    drop(free);
    let endpoint = Endpoint::open(Config::default().without_group()).unwrap();
    let begun = Instant::now();
    let lost = endpoint.client("echo".parse().unwrap(), vec![nobody]);
    let status = lost.call(ECHO, Payload::new(), &patient()).unwrap_err();
    assert_eq!(status.code, Code::Unavailable, "{status}");
    assert!(begun.elapsed() < SOON / 2);
    let both = vec![nobody, server.local_addr().unwrap()];
    let found = endpoint.client("echo".parse().unwrap(), both);
    for _ in 0..2 {
        assert!(found.call(ECHO, Payload::short("x"), &patient()).is_ok());
    }
}

#[test]
fn a_stranger_is_no_server() {
    // Something that accepts TCP and answers with other words.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = std::io::Write::write_all(&mut stream, &[b'?'; 200]);
        }
    });
    let endpoint = Endpoint::open(Config::default().without_group()).unwrap();
    let stranger = endpoint.client("echo".parse().unwrap(), vec![address]);
    let status = stranger.call(ECHO, Payload::new(), &patient()).unwrap_err();
    assert_eq!(status.code, Code::Unavailable, "{status}");
}

#[test]
fn a_call_ends_by_its_deadline_and_a_late_one_does_not_begin() {
    let begun = Arc::new(AtomicUsize::new(0));
    let (release, released) = mpsc::channel::<()>();
    let released = Mutex::new(released);
    let count = Arc::clone(&begun);
    let mut config_of_one = server_config();
    config_of_one.threads = 1;
    let server = serve(config_of_one, "slow", move |_| {
        count.fetch_add(1, Ordering::SeqCst);
        let _ = released.lock().unwrap().recv_timeout(SOON);
        Ok(Payload::new())
    });
    let endpoint = Endpoint::open(Config::default().without_group()).unwrap();
    let slow = client_of(&endpoint, &server, "slow");
    let running = slow.begin(ECHO, Payload::new(), &patient()).unwrap();
    while begun.load(Ordering::SeqCst) == 0 {
        thread::yield_now();
    }
    let short = CallOptions::timeout(Duration::from_millis(100));
    let status = slow.call(ECHO, Payload::new(), &short).unwrap_err();
    assert_eq!(status.code, Code::DeadlineExceeded);
    // By the server's clock it ends later: with the way of its CALL.
    let (_never, nothing) = mpsc::channel::<()>();
    let _ = nothing.recv_timeout(Duration::from_secs(1));
    release.send(()).unwrap();
    assert!(running.wait().is_ok());
    // The thread is free, and has dropped the call that was late.
    let last = slow.begin(ECHO, Payload::new(), &patient()).unwrap();
    release.send(()).unwrap();
    assert!(last.wait().is_ok());
    assert_eq!(begun.load(Ordering::SeqCst), 2);
}

#[test]
fn a_cancelled_call_is_not_executed_or_learns_it() {
    let (begun, has_begun) = mpsc::channel();
    let begun = Mutex::new(begun);
    let mut config_of_one = server_config();
    config_of_one.threads = 1;
    let server = serve(config_of_one, "waiting", move |request| {
        begun
            .lock()
            .unwrap()
            .send(request.payload.bytes(0))
            .unwrap();
        let end = Instant::now() + SOON;
        while !request.is_cancelled() && Instant::now() < end {
            thread::yield_now();
        }
        Ok(Payload::short([u8::from(request.is_cancelled())]))
    });
    let endpoint = Endpoint::open(Config::default().without_group()).unwrap();
    let waiting = client_of(&endpoint, &server, "waiting");
    let begin = |name: &str| {
        waiting
            .begin(ECHO, Payload::short(name), &patient())
            .unwrap()
    };
    let first = begin("first");
    assert_eq!(has_begun.recv_timeout(SOON).unwrap(), b"first");
    let second = begin("second");
    assert_eq!(second.cancel().unwrap_err().code, Code::Cancelled);
    // Dropping one cancels it too.
    drop(begin("third"));
    let fourth = begin("fourth");
    assert!(!first.is_ready());
    assert_eq!(first.cancel().unwrap_err().code, Code::Cancelled);
    // The handler of the first has ended, and neither the second nor the third was begun.
    assert_eq!(has_begun.recv_timeout(SOON).unwrap(), b"fourth");
    assert_eq!(fourth.cancel().unwrap_err().code, Code::Cancelled);
}

#[test]
fn overload_is_refused_and_what_was_taken_is_done() {
    let gate = Arc::new(Barrier::new(2));
    let executed = Arc::new(AtomicUsize::new(0));
    let (at_gate, count) = (Arc::clone(&gate), Arc::clone(&executed));
    let mut config_of_few = server_config();
    config_of_few.threads = 1;
    config_of_few.limits.waiting = 4;
    let server = serve(config_of_few, "busy", move |_| {
        if count.fetch_add(1, Ordering::SeqCst) == 0 {
            at_gate.wait();
        }
        Ok(Payload::new())
    });
    let endpoint = Endpoint::open(Config::default().without_group()).unwrap();
    let busy = client_of(&endpoint, &server, "busy");
    let first = busy.begin(ECHO, Payload::new(), &patient()).unwrap();
    while executed.load(Ordering::SeqCst) == 0 {
        thread::yield_now();
    }
    let calls: Vec<_> = (0..20)
        .map(|_| busy.begin(ECHO, Payload::new(), &patient()).unwrap())
        .collect();
    // All but four are refused while the first still runs.
    let refused = |calls: &Vec<PendingCall>| calls.iter().filter(|call| call.is_ready()).count();
    let end = Instant::now() + SOON;
    while refused(&calls) < 16 && Instant::now() < end {
        thread::yield_now();
    }
    gate.wait();
    assert!(first.wait().is_ok());
    let results: Vec<_> = calls.into_iter().map(|call| call.wait()).collect();
    let done = results.iter().filter(|result| result.is_ok()).count();
    let full = |result: &&Result<Payload, Status>| {
        result
            .as_ref()
            .is_err_and(|status| status.code == Code::ResourceExhausted)
    };
    assert_eq!((done, results.iter().filter(full).count()), (4, 16));
    assert_eq!(executed.load(Ordering::SeqCst), 5);
}

#[test]
fn a_server_that_is_started_again_gets_idempotent_calls_only() {
    let server = serve(server_config(), "echo", |_| Ok(Payload::short("old")));
    let address = server.local_addr().unwrap();
    let endpoint = Endpoint::open(Config::default().without_group()).unwrap();
    let echo = endpoint.client("echo".parse().unwrap(), vec![address]);
    assert!(echo.call(ECHO, Payload::new(), &patient()).is_ok());
    assert!(server.close(SOON));
    drop(server);
    let mut again = server_config();
    again.listen = Some(address);
    let server = serve(again, "echo", |_| Ok(Payload::short("new")));
    let reply = echo.call(ECHO, Payload::new(), &patient()).unwrap();
    assert_eq!(reply.bytes(0), b"new");
    drop(server);
}

#[test]
fn a_handler_may_call() {
    let inner = serve(server_config(), "inner", |request| Ok(request.payload));
    let endpoint = Endpoint::open(Config::default().without_group()).unwrap();
    let nested = client_of(&endpoint, &inner, "inner");
    let outer = serve(server_config(), "outer", move |request| {
        nested.call(request.method, request.payload, &patient())
    });
    let caller = Endpoint::open(Config::default().without_group()).unwrap();
    let calls = client_of(&caller, &outer, "outer");
    for _ in 0..20 {
        let reply = calls
            .call(ECHO, Payload::short("deep"), &patient())
            .unwrap();
        assert_eq!(reply.bytes(0), b"deep");
    }
}

/// A task that runs on this thread.
struct Parked(thread::Thread);

impl Wake for Parked {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// The result of a future, on this thread.
fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Arc::new(Parked(thread::current())).into();
    let mut context = Context::from_waker(&waker);
    let mut future = std::pin::pin!(future);
    let end = Instant::now() + SOON;
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
        let left = end.saturating_duration_since(Instant::now());
        assert!(!left.is_zero(), "it was not woken");
        thread::park_timeout(left);
    }
}

#[test]
fn a_call_is_awaited_without_a_thread() {
    let server = serve(server_config(), "echo", |request| Ok(request.payload));
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let nobody = free.local_addr().unwrap();
    drop(free);
    let endpoint = Endpoint::open(Config::default().without_group()).unwrap();
    let both = vec![nobody, server.local_addr().unwrap()];
    let echo = endpoint.client("echo".parse().unwrap(), both);
    for length in [3, 100_000] {
        let payload = Payload::short(octets(length));
        let reply = block_on(echo.call_async(ECHO, payload, &patient())).unwrap();
        assert!(reply.bytes(0) == octets(length));
    }
    let begun = echo.begin(ECHO, Payload::short("x"), &patient()).unwrap();
    assert_eq!(block_on(begun).unwrap().bytes(0), b"x");
}

#[test]
fn handlers_that_reply_later_hold_no_thread() {
    let mut config_of_one = server_config();
    config_of_one.threads = 1;
    config_of_one.limits.waiting = 3;
    let server = Endpoint::open(config_of_one).unwrap();
    let (took, taken) = mpsc::channel();
    let took = Mutex::new(took);
    let later = move |request: dgiwarp_ripc::Request, reply| {
        took.lock().unwrap().send((request, reply)).unwrap();
    };
    server.serve_deferred("later", later).unwrap();
    let endpoint = Endpoint::open(Config::default().without_group()).unwrap();
    let client = client_of(&endpoint, &server, "later");
    let begin = || client.begin(ECHO, Payload::new(), &patient()).unwrap();
    let calls = [begin(), begin(), begin()];
    let mut replies: Vec<_> = calls
        .iter()
        .map(|_| taken.recv_timeout(SOON).unwrap())
        .collect();
    // As many as may wait do.
    assert_eq!(begin().wait().unwrap_err().code, Code::ResourceExhausted);
    let [first, second, third] = calls;
    let (_, mut reply) = replies.pop().unwrap();
    drop(third);
    block_on(std::future::poll_fn(|context| {
        reply.poll_cancelled(context)
    }));
    drop(reply);
    let (_, reply) = replies.pop().unwrap();
    drop(reply);
    assert_eq!(block_on(second).unwrap_err().code, Code::Internal);
    let (_, reply) = replies.pop().unwrap();
    reply.send(Ok(Payload::short("late")));
    assert_eq!(block_on(first).unwrap().bytes(0), b"late");
    // There is room again.
    let next = begin();
    let (_, reply) = taken.recv_timeout(SOON).unwrap();
    reply.send(Ok(Payload::new()));
    assert!(next.wait().is_ok());
    assert!(server.close(SOON));
}

#[test]
fn a_task_learns_that_the_time_of_its_call_is_over() {
    let server = Endpoint::open(server_config()).unwrap();
    let (took, _taken) = mpsc::channel();
    let took = Mutex::new(took);
    let never = move |request: dgiwarp_ripc::Request, reply| {
        took.lock().unwrap().send((request, reply)).unwrap();
    };
    server.serve_deferred("never", never).unwrap();
    let endpoint = Endpoint::open(Config::default().without_group()).unwrap();
    let client = client_of(&endpoint, &server, "never");
    let short = CallOptions::timeout(Duration::from_millis(50));
    let status = block_on(client.call_async(ECHO, Payload::new(), &short));
    assert_eq!(status.unwrap_err().code, Code::DeadlineExceeded);
    let endless = CallOptions::timeout(SOON);
    let pending = client.begin(ECHO, Payload::new(), &endless).unwrap();
    let closer = endpoint.clone();
    let ends = thread::spawn(move || closer.close(Duration::ZERO));
    let status = block_on(pending).unwrap_err();
    assert_eq!(status.code, Code::Unavailable);
    ends.join().unwrap();
}

/// A task that owns a call.
struct Owner(#[expect(dead_code, reason = "owned")] PendingCall);

impl Wake for Owner {
    fn wake(self: Arc<Self>) {}
}

#[test]
fn a_task_that_is_replaced_may_own_calls() {
    let server = Endpoint::open(server_config()).unwrap();
    let (took, _taken) = mpsc::channel();
    let took = Mutex::new(took);
    let never = move |request: dgiwarp_ripc::Request, reply| {
        took.lock().unwrap().send((request, reply)).unwrap();
    };
    server.serve_deferred("never", never).unwrap();
    let endpoint = Endpoint::open(Config::default().without_group()).unwrap();
    let client = client_of(&endpoint, &server, "never");
    let (done, over) = mpsc::channel();
    // A lock that is taken twice would hold the thread.
    thread::spawn(move || {
        let begin = || client.begin(ECHO, Payload::new(), &patient()).unwrap();
        let owner = || Waker::from(Arc::new(Owner(begin())));
        let mut call = begin();
        for _ in 0..2 {
            let mut context = Context::from_waker(Waker::noop());
            assert!(Pin::new(&mut call).poll(&mut context).is_pending());
            let owner = owner();
            let mut context = Context::from_waker(&owner);
            assert!(Pin::new(&mut call).poll(&mut context).is_pending());
        }
        drop(call);
        done.send(()).unwrap();
    });
    over.recv_timeout(2 * SOON).unwrap();
    assert!(server.close(SOON));
}
