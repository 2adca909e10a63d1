//! Long items: written into windows, offered and read, and taken back.

use std::time::Duration;

use dgiwarp_ripc::{CallOptions, Code, Endpoint, Item, MethodId, Payload};

use super::{Config, ECHO, SOON, client_of, octets, serve, server_config};

const LENGTH: usize = 5 << 20;

#[test]
fn a_reply_is_written_where_the_caller_has_room_and_else_read() {
    let server = Endpoint::open(server_config()).unwrap();
    let blocks = server.clone();
    server
        .serve("blobs", move |request| {
            let length = request.payload.bytes(0).len() * (1 << 10);
            let block = blocks.block(length).unwrap();
            block.write(0, &octets(length)).unwrap();
            Ok(Payload::long(block).and_short("end"))
        })
        .unwrap();
    let endpoint = Endpoint::open(Config::default().without_group()).unwrap();
    let blobs = client_of(&endpoint, &server, "blobs");
    for (kib, rooms) in [
        (5 << 10, vec![]),
        (5 << 10, vec![LENGTH]),
        (5 << 10, vec![LENGTH - 1]),
        (5 << 10, vec![1 << 10, LENGTH + 1, LENGTH]),
        (1, vec![LENGTH]),
    ] {
        let mut options = CallOptions::timeout(SOON);
        options.room.clone_from(&rooms);
        let reply = blobs
            .call(ECHO, Payload::short(vec![0; kib]), &options)
            .unwrap();
        assert!(matches!(reply.items[0], Item::Long(_)));
        assert!(reply.bytes(0) == octets(kib << 10), "{kib} {rooms:?}");
        assert_eq!(reply.bytes(1), b"end");
    }
    // All memory that was offered was read and is free.
    assert!(server.drain(SOON) && server.offered() == 0);
}

#[test]
fn requests_are_read_by_the_server() {
    let server = serve(server_config(), "sum", |request| {
        let sum = |item: &Item| item.to_vec().iter().map(|it| u64::from(*it)).sum::<u64>();
        let sum: u64 = request.payload.items.iter().map(sum).sum();
        Ok(Payload::short(sum.to_be_bytes()))
    });
    let endpoint = Endpoint::open(Config::default().without_group()).unwrap();
    let sums = client_of(&endpoint, &server, "sum");
    let block = endpoint.block(LENGTH).unwrap();
    block.write(0, &octets(LENGTH)).unwrap();
    let payload = Payload::long(block.clone())
        .and_short("\x01")
        .and_long(block);
    let reply = sums
        .call(ECHO, payload, &CallOptions::timeout(SOON))
        .unwrap();
    let sum: u64 = octets(LENGTH).iter().map(|it| u64::from(*it)).sum();
    assert_eq!(reply.bytes(0), (2 * sum + 1).to_be_bytes());
    assert_eq!(endpoint.offered(), 0);
}

#[test]
fn an_item_over_the_limit_is_refused() {
    let mut small = server_config();
    small.limits.item = 1 << 20;
    let server = serve(small, "small", |request| Ok(request.payload));
    let mut small = Config::default().without_group();
    small.limits.item = 1 << 10;
    let endpoint = Endpoint::open(small).unwrap();
    let calls = client_of(&endpoint, &server, "small");
    let patient = CallOptions::timeout(SOON);
    let call = |length| calls.call(ECHO, Payload::short(vec![0; length]), &patient);
    // By the server, then by the caller.
    for length in [(1 << 20) + 1, 1 << 20] {
        assert_eq!(call(length).unwrap_err().code, Code::ResourceExhausted);
    }
    assert!(call(100).is_ok());
    assert!(server.drain(SOON) && endpoint.drain(SOON));
}

#[test]
fn items_beyond_what_is_read_at_a_time_wait() {
    let mut small = server_config();
    small.limits.reading = 2 << 20;
    let server = serve(small, "echo", |request| {
        Ok(Payload::short(request.payload.items[0].len().to_string()))
    });
    let endpoint = Endpoint::open(Config::default().without_group()).unwrap();
    let echo = client_of(&endpoint, &server, "echo");
    let calls: Vec<_> = (0..16)
        .map(|_| {
            let block = endpoint.block(1 << 20).unwrap();
            let patient = CallOptions::timeout(SOON);
            echo.begin(ECHO, Payload::long(block), &patient).unwrap()
        })
        .collect();
    for call in calls {
        assert_eq!(call.wait().unwrap().bytes(0), b"1048576");
    }
}

#[test]
fn short_calls_go_on_while_a_long_item_moves_and_one_is_cancelled() {
    let server = serve(server_config(), "mixed", |request| Ok(request.payload));
    let endpoint = Endpoint::open(Config::default().without_group()).unwrap();
    let mixed = client_of(&endpoint, &server, "mixed");
    let patient = CallOptions::timeout(SOON);
    for round in 0..4 {
        let block = endpoint.block(32 << 20).unwrap();
        let options = patient.clone().and_room(32 << 20);
        let long = mixed.begin(ECHO, Payload::long(block), &options).unwrap();
        for _ in 0..10 {
            let reply = mixed.call(ECHO, Payload::short("short"), &patient).unwrap();
            assert_eq!(reply.bytes(0), b"short");
        }
        if round % 2 == 0 {
            assert_eq!(long.wait().unwrap().items[0].len(), 32 << 20);
        } else {
            // Its reply may have come already.
            let _ = long.cancel();
        }
    }
    // The connection has lived through all of it, and its memory comes back.
    let reply = mixed.call(MethodId::new(1), Payload::short("end"), &patient);
    assert_eq!(reply.unwrap().bytes(0), b"end");
    assert!(endpoint.drain(SOON) && server.drain(Duration::from_secs(60)));
}
