//! Services that require tokens.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use dgiwarp_ripc::{
    Code, Destination, Permission, Security, ServiceId, ServiceName, Token, TokenSecret,
};

use super::secure::{caller, key, patient};
use super::*;

const SERVICE: &str = "guarded";
const OTHER: MethodId = MethodId::named("other");

fn permission() -> Permission {
    Permission::new(ServiceId::named(SERVICE))
}

fn in_seconds(seconds: i64) -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    now.as_secs().checked_add_signed(seconds).unwrap()
}

fn served(config: Config, secret: &TokenSecret) -> (Endpoint, Arc<AtomicUsize>) {
    let executed = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&executed);
    let server = Endpoint::open(config).unwrap();
    server.require_tokens(SERVICE, secret.clone()).unwrap();
    let handler = move |request: Request| {
        count.fetch_add(1, Ordering::SeqCst);
        Ok(request.payload)
    };
    server.serve(SERVICE, handler).unwrap();
    server.serve("open", |request| Ok(request.payload)).unwrap();
    (server, executed)
}

/// The token with another octet at this place.
fn changed(token: &Token, at: usize) -> Token {
    let mut text = token.to_text();
    let digit = if text.as_bytes()[at] == b'0' {
        "1"
    } else {
        "0"
    };
    text.replace_range(at..=at, digit);
    text.parse().unwrap()
}

#[test]
fn a_call_needs_a_token_that_is_for_it() {
    let secret = TokenSecret::generate().unwrap();
    let stranger = TokenSecret::generate().unwrap();
    let (theirs, mine) = (key(), key());
    let config = server_config().secured(Security::new(theirs.clone()));
    let (server, executed) = served(config, &secret);
    let issue = |permission: &Permission| secret.issue(permission).unwrap();
    let good = issue(&permission());
    let elsewhere = Permission::new(ServiceId::named("elsewhere"));
    // The service in octets 4 to 12 is that of the call, and the hash is not.
    let mut moved = issue(&elsewhere).to_text();
    moved.replace_range(8..24, &good.to_text()[8..24]);
    let length = good.to_text().len();
    let cases = [
        (None, Some(Code::Unauthenticated)),
        (Some(issue(&elsewhere)), Some(Code::Unauthenticated)),
        (Some(moved.parse().unwrap()), Some(Code::Unauthenticated)),
        (
            Some(stranger.issue(&permission()).unwrap()),
            Some(Code::Unauthenticated),
        ),
        (
            Some(changed(&good, length - 1)),
            Some(Code::Unauthenticated),
        ),
        (Some(changed(&good, 30)), Some(Code::Unauthenticated)),
        (
            Some(issue(&permission().until(in_seconds(-2)))),
            Some(Code::Unauthenticated),
        ),
        (
            Some(issue(&permission().and_method(OTHER))),
            Some(Code::PermissionDenied),
        ),
        (
            Some(issue(&permission().only_for(key().public()))),
            Some(Code::PermissionDenied),
        ),
        (Some(good), None),
        (
            Some(issue(
                &permission()
                    .and_method(OTHER)
                    .and_method(ECHO)
                    .until(in_seconds(3600))
                    .only_for(mine.public()),
            )),
            None,
        ),
    ];
    for (at, (token, code)) in cases.into_iter().enumerate() {
        let endpoint = caller(Some(Security::new(mine.clone()).with_peer(theirs.public())));
        if let Some(token) = &token {
            endpoint.add_token(token.clone());
        }
        let before = executed.load(Ordering::SeqCst);
        let client = client_of(&endpoint, &server, SERVICE);
        // A request that would be read.
        for length in [3, 100_000] {
            let payload = Payload::short(octets(length));
            let result = client.call(ECHO, payload, &patient());
            assert_eq!(
                result.as_ref().err().map(|it| it.code),
                code,
                "{at} {result:?}"
            );
        }
        let calls = executed.load(Ordering::SeqCst) - before;
        assert_eq!(calls, if code.is_none() { 2 } else { 0 }, "{at}");
        // Services without a secret stay open.
        let open = client_of(&endpoint, &server, "open");
        assert!(open.call(ECHO, Payload::new(), &patient()).is_ok());
    }
}

#[test]
fn a_token_is_renewed_on_a_connection_that_is_there() {
    let secret = TokenSecret::generate().unwrap();
    let (server, executed) = served(server_config(), &secret);
    // Without a handshake: whoever has the token may call.
    let endpoint = caller(None);
    let client = client_of(&endpoint, &server, SERVICE);
    let call = || client.call(ECHO, Payload::new(), &patient());
    assert_eq!(call().unwrap_err().code, Code::Unauthenticated);
    let until = |seconds| permission().until(in_seconds(seconds));
    endpoint.add_token(secret.issue(&until(-5)).unwrap());
    let status = call().unwrap_err();
    assert_eq!(status.code, Code::Unauthenticated);
    assert!(status.text.contains("past its end"), "{status}");
    endpoint.add_token(secret.issue(&until(3600)).unwrap());
    assert!(call().is_ok());
    // One for a client needs the handshake that proves its key.
    let bound = permission().only_for(key().public());
    endpoint.add_token(secret.issue(&bound).unwrap());
    assert_eq!(call().unwrap_err().code, Code::PermissionDenied);
    assert_eq!(executed.load(Ordering::SeqCst), 1);
}

#[test]
fn one_secret_guards_all_services_and_messages() {
    let secret = TokenSecret::generate().unwrap();
    let mut config = server_config();
    config.token_secret = Some(secret.clone());
    let server = Endpoint::open(config).unwrap();
    // More services than a connection keeps tokens of.
    let names: Vec<_> = (0..70).map(|at| format!("service{at}")).collect();
    for name in &names {
        server.serve(name, |request| Ok(request.payload)).unwrap();
    }
    let inbox = server.open_inbox("4").unwrap();
    let mut config = Config::default().without_group();
    for name in &names {
        let name: ServiceName = name.parse().unwrap();
        config
            .tokens
            .push(secret.issue(&Permission::new(name.id)).unwrap());
    }
    let endpoint = Endpoint::open(config).unwrap();
    for _ in 0..2 {
        for name in &names {
            let client = client_of(&endpoint, &server, name);
            assert!(
                client.call(ECHO, Payload::new(), &patient()).is_ok(),
                "{name}"
            );
        }
    }
    // Messages need a token for all methods.
    let own = endpoint.open_inbox("5").unwrap();
    let to = Destination::Address(server.local_addr().unwrap());
    let send = |text: &'static str| {
        let payload = Payload::short(text);
        endpoint.send(own, inbox, to, payload, vec![]).unwrap();
    };
    send("without");
    let narrow = Permission::new(inbox).and_method(ECHO);
    endpoint.add_token(secret.issue(&narrow).unwrap());
    send("narrow");
    endpoint.add_token(secret.issue(&Permission::new(inbox)).unwrap());
    send("with");
    let incoming = server.receive(inbox, Some(SOON)).unwrap();
    assert_eq!(incoming.payload.bytes(0), b"with");
    // A refused message leads nobody to its sender.
    let fresh = caller(None);
    let liar = fresh.open_inbox("5").unwrap();
    let payload = Payload::short("liar");
    fresh.send(liar, inbox, to, payload, vec![]).unwrap();
    let client = client_of(&fresh, &server, "service1");
    assert!(client.call(ECHO, Payload::new(), &patient()).is_err());
    let back = Payload::short("back");
    server
        .send(inbox, own, Destination::Learned, back, vec![])
        .unwrap();
    assert!(endpoint.receive(own, Some(SOON)).is_some());
}
