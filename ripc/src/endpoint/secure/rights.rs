//! Keys and tokens of an endpoint, and what they are for: Requests, Replies, and tokens of calls.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::super::peer::Peer;
use super::sealed::Secure;
use crate::engine::admission::Unconfirmed;
use crate::error::Error;
use crate::names::ServiceId;
use crate::security::Security;
use crate::security::handshake::{HandshakeError, Initiator, respond};
use crate::security::keys::PublicKey;
use crate::security::token::{Token, TokenSecret};
use crate::status::{Code, Status};
use crate::system::fill_random;
use crate::wire::hello::{Hello, NOISE_LENGTHS, Refusal, emit_noise, parse_noise};
use crate::wire::message::Kind;
use crate::wire::{FormatError, VERSION};

/// Refused connections that are kept for the program.
const REFUSED: usize = 64;

/// A connection that was not taken, or given up before it was confirmed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Refused {
    /// Address of the peer.
    pub peer: SocketAddr,
    /// Reason, a text for people.
    pub reason: String,
}

/// Keys of an endpoint.
#[derive(Debug)]
pub(crate) struct Identity {
    security: Security,
    /// Key of the numbers of callers.
    mask: [u8; 32],
}

impl Identity {
    pub(crate) fn new(security: Security) -> Result<Self, Error> {
        let mut mask = [0; 32];
        fill_random(&mut mask)?;
        Ok(Self { security, mask })
    }

    /// Number of an instance that has this key: no other key has it, but by chance.
    fn caller(&self, instance: u64, key: &PublicKey) -> u64 {
        let mut octets = instance.to_be_bytes().to_vec();
        octets.extend(key.octets());
        let hash = blake3::keyed_hash(&self.mask, &octets);
        let first = hash.as_bytes().first_chunk();
        first.map_or(1, |first| u64::from_be_bytes(*first)).max(1)
    }
}

/// Rights of peers, and this endpoint's own.
#[derive(Debug, Default)]
pub(crate) struct Rights {
    pub(crate) identity: Option<Arc<Identity>>,
    /// Secret for all services.
    secret: Option<TokenSecret>,
    /// Secrets of services.
    pub(crate) secrets: FxHashMap<ServiceId, TokenSecret>,
    /// Tokens of this endpoint, by service, each with the number of its making.
    tokens: FxHashMap<ServiceId, (u64, Token)>,
    made: u64,
    pub(crate) unconfirmed: Unconfirmed,
    pub(crate) refused: VecDeque<Refused>,
}

impl Rights {
    pub(crate) fn new(identity: Option<Identity>, secret: Option<TokenSecret>) -> Self {
        Self {
            identity: identity.map(Arc::new),
            secret,
            ..Self::default()
        }
    }

    pub(crate) fn add_token(&mut self, token: Token) {
        self.made += 1;
        self.tokens.insert(token.service(), (self.made, token));
    }

    pub(crate) fn secret_of(&self, service: ServiceId) -> Option<&TokenSecret> {
        self.secrets.get(&service).or(self.secret.as_ref())
    }

    pub(crate) fn note(&mut self, peer: SocketAddr, reason: &dyn std::fmt::Display) {
        tracing::warn!(%peer, %reason, "a connection is refused");
        if self.refused.len() >= REFUSED {
            self.refused.pop_front();
        }
        let reason = reason.to_string();
        self.refused.push_back(Refused { peer, reason });
    }

    /// The private data of a Request to `target`, and the handshake that it begins.
    pub(crate) fn greet(
        &self,
        hello: &Hello,
        target: SocketAddr,
    ) -> Result<(Vec<u8>, Option<Initiator>), Status> {
        let mut data = hello.emit();
        let Some(identity) = &self.identity else {
            return Ok((data, None));
        };
        let Some(key) = identity.security.peer_at(target) else {
            let text = format!("no connection to {target}: its key is not known");
            return Err(Status::new(Code::Unauthenticated, text));
        };
        let begun = Initiator::begin(identity.security.key(), &key, &data);
        let (initiator, message) = begun.map_err(|error| {
            let text = format!("no connection to {target}: {error}");
            Status::new(Code::Unauthenticated, text)
        })?;
        emit_noise(&mut data, &message);
        Ok((data, Some(initiator)))
    }
}

/// A Request that is to be accepted.
#[derive(Debug)]
pub(crate) struct Welcome {
    pub(crate) hello: Hello,
    /// Private data of the Reply.
    pub(crate) answer: Vec<u8>,
    pub(crate) secure: Option<Secure>,
}

/// Why a Request is not accepted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unwelcome {
    #[error(transparent)]
    Hello(#[from] FormatError),
    #[error("no handshake, which is required")]
    NoHandshake,
    #[error("the handshake failed: {0}")]
    Handshake(#[from] HandshakeError),
}

impl Unwelcome {
    pub(crate) fn refusal(&self) -> Refusal {
        match self {
            Self::Hello(FormatError::Version(_)) => Refusal::Version,
            Self::Hello(_) => Refusal::Malformed,
            Self::NoHandshake => Refusal::HandshakeRequired,
            Self::Handshake(HandshakeError::Failed) => Refusal::HandshakeFailed,
            Self::Handshake(HandshakeError::UnknownKey(_)) => Refusal::UnknownKey,
        }
    }
}

/// Answers a Request. It needs no lock, for as long as a handshake takes.
pub(crate) fn welcome(
    data: &[u8],
    own: &Hello,
    identity: Option<&Identity>,
) -> Result<Welcome, Unwelcome> {
    let mut hello = Hello::parse(data)?;
    let mut answer = own.emit();
    let Some(identity) = identity else {
        return Ok(Welcome {
            hello,
            answer,
            secure: None,
        });
    };
    if !hello.handshake {
        return Err(Unwelcome::NoHandshake);
    }
    let message = parse_noise(data, NOISE_LENGTHS.0)?;
    let security = &identity.security;
    let knows = |key: &PublicKey| security.knows(key);
    let (sealing, message) = respond(security.key(), (data, message), &answer, knows)?;
    emit_noise(&mut answer, &message);
    let secure = Secure::new(sealing, hello.sealed || own.sealed, true);
    hello.instance = identity.caller(hello.instance, &secure.peer());
    Ok(Welcome {
        hello,
        answer,
        secure: Some(secure),
    })
}

/// Why an Initiator gives up a connection.
pub(crate) type Distrust = (Code, &'static str);

/// Takes the Reply at its Initiator.
pub(crate) fn greeted<T>(
    peer: &mut Peer<T>,
    data: &[u8],
    own: &Hello,
    identity: Option<&Identity>,
) -> Result<(), Distrust> {
    let stranger = (Code::Unavailable, "the peer does not speak RIPC");
    let mut hello = Hello::parse(data).map_err(|_| stranger)?;
    if hello.version != VERSION {
        return Err(stranger);
    }
    if let (Some(initiator), Some(identity)) = (peer.initiator.take(), identity) {
        if !hello.handshake {
            let text = "the peer makes no handshake, which is required";
            return Err((Code::Unauthenticated, text));
        }
        let failed = (
            Code::Unauthenticated,
            "the peer does not prove that it has the required key",
        );
        let message = parse_noise(data, NOISE_LENGTHS.1).map_err(|_| failed)?;
        let sealing = initiator.finish(message, data).map_err(|_| failed)?;
        let secure = Secure::new(sealing, hello.sealed || own.sealed, false);
        hello.instance = identity.caller(hello.instance, &secure.peer());
        peer.secure = Some(secure);
        peer.control(0, Kind::Confirm);
    } else if hello.handshake {
        return Err(stranger);
    }
    peer.greet(&hello, usize::try_from(own.longest).unwrap_or(usize::MAX));
    Ok(())
}

/// Status and reason of a Reject.
pub(crate) fn rejected(data: &[u8]) -> (Code, String) {
    let text = |text: &str| text.to_owned();
    match Refusal::parse(data) {
        Ok((version, Refusal::Version)) => {
            let text = format!("the peer speaks version {version} only");
            (Code::Unavailable, text)
        }
        Ok((_, Refusal::Malformed)) => {
            (Code::Unavailable, text("the peer does not take our hello"))
        }
        Ok((_, Refusal::NoRoom)) => (Code::Unavailable, text("the peer has no room for another")),
        Ok((_, Refusal::HandshakeRequired)) => (
            Code::Unauthenticated,
            text("the peer requires a handshake, and this end has no key"),
        ),
        Ok((_, Refusal::HandshakeFailed)) => (
            Code::Unauthenticated,
            text("the peer does not have the required key"),
        ),
        Ok((_, Refusal::UnknownKey)) => (
            Code::PermissionDenied,
            text("the peer does not know the key of this end"),
        ),
        Err(_) => (Code::Unavailable, text("the peer does not speak RIPC")),
    }
}

/// Queues the token for a service before all other messages, where the peer does not have it.
pub(crate) fn present<T>(rights: &Rights, peer: &mut Peer<T>, service: ServiceId) {
    if let Some((number, token)) = rights.tokens.get(&service)
        && peer.presented.present(service.number(), *number)
    {
        peer.control(0, Kind::Token(token.octets().to_vec()));
    }
}
