//! KEY_SHARE: agreement on keys, before the session (`rfc-notes/transfer.md` §2.1).
//!
//! ```text
//! KEY_SHARE  method 1 | reserved 3 | identity 16 | share
//! ```

use super::Malformed;
use super::octets::Reader;

/// Octets of a share of SPAKE2.
pub const SPAKE2_SHARE: usize = 33;
/// Octets of a share beside a pre-shared key.
pub const PRESHARED_SHARE: usize = 32;

/// Means of an agreement on keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// SPAKE2 on Ed25519's group, with a password.
    Spake2,
    /// A pre-shared key, and a random number of each end.
    Preshared,
}

/// Share of one end in the keys of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyShare {
    /// The means.
    pub method: Method,
    /// Name of the pre-shared key; zeroes with a password.
    pub identity: [u8; 16],
    /// Element of the group, or random number.
    pub share: Vec<u8>,
}

impl KeyShare {
    pub(super) fn parse(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let method = reader.u8()?;
        let (known, length) = match method {
            1 => (Some(Method::Spake2), SPAKE2_SHARE),
            2 => (Some(Method::Preshared), PRESHARED_SHARE),
            _ => (None, 0),
        };
        let method = reader.value("method", method, known)?;
        reader.array::<3>()?;
        let identity = reader.array()?;
        let share = reader.octets(length)?.to_vec();
        Ok(Self {
            method,
            identity,
            share,
        })
    }

    pub(super) fn emit(&self, out: &mut Vec<u8>) {
        let method = match self.method {
            Method::Spake2 => 1,
            Method::Preshared => 2,
        };
        out.extend([method, 0, 0, 0]);
        out.extend(self.identity);
        out.extend(&self.share);
    }

    /// Octets of the body.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.emit(&mut out);
        out
    }
}
