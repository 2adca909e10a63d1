//! Numbers that an outsider cannot predict: cookies, sink STags, nonces (§6, §7.1).

use std::hash::{Hash, Hasher};

use dgiwarp_codec::split_header;
use siphasher::sip::SipHasher24;

use super::DropReason;

/// Use of a number. Numbers of one kind reveal none of another kind.
#[derive(Debug, Clone, Copy, Hash)]
enum Kind {
    Cookie,
    SinkStag,
    Nonce,
}

/// The key of a QP, 128 random bits drawn when it is created or reset.
///
/// All random numbers of a running QP are the SipHash-2-4 of a counter under this key, so that no generator is needed and a test
/// repeats a run exactly.
#[derive(Clone, Copy)]
pub struct Secret([u64; 2]);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Proof that a requester receives at the address it sends from (§6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cookie(u64);

impl Cookie {
    /// Length in octets.
    pub const LEN: usize = 8;

    /// The cookie that was received.
    #[must_use]
    pub const fn new(value: u64) -> Self {
        Self(value)
    }

    /// Its value.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Splits a cookie, where the segment has one, off the octets behind header and extension.
    pub(super) fn split(
        with_cookie: bool,
        rest: &[u8],
    ) -> Result<(Option<Self>, &[u8]), DropReason> {
        if !with_cookie {
            return Ok((None, rest));
        }
        let (&cookie, rest) =
            split_header::<{ Self::LEN }>(rest).map_err(|_| DropReason::Malformed)?;
        Ok((Some(Self(u64::from_be_bytes(cookie))), rest))
    }
}

impl Secret {
    /// The key in two halves.
    #[must_use]
    pub const fn new(key: [u64; 2]) -> Self {
        Self(key)
    }

    fn mac(&self, kind: Kind, of: impl Hash) -> u64 {
        let [k0, k1] = self.0;
        let mut hasher = SipHasher24::new_with_keys(k0, k1);
        kind.hash(&mut hasher);
        of.hash(&mut hasher);
        hasher.finish()
    }

    /// The cookie of a requester at `peer` with this epoch, for the QP with this number.
    #[must_use]
    pub fn cookie(&self, qpn: u32, peer: &impl Hash, epoch: u32) -> Cookie {
        Cookie(self.mac(Kind::Cookie, (qpn, peer, epoch)))
    }

    pub(super) fn sink_stag(&self, counter: u64) -> u32 {
        let [a, b, c, d, ..] = self.mac(Kind::SinkStag, counter).to_be_bytes();
        u32::from_be_bytes([a, b, c, d])
    }

    pub(super) fn nonce(&self, counter: u64) -> u64 {
        self.mac(Kind::Nonce, counter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cookie_is_bound_to_key_qpn_peer_and_epoch() {
        let secret = Secret::new([1, 2]);
        let cookie = secret.cookie(3, &'a', 4);
        assert_eq!(secret.cookie(3, &'a', 4), cookie);
        assert_ne!(Secret::new([1, 3]).cookie(3, &'a', 4), cookie);
        assert_ne!(secret.cookie(5, &'a', 4), cookie);
        assert_ne!(secret.cookie(3, &'b', 4), cookie);
        assert_ne!(secret.cookie(3, &'a', 5), cookie);
    }

    #[test]
    fn kinds_are_independent_and_the_key_is_not_printed() {
        let secret = Secret::new([0x1234_5678, 2]);
        assert_ne!(secret.nonce(1) >> 32, u64::from(secret.sink_stag(1)));
        assert_eq!(format!("{secret:?}"), "Secret(..)");
        assert_ne!(secret.sink_stag(1), secret.sink_stag(2));
        assert_ne!(secret.nonce(1), secret.nonce(2));
    }
}
