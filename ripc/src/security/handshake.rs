//! The handshake of a connection and the keys that it leaves (`rfc-notes/ripc.md`, "Keys and handshake").

use std::fmt;

use snow::{Builder, HandshakeState, TransportState};

use super::keys::{PrivateKey, PublicKey};
use crate::wire::hello::{LEN, NOISE_LENGTHS};
use crate::wire::message::{SEALED_HEADER, sealed_header};

const PROTOCOL: &str = "Noise_IK_25519_ChaChaPoly_BLAKE2s";
/// First octets of the prologue.
const CONTEXT: &[u8; 16] = b"RIPC handshake 1";
/// Octets of a proof of authenticity.
const TAG: usize = 16;
/// Octets by which a sealed message is longer than the message inside.
pub(crate) const SEALED_OVERHEAD: usize = SEALED_HEADER + TAG;
/// Longest sealed message: Noise has transport messages of up to 65,535 octets.
pub(crate) const LONGEST_SEALED: usize = 65_535;

/// Why there is no handshake, or no message inside of a sealed one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HandshakeError {
    /// For another key, of another hello, changed or repeated.
    #[error("octets that are not authentic")]
    Failed,
    /// A client that is not among the known ones.
    #[error("the key {0:?} is not known")]
    UnknownKey(PublicKey),
}

impl From<snow::Error> for HandshakeError {
    fn from(_: snow::Error) -> Self {
        Self::Failed
    }
}

fn build<T>(
    key: &PrivateKey,
    hello: &[u8],
    ephemeral: Option<&[u8; 32]>,
    finish: impl FnOnce(Builder<'_>) -> Result<T, snow::Error>,
) -> Result<T, HandshakeError> {
    let mut prologue = CONTEXT.to_vec();
    prologue.extend(hello.iter().take(LEN));
    let builder = Builder::new(PROTOCOL.parse()?).prologue(&prologue)?;
    let mut builder = builder.local_private_key(key.octets())?;
    if let Some(ephemeral) = ephemeral {
        builder = builder.fixed_ephemeral_key_for_testing_only(ephemeral);
    }
    Ok(finish(builder)?)
}

/// An Initiator that waits for the Reply.
pub(crate) struct Initiator {
    state: Box<HandshakeState>,
    peer: PublicKey,
}

impl Initiator {
    /// Begins a handshake with the holder of `peer`. Returns the handshake message behind the hello.
    pub(crate) fn begin(
        key: &PrivateKey,
        peer: &PublicKey,
        hello: &[u8],
    ) -> Result<(Self, Vec<u8>), HandshakeError> {
        Self::begin_with(key, peer, hello, None)
    }

    fn begin_with(
        key: &PrivateKey,
        peer: &PublicKey,
        hello: &[u8],
        ephemeral: Option<&[u8; 32]>,
    ) -> Result<(Self, Vec<u8>), HandshakeError> {
        let mut state = build(key, hello, ephemeral, |builder| {
            builder.remote_public_key(peer.octets())?.build_initiator()
        })?;
        let mut message = vec![0; NOISE_LENGTHS.0];
        state.write_message(&[], &mut message)?;
        let state = Box::new(state);
        Ok((Self { state, peer: *peer }, message))
    }

    /// Takes the handshake message of the Reply, and the hello before it.
    pub(crate) fn finish(
        mut self,
        message: &[u8],
        hello: &[u8],
    ) -> Result<Sealing, HandshakeError> {
        let mut payload = [0; LEN];
        let length = self.state.read_message(message, &mut payload)?;
        if hello.get(..LEN) != payload.get(..length) {
            return Err(HandshakeError::Failed);
        }
        Ok(Sealing {
            transport: self.state.into_transport_mode()?,
            peer: self.peer,
        })
    }
}

impl fmt::Debug for Initiator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Initiator(to {})", self.peer)
    }
}

/// Answers the handshake message behind a hello with one behind `own`. Returns the keys, and the message.
pub(crate) fn respond(
    key: &PrivateKey,
    (hello, message): (&[u8], &[u8]),
    own: &[u8],
    is_known: impl FnOnce(&PublicKey) -> bool,
) -> Result<(Sealing, Vec<u8>), HandshakeError> {
    respond_with(key, (hello, message), own, is_known, None)
}

fn respond_with(
    key: &PrivateKey,
    (hello, message): (&[u8], &[u8]),
    own: &[u8],
    is_known: impl FnOnce(&PublicKey) -> bool,
    ephemeral: Option<&[u8; 32]>,
) -> Result<(Sealing, Vec<u8>), HandshakeError> {
    let mut state = build(key, hello, ephemeral, |builder| builder.build_responder())?;
    let length = state.read_message(message, &mut [0; LEN])?;
    let client = state.get_remote_static().and_then(|it| it.try_into().ok());
    let (0, Some(client)) = (length, client) else {
        return Err(HandshakeError::Failed);
    };
    let peer = PublicKey::new(client);
    if !is_known(&peer) {
        return Err(HandshakeError::UnknownKey(peer));
    }
    let mut answer = vec![0; NOISE_LENGTHS.1];
    let hello = own.get(..LEN).ok_or(HandshakeError::Failed)?;
    state.write_message(hello, &mut answer)?;
    let transport = state.into_transport_mode()?;
    Ok((Sealing { transport, peer }, answer))
}

/// Keys of a connection behind its handshake.
pub(crate) struct Sealing {
    transport: TransportState,
    /// Public key of the other end.
    pub(crate) peer: PublicKey,
}

impl Sealing {
    /// Makes `out` the sealed message with this message inside.
    pub(crate) fn seal(&mut self, message: &[u8], out: &mut Vec<u8>) -> Result<(), HandshakeError> {
        out.clear();
        out.extend(sealed_header());
        out.resize(message.len() + SEALED_OVERHEAD, 0);
        self.transport
            .write_message(message, &mut out[SEALED_HEADER..])?;
        Ok(())
    }

    /// Makes `out` the message inside of a transport message. One that is not the next one is not authentic.
    pub(crate) fn open(&mut self, sealed: &[u8], out: &mut Vec<u8>) -> Result<(), HandshakeError> {
        out.clear();
        out.resize(sealed.len(), 0);
        let length = self.transport.read_message(sealed, out)?;
        out.truncate(length);
        Ok(())
    }
}

impl fmt::Debug for Sealing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sealing(with {})", self.peer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::security::keys::{KEY, unhex};
    use crate::wire::examples::example;
    use crate::wire::hello::parse_noise;
    use crate::wire::message::sealed;
    use proptest::prelude::*;

    const ALICE: &str = "77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a";
    const BOB: &str = "5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb";

    fn key(digits: &str) -> PrivateKey {
        PrivateKey::new(unhex(digits).unwrap().try_into().unwrap())
    }

    /// Both ends of a handshake between hellos of this octet.
    fn ends(hello: u8) -> (Sealing, Sealing) {
        let (client, server) = (PrivateKey::new([1; KEY]), PrivateKey::new([2; KEY]));
        let (mine, own) = ([hello; LEN], [9; LEN]);
        let begun = Initiator::begin(&client, &server.public(), &mine);
        let (initiator, request) = begun.unwrap();
        let knows = |key: &PublicKey| *key == client.public();
        let (responder, reply) = respond(&server, (&mine, &request), &own, knows).unwrap();
        let initiator = initiator.finish(&reply, &own).unwrap();
        assert_eq!(responder.peer, client.public());
        assert_eq!(initiator.peer, server.public());
        (initiator, responder)
    }

    /// The examples were made by another implementation.
    #[test]
    fn the_examples_are_of_their_keys() {
        let (request, reply) = (example("handshake-request"), example("handshake-reply"));
        let bob = key(BOB).public();
        let begun = Initiator::begin_with(&key(ALICE), &bob, &request, Some(&[0x11; 32]));
        let (initiator, message) = begun.unwrap();
        assert_eq!(message, parse_noise(&request, 96).unwrap());
        let known = |it: &PublicKey| *it == key(ALICE).public();
        let received = (&request[..], &message[..]);
        let answered = respond_with(&key(BOB), received, &reply, known, Some(&[0x22; 32]));
        let (mut responder, message) = answered.unwrap();
        assert_eq!(message, parse_noise(&reply, 80).unwrap());
        let mut initiator = initiator.finish(&message, &reply).unwrap();
        let mut confirm = vec![13];
        confirm.resize(16, 0);
        confirm.extend((1_u64 << 20).to_be_bytes());
        let (mut octets, mut inside) = (Vec::new(), Vec::new());
        initiator.seal(&confirm, &mut octets).unwrap();
        assert_eq!(octets, example("sealed-confirm"));
        let transport = sealed(&octets).unwrap().unwrap();
        responder.open(transport, &mut inside).unwrap();
        assert_eq!(inside, confirm);
    }

    #[test]
    fn strangers_and_changed_octets_fail() {
        let (client, server) = (PrivateKey::new([1; KEY]), PrivateKey::new([2; KEY]));
        let (mine, own) = ([7; LEN], [9; LEN]);
        let begin = || Initiator::begin(&client, &server.public(), &mine).unwrap();
        let respond_to = |key: &PrivateKey, hello: &[u8], request: &[u8], known| {
            respond(key, (hello, request), &own, |_| known).map(|(_, reply)| reply)
        };
        let failed = Err(HandshakeError::Failed);
        let (_, request) = begin();
        // Another server, another hello, and a client that is not known.
        let other = PrivateKey::new([3; KEY]);
        assert_eq!(respond_to(&other, &mine, &request, true), failed);
        assert_eq!(respond_to(&server, &[8; LEN], &request, true), failed);
        let unknown = Err(HandshakeError::UnknownKey(client.public()));
        assert_eq!(respond_to(&server, &mine, &request, false), unknown);
        for at in 0..request.len() {
            let mut changed = request.clone();
            changed[at] ^= 1;
            assert_eq!(respond_to(&server, &mine, &changed, true), failed, "{at}");
            assert_eq!(respond_to(&server, &mine, &request[..at], true), failed);
        }
        // The Reply of another server, with another hello, or to another Request.
        let reply = respond_to(&server, &mine, &request, true).unwrap();
        let (initiator, _) = begin();
        assert!(initiator.finish(&reply, &own).is_err());
        for at in 0..reply.len() {
            let (initiator, request) = begin();
            let mut reply = respond_to(&server, &mine, &request, true).unwrap();
            reply[at] ^= 1;
            assert!(initiator.finish(&reply, &own).is_err(), "{at}");
        }
        let (initiator, request) = begin();
        let reply = respond_to(&server, &mine, &request, true).unwrap();
        assert!(initiator.finish(&reply, &[8; LEN]).is_err());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn sealed_messages_are_opened_once_in_their_order(
            messages in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..300), 1..6),
            flip in any::<proptest::sample::Index>(),
        ) {
            let (mut from, mut to) = ends(5);
            let mut inside = Vec::new();
            let mut earlier: Option<Vec<u8>> = None;
            for message in &messages {
                let mut octets = Vec::new();
                from.seal(message, &mut octets).unwrap();
                prop_assert_eq!(octets.len(), message.len() + SEALED_OVERHEAD);
                let transport = sealed(&octets).unwrap().unwrap().to_vec();
                // A flipped bit, a cut message, and one that came before.
                let mut changed = transport.clone();
                let at = flip.index(changed.len());
                changed[at] ^= 0x10;
                prop_assert!(to.open(&changed, &mut inside).is_err());
                prop_assert!(to.open(&transport[..at], &mut inside).is_err());
                if let Some(earlier) = &earlier {
                    prop_assert!(to.open(earlier, &mut inside).is_err());
                }
                // Its sender takes none of its own.
                prop_assert!(from.open(&transport, &mut inside).is_err());
                to.open(&transport, &mut inside).unwrap();
                prop_assert_eq!(&inside, message);
                earlier = Some(transport);
            }
            // The other direction has keys of its own.
            let mut octets = Vec::new();
            to.seal(b"back", &mut octets).unwrap();
            from.open(sealed(&octets).unwrap().unwrap(), &mut inside).unwrap();
            prop_assert_eq!(&inside, b"back");
        }
    }
}
