//! Handshakes and sealed messages between endpoints.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use dgiwarp::SameHostMode;
use dgiwarp_ripc::{CallOptions, Code, PrivateKey, PublicKey, Security};

use super::streams::block_on;
use super::*;

pub(crate) fn patient() -> CallOptions {
    CallOptions::timeout(SOON)
}

pub(crate) fn key() -> PrivateKey {
    PrivateKey::generate().unwrap()
}

/// An endpoint that calls.
pub(crate) fn caller(security: Option<Security>) -> Endpoint {
    let mut config = Config::default().without_group();
    config.security = security;
    Endpoint::open(config).unwrap()
}

/// A server of `echo` with this key, and the calls that it executed.
fn echo_server(security: Option<Security>) -> (Endpoint, Arc<AtomicUsize>) {
    let executed = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&executed);
    let mut config = server_config();
    config.security = security;
    let server = serve(config, "echo", move |request| {
        count.fetch_add(1, Ordering::SeqCst);
        Ok(request.payload)
    });
    (server, executed)
}

#[test]
fn both_ends_have_the_key_of_the_other() {
    let (mine, theirs) = (key(), key());
    let (my_key, their_key) = (mine.public(), theirs.public());
    let seen: Arc<Mutex<Vec<Option<PublicKey>>>> = Arc::default();
    let clients = Arc::clone(&seen);
    let known = Security::new(theirs.clone()).with_known_clients([my_key, key().public()]);
    for (server, client) in [
        (known, Security::new(mine).with_peer(their_key)),
        // Any client is taken, one without a name as well.
        (
            Security::new(theirs),
            Security::anonymous().unwrap().with_peer(their_key),
        ),
    ] {
        let clients = Arc::clone(&clients);
        let server = serve(server_config().secured(server), "echo", move |request| {
            clients.lock().unwrap().push(request.client);
            Ok(request.payload)
        });
        let endpoint = caller(Some(client));
        let echo = client_of(&endpoint, &server, "echo");
        for length in [0, 64, 5000, 100_000] {
            let payload = Payload::short(octets(length));
            let reply = echo.call(ECHO, payload, &patient().and_room(100_000));
            assert_eq!(reply.unwrap().bytes(0), octets(length));
        }
        assert_eq!(server.take_refused(), []);
    }
    let seen = seen.lock().unwrap();
    assert_eq!(seen[..4], [Some(my_key); 4]);
    assert!(seen[4].is_some_and(|it| it != my_key));
    assert_eq!(seen[4..], [seen[4]; 4]);
}

#[test]
fn each_refusal_has_its_status_at_both_ends() {
    let (mine, theirs) = (key(), key());
    let right = theirs.public();
    let required = || Some(Security::new(theirs.clone()));
    let known = || required().map(|it| it.with_known_clients([key().public()]));
    let to = |peer| Some(Security::new(mine.clone()).with_peer(peer));
    let elsewhere: SocketAddr = "127.0.0.1:1".parse().unwrap();
    let there = Security::new(mine.clone()).with_peer_at(elsewhere, right);
    let cases = [
        (
            None,
            required(),
            Code::Unauthenticated,
            "requires a handshake",
            "no handshake",
        ),
        (
            to(key().public()),
            required(),
            Code::Unauthenticated,
            "does not have the required key",
            "not authentic",
        ),
        (
            to(right),
            known(),
            Code::PermissionDenied,
            "does not know the key",
            "is not known",
        ),
        (
            to(right),
            None,
            Code::Unauthenticated,
            "makes no handshake, which is required",
            "",
        ),
        (
            Some(there),
            required(),
            Code::Unauthenticated,
            "its key is not known",
            "",
        ),
    ];
    for (client, server, code, text, reason) in cases {
        let (server, executed) = echo_server(server);
        let endpoint = caller(client);
        let echo = client_of(&endpoint, &server, "echo");
        let status = echo.call(ECHO, Payload::new(), &patient()).unwrap_err();
        assert_eq!(status.code, code, "{status}");
        assert!(status.text.contains(text), "{status}");
        assert_eq!(executed.load(Ordering::SeqCst), 0, "{text}");
        let refused = server.take_refused();
        assert_eq!(refused.len(), usize::from(!reason.is_empty()), "{text}");
        assert!(refused.iter().all(|it| it.reason.contains(reason)));
        assert_eq!(server.take_refused(), [], "they are reported once");
    }
}

#[test]
fn a_call_goes_past_an_instance_with_another_key() {
    let theirs = key();
    let (impostor, executed) = echo_server(Some(Security::new(key())));
    let (server, _) = echo_server(Some(Security::new(theirs.clone())));
    let endpoint = caller(Some(Security::new(key()).with_peer(theirs.public())));
    let addresses = [&impostor, &server].map(|it| it.local_addr().unwrap());
    let echo = endpoint.client("echo".parse().unwrap(), addresses.to_vec());
    let reply = echo.call(ECHO, Payload::short("x"), &patient());
    assert_eq!(reply.unwrap().bytes(0), b"x");
    assert_eq!(executed.load(Ordering::SeqCst), 0);
    // Each instance may have a key of its own.
    let (other, theirs_too) = (key(), theirs.public());
    let (second, executed) = echo_server(Some(Security::new(other.clone())));
    let address = second.local_addr().unwrap();
    let security = Security::new(key()).with_peer(theirs_too);
    let endpoint = caller(Some(security.with_peer_at(address, other.public())));
    for server in [&server, &second] {
        let echo = client_of(&endpoint, server, "echo");
        assert!(echo.call(ECHO, Payload::new(), &patient()).is_ok());
    }
    assert_eq!(executed.load(Ordering::SeqCst), 1);
}

#[test]
fn all_is_inside_of_sealed_messages() {
    let theirs = key();
    let to = || Security::new(key()).with_peer(theirs.public());
    let here = || Security::new(theirs.clone());
    // One end that wants it suffices.
    for (server, client) in [(here().sealed(), to()), (here(), to().sealed())] {
        let mut config = server_config().secured(server);
        config.limits.longest = 65_536;
        let server = serve(config, "echo", |request| Ok(request.payload));
        let block = server.block(300_000).unwrap();
        server
            .serve("long", move |_| Ok(Payload::long(block.clone())))
            .unwrap();
        let mut config = Config::default().without_group().secured(client);
        config.limits.longest = 65_536;
        let endpoint = Endpoint::open(config).unwrap();
        let echo = client_of(&endpoint, &server, "echo");
        let options = patient().and_room(1 << 20);
        for length in [0, 1, 64, 8000, 65_300] {
            let reply = echo.call(ECHO, Payload::short(octets(length)), &options);
            assert_eq!(reply.unwrap().bytes(0), octets(length));
            let block = endpoint.block(length).unwrap();
            block.write(0, &octets(length)).unwrap();
            let reply = echo.call(ECHO, Payload::long(block), &options).unwrap();
            assert_eq!(reply.bytes(0), octets(length));
        }
        // Longer ones are neither offered nor written.
        let long = client_of(&endpoint, &server, "long");
        let request = echo.call(ECHO, Payload::short(octets(66_000)), &options);
        let reply = long.call(ECHO, Payload::new(), &options);
        for result in [request, reply] {
            let status = result.unwrap_err();
            assert_eq!(status.code, Code::FailedPrecondition, "{status}");
        }
        assert_eq!(endpoint.offered() + server.offered(), 0);
        assert!(echo.call(ECHO, Payload::new(), &options).is_ok());
        assert_eq!(server.take_refused(), []);
    }
}

#[test]
fn streams_and_messages_are_sealed_as_well() {
    let theirs = key();
    let config = server_config().secured(Security::new(theirs.clone()).sealed());
    let server = Endpoint::open(config).unwrap();
    server
        .serve_deferred("stream", |_, mut reply| {
            thread::spawn(move || {
                let mut sum = 0;
                block_on(async {
                    let mut receiver = reply.receiver().unwrap();
                    while let Some(part) = receiver.receive().await {
                        sum += part.unwrap().len();
                    }
                });
                reply.send(Ok(Payload::short(sum.to_string())));
            });
        })
        .unwrap();
    let inbox = server.open_inbox("4").unwrap();
    let endpoint = caller(Some(Security::new(key()).with_peer(theirs.public())));
    let client = client_of(&endpoint, &server, "stream");
    let reply = block_on(async {
        let call = client.open(ECHO, Payload::new(), &patient(), true).await;
        let mut call = call.unwrap();
        let mut sender = call.sender.take().unwrap();
        for _ in 0..50 {
            assert!(sender.send(&octets(20_000)).await);
        }
        sender.finish();
        call.call.await
    });
    assert_eq!(reply.unwrap().bytes(0), b"1000000");
    let own = endpoint.open_inbox("5").unwrap();
    let to = dgiwarp_ripc::Destination::Address(server.local_addr().unwrap());
    let window = endpoint.block(4096).unwrap();
    let sent = endpoint.send(own, inbox, to, Payload::short("hello"), vec![window]);
    sent.unwrap();
    let incoming = server.receive(inbox, Some(SOON)).unwrap();
    assert_eq!(incoming.payload.bytes(0), b"hello");
    let back = dgiwarp_ripc::Destination::Learned;
    server
        .send(inbox, incoming.from, back, Payload::short("back"), vec![])
        .unwrap();
    let answer = endpoint.receive(own, Some(SOON)).unwrap();
    assert_eq!(answer.payload.bytes(0), b"back");
    let long = Payload::short(octets(9000));
    let status = endpoint.send(own, inbox, to, long, vec![]).unwrap_err();
    assert_eq!(status.code, Code::FailedPrecondition);
}

/// Octets that passed, in both directions together.
type Taken = Arc<Mutex<Vec<u8>>>;

/// Carries one connection to `to`, and keeps its octets.
fn tap(to: SocketAddr) -> (SocketAddr, Taken) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let taken = Taken::default();
    let kept = Arc::clone(&taken);
    thread::spawn(move || {
        let (client, _) = listener.accept().unwrap();
        let server = TcpStream::connect(to).unwrap();
        for (mut from, mut to) in [
            (client.try_clone().unwrap(), server.try_clone().unwrap()),
            (server, client),
        ] {
            let kept = Arc::clone(&kept);
            thread::spawn(move || {
                let mut piece = [0; 4096];
                while let Ok(length @ 1..) = from.read(&mut piece) {
                    kept.lock().unwrap().extend(&piece[..length]);
                    if to.write_all(&piece[..length]).is_err() {
                        break;
                    }
                }
                let _ = to.shutdown(Shutdown::Both);
            });
        }
    });
    (address, taken)
}

#[test]
fn an_eavesdropper_reads_nothing_of_sealed_messages() {
    let text = b"attack at dawn, from the north and the west";
    let theirs = key();
    for sealed in [false, true] {
        let mut config = server_config().secured(Security::new(theirs.clone()));
        config.device.same_host = SameHostMode::Off;
        let server = serve(config, "echo", |request| Ok(request.payload));
        let mut security = Security::new(key()).with_peer(theirs.public());
        if sealed {
            security = security.sealed();
        }
        let mut config = Config::default().without_group().secured(security);
        config.device.same_host = SameHostMode::Off;
        let endpoint = Endpoint::open(config).unwrap();
        let (address, taken) = tap(server.local_addr().unwrap());
        let echo = endpoint.client("echo".parse().unwrap(), vec![address]);
        let reply = echo.call(ECHO, Payload::short(text.to_vec()), &patient());
        assert_eq!(reply.unwrap().bytes(0), text);
        let taken = taken.lock().unwrap();
        let seen = taken.windows(text.len()).filter(|it| it == text).count();
        assert_eq!(seen, if sealed { 0 } else { 2 });
        let has = |octets: &[u8]| taken.windows(octets.len()).any(|it| it == octets);
        assert!(has(b"RIPC"), "the hello is open");
    }
}

#[test]
fn a_connection_that_is_lost_has_another_handshake() {
    let (theirs, mine) = (key(), key());
    let security = || Security::new(theirs.clone()).with_known_clients([mine.public()]);
    let (server, _) = echo_server(Some(security()));
    let address = server.local_addr().unwrap();
    let endpoint = caller(Some(Security::new(mine.clone()).with_peer(theirs.public())));
    let echo = endpoint.client("echo".parse().unwrap(), vec![address]);
    assert!(echo.call(ECHO, Payload::new(), &patient()).is_ok());
    drop(server);
    let mut config = Config::listening(address).without_group();
    config.security = Some(security());
    let server = serve(config, "echo", |request| Ok(request.payload));
    let options = patient().and_idempotent();
    let reply = echo.call(ECHO, Payload::short("again"), &options);
    assert_eq!(reply.unwrap().bytes(0), b"again");
    assert_eq!(server.take_refused(), []);
}
