//! Hashes of files at the server (draft-bryan-ftp-hash): BLAKE3 of `rftpd`, or SHA-256.

use dgiwarp_transfer::hash;
use dgiwarp_transfer::wire::{Entry, Status};
use sha2::{Digest as _, Sha256};

use super::{Session, Trouble, shown};

/// Octets that a server hashes in a second at least.
const RATE: u64 = 20 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Algorithm {
    Blake3,
    Sha256,
}

impl Algorithm {
    fn name(self) -> &'static str {
        match self {
            Self::Blake3 => "BLAKE3",
            Self::Sha256 => "SHA-256",
        }
    }
}

/// Hash of a file whose blocks pass by in their order.
#[derive(Debug)]
pub(super) enum Sum {
    Blake3(Vec<[u8; 32]>),
    Sha256(Box<Sha256>),
}

impl Sum {
    pub(super) fn new(algorithm: Algorithm) -> Self {
        match algorithm {
            Algorithm::Blake3 => Self::Blake3(Vec::new()),
            Algorithm::Sha256 => Self::Sha256(Box::default()),
        }
    }

    /// Adds a block that is there already; `false`: its octets are needed, too.
    pub(super) fn skip(&mut self, hash: &[u8; 32]) -> bool {
        match self {
            Self::Blake3(blocks) => {
                blocks.push(*hash);
                true
            }
            Self::Sha256(_) => false,
        }
    }

    /// Adds the next block.
    pub(super) fn add(&mut self, octets: &[u8], hash: &[u8; 32]) {
        match self {
            Self::Blake3(blocks) => blocks.push(*hash),
            Self::Sha256(hasher) => hasher.update(octets),
        }
    }

    fn finish(self) -> Vec<u8> {
        match self {
            Self::Blake3(blocks) => hash::root(&blocks).to_vec(),
            Self::Sha256(hasher) => hasher.finalize().to_vec(),
        }
    }
}

impl Session<'_> {
    /// Has the server use a hash that is known here, where files are to be verified.
    pub(super) fn choose_hash(&mut self) -> Result<(), String> {
        if !self.copy.verify {
            return Ok(());
        }
        for algorithm in [Algorithm::Blake3, Algorithm::Sha256] {
            let name = algorithm.name();
            if self.control.has_among("HASH", name) {
                let reply = self.control.ask(&[b"OPTS HASH ", name.as_bytes()])?;
                if reply.code == 200 {
                    self.algorithm = Some(algorithm);
                    return Ok(());
                }
            }
        }
        Err("the server has no HASH with BLAKE3 or SHA-256, which --verify needs".into())
    }

    /// Checks that the server has what came or went, of which the hash is known.
    pub(super) fn verify(&mut self, path: &[u8], entry: &Entry) -> Result<(), Trouble> {
        let (Some(sum), Some(algorithm)) = (self.sum.take(), self.algorithm) else {
            return Ok(());
        };
        let here: String = sum.finish().iter().map(|it| format!("{it:02x}")).collect();
        let reply = self
            .control
            .ask_long(&[b"HASH ", path], entry.size / RATE)?;
        if reply.code != 213 {
            return Err(Trouble::refused(path, &reply));
        }
        let mut words = reply.text.split_whitespace();
        let is_same = words
            .next()
            .is_some_and(|it| it.eq_ignore_ascii_case(algorithm.name()))
            && words.next() == Some(&format!("0-{}", entry.size.saturating_sub(1)))
            && words
                .next()
                .is_some_and(|it| it.eq_ignore_ascii_case(&here));
        if is_same {
            return Ok(());
        }
        let text = format!("{}: its {} is another one", shown(path), algorithm.name());
        Err(Trouble::entry(Status::Corrupt, text))
    }
}
