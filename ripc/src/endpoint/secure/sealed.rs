//! Messages of a connection with a handshake: which are sealed, and which come first.

use crate::security::handshake::{HandshakeError, LONGEST_SEALED, SEALED_OVERHEAD, Sealing};
use crate::security::keys::PublicKey;
use crate::wire::FormatError;
use crate::wire::message::{Kind, Message, sealed};

/// Fault of a peer in the sealing of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadSeal {
    #[error("a sealed message without a handshake")]
    NoHandshake,
    #[error("a message that has to be sealed")]
    Open,
    #[error("a sealed message that has not to be")]
    Sealed,
    #[error("a sealed message: {0}")]
    Forged(HandshakeError),
    #[error("a first message that confirms no handshake")]
    Unconfirmed,
    #[error("a CONFIRM out of its place")]
    Confirmed,
    #[error("a window or a long item where all messages are sealed")]
    OneSided,
}

/// Keys of a connection.
#[derive(Debug)]
pub(crate) struct Secure {
    sealing: Sealing,
    /// All messages are sealed.
    pub(crate) all: bool,
    /// CONFIRM is still to come.
    pub(crate) awaits: bool,
    /// Message that was sealed or opened last.
    octets: Vec<u8>,
}

impl Secure {
    /// The keys of a handshake. A Responder `awaits` CONFIRM.
    pub(crate) fn new(sealing: Sealing, all: bool, awaits: bool) -> Self {
        Self {
            sealing,
            all,
            awaits,
            octets: Vec::new(),
        }
    }

    /// Key of the peer.
    pub(crate) fn peer(&self) -> PublicKey {
        self.sealing.peer
    }

    /// Longest message inside of a sealed one of so many octets.
    pub(crate) fn longest(&self, longest: usize) -> usize {
        if self.all {
            longest.min(LONGEST_SEALED) - SEALED_OVERHEAD
        } else {
            longest
        }
    }

    /// Seals these octets of a message, where it is to be sealed.
    pub(crate) fn seal(
        &mut self,
        message: &Message,
        octets: &mut Vec<u8>,
    ) -> Result<(), HandshakeError> {
        if self.all || message.is_secret() {
            self.sealing.seal(octets, &mut self.octets)?;
            std::mem::swap(octets, &mut self.octets);
        }
        Ok(())
    }

    fn read(&mut self, octets: &[u8]) -> Result<Result<(Message, usize), FormatError>, BadSeal> {
        let parsed = match sealed(octets) {
            Some(transport) => transport.map(|transport| {
                let opened = self.sealing.open(transport, &mut self.octets);
                opened.map(|()| Message::parse(&self.octets))
            }),
            None => Ok(Ok(Message::parse(octets))),
        };
        let was_sealed = sealed(octets).is_some();
        let length = if was_sealed {
            self.octets.len()
        } else {
            octets.len()
        };
        let message = match parsed {
            Ok(Ok(Ok(message))) => message,
            Ok(Err(error)) => return Err(BadSeal::Forged(error)),
            Ok(Ok(Err(error))) | Err(error) => return Ok(Err(error)),
        };
        let has_to_be = self.all || message.is_secret();
        match (was_sealed, has_to_be) {
            (false, true) => return Err(BadSeal::Open),
            (true, false) => return Err(BadSeal::Sealed),
            (true, true) | (false, false) => {}
        }
        match (self.awaits, message.kind == Kind::Confirm) {
            (true, false) => return Err(BadSeal::Unconfirmed),
            (false, true) => return Err(BadSeal::Confirmed),
            (true, true) | (false, false) => self.awaits = false,
        }
        if self.all && !message.is_whole() {
            return Err(BadSeal::OneSided);
        }
        Ok(Ok((message, length)))
    }
}

/// Reads a message of a connection: itself, and its length without the seal.
pub(crate) fn read(
    secure: Option<&mut Secure>,
    octets: &[u8],
) -> Result<Result<(Message, usize), FormatError>, BadSeal> {
    if let Some(secure) = secure {
        return secure.read(octets);
    }
    if sealed(octets).is_some() {
        return Err(BadSeal::NoHandshake);
    }
    let message = match Message::parse(octets) {
        Ok(message) => message,
        Err(error) => return Ok(Err(error)),
    };
    if message.kind == Kind::Confirm {
        return Err(BadSeal::NoHandshake);
    }
    Ok(Ok((message, octets.len())))
}
