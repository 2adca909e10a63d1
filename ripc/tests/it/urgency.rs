//! More urgent calls, messages and parts of streams go first.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use dgiwarp::{RcListener, ReadDepths};
use dgiwarp_ripc::{
    CallOptions, Client, Code, Destination, Endpoint, Payload, PendingCall, Reply, Request, Urgency,
};

use super::hostile::{Raw, call, header, hello_with};
use super::streams::block_on;
use super::{Config, ECHO, SOON, client_of, serve, server_config};

fn level(level: u8) -> Urgency {
    Urgency::new(level).unwrap()
}

fn options(urgency: u8) -> CallOptions {
    CallOptions::timeout(SOON).and_urgency(level(urgency))
}

/// Urgency and octets of a call.
type Note = (u8, Vec<u8>);

/// A server of one thread that is held until it is released, and then notes the urgency and first octets of its calls.
struct Held {
    server: Endpoint,
    begun: mpsc::Receiver<()>,
    release: mpsc::Sender<()>,
    executed: Arc<Mutex<Vec<Note>>>,
}

impl Held {
    fn new(waiting: usize) -> Self {
        let (at_begin, begun) = mpsc::channel();
        let (release, released) = mpsc::channel();
        let executed = Arc::new(Mutex::new(Vec::new()));
        let (notes, gates) = (Arc::clone(&executed), Mutex::new((at_begin, released)));
        let mut config = server_config();
        config.threads = 1;
        config.limits.waiting = waiting;
        let server = serve(config, "held", move |request| {
            let octets = request.payload.bytes(0);
            if octets == b"hold" {
                let gates = gates.lock().unwrap();
                gates.0.send(()).unwrap();
                let _ = gates.1.recv_timeout(SOON);
            } else {
                let note = (request.urgency.level(), octets);
                notes.lock().unwrap().push(note);
            }
            Ok(Payload::new())
        });
        Self {
            server,
            begun,
            release,
            executed,
        }
    }

    /// Holds the thread.
    fn hold(&self, client: &Client) -> PendingCall {
        let call = begin(client, 3, "hold");
        self.begun.recv_timeout(SOON).unwrap();
        call
    }

    fn executed(&self) -> Vec<Note> {
        self.executed.lock().unwrap().clone()
    }
}

fn begin(client: &Client, urgency: u8, text: &str) -> PendingCall {
    let payload = Payload::short(text);
    client.begin(ECHO, payload, &options(urgency)).unwrap()
}

fn is_refused(call: PendingCall) -> bool {
    let result = call.wait();
    result.is_err_and(|status| status.code == Code::ResourceExhausted)
}

/// Waits until so many of the calls are over.
fn over(calls: &[PendingCall], count: usize) {
    let end = Instant::now() + SOON;
    while calls.iter().filter(|it| it.is_ready()).count() < count && Instant::now() < end {
        thread::yield_now();
    }
}

/// Returns once all messages have come that left before: those of the connection keep their order.
fn all_came(endpoint: &Endpoint, server: &Endpoint) {
    let nobody = client_of(endpoint, server, "nobody");
    let result = nobody.call(ECHO, Payload::new(), &options(7));
    assert_eq!(result.unwrap_err().code, Code::Unimplemented);
}

#[test]
fn calls_that_wait_for_a_thread_are_executed_by_their_urgency() {
    let held = Held::new(1024);
    let endpoint = Endpoint::open(Config::default().without_group()).unwrap();
    let client = client_of(&endpoint, &held.server, "held");
    let first = held.hold(&client);
    let mut calls = Vec::new();
    for urgency in [7, 3, 0, 5, 3, 7, 0] {
        calls.push(begin(&client, urgency, &format!("{}", calls.len())));
    }
    let cancelled = begin(&client, 7, "cancelled");
    assert_eq!(cancelled.cancel().unwrap_err().code, Code::Cancelled);
    calls.push(begin(&client, 0, "behind"));
    all_came(&endpoint, &held.server);
    held.release.send(()).unwrap();
    assert!(first.wait().is_ok());
    for call in calls {
        assert!(call.wait().is_ok());
    }
    let order = held.executed();
    let expected = [
        (0, "2"),
        (0, "6"),
        (0, "behind"),
        (3, "1"),
        (3, "4"),
        (5, "3"),
        (7, "0"),
        (7, "5"),
    ];
    let expected = expected.map(|(urgency, text)| (urgency, text.as_bytes().to_vec()));
    assert_eq!(order, expected);
}

#[test]
fn the_least_urgent_calls_are_refused_first() {
    let held = Held::new(4);
    let endpoint = Endpoint::open(Config::default().without_group()).unwrap();
    let client = client_of(&endpoint, &held.server, "held");
    let first = held.hold(&client);
    // Three quarters of the room are theirs.
    let background: Vec<_> = (0..5).map(|_| begin(&client, 6, "six")).collect();
    over(&background, 2);
    let default = begin(&client, 3, "three");
    // The room is full: each takes the place of the newest one of urgency 6.
    let urgent: Vec<_> = (0..2).map(|_| begin(&client, 0, "zero")).collect();
    over(&background, 4);
    // Less urgent than all that wait, and as urgent as the least of them.
    assert!(is_refused(begin(&client, 7, "seven")));
    assert!(is_refused(begin(&client, 6, "six")));
    held.release.send(()).unwrap();
    assert!(first.wait().is_ok() && default.wait().is_ok());
    for call in urgent {
        assert!(call.wait().is_ok());
    }
    let refused: Vec<_> = background.into_iter().map(is_refused).collect();
    assert_eq!(refused, [false, true, true, true, true]);
    let order: Vec<_> = held.executed().into_iter().map(|it| it.0).collect();
    assert_eq!(order, [0, 0, 3, 6]);
}

#[test]
fn messages_are_received_by_their_urgency() {
    let server = Endpoint::open(server_config()).unwrap();
    let inbox = server.open_inbox("4").unwrap();
    let client = Endpoint::open(Config::default().without_group()).unwrap();
    let from = client.open_inbox("17").unwrap();
    let to = Destination::Address(server.local_addr().unwrap());
    // Each leaves at once where there is a connection.
    all_came(&client, &server);
    for (number, urgency) in [(0, 7), (1, 3), (2, 0), (3, 7), (4, 0), (5, 3)] {
        let payload = Payload::short([number]);
        let sent = client.send_with(level(urgency), from, inbox, to, payload, Vec::new());
        sent.unwrap();
    }
    all_came(&client, &server);
    let received = std::iter::from_fn(|| server.receive(inbox, Some(Duration::from_millis(1))));
    let order: Vec<_> = received.map(|it| it.payload.bytes(0)[0]).collect();
    assert_eq!(order, [2, 4, 1, 5, 0, 3]);
}

/// A server by hand with this first grant to messages: its address, and its work.
fn by_hand<T: Send + 'static>(
    credit: u64,
    work: impl FnOnce(&Raw) -> T + Send + 'static,
) -> (SocketAddr, thread::JoinHandle<T>) {
    by_hand_with((0, credit), work)
}

/// With these first grants to streams and messages.
fn by_hand_with<T: Send + 'static>(
    (stream, credit): (u32, u64),
    work: impl FnOnce(&Raw) -> T + Send + 'static,
) -> (SocketAddr, thread::JoinHandle<T>) {
    let mpa = dgiwarp::Config::default().mpa;
    let listener = RcListener::bind("127.0.0.1:0".parse().unwrap(), mpa).unwrap();
    let address = listener.local_addr();
    let server = thread::spawn(move || {
        let request = listener.accept(SOON).unwrap().unwrap();
        let raw = Raw::new();
        let depths = ReadDepths { ird: 16, ord: 16 };
        let hello = hello_with(99, stream, credit);
        request.accept(&raw.qp, depths, &hello).unwrap();
        work(&raw)
    });
    (address, server)
}

/// The next message of this kind.
fn next(raw: &Raw, kind: u8) -> Vec<u8> {
    loop {
        let message = raw.receive().expect("a message");
        if message[0] == kind {
            return message;
        }
    }
}

/// A message of no content with this credit.
fn credit(credit: u64) -> Vec<u8> {
    let mut message = header(4, 0, 0, 0);
    message[16..24].copy_from_slice(&credit.to_be_bytes());
    message
}

/// The urgency that a CALL or MESSAGE has on the wire.
fn on_wire(message: &[u8]) -> u8 {
    (message[1] >> 2 & 7) ^ 3
}

#[test]
fn messages_that_wait_for_credit_leave_by_their_urgency() {
    let (has_come, came) = mpsc::channel();
    let (all_wait, go_on) = mpsc::channel();
    // A call of one octet costs 201: one fits.
    let (address, server) = by_hand(300, move |raw| {
        let mut calls = vec![next(raw, 1)];
        has_come.send(()).unwrap();
        go_on.recv_timeout(SOON).unwrap();
        raw.send(&credit(100_000));
        calls.extend((0..6).map(|_| next(raw, 1)));
        let seen = calls.iter().map(|it| (on_wire(it), *it.last().unwrap()));
        seen.collect::<Vec<_>>()
    });
    let endpoint = Endpoint::open(Config::default().without_group()).unwrap();
    let client = endpoint.client("held".parse().unwrap(), vec![address]);
    let mut calls = vec![begin(&client, 3, "a")];
    came.recv_timeout(SOON).unwrap();
    for (urgency, text) in [(7, "b"), (4, "c"), (3, "d"), (0, "e"), (7, "f"), (0, "g")] {
        calls.push(begin(&client, urgency, text));
    }
    all_wait.send(()).unwrap();
    let order = server.join().unwrap();
    let expected = [
        (3, b'a'),
        (0, b'e'),
        (0, b'g'),
        (3, b'd'),
        (4, b'c'),
        (7, b'b'),
        (7, b'f'),
    ];
    assert_eq!(order, expected);
}

#[test]
fn a_cancel_leaves_behind_its_call() {
    let (has_come, came) = mpsc::channel();
    let (is_cancelled, go_on) = mpsc::channel();
    let (address, server) = by_hand(300, move |raw| {
        next(raw, 1);
        has_come.send(()).unwrap();
        go_on.recv_timeout(SOON).unwrap();
        raw.send(&credit(100_000));
        let kinds = std::iter::from_fn(|| raw.receive()).map(|it| it[0]);
        kinds
            .filter(|it| [1, 5].contains(it))
            .take(2)
            .collect::<Vec<_>>()
    });
    let endpoint = Endpoint::open(Config::default().without_group()).unwrap();
    let client = endpoint.client("held".parse().unwrap(), vec![address]);
    let first = begin(&client, 3, "a");
    came.recv_timeout(SOON).unwrap();
    // It waits for credit.
    let second = begin(&client, 5, "b");
    assert_eq!(second.cancel().unwrap_err().code, Code::Cancelled);
    is_cancelled.send(()).unwrap();
    assert_eq!(server.join().unwrap(), [1, 5]);
    drop(first);
}

#[test]
fn calls_less_urgent_than_others_leave_a_part_of_the_credit() {
    // The receiver keeps all, so that 40,000 octets are all that there are: 10,000 of them are for others.
    let (have_come, came) = mpsc::channel();
    let (address, server) = by_hand(40_000, move |raw| {
        let receive = |count| {
            let calls = (0..count).map(|_| on_wire(&next(raw, 1)));
            calls.collect::<Vec<_>>()
        };
        let first = receive(7);
        have_come.send(()).unwrap();
        (first, receive(2))
    });
    let endpoint = Endpoint::open(Config::default().without_group()).unwrap();
    let client = endpoint.client("held".parse().unwrap(), vec![address]);
    // Each costs 4,200.
    let text = "x".repeat(4000);
    let background: Vec<_> = (0..9).map(|_| begin(&client, 4, &text)).collect();
    came.recv_timeout(SOON).unwrap();
    let others: Vec<_> = (0..2).map(|_| begin(&client, 3, &text)).collect();
    assert_eq!(server.join().unwrap(), (vec![4; 7], vec![3; 2]));
    drop((background, others));
}

#[test]
fn a_reply_has_the_urgency_of_its_call() {
    let server = Endpoint::open(server_config()).unwrap();
    let (at_handler, replies) = mpsc::channel();
    let at_handler = Mutex::new(at_handler);
    let deferred = move |request: Request, reply: Reply| {
        let entry = (request.urgency, reply);
        at_handler.lock().unwrap().send(entry).unwrap();
    };
    server.serve_deferred("echo", deferred).unwrap();
    // Replies wait for credit: this peer grants none.
    let raw = Raw::connect(server.local_addr().unwrap(), &hello_with(5, 0, 0)).unwrap();
    for (number, urgency) in [(1, 7), (2, 3), (3, 0), (4, 7), (5, 0)] {
        let mut message = call(0, 0, number, "echo");
        message[1] = (urgency ^ 3) << 2;
        message[16..24].fill(0);
        raw.send(&message);
    }
    let replies: Vec<_> = (0..5)
        .map(|_| replies.recv_timeout(SOON).unwrap())
        .collect();
    for (_, reply) in replies {
        reply.send(Ok(Payload::new()));
    }
    raw.send(&credit(1 << 20));
    let order: Vec<_> = (0..5).map(|_| next(&raw, 2)[15]).collect();
    assert_eq!(order, [3, 5, 2, 1, 4]);
}

#[test]
fn parts_of_streams_leave_by_the_urgency_of_their_calls() {
    // Each time, octets of the less urgent stream are given first, more than leave at once. Where the endpoint's threads leave the test the time, those of the
    // other one overtake them.
    const ATTEMPTS: u8 = 200;
    const LONG: usize = 192 << 10;
    const SHORT: usize = 48 << 10;
    let (seen, parts) = mpsc::channel();
    let (address, server) = by_hand_with((1 << 30, 1 << 20), move |raw| {
        let calls = [next(raw, 1), next(raw, 1)];
        let calls = calls.map(|it| (it[8..16].to_vec(), on_wire(&it)));
        while let Some(part) = raw.receive() {
            if part[0] == 10 {
                let of = calls.iter().find(|(number, _)| part[8..16] == *number);
                if seen.send((of.unwrap().1, part[32..].to_vec())).is_err() {
                    return;
                }
            }
        }
    });
    let endpoint = Endpoint::open(Config::default().without_group()).unwrap();
    let client = endpoint.client("held".parse().unwrap(), vec![address]);
    let open = |urgency| block_on(client.open(ECHO, Payload::new(), &options(urgency), true));
    let mut calls = [7, 0].map(|urgency| open(urgency).unwrap());
    let mut give = |of: usize, attempt: u8, length: usize| {
        let sender = calls[of].sender.as_mut().unwrap();
        let mut context = Context::from_waker(Waker::noop());
        let mut given = 0;
        while given < length
            && let Poll::Ready(Some(taken)) =
                sender.poll_send(&vec![attempt; length - given], &mut context)
        {
            given += taken;
        }
        given
    };
    let overtakes = (0..ATTEMPTS).any(|attempt| {
        let mut left = give(0, attempt, LONG) + give(1, attempt, SHORT);
        let mut order = Vec::new();
        while left > 0 {
            let (urgency, octets) = parts.recv_timeout(SOON).unwrap();
            left -= octets.len();
            order.push(urgency);
        }
        // By turns alone, hardly one part is behind.
        let behind = order.iter().rev().take_while(|it| **it == 7).count();
        let is_last = order.contains(&0);
        is_last && behind >= 6
    });
    assert!(overtakes);
    drop((parts, calls, client, endpoint));
    server.join().unwrap();
}
