//! Entry points of fuzzers (`fuzz/` in the sources). Not for programs.

use std::sync::OnceLock;

use parking_lot::Mutex;

use crate::endpoint::secure::sealed::{Secure, read};
use crate::engine::admission::{Denial, Grants};
use crate::engine::credit::{Credit, cost};
use crate::engine::streams::{Incoming, Outgoing};
use crate::engine::windows::{Granted, Own};
use crate::security::handshake::{Initiator, Sealing, respond};
use crate::security::keys::{KEY, PrivateKey};
use crate::security::token::TokenSecret;
use crate::wire::FormatError;
use crate::wire::hello::{Hello, NOISE_LENGTHS, Refusal, emit_noise, parse_noise};
use crate::wire::message::{Body, Kind, Message, WireItem, sealed};
use crate::wire::metadata::Metadata;
use crate::wire::resolve::{Answer, Query};
use crate::wire::token::Claims;

/// First grant of the credit.
const WINDOW: u64 = 1024;
/// First grant of the peer's stream: short, so that inputs reach its end.
const STREAM_WINDOW: u64 = 64;
/// Longest message that the sender makes.
const LONGEST: usize = 1024;

/// Gives the octets to every parser, and, as messages one behind the other, to the rules of an end whose peer sends them.
///
/// # Panics
/// Where a rule is broken.
pub fn messages(data: &[u8]) {
    formats(data);
    let mut end = End::new();
    let mut rest = data;
    while let Some((length, after)) = rest.split_first_chunk() {
        let length = usize::from(u16::from_be_bytes(*length)).min(after.len());
        let (message, after) = after.split_at(length);
        rest = after;
        formats(message);
        if end.handle(message).is_err() {
            return;
        }
        end.check();
    }
}

/// Octets that parse are emitted as they came, but for reserved fields.
fn formats(data: &[u8]) {
    if let Ok(message) = Message::parse(data) {
        let mut octets = Vec::new();
        message.emit(&mut octets);
        assert_eq!(octets.len(), data.len());
        assert_eq!(Message::parse(&octets), Ok(message));
    }
    again(data, Hello::parse, Hello::emit);
    again(data, Query::parse, Query::emit);
    again(data, Answer::parse, |answer| answer.emit().concat());
    again(data, Metadata::parse, Metadata::emit);
    let refusal = |octets: &[u8]| Refusal::parse(octets).map(|(_, refusal)| refusal);
    again(data, refusal, |it| it.emit());
    let token = |octets: &[u8]| Claims::parse(octets).map(|(claims, _, hash)| (claims, hash));
    again(data, token, |(claims, hash)| {
        [&claims.emit(), &hash[..]].concat()
    });
    stranger(data);
}

/// A stranger without keys makes nothing that is authentic: no handshake, no sealed message, no first message, no token.
fn stranger(data: &[u8]) {
    static KEYS: OnceLock<(PrivateKey, Vec<u8>, Mutex<Secure>)> = OnceLock::new();
    let (key, hello, secure) = KEYS.get_or_init(|| {
        let key = PrivateKey::new([1; KEY]);
        let hello = Hello {
            version: 1,
            handshake: true,
            sealed: false,
            instance: 1,
            longest: 1024,
            stream: 0,
            credit: 0,
        };
        let hello = hello.emit();
        let sealing = sealing(&key, &hello);
        let secure = Mutex::new(Secure::new(sealing, false, true));
        (key, hello, secure)
    });
    if let Ok(message) = parse_noise(data, NOISE_LENGTHS.0) {
        let mut again = data[..hello.len()].to_vec();
        emit_noise(&mut again, message);
        assert!(data.starts_with(&again));
        assert!(respond(key, (data, message), hello, |_| true).is_err());
    }
    let mut secure = secure.lock();
    assert!(!matches!(read(Some(&mut secure), data), Ok(Ok(_))));
    assert!(secure.awaits);
    if sealed(data).is_some() {
        assert!(read(None, data).is_err());
    }
    let secret = TokenSecret::new([2; KEY]);
    let denied = secret.check(data, None);
    assert!(matches!(denied, Err(Denial::Malformed | Denial::Forged)));
}

/// Keys of a handshake, at its Responder.
fn sealing(key: &PrivateKey, hello: &[u8]) -> Sealing {
    let begun = Initiator::begin(&PrivateKey::new([3; KEY]), &key.public(), hello);
    let (_, message) = begun.expect("an Initiator of this key");
    let answered = respond(key, (hello, &message), hello, |_| true);
    answered.expect("an authentic message").0
}

fn again<T: PartialEq + std::fmt::Debug>(
    data: &[u8],
    parse: impl Fn(&[u8]) -> Result<T, FormatError>,
    emit: impl Fn(&T) -> Vec<u8>,
) {
    if let Ok(value) = parse(data) {
        let repeated = parse(&emit(&value));
        assert!(repeated.is_ok_and(|it| it == value), "{value:?}");
    }
}

/// An end of a connection with one call that has streams both ways.
#[derive(Debug)]
struct End {
    credit: Credit,
    incoming: Incoming,
    outgoing: Outgoing,
    granted: Granted,
    own: Own<u64>,
    grants: Grants,
    /// Cost of what was taken and is not consumed.
    kept: u64,
    /// Octets of the stream that were sent, and those that the peer has granted.
    sent: (u64, u64),
    /// Octets of the peer's stream that came, and those that were granted.
    came: (u64, u64),
    /// Octets of the peer's stream that are not read.
    unread: u64,
    /// The program reads no more.
    stopped: bool,
}

/// The peer broke a rule.
#[derive(Debug)]
struct Broken;

impl End {
    fn new() -> Self {
        let mut own = Own::new();
        for (length, call) in [(100, None), (1000, Some(1)), (5000, Some(2))] {
            own.grant(length, call, length);
        }
        Self {
            credit: Credit::new(0, WINDOW),
            incoming: Incoming::new(STREAM_WINDOW),
            outgoing: Outgoing::new(0),
            granted: Granted::default(),
            own,
            grants: Grants::new(),
            kept: 0,
            sent: (0, 0),
            came: (0, STREAM_WINDOW),
            unread: 0,
            stopped: false,
        }
    }

    fn handle(&mut self, octets: &[u8]) -> Result<(), Broken> {
        let message = Message::parse(octets).map_err(|_| Broken)?;
        self.credit.granted(message.credit);
        if message.is_charged() {
            let cost = cost(octets.len());
            self.credit.received(cost).map_err(|_| Broken)?;
            self.kept += cost;
        }
        let number = message.number;
        match message.kind {
            Kind::Call { body, .. } | Kind::Message { body, .. } => {
                self.granted.add(&body.windows);
                self.take(&body, None)?;
                let length = number % 10_000;
                let window = self.granted.take(length);
                assert!(window.is_none_or(|it| it.length >= length));
            }
            Kind::Reply { body, .. } => self.take(&body, Some(number))?,
            Kind::Stream { octets, end, .. } => {
                let length = octets.len() as u64;
                self.incoming.part(&octets, end).map_err(|_| Broken)?;
                self.came.0 += length;
                self.unread += if self.stopped { 0 } else { length };
            }
            Kind::Grant { granted, stop, .. } => {
                self.outgoing.grant(granted);
                self.sent.1 = self.sent.1.max(granted);
                if stop {
                    self.outgoing.stop();
                }
            }
            Kind::Cancel => drop(self.own.withdraw(number)),
            // The program's turns.
            Kind::Ping => {
                let length = usize::try_from(number % 100_000).unwrap_or(0);
                self.outgoing.push(&vec![0; length]);
            }
            Kind::Pong => {
                let read = self.incoming.read().map_or(0, |it| it.len() as u64);
                assert_eq!(read, self.unread);
                self.unread = 0;
            }
            Kind::Credit => {
                self.credit.consume(self.kept);
                self.kept = 0;
                self.credit.announced();
            }
            Kind::GoAway => self.outgoing.finish(),
            Kind::Done { .. } => {
                self.incoming.stop();
                self.stopped = true;
                self.unread = 0;
            }
            // The clock moves.
            Kind::Confirm => {
                let _ = self.grants.permit(number, None, number);
            }
            Kind::Token(octets) => {
                if let Ok((claims, _, _)) = Claims::parse(&octets) {
                    let service = claims.service;
                    self.grants.put(service, Ok(claims.clone()));
                    let permitted = self.grants.permit(service, None, number);
                    let is_open = claims.end == 0 || number < claims.end;
                    let all = claims.methods.is_empty();
                    assert_eq!(permitted.is_ok(), is_open && all);
                    for method in claims.methods {
                        let permitted = self.grants.permit(service, Some(method), number);
                        assert_eq!(permitted.is_ok(), is_open);
                    }
                }
            }
        }
        Ok(())
    }

    /// Takes the items of a message: each window once, and no more octets than it has.
    fn take(&mut self, body: &Body, call: Option<u64>) -> Result<(), Broken> {
        for item in &body.items {
            if let WireItem::Written { window, length } = *item {
                let checked = self.own.check(window, length, call);
                checked.map_err(|_| Broken)?;
                let memory = self.own.take(window).ok_or(Broken)?;
                assert!(length <= memory);
                assert!(self.own.check(window, length, call).is_err());
            }
        }
        Ok(())
    }

    /// No more is kept than was granted, and no more is sent.
    fn check(&mut self) {
        assert!(self.kept <= WINDOW);
        while let Some((part, _)) = self.outgoing.part(LONGEST) {
            assert!(part.len() <= LONGEST);
            self.sent.0 += part.len() as u64;
        }
        assert!(self.sent.0 <= self.sent.1);
        if self.incoming.is_due() {
            let (announced, _) = self.incoming.announce();
            assert!(announced >= self.came.1);
            self.came.1 = announced;
            assert!(!self.incoming.is_due());
        }
        assert!(self.came.0 <= self.came.1);
        assert!(self.unread <= STREAM_WINDOW);
    }
}
