//! Peers that break the handshake: raw queue pairs against an endpoint with a key.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use dgiwarp::{ConnectError, Rnic};
use dgiwarp_ripc::{PrivateKey, PublicKey, Security, ServiceId, TokenSecret};
use snow::{Builder, HandshakeState, TransportState};

use super::hostile::{Raw, call, element, header, window};
use super::secure::{caller, key, patient};
use super::*;

const MINE: [u8; 32] = [7; 32];

fn hello(instance: u64, flags: u8) -> Vec<u8> {
    let mut hello = vec![b'R', b'I', b'P', b'C', 0, 1, 0, flags];
    hello.extend(instance.to_be_bytes());
    hello.extend(8192_u32.to_be_bytes());
    hello.extend([0; 4]);
    hello.extend((1_u64 << 20).to_be_bytes());
    hello
}

/// A Request with this private key, and the handshake that waits for its Reply.
fn request(mine: &[u8; 32], to: &PublicKey, hello: Vec<u8>) -> (HandshakeState, Vec<u8>) {
    let prologue = [b"RIPC handshake 1", &hello[..]].concat();
    let protocol = "Noise_IK_25519_ChaChaPoly_BLAKE2s".parse().unwrap();
    let mut state = Builder::new(protocol)
        .prologue(&prologue)
        .unwrap()
        .local_private_key(mine)
        .unwrap()
        .remote_public_key(to.octets())
        .unwrap()
        .build_initiator()
        .unwrap();
    let mut message = [0; 96];
    state.write_message(&[], &mut message).unwrap();
    let mut data = hello;
    data.extend([0, 96]);
    data.extend(message);
    (state, data)
}

fn connect(rnic: &Rnic, to: SocketAddr, data: &[u8]) -> Result<(Raw, Vec<u8>), ConnectError> {
    let raw = Raw::on(rnic);
    let mpa = dgiwarp::Config::default().mpa;
    let established = raw.qp.connect(to, &mpa, data)?;
    Ok((raw, established.private_data))
}

/// A connection behind its handshake, before CONFIRM.
struct Known {
    raw: Raw,
    keys: TransportState,
}

impl Known {
    fn new(server: &Endpoint, to: &PublicKey, mine: &[u8; 32], hello: Vec<u8>) -> Self {
        let (mut state, data) = request(mine, to, hello);
        let rnic = Rnic::open(dgiwarp::Config::default()).unwrap();
        let (raw, reply) = connect(&rnic, server.local_addr().unwrap(), &data).unwrap();
        let mut own = [0; 32];
        assert_eq!(state.read_message(&reply[34..114], &mut own).unwrap(), 32);
        assert_eq!(own, reply[..32]);
        let keys = state.into_transport_mode().unwrap();
        Self { raw, keys }
    }

    fn seal(&mut self, message: &[u8]) -> Vec<u8> {
        let mut sealed = vec![12, 0, 0, 0, 0, 0, 0, 0];
        sealed.resize(8 + message.len() + 16, 0);
        self.keys.write_message(message, &mut sealed[8..]).unwrap();
        sealed
    }

    fn confirm(&mut self) -> Vec<u8> {
        self.seal(&header(13, 0, 0, 0))
    }

    fn send_sealed(&mut self, message: &[u8]) {
        let sealed = self.seal(message);
        self.raw.send(&sealed);
    }
}

fn server(security: Security) -> (Endpoint, Arc<AtomicUsize>) {
    let executed = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&executed);
    let server = serve(server_config().secured(security), "echo", move |_| {
        let number = count.fetch_add(1, Ordering::SeqCst);
        Ok(Payload::short(number.to_string()))
    });
    (server, executed)
}

/// The reply with this number, as its status and octets of its one item.
fn reply(raw: &Raw, number: u64) -> (u8, Vec<u8>) {
    loop {
        let message = raw.receive().expect("a reply");
        if message[0] == 2 {
            assert_eq!(message[8..16], number.to_be_bytes());
            return (message[5], message.get(48..).unwrap_or_default().to_vec());
        }
    }
}

#[test]
fn requests_without_an_authentic_handshake_are_rejected() {
    let theirs = key();
    let public = theirs.public();
    let known = Security::new(theirs).with_known_clients([PrivateKey::new(MINE).public()]);
    let (server, executed) = server(known);
    let good = || request(&MINE, &public, hello(1, 1)).1;
    let with = |at: usize, value: u8| {
        let mut data = good();
        data[at] = value;
        data
    };
    let cut = |length: usize| good()[..length].to_vec();
    let longer = [with(33, 97), vec![0]].concat();
    let mut huge = with(32, 0xff);
    huge.resize(500, 0);
    let flipped = |at: usize| with(at, good()[at] ^ 1);
    let cases = [
        ("no handshake", hello(1, 0), 4),
        ("one that is not announced", with(7, 0), 4),
        ("no message", hello(1, 1), 2),
        ("half of a length", cut(33), 2),
        ("cut", cut(129), 2),
        ("a length of 0", with(33, 0), 2),
        ("too long", longer, 2),
        ("far too long", huge, 2),
        ("an ephemeral key changed", flipped(34), 5),
        ("a static key changed", flipped(70), 5),
        ("the proof changed", flipped(129), 5),
        ("another instance", with(15, 9), 5),
        ("another limit", with(22, 1), 5),
        ("sealing left out", with(7, 3), 5),
        (
            "zeroes",
            [hello(1, 1), vec![0, 96], vec![0; 96]].concat(),
            5,
        ),
        (
            "for another server",
            request(&MINE, &key().public(), hello(1, 1)).1,
            5,
        ),
        (
            "of another client",
            request(&[8; 32], &public, hello(1, 1)).1,
            6,
        ),
    ];
    let rnic = Rnic::open(dgiwarp::Config::default()).unwrap();
    let address = server.local_addr().unwrap();
    for (name, data, code) in cases {
        match connect(&rnic, address, &data) {
            Err(ConnectError::Rejected(rejection)) => assert_eq!(
                rejection.private_data,
                [b'R', b'I', b'P', b'C', 0, 1, 0, code],
                "{name}"
            ),
            other => panic!("{name}: {:?}", other.map(drop)),
        }
        assert_eq!(server.take_refused().len(), 1, "{name}");
    }
    // Octets behind the message are those of a later version.
    let later = [good(), vec![1, 2, 3]].concat();
    assert!(connect(&rnic, address, &later).is_ok());
    assert_eq!(executed.load(Ordering::SeqCst), 0);
}

#[test]
fn a_handshake_that_is_sent_again_leads_nowhere() {
    let theirs = key();
    let public = theirs.public();
    let (server, executed) = server(Security::new(theirs));
    let address = server.local_addr().unwrap();
    // Everything that the good one sends, as somebody on the path has it.
    let (_, data) = request(&MINE, &public, hello(1, 1));
    let mut good = Known::new(&server, &public, &MINE, hello(1, 1));
    let confirm = good.confirm();
    good.raw.send(&confirm);
    good.raw.send(&call(0, 0, 1, "echo"));
    assert_eq!(reply(&good.raw, 1), (0, b"0".to_vec()));
    let firsts = [
        ("a call", call(0, 0, 2, "echo")),
        ("an open CONFIRM", header(13, 0, 0, 0)),
        ("the CONFIRM of another", confirm.clone()),
        ("a cut CONFIRM", confirm[..20].to_vec()),
        ("a sealed message without octets", vec![12]),
        (
            "a sealed message without a tag",
            vec![12, 0, 0, 0, 0, 0, 0, 0],
        ),
        ("zeroes", [vec![12], vec![0; 100]].concat()),
        ("more than a message", [vec![12], vec![1; 8000]].concat()),
    ];
    let rnic = Rnic::open(dgiwarp::Config::default()).unwrap();
    for (name, first) in firsts {
        let (raw, _) = connect(&rnic, address, &data).unwrap();
        raw.send(&first);
        assert!(raw.is_ended(), "{name}");
        assert_eq!(server.take_refused().len(), 1, "{name}");
    }
    // A call as the first message of one with the keys is no better.
    let known = Known::new(&server, &public, &MINE, hello(1, 1));
    known.raw.send(&call(0, 0, 3, "echo"));
    assert!(known.raw.is_ended());
    assert_eq!(executed.load(Ordering::SeqCst), 1);
    // The good one goes on.
    good.raw.send(&call(0, 0, 2, "echo"));
    assert_eq!(reply(&good.raw, 2), (0, b"1".to_vec()));
    // And a second CONFIRM ends it.
    good.send_sealed(&header(13, 0, 0, 0));
    assert!(good.raw.is_ended());
}

#[test]
fn open_repeated_and_changed_messages_end_a_sealed_connection() {
    let theirs = key();
    let public = theirs.public();
    let (server, executed) = server(Security::new(theirs));
    type Fault = fn(&mut Known) -> Vec<u8>;
    let faults: [(&str, Fault); 7] = [
        ("open", |_| call(0, 0, 2, "echo")),
        ("repeated", |known| {
            let sealed = known.seal(&call(0, 0, 2, "echo"));
            known.raw.send(&sealed);
            sealed
        }),
        ("changed", |known| {
            let mut sealed = known.seal(&call(0, 0, 2, "echo"));
            sealed[40] ^= 4;
            sealed
        }),
        ("cut", |known| {
            let mut sealed = known.seal(&call(0, 0, 2, "echo"));
            sealed.pop();
            sealed
        }),
        ("one left out", |known| {
            known.seal(&call(0, 0, 2, "echo"));
            known.seal(&call(0, 0, 3, "echo"))
        }),
        ("a window", |known| {
            let message = [call(0, 1, 2, "echo"), window(1, 2, 3, 4)].concat();
            known.seal(&message)
        }),
        ("an offer", |known| {
            let message = [call(1, 0, 2, "echo"), element(3, 1, 2, 4000)].concat();
            known.seal(&message)
        }),
    ];
    for (at, (name, fault)) in (1..).zip(faults) {
        let mut known = Known::new(&server, &public, &MINE, hello(at, 3));
        let confirm = known.confirm();
        known.raw.send(&confirm);
        known.send_sealed(&call(0, 0, 1, "echo"));
        let answer = known.raw.receive().expect("a reply");
        let mut inside = vec![0; answer.len()];
        let length = known.keys.read_message(&answer[8..], &mut inside).unwrap();
        assert_eq!((answer[0], inside[0], inside[5]), (12, 2, 0), "{name}");
        assert_eq!(length + 24, answer.len());
        let octets = fault(&mut known);
        known.raw.send(&octets);
        assert!(known.raw.is_ended(), "{name}");
        assert_eq!(server.take_refused().len(), 1, "{name}");
    }
    // One call of each, and the one that was repeated.
    assert_eq!(executed.load(Ordering::SeqCst), 8);
    // And a sealed message where none is wanted.
    let mut known = Known::new(&server, &public, &MINE, hello(99, 1));
    let confirm = known.confirm();
    known.raw.send(&confirm);
    known.send_sealed(&call(0, 0, 1, "echo"));
    assert!(known.raw.is_ended());
    assert_eq!(executed.load(Ordering::SeqCst), 8);
}

#[test]
fn an_instance_with_another_key_is_another_caller() {
    let theirs = key();
    let public = theirs.public();
    let (server, executed) = server(Security::new(theirs));
    for (mine, wanted) in [(MINE, "0"), ([8; 32], "1"), (MINE, "0"), ([8; 32], "1")] {
        let mut known = Known::new(&server, &public, &mine, hello(5, 1));
        let confirm = known.confirm();
        known.raw.send(&confirm);
        known.raw.send(&call(0, 0, 1, "echo"));
        // The kept reply of the caller's own call.
        let (status, text) = reply(&known.raw, 1);
        assert_eq!((status, &text[..]), (0, wanted.as_bytes()));
    }
    assert_eq!(executed.load(Ordering::SeqCst), 2);
}

#[test]
fn a_flood_of_handshakes_keeps_few_connections_for_a_short_time() {
    let theirs = key();
    let public = theirs.public();
    let (server, executed) = server(Security::new(theirs));
    let address = server.local_addr().unwrap();
    let endpoint = caller(Some(Security::new(key()).with_peer(public)));
    let echo = client_of(&endpoint, &server, "echo");
    let (_, data) = request(&MINE, &public, hello(1, 1));
    let rnic = Rnic::open(dgiwarp::Config::default()).unwrap();
    // One connection, sent again and again.
    let begun = Instant::now();
    let raws: Vec<_> = (0..300)
        .map(|at| {
            // A good one gets through between them.
            if at % 100 == 50 {
                assert!(echo.call(ECHO, Payload::new(), &patient()).is_ok());
            }
            connect(&rnic, address, &data).unwrap().0
        })
        .collect();
    let fast = begun.elapsed() < Duration::from_secs(4);
    // The oldest ones made room.
    for raw in &raws[..40] {
        assert!(raw.is_ended());
    }
    let refused = server.take_refused();
    assert!(refused.len() >= 40, "{}", refused.len());
    let made_room = |it: &dgiwarp_ripc::Refused| it.reason.contains("took its place");
    assert!(!fast || refused[..40].iter().all(made_room));
    // And the others end, without a word from their peer.
    for raw in &raws {
        assert!(raw.is_ended());
    }
    assert_eq!(executed.load(Ordering::SeqCst), 3);
    let late = server.take_refused();
    assert_eq!(late.len(), 64, "the latest are kept, and no more");
    assert!(late.iter().any(|it| it.reason.contains("in time")));
    assert!(echo.call(ECHO, Payload::new(), &patient()).is_ok());
}

#[test]
fn tokens_of_any_form_are_harmless() {
    let secret = TokenSecret::generate().unwrap();
    let mut config = server_config();
    config.token_secret = Some(secret.clone());
    let executed = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&executed);
    let server = serve(config, "echo", move |_| {
        count.fetch_add(1, Ordering::SeqCst);
        Ok(Payload::new())
    });
    let address = server.local_addr().unwrap();
    let token = dgiwarp_ripc::Permission::new(ServiceId::named("echo"));
    let token = secret.issue(&token).unwrap().to_text();
    let token: Vec<_> = (0..token.len() / 2)
        .map(|at| u8::from_str_radix(&token[2 * at..2 * at + 2], 16).unwrap())
        .collect();
    let message = |token: &[u8]| {
        let mut message = header(14, 0, 0, 0);
        message.extend(u16::try_from(token.len()).unwrap().to_be_bytes());
        message.extend([0; 6]);
        message.extend(token);
        message
    };
    let rnic = Rnic::open(dgiwarp::Config::default()).unwrap();
    let (raw, _) = connect(&rnic, address, &hello(1, 0)).unwrap();
    let mut number = 0;
    let mut ask = |raw: &Raw, token: &[u8]| {
        number += 1;
        raw.send(&message(token));
        // An offer of memory that is not there: nothing of it is read without a token.
        let offer = element(3, 1, u64::MAX - 4, 4000);
        raw.send(&[call(1, 0, number, "echo"), offer].concat());
        reply(raw, number).0
    };
    for end in 0..token.len() {
        assert_eq!(ask(&raw, &token[..end]), 16, "{end}");
    }
    for at in 0..token.len() {
        let mut changed = token.clone();
        changed[at] ^= 1;
        assert_eq!(ask(&raw, &changed), 16, "{at}");
    }
    for length in [200, 512] {
        assert_eq!(ask(&raw, &vec![1; length]), 16);
    }
    // Thousands of services take the room of 64.
    for service in 0..5000_u64 {
        let mut other = token.clone();
        other[4..12].copy_from_slice(&service.to_be_bytes());
        raw.send(&message(&other));
    }
    assert_eq!(executed.load(Ordering::SeqCst), 0);
    // With the token the call is taken: its offer is read, and the device refuses the key.
    raw.send(&message(&token));
    raw.send(&[call(0, 0, 900, "echo")].concat());
    assert_eq!(reply(&raw, 900).0, 0);
    raw.send(&[call(1, 0, 901, "echo"), element(3, 1, u64::MAX - 4, 4000)].concat());
    assert!(raw.is_ended());
    let (raw, _) = connect(&rnic, address, &hello(2, 0)).unwrap();
    raw.send(&message(&[1; 513]));
    assert!(raw.is_ended(), "longer than any token");
    let (raw, _) = connect(&rnic, address, &hello(3, 0)).unwrap();
    raw.send(&[vec![12], vec![0; 60]].concat());
    assert!(raw.is_ended(), "sealed without a handshake");
    assert_eq!(executed.load(Ordering::SeqCst), 1);
}
