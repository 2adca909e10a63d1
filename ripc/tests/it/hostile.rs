//! Peers that break the protocol: raw queue pairs against an endpoint.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use dgiwarp::{
    Access, Buffer, Cq, Mr, Pd, QpAttr, RcListener, RcOperation, RcQp, RcQpAttr, RcSendWr,
    ReadDepths, RecvWr, Rnic, WcOpcode, WcStatus,
};
use dgiwarp_ripc::{CallOptions, Code, Endpoint, Payload, Reply, ServiceId};

use super::streams::block_on;
use super::{Config, ECHO, SOON, client_of, serve, server_config};

const ROOM: usize = 8192;
const RECEIVES: usize = 16;

/// The first part of the private data of a peer that is allowed 1 MiB.
fn hello(instance: u64) -> Vec<u8> {
    hello_with(instance, 0, 1 << 20)
}

/// With these first grants to streams and messages.
pub(crate) fn hello_with(instance: u64, stream: u32, credit: u64) -> Vec<u8> {
    let mut hello = b"RIPC\x00\x01\x00\x00".to_vec();
    hello.extend(instance.to_be_bytes());
    hello.extend(8192_u32.to_be_bytes());
    hello.extend(stream.to_be_bytes());
    hello.extend(credit.to_be_bytes());
    hello
}

pub(crate) fn header(kind: u8, items: u8, windows: u8, number: u64) -> Vec<u8> {
    let mut message = vec![kind, 0, items, windows, 0, 0, 0, 0];
    message.extend(number.to_be_bytes());
    message.extend((1_u64 << 20).to_be_bytes());
    message
}

pub(crate) fn call(items: u8, windows: u8, number: u64, service: &str) -> Vec<u8> {
    let mut message = header(1, items, windows, number);
    message.extend(ServiceId::named(service).number().to_be_bytes());
    message.extend(ECHO.number().to_be_bytes());
    message.extend([0; 12]);
    message
}

pub(crate) fn element(kind: u8, name: u32, address: u64, length: u64) -> Vec<u8> {
    let mut element = vec![kind, 0, 0, 0];
    element.extend(name.to_be_bytes());
    element.extend(address.to_be_bytes());
    element.extend(length.to_be_bytes());
    element
}

pub(crate) fn window(number: u32, key: u32, address: u64, length: u64) -> Vec<u8> {
    let mut window = number.to_be_bytes().to_vec();
    window.extend(key.to_be_bytes());
    window.extend(address.to_be_bytes());
    window.extend(length.to_be_bytes());
    window
}

/// A queue pair with memory.
pub(crate) struct Raw {
    pub(crate) qp: RcQp,
    cq: Cq,
    memory: Buffer,
    mr: Mr,
}

impl Raw {
    /// On a device of its own.
    pub(crate) fn new() -> Self {
        Self::on(&Rnic::open(dgiwarp::Config::default()).unwrap())
    }

    pub(crate) fn on(rnic: &Rnic) -> Self {
        let pd: Pd = rnic.alloc_pd();
        let cq = rnic.create_cq(1024).unwrap();
        let qp = pd
            .create_rc_qp(&RcQpAttr::from(QpAttr::new(&cq, &cq)))
            .unwrap();
        let memory = Buffer::zeroed((RECEIVES + 1) * ROOM).unwrap();
        let mr = pd.register(memory.region(), Access::LOCAL_WRITE).unwrap();
        for slot in 0..RECEIVES {
            let sges = [mr.sge(slot * ROOM..(slot + 1) * ROOM)];
            let wr_id = slot as u64;
            qp.post_recv(&[RecvWr { wr_id, sges: &sges }]).unwrap();
        }
        Self { qp, cq, memory, mr }
    }

    pub(crate) fn connect(to: SocketAddr, hello: &[u8]) -> Result<Self, dgiwarp::ConnectError> {
        let raw = Self::new();
        let mpa = dgiwarp::Config::default().mpa;
        raw.qp.connect(to, &mpa, hello).map(|_| raw)
    }

    pub(crate) fn send(&self, message: &[u8]) {
        let start = RECEIVES * ROOM;
        self.memory.write(start, message);
        let sges = [self.mr.sge(start..start + message.len())];
        let wr = RcSendWr::send(1 << 32, &sges);
        // One that has lost its connection sends no more.
        if self.qp.post_send(&[wr]).is_ok() {
            while let Some(wc) = self.cq.wait(SOON).unwrap() {
                if wc.wr_id == 1 << 32 || wc.status != WcStatus::Success {
                    break;
                }
            }
        }
    }

    pub(crate) fn receive(&self) -> Option<Vec<u8>> {
        loop {
            let wc = self.cq.wait(SOON).unwrap()?;
            if wc.status != WcStatus::Success {
                return None;
            }
            if wc.opcode == WcOpcode::Recv {
                let [slot, length] = [wc.wr_id, wc.byte_len.into()];
                let [slot, length] = [slot, length].map(|it| usize::try_from(it).unwrap());
                let message = self.memory.to_vec(slot * ROOM, length);
                let sges = [self.mr.sge(slot * ROOM..(slot + 1) * ROOM)];
                let wr_id = slot as u64;
                // One that has lost its connection takes no more.
                let _ = self.qp.post_recv(&[RecvWr { wr_id, sges: &sges }]);
                return Some(message);
            }
        }
    }

    /// Whether the peer ends the connection.
    pub(crate) fn is_ended(&self) -> bool {
        let end = Instant::now() + SOON;
        while !self.qp.is_over() && Instant::now() < end {
            let _ = self.cq.wait(Duration::from_millis(10));
        }
        self.qp.is_over()
    }
}

fn patient() -> CallOptions {
    CallOptions::timeout(SOON)
}

#[test]
fn a_bad_hello_is_refused_with_its_reason() {
    let server = serve(server_config(), "echo", |request| Ok(request.payload));
    let address = server.local_addr().unwrap();
    let mut old = hello(7);
    old[5] = 0;
    for (bad, code) in [(old, 1), (b"nonsense".to_vec(), 2), (hello(0), 2)] {
        match Raw::connect(address, &bad) {
            Err(dgiwarp::ConnectError::Rejected(rejection)) => {
                assert_eq!(
                    rejection.private_data,
                    [b'R', b'I', b'P', b'C', 0, 1, 0, code]
                );
            }
            other => panic!("{:?}", other.map(drop)),
        }
    }
    // A newer one speaks this version with us.
    let mut new = hello(8);
    new[5] = 9;
    assert!(Raw::connect(address, &new).is_ok());
}

#[test]
fn each_violation_ends_its_connection_and_no_other() {
    let executed = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&executed);
    let server = serve(server_config(), "echo", move |request| {
        count.fetch_add(1, Ordering::SeqCst);
        Ok(request.payload)
    });
    server.open_inbox("4").unwrap();
    let address = server.local_addr().unwrap();
    let good = Endpoint::open(Config::default().without_group()).unwrap();
    let echo = client_of(&good, &server, "echo");
    assert!(echo.call(ECHO, Payload::new(), &patient()).is_ok());

    let with = |mut message: Vec<u8>, more: Vec<u8>| {
        message.extend(more);
        message
    };
    let mut message = header(3, 1, 0, 5);
    message.extend(4_u64.to_be_bytes());
    message.extend(17_u64.to_be_bytes());
    let mut metadata = call(0, 0, 1, "echo");
    metadata[7] = 4;
    metadata.extend([9, b'a', 0, 0]);
    let violations = [
        ("an unknown kind", header(77, 0, 0, 1)),
        ("no header", vec![1, 2, 3]),
        ("no octets", vec![0; 1]),
        ("octets behind the end", with(header(4, 0, 0, 0), vec![0])),
        ("too many items", header(2, 65, 0, 1)),
        ("bad metadata", metadata),
        (
            "a window for a CALL",
            with(call(1, 0, 1, "echo"), element(2, 1, 0, 10)),
        ),
        ("no such window", with(message, element(2, 1, 0, 10))),
        (
            "an unknown kind of item",
            with(call(1, 0, 1, "echo"), element(9, 1, 0, 10)),
        ),
        (
            "an inline item without octets",
            with(call(1, 0, 1, "echo"), element(1, 0, 0, u64::MAX)),
        ),
        (
            "a window without octets",
            with(call(0, 1, 1, "echo"), window(1, 2, 3, 0)),
        ),
        // It is read, and the device refuses the key.
        (
            "an offer of nothing",
            with(call(1, 0, 1, "echo"), element(3, 1, u64::MAX - 4, 4000)),
        ),
    ];
    for (at, (name, octets)) in (100..).zip(violations) {
        let raw = Raw::connect(address, &hello(at)).unwrap();
        raw.send(&octets);
        // In the last case this end sends the Terminate, and ends then.
        assert!(raw.is_ended(), "{name}");
        assert!(
            echo.call(ECHO, Payload::new(), &patient()).is_ok(),
            "{name}"
        );
    }
    assert_eq!(
        executed.load(Ordering::SeqCst),
        13,
        "none of them was executed"
    );
}

#[test]
fn more_than_the_credit_ends_the_connection() {
    let mut small = server_config();
    small.limits.credit = 128 << 10;
    let server = Endpoint::open(small).unwrap();
    server.open_inbox("4").unwrap();
    let raw = Raw::connect(server.local_addr().unwrap(), &hello(5)).unwrap();
    let mut message = header(3, 1, 0, 5);
    message.extend(4_u64.to_be_bytes());
    message.extend(17_u64.to_be_bytes());
    message.extend(element(1, 0, 0, 4000));
    message.extend([0; 4000]);
    // Nobody takes them: 31 fit.
    for _ in 0..40 {
        raw.send(&message);
    }
    assert!(raw.is_ended());
}

#[test]
fn a_call_again_is_not_executed_again() {
    let executed = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&executed);
    let server = serve(server_config(), "count", move |_| {
        let number = count.fetch_add(1, Ordering::SeqCst);
        Ok(Payload::short(number.to_string()))
    });
    let address = server.local_addr().unwrap();
    let reply = |raw: &Raw| loop {
        let message = raw.receive().expect("a reply");
        if message[0] == 2 {
            return message[8..16]
                .iter()
                .chain(&message[48..])
                .copied()
                .collect::<Vec<_>>();
        }
    };
    let first = Raw::connect(address, &hello(5)).unwrap();
    first.send(&call(0, 0, 1, "count"));
    let reply_of_first = reply(&first);
    assert_eq!(reply_of_first.last(), Some(&b'0'));
    first.send(&call(0, 0, 1, "count"));
    assert_eq!(reply(&first), reply_of_first);
    drop(first);
    // By another connection of this instance; and one of another instance is another call.
    let second = Raw::connect(address, &hello(5)).unwrap();
    second.send(&call(0, 0, 1, "count"));
    assert_eq!(reply(&second), reply_of_first);
    let stranger = Raw::connect(address, &hello(6)).unwrap();
    stranger.send(&call(0, 0, 1, "count"));
    assert_eq!(reply(&stranger).last(), Some(&b'1'));
    assert_eq!(executed.load(Ordering::SeqCst), 2);
}

/// A server that answers one call with what `answer` makes of it, and reports whether the caller ended the connection.
fn evil_server(
    answer: impl Fn(&Raw, &[u8]) + Send + 'static,
) -> (SocketAddr, thread::JoinHandle<bool>) {
    let mpa = dgiwarp::Config::default().mpa;
    let listener = RcListener::bind("127.0.0.1:0".parse().unwrap(), mpa).unwrap();
    let address = listener.local_addr();
    let server = thread::spawn(move || {
        let request = listener.accept(SOON).unwrap().unwrap();
        let raw = Raw::new();
        let depths = ReadDepths { ird: 16, ord: 16 };
        request.accept(&raw.qp, depths, &hello(99)).unwrap();
        let call = raw.receive().expect("a call");
        answer(&raw, &call);
        raw.is_ended()
    });
    (address, server)
}

/// Number of the call, and its window.
fn parsed(call: &[u8]) -> (u64, u32, u32, u64) {
    let number = |at: usize| u64::from_be_bytes(call[at..at + 8].try_into().unwrap());
    let short = |at: usize| u32::from_be_bytes(call[at..at + 4].try_into().unwrap());
    (number(8), short(48), short(52), number(56))
}

#[test]
fn a_server_that_lies_about_a_window_is_left() {
    type Lie = fn(&Raw, &[u8]);
    let lies: [(&str, Lie); 4] = [
        ("longer than the window", |raw, call| {
            let (number, window, ..) = parsed(call);
            let mut reply = header(2, 1, 0, number);
            reply.extend(element(2, window, 0, 4097));
            raw.send(&reply);
        }),
        ("another window", |raw, call| {
            let (number, window, ..) = parsed(call);
            let mut reply = header(2, 1, 0, number);
            reply.extend(element(2, window + 1, 0, 1));
            raw.send(&reply);
        }),
        ("one window twice", |raw, call| {
            let (number, window, ..) = parsed(call);
            let mut reply = header(2, 2, 0, number);
            reply.extend(element(2, window, 0, 1));
            reply.extend(element(2, window, 0, 1));
            raw.send(&reply);
        }),
        ("octets outside of the window", |raw, call| {
            let (.., key, address) = parsed(call);
            let write = RcOperation::Write {
                rkey: key,
                remote_addr: address + 4090,
                immediate: None,
            };
            let sges = [raw.mr.sge(..10)];
            raw.qp.post_send(&[RcSendWr::new(3, write, &sges)]).unwrap();
        }),
    ];
    for (name, lie) in lies {
        let (address, server) = evil_server(lie);
        let endpoint = Endpoint::open(Config::default().without_group()).unwrap();
        let service = endpoint.client("evil".parse().unwrap(), vec![address]);
        let options = CallOptions::timeout(SOON).and_room(4096);
        let call = service.begin(ECHO, Payload::new(), &options).unwrap();
        assert!(server.join().unwrap(), "{name}");
        let status = call.wait().unwrap_err();
        assert_eq!(status.code, Code::Unavailable, "{name}: {status}");
    }
}

#[test]
fn a_window_is_withdrawn_before_the_reply_is_given_out() {
    // The reply names the window; then the server writes to it once more.
    let (address, server) = evil_server(|raw, call| {
        let (number, window, key, address) = parsed(call);
        let mut reply = header(2, 1, 0, number);
        reply.extend(element(2, window, 0, 16));
        raw.send(&reply);
        let _ = raw.cq.wait(Duration::from_millis(500));
        let write = RcOperation::Write {
            rkey: key,
            remote_addr: address,
            immediate: None,
        };
        raw.memory.write(0, &[0xee; 16]);
        let sges = [raw.mr.sge(..16)];
        let _ = raw.qp.post_send(&[RcSendWr::new(3, write, &sges)]);
    });
    let endpoint = Endpoint::open(Config::default().without_group()).unwrap();
    let service = endpoint.client("evil".parse().unwrap(), vec![address]);
    let options = CallOptions::timeout(SOON).and_room(4096);
    let reply = service.call(ECHO, Payload::new(), &options).unwrap();
    assert_eq!(reply.bytes(0), [0; 16]);
    assert!(server.join().unwrap(), "the late write ends the connection");
    assert_eq!(reply.bytes(0), [0; 16]);
}

#[test]
fn a_reply_into_a_false_window_harms_its_caller_alone() {
    let server = Endpoint::open(server_config()).unwrap();
    let blocks = server.clone();
    server
        .serve("blob", move |_| {
            Ok(Payload::long(blocks.block(100_000).unwrap()))
        })
        .unwrap();
    let address = server.local_addr().unwrap();
    let raw = Raw::connect(address, &hello(5)).unwrap();
    let mut message = call(0, 1, 1, "blob");
    message.extend(window(1, 0x1234_5600, 0x1000, 1 << 20));
    raw.send(&message);
    assert!(raw.is_ended());
    let good = Endpoint::open(Config::default().without_group()).unwrap();
    let blob = client_of(&good, &server, "blob");
    let reply = blob.call(ECHO, Payload::new(), &patient()).unwrap();
    assert_eq!(reply.items[0].len(), 100_000);
}

#[test]
fn a_peer_that_says_nothing_does_not_hold_an_endpoint_that_goes_away() {
    let mut config = server_config();
    config.limits.silence = Duration::from_millis(200);
    let server = serve(config, "echo", |request| Ok(request.payload));
    let raw = Raw::connect(server.local_addr().unwrap(), &hello(7)).unwrap();
    raw.send(&call(0, 0, 1, "echo"));
    assert!(raw.receive().is_some());
    assert!(server.close(SOON));
    assert!(raw.is_ended());
}

/// A part of a stream of call `number`.
fn part(direction: u8, end: u8, number: u64, octets: &[u8]) -> Vec<u8> {
    let mut message = header(10, 0, 0, number);
    message.extend([direction, end, 0, 0]);
    message.extend(u32::try_from(octets.len()).unwrap().to_be_bytes());
    message.extend(octets);
    message
}

#[test]
fn a_caller_that_breaks_the_rules_of_a_stream_loses_its_connection() {
    let mut config = server_config();
    config.limits.stream = 4096;
    let server = Endpoint::open(config).unwrap();
    let held = Mutex::new(Vec::<Reply>::new());
    // Nobody reads.
    let handler = move |_, reply| held.lock().unwrap().push(reply);
    server.serve_deferred("held", handler).unwrap();
    let address = server.local_addr().unwrap();
    let full = part(0, 0, 1, &[1; 4096]);
    let wrong: [(&str, &[Vec<u8>]); 5] = [
        (
            "more than was granted",
            &[full.clone(), part(0, 0, 1, &[1])],
        ),
        (
            "a part behind the end",
            &[part(0, 1, 1, &[1]), part(0, 0, 1, &[1])],
        ),
        ("two ends", &[part(0, 1, 1, &[]), part(0, 1, 1, &[])]),
        ("a part without octets", &[part(0, 0, 1, &[])]),
        ("a third direction", &[part(2, 1, 1, &[])]),
    ];
    for (instance, (name, parts)) in (200..).zip(wrong) {
        let raw = Raw::connect(address, &hello(instance)).unwrap();
        let mut message = call(0, 0, 1, "held");
        message[1] = 3;
        raw.send(&message);
        // Parts of other calls, of a stream that only the server has, and a grant beyond all memory do no harm.
        for fine in [
            part(0, 0, 7, &[1; 5000]),
            part(1, 0, 1, &[1; 5000]),
            [header(11, 0, 0, 1), vec![1; 16]].concat(),
        ] {
            raw.send(&fine);
        }
        assert!(!raw.qp.is_over(), "{name}");
        for part in parts {
            raw.send(part);
        }
        assert!(raw.is_ended(), "{name}");
    }
}

#[test]
fn a_server_that_breaks_the_rules_of_a_stream_is_left() {
    let (address, server) = evil_server(|raw, call| {
        let (number, ..) = parsed(&[call, &[0; 64]].concat());
        assert_eq!(call[1], 0, "no stream is offered to a peer that takes none");
        for _ in 0..17 {
            raw.send(&part(1, 0, number, &[7; 8000]));
        }
    });
    let endpoint = Endpoint::open(Config::default().without_group()).unwrap();
    let client = endpoint.client("evil".parse().unwrap(), vec![address]);
    // It is older than streams: its hello grants none.
    let failed = block_on(client.open(ECHO, Payload::new(), &patient(), true));
    let status = failed.unwrap_err();
    assert_eq!(status.code, Code::Unimplemented, "{status}");
    let call = block_on(client.open(ECHO, Payload::new(), &patient(), false)).unwrap();
    assert!(server.join().unwrap());
    let status = block_on(call.call).unwrap_err();
    assert_eq!(status.code, Code::Unavailable, "{status}");
}

#[test]
fn a_silent_caller_of_a_stream_is_left() {
    let mut config = server_config();
    config.limits.silence = Duration::from_millis(200);
    let server = Endpoint::open(config).unwrap();
    let held = Mutex::new(Vec::<Reply>::new());
    let handler = move |_, reply| held.lock().unwrap().push(reply);
    server.serve_deferred("held", handler).unwrap();
    let raw = Raw::connect(server.local_addr().unwrap(), &hello(7)).unwrap();
    let mut message = call(0, 0, 1, "held");
    message[1] = 2;
    raw.send(&message);
    // It answers no PING.
    assert!(raw.is_ended());
}

#[test]
fn a_peer_that_sends_pings_and_takes_no_answers_is_left() {
    let server = Endpoint::open(server_config()).unwrap();
    let raw = Raw::connect(server.local_addr().unwrap(), &hello(8)).unwrap();
    let start = RECEIVES * ROOM;
    let ping = header(7, 0, 0, 1);
    raw.memory.write(start, &ping);
    let sges = [raw.mr.sge(start..start + ping.len())];
    let wr = RcSendWr::send(1 << 32, &sges);
    // Once its receives and its RNR queue are full it sees neither PONGs nor acknowledgements, and fills its send queue.
    let ended = (0..100_000).any(|_| {
        let wc = if raw.qp.post_send(&[wr]).is_ok() {
            raw.cq.poll_one().unwrap()
        } else {
            let wc = raw.cq.wait(SOON).unwrap();
            Some(wc.expect("a completion although the send queue is full"))
        };
        wc.is_some_and(|wc| wc.status != WcStatus::Success)
    });
    assert!(ended);
}

#[test]
fn a_reply_does_not_stand_for_parts_that_went_elsewhere() {
    let server = Endpoint::open(server_config()).unwrap();
    let held = Arc::new(Mutex::new(Vec::<Reply>::new()));
    let replies = Arc::clone(&held);
    let handler = move |_, mut reply: Reply| {
        let mut sender = reply.sender().unwrap();
        assert!(block_on(sender.send(b"part")));
        replies.lock().unwrap().push(reply);
    };
    server.serve_deferred("parts", handler).unwrap();
    let address = server.local_addr().unwrap();
    let mut takes = hello(5);
    takes[20..24].copy_from_slice(&4096_u32.to_be_bytes());
    let mut message = call(0, 0, 1, "parts");
    message[1] = 1;
    let next = |raw: &Raw, kind: u8| loop {
        let message = raw.receive().expect("a message");
        if message[0] == kind {
            return message;
        }
    };
    let first = Raw::connect(address, &takes).unwrap();
    first.send(&message);
    assert_eq!(next(&first, 10)[32..], *b"part");
    // The instance sends the CALL again, on another connection.
    let second = Raw::connect(address, &takes).unwrap();
    second.send(&message);
    second.send(&header(7, 0, 0, 9));
    assert_eq!(next(&second, 8)[15], 9);
    let reply = held.lock().unwrap().pop().unwrap();
    reply.send(Ok(Payload::short("whole")));
    assert_eq!(next(&second, 2)[4..6], [0, 10]);
}

#[test]
fn a_call_whose_stream_was_lost_is_not_sent_again() {
    let mpa = dgiwarp::Config::default().mpa;
    let listener = RcListener::bind("127.0.0.1:0".parse().unwrap(), mpa).unwrap();
    let address = listener.local_addr();
    thread::spawn(move || {
        for turn in 0.. {
            let Ok(Some(request)) = listener.accept(SOON) else {
                return;
            };
            let raw = Raw::new();
            let depths = ReadDepths { ird: 16, ord: 16 };
            request.accept(&raw.qp, depths, &hello(99)).unwrap();
            let Some(call) = raw.receive() else {
                continue;
            };
            let (number, ..) = parsed(&[call, vec![0; 64]].concat());
            if turn == 0 {
                raw.send(&part(1, 0, number, b"part"));
                // The caller has it once it answers.
                raw.send(&header(7, 0, 0, 9));
                while raw.receive().is_some_and(|it| it[0] != 8) {}
            } else {
                raw.send(&header(2, 0, 0, number));
                let _ = raw.receive();
            }
        }
    });
    let endpoint = Endpoint::open(Config::default().without_group()).unwrap();
    let client = endpoint.client("lost".parse().unwrap(), vec![address]);
    let mut call = block_on(client.open(ECHO, Payload::new(), &patient(), false)).unwrap();
    let first = block_on(call.receiver.receive());
    assert_eq!(first, Some(Ok(b"part".to_vec())));
    assert_eq!(block_on(call.receiver.receive()), None);
    let status = block_on(call.call).unwrap_err();
    assert_eq!(status.code, Code::Unavailable, "{status}");
}
