//! Protection of frames and blocks (`rfc-notes/transfer.md` §2.1): keys that both ends agree on, and AEAD_AES_256_GCM (RFC 5116 §5.2).

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, Tag, UnboundKey};
use spake2::{Ed25519Group, Identity, Password, Spake2};

use crate::wire::{HEADER, KeyShare, Malformed, Method, PRESHARED_SHARE, PROTECTED, TAG};

/// Octets behind an encrypted block in its slot: its number and the authentication tag.
pub(crate) const TRAILER: usize = 8 + TAG;
/// Octets by which slots of encrypted blocks are longer than blocks: the trailer, and what keeps slots at whole cache lines.
pub(crate) const SLOT_OVERHEAD: u32 = 64;

/// Names of both ends in SPAKE2.
const DIALLER: &[u8] = b"dgiwarp transfer 1 dialler";
const LISTENER: &[u8] = b"dgiwarp transfer 1 listener";
/// Contexts of BLAKE3's key derivation.
const IDENTITY: &str = "dgiwarp transfer 1 identity of a pre-shared key";
const DIALLER_FRAMES: &str = "dgiwarp transfer 1 frames of the dialler";
const LISTENER_FRAMES: &str = "dgiwarp transfer 1 frames of the listener";
const BLOCKS: &str = "dgiwarp transfer 1 blocks";

/// A secret of both ends, from which the keys of a connection are made.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Secret {
    /// A password, which may be short: neither end tells it, and a peer tries one for each connection.
    Password(String),
    /// A key that nobody can guess, and that came to both ends by a way that nobody else reads.
    Preshared([u8; 16]),
}

/// Without the secret.
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Password(_) => "Password",
            Self::Preshared(_) => "Preshared",
        })
    }
}

impl Secret {
    /// Whether the share is by this secret's means, and names it.
    pub(crate) fn is_of(&self, share: &KeyShare) -> bool {
        match self {
            Self::Password(_) => share.method == Method::Spake2,
            Self::Preshared(key) => {
                share.method == Method::Preshared && share.identity == identity(key)
            }
        }
    }
}

/// Name of a pre-shared key on the wire.
fn identity(key: &[u8; 16]) -> [u8; 16] {
    let hash = blake3::derive_key(IDENTITY, key);
    std::array::from_fn(|index| hash[index])
}

/// Part of an end in the agreement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Dialler,
    Listener,
}

enum State {
    Spake2(Spake2<Ed25519Group>),
    Preshared([u8; 16]),
}

/// One end's part of an agreement on keys, from its share to the peer's.
pub(crate) struct Agreement {
    part: Part,
    share: KeyShare,
    state: State,
}

impl Agreement {
    /// Draws a share.
    pub(crate) fn begin(secret: &Secret, part: Part) -> std::io::Result<Self> {
        let (share, state) = match secret {
            Secret::Password(text) => {
                let password = Password::new(text.as_bytes());
                let (dialler, listener) = (Identity::new(DIALLER), Identity::new(LISTENER));
                let start = match part {
                    Part::Dialler => Spake2::<Ed25519Group>::start_a,
                    Part::Listener => Spake2::<Ed25519Group>::start_b,
                };
                let (state, share) = start(&password, &dialler, &listener);
                let method = Method::Spake2;
                let identity = [0; 16];
                let share = KeyShare {
                    method,
                    identity,
                    share,
                };
                (share, State::Spake2(state))
            }
            Secret::Preshared(key) => {
                let mut share = vec![0; PRESHARED_SHARE];
                getrandom::fill(&mut share).map_err(std::io::Error::other)?;
                let method = Method::Preshared;
                let identity = identity(key);
                let share = KeyShare {
                    method,
                    identity,
                    share,
                };
                (share, State::Preshared(*key))
            }
        };
        Ok(Self { part, share, state })
    }

    /// The share for the peer.
    pub(crate) fn share(&self) -> &KeyShare {
        &self.share
    }

    /// The keys, from the peer's share; `None` for a share that belongs to other means or to no element of the group. Another secret of the peer's shows at
    /// its first frame, which is not authentic.
    pub(crate) fn finish(self, peer: &KeyShare) -> Option<Keys> {
        if peer.method != self.share.method || peer.identity != self.share.identity {
            return None;
        }
        let mut material = match self.state {
            State::Spake2(state) => state.finish(&peer.share).ok()?,
            State::Preshared(key) => key.to_vec(),
        };
        let (first, second) = match self.part {
            Part::Dialler => (&self.share, peer),
            Part::Listener => (peer, &self.share),
        };
        material.extend(first.to_bytes());
        material.extend(second.to_bytes());
        let key = |context| aead(&blake3::derive_key(context, &material));
        let (own, other) = match self.part {
            Part::Dialler => (DIALLER_FRAMES, LISTENER_FRAMES),
            Part::Listener => (LISTENER_FRAMES, DIALLER_FRAMES),
        };
        Some(Keys {
            frames: FrameProtection {
                own: Direction::new(key(own)?),
                peer: Direction::new(key(other)?),
            },
            blocks: BlockProtection {
                key: key(BLOCKS)?,
                numbers: AtomicU64::new(0),
            },
        })
    }
}

fn aead(key: &[u8; 32]) -> Option<LessSafeKey> {
    UnboundKey::new(&AES_256_GCM, key)
        .ok()
        .map(LessSafeKey::new)
}

/// A number as a nonce of twelve octets.
fn nonce(number: u64) -> Nonce {
    let mut octets = [0; 12];
    octets[4..].copy_from_slice(&number.to_be_bytes());
    Nonce::assume_unique_for_key(octets)
}

/// Keys of one connection.
#[derive(Debug)]
pub(crate) struct Keys {
    pub(crate) frames: FrameProtection,
    /// Keys of the blocks of a session, where this is its first connection.
    pub(crate) blocks: BlockProtection,
}

/// Frames of one direction, numbered from 0.
#[derive(Debug)]
struct Direction {
    key: LessSafeKey,
    next: u64,
}

impl Direction {
    fn new(key: LessSafeKey) -> Self {
        Self { key, next: 0 }
    }

    fn next(&mut self) -> Nonce {
        let number = self.next;
        self.next += 1;
        nonce(number)
    }
}

/// Protection of the frames of a connection. Their numbers are not sent, as frames of one direction are in order.
#[derive(Debug)]
pub(crate) struct FrameProtection {
    own: Direction,
    peer: Direction,
}

impl FrameProtection {
    /// Protects a frame with its header.
    pub(crate) fn protect(&mut self, frame: &mut Vec<u8>) {
        let Some((header, body)) = frame.split_first_chunk_mut::<HEADER>() else {
            return;
        };
        header[3] |= PROTECTED;
        let length = u32::try_from(body.len() + TAG).unwrap_or(u32::MAX);
        header[4..8].copy_from_slice(&length.to_be_bytes());
        let number = self.own.next();
        let sealed = self
            .own
            .key
            .seal_in_place_separate_tag(number, Aad::from(*header), body);
        // It fails for bodies of gigabytes only.
        if let Ok(tag) = sealed {
            frame.extend(tag.as_ref());
        }
    }

    /// Decrypts the body of a protected frame.
    pub(crate) fn open<'a>(
        &mut self,
        header: &[u8; HEADER],
        body: &'a mut [u8],
    ) -> Result<&'a [u8], Malformed> {
        let number = self.peer.next();
        let opened = self
            .peer
            .key
            .open_in_place(number, Aad::from(*header), body);
        let opened = opened.map_err(|_| Malformed::NotAuthentic)?;
        Ok(opened)
    }
}

/// Encryption of the blocks of a session. A block's number goes with it, since blocks arrive in any order and are encrypted by several threads.
#[derive(Debug)]
pub(crate) struct BlockProtection {
    key: LessSafeKey,
    numbers: AtomicU64,
}

impl BlockProtection {
    /// Encrypts a block in place; returns what follows it in the slot.
    pub(crate) fn encrypt(&self, block: &mut [u8]) -> [u8; TRAILER] {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let sealed = self
            .key
            .seal_in_place_separate_tag(nonce(number), Aad::empty(), block);
        let mut trailer = [0; TRAILER];
        trailer[..8].copy_from_slice(&number.to_be_bytes());
        // A block of at most 64 MiB never fails; one without its tag is refused by the peer.
        if let Ok(tag) = sealed {
            trailer[8..].copy_from_slice(tag.as_ref());
        }
        trailer
    }

    /// Decrypts a block in place; false where it is not authentic.
    pub(crate) fn decrypt(&self, block: &mut [u8], trailer: &[u8; TRAILER]) -> bool {
        let [n0, n1, n2, n3, n4, n5, n6, n7, tag @ ..] = *trailer;
        let number = u64::from_be_bytes([n0, n1, n2, n3, n4, n5, n6, n7]);
        let key = &self.key;
        let opened =
            key.open_in_place_separate_tag(nonce(number), Aad::empty(), Tag::from(tag), block, 0..);
        opened.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Frame, Header, Stored};

    const PRESHARED: Secret = Secret::Preshared([0xaa; 16]);

    /// Octets of an example of the specification.
    fn example(name: &str) -> Vec<u8> {
        let text = include_str!("../../rfc-notes/transfer.md");
        let start = format!("```protected\n{name}\n");
        let (_, rest) = text.split_once(&start).unwrap();
        let (digits, _) = rest.split_once("```").unwrap();
        let digits: String = digits.split_whitespace().collect();
        let octet = |at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
        (0..digits.len()).step_by(2).map(octet).collect()
    }

    /// An end whose random number is not random.
    fn end_of_example(part: Part, octet: u8) -> Agreement {
        let mut end = Agreement::begin(&PRESHARED, part).unwrap();
        end.share.share.fill(octet);
        end
    }

    fn keys_of_example() -> (Keys, Keys) {
        let ends = (
            end_of_example(Part::Dialler, 0x0a),
            end_of_example(Part::Listener, 0x0b),
        );
        let shares = (ends.0.share().clone(), ends.1.share().clone());
        (
            ends.0.finish(&shares.1).unwrap(),
            ends.1.finish(&shares.0).unwrap(),
        )
    }

    fn keys(one: &Secret, other: &Secret) -> (Keys, Keys) {
        let dialler = Agreement::begin(one, Part::Dialler).unwrap();
        let listener = Agreement::begin(other, Part::Listener).unwrap();
        let shares = (dialler.share().clone(), listener.share().clone());
        (
            dialler.finish(&shares.1).unwrap(),
            listener.finish(&shares.0).unwrap(),
        )
    }

    fn protected(keys: &mut Keys, taken: u32, frame: &Frame) -> Vec<u8> {
        let mut octets = frame.emit(taken);
        keys.frames.protect(&mut octets);
        octets
    }

    fn opened(keys: &mut Keys, mut octets: Vec<u8>) -> Result<Frame, Malformed> {
        let (first, body) = octets.split_first_chunk_mut::<HEADER>().unwrap();
        let header = Header::parse(first)?;
        assert_eq!(header.length as usize, body.len());
        Frame::parse(header.kind & !PROTECTED, keys.frames.open(first, body)?)
    }

    fn password(text: &str) -> Secret {
        Secret::Password(text.into())
    }

    #[test]
    fn frames_and_blocks_are_those_of_the_specification() {
        let (mut dialler, mut listener) = keys_of_example();
        let mut sent = protected(&mut dialler, 0, &Frame::Ping);
        sent.extend(protected(&mut dialler, 7, &Frame::Finish));
        assert_eq!(sent, example("dialler"));
        let stored = Frame::Stored(Stored { files: vec![1] });
        assert_eq!(protected(&mut listener, 4, &stored), example("listener"));
        let mut block = b"a short block".to_vec();
        let trailer = dialler.blocks.encrypt(&mut block);
        block.extend(trailer);
        assert_eq!(block, example("block"));
    }

    #[test]
    fn ends_with_one_secret_read_each_other() {
        for secret in [PRESHARED, password("badufiko-gorula"), password("")] {
            let (mut dialler, mut listener) = keys(&secret, &secret);
            for files in [vec![], vec![1], (0..2000).collect()] {
                let frame = Frame::Stored(Stored { files });
                let octets = protected(&mut dialler, 3, &frame);
                assert_eq!(opened(&mut listener, octets).as_ref(), Ok(&frame));
                let octets = protected(&mut listener, 3, &frame);
                assert_eq!(opened(&mut dialler, octets), Ok(frame));
            }
        }
    }

    #[test]
    fn other_secrets_other_connections_and_other_directions_have_other_keys() {
        let refused = Err(Malformed::NotAuthentic);
        let (mut dialler, mut listener) = keys(&password("one"), &password("other"));
        let octets = protected(&mut dialler, 0, &Frame::Ping);
        assert_eq!(opened(&mut listener, octets), refused);
        for secret in [PRESHARED, password("one")] {
            let (mut dialler, _) = keys(&secret, &secret);
            let (mut again, mut listener) = keys(&secret, &secret);
            let octets = protected(&mut dialler, 0, &Frame::Ping);
            assert_eq!(opened(&mut listener, octets), refused);
            let own = protected(&mut again, 0, &Frame::Ping);
            assert_eq!(opened(&mut again, own), refused);
        }
    }

    #[test]
    fn changed_repeated_and_reordered_frames_are_refused() {
        let refused = Err(Malformed::NotAuthentic);
        let frame = Frame::Stored(Stored { files: vec![1] });
        let octets = protected(&mut keys_of_example().0, 4, &frame);
        for bit in 0..octets.len() * 8 {
            let mut changed = octets.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            // Magic, version and length are no matter of authentication, and the highest bit of the kind is none of this.
            if (0..24).contains(&bit) || (32..64).contains(&bit) || bit == 31 {
                continue;
            }
            assert_eq!(opened(&mut keys_of_example().1, changed), refused, "{bit}");
        }
        let (mut dialler, mut listener) = keys_of_example();
        let first = protected(&mut dialler, 0, &frame);
        let second = protected(&mut dialler, 0, &frame);
        assert_ne!(first, second);
        assert_eq!(opened(&mut keys_of_example().1, second.clone()), refused);
        assert_eq!(opened(&mut listener, first.clone()), Ok(frame.clone()));
        assert_eq!(opened(&mut listener, first), refused);
    }

    #[test]
    fn blocks_have_numbers_and_are_refused_where_anything_is_changed() {
        let (source, sink) = keys_of_example();
        let plain = vec![7; 100];
        let mut numbers = Vec::new();
        for _ in 0..3 {
            let mut block = plain.clone();
            let trailer = source.blocks.encrypt(&mut block);
            numbers.push(trailer[..8].to_vec());
            for at in [0, 99, 100, 107, 108, 123] {
                let (mut changed, mut end) = (block.clone(), trailer);
                match at {
                    0..100 => changed[at] ^= 1,
                    _ => end[at - 100] ^= 1,
                }
                assert!(!sink.blocks.decrypt(&mut changed, &end), "{at}");
            }
            assert!(sink.blocks.decrypt(&mut block, &trailer));
            assert_eq!(block, plain);
        }
        numbers.dedup();
        assert_eq!(numbers.len(), 3);
    }

    #[test]
    fn shares_of_other_means_and_no_elements_of_the_group_agree_on_nothing() {
        let listener = |secret| Agreement::begin(secret, Part::Listener).unwrap();
        let code = password("one");
        let share = |secret: &Secret| {
            let dialler = Agreement::begin(secret, Part::Dialler).unwrap();
            dialler.share().clone()
        };
        let (by_code, by_key) = (share(&code), share(&PRESHARED));
        assert!(code.is_of(&by_code) && PRESHARED.is_of(&by_key));
        assert!(!code.is_of(&by_key) && !PRESHARED.is_of(&by_code));
        assert!(!Secret::Preshared([0xab; 16]).is_of(&by_key));
        assert!(listener(&code).finish(&by_key).is_none());
        assert!(listener(&PRESHARED).finish(&by_code).is_none());
        assert!(
            listener(&Secret::Preshared([0xab; 16]))
                .finish(&by_key)
                .is_none()
        );
        // Of the other side, too short, no point of the curve.
        let own = listener(&code).share().clone();
        assert!(listener(&code).finish(&own).is_none());
        let mut no_point = vec![0; 33];
        (no_point[0], no_point[1]) = (b'A', 2);
        for octets in [vec![], vec![b'A'; 32], no_point] {
            let mut bad = by_code.clone();
            bad.share = octets;
            assert!(listener(&code).finish(&bad).is_none());
        }
    }
}
